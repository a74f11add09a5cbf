"""A long load is played in several processes between its idle moments, with the same schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import psutil
import pytest
from msgspec import structs

from batchq.api.objects import Dependency
from batchq.config import SchedulerConfig
from batchq.lab import load_player as playing
from batchq.lab.load_player import is_forgotten_when_idle, likely_parts, play_load
from batchq.lab.load_run import LoadRun
from batchq.lab.schedule import Meter, Schedule, schedule_of
from batchq.lab.traces import POLICY_CONFIG, Arrival, Load
from tests.builders import RECLAIMS
from tests.traces.loads import a_load, job


def some_days(
    count: int, *, cpus: int, days: int, seed: int, queues: Sequence[str] = ("default",)
) -> list[Arrival]:
    """Return jobs of several days, each of which ends with an idle hour."""
    chance, jobs, at_s = Random(seed), [], 0
    for number in range(1, count + 1):
        if number % (count // days) == 0:
            at_s += 3_600
        at_s += chance.choice([0, 0, 5, 20])
        run_s = chance.randint(1, 60)
        walltime_s = run_s * chance.choice([1, 2, 10])
        size, queue = chance.randint(1, cpus), chance.choice(queues)
        jobs.append(job(number, at_s, size, run_s, walltime_s=walltime_s, queue=queue))
    return jobs


def same(one: Schedule, other: Schedule) -> bool:
    """Return whether two schedules are equal, apart from the time that playing them took."""
    return structs.replace(one, real_s=0.0) == structs.replace(other, real_s=0.0)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let short loads be played in parts, and leave no process behind."""
    monkeypatch.setattr(playing, "LEAST_ARRIVALS", 10)
    before = psutil.Process().children()
    yield
    assert psutil.Process().children() == before


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("per_event", [False, True])
@pytest.mark.parametrize("policy", ["easy", "easy-sjf", "conservative", "first-fit", "fcfs"])
def test_two_processes_find_the_schedule_of_one(policy: str, *, per_event: bool) -> None:
    load = a_load(*some_days(120, cpus=4, days=6, seed=1), policy=policy)
    told: list[tuple[int, int]] = []
    together = play_load(
        load,
        POLICY_CONFIG,
        per_event=per_event,
        processes=2,
        tell=lambda *counts: told.append(counts),
    )
    assert same(together, play_load(load, POLICY_CONFIG, per_event=per_event, processes=1))
    assert told[-1] == (120, 120)
    assert [finished for finished, _ in told] == sorted(finished for finished, _ in told)


@pytest.mark.parametrize("queues", [("a",), ("a", "b")])
@pytest.mark.parametrize("seed", range(10))
def test_parts_follow_one_another_whichever_moments_are_taken_for_idle(
    seed: int, queues: tuple[str, ...]
) -> None:
    """Every arrival is tried as the first of a part; most are not, because something runs. Two
    queues reclaim from each other.
    """
    days = some_days(30, cpus=4, days=5, seed=seed, queues=queues)
    load = a_load(*days, policy="easy")
    spec = structs.replace(load.queues[0].spec, preemption=RECLAIMS)
    load = structs.replace(
        load, queues=tuple(structs.replace(queue, spec=spec) for queue in load.queues)
    )
    config = SchedulerConfig(settings=structs.replace(POLICY_CONFIG.settings, half_life_ms=None))
    whole = LoadRun(load, config, watch=True)
    whole.run(per_event=False, tell=None)
    parts, first = [], 0
    while first < 30:
        run = LoadRun(load, config, watch=True, first=first)
        run.run(per_event=False, tell=None, stops=range(first + 1, 30))
        parts.append(run.part())
        first = parts[-1].until
    assert len(parts) >= 5
    assert same(schedule_of(load, parts, name="", real_s=0.0), whole.schedule("", 0.0))


