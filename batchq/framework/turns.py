"""Which queue is served next, while every turn moves the shares that this depends on.

Level by level from the root the child with the lowest key comes first, as `Session.queue_key`
orders queues. The children of each queue that have a turn left, themselves or below them, are kept
sorted. Before each answer those whose ledger or whose deserved has moved since the last one get a
new key, and nobody else: a charge moves the shares of its own chain only. So a turn costs the depth
of the tree times the logarithm of its width, however many queues wait.

A queueOrder plugin's key may depend on what its queue holds and deserves, and on what does not
change within a session.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from batchq.api.resources import Amounts
from batchq.api.transaction import queue_scope
from batchq.framework.session import Key, Session
from batchq.framework.tree import ROOT

_NOTHING: Amounts = {}


class Turns:
    """The queues that have a turn left; owned by one action.

    A queue above others that has turns itself comes before these. The root may have some, too: it
    needs no key, and so stands for "all groups in one line".
    """

    def __init__(self, session: Session, names: Iterable[str]) -> None:
        self._session = session
        self._own = dict.fromkeys(names)
        self._is_sorted = False
        #: Parent -> the keys of its children that have a turn left, lowest first; a key ends in
        #: the child's name.
        self._below: dict[str, list[Key]] = {}
        self._keys: dict[str, Key] = {}
        #: What those held by which they have their keys.
        self._held: dict[str, Amounts] = {}
        self._charges_seen = self._shares_seen = 0

    def next(self) -> str | None:
        """The queue to be served now; None if none has a turn left."""
        if len(self._own) < 2:
            # Nobody to be compared with: then nobody has to work out what queues deserve.
            return next(iter(self._own), None)
        if self._is_sorted:
            self._catch_up()
        else:
            self._sort()
        name = ROOT
        while name not in self._own:
            name = self._below[name][0][-1]
        return name

    def drop(self, name: str) -> None:
        """A queue has no turn left."""
        del self._own[name]
        if not self._is_sorted:
            return
        for above in reversed(self._session.tree.chain(name)[1:]):
            if above in self._own or self._below.get(above):
                return
            self._take_out(above)

    # ------------------------------------------------------------------------------------------

    def _sort(self) -> None:
        for name in self._own:
            self._enter(name)
        for keys in self._below.values():
            keys.sort()
        self._charges_seen = len(self._session.ledger.moved)
        self._shares_seen = self._shares_moved()
        self._is_sorted = True

    def _enter(self, name: str) -> None:
        chain = self._session.tree.chain(name)
        for parent, child in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
            if child in self._keys:
                return
            key = self._keys[child] = self._key(child)
            self._below.setdefault(parent, []).append(key)

    def _holds(self, name: str) -> Amounts:
        return self._session.ledger.sums.get(queue_scope(name), _NOTHING)

    def _key(self, name: str) -> Key:
        self._held[name] = dict(self._holds(name))
        return self._session.level_key(self._session.queues[name])

    def _line_of(self, name: str) -> list[Key]:
        return self._below[self._session.tree.parent_of.get(name, ROOT)]

    def _take_out(self, name: str) -> None:
        key, line = self._keys.pop(name), self._line_of(name)
        del line[bisect_left(line, key)]

    def _shares_moved(self) -> int:
        shares = self._session.fair_shares
        return len(shares.moved) if shares is not None else 0

    def _catch_up(self) -> None:
        """Give those a new key that something has happened to."""
        charges = self._session.ledger.moved
        shares = self._session.fair_shares
        charged = dict.fromkeys(charges[self._charges_seen :])
        shared = dict.fromkeys(shares.moved[self._shares_seen :] if shares is not None else ())
        self._charges_seen, self._shares_seen = len(charges), self._shares_moved()
        for name in {**charged, **shared}:
            # Most of what moves, a trial has moved to and fro.
            if name in self._keys and (name in shared or self._held[name] != self._holds(name)):
                self._rekey(name)

    def _rekey(self, name: str) -> None:
        old, new = self._keys[name], self._key(name)
        if new == old:
            return
        line = self._line_of(name)
        del line[bisect_left(line, old)]
        insort(line, new)
        self._keys[name] = new
