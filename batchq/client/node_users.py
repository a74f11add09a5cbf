"""The users of the server for nodes: the registrar, which makes them, joining as an agent, and for
which names a join token is.

A user that may add users to a Redis server can give itself every right there, so the API may not. A
small process, `batchq registrar`, does it: it takes requests of one line on a unix socket, to make
the user of a node with a password of a given SHA-256 or to remove it, and writes the user's rules.
It answers one connection at a time, and trusts nothing but the account at the other end, which the
kernel names. What it gives is bounded by its two requests: the rights of a worker, for one node.

An agent makes its own password, keeps it in its home, and sends the SHA-256 with its join token. It
stores the password before it asks, so that an answer that was lost can be asked for again.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import select
import socket
import struct
import threading
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Struct, structs

from batchq.api.access import digest_of_secret, parse_token
from batchq.api.notation import subdomain_problem
from batchq.api_session import ApiCredentials, ApiSession, agreed_pin, split_token
from batchq.client.connection import Access, access, role_named
from batchq.errors import BatchqError, Conflict, InvalidInput, StoreUnavailable
from batchq.paths import Home, read_private, write_private
from batchq.store.roles import ServerUsers
from batchq.store.urls import checked_url, is_sentinel, shown
from batchq.system import structlog

MOST_REQUEST_BYTES = 4096
_TIMEOUT_S = 15.0
_DIGEST = re.compile("[0-9a-f]{64}")
#: What stands for some letters of a node's name in the pattern of a join token.
ANY = "*"
#: How many nodes may join with a token for a pattern.
MOST_USES = 1_000


class MakeUser(Struct, frozen=True, kw_only=True, tag="make", tag_field="do"):
    """A request to make the user of a node; `digest` is the SHA-256 of its password."""

    node: str
    digest: str


class MakeNewUser(Struct, frozen=True, kw_only=True, tag="make-new", tag_field="do"):
    """A request to make the user of a node that has none, or has it with this password."""

    node: str
    digest: str


class RemoveUser(Struct, frozen=True, kw_only=True, tag="remove", tag_field="do"):
    """A request to remove the user of a node."""

    node: str


UserRequest: TypeAlias = MakeUser | MakeNewUser | RemoveUser


class UserAnswer(Struct, frozen=True, kw_only=True):
    """The user of a node, and the server's URL without it; `done`: whether anything was changed.
    Or what is wrong.
    """

    user: str = ""
    url: str = ""
    done: bool = False
    error: str = ""
    hint: str = ""
    #: Whether the node had a user already.
    is_taken: bool = False


def user_of_node(node: str, digest: str = "") -> Access:
    """Return the user of a node, with its rules. Raises InvalidInput."""
    return access(role_named("worker"), nodes=(node,), hash_=digest)


def checked_agents_url(url: str) -> str:
    """Return the URL under which agents reach the server. Raises InvalidInput."""
    found = checked_url(url)
    parts = urlsplit(found)
    if is_sentinel(found):
        raise InvalidInput(
            "--agents-url: users are not replicated, so a registrar serves one server",
            hint="with sentinels, print the lines of users: `batchq acl worker --help`",
        )
    if "@" in parts.netloc:
        raise InvalidInput(
            f"--agents-url {shown(found)}: expected no user or password in it",
            hint="each agent gets its own",
        )
    return found


class NodeRegistrar:
    """A registrar, by its socket. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make_user(self, node: str, digest: str, *, is_new: bool = False) -> UserAnswer:
        """Make the user of a node, in place of the one there was; if the node `is_new`, there must
        be none with another password.

        Raises InvalidInput, Conflict, StoreUnavailable.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidInput("digest: expected 64 hexadecimal digits of a SHA-256")
        kind = MakeNewUser if is_new else MakeUser
        answer = self._ask(kind(node=node, digest=digest))
        if answer.is_taken:
            raise Conflict(
                f"node {node} has a user of the server already, and this join token is for new"
                " nodes",
                hint=f"an operator lets this one join: `batchq nodes invite {node}`",
            )
        return answer

    def remove_user(self, node: str) -> bool:
        """Remove the user of a node, and return whether there was one. Raises StoreUnavailable."""
        return self._ask(RemoveUser(node=node)).done

    def _ask(self, request: UserRequest) -> UserAnswer:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.settimeout(_TIMEOUT_S)
                asking.connect(str(self._path))
                with contextlib.suppress(BrokenPipeError):
                    # A registrar that refuses this account has answered without reading.
                    asking.sendall(msgspec.json.encode(request) + b"\n")
                with asking.makefile("rb") as file:
                    line = file.readline(MOST_REQUEST_BYTES)
            answer = msgspec.json.decode(line, type=UserAnswer)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise StoreUnavailable(
                f"the registrar at {self._path} does not answer:"
                f" {getattr(error, 'strerror', None) or 'it ended the connection'}",
                hint="is `batchq registrar` running there?",
            ) from None
        if answer.error:
            raise StoreUnavailable(f"the registrar: {answer.error}", hint=answer.hint)
        return answer


class NodeCredentials(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an agent keeps: the join token's id, its password, and, once it has joined, its user and
    the server's URL.
    """

    node: str
    token: str
    password: str
    user: str = ""
    url: str = ""
    #: The SHA-256 of the API's certificate, if the token stated it.
    pin: str = ""


