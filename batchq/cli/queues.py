"""The page of one queue: what it may have, what it holds, who borrows, who waits, who would go."""

from __future__ import annotations

from collections.abc import Sequence

import click

from batchq.api.manifest import encode
from batchq.api.notation import counted
from batchq.api.objects import API_VERSION, Queue
from batchq.api.resources import PODS, UNLIMITED_PODS, Amounts, describe_quantity, format_quantity
from batchq.api.times import describe_age, format_instant
from batchq.cli.checks import show_checks_of_queue
from batchq.cli.jobs import row_of
from batchq.cli.objects import apply_content, read_content
from batchq.cli.output import tables
from batchq.cli.output.options import LIST_FORMATS, Globals, examples, output_option, pass_globals
from batchq.cli.output.render import (
    draws_lines,
    is_terminal,
    reference,
    report,
    show_data,
    show_fields,
    show_section,
    show_table,
)
from batchq.cli.output.tables import queues_table
from batchq.cli.output.terminal import echo
from batchq.cli.output.values import name_of_kind
from batchq.client import Client
from batchq.client.overview import GroupView, QueuePage
from batchq.client.queues import ROOT, FirstToGo, Lien, QueueView
from batchq.errors import InvalidInput, NotFound

#: So many of those that wait, and of those that would go, are named.
_MOST_NAMED = 5
_BAR = 12

_STOPPED = {
    "Hold": "Hold: nothing new is admitted",
    "HoldAndDrain": "HoldAndDrain: nothing is admitted, and what was is sent back",
}
_WITHIN = {
    "LowerPriority": "a group may take the place of groups of lower priority in this queue",
    "Never": "no group takes another's place in this queue",
}
_RECLAIM = {
    "Any": "takes back what it deserves from queues that hold more than they deserve",
    "LowerPriority": "takes back what it deserves, from groups of lower priority only",
    "Never": "takes nothing back from other queues; what it deserves it waits for",
}


def show_queue_page(page: QueuePage, now_ms: int) -> None:
    """The page, to stdout."""
    show_fields(_fields(page.view))
    show_section("Resources", _resources(page))
    show_section("Loans", _loans(page))
    show_section("In line", _waiting(page.line))
    show_section("Not in line", _waiting(page.aside))
    show_section("First to go, if somebody may take", _going(page.first_to_go, now_ms))


def queue_row(view: QueueView) -> dict[str, object]:
    """A queue as `-o json` has it; amounts are canonical quantities, null is unlimited."""
    return {
        "name": view.name,
        "parent": view.parent,
        "children": list(view.children),
        "queue": encode(view.queue),
        "deserved": {**_written(view.deserved), **dict.fromkeys(_unlimited(view.deserved))},
        "guarantee": _written(view.guarantee),
        "capability": _written(view.queue.spec.capability),
        "used": _written(view.used),
        "reserved": _written(view.reserved),
        "charged": _written(view.charged),
        "borrowed": _written(view.borrowed),
        "share": view.share,
        "pendingGroups": view.pending_groups,
        "pending": _written(view.pending),
        "admittedGroups": view.admitted_groups,
        "runningGroups": view.running_groups,
        "stops": [{"queue": stop.queue, "stopPolicy": stop.policy} for stop in view.stops],
    }


def page_row(page: QueuePage) -> dict[str, object]:
    """The page as `-o json` has it: the queue's row, and what the page says beyond it."""
    return {
        **queue_row(page.view),
        "deservedBy": {
            resource: "weight" if resource in page.weights else "stated"
            for resource in page.view.resources
        },
        "lenders": [_lien_row(lien) for lien in page.lenders],
        "borrowers": [_lien_row(lien) for lien in page.borrowers],
        "line": [row_of(view) for view in page.line[:_MOST_NAMED]],
        "aside": [row_of(view) for view in page.aside[:_MOST_NAMED]],
        "firstToGo": [
            {
                "podGroup": one.key,
                "queue": one.queue,
                "priority": one.priority,
                "whole": one.whole,
                "pods": one.pods,
                "gives": _written(one.gives),
                "startedAt": None if one.started_at is None else format_instant(one.started_at),
            }
            for one in page.first_to_go[:_MOST_NAMED]
        ],
    }


