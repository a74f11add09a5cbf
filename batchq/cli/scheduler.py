"""`batchq scheduler`: the daemon that decides, in the foreground; and who leads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.api.times import describe_age
from batchq.cli.output.options import Globals, examples, metrics_option, output_option, pass_globals
from batchq.cli.output.render import Table, show_data, show_table
from batchq.cli.output.terminal import echo
from batchq.errors import UsageError

if TYPE_CHECKING:
    from batchq.client.cluster import Schedulers, SchedulerSeen


@click.command(
    epilog=examples(
        "batchq scheduler",
        "batchq scheduler --config conf/scheduler.yaml",
        "batchq scheduler --metrics 9464",
        "batchq scheduler --status",
    )
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="scheduler.yaml; without it, the defaults."
)
@metrics_option
@click.option("--status", is_flag=True, help="Start nothing: say who leads, and who stands by.")
@output_option("table", "json")
@pass_globals
def scheduler(
    shared: Globals, config: Path | None, metrics: str | None, status: bool, output: str
) -> int | None:
    """Run the scheduler daemon until SIGTERM or Ctrl-C; it logs to stderr.

    Several may run on one server: one leads, the others stand by, and take over when its lease
    ends. It waits for a server that does not answer yet. BATCHQ_LOG=json makes its log JSON,
    BATCHQ_LOG_LEVEL says how much is told. --metrics lets others read /metrics over HTTP, and ask
    /livez and /readyz whether it is well; docs/metrics.md has what they get.
    """
    if status:
        if config is not None:
            raise UsageError("--config goes without --status, which starts nothing")
        with shared.connect() as client:
            _show(client.schedulers(), output, color=shared.color)
        return None
    if output != "table":
        raise UsageError("-o goes with --status; the daemon itself prints nothing")
    from batchq.cli.config import checked_config
    from batchq.daemon.app import SchedulerOptions, run_scheduler
    from batchq.daemon.observability import logs

    logs.configure()
    checked_config(config)
    return run_scheduler(SchedulerOptions(url=shared.redis_url, config=config, metrics=metrics))


def _show(found: Schedulers, output: str, *, color: bool) -> None:
    if not found.led:
        echo(f"hint: {_how_to_be_led(found)}", err=True)
    if output == "json":
        show_data(_data(found), "json")
        return
    leader = found.leader
    if leader is not None and leader.left_ms > 0:
        left_s = leader.left_ms / 1000
        echo(
            f"{leader.identity} leads, epoch {leader.epoch}; its lease ends in {left_s:.1f} s"
            " unless renewed"
        )
    elif leader is not None:
        ago = describe_age(-leader.left_ms)
        echo(f"no scheduler leads; {leader.identity} did until {ago} ago")
    else:
        echo("no scheduler leads")
    if found.there:
        rows = tuple(
            (
                one.identity,
                one.role,
                one.version,
                f"{describe_age(one.seen_ms_ago)} ago",
                _mirror(one),
            )
            for one in found.there
        )
        echo()
        show_table(Table(("SCHEDULER", "ROLE", "VERSION", "SEEN", "MIRROR"), rows), color=color)


def _how_to_be_led(found: Schedulers) -> str:
    if any(one.role == "follower" for one in found.there):
        return "one that stands by takes over within seconds; if none does, see their logs"
    return "start one with `batchq scheduler`, or everything on this machine with `batchq up`"


def _mirror(one: SchedulerSeen) -> str:
    if one.role == "silent":
        return ""
    if one.behind is None:
        return "cold: it would list everything first"
    return "warm" if one.behind == 0 else f"warm, {one.behind} writes behind"


def _data(found: Schedulers) -> dict[str, object]:
    leader = found.leader
    leads = leader is not None and leader.left_ms > 0
    return {
        "leader": leader.identity if leader and leads else None,
        "epoch": leader.epoch if leader else None,
        "leaseEndsInMs": leader.left_ms if leader else None,
        "lastLeader": leader.identity if leader and not leads else None,
        "schedulers": [
            {
                "identity": one.identity,
                "role": one.role,
                "version": one.version,
                "seenMsAgo": one.seen_ms_ago,
                "warm": one.behind is not None,
                "writesBehind": one.behind,
            }
            for one in found.there
        ],
    }
