"""Small loads, played by the daemon's own sessions: starts, ends and what remains."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from msgspec import structs

from batchq.api.objects import Dependency
from batchq.api.reasons import Verdict
from batchq.errors import InvalidInput
from batchq.lab.load_player import play_load
from batchq.lab.load_run import LoadRun
from batchq.lab.traces import POLICY_CONFIG, Arrival, strategy_of
from tests.builders import RECLAIMS
from tests.effort import sample
from tests.traces.loads import a_load, job, played, starts


def test_jobs_start_when_they_fit_and_end_after_their_run_time() -> None:
    schedule = played(a_load(job(1, 5, 3, 100), job(2, 10, 3, 50), job(3, 20, 1, 10)))
    assert starts(schedule) == {1: 5, 2: 105, 3: 20}
    assert [one.end_s for one in schedule.jobs] == [105, 155, 30]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fcfs", {1: 0, 2: 100, 3: 130, 4: 130, 5: 130}),
        ("first-fit", {1: 0, 2: 150, 3: 3, 4: 100, 5: 100}),
        ("easy", {1: 0, 2: 100, 3: 130, 4: 4, 5: 54}),
        ("easy-sjf", {1: 0, 2: 100, 3: 130, 4: 24, 5: 4}),
        ("conservative", {1: 0, 2: 100, 3: 130, 4: 4, 5: 54}),
    ],
)
def test_a_policy_decides_which_jobs_pass_the_blocked_head(
    policy: str, expected: dict[int, int]
) -> None:
    """On 4 cpus, the first leaves one free; the second needs all of them and is the head."""
    load = a_load(
        job(1, 0, 3, 100),
        job(2, 2, 4, 30),
        job(3, 3, 1, 147),
        job(4, 4, 1, 50),
        job(5, 4, 1, 20),
        policy=policy,
    )
    assert starts(played(load)) == expected


def test_jobs_of_one_instant_are_served_in_the_order_of_the_load() -> None:
    jobs = [job(number, 7, 4, 10) for number in range(20, 8, -1)]
    expected = {number: 7 + 10 * place for place, number in enumerate(range(20, 8, -1))}
    assert starts(played(a_load(*jobs))) == expected


def test_a_job_may_end_with_its_walltime_and_is_cut_beyond_it() -> None:
    late = job(2, 0, 1, 50, walltime_s=40)
    schedule = played(a_load(job(1, 0, 1, 40, walltime_s=40), late))
    # Its processes are asked to stop at 40 and have a grace of 30 s.
    assert [(one.end_s, one.evictions) for one in schedule.jobs] == [(40, 0), (40, 0)]
    assert schedule.usage[0].long_s == 1
    assert len(schedule.usage) == 70


def test_a_gang_of_several_pods_is_one_job() -> None:
    schedule = played(a_load(job(1, 0, 3, 10), job(2, 1, 3, 20, pods=2), cpus=4, nodes=2))
    assert starts(schedule) == {1: 0, 2: 10}
    assert [one.end_s for one in schedule.jobs] == [10, 30]


def test_per_event_a_submit_comes_before_unpredicted_ends() -> None:
    jobs = (
        job(1, 0, 2, 100, walltime_s=200),
        job(2, 1, 4, 10),
        job(3, 100, 2, 40),
    )
    assert starts(played(a_load(*jobs))) == {1: 0, 2: 100, 3: 110}
    assert starts(played(a_load(*jobs), per_event=True)) == {1: 0, 2: 140, 3: 100}


def test_per_event_ends_that_were_predicted_come_before_the_submits() -> None:
    jobs = (job(1, 0, 2, 100), job(2, 1, 4, 10), job(3, 100, 2, 40))
    assert starts(played(a_load(*jobs), per_event=True)) == {1: 0, 2: 100, 3: 110}


def test_per_event_each_end_has_a_pass_of_its_own() -> None:
    """At 100 the first two end one after the other, and both estimated 200: the short one fits
    beside the second before the head does."""
    jobs = (
        job(1, 0, 3, 100, walltime_s=200),
        job(2, 0, 1, 100, walltime_s=200),
        job(3, 1, 4, 10),
        job(4, 2, 3, 50),
    )
    assert starts(played(a_load(*jobs, policy="easy"))) == {1: 0, 2: 0, 3: 100, 4: 110}
    by_event = played(a_load(*jobs, policy="easy"), per_event=True)
    assert starts(by_event) == {1: 0, 2: 0, 3: 150, 4: 100}


def test_an_evicted_job_runs_again_from_the_start() -> None:
    """Both queues deserve two of four cpus; the first took all before the second came."""
    load = a_load(
        job(1, 0, 2, 100, queue="a"),
        job(2, 1, 2, 100, queue="a"),
        job(3, 10, 2, 20, queue="b"),
    )
    queues = [
        structs.replace(queue, spec=structs.replace(queue.spec, preemption=RECLAIMS))
        for queue in load.queues
    ]
    schedule = played(structs.replace(load, queues=tuple(queues)))
    # The youngest is asked to stop at 10, is gone with its grace at 40, and starts again at 60.
    first, second, third = schedule.jobs
    assert (first.start_s, first.end_s, first.evictions) == (0, 100, 0)
    assert (third.start_s, third.end_s) == (40, 60)
    assert (second.first_start_s, second.start_s, second.end_s) == (1, 60, 160)
    assert second.evictions == 1
    assert (schedule.evictions, schedule.lost_s) == (1, 2 * 39)
    assert [round(one.total("cpu")) for one in schedule.usage[39:41]] == [4000, 4000]
    assert schedule.usage[50].used == {"a": {"cpu": 2000.0}, "b": {"cpu": 2000.0}}
    assert schedule.usage[50].waiting == 1
    assert schedule.usage[120].used == {"a": {"cpu": 2000.0}}


def test_a_job_that_can_never_run_is_unfinished_and_the_play_ends() -> None:
    schedule = played(a_load(job(1, 0, 5, 10), job(2, 3, 4, 10), cpus=4))
    assert [(one.start_s, one.end_s) for one in schedule.jobs] == [(None, None), (3, 13)]


def test_a_job_that_fits_the_cluster_but_no_node_does_not_keep_the_play_going() -> None:
    """It is admitted again after every back-off, for ever."""
    schedule = played(a_load(job(1, 0, 6, 10), job(2, 0, 1, 10), cpus=4, nodes=2))
    assert [(one.start_s, one.end_s) for one in schedule.jobs] == [(None, None), (0, 10)]


def test_a_job_without_a_run_time_runs_on_and_the_play_ends() -> None:
    schedule = played(a_load(job(1, 0, 3, None), job(2, 1, 3, 10), job(3, 2, 1, 10)))
    ends = [(one.start_s, one.end_s) for one in schedule.jobs]
    assert ends == [(0, None), (None, None), (2, 12)]


def test_an_empty_load_is_played_at_once() -> None:
    schedule = played(a_load())
    assert (schedule.jobs, schedule.usage, schedule.sessions) == ((), (), 0)


def test_a_configuration_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no policy 'lifo'; expected one of fcfs, "):
        strategy_of("lifo")


def test_finished_groups_leave_the_store_at_once() -> None:
    load = a_load(*(job(number, number, 4, 5) for number in range(30)))
    held: list[int] = []
    run = LoadRun(load, POLICY_CONFIG, watch=True)
    run.run(
        per_event=False,
        tell=lambda done, jobs: held.append(len(run.store.list("PodGroup")) + done),
    )
    assert max(held) == 30
    assert (run.store.list("PodGroup"), run.store.list("Pod")) == ((), ())
    assert list(run.store.ledger()) == ["capacity"]


def test_a_play_writes_no_reasons_and_no_events_of_sessions() -> None:
    run = LoadRun(a_load(job(1, 0, 4, 10), job(2, 1, 4, 5)), POLICY_CONFIG, watch=True)
    reasons: list[tuple[Verdict, ...]] = []

    def look(done: int, jobs: int) -> None:
        reasons.extend(group.status.reasons for group in run.store.list("PodGroup"))

    run.run(per_event=False, tell=look)
    assert reasons == [(), (), (), ()]
    assert {event.reason for event in run.store.events(kind="PodGroup")} == {"Submitted"}


def with_spec(arrival: Arrival, **spec: object) -> Arrival:
    group = structs.replace(arrival.group, spec=structs.replace(arrival.group.spec, **spec))
    return structs.replace(arrival, group=group)


def phases(*jobs: Arrival) -> list[list[str]]:
    """Return the phases of the stored groups after each instant."""
    run, found = LoadRun(a_load(*jobs), POLICY_CONFIG, watch=False), []

    def look(done: int, jobs: int) -> None:
        found.append([str(group.status.phase) for group in run.store.list("PodGroup")])

    run.run(per_event=False, tell=look)
    return found


def test_a_group_is_running_with_the_start_of_its_last_pod() -> None:
    assert phases(job(1, 0, 1, 10, pods=3)) == [["Running"], []]


def test_a_group_is_running_although_some_of_its_pods_find_no_room() -> None:
    array = with_spec(job(1, 0, 3, 10, walltime_s=20, pods=2), min_member=1)
    assert phases(array) == [["Running"], ["Running"], []]


def test_a_group_that_another_depends_on_is_finished_by_a_session() -> None:
    first, second = job(1, 0, 1, 10), job(2, 0, 1, 5)
    waiting = with_spec(second, depends_on=(Dependency(name="job-1", uid="0"),))
    assert starts(played(a_load(first, waiting))) == {1: 0, 2: 10}


def test_a_job_stopped_at_its_walltime_gives_everything_back() -> None:
    # Its grace of 30 s is over at 35; it held its processors until then.
    load = a_load(job(1, 0, 3, 50, walltime_s=5), job(2, 1, 4, 10))
    run = LoadRun(load, POLICY_CONFIG, watch=True)
    run.run(per_event=False, tell=None)
    schedule = run.schedule("", 0.0)
    assert [(one.start_s, one.end_s) for one in schedule.jobs] == [(0, 5), (35, 45)]
    assert schedule.refused == 0
    assert list(run.store.ledger()) == ["capacity"]


def sessions_at_each_instant(policy: str) -> list[int]:
    """Return the number of sessions by each instant: one job starts, and ten arrive that do not
    fit.
    """
    late = [job(number, number, 4, 1) for number in range(2, 12)]
    run = LoadRun(a_load(job(1, 0, 4, 1000), *late, policy=policy), POLICY_CONFIG, watch=False)
    sessions: list[int] = []
    run.run(per_event=False, tell=lambda done, jobs: sessions.append(run.sessions))
    return sessions[:11]


def test_arrivals_that_do_not_fit_need_no_session() -> None:
    assert sessions_at_each_instant("easy") == [1] * 11


def test_in_shortest_first_order_an_arrival_needs_one_session() -> None:
    # The start takes two sessions: one binds, and the next sees the pod run.
    assert sessions_at_each_instant("easy-sjf") == list(range(2, 13))


def test_a_play_tells_how_far_it_is_and_how_long_it_took() -> None:
    seen: list[tuple[int, int]] = []
    ticks = iter((10.0, 12.5))
    schedule = play_load(
        a_load(job(1, 0, 4, 5), job(2, 1, 4, 5)),
        POLICY_CONFIG,
        name="mine",
        tell=lambda done, jobs: seen.append((done, jobs)),
        stopwatch=lambda: next(ticks),
    )
    assert seen == [(0, 2), (0, 2), (1, 2), (2, 2)]
    assert (schedule.name, schedule.load, schedule.real_s) == ("mine", "by hand", 2.5)


PLAY_AND_PRINT = """
import msgspec
from tests.traces.loads import a_load, job, played
jobs = sorted(
    (
        job(n, 7 * n % 50, 1 + n % 3, 5 + 11 * n % 60, queue=f"q{n % 4}", walltime_s=100)
        for n in range(60)
    ),
    key=lambda one: (one.at_s, one.number),
)
print(msgspec.json.encode(played(a_load(*jobs, policy="easy"))).decode())
"""


def test_every_hash_seed_gives_the_same_schedule() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", PLAY_AND_PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in sample(("0", "1", "42"), 2)
    }
    assert len(seen) == 1
    assert '"number":59' in seen.pop()
