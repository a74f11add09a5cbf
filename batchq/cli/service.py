"""`batchq service`: systemd units for the server and the processes of batchq."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from batchq.cli.output.options import examples
from batchq.cli.output.terminal import echo, show_warning
from batchq.errors import InvalidInput, NotFound

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
    *("--maxmemory-policy", "noeviction"),
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
    """Whether an agent gets its user of the server by a token, and not from a file of a URL."""
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
    but the agent are confined: they cannot write files of others, gain rights or see home
    directories.
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
