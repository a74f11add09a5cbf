"""Tables of objects: the columns of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.node_features import DeviceUse, cordon_text, taint_text, without_lacking
from batchq.api.notation import counted, describe_age, format_instant
from batchq.api.objects import (
    Node,
    Object,
    Pod,
    PriorityClass,
    Queue,
    ResourceQuota,
    full_name,
)
from batchq.api.reasons import Waiting
from batchq.api.resources import MEMORY, PODS, Amounts, describe, describe_quantity, used_of
from batchq.api.transaction import (
    MEMORY_LIMIT_ANNOTATION,
    POD_GROUPS,
    Ledger,
    count_of,
    namespace_scope,
    node_scope,
)
from batchq.cli.output import Table
from batchq.cli.output.progress import started_in_words
from batchq.cli.output.values import ending_text

if TYPE_CHECKING:
    from batchq.api.views import Awaited, GroupView, QueueView


def groups_table(views: Sequence[GroupView], now_ms: int, *, namespaces: bool) -> Table:
    """Return the table of `batchq jobs`."""
    titles = (
        *(("NAMESPACE",) if namespaces else ()),
        *("NAME", "QUEUE", "PRI", "PHASE", "PODS", "REQUEST", "AGE"),
        *("OWNER", "SUBMITTED", "STARTED", "ENDED", "NODES", "EVICTIONS", "REASON", "WHERE / WHY"),
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
                view.owner,
                format_instant(view.created_at),
                *(
                    "" if at is None else format_instant(at)
                    for at in (view.started_at, view.finished_at)
                ),
                ",".join(view.nodes),
                evictions_text(view),
                first_reason(view),
                where_or_why(view),
            )
        )
    return Table(
        titles,
        tuple(rows),
        # WHERE / WHY begins with the reason; the separate column is for sorting.
        wide=frozenset({"OWNER", "SUBMITTED", "STARTED", "ENDED", "NODES", "EVICTIONS", "REASON"}),
        spare=("AGE", "PRI", "REQUEST"),
    )


def pods_text(view: GroupView) -> str:
    """Return `3/4`: the pods that run or have succeeded, of all pods."""
    pods = view.pods
    started = pods.succeeded if view.phase in TERMINAL else pods.running + pods.succeeded
    return f"{started}/{pods.wanted}"


def where_or_why(view: GroupView) -> str:
    """Return the nodes of a group, or why it waits: position, first reason, its numbers."""
    pods = view.pods
    if view.phase in TERMINAL:
        ending = ending_text(view.phase, view.reason, view.message)
        still = "1 pod is" if pods.stopping == 1 else f"{pods.stopping} pods are"
        stopping = f"{still} still stopping" if pods.stopping else ""
        return "; ".join(part for part in (ending, stopping) if part)
    why = why_waiting(view)
    if view.phase == PodGroupPhase.PENDING:
        place = f"#{view.position}" if view.position is not None else ""
        parts = (place, why, _awaited_in_list(view), _eviction_text(view, why))
        return " · ".join(part for part in parts if part)
    details = [",".join(view.nodes)]
    if view.phase == PodGroupPhase.IN_QUEUE:
        details += [why or started_in_words(pods), _awaited_in_list(view)]
    elif view.phase == PodGroupPhase.UNKNOWN:
        left = f"{pods.running + pods.succeeded} of the {pods.least} that it needs"
        details += [why or left, *view.restarts[:1]]
    return "; ".join(part for part in (*details, *view.gated) if part)


def first_reason(view: GroupView) -> str:
    """Return the most fundamental reason for waiting, in one word; '' if it does not wait."""
    return str(view.blockers[0].reason) if view.blockers else ""


def why_waiting(view: GroupView) -> str:
    """Return the first reason, and the number of others."""
    if not view.blockers:
        pending = view.phase == PodGroupPhase.PENDING
        return "PendingEvaluation: the scheduler has not looked at it yet" if pending else ""
    first, more = view.blockers[0], len(view.blockers) - 1
    return first.text + (f" (+{more} more)" if more else "")


def _eviction_text(view: GroupView, why: str) -> str:
    """Return the preemptor or other cause of an eviction, unless the reason names it."""
    evicted = view.evicted
    if evicted is None or evicted.reason in why:
        return ""
    message = evicted.message or evicted.reason
    # Until the preemptor is admitted, `made room for default/high` is also the reason for waiting.
    return "" if " ".join(message.split()[:4]) in why else message


def _awaited_in_list(view: GroupView) -> str:
    is_known = any(blocker.reason == Waiting.WAITING_FOR_PREEMPTION for blocker in view.blockers)
    return awaited_text(view.awaits) if view.awaits is not None and not is_known else ""


def awaited_text(awaits: Awaited) -> str:
    """Return `waits for 3 pods of default/a, default/b to stop (until 2026-01-31T12:01:30Z)`."""
    whose = ", ".join(awaits.groups)
    victims_text = f"{counted(awaits.pods, 'pod')} of {whose}" if awaits.pods else whose
    until = "" if awaits.until is None else f" (until {format_instant(awaits.until)})"
    return f"waits for {victims_text} to stop{until}"


def evictions_text(view: GroupView) -> str:
    """Return `2 (5 pods)`: how often the group was evicted, and how many of its pods; or ''."""
    count = view.evictions
    if not count.groups and not count.pods:
        return ""
    return f"{count.groups} ({counted(count.pods, 'pod')})"


def lost_text(lost: Amounts) -> str:
    """Return resource-seconds for people: `cpu 2h10m` of one cpu, `memory 8Gi·h`."""
    parts = []
    for resource, units in sorted(lost.items()):
        if resource == PODS or not units:
            continue
        if resource == MEMORY:
            hour = 3600 if units >= 2**30 * 3600 else 1
            unit = "h" if hour > 1 else "s"
            parts.append(f"{resource} {describe_quantity(MEMORY, units // hour)}·{unit}")
        else:
            # Thousandths of a cpu times seconds are milliseconds of a whole cpu.
            parts.append(f"{resource} {describe_age(units)}")
    return ", ".join(parts)


#: The columns of queues that -o wide adds.
_QUEUES_WIDE = (
    *("GUARANTEE", "CAPABILITY", "ADMITTED", "RUNNING", "PENDING REQUEST", "STRATEGY", "STOP"),
    "NAMESPACES",
)


def queues_table(
    views: Sequence[QueueView], *, stacked: bool = False, lines: bool = False
) -> Table:
    """Return the table of `batchq queues`: each queue below its parent.

    `stacked`: each resource has its own line, so that the table fits a terminal; `lines`: the tree
    is drawn, not only indented.
    """
    titles = (
        *("NAME", "WEIGHT", "USED/DESERVED", "RESERVED", "BORROWED", "SHARE", "PENDING"),
        *_QUEUES_WIDE,
    )
    rows: list[tuple[str, ...]] = []
    for view, (name, below) in zip(views, _in_tree(views, lines=lines), strict=True):
        lists = _by_resource(view)
        if stacked:
            rows += _stacked_rows(view, name, below, lists)
        else:
            columns = [", ".join(filter(None, column)) for column in zip(*lists, strict=True)]
            rows.append(_queue_row(view, name, *(columns or [""] * 5)))
    return Table(titles, tuple(rows), wide=frozenset(_QUEUES_WIDE), spare=("WEIGHT", "RESERVED"))


def _stacked_rows(
    view: QueueView, name: str, below: str, lists: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return one line per resource, named in the first of its columns."""
    bare = [[used, *(text.rpartition(" ")[2] for text in rest)] for used, *rest in lists]
    first, *others = bare or [[""] * 5]
    rows = [_queue_row(view, name, *first)]
    for used, reserved, borrowed, guarantee, capability in others:
        dashes = [text or "-" for text in (reserved, borrowed)]
        limits = [text or "-" for text in (guarantee, capability)]
        # A blank, not a dash: a dash would mean that there is no value.
        rows.append((below or " ", " ", used, *dashes, " ", " ", *limits, *(" " * 6)))
    return rows


