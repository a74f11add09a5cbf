"""The plan of a replay: its groups, its queue, and the journal of its pods; and its report.

Every pod appends a line to one file when it starts and when it ends; lines this short are appended
atomically, so their order in the file is the order of events. The file is independent of batchq, so
it can prove that each job ran exactly once.

The report is in seconds of the log: measured times, multiplied by the speed. Waits are from the
creation of the group to the start of its pod, by the server's clock. They include the daemon's
latency, which is multiplied too: 50 ms at speed 2000 are 100 seconds of the log. For the slowdown
and the utilisation, a job's run time is the log's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct

from batchq.api.objects import (
    Metadata,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
    Toleration,
)
from batchq.api.times import SECOND
from batchq.lab.workload.swf import Trace, TraceJob, bounded_slowdown, nearest_rank

#: The pod's command, after `sh -c`: $0 is the journal, $1 the job's number, $2 seconds to sleep.
SCRIPT = 'echo "start $1 $$" >> "$0" && sleep "$2" && echo "end $1 $$" >> "$0"'


class JournalLine(Struct, frozen=True):
    """One line of the journal. `word` is start or end; `pid` is the pod's process."""

    word: str
    job: int
    pid: int


def command(journal: Path, job: int, sleep_s: float) -> tuple[str, ...]:
    """Return the command of a job's pod."""
    return ("sh", "-c", SCRIPT, str(journal), str(job), f"{sleep_s:.6f}")


def read_journal(path: Path) -> list[JournalLine]:
    """Return every valid line, in order; none if the file does not exist yet."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = []
    for row in text.splitlines():
        parts = row.split()
        if len(parts) == 3 and parts[0] in ("start", "end") and (parts[1] + parts[2]).isdigit():
            lines.append(JournalLine(parts[0], int(parts[1]), int(parts[2])))
    return lines


def not_exactly_once(lines: Sequence[JournalLine], jobs: Iterable[int]) -> Mapping[int, str]:
    """Return the jobs that did not start once and end once, with what happened instead."""
    counts = Counter((line.word, line.job) for line in lines)
    found = {}
    for job in jobs:
        starts, ends = counts["start", job], counts["end", job]
        if (starts, ends) != (1, 1):
            found[job] = f"started {times(starts)}, ended {times(ends)}"
    return found


def times(count: int) -> str:
    """Return `never`, `once`, or `3 times`."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")


LABEL = "batchq/replay"
_CPU_MILLI = 1000
#: Added to every walltime. No speed divides the time to start a process and report its end, and
#: many jobs of a log run exactly as long as requested. It is the same for all jobs, so comparisons
#: of their ends are unaffected.
ALLOWANCE_MS = 3 * SECOND


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """A replay. `name` names its namespace, label and nodes; `queue` may be the user's own.

    `speed` is how many seconds of the log pass in one; `strategy` is that of the replay's own
    queue.
    """

    name: str
    trace: Trace
    speed: float
    nodes: int
    queue: str
    journal: Path
    strategy: Strategy = Strategy()

    @property
    def processors(self) -> int:
        """The processors of all nodes together."""
        return self.nodes * self.trace.processors

    @property
    def first_submit_s(self) -> int:
        """The submit time of the log's first job, at which the replay starts."""
        return min(job.submit_s for job in self.trace.jobs)

    def node_names(self) -> tuple[str, ...]:
        """Return the names of the replay's own nodes."""
        return tuple(f"{self.name}-{number}" for number in range(1, self.nodes + 1))

    def due_s(self, job: TraceJob) -> float:
        """Return how many real seconds after the replay's start a job is submitted."""
        return (job.submit_s - self.first_submit_s) / self.speed


def queue_of(plan: ReplayPlan) -> Queue:
    """Return a queue whose capability is what the replay's nodes have, and no more."""
    capability = {"cpu": plan.processors * _CPU_MILLI}
    spec = QueueSpec(capability=capability, strategy=plan.strategy)
    return Queue(metadata=Metadata(name=plan.queue), spec=spec)


def walltime_ms(plan: ReplayPlan, job: TraceJob) -> int:
    """Return the group's walltime in ms: the scaled request plus the allowance."""
    return ALLOWANCE_MS + round(SECOND * job.request_s / plan.speed)


def group_name(job: TraceJob) -> str:
    """Return the name of a job's group."""
    return f"job-{job.number}"


def group_of(plan: ReplayPlan, job: TraceJob) -> PodGroup:
    """Return a group of one pod with the job's processors as cpus, which sleeps the scaled run
    time.
    """
    template = PodTemplate(
        command=command(plan.journal, job.number, job.run_s / plan.speed),
        requests={"cpu": job.processors * _CPU_MILLI},
        node_selector={LABEL: plan.name},
        tolerations=(Toleration(key=LABEL, operator="Equal", value=plan.name),),
        termination_grace=1 * SECOND,
    )
    return PodGroup(
        metadata=Metadata(name=group_name(job), namespace=plan.name, labels={LABEL: plan.name}),
        spec=PodGroupSpec(
            queue=plan.queue,
            walltime=walltime_ms(plan, job),
            tasks=(Task(name="job", template=template),),
        ),
    )


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
