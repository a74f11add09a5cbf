"""The leader: how one of all schedulers on a store is elected, and the damage that it repairs.

The holder of the leader lease decides. The lease expires, so a dead leader is succeeded. Each
change of leader raises the *epoch*, the fencing token that every decision carries: the store
refuses what a former leader still sends, whatever that leader believes. The local check of the
lease only saves such refusals.

The leader repairs what can be rebuilt from the objects, because another program may have
overwritten it: keys of a wrong type, the count of writes, and the books (ledger, charges, limits
and heads). Each repair is logged and becomes an event.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import structs

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import KINDS, Pod, Unreadable, full_name
from batchq.api.transaction import Event, Transaction, Write, count_of, fence_of, generation_of
from batchq.daemon import ThreadService
from batchq.errors import StoreUnavailable
from batchq.ports import IdSource
from batchq.store import keys
from batchq.store.books import BooksAudit, Recounted, mend_heads, mend_outbox, recount
from batchq.store.inspection import (
    MOST_TOLD,
    BookPages,
    ChannelsCheck,
    damaged_key,
    damaged_keys,
    damaged_keys_of_nodes,
    event_of_repair,
    mend,
    repaired_by_writes,
)
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore
from batchq.system import structlog

_log = structlog.get_logger()

#: How long a successor waits for a dead leader's lease to expire.
LEASE_MS = 5000
#: With three renewals per lease, two may be lost.
_RENEWALS_PER_LEASE = 3


class LeaseStore(Protocol):
    """The part of a store that keeps the leader's lease."""

    def lead(self, identity: str, lease_ms: int) -> int | None:
        """Take or renew the lease; return the epoch, or None if another process leads."""

    def resign(self, identity: str) -> None:
        """Give up the lease if `identity` holds it."""


