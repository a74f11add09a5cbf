"""When groups are expected to start, as people read it, and as `-o json` has it."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.api.names import counted
from batchq.api.objects import API_VERSION
from batchq.api.times import SECOND, describe_age, format_instant
from batchq.cli.output import Table
from batchq.client.others import Others
from batchq.client.starts import ExpectedStart, Starts, StartView


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
        "unknown" if at is None else format_instant(_whole(at)),
        "" if at is None else "now" if soon else describe_age(at - now_ms),
        "the next session" if soon else waits_for(view.expected),
    )


def start_text(expected: ExpectedStart, now_ms: int) -> str:
    """`1970-01-01T01:16:40Z (in 59m)` of what is known."""
    at = expected.at or now_ms
    return f"{format_instant(_whole(at))} (in {describe_age(at - now_ms)})"


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


def _whole(at: int) -> int:
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
        "at": None if at is None else format_instant(_whole(at)),
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
