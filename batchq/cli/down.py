"""`batchq down`: what `up` has started ends; the data stays."""

from __future__ import annotations

import click

from batchq.cli.options import Globals, examples, output_option, pass_globals


@click.command(epilog=examples("batchq down", "batchq down --keep-server"))
@click.option("--keep-server", is_flag=True, help="End the agents and the scheduler only.")
@output_option("table", "json")
@pass_globals
def down(shared: Globals, keep_server: bool, output: str) -> None:
    """Stop the node agents, the scheduler and the embedded server of this machine.

    The agents drain: what runs may end, and is stopped and waits again if it takes too long. The
    data stays, and `batchq up` goes on with it.
    """
    from batchq.cli.stackview import show
    from batchq.daemon import stack
    from batchq.paths import find_home

    report = stack.down(
        find_home(), keep_server=keep_server, say=lambda text: click.echo(text, err=True)
    )
    show(report, color=shared.color, output=output)
    if all(part.state in ("not running", "running") for part in report.parts):
        click.echo("Nothing was there to stop", err=True)
