"""The users of the server for nodes: asking the registrar for them, and joining as an agent.

A user that may add users to a Redis server can give itself every right there, so the API may not. A
small process, `batchq registrar`, does it: it takes requests of one line on a unix socket, to make
the user of a node with a password of a given SHA-256 or to remove it, and writes the user's rules.

An agent makes its own password, keeps it in its home, and sends the SHA-256 with its join token. It
stores the password before it asks, so that an answer that was lost can be asked for again.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Struct, structs

from batchq.api.access import digest_of_secret, parse_token
from batchq.api_session import ApiCredentials, ApiSession
from batchq.client.connection import Access, access, role_named
from batchq.errors import InvalidInput, StoreUnavailable
from batchq.paths import Home, read_private, write_private
from batchq.store.urls import checked_url, is_sentinel, shown

MOST_REQUEST_BYTES = 4096
_TIMEOUT_S = 15.0
_DIGEST = re.compile("[0-9a-f]{64}")


class MakeUser(Struct, frozen=True, kw_only=True, tag="make", tag_field="do"):
    """A request to make the user of a node; `digest` is the SHA-256 of its password."""

    node: str
    digest: str


class RemoveUser(Struct, frozen=True, kw_only=True, tag="remove", tag_field="do"):
    """A request to remove the user of a node."""

    node: str


UserRequest: TypeAlias = MakeUser | RemoveUser


class UserAnswer(Struct, frozen=True, kw_only=True):
    """The user of a node, and the server's URL without it; `done`: whether anything was changed.
    Or what is wrong.
    """

    user: str = ""
    url: str = ""
    done: bool = False
    error: str = ""
    hint: str = ""


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

    def make_user(self, node: str, digest: str) -> UserAnswer:
        """Make the user of a node, in place of the one there was.

        Raises InvalidInput, StoreUnavailable.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidInput("digest: expected 64 hexadecimal digits of a SHA-256")
        return self._ask(MakeUser(node=node, digest=digest))

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


class JoinRequest(Struct, frozen=True, kw_only=True):
    """How an agent joins: as which node, at which API, and with the token in which file."""

    node: str
    server: str
    token_file: Path
    authority: str = ""


def joined_url(home: Home, wanted: JoinRequest) -> str:
    """Return the URL of an agent's own user of the server; join first if that has not been done
    with this token. After that, the file with the token is no longer needed.

    Raises InvalidInput, StoreUnavailable, and the errors of the API.
    """
    kept = _kept(home)
    text = _token_in(wanted.token_file, is_needed=kept is None or not kept.url)
    token = "" if text is None else _id_of(text, wanted.token_file)
    if kept is None or (token and kept.token != token):
        kept = NodeCredentials(node=wanted.node, token=token, password=secrets.token_hex(32))
    if kept.node != wanted.node and not kept.url:
        # It was refused under the other name, or no answer came. A token is good for one node.
        kept = structs.replace(kept, node=wanted.node)
    if kept.node != wanted.node:
        raise InvalidInput(
            f"this agent has joined as node {kept.node}, and was started as {wanted.node}",
            hint=f"start it with --name {kept.node}, or in another BATCHQ_HOME",
        )
    if kept.url:
        return _with_user(kept, wanted.authority)
    assert text is not None
    _keep(home, kept)
    credentials = ApiCredentials(server=wanted.server, token=text, authority=wanted.authority)
    with ApiSession(credentials) as session:
        path = f"/v1/nodes/{quote(kept.node, safe='')}/user"
        made = session.request("PUT", path, {"digest": digest_of_secret(kept.password)})
    kept = structs.replace(kept, user=str(made["user"]), url=str(made["url"]))
    url = _with_user(kept, wanted.authority)
    _keep(home, kept)
    return url


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
