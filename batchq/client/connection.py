"""The connection to a server, its user, users with restricted rights, schedulers and heartbeats."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from time import monotonic, sleep
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from batchq.api.notation import describe_age, describe_timeout, nearest, subdomain_problem
from batchq.api.objects import Node, Object
from batchq.api.transaction import count_of
from batchq.api.views import NO_LEADER, Leading, Schedulers, SchedulerSeen
from batchq.errors import Conflict, InvalidInput, NotFound, StoreUnavailable, WaitTimedOut
from batchq.paths import SERVER_VARIABLE, default_url, find_home, resolve_url
from batchq.store.outage import Patience
from batchq.store.roles import ROLES, Role, rules_of

if TYPE_CHECKING:
    from batchq.core.session.snapshot import Settings
    from batchq.store.redis import RedisStore
    from batchq.store.schedulers import SchedulerEntry


#: The addresses that `split_server` of an API session takes; a Redis server has `unix://PATH`.
_API_ADDRESS = re.compile(r"https://|ssh://|unix:(?!//)")


def target_of(url: str | None) -> str:
    """Return `url`, else BATCHQ_REDIS_URL, else the URL of this machine's embedded server.

    Raises InvalidInput if it is no text or no home directory is found, StoreUnavailable if the
    embedded server does not run.
    """
    if url is not None and not isinstance(url, str):
        kind = type(url).__name__
        raise InvalidInput(f"url: expected a URL such as redis://host:6379/0, found a {kind}")
    if url is not None and _API_ADDRESS.match(url):
        # The message must not repeat the address, which may contain a password.
        raise InvalidInput(
            "url: expected the URL of a Redis server, found the address of an HTTP API",
            hint=f"name it with {SERVER_VARIABLE}, or in Python use batchq.ApiClient",
        )
    home = find_home()
    target = resolve_url(url, home)
    if target == default_url(home):
        if not home.has_socket():
            hint = "start one with `batchq up`, or name yours with --redis-url"
            if os.environ.get("BATCHQ_POD"):
                hint = (
                    "in a pod, use batchq.ApiClient, and submit the pod's group with `--api-token`"
                )
            raise StoreUnavailable(
                "no batchq server is running on this machine",
                hint=hint,
                # Nothing says that one is about to start here.
                lasts=True,
            )
        home.check_socket()
    return target


def connect(url: str | None) -> RedisStore:
    """Return a store on the server.

    Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers or the server is
    not usable.
    """
    from batchq.store.redis import open_store

    return open_store(target_of(url))


def connect_patiently(
    url: str | None, tell: Callable[[str], None], patience_s: float | None
) -> tuple[RedisStore, float]:
    """Connect as soon as the server answers; return the store and the seconds waited for it.

    Raises InvalidInput, StoreUnavailable if waiting does not help, WaitTimedOut.
    """
    started = monotonic()
    patience = patience_of(tell, patience_s)
    away_s = 0.0
    while True:
        try:
            store = connect(url)
        except StoreUnavailable as error:
            wait_s = patience.next_wait_s(error)
            if wait_s is None:
                if error.lasts:
                    raise
                raise _timed_out(error, patience_s or 0.0) from error
            sleep(wait_s)
            away_s = monotonic() - started
        else:
            patience.answered()
            return store, away_s


def patience_of(tell: Callable[[str], None], timeout_s: float | None) -> Patience:
    """Return a Patience that ends after `timeout_s` seconds, or never. Raises InvalidInput."""
    lasts_s = checked_seconds(timeout_s)
    return Patience(tell, deadline=None if lasts_s is None else monotonic() + lasts_s)


def checked_seconds(timeout_s: float | None) -> float | None:
    """Return `timeout_s`. Raises InvalidInput if an unchecked caller passed another type, or NaN,
    which no time is ever later than.
    """
    given: object = timeout_s
    if timeout_s is None or (isinstance(given, int | float) and not isnan(given)):
        return timeout_s
    raise InvalidInput(
        f"timeout_s: expected a number of seconds or None, found {timeout_s!r}",
        hint="as in timeout_s=90",
    )


def _timed_out(error: StoreUnavailable, patience_s: float) -> WaitTimedOut:
    after = describe_timeout(patience_s)
    return WaitTimedOut(
        f"the server did not answer within {after}: {error.message}", hint=error.hint
    )


_MOST = 128
#: What Redis calls a user that has not named itself.
_UNNAMED = ("", "default")


def checked_component(component: str) -> str:
    """Return the program's own name. Raises InvalidInput if it is not one short printable line."""
    if len(component) > _MOST or not component.isprintable():
        raise InvalidInput(
            f"component: expected at most {_MOST} printable characters, found {component[:40]!r}",
            hint='as in Client(component="data-ready")',
        )
    return component


