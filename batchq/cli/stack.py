"""How the parts of a stack are shown: a row each, with what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.output.options import Globals, examples, metrics_option, output_option, pass_globals
from batchq.cli.output.render import Table, show_data, show_table
from batchq.cli.output.terminal import echo
from batchq.cli.output.trouble import Interrupted, on_interrupt
from batchq.daemon.stack import Part, StackReport
from batchq.errors import InvalidInput
from batchq.worker.host.node_resources import parse_resources

if TYPE_CHECKING:
    from batchq.paths import Home


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


def _loopback_port(
    context: click.Context, parameter: click.Parameter, written: str | None
) -> int | None:
    """`PORT`, or `127.0.0.1:PORT`. Raises InvalidInput for any other address."""
    if written is None:
        return None
    host, _, port = written.rpartition(":")
    if host not in ("", "127.0.0.1", "localhost"):
        raise InvalidInput(
            f"--port {written}: the embedded server listens on 127.0.0.1 only, since nothing that"
            " it says is encrypted",
            hint="come through ssh from other machines, or run a server of your own with TLS; see"
            " docs/security.md",
        )
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise InvalidInput(f"--port {written}: expected a number from 1 to 65535")
    return int(port)


@click.command(
    epilog=examples(
        "batchq up",
        "batchq up --agents 4 --resources cpu=2,memory=4Gi",
        "batchq up --config conf/scheduler.yaml",
        "batchq up --metrics 9464",
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
    metavar="PORT",
    callback=_loopback_port,
    help="Let the embedded server listen on this port of 127.0.0.1, too. It asks for a random "
    "password then, which is kept in run/password of the state folder.",
)
@metrics_option
@click.option(
    "--foreground", is_flag=True, help="Stay until Ctrl-C or SIGTERM, and stop everything then."
)
@output_option("table", "json")
@pass_globals
def up(
    shared: Globals,
    agents: int,
    resources: str | None,
    config: Path | None,
    port: int | None,
    metrics: str | None,
    foreground: bool,
    output: str,
) -> None:
    """Start server, scheduler and node agents on this machine, as far as they do not run.

    They go on when this command has ended; `batchq down` stops them. With --redis-url no server
    is started. Returns when the scheduler leads and every node is ready.

    There are two agents unless --agents says otherwise: two nodes that divide the machine between
    them, so that there is something to schedule.

    The server listens on a unix socket that only this user can open. With --port it listens on
    127.0.0.1 too, and asks for a password, since every user of the machine can connect there. It
    speaks no TLS: from other machines come through ssh, or run a server of your own;
    docs/security.md has the commands for both.

    State is kept in ~/.local/state/batchq, or in the folder BATCHQ_HOME: the server's data, logs,
    and what `batchq run` has collected. To start over: `batchq down`, and remove that folder.
    """
    from batchq.cli.config import checked_config
    from batchq.daemon import stack
    from batchq.paths import find_home

    checked_config(config)
    home = find_home()
    options = stack.UpOptions(
        url=shared.redis_url,
        agents=agents,
        resources=resources,
        config=config,
        port=port,
        metrics=metrics,
    )
    with on_interrupt("interrupted; what was started is stopped again, except a server with data"):
        report = stack.up(home, options, say=_say)
    show(report, color=shared.color, output=output)
    found = any(part.name == "scheduler" and part.state == "running" for part in report.parts)
    if config is not None and found:
        _say("The scheduler was running already: --config counts after `batchq down`")
    if metrics is not None and found:
        _say("The scheduler was running already: --metrics counts after `batchq down`")
    for sentence in kept_offers(report, resources):
        _say(sentence)
    if foreground:
        _say("Ctrl-C stops it all")
        show(stack.hold(home, report, say=_say), color=shared.color, output=output)


def kept_offers(report: StackReport, resources: str | None) -> list[str]:
    """What `up` has not changed though `--resources` asked for it: agents that ran already offer
    what they were started with.
    """
    if resources is None:
        return []
    wanted = parse_resources(resources)
    kept = [
        part
        for part in report.parts
        if part.state == "running" and "=" in part.detail and parse_resources(part.detail) != wanted
    ]
    if not kept:
        return []
    offers = "; ".join(f"{part.name} offers {_detail(part)}" for part in kept)
    return [
        (
            f"--resources {resources} did not change what runs already ({offers});"
            f" to change it: batchq down && batchq up --resources {resources}"
        )
    ]


def _say(sentence: str) -> None:
    echo(sentence, err=True)


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
