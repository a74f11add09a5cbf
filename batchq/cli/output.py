"""How answers are written: tables for people, plain rows in a pipe, JSON and YAML for programs.

On a terminal rich draws the table. Anywhere else there are no colours, no boxes and no widths:
columns are aligned by spaces, and nothing is ever cut off.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from batchq.api.manifest import encode
from batchq.api.objects import API_VERSION, Object, full_name, kind_of

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

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
    """Rows under titles; the titles in `wide` are shown only when asked for."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wide: frozenset[str] = frozenset()

    def narrowed(self, *, wide: bool) -> Table:
        """Only what is to be shown, fit for one line each."""
        kept = [place for place, title in enumerate(self.titles) if wide or title not in self.wide]
        return Table(
            tuple(self.titles[place] for place in kept),
            tuple(tuple(one_line(row[place]) for place in kept) for row in self.rows),
        )


def show_table(table: Table, *, wide: bool = False, color: bool = True) -> None:
    """Write a table to stdout."""
    shown = table.narrowed(wide=wide)
    if is_terminal():
        _show_rich(shown, color=color)
        return
    for line in aligned([shown.titles, *shown.rows]):
        click.echo(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns, nothing cut off; an empty cell is a dash."""
    filled = [[cell or "-" for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in filled) for place in range(len(filled[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in filled
    ]


def is_terminal() -> bool:
    """Whether somebody looks at stdout."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def one_line(text: str) -> str:
    """`text` without line ends and control characters, which could forge rows or paint screens."""
    return _CONTROL.sub(" ", text)


def show_data(data: object, form: str) -> None:
    """Write plain data as `json` or `yaml`."""
    if form == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    import yaml

    # Through JSON, so that only plain types are left, whatever they were.
    plain = json.loads(json.dumps(data))
    click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100), nl=False)


def show_objects(objects: Sequence[Object], form: str, *, alone: bool = False) -> None:
    """Write manifests as `json` or `yaml`: one `alone`, else a List; or their names."""
    if form == "name":
        for item in objects:
            click.echo(full_name(item))
        return
    if alone:
        show_data(encode(objects[0]), form)
        return
    items = [encode(item) for item in objects]
    show_data({"apiVersion": API_VERSION, "kind": "List", "items": items}, form)


def reference(item: Object) -> str:
    """`podgroup default/train`, `queue a`: an object in what a command did."""
    return f"{kind_of(item).lower()} {full_name(item)}"


def show_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Write `Name:  value` lines, aligned; fields without a value are left out."""
    there = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in there), default=0) + 1
    for name, value in there:
        click.echo(f"{name + ':':<{width}}  {one_line(value)}")


def show_section(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Write a titled block of aligned rows; nothing if there are none."""
    if not rows:
        return
    click.echo(f"\n{title}:")
    for line in aligned([[one_line(cell) for cell in row] for row in rows]):
        click.echo(f"  {line}")


def _show_rich(table: Table, *, color: bool) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    last = len(table.titles) - 1
    for place, title in enumerate(table.titles):
        # Names are there to be copied: only the last column, the prose, may be folded.
        drawn.add_column(title, overflow="fold", no_wrap=place != last)
    for row in table.rows:
        cells: list[Any] = [Text(cell or "-", style=_STYLES.get(cell, "")) for cell in row]
        drawn.add_row(*cells)
    Console(no_color=not color, highlight=False).print(drawn)
