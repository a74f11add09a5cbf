"""`batchq describe`: pages about single objects; `batchq events`: events, listed or followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click
from msgspec import to_builtins

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.manifest import encode
from batchq.api.node_features import cordon_text, taint_text, uses_of, without_lacking
from batchq.api.node_report import ADDRESS_ANNOTATION, PORTS_ANNOTATION, RUN_AS_ANNOTATION
from batchq.api.notation import counted, data_of, describe_age, format_duration, format_instant
from batchq.api.objects import (
    NAMESPACED,
    AdmissionCheck,
    Gate,
    Metadata,
    Node,
    Object,
    Pod,
    PodGroup,
    Queue,
    full_name,
    gates_of,
    key_of,
    kind_of,
)
from batchq.api.resources import MEMORY, PODS, describe_quantity, used_of
from batchq.api.resources import describe as describe_amounts
from batchq.api.transaction import CONTAINMENT_LABEL, Event, node_scope
from batchq.api.views import NO_LEADER, GroupView, Why
from batchq.cli import checks
from batchq.cli.checks import opened_text, show_checks_of_group
from batchq.cli.group_lists import GroupRow
from batchq.cli.output import echo, one_line, show_fields, show_section, tables
from batchq.cli.output.forms import Columns, ListForm, Output, show_data, show_list, tabled
from batchq.cli.output.options import (
    DURATION,
    Globals,
    WholeNumber,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import (
    complete_kind,
    ending_text,
    group_key,
    kind_and_name,
    kind_of_word,
    name_of_kind,
    seconds_of,
)
from batchq.cli.queues import show_queue_page
from batchq.client import ROOT, Client
from batchq.errors import NotFound, UsageError

_MOST_AHEAD, _MOST_RESTARTS = 5, 10
_MOST_IN_LINE = 10


def show_group(client: Client, group: PodGroup, why: Why) -> None:
    """Print its state, its tasks, why it waits, its pods and its conditions."""
    show_fields(_group_fields(group, why.view, client.now_ms()))
    tasks = [("NAME", "REPLICAS", "MIN", "REQUESTS", "COMMAND")]
    for task in group.spec.tasks:
        least, template = str(task.min_available or ""), task.template
        command = template.function or " ".join(template.command)
        requests = tables.listed(task.template.requests)
        tasks.append((task.name, str(task.replicas), least, requests, command))
    show_section("Tasks", tasks)
    show_section("Why it waits", list(_reasons(why)))
    if group.status.checks:
        show_checks_of_group(group, client.checks.views(group=key_of(group)), client.now_ms())
    pods = client.pods(group)
    _show_pods(pods, wide=True)
    show_section("Addresses", _addresses(pods))
    show_section("Memory", _memory_limits(client, pods))
    show_section(
        "Conditions",
        [
            (
                *(condition.type, condition.status, condition.reason),
                format_instant(condition.last_transition_time),
                condition.message,
            )
            for condition in group.status.conditions
        ],
    )


def _group_fields(group: PodGroup, view: GroupView, now_ms: int) -> list[tuple[str, str]]:
    spec = group.spec
    return [
        ("PodGroup", view.key),
        ("Uid", group.metadata.uid),
        ("Phase", _phase(view)),
        ("Ended", _ending(view)),
        ("Evicted", _evicted(view, now_ms)),
        ("Evictions", _evictions(view)),
        ("Pledge", "" if view.awaits is None else tables.awaited_text(view.awaits)),
        ("Queue", view.queue),
        ("Priority", _priority(view.priority, spec.priority_class_name)),
        ("Labels", _pairs(group.metadata.labels)),
        ("Submitted", _submitted(group, view, now_ms)),
        ("Output", "shared with its namespace" if group.spec.share else ""),
        ("Started", _since(view.started_at, now_ms)),
        ("Finished", _since(view.finished_at, now_ms)),
        ("Walltime", "" if spec.walltime is None else format_duration(spec.walltime)),
        ("Gates", ", ".join(_gate(gate) for gate in gates_of(spec))),
        ("Opened", opened_text(group.status.opened_gates, now_ms)),
        ("After", ", ".join(f"{one.condition}:{one.name}" for one in spec.depends_on)),
        ("Suspended", "yes" if spec.suspend else ""),
        ("Admissions", str(group.status.admission)),
        ("Pods", _pods_in_words(view)),
        ("Topology", _topology(group)),
        ("Sharing", _sharing(group)),
        ("Launch", _launch(group, view)),
        ("Claim", _claim(group)),
        ("Reserves", describe_amounts(view.request)),
        ("Charged", tables.listed(group.status.charge)),
    ]


def _topology(group: PodGroup) -> str:
    """Return the labels that a group requires or prefers, with the values chosen for it."""
    chosen = group.status.domain
    return ", ".join(
        f"{label} {mode}" + (f" ({chosen[label]})" if chosen.get(label) else "")
        for label, mode in group.spec.topology.items()
    )


def _sharing(group: PodGroup) -> str:
    """Return how the pods of a group share nodes, in words."""
    spec = group.spec
    most = spec.max_pods_per_node
    parts = (
        "nodes of its own" if spec.exclusive else "",
        "" if most is None else f"at most {counted(most, 'pod')} on a node",
        "on as few nodes as possible" if spec.pack else "",
    )
    return ", ".join(filter(None, parts))


def _launch(group: PodGroup, view: GroupView) -> str:
    """Return how far the pods of a gang with `spec.launch` have met, and how often it restarted."""
    launch, pods = group.spec.launch, view.pods
    if launch is None:
        return ""
    parts: list[str] = [launch.style]
    if launch.dialect != "none":
        parts.append(launch.dialect)
    if launch.restart == "pod":
        parts.append("restarts single pods")
    if group.status.phase == PodGroupPhase.IN_QUEUE:
        claimed = pods.running + pods.succeeded
        least = group.spec.min_member
        needed = "all" if least is None or least >= pods.wanted else str(least)
        parts.append(
            f"starts when {needed} pods have claimed their places: {claimed} of {pods.wanted}"
        )
    if group.status.restarts:
        parts.append(f"restarted {counted(group.status.restarts, 'time')}")
    return ", ".join(parts)


def _addresses(pods: Sequence[Pod]) -> list[tuple[str, ...]]:
    """Return where the pods of a gang with `spec.launch` reach each other."""
    placed = [pod for pod in pods if pod.status.address]
    rows: list[tuple[str, ...]] = [("NAME", "NODE", "ADDRESS", "PORTS")] if placed else []
    for pod in placed:
        status = pod.status
        ports = ",".join(map(str, status.ports))
        rows.append((pod.metadata.name, status.node, status.address, ports))
    return rows


def _reasons(why: Why) -> Iterator[tuple[str, ...]]:
    """Yield each reason with its remedy, what becomes of single pods, and what the next session
    does.
    """
    for place, reason in enumerate(why.reasons, start=1):
        yield f"{place}. {reason.reason}", reason.message
        if reason.remedy:
            yield "What to do", reason.remedy
    for restart in why.restarts[:_MOST_RESTARTS]:
        yield "Pods", restart
    if why.line_ahead:
        more = len(why.line_ahead) - _MOST_AHEAD
        shown = ", ".join(why.line_ahead[-_MOST_AHEAD:])
        yield "Ahead in line", f"{shown}{f' and {more} more' if more > 0 else ''}"
    if why.next:
        yield "Next", why.next
    if not why.led and why.phase not in TERMINAL:
        yield "No scheduler", why.unled or NO_LEADER


def _memory_limits(client: Client, pods: Sequence[Pod]) -> list[tuple[str, ...]]:
    """Say that an rlimit may be why pods failed: it kills no process, but a program that cannot
    allocate memory ends in its own way.
    """
    failed = [
        pod
        for pod in pods
        if pod.status.phase == PodPhase.FAILED
        and pod.status.exit_code not in (None, 0)
        and pod.spec.requests.get(MEMORY)
        # Otherwise its message says so already.
        and "memory request" not in pod.status.message
    ]
    if not failed:
        return []
    nodes = {node.metadata.name: node for node in client.nodes()}
    rows: list[tuple[str, ...]] = []
    for pod in failed[:_MOST_IN_LINE]:
        node = nodes.get(pod.status.node or pod.status.last_node)
        if node is not None and tables.memory_limit(node) == "rlimit":
            amount = describe_quantity(MEMORY, limit := pod.spec.requests[MEMORY])
            amount += " bytes" if limit < 1024 else ""
            rows.append((pod.metadata.name, f"its memory was limited to {amount} per process"))
    return rows


def _gate(gate: Gate) -> str:
    return f"{gate.name} (task {gate.task})" if gate.task else gate.name


def _submitted(group: PodGroup, view: GroupView, now_ms: int) -> str:
    by = group.status.submitted_by
    return _since(view.created_at, now_ms) + (f" by {by}" if by else "")


def _claim(group: PodGroup) -> str:
    """Return the holder of an external group's claim."""
    claim = group.status.claim
    if group.spec.controller != "external":
        return ""
    if claim.phase == "None":
        return "not claimed yet"
    until = "" if claim.expires_at is None else f" until {format_instant(claim.expires_at)}"
    stopping = f", told to stop ({claim.stop_reason})" if claim.stop_reason else ""
    text = f": {claim.message}" if claim.message else ""
    return f"{claim.phase} by {claim.holder}{until if claim.is_open else ''}{stopping}{text}"