def _queue_row(
    view: QueueView,
    name: str,
    used: str,
    reserved: str,
    borrowed: str,
    guarantee: str,
    capability: str,
) -> tuple[str, ...]:
    spec = view.queue.spec
    return (
        *(name, str(spec.weight), used, reserved, borrowed),
        share_text(view),
        f"{view.pending_groups}{_stop_mark(view)}",
        *(guarantee, capability, str(view.admitted_groups), str(view.running_groups)),
        *(listed(view.pending), spec.strategy.type),
        "" if spec.stop_policy == "None" else spec.stop_policy,
        namespaces_text(view),
    )


def _by_resource(view: QueueView) -> list[tuple[str, ...]]:
    """Return used of deserved, reserved, borrowed, guarantee and capability of each resource."""
    parts = (view.reserved, view.borrowed, view.guarantee, view.queue.spec.capability)
    return [
        (_used_of(view, resource), *(_named(resource, amounts) for amounts in parts))
        for resource in view.resources
    ]


def _used_of(view: QueueView, resource: str) -> str:
    """Return e.g. `cpu 3/8`."""
    used, deserved = view.used.get(resource, 0), view.deserved.get(resource, 0)
    of = describe_quantity(resource, deserved)
    return f"{resource} {describe_quantity(resource, used)}/{of}"


