"""That nodes are alive, and how long what runs on them may be believed to run.

Each node has one hash, which only its agent and work-horses write: its beat, the run id of the
server that it has told everything to, and the end of the lease of every attempt that runs there.
A lease of an attempt that is over is nobody's: whoever reads leases asks for those of the attempts
that pods are in. So a renewal need not look at the pod in the same step.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast
from zlib import crc32

import redis
from msgspec import Struct

from batchq.api.node_report import subject_of_pod
from batchq.api.objects import Unreadable
from batchq.core.session.snapshot import ContactStanding
from batchq.store import codec, keys, scripts
from batchq.store.link import OTHER_TYPE, AddCall, Link, each_of
from batchq.store.records import head_of, name_of

_BEAT = b"beat"
_RUN = b"run"
_PAGE = 200
#: The sizes of so many hashes are asked for at once.
_SIZES_A_TRIP = 2_000
#: No node has more attempts: one whose hash has more fields is not heard until it was taken out.
MOST_FIELDS = 10_000
_NOTHING: Mapping[bytes, bytes] = {}
#: No number of an attempt is longer.
_DIGITS = 19

#: What nodes have said: node -> field -> value.
Said: TypeAlias = Mapping[str, Mapping[bytes, bytes]]


class Renewal(Struct, frozen=True, kw_only=True):
    """Whether a pod's work-horse goes on, stops (`reason` says why), or is no longer the pod's."""

    word: Literal["ok", "stop", "fenced"]
    reason: str = ""


class Alive:
    """The hashes of all nodes of one server. Every method raises StoreUnavailable."""

    def __init__(self, link: Link, now_ms: Callable[[], int]) -> None:
        self._link = link
        self._now_ms = now_ms

    def beat(self, node: str, run: str) -> None:
        """The node is alive now, and has told everything to the server with this run id, if any."""
        self._write(node, _BEAT, self._now_ms(), run=run)

    def renew(self, node: str, pod: str, attempt: int, fence: str, lease_ms: int) -> Renewal:
        """Renew the lease of an attempt, and hear whether to go on."""
        until = self._now_ms() + lease_ms
        head = self._write(node, subject_of_pod(pod, attempt).encode(), until, pod=pod)
        return renewal_of(head, fence)

    def end_lease(self, node: str, pod: str, attempt: int) -> None:
        """Nothing of the attempt runs any more."""
        field = subject_of_pod(pod, attempt)
        self._link.ask(lambda client: client.hdel(keys.alive(node), field))

    def has_reported(self, node: str) -> bool:
        """Whether the agent of a node has told everything to the server since its last start."""
        told = self._link.ask(
            lambda client: cast("bytes | None", client.hget(keys.alive(node), _RUN.decode()))
        )
        return _text(told or b"") == self._link.run_id()

    def leased(self, node: str) -> list[tuple[str, int]]:
        """The attempts that have a lease on a node, run out or not. What is no lease is taken out:
        its agent asks, who may write there.
        """
        fields = self._link.ask(lambda client: cast("list[bytes]", client.hkeys(keys.alive(node))))
        damaged = [field for field in fields if _is_damaged(field)]
        if damaged:
            self._link.ask(lambda client: client.hdel(keys.alive(node), *damaged))
        found = [_attempt(field) for field in sorted(fields)]
        return [one for one in found if one is not None]

    def read(self, nodes: Sequence[str]) -> Said:
        """What each of these nodes has said, one round trip for many; nothing of one whose key is
        of another type, or has more fields than a node has attempts.
        """
        said: dict[str, Mapping[bytes, bytes]] = dict.fromkeys(nodes, _NOTHING)
        bounded = self._bounded(nodes)
        for start in range(0, len(bounded), _PAGE):
            some = bounded[start : start + _PAGE]

            def asked(client: Any, some: Sequence[str] = some) -> list[dict[bytes, bytes] | None]:
                pipeline = client.pipeline(transaction=False)
                for node in some:
                    pipeline.hgetall(keys.alive(node))
                return each_of(pipeline)

            for node, fields in zip(some, self._link.ask(asked), strict=True):
                said[node] = {} if fields is None else fields
                if fields is None:
                    self._note(node, OTHER_TYPE)
        return said

    def _bounded(self, nodes: Sequence[str]) -> list[str]:
        """Those of the nodes whose hashes can be read as a whole; the others are told of."""
        found: list[str] = []
        for start in range(0, len(nodes), _SIZES_A_TRIP):
            some = nodes[start : start + _SIZES_A_TRIP]

            def asked(client: Any, some: Sequence[str] = some) -> list[Any]:
                pipeline = client.pipeline(transaction=False)
                for node in some:
                    pipeline.hlen(keys.alive(node))
                return cast("list[Any]", pipeline.execute(raise_on_error=False))

            for node, size in zip(some, self._link.ask(asked), strict=True):
                # What is of another type, and who may not count, is met with when it is read.
                if isinstance(size, Exception) or size <= MOST_FIELDS:
                    found.append(node)
                else:
                    self._note(node, f"it has {size} fields, of {MOST_FIELDS} at most")
        return found

    def _note(self, node: str, why: str) -> None:
        self._link.found_damaged[keys.alive(node)] = why
        self._link.suspect(node, f"{keys.alive(node)}: {why}")

    def _write(self, node: str, field: bytes, at_ms: int, *, run: str = "", pod: str = "") -> bytes:
        """Note an instant, and `run` if there is one; the head of `pod`, empty if there is none."""
        key = keys.alive(node)

        def written(client: Any, add_call: AddCall | None = None) -> bytes:
            pipeline = client.pipeline(transaction=True)
            if add_call is not None:
                add_call(pipeline, scripts.RAISE, (key,), (keys.ALIVE_TTL_S, field, at_ms))
            else:
                pipeline.hset(key, field, at_ms)
                pipeline.expire(key, keys.ALIVE_TTL_S)
            if run:
                pipeline.hset(key, _RUN, run)
            pipeline.hget(keys.heads("Pod"), pod)
            return cast("bytes | None", pipeline.execute()[-1]) or b""

        # A pod must not end because no scheduler has loaded scripts since a restart of the server.
        # That a call which comes late takes back an instant is then put right by the next.
        return self._link.call(written, otherwise=written)


def beats_of(said: Said) -> dict[str, int]:
    """When each node was last heard of, by name."""
    return {node: _number(said[node][_BEAT]) for node in sorted(said) if _BEAT in said[node]}


def runs_of(said: Said) -> dict[str, str]:
    """The run id of the server that each node has last told everything to, by name."""
    return {node: _text(said[node][_RUN]) for node in sorted(said) if _RUN in said[node]}


def leases_of(said: Said) -> dict[tuple[str, str, int], int]:
    """When the lease of each attempt of a pod on a node ends, by (node, pod, attempt)."""
    found: dict[tuple[str, str, int], int] = {}
    for node, fields in said.items():
        for field, value in fields.items():
            attempt = _attempt(field)
            if attempt is not None:
                found[node, *attempt] = _number(value)
    return found


def spoiled_in(said: Said, leases: Mapping[tuple[str, str, int], int]) -> dict[str, str]:
    """By node what has been said, if anything, that is no beat, run or lease; `leases` are those
    of it. That all is well is found without a look at each field.
    """
    others = sum((_BEAT in fields) + (_RUN in fields) for fields in said.values())
    is_whole = len(leases) + others == sum(map(len, said.values()))
    if is_whole and 0 not in leases.values() and 0 not in beats_of(said).values():
        return {}
    damaged = {node: damaged_in(node, fields) for node, fields in said.items()}
    return {node: f"{one[0].key}: {one[0].why}" for node, one in damaged.items() if one}


def _is_damaged(field: bytes) -> bool:
    return field not in (_BEAT, _RUN) and _attempt(field) is None


def damaged_in(node: str, fields: Mapping[bytes, bytes]) -> list[Unreadable]:
    """What stands in the hash of a node and is no beat, run or lease."""
    found = [
        field
        for field in sorted(fields)
        if _is_damaged(field) or (field != _RUN and not fields[field].isdigit())
    ]
    return [
        Unreadable(
            kind="Key",
            key=keys.alive(node),
            why=f"its field {name_of(field)[:60]} is no beat and no lease",
            remedy="its agent sets it right or takes it out within 10 s; if it stays, see its log",
        )
        for field in found
    ]


def _attempt(field: bytes) -> tuple[str, int] | None:
    """The pod and attempt that a field is about; None for a beat, and for what is no attempt."""
    pod, dash, attempt = field.decode(errors="replace").rpartition("-")
    is_number = attempt.isascii() and attempt.isdigit() and len(attempt) <= _DIGITS
    return (pod, int(attempt)) if dash and is_number else None


def _number(value: bytes) -> int:
    """A node may write anything into its own hash: what is no instant was long ago."""
    return int(value) if value.isdigit() and len(value) < 16 else 0


def _text(value: bytes) -> str:
    """What is not UTF-8 is the run id of no server."""
    return value.decode(errors="replace")


def renewal_of(head: bytes, fence: str) -> Renewal:
    """What the head of a pod, `revision|phase|fence|stop`, says to the holder of a fence."""
    _, phase, current, stop = head_of(head)
    if current != fence or phase not in ("Bound", "Running"):
        return Renewal(word="fenced")
    return Renewal(word="stop", reason=stop) if stop else Renewal(word="ok")


#: Who has not been heard of for longer may have been out of reach; so may everybody else.
LONGEST_GAP_MS = 5_000


_Entries: TypeAlias = "list[tuple[bytes, dict[bytes, bytes]]]"


class Contact:
    """Counts how long there has been no break. Instants are milliseconds of the server's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._longest_gap_ms = LONGEST_GAP_MS
        self._last_at: int | None = None
        self._since = 0

    def allow_gaps(self, longest_ms: int) -> None:
        """What is no break: well below the shortest lease that is judged by it."""
        self._longest_gap_ms = min(LONGEST_GAP_MS, longest_ms)

    def made(self) -> None:
        """The server has answered everything that was asked."""
        now = self._now_ms()
        # A clock that was set back is a break, too: until it has caught up, nobody would be silent.
        if self._last_at is None or not 0 <= now - self._last_at <= self._longest_gap_ms:
            self._since = now
        self._last_at = now

    def lost(self) -> None:
        """It has not."""
        self._last_at = None

    @property
    def since(self) -> int:
        """The end of the last break."""
        return self._since


