"""The plan of a replay: its groups, its queue, and the journal of its pods.

Every pod appends a line to one file when it starts and when it ends; lines this short are appended
atomically, so their order in the file is the order of events. The file is independent of batchq, so
it can prove that each job ran exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

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
from batchq.lab.traces import Trace, TraceJob

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
