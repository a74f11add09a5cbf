"""What no nodes took, remembered by what it asks for until a node that could help has more free.

So nodes cost a session the nodes that changed times the shapes that wait, and never the groups that
wait: a gang of a shape that was refused is tried again only when a node on which something has been
freed since takes one of its pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from batchq.api.reasons import Verdict
from batchq.core.session.node_state import Gang, Wanted
from batchq.core.session.session import StateKey
from batchq.core.session.specs import TaskShape

if TYPE_CHECKING:
    from batchq.core.session.session import Session
    from batchq.core.session.state import EquivalenceClass


#: So many refused shapes of one kind are compared with others.
_MOST_COMPARED = 16
#: Of so many gangs it is remembered that no nodes took them.
_MOST_KNOWN = 200_000


def wanted_of(gang: Gang) -> Wanted:
    """Return what a gang asks nodes for."""
    return tuple([(shape.shape, count) for shape, count in gang])


class _Refused(NamedTuple):
    """The shapes of a gang's pods, what it is told, and how often anything had been freed then."""

    shapes: tuple[TaskShape, ...]
    verdict: Verdict
    at: int


class NodeRefusals:
    """Gangs that no nodes took, and the classes that sleep for that.

    Lasts from session to session and belongs to one scheduler; it changes no decision.
    """

    def __init__(self) -> None:
        self._known: dict[Wanted, _Refused] = {}
        #: By all that makes a pod's shape but its amounts: the gangs of one shape.
        self._alike: dict[tuple[Any, ...], dict[Wanted, None]] = {}
        self._asleep: dict[Wanted, dict[EquivalenceClass, None]] = {}
        self._wants: dict[EquivalenceClass, Wanted] = {}
        self._version = -1

    def __bool__(self) -> bool:
        return bool(self._known)

    def begin(self, session: Session) -> None:
        """Forget all if nodes have come, gone or changed in more than what is free."""
        if self._version != session.nodes.version:
            self._version = session.nodes.version
            self._known.clear()
            self._alike.clear()

    def find(self, session: Session, wanted: Wanted) -> Verdict | None:
        """Return why nodes do not take a gang, if that is known and nothing that was freed since
        could help it.
        """
        known = self._known.get(wanted)
        if known is None:
            return None
        if known.at != session.nodes.freed.count:
            if known.verdict.in_line and _helps(session, known):
                del self._known[wanted]
                return None
            self._known[wanted] = known._replace(at=session.nodes.freed.count)
        return known.verdict

    def asks_for_more(self, session: Session, wanted: Wanted) -> tuple[Any, ...] | None:
        """Return the first shape of a gang that asks for no less, and no fewer times, than one that
        no nodes take; None if nothing is known of the kind.
        """
        for shape, count in wanted if self._alike else ():
            for other in list(self._alike.get(shape[1:], ())):
                if _asks_for_less(other, shape, count) and self.find(session, other) is not None:
                    return shape
        return None

    def note(self, session: Session, gang: Gang, verdict: Verdict) -> Verdict:
        """Remember that no nodes take a gang now; return the verdict with the revision."""
        wanted = wanted_of(gang)
        verdict = structs.replace(verdict, revision=session.snapshot.revision)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[wanted] = _Refused(
            tuple([one for one, _ in gang]), verdict, session.nodes.freed.count
        )
        if len(wanted) == 1 and verdict.in_line:
            alike = self._alike.setdefault(wanted[0][0][1:], {})
            if len(alike) >= _MOST_COMPARED:
                del alike[next(iter(alike))]
            alike[wanted] = None
        return verdict

    # Classes that sleep for want of nodes ---------------------------------------------------------

    def sleep(self, peers: EquivalenceClass, wanted: Wanted) -> None:
        """Let a class sleep until nodes may take its gangs."""
        self._asleep.setdefault(wanted, {})[peers] = None
        self._wants[peers] = wanted

    def wake(self, peers: EquivalenceClass) -> None:
        """Wake a class; nothing happens if it does not sleep here."""
        wanted = self._wants.pop(peers, None)
        if wanted is not None:
            del self._asleep[wanted][peers]
            if not self._asleep[wanted]:
                del self._asleep[wanted]

    def wake_all(self) -> None:
        """Let no class sleep here any more."""
        self._asleep.clear()
        self._wants.clear()

    def holds(self, peers: EquivalenceClass) -> bool:
        """Return whether a class sleeps here."""
        return peers in self._wants

    def keeps_out(self, session: Session, peers: EquivalenceClass) -> bool:
        """Return whether a class that sleeps here would still find no nodes."""
        wanted = self._wants.get(peers)
        return wanted is not None and self.find(session, wanted) is not None

    def sleepers(self) -> Iterable[EquivalenceClass]:
        """The classes that sleep here."""
        return self._wants.keys()

    def freed(self, session: Session) -> list[EquivalenceClass]:
        """Return the classes that nodes may take now, in the order in which they fell asleep."""
        return [
            peers
            for wanted, classes in list(self._asleep.items())
            if self.find(session, wanted) is None
            for peers in classes
        ]


def _helps(session: Session, known: _Refused) -> bool:
    """Whether a node on which something was freed since takes any pod of the gang now."""
    return any(
        session.refused_by(shape, session.nodes.by_name[name]) is None
        for name in session.nodes.freed.since(known.at)
        if name in session.nodes.by_name
        for shape in known.shapes
    )


def _asks_for_less(other: Wanted, shape: tuple[Any, ...], count: int) -> bool:
    """Whether a gang of one shape asks for no more pods than these, and for no more by each."""
    ((small, fewer),) = other
    requests = dict(shape[0])
    return fewer <= count and all(requests.get(name, 0) >= units for name, units in small[0])


#: What no nodes took; the scheduler cache puts it there.
NODE_REFUSALS: StateKey[NodeRefusals] = StateKey("node refusals", lambda _: NodeRefusals())
