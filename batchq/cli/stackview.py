"""How the parts of a stack are shown: a row each, with what became of it."""

from __future__ import annotations

from batchq.cli.output import Table, show_table
from batchq.daemon.stack import Part, StackReport
from batchq.worker.detect import parse_resources


def show(report: StackReport, *, color: bool) -> None:
    """Print the table, on stdout."""
    rows = tuple(
        (part.name, str(part.state), str(part.pid or ""), _detail(part)) for part in report.parts
    )
    show_table(Table(("PART", "STATE", "PID", "DETAIL"), rows), color=color)


def _detail(part: Part) -> str:
    """What an agent offers, in words; the server's version."""
    from batchq.api.resources import describe

    return describe(parse_resources(part.detail)) if "=" in part.detail else part.detail
