"""The order of starts of a replay compared with the simulator's, and the causes of differences.

The replays are invented: they state what an agent would have measured, in milliseconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.cli.replay import as_json, compared
from batchq.config import SchedulerConfig
from batchq.errors import UsageError
from batchq.lab.replay import Replayed, ReplayEnding, ReplayPlan, report_of, starts_csv
from batchq.lab.replay_comparison import MOST_COMPARED, Comparison, compare, simulated_starts
from batchq.lab.traces import Trace, TraceJob, strategy_of

CONFIG = SchedulerConfig()
BEGAN_AT = 1_000_000
#: 100 s of the log per second, so that one of these is ten milliseconds.
SPEED = 100.0
#: The assumed durations of a process start and of a submission.
LAG_MS, SUBMIT_MS = 20, 2


def job(number: int, submit_s: int, run_s: int, processors: int, request_s: int = 0) -> TraceJob:
    return TraceJob(
        number=number,
        submit_s=submit_s,
        run_s=run_s,
        processors=processors,
        request_s=request_s or run_s,
    )


def plan_of(*jobs: TraceJob, policy: str = "first-fit", nodes: int = 1) -> ReplayPlan:
    """Return a replay on machines of four processors."""
    return ReplayPlan(
        name="replay-made-up",
        trace=Trace(processors=4, jobs=jobs),
        speed=SPEED,
        nodes=nodes,
        queue="replay-made-up",
        journal=Path("/tmp/journal"),
        strategy=strategy_of(policy),
    )


def replayed(plan: ReplayPlan, one: TraceJob, bound_s: float, **changes: int) -> Replayed:
    """Return a job placed at this second of the log; `changes` are in milliseconds."""
    bound_at = BEGAN_AT + round(1000 * (bound_s - plan.first_submit_s) / SPEED)
    started_at = changes.get("started_at", bound_at + LAG_MS)
    finished_at = changes.get("finished_at", started_at + round(1000 * one.run_s / SPEED))
    return Replayed(
        job=one,
        phase="Completed",
        submitted_at=BEGAN_AT + round(1000 * plan.due_s(one)) + SUBMIT_MS,
        bound_at=bound_at,
        running_at=started_at,
        ended_at=finished_at,
        started_at=started_at,
        finished_at=finished_at,
        node=f"{plan.name}-1",
        admissions=1,
        attempts=1,
    )


def ending_of(plan: ReplayPlan, *outcomes: Replayed) -> ReplayEnding:
    return ReplayEnding(
        report=report_of(plan, outcomes, {}, real_s=1.0), outcomes=outcomes, began_at=BEGAN_AT
    )


def causes(comparison: Comparison) -> dict[tuple[int, int], str]:
    """Return the cause of each differing pair."""
    return {(one.first, one.then): one.cause for one in comparison.differing}


def test_a_replay_that_only_lags_has_the_simulators_order() -> None:
    jobs = (job(1, 0, 100, 4), job(2, 10, 50, 2), job(3, 20, 60, 4))
    plan = plan_of(*jobs, policy="fcfs")
    assert simulated_starts(plan, plan.trace, CONFIG) == {1: 0, 2: 100, 3: 150}
    bounds = (1.0, 104.0, 158.0)
    outcomes = [replayed(plan, one, at) for one, at in zip(jobs, bounds, strict=True)]
    found = compare(plan, ending_of(plan, *outcomes), CONFIG)
    assert (found.jobs, found.pairs, found.same, found.tau) == (3, 3, 3, 1.0)
    assert (found.differing, found.explained, found.latency_ms) == ((), True, LAG_MS)


def test_jobs_that_start_at_one_instant_have_no_order() -> None:
    jobs = (job(1, 0, 100, 2), job(2, 0, 100, 2))
    plan = plan_of(*jobs)
    outcomes = (replayed(plan, jobs[0], 9.0), replayed(plan, jobs[1], 1.0))
    found = compare(plan, ending_of(plan, *outcomes), CONFIG)
    assert (found.jobs, found.pairs, found.tau) == (2, 0, None)


def test_processes_of_jobs_that_were_placed_in_order_may_start_in_another() -> None:
    jobs = (job(1, 0, 100, 2), job(2, 1, 100, 2))
    plan = plan_of(*jobs)
    late = replayed(plan, jobs[0], 1.0, started_at=BEGAN_AT + 200)
    found = compare(plan, ending_of(plan, late, replayed(plan, jobs[1], 2.0)), CONFIG)
    assert (found.pairs, found.same, found.tau) == (1, 0, -1.0)
    assert causes(found) == {(1, 2): "processes"}
    assert found.latency_ms == 190


@pytest.mark.parametrize(("run_s", "cause"), [(1, "latency"), (50, "overhead")])
def test_a_job_that_came_before_an_end_that_was_late(run_s: int, cause: str) -> None:
    # The first should have ended at 10, in time for the second. At 11, when it still held its
    # processors, the third arrived and took the remaining one.
    jobs = (job(1, 0, 10, 3), job(2, 1, run_s, 4), job(3, 11, 20, 1))
    plan = plan_of(*jobs)
    assert simulated_starts(plan, plan.trace, CONFIG) == {1: 0, 2: 10, 3: 10 + run_s}
    outcomes = (
        replayed(plan, jobs[0], 0.5, finished_at=BEGAN_AT + 130),
        replayed(plan, jobs[1], 35.0),
        replayed(plan, jobs[2], 11.5),
    )
    found = compare(plan, ending_of(plan, *outcomes), CONFIG)
    assert (found.same, causes(found)) == (2, {(2, 3): cause})
    assert found.explained


def test_a_start_the_policy_forbids_is_not_explained() -> None:
    # Strictly first come, first served: the third must not pass the waiting second.
    jobs = (job(1, 0, 10, 3), job(2, 1, 50, 4), job(3, 5, 20, 1))
    plan = plan_of(*jobs, policy="fcfs")
    outcomes = (
        replayed(plan, jobs[0], 0.5),
        replayed(plan, jobs[1], 35.0),
        replayed(plan, jobs[2], 5.5),
    )
    found = compare(plan, ending_of(plan, *outcomes), CONFIG)
    assert (causes(found), found.explained) == ({(2, 3): "open"}, False)
    assert found.causes == {"processes": 0, "allowance": 0, "latency": 0, "overhead": 0, "open": 1}


def test_a_chain_of_reservations_is_stretched_by_the_allowance_of_walltimes() -> None:
    # The second has a reservation at 100, the third at 200; the fourth would end at 202 beside
    # them. With 3 s more for each (300 of the log's), the third's reservation is later by as much.
    jobs = (job(1, 0, 100, 3), job(2, 1, 100, 3), job(3, 2, 100, 4), job(4, 5, 197, 1))
    plan = plan_of(*jobs, policy="conservative")
    assert simulated_starts(plan, plan.trace, CONFIG) == {1: 0, 2: 100, 3: 200, 4: 300}
    outcomes = (
        replayed(plan, jobs[0], 0.5),
        replayed(plan, jobs[1], 105.0),
        replayed(plan, jobs[2], 210.0),
        replayed(plan, jobs[3], 5.5),
    )
    found = compare(plan, ending_of(plan, *outcomes), CONFIG)
    assert causes(found) == {(2, 4): "allowance", (3, 4): "allowance"}


def test_the_simulated_machine_has_the_replays_nodes() -> None:
    jobs = (job(1, 0, 100, 3), job(2, 1, 100, 3), job(3, 2, 100, 2))
    assert simulated_starts(plan_of(*jobs), plan_of(*jobs).trace, CONFIG) == {1: 0, 2: 100, 3: 200}
    plan = plan_of(*jobs, nodes=2)
    assert simulated_starts(plan, plan.trace, CONFIG) == {1: 0, 2: 1, 3: 100}


def test_a_job_that_never_started_is_left_out_and_has_no_start_in_the_file() -> None:
    jobs = (job(7, 1000, 100, 2), job(9, 1001, 100, 2))
    plan = plan_of(*jobs)
    gone = Replayed(job=jobs[1], phase="gone", submitted_at=0)
    ending = ending_of(plan, replayed(plan, jobs[0], 1000.5), gone)
    assert compare(plan, ending, CONFIG).jobs == 1
    assert starts_csv(plan, ending) == "job,submit,start\n7,1000,1002.500\n9,1001,\n"


def test_so_many_that_comparing_takes_too_long_are_refused() -> None:
    plan = plan_of(*(job(number, 0, 1, 1) for number in range(MOST_COMPARED + 1)))
    with pytest.raises(UsageError) as refused:
        compare(plan, ending_of(plan), CONFIG)
    assert refused.value.message == "--against compares at most 5000 jobs, and these are 5001"


def test_a_comparison_prints_as_text_and_as_json() -> None:
    jobs = (job(1, 0, 10, 3), job(2, 1, 50, 4), job(3, 5, 20, 1))
    plan = plan_of(*jobs, policy="fcfs")
    bounds = (0.5, 35.0, 5.5)
    outcomes = [replayed(plan, one, at) for one, at in zip(jobs, bounds, strict=True)]
    ending = ending_of(plan, *outcomes)
    found = compare(plan, ending, CONFIG)
    assert list(compared(found)) == [
        "Against simulate       2 of 3 pairs of jobs start in the same order; Kendall's tau 0.3333",
        "    1 start in the other order:",
        "         1  open: not explained",
        "    job 2 starts 50 s before job 3 in the simulation, and 29.5 s after it here (open)",
        "    The slowest submit or start of a process took 20 ms (real).",
    ]
    assert '"kind": "ReplayReport"' in as_json(ending.report, found)
    assert '"against"' not in as_json(ending.report, None)
