"""`batchq events`: list events, or follow them."""

from __future__ import annotations

import click

from batchq.api.objects import NAMESPACED
from batchq.api.times import format_instant
from batchq.api.transaction import Event
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import (
    DURATION,
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.render import one_line
from batchq.cli.output.values import group_key, kind_of_word, seconds_of

_MOST = 100
_COLUMNS: Columns[Event] = {
    "AT": lambda one: format_instant(one.at),
    "KIND": lambda one: one.kind,
    "OBJECT": lambda one: _name(one),
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
    type=click.IntRange(min=1, max=10_000),
    default=_MOST,
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
    kind_name = _kind(kind) if kind else ""
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
                    output.line(_row(event), _line(event))
            return
        found = client.events(since_ms=since_ms, most=most, **wanted)
    where = "" if name or cluster_wide else f" in namespace {namespace}"
    none = f"there are no such events{where}"
    show_list(output, found, ListForm(lambda some: tabled(some, _COLUMNS), none, row=_row))


def _kind(word: str) -> str:
    return _SCHEDULER if word.lower() == _SCHEDULER.lower() else kind_of_word(word)


def _name(event: Event) -> str:
    """Return the name of an event's object; of a pod, whose key is a uid, the name with which the
    message begins.
    """
    first = event.message.partition(" ")[0]
    return first if event.kind == "Pod" and "/" in first else event.key


def _row(event: Event) -> dict[str, str]:
    return {
        "at": format_instant(event.at),
        "kind": event.kind,
        "object": event.key,
        "reason": event.reason,
        "message": event.message,
    }


def _line(event: Event) -> str:
    return one_line("  ".join(cell(event) for cell in _COLUMNS.values())).rstrip()
