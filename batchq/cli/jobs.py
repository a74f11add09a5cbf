"""When groups are expected to start, as people read it, and as `-o json` has it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import click
from msgspec import structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.notation import counted
from batchq.api.objects import API_VERSION, Unreadable
from batchq.api.reasons import Waiting
from batchq.api.resources import format_quantity
from batchq.api.times import SECOND, describe_age, format_instant
from batchq.cli.endings import tell_nobody_leads
from batchq.cli.objects import show_unreadable
from batchq.cli.output.options import (
    LIST_FORMATS,
    Globals,
    Paging,
    examples,
    namespace_option,
    output_option,
    paging_options,
    pass_globals,
)
from batchq.cli.output.render import (
    ListWriter,
    Table,
    TableWriter,
    is_terminal,
    show_data,
    show_table,
)
from batchq.cli.output.tables import groups_table
from batchq.cli.output.terminal import echo
from batchq.cli.output.values import name_of_kind
from batchq.client import Client
from batchq.client.group_pages import WHOLE_UP_TO, GroupPage, is_behind, token_of_view
from batchq.client.overview import GATED, GroupView
from batchq.client.position import Others
from batchq.client.queues import ROOT
from batchq.client.start_estimates import ExpectedStart, Starts, StartView


def starts_table(starts: Starts, *, namespaces: bool) -> Table:
    """`batchq jobs --start`."""
    titles = (
        *(("NAMESPACE",) if namespaces else ()),
        *("NAME", "QUEUE", "POSITION", "EXPECTED START", "IN", "WAITS FOR"),
    )
    rows = [_row(view, starts.at, namespaces=namespaces) for view in starts.items]
    return Table(titles, tuple(rows), spare=("QUEUE", "EXPECTED START"))


def _row(view: StartView, now_ms: int, *, namespaces: bool) -> tuple[str, ...]:
    namespace, _, name = view.key.partition("/")
    at = view.expected.at
    soon = at is not None and at <= now_ms
    return (
        *((namespace,) if namespaces else ()),
        name,
        view.queue,
        "" if view.position is None else str(view.position),
        "unknown" if at is None else format_instant(_whole_seconds(at)),
        "" if at is None else "now" if soon else describe_age(at - now_ms),
        "the next session" if soon else waits_for(view.expected),
    )


def start_text(expected: ExpectedStart, now_ms: int) -> str:
    """`1970-01-01T01:16:40Z (in 59m)` of what is known."""
    at = expected.at or now_ms
    return f"{format_instant(_whole_seconds(at))} (in {describe_age(at - now_ms)})"


def waits_for(expected: ExpectedStart) -> str:
    """Who has to end or to start first, and what else is to come."""
    parts = []
    if expected.ends.count:
        parts.append(f"the end of {others_text(expected.ends)}")
    if expected.behind.count and (not parts or expected.at is None):
        parts.append(f"the start of {others_text(expected.behind)}")
    if expected.why:
        parts.append(expected.why)
    return "; ".join(parts)


def others_text(others: Others) -> str:
    """`default/a, default/b and 3 more; 2 groups of other namespaces`."""
    parts = []
    if others.named:
        more = f" and {others.more} more" if others.more else ""
        parts.append(f"{', '.join(others.named)}{more}")
    if others.elsewhere:
        parts.append(f"{counted(others.elsewhere, 'group')} of other namespaces")
    return "; ".join(parts)


def _whole_seconds(at: int) -> int:
    """Never earlier than it is."""
    return -(-at // SECOND) * SECOND


# --- -o json ------------------------------------------------------------------------------------


def starts_row(starts: Starts) -> dict[str, object]:
    """The whole list; times in RFC 3339."""
    return {
        "apiVersion": API_VERSION,
        "kind": "StartList",
        "at": format_instant(starts.at),
        "notPlanned": starts.not_planned,
        "items": [_item(view, starts.at) for view in starts.items],
    }


def names(starts: Starts) -> Sequence[str]:
    """The keys, in the same order."""
    return [view.key for view in starts.items]


def _item(view: StartView, now_ms: int) -> dict[str, object]:
    namespace, _, name = view.key.partition("/")
    return {
        "name": name,
        "namespace": namespace,
        "queue": view.queue,
        "position": view.position,
        "expectedStart": start_row(view.expected, now_ms),
    }


def start_row(expected: ExpectedStart, now_ms: int) -> dict[str, object]:
    """When, in how many seconds, what has to end and to start before, and what else."""
    at = expected.at
    return {
        "at": None if at is None else format_instant(_whole_seconds(at)),
        "inSeconds": None if at is None else max(0, -((now_ms - at) // SECOND)),
        "ends": others_row(expected.ends),
        "behind": others_row(expected.behind),
        "why": expected.why,
    }


def others_row(others: Others) -> dict[str, object]:
    """Several groups."""
    return {
        "count": others.count,
        "named": list(others.named),
        "more": others.more,
        "otherNamespaces": others.elsewhere,
    }


_PHASES = (*map(str, PodGroupPhase), GATED)
#: So many finished groups are listed on a terminal: a screen is not to be filled with the past.
_RECENT = 20
_DATA = ("json", "yaml", "name")


@click.command(
    epilog=examples(
        "batchq jobs",
        "batchq jobs --active",
        "batchq jobs -A --phase Pending --phase SchedulingGated",
        "batchq jobs --reason WaitingForQuota",
        "batchq jobs -q default -o wide",
        "batchq jobs --start -q default",
        "batchq jobs -o name",
        "batchq jobs -A --limit 100",
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
@paging_options
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
    paging: Paging,
    output: str,
) -> None:
    """List pod groups, the oldest first.

    On a terminal, of those that have finished the 20 that were submitted last; --all shows all of
    them, as do a pipe, -o json, -o yaml and -o name, and a --phase that is asked for.

    WHERE / WHY names the nodes of what runs; of what waits, its place in the line of its queue, the
    most fundamental reason and the numbers of this moment, and who took its place, if it was sent
    back. `batchq why NAME` has all reasons. Of -o wide, REASON is that reason alone, and EVICTIONS
    counts how often preempt and reclaim have sent it back, and the pods that they have stopped.

    More than 10,000 groups are read --chunk-size at a time, and each chunk is written as soon as it
    is there. Places in line are left out then, and numbers are those that the scheduler has written
    down; --chunk-size 0 looks at all of them at once. --limit ends a list early, says where it went
    on (of -o json and -o yaml, in metadata.continue), and --continue goes on there.

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
    query = _Query(
        namespace="" if all_namespaces else namespace,
        queue=name_of_kind("Queue", queue) if queue else "",
        phases=_known(phases, _PHASES, "--phase"),
        reasons=frozenset(_known(reasons, tuple(map(str, Waiting)), "--reason")),
        active=active,
        finished=None if everything or phases or output in _DATA or not is_terminal() else _RECENT,
    )
    with shared.connect() as client:
        is_large = paging.size > 0 and client.count("PodGroup") > WHOLE_UP_TO
        listing = (_in_pages if is_large else _whole)(client, query, paging)
        _Writer(client, query, output, color=shared.color).write(listing, paging)


