"""The identity of a caller, the tokens and bindings behind it as this process knows them, and the
requests that are refused before it is determined.

The **unix socket** needs no secret: the kernel names the account of the process at its other end.
The account that runs the API holds the credentials of the Redis server, so it is operator and admin
here as well: a refusal would protect nothing. Any other account is a user of the name that it has
on this machine, with the bindings of that user and of its Unix groups.

A pod that connects to the socket is, to the kernel, the account of its agent. So **accounts under
which agents of this machine run pods** are refused. Each agent listens on an abstract unix socket
for as long as it runs (`batchq.worker.host.accounts`), and the kernel says which accounts listen on
such sockets. No one can announce another account than its own: a record in the Redis server, which
a node's credentials could write, would let any node shut out any account.
An account that was seen is remembered for a day after its last agent, because a pod can outlive the
agent that it has killed.

A web page can make a browser send requests to this machine, and can make its own host name lead
here (DNS rebinding). So `Host` must be one of the API's names, and `Origin`, if there is one, must
be the API itself, on the socket as well.

The revision of **tokens and bindings** is checked twice a second, and they are read again when it
changes; a change through this process is read at once. Open streams check their token again and
again, so they end within a second of its revocation. While the records cannot be read, tokens are
refused after `STALE_S`, because one of them may have been revoked.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import pwd
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from http import HTTPStatus
from time import monotonic, time
from typing import NamedTuple, TypeAlias

from msgspec import UNSET, Struct, structs
from starlette.datastructures import Headers

from batchq.api.access import (
    AccessRole,
    Binding,
    Identity,
    Scope,
    TokenKind,
    TokenParts,
    attempt_of,
    parse_token,
)
from batchq.api.node_report import AGENT_SOCKET, PodAttempt
from batchq.client.access_control import AccessControl, AccessState, TokenRecord
from batchq.http.problems import ApiProblem, bad_request, forbidden, not_ready, unauthenticated
from batchq.system import structlog

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: What `Sec-Fetch-Site` says of requests that no other site has caused.
_OWN_SITE = frozenset({"same-origin", "none"})


class SocketPeer(NamedTuple):
    """The process at the other end of a unix socket, as the kernel names it."""

    uid: int
    pid: int


class MachineAccount(NamedTuple):
    """An account of this machine, as its directory describes it; `uid` is None if there is none of
    that name.
    """

    name: str
    uid: int | None
    groups: tuple[str, ...] = ()


def account_of(who: int | str) -> MachineAccount:
    """Look an account up by its uid or its name; `uid-1000` is the name of one that has none, as in
    a container.

    The directory may be far away (LDAP), and slow.
    """
    try:
        found = pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    except (KeyError, ValueError):
        # ValueError: no account has a name with a NUL in it.
        return (
            MachineAccount(f"uid-{who}", who) if isinstance(who, int) else MachineAccount(who, None)
        )
    groups = []
    for gid in os.getgrouplist(found.pw_name, found.pw_gid):
        try:
            groups.append(f"unix:{grp.getgrgid(gid).gr_name}")
        except KeyError:
            continue
    return MachineAccount(
        found.pw_name if isinstance(who, int) else who, found.pw_uid, tuple(sorted(groups))
    )


class SocketAccounts(Struct, frozen=True, kw_only=True):
    """What the socket makes of the accounts of this machine.

    `server_uid` runs the API. `agents` are accounts that run pods. `is_one_account`: pods that run
    under the account of the API are its owner's, who accepts them.
    """

    server_uid: int
    agents: AgentAccounts
    is_one_account: bool = False

    def check(self, peer: SocketPeer, name: str) -> None:
        """Raise ApiProblem for a process of an agent's account."""
        is_accepted = self.is_one_account and peer.uid == self.server_uid
        if peer.uid in self.agents and not is_accepted:
            raise unauthenticated(
                f"account {name} runs pods, and the socket knows no users of it",
                hint="use a token, or run agents of this machine under another account",
            )

    def identity_of(self, account: MachineAccount) -> Identity:
        """Return the identity of a process of an account, or of a user of its name."""
        name = account.name
        if account.uid is None:
            return Identity(user=name, via="socket")
        aliases = frozenset({f"{name}@{socket.gethostname()}"})
        if account.uid != self.server_uid:
            return Identity(user=name, via="socket", groups=account.groups, aliases=aliases)
        subject = f"user:{name}"
        own = (
            Binding(subject=subject, role=AccessRole.OPERATOR),
            Binding(subject=subject, role=AccessRole.ADMIN),
        )
        return Identity(user=name, via="socket", aliases=aliases, own=own)

    def identity_of_user(self, account: MachineAccount, by: Identity, reason: str) -> Identity:
        """Return the identity of a user in whose name another one acts: with the rights of that
        user's bindings, as far as the token of the other one goes.
        """
        return structs.replace(
            self.identity_of(account),
            via=by.via, own=(), scope=by.scope, token=by.token, by=by, reason=reason,
        )  # fmt: skip

    def identity_of_pod(self, account: MachineAccount, token: str, group: str) -> Identity:
        """Return the identity of a pod: it has the rights that the owner of its group has at this
        moment, in the namespace of the group, to groups alone.

        The account that runs the API has no bindings. Its pods are submitters, not operators: a
        user with a token may have the name of that account, too.
        """
        identity, namespace = self.identity_of(account), group.partition("/")[0]
        subject = f"user:{account.name}"
        own = (
            (Binding(subject=subject, role=AccessRole.SUBMITTER, namespace=namespace),)
            if identity.own
            else ()
        )
        scope = Scope(namespaces=(namespace,))
        return structs.replace(identity, via="pod", own=own, scope=scope, token=token, group=group)


