"""Lists of groups and of their expected starts, as text and as JSON: what `batchq jobs` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click
from msgspec import field

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.notation import SECOND, counted, data_of, describe_age, format_instant
from batchq.api.objects import API_VERSION, Unreadable
from batchq.api.reasons import Waiting
from batchq.api.views import (
    GATED,
    WHOLE_UP_TO,
    ExpectedStart,
    GroupPage,
    GroupView,
    Others,
    PodCounts,
    Starts,
    StartView,
    recent,
    token_of_view,
)
from batchq.cli.output import Table, echo, is_terminal
from batchq.cli.output.forms import (
    ListForm,
    Output,
    Quantities,
    Row,
    Time,
    output_of,
    show_list,
    show_pages,
    show_unreadable,
)
from batchq.cli.output.options import (
    Globals,
    Paging,
)
from batchq.cli.output.tables import groups_table
from batchq.cli.output.values import name_of_kind, warn_no_leader
from batchq.client import ROOT, Client


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


class OthersRow(Row, frozen=True):
    """Other groups: their number, and the names of the first in the reader's namespace."""

    count: int
    named: tuple[str, ...]
    more: int
    elsewhere: int = field(name="otherNamespaces")


class StartRow(Row, frozen=True):
    """An expected start, in whole seconds."""

    at: Time | None
    in_seconds: int | None
    ends: OthersRow
    behind: OthersRow
    why: str


