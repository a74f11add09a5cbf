"""Backfill over random logs on one machine: no job starts after its first reserved start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Strategy
from batchq.core.timeline import LedgerTimeline
from batchq_actions.backfill import reservations_of
from tests.builders import a_group, a_node, a_queue, a_running_group, decide
from tests.property.test_ledger_timeline import LENGTHS, NOW, trees, waiting
from tests.property.worlds import dump

CPUS = 6
EASY = Strategy(type="Backfill")
SHORTEST = Strategy(type="Backfill", order="shortest")
CONSERVATIVE = Strategy(type="Backfill", reservations="all")
CONSERVATIVE_SHORTEST = Strategy(type="Backfill", order="shortest", reservations="all")


class Job(NamedTuple):
    """A job in seconds and cpus; it runs for at most its walltime."""

    submit: int
    cpu: int
    wall: int
    run: int


@dataclass(frozen=True, slots=True)
class Played:
    """By the position of each job: its start, and its first reserved start, if any."""

    starts: dict[int, int] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)


def play(jobs: list[Job], strategy: Strategy) -> Played:
    """Run a session at each arrival and end, until all jobs have started."""
    played, now = Played(), -1
    while len(played.starts) < len(jobs):
        now = min(at for at in _instants(jobs, played.starts) if at > now)
        session = decide(*_world(jobs, played.starts, strategy, now), now_ms=now * 1_000).session
        for uid, at_ms in reservations_of(session).items():
            played.promised.setdefault(int(uid), at_ms // 1_000)
        for group in session.groups.values():
            if group.phase == PodGroupPhase.IN_QUEUE:
                played.starts[int(group.uid)] = now
        running = [place for place, start in played.starts.items() if start + jobs[place].run > now]
        assert sum(jobs[place].cpu for place in running) <= CPUS
    return played


def _instants(jobs: list[Job], starts: dict[int, int]) -> list[int]:
    ends = [start + jobs[place].run for place, start in starts.items()]
    return [*ends, *(job.submit for job in jobs)]


def _world(jobs: list[Job], starts: dict[int, int], strategy: Strategy, now: int) -> list[Any]:
    queue = a_queue()
    queue = structs.replace(queue, spec=structs.replace(queue.spec, strategy=strategy))
    world: list[Any] = [a_node("n1", cpu=CPUS), queue]
    for place, job in enumerate(jobs):
        name, wall_ms = f"{place:03}", job.wall * 1_000
        if place in starts and starts[place] + job.run > now:
            group, *pods = a_running_group(name, cpu=job.cpu, walltime=wall_ms)
            status = structs.replace(group.status, started_at=starts[place] * 1_000)
            world += [structs.replace(group, status=status), *pods]
        elif place not in starts and job.submit <= now:
            created = job.submit * 1_000
            world.append(a_group(name, cpu=job.cpu, walltime=wall_ms, created=created))
    return world


def a_log(*, exact: bool) -> st.SearchStrategy[list[Job]]:
    def job(submit: int, cpu: int, wall: int, part: int) -> Job:
        return Job(submit, cpu, wall, wall if exact else max(1, wall * part // 4))

    parts = st.tuples(st.integers(0, 30), st.integers(1, CPUS), st.integers(1, 40))
    drawn = st.tuples(parts, st.integers(1, 4)).map(lambda one: job(*one[0], one[1]))
    return st.lists(drawn, min_size=3, max_size=9).map(sorted)


def late(played: Played) -> dict[int, tuple[int, int]]:
    """Return the jobs that started after their first reserved start, with both times."""
    return {
        place: (promise, played.starts[place])
        for place, promise in played.promised.items()
        if played.starts[place] > promise
    }


@given(st.one_of(a_log(exact=True), a_log(exact=False)), st.sampled_from([EASY, SHORTEST]))
def test_easy_starts_no_head_later_than_its_first_reservation(
    jobs: list[Job], strategy: Strategy
) -> None:
    """Walltimes may be exact or too long."""
    assert late(play(jobs, strategy)) == {}


@given(a_log(exact=True))
def test_conservative_reserves_a_start_for_every_pending_job_and_keeps_it(jobs: list[Job]) -> None:
    played = play(jobs, CONSERVATIVE)
    waited = {place for place, start in played.starts.items() if start > jobs[place].submit}
    assert waited == played.promised.keys()
    assert late(played) == {}


@given(a_log(exact=False), st.sampled_from([CONSERVATIVE, CONSERVATIVE_SHORTEST]))
def test_all_jobs_have_started_in_the_end(jobs: list[Job], strategy: Strategy) -> None:
    """The jobs that run at one instant never exceed the machine; `play` checks this."""
    assert play(jobs, strategy).starts.keys() == set(range(len(jobs)))


@given(trees(), LENGTHS)
def test_bookings_in_a_copy_of_a_plan_do_not_change_the_plan_itself(
    world: list[Any], length: int | None
) -> None:
    session = decide(*world, now_ms=NOW).session
    before, table = dump(session), LedgerTimeline(session)
    result = {group.uid: table.slot(group, length) for group in waiting(session)}
    plan = table.beside()
    for group in waiting(session):
        plan.book(group, NOW, length)
    assert {group.uid: table.slot(group, length) for group in waiting(session)} == result
    assert dump(session) == before


@given(trees(), LENGTHS)
def test_no_group_fits_sooner_after_bookings_for_others(
    world: list[Any], length: int | None
) -> None:
    """Slots come later, or not at all; an answer of a plan does not depend on earlier questions."""
    session = decide(*world, now_ms=NOW).session
    groups = waiting(session)
    table = LedgerTimeline(session)
    plan, unasked = table.beside(), table.beside()
    for booked in groups[:1]:
        before = {group.uid: plan.slot(group, length) for group in groups}
        for one in (plan, unasked):
            one.book(booked, NOW, length)
        for group in groups[1:]:
            later = plan.slot(group, length)
            assert later == unasked.slot(group, length)
            sooner = before[group.uid]
            assert later is None or (sooner is not None and later >= sooner)
