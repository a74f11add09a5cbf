"""The identity of a caller, and the requests that are refused before it is determined.

The **unix socket** needs no secret: the kernel names the account of the process at its other end.
The account that runs the API holds the credentials of the Redis server, so it is operator and admin
here as well: a refusal would protect nothing. Any other account is a user of the name that it has
on this machine, with the bindings of that user and of its Unix groups. Accounts under which agents
run pods are refused: otherwise each pod could act as its agent's account.

A web page can make a browser send requests to this machine, and can make its own host name lead
here (DNS rebinding). So `Host` must be one of the API's names, and `Origin`, if there is one, must
be the API itself, on the socket as well.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from msgspec import Struct, structs
from starlette.datastructures import Headers

from batchq.api.access import AccessRole, Binding, Identity, Scope
from batchq.http.problems import ApiProblem, bad_request, forbidden, unauthenticated

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: What `Sec-Fetch-Site` says of requests that no other site has caused.
_OWN_SITE = frozenset({"same-origin", "none"})


class SocketPeer(NamedTuple):
    """The process at the other end of a unix socket, as the kernel names it."""

    uid: int
    pid: int


class SocketAccounts(Struct, frozen=True, kw_only=True):
    """What the socket makes of the accounts of this machine.

    `server_uid` runs the API. `agent_uids` run pods.
    """

    server_uid: int
    agent_uids: frozenset[int] = frozenset()

    def identity_of(self, peer: SocketPeer) -> Identity:
        """Return the identity of a process. Raises ApiProblem for an agent's account."""
        if peer.uid in self.agent_uids:
            raise unauthenticated(
                f"account {account_name(peer.uid)} runs pods, and the socket knows no users of it",
                hint="use a token",
            )
        return self._identity(account_name(peer.uid), peer.uid)

    def _identity(self, name: str, uid: int) -> Identity:
        aliases = frozenset({f"{name}@{socket.gethostname()}"})
        if uid != self.server_uid:
            groups = tuple(f"unix:{group}" for group in group_names(uid))
            return Identity(user=name, via="socket", groups=groups, aliases=aliases)
        subject = f"user:{name}"
        own = (
            Binding(subject=subject, role=AccessRole.OPERATOR),
            Binding(subject=subject, role=AccessRole.ADMIN),
        )
        return Identity(user=name, via="socket", aliases=aliases, own=own)

    def identity_of_user(self, name: str, by: Identity, reason: str) -> Identity:
        """Return the identity of a user in whose name another one acts: with the rights of that
        user's bindings, as far as the token of the other one goes.
        """
        uid = uid_of(name)
        identity = Identity(user=name, via=by.via) if uid is None else self._identity(name, uid)
        return structs.replace(
            identity, via=by.via, own=(), scope=by.scope, token=by.token, by=by, reason=reason
        )

    def identity_of_pod(self, token: str, group: str, owner: str) -> Identity:
        """Return the identity of a pod: it has the rights that the owner of its group has at this
        moment, in the namespace of the group, to groups alone.

        The account that runs the API has no bindings. Its pods are submitters, not operators: a
        user with a token may have the name of that account, too.
        """
        # Commands without the API record the machine, too.
        name = owner.removesuffix(f"@{socket.gethostname()}")
        uid = uid_of(name)
        identity = Identity(user=name, via="pod") if uid is None else self._identity(name, uid)
        namespace = group.partition("/")[0]
        own = (
            (Binding(subject=f"user:{name}", role=AccessRole.SUBMITTER, namespace=namespace),)
            if identity.own
            else ()
        )
        scope = Scope(namespaces=(namespace,))
        return structs.replace(identity, via="pod", own=own, scope=scope, token=token, group=group)


def account_name(uid: int) -> str:
    """Return the login name of an account; `uid-1000` if it has none, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def uid_of(name: str) -> int | None:
    """Return the account of a user on this machine; None if there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def group_names(uid: int) -> list[str]:
    """Return the names of an account's Unix groups, sorted."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return []
    names = []
    for gid in os.getgrouplist(account.pw_name, account.pw_gid):
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return sorted(names)


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
