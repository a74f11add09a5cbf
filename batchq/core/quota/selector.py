"""The selector of the queue that is served next, as each turn changes the queues' shares.

Starting at the root, the child with the lowest key is chosen at each level; `Session.level_key`
defines the order. Between equal shares the older head comes first (as in Kueue, where the heads of
all queues are sorted by queue time), so that no queue waits for ever for one whose share is always
0 again when capacity becomes free. The head of an inner queue is that of the child that would be
served. The children with turns left, their own or those of queues below, are kept
sorted. Before each answer, only queues whose ledger or deserved has changed get a new key: a charge
changes the shares of its own path only. A turn therefore costs the depth of the tree times the
logarithm of its width, independent of the number of waiting queues.

A queue whose groups would all be refused in turn can be left out. Its turns change nothing, but
while it is first among its siblings its parent has no head, and comes after others with an equal
share; so a parent counts those of its children.

The key of a queueOrder plugin may depend on what its queue holds and deserves, and on anything
constant during a session.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from math import inf

from batchq.api.resources import Amounts
from batchq.api.transaction import queue_scope
from batchq.core.chunks import uid_order
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import FAIR_SHARES, comparable, fair_shares
from batchq.core.session.session import Key, Session, StateKey, with_head
from batchq.core.session.state import GroupState

_NOTHING: Amounts = {}
#: After every rank of a group.
_NO_HEAD: Key = (inf,)


class FairShareSelector:
    """The queues with turns left; owned by one action.

    A queue with its own turns comes before the queues below it. The root may have turns as well; it
    needs no key, and serves as a single line of all groups.
    """

    def __init__(
        self,
        session: Session,
        names: Iterable[str],
        first: Callable[[str], GroupState | None],
        *,
        waits: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Create a selector; `first` returns the group for which a queue would be served.

        `waits` returns whether a queue without turns has groups that would be refused in turn.
        """
        self._session = session
        self._waits = waits
        self._own = dict.fromkeys(names)
        self._first = first
        self._is_sorted = False
        #: Parent -> the sorted keys of its children with turns left; a key ends in the child's
        #: name.
        self._below: dict[str, list[Key]] = {}
        self._keys: dict[str, Key] = {}
        #: The rank of the group that each queue would start next.
        self._heads: dict[str, Key] = {}
        #: What each queue held when its key was computed.
        self._held: dict[str, Amounts] = {}
        #: The part of each queue's key that never changes.
        self._ages: dict[str, Key] = {}
        #: Parent -> (the plugins' keys, name) of its children that only wait, sorted; and these
        #: keys by name.
        self._waiting: dict[str, list[Key]] = {}
        self._waiting_keys: dict[str, Key] = {}
        self._charges_seen = self._shares_seen = 0
        #: The queue served last, whose first group may be another one now.
        self._served = ROOT

    @property
    def has_one_line(self) -> bool:
        """Return whether a single queue has turns left, so that shares do not matter."""
        return len(self._own) == 1

    def next(self) -> str | None:
        """Return the queue to serve now; None if none has a turn left."""
        if len(self._own) < 2:
            # With a single queue there is nothing to compare, so its deserved need not be computed.
            return next(iter(self._own), None)
        if self._is_sorted:
            self._catch_up()
        else:
            self._sort()
        name = ROOT
        while name not in self._own:
            key = self._below[name][0]
            if name in self._waiting:
                self._pass_waiting(name, key)
            name = key[-1]
        self._served = name
        return name

    def _pass_waiting(self, name: str, key: Key) -> None:
        """Remove the children that only wait and would have had their turns before this key."""
        waiting = self._waiting[name]
        while waiting and waiting[0][0] < key[:-4]:
            _, child = waiting.pop(0)
            del self._waiting_keys[child]

    def drop(self, name: str) -> None:
        """Remove a queue that has no turn left."""
        del self._own[name]
        if not self._is_sorted:
            return
        for above in reversed(self._session.tree.chain(name)[1:]):
            if above in self._own or self._below.get(above):
                self._follow(above, {})
                return
            self._take_out(above)

    def _sort(self) -> None:
        chain = self._session.tree.chain
        names = {one for name in self._own for one in chain(name)[1:]}
        self._find_waiting(names)
        # The deepest first, because the key of an inner queue contains the head of a child.
        for name in sorted(names, key=lambda name: (-len(chain(name)), name)):
            self._below.get(name, []).sort()
            self._heads[name] = self._head(name)
            key = self._keys[name] = self._key(name)
            self._below.setdefault(chain(name)[-2], []).append(key)
        self._below.get(ROOT, []).sort()
        self._charges_seen = len(self._session.ledger.moved)
        self._shares_seen = self._shares_moved()
        self._is_sorted = True

    def _find_waiting(self, names: set[str]) -> None:
        """Find the children that only wait, below parents that compete with other queues."""
        tree = self._session.tree
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(tree.parent_of.get(name, ROOT), []).append(name)
        alone = [ROOT]
        for parent in alone:
            alone += found.get(parent, ()) if len(found.get(parent, ())) == 1 else ()
        for parent in found.keys() - set(alone):
            children = [one for one in tree.children_of[parent] if one not in names]
            for child in children:
                if any(map(self._waits, tree.leaves_below(child))):
                    self._wait(parent, child)

    def _wait(self, parent: str, name: str) -> None:
        key = self._waiting_keys[name] = (self._orders(name), name)
        insort(self._waiting.setdefault(parent, []), key)

    def _head(self, name: str) -> Key:
        """Return the rank of the group that the queue would start next."""
        if name not in self._own:
            key = self._below[name][0]
            waiting = self._waiting.get(name)
            return _NO_HEAD if waiting and waiting[0][0] < key[:-4] else self._heads[key[-1]]
        group = self._first(name)
        return _NO_HEAD if group is None else (group.queue_time, uid_order(group.uid))

    def _holds(self, name: str) -> Amounts:
        return self._session.ledger.sums.get(queue_scope(name), _NOTHING)

    def _key(self, name: str) -> Key:
        session = self._session
        queue = session.queues[name]
        self._held[name] = dict(self._holds(name))
        age = self._ages.get(name)
        if age is None:
            age = self._ages[name] = session.queue_age(queue)
        return (*self._orders(name), self._heads[name], *age)

    def _orders(self, name: str) -> Key:
        return tuple(self._session.queue_orders(self._session.queues[name]))

    def _line_of(self, name: str) -> list[Key]:
        return self._below[self._session.tree.parent_of.get(name, ROOT)]

    def _take_out(self, name: str) -> None:
        key, line = self._keys.pop(name), self._line_of(name)
        del line[bisect_left(line, key)]
        if self._waiting.get(name):
            # None of its groups needs a turn, but it stays in the order of its siblings.
            self._wait(self._session.tree.parent_of.get(name, ROOT), name)

    def _shares_moved(self) -> int:
        shares = self._session.peek(FAIR_SHARES)
        return len(shares.moved) if shares is not None else 0

    def _catch_up(self) -> None:
        """Compute new keys for the queues whose holding, deserved or first group has changed."""
        charges = self._session.ledger.moved
        shares = self._session.peek(FAIR_SHARES)
        waiting: list[str] = []
        # Most changes are made and undone by trials.
        changed = {
            name: None
            for name in dict.fromkeys(charges[self._charges_seen :])
            if name in self._keys and self._held[name] != self._holds(name)
        }
        if shares is not None and len(shares.moved) > self._shares_seen:
            moved = shares.moved[self._shares_seen :]
            changed.update((name, None) for name in moved if name in self._keys)
            waiting = [name for name in dict.fromkeys(moved) if name in self._waiting_keys]
        self._charges_seen, self._shares_seen = len(charges), self._shares_moved()
        self._follow(self._served, changed)
        # A charge changes queues from the root down, and here those below come first.
        while changed:
            name, _ = changed.popitem()
            self._move(name, self._key(name))
            self._follow(self._session.tree.parent_of.get(name, ROOT), changed)
        for name in waiting:
            parent = self._session.tree.parent_of.get(name, ROOT)
            self._waiting[parent].remove(self._waiting_keys[name])
            self._wait(parent, name)
            self._follow(parent, changed)

    def _follow(self, name: str, changed: dict[str, None]) -> None:
        """Change the key of a queue whose head may be another group now, and of those above. The
        keys of queues in `changed`, which are taken out of it, are computed.
        """
        while name in self._keys:
            head = self._head(name)
            if name in changed:
                del changed[name]
                self._heads[name] = head
                self._move(name, self._key(name))
            elif head != self._heads[name]:
                self._heads[name] = head
                self._move(name, with_head(self._keys[name], head))
            else:
                return
            name = self._session.tree.parent_of.get(name, ROOT)

    def _move(self, name: str, new: Key) -> None:
        old, line = self._keys[name], self._line_of(name)
        if new != old:
            # Usually it is the queue served last, and so the first.
            del line[0 if line[0] is old else bisect_left(line, old)]
            insort(line, new)
            self._keys[name] = new