class _Query(NamedTuple):
    """Which groups are listed; `finished`: of those that have ended only so many, None for all."""

    namespace: str
    queue: str
    phases: Sequence[str]
    reasons: frozenset[str]
    active: bool
    finished: int | None


class _Listing(NamedTuple):
    """Groups a page at a time, and how many that have ended are left out. `is_whole`: they were
    looked at with all others, and so are their places in line.
    """

    pages: Iterable[GroupPage]
    hidden: int
    is_whole: bool


def _whole(client: Client, query: _Query, paging: Paging) -> _Listing:
    """All in one look."""
    overview = client.overview()
    views = overview.groups(namespace=query.namespace, queue=query.queue, phases=query.phases)
    # What has ended may be of a queue that is no more.
    if not views and query.queue not in ("", ROOT) and not overview.groups(queue=query.queue):
        client.get("Queue", query.queue)
    # Uids rise: they tell which of two groups came first.
    views.sort(key=lambda view: (view.uid, view.key))
    if paging.after:
        views = [view for view in views if is_behind(view, paging.after)]
    if query.active:
        views = [view for view in views if view.phase not in TERMINAL]
    shown = views if query.finished is None else recent(views, query.finished)
    damaged = tuple(client.unreadable("PodGroup", namespace=query.namespace))
    page = GroupPage(views=tuple(shown), unreadable=damaged, at=overview.at)
    return _Listing([page], len(views) - len(shown), is_whole=True)