def _named(resource: str, amounts: Amounts) -> str:
    units = amounts.get(resource)
    return "" if units is None else f"{resource} {describe_quantity(resource, units)}"


def _stop_mark(view: QueueView) -> str:
    """Return ` (Hold)`, or ` (Hold of org)` if a queue above is stopped."""
    if not view.stops:
        return ""
    stop = max(view.stops, key=lambda one: one.policy == "HoldAndDrain")
    return f" ({stop.policy})" if stop.queue == view.name else f" ({stop.policy} of {stop.queue})"


def _in_tree(views: Sequence[QueueView], *, lines: bool) -> list[tuple[str, str]]:
    """Return each queue's name with its branch of the tree, and the prefix of its further lines.

    A queue whose parent is missing is at the left edge.
    """
    names = {view.name for view in views}
    last = {view.parent: view.name for view in views}
    before: dict[str, str] = {}
    found = []
    for view in views:
        inner = view.parent in names
        above = before.get(view.parent, "")
        if not lines:
            before[view.name] = f"{above}  "
            found.append((f"{above}{view.name}", ""))
            continue
        is_last = last[view.parent] == view.name
        branch = ("└─ " if is_last else "├─ ") if inner else ""
        rest = ("   " if is_last else "│  ") if inner else ""
        before[view.name] = f"{above}{rest}"
        has_below = any(child in names for child in view.children)
        found.append((f"{above}{branch}{view.name}", f"{above}{rest}{'│' if has_below else ''}"))
    return found


def namespaces_text(view: QueueView) -> str:
    """Return the namespaces whose groups it accepts; '' for all, `none` if those that it and the
    queues above it accept have none in common.
    """
    return "" if view.accepts is None else ", ".join(view.accepts) or "none"


def share_text(view: QueueView) -> str:
    """Return the share with two decimals, or `inf`; '' if the queue has none."""
    return f"{view.share:.2f}" if isinstance(view.share, float) else view.share or ""