class JoinRequest(Struct, frozen=True, kw_only=True):
    """How an agent joins: as which node, at which API, and with the token in which file."""

    node: str
    server: str
    token_file: Path
    authority: str = ""
    #: The SHA-256 that the API's certificate must have, if it is known.
    pin: str = ""


class Joined(NamedTuple):
    """The URL of an agent's own user of the server, and the SHA-256 of the API's certificate, if
    it was stated.
    """

    url: str
    pin: str


def joined(home: Home, wanted: JoinRequest) -> Joined:
    """Return how an agent reaches the server as its own user; join first if that has not been done
    with this token. After that, the file with the token is no longer needed.

    Raises InvalidInput, StoreUnavailable, and the errors of the API.
    """
    kept = _kept(home)
    text = _token_in(wanted.token_file, is_needed=kept is None or not kept.url)
    token, stated = "", ""
    if text is not None:
        text, stated = split_token(text)
        token = _id_of(text, wanted.token_file)
    pin = agreed_pin(wanted.server, wanted.pin, stated)
    if kept is None or (token and kept.token != token):
        password = secrets.token_hex(32)
        kept = NodeCredentials(node=wanted.node, token=token, password=password, pin=pin)
    if kept.node != wanted.node and not kept.url:
        # It was refused under the other name, or no answer came. A token is good for one node.
        kept = structs.replace(kept, node=wanted.node)
    if kept.node != wanted.node:
        raise InvalidInput(
            f"this agent has joined as node {kept.node}, and was started as {wanted.node}",
            hint=f"start it with --name {kept.node}, or in another BATCHQ_HOME",
        )
    if kept.url:
        return Joined(_with_user(kept, wanted.authority), wanted.pin or kept.pin)
    assert text is not None
    kept = structs.replace(kept, pin=pin)
    _keep(home, kept)
    credentials = ApiCredentials(
        server=wanted.server, token=text, authority=wanted.authority, pin=pin
    )
    with ApiSession(credentials) as session:
        path = f"/v1/nodes/{quote(kept.node, safe='')}/user"
        made = session.request("PUT", path, {"digest": digest_of_secret(kept.password)})
    kept = structs.replace(kept, user=str(made["user"]), url=str(made["url"]))
    url = _with_user(kept, wanted.authority)
    _keep(home, kept)
    return Joined(url, kept.pin)


