"""Functions from Python: submitted as objects or by name, and their results."""

from __future__ import annotations

import datetime
import math
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from batchq.api.manifest import encode
from batchq.api.notation import DAY
from batchq.api.objects import PodGroup
from batchq.client import Client, Effect
from batchq.client.request import name_of
from batchq.errors import (
    GroupCancelled,
    GroupFailed,
    InvalidInput,
    NotFound,
    UsageError,
    WaitTimedOut,
)
from tests.client import calls
from tests.client.stage import Stage

#: Ended groups need no wait; only a defect would take so long.
SOON_S = 60.0


def template(group: PodGroup) -> tuple[str, list[Any], dict[str, Any]]:
    """Return what a group's pods call."""
    [task] = group.spec.tasks
    args = [msgspec.json.decode(one) for one in task.template.args]
    kwargs = {name: msgspec.json.decode(one) for name, one in task.template.kwargs.items()}
    return task.template.function, args, kwargs


def test_a_function_object_can_be_submitted(stage: Stage) -> None:
    group = stage.client.submit(calls.add, args=[1], kwargs={"other": 2}, cpus=2, name="sum")
    assert template(group) == ("tests.client.calls:add", [1], {"other": 2})
    [task] = group.spec.tasks
    assert task.template.requests == {"cpu": 2000}
    stored = stage.client.get("PodGroup", "sum")
    assert isinstance(stored, PodGroup)
    assert template(stored) == ("tests.client.calls:add", [1], {"other": 2})


def test_a_function_starts_in_its_callers_folder_by_default(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called = stage.client.submit(calls.add, args=[1])
    elsewhere = stage.client.submit(calls.add, args=[1], working_dir="/srv")
    left_open = stage.client.submit(calls.add, args=[1], working_dir="")
    command = stage.client.submit(["true"])
    folders = [
        group.spec.tasks[0].template.working_dir
        for group in (called, elsewhere, left_open, command)
    ]
    assert folders == [str(tmp_path), "/srv", "", ""]


def test_a_function_without_a_folder_is_refused_in_a_sentence(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the folder that this process runs in is gone"):
        stage.client.submit(calls.add, args=[1])


def test_a_function_is_submitted_by_its_name_and_names_its_group(stage: Stage) -> None:
    group = stage.client.submit(function="my.package:Model.fit", args=(None, [1.5]), array=3)
    assert template(group) == ("my.package:Model.fit", [None, [1.5]], {})
    assert group.metadata.name.startswith("fit-")
    assert (group.spec.tasks[0].replicas, group.spec.min_member) == (3, 1)


def test_the_same_manifest_again_changes_nothing(stage: Stage) -> None:
    template = {"function": "a:b", "args": [1e16, {"x": [None, "é"]}], "kwargs": {"y": 2**70}}
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "same"},
        "spec": {"tasks": [{"name": "t", "template": template}]},
    }
    effects = [stage.client.apply([manifest])[0].effect for _ in range(2)]
    assert effects == [Effect.CREATED, Effect.UNCHANGED]
    assert encode(stage.client.get("PodGroup", "same"))["spec"] == {
        "tasks": [{"name": "t", "template": template}],
    }


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (math.gcd, "math:gcd"),
        (calls.Model, "tests.client.calls:Model"),
        (calls.Model.load, "tests.client.calls:Model.load"),
        ("a.b:c", "a.b:c"),
    ],
)
def test_a_function_has_the_name_by_which_a_worker_finds_it(function: Any, name: str) -> None:
    assert name_of(function) == name


def of_the_script() -> None:
    return


of_the_script.__module__ = "__main__"


