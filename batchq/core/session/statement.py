"""Statements: several changes that take effect together or not at all.

    with Statement(session) as statement:
        ...                      # changes of batchq.core.session.transitions
        if enough:
            statement.commit()   # otherwise, leaving the block undoes every change

Each change stores its own undo. Only Statements change a session's groups; free resources of nodes
change through `session.nodes`, which Statements use, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from batchq.api.intents import Intent
from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.resources import of_pod
from batchq.core.session.session import Session
from batchq.core.session.state import Exchange, GroupState


class Statement:
    """A context manager for changes; owned by the action that opened it."""

    __slots__ = ("_open", "_undo", "intents", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.intents: list[Intent] = []
        self._undo: list[Callable[[], None]] = []
        self._open = True

    def __enter__(self) -> Statement:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open:
            self.discard()

    def commit(self) -> None:
        """Keep all changes and add their intents to the session's."""
        self._open = False
        self.session.intents.extend(self.intents)
        # The undo functions refer to the Statement and the session; the cycle would be freed only
        # by the garbage collector.
        self._undo.clear()

    def discard(self) -> None:
        """Undo all changes, the last one first."""
        self._open = False
        while self._undo:
            self._undo.pop()()

    def also_undo(self, undo: Callable[[], None]) -> None:
        """Register another function to be called if the changes are undone."""
        self._undo.append(undo)

    def say(self, intent: Intent) -> None:
        """Record the meaning of the preceding changes."""
        self.intents.append(intent)

    def keep_in(self, outer: Statement) -> None:
        """Hand these changes without intents to the outer Statement, which can undo them."""
        self._open = False
        outer._undo.extend(self._undo)
        self._undo.clear()

    def join(self, outer: Statement) -> None:
        """Hand these changes and their intents to the surrounding Statement."""
        outer.intents.extend(self.intents)
        self.keep_in(outer)

    def put_status(self, group: GroupState, status: PodGroupStatus) -> None:
        """Replace a group's whole status."""
        self.session.effects.remember(group)
        former = group.status
        group.status = status
        self._undo.append(lambda: self._put_status(group, former))
        self._follow(group)

    def retract(self, keep: Callable[[Intent], bool]) -> None:
        """Remove intents of actions in this session, except those for which `keep` is True."""
        session = self.session
        former = session.intents
        first = session.effects.first_intent
        session.intents = [*former[:first], *(one for one in former[first:] if keep(one))]
        self.also_undo(lambda: setattr(session, "intents", former))

    def set_status(self, group: GroupState, **changes: Any) -> None:
        """Replace fields of a group's status."""
        self.session.effects.remember(group)
        former = group.status
        group.status = msgspec.structs.replace(former, **changes)
        self._undo.append(lambda: self._put_status(group, former))
        self._follow(group)

    def put_pod(self, group: GroupState, pod: Pod) -> None:
        """Add a pod to its group, or replace its state."""
        self.session.effects.remember(group)
        uid = pod.metadata.uid
        former = group.pods.get(uid)
        self._exchange(group, uid, former, pod)
        self._undo.append(lambda: self._exchange(group, uid, pod, former))

    def put_pods(self, group: GroupState, pods: Iterable[Pod]) -> None:
        """Add pods without a node, or replace the states of such pods, in a single change.

        If the new states are bound, the nodes must have taken their requests already.
        """
        self.session.effects.remember(group)
        known = group.pods
        changes: list[Exchange] = [
            (pod.metadata.uid, known.get(pod.metadata.uid), pod) for pod in pods
        ]
        self._undo.append(
            lambda: self._exchange_all(group, [(uid, new, old) for uid, old, new in changes[::-1]])
        )
        self._note_all(group, changes)

    def put_statuses(self, changes: Sequence[tuple[GroupState, PodGroupStatus]]) -> None:
        """Replace the whole statuses of many groups, in a single change."""
        self.session.effects.remember(*[group for group, _ in changes])
        former = [(group, group.status) for group, _ in changes]
        self._put_statuses(changes)
        self._undo.append(lambda: self._put_statuses(former))

    def put_pods_of(self, groups: Sequence[tuple[GroupState, Sequence[Pod]]]) -> None:
        """Do the same as `put_pods` for many groups, in a single change."""
        self.session.effects.remember(*[group for group, _ in groups])
        touched = self.session.effects.touched
        changes: list[tuple[GroupState, list[Exchange]]] = []
        followed: list[GroupState] = []
        self._undo.append(lambda: self._exchange_back(changes))
        for group, pods in groups:
            known = group.pods
            one: list[Exchange] = [(uid := pod.metadata.uid, known.get(uid), pod) for pod in pods]
            changes.append((group, one))
            if group.exchange_all(one):
                followed.append(group)
            touched[group.uid] = group
        if followed:
            self._follow_all(followed)

    def drop_pod(self, group: GroupState, uid: str) -> None:
        """Remove a pod from its group."""
        self.session.effects.remember(group)
        former = group.pods[uid]
        self._exchange(group, uid, former, None)
        self._undo.append(lambda: self._exchange(group, uid, None, former))

    def _put_status(self, group: GroupState, status: Any) -> None:
        group.status = status
        self._follow(group)

    def _put_statuses(self, changes: Sequence[tuple[GroupState, PodGroupStatus]]) -> None:
        for group, status in changes:
            group.status = status
        self._follow_all([group for group, _ in changes])

    def _exchange_back(self, changes: Sequence[tuple[GroupState, list[Exchange]]]) -> None:
        for group, done in reversed(changes):
            self._exchange_all(group, [(uid, new, old) for uid, old, new in done[::-1]])

    def _exchange(self, group: GroupState, uid: str, old: Pod | None, new: Pod | None) -> None:
        self._count(group, old, taken=False)
        self._count(group, new, taken=True)
        group.exchange(uid, old, new)
        self._follow(group)

    def _exchange_all(self, group: GroupState, changes: list[Exchange]) -> None:
        for _, old, new in changes:
            self._count(group, old, taken=False)
            self._count(group, new, taken=True)
        self._note_all(group, changes)

    def _note_all(self, group: GroupState, changes: list[Exchange]) -> None:
        if group.exchange_all(changes):
            self._follow(group)
        else:
            # The charge of the group has not changed.
            self.session.effects.touched[group.uid] = group

    def _count(self, group: GroupState, pod: Pod | None, *, taken: bool) -> None:
        if pod is None or pod.status.phase not in ON_NODE:
            return
        node = self.session.nodes.by_name.get(pod.status.node)
        if node is None:
            return
        requests = of_pod(pod.spec.requests)
        if group.sharing is not None:
            self.session.nodes.exchange(node, group.sharing, requests, taken=taken)
        elif taken:
            self.session.nodes.take(node, requests)
        else:
            self.session.nodes.give(node, requests)

    def _follow(self, group: GroupState) -> None:
        session = self.session
        session.effects.touched[group.uid] = group
        session.ledger.recharge(group)
        # The charge of a victim affects what its preemptors count for.
        all_preemptors = session.ledger.preemptors
        if all_preemptors and (preemptors := all_preemptors.get(group.uid)):
            session.effects.touched.update(preemptors)

    def _follow_all(self, groups: Sequence[GroupState]) -> None:
        """Do the same as `_follow` for many groups."""
        session = self.session
        if session.ledger.preemptors:
            for group in groups:
                self._follow(group)
            return
        session.effects.touched.update([(group.uid, group) for group in groups])
        session.ledger.recharge_all(groups)
