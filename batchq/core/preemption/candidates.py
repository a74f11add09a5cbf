"""What every search for victims asks about all groups, looked up once a session and followed.

The ledger tells which groups something has happened to (`stirred`), and the session about which it
has decided (`joined`); nobody else is looked at again.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import Pledge, Pod, PodGroupStatus
from batchq.api.resources import Amounts, total
from batchq.api.transaction import queue_scope
from batchq.core.cache.chunks import UidOrder, uid_order
from batchq.core.pending.eligibility import holds_off
from batchq.core.preemption.pledges import leaves_whole, standing_pledges, victims_left
from batchq.core.quota.fair_shares import Share, share_of_queue
from batchq.core.session.session import Session, StateKey
from batchq.core.session.state import GroupState, Victim


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """How victims are looked for.

    `again`: the preemptor has just lost its pledge, and what it asks for is part of the demand
    still. `spares_pledges`: what is pledged to other preemptors is left to them.
    """

    again: bool = False
    spares_pledges: bool = False


#: The terms of a preemptor that has no victims yet.
FIRST_SEARCH = SearchTerms()


class AtActionStart:
    """What an action finds when it begins, worked out when it is first asked for."""

    def __init__(self) -> None:
        #: Queue -> what this session has done in it and may take back.
        self.undoable: dict[str, list[tuple[bool, Any, Victim]]] | None = None
        #: The preemptors with a pledge, by rank.
        self.pledged: list[GroupState] | None = None

    def begin(self) -> None:
        """Forget what the action before has found."""
        self.undoable = self.pledged = None


class Stopping:
    """The groups that have pods which were told to stop, and hold a node still."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupState] | None = None
        self._seen = 0

    def groups(self, session: Session) -> Collection[GroupState]:
        """In no order."""
        stirred = session.ledger.stirred
        news: Iterable[GroupState]
        if self._groups is None:
            self._groups, news = {}, session.busy()
        else:
            news = {group.uid: group for group in stirred[self._seen :]}.values()
        self._seen = len(stirred)
        for group in news:
            if group.pods and any(_stops(group)):
                self._groups[group.uid] = group
            else:
                self._groups.pop(group.uid, None)
        return self._groups.values()


def _stops(group: GroupState) -> Iterable[bool]:
    return (pod.status.terminating and pod.status.phase in ON_NODE for pod in group.pods.values())


class Decided:
    """The groups about which a session has decided together with others, by uid."""

    def __init__(self) -> None:
        self._all: set[str] = set()
        self._served: set[str] = set()
        self._seen = 0
        self._last: tuple[str, ...] | None = None

    def all(self, session: Session) -> Collection[str]:
        """Claimants and victims."""
        self._follow(session.effects.joined)
        return self._all

    def served(self, session: Session) -> Collection[str]:
        """Claimants."""
        self._follow(session.effects.joined)
        return self._served

    def _follow(self, joined: list[tuple[str, ...]]) -> None:
        # A decision that came to nothing new is taken back again.
        if len(joined) < self._seen or (self._seen and joined[self._seen - 1] is not self._last):
            self._all, self._served, self._seen = set(), set(), 0
        for uids in joined[self._seen :]:
            self._all.update(uids)
            self._served.add(uids[0])
        if joined:
            self._seen, self._last = len(joined), joined[-1]


class Rank(NamedTuple):
    """The place of a claimant among all: the lowest comes first."""

    priority: int
    queue_time: int
    uid: UidOrder


def rank_of(group: GroupState) -> Rank:
    """By priority, then queue time, uid."""
    return Rank(-group.priority, group.queue_time, uid_order(group.uid))


def outranked_by(
    session: Session, claimant: GroupState, terms: SearchTerms = FIRST_SEARCH
) -> list[GroupState]:
    """Return the preemptors with a pledge that come after this one, the last first; not those about
    which this session has decided, nor those whose pods would have to go with their reservation.
    """
    standing = [] if terms.spares_pledges else _standing(session)
    after = standing[bisect_right(standing, rank_of(claimant), key=rank_of) :]
    decided = session.get(DECIDED).served(session) if after else ()
    return [
        other
        for other in reversed(after)
        if other is not claimant
        and other.status.pledge.stands
        and other.uid not in decided
        and (other.status.pledge.extra or not _holds_nodes(other))
    ]