def owner_name(owner: str) -> str:
    """Return the name of the owner of a group: commands without the API record the machine, too."""
    return owner.removesuffix(f"@{socket.gethostname()}")


class OwnNames:
    """The names under which this API may be addressed, and the checks of a request's origin."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = LOCAL_NAMES | {name.lower() for name in names}

    def check(self, headers: Headers) -> None:
        """Raise ApiProblem unless the request is addressed to us, and not sent by another site."""
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise bad_request(f"expected one Host header, found {len(hosts)}")
        if without_port(hosts[0]).lower() not in self._names:
            raise ApiProblem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "UnknownHost",
                f"this API has no name {hosts[0][:80]!r}",
                hint="start it with `--name NAME` for each name under which it is reached",
            )
        self._check_origin(headers, hosts[0])

    def _check_origin(self, headers: Mapping[str, str], host: str) -> None:
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        if site is not None and site not in _OWN_SITE:
            raise forbidden(f"a page of another site has sent this request ({site[:40]})")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise forbidden(f"a page of {origin[:80]!r} has sent this request")


def without_port(host: str) -> str:
    """Return a Host header's name; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


#: How often the revision is asked for.
LOOK_S = 0.5
#: A book that is older is not used for tokens.
STALE_S = 30.0
#: How often the use of a token is recorded at most.
_NOTE_EVERY_S = 60.0


AccessRights: TypeAlias = tuple[Sequence[Binding], Mapping[str, Sequence[str]]]


