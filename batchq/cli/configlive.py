"""`batchq config reload` and `config print --effective`: what a running scheduler goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from batchq.cli.options import Globals, examples, pass_globals
from batchq.cli.terminal import echo
from batchq.cli.trouble import EXIT_ERROR

if TYPE_CHECKING:
    from batchq.config.model import SchedulerConfig


@click.command(epilog=examples("batchq config reload"))
@pass_globals
def reload(shared: Globals) -> int:
    """Have the scheduler of this machine read its file again, and say what came of it.

    It is the one that `batchq up` has started; send SIGHUP to any other. A file that was changed
    is taken up within two seconds without this, too.

    Exit codes: 0 taken up, or nothing was new; 1 the file is wrong, and what was in effect stays;
    6 no scheduler runs here; 124 it does not answer.
    """
    from batchq.daemon.asking import ask_to_reload
    from batchq.daemon.reload import RELOADED
    from batchq.paths import find_home

    with shared.connect() as client:
        answer = ask_to_reload(find_home(), client)
    if answer.reason == RELOADED:
        echo(answer.message)
        return 0
    echo(f"error: {answer.message}", err=True)
    return EXIT_ERROR


def effective_config(shared: Globals) -> SchedulerConfig:
    """What the scheduler goes by that leads; a note on stderr if none does.

    Raises StoreUnavailable, NotFound.
    """
    from batchq.client.effective import published_config
    from batchq.config.load import read_config

    published = published_config(shared.redis_url)
    if not published.led:
        echo("note: no scheduler leads; the last that did went by this", err=True)
    return read_config(published.text, "the configuration of the scheduler that leads")
