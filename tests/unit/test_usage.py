"""Usage of queues over time: decay, shares, and runs that do not count."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import DAY, HOUR
from batchq.api.objects import PodGroupStatus
from batchq.api.reasons import Leaving
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.quota.fair_shares import HALF_LIVES, used_share, weight
from batchq.core.session.session import Session
from tests.builders import a_group, a_node, a_queue, a_running_group, a_snapshot, amounts

WEEK = 7 * DAY
NOW = 100 * DAY
ROOT = {"cpu": 8_000}
SCOPE = "queue:q"


def opened(*objects: Any) -> Session:
    return assemble(SchedulerConfig()).open(a_snapshot(a_node(cpu=8), a_queue("q"), *objects), NOW)


def ran(name: str, cpu: int, start: int, end: int | None, reason: str = "") -> tuple[Any, Any]:
    """Return a group of one pod that ran, until now if it has no end."""
    group, pod = a_running_group(name, cpu=cpu, queue="q")
    ended = {} if end is None else {"finished_at": end, "phase": PodPhase.SUCCEEDED}
    pod = structs.replace(
        pod, status=structs.replace(pod.status, started_at=start, reason=reason, **ended)
    )
    if end is not None:
        status = structs.replace(
            group.status, phase=PodGroupPhase.COMPLETED, reserved_at=None, finished_at=end
        )
        group = structs.replace(group, status=status)
    return group, pod


def share(*objects: Any) -> Fraction:
    return used_share(opened(*objects), SCOPE, ROOT)


def test_usage_counts_for_half_after_a_half_life() -> None:
    assert weight(0, WEEK) == 2**30
    assert weight(WEEK, WEEK) == 2**29
    assert weight(3 * WEEK, WEEK) == 2**27
    assert weight(HALF_LIVES * WEEK, WEEK) == 0
    assert weight(WEEK // 2, WEEK) == 759_250_124


def test_a_queue_without_usage_has_share_zero() -> None:
    assert share() == 0
    assert share(a_group("waits", queue="q")) == 0


def test_a_queue_that_always_held_all_nodes_has_used_everything() -> None:
    assert share(*ran("r", 8, 0, None)) > Fraction(999, 1000)
    assert share(*ran("r", 8, 0, None)) <= 1


def test_an_ended_run_counts_like_a_running_one() -> None:
    """Compare a run of an hour that just ended with one that continues."""
    ended, runs = share(*ran("e", 4, NOW - HOUR, NOW)), share(*ran("r", 4, NOW - HOUR, None))
    assert ended > 0
    assert abs(ended - runs) < runs / 100


def test_an_external_group_that_ended_counts_like_one_that_runs() -> None:
    began = PodGroupStatus(admission=1, in_queue_at=NOW - HOUR, started_at=NOW - HOUR)
    held = structs.replace(began, phase=PodGroupPhase.RUNNING, reservation=amounts(cpu=4))
    over = structs.replace(began, phase=PodGroupPhase.COMPLETED, finished_at=NOW)
    ended, runs = (
        share(a_group("e", cpu=4, queue="q", controller="external", status=status))
        for status in (over, held)
    )
    assert ended > 0
    assert abs(ended - runs) < runs / 100


def test_a_run_that_ended_a_half_life_ago_counts_for_half() -> None:
    late = share(*ran("e", 4, NOW - HOUR, NOW))
    early = share(*ran("e", 4, NOW - WEEK - HOUR, NOW - WEEK))
    assert abs(2 * early - late) < late / 50


def test_the_last_year_of_a_run_of_a_million_years_counts() -> None:
    """Any writer of a pod may claim such a run; summing up every hour of it would take hours."""
    ages = ran("old", 8, -(2**55), NOW)
    assert share(*ages) == share(*ran("new", 8, NOW - 365 * DAY, NOW))


def test_a_group_that_ends_in_this_session_counts_at_once() -> None:
    group, pod = ran("e", 4, NOW - HOUR, NOW)
    group = structs.replace(
        group, status=structs.replace(group.status, phase=PodGroupPhase.RUNNING, finished_at=None)
    )
    scheduler = assemble(SchedulerConfig())
    session = scheduler.begin(a_snapshot(a_node(cpu=8), a_queue("q"), group, pod), NOW)
    assert session.groups[group.metadata.uid].phase == PodGroupPhase.COMPLETED
    assert used_share(session, SCOPE, ROOT) > 0


def test_runs_lost_to_reclaim_or_preempt_are_not_counted() -> None:
    assert share(*ran("e", 4, NOW - HOUR, NOW, Leaving.RECLAIMED)) == 0
    assert share(*ran("e", 4, NOW - HOUR, NOW, Leaving.PREEMPTED)) == 0
    assert share(*ran("e", 4, NOW - HOUR, NOW, Leaving.NODE_LOST)) > 0


def test_the_dominant_dimension_of_the_usage_decides() -> None:
    session = opened(*ran("e", 4, NOW - HOUR, NOW))
    assert used_share(session, SCOPE, {**ROOT, **amounts(gpu=1)}) == used_share(
        session, SCOPE, ROOT
    )