def _token_in(path: Path, *, is_needed: bool) -> str | None:
    try:
        words = path.read_text(encoding="ascii").split()
    except FileNotFoundError:
        if not is_needed:
            return None
        raise InvalidInput(
            f"--join {path}: there is no such file",
            hint="`batchq nodes invite NODE` prints the token that belongs into it",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidInput(f"--join {path}: {why}") from None
    return words[0] if len(words) == 1 else ""


def _id_of(text: str, path: Path) -> str:
    parts = parse_token(text)
    if parts is None or parts.kind != "join":
        # The message must not show the text, which may be another secret.
        raise InvalidInput(
            f"--join {path}: expected one join token, bqj_…, and nothing else",
            hint="`batchq nodes invite NODE` prints one",
        )
    return parts.id


def _kept(home: Home) -> NodeCredentials | None:
    path = home.node_credentials
    try:
        return msgspec.json.decode(read_private(path), type=NodeCredentials)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise InvalidInput(
            f"{path} is malformed", hint="remove it, and join again with another token"
        ) from None


def _keep(home: Home, credentials: NodeCredentials) -> None:
    home.prepare()
    write_private(home.node_credentials, msgspec.json.encode(credentials) + b"\n")


def _with_user(kept: NodeCredentials, authority: str) -> str:
    """Return the URL with its user and password, and the authority to trust if it speaks TLS."""
    parts = urlsplit(checked_url(kept.url))
    options = parts.query
    if authority and parts.scheme == "rediss" and "ssl_ca_certs" not in options:
        options = "&".join(filter(None, (options, f"ssl_ca_certs={quote(authority)}")))
    user = f"{quote(kept.user, safe='')}:{kept.password}"
    return checked_url(urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}", query=options)))


_log = structlog.get_logger()

#: The longest time in which a caller sends its request.
_LINE_S = 5.0
_BACKLOG = 16
#: How often the loop checks whether it is to end.
_LOOK_S = 0.5
_PEER = "3i"


class NodeUserService:
    """Answers requests on a unix socket until its end is asked for. Belongs to one thread.

    `url` is the server's, with a user of the role registrar; `agents_url` is the one for agents.
    `callers` are the accounts that may ask. Raises InvalidInput, Conflict if another process
    listens there.
    """

    def __init__(self, url: str, agents_url: str, path: Path, callers: frozenset[int]) -> None:
        self._users = ServerUsers(url)
        self._agents_url = agents_url
        self._callers = callers
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket():
                if _answers(path):
                    raise Conflict(f"another process listens on unix:{path}")
                # A killed process has left the socket behind.
                path.unlink()
            self._socket.bind(str(path))
            # Any account may connect; the kernel names it.
            path.chmod(0o666)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise InvalidInput(f"cannot listen on unix:{path}: {error.strerror}") from None
        except Conflict:
            self._socket.close()
            raise

    def check(self) -> None:
        """Raise StoreUnavailable if the server keeps its users in no file, or refuses this user."""
        self._users.save()

    def serve(self, stopping: threading.Event) -> None:
        """Answer until the event is set; then close everything."""
        _log.info("registrar.listens", path=str(self._path))
        try:
            while not stopping.is_set():
                ready, _, _ = select.select([self._socket], [], [], _LOOK_S)
                if ready:
                    connection, _ = self._socket.accept()
                    with connection:
                        self._answer(connection)
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket and the connection to the server. A second call does nothing."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            self._path.unlink(missing_ok=True)
            self._users.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_LINE_S)
            answer = self._answer_to(connection)
            connection.sendall(msgspec.json.encode(answer) + b"\n")
        except OSError as error:
            _log.warning("registrar.caller_lost", error=str(error))

    def _answer_to(self, connection: socket.socket) -> UserAnswer:
        stored = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_PEER)
        )
        _, uid, _ = struct.unpack(_PEER, stored)
        if uid not in self._callers:
            _log.warning("registrar.refused", uid=uid)
            return UserAnswer(error=f"it does not serve account {uid}")
        with connection.makefile("rb") as file:
            line = file.readline(MOST_REQUEST_BYTES)
        try:
            request = msgspec.json.decode(line, type=UserRequest)
            return self._done(request)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return UserAnswer(error=f"the request: {error}")
        except BatchqError as error:
            return UserAnswer(error=error.message, hint=error.hint)

    def _done(self, request: UserRequest) -> UserAnswer:
        match request:
            case MakeUser(node=node, digest=digest) | MakeNewUser(node=node, digest=digest):
                found = user_of_node(node, digest)
                if not found.hash:
                    raise InvalidInput("digest: expected the SHA-256 of a password")
                if isinstance(request, MakeNewUser):
                    hashes = self._users.hashes_of(found.user)
                    if hashes is not None and hashes != [digest]:
                        _log.warning("registrar.user_exists", user=found.user)
                        return UserAnswer(user=found.user, is_taken=True)
                # Without "user NAME", which the command states itself.
                self._users.write(found.user, found.line.split()[2:])
                _log.info("registrar.user_made", user=found.user)
                return UserAnswer(user=found.user, url=self._agents_url, done=True)
            case RemoveUser(node=node):
                name = user_of_node(node).user
                done = self._users.delete(name)
                _log.info("registrar.user_removed", user=name, was_there=done)
                return UserAnswer(user=name, done=done)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(3.0)
        return probe.connect_ex(str(path)) == 0


def check_pattern(pattern: str) -> None:
    """Raise InvalidInput unless it is a pattern: a node's name with `*` for some of its letters,
    digits and `-`.
    """
    # A star may stand for nothing, except where a name would then begin or end with a dash.
    tried = pattern.replace(ANY, "x")
    if ANY not in pattern or not pattern.strip(f"{ANY}-.") or (problem := subdomain_problem(tried)):
        why = "" if ANY not in pattern or not pattern.strip(f"{ANY}-.") else f": {problem}"
        raise InvalidInput(
            f"the pattern {pattern[:80]!r}: expected a part of a node's name, and {ANY!r} for the"
            f" rest{why}",
            hint=f"as in gpu-{ANY}",
        )


def is_for(names: str, node: str) -> bool:
    """Return whether a node's name is the one that a join token is for, or has its pattern."""
    if subdomain_problem(node):
        return False
    parts = (re.escape(part) for part in names.split(ANY))
    return re.fullmatch("[a-z0-9-]*".join(parts), node) is not None