def user_of(store: RedisStore, component: str) -> str:
    """Return `alice@laptop`, the server's `submitter`, or `data-ready (submitter)`."""
    name = store.link.user
    if name in _UNNAMED:
        name = f"{_login()}@{socket.gethostname()}"
    return f"{component} ({name})" if component else name


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # Containers often run under a uid that has no entry.
        return f"uid-{os.getuid()}"


_HASH = re.compile("[0-9a-f]{64}")
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


class Access(Struct, frozen=True, kw_only=True):
    """A user and its rights. Without a password's hash the user is off and cannot log in."""

    user: str
    role: Role
    nodes: tuple[str, ...]
    hash: str
    rules: tuple[str, ...]

    @property
    def line(self) -> str:
        """The line of a Redis ACL file; the words after `user` are arguments of ACL SETUSER."""
        secret = ("on", f"#{self.hash}") if self.hash else ("off",)
        return " ".join(("user", self.user, "reset", *secret, *self.rules))


def role_named(name: str) -> Role:
    """Return the role of this name. Raises InvalidInput."""
    for role in ROLES:
        if role.name == name:
            return role
    names = [role.name for role in ROLES]
    near = nearest(name, names)
    raise InvalidInput(
        f"there is no role {name!r}; expected one of {', '.join(names)}",
        hint=f"did you mean {near}?" if near else "",
    )


def access(role: Role, *, nodes: Sequence[str] = (), user: str = "", hash_: str = "") -> Access:
    """Return a user of a role; a worker's user is bound to certain nodes. Raises InvalidInput.

    The default name is the role, followed by the node if there is one. `batchq doctor` recognises
    the role by how the user's name begins.
    """
    if role.is_of_nodes and not nodes:
        raise InvalidInput(
            f"a user of the role {role.name} is for certain nodes, and none was named",
            hint=f"name them: `batchq acl {role.name} --node gpu-01`",
        )
    if nodes and not role.is_of_nodes:
        raise InvalidInput(f"a user of the role {role.name} is not for certain nodes")
    for node in nodes:
        if problem := subdomain_problem(node):
            # A pattern in a node's name would be a pattern in the ACL rules.
            raise InvalidInput(f"node {node[:80]!r}: {problem}")
    name = user or (f"{role.name}-{nodes[0]}" if len(nodes) == 1 else role.name)
    if not _USER.fullmatch(name):
        raise InvalidInput(
            f"user {name[:80]!r}: expected letters, digits, '.', '_', '@' and '-', beginning with"
            " a letter or digit"
        )
    if hash_ and not _HASH.fullmatch(hash_):
        raise InvalidInput("the hash of a password: expected 64 hexadecimal digits of a SHA-256")
    return Access(user=name, role=role, nodes=tuple(nodes), hash=hash_, rules=rules_of(role, nodes))


def hash_of(password: bytes) -> str:
    """Return what a server stores of a password. Raises InvalidInput if it is empty."""
    if not password or b"\n" in password:
        raise InvalidInput(
            "the file of the password: expected one line, the password",
            hint="make one, e.g. with `openssl rand -hex 32`",
        )
    return hashlib.sha256(password).hexdigest()


#: An agent is alive if its last heartbeat is younger: three heartbeat intervals.
_ALIVE_MS = 15_000


def with_heartbeats(store: RedisStore, objects: Sequence[Object]) -> tuple[Object, ...]:
    """Return nodes with the time of their last heartbeat, which does not write their records, and
    other objects as they are.
    """
    names = [item.metadata.name for item in objects if isinstance(item, Node)]
    if not names:
        return tuple(objects)
    beats = store.beats(names)
    return tuple(_heard(item, beats) if isinstance(item, Node) else item for item in objects)


