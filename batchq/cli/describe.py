"""`batchq describe`: everything about one object, its reasons with numbers, its last events."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import to_builtins

from batchq.api.lifecycle import TERMINAL
from batchq.api.manifest import encode
from batchq.api.objects import NAMESPACED, Node, Object, Pod, PodGroup, Queue, key_of, kind_of
from batchq.api.resources import describe as describe_amounts
from batchq.api.times import describe_age, format_duration, format_instant
from batchq.api.transaction import Event, node_scope
from batchq.cli import tables
from batchq.cli.jobs import row_of
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import show_data, show_fields, show_section
from batchq.cli.values import complete_kind, kind_of_word
from batchq.client import Client
from batchq.client.overview import Explanation
from batchq.errors import UsageError

_EVENTS = 15
_MOST_AHEAD = 5


@click.command(
    epilog=examples(
        "batchq describe train-1",
        "batchq describe research/train-1 -o json",
        "batchq describe queue default",
        "batchq describe node gpu-01",
    )
)
@click.argument(
    "words", nargs=-1, required=True, metavar="[KIND] NAME", shell_complete=complete_kind
)
@namespace_option
@output_option("text", "json", "yaml")
@pass_globals
def describe(shared: Globals, words: tuple[str, ...], namespace: str, output: str) -> None:
    """Show everything about an object; without a KIND, about a pod group.

    For a group that waits: its place in line, who is ahead, and all reasons, the most fundamental
    first, with the numbers of this moment.
    """
    kind, name = _what(words)
    with shared.connect() as client:
        item = client.get(kind, name, namespace=namespace)
        explanation = client.explain(key_of(item)) if isinstance(item, PodGroup) else None
        key = key_of(item)
        events = client.events(kind=kind, key=key, most=_EVENTS)
        if output != "text":
            show_data(_data(client, item, explanation, events), output)
        elif isinstance(item, PodGroup) and explanation is not None:
            _group(client, item, explanation)
            _events(events)
        else:
            _plain(client, item)
            _events(events)


def _what(words: tuple[str, ...]) -> tuple[str, str]:
    match words:
        case (name,):
            return "PodGroup", name
        case (kind, name):
            return kind_of_word(kind), name
        case _:
            raise UsageError(
                f"expected [KIND] NAME, found {len(words)} words",
                hint="as in `batchq describe queue default`",
            )


def _group(client: Client, group: PodGroup, explanation: Explanation) -> None:
    view, spec, status = explanation.group, group.spec, group.status
    now_ms = client.now_ms()
    show_fields(
        [
            ("PodGroup", view.key),
            ("Uid", group.metadata.uid),
            ("Phase", _phase(view.shown, explanation)),
            ("Ended", _ending(view.reason, view.message) if view.phase in TERMINAL else ""),
            ("Queue", view.queue),
            ("Priority", _priority(view.priority, spec.priority_class_name)),
            ("Labels", _pairs(group.metadata.labels)),
            ("Submitted", _since(view.created_at, now_ms)),
            ("Started", _since(view.started_at, now_ms)),
            ("Finished", _since(view.finished_at, now_ms)),
            ("Walltime", "" if spec.walltime is None else format_duration(spec.walltime)),
            ("Gates", ", ".join(gate.name for gate in spec.scheduling_gates)),
            ("After", ", ".join(f"{one.condition}:{one.name}" for one in spec.depends_on)),
            ("Suspended", "yes" if spec.suspend else ""),
            ("Admissions", str(status.admission)),
            ("Pods", _pods_in_words(explanation)),
            ("Reserves", describe_amounts(view.request)),
            ("Charged", tables.listed(status.charge)),
        ]
    )
    tasks = [("NAME", "REPLICAS", "MIN", "REQUESTS", "COMMAND")]
    for task in spec.tasks:
        least, command = str(task.min_available), " ".join(task.template.command)
        requests = tables.listed(task.template.requests)
        tasks.append((task.name, str(task.replicas), least, requests, command))
    show_section("Tasks", tasks)
    show_section("Why it waits", _reasons(explanation))
    pods = client.pods(group)
    if pods:
        table = tables.pods_table(pods, namespaces=False).narrowed(wide=True)
        show_section("Pods", [table.titles, *table.rows])
    show_section(
        "Conditions",
        [
            (
                *(condition.type, condition.status, condition.reason),
                format_instant(condition.last_transition_time),
                condition.message,
            )
            for condition in status.conditions
        ],
    )


def _plain(client: Client, item: Object) -> None:
    kind = kind_of(item)
    extra: list[tuple[str, str]] = []
    match item:
        case Queue():
            extra = _queue_fields(client, item)
        case Node():
            used = client.ledger().get(node_scope(item.metadata.name), {})
            extra = [("State", tables.node_state(item)), ("Used", tables.listed(used))]
        case Pod():
            extra = [("Phase", tables.pod_phase(item)), ("Exit", tables.exit_text(item))]
    name = f"{item.metadata.namespace}/" if kind in NAMESPACED else ""
    show_fields([(kind, f"{name}{item.metadata.name}"), *extra])
    import yaml

    click.echo()
    click.echo(yaml.safe_dump(encode(item), sort_keys=False, allow_unicode=True), nl=False)
    if isinstance(item, Node):
        pods = [
            pod
            for pod in client.list("Pod")
            if isinstance(pod, Pod)
            and pod.status.node == item.metadata.name
            and pod.status.phase in ("Bound", "Running")
        ]
        if pods:
            table = tables.pods_table(pods, namespaces=True).narrowed(wide=False)
            show_section("Pods", [table.titles, *table.rows])


def _queue_fields(client: Client, queue: Queue) -> list[tuple[str, str]]:
    view = next(one for one in client.queues() if one.queue.metadata.name == queue.metadata.name)
    return [
        ("Used", tables.listed(view.used) or "nothing"),
        ("Admitted", f"{view.admitted_groups} groups"),
        ("Pending", f"{view.pending_groups} groups, {tables.listed(view.pending) or 'nothing'}"),
        ("Deserves", tables.listed(view.deserved) or "nothing"),
        ("Share", tables.share_text(view.share)),
    ]


def _data(
    client: Client, item: Object, explanation: Explanation | None, events: Sequence[Event]
) -> dict[str, object]:
    data: dict[str, object] = {"object": encode(item)}
    if explanation is not None and isinstance(item, PodGroup):
        data |= row_of(explanation.group)
        data["ahead"] = list(explanation.ahead)
        data["verdicts"] = [to_builtins(one.now or one.stored) for one in explanation.blockers]
        data["podList"] = [encode(pod) for pod in client.pods(item)]
    data["events"] = [
        {"at": format_instant(event.at), "reason": event.reason, "message": event.message}
        for event in events
    ]
    return data


def _reasons(explanation: Explanation) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (f"{place}. {blocker.reason}", blocker.message)
        for place, blocker in enumerate(explanation.blockers, start=1)
    ]
    if explanation.ahead:
        shown = ", ".join(explanation.ahead[-_MOST_AHEAD:])
        more = len(explanation.ahead) - _MOST_AHEAD
        rows.append(("Ahead in line", f"{shown}{f' and {more} more' if more > 0 else ''}"))
    return rows


def _events(events: Sequence[Event]) -> None:
    rows = [(format_instant(event.at), event.reason, event.message) for event in events]
    show_section("Events", rows)


def _phase(shown: str, explanation: Explanation) -> str:
    position = explanation.group.position
    if position is None:
        return shown
    return f"{shown}, position {position} in queue {explanation.group.queue}"


def _pods_in_words(explanation: Explanation) -> str:
    pods = explanation.group.pods
    parts = [f"{pods.wanted} wanted", f"{pods.least} to start"]
    for word in ("pending", "bound", "running", "succeeded", "failed", "stopping"):
        count = getattr(pods, word)
        if count:
            parts.append(f"{count} {word}")
    return ", ".join(parts)


def _ending(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message) if part)


def _priority(value: int, name: str) -> str:
    return f"{value} ({name})" if name else str(value)


def _pairs(pairs: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(pairs.items()))


def _since(at: int | None, now_ms: int) -> str:
    return "" if at is None else f"{format_instant(at)} ({describe_age(now_ms - at)} ago)"