class AccessBook:
    """Tokens and bindings. Any thread may read and renew it."""

    def __init__(self) -> None:
        self._state = AccessState()
        #: The bindings, and the local groups of each user: of one moment.
        self._rights: AccessRights = (), {}
        self._read_at: float | None = None
        self._noted_at: dict[str, float] = {}
        #: How many streams each pod has open, by its token, and which of these pods have ended.
        self._streams_of_pods: Counter[str] = Counter()
        self._ended_pods: frozenset[str] = frozenset()
        self._pods_read_at = monotonic()

    @property
    def rights(self) -> AccessRights:
        """All bindings, and the local groups of each user; other objects after each change."""
        return self._rights

    @property
    def bindings(self) -> Sequence[Binding]:
        """All bindings; another object after each change."""
        return self._rights[0]

    @property
    def is_read(self) -> bool:
        """Whether it has been read at all."""
        return self._read_at is not None

    @property
    def state(self) -> AccessState:
        """All tokens and bindings."""
        return self._state

    def renew(self, access: AccessControl) -> None:
        """Read what has changed. Raises StoreUnavailable."""
        began_at = monotonic()
        state = self._state
        if self._read_at is None or access.revision() != state.revision:
            state = access.state()
        if self._read_at is not None and began_at < self._read_at:
            # Another thread has begun later, and has read at least as much.
            return
        if state is not self._state:
            self._state = state
            # A list, since an empty tuple is the same object as the one before it.
            bindings = sorted(one.binding for one in state.bindings.values())
            self._rights = bindings, state.memberships
        self._read_at = began_at

    def identity_of(self, written: Sequence[str], kind: TokenKind = "token") -> Identity:
        """Return the identity of an Authorization header with such a token. Raises ApiProblem."""
        parts = parts_of(written)
        if parts is None:
            raise unauthenticated(
                "expected one token, whole: Authorization: Bearer bqt_…", reason="malformed"
            )
        if parts.kind != kind:
            if (parts.kind, kind) == ("invitation", "token"):
                raise unauthenticated(
                    "an invitation is not a token: it is exchanged for one, once",
                    hint="see `batchq login --help`",
                    reason="malformed",
                )
            raise unauthenticated(f"expected {_EXPECTED[kind]}", reason="malformed")
        self._refuse_if_stale()
        record = self._state.tokens.get(parts.id)
        if record is None or not parts.matches(record.kind, record.digest):
            raise unauthenticated("this token is unknown", reason="unknown")
        problem = _problem_of(record)
        if problem is not None:
            raise problem
        groups = () if record.groups is UNSET else record.groups
        return Identity(
            user=record.owner, via="token", groups=groups, scope=record.scope, token=record.id
        )

    def recheck(self, identity: Identity) -> ApiProblem | None:
        """Return why an identity may do nothing any more; None if it may go on."""
        if not identity.token:
            return None
        try:
            self._refuse_if_stale()
        except ApiProblem as problem:
            return problem
        if identity.via == "pod":
            if monotonic() - self._pods_read_at > STALE_S:
                return not_ready("the pods cannot be read: the server does not answer")
            return pod_has_ended() if identity.token in self._ended_pods else None
        record = self._state.tokens.get(identity.token)
        if record is None:
            return unauthenticated("this token is unknown", reason="unknown")
        return _problem_of(record)

    @contextmanager
    def stream_of(self, identity: Identity) -> Iterator[None]:
        """Have the pod that opens a stream looked up until the stream is closed."""
        if identity.via != "pod":
            yield
            return
        self._streams_of_pods[identity.token] += 1
        try:
            yield
        finally:
            self._streams_of_pods[identity.token] -= 1
            if not self._streams_of_pods[identity.token]:
                del self._streams_of_pods[identity.token]

    def renew_pods(self, holds: Callable[[Sequence[PodAttempt]], Container[PodAttempt]]) -> None:
        """Look up the pods that have open streams; `holds` is `Delegate.pod_holds`.

        Raises StoreUnavailable.
        """
        # Streams open and close in another thread meanwhile.
        began_at = monotonic()
        streaming = {token: attempt_of(token) for token in self._streams_of_pods.copy()}
        held = holds(list(streaming.values()))
        self._pods_read_at = began_at
        self._ended_pods = frozenset(
            token for token, attempt in streaming.items() if attempt not in held
        )

    def is_use_due(self, token: str) -> bool:
        """Return whether the use of a token should be recorded now."""
        now = monotonic()
        if now - self._noted_at.get(token, -_NOTE_EVERY_S) < _NOTE_EVERY_S:
            return False
        if len(self._noted_at) > len(self._state.tokens):
            self._noted_at.clear()
        self._noted_at[token] = now
        return True

    def is_first_use_of_successor(self, token: str) -> bool:
        """Return whether the use must be recorded before it is answered: a token that was rotated
        can be rotated again until the use of its successor is known.
        """
        record = self._state.tokens.get(token)
        return token not in self._noted_at and record is not None and record.replaces is not UNSET

    def forget_use(self, token: str) -> None:
        """Have the next use of a token recorded, because this one could not be."""
        self._noted_at.pop(token, None)

    def _refuse_if_stale(self) -> None:
        if self._read_at is None or monotonic() - self._read_at > STALE_S:
            raise not_ready("the tokens cannot be read: the server does not answer")


