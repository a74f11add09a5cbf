"""The HTTP API: `batchq api` serves it, and `registrar` makes users of nodes for it; `login`,
`logout` and `whoami` are about this user there, and `connect` is how ssh reaches it.
"""

from __future__ import annotations

import os
import pwd
import select
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from batchq.api.access import Visibility
from batchq.cli.output import echo, show_fields
from batchq.cli.output.forms import Output
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.errors import InvalidInput, NotFound, StoreUnavailable, Unauthenticated, UsageError
from batchq.paths import LONGEST_SOCKET_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from batchq.api.views import GroupView
    from batchq.api_session import ApiCredentials
    from batchq.client import Client
    from batchq.identity_provider import OidcSettings


_FILE = click.Path(dir_okay=False, path_type=Path)
#: The packages of batchq[http], and those that they import.
_PACKAGES = ("starlette", "uvicorn", "httptools", "h11", "anyio")


@click.command(
    epilog=examples(
        "batchq api --listen unix:/run/batchq/api.sock",
        "batchq api --listen 0.0.0.0:8443 --tls-cert api.pem --tls-key api.key --name hpc.example",
    )
)
@click.option(
    "--listen",
    "addresses",
    multiple=True,
    required=True,
    metavar="unix:PATH|HOST:PORT",
    help="Where to listen; repeatable. An address of other machines needs TLS.",
)
@click.option("--tls-cert", type=_FILE, help="The certificate (chain), in PEM.")
@click.option("--tls-key", type=_FILE, help="Its key, in PEM, readable by this user only.")
@click.option(
    "--self-signed",
    is_flag=True,
    help="Make a certificate, once, and keep it in the home of batchq. Invitations and join tokens"
    " state its digest, by which clients recognise it. Needs the packages of batchq[oidc].",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="A proxy in front speaks TLS, and sets X-Forwarded-For.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A host name under which the API is reached; repeatable. Others are refused.",
)
@click.option(
    "--agent-user",
    "agent_users",
    multiple=True,
    metavar="USER",
    help="An account that runs pods on this machine; repeatable. Its processes need a token on the"
    " socket, too. Agents of this machine are found without it, except those in containers.",
)
@click.option(
    "--one-account",
    is_flag=True,
    help="This account and all groups that agents run under it are one person's, as in `batchq up`:"
    " its pods are operators on the socket.",
)
@click.option(
    "--signing-key",
    type=_FILE,
    envvar="BATCHQ_SIGNING_KEY",
    show_envvar=True,
    help="A file with a secret, of 32 bytes or more. Groups are signed with it, so that an agent"
    " with --run-as owner knows who has submitted them.",
)
@click.option(
    "--visibility",
    type=click.Choice([str(one) for one in Visibility]),
    default=str(Visibility.OPEN),
    show_default=True,
    help="Whose schedule facts a user may read: those of all namespaces, of its own namespaces, or"
    " of its own groups.",
)
@click.option(
    "--registrar",
    metavar="unix:PATH",
    help="The socket of `batchq registrar`, so that agents can join.",
)
@click.option(
    "--oidc-issuer",
    metavar="URL",
    help="An OpenID Connect provider whose users may log in: `batchq login --oidc`. Needs the "
    "packages of batchq[oidc].",
)
@click.option("--oidc-client", default="", metavar="ID", help="The id of this API there.")
@click.option(
    "--oidc-user-claim",
    default="email",
    show_default=True,
    metavar="CLAIM",
    help="The claim that names the user. An e-mail address must be verified; to other names, "
    "@ and the provider's host are added.",
)
@click.option(
    "--oidc-groups-claim",
    default="groups",
    show_default=True,
    metavar="CLAIM",
    help="The claim with the user's groups: `ml` becomes the group oidc:ml.",
)
@click.option(
    "--oidc-scope",
    default="openid email profile",
    show_default=True,
    metavar="SCOPES",
    help="What the provider is asked for.",
)
@click.option(
    "--oidc-ca-file",
    type=_FILE,
    help="Certificates to trust for the provider besides the system's, in PEM.",
)
@click.option(
    "--supervised",
    is_flag=True,
    help="Answer in a child process, which is started again whenever it dies.",
)
@pass_globals
def api(
    shared: Globals,
    addresses: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    self_signed: bool,
    behind_proxy: bool,
    names: tuple[str, ...],
    agent_users: tuple[str, ...],
    one_account: bool,
    signing_key: Path | None,
    visibility: str,
    registrar: str | None,
    oidc_issuer: str | None,
    oidc_client: str,
    oidc_user_claim: str,
    oidc_groups_claim: str,
    oidc_scope: str,
    oidc_ca_file: Path | None,
    supervised: bool,
) -> int:
    """Serve the HTTP API; logs to stderr.

    On a unix socket the kernel names each caller: the account that runs this command is operator
    and admin, other accounts have the roles that they are given. Needs the packages of
    batchq[http]. docs/http-api.md describes paths, rights and limits.
    """
    from batchq.client.access_control import Delegate
    from batchq.daemon import logs
    from batchq.identity_provider import OidcSettings, checked_issuer
    from batchq.paths import find_home, read_signing_key

    try:
        from batchq.http.server import ApiServer, ServeOptions, own_certificate, parse_listen
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise InvalidInput(
            f"the HTTP API needs the package {error.name}, which is not installed",
            hint="pip install 'batchq[http]'",
        ) from None
    oidc = None
    if oidc_issuer is not None:
        oidc = _oidc(
            OidcSettings(
                issuer=checked_issuer(oidc_issuer, "--oidc-issuer"),
                client=oidc_client,
                user_claim=oidc_user_claim,
                groups_claim=oidc_groups_claim,
                scope=oidc_scope,
                authority="" if oidc_ca_file is None else str(oidc_ca_file.absolute()),
            )
        )
    elif oidc_client:
        raise UsageError("--oidc-client needs --oidc-issuer, the provider that it belongs to")
    listen = tuple(parse_listen(text) for text in addresses)
    if self_signed:
        if tls_cert is not None or tls_key is not None:
            raise UsageError(
                "--self-signed and --tls-cert exclude each other", hint="keep one of them"
            )
        home = find_home()
        home.prepare()
        hosts = [address.host for address in listen if address.host]
        found = own_certificate(
            home.root / "api-certificate.pem", [*names, *hosts, socket.gethostname()]
        )
        tls_cert = tls_key = found
    options = ServeOptions(
        listen=listen,
        certificate=tls_cert,
        key=tls_key,
        is_pinned=self_signed,
        behind_proxy=behind_proxy,
        names=names,
        agent_uids=frozenset(_uid(name) for name in agent_users),
        is_one_account=one_account,
        visibility=Visibility(visibility),
        registrar=None if registrar is None else _socket("--registrar", registrar),
        oidc=oidc,
    )
    key = b"" if signing_key is None else read_signing_key(signing_key)
    _check_url(shared)

    def connect() -> Delegate:
        return Delegate(shared.redis_url, signing_key=key)

    server = ApiServer(options, connect, _why, table_of)
    logs.configure()
    if supervised:
        from batchq.daemon.detached import ServiceSupervisor

        try:
            ServiceSupervisor("api", server.serve).run()
        finally:
            server.close()
    else:
        server.run()
    return 0


