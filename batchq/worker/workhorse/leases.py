"""A pod attempt's lease on its node, and how an agent vouches for its work-horses.

The agent renews the leases of all its pods in one request. Then it writes into a table in memory,
which it shares with its work-horses, when it sent that request. So a quiet pod needs no connection
to the server. A work-horse that the agent does not vouch for, because the agent is paused or slow,
asks the server itself. If it gets no answer either, it ends its pod before the lease ends.

All instants are milliseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

from msgspec import Struct

from batchq.errors import StoreUnavailable
from batchq.worker.agent.pod_states import lease_margin_ms
from batchq.worker.workhorse.run_file import started_ms, state_and_start


class Lease:
    """One pod attempt's lease, as its work-horse sees it.

    The server counts a lease from the renewal's arrival, and the work-horse from the moment the
    renewal was sent, so the work-horse's lease always ends first.
    """

    def __init__(self, *, now_ms: int, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self.margin_ms = lease_margin_ms(lease_ms)
        self.ends_at = now_ms + lease_ms

    def extend(self, *, asked_at: int) -> bool:
        """Extend the lease from `asked_at`, when the renewal was sent; return whether it is longer.

        It is also extended if the server was seen to be away then, because an absent server ends no
        lease. A late answer never shortens the lease, and a renewal that was sent when the lease
        was lost does not extend it: the server may have given the pod away by then.
        """
        is_longer = asked_at + self._lease_ms > self.ends_at and not self.is_lost(asked_at)
        if is_longer:
            self.ends_at = asked_at + self._lease_ms
        return is_longer

    @property
    def guarded_until(self) -> int:
        """When the guard kills the pod, should the work-horse have failed to."""
        return self.ends_at - self.margin_ms // 2

    def is_lost(self, now_ms: int) -> bool:
        """Return whether the pod's processes must be killed now."""
        return now_ms >= self.ends_at - self.margin_ms


#: Stopped by a signal, and by a debugger.
_STOPPED = ("T", "t")


class OwnServer(Struct, frozen=True):
    """A server process, told from a later process with the same pid by its start time."""

    pid: int
    started_ms: int | None

    def is_away(self) -> bool:
        """Return whether the process has ended or is stopped, so that it answers no requests."""
        state, started = state_and_start(self.pid)
        return started is None or started != self.started_ms or state in _STOPPED


class ServerWatch:
    """Watches which process is the server, and looks it up again over each new connection.

    The thread that talks to the server calls `heard` and `lost`; any thread may call `is_away`.
    `connections` counts the connections made.
    """

    def __init__(
        self, find: Callable[[], int | None], *, connections: Callable[[], int] = lambda: 0
    ) -> None:
        self._find = find
        self._connections = connections
        self._found_over = 0
        self._lock = threading.Lock()
        self._server: OwnServer | None = None
        self._is_sure = False

    def heard(self) -> None:
        """Note that the server has answered."""
        if self._is_sure and self._connections() == self._found_over:
            return
        try:
            pid = self._find()
        except StoreUnavailable:
            return
        self._found_over = self._connections()
        with self._lock:
            self._server = None if pid is None else OwnServer(pid, started_ms(pid))
            self._is_sure = True

    def lost(self, *, refused: bool = False) -> None:
        """Note that the server has not answered; the next one to answer may be another process.

        If it `refused` the request, a server is there that may serve other clients, so its process
        is forgotten.
        """
        self._is_sure = False
        if refused:
            with self._lock:
                self._server = None

    def learn(self, server: OwnServer | None) -> None:
        """Take over what another process of this machine has found out."""
        with self._lock:
            self._server = server

    def known(self) -> OwnServer | None:
        """Return the server's process, if it is known."""
        with self._lock:
            return self._server

    def is_away(self) -> bool:
        """Return whether the server that answered last is known to answer no requests now."""
        with self._lock:
            return self._server is not None and self._server.is_away()


#: A row of the table, in numbers of eight bytes: the agent's row comes first.
_ROW = 16
#: What the agent's row holds: when it was last written, and the server's process.
_TICK, _SERVER = range(2)
#: What the row of a work-horse holds: when its lease was last asked for, its last sign of life,
#: whether the server does not know its attempt, and why the pod is to stop: a length, and text.
_ASKED_AT, _SEEN_AT, _IS_DISOWNED, _LENGTH, _TEXT = range(5)
_MOST_TEXT_BYTES = (_ROW - _TEXT) * 8
#: A pid has at most this many bits.
_PID_BITS = 22


