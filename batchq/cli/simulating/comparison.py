"""What runs over a log came to, for people: figures as lines, runs as columns, the best marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from batchq.api.names import counted
from batchq.api.times import describe_age
from batchq.cli.output import aligned, one_line
from batchq.cli.simulating.figures import Result
from batchq.sim.workload.figures import TenantFigures

#: Lines are no longer; with more runs than fit there are several blocks.
WIDTH = 80
#: So many tenants have a line of their own.
MOST_TENANTS = 10
_GAP = 2
_BEST = "*"

Value: TypeAlias = float | None


class _Line(NamedTuple):
    """One figure: how it is read off a result, written, and which value of several is the best."""

    title: str
    value: Callable[[Result], Value]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None


class Row(NamedTuple):
    """One figure of every run, in the order of the runs; `text` and `best` as above."""

    title: str
    values: Sequence[Value]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None


def comparison(results: Sequence[Result], *, width: int = WIDTH) -> Iterator[str]:
    """The table's lines; a star marks the best of a line, where they are not all alike."""
    rows = [
        Row(line.title, [line.value(one) for one in results], line.text, line.best)
        for line in _lines(results)
    ]
    yield from side_by_side([one.name for one in results], rows, width=width)


def side_by_side(names: Sequence[str], rows: Sequence[Row], *, width: int = WIDTH) -> Iterator[str]:
    """A column for each of the names, a line for each of the rows."""
    titles = ["", *(row.title for row in rows)]
    columns = _columns(names, rows)
    starred = any(cell.endswith(_BEST) for column in columns for cell in column)
    first = max(map(len, titles))
    for place, block in enumerate(_blocks(columns, width - first)):
        if place:
            yield ""
        widths = [max(map(len, column)) for column in block]
        for line, title in enumerate(titles):
            cells = (column[line].rjust(size) for column, size in zip(block, widths, strict=True))
            yield (" " * _GAP).join((title.ljust(first), *cells)).rstrip()
    if starred:
        yield f"{_BEST} the best of its line"


def tenants_table(result: Result) -> Iterator[str]:
    """One run's tenants, those first who used the most; the many small ones are summed up."""
    found = sorted(result.tenants or (), key=lambda one: (-(one.used or 0.0), one.tenant))
    # One that is summed up takes a line as well, and might as well have its own.
    shown = found if len(found) <= MOST_TENANTS + 1 else found[:MOST_TENANTS]
    rows = [_tenant_row(one.tenant, [one]) for one in shown]
    if len(shown) < len(found):
        rest = found[len(shown) :]
        rows.append(_tenant_row(counted(len(rest), "other"), rest))
    titles = ("TENANT", "JOBS", "MEAN WAIT", "SLOWDOWN", "USED", "WEIGHT", "DUE", "DUE MET")
    yield from aligned([titles, *rows])


def span(seconds: float) -> str:
    """For people: `0s`, `4.5s`, `12m5s`, `2h37m`, `3d4h`."""
    if seconds < 60 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return describe_age(round(seconds) * 1000)


# --- figures as lines -----------------------------------------------------------------------


def _lines(results: Sequence[Result]) -> Iterator[_Line]:
    yield _Line("Jobs", lambda one: one.figures.jobs, _count, None)
    yield _Line("Finished", lambda one: one.figures.finished, _count, max)
    yield _Line("Wait, mean", lambda one: one.figures.mean_wait_s, span, min)
    yield _Line("Wait, median", lambda one: one.figures.median_wait_s, span, min)
    yield _Line("Wait, 95 % within", lambda one: one.figures.p95_wait_s, span, min)
    yield _Line("Wait, longest", lambda one: one.figures.max_wait_s, span, min)
    slowdown = "Bounded slowdown, mean"
    yield _Line(slowdown, lambda one: one.figures.mean_bounded_slowdown, _decimal, min)
    yield _Line("Utilisation", lambda one: one.figures.utilization, _percent, max)
    yield _Line("Makespan", lambda one: one.figures.makespan_s, span, min)
    yield _Line("Evictions", lambda one: one.figures.evictions, _count, min)
    if any(one.tenants is not None for one in results):
        yield _Line("Fairness (Jain)", lambda one: one.fairness, lambda value: f"{value:.3f}", max)


def _columns(names: Sequence[str], rows: Sequence[Row]) -> list[list[str]]:
    """A column for each run, its name on top; where a column has a star, cells keep room for it."""
    marked = [_marked(row) for row in rows]
    columns = []
    for place, name in enumerate(names):
        cells = [row[place] for row in marked]
        if len(names) > 1:
            cells = [cell if cell.endswith(_BEST) else f"{cell} " for cell in cells]
            columns.append([f"{one_line(name)} ", *cells])
        else:
            columns.append([one_line(name), *cells])
    return columns


def _marked(row: Row) -> list[str]:
    there = [value for value in row.values if value is not None]
    best = row.best(there) if row.best and there and len(set(row.values)) > 1 else None
    return [
        "-" if value is None else row.text(value) + (_BEST if value == best else "")
        for value in row.values
    ]


def _blocks(columns: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """As many columns side by side as there is room for, at least one."""
    block: list[list[str]] = []
    left = room
    for column in columns:
        size = _GAP + max(map(len, column))
        if block and size > left:
            yield block
            block, left = [], room
        block.append(column)
        left -= size
    yield block


# --- tenants --------------------------------------------------------------------------------


def _tenant_row(name: str, tenants: Sequence[TenantFigures]) -> tuple[str, ...]:
    """A line for one tenant, or for several: means over their jobs, else sums."""
    weights = [one.finished for one in tenants]
    wait = _mean([one.mean_wait_s for one in tenants], weights)
    slowdown = _mean([one.mean_bounded_slowdown for one in tenants], weights)
    due = sum(one.due or 0.0 for one in tenants)
    met = sum((one.due or 0.0) * (one.due_met or 0.0) for one in tenants)
    return (
        one_line(name),
        _count(sum(one.jobs for one in tenants)),
        "-" if wait is None else span(wait),
        "-" if slowdown is None else _decimal(slowdown),
        _percent(sum(one.used or 0.0 for one in tenants)),
        str(sum(one.weight for one in tenants)),
        _percent(due),
        _percent(met / due) if due else "-",
    )


def _mean(values: Sequence[Value], weights: Sequence[int]) -> Value:
    pairs = [
        (value, weight) for value, weight in zip(values, weights, strict=True) if value is not None
    ]
    whole = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / whole if whole else None


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