def _phase(view: GroupView) -> str:
    if view.position is None:
        return view.shown
    return f"{view.shown}, position {view.position} in queue {view.queue}"


def _ending(view: GroupView) -> str:
    """Return how it ended, unless the phase says it all."""
    if view.phase not in TERMINAL or view.phase == PodGroupPhase.COMPLETED:
        return ""
    ending = ending_text(view.phase, view.reason, view.message)
    return "" if ending == view.phase else ending


def _evicted(view: GroupView, now_ms: int) -> str:
    """Return why it was evicted, and its preemptor, while the condition is True."""
    evicted = view.evicted
    if evicted is None:
        return ""
    text = ": ".join(part for part in (evicted.reason, evicted.message) if part)
    return f"{text} ({describe_age(now_ms - evicted.last_transition_time)} ago)"


def _evictions(view: GroupView) -> str:
    """Return what preempt and reclaim have cost it: how often, how many pods, what work."""
    count = view.evictions
    if not count.groups and not count.pods:
        return ""
    whole = f"{counted(count.groups, 'time')} whole, " if count.groups else ""
    lost = tables.lost_text(count.lost)
    last = f"; the last {count.last_reason} for {count.last_by}" if count.last_by else ""
    spent = f"; lost {lost}" if lost else ""
    again = describe_age(2 * count.longest_run)
    safe = f"; safe from reclaim until it has run for {again}" if count.longest_run else ""
    return f"{whole}{counted(count.pods, 'pod')} in all{spent}{last}{safe}"


