"""`batchq scheduler`: the daemon that decides, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from batchq.cli.options import Globals, examples, pass_globals


@click.command(epilog=examples("batchq scheduler", "batchq scheduler --config conf/scheduler.yaml"))
@click.option(
    "--config", type=click.Path(path_type=Path), help="scheduler.yaml; without it, the defaults."
)
@pass_globals
def scheduler(shared: Globals, config: Path | None) -> int:
    """Run the scheduler daemon until SIGTERM or Ctrl-C; it logs to stderr.

    Several may run on one server: one leads, the others stand by. It waits for a server that does
    not answer yet. BATCHQ_LOG=json makes its log JSON, BATCHQ_LOG_LEVEL says how much is told.
    """
    from batchq.cli.config import checked_config
    from batchq.daemon import logs
    from batchq.daemon.app import SchedulerOptions, run_scheduler

    logs.configure()
    checked_config(config)
    return run_scheduler(SchedulerOptions(url=shared.redis_url, config=config))
