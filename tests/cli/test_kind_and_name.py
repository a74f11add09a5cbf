"""`podgroup/default/train`, as `-o name` prints it, is accepted as kind and name."""

from __future__ import annotations

import pytest

from batchq.cli.output.values import group_key, kind_and_name, name_of_kind
from batchq.errors import UsageError
from tests.builders import a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage


@pytest.mark.parametrize(
    ("word", "kind", "name"),
    [
        ("train", "PodGroup", "train"),
        ("lab/train", "PodGroup", "lab/train"),
        ("podgroup/lab/train", "PodGroup", "lab/train"),
        ("pod/lab/train-main-0", "Pod", "lab/train-main-0"),
        ("queue/default", "Queue", "default"),
        # `pod` and `job` may be namespaces.
        ("pod/train", "PodGroup", "pod/train"),
    ],
)
def test_a_word_names_an_object(word: str, kind: str, name: str) -> None:
    assert kind_and_name(word) == (kind, name)


def test_a_word_with_another_kind_is_refused() -> None:
    assert group_key("podgroup/lab/train", "default") == "lab/train"
    assert group_key("train", "lab") == "lab/train"
    assert name_of_kind("Node", "node/n1") == "n1"
    with pytest.raises(UsageError, match="expected a PodGroup, found the Queue default"):
        group_key("queue/default", "default")
    with pytest.raises(UsageError, match=r"expected one of podgroup, .* found 'podgruop'"):
        group_key("podgruop/lab/train", "default")


def test_other_commands_take_the_names_get_prints(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "--", "true")
    stage.turn()
    assert batchq("get", "podgroups", "-o", "name").lines == ["podgroup/default/x"]
    assert batchq("get", "pods", "-o", "name").lines == ["pod/default/x-main-0"]
    assert batchq("get", "nodes", "-o", "name").lines == ["node/n1"]
    word = "podgroup/default/x"
    for words in (("describe", word), ("get", word), ("logs", word), ("suspend", word)):
        assert batchq(*words).code == 0, words
    assert batchq("describe", "pod/default/x-main-0").lines[0] == "Pod:    default/x-main-0"
    assert batchq("get", "podgroup", word, "-o", "name").out == f"{word}\n"
    assert batchq("cancel", word).out == "podgroup default/x cancelled\n"
    assert batchq("nodes", "cordon", "node/n1").out == "node n1 cordoned\n"


def test_delete_takes_names_of_several_kinds(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a"))
    batchq("submit", "--name", "x", "--", "true")
    batchq("cancel", "x")
    assert batchq("delete", "podgroup/default/x", "queue/a").lines == [
        "podgroup default/x deleted",
        "queue a deleted",
    ]


def test_delete_takes_a_groups_name_alone_where_nothing_else_has_it(
    batchq: Batchq, stage: Stage
) -> None:
    for name in ("x", "a"):
        batchq("submit", "--name", name, "--", "true")
        batchq("cancel", name)
    stage.furnish(a_queue("a"))
    assert batchq("delete", "x").out == "podgroup default/x deleted\n"
    done = batchq("delete", "a")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "error: a may be a PodGroup, but there is a Queue of this name",
        "hint: write `batchq delete podgroup a` or `batchq delete queue a`",
    ]


def test_a_node_whose_agent_lives_is_not_deleted(batchq: Batchq, stage: Stage) -> None:
    done = batchq("delete", "node", "n1")
    assert done.code == 8
    assert done.err.splitlines()[0] == (
        "error: Node n1 has an agent, whose last heartbeat was 0s ago"
        " and which would register it again"
    )
    assert done.err.splitlines()[1].startswith("hint: stop the agent first")


def test_a_missing_group_is_compared_by_name_alone(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "train", "--", "true")
    assert batchq("cancel", "nosuch").err.splitlines() == [
        "error: PodGroup default/nosuch does not exist",
        "hint: there are: default/train",
    ]
    assert batchq("cancel", "trian").err.splitlines()[1] == "hint: did you mean default/train?"


@pytest.mark.both_doors
def test_cancel_suspend_and_resume_act_on_all_groups_that_they_can(
    batchq: Batchq, stage: Stage
) -> None:
    for name in ("a", "ended", "b", "c"):
        batchq("submit", "--name", name, "--", "true")
    batchq("cancel", "ended")
    for verb, past in (
        ("suspend", "suspended"),
        ("resume", "resumed"),
        ("cancel", "cancelled"),
    ):
        done = batchq(verb, "a", "ended", "nosuch", "b")
        assert (done.code, done.lines) == (
            8,
            [f"podgroup default/a {past}", f"podgroup default/b {past}"],
        )
        assert done.err.splitlines()[:2] == [
            f"error: PodGroup default/ended is Cancelled already and cannot be {past}",
            "error: PodGroup default/nosuch does not exist",
        ]
    assert batchq("cancel", "nosuch", "c").code == 6
    assert batchq("get", "podgroup", "c", "-o", "json").out.count('"phase": "Cancelled"') == 1
