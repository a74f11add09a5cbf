"""`batchq queues`."""

from __future__ import annotations

import click

from batchq.api.manifest import encode
from batchq.api.quantity import format_quantity
from batchq.cli.options import LIST_FORMATS, Globals, examples, output_option, pass_globals
from batchq.cli.output import show_data, show_table
from batchq.cli.tables import queues_table
from batchq.client.overview import QueueView


@click.command(epilog=examples("batchq queues", "batchq queues -o wide", "batchq queues -o json"))
@output_option(*LIST_FORMATS)
@pass_globals
def queues(shared: Globals, output: str) -> None:
    """List queues: weight, capability, what they hold, what waits in them, and their share.

    SHARE is what a queue holds over what its weight deserves, in the resource where that is most;
    the queue with the lowest is served first.
    """
    with shared.connect() as client:
        views = client.queues()
    match output:
        case "json" | "yaml":
            show_data({"items": [_row(view) for view in views]}, output)
        case "name":
            for view in views:
                click.echo(view.queue.metadata.name)
        case _:
            show_table(queues_table(views), wide=output == "wide", color=shared.color)


def _row(view: QueueView) -> dict[str, object]:
    return {
        "queue": encode(view.queue),
        "used": _written(view.used),
        "admittedGroups": view.admitted_groups,
        "pendingGroups": view.pending_groups,
        "pending": _written(view.pending),
        "deserved": _written(view.deserved),
        "share": view.share,
    }


def _written(amounts: dict[str, int]) -> dict[str, str]:
    return {name: format_quantity(name, units) for name, units in amounts.items()}