# --- fields -----------------------------------------------------------------------------------


def _fields(view: QueueView) -> list[tuple[str, str]]:
    spec = view.queue.spec
    labels = sorted(view.queue.metadata.labels.items())
    overcommit = describe_quantity("overcommit", spec.overcommit)
    return [
        ("Queue", view.name),
        ("Parent", view.parent if view.parent != ROOT else ""),
        ("Children", ", ".join(view.children)),
        ("Labels", ", ".join(f"{name}={value}" for name, value in labels)),
        ("Weight", str(spec.weight)),
        ("Strategy", "" if view.children else spec.strategy.type),
        ("Stopped", _stopped(view)),
        ("Most groups", "" if spec.max_pod_groups is None else str(spec.max_pod_groups)),
        ("Overcommit", "" if spec.overcommit == 1000 else f"{overcommit} times its capability"),
        ("Checks", ", ".join(spec.admission_checks)),
        *_claims(view),
        ("Gives back", _gives_back(view.queue)),
        ("Admitted", _groups(view.admitted_groups, f"{view.running_groups} running")),
        ("Pending", _groups(view.pending_groups, tables.listed(view.pending))),
        ("Share", tables.share_text(view) or "-"),
    ]


def _stopped(view: QueueView) -> str:
    """Its own stop and those of the queues above, each in words."""
    return "; ".join(
        f"{_STOPPED[stop.policy]}" + (f" (queue {stop.queue})" if stop.queue != view.name else "")
        for stop in view.stops
    )


def _claims(view: QueueView) -> list[tuple[str, str]]:
    """What its groups may take; a queue with others below it has no groups of its own."""
    if view.children:
        return []
    policy = view.queue.spec.preemption
    return [
        ("Preempts", _WITHIN[policy.within_queue]),
        ("Reclaims", _RECLAIM[policy.reclaim]),
        ("Borrowing", _borrowing(view.queue)),
    ]


def _borrowing(queue: Queue) -> str:
    most = queue.spec.preemption.borrowing
    if most == "Never":
        return "takes nobody's place in order to hold more than it deserves"
    return (
        "may take the place of groups below the claimant's priority and of at most"
        f" {most}, even to hold more than it deserves"
    )


def _gives_back(queue: Queue) -> str:
    if not queue.spec.reclaimable:
        return "nothing: what it holds is never taken back by other queues"
    return "what it holds above what it deserves, when a queue that reclaims asks for its part"


def _groups(count: int, more: str) -> str:
    return counted(count, "group") + (f", {more}" if count and more else "")


# --- sections ---------------------------------------------------------------------------------


def _resources(page: QueuePage) -> list[tuple[str, ...]]:
    view = page.view
    if not view.resources:
        return []
    titles = ("RESOURCE", "USED", "RESERVED", "DESERVED", "BY", "BORROWED", "GUARANTEE")
    return [
        (*titles, "CAPABILITY", "OF DESERVED"),
        *(_resource_row(page, resource) for resource in view.resources),
    ]


def _resource_row(page: QueuePage, resource: str) -> tuple[str, ...]:
    view = page.view

    def text(amounts: Amounts, absent: str = "") -> str:
        units = amounts.get(resource)
        return absent if units is None else describe_quantity(resource, units)

    return (
        resource,
        text(view.used, "0"),
        text(view.reserved),
        text(view.deserved, "0"),
        _deserved_by(page, resource),
        text(view.borrowed),
        text(view.guarantee),
        text(view.queue.spec.capability, "unlimited"),
        bar(
            view.used.get(resource, 0),
            view.charged.get(resource, 0),
            view.deserved.get(resource, 0),
        ),
    )


def _deserved_by(page: QueuePage, resource: str) -> str:
    if page.view.name == ROOT:
        return "stated" if resource in page.view.queue.spec.deserved else "nodes"
    if resource not in page.weights:
        return "stated"
    own, all_of_them = page.weights[resource]
    return f"weight {own} of {all_of_them}"


