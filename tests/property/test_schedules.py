"""Small random logs, played by the daemon's sessions, start as in a plain simulator.

The policies keep their reservations: EASY that of the head, if no job runs longer than estimated;
conservative backfill those of all jobs, if the estimates are exact.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.lab.load_player import play_load
from batchq.lab.traces import (
    POLICIES,
    POLICY_CONFIG,
    Trace,
    TraceJob,
    strategy_of,
    swf_load,
)
from tests.traces.oracle import POLICIES as KNOWN_TO_THE_ORACLE
from tests.traces.oracle import Job, Plan, starts

#: Most jobs arrive while others run; several arrive or end at one instant.
SUBMITS, RUNS, TOO_LONG = (
    st.integers(0, 12),
    st.integers(1, 9),
    st.sampled_from([0, 0, 0, 1, 4, 20]),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, list[Job]]:
    """Draw a machine's processors and some jobs, in any order of submission."""
    processors = draw(st.integers(1, 6))
    shapes = st.tuples(SUBMITS, RUNS, st.integers(1, processors), TOO_LONG)
    jobs = [
        Job(number, submit, run, procs, run + more)
        for number, (submit, run, procs, more) in enumerate(
            draw(st.lists(shapes, min_size=1, max_size=16)), start=1
        )
    ]
    return processors, jobs


def played(log: tuple[int, list[Job]], policy: str, *, per_event: bool) -> dict[int, Any]:
    """Return the starts in batchq's sessions."""
    processors, jobs = log
    trace = Trace(
        processors=processors,
        jobs=tuple(
            TraceJob(
                number=job.number,
                submit_s=job.submit,
                run_s=job.run,
                processors=job.procs,
                request_s=job.estimate,
            )
            for job in jobs
        ),
    )
    load = swf_load(trace, strategy=strategy_of(policy))
    schedule = play_load(load, POLICY_CONFIG, per_event=per_event)
    return {one.number: one.start_s for one in schedule.jobs}


def test_the_oracle_knows_every_policy() -> None:
    assert sorted(KNOWN_TO_THE_ORACLE) == sorted(POLICIES)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_job_starts_when_the_plain_simulator_says(policy: str) -> None:
    @given(logs(), st.booleans())
    def equal(log: tuple[int, list[Job]], per_event: bool) -> None:
        processors, jobs = log
        expected = starts(jobs, processors, policy, per_event=per_event)
        assert played(log, policy, per_event=per_event) == expected

    equal()


@pytest.mark.parametrize("policy", ["easy", "easy-sjf"])
def test_no_head_starts_after_its_reserved_start(policy: str) -> None:
    @given(logs())
    def kept(log: tuple[int, list[Job]]) -> None:
        processors, jobs = log
        began = played(log, policy, per_event=False)
        line = sorted(jobs, key=lambda job: (job.submit, job.number))
        for place, head in enumerate(line):
            # A job is the head once all jobs before it have started.
            now = max([head.submit, *(began[job.number] for job in line[:place])])
            if began[head.number] > now:
                run = [
                    job
                    for other, job in enumerate(line)
                    if began[job.number] < now or (other < place and began[job.number] == now)
                ]
                assert began[head.number] <= _promise(head, run, began, processors, now)

    kept()


@given(logs())
def test_conservative_reservations_are_kept_when_estimates_are_exact(
    log: tuple[int, list[Job]],
) -> None:
    processors, guessed = log
    jobs = [job._replace(estimate=job.run) for job in guessed]
    began = played((processors, jobs), "conservative", per_event=False)
    line = sorted(jobs, key=lambda job: (job.submit, job.number))
    for place, job in enumerate(line):
        now = job.submit
        run = [one for one in line[:place] if began[one.number] < now < began[one.number] + one.run]
        free = processors - sum(one.procs for one in run)
        plan = Plan(now, free, sorted((began[one.number] + one.run, one.procs) for one in run))
        promises = [
            plan.place(one.procs, one.estimate)
            for one in line[: place + 1]
            if began[one.number] >= now
        ]
        assert began[job.number] <= promises[-1]


def _promise(head: Job, run: list[Job], began: dict[int, Any], processors: int, now: int) -> int:
    """Return when the running jobs' estimates leave enough processors for the head."""
    there = [job for job in run if began[job.number] + job.run > now]
    ends = sorted({began[job.number] + job.estimate for job in there})
    for end in ends:
        left = [job for job in there if began[job.number] + job.estimate > end]
        if sum(job.procs for job in left) + head.procs <= processors:
            return end
    raise AssertionError(f"{head} can never start")
