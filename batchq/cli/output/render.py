"""Output formats: tables for people, plain rows in a pipe, JSON and YAML for programs.

Columns are aligned by spaces, and nothing is ever cut off. On a terminal some words have colours,
and the last column, the prose, is wrapped if the line would be too long.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from batchq.api.manifest import encode
from batchq.api.objects import API_VERSION, Object, full_name, kind_of
from batchq.api.printable import printable
from batchq.cli.output.terminal import echo, paint

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


def show_table(table: Table, *, wide: bool = False, color: bool = True) -> None:
    """Write a table to stdout."""
    shown = table.narrowed(wide=wide)
    if is_terminal():
        color = color and not os.environ.get("NO_COLOR")
        for line in fitted(shown, shutil.get_terminal_size().columns, color=color):
            paint(line)
        return
    for line in aligned([shown.titles, *shown.rows]):
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


def show_data(data: object, form: str) -> None:
    """Write plain data as `json` or `yaml`."""
    if form == "json":
        echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    from batchq.config.documents import print_documents

    # Through JSON, so that only plain types are left.
    echo(print_documents([json.loads(json.dumps(data))]), nl=False)


def show_objects(objects: Sequence[Object], form: str, *, alone: bool = False) -> None:
    """Write manifests as `json` or `yaml`, one `alone` or else a List; or `kind/name` of each."""
    if form == "name":
        for item in objects:
            echo(f"{kind_of(item).lower()}/{full_name(item)}")
        return
    if alone:
        show_data(encode(objects[0]), form)
        return
    items = [encode(item) for item in objects]
    show_data({"apiVersion": API_VERSION, "kind": "List", "items": items}, form)


class ListWriter:
    """Writes a list of plain data as `json` or `yaml` while it is read: its kind, then each item,
    and at the end where the list continues, if there is more.
    """

    def __init__(self, kind: str, form: str) -> None:
        self._form, self._count = form, 0
        if form == "json":
            echo(
                f'{{\n  "apiVersion": "{API_VERSION}",\n  "kind": "{kind}",\n  "items": [', nl=False
            )
        else:
            show_data({"apiVersion": API_VERSION, "kind": kind}, form)

    def write(self, items: Sequence[object]) -> None:
        """Write the next items."""
        if self._form == "json":
            for item in items:
                text = json.dumps(item, indent=2, ensure_ascii=False).replace("\n", "\n    ")
                echo(f"{',' if self._count else ''}\n    {text}", nl=False)
                self._count += 1
            return
        from batchq.config.documents import print_documents

        if items:
            plain = json.loads(json.dumps(items))
            text = print_documents([{"items": plain}])
            echo(text if not self._count else text.partition("\n")[2], nl=False)
            self._count += len(items)

    def end(self, following: str = "") -> None:
        """Finish the list; `following` is the token of the items that are left out."""
        if self._form == "json":
            close = "\n  ]" if self._count else "]"
            more = {"metadata": {"continue": following}} if following else {}
            tail = "".join(
                f",\n  {json.dumps(name)}: {json.dumps(it)}" for name, it in more.items()
            )
            echo(f"{close}{tail}\n}}")
            return
        if not self._count:
            echo("items: []")
        if following:
            show_data({"metadata": {"continue": following}}, self._form)


class TableWriter:
    """Writes a table page by page: the titles once, and columns as wide as a page needs."""

    def __init__(self, *, wide: bool, color: bool) -> None:
        self._wide, self._color = wide, color
        self._is_begun = False

    def write(self, table: Table) -> None:
        """Write the rows of a page."""
        shown = table.narrowed(wide=self._wide)
        begun, self._is_begun = self._is_begun, True
        if is_terminal():
            color = self._color and not os.environ.get("NO_COLOR")
            lines = fitted(shown, shutil.get_terminal_size().columns, color=color)
            for line in lines[begun:]:
                paint(line)
            return
        for line in aligned([shown.titles, *shown.rows])[begun:]:
            echo(line)


def reference(item: Object) -> str:
    """Return e.g. `podgroup default/train` or `queue a`, for messages."""
    return f"{kind_of(item).lower()} {full_name(item)}"


class Done(Protocol):
    """Reports what was done to an object; `sentence` replaces the text for people."""

    def __call__(self, kind: str, name: str, action: str, sentence: str = "") -> None: ...


@contextmanager
def report(form: str) -> Iterator[Done]:
    """Report what is done in this context: a line each at once, or one `json` at the end.

    If a step fails, the earlier steps are reported nevertheless.
    """
    items: list[dict[str, str]] = []

    def done(kind: str, name: str, action: str, sentence: str = "") -> None:
        if form == "json":
            items.append({"kind": kind, "name": name, "action": action})
        else:
            echo(sentence or f"{kind.lower()} {name} {action}")

    try:
        yield done
    finally:
        if items:
            show_data({"items": items}, "json")


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
