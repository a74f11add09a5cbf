"""The layout of text: tables, fields and sections, on a terminal and in a pipe.

Columns are aligned by spaces, and nothing is ever cut off. On a terminal some words have colours,
and the last column, the prose, is wrapped if the line would be too long.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from batchq.api.printable import printable
from batchq.cli.output.terminal import echo, has_colors, paint

#: Columns are left out to give the prose this width. Below the second width the prose is not
#: wrapped: one word per line is unreadable.
_GOOD_PROSE = 25
_LEAST_PROSE = 18
_GAP = "  "

_STYLES = {
    "Running": "cyan",
    "InQueue": "blue",
    "Completed": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Unknown": "red",
    "Cancelled": "yellow",
    "SchedulingGated": "magenta",
}


class Table(NamedTuple):
    """Rows under titles. Columns in `wide` are shown only on request; columns in `spare` are left
    out on a narrow terminal, the first of them first.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wide: frozenset[str] = frozenset()
    spare: tuple[str, ...] = ()

    def narrowed(self, *, wide: bool) -> Table:
        """Return the visible columns, with every cell on one line."""
        lines = tuple(tuple(one_line(cell) for cell in row) for row in self.rows)
        plain = Table(self.titles, lines, spare=() if wide else self.spare)
        return plain if wide else plain.without(*self.wide)

    def without(self, *titles: str) -> Table:
        """Return the table without these columns."""
        kept = [place for place, title in enumerate(self.titles) if title not in titles]
        return Table(
            tuple(self.titles[place] for place in kept),
            tuple(tuple(row[place] for place in kept) for row in self.rows),
            spare=self.spare,
        )


def show_table(table: Table) -> None:
    """Write a table to stdout."""
    TableWriter().write(table)


class TableWriter:
    """Writes a table page by page: the titles once, and columns as wide as a page needs."""

    def __init__(self, *, wide: bool = False) -> None:
        self._wide = wide
        self._is_begun = False

    def write(self, table: Table) -> None:
        """Write the rows of a page."""
        shown = table.narrowed(wide=self._wide)
        begun, self._is_begun = self._is_begun, True
        if is_terminal():
            import shutil

            columns = shutil.get_terminal_size().columns
            for line in fitted(shown, columns, color=has_colors())[begun:]:
                paint(line)
            return
        for line in aligned([shown.titles, *shown.rows])[begun:]:
            echo(line)


def fitted(table: Table, columns: int, *, color: bool = False) -> list[str]:
    """Return a table as lines for a terminal of this width; an empty cell is a dash.

    Names may be copied, so every column has its full width; the last one takes the rest and is
    wrapped. If the rest is too small, columns are left out; if it still is, lines are longer than
    the terminal.
    """
    from rich.cells import cell_len

    for count in range(len(table.spare) + 1):
        shown = table.without(*table.spare[:count])
        rows = [[cell or "-" for cell in row] for row in (shown.titles, *shown.rows)]
        widths = [max(cell_len(row[place]) for row in rows) for place in range(len(shown.titles))]
        room = columns - sum(widths[:-1]) - len(_GAP) * len(widths[:-1])
        if room >= min(widths[-1], _GOOD_PROSE):
            break
    widths[-1] = min(widths[-1], room) if room >= _LEAST_PROSE else widths[-1]
    return _laid_out(rows, widths, color=color)


def _laid_out(rows: Sequence[Sequence[str]], widths: Sequence[int], *, color: bool) -> list[str]:
    """Lay out rows, the first of them titles. Widths are fixed, because rich would crop cells."""
    from rich.console import Console
    from rich.table import Table as Layout
    from rich.text import Text

    layout = Layout(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for title, width in zip(rows[0], widths, strict=True):
        layout.add_column(Text(title), width=width, overflow="fold")
    for row in rows[1:]:
        layout.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    written = io.StringIO()
    console = Console(
        file=written,
        width=sum(widths) + len(_GAP) * len(widths),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
    )
    console.print(layout)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, nothing cut off; an empty cell is a dash."""
    filled = [[cell or "-" for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in filled) for place in range(len(filled[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in filled
    ]


def is_terminal() -> bool:
    """Return whether a person reads stdout."""
    # It is None in a process that was started with stdout closed.
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def draws_lines() -> bool:
    """Return whether stdout is a terminal with an encoding beyond ASCII."""
    return is_terminal() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def one_line(text: str) -> str:
    """Return `text` with line ends and control characters escaped, which could imitate rows or
    change the screen; in a pipe, too, where a row is a line.
    """
    return printable(text)


def show_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Write `Name:  value` lines, aligned; fields without a value are left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0) + 1
    for name, value in shown:
        echo(f"{name + ':':<{width}}  {one_line(value)}")


def show_section(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Write a titled block of aligned rows; nothing if there are none."""
    if not rows:
        return
    echo(f"\n{title}:")
    for line in aligned([[one_line(cell) for cell in row] for row in rows]):
        echo(f"  {line}")
