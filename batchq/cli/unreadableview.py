"""Records that cannot be read, beside those that can: named, with the reason and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.api.names import counted
from batchq.api.unreadable import Unreadable
from batchq.cli.output import Table, show_table
from batchq.cli.terminal import echo

#: `-o json` of the doctor names them all.
_SHOWN = 20


def show_unreadable(found: Sequence[Unreadable], *, tabled: bool, color: bool = True) -> None:
    """Write a table of them where people read, and in any case a line to stderr."""
    if not found:
        return
    if tabled:
        rows = tuple((one.kind, one.key, "Unreadable", one.why) for one in found[:_SHOWN])
        show_table(Table(("KIND", "NAME", "STATUS", "WHY"), rows), color=color)
    what = counted(len(found), "record")
    echo(
        f"{what} unreadable: `batchq doctor` names the reason, `batchq delete KIND NAME` deletes"
        f" {'it' if len(found) == 1 else 'one'}",
        err=True,
    )
