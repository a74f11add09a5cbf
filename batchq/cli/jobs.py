"""`batchq jobs`: lists of groups and of their expected starts, as text and as JSON."""

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
from batchq.cli.output.values import name_of_kind, warn_no_leader
from batchq.client import Client
from batchq.client.group_pages import WHOLE_UP_TO, GroupPage, is_behind, token_of_view
from batchq.client.outcomes import ExpectedStart, Starts, StartView
from batchq.client.overview import GATED, GroupView, Others
from batchq.client.queues import ROOT


def starts_table(starts: Starts, *, namespaces: bool) -> Table:
    """Return the table of `batchq jobs --start`."""
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
    """Return e.g. `1970-01-01T01:16:40Z (in 59m)` for a known start."""
    at = expected.at or now_ms
    return f"{format_instant(_whole_seconds(at))} (in {describe_age(at - now_ms)})"


def waits_for(expected: ExpectedStart) -> str:
    """Return which groups must end or start first, and what else delays the start."""
    parts = []
    if expected.ends.count:
        parts.append(f"the end of {others_text(expected.ends)}")
    if expected.behind.count and (not parts or expected.at is None):
        parts.append(f"the start of {others_text(expected.behind)}")
    if expected.why:
        parts.append(expected.why)
    return "; ".join(parts)


def others_text(others: Others) -> str:
    """Return e.g. `default/a, default/b and 3 more; 2 groups of other namespaces`."""
    parts = []
    if others.named:
        more = f" and {others.more} more" if others.more else ""
        parts.append(f"{', '.join(others.named)}{more}")
    if others.elsewhere:
        parts.append(f"{counted(others.elsewhere, 'group')} of other namespaces")
    return "; ".join(parts)


