"""The TCP ports that an agent reserves for pods with `spec.launch`.

Several agents, of several users, may share a machine, and a pod binds its ports only seconds after
it was started. So an agent holds a lock on each port for as long as the pod is on its node. The
lock is an abstract Unix socket named after the port: the kernel keeps these names for each network
namespace, as it does ports, and frees them when the agent ends, however that happens. A lock file
would need a folder that all users can write, and containers that share the network of their host
would not see it; a socket that is bound to the port itself would have to be closed before the pod
binds it, and another agent could take the port in between.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Container

from msgspec import Struct

from batchq.api.node_report import PodAttempt

#: Above the ports that Linux chooses itself, and those that JAX uses.
FIRST_PORT, LAST_PORT = 61_440, 65_535


class PortRange(Struct, frozen=True):
    """The ports from `first` to `last`, both included."""

    first: int = FIRST_PORT
    last: int = LAST_PORT

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class PortPool:
    """The ports of one agent; owned by its loop."""

    def __init__(self, within: PortRange) -> None:
        self._range = within
        self._held: dict[PodAttempt, dict[int, socket.socket]] = {}
        # A gang that restarts gets other ports than before, even on a new agent: what is left of
        # its former round may still connect to the old ones.
        self._next = os.getpid() % (within.last - within.first + 1)

    def take(self, holder: PodAttempt, count: int) -> tuple[int, ...]:
        """Reserve `count` free ports, and return them; empty if there are too few.

        A holder that asks again keeps what it has.
        """
        held = self._held.setdefault(holder, {})
        size = self._range.last - self._range.first + 1
        for step in range(size):
            if len(held) >= count:
                break
            port = self._range.first + (self._next + step) % size
            if (lock := _locked(port)) is not None:
                held[port] = lock
        if len(held) < count:
            self.give_back(holder)
            return ()
        # After the last one taken, not the highest: the search may have begun again at the first.
        self._next = (list(held)[-1] + 1 - self._range.first) % size
        return tuple(held)

    def give_back(self, holder: PodAttempt) -> None:
        """Release the ports of `holder`, if it has any."""
        for lock in self._held.pop(holder, {}).values():
            lock.close()

    def locks(self) -> list[socket.socket]:
        """Return all locks: a child of the agent closes its copies, or the ports would stay locked
        for as long as it lives.
        """
        return [lock for held in self._held.values() for lock in held.values()]

    def keep(self, holders: Container[PodAttempt] = ()) -> None:
        """Release the ports of all holders but these."""
        for holder in [one for one in self._held if one not in holders]:
            self.give_back(holder)


def _locked(port: int) -> socket.socket | None:
    """Return a lock on a port; None if it is locked or in use."""
    try:
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError as trouble:
        if trouble.errno in (errno.EMFILE, errno.ENFILE):
            return None
        raise
    try:
        lock.bind(f"\0batchq-port-{port}")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", port))
    except OSError:
        lock.close()
        return None
    return lock
