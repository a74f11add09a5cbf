"""Tells of records that cannot be read: each once, in the log and as an event; all as a number.

The store leaves such a record where it is and out of every snapshot (`batchq.store.records`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from batchq.api.transaction import Event, Transaction
from batchq.api.unreadable import Unreadable
from batchq.ports import IdSource
from batchq.store.redis import RedisStore

_log = structlog.get_logger()

#: So many at once become events and lines of the log; a flood of them must not wash others away.
_MOST_TOLD = 20
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
