"""What is played: nodes, queues, and who submits what when, whatever file it came from.

`swf_load` makes it of a log in the Standard Workload Format: one node with as many cpus as the
machine has processors, and for each job a group of one pod with the job's processors as cpus and
its request as walltime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Node,
    NodeSpec,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
)
from batchq.api.times import SECOND
from batchq.traces import Trace, TraceJob

#: By what a log's jobs are told apart.
By: TypeAlias = Literal["user", "group", "queue"]

#: The one node of a log.
MACHINE = "machine"
_CPU_MILLI = 1000


class Arrival(Struct, frozen=True, kw_only=True):
    """Somebody submits `group` at `at_s`; each of its pods then runs for `run_s`, None: for ever.

    `number` is what the log calls it; `size` what it counts for in figures, all pods together.
    """

    at_s: int
    group: PodGroup
    run_s: int | None
    number: int
    tenant: str
    size: int


class Load(Struct, frozen=True, kw_only=True):
    """`capacity` is what all nodes have, in the unit of `Arrival.size`.

    Whoever makes one puts arrivals in order of time; those of one instant are submitted in the
    order given, and an arrival's place is its uid, which decides what nothing else does.
    """

    title: str
    capacity: int
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    arrivals: tuple[Arrival, ...]


def swf_load(
    trace: Trace,
    *,
    title: str = "",
    strategy: Strategy | None = None,
    by: By | None = None,
    queues: Sequence[Queue] = (),
) -> Load:
    """A log, with one queue; or `by` user, group or queue, a namespace and a queue for each.

    `queues` replace those of the same name, and one called `default` is the pattern for all that
    are not named; further ones are there as well. Every queue that does not state a strategy of
    its own has `strategy`.
    """
    ordered = sorted(enumerate(trace.jobs), key=lambda item: (item[1].submit_s, item[0]))
    jobs = [job for _, job in ordered]
    tenants = dict.fromkeys(_tenant(job, by) for job in jobs)
    specs: dict[tuple[str, int, int], PodGroupSpec] = {}
    return Load(
        title=title,
        capacity=trace.processors,
        nodes=(_machine(trace.processors),),
        queues=_queues(tenants, {queue.metadata.name: queue for queue in queues}, strategy),
        arrivals=tuple(_arrival(job, _tenant(job, by), specs) for job in jobs),
    )


def _machine(processors: int) -> Node:
    return Node(
        metadata=Metadata(name=MACHINE),
        spec=NodeSpec(resources={"cpu": processors * _CPU_MILLI}),
    )


def _tenant(job: TraceJob, by: By | None) -> str:
    """`user-12`, `group-5`, `queue-1`; `user-unknown` where the log does not say."""
    if by is None:
        return DEFAULT
    number = {"user": job.user, "group": job.group, "queue": job.queue}[by]
    return f"{by}-{number}" if number >= 0 else f"{by}-unknown"


def _queues(
    tenants: Iterable[str], stated: Mapping[str, Queue], strategy: Strategy | None
) -> tuple[Queue, ...]:
    pattern = stated.get(DEFAULT, Queue(metadata=Metadata(name=DEFAULT))).spec
    names = dict.fromkeys((*stated, *tenants))
    return tuple(
        Queue(
            metadata=Metadata(name=name),
            spec=_with_strategy(stated[name].spec if name in stated else pattern, strategy),
        )
        for name in names
    )


def _with_strategy(spec: QueueSpec, strategy: Strategy | None) -> QueueSpec:
    """The queue's own strategy, if it states one, is not overruled."""
    if strategy is None or spec.strategy != Strategy():
        return spec
    return replace(spec, strategy=strategy)


def _arrival(
    job: TraceJob, tenant: str, specs: dict[tuple[str, int, int], PodGroupSpec]
) -> Arrival:
    """`specs`: those of the jobs before; whoever asks for the same has the same spec."""
    asked = (tenant, job.processors, job.request_s)
    if asked not in specs:
        specs[asked] = _spec(*asked)
    group = PodGroup(
        metadata=Metadata(name=f"job-{job.number}", namespace=tenant), spec=specs[asked]
    )
    return Arrival(
        at_s=job.submit_s,
        group=group,
        run_s=job.run_s,
        number=job.number,
        tenant=tenant,
        size=job.processors,
    )


def _spec(tenant: str, processors: int, request_s: int) -> PodGroupSpec:
    template = PodTemplate(requests={"cpu": processors * _CPU_MILLI})
    return PodGroupSpec(
        queue=tenant,
        walltime=request_s * SECOND,
        tasks=(Task(name="job", template=template),),
    )
