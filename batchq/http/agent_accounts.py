"""The accounts under which agents of this machine run pods, as the kernel names them.

A pod that connects to the API's socket is, to the kernel, the account of its agent. So no such
account is accepted there. Each agent listens on an abstract unix socket for as long as it runs
(`batchq.worker.host.announcement`), and a process that connects to it learns from the kernel which
account listens. No one can announce another account than its own: a record in the Redis server,
which a node's credentials could write, would let any node shut out any account.

An account that was seen is remembered for a day after its last agent, because a pod can outlive the
agent that it has killed.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from batchq.api.node_report import AGENT_SOCKET
from batchq.system import structlog

_log = structlog.get_logger()

#: The sockets of this machine, as every process may read them.
_TABLE = Path("/proc/net/unix")
#: Between two looks.
LOOK_EVERY_S = 2.0
_KEPT_S = 24 * 60 * 60.0
_CREDENTIALS = "3i"


class AgentAccounts:
    """The accounts that run pods: those that were named, and those of the agents found here.

    Any thread may use it.
    """

    def __init__(self, named: Iterable[int] = (), *, prefix: str = AGENT_SOCKET) -> None:
        self._named = frozenset(named)
        self._prefix = prefix
        self._lock = threading.Lock()
        #: The account behind each socket that was there at the last look.
        self._uids: dict[str, int] = {}
        self._seen_at: dict[int, float] = {}

    def __contains__(self, uid: int) -> bool:
        return uid in self._named or uid in self._seen_at

    def look(self) -> None:
        """Find the agents of this machine."""
        if sys.platform != "linux":
            # The socket names no accounts on other systems, either.
            return
        with self._lock:
            self._look()

    def _look(self) -> None:
        now, known = monotonic(), self._uids
        found: dict[str, int] = {}
        for name in self._names():
            uid = known[name] if name in known else _account_behind(name)
            if uid is not None:
                found[name] = uid
        self._uids = found
        for uid in sorted({*found.values()} - self._seen_at.keys() - self._named):
            _log.info("api.agent_found", uid=uid, effect="its processes need a token on the socket")
        seen_at = {uid: at for uid, at in self._seen_at.items() if now - at < _KEPT_S}
        # Another thread reads it meanwhile.
        self._seen_at = seen_at | dict.fromkeys(found.values(), now)

    def _names(self) -> Iterable[str]:
        try:
            table = _TABLE.read_text(errors="replace")
        except OSError as error:
            _log.warning(
                "api.agents_not_seen",
                error=error.strerror,
                remedy="name the accounts of agents with --agent-user",
            )
            return ()
        begin = f"@{self._prefix}"
        names = (line.rpartition(" ")[2] for line in table.splitlines())
        return {name[1:] for name in names if name.startswith(begin)}


def _account_behind(name: str) -> int | None:
    """Return the account that listens on an abstract socket; None if that is not known now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(f"\0{name}")
        except OSError:
            # It has ended, is no listening socket, or has many callers: the next look asks again.
            return None
        size = struct.calcsize(_CREDENTIALS)
        stored = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid: int = struct.unpack(_CREDENTIALS, stored)[1]
    return uid
