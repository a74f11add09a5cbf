"""`batchq jobs`: every group with its phase, its place in line, and why it waits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click
from msgspec import structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.names import counted
from batchq.api.objects import API_VERSION
from batchq.api.quantity import format_quantity
from batchq.api.reasons import Waiting
from batchq.api.times import format_instant
from batchq.cli.ending import tell_nobody_leads
from batchq.cli.options import (
    LIST_FORMATS,
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output import is_terminal, show_data, show_table
from batchq.cli.tables import groups_table
from batchq.cli.terminal import echo
from batchq.cli.unreadableview import show_unreadable
from batchq.cli.values import name_of_kind
from batchq.client.overview import GATED, GroupView
from batchq.client.queues import ROOT

_PHASES = (*map(str, PodGroupPhase), GATED)
#: So many finished groups are listed on a terminal: a screen is not to be filled with the past.
_FINISHED_SHOWN = 20


@click.command(
    epilog=examples(
        "batchq jobs",
        "batchq jobs --active",
        "batchq jobs -A --phase Pending --phase SchedulingGated",
        "batchq jobs --reason WaitingForQuota",
        "batchq jobs -q default -o wide",
        "batchq jobs --start -q default",
        "batchq jobs -o name",
    )
)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="The groups of every namespace.")
@click.option("-q", "--queue", default="", help="Only the groups of this queue and those below it.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE",
    help=f"Only groups in this phase: {', '.join(_PHASES)}; repeat.",
)
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="REASON",
    help="Only groups that wait for this, among other things; repeat.",
)
@click.option("-a", "--active", is_flag=True, help="Only groups that have not finished.")
@click.option(
    "--all", "everything", is_flag=True, help="All that have finished, on a terminal too."
)
@click.option("--start", is_flag=True, help="Those that wait, and when they are expected to start.")
@output_option(*LIST_FORMATS)
@pass_globals
def jobs(
    shared: Globals,
    namespace: str,
    all_namespaces: bool,
    queue: str,
    phases: tuple[str, ...],
    reasons: tuple[str, ...],
    active: bool,
    everything: bool,
    start: bool,
    output: str,
) -> None:
    """List pod groups, the oldest first.

    On a terminal, of those that have finished the 20 that were submitted last; --all shows all of
    them, as do a pipe, -o json, -o yaml and -o name, and a --phase that is asked for.

    WHERE / WHY names the nodes of what runs; of what waits, its place in the line of its queue, the
    most fundamental reason and the numbers of this moment, and who took its place, if it was sent
    back. `batchq why NAME` has all reasons. Of -o wide, REASON is that reason alone, and EVICTIONS
    counts how often preempt and reclaim have sent it back, and the pods that they have stopped.

    With --start: when those that wait are expected to start, the first first, and whose end or
    start that takes. The scheduler's next session is decided here, and everybody in line is planned
    beside those ahead of it, as the strategies of the queues have it: walltimes say how long what
    runs, and what is planned, lasts at most; what has none stays for ever. It goes with -n, -A, -q
    and -o.

    Exit codes: 0 listed, 1 --start cannot follow the scheduler's configuration on this machine, 6
    there is no such queue.
    """
    if start:
        _check_alone(phases=phases, reason=reasons, all=everything, active=active)
        space = "" if all_namespaces else namespace
        _list_starts(shared, space, name_of_kind("Queue", queue) if queue else "", output)
        return
    known = _known(phases, _PHASES, "--phase")
    wanted = frozenset(_known(reasons, tuple(map(str, Waiting)), "--reason"))
    with shared.connect() as client:
        overview = client.overview()
        led = client.schedulers().led
        queue = name_of_kind("Queue", queue) if queue else ""
        space = "" if all_namespaces else namespace
        damaged = client.unreadable("PodGroup", namespace=space)
        views = overview.groups(namespace=space, queue=queue, phases=known)
        # What has ended may be of a queue that is no more.
        if not views and queue not in ("", ROOT) and not overview.groups(queue=queue):
            client.get("Queue", queue)
    # Uids rise: they tell which of two groups of one millisecond came first.
    views.sort(key=lambda view: (view.created_at, view.uid))
    if wanted:
        views = [view for view in views if _waits_for(view, wanted)]
    if active:
        views = [view for view in views if view.phase not in TERMINAL]
    match output:
        case "json" | "yaml":
            rows = [row_of(view) for view in views]
            show_data({"apiVersion": API_VERSION, "kind": "JobList", "items": rows}, output)
        case "name":
            for view in views:
                echo(view.key)
        case _ if views:
            whole = everything or bool(phases) or not is_terminal()
            shown = views if whole else recent(views)
            table = groups_table(shown, overview.at, namespaces=all_namespaces)
            show_table(table, wide=output == "wide", color=shared.color)
            hidden = len(views) - len(shown)
            if hidden:
                echo(f"… and {counted(hidden, 'older finished group')} (--all)", err=True)
            if not led and any(view.phase not in TERMINAL for view in views):
                tell_nobody_leads()
        case _:
            where = "" if all_namespaces else f" in namespace {namespace}"
            echo(f"there are no such pod groups{where}", err=True)
    show_unreadable(damaged, tabled=output not in ("json", "yaml", "name"), color=shared.color)


def _check_alone(**others: object) -> None:
    """--start lists what waits, whatever it waits for."""
    for name, given in others.items():
        if given:
            option = f"--{name.removesuffix('s')}"
            raise click.UsageError(f"--start lists those that wait; it does not go with {option}")


def _list_starts(shared: Globals, namespace: str, queue: str, output: str) -> None:
    from batchq.cli.startview import names, starts_row, starts_table

    with shared.connect() as client:
        starts = client.starts(namespace=namespace, queue=queue)
        led = client.schedulers().led
        if not starts.items and queue not in ("", ROOT):
            client.get("Queue", queue)
    match output:
        case "json" | "yaml":
            show_data(starts_row(starts), output)
        case "name":
            for key in names(starts):
                echo(key)
        case _ if starts.items:
            show_table(starts_table(starts, namespaces=not namespace), color=shared.color)
            if starts.not_planned:
                left = counted(starts.not_planned, "group")
                echo(f"… {left} further behind in line not planned", err=True)
            if not led:
                tell_nobody_leads()
        case _:
            where = f" in namespace {namespace}" if namespace else ""
            echo(f"no pod groups wait{where}", err=True)


def recent(views: Sequence[GroupView]) -> list[GroupView]:
    """All that have not finished, and of the others the last few; in the same order."""
    finished = [view.key for view in views if view.phase in TERMINAL]
    old = frozenset(finished[:-_FINISHED_SHOWN])
    return [view for view in views if view.key not in old]


def row_of(view: GroupView) -> dict[str, object]:
    """A group as `-o json` has it: quantities in people's notation, times in RFC 3339."""
    namespace, _, name = view.key.partition("/")
    return {
        "name": name,
        "namespace": namespace,
        "queue": view.queue,
        "priority": view.priority,
        "phase": str(view.phase),
        "shown": view.shown,
        "position": view.position,
        "reasons": [
            {"reason": str(blocker.reason), "message": blocker.message} for blocker in view.blockers
        ],
        "pods": structs.asdict(view.pods),
        "request": {name: format_quantity(name, units) for name, units in view.request.items()},
        "nodes": list(view.nodes),
        "submittedAt": format_instant(view.created_at),
        "startedAt": _instant(view.started_at),
        "finishedAt": _instant(view.finished_at),
        "finishReason": view.reason,
        "message": view.message,
        "evicted": _evicted(view),
        "evictions": {
            "groups": view.evictions.groups,
            "pods": view.evictions.pods,
            # Units of the resource times seconds, whose form is that of the resource.
            "lost": {
                name: format_quantity(name, units) for name, units in view.evictions.lost.items()
            },
        },
        "awaits": _awaits(view),
        "gated": list(view.gated),
    }


