"""What is set aside for heads of other queues, and who may use it all the same.

What is set aside holds now; in time, a head has a reservation from its start on. So a group goes
ahead that ends before the reservation or leaves room for it: one that would delay no head. A head
of which nobody knows when it starts has all of it kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile

from batchq.api.resources import larger, plus
from batchq.core.forecast.node_timeline import Room
from batchq.core.forecast.timeline import LedgerTimeline
from batchq.core.quota.head_reservation import HeadPlace, length_of, place_heads
from batchq.core.session.session import Session


class OtherHeads:
    """The heads for which something is set aside, each with a plan of its own: what is known, and
    its reservation. Owned by one turn of an action, which says when anybody has started.
    """

    def __init__(self, session: Session, known: LedgerTimeline) -> None:
        self._session = session
        self._known = known
        self._places: Mapping[str, HeadPlace] | None = None
        #: Head's uid -> its plan; None of one without a finite start.
        self._plans: dict[str, LedgerTimeline | None] = {}

    def somebody_started(self) -> None:
        """What is known has changed."""
        self._places = None
        self._plans.clear()

    def before(self, queue: str) -> LedgerTimeline:
        """What is known, with the reservations of heads of other queues that come before the head
        of this one: of the queues that were tried before it.
        """
        table = self._known.beside()
        asides = self._session.ledger.aside
        for name in takewhile(lambda name: name != queue, asides):
            self._book(asides[name].head, table)
        return table

    def in_the_way(self, queue: str, fits: Callable[[LedgerTimeline], bool]) -> frozenset[str]:
        """The uids of heads of other queues that a group would delay, if it `fits` beside none of
        what is planned for them: what is set aside for these binds.
        """
        return frozenset(
            one.head
            for name, one in self._session.ledger.aside.items()
            if name != queue and ((plan := self._plan(one.head)) is None or not fits(plan))
        )

    def booked_until(self, queue: str, length: int | None) -> Room:
        """Node -> what is free there now, and booked for heads of other queues in so long a time;
        where nobody knows when a head starts, all that stands there for it.
        """
        found: dict[str, dict[str, int]] = {}
        unknown: dict[str, dict[str, int]] = {}
        for name, one in self._session.ledger.aside.items():
            if name == queue:
                continue
            if (plan := self._plan(one.head)) is not None:
                for node, room in plan.booked_until(length).items():
                    found[node] = larger(found.get(node, {}), room)
                continue
            for node, room in self._place(one.head).room.items():
                unknown[node] = plus(unknown.get(node, {}), room)
        for node, room in unknown.items():
            found[node] = plus(found.get(node, {}), room)
        return found

    def _plan(self, uid: str) -> LedgerTimeline | None:
        if uid not in self._plans:
            is_known = self._place(uid).start is not None
            plan = self._plans[uid] = self._known.beside() if is_known else None
            if plan is not None:
                self._book(uid, plan)
        return self._plans[uid]

    def _book(self, uid: str, table: LedgerTimeline) -> None:
        """Book a head's reservation; nothing happens if nobody knows when it starts."""
        start, room = self._place(uid)
        if start is not None:
            head = self._session.groups[uid]
            table.book_there(head, start, length_of(self._session, head), room)

    def _place(self, uid: str) -> HeadPlace:
        if self._places is None:
            self._places = place_heads(self._session, self._known)
        return self._places[uid]
