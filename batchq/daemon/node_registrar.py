"""The registrar: makes and removes the users of nodes, for the HTTP API of this machine.

It answers one connection at a time, and trusts nothing but the account at the other end, which the
kernel names. What it gives is bounded by its two requests: the rights of a worker, for one node.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from pathlib import Path

import msgspec

from batchq.client.node_users import (
    MOST_REQUEST_BYTES,
    MakeUser,
    RemoveUser,
    UserAnswer,
    UserRequest,
    user_of_node,
)
from batchq.errors import BatchqError, Conflict, InvalidInput
from batchq.store.roles import ServerUsers
from batchq.system import structlog

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
            case MakeUser(node=node, digest=digest):
                found = user_of_node(node, digest)
                if not found.hash:
                    raise InvalidInput("digest: expected the SHA-256 of a password")
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