def _heard(node: Node, beats: Mapping[str, int]) -> Node:
    heartbeat = beats.get(node.metadata.name, node.status.heartbeat)
    return structs.replace(node, status=structs.replace(node.status, heartbeat=heartbeat))


def refuse_live_nodes(store: RedisStore, objects: Iterable[Object]) -> None:
    """Refuse to delete nodes with a live agent, whose next heartbeat would create them again.

    Raises Conflict.
    """
    for item in objects:
        if not isinstance(item, Node) or not item.status.ready:
            continue
        name = item.metadata.name
        heartbeat = store.beats().get(name)
        silent_ms = _ALIVE_MS if heartbeat is None else store.now_ms() - heartbeat
        if silent_ms < _ALIVE_MS:
            raise Conflict(
                f"Node {name} has an agent, whose last heartbeat was {describe_age(silent_ms)} ago"
                " and which would register it again",
                hint="stop the agent first: end its `batchq worker`, or `batchq down` on that"
                " machine",
            )


def schedulers(store: RedisStore) -> Schedulers:
    """Return the leader and the running schedulers. Raises StoreUnavailable."""
    from batchq.store.link import is_damaged, read_revision
    from batchq.store.schedulers import attending

    leader, there = store.leader(), attending(store)
    try:
        latest = read_revision(store.link)
    except StoreUnavailable as error:
        if not is_damaged(error):
            raise
        # A leader repairs it, and it is only compared with the mirrors here.
        latest = 0
    now_ms = store.now_ms()
    leading: Leading | None = None
    if leader is not None:
        leading = Leading(
            identity=leader.identity,
            epoch=count_of(leader.epoch),
            left_ms=leader.expires_at - now_ms,
        )
    leads = leading is not None and leading.left_ms > 0
    refusal = ""
    if not leads:
        from batchq.store.inspection import why_writes_are_refused

        refusal = why_writes_are_refused(store)
    return Schedulers(
        leader=leading,
        there=[_seen(seen, leading, latest, now_ms, leads=leads) for seen in there],
        refusal=refusal,
    )


def has_no_leader(store: RedisStore) -> bool:
    """Return whether no scheduler leads now. Raises StoreUnavailable."""
    leader = store.leader()
    return leader is None or leader.expires_at <= store.now_ms()


def process_of(identity: str) -> str:
    """Return `pid 12 on host` for the identity `host:12:random`."""
    host, _, rest = identity.partition(":")
    pid = rest.partition(":")[0]
    return f"pid {pid} on {host}" if pid.isdigit() else identity


def _seen(
    seen: SchedulerEntry, leading: Leading | None, revision: int, now_ms: int, *, leads: bool
) -> SchedulerSeen:
    is_leading = leading is not None and leading.identity == seen.identity
    return SchedulerSeen(
        identity=seen.identity,
        version=seen.version,
        seen_ms_ago=max(0, now_ms - seen.seen_at),
        behind=None if seen.mirrored is None else max(0, revision - seen.mirrored),
        config=seen.config,
        refused_file=seen.refused_file,
        leads=is_leading and leads,
        led_last=is_leading and not leads,
    )


class Published(Struct, frozen=True, kw_only=True):
    """A configuration as a file with every default. `led`: a scheduler leads and uses it."""

    text: str
    led: bool


def published_config(url: str | None) -> Published:
    """Return the configuration that the leader has published.

    Raises InvalidInput, StoreUnavailable, and NotFound if none has been published.
    """
    from batchq.store.schedulers import read_config_text

    store = connect(url)
    try:
        text = read_config_text(store)
        if text is None:
            raise NotFound(
                "no scheduler has published its configuration",
                hint=NO_LEADER if has_no_leader(store) else "the leader is of an older version",
            )
        return Published(text=text, led=not has_no_leader(store))
    finally:
        store.close()


def scheduler_settings(store: RedisStore) -> Settings | None:
    """Return the settings that the leader has published, or the defaults if it has published none;
    None if this version of batchq cannot read them. Raises StoreUnavailable.
    """
    from batchq.config.load import read_config
    from batchq.core.session.snapshot import Settings
    from batchq.store.schedulers import read_config_text

    text = read_config_text(store)
    try:
        return Settings() if text is None else read_config(text, "scheduler.yaml").settings
    except InvalidInput:
        return None
