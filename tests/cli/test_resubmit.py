"""`batchq resubmit`: groups that have ended are submitted again under other names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchq.api.objects import PodGroup
from batchq.client import Client
from batchq.store.redis import RedisStore
from tests.builders import a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage

pytestmark = pytest.mark.both_doors
FALSE = ["--", "false"]


def spec_of(client: Client, name: str) -> object:
    group = client.get("PodGroup", name)
    assert isinstance(group, PodGroup)
    return group.spec


def test_a_failed_group_is_submitted_again_under_a_fresh_name(batchq: Batchq, stage: Stage) -> None:
    options = ["--cpus", "2", "--env", "A=1", "--label", "of=tests", "--walltime", "1h"]
    batchq("submit", "--name", "train", *options, *FALSE)
    stage.run("train", exit_code=1)
    done = batchq("resubmit", "train")
    assert (done.code, done.err) == (0, "")
    assert done.out == "podgroup default/train resubmitted as default/train-2\n"
    assert spec_of(stage.client, "train-2") == spec_of(stage.client, "train")
    assert stage.client.get("PodGroup", "train-2").metadata.labels == {"of": "tests"}
    assert stage.phase("train") == "Failed"
    stage.run("train-2")
    assert stage.phase("train-2") == "Completed"


def test_a_group_that_was_submitted_again_gets_the_next_number(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "train", *FALSE)
    batchq("submit", "--name", "lone-2", *FALSE)
    for name in ("train", "lone-2"):
        stage.run(name, exit_code=1)
    assert batchq("resubmit", "train").code == 0
    stage.run("train-2", exit_code=1)
    assert batchq("resubmit", "train-2", "-o", "name").out == "podgroup/default/train-3\n"
    assert batchq("resubmit", "train", "-o", "name").out == "podgroup/default/train-4\n"
    # There is no group `lone`, so the number is part of its name.
    assert batchq("resubmit", "lone-2", "-o", "name").out == "podgroup/default/lone-2-2\n"


def test_a_group_is_submitted_again_to_another_queue(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("other"))
    batchq("submit", "--name", "train", *FALSE)
    stage.run("train", exit_code=1)
    assert batchq("resubmit", "train", "-q", "other", "-o", "name").code == 0
    again = stage.client.get("PodGroup", "train-2")
    assert isinstance(again, PodGroup)
    assert again.spec.queue == "other"
    done = batchq("resubmit", "train", "-q", "missing")
    assert (done.code, done.out) == (6, "")
    assert "there is no queue 'missing'" in done.err


@pytest.mark.parametrize("name", ["7", "a--2"])
def test_a_name_that_only_looks_numbered_is_kept(batchq: Batchq, stage: Stage, name: str) -> None:
    batchq("submit", "--name", name, *FALSE)
    batchq("cancel", name)
    assert batchq("resubmit", name, "-o", "name").out == f"podgroup/default/{name}-2\n"


def test_the_new_name_may_be_chosen_and_the_group_awaited(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "-n", "research", "--name", "train", *FALSE)
    batchq("cancel", "research/train")
    done = batchq("resubmit", "train", "-n", "research", "--as", "again", "-o", "json")
    assert (done.code, json.loads(done.out)["metadata"]["name"]) == (0, "again")
    stage.turn()
    waited = batchq("resubmit", "research/train", "--wait", "--timeout", "50ms")
    assert waited.code == 124
    assert waited.out == "podgroup research/train resubmitted as research/train-2\n"
    assert batchq("resubmit", "research/train", "--as", "again").code == 8


def test_a_dry_run_prints_a_manifest_that_submit_takes(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "train", "--mem", "1Gi", *FALSE)
    stage.run("train", exit_code=1)
    before = stage.names()
    printed = batchq("resubmit", "train", "--dry-run")
    assert printed.code == 0
    assert "status:" not in printed.out
    assert stage.names() == before
    more = printed.out.replace("1073741824", "2Gi").replace("1Gi", "2Gi")
    done = batchq("submit", "-f", "-", stdin=more)
    assert (done.code, done.out, done.err) == (0, "podgroup default/train-2 submitted\n", "")


def test_a_manifest_that_would_be_refused_is_printed_to_be_changed(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_queue("old"))
    batchq("submit", "--name", "train", "-q", "old", *FALSE)
    batchq("cancel", "train")
    batchq("delete", "queue", "old")
    printed = batchq("resubmit", "train", "--dry-run")
    assert (printed.code, "there is no queue 'old'" in printed.err) == (6, True)
    done = batchq("submit", "-f", "-", stdin=printed.out.replace("queue: old", "queue: default"))
    assert (done.code, done.out) == (0, "podgroup default/train-2 submitted\n")
    # Without --dry-run, the answer is empty.
    assert batchq("resubmit", "train").out == ""


def test_groups_that_depend_on_each_other_are_submitted_again_together(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "prepare", "--", "true")
    batchq("submit", "--name", "train", "--after", "prepare", *FALSE)
    stage.run("prepare")
    stage.run("train", exit_code=1)
    # Its dependency has held.
    assert batchq("resubmit", "train").code == 0
    assert stage.client.get("PodGroup", "train-2").spec.depends_on == ()
    done = batchq("resubmit", "prepare", "train")
    assert done.lines == [
        "podgroup default/prepare resubmitted as default/prepare-3",
        "podgroup default/train resubmitted as default/train-3",
    ]
    [dependency] = stage.client.get("PodGroup", "train-3").spec.depends_on
    assert dependency.name == "prepare-3"
    assert dependency.uid == stage.client.get("PodGroup", "prepare-3").metadata.uid


def test_a_group_whose_dependency_has_failed_is_submitted_again_with_it(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "prepare", *FALSE)
    batchq("submit", "--name", "train", "--after", "prepare", "--", "true")
    stage.run("prepare", exit_code=1)
    stage.turn()
    assert stage.phase("train") == "Failed"
    done = batchq("resubmit", "train")
    assert (done.code, done.out) == (8, "")
    assert done.err.splitlines() == [
        (
            "error: PodGroup default/train would fail at once: it waits for prepare to"
            " complete, which is impossible now"
        ),
        (
            "hint: submit what it waits for again with it: `batchq resubmit default/prepare"
            " default/train`"
        ),
    ]
    assert batchq("resubmit", "default/prepare", "default/train").code == 0
    stage.run("prepare-2")
    stage.run("train-2")
    assert stage.phase("train-2") == "Completed"


def test_only_dependencies_that_have_failed_are_to_be_submitted_again(
    batchq: Batchq, stage: Stage
) -> None:
    for name in ("prepare", "fetch"):
        batchq("submit", "--name", name, *FALSE)
    batchq("submit", "--name", "train", "--after", "prepare", "--after", "fetch", "--", "true")
    stage.run("fetch", exit_code=1)
    stage.turn()
    assert stage.phase("train") == "Failed"
    again = "submit what it waits for again with it: `batchq resubmit default/fetch default/train`"
    assert batchq("resubmit", "train").err.splitlines()[1] == f"hint: {again}"
    assert batchq("resubmit", "default/fetch", "default/train").code == 0


def test_a_group_is_submitted_again_if_a_new_dependency_has_completed(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "prepare", *FALSE)
    batchq("submit", "--name", "train", "--after", "prepare", "--", "true")
    stage.run("prepare", exit_code=1)
    stage.turn()
    batchq("delete", "podgroup", "prepare")
    # There is nothing to submit again.
    gone = batchq("resubmit", "train")
    assert (gone.code, "there is no PodGroup default/prepare" in gone.err) == (6, True)
    batchq("submit", "--name", "prepare", "--", "true")
    stage.run("prepare")
    assert batchq("resubmit", "train").code == 0
    stage.run("train-2")
    assert stage.phase("train-2") == "Completed"


def test_a_group_is_not_submitted_again_if_a_dependency_has_failed_since(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "prepare", *FALSE)
    batchq("submit", "--name", "train", "--after", "prepare", "--", "true")
    batchq("cancel", "train")
    stage.run("prepare", exit_code=1)
    assert batchq("resubmit", "train").code == 8


def test_gates_are_closed_again_and_a_suspension_is_not_repeated(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "train", "--gate", "data", "--gate", "money", *FALSE)
    batchq("gates", "open", "train", "data")
    batchq("suspend", "train")
    batchq("cancel", "train")
    assert batchq("resubmit", "train").code == 0
    spec = stage.client.get("PodGroup", "train-2").spec
    assert {gate.name for gate in spec.scheduling_gates} == {"data", "money"}
    assert not spec.suspend


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_a_group_that_has_not_ended_is_refused(batchq: Batchq, stage: Stage, phase: str) -> None:
    batchq("submit", "--name", "ended", *FALSE)
    stage.run("ended", exit_code=1)
    batchq("submit", "--name", "train", *FALSE)
    if phase == "Running":
        stage.turn()
        stage.start("train")
    # All are submitted again, or none.
    done = batchq("resubmit", "ended", "train")
    assert (done.code, done.out) == (8, "")
    assert done.err.splitlines() == [
        f"error: PodGroup default/train is {phase}: only a group that has ended is submitted again",
        (
            "hint: `batchq wait default/train` waits for its end, `batchq cancel default/train`"
            " ends it"
        ),
    ]
    assert batchq("get", "podgroups", "-o", "name").lines == [
        "podgroup/default/ended",
        "podgroup/default/train",
    ]


def test_a_group_whose_processes_are_being_stopped_is_refused(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "train", *FALSE)
    stage.turn()
    stage.start("train")
    batchq("cancel", "train")
    done = batchq("resubmit", "train")
    assert (done.code, done.out) == (8, "")
    assert done.err.splitlines() == [
        "error: PodGroup default/train is Cancelled, but processes of it still run",
        "hint: `batchq wait default/train` waits for their end",
    ]
    stage.end("train", exit_code=143)
    assert batchq("resubmit", "train").code == 0


def test_the_one_of_several_groups_whose_processes_still_run_is_named(
    batchq: Batchq, stage: Stage
) -> None:
    for name in ("ready", "train"):
        batchq("submit", "--name", name, *FALSE)
    stage.run("ready", exit_code=1)
    stage.turn()
    stage.start("train")
    batchq("cancel", "train")
    done = batchq("resubmit", "ready", "train")
    assert (done.code, done.out) == (8, "")
    assert done.err.startswith("error: PodGroup default/train is Cancelled, but processes of it")


def test_many_groups_get_the_first_number_that_is_free_for_all(
    batchq: Batchq, stage: Stage
) -> None:
    names = [f"seed{number}" for number in range(12)]
    for name in [*names, "seed7-2"]:
        batchq("submit", "--name", name, *FALSE)
    batchq("cancel", *names)
    done = batchq("resubmit", *names, "-o", "name")
    assert done.lines == [f"podgroup/default/{name}-3" for name in names]


def test_many_groups_are_submitted_again_without_a_list_of_all_for_each(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"seed{number}" for number in range(12)]
    for name in names:
        batchq("submit", "--name", name, *FALSE)
    batchq("cancel", *names)
    whole, read = RedisStore.listing, list[str]()

    def listing(store: RedisStore, kind: str, **options: Any) -> Any:
        read.append(kind)
        return whole(store, kind, **options)

    monkeypatch.setattr(RedisStore, "listing", listing)
    assert batchq("resubmit", *names).code == 0
    assert read.count("PodGroup") < len(names)


def test_a_group_that_does_not_exist_is_refused(batchq: Batchq, stage: Stage) -> None:
    done = batchq("resubmit", "train")
    assert (done.code, done.out) == (6, "")
    assert done.err.splitlines()[0] == "error: PodGroup default/train does not exist"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b", "--as", "c"), "--as names one new group, found 2 groups"),
        (("a", "--as", ""), "--as names one new group, found an empty name"),
        (
            ("a", "--timeout", "2h"),
            "--timeout limits how long `batchq resubmit` waits, and nothing is awaited",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    batchq: Batchq, stage: Stage, words: tuple[str, ...], message: str
) -> None:
    done = batchq("resubmit", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"error: {message}"
