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
from batchq.core.quota.fair_shares import FAIR_SHARES, comparable, fair_shares
from batchq.core.quota.queue_tree import ROOT
from batchq.core.session.session import Key, Session, StateKey

_NOTHING: Amounts = {}


class FairShareSelector:
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
        shares = self._session.peek(FAIR_SHARES)
        return len(shares.moved) if shares is not None else 0

    def _catch_up(self) -> None:
        """Give those a new key that something has happened to."""
        charges = self._session.ledger.moved
        shares = self._session.peek(FAIR_SHARES)
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


#: The plugin whose rule this is; without it, others have queues give that do not borrow above.
_RULE = "proportion"


def borrowers_of(session: Session, point: str) -> Borrowers:
    """The borrowers of a session, followed from when they are first asked for."""
    known = session.peek(BORROWERS)
    if known is None or known.shares is not fair_shares(session):
        known = Borrowers(session, point)
        session.put(BORROWERS, known)
    return known


class Borrowers:
    """Owned by a session; looks at what has moved since it was asked last."""

    def __init__(self, session: Session, point: str) -> None:
        self._session = session
        #: By which it goes: with others, it is made anew.
        self.shares = fair_shares(session)
        self._up_counts = any(entry.plugin == _RULE for entry in session.plugins.points[point])
        #: The queues above what they deserve of anything, those that have children, too.
        self._over: dict[str, None] = {}
        #: Borrower -> up to where it gives; and that -> the borrowers.
        self._up_to: dict[str, str] = {}
        self._below: dict[str, dict[str, None]] = {}
        self._charges_seen = self._shares_seen = -1

    def are_there(self, queue: str) -> bool:
        """Whether any other queue holds more than it deserves."""
        self._catch_up()
        return any(name != queue and self._holds(name) for name in self._over)

    def others(self, queue: str) -> list[str]:
        """All other queues that hold more than they deserve."""
        self._catch_up()
        return [
            name
            for name in self._session.ledger.holding
            if name != queue and name in self._over and self._holds(name)
        ]

    def givers(self, queue: str) -> list[str]:
        """Those of the others that may give to this one."""
        if not self._up_counts:
            return self.others(queue)
        self._catch_up()
        return [
            name
            for above in self._session.tree.chain(queue)
            for name in self._below.get(above, ())
            if name != queue and self._holds(name)
        ]

    # ------------------------------------------------------------------------------------------

    def _holds(self, name: str) -> bool:
        return bool(self._session.ledger.holding.get(name)) and name in self._session.queues

    def _catch_up(self) -> None:
        session, shares = self._session, fair_shares(self._session)
        charges = session.ledger.moved
        if self._charges_seen < 0:
            moved = list(dict.fromkeys((*session.queues, *session.tree.parent_of)))
        elif (self._charges_seen, self._shares_seen) == (len(charges), len(shares.moved)):
            return
        else:
            moved = [*charges[self._charges_seen :], *shares.moved[self._shares_seen :]]
        self._charges_seen, self._shares_seen = len(charges), len(shares.moved)
        turned = [name for name in dict.fromkeys(moved) if self._has_turned(name)]
        for name in turned:
            self._enter(name)
        for name in turned:
            if name in session.tree.children_of:
                for leaf in session.tree.leaves_below(name):
                    self._enter(leaf)

    def _has_turned(self, name: str) -> bool:
        """Whether a queue has begun to borrow, or does no more."""
        is_over = self._is_over(name)
        if is_over == (name in self._over):
            return False
        if is_over:
            self._over[name] = None
        else:
            del self._over[name]
        return True

    def _is_over(self, name: str) -> bool:
        session = self._session
        right = fair_shares(session).deserved.get(name, {})
        sums = session.ledger.sums.get(queue_scope(name), {})
        over = [one for one, units in sums.items() if one in right and units > right[one]]
        return bool(over) and bool(comparable(session, over))

    def _enter(self, name: str) -> None:
        """Keep a queue where it gives by now."""
        up_to = self._up_to.pop(name, None)
        if up_to is not None:
            del self._below[up_to][name]
        if name not in self._over or name == ROOT:
            return
        chain = self._session.tree.chain(name)
        top = len(chain) - 1
        while top > 1 and chain[top - 1] in self._over:
            top -= 1
        up_to = self._up_to[name] = chain[top - 1]
        self._below.setdefault(up_to, {})[name] = None


#: Which queues hold more than they deserve, in a session.
BORROWERS: StateKey[Borrowers] = StateKey(
    "borrowers", lambda session: Borrowers(session, "reclaimable"), ends_with_session=True
)