def parts_of(written: Sequence[str]) -> TokenParts | None:
    """Return the parts of the token in Authorization headers; None if there is no single one."""
    scheme, _, text = written[0].partition(" ") if len(written) == 1 else ("", "", "")
    return parse_token(text.strip()) if scheme.lower() == "bearer" else None


def pod_has_ended() -> ApiProblem:
    """Return 401 for the token of a pod."""
    return unauthenticated(
        "the pod of this token has ended, or is unknown",
        hint="a pod's token is valid from its start to its end",
        reason="ended",
    )


#: What a request shows, by what its path expects.
_EXPECTED: dict[TokenKind, str] = {
    "token": "a token, bqt_…",
    "invitation": "an invitation, bqi_…",
    "join": "a join token, bqj_…",
    "pod": "the token of a pod, bqp_…",
}


def _problem_of(record: TokenRecord) -> ApiProblem | None:
    if record.revoked_at is not None and record.kind == "invitation":
        return unauthenticated(
            f"invitation {record.id} has been used already, or was revoked",
            hint="ask for another one",
            reason="revoked",
        )
    # An agent that has lost the answer shows its join token again.
    if record.revoked_at is not None and record.kind != "join":
        return unauthenticated(f"token {record.id} was revoked", reason="revoked")
    if record.expires_at <= time() * 1000:
        what = "join token" if record.kind == "join" else record.kind
        return unauthenticated(f"{what} {record.id} has expired", reason="expired")
    return None


_log = structlog.get_logger()

#: Between two looks.
AGENT_LOOK_EVERY_S = 2.0
_KEPT_S = 24 * 60 * 60.0
#: From the kernel's headers: linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST_DUMP, _NLMSG_ERROR, _NLMSG_DONE = 0x301, 2, 3
_LISTENING = 1 << 10
_SHOW_NAME_AND_UID, _NAME, _UID = 0x41, 0, 7
_HEADER, _SOCKET_BYTES, _READ_BYTES = struct.Struct("=IHHII"), 16, 1 << 18
_SIZE_AND_KIND = struct.Struct("=IH").unpack_from
_KERNEL_ANSWERS_WITHIN_S = 5.0


class AgentAccounts:
    """The accounts that run pods: those that were named, and those of the agents found here.

    Any thread may use it.
    """

    def __init__(self, named: Iterable[int] = (), *, prefix: str = AGENT_SOCKET) -> None:
        self._named = frozenset(named)
        self._prefix = prefix
        self._lock = threading.Lock()
        self._seen_at: dict[int, float] = {}
        #: Why the kernel did not name the accounts at the last look; "" if it did.
        self.trouble = ""

    def __contains__(self, uid: int) -> bool:
        return uid in self._named or uid in self._seen_at

    def look(self) -> None:
        """Find the agents of this machine. Accounts that were seen stay known if it fails."""
        if sys.platform != "linux":
            # The socket names no accounts on other systems, either.
            return
        with self._lock:
            try:
                found, trouble = _listening_accounts(f"\0{self._prefix}".encode())
            except OSError as error:
                found, trouble = frozenset(), error.strerror or str(error)
            except struct.error as error:
                found, trouble = frozenset(), f"the kernel's answer is malformed: {error}"
            except Exception as error:  # a bug must not end the looks
                found, trouble = frozenset(), f"{type(error).__name__}: {error}"
            if trouble and not self.trouble:
                _log.warning(
                    "api.agents_not_seen",
                    error=trouble,
                    remedy="name the accounts of agents with --agent-user",
                )
            self.trouble, now = trouble, monotonic()
            seen_at = {uid: at for uid, at in self._seen_at.items() if now - at < _KEPT_S}
            # Another thread reads it meanwhile.
            self._seen_at = seen_at | dict.fromkeys(found, now)