class LastSeen:
    """The last change that was read, to be found again in a server that was started anew."""

    def __init__(self) -> None:
        self._revision = 0
        self._trace = 0

    def note_latest(self, link: Link) -> None:
        """It is the server's latest. Raises StoreUnavailable."""
        found = link.ask(lambda client: cast(_Entries, client.xrevrange(keys.CHANGES, count=1)))
        for raw_id, fields in found:
            self.note(raw_id, fields)

    def note(self, raw_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        """It is this one now."""
        self._revision = int(raw_id.split(b"-")[0])
        self._trace = _trace_of(fields)

    def is_forgotten(self, link: Link) -> bool:
        """Whether the server no longer knows that change, or knows another by its number."""
        if not self._revision:
            return False
        place = f"{self._revision}-0"
        found = link.ask(lambda client: cast(_Entries, client.xrange(keys.CHANGES, place, place)))
        if not found:
            return True
        return _trace_of(found[0][1]) != self._trace


def _trace_of(fields: Mapping[bytes, bytes]) -> int:
    """Of the whole entry, whoever wrote it."""
    return crc32(b" ".join(name + b"=" + fields[name] for name in sorted(fields)))


#: Run, generation and since, of what the leader has written of the server.
ServerHash: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


def standing_of(
    server: ServerHash,
    *,
    runs: Mapping[str, str],
    contact: Contact,
    forgot: bool,
) -> ContactStanding:
    """What the hash of `keys.SERVER` holds (run, generation, since), as the session goes by it.

    `runs`: under which run of the server each node has reported.
    """
    run, generation, since = server
    began, restarted_at = codec.whole(generation), codec.whole(since)
    # What is no number is written anew by who leads next.
    if run is None or began is None or restarted_at is None:
        return ContactStanding(contact_since=contact.since)
    now_runs = run.decode(errors="replace")
    return ContactStanding(
        generation=began,
        contact_since=contact.since,
        restarted_at=restarted_at,
        reported=frozenset(name for name, at in runs.items() if at == now_runs),
        forgot=forgot,
    )


#: All who measure leases agree again so soon after the server's clock was set or its machine slept:
#: well within a lease, or who is first to notice would find the leases of all others over.
REMEASURE_AFTER_MS = 5_000
#: An answer that took longer tells too little of when it was given.
SLOW_ANSWER_MS = 1_000
MOST_TRIES = 3
#: A server whose clock was set back further than this is followed; until then, time stands still.
LONGEST_PAUSE_MS = 5_000


class ServerClock:
    """Milliseconds since the epoch as the server counts them.

    The difference to this machine's monotonic clock is measured again every few seconds, and over
    each new connection, which may lead to another machine; small steps back are not passed on. Any
    thread may ask.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._ahead_ms = 0
        self._measured_at: int | None = None
        self._connections = 0
        self._last = 0

    def now_ms(self) -> int:
        """Raises StoreUnavailable when the server cannot be asked."""
        if self._is_due():
            self._measure()
        with self._lock:
            now = _monotonic_ms() + self._ahead_ms
            if now < self._last - LONGEST_PAUSE_MS:
                self._last = now
            self._last = max(self._last, now)
            return self._last

    def _is_due(self) -> bool:
        measured_at = self._measured_at
        if measured_at is None or self._connections != self._link.connections:
            return True
        return _monotonic_ms() - measured_at >= REMEASURE_AFTER_MS

    def _measure(self) -> None:
        # Asking may make a connection itself; then the next look measures once more.
        self._connections = self._link.connections
        round_trip_ms, ahead_ms = min(self._tries())
        with self._lock:
            self._ahead_ms = ahead_ms
            self._measured_at = None if round_trip_ms > SLOW_ANSWER_MS else _monotonic_ms()

    def _tries(self) -> Iterator[tuple[int, int]]:
        """How long an answer took, and what it tells; asked again at once after a slow one.

        A server that stood still for seconds would be believed to be ahead by half of them.
        """
        for _ in range(MOST_TRIES):
            before = _monotonic_ms()
            seconds, microseconds = self._link.ask(lambda client: client.time())
            after = _monotonic_ms()
            yield after - before, seconds * 1000 + microseconds // 1000 - (before + after) // 2
            if after - before <= SLOW_ANSWER_MS:
                return


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


_CREDENTIALS = "3i"


def pid_of_server(link: Link) -> int | None:
    """The pid of the server, if the connection leads straight to a process of this machine.

    Only a unix socket does, and only if whoever listens there is the server itself: through a
    proxy or a tunnel the server may be anywhere. Raises StoreUnavailable.
    """
    listener = link.ask(_listener)
    told = link.ask(lambda client: client.info("server")) if listener else {}
    return listener if listener == told.get("process_id") else None


def _listener(client: redis.Redis) -> int | None:
    """Who listens at the other end of a unix socket."""
    pool = client.connection_pool
    if "path" not in pool.connection_kwargs:
        return None
    connection: Any = pool.get_connection()
    try:
        # redis-py has no public name for it.
        connected: socket.socket = connection._sock
        size = struct.calcsize(_CREDENTIALS)
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    finally:
        pool.release(connection)
    return int(struct.unpack(_CREDENTIALS, told)[0]) or None
