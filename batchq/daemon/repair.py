"""The leader mends what batchq can make anew: keys of another type, the count of writes, the books.

Anybody may have written there past batchq. What was mended is said in the log and as events.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog
from msgspec import structs

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import KINDS, Pod, Unreadable, full_name
from batchq.api.transaction import Event, Transaction, Write, fence_of
from batchq.ports import IdSource
from batchq.store import keys
from batchq.store.audit import BooksAudit
from batchq.store.damaged_keys import (
    KEY,
    Bells,
    BookPages,
    damaged_deliveries,
    damaged_keys,
    damaged_keys_of_nodes,
    mend,
    take_out_deliveries,
)
from batchq.store.recount import Recounted, mend_heads, recount
from batchq.store.redis import RedisStore

_log = structlog.get_logger()

_LOOKED_EVERY_S = 1.0
#: To count everything anew takes time in which nothing is decided: no more than a tenth of all.
_RECOUNT_APART = 10
#: Of one recount, so many fields are told of by name.
_MOST_TOLD = 20
#: Where so many heads of a page were false, the next page is looked at, too; so many pages at most.
_MANY_HEADS, _HEAD_PAGES = 50, 8


class Mender:
    """Owned by the deciding thread. Every method raises StoreUnavailable."""

    def __init__(self, store: RedisStore, ids: IdSource) -> None:
        self._store = store
        self._ids = ids
        self._pages = BookPages(store.link)
        self._bells = Bells(store)
        self._audit = BooksAudit(store.link, store.mirror)
        self._look_at = self._recount_at = 0.0
        self._is_suspect = False
        #: Kinds of which a head may be missing or none.
        self._headless: set[str] = set()
        #: Keys and fields that were mended since the process started.
        self.mended = 0

    def suspect(self) -> None:
        """The books are not what they should be: count them anew at the next look."""
        self._is_suspect = True

    def hurry(self) -> None:
        """Something damaged is in the way: look at once."""
        self._look_at = 0.0

    def has_mended(self, key: str, why: str, epoch: int) -> None:
        """Say that another has mended a key as a whole."""
        _log.error("key.mended", key=key, why=why)
        self._tell([(KEY, key, "Mended", f"it {why}; it was mended")], epoch)

    def look(self, epoch: int) -> bool:
        """Now and then, as the leader of `epoch`: look for what is damaged, and mend it; whether it
        was time for that.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOKED_EVERY_S
        self._mend_keys(epoch)
        self._mend_outbox(epoch)
        # Behind the keys as a whole: the names of the nodes stand in one of them. What is found is
        # mended at the next look.
        self._bells.next()
        self._mend_heads(epoch)
        # All of what is damaged is looked at, whatever else was found.
        found = [self._pages.next(), self._audit.next()]
        self._is_suspect = self._is_suspect or any(found)
        self._end_lone_pods(epoch)
        if self._is_suspect and now >= self._recount_at:
            self._recount(epoch)
            self._recount_at = time.monotonic() + _RECOUNT_APART * (time.monotonic() - now)
        return True

    def _mend_keys(self, epoch: int) -> None:
        of_all = damaged_keys(self._store.link)
        damaged = [*of_all, *damaged_keys_of_nodes(self._store.link)]
        if not damaged:
            return
        mend(self._store.link, damaged, epoch=epoch, now_ms=self._store.now_ms())
        for one in damaged:
            _log.error("key.mended", key=one.key, why=one.why)
        self._tell(
            [(one.kind, one.key, "Mended", f"{one.why}; it was mended") for one in damaged], epoch
        )
        if not of_all:
            return
        # What stood in it is gone: books and lists are made anew from the objects.
        self._is_suspect = True
        there = {one.key for one in damaged}
        self._headless |= {
            kind for kind in KINDS if not there.isdisjoint((keys.heads(kind), keys.objects(kind)))
        }
        self._store.forget()

    def _mend_heads(self, epoch: int) -> None:
        mended: list[Recounted] = []
        for _ in range(_HEAD_PAGES):
            found = mend_heads(self._store, epoch, self._store.suspect_heads())
            mended += found
            # Many at once are hardly all: the next page is looked at in the same look.
            if len(found) < _MANY_HEADS:
                break
        self.mended += len(mended[_MOST_TOLD:])
        said = []
        for one in mended[:_MOST_TOLD]:
            _log.error("head.mended", kind=one.kind, key=one.key, was=one.was, now=one.now)
            held = f"its head in {keys.heads(one.kind)} held {one.was or 'nothing'!r}"
            said.append(
                (one.kind, one.key, "Recounted", f"{held}; made anew: {one.now or 'nothing'}")
            )
        self._tell(said, epoch)

    def _end_lone_pods(self, epoch: int) -> None:
        """Tell pods to stop whose group was deleted past batchq, and delete those that have ended:
        no session has to do with a pod without its group.
        """
        pods = [pod for pod in self._audit.lone_pods() if not _is_stopping(pod)][:_MOST_TOLD]
        if not pods:
            return
        now_ms = self._store.now_ms()
        self._store.commit(
            [_end_of(pod, now_ms) for pod in pods], request_id=self._ids.new_uid(), epoch=epoch
        )
        self.mended += len(pods)
        for pod in pods:
            _log.error("pod.without_group", pod=pod.metadata.uid, phase=str(pod.status.phase))

    def _mend_outbox(self, epoch: int) -> None:
        damaged = damaged_deliveries(self._store.link)
        if damaged:
            take_out_deliveries(self._store.link, damaged)
            said = [
                (one.kind, one.key, "Mended", f"{one.why}; it was taken out") for one in damaged
            ]
            for one in damaged[:_MOST_TOLD]:
                _log.error("delivery.taken_out", key=one.key, why=one.why)
            self._tell(said, epoch)

    def _recount(self, epoch: int) -> None:
        fields = recount(self._store, epoch, self._headless)
        if fields is None:
            return
        self._is_suspect, self._headless = False, set()
        self._audit.recounted(is_changed=bool(fields))
        for one in fields[:_MOST_TOLD]:
            _log.error("books.recounted", kind=one.kind, key=one.key, was=one.was, now=one.now)
        said = [
            (
                one.kind,
                one.key,
                "Recounted",
                f"held {one.was or 'nothing'!r}; counted anew from the objects: {one.now or 0}",
            )
            for one in fields
        ]
        self._tell(said, epoch)

    def _tell(self, said: Sequence[tuple[str, str, str, str]], epoch: int) -> None:
        self.mended += len(said)
        if not said:
            return
        now_ms = self._store.now_ms()
        events = tuple(
            Event(kind=kind, key=key[:128], reason=reason, message=message, at=now_ms)
            for kind, key, reason, message in said[:_MOST_TOLD]
        )
        self._store.commit(
            [Transaction(subject="mender", events=events)],
            request_id=self._ids.new_uid(),
            epoch=epoch,
        )


