"""What a session takes over from the one before: states of groups that nothing has happened to.

Most groups only wait. A *bare* group is nothing but a record that waits: it holds nothing, is owed
nothing and has no clock. As long as its record and what it is judged by stay the same, so does its
state, and its place in line; a session that follows another builds neither anew. A *steady* group
runs, and only its pods and its clocks could change that: its state lasts like that of a bare one,
and it is not settled again before one of its clocks runs out.

It changes no decision: without it, every state would be built again, and be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from batchq.api.objects import Pod, PodGroup, PriorityClass
from batchq.framework.shapes import GroupShape, shape_of
from batchq.framework.snapshot import Snapshot
from batchq.framework.state import GroupState
from batchq.framework.tree import QueueTree

if TYPE_CHECKING:
    from batchq.framework.session import Session


class Carryover:
    """Owner of the last session's states; belongs to one scheduler. A session's states are good
    until the next one begins.
    """

    def __init__(self) -> None:
        self._world: tuple[object, ...] = ()
        self._tree = QueueTree(())
        self._groups: Mapping[str, GroupState] = {}
        self._touched: Mapping[str, GroupState] = {}
        self._lines: Mapping[str, list[GroupState]] = {}

    def keep(self, session: Session, lines: Mapping[str, list[GroupState]]) -> None:
        """Take over from a session, before it moves anything; `lines` as they were then."""
        self._groups, self._touched, self._lines = session.groups, session.touched, lines

    def tree(self, snapshot: Snapshot, *, gates_hold: bool) -> QueueTree:
        """The tree of queues. Where that, or what else all groups are judged by, has changed,
        nothing is left of the session before.
        """
        world = (snapshot.queues, snapshot.priority_classes, gates_hold)
        same = len(world) == len(self._world) and all(
            one is other for one, other in zip(world, self._world, strict=True)
        )
        if not same:
            self._world, self._tree = world, QueueTree(snapshot.queues)
            self._groups, self._touched, self._lines = {}, {}, {}
        return self._tree

    def states(self, snapshot: Snapshot, *, gates_hold: bool) -> dict[str, GroupState]:
        """The state of every group of a snapshot, whose tree has been asked for."""
        values, default = priorities_of(snapshot.priority_classes)
        former, touched, pods = self._groups, self._touched, snapshot.pods
        found: dict[str, GroupState] = {}
        for place, record in enumerate(snapshot.groups):
            uid = record.metadata.uid
            state = former.get(uid)
            of_it = pods.get(uid, ())
            if state is None or uid in touched or not _lasts(state, record, of_it):
                state = GroupState(
                    record,
                    of_it,
                    values.get(record.spec.priority_class_name, default),
                    self._shape(record, state, gates_hold=gates_hold),
                    self._tree.chain(record.spec.queue),
                    gates_hold=gates_hold,
                )
            state.place = place
            found[uid] = state
        return found

    def lines(self, groups: Mapping[str, GroupState]) -> dict[str, list[GroupState]]:
        """Queue -> those of its groups that stand in line as they did, in that order."""
        return {
            name: [group for group in line if groups.get(group.uid) is group]
            for name, line in self._lines.items()
        }

    def _shape(
        self, record: PodGroup, former: GroupState | None, *, gates_hold: bool
    ) -> GroupShape:
        """A record that did not change keeps its spec from snapshot to snapshot."""
        if former is not None and former.record.spec is record.spec:
            return former.given_shape
        return shape_of(record.spec, gates_hold=gates_hold)


def _lasts(state: GroupState, record: PodGroup, pods: tuple[Pod, ...]) -> bool:
    """Whether nothing has happened to a group, and nothing could have that does not show there."""
    same = state.record is record and state.given_pods is pods
    return same and (state.bare or state.steady)


def priorities_of(classes: Iterable[PriorityClass]) -> tuple[Mapping[str, int], int]:
    """Class name -> value, and the value for groups that name none."""
    values, default = {}, 0
    for item in classes:
        values[item.metadata.name] = item.spec.value
        if item.spec.default:
            default = item.spec.value
    return values, default
