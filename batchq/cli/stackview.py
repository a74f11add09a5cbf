"""How the parts of a stack are shown: a line each, with what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from batchq.daemon.stack import StackReport


def show(report: StackReport) -> None:
    """Print the table, on stdout."""
    rows = [("PART", "STATE", "PID", "DETAIL")]
    rows += [
        (part.name, str(part.state), str(part.pid or "-"), part.detail or "-")
        for part in report.parts
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[3]]).rstrip())