def _pods_in_words(view: GroupView) -> str:
    pods = view.pods
    parts = [f"{pods.wanted} wanted"]
    if view.phase not in TERMINAL and pods.wanted > 1:
        parts.append(f"{'at least' if pods.least < pods.wanted else 'runs with'} {pods.least}")
    for word in ("pending", "bound", "running", "succeeded", "failed", "stopping"):
        count = getattr(pods, word)
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _priority(value: int, name: str) -> str:
    return f"{value} ({name})" if name else str(value)


def show_node(client: Client, node: Node) -> None:
    """Print its state, capacity and usage, and its pods."""
    name = node.metadata.name
    heartbeat = node.status.heartbeat
    pods = [pod for pod in client.list("Pod") if isinstance(pod, Pod)]
    here = [pod for pod in pods if pod.status.node == name and pod.status.phase in ON_NODE]
    show_fields(
        [
            ("Node", name),
            ("State", _state(node)),
            ("Held exclusively by", _exclusive_group(client, here)),
            ("Cordoned", _cordoned(node)),
            (
                "Heard",
                "" if heartbeat is None else f"{describe_age(client.now_ms() - heartbeat)} ago",
            ),
            ("Labels", _pairs(without_lacking(node.metadata.labels))),
            ("Taints", ", ".join(taint_text(taint) for taint in node.spec.taints)),
            ("Memory limit", tables.memory_limit(node)),
            ("Address", node.metadata.annotations.get(ADDRESS_ANNOTATION, "")),
            ("Ports", node.metadata.annotations.get(PORTS_ANNOTATION, "")),
            ("Pods run as", node.metadata.annotations.get(RUN_AS_ANNOTATION, "")),
            ("Containment", node.metadata.labels.get(CONTAINMENT_LABEL, "")),
        ]
    )
    used = used_of(node.spec.resources, client.ledger().get(node_scope(name), {}))
    rows = [("NAME", "HAS", "USED", "FREE")]
    rows += [
        _resource_row(resource, node.spec.resources.get(resource), used)
        for resource in sorted({*node.spec.resources, *used})
    ]
    show_section("Resources", rows)
    if uses := uses_of([node], here):
        show_section("Devices", [tables.DEVICE_TITLES, *map(tables.device_cells, uses)])
    _show_pods(here, namespaces=True)


def _exclusive_group(client: Client, pods: Sequence[Pod]) -> str:
    """Return the exclusive group that these pods of a node belong to; '' if there is none."""
    groups = {(pod.spec.pod_group, pod.metadata.namespace) for pod in pods}
    if len(groups) != 1:
        return ""
    name, namespace = groups.pop()
    try:
        group = client.get("PodGroup", name, namespace=namespace)
    except NotFound:
        return ""
    return full_name(group) if isinstance(group, PodGroup) and group.spec.exclusive else ""


