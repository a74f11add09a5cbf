"""A running group holds what its gang still needs, and nothing that blocks other groups for
ever.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    group,
    node,
    opens,
    outcome,
    phases,
    queue,
    requeued,
    starts,
    timeline,
)

IN_LINE = pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO", "Backfill"])


def _queue(strategy: str) -> Manifest:
    return queue("q", strategy={"type": strategy})


@IN_LINE
def test_a_group_whose_gate_opens_and_a_running_array_both_complete(strategy: str) -> None:
    """The head waits for the array's pods; the array's last pod waits for the head."""
    came = outcome(
        node("n1", 2),
        _queue(strategy),
        group("whole", 1, 2, runtime="60s", created=0, queue="q", schedulingGates=[{"name": "g"}]),
        group("array", 3, runtime="60s", created=1, queue="q", minMember=1),
        timeline(opens(10, "whole", "g")),
    )
    assert phases(came) == {"whole": "Completed", "array": "Completed"}
    assert starts(came) == {"array-t-0": 0, "array-t-1": 0, "whole-t-0": 60, "array-t-2": 120}


@IN_LINE
def test_a_resumed_group_and_a_running_array_both_complete(strategy: str) -> None:
    came = outcome(
        node("n1", 2),
        _queue(strategy),
        group("whole", 1, 2, runtime="60s", created=0, queue="q", suspend=True),
        group("array", 3, runtime="60s", created=1, queue="q", minMember=1),
        timeline({"at": "10s", "resume": "default/whole"}),
    )
    assert phases(came) == {"whole": "Completed", "array": "Completed"}
    assert starts(came) == {"array-t-0": 0, "array-t-1": 0, "whole-t-0": 60, "array-t-2": 120}


@IN_LINE
def test_a_chain_and_an_array_submitted_after_it_all_complete(strategy: str) -> None:
    """`second` waits for `first`; the array starts meanwhile, and comes after both in line."""
    came = outcome(
        node("n1", 2),
        _queue(strategy),
        group("first", runtime="30s", created=0, queue="q"),
        group("second", 1, 2, runtime="60s", created=1, queue="q", dependsOn=[{"name": "first"}]),
        group("array", 3, runtime="60s", created=2, queue="q", minMember=1),
    )
    assert phases(came) == {"first": "Completed", "second": "Completed", "array": "Completed"}
    begun = starts(came)
    assert (begun["first-t-0"], begun["array-t-0"]) == (0, 0)
    # Under BestEffortFIFO the array takes capacity that is too small for the pair.
    after = [30, 60, 120] if strategy == "BestEffortFIFO" else [120, 120, 60]
    assert [begun[name] for name in ("array-t-1", "array-t-2", "second-t-0")] == after


def test_a_whole_node_group_starts_beside_an_array_whose_last_pod_fits_no_node() -> None:
    """One pod of the array is done, so that its gang lacks nothing, and it holds nothing."""
    tasks = [task_of("small", 1, runtime="10s"), task_of("large", 8, runtime="10s")]
    came = outcome(
        node("n1", 4),
        group("array", created=0, minMember=1, tasks=tasks),
        group("whole", 1, 4, runtime="60s", created=1),
    )
    assert starts(came) == {"array-small-0": 0, "whole-t-0": 10}
    assert phases(came) == {"array": "Running", "whole": "Completed"}


def test_a_whole_node_group_starts_while_an_array_backs_off_before_a_retry() -> None:
    """One pod has succeeded, and the other backs off for ten minutes before its retry."""
    came = outcome(
        node("n1", 4),
        group(
            "array", 2, 2, runtime="60s", created=0,
            minMember=1, retry={"limit": 1, "backoff": "600s"},
        ),
        group("whole", 1, 4, runtime="30s", created=1),
        timeline(
            {"at": "10s", "finishPod": "default/array-t-0"},
            {"at": "20s", "failPod": "default/array-t-1"},
        ),
    )  # fmt: skip
    assert phases(came) == {"array": "Completed", "whole": "Completed"}
    assert starts(came) == {"array-t-0": 0, "whole-t-0": 20, "array-t-1": 620}
    assert requeued(came) == []


def task_of(name: str, cpu: int, *, runtime: str, priority: int = 0, replicas: int = 1) -> Manifest:
    template: Manifest = {"requests": {"cpu": cpu}, "annotations": {"batchq/runtime": runtime}}
    if priority:
        template["priority"] = priority
    return {"name": name, "replicas": replicas, "template": template}
