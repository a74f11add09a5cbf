"""`batchq why`: all reasons for which a group waits, with numbers, and what to do about each."""

from __future__ import annotations

import click

from batchq.cli import whyview
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import show_data
from batchq.cli.values import group_key


@click.command(
    epilog=examples(
        "batchq why train-1",
        "batchq why research/train-1 -o json",
        "batchq why train-1 --history",
        "batchq explain train-1",
    )
)
@click.argument("name")
@namespace_option
@click.option("--history", is_flag=True, help="Also each change of state and of reasons, in time.")
@output_option("text", "json", "yaml")
@pass_globals
def why(shared: Globals, name: str, namespace: str, history: bool, output: str) -> None:
    """Tell why the group NAME waits, and what to do about it.

    All reasons, the most fundamental first, each with the numbers that decide it; its place in
    line, and who is ahead; why nobody is evicted for it; whether it could ever run, when there
    will be room, as far as walltimes tell, and when it is expected to start, those ahead counted;
    in a queue that is backfilled, what is kept for it, or whom it would delay. Of a group that
    waits no longer: where it runs, or how it ended, and for what it had waited.

    The numbers are of this moment: the scheduler's own session is run here, on how things stand,
    and thrown away. Of groups in other namespaces only the number is told.

    Exit codes: 0 told, 1 the scheduler's configuration cannot be followed on this machine, 6 there
    is no such group.
    """
    with shared.connect() as client:
        told = client.why(group_key(name, namespace))
    if output == "text":
        whyview.show_why(told, history=history)
    else:
        show_data(whyview.row_of(told), output)