def pledged_below(session: Session, claimant: GroupState, terms: SearchTerms) -> Amounts:
    """Return what the preemptors of the same queue that come after this one count there."""
    scope = queue_scope(claimant.queue)
    return total(
        session.ledger.counts_for(other, scope)
        for other in outranked_by(session, claimant, terms)
        if other.queue == claimant.queue
    )


def pledged_in(session: Session, queue: str) -> Amounts:
    """What all claimants of a queue with a pledge count there."""
    scope = queue_scope(queue)
    return total(
        session.ledger.counts_for(other, scope)
        for other in _standing(session)
        if other.queue == queue
    )


def _standing(session: Session) -> list[GroupState]:
    """Return the preemptors that had a pledge when the action began, by rank."""
    at_start = session.get(AT_ACTION_START)
    if at_start.pledged is None:
        at_start.pledged = sorted((group for group, _ in standing_pledges(session)), key=rank_of)
    return at_start.pledged


def _holds_nodes(group: GroupState) -> bool:
    return any(pod.status.phase in ON_NODE for pod in group.current())


def told_and_untold(session: Session, pledge: Pledge) -> tuple[list[Victim], list[Victim]]:
    """The victims of a pledge that have not ended: those that were told to stop, and the others."""
    told: list[Victim] = []
    untold: list[Victim] = []
    for group, pods in victims_left(session, pledge):
        if leaves_whole(pledge, group):
            untold.append(Victim(group, pods, whole=True))
            continue
        whole = group.uid in pledge.whole
        stopping = tuple(pod for pod in pods if pod.status.terminating)
        if stopping or whole:
            told.append(Victim(group, stopping, whole=whole))
        untold += [Victim(group, (pod,), whole=False) for pod in pods if not pod.status.terminating]
    return told, untold


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
    fixed = session.get(DECIDED).all(session)
    for whole, _, victim in heapq.merge(*lines, key=lambda entry: entry[:2]):
        group = victim.group
        if group is not claimant and group.uid not in fixed and _still_stands(session, victim):
            yield victim, whole


def _still_stands(session: Session, victim: Victim) -> bool:
    """Whether what was found has not been taken back meanwhile."""
    group = victim.group
    if victim.pods:
        return all(group.pods.get(pod.metadata.uid) is pod for pod in victim.pods)
    return group.status is not session.effects.before[group.uid][0]


def _undoable_by_queue(session: Session) -> dict[str, list[tuple[bool, Any, Victim]]]:
    """Found once for an action, which does nothing itself that could be taken back."""
    at_start = session.get(AT_ACTION_START)
    if at_start.undoable is not None:
        return at_start.undoable
    found: dict[str, list[tuple[bool, Any, Victim]]] = {}
    for uid, (status, former) in session.effects.before.items():
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
    at_start.undoable = found
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
        for group in session.get(STOPPING).groups(session)
        if not group.status.pledge.stands
        for pod in group.pods.values()
        if pod.status.terminating
        and pod.status.phase in ON_NODE
        and pod.metadata.uid not in session.victims.pledged
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
        former = self._session.effects.before
        served = self._session.get(DECIDED).served(self._session)
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
            and pod.metadata.uid not in self._session.victims.pledged
        ]

    def _has_just_started(self, victim: Victim) -> bool:
        """Whether a former session has bound any of it at this very instant."""
        before = self._session.effects.before.get(victim.group.uid)
        return any(
            pod.status.bound_at == self._session.now_ms
            and (before is None or not _is_new(pod, before[1].get(pod.metadata.uid)))
            for pod in victim.pods
        )

    def _is_pledged(self, group: GroupState) -> bool:
        """Whether another claimant counts on it, and nobody has been told to stop yet."""
        pledged = self._session.victims.pledged
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
                self._session.victims.spares_the_new = True
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


#: What the present action of a session found when it began.
AT_ACTION_START = StateKey("at action start", lambda _: AtActionStart())
#: The groups with pods that were told to stop, in a session.
STOPPING = StateKey("stopping", lambda _: Stopping())
#: The groups about which a session has decided together with others.
DECIDED = StateKey("decided", lambda _: Decided())
