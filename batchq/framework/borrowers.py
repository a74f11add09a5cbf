"""Which queues hold more than they deserve, kept up to date as sums and shares move.

A queue gives something back if it, and each queue above it below the one that it has in common with
the claimant's, is above what it deserves. So each borrower is kept under the highest queue that it
has such a way up to: it gives to claimants below that one, and to nobody else.
"""

from __future__ import annotations

from batchq.api.transaction import queue_scope
from batchq.framework.queue_shares import comparable, fair_shares
from batchq.framework.session import Session
from batchq.framework.tree import ROOT

#: The plugin whose rule this is; without it, others have queues give that do not borrow above.
_RULE = "proportion"


def borrowers_of(session: Session, point: str) -> Borrowers:
    """The borrowers of a session, followed from when they are first asked for."""
    if session.borrowers is None:
        session.borrowers = Borrowers(session, point)
    return session.borrowers


class Borrowers:
    """Owned by a session; looks at what has moved since it was asked last."""

    def __init__(self, session: Session, point: str) -> None:
        self._session = session
        self._up_counts = any(entry.plugin == _RULE for entry in session.points[point])
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