@click.command(
    epilog=examples(
        "batchq registrar --listen unix:/run/batchq-registrar/socket --api-user batchq"
        " --agents-url rediss://queue.example:6379/0",
    )
)
@click.option("--listen", required=True, metavar="unix:PATH", help="Where the API asks.")
@click.option(
    "--api-user",
    "api_users",
    multiple=True,
    metavar="USER",
    help="An account that may send requests; repeatable.  [default: its own]",
)
@click.option(
    "--agents-url",
    required=True,
    metavar="URL",
    help="The server's URL for agents, without user and password.",
)
@pass_globals
def registrar(shared: Globals, listen: str, api_users: tuple[str, ...], agents_url: str) -> int:
    """Make the Redis server's users of nodes for `batchq api`; logs to stderr.

    Its own user has the role registrar, which may make users, and so could give itself every right.
    Run it in a process of its own, and hide its URL from the API's account. The users that it makes
    have only the rights of a worker, for one node. The server needs an ACL file; changes of that
    file that were not loaded (ACL LOAD) are lost when the next node joins.
    """
    import signal

    from batchq.client.node_users import NodeUserService, checked_agents_url
    from batchq.daemon import Termination, ThreadService, logs
    from batchq.paths import find_home, resolve_url

    callers = frozenset(_uid(name, "--api-user") for name in api_users) or {os.getuid()}
    url = resolve_url(shared.redis_url, find_home())
    users = NodeUserService(
        url, checked_agents_url(agents_url), _socket("--listen", listen), frozenset(callers)
    )
    logs.configure()
    service = ThreadService("registrar", users.serve)
    ending = Termination()
    try:
        ending.on_signals(signal.SIGTERM, signal.SIGINT)
        try:
            users.check()
        except StoreUnavailable as error:
            if error.lasts:
                raise
        service.start()
        return ending.wait() or 0
    finally:
        service.stop()
        users.close()
        ending.close()


def _oidc(settings: OidcSettings) -> OidcSettings:
    """Return the settings. Raises UsageError if they could not work."""
    if not settings.client:
        raise UsageError(
            "--oidc-issuer needs the id of this API at the provider",
            hint="register it there as a public client with the device flow, and pass its id as"
            " --oidc-client",
        )
    if "openid" not in settings.scope.split():
        raise UsageError("--oidc-scope: without `openid` the provider gives no ID token")
    if settings.authority and not Path(settings.authority).is_file():
        raise UsageError(f"--oidc-ca-file: there is no file {settings.authority}")
    return settings


def _socket(option: str, text: str) -> Path:
    """Return the path of a unix socket. Raises UsageError."""
    path = text.removeprefix("unix:")
    if path == text or not path or len(os.fsencode(path)) > LONGEST_SOCKET_PATH_BYTES:
        raise UsageError(
            f"{option}: expected unix:PATH, with a path of at most {LONGEST_SOCKET_PATH_BYTES}"
            f" bytes, found {text[:120]!r}"
        )
    return Path(path).absolute()


