"""Gangs that no nodes took, cached by their requests until a node that could help frees something.

A session therefore checks changed nodes times waiting shapes, never every waiting group: a gang
whose shape was refused is tried again only if a node that has freed something since takes one of
its pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from batchq.api.reasons import Verdict
from batchq.core.cache.generation import Generation
from batchq.core.session.node_state import Gang, Wanted
from batchq.core.session.session import StateKey
from batchq.core.session.specs import TaskShape

if TYPE_CHECKING:
    from batchq.core.session.session import Session
    from batchq.core.session.state import EquivalenceClass


#: How many refused shapes of one kind are compared with others.
_MOST_COMPARED = 16
#: How many refused gangs are cached.
_MOST_KNOWN = 200_000


def wanted_of(gang: Gang) -> Wanted:
    """Return the cache key of a gang: its shapes and their numbers of pods."""
    return tuple([(shape.shape, count) for shape, count in gang])


class _Refused(NamedTuple):
    """The shapes of a refused gang, its verdict, and the count of the session's freed-capacity
    journal at the time.
    """

    shapes: tuple[TaskShape, ...]
    verdict: Verdict
    at: int


class NodeRefusals:
    """Gangs that no nodes took, and the equivalence classes parked for that reason.

    Lasts across sessions and belongs to one scheduler; it changes no decision.
    """

    def __init__(self) -> None:
        self._known: dict[Wanted, _Refused] = {}
        #: Gangs of a single shape, by all parts of the shape except its amounts.
        self._alike: dict[tuple[Any, ...], dict[Wanted, None]] = {}
        self._parked: dict[Wanted, dict[EquivalenceClass, None]] = {}
        self._wants: dict[EquivalenceClass, Wanted] = {}
        self._nodes = Generation()

    def __bool__(self) -> bool:
        return bool(self._known)

    def begin(self, session: Session) -> None:
        """Clear the cache if nodes have come, gone or changed in more than their free resources."""
        if self._nodes.follow(session.nodes.version):
            self._known.clear()
            self._alike.clear()

    def find(self, session: Session, wanted: Wanted) -> Verdict | None:
        """Return why nodes do not take a gang, if that is cached and nothing freed since could help
        it.
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
        """Return the first shape of a gang that requests at least as much as a refused gang of the
        same kind, for at least as many pods; None if there is none.
        """
        for shape, count in wanted if self._alike else ():
            for other in list(self._alike.get(shape[1:], ())):
                if _asks_for_less(other, shape, count) and self.find(session, other) is not None:
                    return shape
        return None

    def note(self, session: Session, gang: Gang, verdict: Verdict) -> Verdict:
        """Cache that no nodes take a gang now; return the verdict with the snapshot's revision."""
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

    # Equivalence classes that are parked for lack of nodes ----------------------------------------

    def sleep(self, peers: EquivalenceClass, wanted: Wanted) -> None:
        """Park an equivalence class until nodes may take its gangs."""
        self._parked.setdefault(wanted, {})[peers] = None
        self._wants[peers] = wanted

    def wake(self, peers: EquivalenceClass) -> None:
        """Unpark an equivalence class, if it is parked here."""
        wanted = self._wants.pop(peers, None)
        if wanted is not None:
            del self._parked[wanted][peers]
            if not self._parked[wanted]:
                del self._parked[wanted]

    def wake_all(self) -> None:
        """Unpark all equivalence classes."""
        self._parked.clear()
        self._wants.clear()

    def holds(self, peers: EquivalenceClass) -> bool:
        """Return whether an equivalence class is parked here."""
        return peers in self._wants

    def keeps_out(self, session: Session, peers: EquivalenceClass) -> bool:
        """Return whether an equivalence class is parked here and would still find no nodes."""
        wanted = self._wants.get(peers)
        return wanted is not None and self.find(session, wanted) is not None

    def sleepers(self) -> Iterable[EquivalenceClass]:
        """Return the equivalence classes that are parked here."""
        return self._wants.keys()

    def freed(self, session: Session) -> list[EquivalenceClass]:
        """Return the equivalence classes that nodes may take now, in the order in which they were
        parked.
        """
        return [
            peers
            for wanted, classes in list(self._parked.items())
            if self.find(session, wanted) is None
            for peers in classes
        ]


def _helps(session: Session, known: _Refused) -> bool:
    """Return whether a node that has freed something since takes any pod of the gang now."""
    return any(
        session.refused_by(shape, session.nodes.by_name[name]) is None
        for name in session.nodes.freed.since(known.at)
        if name in session.nodes.by_name
        for shape in known.shapes
    )


def _asks_for_less(other: Wanted, shape: tuple[Any, ...], count: int) -> bool:
    """Return whether a refused gang of one shape has at most `count` pods, and each requests no
    more.
    """
    ((small, fewer),) = other
    requests = dict(shape[0])
    return fewer <= count and all(requests.get(name, 0) >= units for name, units in small[0])


#: The refused gangs; the scheduler cache provides the object.
NODE_REFUSALS: StateKey[NodeRefusals] = StateKey("node refusals", lambda _: NodeRefusals())
