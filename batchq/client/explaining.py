"""What a client tells of the past and of what waits: reasons, and the events of objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from batchq.api.objects import DEFAULT, NAMESPACED, PodGroup
from batchq.api.transaction import Event
from batchq.changes.lookup import find
from batchq.client.naming import key_named
from batchq.errors import NotFound

if TYPE_CHECKING:
    from batchq.client.why import Why
    from batchq.store.redis import RedisStore

#: So many events of one group are read for its history.
_MOST_OF_HISTORY = 1_000


class Explaining(ABC):
    """Part of `batchq.client.Client`, whose connection it uses."""

    _store: RedisStore

    def why(self, group: str, *, namespace: str = DEFAULT) -> Why:
        """Why a group waits: every reason with the numbers of this moment and what to do about it,
        its place in line, who is ahead, why nobody is evicted for it, whether it could ever run and
        when there will be room; of one that waits no longer, how long it did, and for what.

        The scheduler's own session is run here, on how things stand; nothing is written.
        Raises NotFound, and InvalidInput where the scheduler goes by a configuration that this
        machine cannot follow.
        """
        from batchq.client.deciding import Deciding
        from batchq.client.leading import schedulers
        from batchq.client.why import explain

        key = key_named(group, namespace)
        find(self._store, PodGroup, key)
        events = self.events(kind="PodGroup", key=key, most=_MOST_OF_HISTORY)
        led = schedulers(self._store).led
        told = explain(Deciding.open(self._store), key, events, led=led)
        if told is None:
            raise NotFound(f"PodGroup {key} was deleted just now")
        return told

    def events(
        self,
        *,
        kind: str = "",
        key: str = "",
        namespace: str = "",
        reason: str = "",
        since_ms: int = 0,
        most: int = 100,
    ) -> Sequence[Event]:
        """The latest events, oldest first: of a kind, of one object (`key`), of one namespace (what
        is in none is left out), with this reason, not before `since_ms`.

        The server keeps the latest 10,000 of all.
        """
        if not (namespace or reason or since_ms):
            return self._store.events(kind=kind, key=key, most=most)
        from batchq.client.watching import latest_events

        wanted = partial(_is_wanted, kind, key, namespace, reason, since_ms)
        return latest_events(self._store, wanted, most)

    def follow_events(
        self,
        *,
        kind: str = "",
        key: str = "",
        namespace: str = "",
        reason: str = "",
        since_ms: int = 0,
        most: int = 100,
    ) -> Iterator[Sequence[Event]]:
        """The same, then what happens, for ever. Several come at a time, and every few seconds
        none, so that whoever follows may stop; a server that is away is waited for.
        """
        from batchq.client.watching import WATCH_MS, EventWatch

        wanted = partial(_is_wanted, kind, key, namespace, reason, since_ms)
        watch = EventWatch(self._store)
        yield watch.latest(wanted, most)
        while True:
            with self.patiently():
                events = watch.poll(wanted, WATCH_MS)
            yield events

    @abstractmethod
    def patiently(self, timeout_s: float | None = None) -> AbstractContextManager[None]:
        """Wait for a server that is away."""


def _is_wanted(
    kind: str, key: str, namespace: str, reason: str, since_ms: int, event: Event
) -> bool:
    space = event.key.partition("/")[0] if event.kind in NAMESPACED else ""
    return (
        kind in ("", event.kind)
        and key in ("", event.key)
        and namespace in ("", space)
        and reason in ("", event.reason)
        and event.at >= since_ms
    )
