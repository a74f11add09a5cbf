"""A what-if as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchq.api.lifecycle import TERMINAL
from batchq.api.names import counted
from batchq.api.times import describe_age, format_duration
from batchq.cli.output import Table, show_section, show_table
from batchq.cli.tables import lost_text
from batchq.cli.terminal import echo
from batchq.sim.fromlive.comparing import ALL, Fate, QueueFigures, WhatIf
from batchq.sim.fromlive.future import Eviction, Future, GroupFuture, Present, Stopped


def show_tables(found: WhatIf, *, differences: bool, color: bool) -> None:
    """To stdout: each group, who has to go, who does not start and why, and the sums."""
    fates = [fate for fate in found.fates if fate.differs or not differences]
    if fates:
        show_table(_groups(found, fates), color=color)
    elif differences:
        echo("No group fares differently")
    else:
        echo("No group waits or runs")
    show_section("Evicted", _evicted(found))
    show_section("Do not start", _held_back(found, fates))
    show_section("Sums", _sums(found))


def notes(found: WhatIf, *, assumed_ms: int | None) -> Iterator[str]:
    """What was taken for granted, and where a look ahead stopped before the end: a line each."""
    one = found.endless == 1
    who = f"note: {found.endless} {'group has' if one else 'groups have'} no walltime and"
    if found.endless and assumed_ms is None:
        yield f"{who} {'never ends' if one else 'never end'} here; see --assume-runtime"
    elif found.endless and assumed_ms is not None:
        yield f"{who} {'is' if one else 'are'} taken to last {format_duration(assumed_ms)}"
    for name, future in zip(found.names, found.futures, strict=True):
        if sentence := _stopped(future):
            yield f"note: {name}: {sentence}"
        if future.refused:
            writes = counted(future.refused, "write")
            yield f"warning: {name}: {writes} of the simulated sessions were refused"


def _stopped(future: Future) -> str:
    ahead = describe_age(future.stopped_at - future.began_at)
    match future.stopped:
        case Stopped.IDLE:
            return f"stopped {ahead} ahead: nothing ends any more, and nothing starts for a day"
        case Stopped.TOO_FAR:
            sessions = counted(future.sessions, "session")
            return f"stopped {ahead} ahead after {sessions}, though more is due; see --until"
        case _:
            return ""


# --- groups -----------------------------------------------------------------------------------


def _groups(found: WhatIf, fates: Sequence[Fate]) -> Table:
    alone = len(found.names) == 1
    titles = ["POD GROUP", "QUEUE", "NOW"]
    titles += ["STARTS", "ENDS"] if alone else [f"STARTS ({found.names[0]})"]
    for name in found.names[1:]:
        titles += [f"STARTS ({name})", "DIFFERENCE"]
    in_order = sorted(fates, key=_by_start)
    return Table(tuple(titles), tuple(_row(found, fate, alone=alone) for fate in in_order))


def _by_start(fate: Fate) -> tuple[int, int, str]:
    """Those that run, those that start, those that do not."""
    present, first = fate.present, fate.futures[0]
    if not present.waits:
        return (0, 0, present.key)
    if first.starts_at is None:
        return (2, 0, present.key)
    return (1, first.starts_at, present.key)


def _row(found: WhatIf, fate: Fate, *, alone: bool) -> tuple[str, ...]:
    present, first = fate.present, fate.futures[0]
    cells = [present.key, present.queue, str(present.phase), _start(found, present, first)]
    if alone:
        cells.append(_end(found, first))
    for other in fate.futures[1:]:
        cells += [_start(found, present, other), _difference(present, first, other)]
    return tuple(cells)


def _start(found: WhatIf, present: Present, future: GroupFuture) -> str:
    """`in 2h5m`, `now`, `runs`, `runs; evicted, again in 1h`, or `no`."""
    evicted = [one for one in _of(found, future) if one.whole]
    if present.waits:
        if future.starts_at is None:
            return str(future.phase) if future.phase in TERMINAL else "no"
        return _ahead(found, future.starts_at) + ("; evicted" if evicted else "")
    if not evicted:
        return "runs"
    again = "" if future.starts_at is None else f", again {_ahead(found, future.starts_at)}"
    return f"runs; evicted{again}"


def _of(found: WhatIf, future: GroupFuture) -> list[Eviction]:
    if not future.evictions:
        return []
    [mine] = [one for one in found.futures if one.groups[future.key] is future]
    return [one for one in mine.evictions if one.key == future.key]


def _end(found: WhatIf, future: GroupFuture) -> str:
    if future.ends_at is None:
        return ""
    failed = "" if future.phase == "Completed" else f" ({future.phase})"
    return _ahead(found, future.ends_at) + failed


def _ahead(found: WhatIf, at: int) -> str:
    seconds = round((at - found.at) / 1000)
    return f"in {describe_age(seconds * 1000)}" if seconds > 0 else "now"


def _difference(present: Present, first: GroupFuture, other: GroupFuture) -> str:
    """In what the second differs from the first, the weightiest alone."""
    if first.evictions != other.evictions:
        return "evicted" if other.evictions > first.evictions else "not evicted"
    if first.starts_at != other.starts_at:
        return _shift(first.starts_at, other.starts_at, "starts", "does not start", "")
    if first.ends_at != other.ends_at:
        return _shift(first.ends_at, other.ends_at, "ends", "does not end", "ends ")
    return str(other.phase) if first.phase != other.phase else ""


def _shift(first_at: int | None, other_at: int | None, does: str, does_not: str, verb: str) -> str:
    if other_at is None:
        return does_not
    if first_at is None:
        return does
    age = describe_age(abs(other_at - first_at))
    return f"{verb}{age} {'later' if other_at > first_at else 'earlier'}"


# --- who has to go, and who does not start --------------------------------------------------------


def _evicted(found: WhatIf) -> list[tuple[str, ...]]:
    rows = [
        (
            name,
            _ahead(found, eviction.at),
            eviction.key,
            eviction.queue,
            _by(eviction),
            ("all of it, " if eviction.whole else "") + counted(eviction.pods, "pod"),
            lost_text(eviction.lost) or "nothing",
        )
        for name, future in zip(found.names, found.futures, strict=True)
        for eviction in future.evictions
    ]
    titles = ("UNDER", "WHEN", "POD GROUP", "QUEUE", "BY", "GIVES", "WORK LOST")
    return [titles, *rows] if rows else []


def _by(eviction: Eviction) -> str:
    """`default/big (preempt)`, or why it had to go, where nobody took it."""
    return f"{eviction.by} ({eviction.action})" if eviction.by else eviction.reason


def _held_back(found: WhatIf, fates: Sequence[Fate]) -> list[tuple[str, ...]]:
    """Who does not start, and why: one line where that is the same under all configurations."""
    rows: list[tuple[str, ...]] = []
    for fate in fates:
        under: dict[str, list[str]] = {}
        for name, future in zip(found.names, fate.futures, strict=True):
            if why := why_not(fate.present, future):
                under.setdefault(why, []).append(name)
        for why, names in under.items():
            rows.append((fate.present.key, ", ".join(names), why))
    return [("POD GROUP", "UNDER", "WHY"), *rows] if rows else []


def why_not(present: Present, future: GroupFuture) -> str:
    """Why a group that waits does not start; '' if it does, or need not."""
    if not present.waits or future.starts:
        return ""
    if future.phase in TERMINAL:
        return f"ends as {future.phase} ({future.ending})"
    if future.unanswered:
        checks = "check" if len(future.unanswered) == 1 else "checks"
        return f"waits for {checks} {', '.join(future.unanswered)}, which nobody answers here"
    if not future.waits_for:
        return "its turn has not come" if future.phase == "Pending" else f"is {future.phase}"
    first = future.waits_for[0]
    return f"{first.reason}: {first.message}" if first.message else first.reason


# --- sums -------------------------------------------------------------------------------------


def _sums(found: WhatIf) -> list[tuple[str, ...]]:
    """Queue by queue, each under every configuration; the sum over all queues last."""
    if not found.fates:
        return []
    titles = ("QUEUE", "UNDER", "START", "MEDIAN WAIT", "EVICTIONS", "WORK LOST", "LAST END")
    queues = [*(one.queue for one in found.figures[0] if one.queue != ALL), ALL]
    if len(queues) == 2:
        # Of the only queue it would be the same again.
        queues.remove(ALL)
    rows = [
        _sum_row(found, name, next(one for one in figures if one.queue == queue))
        for queue in queues
        for name, figures in zip(found.names, found.figures, strict=True)
    ]
    return [titles, *rows]


def _sum_row(found: WhatIf, name: str, figures: QueueFigures) -> tuple[str, ...]:
    wait = figures.median_wait_ms
    return (
        figures.queue or "(all)",
        name,
        f"{figures.started} of {figures.waiting}",
        "" if wait is None else describe_age(wait),
        str(figures.evictions),
        lost_text(figures.lost),
        _last_end(found, figures),
    )


def _last_end(found: WhatIf, figures: QueueFigures) -> str:
    """`in 5h`, or `not seen: 2 go on`."""
    on = f"{figures.unended} {'goes' if figures.unended == 1 else 'go'} on"
    if figures.last_end_at is None:
        return on if figures.unended else ""
    ahead = _ahead(found, figures.last_end_at)
    return f"{ahead}; {on}" if figures.unended else ahead
