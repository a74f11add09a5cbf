"""Heartbeats of nodes, leases of attempts, and the server's clock.

Each node has one hash, which only its agent and work-horses write: its heartbeat, the run id of the
server that it has reported everything to, and the end of the lease of every attempt that runs
there. A renewal does not check that the attempt still runs, because a late renewal is harmless:
readers look up only the leases of the pods' present attempts.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias, cast
from zlib import crc32

import redis
from msgspec import Struct

from batchq.api.node_report import PodAttempt, subject_of_pod
from batchq.api.objects import Unreadable
from batchq.core.session.snapshot import ContactStanding
from batchq.store import keys, scripts
from batchq.store.direct import forget_idle
from batchq.store.link import OTHER_TYPE, AddCall, Link, answers_of
from batchq.store.records import head_of, name_of, whole

_BEAT = b"beat"
_RUN = b"run"
_PAGE = 200
#: Hashes whose sizes are read in one round trip.
_SIZES_A_TRIP = 2_000
_TOKENS_A_TRIP = 500
#: No node has more attempts: a hash with more fields is not read until it has been deleted.
MOST_FIELDS = 10_000
_NOTHING: Mapping[bytes, bytes] = {}
#: No attempt's number has more digits.
_DIGITS = 19

#: What nodes have written: node -> field -> value.
AliveHashes: TypeAlias = Mapping[str, Mapping[bytes, bytes]]


class Renewal(Struct, frozen=True, kw_only=True):
    """Whether a pod's work-horse goes on, stops (`reason` says why), or has lost the pod."""

    word: Literal["ok", "stop", "fenced"]
    reason: str = ""
    #: Whether the pod is Running.
    is_running: bool = False


def _tokens_of(attempts: Sequence[tuple[str, PodAttempt]], client: Any) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for node, attempt in attempts:
        pipeline.get(keys.pod_token(node, attempt.pod, attempt.attempt))
        pipeline.hget(keys.alive(node), attempt.id)
    return answers_of(pipeline)


