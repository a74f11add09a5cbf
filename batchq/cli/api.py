"""`batchq api`: serve the HTTP API; and `registrar`, which makes users of nodes for it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from batchq.api.access import Visibility
from batchq.cli.output.options import Globals, examples, pass_globals
from batchq.errors import InvalidInput, StoreUnavailable, UsageError
from batchq.identity_provider import OidcSettings, checked_issuer
from batchq.paths import LONGEST_SOCKET_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from batchq.api.views import GroupView
    from batchq.client import Client

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
    help="An account that runs agents on this machine; repeatable. Its processes, and so all its"
    " pods, need a token on the socket, too.",
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
    behind_proxy: bool,
    names: tuple[str, ...],
    agent_users: tuple[str, ...],
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
    from batchq.daemon.observability import logs
    from batchq.paths import read_signing_key

    try:
        from batchq.http.server import ApiServer, ServeOptions, parse_listen
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
    options = ServeOptions(
        listen=tuple(parse_listen(text) for text in addresses),
        certificate=tls_cert,
        key=tls_key,
        behind_proxy=behind_proxy,
        names=names,
        agent_uids=frozenset(_uid(name) for name in agent_users),
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

    Its own user, of the role registrar, may make users, and so could give itself every right:
    keep it out of the API's process, and its URL out of the reach of the API's account. It gives
    nothing but the rights of a worker, for one node. The server needs an ACL file; changes of that
    file that were not loaded (ACL LOAD) are lost when the next node joins.
    """
    import signal

    from batchq.client.node_users import checked_agents_url
    from batchq.daemon.node_registrar import NodeUserService
    from batchq.daemon.observability import logs
    from batchq.daemon.services import Termination, ThreadService
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
    from batchq.cli.why import row_of

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