def bar(used: int, charged: int, deserved: int) -> str:
    """`[####++..]`: used, reserved, deserved but free; `[######|##]` where it holds more."""
    most = max(charged, deserved)
    if most <= 0:
        return ""
    filled = [_cells(units, most) for units in (used, charged, deserved)]
    cells = ["#" if place < filled[0] else "+" for place in range(filled[1])]
    cells += ["."] * (_BAR - len(cells))
    if charged > deserved:
        cells.insert(filled[2], "|")
    return f"[{''.join(cells)}]"


def _cells(units: int, most: int) -> int:
    """Of the bar's cells; something is never shown as nothing."""
    return max(1 if units else 0, _BAR * min(units, most) // most)


def _loans(page: QueuePage) -> list[tuple[str, ...]]:
    return [
        *(
            ("borrows", f"{lien.queue} deserves {tables.listed(lien.amounts)} more than it holds")
            for lien in page.lenders
        ),
        *(
            ("lends", f"{lien.queue} holds {tables.listed(lien.amounts)} above what it deserves")
            for lien in page.borrowers
        ),
    ]


def _waiting(views: Sequence[GroupView]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "" if view.position is None else f"{view.position}.",
            view.key,
            view.queue,
            view.request_text,
            tables.why_waiting(view),
        )
        for view in views[:_MOST_NAMED]
    ]
    more = len(views) - _MOST_NAMED
    return [*rows, ("", f"and {more} more", "", "", "")] if more > 0 else rows


def _going(those: Sequence[FirstToGo], now_ms: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            f"{place}.",
            one.key,
            one.queue,
            f"priority {one.priority}",
            tables.listed(one.gives) or "nothing",
            "whole" if one.whole else f"{counted(one.pods, 'pod')} beyond its minimum",
            "not started"
            if one.started_at is None
            else f"started {describe_age(now_ms - one.started_at)} ago",
        )
        for place, one in enumerate(those[:_MOST_NAMED], start=1)
    ]
    more = len(those) - _MOST_NAMED
    return [*rows, ("", f"and {more} more", *[""] * 5)] if more > 0 else rows


# --- amounts ----------------------------------------------------------------------------------


def _lien_row(lien: Lien) -> dict[str, object]:
    return {"queue": lien.queue, "amounts": _written(lien.amounts)}


def _unlimited(amounts: Amounts) -> list[str]:
    """The pods of nodes that name no number of them."""
    return [name for name, units in amounts.items() if name == PODS and units >= UNLIMITED_PODS]


def _written(amounts: Amounts) -> dict[str, str]:
    return {name: format_quantity(name, units) for name, units in amounts.items()}


