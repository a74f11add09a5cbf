"""Objects as rows: which columns each kind has."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.api.fences import count_of
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.limits import MEMORY_LIMIT_ANNOTATION
from batchq.api.names import counted
from batchq.api.objects import (
    AdmissionCheck,
    Node,
    Object,
    Pod,
    PriorityClass,
    Queue,
    ResourceQuota,
    Taint,
    full_name,
)
from batchq.api.quantity import PODS, describe_quantity
from batchq.api.resources import Amounts, describe
from batchq.api.times import describe_age, format_instant
from batchq.api.transaction import POD_GROUPS, Ledger, namespace_scope, node_scope
from batchq.cli.ending import ending_text
from batchq.cli.output import Table
from batchq.client.overview import GroupView, QueueView


def groups_table(views: Sequence[GroupView], now_ms: int, *, namespaces: bool) -> Table:
    """`batchq jobs`."""
    titles = (
        *(("NAMESPACE",) if namespaces else ()),
        *("NAME", "QUEUE", "PRI", "PHASE", "PODS", "REQUEST", "AGE", "SUBMITTED", "WHERE / WHY"),
    )
    rows = []
    for view in views:
        namespace, _, name = view.key.partition("/")
        rows.append(
            (
                *((namespace,) if namespaces else ()),
                name,
                view.queue,
                str(view.priority),
                view.shown,
                pods_text(view),
                view.request_text,
                describe_age(now_ms - view.created_at),
                format_instant(view.created_at),
                where_or_why(view),
            )
        )
    return Table(
        titles, tuple(rows), wide=frozenset({"SUBMITTED"}), spare=("AGE", "PRI", "REQUEST")
    )


def pods_text(view: GroupView) -> str:
    """`3/4`: pods that run or have succeeded, of all."""
    pods = view.pods
    there = pods.succeeded if view.phase in TERMINAL else pods.running + pods.succeeded
    return f"{there}/{pods.wanted}"


def where_or_why(view: GroupView) -> str:
    """Where a group runs, or why it does not: place in line, the first reason, its numbers."""
    pods = view.pods
    if view.phase in TERMINAL:
        ending = ending_text(view.phase, view.reason, view.message)
        still = "1 pod is" if pods.stopping == 1 else f"{pods.stopping} pods are"
        stopping = f"{still} still stopping" if pods.stopping else ""
        return "; ".join(part for part in (ending, stopping) if part)
    why = why_waiting(view)
    if view.phase == PodGroupPhase.PENDING:
        place = f"#{view.position}" if view.position is not None else ""
        return " · ".join(part for part in (place, why) if part)
    where = ",".join(view.nodes)
    if view.phase == PodGroupPhase.IN_QUEUE:
        started = f"{pods.running + pods.succeeded} of {counted(pods.least, 'pod')} started"
        return "; ".join(part for part in (where, why or started) if part)
    if view.phase == PodGroupPhase.UNKNOWN:
        left = f"{pods.running + pods.succeeded} of the {pods.least} that it needs"
        return "; ".join(part for part in (where, why or left) if part)
    return where


def why_waiting(view: GroupView) -> str:
    """The first reason, and how many there are besides."""
    if not view.blockers:
        pending = view.phase == PodGroupPhase.PENDING
        return "PendingEvaluation: the scheduler has not looked at it yet" if pending else ""
    first, more = view.blockers[0], len(view.blockers) - 1
    return f"{first.reason}: {first.message}" + (f" (+{more} more)" if more else "")


def queues_table(views: Sequence[QueueView]) -> Table:
    """`batchq queues`."""
    titles = (
        *("NAME", "WEIGHT", "CAPABILITY", "USED", "ADMITTED", "PENDING", "PENDING REQUEST"),
        *("DESERVED", "SHARE", "STRATEGY", "STOPPED"),
    )
    rows = [
        (
            view.queue.metadata.name,
            str(view.queue.spec.weight),
            listed(view.queue.spec.capability),
            listed(view.used),
            str(view.admitted_groups),
            str(view.pending_groups),
            listed(view.pending),
            listed(view.deserved),
            share_text(view.share) if view.used else "",
            view.queue.spec.strategy.type,
            "" if view.queue.spec.stop_policy == "None" else view.queue.spec.stop_policy,
        )
        for view in views
    ]
    return Table(titles, tuple(rows), wide=frozenset({"DESERVED", "STRATEGY"}))


def share_text(share: float | str) -> str:
    """Two places, or `inf`."""
    return share if isinstance(share, str) else f"{share:.2f}"


def nodes_table(nodes: Sequence[Node], ledger: Ledger, now_ms: int) -> Table:
    """`batchq nodes`."""
    titles = (
        "NAME", "STATE", "PODS", "USED", "RESOURCES", "HEARD", "LABELS", "TAINTS", "MEMORY-LIMIT",
    )  # fmt: skip
    rows = []
    for node in nodes:
        used = ledger.get(node_scope(node.metadata.name), {})
        heartbeat = node.status.heartbeat
        rows.append(
            (
                node.metadata.name,
                node_state(node),
                str(used.get(PODS, 0) // 1000),
                listed(used),
                listed(node.spec.resources),
                "" if heartbeat is None else f"{describe_age(now_ms - heartbeat)} ago",
                ",".join(f"{key}={value}" for key, value in sorted(node.metadata.labels.items())),
                ",".join(taint_text(taint) for taint in node.spec.taints),
                memory_limit(node),
            )
        )
    return Table(titles, tuple(rows), wide=frozenset({"LABELS", "TAINTS", "MEMORY-LIMIT"}))


def memory_limit(node: Node) -> str:
    """How its agent holds pods to their memory requests; empty if none has said so."""
    return node.metadata.annotations.get(MEMORY_LIMIT_ANNOTATION, "")


def taint_text(taint: Taint) -> str:
    """`dedicated=ml:NoSchedule`, as `batchq worker --taint` takes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def node_state(node: Node) -> str:
    """`Ready`, `NotReady`, with `cordoned` beside it."""
    state = "Ready" if node.status.ready else "NotReady"
    return f"{state},cordoned" if node.spec.unschedulable else state


