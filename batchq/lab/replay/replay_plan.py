"""What the pods of a replay wrote themselves, and what it proves.

Every pod appends a line when it starts and one when it ends to one file; lines this short are
appended whole, so their order in the file is the order in which they happened. The file knows
nothing of batchq and is therefore its judge.
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
    """`word` is start or end; `pid` is the pod's process."""

    word: str
    job: int
    pid: int


def command(journal: Path, job: int, sleep_s: float) -> tuple[str, ...]:
    """What the pod of a job runs."""
    return ("sh", "-c", SCRIPT, str(journal), str(job), f"{sleep_s:.6f}")


def read_journal(path: Path) -> list[JournalLine]:
    """Every line, in order; none if no pod has written yet. What is no such line is left out."""
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
    """The jobs that did not start once and end once, each with what was found instead."""
    counts = Counter((line.word, line.job) for line in lines)
    found = {}
    for job in jobs:
        starts, ends = counts["start", job], counts["end", job]
        if (starts, ends) != (1, 1):
            found[job] = f"started {times(starts)}, ended {times(ends)}"
    return found


def times(count: int) -> str:
    """`never`, `once`, `3 times`."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")


LABEL = "batchq/replay"
_CPU_MILLI = 1000
#: What every walltime has beyond the request. Starting a process and telling of its end take their
#: time, which no speed divides, and many jobs of a log run for just as long as they asked to. It is
#: the same for all, so wherever the end of one is compared with that of another it falls out.
ALLOWANCE_MS = 3 * SECOND


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """A replay. `name` is that of its namespace, label and nodes; `queue` may be the user's own.

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
        """Of all nodes together."""
        return self.nodes * self.trace.processors

    @property
    def first_submit_s(self) -> int:
        """When the log's first job was submitted; the replay starts there."""
        return min(job.submit_s for job in self.trace.jobs)

    def node_names(self) -> tuple[str, ...]:
        """What the replay's own nodes are called."""
        return tuple(f"{self.name}-{number}" for number in range(1, self.nodes + 1))

    def due_s(self, job: TraceJob) -> float:
        """How many real seconds after the replay's start a job is submitted."""
        return (job.submit_s - self.first_submit_s) / self.speed


def queue_of(plan: ReplayPlan) -> Queue:
    """A queue that may hold what the replay's nodes have, and not what others have beside them."""
    capability = {"cpu": plan.processors * _CPU_MILLI}
    spec = QueueSpec(capability=capability, strategy=plan.strategy)
    return Queue(metadata=Metadata(name=plan.queue), spec=spec)


def walltime_ms(plan: ReplayPlan, job: TraceJob) -> int:
    """What the scheduler takes for the job's length: its request, scaled, and the allowance."""
    return ALLOWANCE_MS + round(SECOND * job.request_s / plan.speed)


def group_name(job: TraceJob) -> str:
    """The name of the group that stands for a job."""
    return f"job-{job.number}"


def group_of(plan: ReplayPlan, job: TraceJob) -> PodGroup:
    """A group of one pod with the job's processors as cpus, which sleeps the scaled run time."""
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