def new_identity() -> str:
    """Return `host:pid:random`, which identifies the process and differs after a restart."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Leadership:
    """A service that takes the lease, renews it, and resigns at `stop`.

    `fit` is called before each renewal: a leader whose session thread hangs lets its lease expire.
    `elected` is called from the service's thread when this process begins to lead. `attend` is
    called from there after each request for the lease, successful or not, and `depart` at the end:
    they announce this process to the others.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        identity: str,
        outage: Outage,
        lease_ms: int = LEASE_MS,
        fit: Callable[[], bool] = lambda: True,
        elected: Callable[[], None] = lambda: None,
        attend: Callable[[], None] = lambda: None,
        depart: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = identity
        self._store = store
        self._outage = outage
        self._lease_ms = lease_ms
        self._fit = fit
        self._elected = elected
        self._attend = attend
        self._depart = depart
        # Written only by the service's thread; one tuple, so that readers see both values or none.
        self._held: tuple[int, float] | None = None
        self._waiting = False
        # Backs off with jitter, so that a server that is back is not asked by all at once.
        self._backoff = Backoff(longest_ms=max(1, lease_ms // _RENEWALS_PER_LEASE))
        self._thread = ThreadService("leadership", self._keep)

    @property
    def name(self) -> str:
        """For logs."""
        return self._thread.name

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.alive

    def start(self) -> None:
        """Begin to ask for the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Resign, if leading, and end."""
        self._thread.stop()

    def epoch(self) -> int | None:
        """Return the epoch while this process leads, else None; None from the lease's end on."""
        held = self._held
        return held[0] if held is not None and time.monotonic() < held[1] else None

    def _keep(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            if self._fit():
                self._ask()
            if self._held is not None and self.epoch() is None:
                self._lose()
            stopping.wait(self._pause_ms() / 1000)
        self._resign()

    def _pause_ms(self) -> int:
        if self._outage.unavailable:
            return self._backoff.next_ms()
        return self._lease_ms // _RENEWALS_PER_LEASE

    def _ask(self) -> None:
        # The lease counts from before the call, so that a slow reply does not seem to extend it.
        asked_at = time.monotonic()
        try:
            epoch = self._store.lead(self.identity, self._lease_ms)
        except StoreUnavailable as error:
            self._outage.failed(error)
            return
        self._outage.succeeded()
        self._backoff.reset()
        self._apply(epoch, asked_at)
        # The announcement only informs people; an outage shows in the next request for the lease.
        with suppress(StoreUnavailable):
            self._attend()

    def _apply(self, epoch: int | None, asked_at: float) -> None:
        if epoch is None:
            self._stand_by()
            return
        before = self._held
        self._held = (epoch, asked_at + self._lease_ms / 1000)
        self._waiting = False
        if before is None or before[0] != epoch:
            _log.info("leader.elected", identity=self.identity, **_epoch_fields(epoch))
            self._elected()

    def _stand_by(self) -> None:
        if self._held is not None:
            self._lose()
        if not self._waiting:
            self._waiting = True
            _log.info("leader.waiting", identity=self.identity)

    def _lose(self) -> None:
        held, self._held = self._held, None
        _log.warning(
            "leader.lost", identity=self.identity, **(_epoch_fields(held[0]) if held else {})
        )

    def _resign(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            try:
                self._store.resign(self.identity)
            except StoreUnavailable as error:
                # The lease expires without it.
                _log.warning("leader.not_resigned", error=error.message)
                return
            _log.info("leader.resigned", identity=self.identity, **_epoch_fields(held[0]))
        # A process that cannot announce its end is forgotten within a minute.
        with suppress(StoreUnavailable):
            self._depart()


def _epoch_fields(epoch: int) -> dict[str, int]:
    """Return an epoch's log fields: its count, as `batchq scheduler --status` shows, and its
    generation, the server's start that it belongs to.
    """
    return {"epoch": count_of(epoch), "generation": generation_of(epoch)}


_LOOK_EVERY_S = 1.0
#: Decisions pause during an audit and a recount: audits that find nothing take at most a fiftieth
#: of the time, recounts a tenth.
_AUDIT_APART, _RECOUNT_APART = 50, 10
#: If a page has this many wrong heads, the next page is checked in the same look. Sessions wait
#: meanwhile, so there is a limit.
_MANY_HEADS, _HEADS_WITHIN_S = 50, 0.3


class Mender:
    """Finds and repairs damage; owned by the session thread.

    Every method raises StoreUnavailable.
    """

    def __init__(self, store: RedisStore, ids: IdSource) -> None:
        self._store = store
        self._ids = ids
        self._pages = BookPages(store.link)
        self._channels = ChannelsCheck(store)
        self._audit = BooksAudit(store.link, store.mirror)
        self._look_at = self._audit_at = self._recount_at = 0.0
        self._is_suspect = False
        #: Kinds that may lack some or all of their heads.
        self._headless: set[str] = set()
        #: The events of repairs that others have made, until they are written.
        self._untold: dict[Unreadable, Event] = {}
        #: Keys and fields repaired since the process started.
        self.mended = 0

    def suspect(self) -> None:
        """Ask for a recount of the books at the next look."""
        self._is_suspect = True

    def hurry(self) -> None:
        """Look at once, and at everything: damage is in the way of a session."""
        self._look_at = self._audit_at = 0.0

    def has_mended(self, key: str, why: str, epoch: int) -> None:
        """Log a key that the caller has repaired, and add the event."""
        _log.error("key.mended", key=key, why=why)
        self._tell([damaged_key(key, f"it {why}")], epoch)

    def look(self, epoch: int) -> bool:
        """Look for damage, as the leader of `epoch`, at most once a second, and repair it.

        Return whether a look was due.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        self._mend_keys(epoch)
        self._mend_outbox(epoch)
        # After the keys, because one of them holds the names of the nodes. What this finds is
        # repaired at the next look.
        self._channels.next()
        if now >= self._audit_at:
            began, before = time.monotonic(), self.mended
            self._audit_next(epoch)
            if self.mended == before and not self._is_suspect:
                self._audit_at = began + _AUDIT_APART * (time.monotonic() - began)
        if self._is_suspect and now >= self._recount_at:
            self._recount(epoch)
            self._recount_at = time.monotonic() + _RECOUNT_APART * (time.monotonic() - now)
        return True

    def _audit_next(self, epoch: int) -> None:
        """Audit the next pages of heads and books."""
        self._mend_heads(epoch)
        # Both advance each time, whatever the other finds.
        found = [self._pages.next(), self._audit.next()]
        self._is_suspect = self._is_suspect or any(found)
        self._end_lone_pods(epoch)

    def _mend_keys(self, epoch: int) -> None:
        mirror = self._store.mirror
        highest = mirror.highest
        of_all = damaged_keys(self._store.link, highest)
        if of_all:
            # The content of these keys is lost: rebuild books and lists from the objects. Noted
            # before the repair, whose answer may be lost.
            self._is_suspect = True
            there = {one.key for one in of_all}
            self._headless |= {
                kind
                for kind in KINDS
                if not there.isdisjoint((keys.heads(kind), keys.objects(kind)))
            }
            self._store.forget()
        damaged = [*of_all, *damaged_keys_of_nodes(self._store.link)]
        repaired: list[Unreadable] = []
        if damaged:
            now_ms = self._store.now_ms()
            repaired = mend(self._store.link, damaged, epoch=epoch, now_ms=now_ms, highest=highest)
            self.mended += len(repaired)
            for one in repaired:
                _log.error("key.mended", key=one.key, why=one.why)
        # Whoever renews the lease repairs the epoch.
        others = [one for one in of_all if one.key == keys.EPOCH]
        others += repaired_by_writes(mirror.repairs())
        others = [one for one in others if one not in repaired and one not in self._untold]
        for one in others:
            _log.error("key.mended", key=one.key, why=one.why)
        self._tell(others, epoch)

    def _mend_heads(self, epoch: int) -> None:
        mended: list[Recounted] = []
        give_up_at = time.monotonic() + _HEADS_WITHIN_S
        is_likely_more = True
        while is_likely_more:
            most = max(0, MOST_TOLD - len(mended))
            found = mend_heads(self._store, epoch, self._store.suspect_heads(), most_told=most)
            mended += found
            self.mended += len(found)
            is_likely_more = len(found) >= _MANY_HEADS and time.monotonic() < give_up_at
        for one in mended[:MOST_TOLD]:
            _log.error("head.mended", kind=one.kind, key=one.key, was=one.was, now=one.now)

    def _end_lone_pods(self, epoch: int) -> None:
        """Ask pods to stop whose group was deleted past batchq, and delete those that have ended:
        sessions ignore pods without a group.
        """
        pods = [pod for pod in self._audit.lone_pods() if not _is_stopping(pod)][:MOST_TOLD]
        if not pods:
            return
        now_ms = self._store.now_ms()
        done = self._store.commit(
            [_end_of(pod, now_ms) for pod in pods], request_id=self._ids.new_uid(), epoch=epoch
        )
        self.mended += len(done.applied)
        ended = {one.subject for one in done.applied}
        for pod in pods:
            if pod.metadata.uid in ended:
                _log.error("pod.without_group", pod=pod.metadata.uid, phase=str(pod.status.phase))

    def _mend_outbox(self, epoch: int) -> None:
        removed = mend_outbox(self._store, epoch)
        self.mended += len(removed)
        for one in removed[:MOST_TOLD]:
            _log.error("delivery.taken_out", key=one.key, why=one.how)

    def _recount(self, epoch: int) -> None:
        fields = recount(self._store, epoch, self._headless)
        if fields is None:
            return
        self._is_suspect, self._headless = False, set()
        self._audit.recounted(is_changed=bool(fields))
        self.mended += len(fields)
        for one in fields[:MOST_TOLD]:
            _log.error("books.recounted", kind=one.kind, key=one.key, was=one.was, now=one.now)

    def _tell(self, repaired: Sequence[Unreadable], epoch: int) -> None:
        """Write the events of these repairs, and of earlier ones that could not be written. The
        repairs that this class makes itself carry their events.
        """
        if repaired:
            now_ms = self._store.now_ms()
            self._untold |= {one: event_of_repair(one, now_ms) for one in repaired[:MOST_TOLD]}
        if not self._untold:
            return
        done = self._store.commit(
            [Transaction(subject="mender", events=(*self._untold.values(),)[:MOST_TOLD])],
            request_id=self._ids.new_uid(),
            epoch=epoch,
        )
        if done.applied:
            self.mended += len(self._untold)
            self._untold = {}


#: The reason for stopping a pod without a group.
GROUP_GONE = "GroupGone"


def _is_stopping(pod: Pod) -> bool:
    return pod.status.phase in ON_NODE and pod.status.terminating


def _end_of(pod: Pod, now_ms: int) -> Transaction:
    """Return the transaction that asks a pod on a node to stop, or deletes any other."""
    uid, value = pod.metadata.uid, None
    message = f"Pod {full_name(pod)} has lost its group: it is deleted"
    if pod.status.phase in ON_NODE:
        message = f"Pod {full_name(pod)} has lost its group: it is asked to stop"
        status = structs.replace(
            pod.status, terminating=True, terminating_at=now_ms, reason=GROUP_GONE
        )
        value = structs.replace(pod, status=status)
    write = Write(
        kind="Pod", key=uid, expect=pod.metadata.revision, fence=fence_of(pod), value=value
    )
    event = Event(kind="Pod", key=uid, reason="Mended", message=message, at=now_ms)
    return Transaction(subject=uid, writes=(write,), events=(event,))


_LONGEST_KEY = 128


class Quarantine:
    """The unreadable records that the mirror leaves out. Owned by the session thread; `counts` is
    replaced as a whole, so any thread may read it.
    """

    def __init__(self, store: RedisStore, ids: IdSource) -> None:
        self._store = store
        self._ids = ids
        self._known: Sequence[Unreadable] = ()
        #: Records already logged and written as events in this epoch.
        self._reported: set[Unreadable] = set()
        #: Kind -> number of unreadable records.
        self.counts: Mapping[str, int] = {}

    def look(self) -> bool:
        """Count the records; return whether they have changed since the last look."""
        found = self._store.unreadable()
        if found is self._known:
            return False
        self._known = found
        self.counts = Counter(one.kind for one in found)
        return True

    def tell(self, epoch: int) -> None:
        """Log the records that are new since the last call, as the leader of `epoch`, with events.

        Raises StoreUnavailable.
        """
        there = set(self._known)
        self._reported &= there
        new = [one for one in self._known if one not in self._reported][:MOST_TOLD]
        if not new:
            return
        now_ms = self._store.now_ms()
        events = tuple(event_of(one, now_ms) for one in new)
        self._store.commit(
            [Transaction(subject="quarantine", events=events)],
            request_id=self._ids.new_uid(),
            epoch=epoch,
        )
        for one in new:
            _log.error("record.unreadable", kind=one.kind, key=one.key[:_LONGEST_KEY], why=one.why)
        self._reported.update(new if len(there) <= len(self._reported) + MOST_TOLD else there)


def event_of(one: Unreadable, now_ms: int) -> Event:
    """Return the event for readers of the object."""
    message = f"the stored record is unreadable and stays in place: {one.why}"
    return Event(
        kind=one.kind, key=one.key[:_LONGEST_KEY], reason="Unreadable", message=message, at=now_ms
    )