_EXAMPLES = examples(
    "batchq queues",
    "batchq queues -o wide",
    "batchq queues -o json",
    "batchq queues show default",
    "batchq queues stop default",
)


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@output_option(*LIST_FORMATS)
@click.pass_context
def queues(ctx: click.Context, output: str) -> None:
    """List queues as a tree; show, apply, stop and resume them.

    Of each resource USED/DESERVED: what pods of the queue and of those below it have on nodes, of
    what it deserves. RESERVED is kept for admitted groups beyond that, BORROWED is what both come
    to above what it deserves. SHARE is what it holds over what it deserves, in the resource where
    that is most; the lowest is served first. PENDING counts the groups that wait.

    By weight a queue deserves no more than it holds and asks for. `batchq queues show NAME` has
    the details.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Globals), output)


@queues.command("list", epilog=examples("batchq queues list", "batchq queues list -o yaml"))
@output_option(*LIST_FORMATS)
@pass_globals
def list_queues(shared: Globals, output: str) -> None:
    """List queues as a tree: weights, what they hold and deserve, and what waits."""
    _list(shared, output)


@queues.command(epilog=examples("batchq queues show default", "batchq queues show default -o json"))
@click.argument("name")
@output_option("text", "json", "yaml")
@pass_globals
def show(shared: Globals, name: str, output: str) -> None:
    """Show one queue: what it may have, what it holds, who borrows, who is next, who would go.

    First to go are those whose place a claimant would be given first, if it may take it: its
    priority, minRuntime, the eviction budget and guarantees are asked when one comes.

    `root`, above all others, is always there, also where nothing is stated for it.

    Exit codes: 0 shown, 6 there is no such queue.
    """
    with shared.connect() as client:
        name = name_of_kind("Queue", name)
        if name != ROOT:
            client.get("Queue", name)
        overview = client.overview()
        page = overview.queue_page(name)
        asked = client.checks.of_queue(name)
    if page is None:
        raise NotFound(f"Queue {name} was deleted just now")
    if output == "text":
        show_queue_page(page, overview.at)
        show_checks_of_queue(name, asked, overview.at)
    else:
        show_data({"apiVersion": API_VERSION, "kind": "QueuePage", **page_row(page)}, output)


@queues.command(
    epilog=examples(
        "batchq queues apply -f team-queues.yaml --dry-run",
        "batchq get queue default -o yaml | batchq queues apply -f -",
    )
)
@click.option("-f", "--filename", required=True, metavar="FILE", help="A file, or - for stdin.")
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@output_option("text", "json", "yaml", "name")
@pass_globals
def apply(shared: Globals, filename: str, dry_run: bool, output: str) -> None:
    """Create the queues of a file that are not there, and change those that are.

    As `batchq apply` does, for files that hold queues and nothing else; what each queue says that
    it did not say before stands behind its name. One whose stopPolicy the file does not name stays
    stopped if it is.

    Exit codes: 0 all are as the file says, 1 bad content, or something that is no queue, 6 a
    parent is not there, 8 somebody else has changed one, 12 a rule refuses one; then none is
    changed.
    """
    content = read_content(filename, in_folder=False)
    for item in content.objects:
        if not isinstance(item, Queue):
            raise InvalidInput(
                f"{filename}: expected queues and nothing else, found {reference(item)}",
                hint="`batchq apply` takes every kind",
            )
    apply_content(shared, content, dry_run=dry_run, output=output)


@queues.command(
    epilog=examples("batchq queues stop batch", "batchq queues stop batch interactive --drain")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--drain", is_flag=True, help="Send back what has been admitted, too.")
@output_option("text", "json")
@pass_globals
def stop(shared: Globals, names: tuple[str, ...], drain: bool, output: str) -> None:
    """Admit nothing more to queues, nor to those below them; what runs goes on.

    With --drain what has been admitted goes back to the line; its processes get SIGTERM, and
    SIGKILL after their grace. This sets stopPolicy to Hold, or to HoldAndDrain; without --drain
    a queue that drains keeps what has not left yet.

    Exit codes: 0 they are stopped, 6 there is no such queue, and none was stopped.
    """
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names):
            changed = client.set_stop_policy(name, "HoldAndDrain" if drain else "Hold")
            what = "draining" if drain else "stopped"
            done("Queue", name, what if changed else f"is {what} already")


@queues.command(epilog=examples("batchq queues resume batch"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], output: str) -> None:
    """Let queues that were stopped go on.

    A queue below one that is stopped stays stopped with it, and is told.

    Exit codes: 0 they are not stopped any more, 6 there is no such queue, and none was resumed.
    """
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names):
            changed = client.set_stop_policy(name, "None")
            done("Queue", name, "resumed" if changed else "is not stopped")
            _tell_of_stops(client, name)


def _tell_of_stops(client: Client, name: str) -> None:
    """On stderr, who else stops it."""
    view = next((one for one in client.queues() if one.name == name), None)
    for one in view.stops if view is not None else ():
        echo(
            f"queue {one.queue}, above {name}, is stopped still ({one.policy}):"
            f" `batchq queues resume {one.queue}`",
            err=True,
        )


def _found(client: Client, names: tuple[str, ...]) -> list[str]:
    """The names, once all are known to be there."""
    bare = [name_of_kind("Queue", name) for name in names]
    for name in bare:
        client.get("Queue", name)
    return list(dict.fromkeys(bare))


def _list(shared: Globals, output: str) -> None:
    with shared.connect() as client:
        views = client.queues()
    match output:
        case "json" | "yaml":
            items = [queue_row(view) for view in views]
            show_data({"apiVersion": API_VERSION, "kind": "QueueList", "items": items}, output)
        case "name":
            for view in views:
                echo(view.name)
        case _:
            table = queues_table(views, stacked=is_terminal(), lines=draws_lines())
            show_table(table, wide=output == "wide", color=shared.color)