def _whole_seconds(at: int) -> int:
    """Round up, so that the shown time is never too early."""
    return -(-at // SECOND) * SECOND


# --- -o json ------------------------------------------------------------------------------------


def starts_row(starts: Starts) -> dict[str, object]:
    """Return the JSON form of the list; times in RFC 3339."""
    return {
        "apiVersion": API_VERSION,
        "kind": "StartList",
        "at": format_instant(starts.at),
        "notPlanned": starts.not_planned,
        "items": [_item(view, starts.at) for view in starts.items],
    }


def names(starts: Starts) -> Sequence[str]:
    """Return the keys of the groups, in the same order."""
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
    """Return the JSON form of an expected start."""
    at = expected.at
    return {
        "at": None if at is None else format_instant(_whole_seconds(at)),
        "inSeconds": None if at is None else max(0, -((now_ms - at) // SECOND)),
        "ends": others_row(expected.ends),
        "behind": others_row(expected.behind),
        "why": expected.why,
    }


def others_row(others: Others) -> dict[str, object]:
    """Return the JSON form of a list of other groups."""
    return {
        "count": others.count,
        "named": list(others.named),
        "more": others.more,
        "otherNamespaces": others.elsewhere,
    }


_PHASES = (*map(str, PodGroupPhase), GATED)
#: How many finished groups a terminal shows, so that they do not fill the screen.
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
@click.option("-q", "--queue", default="", help="Only groups of this queue and those below it.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE",
    help=f"Only groups in this phase: {', '.join(_PHASES)}; repeatable.",
)
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="REASON",
    help="Only groups with this among their reasons for waiting; repeatable.",
)
@click.option("-a", "--active", is_flag=True, help="Only groups that have not finished.")
@click.option("--all", "everything", is_flag=True, help="All finished groups, on a terminal too.")
@click.option("--start", is_flag=True, help="Waiting groups, and when they are expected to start.")
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
    """List pod groups, oldest first.

    A terminal shows only the 20 finished groups that were submitted last. --all, --phase, a pipe,
    -o json, -o yaml and -o name show all of them.

    WHERE / WHY names the nodes of running groups. For waiting groups it has the position in line,
    the most fundamental reason with current numbers, and the preemptor of an evicted group. `batchq
    why NAME` has all reasons. With -o wide, REASON is the most fundamental reason alone, and
    EVICTIONS counts how often preempt and reclaim have evicted the group, and the pods that they
    have stopped.

    More than 10,000 groups are read --chunk-size at a time, and each chunk is printed as soon as it
    is read. Positions in line are left out then, and reasons have the numbers that the scheduler
    has stored; --chunk-size 0 reads all groups at once. --limit ends a list early and prints where
    it continues (with -o json and -o yaml in metadata.continue); --continue starts there.

    With --start: waiting groups and their expected starts, earliest first, and which groups must
    end or start before. The command runs the scheduler's next session, and plans the groups in line
    in order, by the strategies of their queues. Every group is assumed to run for its walltime; a
    group without one is assumed to run for ever. It may be combined with -n, -A, -q and -o.

    Exit codes: 0 listed, 1 --start cannot use the scheduler's configuration on this machine, 6
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
    """Which groups are listed; `finished` limits those that have ended, None is no limit."""

    namespace: str
    queue: str
    phases: Sequence[str]
    reasons: frozenset[str]
    active: bool
    finished: int | None


class _Listing(NamedTuple):
    """Pages of groups, and the number of finished groups left out. `is_whole`: all groups were read
    at once, so their positions in line are known.
    """

    pages: Iterable[GroupPage]
    hidden: int
    is_whole: bool


def _whole(client: Client, query: _Query, paging: Paging) -> _Listing:
    """Read all groups at once."""
    overview = client.overview()
    views = overview.groups(namespace=query.namespace, queue=query.queue, phases=query.phases)
    # Finished groups may be in a queue that was deleted.
    if not views and query.queue not in ("", ROOT) and not overview.groups(queue=query.queue):
        client.get("Queue", query.queue)
    # Uids rise with time, so they order the groups by age.
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
    """Read one page after the other, each when it is shown."""
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
    """Writes a listing in the requested form, each page as soon as it is read."""

    def __init__(self, client: Client, query: _Query, output: str, *, color: bool) -> None:
        self._client, self._query, self._output, self._color = client, query, output, color
        self._data = ListWriter("JobList", output) if output in ("json", "yaml") else None
        self._table = TableWriter(wide=output == "wide", color=color)
        self._waits = False

    def write(self, listing: _Listing, paging: Paging) -> None:
        """Write the listing up to the limit."""
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
            echo(
                "… without positions in line, because of the number of groups: `batchq why NAME`",
                err=True,
            )
        if self._waits and not self._client.schedulers().led:
            warn_no_leader()


def _check_alone(**others: object) -> None:
    """Refuse options that --start, which lists all waiting groups, ignores."""
    for name, given in others.items():
        if given:
            option = f"--{name.removesuffix('s')}"
            raise click.UsageError(
                f"--start lists waiting groups; it cannot be combined with {option}"
            )


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
                warn_no_leader()
        case _:
            where = f" in namespace {namespace}" if namespace else ""
            echo(f"no pod groups wait{where}", err=True)


def recent(views: Sequence[GroupView], finished: int) -> list[GroupView]:
    """Return unfinished groups and the last finished ones, in the same order."""
    ended = [view.key for view in views if view.phase in TERMINAL]
    old = frozenset(ended[:-finished])
    return [view for view in views if view.key not in old]


def row_of(view: GroupView) -> dict[str, object]:
    """Return the JSON form of a group: amounts as quantities, times in RFC 3339."""
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
            # Units of the resource times seconds, written like the resource.
            "lost": {
                name: format_quantity(name, units) for name, units in view.evictions.lost.items()
            },
        },
        "awaits": _awaits(view),
        "gated": list(view.gated),
    }


def _evicted(view: GroupView) -> dict[str, str] | None:
    """Return why it was evicted, and its preemptor, while the condition is True."""
    evicted = view.evicted
    if evicted is None:
        return None
    at = format_instant(evicted.last_transition_time)
    return {"reason": evicted.reason, "message": evicted.message, "at": at}


def _awaits(view: GroupView) -> dict[str, object] | None:
    """Return what it waits for to stop."""
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
    """Return the words in their official spelling; case does not matter."""
    spelled = {word.lower(): word for word in words}
    for word in typed:
        if word.lower() not in spelled:
            raise click.BadParameter(
                f"expected one of {', '.join(spelled.values())}, found {word[:40]!r}",
                param_hint=f"'{option}'",
            )
    return [spelled[word.lower()] for word in typed]
