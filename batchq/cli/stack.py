"""`batchq up` and `batchq down`: the stack on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.api.resources import CPU
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import Globals, examples, metrics_option, output_option, pass_globals
from batchq.cli.output.terminal import Interrupted, comment, echo, on_interrupt, show_warning
from batchq.daemon.stack import Part, StackReport
from batchq.errors import InvalidInput, UsageError
from batchq.worker.host.node_resources import parse_resources

if TYPE_CHECKING:
    from batchq.paths import Home


_COLUMNS: Columns[Part] = {
    "PART": lambda one: one.name,
    "STATE": lambda one: str(one.state),
    "PID": lambda one: str(one.pid or ""),
    "DETAIL": lambda one: _detail(one),
}


def show(report: StackReport, output: Output) -> None:
    """Print the parts of the stack."""
    show_list(output, report.parts, ListForm(lambda parts: tabled(parts, _COLUMNS), row=_row))


def _row(part: Part) -> dict[str, object]:
    return {
        "kind": _kind(part.name),
        "name": part.name,
        "action": str(part.state),
        "pid": part.pid,
        "detail": part.detail,
    }


def _kind(name: str) -> str:
    return {"server": "Server", "scheduler": "Scheduler", "api": "API"}.get(name, "Agent")


def _detail(part: Part) -> str:
    """Return an agent's resources in words, the server's version, or the API's address."""
    from batchq.api.resources import describe

    return describe(parse_resources(part.detail)) if _is_offer(part) else part.detail


def _is_offer(part: Part) -> bool:
    return _kind(part.name) == "Agent" and "=" in part.detail


def _loopback_port(
    context: click.Context, parameter: click.Parameter, written: str | None
) -> int | None:
    """Parse `PORT` or `127.0.0.1:PORT`. Raises UsageError for any other address."""
    if written is None:
        return None
    host, _, port = written.rpartition(":")
    if host not in ("", "127.0.0.1", "localhost"):
        raise UsageError(
            f"--port {written}: the embedded server listens on 127.0.0.1 only, since connections to"
            " it are not encrypted",
            hint="use ssh from other machines, or run your own server with TLS; see"
            " docs/security.md",
        )
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise UsageError(f"--port {written}: expected a number from 1 to 65535")
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
    help="How many node agents run here.",
)
@click.option(
    "--resources",
    metavar="NAME=QUANTITY,…",
    help="What each new agent offers, as in cpu=2,memory=4Gi.  [default: a part of the machine]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration, a scheduler.yaml.  [default: built in]",
)
@click.option(
    "--port",
    metavar="PORT",
    callback=_loopback_port,
    help="Let the embedded server also listen on this port of 127.0.0.1. It then requires a random "
    "password, which is kept in run/password of the state folder.",
)
@metrics_option
@click.option(
    "--api/--no-api",
    default=None,
    help="Start the HTTP API on a unix socket that only this user can open.  [default: if the"
    " packages of batchq[http] are installed]",
)
@click.option(
    "--foreground", is_flag=True, help="Run until Ctrl-C or SIGTERM, then stop everything."
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
    api: bool | None,
    foreground: bool,
    output: Output,
) -> None:
    """Start the server, the scheduler and node agents on this machine, unless they run already.

    They continue after this command has ended; `batchq down` stops them. With --redis-url no server
    is started. The command returns when the scheduler leads and every node is ready.

    By default, two agents share the machine: each is a node, so there is a choice of nodes to
    schedule on.

    The server listens on a unix socket that only this user can open. With --port it also listens on
    127.0.0.1 and requires a password, since every user of the machine can connect there. It does
    not use TLS: from other machines use ssh, or run your own server; docs/security.md has the
    commands for both.

    The state is kept in ~/.local/state/batchq, or in the folder BATCHQ_HOME: the server's data,
    logs, and the output that `batchq run` has collected. To start over, run `batchq down` and
    remove that folder.
    """
    from batchq.cli.config import checked_config
    from batchq.daemon import stack
    from batchq.paths import find_home

    checked_config(config)
    if resources is not None and parse_resources(resources).get(CPU) == 0:
        show_warning("--resources: with cpu=0, only pods that request no cpu can start")
    if api and not stack.has_api():
        raise InvalidInput(
            "--api: the packages of the HTTP API are not installed",
            hint="pip install 'batchq[http]'",
        )
    home = find_home()
    options = stack.UpOptions(
        url=shared.redis_url,
        agents=agents,
        resources=resources,
        config=config,
        port=port,
        metrics=metrics,
        api=api,
    )
    with on_interrupt("interrupted; what was started is stopped again, except a server with data"):
        report = stack.up(home, options, say=comment)
    show(report, output)
    found = any(part.name == "scheduler" and part.state == "running" for part in report.parts)
    if config is not None and found:
        comment("The scheduler was running already: --config takes effect after `batchq down`")
    if metrics is not None and found:
        comment("The scheduler was running already: --metrics takes effect after `batchq down`")
    for sentence in kept_offers(report, resources):
        comment(sentence)
    if foreground:
        comment("Ctrl-C stops everything")
        show(stack.hold(home, report, say=comment), output)


def kept_offers(report: StackReport, resources: str | None) -> list[str]:
    """Report agents that offer other resources than `--resources`, because they ran already."""
    if resources is None:
        return []
    wanted = parse_resources(resources)
    kept = [
        part
        for part in report.parts
        if part.state == "running" and _is_offer(part) and parse_resources(part.detail) != wanted
    ]
    if not kept:
        return []
    offers = "; ".join(f"{part.name} offers {_detail(part)}" for part in kept)
    return [
        (
            f"--resources {resources} did not change running agents ({offers});"
            f" to change it: batchq down && batchq up --resources {resources}"
        )
    ]


@click.command(epilog=examples("batchq down", "batchq down --now", "batchq down --keep-server"))
@click.option("--keep-server", is_flag=True, help="Stop only the agents and the scheduler.")
@click.option("--now", is_flag=True, help="Kill running pods instead of waiting for them.")
@output_option("table", "json")
@pass_globals
def down(shared: Globals, keep_server: bool, now: bool, output: Output) -> None:
    """Stop the node agents, the scheduler, the HTTP API and the embedded server of this machine.

    The agents drain: running pods may end, and are stopped and requeued if they take too long. The
    data stays, and `batchq up` continues with it. With --redis-url, only a stack that uses that
    server is stopped.
    """
    from batchq.paths import find_home

    report = end_stack(find_home(), url=shared.redis_url, keep_server=keep_server, now=now)
    show(report, output)
    if all(part.state in ("not running", "running") for part in report.parts):
        echo("There was nothing to stop", err=True)


def end_stack(
    home: Home, *, url: str | None, keep_server: bool = False, now: bool = False
) -> StackReport:
    """Stop the stack, reporting on stderr.

    Raises Interrupted at Ctrl-C, which names the parts that still run.
    """
    hint = "`batchq down` continues, `batchq down --now` does not wait for pods"
    # A second interrupt may come while the first is answered.
    with on_interrupt("interrupted while stopping; some parts may still run", hint=hint):
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
                f"interrupted while stopping; still running: {', '.join(left) or 'nothing'}",
                hint=hint,
            ) from None