class Alive:
    """The hashes of all nodes of one server. Every method raises StoreUnavailable."""

    def __init__(self, link: Link, now_ms: Callable[[], int]) -> None:
        self._link = link
        self._now_ms = now_ms

    def beat(self, node: str, run: str) -> None:
        """Record that the node is alive now, and has reported everything to the server with run id
        `run`, unless it is empty.
        """
        self._write(node, self._now_ms(), [_BEAT], run=run)

    def renew(self, node: str, pod: str, attempt: int, fence: str, lease_ms: int) -> Renewal:
        """Renew the lease of an attempt; return whether the attempt may continue."""
        [renewal] = self.renew_all(node, [(PodAttempt(pod, attempt), fence)], lease_ms)
        return renewal

    def renew_all(
        self, node: str, attempts: Sequence[tuple[PodAttempt, str]], lease_ms: int
    ) -> list[Renewal]:
        """Renew the leases of attempts in one request; return whether each may continue."""
        until = self._now_ms() + lease_ms
        heads = self._write(
            node,
            until,
            [attempt.id for attempt, _ in attempts],
            pods=[attempt.pod for attempt, _ in attempts],
        )
        return _renewals(heads, attempts)

    def look(self, attempts: Sequence[tuple[PodAttempt, str]]) -> list[Renewal]:
        """Return whether these attempts may continue, as `renew_all` does, but write nothing."""
        pods = [attempt.pod for attempt, _ in attempts]
        heads = self._link.ask(
            lambda client: cast("list[bytes | None]", client.hmget(keys.heads("Pod"), pods))
        )
        return _renewals(heads, attempts)

    def end_lease(self, node: str, pod: str, attempt: int) -> None:
        """End the lease of an attempt whose processes are gone."""
        field = subject_of_pod(pod, attempt)
        self._link.ask(lambda client: client.hdel(keys.alive(node), field))

    def put_token(self, node: str, attempt: PodAttempt, digest: str) -> None:
        """Keep the digest of an attempt's token for a day; safe to repeat."""
        key = keys.pod_token(node, attempt.pod, attempt.attempt)
        self._link.ask(lambda client: client.set(key, digest, ex=keys.POD_TOKEN_TTL_S))

    def tokens(self, attempts: Sequence[tuple[str, PodAttempt]]) -> list[tuple[str, int]]:
        """Return the digest of the token of each attempt on its node, and the end of its lease; or
        "" and 0.
        """
        found: list[tuple[str, int]] = []
        for start in range(0, len(attempts), _TOKENS_A_TRIP):
            some = attempts[start : start + _TOKENS_A_TRIP]
            answers = iter(self._link.ask(partial(_tokens_of, some)))
            found += [
                (_text(digest or b""), _number(until or b""))
                for digest, until in zip(answers, answers, strict=True)
            ]
        return found

    def has_reported(self, node: str) -> bool:
        """Return whether a node's agent has reported everything since the server's last start."""
        run = self._link.ask(
            lambda client: cast("bytes | None", client.hget(keys.alive(node), _RUN.decode()))
        )
        return _text(run or b"") == self._link.run_id()

    def leased(self, node: str) -> list[tuple[str, int]]:
        """Return the attempts with a lease on a node, expired or not, and remove malformed fields:
        the caller is the node's agent, which may write there.
        """
        fields = self._link.ask(lambda client: cast("list[bytes]", client.hkeys(keys.alive(node))))
        damaged = [field for field in fields if _is_damaged(field)]
        if damaged:
            self._link.ask(lambda client: client.hdel(keys.alive(node), *damaged))
        found = [_attempt(field) for field in sorted(fields)]
        return [one for one in found if one is not None]

    def read(self, nodes: Sequence[str]) -> AliveHashes:
        """Return what each of these nodes has written, many in a round trip; nothing for a node
        whose key is of another type, or has more fields than a node has attempts.
        """
        hashes: dict[str, Mapping[bytes, bytes]] = dict.fromkeys(nodes, _NOTHING)
        bounded = self._bounded(nodes)
        for start in range(0, len(bounded), _PAGE):
            some = bounded[start : start + _PAGE]

            def asked(client: Any, some: Sequence[str] = some) -> list[dict[bytes, bytes] | None]:
                pipeline = client.pipeline(transaction=False)
                for node in some:
                    pipeline.hgetall(keys.alive(node))
                return answers_of(pipeline)

            for node, fields in zip(some, self._link.ask(asked), strict=True):
                hashes[node] = {} if fields is None else fields
                if fields is None:
                    self._note(node, OTHER_TYPE)
        return hashes

    def _bounded(self, nodes: Sequence[str]) -> list[str]:
        """Return the nodes whose hashes are small enough to read; note the others as damaged."""
        found: list[str] = []
        for start in range(0, len(nodes), _SIZES_A_TRIP):
            some = nodes[start : start + _SIZES_A_TRIP]

            def asked(client: Any, some: Sequence[str] = some) -> list[Any]:
                pipeline = client.pipeline(transaction=False)
                for node in some:
                    pipeline.hlen(keys.alive(node))
                return cast("list[Any]", pipeline.execute(raise_on_error=False))

            for node, size in zip(some, self._link.ask(asked), strict=True):
                # A key of another type, or a user who may not count, shows when the hash is read.
                if isinstance(size, Exception) or size <= MOST_FIELDS:
                    found.append(node)
                else:
                    self._note(node, f"it has {size} fields; at most {MOST_FIELDS} are expected")
        return found

    def _note(self, node: str, why: str) -> None:
        self._link.found_damaged[keys.alive(node)] = why
        self._link.suspect(node, f"{keys.alive(node)}: {why}")

    def _write(
        self,
        node: str,
        instant: int,
        fields: Sequence[str | bytes],
        *,
        run: str = "",
        pods: Sequence[str] = (),
    ) -> list[bytes | None]:
        """Record an instant in fields, and `run` unless it is empty; return the heads of `pods`."""
        key = keys.alive(node)

        def written(client: Any, add_call: AddCall | None = None) -> list[bytes | None]:
            pipeline = client.pipeline(transaction=True)
            if add_call is not None:
                add_call(pipeline, scripts.RAISE, (key,), (keys.ALIVE_TTL_S, instant, *fields))
            else:
                pipeline.hset(key, mapping=dict.fromkeys(fields, instant))
                pipeline.expire(key, keys.ALIVE_TTL_S)
            if run:
                pipeline.hset(key, _RUN, run)
            if pods:
                pipeline.hmget(keys.heads("Pod"), list(pods))
            answers = pipeline.execute()
            return cast("list[bytes | None]", answers[-1]) if pods else []

        # A pod must not end only because no scheduler has loaded the scripts since the server's
        # restart. A late call may then set an instant back; the next call repairs that.
        return self._link.call(written, otherwise=written)


def _renewals(
    heads: Sequence[bytes | None], attempts: Sequence[tuple[PodAttempt, str]]
) -> list[Renewal]:
    return [
        renewal_of(head or b"", fence) for head, (_, fence) in zip(heads, attempts, strict=True)
    ]


