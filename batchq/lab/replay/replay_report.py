"""The figures of a replay in seconds of the log: measured times, multiplied by the speed.

Waits are from the creation of the group to the start of its pod, by the server's clock. They
include the daemon's latency, which is multiplied too: 50 ms at speed 2000 are 100 seconds of the
log. For the slowdown and the utilisation, a job's run time is the log's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from msgspec import Struct

from batchq.lab.replay.replay_plan import ReplayPlan, times
from batchq.lab.traces import TraceJob, bounded_slowdown, nearest_rank


class Replayed(Struct, frozen=True, kw_only=True):
    """The outcome of one job; instants in the server's milliseconds, None for what did not happen.

    `bound_at`, `running_at` and `ended_at` are the `now` of the sessions that bound its pod, saw it
    run and saw its end; decisions of one session share one instant. `started_at` and `finished_at`
    are the process's, on `node`. `admissions` and `attempts` count the group's admissions and its
    pod's binds.
    """

    job: TraceJob
    phase: str
    submitted_at: int
    bound_at: int | None = None
    running_at: int | None = None
    ended_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    node: str = ""
    admissions: int = 0
    attempts: int = 0


class ReplayReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures; times in seconds of the log, except where the name says otherwise.

    `problems` has a text for each job that did not finish exactly once. The figures are over the
    finished jobs, and None without any.
    """

    jobs: int
    finished_exactly_once: int
    problems: tuple[str, ...]
    processors: int
    nodes: int
    speed: float
    mean_wait_s: float | None
    median_wait_s: float | None
    p95_wait_s: float | None
    mean_bounded_slowdown: float | None
    utilisation: float | None
    makespan_s: float | None
    #: How much longer than planned the pods ran on average: the cost of starting a process.
    mean_overhead_real_ms: float | None
    #: The real duration of the replay.
    real_s: float


class ReplayEnding(Struct, frozen=True, kw_only=True):
    """A completed replay: its figures, and each job in the order of submission.

    `began_at`: when it started to play, by the server's clock.
    """

    report: ReplayReport
    outcomes: tuple[Replayed, ...]
    began_at: int


def starts_csv(plan: ReplayPlan, ending: ReplayEnding) -> str:
    """Return `job,submit,start` in the log's numbers and seconds, in the order of submission.

    The submit is the log's, the start is measured (to the millisecond, which is several seconds of
    the log); empty for a job that never started.
    """
    lines = ["job,submit,start"]
    for one in ending.outcomes:
        start = log_second(plan, ending, one.started_at)
        shown = "" if start is None else f"{start:.3f}"
        lines.append(f"{one.job.number},{one.job.submit_s},{shown}")
    return "\n".join([*lines, ""])


def log_second(plan: ReplayPlan, ending: ReplayEnding, at: int | None) -> float | None:
    """Convert an instant of the server's clock to seconds of the log."""
    if at is None:
        return None
    return plan.first_submit_s + (at - ending.began_at) * plan.speed / 1000


def report_of(
    plan: ReplayPlan, outcomes: Sequence[Replayed], judged: Mapping[int, str], *, real_s: float
) -> ReplayReport:
    """Return the report. `judged` has the jobs that, by the journal, did not run exactly once."""
    problems = [text for one in outcomes if (text := _problem(one, judged))]
    done = [one for one in outcomes if one.started_at is not None and one.finished_at is not None]
    waits = [_wait_s(one, plan.speed) for one in done]
    makespan = _makespan_s(done, plan.speed)
    work = sum(one.job.processors * one.job.run_s for one in done)
    return ReplayReport(
        jobs=len(outcomes),
        finished_exactly_once=len(outcomes) - len(problems),
        problems=tuple(problems),
        processors=plan.processors,
        nodes=plan.nodes,
        speed=plan.speed,
        mean_wait_s=fmean(waits) if waits else None,
        median_wait_s=median(waits) if waits else None,
        p95_wait_s=nearest_rank(waits, 95) if waits else None,
        mean_bounded_slowdown=fmean(
            bounded_slowdown(wait, one.job.run_s) for wait, one in zip(waits, done, strict=True)
        )
        if done
        else None,
        utilisation=work / (plan.processors * makespan) if makespan else None,
        makespan_s=makespan,
        mean_overhead_real_ms=fmean(_overhead_ms(one, plan.speed) for one in done)
        if done
        else None,
        real_s=real_s,
    )


def _problem(one: Replayed, judged: Mapping[int, str]) -> str:
    """Return why a job did not finish exactly once; empty if it did."""
    found = []
    if one.phase != "Completed":
        found.append(f"its group is {one.phase}")
    if one.admissions != 1:
        found.append(f"admitted {times(one.admissions)}")
    if one.attempts != 1:
        found.append(f"bound {times(one.attempts)}")
    if one.job.number in judged:
        found.append(judged[one.job.number])
    return f"job {one.job.number}: {', '.join(found)}" if found else ""


def _wait_s(one: Replayed, speed: float) -> float:
    assert one.started_at is not None
    return max(0, one.started_at - one.submitted_at) * speed / 1000


def _overhead_ms(one: Replayed, speed: float) -> float:
    assert one.started_at is not None
    assert one.finished_at is not None
    return one.finished_at - one.started_at - 1000 * one.job.run_s / speed


def _makespan_s(done: Sequence[Replayed], speed: float) -> float | None:
    if not done:
        return None
    last = max(one.finished_at or 0 for one in done)
    return (last - min(one.submitted_at for one in done)) * speed / 1000