class AgentLooks:
    """The looks at agents that requests wait for; used in one event loop."""

    def __init__(self, agents: AgentAccounts) -> None:
        self._agents = agents
        self._lock = asyncio.Lock()
        self._begun = self._ended = 0

    async def look(self, threads: Executor) -> None:
        """Return after a look that began during this call, by which an agent that has started
        before it is known. All that come during one look share the next one.
        """
        wanted = self._begun + 1
        async with self._lock:
            if self._ended >= wanted:
                return
            self._begun += 1
            number = self._begun
            await asyncio.get_running_loop().run_in_executor(threads, self._agents.look)
            self._ended = number


def _listening_accounts(prefix: bytes) -> tuple[frozenset[int], str]:
    """Return the accounts that listen on unix sockets whose names begin with the prefix, and why
    there may be others; "" if there are none.

    Only the kernel is asked: a process behind a socket could be kept too busy to answer. It has to
    name the account of a socket of our own, too, which it does not before Linux 5.3. Raises OSError
    if it names no accounts, or takes too long.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
        # The kernel chooses the name.
        own.bind("")
        own.listen(0)
        found, ours = _accounts_of_listening((prefix, own.getsockname()))
    is_sure = os.geteuid() in ours
    return found, "" if is_sure else "the kernel does not name the accounts of sockets"


def _accounts_of_listening(prefixes: tuple[bytes, bytes]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the accounts that listen on sockets whose names begin with each prefix."""
    asked = struct.pack(
        "=BBHIIIII", socket.AF_UNIX, 0, 0, _LISTENING, 0, _SHOW_NAME_AND_UID, 0xFFFFFFFF, 0xFFFFFFFF
    )
    head = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
    found: tuple[set[int], set[int]] = (set(), set())
    give_up_at = monotonic() + _KERNEL_ANSWERS_WITHIN_S
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_KERNEL_ANSWERS_WITHIN_S)
        kernel.sendto(head + asked, (0, 0))
        while monotonic() < give_up_at:
            read = kernel.recv(_READ_BYTES)
            # Any account can listen on many sockets; only what may concern us is taken apart.
            is_of_interest = any(prefix in read for prefix in prefixes)
            for kind, start, end in _messages_in(read):
                if kind == _NLMSG_DONE:
                    return frozenset(found[0]), frozenset(found[1])
                if kind == _NLMSG_ERROR:
                    number = -struct.unpack_from("=i", read, start)[0]
                    raise OSError(number, os.strerror(number))
                if not is_of_interest:
                    continue
                attributes = dict(_attributes_in(read[start + _SOCKET_BYTES : end]))
                for prefix, accounts in zip(prefixes, found, strict=True):
                    if attributes.get(_NAME, b"").startswith(prefix):
                        if _UID not in attributes:
                            raise OSError(errno.ENOTSUP, "the kernel names no accounts of sockets")
                        accounts.add(struct.unpack("=I", attributes[_UID])[0])
    raise TimeoutError(errno.ETIMEDOUT, "the kernel has not named all sockets in time")


def _messages_in(read: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the type, the start and the end of the body of each message of the kernel."""
    place, last = 0, len(read) - _HEADER.size
    while place <= last:
        size, kind = _SIZE_AND_KIND(read, place)
        yield kind, place + _HEADER.size, place + size
        place += _aligned(size)


def _attributes_in(body: bytes) -> Iterator[tuple[int, bytes]]:
    while len(body) >= 4:
        size, kind = struct.unpack_from("=HH", body)
        yield kind, body[4:size]
        body = body[_aligned(size) :]


def _aligned(size: int) -> int:
    return max(4, (size + 3) & ~3)