def start_row(expected: ExpectedStart, now_ms: int) -> StartRow:
    """Return the JSON form of an expected start."""
    at = expected.at
    return StartRow(
        at=None if at is None else _whole_seconds(at),
        in_seconds=None if at is None else max(0, -((now_ms - at) // SECOND)),
        ends=OthersRow.of(expected.ends),
        behind=OthersRow.of(expected.behind),
        why=expected.why,
    )


class _WaitingRow(Row, frozen=True):
    name: str
    namespace: str
    queue: str
    position: int | None
    expected_start: StartRow


def _item(view: StartView, now_ms: int) -> _WaitingRow:
    namespace, _, name = view.key.partition("/")
    expected = start_row(view.expected, now_ms)
    return _WaitingRow.of(view, name=name, namespace=namespace, expected_start=expected)


class ReasonRow(Row, frozen=True):
    """A reason for waiting, in a list."""

    reason: Waiting
    message: str


class _EvictedRow(Row, frozen=True):
    reason: str
    message: str
    last_transition_time: Time = field(name="at")


class _EvictionsRow(Row, frozen=True):
    """What evictions have cost a group; `lost` is in units of the resource times seconds."""

    groups: int
    pods: int
    lost: Quantities


class AwaitedRow(Row, frozen=True):
    """What a group waits for to stop."""

    action: str
    pods: int
    groups: tuple[str, ...] = field(name="podGroups")
    until: Time | None


class GroupRow(Row, frozen=True):
    """A group, as lists, queues and `describe` show it."""

    name: str
    namespace: str
    queue: str
    owner: str
    priority: int
    phase: PodGroupPhase
    shown: str
    position: int | None
    blockers: tuple[ReasonRow, ...] = field(name="reasons")
    pods: PodCounts
    request: Quantities
    nodes: tuple[str, ...]
    created_at: Time = field(name="submittedAt")
    started_at: Time | None
    finished_at: Time | None
    reason: str = field(name="finishReason")
    message: str
    evicted: _EvictedRow | None
    evictions: _EvictionsRow
    awaits: AwaitedRow | None
    gated: tuple[str, ...]


def jobs_document(views: Sequence[GroupView]) -> dict[str, object]:
    """Return what `batchq jobs -o json` prints of these groups."""
    rows = [data_of(GroupRow.of(view)) for view in views]
    return {"apiVersion": API_VERSION, "kind": JOB_LIST, "items": rows}


JOB_LIST = "JobList"
_PHASES = (*map(str, PodGroupPhase), GATED)


def list_groups(
    shared: Globals,
    namespace: str,
    *,
    queue: str,
    phases: tuple[str, ...],
    reasons: tuple[str, ...],
    owner: str,
    active: bool,
    everything: bool,
    start: bool,
    paging: Paging,
    form: str,
    finished: int,
) -> None:
    """List groups, or their expected starts; see `batchq jobs`.

    An empty namespace is all of them. A terminal shows the last `finished` of those that have
    ended.
    """
    output = output_of(form)
    if start:
        _check_alone(phases=phases, reason=reasons, all=everything, active=active, owner=owner)
        _list_starts(shared, namespace, name_of_kind("Queue", queue) if queue else "", output)
        return
    shortens = is_terminal() and not (everything or phases)
    query = _Query(
        namespace=namespace,
        queue=name_of_kind("Queue", queue) if queue else "",
        phases=_known(phases, _PHASES, "--phase"),
        reasons=frozenset(_known(reasons, tuple(map(str, Waiting)), "--reason")),
        owner=owner,
        active=active,
        finished=finished if output.for_people and shortens else None,
    )
    with shared.connect() as client:
        if owner == "me":
            query = query._replace(owner=client.user)
        is_large = paging.size > 0 and client.count("PodGroup") > WHOLE_UP_TO
        listing = (_in_pages if is_large else _whole)(client, query, paging)
        _show(client, query, listing, paging, output)


class _Query(NamedTuple):
    """Which groups are listed; `finished` limits those that have ended, None is no limit."""

    namespace: str
    queue: str
    phases: Sequence[str]
    reasons: frozenset[str]
    owner: str
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
        from batchq.client.watch import is_behind

        views = [view for view in views if is_behind(view, paging.after)]
    if query.active:
        views = [view for view in views if view.phase not in TERMINAL]
    views = [view for view in views if view.is_of(query.owner)]
    shown = views if query.finished is None else recent(views, query.finished)
    damaged = tuple(client.unreadable("PodGroup", namespace=query.namespace))
    page = GroupPage(views=tuple(shown), unreadable=damaged, at=overview.at)
    return _Listing([page], len(views) - len(shown), is_whole=True)


def _in_pages(client: Client, query: _Query, paging: Paging) -> _Listing:
    """Read one page after the other, each when it is shown, or all of them before if only the last
    finished groups of one owner are listed.
    """
    pages = client.job_pages(
        namespace=query.namespace,
        queue=query.queue,
        phases=query.phases,
        active=query.active,
        # The names, of which the last are chosen, do not tell the owner.
        finished=None if query.owner else query.finished,
        after=paging.after,
        size=paging.size if paging.limit is None else min(paging.size, paging.limit + 1),
    )
    if not query.owner or query.finished is None:
        return _Listing(pages, pages.hidden, is_whole=False)
    views: list[GroupView] = []
    damaged: list[Unreadable] = []
    at = 0
    for page in pages:
        views += [view for view in page.views if view.is_of(query.owner)]
        damaged += page.unreadable
        at = page.at
    shown = tuple(recent(views, query.finished))
    whole = GroupPage(views=shown, at=at, unreadable=tuple(damaged))
    return _Listing([whole], len(views) - len(shown), is_whole=False)


def _show(client: Client, query: _Query, listing: _Listing, paging: Paging, output: Output) -> None:
    """Write the listing up to the limit, and notes about it for people."""
    looked_at, waits = 0, False

    def chosen() -> Iterator[tuple[Sequence[GroupView], Sequence[Unreadable]]]:
        nonlocal looked_at, waits
        is_empty = True
        for page in listing.pages:
            looked_at = page.at
            views = [view for view in page.views if _is_wanted(view, query)]
            waits = waits or any(view.phase not in TERMINAL for view in views)
            is_empty = is_empty and not views
            yield views, page.unreadable
        if is_empty and not listing.is_whole and query.queue not in ("", ROOT):
            client.get("Queue", query.queue)

    where = f" in namespace {query.namespace}" if query.namespace else ""
    shown: ListForm[GroupView] = ListForm(
        lambda views: groups_table(views, looked_at, namespaces=not query.namespace),
        f"there are no such pod groups{where}",
        kind=JOB_LIST,
        row=GroupRow.of,
        name=lambda view: view.key,
    )
    done = show_pages(output, chosen(), shown, limit=paging.limit, token_of=token_of_view)
    if output.for_people and done.written:
        _show_notes(client, listing, waits=waits)
    show_unreadable(output, done.unreadable)


def _show_notes(client: Client, listing: _Listing, *, waits: bool) -> None:
    if listing.hidden:
        echo(f"… and {counted(listing.hidden, 'older finished group')} (--all)", err=True)
    if waits and not listing.is_whole and is_terminal():
        echo(
            "… without positions in line, because of the number of groups: `batchq why NAME`",
            err=True,
        )
    if waits:
        warn_no_leader(client.schedulers().unled)


def _check_alone(**others: object) -> None:
    """Refuse options that --start, which lists all waiting groups, ignores."""
    for name, given in others.items():
        if given:
            option = f"--{name.removesuffix('s')}"
            raise click.UsageError(
                f"--start lists waiting groups; it cannot be combined with {option}"
            )


def _list_starts(shared: Globals, namespace: str, queue: str, output: Output) -> None:
    with shared.connect() as client:
        starts = client.starts(namespace=namespace, queue=queue)
        unled = client.schedulers().unled
        if not starts.items and queue not in ("", ROOT):
            client.get("Queue", queue)
    where = f" in namespace {namespace}" if namespace else ""
    shown: ListForm[StartView] = ListForm(
        lambda views: starts_table(starts, namespaces=not namespace),
        f"no pod groups wait{where}",
        kind="StartList",
        row=lambda view: _item(view, starts.at),
        name=lambda view: view.key,
    )
    head = {"at": format_instant(starts.at), "notPlanned": starts.not_planned}
    show_list(output, starts.items, shown, head=head)
    if output.for_people and starts.items:
        if starts.not_planned:
            left = counted(starts.not_planned, "group")
            echo(f"… {left} further behind in line not planned", err=True)
        warn_no_leader(unled)


def _is_wanted(view: GroupView, query: _Query) -> bool:
    has_reason = not query.reasons or any(one.reason in query.reasons for one in view.blockers)
    return has_reason and view.is_of(query.owner)


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