#: With this plugin, only queues that borrow at the highest level give; without it, every borrower
#: gives.
_RULE = "proportion"


def borrowers_of(session: Session, point: str) -> Borrowers:
    """Return the borrowers of a session, tracked from the first call on."""
    known = session.peek(BORROWERS)
    if known is None or known.shares is not fair_shares(session):
        known = Borrowers(session, point)
        session.put(BORROWERS, known)
    return known


class Borrowers:
    """The queues that hold more than they deserve; owned by a session, updated on each query."""

    def __init__(self, session: Session, point: str) -> None:
        self._session = session
        #: The shares used; with others, a new object is created.
        self.shares = fair_shares(session)
        self._up_counts = any(entry.plugin == _RULE for entry in session.plugins.points[point])
        #: All queues above what they deserve in some dimension, including those with children.
        self._over: dict[str, None] = {}
        #: Borrower -> the ancestor up to which it gives; and that ancestor -> its borrowers.
        self._up_to: dict[str, str] = {}
        self._below: dict[str, dict[str, None]] = {}
        self._charges_seen = self._shares_seen = -1

    def exist(self) -> bool:
        """Return whether any queue holds more than it deserves."""
        self._catch_up()
        return any(map(self._holds, self._over))

    def exist_beside(self, queue: str) -> bool:
        """Return whether any other queue holds more than it deserves."""
        self._catch_up()
        return any(name != queue and self._holds(name) for name in self._over)

    def others(self, queue: str) -> list[str]:
        """Return all other queues that hold more than they deserve."""
        self._catch_up()
        return [
            name
            for name in self._session.ledger.holding
            if name != queue and name in self._over and self._holds(name)
        ]

    def givers(self, queue: str) -> list[str]:
        """Return the other borrowers that may give to this queue."""
        if not self._up_counts:
            return self.others(queue)
        self._catch_up()
        return [
            name
            for above in self._session.tree.chain(queue)
            for name in self._below.get(above, ())
            if name != queue and self._holds(name)
        ]

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
        """Update whether a queue borrows; return whether that has changed."""
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
        """Store up to which ancestor a queue gives now."""
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


#: The queues of a session that hold more than they deserve.
BORROWERS: StateKey[Borrowers] = StateKey(
    "borrowers", lambda session: Borrowers(session, "reclaimable"), ends_with_session=True
)
