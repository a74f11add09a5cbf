"""Short builders of objects for tests; amounts are written as in manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import structs

from batchq.api.intents import AdmitGroup, Bind, Intent
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_features import image_to_pull
from batchq.api.objects import (
    AdmissionCheck,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodSpec,
    PodStatus,
    PodTemplate,
    PriorityClass,
    PriorityClassSpec,
    Queue,
    QueuePreemption,
    QueueSpec,
    ResourceQuota,
    ResourceQuotaSpec,
    Strategy,
    Task,
)
from batchq.api.resources import parse_quantity
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.quota.ledger import charge_with_count
from batchq.core.session.session import Session
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.core.session.state import GroupState


def amounts(**written: str | int) -> dict[str, int]:
    """Return amounts such as `amounts(cpu="500m", memory="1Gi")` in integer units."""
    return {name: parse_quantity(name, text) for name, text in written.items()}


def a_task(name: str = "w", replicas: int = 1, minimum: int = 0, **template: Any) -> Task:
    requests = amounts(**template.pop("requests", {"cpu": 1}))
    return Task(
        name=name,
        replicas=replicas,
        min_available=minimum,
        template=PodTemplate(requests=requests, **template),
    )


def a_group(
    name: str,
    replicas: int = 1,
    *,
    cpu: str | int = 1,
    tasks: tuple[Task, ...] | None = None,
    namespace: str = "default",
    created: int = 0,
    uid: str = "",
    status: PodGroupStatus | None = None,
    **spec: Any,
) -> PodGroup:
    return PodGroup(
        metadata=Metadata(
            name=name, namespace=namespace, uid=uid or name, creation_timestamp=created
        ),
        spec=PodGroupSpec(tasks=tasks or (a_task("w", replicas, requests={"cpu": cpu}),), **spec),
        status=status or PodGroupStatus(),
    )


def a_pod(group: PodGroup, index: int = 0, *, task: str = "w", **status: Any) -> Pod:
    """Return a pod of the group's current admission; `ordinal` is its index in a single task."""
    template = next(one.template for one in group.spec.tasks if one.name == task)
    meta, admission = group.metadata, group.status.admission
    return Pod(
        metadata=Metadata(
            name=f"{meta.name}-{task}-{index}",
            namespace=meta.namespace,
            uid=f"{meta.uid}-{admission}-{index}",
        ),
        spec=PodSpec(
            pod_group=meta.name,
            task=task,
            index=index,
            requests=template.requests,
            termination_grace=template.termination_grace,
            ports=0 if group.spec.launch is None else group.spec.launch.ports,
            image=image_to_pull(template.container),
        ),
        status=PodStatus(group_uid=meta.uid, admission=admission, attempt=1, **status),
    )


def a_running_group(
    name: str, replicas: int = 1, *, node: str = "n1", cpu: str | int = 1, **spec: Any
) -> tuple[Any, ...]:
    """Return a group that runs on one node since 0, and its pods."""
    reservation = amounts(cpu=cpu, pods=1)
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        started_at=0,
        reservation={key: units * replicas for key, units in reservation.items()},
    )
    group = a_group(name, replicas, cpu=cpu, status=status, **spec)
    pods = [
        a_pod(group, index, phase=PodPhase.RUNNING, node=node, bound_at=0, started_at=0)
        for index in range(replicas)
    ]
    return (group, *pods)


def a_node(
    name: str = "n1",
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ready: bool = True,
    heartbeat: int | None = None,
    cordoned: bool = False,
    taints: tuple[Any, ...] = (),
    **resources: str | int,
) -> Node:
    return Node(
        metadata=Metadata(name=name, labels=labels or {}, annotations=annotations or {}),
        spec=NodeSpec(resources=amounts(**resources), unschedulable=cordoned, taints=taints),
        status=NodeStatus(ready=ready, heartbeat=heartbeat),
    )