def nodes_table(nodes: Sequence[Node], ledger: Ledger, now_ms: int) -> Table:
    """Return the table of `batchq nodes`."""
    titles = (
        "NAME", "STATE", "PODS", "USED", "RESOURCES", "HEARD", "CORDONED", "LABELS", "TAINTS",
        "MEMORY-LIMIT",
    )  # fmt: skip
    rows = []
    for node in nodes:
        used = used_of(node.spec.resources, ledger.get(node_scope(node.metadata.name), {}))
        heartbeat = node.status.heartbeat
        rows.append(
            (
                node.metadata.name,
                node_state(node),
                str(used.get(PODS, 0) // 1000),
                listed(used),
                listed(node.spec.resources),
                "" if heartbeat is None else f"{describe_age(now_ms - heartbeat)} ago",
                cordon_text(node.metadata.annotations) if node.spec.unschedulable else "",
                ",".join(
                    f"{key}={value}" for key, value in without_lacking(node.metadata.labels).items()
                ),
                ",".join(taint_text(taint) for taint in node.spec.taints),
                memory_limit(node),
            )
        )
    return Table(
        titles, tuple(rows), wide=frozenset({"CORDONED", "LABELS", "TAINTS", "MEMORY-LIMIT"})
    )


def devices_table(uses: Sequence[DeviceUse]) -> Table:
    """Return the table of `batchq nodes devices`."""
    rows = tuple((use.node, *device_cells(use)) for use in uses)
    return Table(("NODE", *DEVICE_TITLES), rows, wide=frozenset({"BUS", "ID"}))


#: The columns of a device.
DEVICE_TITLES = ("INDEX", "DEVICE", "MEMORY", "BUSY", "STATE", "PODS", "BUS", "ID")


def device_cells(use: DeviceUse) -> tuple[str, ...]:
    """Return the cells of one device, in the order of `DEVICE_TITLES`."""
    device = use.device
    return (
        str(device.index),
        device.resources[-1],
        describe_quantity(MEMORY, device.memory_bytes) if device.memory_bytes else "",
        "" if device.busy_percent is None else f"{device.busy_percent}%",
        device.trouble or "ok",
        ",".join(use.pods),
        device.bus,
        device.id,
    )


def device_row(use: DeviceUse) -> dict[str, object]:
    """Return a device for programs."""
    device = use.device
    return {
        "node": use.node,
        "index": device.index,
        "id": device.id,
        "bus": device.bus,
        "name": device.name,
        "resources": list(device.resources),
        "memory": device.memory_bytes,
        "busyPercent": device.busy_percent,
        "parent": device.parent,
        "links": {str(index): score for index, score in sorted(device.links.items())},
        "trouble": device.trouble,
        "pods": list(use.pods),
    }


def memory_limit(node: Node) -> str:
    """Return how the node's agent enforces memory requests; '' if unknown."""
    return node.metadata.annotations.get(MEMORY_LIMIT_ANNOTATION, "")


def node_state(node: Node) -> str:
    """Return `Ready` or `NotReady`, followed by `,cordoned` if it is."""
    state = "Ready" if node.status.ready else "NotReady"
    return f"{state},cordoned" if node.spec.unschedulable else state


def quotas_table(quotas: Sequence[ResourceQuota], ledger: Ledger) -> Table:
    """Return the table of `batchq quota`: one row for each resource of each quota."""
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
    """Return the table of pods."""
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
    """Return the phase, followed by `,stopping` if the pod is being stopped."""
    return f"{pod.status.phase},stopping" if pod.status.terminating else str(pod.status.phase)


def exit_text(pod: Pod) -> str:
    """Return its exit code, or the signal that ended it."""
    if pod.status.signal is not None:
        return f"signal {pod.status.signal}"
    return "" if pod.status.exit_code is None else str(pod.status.exit_code)


def plain_table(objects: Sequence[Object]) -> Table:
    """Return the table of priority classes, or of queues as objects."""
    rows = []
    for item in objects:
        match item:
            case PriorityClass():
                default = "default" if item.spec.default else ""
                rows.append((full_name(item), str(item.spec.value), default))
            case Queue():
                rows.append((full_name(item), str(item.spec.weight), item.spec.stop_policy))
            case _:
                rows.append((full_name(item), "", ""))
    return Table(("NAME", "VALUE", "NOTE"), tuple(rows))


def listed(amounts: Amounts) -> str:
    """Return `cpu 4, memory 8Gi`, '' for nothing; without counts of pods and groups."""
    counted = {
        name: units for name, units in amounts.items() if name not in (PODS, POD_GROUPS) and units
    }
    return describe(counted) if counted else ""
