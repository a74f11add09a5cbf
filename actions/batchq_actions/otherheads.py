"""What is set aside for heads of other queues, and who may use it all the same.

What is set aside holds now; in time, a head has a reservation from its start on. So a group goes
ahead that ends before the reservation or leaves room for it: one that would delay no head. A head
of which nobody knows when it starts has all of it kept.
"""

from __future__ import annotations

from collections.abc import Callable

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.resources import larger
from batchq.framework.nodetimes import Room
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.framework.timetable import Timetable


def length_of(session: Session, group: GroupState) -> int | None:
    """How long a group holds what it reserves, if it is admitted now; None: nobody knows.

    The pods of an array end one by one, and others take their place. Who has leave to wait for
    will start later than now.
    """
    if group.is_array or (still_waits(group) and session.refusals_at("permit", group)):
        return None
    return group.record.spec.walltime


class OtherHeads:
    """The heads for which something is set aside, each with a plan of its own: what is known, and
    its reservation. Owned by one turn of an action, which says when anybody has started.
    """

    def __init__(self, session: Session, known: Timetable) -> None:
        self._session = session
        self._known = known
        #: Head's uid -> its plan; None of one without a finite start.
        self._plans: dict[str, Timetable | None] = {}

    def somebody_started(self) -> None:
        """What is known has changed."""
        self._plans.clear()

    def in_the_way(self, queue: str, fits: Callable[[Timetable], bool]) -> frozenset[str]:
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
        those of a finite start.
        """
        found: dict[str, dict[str, int]] = {}
        for name, one in self._session.ledger.aside.items():
            if name == queue or (plan := self._plan(one.head)) is None:
                continue
            for node, room in plan.booked_until(length).items():
                found[node] = larger(found.get(node, {}), room)
        return found

    def _plan(self, uid: str) -> Timetable | None:
        if uid not in self._plans:
            head = self._session.groups[uid]
            length = length_of(self._session, head)
            start = self._known.slot(head, length)
            plan = None if start is None else self._known.beside()
            if plan is not None and start is not None:
                plan.book(head, start, length)
            self._plans[uid] = plan
        return self._plans[uid]


def still_waits(group: GroupState) -> bool:
    """Whether nobody has made room for it meanwhile."""
    return group.phase == PodGroupPhase.PENDING and not group.reserved