def beats_of(hashes: AliveHashes) -> dict[str, int]:
    """Return when each node was last heard of, by name."""
    return {node: _number(hashes[node][_BEAT]) for node in sorted(hashes) if _BEAT in hashes[node]}


def runs_of(hashes: AliveHashes) -> dict[str, str]:
    """Return the run id of the server that each node has last reported everything to, by name."""
    return {node: _text(hashes[node][_RUN]) for node in sorted(hashes) if _RUN in hashes[node]}


def leases_of(hashes: AliveHashes) -> dict[tuple[str, str, int], int]:
    """Return when the lease of each attempt ends, by (node, pod, attempt)."""
    found: dict[tuple[str, str, int], int] = {}
    for node, fields in hashes.items():
        for field, value in fields.items():
            attempt = _attempt(field)
            if attempt is not None:
                found[node, *attempt] = _number(value)
    return found


def malformed_in(hashes: AliveHashes, leases: Mapping[tuple[str, str, int], int]) -> dict[str, str]:
    """Return by node the malformed heartbeats, runs and leases that it has written. `leases` are
    the leases in `hashes`; with them a sound reply is recognised without a look at each field.
    """
    others = sum((_BEAT in fields) + (_RUN in fields) for fields in hashes.values())
    is_whole = len(leases) + others == sum(map(len, hashes.values()))
    if is_whole and 0 not in leases.values() and 0 not in beats_of(hashes).values():
        return {}
    damaged = {node: damaged_in(node, fields) for node, fields in hashes.items()}
    return {node: f"{one[0].key}: {one[0].why}" for node, one in damaged.items() if one}


def _is_damaged(field: bytes) -> bool:
    return field not in (_BEAT, _RUN) and _attempt(field) is None


def damaged_in(node: str, fields: Mapping[bytes, bytes]) -> list[Unreadable]:
    """Return the fields in a node's hash that are no heartbeat, run or lease."""
    found = [
        field
        for field in sorted(fields)
        if _is_damaged(field) or (field != _RUN and not fields[field].isdigit())
    ]
    return [
        Unreadable(
            kind="Key",
            key=keys.alive(node),
            why=f"its field {name_of(field)[:60]} is neither a heartbeat nor a lease",
            remedy="the node's agent repairs or removes it within 10 s; if it stays, see its log",
        )
        for field in found
    ]


def _attempt(field: bytes) -> tuple[str, int] | None:
    """Return the pod and attempt of a field; None for other fields."""
    pod, dash, attempt = field.decode(errors="replace").rpartition("-")
    is_number = attempt.isascii() and attempt.isdigit() and len(attempt) <= _DIGITS
    return (pod, int(attempt)) if dash and is_number else None


def _number(value: bytes) -> int:
    """Return an instant; 0 if it is malformed, as a node may write anything there."""
    return int(value) if value.isdigit() and len(value) < 16 else 0


def _text(value: bytes) -> str:
    """Return the text; bytes that are not UTF-8 match no server's run id."""
    return value.decode(errors="replace")


def renewal_of(head: bytes, fence: str) -> Renewal:
    """Return the answer to the holder of `fence`, by the pod's head (see `keys.heads`)."""
    _, phase, current, stop = head_of(head)
    if current != fence or phase not in ("Bound", "Running"):
        return Renewal(word="fenced")
    word: Literal["ok", "stop"] = "stop" if stop else "ok"
    return Renewal(word=word, reason=stop, is_running=phase == "Running")


#: A longer silence may be a break in the contact, with other nodes as well.
LONGEST_GAP_MS = 5_000


_Entries: TypeAlias = "list[tuple[bytes, dict[bytes, bytes]]]"


