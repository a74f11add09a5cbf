"""`describe` of a pod that failed under an rlimit, which kills no process and leaves no trace."""

from __future__ import annotations

import pytest

from tests.builders import a_node, a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage

HINT = "its memory was limited to 200Mi per process"


def failed(stage: Stage, *, limit: str, exit_code: int = 1, mem: str | None = "200Mi") -> None:
    node = a_node("n1", cpu=8, memory="16Gi", annotations={"batchq/memory-limit": limit})
    stage.furnish(a_queue(), node)
    stage.client.submit(["true"], name="x", mem=mem)
    stage.run("x", exit_code)


def test_a_pod_that_failed_under_an_rlimit_says_so(batchq: Batchq, stage: Stage) -> None:
    failed(stage, limit="rlimit")
    assert HINT in batchq("describe", "x").out
    assert HINT in batchq("describe", "pod", "x-main-0").out


@pytest.mark.parametrize(
    ("limit", "exit_code", "mem"),
    [("cgroup", 1, "200Mi"), ("none", 1, "200Mi"), ("rlimit", 0, "200Mi"), ("rlimit", 1, None)],
)
def test_other_pods_get_no_memory_hint(
    batchq: Batchq, stage: Stage, limit: str, exit_code: int, mem: str | None
) -> None:
    failed(stage, limit=limit, exit_code=exit_code, mem=mem)
    assert "its memory was limited" not in batchq("describe", "x").out
    assert "its memory was limited" not in batchq("describe", "pod", "x-main-0").out


def test_a_pod_whose_message_names_its_memory_request_gets_no_second_hint(
    batchq: Batchq, stage: Stage
) -> None:
    message = "MemoryError; refused memory: each process of the pod may use its memory request of"
    node = a_node("n1", cpu=8, memory="16Gi", annotations={"batchq/memory-limit": "rlimit"})
    stage.furnish(a_queue(), node)
    stage.client.submit(["true"], name="x", mem="200Mi")
    stage.turn()
    stage.start("x")
    stage.end("x", 1, message=message)
    described = batchq("describe", "x").out
    assert message in described
    assert HINT not in described


def test_a_limit_of_some_bytes_has_a_unit(batchq: Batchq, stage: Stage) -> None:
    failed(stage, limit="rlimit", mem="0.5Ki")
    assert "its memory was limited to 512 bytes per process" in batchq("describe", "x").out
