"""A load to play: nodes, queues, and submissions over time, whatever file they came from.

`swf_load` converts a log in the Standard Workload Format: one node with a cpu per processor of the
machine, and for each job a group of one pod with the job's processors as cpus and its request as
walltime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from batchq.api.notation import label_problem
from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Node,
    NodeSpec,
    Object,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
    key_of,
)
from batchq.api.times import SECOND
from batchq.api.transaction import Charge, Transaction, Write
from batchq.client.changes import NewGroups, create, first_contradiction, found_defaults
from batchq.config.model import SchedulerConfig
from batchq.core.quota.ledger import holders_in_store
from batchq.errors import InvalidInput, NotFound, Rejected
from batchq.lab.simulation.world import write
from batchq.lab.workload.traces import Trace, TraceJob
from batchq.ports import IdSource
from batchq.store.memory import MemoryStore

#: The field of a log that separates tenants.
By: TypeAlias = Literal["user", "group", "queue"]

#: The name of a log's only node.
MACHINE = "machine"
_CPU_MILLI = 1000


class Arrival(Struct, frozen=True, kw_only=True):
    """A submission of `group` at `at_s`; each of its pods runs for `run_s`, None: until stopped.

    `number` is its number in the log; `size` its weight in figures, all pods together.
    """

    at_s: int
    group: PodGroup
    run_s: int | None
    number: int
    tenant: str
    size: int


class Load(Struct, frozen=True, kw_only=True):
    """Everything to play. `capacity` is that of all nodes, in the unit of `Arrival.size`.

    Arrivals are ordered by time; those of one instant are submitted in the given order. An
    arrival's index is its uid, which breaks all ties.
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
    """Return the load of a log, with one queue, or with a namespace and a queue per `by`.

    `queues` replace those of the same name, and one called `default` is the template for all
    others; further ones are added. Every queue that does not state its own strategy gets
    `strategy`.
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
    """Return `user-12`, `group-5`, `queue-1`, or `user-unknown` if the log does not say."""
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
    """Return the spec with `strategy`, unless the queue states its own."""
    if strategy is None or spec.strategy != Strategy():
        return spec
    return replace(spec, strategy=strategy)


def _arrival(
    job: TraceJob, tenant: str, specs: dict[tuple[str, int, int], PodGroupSpec]
) -> Arrival:
    """Return a job's arrival. `specs` caches specs, which jobs with equal requests share."""
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


POLICIES: Mapping[str, Strategy] = {
    "fcfs": Strategy(type="StrictFIFO"),
    "first-fit": Strategy(type="BestEffortFIFO"),
    "easy": Strategy(type="Backfill", order="fcfs", reservations="1"),
    "easy-sjf": Strategy(type="Backfill", order="shortest", reservations="1"),
    "conservative": Strategy(type="Backfill", order="fcfs", reservations="all"),
}
#: The default policy: the default strategy of queues.
DEFAULT_POLICY = "first-fit"

#: The configuration under which policies are played.
POLICY_CONFIG = SchedulerConfig()


def strategy_of(policy: str) -> Strategy:
    """Return the strategy of a short name. Raises InvalidInput."""
    if policy not in POLICIES:
        raise InvalidInput(f"there is no policy {policy!r}; expected one of {', '.join(POLICIES)}")
    return POLICIES[policy]


def empty_cluster(load: Load, requests: IdSource) -> MemoryStore:
    """Return a store with the nodes and queues only.

    Raises InvalidInput or Rejected if the rules refuse one of them.
    """
    store = MemoryStore()
    contradiction = first_contradiction(load.queues)
    if contradiction is not None:
        raise contradiction[1]
    founded: tuple[Object, ...] = (*load.queues, *load.nodes)
    for place, obj in enumerate(founded):
        # in_part: the queues were checked together; described: nodes need no heartbeat.
        created = create(store, obj, now_ms=0, uid=str(place), described=True, in_part=True)
        write(store, requests, created)
    write(store, requests, found_defaults(store, now_ms=0, uid="default"))
    return store


class Submitter:
    """Accepts submissions; owns a cache of the accepted specs.

    Many groups of a log share one spec, the very same object, which is checked only once. Queues
    and priority classes do not change while a load plays.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._arrivals = NewGroups(store)
        #: (namespace, id of a spec) -> the spec; the reference keeps the id from being reused.
        self._accepted: dict[tuple[str, int], PodGroupSpec] = {}

    def submitted(self, group: PodGroup, uid: str, now_ms: int) -> Transaction:
        """Return the transaction that submits the group, as `create` would.

        Raises InvalidInput, Conflict or Rejected.
        """
        name, namespace = group.metadata.name, group.metadata.namespace
        place = (namespace, id(group.spec))
        if group.metadata != Metadata(name=name, namespace=namespace) or label_problem(name):
            return create(self._store, group, now_ms=now_ms, uid=uid, described=True)
        if place in self._accepted and self._store.get("PodGroup", key_of(group)) is None:
            return self._arrivals.submission(group, now_ms=now_ms, uid=uid, by="")
        created = create(self._store, group, now_ms=now_ms, uid=uid, described=True)
        if not group.spec.depends_on and self._is_placed(group):
            self._accepted[place] = group.spec
        return created

    def _is_placed(self, group: PodGroup) -> bool:
        """Return whether all references exist; a described world may lack them."""
        try:
            self._arrivals.check(group)
        except (NotFound, Rejected):
            return False
        return True


def removal_of(store: MemoryStore, group: PodGroup) -> Transaction:
    """Return the removal of a finished group with its pods and charges. The charges may include
    pods that were stopped and whose end no session has seen yet.
    """
    pods = store.pods_of(group.metadata.uid)
    return Transaction(
        subject=key_of(group),
        writes=(
            Write(kind="PodGroup", key=key_of(group), expect=group.metadata.revision, value=None),
            *(
                Write(kind="Pod", key=key_of(pod), expect=pod.metadata.revision, value=None)
                for pod in pods
            ),
        ),
        charges=tuple(Charge(holder=holder) for holder in holders_in_store(group)),
    )