#: The policy of a queue that reclaims what it deserves from groups of any priority.
RECLAIMS = QueuePreemption(reclaim="Any")


def a_queue(name: str = "default", *, strict: bool = False, **spec: Any) -> Queue:
    capability = amounts(**spec.pop("capability", {}))
    strategy = Strategy(type="StrictFIFO" if strict else "BestEffortFIFO")
    return Queue(
        metadata=Metadata(name=name),
        spec=QueueSpec(capability=capability, strategy=strategy, **spec),
    )


def a_quota(namespace: str = "default", name: str = "quota", **hard: str | int) -> ResourceQuota:
    return ResourceQuota(
        metadata=Metadata(name=name, namespace=namespace),
        spec=ResourceQuotaSpec(hard=amounts(**hard)),
    )


def a_priority(name: str, value: int, *, default: bool = False) -> PriorityClass:
    return PriorityClass(
        metadata=Metadata(name=name), spec=PriorityClassSpec(value=value, default=default)
    )


@dataclass(frozen=True)
class Decided:
    """The decisions of a session, in the form that tests compare."""

    session: Session

    @property
    def intents(self) -> list[Intent]:
        return self.session.intents

    @property
    def admitted(self) -> list[str]:
        return [intent.group for intent in self.intents if isinstance(intent, AdmitGroup)]

    @property
    def bound(self) -> dict[str, str]:
        return {intent.pod: intent.node for intent in self.intents if isinstance(intent, Bind)}

    def of(self, kind: type[Any]) -> list[Any]:
        return [intent for intent in self.intents if isinstance(intent, kind)]

    def reasons(self, name: str, namespace: str = "default") -> list[str]:
        group = self.session.by_key[f"{namespace}/{name}"]
        return [str(verdict.reason) for verdict in group.status.reasons]

    def message(self, name: str, namespace: str = "default") -> str:
        return self.session.by_key[f"{namespace}/{name}"].status.reasons[0].message()


def a_snapshot(
    *objects: Any, leases: dict[str, int] | None = None, standing: ContactStanding | None = None
) -> Snapshot:
    """Return a snapshot of these objects, with a queue `default` if they contain no queue."""

    def of(kind: type[Any]) -> tuple[Any, ...]:
        return tuple(item for item in objects if isinstance(item, kind))

    queues = of(Queue)
    if not any(queue.metadata.name == "default" for queue in queues):
        queues = (a_queue(), *queues)
    pods: dict[str, tuple[Pod, ...]] = {}
    for pod in of(Pod):
        pods[pod.status.group_uid] = (*pods.get(pod.status.group_uid, ()), pod)
    return Snapshot(
        queues=queues,
        quotas=of(ResourceQuota),
        nodes=of(Node),
        priority_classes=of(PriorityClass),
        admission_checks=of(AdmissionCheck),
        groups=of(PodGroup),
        pods=pods,
        leases=leases or {},
        standing=standing or ContactStanding(),
    )


def as_charged(*objects: Any) -> list[Any]:
    """Return the objects, each group with its charge as in the ledger of a live store."""
    pods: dict[str, list[Pod]] = {}
    for item in objects:
        if isinstance(item, Pod):
            pods.setdefault(item.status.group_uid, []).append(item)
    return [
        _charged(item, pods.get(item.metadata.uid, [])) if isinstance(item, PodGroup) else item
        for item in objects
    ]


def _charged(group: PodGroup, pods: list[Pod]) -> PodGroup:
    charge = charge_with_count(GroupState(group, tuple(pods), 0))
    return structs.replace(group, status=structs.replace(group.status, charge=charge))


def decide(
    *objects: Any, now_ms: int = 0, config: SchedulerConfig | None = None, **more: Any
) -> Decided:
    """Run one session over these objects."""
    scheduler = assemble(config or SchedulerConfig())
    return Decided(scheduler.decide(a_snapshot(*objects, **more), now_ms))
