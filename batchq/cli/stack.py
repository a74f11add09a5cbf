"""`batchq up` and `batchq down`: the stack on this machine; `batchq service`: systemd units for the
server and the processes of batchq.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from batchq.cli.output import Interrupted, comment, echo, on_interrupt, show_warning
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import (
    Globals,
    WholeNumber,
    examples,
    metrics_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import warn_of_no_cpu
from batchq.daemon.stack import Part, StackReport
from batchq.errors import InvalidInput, NotFound, UsageError
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
    type=WholeNumber(0, 64),
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
    if resources is not None:
        warn_of_no_cpu(parse_resources(resources))
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
    for option in stack.options_in_vain(home, options):
        comment(f"The scheduler was running already: {option} takes effect after `batchq down`")
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


UNITS = Path("/etc/systemd/system")
#: The first line of each unit: a file without it is not replaced, nor removed.
MARK = "# Written by `batchq service install`. Put changes into a drop-in: systemctl edit"
#: Folders that ProtectHome= hides.
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))


class ServicePart(NamedTuple):
    """What a unit runs; `lines` follow those that all units have."""

    description: str
    command: Sequence[str]
    account: str
    lines: Sequence[str]


_CONFINED = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "LockPersonality=yes",
    "PrivateDevices=yes",
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectSystem=strict",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "UMask=0077",
)

#: The part that runs a Redis or Valkey server, and no command of batchq.
SERVER = "server"
_SERVER_FOLDER, _SERVER_SOCKET = "/var/lib/batchq-server", "/run/batchq-server/redis.sock"
#: What a server needs to keep what batchq has stored; a configuration file says the rest.
_KEEPS = ("--daemonize", "no", "--dir", _SERVER_FOLDER)
_WITHOUT_A_FILE = (
    *("--port", "0", "--unixsocket", _SERVER_SOCKET, "--unixsocketperm", "770"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    *("--auto-aof-rewrite-min-size", "256mb", "--maxmemory-policy", "noeviction"),
)

PARTS: Mapping[str, ServicePart] = {
    SERVER: ServicePart(
        "the server of batchq",
        (),
        "batchq-server",
        (
            *("RuntimeDirectory=batchq-server", "RuntimeDirectoryMode=0755"),
            *("TimeoutStopSec=5min", "LimitNOFILE=65536", *_CONFINED),
        ),
    ),
    "scheduler": ServicePart("batchq scheduler", ("scheduler",), "batchq", _CONFINED),
    "api": ServicePart(
        "batchq HTTP API",
        ("api", "--listen", "unix:/run/batchq/api.sock"),
        "batchq",
        # Callers on the socket are named by the kernel, so PrivateUsers= must stay off.
        ("RuntimeDirectory=batchq", "RuntimeDirectoryMode=0755", *_CONFINED),
    ),
    "registrar": ServicePart(
        "registrar of batchq's nodes",
        (
            *("registrar", "--listen", "unix:/run/batchq-registrar/socket"),
            *("--api-user", "batchq"),
        ),
        "batchq-registrar",
        ("RuntimeDirectory=batchq-registrar", "RuntimeDirectoryMode=0755", *_CONFINED),
    ),
    "worker": ServicePart(
        "batchq agent",
        ("worker", "--enforce", "auto"),
        "batchq-worker",
        # The limits of pods are the agent's; pods need what the machine has. The agent stops them.
        ("Delegate=yes", "KillMode=mixed", "TimeoutStopSec=5min", "LimitNOFILE=65536"),
    ),
}


def unit_of(
    name: str, program: Sequence[str], account: str, url_file: Path, words: Sequence[str]
) -> str:
    """Return the unit of a part; `program` runs batchq, and `words` are further arguments."""
    part = PARTS[name]
    command = " ".join(map(_quoted, (*program, *part.command, *words)))
    url = () if _joins(words) else (f"Environment=BATCHQ_REDIS_URL_FILE={_quoted(str(url_file))}",)
    settings = (*url, f"Environment=BATCHQ_HOME=%S/batchq-{name}")
    is_in_a_home = any(Path(program[0]).is_relative_to(home) for home in _HOMES)
    home = () if name == "worker" else (f"ProtectHome={'read-only' if is_in_a_home else 'yes'}",)
    return "\n".join(
        (
            f"{MARK} batchq-{name}",
            "[Unit]",
            f"Description={part.description}",
            "Wants=network-online.target",
            "After=network-online.target",
            "# What it needs may be away for as long as it likes: it is waited for.",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"User={account}",
            *(() if name == SERVER else settings),
            f"StateDirectory=batchq-{name}",
            "StateDirectoryMode=0700",
            f"ExecStart={command}",
            "Restart=always",
            "RestartSec=2",
            "# Wrong options do not mend themselves.",
            "RestartPreventExitStatus=2",
            *part.lines,
            *home,
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        )
    )


def _joins(words: Sequence[str]) -> bool:
    """Return whether an agent gets its user of the server by a token, not from a URL file."""
    return any(word.partition("=")[0] == "--join" for word in words)


def _quoted(word: str) -> str:
    """Return a word as systemd reads it: one argument, without specifiers and variables."""
    if not word.isprintable():
        raise InvalidInput("an argument of a unit: expected printable characters")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = word and all(letter.isalnum() or letter in "/._-:=,@+[]" for letter in word)
    return escaped if plain else f'"{escaped}"'


def _program() -> list[str]:
    own = Path(sys.executable).with_name("batchq")
    return [str(own)] if own.exists() else [sys.executable, "-m", "batchq.cli"]


def _server(words: Sequence[str]) -> list[str]:
    """Return the command of a server. `words` may begin with its configuration file.

    Raises StoreUnavailable if none is installed.
    """
    from batchq.daemon.embedded_server import find_binary
    from batchq.paths import Home

    program = find_binary(Home(Path(_SERVER_FOLDER))).path
    has_file = bool(words) and not words[0].startswith("-")
    # Of two settings, the later one counts.
    defaults = _KEEPS if has_file else (*_KEEPS, *_WITHOUT_A_FILE)
    return [program, *(words[:1] if has_file else ()), *defaults, *words[has_file:]]


@click.group(
    epilog=examples(
        "batchq service install server",
        "batchq service install scheduler",
        "batchq service install api -- --listen 0.0.0.0:8443 --tls-cert C --tls-key K --name HOST",
        "batchq service uninstall worker",
    )
)
def service() -> None:
    """Write systemd units, so that the parts of batchq start with the machine.

    If your distribution has a unit for its Redis or Valkey server, the unit `server` is not needed.
    """


_PART = click.argument("part", type=click.Choice(tuple(PARTS)))
_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=UNITS,
    show_default=True,
    help="Where units are.",
)


@service.command(
    epilog=examples(
        "batchq service install scheduler --dry-run",
        "batchq service install api -- --listen 0.0.0.0:8443 --tls-cert C --tls-key K --name HOST",
        "batchq service install worker --user batchq-worker -- --name gpu1",
    )
)
@_PART
@click.argument("words", nargs=-1, metavar="[-- OPTION…]")
@click.option("--user", default="", help="The account.  [default: batchq, or batchq-PART]")
@click.option(
    "--url-file",
    type=click.Path(path_type=Path),
    help="A file with the server's URL, mode 0600.  [default: /etc/batchq/PART.url]",
)
@_FOLDER
@click.option("--dry-run", is_flag=True, help="Print the unit, and write nothing.")
def install(
    part: str,
    words: tuple[str, ...],
    user: str,
    url_file: Path | None,
    folder: Path,
    dry_run: bool,
) -> None:
    """Write the unit batchq-PART.service, and print how to start it.

    OPTIONs are passed on to `batchq scheduler`, `api`, `registrar` or `worker`; those of `server`
    to the Redis or Valkey server that is installed, or bundled, and may begin with its
    configuration file. Without one it listens on /run/batchq-server/redis.sock for its account and
    group. Running it again replaces the unit, as after an upgrade of batchq to another folder. All
    units except the agent's are confined: they cannot write files outside their own folder, gain
    rights or see home directories.
    """
    account = user or PARTS[part].account
    url_file = (url_file or Path(f"/etc/batchq/{part}.url")).absolute()
    if part == SERVER:
        text = unit_of(part, _server(words), account, url_file, ())
    else:
        text = unit_of(part, _program(), account, url_file, words)
    if dry_run:
        echo(text.rstrip("\n"))
        return
    _check_account(account)
    path = _own_unit(folder, part)
    new = path.with_suffix(".new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}", hint="run it as root, or name a --folder"
        ) from None
    echo(f"{path} written")
    if part != SERVER and not _joins(words) and not url_file.exists():
        echo(f"next: write the server's URL to {url_file}, readable for {account} only", err=True)
    echo(f"next: systemctl daemon-reload && systemctl enable --now batchq-{part}", err=True)


@service.command(epilog=examples("batchq service uninstall worker"))
@_PART
@_FOLDER
def uninstall(part: str, folder: Path) -> None:
    """Remove the unit batchq-PART.service, and print how to stop it.

    The server's data, URL files and accounts stay.
    """
    path = _own_unit(folder, part)
    if not path.exists():
        raise NotFound(f"there is no unit {path}")
    try:
        path.unlink()
    except OSError as error:
        raise InvalidInput(f"cannot remove {path}: {error.strerror}", hint="as root") from None
    echo(f"{path} removed")
    echo(
        f"next: systemctl disable --now batchq-{part}; systemctl daemon-reload",
        err=True,
    )


def _own_unit(folder: Path, part: str) -> Path:
    """Return the path of a unit. Raises InvalidInput if another program has written it."""
    path = folder / f"batchq-{part}.service"
    try:
        is_own = path.read_text(encoding="utf-8").startswith(MARK)
    except FileNotFoundError:
        is_own = True
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidInput(f"{path}: {why}") from None
    if not is_own:
        raise InvalidInput(
            f"{path} was not written by `batchq service install`", hint="move it away first"
        )
    return path


def _check_account(name: str) -> None:
    try:
        if pwd.getpwnam(name).pw_uid == 0 and os.getuid() == 0:
            show_warning("as root, pods and requests could do anything here")
    except KeyError:
        raise InvalidInput(
            f"this machine has no account {name[:80]!r}",
            hint=f"useradd --system --home-dir /var/lib/batchq --shell /usr/sbin/nologin {name}",
        ) from None
