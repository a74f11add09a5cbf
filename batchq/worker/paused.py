"""Work-horses that somebody has stopped (SIGSTOP, a debugger).

Such a one renews no lease and obeys no order, while its pod runs on: once the lease and the grace
are over the pod would begin elsewhere, and run twice at once. It is the agent that can see it in
time, so the agent kills it, and its guard the pod.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

#: By a signal, and by a debugger.
_STOPPED = ("T", "t")


class Paused:
    """For how long the work-horses of one agent have been stopped; owned by the agent's loop."""

    def __init__(self, *, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._since: dict[int, int] = {}

    def overdue(self, stopped: Collection[int], *, now_ms: int) -> list[int]:
        """Those of the pids, all that are stopped now, that have been so for too long.

        They are told once. One that goes on in between is believed anew.
        """
        self._since = {pid: self._since.get(pid, now_ms) for pid in sorted(stopped)}
        found = [pid for pid, at in self._since.items() if now_ms - at >= self._patience_ms]
        for pid in found:
            del self._since[pid]
        return found


def stopped(pids: Collection[int]) -> list[int]:
    """Those of the processes that cannot go on by themselves."""
    return [pid for pid in pids if _state(pid) in _STOPPED]


def _state(pid: int) -> str:
    """The letter that Linux has for it; empty if there is no such process.

    Read without psutil, which opens three files where one will do: this is asked every second.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name before it is in brackets, and may hold brackets of its own.
    return stat.rpartition(") ")[2][:1]
