"""`batchq down`: what `up` has started ends; the data stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from batchq.cli.options import Globals, examples, output_option, pass_globals
from batchq.cli.terminal import echo
from batchq.cli.trouble import Interrupted

if TYPE_CHECKING:
    from batchq.daemon.stack import StackReport
    from batchq.paths import Home


@click.command(epilog=examples("batchq down", "batchq down --now", "batchq down --keep-server"))
@click.option("--keep-server", is_flag=True, help="End the agents and the scheduler only.")
@click.option("--now", is_flag=True, help="Kill what runs instead of waiting for it.")
@output_option("table", "json")
@pass_globals
def down(shared: Globals, keep_server: bool, now: bool, output: str) -> None:
    """Stop the node agents, the scheduler and the embedded server of this machine.

    The agents drain: what runs may end, and is stopped and waits again if it takes too long. The
    data stays, and `batchq up` goes on with it. With --redis-url, only a stack that works on that
    server is stopped.
    """
    from batchq.cli.stackview import show
    from batchq.paths import find_home

    report = end_stack(find_home(), url=shared.redis_url, keep_server=keep_server, now=now)
    show(report, color=shared.color, output=output)
    if all(part.state in ("not running", "running") for part in report.parts):
        echo("Nothing was there to stop", err=True)


def end_stack(
    home: Home, *, url: str | None, keep_server: bool = False, now: bool = False
) -> StackReport:
    """`stack.down`, with what it says on stderr.

    Raises Interrupted at Ctrl-C, which says what is left.
    """
    from batchq.daemon import stack

    try:
        return stack.down(
            home,
            url=url,
            keep_server=keep_server,
            now=now,
            say=lambda sentence: echo(sentence, err=True),
        )
    except KeyboardInterrupt:
        left = [part.name for part in stack.status(home, url=url).parts if part.pid]
        raise Interrupted(
            f"interrupted while stopping; still there: {', '.join(left) or 'nothing'}",
            hint="`batchq down` goes on with it, `batchq down --now` does not wait for pods",
        ) from None
