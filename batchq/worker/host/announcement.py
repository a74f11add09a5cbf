"""Tells the HTTP API of this machine under which account an agent runs pods.

The agent listens on an abstract unix socket of a random name. Whoever connects learns the agent's
account from the kernel, which no one can forge: see `batchq/http/agent_accounts.py`. Nothing is
sent.
"""

from __future__ import annotations

import secrets
import socket

from batchq.api.node_report import AGENT_SOCKET
from batchq.system import structlog

log = structlog.get_logger(__name__)

_BACKLOG = 128


class Announcement:
    """A listening socket, from its creation on; owned by the agent's loop."""

    def __init__(self, *, is_wanted: bool, prefix: str = AGENT_SOCKET) -> None:
        self._socket: socket.socket | None = None
        if not is_wanted:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(f"\0{prefix}{secrets.token_hex(16)}")
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            log.warning(
                "account not announced",
                error=error.strerror,
                remedy="if an HTTP API runs on this machine, name this account with its"
                " --agent-user",
            )
            return
        self._socket = listening

    def answer(self) -> None:
        """Hang up on those who have asked, so that others can."""
        if self._socket is None:
            return
        for _ in range(_BACKLOG):
            try:
                self._socket.accept()[0].close()
            except OSError:
                return

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close()
