"""Loads that may skip sessions that would only evaluate waiting groups again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.objects import Dependency, Metadata, Queue, QueueSpec
from batchq.config import SchedulerConfig
from batchq.lab import load_run as playing
from batchq.lab.load_player import play_load
from batchq.lab.load_run import LoadRun, is_queue_of_equals, waits_only_for_resources
from batchq.lab.schedule import Schedule
from batchq.lab.traces import POLICY_CONFIG, Arrival, Load
from batchq.scheduler.cycle import Cycle, CycleReport
from tests.effort import grid, sample, usually
from tests.traces.loads import a_load, job


def with_spec(arrival: Arrival, **spec: object) -> Arrival:
    group = structs.replace(arrival.group, spec=structs.replace(arrival.group.spec, **spec))
    return structs.replace(arrival, group=group)


def full_and_empty(*jobs: Arrival) -> Load:
    return a_load(job(1, 0, 4, 10), job(2, 1, 1, 10), *jobs, policy="easy")


def sessions_without_actions(load: Load, monkeypatch: pytest.MonkeyPatch) -> int:
    found: list[CycleReport] = []
    settle_once = Cycle.settle_once

    def noted(cycle: Cycle) -> CycleReport:
        found.append(settle_once(cycle))
        return found[-1]

    monkeypatch.setattr(Cycle, "settle_once", noted)
    LoadRun(load, POLICY_CONFIG, watch=True).run(per_event=False, tell=None)
    return len(found)


def test_gangs_of_one_queue_are_a_queue_of_equals() -> None:
    load = full_and_empty(job(3, 2, 1, 5, pods=3), with_spec(job(4, 2, 1, 5, pods=3), min_member=3))
    assert is_queue_of_equals(load, POLICY_CONFIG)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(job(3, 2, 1, 5, queue="other"), id="of another queue"),
        pytest.param(with_spec(job(3, 2, 1, 5), priority_class_name="high"), id="more important"),
        pytest.param(with_spec(job(3, 2, 1, 5, pods=3), min_member=1), id="an array"),
        pytest.param(with_spec(job(3, 2, 1, 5), controller="external"), id="run by others"),
        pytest.param(
            with_spec(job(3, 2, 1, 5), depends_on=(Dependency(name="job-1"),)), id="depends on one"
        ),
    ],
)
def test_with_any_other_group_they_are_not(other: Arrival) -> None:
    assert not is_queue_of_equals(full_and_empty(other), POLICY_CONFIG)


def test_a_queue_with_a_guarantee_is_not_a_queue_of_equals() -> None:
    queue = Queue(metadata=Metadata(name="default"), spec=QueueSpec(guarantee={"cpu": 1000}))
    assert not is_queue_of_equals(structs.replace(full_and_empty(), queues=(queue,)), POLICY_CONFIG)


def test_on_several_machines_they_are_not() -> None:
    assert not is_queue_of_equals(a_load(job(1, 0, 4, 10), nodes=2), POLICY_CONFIG)


def test_a_second_session_after_starts_on_several_machines_starts_another_job() -> None:
    load = a_load(
        job(1, 1, 2, 100),
        job(2, 3, 3, 30, pods=3),
        job(7, 31, 4, 60, pods=3),
        job(8, 32, 1, 30, walltime_s=5),
        job(10, 32, 4, None, walltime_s=20, pods=2),
        job(14, 37, 2, 10, walltime_s=200, pods=3),
        job(17, 58, 1, 60),
        job(18, 58, 1, 60, pods=2),
        job(20, 58, 2, 60),
        job(21, 60, 1, 60, walltime_s=50, pods=3),
        job(22, 80, 1, 30, walltime_s=200, pods=2),
        nodes=3,
        policy="easy-sjf",
    )
    schedule = play_load(load, POLICY_CONFIG, watch=True)
    assert {one.number: one.start_s for one in schedule.jobs}[22] == 191


def test_by_other_actions_they_are_not() -> None:
    config = SchedulerConfig(actions=("enqueue", "allocate"))
    assert not is_queue_of_equals(full_and_empty(), config)


def test_each_start_saves_an_evaluation_of_waiting_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    short_first = a_load(job(1, 0, 4, 10), job(2, 1, 1, 10), policy="easy-sjf")
    assert sessions_without_actions(short_first, monkeypatch) == 2


def sessions_by_then(load: Load) -> list[int]:
    """Return the number of sessions by each instant at which anything was due."""
    run = LoadRun(load, POLICY_CONFIG, watch=False)
    found: list[int] = []
    run.run(per_event=False, tell=lambda done, jobs: found.append(run.sessions))
    return found


@pytest.mark.parametrize("asked_s", [5, 20])
def test_an_end_after_which_nothing_fits_needs_no_session(asked_s: int) -> None:
    sizes = ((1, 0, 3, 30, 40), (2, 0, 1, 5, asked_s), (3, 1, 2, 5, 20))
    load = a_load(*(job(*one, walltime_s=asked) for *one, asked in sizes), policy="easy")
    # At 0 two start together; at 1 one arrives; at 5 one ends, within its walltime or with it, but
    # nothing fits; at 30 the third starts; at 35 it ends, and no group is left to admit. At 20,
    # when the walltime of the second would have been over, nothing is due.
    assert sessions_by_then(load) == [1, 1, 1, 2, 2]


def behind_a_head(policy: str, *jobs: Arrival) -> Load:
    """Return a load on 4 cpus with 3 in use until 100, and a head that needs 3 of them."""
    return a_load(job(1, 0, 3, 100), job(2, 1, 3, 10), *jobs, policy=policy)


@pytest.mark.parametrize(
    ("late", "sessions"),
    [
        pytest.param(job(3, 2, 1, 50), 2, id="one that ends before the head starts may start"),
        pytest.param(job(3, 2, 1, 150), 2, id="one that fits beside the head may start"),
        pytest.param(job(3, 2, 2, 50), 1, id="one that does not fit now waits"),
    ],
)
def test_an_arrival_behind_a_head_needs_a_session_if_it_may_start(
    late: Arrival, sessions: int
) -> None:
    # The head itself does not fit at 1, which needs no session.
    load = behind_a_head("easy", late, job(4, 3, 4, 10))
    assert sessions_by_then(load)[:3] == [1, 1, sessions]


def test_an_arrival_that_would_delay_the_head_needs_no_session() -> None:
    first, then = (job(1, 0, 3, 100), job(2, 1, 4, 10)), (job(4, 60, 1, 50), job(5, 61, 1, 30))
    load = a_load(*first, job(3, 2, 1, 50, walltime_s=60), *then, policy="easy")
    # The head starts at 100. At 2 a job starts before it, and ends at 52. At 60 one comes that
    # would run until 110, and at 61 one that ends before 100.
    assert sessions_by_then(load)[:6] == [1, 1, 2, 2, 2, 3]


def test_behind_a_strict_head_no_arrival_needs_a_session() -> None:
    load = behind_a_head("fcfs", job(3, 2, 1, 50), job(4, 3, 1, 50))
    assert sessions_by_then(load)[:4] == [1, 1, 2, 2]


def test_if_only_resources_count_a_start_needs_no_session() -> None:
    assert sessions_by_then(full_and_empty()) == [1, 1, 2, 2]


def test_a_job_beyond_its_walltime_is_stopped_in_time_even_without_a_session_since() -> None:
    schedule = play_load(a_load(job(1, 0, 4, 10, walltime_s=5), policy="easy"), POLICY_CONFIG)
    assert [(one.start_s, one.end_s) for one in schedule.jobs] == [(0, 5)]


def test_the_last_group_to_end_has_left_the_store_when_the_play_is_over() -> None:
    run = LoadRun(a_load(job(1, 0, 4, 10), policy="easy"), POLICY_CONFIG, watch=False)
    run.run(per_event=False, tell=None)
    assert [(one.start_s, one.end_s) for one in run.schedule("", 0.0).jobs] == [(0, 10)]
    assert (run.store.list("PodGroup"), run.store.list("Pod")) == ((), ())
    assert list(run.store.ledger()) == ["capacity"]


#: Seconds after the previous job, run time, additional walltime, cpus, and pods.
SHAPES = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 4]),
    st.integers(0, 25),
    st.sampled_from([-9, -1, 0, 0, 3, 30]),
    st.integers(1, 6),
    st.integers(1, 3),
)


def a_line(shapes: Sequence[tuple[int, ...]], policy: str) -> Load:
    """Gangs of one queue: many arrive and end at one instant, and some exceed their walltime."""
    at_s, jobs = 0, []
    for number, (later, run_s, more, cpus, most) in enumerate(shapes, start=1):
        at_s, pods = at_s + later, min(most, 6 // cpus)
        asked_s = max(1, run_s + more)
        one = job(number, at_s, cpus, run_s, walltime_s=asked_s, pods=pods)
        jobs.append(with_spec(one, min_member=pods))
    return a_load(*jobs, cpus=6, policy=policy)


@pytest.mark.parametrize(
    ("policy", "per_event"), grid(["fcfs", "first-fit", "easy", "conservative"], [False, True])
)
def test_skipping_sessions_does_not_change_the_schedule(
    policy: str, per_event: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def comes_to(load: Load, *, spares: bool, watch: bool) -> Schedule:
        with monkeypatch.context() as patch:
            if not spares:
                patch.setattr(playing, "waits_only_for_resources", lambda load, config: False)
                patch.setattr(playing, "is_queue_of_equals", lambda load, config: False)
            schedule = play_load(load, POLICY_CONFIG, watch=watch, per_event=per_event)
        return structs.replace(schedule, sessions=0)

    @settings(deadline=None, max_examples=usually(4, 40))
    @given(st.lists(SHAPES, min_size=1, max_size=25))
    def equal(shapes: list[tuple[int, ...]]) -> None:
        load = a_line(shapes, policy)
        whole = comes_to(load, spares=False, watch=False)
        assert comes_to(load, spares=True, watch=False) == whole
        assert comes_to(load, spares=True, watch=True) == whole

    equal()


@pytest.mark.parametrize("policy", sample(["fcfs", "first-fit", "easy", "conservative"], 2))
def test_no_group_could_start_in_the_sessions_that_are_spared(policy: str) -> None:
    jobs = [
        job(n, 3 * n + n % 2, 1 + 7 * n % 4, 1 + 11 * n % 23, walltime_s=15 + n % 9)
        for n in range(1, 120)
    ]
    run = LoadRun(a_load(*jobs, cpus=6, policy=policy), POLICY_CONFIG, watch=True)
    # With `watch`, each skipped session is run all the same, and must decide nothing.
    run.run(per_event=False, tell=None)
    assert all(one.end_s is not None for one in run.schedule(policy, 0.0).jobs)


@pytest.mark.parametrize(
    ("load", "config"),
    [
        pytest.param(a_load(job(1, 0, 4, 10), policy="easy-sjf"), POLICY_CONFIG, id="short first"),
        pytest.param(
            a_load(job(1, 0, 4, 10)),
            SchedulerConfig(settings=structs.replace(POLICY_CONFIG.settings, overcommit=1500)),
            id="more is let in than there is room for",
        ),
    ],
)
def test_other_loads_do_not_wait_only_for_resources(load: Load, config: SchedulerConfig) -> None:
    assert is_queue_of_equals(load, config)
    assert not waits_only_for_resources(load, config)


def test_with_several_queues_all_groups_are_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = full_and_empty(job(3, 2, 1, 5, queue="other"))
    assert sessions_without_actions(load, monkeypatch) == 0
