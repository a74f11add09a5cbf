"""A group has been Running since its minMember-th pod started, whenever a session sees that; its
walltime counts from there.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupStatus
from batchq.scheduler.timers import next_due_at
from tests.builders import Decided, a_group, a_node, a_pod, amounts, decide

SECOND = 1000
LET_IN_AT = 10 * SECOND
SEEN_AT = 60 * SECOND


def a_gang(size: int, **spec: Any) -> PodGroup:
    reserved = amounts(cpu=size, pods=size)
    status = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=LET_IN_AT,
        in_queue_at=LET_IN_AT,
        reservation=reserved,
    )
    return a_group("g", size, status=status, **spec)


def a_start(group: PodGroup, index: int, at_s: int, phase: PodPhase = PodPhase.RUNNING) -> Pod:
    on_node = {"phase": phase, "node": "n1", "bound_at": LET_IN_AT}
    return a_pod(group, index, started_at=at_s * SECOND, **on_node)


def seen(group: PodGroup, *pods: Pod) -> Decided:
    return decide(a_node(cpu=8), group, *pods, now_ms=SEEN_AT)


def since_s(decided: Decided) -> int | None:
    status = decided.session.groups["g"].status
    assert status.phase == PodGroupPhase.RUNNING
    return None if status.started_at is None else status.started_at // SECOND


def test_a_gang_runs_since_the_last_of_its_pods_has_started() -> None:
    gang = a_gang(2)
    assert since_s(seen(gang, a_start(gang, 0, 20), a_start(gang, 1, 30))) == 30


def test_an_elastic_group_runs_since_as_many_had_started_as_it_needs() -> None:
    group = a_gang(3, min_member=2)
    pods = [a_start(group, index, at_s) for index, at_s in enumerate((40, 20, 30))]
    assert since_s(seen(group, *pods)) == 30


def test_a_pod_that_waits_for_its_next_attempt_has_not_started() -> None:
    group = a_gang(3, min_member=2)
    failed = a_start(group, 0, 15, PodPhase.EVICTED)
    assert since_s(seen(group, failed, a_start(group, 1, 20), a_start(group, 2, 30))) == 30


@pytest.mark.parametrize(("said_s", "since"), [(3, 10), (500, 60)])
def test_a_start_is_neither_before_the_admission_nor_after_now(said_s: int, since: int) -> None:
    gang = a_gang(1)
    assert since_s(seen(gang, a_start(gang, 0, said_s))) == since


def test_its_walltime_counts_from_there() -> None:
    gang = a_gang(1, walltime=45 * SECOND)
    decided = seen(gang, a_start(gang, 0, 20))
    assert next_due_at(decided.session) == 65 * SECOND