#: Why a pod was stopped of which there is no group.
GROUP_GONE = "GroupGone"


def _is_stopping(pod: Pod) -> bool:
    return pod.status.phase in ON_NODE and pod.status.terminating


def _end_of(pod: Pod, now_ms: int) -> Transaction:
    """What tells a pod on a node to stop, and deletes another."""
    uid, value = pod.metadata.uid, None
    message = f"Pod {full_name(pod)} has no group any more: it is deleted"
    if pod.status.phase in ON_NODE:
        message = f"Pod {full_name(pod)} has no group any more: it is told to stop"
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
    """What the mirror of a store has left out. Owned by the deciding thread; `counts` is replaced
    whole, and so may be read by any.
    """

    def __init__(self, store: RedisStore, ids: IdSource) -> None:
        self._store = store
        self._ids = ids
        self._known: Sequence[Unreadable] = ()
        #: Of these the log and the events have told, in the epoch.
        self._told: set[Unreadable] = set()
        #: Kind -> records that cannot be read.
        self.counts: Mapping[str, int] = {}

    def look(self) -> bool:
        """Count them; whether they are others than at the last look."""
        found = self._store.unreadable()
        if found is self._known:
            return False
        self._known = found
        self.counts = Counter(one.kind for one in found)
        return True

    def tell(self, epoch: int) -> None:
        """Say, as the leader of `epoch`, which ones there are that it has not told of.

        Raises StoreUnavailable.
        """
        there = set(self._known)
        self._told &= there
        new = [one for one in self._known if one not in self._told][:_MOST_TOLD]
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
        self._told.update(new if len(there) <= len(self._told) + _MOST_TOLD else there)


def event_of(one: Unreadable, now_ms: int) -> Event:
    """For whoever reads about the object."""
    message = f"what is stored is unreadable, and left where it is: {one.why}"
    return Event(
        kind=one.kind, key=one.key[:_LONGEST_KEY], reason="Unreadable", message=message, at=now_ms
    )
