"""The outcome of a described world for people: plain text, the same in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchq.api.quantity import describe_quantity, parse_quantity
from batchq.sim.report import CycleStory, GroupOutcome, Outcome, QueueOutcome


def as_table(outcome: Outcome) -> str:
    """What happened, instant by instant; then the groups, then the queues."""
    happened = [(f"{cycle.time}s", *line) for cycle in outcome.cycles for line in _decisions(cycle)]
    groups = [_group_row(key, group) for key, group in outcome.podgroups.items()]
    queues = [_queue_row(name, queue) for name, queue in outcome.queues.items()]
    sessions = "session" if len(outcome.cycles) == 1 else "sessions"
    last = f", the last at {outcome.cycles[-1].time}s" if outcome.cycles else ""
    return "\n\n".join(
        (
            _rows(("TIME", "WHAT", "WHO"), happened),
            _rows(("PODGROUP", "PHASE", "POSITION", "REASON"), groups),
            _rows(("QUEUE", "SHARE", "ALLOCATED", "RESERVED", "DESERVED"), queues),
            f"{len(outcome.cycles)} {sessions}{last}",
        )
    )


def _decisions(cycle: CycleStory) -> Iterator[tuple[str, str]]:
    for item in cycle.requeued:
        yield "back to Pending", f"{item.group} ({item.reason})"
    for group in cycle.admitted:
        yield "InQueue", group
    for pod, node in cycle.bound.items():
        yield "bound", f"{pod} to {node}"
    for evicted in cycle.evicted:
        by = f", for {evicted.by}" if evicted.by else ""
        yield "evicted", f"{evicted.pod} ({evicted.reason}{by})"
    for group in cycle.finished:
        yield "finished", group


def _group_row(key: str, group: GroupOutcome) -> tuple[str, ...]:
    position = "-" if group.position is None else str(group.position)
    reasons = "; ".join(
        f"{reason.reason}: {reason.message}" if reason.message else reason.reason
        for reason in group.reasons
    )
    return (key, group.shown, position, reasons or "-")


def _queue_row(name: str, queue: QueueOutcome) -> tuple[str, ...]:
    allocated, reserved = _amounts(queue.allocated), _amounts(queue.reserved)
    share = queue.share if isinstance(queue.share, str) else f"{queue.share:g}"
    # Of a queue that holds nothing the number says nothing.
    shown = "-" if (allocated, reserved) == ("-", "-") else share
    return (name, shown, allocated, reserved, _deserved(queue))


def _deserved(queue: QueueOutcome) -> str:
    limited = {name: text for name, text in queue.deserved.items() if text is not None}
    unlimited = [f"{name} unlimited" for name, text in queue.deserved.items() if text is None]
    parts = [_amounts(limited)] if limited else []
    return ", ".join(parts + unlimited) or "-"


def _amounts(amounts: dict[str, str]) -> str:
    held = {name: parse_quantity(name, text) for name, text in amounts.items()}
    parts = [f"{name} {describe_quantity(name, units)}" for name, units in held.items() if units]
    return ", ".join(parts) or "-"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the last one as it comes."""
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )
