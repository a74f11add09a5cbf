"""`batchq up`: everything that batchq needs, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from batchq.cli.options import Globals, examples, pass_globals
from batchq.cli.trouble import on_interrupt


@click.command(
    epilog=examples(
        "batchq up",
        "batchq up --agents 4 --resources cpu=2,memory=4Gi",
        "batchq up --config conf/scheduler.yaml",
    )
)
@click.option(
    "--agents",
    type=click.IntRange(0, 64),
    default=2,
    show_default=True,
    help="How many node agents are to run here.",
)
@click.option(
    "--resources",
    metavar="NAME=QUANTITY,…",
    help="What each new agent offers, as in cpu=2,memory=4Gi; without it, they divide the machine.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="scheduler.yaml; without it, the defaults."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Let the embedded server listen on this port of 127.0.0.1, too.",
)
@click.option(
    "--foreground", is_flag=True, help="Stay until Ctrl-C or SIGTERM, and stop everything then."
)
@pass_globals
def up(
    shared: Globals,
    agents: int,
    resources: str | None,
    config: Path | None,
    port: int | None,
    foreground: bool,
) -> None:
    """Start server, scheduler and node agents on this machine, as far as they do not run.

    They go on when this command has ended; `batchq down` stops them. With --redis-url no server
    is started. Returns when the scheduler leads and every node is ready.
    """
    from batchq.cli.config import checked_config
    from batchq.cli.stackview import show
    from batchq.daemon import stack
    from batchq.paths import find_home

    checked_config(config)
    home = find_home()
    options = stack.UpOptions(
        url=shared.redis_url, agents=agents, resources=resources, config=config, port=port
    )
    with on_interrupt("interrupted; what was started is stopped again"):
        report = stack.up(home, options, say=_say)
    show(report, color=shared.color)
    found = any(part.name == "scheduler" and part.state == "running" for part in report.parts)
    if config is not None and found:
        _say("The scheduler was running already: --config counts after `batchq down`")
    if foreground:
        _say("Ctrl-C stops it all")
        show(stack.hold(home, report, say=_say), color=shared.color)


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)