def _cordoned(node: Node) -> str:
    if not node.spec.unschedulable:
        return ""
    known = cordon_text(node.metadata.annotations)
    return f"yes, {known}" if known else "yes: no pods are placed here"


def _state(node: Node) -> str:
    if node.status.ready:
        return "Ready"
    return f"NotReady: {node.status.reason}" if node.status.reason else "NotReady"


def _resource_row(
    resource: str, has: int | None, used: Mapping[str, int]
) -> tuple[str, str, str, str]:
    taken = used.get(resource, 0)
    taken_text = describe_quantity(resource, taken)
    if has is None:
        return (resource, "unlimited" if resource == PODS else "", taken_text, "")
    free = describe_quantity(resource, max(0, has - taken))
    return (resource, describe_quantity(resource, has), taken_text, free)


def show_pod(client: Client, pod: Pod) -> None:
    """Print its exit in words, and its record."""
    limits = _memory_limits(client, [pod])
    show_fields(
        [
            ("Pod", full_name(pod)),
            ("Phase", tables.pod_phase(pod)),
            ("Exit", tables.exit_text(pod)),
            ("Memory", limits[0][1] if limits else ""),
        ]
    )
    echo()
    show_data(encode(pod), "yaml")


def show_plain(item: Object) -> None:
    """Print its record."""
    show_fields([(kind_of(item), full_name(item))])
    echo()
    show_data(encode(item), "yaml")


def _show_pods(pods: Sequence[Pod], *, namespaces: bool = False, wide: bool = False) -> None:
    if pods:
        table = tables.pods_table(pods, namespaces=namespaces).narrowed(wide=wide)
        show_section("Pods", [table.titles, *table.rows])


def _pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(pairs.items()))


def _since(at: int | None, now_ms: int) -> str:
    return "" if at is None else f"{format_instant(at)} ({describe_age(now_ms - at)} ago)"


_EVENTS = 15


@click.command(
    epilog=examples(
        "batchq describe train-1",
        "batchq describe research/train-1 -o json",
        "batchq describe queue default",
        "batchq describe node gpu-01",
    )
)
@click.argument("words", nargs=-1, metavar="[KIND] NAME", shell_complete=complete_kind)
@namespace_option
@output_option("text", "json", "yaml")
@pass_globals
def describe(shared: Globals, words: tuple[str, ...], namespace: str, output: Output) -> None:
    """Show everything about an object; without a KIND, about a pod group.

    For a waiting group: its position in line, the groups ahead, and all reasons, the most
    fundamental first, with current numbers.
    """
    kind, name = _what(words)
    with shared.connect() as client:
        item = _found(client, kind, name, namespace)
        is_group = isinstance(item, PodGroup)
        why = client.why(key_of(item), or_defaults=True) if is_group else None
        events = client.events(kind=kind, key=key_of(item), most=_EVENTS)
        if not output.for_people:
            output.page(_data(client, item, why, events), lambda: None)
            return
        match item:
            case PodGroup() if why is not None:
                show_group(client, item, why)
            case Queue():
                _show_queue(client, item)
            case Node():
                show_node(client, item)
            case Pod():
                show_pod(client, item)
            case AdmissionCheck():
                check = client.checks.page(item.metadata.name)
                checks.show_check(check.check, check.queues, check.views, client.now_ms())
            case _:
                show_plain(item)
        rows = [(format_instant(event.at), event.reason, event.message) for event in events]
        show_section("Events", rows)


def _found(client: Client, kind: str, name: str, namespace: str) -> Object:
    """Return the object; the root queue exists even if it is not stored."""
    try:
        return client.get(kind, name, namespace=namespace)
    except NotFound:
        if (kind, name) != ("Queue", ROOT):
            raise
        return Queue(metadata=Metadata(name=ROOT))


def _show_queue(client: Client, queue: Queue) -> None:
    overview = client.overview()
    name = queue.metadata.name
    page = overview.queue_page(name)
    if page is None:
        # The overview is a moment older than the record, or has no place for a damaged one.
        show_plain(queue)
        return
    show_queue_page(page, overview.at)
    checks.show_checks_of_queue(name, client.checks.of_queue(name), overview.at)


def _what(words: tuple[str, ...]) -> tuple[str, str]:
    match words:
        case (name,):
            return kind_and_name(name)
        case (word, name):
            kind = kind_of_word(word)
            return kind, name_of_kind(kind, name)
        case _:
            raise UsageError(
                f"expected the name of a pod group, or a kind and a name, found {len(words)} words"
                if words
                else "expected the name of a pod group, or a kind and a name, found nothing",
                hint="as in `batchq describe train-1` or `batchq describe queue default`",
            )


