"""`batchq login`, `logout`, `whoami`: this user at the HTTP API; and `connect`, ssh's way to it."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path
from typing import Any

import click

from batchq.cli.output.forms import Output
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.render import show_fields
from batchq.cli.output.terminal import echo
from batchq.errors import InvalidInput, NotFound, StoreUnavailable, UsageError

_LONGEST_TOKEN = 256


@click.command(
    epilog=examples(
        "batchq login https://hpc.example:8443",
        "batchq login https://hpc.example:8443 --token-file token --ca-file ca.pem",
        "batchq login https://hpc.example:8443 --oidc",
        "batchq login ssh://hpc.example",
        "batchq login unix:/run/batchq/api.sock",
    )
)
@click.argument("server")
@click.option(
    "--token-file",
    type=click.Path(allow_dash=True, path_type=Path),
    help="A file with the token, or an invitation, in one line; - is stdin.  [default: ask for it]",
)
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path),
    help="Certificates of the authorities to trust, in PEM.  [default: the system's]",
)
@click.option(
    "--oidc",
    is_flag=True,
    help="Log in at the identity provider of the API: open a page and enter a code there.",
)
def login(server: str, token_file: Path | None, ca_file: Path | None, oidc: bool) -> None:
    """Check a token at the API at SERVER, and keep both in this user's batchq home, mode 0600.

    An invitation (bqi_…) is exchanged for a token first, which works once. With --oidc, your
    browser may be on another machine; the token lasts 12 hours, with the groups that you have at
    the provider now.

    On a unix socket no token is needed: the kernel names you. Nor with ssh://HOST, which runs
    `batchq connect` there by your own `ssh`: you are your account on that machine. The everyday
    commands then use this API, unless BATCHQ_REDIS_URL names a server; `batchq whoami` shows what
    the API says of you.
    """
    from batchq.api_session import (
        ApiCredentials,
        ApiSession,
        checked_server,
        write_credentials,
    )
    from batchq.paths import find_home

    address = checked_server(server)
    is_named = address.startswith(("unix:", "ssh:"))
    if oidc and (is_named or token_file is not None):
        raise UsageError(
            "--oidc asks the identity provider who you are, and needs no --token-file",
            hint="as in batchq login https://hpc.example:8443 --oidc",
        )
    is_without = oidc or (is_named and token_file is None)
    token = "" if is_without else _token_of(token_file)
    if ca_file is not None and not ca_file.is_file():
        raise InvalidInput(f"--ca-file: there is no file {ca_file}")
    authority = "" if ca_file is None else str(ca_file.absolute())
    if oidc:
        token = _oidc_token(address, authority)
    if token.startswith("bqi_"):
        invited = ApiCredentials(server=address, token=token, authority=authority)
        with ApiSession(invited) as session:
            made = session.request("POST", "/v1/invitations")
        token = made["token"]
        # The invitation is used up, so the token is kept even if the next request fails.
        redeemed = ApiCredentials(
            server=address, user=made["owner"], token=token, authority=authority
        )
        write_credentials(find_home(), redeemed)
    tried = ApiCredentials(server=address, token=token, authority=authority)
    with ApiSession(tried) as session:
        me = session.request("GET", "/v1/me")
    kept = ApiCredentials(server=address, user=me["user"], token=token, authority=authority)
    path = write_credentials(find_home(), kept)
    echo(f"{me['user']} is logged in to {address}; the token is kept in {path}")


def _oidc_token(server: str, authority: str) -> str:
    """Return a token of the user who logs in at the API's identity provider."""
    from batchq.api_session import ApiCredentials, ApiSession
    from batchq.identity_provider import DeviceLogin, IdentityProvider, checked_issuer

    def show(wanted: DeviceLogin) -> None:
        echo(f"open {wanted.url} in a browser, and enter the code {wanted.code}", err=True)

    with ApiSession(ApiCredentials(server=server, authority=authority)) as session:
        known = session.request("GET", "/v1/login")["oidc"]
        if known is None:
            raise InvalidInput(
                f"the API at {server} trusts no identity provider",
                hint="log in with a token or an invitation, without --oidc",
            )
        issuer = checked_issuer(str(known["issuer"]), f"the provider of {server}")
        provider = IdentityProvider(issuer, authority)
        text = provider.log_in(str(known["client"]), str(known["scope"]), show)
        return str(session.request("POST", "/v1/login", {"token": text})["token"])