def _evicted(view: GroupView) -> dict[str, str] | None:
    """Why it was sent back, and who took its place, while that holds."""
    evicted = view.evicted
    if evicted is None:
        return None
    at = format_instant(evicted.last_transition_time)
    return {"reason": evicted.reason, "message": evicted.message, "at": at}


def _awaits(view: GroupView) -> dict[str, object] | None:
    """What is to stop for it."""
    awaits = view.awaits
    if awaits is None:
        return None
    return {
        "action": awaits.action,
        "pods": awaits.pods,
        "podGroups": list(awaits.groups),
        "until": _instant(awaits.until),
    }


def _instant(at: int | None) -> str | None:
    return None if at is None else format_instant(at)


def _waits_for(view: GroupView, reasons: Collection[str]) -> bool:
    return any(blocker.reason in reasons for blocker in view.blockers)


def _known(typed: Sequence[str], words: Sequence[str], option: str) -> list[str]:
    """Words as they are spelled, whatever the case in which they were typed."""
    spelled = {word.lower(): word for word in words}
    for word in typed:
        if word.lower() not in spelled:
            raise click.BadParameter(
                f"expected one of {', '.join(spelled.values())}, found {word[:40]!r}",
                param_hint=f"'{option}'",
            )
    return [spelled[word.lower()] for word in typed]
