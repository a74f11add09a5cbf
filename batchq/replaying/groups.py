"""A job of a log as a PodGroup, and the queue and the nodes that a replay has to itself."""

from __future__ import annotations

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
from batchq.replaying.journal import command
from batchq.traces import Trace, TraceJob

LABEL = "batchq/replay"
_CPU_MILLI = 1000
#: What every walltime has beyond the request. Starting a process and telling of its end take their
#: time, which no speed divides, and many jobs of a log run for just as long as they asked to. It is
#: the same for all, so wherever the end of one is compared with that of another it falls out.
ALLOWANCE_MS = 3 * SECOND


class Plan(Struct, frozen=True, kw_only=True):
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


def queue_of(plan: Plan) -> Queue:
    """A queue that may hold what the replay's nodes have, and not what others have beside them."""
    capability = {"cpu": plan.processors * _CPU_MILLI}
    spec = QueueSpec(capability=capability, strategy=plan.strategy)
    return Queue(metadata=Metadata(name=plan.queue), spec=spec)


def walltime_ms(plan: Plan, job: TraceJob) -> int:
    """What the scheduler takes for the job's length: its request, scaled, and the allowance."""
    return ALLOWANCE_MS + round(SECOND * job.request_s / plan.speed)


def group_name(job: TraceJob) -> str:
    """The name of the group that stands for a job."""
    return f"job-{job.number}"


def group_of(plan: Plan, job: TraceJob) -> PodGroup:
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
