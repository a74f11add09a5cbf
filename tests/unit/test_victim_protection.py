"""Protection of running groups: minRuntime against all evictions, lost runs against reclaim."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import SECOND
from batchq.api.objects import Evictions, PodGroupStatus
from batchq.core.preemption.protection import MOST_RUNS, is_protected, with_group_run, with_pod_run
from batchq.core.session.session import Session
from batchq.scheduler.timers import next_due_at
from tests.builders import a_group, a_node, a_pod
from tests.unit.voting import opened, some_pods, whole


def started(
    name: str,
    starts: list[int | None],
    *,
    least: int,
    phase: PodGroupPhase = PodGroupPhase.RUNNING,
    **costs: Any,
) -> tuple[Any, ...]:
    """Return a group whose pods started at these seconds (None: bound at 1 s and not started)."""
    since = [None if second is None else second * SECOND for second in starts]
    status = PodGroupStatus(
        phase=phase,
        admission=1,
        reserved_at=0,
        started_at=since[0] if phase == PodGroupPhase.RUNNING else None,
        evictions=Evictions(**costs),
    )
    group = a_group(name, len(starts), min_member=least, status=status)
    pods = [
        a_pod(
            group,
            index,
            phase=PodPhase.BOUND if one is None else PodPhase.RUNNING,
            node="n1",
            bound_at=1 * SECOND,
            started_at=one,
        )
        for index, one in enumerate(since)
    ]
    return (group, *pods)


def at(second: int, *world: Any, **settings: Any) -> Session:
    return opened(a_node(cpu=8), *world, plugins=("gang",), now_ms=second * SECOND, **settings)


@pytest.mark.parametrize("point", ["preemptable", "reclaimable"])
def test_a_young_pod_of_an_old_array_is_protected_and_an_old_one_is_not(point: str) -> None:
    session = at(100, *started("v", [0, 80], least=1), min_runtime_ms=30 * SECOND)
    assert not is_protected(session, some_pods(session, "v", 0), point)
    assert is_protected(session, some_pods(session, "v", 1), point)
    assert is_protected(session, whole(session, "v"), point)


def test_the_age_of_an_extra_pod_is_its_own_and_that_of_the_gang_is_the_groups() -> None:
    session = at(100, *started("v", [0, 0, 80], least=2), min_runtime_ms=30 * SECOND)
    assert is_protected(session, some_pods(session, "v", 2), "preemptable")
    assert not is_protected(session, whole(session, "v"), "preemptable")


def test_the_protection_of_each_pod_ends_at_a_separate_instant() -> None:
    world = started("v", [0, 80, 90], least=1)
    assert next_due_at(at(100, *world, min_runtime_ms=30 * SECOND)) == 110 * SECOND
    assert next_due_at(at(110, *world, min_runtime_ms=30 * SECOND)) == 120 * SECOND
    assert next_due_at(at(120, *world, min_runtime_ms=30 * SECOND)) is None


def test_a_group_is_not_reclaimed_before_it_has_run_twice_its_longest_lost_run() -> None:
    world = started("v", [0, 0], least=2, longest_run=20 * SECOND)
    for second, protected in ((39, True), (40, False)):
        session = at(second, *world)
        assert is_protected(session, whole(session, "v"), "reclaimable") is protected
        assert not is_protected(session, whole(session, "v"), "preemptable")
    assert next_due_at(at(39, *world)) == 40 * SECOND


def test_a_group_that_is_bound_again_and_has_not_started_is_protected() -> None:
    again = started(
        "v", [None, None], least=2, phase=PodGroupPhase.IN_QUEUE, longest_run=20 * SECOND
    )
    later, bound_now = at(2, *again), at(1, *again)
    assert is_protected(later, whole(later, "v"), "reclaimable")
    assert not is_protected(bound_now, whole(bound_now, "v"), "reclaimable")


def test_a_group_is_protected_as_long_as_any_of_its_pods() -> None:
    world = started("v", [0, 0, 10], least=2, longest_pod_runs={"2": 50 * SECOND})
    for second, protected in ((109, True), (110, False)):
        session = at(second, *world)
        assert is_protected(session, whole(session, "v"), "reclaimable") is protected


def test_a_run_counts_as_a_second_at_least() -> None:
    session = at(5, *started("v", [5, 5], least=2))
    assert with_group_run(session.by_key["default/v"], session.now_ms).longest_run == 1 * SECOND


def test_a_lost_run_shorter_than_an_earlier_one_changes_nothing() -> None:
    costs = {"longest_run": 20 * SECOND, "longest_pod_runs": {"0": 20 * SECOND}}
    session = at(10, *started("v", [0, 0, 0], least=2, **costs))
    group = session.by_key["default/v"]
    (pod,) = some_pods(session, "v", 0).pods
    assert with_group_run(group, session.now_ms) is group.status.evictions
    assert with_pod_run(group, pod, session.now_ms) is group.status.evictions


def test_a_group_with_only_a_reservation_loses_no_run() -> None:
    status = PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1, reserved_at=0)
    session = at(10, a_group("v", 2, status=status))
    assert with_group_run(session.by_key["default/v"], session.now_ms).longest_run == 0


def test_a_record_keeps_the_longest_runs_of_a_bounded_number_of_unfinished_pods() -> None:
    runs = {str(index): (index + 1) * SECOND for index in range(10_239)}
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        reserved_at=0,
        started_at=0,
        evictions=Evictions(longest_pod_runs=runs),
    )
    wide = a_group("v", 20_000, min_member=1, status=status)
    done = a_pod(wide, 10_238, phase=PodPhase.SUCCEEDED, node="n1", started_at=0)
    last = a_pod(wide, 19_999, phase=PodPhase.RUNNING, node="n1", started_at=0)
    session = at(50_000, wide, done, last)
    kept = with_pod_run(session.by_key["default/v"], last, session.now_ms).longest_pod_runs
    assert len(kept) == MOST_RUNS
    assert kept["19999"] == 50_000 * SECOND
    assert "0" not in kept, "it lost least"
    assert "10238" not in kept, "it has succeeded"
