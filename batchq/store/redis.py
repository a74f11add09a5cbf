"""The store on a Redis server."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, cast

import redis
from msgspec import Struct, structs

from batchq.api.objects import NAMESPACED, Object, Pod, Unreadable
from batchq.api.transaction import Answer, Commit, Delivery, Event, Ledger, Transaction
from batchq.api.views import Change
from batchq.core.session.snapshot import Snapshot
from batchq.errors import StoreUnavailable, UnreadableRecord
from batchq.store import keys, link, records, scripts
from batchq.store.change_watch import ChangeWatch
from batchq.store.commits import (
    EVENTS_KEPT,
    TRANSACTIONS_A_CALL,
    CommitCalls,
    Deliverer,
    create,
    size_of,
)
from batchq.store.link import (
    LONGEST_BLOCK_MS,
    Asked,
    Link,
    check_info,
    in_trips,
    is_forbidden,
    is_wrong_type,
    read_revision,
)
from batchq.store.liveness import Alive, Contact, Renewal, ServerClock, beats_of
from batchq.store.mirror import (
    IsWanted,
    Mirror,
    MirrorDifference,
    Trimmed,
    after_change,
    read_changes,
)
from batchq.store.node_channels import (
    AcknowledgedReport,
    ReportQueues,
    add_taking_out,
    is_recreated,
)
from batchq.store.outage import Backoff, Outage
from batchq.store.pages import PAGE, PodsByNode, read_many, read_one, scan_objects
from batchq.store.records import (
    error_of,
    field_named,
    field_of_key,
    is_shortened,
    key_of_field,
    name_of,
    name_of_record,
    read_charges,
    read_event,
    read_ledger,
    read_outbox,
    read_record,
)
from batchq.store.roles import forbidden
from batchq.store.rules import Held, commit_of
from batchq.store.scripts import Script

__all__ = ["Change", "MirrorDifference", "RedisStore", "Renewal", "Trimmed"]

#: An approximate bound of the change stream, as EVENTS_KEPT is of the events.
CHANGES_KEPT = 65_536
LOG_BYTES_KEPT = 1024 * 1024
LOG_PIECE_BYTES = 64 * 1024
#: Bounds the answer to whether output is kept, which contains a piece of each, to 4 MiB.
_LOGS_A_QUESTION = 64
#: An entry costs more than its data: this bounds an attempt that writes single bytes.
LOG_PIECES_KEPT = 32_768

#: Objects read by key in one round trip: some ten megabytes.
OBJECTS_A_TRIP = 10_000

#: A script that was called, and its answer.
Answered: TypeAlias = tuple[Script, Any]

#: The shortest time between two reads of heartbeats and leases: there is a lease for each running
#: pod.
HEARTBEATS_EVERY_MS = 1_000


def _check_type(key: str, question: Callable[[redis.Redis], Any], client: redis.Redis) -> Any:
    """Return the answer. Raises UnreadableRecord for a key of another type, which no leader
    deletes, so that a retry would not help.
    """
    try:
        return question(client)
    except redis.exceptions.ResponseError as error:
        if not is_wrong_type(error):
            raise
        raise UnreadableRecord(
            f"the pod's output is unreadable: {key} is of another type",
            hint=f"delete it with the credentials of that node's worker: `DEL {key}`",
        ) from error


class Leader(Struct, frozen=True, kw_only=True):
    """The leader, its epoch, and the end of its lease (in the server's milliseconds)."""

    identity: str
    epoch: int
    expires_at: int


class LogChunk(Struct, frozen=True, kw_only=True):
    """A piece of a pod's output. `id` is the place to read on from."""

    id: str
    stream: str
    data: bytes


class Listing(Struct, frozen=True, kw_only=True):
    """Objects of a kind by key, and the unreadable records among them."""

    objects: tuple[Object, ...]
    unreadable: tuple[Unreadable, ...]


class RedisStore:
    """See `ports.Store`; also the leader's lease, heartbeats, leases, outbox, logs and watching."""

    def __init__(
        self,
        url: str,
        *,
        client: redis.Redis | None = None,
        changes_kept: int = CHANGES_KEPT,
        heartbeats_every_ms: int = HEARTBEATS_EVERY_MS,
    ) -> None:
        """Connects at the first call. `client` stands in for a connection to `url`; a snapshot's
        heartbeats and leases are at most `heartbeats_every_ms` old.
        """
        self.url = url
        self._link = Link(url, client=client)
        self._clock = ServerClock(self._link)
        self.report_queues = ReportQueues(self._link)
        self.alive = Alive(self._link, self.now_ms)
        self._places = PodsByNode(self._link)
        self._contact = Contact(self.now_ms)
        self._mirror = Mirror(
            self._link, self.alive, self._contact, heartbeats_every_ms=heartbeats_every_ms
        )
        self._changes_kept = changes_kept
        #: Returns the audit record of a transaction, which is written with it.
        self.auditor: Callable[[Transaction], bytes] | None = None
        #: Returns the transaction to write instead.
        self.signer: Callable[[Transaction], Transaction] | None = None
        #: Has commits deliver what they bind, if given.
        self.deliverer: Deliverer | None = None
        self.changes = ChangeWatch(self._link)
        # Identifies the calls of this process, so that a repeated one is recognised.
        self._name = os.urandom(6).hex()
        self._count = itertools.count()
        #: Its thread starts with the first commit that is sent in parts.
        self._sender = ThreadPoolExecutor(1, "commits")

    def close(self) -> None:
        """Close the connections; calls in progress end with StoreUnavailable."""
        self._link.close()
        self._sender.shutdown()

    @property
    def link(self) -> Link:
        """The connection, for the other modules of this package."""
        return self._link

    def now_ms(self) -> int:
        """Return the server's time, in milliseconds."""
        return self._clock.now_ms()

    def run_id(self) -> str:
        """Return the server's run id, new after each start. Raises StoreUnavailable."""
        return self._link.run_id()

    def check_server(self) -> None:
        """Raise StoreUnavailable, after a single try, if the server is not usable."""
        check_info(self._link.ask(lambda client: client.info(), tries=1), self._link.shown)

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object as it is now; None if there is none. Raises StoreUnavailable;
        UnreadableRecord if the record is unreadable.
        """
        stored = read_one(self._link, kind, key)
        item = None if stored is None else read_record(kind, key, stored)
        if isinstance(item, Unreadable):
            raise error_of(item)
        return item

    def get_if_readable(self, kind: str, key: str) -> Object | None:
        """As `get`, and None for an unreadable record, where other code reports it."""
        return self.get_many(kind, [key]).get(key)

    def get_many(self, kind: str, keys: Sequence[str]) -> Mapping[str, Object]:
        """Return the existing ones of these objects, by key, as they are now; unreadable ones are
        left out. Raises StoreUnavailable.
        """
        found: dict[str, Object] = {}
        for start in range(0, len(keys), OBJECTS_A_TRIP):
            stored = read_many(self._link, kind, keys[start : start + OBJECTS_A_TRIP])
            for key, value in stored.items():
                item = read_record(kind, key, value)
                if not isinstance(item, Unreadable):
                    found[key] = item
        return found

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind (of one namespace), ordered by key; unreadable ones are left
        out. Raises StoreUnavailable.
        """
        return self.listing(kind, namespace=namespace).objects

    def listing(self, kind: str, *, namespace: str = "") -> Listing:
        """As `list`, with the unreadable records. Raises StoreUnavailable."""
        found: dict[str, Object] = {}
        damaged: dict[str, Unreadable] = {}
        spaced = bool(namespace) and kind in NAMESPACED
        for key, stored in scan_objects(self._link, kind):
            if spaced and kind != "Pod" and not key.startswith(namespace + "/"):
                continue
            item = read_record(kind, key, stored)
            if isinstance(item, Unreadable):
                damaged[key] = item
            elif not spaced or item.metadata.namespace == namespace:
                found[key] = item
        return Listing(
            objects=tuple(found[key] for key in sorted(found)),
            unreadable=tuple(damaged[key] for key in sorted(damaged)),
        )

    def unreadable(self) -> Sequence[Unreadable]:
        """Return the unreadable records of the last snapshot; from `snapshot`'s thread."""
        return self._mirror.unreadable()

    def discard(self, kind: str, name: str) -> bool:
        """Delete an unreadable record, named as in `Unreadable.key`; return False if it does not
        exist or can be read. Raises StoreUnavailable.
        """
        key = self._key_named(kind, name) if is_shortened(name) else key_of_field(field_named(name))
        field = field_of_key(key)
        stored = read_one(self._link, kind, key)
        if stored is None or not isinstance(read_record(kind, key, stored), Unreadable):
            return False
        names = (keys.objects(kind), keys.heads(kind), keys.REVISION, keys.CHANGES)
        digest = hashlib.sha1(stored, usedforsecurity=False).hexdigest()
        arguments = (kind, field, digest, self._changes_kept)
        try:
            return bool(self._link.run(scripts.DISCARD, names, arguments))
        except StoreUnavailable as error:
            if not is_forbidden(error):
                raise
            raise forbidden(error, kinds=(kind,), leads=False) from error.__cause__

    def _key_named(self, kind: str, name: str) -> str:
        """Return the key of a record whose name is shortened; "" if there is none."""
        found = (
            key
            for key, _ in scan_objects(self._link, kind)
            if name_of_record(field_of_key(key)) == name
        )
        return next(found, "")

    def snapshot(self) -> Snapshot:
        """Return everything that a session reads, with all earlier commits applied; from one thread
        only.

        Raises StoreUnavailable.
        """
        snapshot = self._mirror.snapshot()
        self.changes.note_read(self._mirror.revision)
        return snapshot

    def take_up_in_turns(self) -> None:
        """Keep later groups back until `snapshot_in_turn` takes them up."""
        self._mirror.take_up_in_turns()

    def snapshot_in_turn(self, most: int) -> Snapshot:
        """As `snapshot`, with about `most` new groups more than the one before, from each namespace
        and queue in turn; `snapshot` itself takes up all. Raises StoreUnavailable.
        """
        snapshot = self._mirror.snapshot_in_turn(most)
        self.changes.note_read(self._mirror.revision)
        return snapshot

    @property
    def is_behind(self) -> bool:
        """Whether some new groups have not been taken up yet."""
        return self._mirror.is_behind

    def judge_silence_by(self, lease_ms: int) -> None:
        """Set the longest pause without a break in contact, for leases of this length."""
        self._contact.allow_gaps(lease_ms // 3)

    def follow(self) -> int:
        """Update the mirror without a snapshot; return its revision. From `snapshot`'s thread.
        Raises StoreUnavailable.
        """
        self._mirror.drain()
        self.changes.note_read(self._mirror.revision)
        return self._mirror.revision

    def compare(self, most: int = 2_000) -> Sequence[MirrorDifference]:
        """Return the differences between the next shard of Redis and the mirror; from `snapshot`'s
        thread.

        After a difference the mirror lists everything again. Raises StoreUnavailable.
        """
        differences = self._mirror.compare(most)
        if differences:
            self._mirror.forget()
        return differences

    @property
    def mirror(self) -> Mirror:
        """The mirror behind `snapshot`, for other modules of this package; from its thread."""
        return self._mirror

    def suspect_heads(self) -> Mapping[str, Sequence[str]]:
        """Return by kind those of the next keys whose head may not match the object; from
        `snapshot`'s thread. Raises StoreUnavailable.
        """
        return self._mirror.suspect_heads()

    def forget(self) -> None:
        """Make the mirror list everything again; from `snapshot`'s thread."""
        self._mirror.forget()

    def ledger(self) -> Ledger:
        """Return the sums of every scope, without zeros and malformed ones. Raises
        StoreUnavailable.
        """
        return read_ledger(self._hash(keys.LEDGER))[0]

    def charges(self) -> Mapping[str, Held]:
        """Return every well-formed charge by its holder. Raises StoreUnavailable."""
        return read_charges(self._hash(keys.CHARGES))[0]

    def events(
        self, *, kind: str = "", key: str = "", most: int = 100, until: str = "+"
    ) -> Sequence[Event]:
        """Return the latest events (of one object), oldest first; none after the place `until`, and
        no unreadable ones.

        Raises StoreUnavailable.
        """
        found: list[Event] = []
        for event in self._events_backwards(until):
            if len(found) == most:
                break
            if (not kind or event.kind == kind) and (not key or event.key == key):
                found.append(event)
        return tuple(reversed(found))

    def end_of_events(self) -> str:
        """Return the place of the latest event. Raises StoreUnavailable."""
        last = self._link.ask(lambda client: client.xrevrange(keys.EVENTS, "+", "-", count=1))
        return cast("bytes", last[0][0]).decode() if last else "0-0"

    def events_after(self, place: str, block_ms: int) -> tuple[str, Sequence[Event]]:
        """Return the events after a place, and the next place; wait up to `block_ms` for the first.

        Raises StoreUnavailable.
        """
        reply = self._read_stream(keys.EVENTS, place, block_ms)
        entries = reply[0][1] if reply else []
        if not entries and place != "0-0" and is_recreated(self._link, keys.EVENTS, place):
            return "0-0", []
        found = (read_event(fields) for _, fields in entries)
        events = [event for event in found if event is not None]
        return (entries[-1][0].decode() if entries else place), events

    def _events_backwards(self, before: str) -> Iterator[Event]:
        while True:
            page = self._events_page(before)
            for _, fields in page:
                event = read_event(fields)
                if event is not None:
                    yield event
            if len(page) < PAGE:
                return
            before = f"({page[-1][0].decode()}"

    def _events_page(self, before: str) -> Any:
        return self._link.ask(lambda client: client.xrevrange(keys.EVENTS, before, "-", count=PAGE))

    def _hash(self, key: str) -> dict[bytes, bytes]:
        return self._link.ask(lambda client: cast("dict[bytes, bytes]", client.hgetall(key)))

    def commit(
        self,
        transactions: Sequence[Transaction],
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
        acknowledged: Sequence[AcknowledgedReport | None] = (),
    ) -> Commit:
        """Apply each transaction whole or not at all, in order (see `ports.Store`).

        `acknowledged`: for each transaction the report that it acknowledges once applied.

        Large commits take several calls of the script; other clients may write in between. The
        calls are sent together, up to `BYTES_A_TRIP` of them in one round trip. After a failed
        call, the earlier ones are applied and the later ones are not; a repeat with the same
        `request_id` continues there.
        """
        if self.signer is not None:
            transactions = [self.signer(one) for one in transactions]
        if len(transactions) == 1 and epoch is None and seen is None and self.auditor is None:
            created = create(self._link, transactions[0], request_id, self._changes_kept)
            if created is not None:
                return created
        answered: list[Answered] = []
        calls = self._calls(request_id, epoch, overcommit, seen)
        for trip in in_trips(calls.of(transactions, acknowledged), size_of):
            answered += self._run(trip, transactions, led=epoch is not None)
        if not transactions:
            return Commit(revision=self._revision())
        return self._commit_of(transactions, answered)

    def begin_commit(
        self,
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> RedisCommit:
        """Begin a commit whose transactions are handed over while the server applies earlier ones
        (see `ports.BeginCommit`).
        """
        calls = self._calls(request_id, epoch, overcommit, seen)
        return RedisCommit(self, calls, led=epoch is not None)

    def _calls(
        self, request_id: str, epoch: int | None, overcommit: int, seen: int | None
    ) -> CommitCalls:
        return CommitCalls(
            request_id,
            led=epoch is not None,
            arguments=(
                "" if epoch is None else epoch,
                overcommit,
                keys.REQUEST_TTL_S,
                self._changes_kept,
                EVENTS_KEPT,
                keys.LIMITS,
                "" if seen is None else seen,
            ),
            auditor=self.auditor,
            deliverer=self.deliverer,
            # Only a scheduler reads all changes.
            own=None if epoch is None else self._mirror.own_writes,
        )

    def _run(
        self, asked: Sequence[Sequence[Asked]], transactions: Sequence[Transaction], *, led: bool
    ) -> Sequence[Answered]:
        """Return the answers of calls; `transactions` are for the error message."""
        each = [one for call in asked for one in call]
        try:
            answers = self._link.run_each(each)
        except StoreUnavailable as error:
            if not is_forbidden(error):
                raise
            kinds = records.kinds_of(transactions)
            raise forbidden(error, kinds=kinds, leads=led) from error.__cause__
        return [(script, answer) for (script, _), answer in zip(each, answers, strict=True)]

    def _commit_of(
        self, transactions: Sequence[Transaction], answered: Sequence[Answered]
    ) -> Commit:
        """Return the outcome of a commit from the answers of its calls, and note what it wrote."""
        replies = [answer for script, answer in answered if script is scripts.COMMIT]
        if b"" in replies:
            raise StoreUnavailable(
                f"the server at {self._link.shown} has lost an answer that it has just given",
                hint="batchq needs a server that does not evict keys: maxmemory-policy noeviction",
            )
        answers: list[Answer] = []
        revision = 0
        for reply in replies:
            some, revision = records.read_answers(reply)
            past = len(answers) + len(some)
            self.changes.note_written(transactions[len(answers) : past], some, revision)
            answers.extend(some)
        commit = commit_of(transactions, answers, revision)
        for refusal in commit.refused:
            self._mirror.own_writes.forget(refusal.transaction)
        handed = [answer for script, answer in answered if script is scripts.DELIVER]
        delivered = sum(count for count in handed if isinstance(count, int))
        return structs.replace(commit, delivered=delivered) if delivered else commit

    def _revision(self) -> int:
        return read_revision(self._link)

    def lead(self, identity: str, lease_ms: int) -> int | None:
        """Take or renew the leader's lease; return the epoch, or None if another leads."""
        now = self.now_ms()
        has_run_id = "yes" if self._link.run_id() else ""
        epoch = self._link.run(
            scripts.LEAD,
            (keys.LEADER, keys.EPOCH, keys.SERVER),
            (identity, now, now + lease_ms, has_run_id),
        )
        return int(epoch) if epoch else None

    def led_since(self) -> int:
        """Return when the server's present run was first led (server's clock, ms); 0 if unknown."""
        since = self._link.ask(
            lambda client: cast("bytes | None", client.hget(keys.SERVER, "since"))
        )
        return records.whole(since) or 0

    def resign(self, identity: str) -> None:
        """Give the leader's lease back, if it is still held."""
        self._link.run(scripts.RESIGN, (keys.LEADER,), (identity,))

    def leader(self) -> Leader | None:
        """Return the present or last leader; None without a valid record of its lease."""
        stored = self._hash(keys.LEADER)
        epoch, expires_at = (
            records.whole(stored.get(b"epoch")),
            records.whole(stored.get(b"expires_at")),
        )
        if epoch is None or expires_at is None or b"identity" not in stored:
            return None
        return Leader(identity=name_of(stored[b"identity"]), epoch=epoch, expires_at=expires_at)

    def beat(self, node: str, run: str = "") -> None:
        """Record that the node is alive now, and has reported everything to the server with run id
        `run`.
        """
        self.alive.beat(node, run)

    def beats(self, nodes: Sequence[str] | None = None) -> dict[str, int]:
        """Return when these nodes (None: all registered ones) were last heard of, in the server's
        milliseconds; nodes never heard of are left out.
        """
        return beats_of(
            self.alive.read(sorted(self.report_queues.nodes()) if nodes is None else nodes)
        )

    def renew(self, node: str, pod: str, attempt: int, fence: str, lease_ms: int) -> Renewal:
        """Renew the lease of an attempt on a node; return whether the holder of `fence` may
        continue.
        """
        return self.alive.renew(node, pod, attempt, fence, lease_ms)

    def end_lease(self, node: str, pod: str, attempt: int) -> None:
        """End the lease of an attempt whose processes are gone."""
        self.alive.end_lease(node, pod, attempt)

    def pods_on(self, node: str, known: Collection[str] | None = None) -> Sequence[Pod]:
        """Return the pods that occupy a node, ordered by key; cheaper than listing all pods.

        If the caller names the pods that it knows (`known`), the usual cost is that of reading
        these. Raises StoreUnavailable.
        """
        found = {pod.metadata.uid: pod for pod in self._places.pods(node, known)}
        return tuple(found[uid] for uid in sorted(found))

    def counts(self) -> dict[str, int]:
        """Return how often reports were `superseded` or `unreadable`, ever."""
        return self.report_queues.counts()

    def outbox(self) -> Sequence[Delivery]:
        """Return the undelivered bound pods, in order of binding, without unreadable entries."""
        return read_outbox(self._hash(keys.OUTBOX))[0]

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """Remove delivered pods from the outbox."""

        def taken_out(client: redis.Redis) -> None:
            pipeline = client.pipeline(transaction=False)
            add_taking_out(pipeline, deliveries)
            pipeline.execute()

        if deliveries:
            self._link.ask(taken_out)

    def append_log(self, node: str, pod: str, attempt: int, stream: str, data: bytes) -> None:
        """Append output of a pod's attempt on a node; the newest MiB is kept."""
        for start in range(0, len(data), LOG_PIECE_BYTES):
            self._link.run(
                scripts.LOG,
                (keys.log(node, pod, attempt),),
                (
                    f"{self._name}.{os.getpid()}.{next(self._count)}",
                    stream,
                    data[start : start + LOG_PIECE_BYTES],
                    LOG_BYTES_KEPT,
                    keys.LOG_TTL_S,
                    LOG_PIECES_KEPT,
                ),
            )

    def read_log(
        self, node: str, pod: str, attempt: int, after: str = "0", block_ms: int = 0
    ) -> Sequence[LogChunk]:
        """Return up to a thousand pieces of output after `after`; wait for one if `block_ms` is
        given.

        Raises StoreUnavailable; UnreadableRecord if the key is of another type.
        """
        key, block = keys.log(node, pod, attempt), min(block_ms, LONGEST_BLOCK_MS) or None
        reply = self._link.wait(
            partial(_check_type, key, lambda client: client.xread({key: after}, PAGE, block))
        )
        return [
            LogChunk(id=id_.decode(), stream=name_of(fields[b"stream"]), data=fields[b"data"])
            for _, entries in reply or ()
            for id_, fields in entries
            if fields.keys() >= {b"stream", b"data"}
        ]

    def have_logs(self, places: Sequence[tuple[str, str, int]]) -> Sequence[bool]:
        """Return for each (node, pod, attempt) whether output of it is kept.

        Raises StoreUnavailable; UnreadableRecord if a key is of another type.
        """
        found: set[bytes] = set()
        for start in range(0, len(places), _LOGS_A_QUESTION):
            names = [keys.log(*place) for place in places[start : start + _LOGS_A_QUESTION]]
            first = partial(redis.Redis.xread, streams=dict.fromkeys(names, "0"), count=1)
            reply = self._link.ask(partial(_check_type, names[0], first))
            found.update(key for key, _ in reply or ())
        return [keys.log(*place).encode() in found for place in places]

    def put_result(self, node: str, pod: str, attempt: int, result: bytes) -> None:
        """Keep the result of a pod's function, as JSON; safe to repeat."""
        key = keys.result(node, pod, attempt)
        self._link.ask(lambda client: client.set(key, result, ex=keys.RESULT_TTL_S))

    def read_result(self, node: str, pod: str, attempt: int) -> bytes | None:
        """Return the result of an attempt's function, as JSON; None if none is kept (any more).

        Raises StoreUnavailable; UnreadableRecord if the key is of another type.
        """
        key = keys.result(node, pod, attempt)
        found = self._link.ask(partial(_check_type, key, lambda client: client.get(key)))
        return cast("bytes | None", found)

    def watch(
        self, after: str | None, block_ms: int, is_wanted: IsWanted | None = None
    ) -> tuple[str, Sequence[Change]]:
        """Return the (wanted) changes after `after` (None: from now on), and the next id.

        Raises Trimmed if the stream no longer reaches back to `after`.
        """
        if after is None:
            return f"{self._revision()}-0", []
        revision = int(after.split("-")[0])
        reply = self._read_stream(keys.CHANGES, after_change(revision), block_ms)
        changes = read_changes(reply, revision, is_wanted=is_wanted)
        if reply:
            return reply[0][1][-1][0].decode(), changes
        if self._revision() < revision:
            raise Trimmed
        return after, []

    def wait_for_change(self, timeout_ms: int) -> bool:
        """Return whether anything was written since the last call that this process has not read;
        wait for it up to `timeout_ms`.

        For one watcher thread. The first call reports any earlier write. Raises StoreUnavailable.
        """
        return self.changes.wait(timeout_ms)

    def _read_stream(self, key: str, after: str, block_ms: int, count: int = PAGE) -> Any:
        block = min(block_ms, LONGEST_BLOCK_MS) or None
        return self._link.wait(lambda client: client.xread({key: after}, count=count, block=block))


class RedisCommit:
    """See `ports.CommitStream`. A thread of the store sends the calls, in order and in one round
    trip all that wait, so the caller can compose the next ones meanwhile. After a failure it sends
    no more.
    """

    def __init__(self, store: RedisStore, calls: CommitCalls, *, led: bool) -> None:
        self._store = store
        self._calls = calls
        self._led = led
        self._transactions: list[Transaction] = []
        #: How many of the transactions were composed.
        self._composed = 0
        #: Calls that were not sent yet. Appending to a deque and taking from it need no lock.
        self._unsent: deque[Sequence[Asked]] = deque()
        self._unsent_bytes = 0
        self._sending: Future[None] | None = None
        #: Written by the sending thread.
        self._answered: list[Answered] = []

    def add(self, transactions: Iterable[Transaction]) -> None:
        """Add transactions, and send those that fill calls."""
        signer = self._store.signer
        for one in transactions:
            self._transactions.append(one if signer is None else signer(one))
            if len(self._transactions) - self._composed == TRANSACTIONS_A_CALL:
                self._send()

    def finish(self) -> Commit:
        """Send the rest, and return the outcome of all; once. Raises StoreUnavailable."""
        store, transactions = self._store, self._transactions
        if not transactions:
            return Commit()
        if self._sending is None:
            for trip in in_trips(self._calls.of(transactions), size_of):
                self._answered += store._run(trip, transactions, led=self._led)
        else:
            self._send()
            self._wait()
        return store._commit_of(transactions, self._answered)

    def _send(self) -> None:
        for call in self._calls.of(self._transactions[self._composed :]):
            self._unsent_bytes += size_of(call)
            self._unsent.append(call)
            self._sending = self._store._sender.submit(self._run, self._sending)
            if self._unsent_bytes >= link.BYTES_A_TRIP:
                self._wait()
                self._unsent_bytes = 0
        self._composed = len(self._transactions)

    def _run(self, former: Future[None] | None) -> None:
        """Send what waits. Raises the error of a former failure again."""
        if former is not None:
            former.result()
        asked = [self._unsent.popleft() for _ in range(len(self._unsent))]
        if asked:
            self._answered += self._store._run(asked, self._transactions, led=self._led)

    def _wait(self) -> None:
        """Wait until all calls are answered. Raises StoreUnavailable."""
        if self._sending is not None:
            # A store that hangs is not a session that hangs.
            with self._store.link.waiting():
                self._sending.result()


def open_store(url: str) -> RedisStore:
    """Return the store behind a URL, after checking that the server is usable.

    Raises InvalidInput for a malformed URL, StoreUnavailable for any problem with the server.
    """
    store = RedisStore(url)
    try:
        store.check_server()
    except StoreUnavailable:
        store.close()
        raise
    return store


def open_when_up(url: str, *, pause: Callable[[float], bool]) -> RedisStore | None:
    """Open the store as `open_store` does, waiting until the server answers and is usable; log the
    wait once.

    `pause` waits for the given seconds and returns whether to go on; if not, the result is None.
    Raises InvalidInput for a malformed URL.
    """
    outage, backoff = Outage(), Backoff()
    while True:
        try:
            store = open_store(url)
        except StoreUnavailable as error:
            outage.failed(error)
            if not pause(backoff.next_ms() / 1000):
                return None
        else:
            outage.succeeded()
            return store