def _why(client: Client, key: str) -> object:
    from batchq.cli.diagnosis import row_of

    return row_of(client.why(key))


def table_of(
    views: Sequence[GroupView],
    now_ms: int,
    has_namespaces: bool,
    form: Literal["table", "json"] = "table",
) -> Mapping[str, object]:
    """Return the table of `batchq jobs`, or what it prints with `-o json`."""
    from batchq.cli.output.tables import groups_table

    if form == "json":
        from batchq.cli.group_lists import jobs_document

        return {"document": jobs_document(views)}
    table = groups_table(views, now_ms, namespaces=has_namespaces)
    return {**table._asdict(), "wide": sorted(table.wide)}


def _check_url(shared: Globals) -> None:
    """Refuse a malformed URL and a user of another role; wait for a server that is away."""
    from batchq.client.access_control import Delegate
    from batchq.client.connection import target_of

    try:
        url = target_of(shared.redis_url)
    except StoreUnavailable:
        # This machine's own server may be started later.
        return
    try:
        with Delegate(url) as delegate:
            delegate.access.revision()
    except StoreUnavailable as error:
        if error.lasts:
            hint = "the API needs a user of the role api: see `batchq acl api`"
            raise StoreUnavailable(error.message, hint=hint, lasts=True) from None


def _uid(name: str, option: str = "--agent-user") -> int:
    if name.isascii() and name.isdigit() and len(name) < 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise InvalidInput(f"{option}: this machine has no account {name[:80]!r}") from None


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

    An invitation (bqi_…) is exchanged for a token first, which works once. If it states the digest
    of the API's certificate, no other one is accepted; with a token, the address may state it, as
    https://HOST:PORT#sha256:DIGEST. With --oidc, your
    browser may be on another machine; the token lasts 12 hours, with the groups that you have at
    the provider now.

    No token is needed on a unix socket, where the kernel names you, nor with ssh://HOST, which runs
    `batchq connect` there through your own `ssh`: you are your account on that machine. The
    everyday commands then use this API, unless BATCHQ_REDIS_URL names a server; `batchq whoami`
    shows what the API says of you.
    """
    from batchq.api_session import (
        ApiCredentials,
        ApiSession,
        agreed_pin,
        end_to_warn_of,
        split_server,
        split_token,
        write_credentials,
    )
    from batchq.paths import find_home

    address, pin = split_server(server)
    is_named = address.startswith(("unix:", "ssh:"))
    if oidc and (is_named or token_file is not None):
        raise UsageError(
            "--oidc asks the identity provider who you are, and needs no --token-file",
            hint="as in batchq login https://hpc.example:8443 --oidc",
        )
    is_without = oidc or (is_named and token_file is None)
    token, stated = ("", "") if is_without else split_token(_token_of(token_file))
    pin = agreed_pin(address, pin, stated)
    if ca_file is not None and not ca_file.is_file():
        raise InvalidInput(f"--ca-file: there is no file {ca_file}")
    authority = "" if ca_file is None else str(ca_file.absolute())
    if oidc:
        token = _oidc_token(ApiCredentials(server=address, authority=authority, pin=pin))
    if token.startswith("bqi_"):
        invited = ApiCredentials(server=address, token=token, authority=authority, pin=pin)
        with ApiSession(invited) as session:
            made = session.request("POST", "/v1/invitations")
        token = made["token"]
        # The invitation is used up, so the token is kept even if the next request fails.
        redeemed = ApiCredentials(
            server=address, user=made["owner"], token=token, authority=authority, pin=pin
        )
        write_credentials(find_home(), redeemed)
    tried = ApiCredentials(server=address, token=token, authority=authority, pin=pin)
    with ApiSession(tried) as session:
        me = session.request("GET", "/v1/me")
    kept = tried._replace(user=me["user"], expires_at=end_to_warn_of(me["token"]))
    path = write_credentials(find_home(), kept)
    kept_there = "the token" if token else "the address"
    echo(f"{me['user']} is logged in to {address}; {kept_there} is kept in {path}")


def _oidc_token(api: ApiCredentials) -> str:
    """Return a token of the user who logs in at the API's identity provider."""
    from batchq.api_session import ApiSession
    from batchq.identity_provider import DeviceLogin, IdentityProvider, checked_issuer

    def show(wanted: DeviceLogin) -> None:
        echo(f"open {wanted.url} in a browser, and enter the code {wanted.code}", err=True)

    with ApiSession(api) as session:
        known = session.request("GET", "/v1/login")["oidc"]
        if known is None:
            raise InvalidInput(
                f"the API at {api.server} trusts no identity provider",
                hint="log in with a token or an invitation, without --oidc",
            )
        issuer = checked_issuer(str(known["issuer"]), f"the provider of {api.server}")
        provider = IdentityProvider(issuer, api.authority)
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
    except Unauthenticated as error:
        echo(f"logged out of {kept.server}: {error.message}")
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
