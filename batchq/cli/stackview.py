"""How the parts of a stack are shown: a row each, with what became of it."""

from __future__ import annotations

from batchq.cli.output import Table, show_data, show_table
from batchq.daemon.stack import Part, StackReport
from batchq.worker.detect import parse_resources


def show(report: StackReport, *, color: bool, output: str = "table") -> None:
    """Print the parts on stdout: a table, or `json`."""
    if output == "json":
        items = [
            {
                "kind": _kind(part.name),
                "name": part.name,
                "action": str(part.state),
                "pid": part.pid,
                "detail": part.detail,
            }
            for part in report.parts
        ]
        show_data({"items": items}, output)
        return
    rows = tuple(
        (part.name, str(part.state), str(part.pid or ""), _detail(part)) for part in report.parts
    )
    show_table(Table(("PART", "STATE", "PID", "DETAIL"), rows), color=color)


def _kind(name: str) -> str:
    return {"server": "Server", "scheduler": "Scheduler"}.get(name, "Agent")


def _detail(part: Part) -> str:
    """What an agent offers, in words; the server's version."""
    from batchq.api.resources import describe

    return describe(parse_resources(part.detail)) if "=" in part.detail else part.detail