def quotas_table(quotas: Sequence[ResourceQuota], ledger: Ledger) -> Table:
    """`batchq quota`: one row for each resource of each quota."""
    rows = []
    for quota in quotas:
        namespace = quota.metadata.namespace
        used = ledger.get(namespace_scope(namespace), {})
        counted = ledger.get(f"objects:{namespace}", {})
        for resource, hard in sorted(quota.spec.hard.items()):
            held = (counted if resource == POD_GROUPS else used).get(resource, 0)
            rows.append(
                (
                    namespace,
                    quota.metadata.name,
                    resource,
                    describe_quantity(resource, held),
                    describe_quantity(resource, hard),
                )
            )
    return Table(("NAMESPACE", "NAME", "RESOURCE", "USED", "HARD"), tuple(rows))


def pods_table(pods: Sequence[Pod], *, namespaces: bool) -> Table:
    """Pods, with their ends."""
    titles = (
        *(("NAMESPACE",) if namespaces else ()),
        *("NAME", "GROUP", "PHASE", "NODE", "ATTEMPT", "EXIT", "UID", "MESSAGE"),
    )
    rows = tuple(
        (
            *((pod.metadata.namespace,) if namespaces else ()),
            pod.metadata.name,
            pod.spec.pod_group,
            pod_phase(pod),
            pod.status.node,
            str(count_of(pod.status.attempt)),
            exit_text(pod),
            pod.metadata.uid,
            pod.status.message or pod.status.reason,
        )
        for pod in pods
    )
    return Table(titles, rows, wide=frozenset({"UID"}))


def pod_phase(pod: Pod) -> str:
    """The phase, and whether it is being stopped."""
    return f"{pod.status.phase},stopping" if pod.status.terminating else str(pod.status.phase)


def exit_text(pod: Pod) -> str:
    """Its exit code, or the signal that ended it."""
    if pod.status.signal is not None:
        return f"signal {pod.status.signal}"
    return "" if pod.status.exit_code is None else str(pod.status.exit_code)


def plain_table(objects: Sequence[Object]) -> Table:
    """Priority classes, checks, and queues as objects."""
    rows = []
    for item in objects:
        match item:
            case PriorityClass():
                default = "default" if item.spec.default else ""
                rows.append((full_name(item), str(item.spec.value), default))
            case AdmissionCheck():
                rows.append((full_name(item), item.spec.controller_name, ""))
            case Queue():
                rows.append((full_name(item), str(item.spec.weight), item.spec.stop_policy))
            case _:
                rows.append((full_name(item), "", ""))
    return Table(("NAME", "VALUE", "NOTE"), tuple(rows))


def listed(amounts: Amounts) -> str:
    """`cpu 4, memory 8Gi`, empty for nothing; without counts of pods and groups."""
    counted = {
        name: units for name, units in amounts.items() if name not in (PODS, POD_GROUPS) and units
    }
    return describe(counted) if counted else ""