NOT_OF_A_MODULE = "function: expected a function of a module, found a "


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            calls.shout,
            (
                "function: the lambda in tests.client.calls has no name by which a worker could"
                " find it"
            ),
        ),
        (
            calls.make_local(),
            (
                "function: inner is local to another function of tests.client.calls, where no"
                " worker can find it"
            ),
        ),
        (
            of_the_script,
            (
                "function: of_the_script is defined in the script that runs (__main__), which no"
                " worker can import"
            ),
        ),
        (
            calls.Model().fit,
            "function: Model.fit is bound to an object of this process, which no worker has",
        ),
        ([].append, NOT_OF_A_MODULE + "builtins.builtin_function_or_method"),
        (calls.Model(), NOT_OF_A_MODULE + "tests.client.calls.Model"),
        (partial(calls.add, 1), NOT_OF_A_MODULE + "functools.partial"),
        (
            calls.wrapped,
            (
                "function: tests.client.calls:original is not what was passed, so a worker would"
                " call something else"
            ),
        ),
    ],
)
def test_a_function_no_worker_could_find_is_refused_with_the_reason(
    client: Client, function: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.submit(function)
    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"args": [1, {"when": datetime.date(2026, 1, 1)}]},
            "args[1].when: expected a value that JSON can hold, found a datetime.date",
        ),
        (
            {"kwargs": {"rate": math.nan}},
            "kwargs.rate: expected a value that JSON can hold, found nan",
        ),
        ({"args": "abc"}, "args: expected a list, found 'abc'"),
        ({"kwargs": [("a", 1)]}, "kwargs: expected a mapping, found a list of 1 item"),
        ({"kwargs": {1: 2}}, "kwargs: expected names as keys, found 1"),
    ],
)
def test_an_argument_that_is_not_json_is_refused_by_name(
    client: Client, request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.submit(calls.add, **request_)
    assert caught.value.message == message


def test_a_command_and_a_function_exclude_each_other(client: Client) -> None:
    with pytest.raises(UsageError) as caught:
        client.submit(calls.add, command=["true"])
    assert caught.value.message == "command and function are both given, but a pod runs one of them"


def returned(stage: Stage, group: str, *results: bytes | None) -> None:
    """Let the pods of a group succeed and store their results, as agents do."""
    stage.turn()
    stage.start(group)
    for pod, result in zip(stage.pods(group), results, strict=True):
        if result is not None:
            stage.store.put_result(pod.status.node, pod.metadata.uid, pod.status.attempt, result)
    stage.end(group)


def test_the_result_of_a_group_with_one_pod(stage: Stage) -> None:
    stage.client.submit(calls.add, args=[1], name="sum")
    returned(stage, "sum", b'{"total":[2,null]}')
    assert stage.client.result("sum", timeout_s=SOON_S) == {"total": [2, None]}
    assert stage.client.results("sum", timeout_s=SOON_S) == {"sum-main-0": {"total": [2, None]}}


def test_the_results_of_an_array_by_pod_in_order(stage: Stage) -> None:
    stage.client.submit(calls.add, args=[1], name="sums", array=11, cpus="100m")
    stage.turn()
    stage.start("sums")
    for pod in stage.pods("sums"):
        result = b"%d" % (pod.spec.index**2)
        stage.store.put_result(pod.status.node, pod.metadata.uid, pod.status.attempt, result)
    stage.end("sums")
    results = stage.client.results("sums", timeout_s=SOON_S)
    assert list(results) == [f"sums-main-{index}" for index in range(11)]
    assert results["sums-main-10"] == 100
    with pytest.raises(UsageError) as caught:
        stage.client.result("sums", timeout_s=SOON_S)
    assert caught.value.message == "PodGroup default/sums has 11 pods, so there are several results"


def test_a_group_that_failed_has_no_result_and_says_why(stage: Stage) -> None:
    stage.client.submit(calls.add, name="sum")
    stage.turn()
    stage.start("sum")
    said = "TypeError: add() missing 1 required positional argument: 'one'"
    stage.end("sum", exit_code=1, message=said)
    with pytest.raises(GroupFailed) as caught:
        stage.client.result("sum", timeout_s=SOON_S)
    assert caught.value.message == (
        "PodGroup default/sum has failed: Pod sum-main-0:"
        " TypeError: add() missing 1 required positional argument: 'one'"
    )
    assert stage.client.results("sum", partial=True, timeout_s=SOON_S) == {}


def test_partial_results_of_a_failed_array_can_be_read(stage: Stage) -> None:
    stage.client.submit(calls.add, name="sums", array=2)
    stage.turn()
    stage.start("sums")
    for pod in stage.pods("sums"):
        # The second result is ignored, because its attempt does not succeed.
        stage.store.put_result(pod.status.node, pod.metadata.uid, pod.status.attempt, b"1")
    stage.end("sums", most=1)
    stage.end("sums", exit_code=1)
    with pytest.raises(GroupFailed):
        stage.client.results("sums", timeout_s=SOON_S)
    assert stage.client.results("sums", partial=True, timeout_s=SOON_S) == {"sums-main-0": 1}


def test_a_cancelled_group_has_no_result(stage: Stage) -> None:
    stage.client.submit(calls.add, name="sum")
    stage.client.cancel("sum")
    with pytest.raises(GroupCancelled) as caught:
        stage.client.result("sum", timeout_s=SOON_S)
    assert caught.value.message == "PodGroup default/sum was cancelled"


def test_a_missing_result_names_the_reason_of_the_cancel(stage: Stage) -> None:
    stage.client.submit(calls.add, name="sum")
    stage.client.cancel("sum", reason="the wrong day")
    with pytest.raises(GroupCancelled) as caught:
        stage.client.result("sum", timeout_s=SOON_S)
    assert caught.value.message == "PodGroup default/sum was cancelled: the wrong day"
    assert caught.value.hint == (
        "none of its pods has started; `batchq describe default/sum` shows its history"
    )


def test_a_missing_result_names_the_walltime_that_was_exceeded(stage: Stage) -> None:
    """Not the signal by which the pod was ended then."""
    stage.client.submit(calls.add, name="sums", walltime="2s", array=1)
    stage.turn()
    stage.start("sums")
    stage.exceed_walltime("sums")
    with pytest.raises(GroupFailed) as caught:
        stage.client.results("sums", timeout_s=SOON_S)
    assert caught.value.message == (
        "PodGroup default/sums has failed:"
        " 1 of 1 pods failed; the first, sums-main-0, exceeded its walltime"
    )
    assert caught.value.hint == "read its pods' output with `batchq logs default/sums`"


def test_the_missing_result_of_a_group_that_never_started_points_to_its_history(
    stage: Stage,
) -> None:
    stage.client.submit(calls.add, name="extract")
    stage.client.submit(calls.add, name="load", after=["extract"])
    stage.client.cancel("extract")
    stage.turn()
    with pytest.raises(GroupFailed) as caught:
        stage.client.result("load", timeout_s=SOON_S)
    assert caught.value.message == (
        "PodGroup default/load has failed: waits for extract to complete, which is impossible now"
    )
    assert caught.value.hint == (
        "none of its pods has started; `batchq describe default/load` shows its history"
    )


def test_a_result_waits_for_a_running_group(stage: Stage) -> None:
    stage.client.submit(calls.add, name="sum")
    with pytest.raises(WaitTimedOut):
        stage.client.result("sum", timeout_s=0)


def test_the_result_of_a_command_is_its_output(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="plain")
    with pytest.raises(NotFound) as caught:
        stage.client.result("plain", timeout_s=0)
    assert caught.value.message == "PodGroup default/plain runs a command, which returns nothing"


def test_a_result_goes_after_seven_days(stage: Stage, raw: redis.Redis) -> None:
    stage.client.submit(calls.add, name="sum")
    returned(stage, "sum", b"1")
    [key] = raw.keys("{bq}:result:*")
    [pod] = stage.pods("sum")
    assert key.decode() == f"{{bq}}:result:n1:{pod.metadata.uid}-{pod.status.attempt}"
    assert 0 < raw.pttl(key) <= 7 * DAY
    raw.delete(key)
    with pytest.raises(NotFound) as caught:
        stage.client.result("sum", timeout_s=SOON_S)
    assert caught.value.message == "the result of Pod default/sum-main-0 has expired"
    assert stage.client.results("sum", partial=True, timeout_s=SOON_S) == {}


def test_an_attempts_number_may_be_as_large_as_a_fence(stage: Stage) -> None:
    stage.store.put_result("n1", "u-1-0", 2**53 - 1, b'"last"')
    assert stage.store.read_result("n1", "u-1-0", 2**53 - 1) == b'"last"'
    assert stage.store.read_result("n1", "u-1-0", 2**53 - 2) is None
