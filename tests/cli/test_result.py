"""`batchq submit --function` and `batchq result`."""

from __future__ import annotations

import json

import pytest

from batchq.api.objects import PodGroup
from tests.cli.conftest import Batchq
from tests.client.stage import Stage

pytestmark = pytest.mark.both_doors


def returned(stage: Stage, group: str, stored: bytes | None = None) -> None:
    """Let the group's pods succeed, each returning its number twice, or what is `stored`."""
    stage.turn()
    stage.start(group)
    for pod in stage.pods(group):
        result = stored or b'{"n":[%d,"\xc3\xa9"]}' % pod.spec.index
        stage.store.put_result(pod.status.node, pod.metadata.uid, pod.status.attempt, result)
    stage.end(group)


def test_a_function_is_submitted_with_its_arguments(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    words = ("--function", "train:main", "--args", "[1, null]", "--kwargs", '{"rate": 0.5}')
    done = batchq("submit", "--name", "train", *words)
    assert (done.code, done.out) == (0, "podgroup default/train submitted\n")
    group = stage.client.get("PodGroup", "train")
    assert isinstance(group, PodGroup)
    [task] = group.spec.tasks
    assert (task.template.function, task.template.command) == ("train:main", ())
    assert [bytes(one) for one in task.template.args] == [b"1", b"null"]
    assert bytes(task.template.kwargs["rate"]) == b"0.5"
    assert task.template.working_dir == "/"
    assert "train:main" in batchq("describe", "train").out


def test_a_submitted_function_is_printed_as_a_manifest_that_reads_back(
    batchq: Batchq, stage: Stage
) -> None:
    words = ("--function", "a.b:c", "--args", '[{"deep": [1.5, "é"]}]', "--name", "one")
    printed = batchq("submit", *words, "--dry-run", "-o", "yaml").out
    assert batchq("submit", "-f", "-", stdin=printed).code == 0
    group = stage.client.get("PodGroup", "one")
    assert isinstance(group, PodGroup)
    assert bytes(group.spec.tasks[0].template.args[0]).decode() == '{"deep":[1.5,"é"]}'


def test_a_nameless_function_gives_its_group_its_name(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--function", "my.package:Model.fit_all", "--quiet")
    assert done.out.startswith("default/fit-all-")


def test_the_result_of_one_pod_is_printed_alone(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "one", "--function", "a:b")
    returned(stage, "one")
    done = batchq("result", "one", "--timeout", "10s")
    assert (done.code, done.out) == (0, '{"n": [0, "é"]}\n')


def test_the_results_of_several_pods_have_their_names(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "two", "-N", "2", "--function", "a:b")
    returned(stage, "two")
    assert batchq("result", "two", "--timeout", "10s").lines == [
        "POD         RESULT",
        'two-main-0  {"n": [0, "é"]}',
        'two-main-1  {"n": [1, "é"]}',
    ]


@pytest.mark.parametrize(
    "stored",
    [b"garbage", b'{"n":', b"\xff", b"9" * 5000, b"[" * 200_000, b"[" * 900 + b"]" * 900],
    ids=["garbage", "truncated", "bytes", "huge", "deep", "too deep to print"],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_unreadable_result_is_reported(
    batchq: Batchq, stage: Stage, form: str, stored: bytes
) -> None:
    batchq("submit", "--name", "one", "--function", "a:b")
    returned(stage, "one", stored)
    done = batchq("result", "one", "-o", form)
    assert done.code == 8
    assert done.out == ""
    assert "the result of Pod default/one-main-0 is unreadable: " in done.err


@pytest.mark.parametrize("stored", [b'"\\ud800"', b"1e999", b"NaN", b'{"a":1,"a":2}'])
def test_a_strange_result_is_printed(batchq: Batchq, stage: Stage, stored: bytes) -> None:
    batchq("submit", "--name", "one", "--function", "a:b")
    returned(stage, "one", stored)
    assert batchq("result", "one").code == 0


@pytest.mark.parametrize("replicas", [1, 2])
def test_for_programs_one_result_has_the_same_form_as_many(
    batchq: Batchq, stage: Stage, replicas: int
) -> None:
    batchq("submit", "--name", "g", "-N", str(replicas), "--function", "a:b")
    returned(stage, "g")
    done = batchq("result", "podgroup/default/g", "-o", "json", "--timeout", "10s")
    assert json.loads(done.out) == {
        "items": [
            {"pod": f"g-main-{index}", "result": {"n": [index, "é"]}} for index in range(replicas)
        ]
    }


def test_a_group_that_failed_has_exit_code_10_and_says_why(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "bad", "--function", "a:b")
    stage.turn()
    stage.start("bad")
    stage.end("bad", exit_code=1, message="ValueError: no")
    done = batchq("result", "bad", "--timeout", "10s")
    assert (done.code, done.out) == (10, "")
    assert done.err.splitlines() == [
        "error: PodGroup default/bad has failed: Pod bad-main-0: ValueError: no",
        "hint: read its pods' output with `batchq logs default/bad`",
    ]
    assert batchq("result", "bad", "--partial", "--timeout", "10s").out == ""
    data = json.loads(batchq("result", "bad", "-o", "json", "--timeout", "10s").err)
    assert data["error"]["code"] == "GroupFailed"


def test_a_cancelled_group_has_exit_code_11(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "gone", "--function", "a:b")
    batchq("cancel", "gone")
    done = batchq("result", "gone", "--timeout", "10s")
    assert (done.code, done.out) == (11, "")
    assert done.err.startswith("error: PodGroup default/gone was cancelled\n")


def test_a_result_is_waited_for_no_longer_than_asked(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "slow", "--function", "a:b")
    assert batchq("result", "slow", "--timeout", "0s").code == 124