def _in_pages(client: Client, query: _Query, paging: Paging) -> _Listing:
    """A page at a time, each read when it is shown."""
    pages = client.job_pages(
        namespace=query.namespace,
        queue=query.queue,
        phases=query.phases,
        active=query.active,
        finished=query.finished,
        after=paging.after,
        size=paging.size if paging.limit is None else min(paging.size, paging.limit + 1),
    )
    return _Listing(pages, pages.hidden, is_whole=False)


class _Writer:
    """Writes a listing in the form that is asked for, each page as soon as it is there."""

    def __init__(self, client: Client, query: _Query, output: str, *, color: bool) -> None:
        self._client, self._query, self._output, self._color = client, query, output, color
        self._data = ListWriter("JobList", output) if output in ("json", "yaml") else None
        self._table = TableWriter(wide=output == "wide", color=color)
        self._waits = False

    def write(self, listing: _Listing, paging: Paging) -> None:
        """All of it, or as much as the limit allows."""
        damaged: list[Unreadable] = []
        token, following, count = "", "", 0
        for page in listing.pages:
            damaged += page.unreadable
            views = [view for view in page.views if self._is_wanted(view)]
            left = len(views) if paging.limit is None else paging.limit - count
            shown = views[:left]
            self._write_page(shown, page.at)
            count += len(shown)
            token = token_of_view(shown[-1]) if shown else token
            if len(views) > left:
                following = token
                break
        if not count and not listing.is_whole and self._query.queue not in ("", ROOT):
            self._client.get("Queue", self._query.queue)
        self._end(listing, following, count)
        show_unreadable(damaged, tabled=self._output not in _DATA, color=self._color)

    def _is_wanted(self, view: GroupView) -> bool:
        return not self._query.reasons or _waits_for(view, self._query.reasons)

    def _write_page(self, views: Sequence[GroupView], at: int) -> None:
        self._waits = self._waits or any(view.phase not in TERMINAL for view in views)
        if not views:
            return
        if self._data is not None:
            self._data.write([row_of(view) for view in views])
        elif self._output == "name":
            for view in views:
                echo(view.key)
        else:
            self._table.write(groups_table(views, at, namespaces=not self._query.namespace))

    def _end(self, listing: _Listing, following: str, count: int) -> None:
        if self._data is not None:
            self._data.end(following)
            return
        if following:
            echo(f"… and more: --continue {following}", err=True)
        if self._output == "name":
            return
        if not count:
            where = f" in namespace {self._query.namespace}" if self._query.namespace else ""
            echo(f"there are no such pod groups{where}", err=True)
            return
        if listing.hidden:
            echo(f"… and {counted(listing.hidden, 'older finished group')} (--all)", err=True)
        if self._waits and not listing.is_whole and is_terminal():
            echo("… without places in line, as there are so many: `batchq why NAME`", err=True)
        if self._waits and not self._client.schedulers().led:
            tell_nobody_leads()


def _check_alone(**others: object) -> None:
    """--start lists what waits, whatever it waits for."""
    for name, given in others.items():
        if given:
            option = f"--{name.removesuffix('s')}"
            raise click.UsageError(f"--start lists those that wait; it does not go with {option}")


def _list_starts(shared: Globals, namespace: str, queue: str, output: str) -> None:

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


def recent(views: Sequence[GroupView], finished: int) -> list[GroupView]:
    """All that have not finished, and of the others the last few; in the same order."""
    ended = [view.key for view in views if view.phase in TERMINAL]
    old = frozenset(ended[:-finished])
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