@click.command(epilog=examples("batchq logout"))
def logout() -> None:
    """Revoke the token of `batchq login`, and forget it.

    If the API does not answer, the token is forgotten here and stays valid there (exit code 9).
    """
    from batchq.api_session import ApiSession, read_credentials, remove_credentials
    from batchq.paths import find_home

    home = find_home()
    kept = read_credentials(home)
    # The token is forgotten whatever the API answers.
    remove_credentials(home)
    if not kept.token:
        echo(f"logged out of {kept.server}")
        return
    token = kept.token.split("_")[1]
    try:
        with ApiSession(kept) as session:
            session.request("DELETE", f"/v1/tokens/{token}")
    except NotFound:
        echo(f"logged out of {kept.server}, where token {token} is gone already")
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"token {token} is forgotten here, and was not revoked: {error.message}",
            hint=f"ask an operator: `batchq token revoke {token}`",
        ) from None
    else:
        echo(f"logged out of {kept.server}; token {token} is revoked")


@click.command(epilog=examples("batchq whoami", "batchq whoami -o json"))
@output_option("text", "json")
@pass_globals
def whoami(shared: Globals, output: Output) -> None:
    """Show your user and your roles at the API that other commands use.

    That is the API of BATCHQ_SERVER, with its token, or else the one of `batchq login`.
    """
    from batchq.api_session import ApiSession, read_credentials
    from batchq.paths import find_home

    used = shared.api()
    if used is None:
        # Fails if there is no login at all; otherwise a Redis server was chosen instead of it.
        kept = read_credentials(find_home())
        raise InvalidInput(
            "commands here use the Redis server that --redis-url or the environment names, and"
            " users are known only to the API",
            hint=f"without --redis-url and BATCHQ_REDIS_URL, they use the API at {kept.server}",
        )
    with ApiSession(used) as session:
        me = session.request("GET", "/v1/me")
    output.page({"server": used.server, **me}, lambda: _show(used.server, me))


#: Where `batchq service install` lets the API of a machine listen.
SYSTEM_SOCKET = Path("/run/batchq/api.sock")
_MOST_COPIED = 64 * 1024


@click.command(epilog=examples("batchq connect", "batchq connect /run/batchq/api.sock"))
@click.argument("path", required=False, type=click.Path(path_type=Path))
def connect(path: Path | None) -> None:
    """Copy bytes between stdin and stdout and the socket of this machine's API.

    The commands of other machines run it by ssh: see BATCHQ_SERVER=ssh://HOST. Without PATH, it is
    the socket in /run/batchq, or the one of `batchq up`.
    """
    from batchq.paths import find_home

    if path is None:
        path = SYSTEM_SOCKET if SYSTEM_SOCKET.exists() else find_home().api_socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as api:
        try:
            api.connect(str(path))
        except OSError as error:
            raise StoreUnavailable(
                f"no API answers at {path}: {error.strerror or error}",
                hint="start it with `batchq up`, or with `batchq api --listen unix:PATH`",
            ) from None
        _copy(sys.stdin.fileno(), sys.stdout.fileno(), api)


def _copy(source: int, target: int, api: socket.socket) -> None:
    """Copy in both directions until the API closes the connection, or the reader is gone."""
    readable = [source, api.fileno()]
    while True:
        ready, _, _ = select.select(readable, [], [])
        try:
            if api.fileno() in ready:
                data = api.recv(_MOST_COPIED)
                if not data:
                    return
                while data:
                    data = data[os.write(target, data) :]
            if source in ready:
                data = os.read(source, _MOST_COPIED)
                if data:
                    api.sendall(data)
                else:
                    readable.remove(source)
                    api.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            return


def _show(server: str, me: dict[str, Any]) -> None:
    # A user may have a role by its own name and by those of its groups.
    roles = dict.fromkeys(
        f"{one['role']} in {'all namespaces' if one['namespace'] == '*' else one['namespace']}"
        for one in me["roles"]
    )
    token = me["token"]
    show_fields(
        [
            ("User", me["user"]),
            ("Server", server),
            ("Through", me["via"]),
            ("Groups", ", ".join(me["groups"])),
            ("Roles", ", ".join(roles) or "none: ask an operator, or an admin of a namespace"),
            ("Token", "" if token is None else f"{token['id']}, until {token['expiresAt']}"),
        ]
    )


def _token_of(path: Path | None) -> str:
    """Return the token of a file, or the one that the user types. Raises InvalidInput."""
    if path is None:
        if not sys.stdin.isatty():
            raise InvalidInput(
                "a token is needed, and there is no terminal to ask for it",
                hint="name a file with it: --token-file FILE, or - for stdin",
            )
        text = click.prompt("Token or invitation", hide_input=True, err=True)
    else:
        try:
            with click.open_file(str(path), encoding="ascii") as file:
                text = file.read(_LONGEST_TOKEN)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise InvalidInput(f"the token file {path}: {why}") from None
    words = str(text).split()
    if len(words) != 1 or not words[0].startswith(("bqt_", "bqi_")) or words[0].count("_") < 3:
        # The message must not show the text, which may be a password.
        raise InvalidInput("expected a token, bqt_…, and nothing else")
    return words[0]
