"""Whom a claimant could take, and in which order: what this session did, what ends anyway, victims.

Pods beyond minMember come before whole groups; within each the lowest priority, then the queue with
the largest share as it is by then, then the youngest start, then of single pods the highest index
(the lowest is the one that others wait for: rank 0, the first of a sweep), then uid. Whether a
victim may be taken is asked of the policies when its turn comes, about the state as it is by then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.framework.checks import holds_off
from batchq.framework.outranked import rank_of
from batchq.framework.queue_shares import share_of_queue
from batchq.framework.session import Session
from batchq.framework.shares import Share
from batchq.framework.state import GroupState, Victim

Ask = Callable[[Victim], bool]
#: A victim's place among all, which no other has, and the victim.
Entry = tuple[tuple[Any, ...], Victim]
#: Later than any instant in milliseconds.
_NOT_STARTED = 2**60


def undoable(
    session: Session, claimant: GroupState, queues: Iterable[str]
) -> Iterator[tuple[Victim, bool]]:
    """What this session admitted, reserved or bound in these queues and may take back: pods, then
    groups.

    True with a group that goes back to how it was, False with a single pod. Groups about which
    the session has decided with others' fate in hand stay.
    """
    by_queue = _undoable_by_queue(session)
    lines = [by_queue[name] for name in queues if name in by_queue]
    if not lines:
        return
    fixed = session.decided.all(session)
    for whole, _, victim in heapq.merge(*lines, key=lambda entry: entry[:2]):
        group = victim.group
        if group is not claimant and group.uid not in fixed and _still_stands(session, victim):
            yield victim, whole


def _still_stands(session: Session, victim: Victim) -> bool:
    """Whether what was found has not been taken back meanwhile."""
    group = victim.group
    if victim.pods:
        return all(group.pods.get(pod.metadata.uid) is pod for pod in victim.pods)
    return group.status is not (session.former or {})[group.uid][0]


def _undoable_by_queue(session: Session) -> dict[str, list[tuple[bool, Any, Victim]]]:
    """Found once for an action, which does nothing itself that could be taken back."""
    if session.undoable is not None:
        return session.undoable
    found: dict[str, list[tuple[bool, Any, Victim]]] = {}
    for uid, (status, former) in (session.former or {}).items():
        group = session.groups[uid]
        # Who is served what it was promised is left alone in that session.
        if group.phase in TERMINAL or status.pledge.stands:
            continue
        mine = found.setdefault(group.queue, [])
        new = [pod for pod in group.pods.values() if _is_new(pod, former.get(pod.metadata.uid))]
        came_in = status.phase == PodGroupPhase.PENDING and (
            group.phase != status.phase or (group.reserved and status.reserved_at is None)
        )
        if new and not came_in and _was_ready(session, group, new):
            mine += [
                (False, key, Victim(group, (pod,), whole=False))
                for key, pod in _in_turn(group, new)
            ]
        elif new or came_in:
            mine.append((True, victim_key(group), Victim(group, tuple(new), whole=True)))
    for mine in found.values():
        mine.sort(key=lambda entry: entry[:2])
    session.undoable = found
    return found


def _is_new(pod: Pod, former: Pod | None) -> bool:
    if pod.status.phase not in ON_NODE or pod.status.terminating:
        return False
    return former is None or former.status.attempt != pod.status.attempt


def _was_ready(session: Session, group: GroupState, new: list[Pod]) -> bool:
    """Whether the group had enough without these pods."""
    placed = dict(group.placed)
    for pod in new:
        placed[pod.spec.task] -= 1
    return sum(placed.values()) >= group.min_member and all(
        placed[shape.task.name] >= shape.task.min_available for shape in group.tasks
    )


def ending(session: Session) -> list[tuple[GroupState, Pod]]:
    """Pods that were told to stop and are owed to nobody, the first to end first.

    Those of a claimant are not: in the ledger they count as what it has been promised itself.
    """
    found = [
        (_ends_at(pod), pod.metadata.uid, group, pod)
        for group in session.stopping.groups(session)
        if not group.status.pledge.stands
        for pod in group.pods.values()
        if pod.status.terminating
        and pod.status.phase in ON_NODE
        and pod.metadata.uid not in session.pledged
    ]
    found.sort(key=lambda item: item[:2])
    return [(group, pod) for _, _, group, pod in found]


def _ends_at(pod: Pod) -> int:
    return (pod.status.terminating_at or 0) + pod.spec.termination_grace


def start_of(group: GroupState) -> int:
    """Since when a group runs. One that has not started is younger than all that have: no work
    is lost with it (volcano 3670).
    """
    status = group.status
    if status.started_at is not None:
        return status.started_at
    known = (status.in_queue_at, status.reserved_at)
    return _NOT_STARTED + next((at for at in known if at is not None), 0)


def victim_key(group: GroupState) -> tuple[Any, ...]:
    """The order of whole groups of one queue."""
    return (group.priority, -start_of(group), group.order)


def _in_turn(group: GroupState, pods: list[Pod]) -> Iterable[tuple[tuple[Any, ...], Pod]]:
    """A group's pods in its own order: lowest priority, youngest start, highest index.

    Each with a key by which it is compared with other groups' pods. These go by start and index
    alone, so the group's starts and indices are dealt out anew, the first key to the first pod.
    """
    ages = {pod.metadata.uid: (-_start_of_pod(pod), -_place(group, pod)) for pod in pods}
    own = sorted(pods, key=lambda pod: (_priority(group, pod), *ages[pod.metadata.uid]))
    keys = [(group.priority, *age, group.order) for age in sorted(ages.values())]
    return zip(keys, own, strict=True)


def _start_of_pod(pod: Pod) -> int:
    if pod.status.started_at is not None:
        return pod.status.started_at
    return _NOT_STARTED + (pod.status.bound_at or 0)


def _priority(group: GroupState, pod: Pod) -> int:
    return group.priority if pod.spec.priority is None else pod.spec.priority


def _place(group: GroupState, pod: Pod) -> int:
    return group.shape_of(pod).first + pod.spec.index


def _has_just_begun(group: GroupState, before: PodGroupStatus) -> bool:
    """Of a group that trials have touched: whether anything of that has stayed."""
    if before.pledge.stands:
        return not group.status.pledge.stands
    has_reserved = group.reserved and before.reserved_at is None
    return before.phase == PodGroupPhase.PENDING and (group.phase != before.phase or has_reserved)


def _key_of(entry: Entry) -> tuple[Any, ...]:
    return entry[0]


class Pool:
    """The victims of some queues, in order; owned by one search."""

    def __init__(self, session: Session, claimant: GroupState, queues: Iterable[str]) -> None:
        self._session = session
        self._claimant = claimant
        self._queues = [name for name in queues if session.ledger.holding.get(name)]
        #: Queue -> its share, of those that hold what they held when it was asked.
        self._shares: dict[str, Share] = {}

    def extras(self, ask: Ask) -> Iterator[Victim]:
        """Pods beyond minMember, one at a time; whoever takes one asks for the next."""
        heaps: dict[str, list[Entry]] = {}
        for name in self._queues:
            entries = [
                (key, Victim(group, (pod,), whole=False))
                for group in self._groups(name)
                if group.is_elastic
                for key, pod in _in_turn(group, self._stoppable(group))
            ]
            if entries:
                entries.sort(key=_key_of)
                heaps[name] = entries
        yield from self._in_order(heaps, ask)

    def groups(self, ask: Ask) -> Iterator[Victim]:
        """Whole groups."""
        heaps: dict[str, list[Entry]] = {}
        for name in self._queues:
            entries = [
                (victim_key(group), Victim(group, tuple(self._stoppable(group)), whole=True))
                for group in self._groups(name)
                if not self._is_pledged(group) and not self._counts_on_what_is_taken(group)
            ]
            if entries:
                entries.sort(key=_key_of)
                heaps[name] = entries
        yield from self._in_order(heaps, ask)

    def _groups(self, queue: str) -> list[GroupState]:
        """Groups of the queue that hold something and have not been decided about.

        Whom others have made way for in this session is not sent off in the same breath.
        """
        former = self._session.former or {}
        served = self._session.decided.served(self._session)
        return [
            group
            for group in self._session.ledger.holding[queue].values()
            if group is not self._claimant
            and group.uid not in served
            and group.phase not in TERMINAL
            # What this session has admitted is undone, not evicted; and who has just been given
            # what was promised to it is left alone for as long.
            and not (group.uid in former and _has_just_begun(group, former[group.uid][0]))
        ]

    def _stoppable(self, group: GroupState) -> list[Pod]:
        """Pods that hold a node and have not been told to stop."""
        return [
            pod
            for pod in group.pods.values()
            if pod.status.phase in ON_NODE
            and not pod.status.terminating
            and pod.metadata.uid not in self._session.pledged
        ]

    def _has_just_started(self, victim: Victim) -> bool:
        """Whether a former session has bound any of it at this very instant."""
        before = (self._session.former or {}).get(victim.group.uid)
        return any(
            pod.status.bound_at == self._session.now_ms
            and (before is None or not _is_new(pod, before[1].get(pod.metadata.uid)))
            for pod in victim.pods
        )

    def _is_pledged(self, group: GroupState) -> bool:
        """Whether another claimant counts on it, and nobody has been told to stop yet."""
        pledged = self._session.pledged
        return group.uid in pledged or any(
            pod.metadata.uid in pledged and not pod.status.terminating
            for pod in group.pods.values()
        )

    def _counts_on_what_is_taken(self, group: GroupState) -> bool:
        """Whether a group has victims of its own that are not for the claimant, which may not have
        anything evicted yet: these were told to stop, or the group comes before the claimant and
        would take them over again.
        """
        pledge = group.status.pledge
        if not pledge.stands or not holds_off(self._session, self._claimant):
            return False
        return pledge.expires is not None or rank_of(group) < rank_of(self._claimant)

    def _in_order(self, heaps: dict[str, list[Entry]], ask: Ask) -> Iterator[Victim]:
        while heaps:
            name = self._next_queue(heaps)
            _, victim = heapq.heappop(heaps[name])
            if not heaps[name]:
                del heaps[name]
            if not self._is_there(victim) or not ask(victim):
                continue
            if self._has_just_started(victim):
                # It is one from the next instant on.
                self._session.spares_the_new = True
                continue
            yield victim
            # What is taken lowers what its queue holds, and those above it.
            for queue in victim.group.chain:
                self._shares.pop(queue, None)

    def _next_queue(self, heaps: dict[str, list[Entry]]) -> str:
        if len(heaps) == 1:
            return next(iter(heaps))
        lowest = min(heap[0][0][0] for heap in heaps.values())
        names = [name for name, heap in heaps.items() if heap[0][0][0] == lowest]
        if len(names) == 1:
            return names[0]
        shares = {name: share_path(self._session, name, self._shares) for name in names}
        most = max(shares.values())
        return min(
            (name for name in names if shares[name] == most), key=lambda name: heaps[name][0][0]
        )

    def _is_there(self, victim: Victim) -> bool:
        """Whether there is still something to take."""
        group = victim.group
        if not victim.whole:
            return victim.pods[0].metadata.uid in group.pods
        return group.reserved or any(pod.metadata.uid in group.pods for pod in victim.pods)


def share_path(
    session: Session, queue: str, known: dict[str, Share] | None = None
) -> tuple[Share, ...]:
    """The shares of a queue and those above it, the highest first.

    `known`: queue -> its share where that has been asked and still holds; what is asked is added.
    """
    known = {} if known is None else known
    names = session.tree.chain(queue)[1:]
    for name in names:
        if name not in known:
            known[name] = share_of_queue(session, name)
    return tuple([known[name] for name in names])