def _data(
    client: Client, item: Object, why: Why | None, events: Sequence[Event]
) -> dict[str, object]:
    data: dict[str, object] = {"object": encode(item)}
    if why is not None and isinstance(item, PodGroup):
        data |= data_of(GroupRow.of(why.view))
        data["reasons"] = [
            {"reason": str(one.reason), "message": one.message} for one in why.reasons
        ]
        data["ahead"] = list(why.line_ahead)
        data["verdicts"] = [to_builtins(one.verdict) for one in why.reasons]
        data["podList"] = [encode(pod) for pod in client.pods(item)]
    data["events"] = [
        {"at": format_instant(event.at), "reason": event.reason, "message": event.message}
        for event in events
    ]
    return data


_MOST_EVENTS = 100
_EVENT_COLUMNS: Columns[Event] = {
    "AT": lambda one: format_instant(one.at),
    "KIND": lambda one: one.kind,
    "OBJECT": lambda one: _event_object(one),
    "REASON": lambda one: one.reason,
    "MESSAGE": lambda one: one.message,
}
#: The kind of events about schedulers, which are no objects.
_SCHEDULER = "Scheduler"


@click.command(
    epilog=examples(
        "batchq events",
        "batchq events train-1",
        "batchq events -w -A",
        "batchq events -A --kind Node --since 1h",
        "batchq events --reason Preempted -o json",
        "batchq events --kind Scheduler",
    )
)
@click.argument("name", required=False, metavar="[GROUP]")
@namespace_option
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="All namespaces, and queues, nodes and the like."
)
@click.option("-w", "--watch", is_flag=True, help="Follow new events until interrupted.")
@click.option("--kind", metavar="KIND", help="Only events of objects of this kind.")
@click.option("--since", type=DURATION, help="Only events at most this old.")
@click.option("--reason", default="", metavar="REASON", help="Only events with this reason.")
@click.option(
    "--most",
    type=WholeNumber(1, 10_000),
    default=_MOST_EVENTS,
    show_default=True,
    help="At most this many existing events.",
)
@output_option("table", "json")
@pass_globals
def events(
    shared: Globals,
    name: str | None,
    namespace: str,
    all_namespaces: bool,
    watch: bool,
    kind: str | None,
    since: str | None,
    reason: str,
    most: int,
    output: Output,
) -> None:
    """List events, the newest last: of the groups of a namespace, or of one GROUP.

    -A lists the events of all namespaces and of objects without a namespace, such as queues and
    nodes; --kind does so for a kind without namespaces. The kind `Scheduler` has events about the
    schedulers' configuration. The server keeps the latest 10,000 events of all objects. With -w and
    -o json, each event is one line.

    Exit codes: 0 listed, 6 there is neither such a group nor an event of it.
    """
    kind_name = _event_kind(kind) if kind else ""
    cluster_wide = all_namespaces or (kind_name != "" and kind_name not in NAMESPACED)
    key = group_key(name, namespace) if name else ""
    with shared.connect() as client:
        if key and not client.events(kind="PodGroup", key=key, most=1):
            client.get("PodGroup", key)
        age_s = seconds_of(since)
        wanted = {
            "kind": "PodGroup" if name else kind_name,
            "key": key,
            "namespace": "" if name or cluster_wide else namespace,
            "reason": reason,
        }
        since_ms = 0 if age_s is None else client.now_ms() - round(age_s * 1000)
        if watch:
            for some in client.follow_events(since_ms=since_ms, most=most, **wanted):
                for event in some:
                    output.line(_event_row(event), _event_line(event))
            return
        found = client.events(since_ms=since_ms, most=most, **wanted)
    where = "" if name or cluster_wide else f" in namespace {namespace}"
    none = f"there are no such events{where}"
    show_list(
        output, found, ListForm(lambda some: tabled(some, _EVENT_COLUMNS), none, row=_event_row)
    )


def _event_kind(word: str) -> str:
    return _SCHEDULER if word.lower() == _SCHEDULER.lower() else kind_of_word(word)


def _event_object(event: Event) -> str:
    """Return the name of an event's object, which for a pod is in the message."""
    first = event.message.partition(" ")[0]
    return first if event.kind == "Pod" and "/" in first else event.key


def _event_row(event: Event) -> dict[str, str]:
    return {
        "at": format_instant(event.at),
        "kind": event.kind,
        "object": event.key,
        "reason": event.reason,
        "message": event.message,
    }


def _event_line(event: Event) -> str:
    return one_line("  ".join(cell(event) for cell in _EVENT_COLUMNS.values())).rstrip()