class Contact:
    """Measures how long the contact is unbroken, in ms of the server's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._longest_gap_ms = LONGEST_GAP_MS
        self._last_at: int | None = None
        self._since = 0

    def allow_gaps(self, longest_ms: int) -> None:
        """Set the longest pause that is no break; it is well below the shortest lease."""
        self._longest_gap_ms = min(LONGEST_GAP_MS, longest_ms)

    def made(self) -> None:
        """Note that the server has answered every question."""
        now = self._now_ms()
        # A clock set back is a break, too: until it caught up, no node would seem silent.
        if self._last_at is None or not 0 <= now - self._last_at <= self._longest_gap_ms:
            self._since = now
        self._last_at = now

    def lost(self) -> None:
        """Note that the server has not answered."""
        self._last_at = None

    @property
    def since(self) -> int:
        """The end of the last break."""
        return self._since


class LastSeen:
    """The last change that was read, to be looked up again after a restart of the server."""

    def __init__(self) -> None:
        self._id = b""
        self._trace = 0

    def note_latest(self, link: Link) -> None:
        """Note the server's latest change. Raises StoreUnavailable."""
        found = link.ask(lambda client: cast(_Entries, client.xrevrange(keys.CHANGES, count=1)))
        for raw_id, fields in found:
            self.note(raw_id, fields)

    def note(self, raw_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Note this change as the last one."""
        self._id = raw_id
        self._trace = _trace_of(fields)

    def is_forgotten(self, link: Link) -> bool:
        """Return whether the server has lost that change, or has another with its number."""
        if not self._id:
            return False
        place = self._id.decode()
        found = link.ask(lambda client: cast(_Entries, client.xrange(keys.CHANGES, place, place)))
        if not found:
            return True
        return _trace_of(found[0][1]) != self._trace


def _trace_of(fields: Mapping[bytes, bytes]) -> int:
    """Return a checksum of the whole entry."""
    return crc32(b" ".join(name + b"=" + fields[name] for name in sorted(fields)))


#: Run, generation and since, as the leader has written them for the server.
ServerHash: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


def standing_of(
    server: ServerHash,
    *,
    runs: Mapping[str, str],
    contact: Contact,
    forgot: bool,
) -> ContactStanding:
    """Return the session's view of the contact, from the hash at `keys.SERVER`.

    `runs`: the run of the server under which each node has reported.
    """
    run, generation, since = server
    began, restarted_at = whole(generation), whole(since)
    # The next leader rewrites malformed numbers.
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


#: After a change of the server's clock, or a suspend of its machine, all processes that measure
#: leases agree again within this time: well within a lease, or the first to notice would see the
#: others' leases as expired.
REMEASURE_AFTER_MS = 5_000
#: A slower answer is too inaccurate to set the clock by.
SLOW_ANSWER_MS = 1_000
MOST_TRIES = 3
#: If the server's clock was set back further than this, follow it; otherwise hold the time still.
LONGEST_PAUSE_MS = 5_000


class ServerClock:
    """Milliseconds since the epoch by the server's clock.

    The difference to this machine's monotonic clock is measured again every few seconds, and over
    each new connection, which may lead to another machine; small steps back are hidden.
    Thread-safe.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._ahead_ms = 0
        self._measured_at: int | None = None
        self._connections = 0
        self._last = 0

    def now_ms(self) -> int:
        """Return the server's time. Raises StoreUnavailable when the server cannot be asked."""
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
        self._connections = self._link.connections
        round_trip_ms, ahead_ms = min(self._tries())
        if self._link.connections != self._connections:
            # Opening a connection took most of the round trip, and would put the clock ahead by
            # half of that. Should this open another one, the next call measures again.
            self._connections = self._link.connections
            round_trip_ms, ahead_ms = min(self._tries())
        with self._lock:
            self._ahead_ms = ahead_ms
            self._measured_at = None if round_trip_ms > SLOW_ANSWER_MS else _monotonic_ms()

    def _tries(self) -> Iterator[tuple[int, int]]:
        """Yield round-trip time and offset of each answer; ask again at once after a slow one.

        An answer delayed by seconds would put the clock ahead by half of them.
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
    """Return the server's pid if the connection leads straight to a process of this machine.

    Only a unix socket does, and only if its listener is the server itself: through a proxy or a
    tunnel the server may be anywhere. Raises StoreUnavailable.
    """
    listener = link.ask(_listener)
    info = link.ask(lambda client: client.info("server")) if listener else {}
    return listener if listener == info.get("process_id") else None


def _listener(client: redis.Redis) -> int | None:
    """Return the pid of the listener on a unix socket; None for other connections."""
    if "path" not in client.connection_pool.connection_kwargs:
        return None
    size = struct.calcsize(_CREDENTIALS)
    with _connected(client) as connected:
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack(_CREDENTIALS, credentials)[0]) or None


@contextmanager
def _connected(client: redis.Redis) -> Iterator[socket.socket]:
    pool = client.connection_pool
    # A connection of its own would be a new one.
    forget_idle(client)
    connection: Any = pool.get_connection()
    try:
        # redis-py has no public name for it.
        yield connection._sock
    finally:
        pool.release(connection)


_LOOPBACK = "127.0.0.1"


def own_address(link: Link) -> str:
    """Return this machine's address on its connection to the server; the loopback address for a
    unix socket. Raises StoreUnavailable.
    """

    def address(client: redis.Redis) -> str:
        client.time()
        with _connected(client) as connected:
            if connected.family == socket.AF_UNIX:
                return _LOOPBACK
            return str(connected.getsockname()[0])

    return link.ask(address)
