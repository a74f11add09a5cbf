"""`batchq events`: list events, or follow them."""

from __future__ import annotations

import json

import click

from batchq.api.objects import NAMESPACED
from batchq.api.times import format_instant
from batchq.api.transaction import Event
from batchq.cli.output.options import (
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.render import Table, one_line, show_data, show_table
from batchq.cli.output.terminal import echo
from batchq.cli.output.values import as_duration, group_key, kind_of_word, seconds_of

_MOST = 100
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
@click.option(
    "--since", callback=as_duration, metavar="DURATION", help="Only events at most this old."
)
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
    output: str,
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
                    echo(_line(event, output))
            return
        found = client.events(since_ms=since_ms, most=most, **wanted)
    if output == "json":
        show_data({"items": [_row(event) for event in found]}, "json")
    elif found:
        rows = tuple(
            (format_instant(one.at), one.kind, _name(one), one.reason, one.message) for one in found
        )
        show_table(Table(("AT", "KIND", "OBJECT", "REASON", "MESSAGE"), rows), color=shared.color)
    else:
        where = "" if name or cluster_wide else f" in namespace {namespace}"
        echo(f"there are no such events{where}", err=True)


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


def _line(event: Event, output: str) -> str:
    if output == "json":
        return json.dumps(_row(event), ensure_ascii=False)
    words = (format_instant(event.at), event.kind, _name(event), event.reason, event.message)
    return one_line("  ".join(words)).rstrip()