class Voucher:
    """A row of the table: what an agent and one of its work-horses tell each other.

    Each number has one writer, and is read and written whole.
    """

    def __init__(self, table: VoucherTable, row: int) -> None:
        self._table = table
        self._row = row
        self._start = row * _ROW

    def begin(self, *, asked_at: int, now_ms: int) -> None:
        """Begin to vouch for another attempt, before the work-horse gets it."""
        for place, number in (
            (_LENGTH, 0),
            (_IS_DISOWNED, 0),
            (_SEEN_AT, now_ms),
            (_ASKED_AT, asked_at),
        ):
            self._write(place, number)

    def renew(self, *, asked_at: int) -> None:
        """Tell that the lease was renewed, by a request that was sent at `asked_at`."""
        self._write(_ASKED_AT, asked_at)
        self._write(_IS_DISOWNED, 0)

    def stop(self, reason: str) -> None:
        """Tell that the pod is to stop, and why."""
        text = (reason or "Stopped").encode()[:_MOST_TEXT_BYTES]
        start = (self._start + _TEXT) * 8
        self._table.memory[start : start + len(text)] = text
        self._write(_LENGTH, len(text))

    def disown(self) -> None:
        """Tell that the server does not know the attempt."""
        self._write(_IS_DISOWNED, 1)

    def give_back(self) -> None:
        """Free the row of a work-horse that has ended."""
        self._table.give_back(self._row)

    @property
    def seen_at(self) -> int:
        """When the work-horse gave its last sign of life."""
        return self._read(_SEEN_AT)

    def sign(self, now_ms: int) -> None:
        """Give a sign of life."""
        self._write(_SEEN_AT, now_ms)

    @property
    def asked_at(self) -> int:
        """When the last renewal of the lease was sent."""
        return self._read(_ASKED_AT)

    @property
    def is_disowned(self) -> bool:
        """Whether the server does not know the attempt, by the agent's last request."""
        return bool(self._read(_IS_DISOWNED))

    @property
    def stop_reason(self) -> str:
        """Why the pod is to stop; empty if it is not."""
        start, length = (self._start + _TEXT) * 8, self._read(_LENGTH)
        return bytes(self._table.memory[start : start + length]).decode(errors="replace")

    def ticked_at(self) -> int:
        """Return when the agent last gave a sign of life."""
        return self._table.ticked_at()

    def server(self) -> OwnServer | None:
        """Return the server's process, if the agent knows it."""
        return self._table.server()

    def keep_from_children(self) -> None:
        """Hide the table from the children of this process: they run programs of users."""
        self._table.memory.madvise(mmap.MADV_DONTFORK)

    def _read(self, place: int) -> int:
        return self._table.numbers[self._start + place]

    def _write(self, place: int, number: int) -> None:
        self._table.numbers[self._start + place] = number


class VoucherTable:
    """The memory that one agent shares with its work-horses, which inherit it; owned by the agent.

    Create it before the first work-horse.
    """

    def __init__(self, rows: int) -> None:
        self.memory = mmap.mmap(-1, (rows + 1) * _ROW * 8)
        self.numbers = memoryview(self.memory).cast("q")
        self._free = list(range(rows, 0, -1))

    def take(self) -> Voucher | None:
        """Return a free row; None if there is none. Its work-horse then asks the server itself."""
        return Voucher(self, self._free.pop()) if self._free else None

    def give_back(self, row: int) -> None:
        """Free a row."""
        self._free.append(row)

    def tick(self, now_ms: int, server: OwnServer | None) -> None:
        """Note that the agent's loop runs, and which process the server is."""
        packed = 0 if server is None else (server.started_ms or 0) << _PID_BITS | server.pid
        self.numbers[_SERVER] = packed
        self.numbers[_TICK] = now_ms

    def ticked_at(self) -> int:
        return self.numbers[_TICK]

    def server(self) -> OwnServer | None:
        packed = self.numbers[_SERVER]
        if not packed:
            return None
        return OwnServer(packed & (1 << _PID_BITS) - 1, packed >> _PID_BITS)