@pytest.mark.usefixtures("short_parts")
def test_moments_that_are_not_idle_after_all_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = a_load(*some_days(120, cpus=4, days=3, seed=2), policy="easy")
    # Days begin with the arrivals 39 and 79; the others come while something runs or waits.
    expected = [0, 3, 5, 39, 41, 60, 79, 110]
    monkeypatch.setattr(playing, "likely_parts", lambda *_given: expected)
    together = play_load(load, POLICY_CONFIG, processes=3)
    assert same(together, play_load(load, POLICY_CONFIG, processes=1))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize(
    "work", ["raise SystemExit(1)", "import time; time.sleep(0.05)", "print('unexpected')"]
)
def test_a_load_is_played_here_if_a_process_fails(
    monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    load = a_load(*some_days(60, cpus=4, days=6, seed=3), policy="easy")
    expected = play_load(load, POLICY_CONFIG, processes=1)
    monkeypatch.setattr(playing, "_WORK", work)
    assert same(play_load(load, POLICY_CONFIG, processes=2), expected)


@pytest.mark.usefixtures("short_parts")
def test_a_load_is_played_here_if_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = a_load(*some_days(60, cpus=4, days=6, seed=3), policy="easy")
    expected = play_load(load, POLICY_CONFIG, processes=1)
    monkeypatch.setattr(playing.sys, "executable", "/nowhere/python")
    assert same(play_load(load, POLICY_CONFIG, processes=2), expected)


@pytest.mark.usefixtures("short_parts")
def test_an_interrupt_ends_all_processes() -> None:
    load = a_load(*some_days(600, cpus=4, days=6, seed=4), policy="easy")

    def interrupt(_finished: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_load(load, POLICY_CONFIG, processes=2, tell=interrupt)


COUNT = 2 * playing.LEAST_ARRIVALS


def test_likely_parts_begin_after_the_longest_idle_moments() -> None:
    """Jobs of 10 s come every 10 s and leave no idle moment, but for 5 s and 50 s."""
    jobs = [job(number, 10 * number, 1, 10) for number in range(COUNT)]
    assert likely_parts(a_load(*jobs), 8) == [0]
    late = [
        structs.replace(one, at_s=one.at_s + 5 * (place >= 900) + 50 * (place >= 1100))
        for place, one in enumerate(jobs)
    ]
    assert likely_parts(a_load(*late), 8) == [0, 1100]
    assert likely_parts(a_load(*late), 1) == [0]
    assert likely_parts(a_load(*late[:-1]), 8) == [0]


def test_jobs_that_wait_for_others_leave_no_idle_moment() -> None:
    """The whole machine is needed for 15 s by jobs that come every 10 s."""
    jobs = [job(number, 10 * number, 4, 15) for number in range(COUNT)]
    assert likely_parts(a_load(*jobs), 8) == [0]


@pytest.mark.parametrize(("policy", "expected"), [("easy", [0, 1002]), ("fcfs", [0])])
def test_in_a_strict_queue_no_job_passes_the_first_that_waits(
    policy: str, expected: list[int]
) -> None:
    """Of each three jobs, the second needs the whole machine and the third fits beside the first:
    they take 20 s, or 30 s one after the other. The next three come after 25 s.
    """
    jobs = [
        job(3 * three + place, 25 * three + place, size, 10)
        for three in range(COUNT // 3 + 1)
        for place, size in enumerate((1, 4, 1))
    ]
    assert likely_parts(a_load(*jobs, policy=policy), 2) == expected


@pytest.mark.parametrize("endless", [job(5, 0, 1, None), job(5, 0, 9, 1)])
def test_nothing_is_idle_after_a_job_that_never_ends(endless: Arrival) -> None:
    jobs = [endless, *(job(number, 20 * number, 1, 10) for number in range(1, COUNT))]
    assert likely_parts(a_load(*jobs), 8) == [0]


def test_usage_of_several_queues_budgets_and_dependencies_outlast_an_idle_moment() -> None:
    load = a_load(job(1, 0, 1, 10))
    assert is_forgotten_when_idle(load, POLICY_CONFIG)
    with_budget = structs.replace(POLICY_CONFIG.settings, eviction_budget=3)
    assert not is_forgotten_when_idle(load, SchedulerConfig(settings=with_budget))
    of_two = a_load(job(1, 0, 1, 10, queue="a"), job(2, 0, 1, 10, queue="b"))
    assert not is_forgotten_when_idle(of_two, POLICY_CONFIG)
    without_past = structs.replace(POLICY_CONFIG.settings, half_life_ms=None)
    assert is_forgotten_when_idle(of_two, SchedulerConfig(settings=without_past))
    assert not is_forgotten_when_idle(_after_another(load), POLICY_CONFIG)


def _after_another(load: Load) -> Load:
    [one] = load.arrivals
    spec = structs.replace(one.group.spec, depends_on=(Dependency(name="job-0", uid="0"),))
    after = structs.replace(one, group=structs.replace(one.group, spec=spec))
    return structs.replace(load, arrivals=(after,))


def test_joined_meters_have_the_samples_of_one() -> None:
    """The later meter has steps of 4 s, and begins at the same second."""
    whole, first, then = Meter(100), Meter(100), Meter(100)
    for meters, gauge, units, at_s in (
        ((whole, first), ("a", "cpu"), 3, 101),
        ((whole, first), ("a", "cpu"), -3, 104),
        ((whole, then), ("b", "cpu"), 2, 5_000),
        ((whole, then), ("a", "cpu"), 1, 6_000),
        ((whole, then), ("b", "cpu"), -2, 7_001),
    ):
        for meter in meters:
            meter.add(gauge, units, at_s)
    first.join(then)
    assert first.samples(7_100) == whole.samples(7_100)
