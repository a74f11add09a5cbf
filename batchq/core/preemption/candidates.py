"""Candidates for eviction: what every search for victims needs to know about all groups.

The data is collected once a session and then updated: the ledger lists the groups that have changed
(`changed_groups`), and the session those that it has decided about (`joined`); no other group is
looked at again.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import Pledge, Pod, PodGroupStatus
from batchq.api.resources import Amounts, add_to, of_pod, total
from batchq.api.transaction import queue_scope
from batchq.core.chunks import UidOrder, uid_order
from batchq.core.eligibility import holds_off
from batchq.core.kept_capacity import standing_pledges, victims_left
from batchq.core.placement.placement import usable_nodes
from batchq.core.preemption.protection import is_protected, may_lose_pods
from batchq.core.quota.fair_shares import Share, share_of_queue
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import Gang
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, Shortage, Victim


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """The conditions of a search for victims.

    `again` means that the preemptor has just lost its pledge, and its request is still part of the
    demand. With `spares_pledges`, victims pledged to other preemptors are not taken. With `former`,
    no other victims are taken than those of this pledge.
    """

    again: bool = False
    spares_pledges: bool = False
    former: Pledge | None = None

    def may_take_group(self, group: GroupState) -> bool:
        """Return whether all of a group may be taken."""
        return self.former is None or group.uid in self.former.whole

    def may_take_pod(self, pod: Pod) -> bool:
        """Return whether a pod beyond minMember may be taken alone."""
        return self.former is None or pod.metadata.uid in self.former.holds


#: The terms for a preemptor without victims.
FIRST_SEARCH = SearchTerms()


class AtActionStart:
    """What an action finds when it begins, collected on first use."""

    def __init__(self) -> None:
        #: Queue -> what this session has done in it and may undo.
        self.undoable: dict[str, list[tuple[bool, Any, Victim]]] | None = None
        #: The preemptors with a pledge, by rank.
        self.pledged: list[GroupState] | None = None

    def begin(self) -> None:
        """Clear what the previous action has found."""
        self.undoable = self.pledged = None


class Decided:
    """The groups that a session has decided about together with others, by uid."""

    def __init__(self) -> None:
        self._all: set[str] = set()
        self._served: set[str] = set()
        self._seen = 0
        self._last: tuple[str, ...] | None = None

    def all(self, session: Session) -> Collection[str]:
        """Return the uids of preemptors and victims."""
        self._follow(session.effects.joined)
        return self._all

    def served(self, session: Session) -> Collection[str]:
        """Return the uids of preemptors."""
        self._follow(session.effects.joined)
        return self._served

    def _follow(self, joined: list[tuple[str, ...]]) -> None:
        # A decision without any effect is removed from the list again.
        if len(joined) < self._seen or (self._seen and joined[self._seen - 1] is not self._last):
            self._all, self._served, self._seen = set(), set(), 0
        for uids in joined[self._seen :]:
            self._all.update(uids)
            self._served.add(uids[0])
        if joined:
            self._seen, self._last = len(joined), joined[-1]


class Rank(NamedTuple):
    """The rank of a preemptor; the lowest comes first."""

    priority: int
    queue_time: int
    uid: UidOrder


def rank_of(group: GroupState) -> Rank:
    """Return the rank of a group: by priority, then queue time, then uid."""
    return Rank(-group.priority, group.queue_time, uid_order(group.uid))


def outranked_by(
    session: Session, preemptor: GroupState, terms: SearchTerms = FIRST_SEARCH
) -> list[GroupState]:
    """Return the preemptors with a pledge that rank behind this one, the last first. Leave out
    preemptors that this session has decided about, and those whose pods would be evicted with their
    reservation.
    """
    standing = [] if terms.spares_pledges else _standing(session)
    after = standing[bisect_right(standing, rank_of(preemptor), key=rank_of) :]
    decided = session.get(DECIDED).served(session) if after else ()
    return [
        other
        for other in reversed(after)
        if other is not preemptor
        and other.status.pledge.stands
        and other.uid not in decided
        and (other.status.pledge.extra or not _holds_nodes(other))
    ]


def pledged_in(session: Session, queue: str) -> Amounts:
    """Return what a queue's preemptors with a pledge add to its sum."""
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


def stopping_and_running(session: Session, pledge: Pledge) -> tuple[list[Victim], list[Victim]]:
    """Return the victims of a pledge that have not ended: those being stopped, and the others."""
    stopping: list[Victim] = []
    running: list[Victim] = []
    once = frozenset(pledge.whole)
    for group, pods, leaves in victims_left(session, pledge):
        if leaves:
            running.append(Victim(group, pods, whole=True))
            continue
        whole = group.uid in once
        leaving = tuple(pod for pod in pods if pod.status.terminating)
        if leaving or whole:
            stopping.append(Victim(group, leaving, whole=whole))
        running += [
            Victim(group, (pod,), whole=False) for pod in pods if not pod.status.terminating
        ]
    return stopping, running


Ask = Callable[[Victim], bool]
#: A victim's unique sort key, and the victim.
Entry = tuple[tuple[Any, ...], Victim]
_key_of = itemgetter(0)
#: A pod that is being stopped: when it ends (ms), its uid, its group, and the pod.
Stop = tuple[int, str, GroupState, Pod]


class Turn(NamedTuple):
    """When a queue gives its first victim; the lowest comes first. `share` is the rank of its share
    and those of the queues above it, negated.
    """

    priority: int
    share: tuple[int, ...]
    first: tuple[Any, ...]
    queue: str


#: Later than any instant in milliseconds.
_NOT_STARTED = 2**60


def undoable(
    session: Session, preemptor: GroupState, queues: Iterable[str]
) -> Iterator[tuple[Victim, bool]]:
    """Yield what this session admitted, reserved or bound in these queues and may undo: pods, then
    groups.

    The flag is True for a group that returns to its former state, and False for a single pod.
    Groups that the session has decided about together with others are left out.
    """
    by_queue = _undoable_by_queue(session)
    lines = [by_queue[name] for name in queues if name in by_queue]
    if not lines:
        return
    fixed = session.get(DECIDED).all(session)
    for whole, _, victim in heapq.merge(*lines, key=lambda entry: entry[:2]):
        group = victim.group
        if group is not preemptor and group.uid not in fixed and _is_unchanged(session, victim):
            yield victim, whole


def _is_unchanged(session: Session, victim: Victim) -> bool:
    """Return whether the entry has not been undone meanwhile."""
    group = victim.group
    if victim.pods:
        return all(group.pods.get(pod.metadata.uid) is pod for pod in victim.pods)
    return group.status is not session.effects.before[group.uid][0]


def _undoable_by_queue(session: Session) -> dict[str, list[tuple[bool, Any, Victim]]]:
    """Return what the session may undo, by queue. Collected once an action, because the action
    itself does nothing that could be undone.
    """
    at_start = session.get(AT_ACTION_START)
    if at_start.undoable is not None:
        return at_start.undoable
    found: dict[str, list[tuple[bool, Any, Victim]]] = {}
    for uid, (status, former) in session.effects.before.items():
        group = session.groups[uid]
        # A group that has received what was pledged to it is left alone in that session.
        if group.phase in TERMINAL or status.pledge.stands:
            continue
        mine = found.setdefault(group.queue, [])
        new = [
            pod for pod in group.live_pods.values() if _is_new(pod, former.get(pod.metadata.uid))
        ]
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
    """Return whether the group had enough pods without these."""
    placed = dict(group.placed)
    for pod in new:
        placed[pod.spec.task] -= 1
    return sum(placed.values()) >= group.min_member and all(
        placed[shape.task.name] >= shape.task.min_available for shape in group.tasks
    )


def ending(session: Session) -> list[tuple[GroupState, Pod]]:
    """Return pods that are being stopped and are not pledged to any preemptor, in the order of
    their ends.

    Pods of a preemptor are left out, because the ledger counts them as its own reservation.
    """
    pledged = session.victims.pledged
    found = [
        stop
        for stops in session.get(HOLDERS).stops(session)
        for stop in stops
        if stop[1] not in pledged and not stop[2].status.pledge.stands
    ]
    found.sort(key=lambda stop: stop[:2])
    return [(group, pod) for _, _, group, pod in found]


def _ends_at(pod: Pod) -> int:
    return (pod.status.terminating_at or 0) + pod.spec.termination_grace


def start_of(group: GroupState) -> int:
    """Return since when a group runs (ms). A group that has not started counts as younger than all
    that have, because no work is lost with it (volcano 3670).
    """
    status = group.status
    if status.started_at is not None:
        return status.started_at
    known = (status.in_queue_at, status.reserved_at)
    return _NOT_STARTED + next((at for at in known if at is not None), 0)


def victim_key(group: GroupState) -> tuple[Any, ...]:
    """Return the sort key of whole groups in one queue."""
    return (group.priority, -start_of(group), group.order)


def _in_turn(group: GroupState, pods: list[Pod]) -> Iterable[tuple[tuple[Any, ...], Pod]]:
    """Return a group's pods in its own order: lowest priority, youngest start, highest index.

    Each pod has a key for the comparison with pods of other groups, which uses only start and
    index. So the sorted keys of the group are assigned to its pods in its own order.
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
    """Return whether any change of a group touched by trials has remained."""
    if before.pledge.stands:
        return not group.status.pledge.stands
    has_reserved = group.reserved and before.reserved_at is None
    return before.phase == PodGroupPhase.PENDING and (group.phase != before.phase or has_reserved)


class Holders:
    """The groups that hold something, as a search for victims needs them.

    Candidates are neither groups that an action has admitted in this session, which are undone, nor
    those that have just received what was pledged to them.
    """

    def __init__(self) -> None:
        self._stops: dict[str, list[Stop]] = {}
        self._whole: dict[str, list[Entry]] = {}
        self._entries: dict[str, Entry] = {}
        self._elastic: dict[str, dict[str, GroupState]] = {}
        self._seen = -1

    def stops(self, session: Session) -> Collection[Sequence[Stop]]:
        """Return the pods of each group that are being stopped and hold a node, unordered."""
        self._follow(session)
        return self._stops.values()

    def whole_groups(self, session: Session, queue: str) -> Sequence[Entry]:
        """Return the candidates of a queue, in the order of their eviction, with those of their
        pods that hold a node and are not being stopped.
        """
        self._follow(session)
        return self._whole.get(queue, ())

    def elastic_groups(self, session: Session, queue: str) -> Collection[GroupState]:
        """Return the candidates that may lose single pods, unordered."""
        self._follow(session)
        return self._elastic.get(queue, {}).values()

    def _follow(self, session: Session) -> None:
        changed_groups = session.ledger.changed_groups
        if self._seen < 0:
            for name, groups in session.ledger.holding.items():
                entries = [self._note(session, group) for group in groups.values()]
                self._whole[name] = sorted(filter(None, entries), key=_key_of)
        else:
            for group in {one.uid: one for one in changed_groups[self._seen :]}.values():
                line = self._whole.setdefault(group.queue, [])
                if (old := self._entries.pop(group.uid, None)) is not None:
                    del line[bisect_left(line, old[0], key=_key_of)]
                if (new := self._note(session, group)) is not None:
                    insort(line, new, key=_key_of)
        self._seen = len(changed_groups)

    def _note(self, session: Session, group: GroupState) -> Entry | None:
        """Note what a group is now; return its entry among the whole groups, if it has one."""
        uid, elastic = group.uid, self._elastic.setdefault(group.queue, {})
        elastic.pop(uid, None)
        self._stops.pop(uid, None)
        on_nodes = [pod for pod in group.live_pods.values() if pod.status.phase in ON_NODE]
        pods = tuple(pod for pod in on_nodes if not pod.status.terminating)
        if len(pods) < len(on_nodes):
            self._stops[uid] = [
                (_ends_at(pod), pod.metadata.uid, group, pod)
                for pod in on_nodes
                if pod.status.terminating
            ]
        before = session.effects.before.get(uid)
        if (
            uid not in session.ledger.holding.get(group.queue, ())
            or group.phase in TERMINAL
            or (before is not None and _has_just_begun(group, before[0]))
        ):
            return None
        if group.is_elastic:
            elastic[uid] = group
        if not pods and not group.reserved:
            return None
        found = self._entries[uid] = (victim_key(group), Victim(group, pods, whole=True))
        return found


def _is_pledged(group: GroupState, pledged: Mapping[str, str]) -> bool:
    """Return whether another preemptor counts on the group, and none of its pods stops yet."""
    return group.uid in pledged or any(
        uid in pledged and not pod.status.terminating for uid, pod in group.live_pods.items()
    )


def _keeps_its_victims(group: GroupState, preemptor: GroupState) -> bool:
    """Return whether a group has victims of its own that this preemptor cannot use, since it may
    not evict anything yet: they are being stopped already, or the group ranks before the preemptor
    and would take them back.
    """
    pledge = group.status.pledge
    return pledge.stands and (pledge.expires is not None or rank_of(group) < rank_of(preemptor))


class Pool:
    """The victims of some queues, in order; owned by one search."""

    def __init__(
        self,
        session: Session,
        preemptor: GroupState,
        queues: Iterable[str],
        terms: SearchTerms = FIRST_SEARCH,
    ) -> None:
        self._session = session
        self._preemptor = preemptor
        self._terms = terms
        self._queues = [name for name in queues if session.ledger.holding.get(name)]
        self._holders = session.get(HOLDERS)
        #: Queue -> its share, valid until its holding changes.
        self._shares: dict[str, Share] = {}

    def extras(self, ask: Ask) -> Iterator[Victim]:
        """Yield pods beyond minMember, one at a time."""
        lines = {name: sorted(self._extras_of(name), key=_key_of) for name in self._queues}
        yield from self._in_order(lines, ask)

    def groups(self, ask: Ask) -> Iterator[Victim]:
        """Yield whole groups."""
        lines = {
            name: list(self._holders.whole_groups(self._session, name)) for name in self._queues
        }
        yield from self._in_order(lines, ask, self._refused_groups())

    def by_node(self) -> dict[str, list[Victim]]:
        """Return the victims with pods on each node: single pods first, then whole groups, in the
        order of one queue. Groups that have victims of their own are left out.
        """
        found: dict[str, list[Entry]] = {}
        is_refused = self._refused_groups()
        for name in self._queues:
            whole = self._holders.whole_groups(self._session, name)
            for key, victim in (
                *self._extras_of(name),
                *(entry for entry in whole if not is_refused(entry[1].group)),
            ):
                if victim.group.status.pledge.stands:
                    continue
                if self._has_just_started(victim):
                    self._session.victims.spares_the_new = True
                    continue
                for node in {pod.status.node for pod in victim.pods}:
                    found.setdefault(node, []).append(((victim.whole, *key), victim))
        return {
            node: [victim for _, victim in sorted(entries, key=_key_of)]
            for node, entries in found.items()
        }

    def _extras_of(self, queue: str) -> list[Entry]:
        served = self._session.get(DECIDED).served(self._session)
        return [
            (key, Victim(group, (pod,), whole=False))
            for group in self._holders.elastic_groups(self._session, queue)
            if group is not self._preemptor and group.uid not in served
            for key, pod in _in_turn(group, stoppable(self._session, group))
            if self._terms.may_take_pod(pod)
        ]

    def _refused_groups(self) -> Callable[[GroupState], bool]:
        """Return the test for whole groups that are no victims of this preemptor, by the pledges
        that stand now: a search that ends some of them tries their victims in its next round.

        A group that others were evicted for in this session is not evicted in the same session.
        """
        session, preemptor, terms = self._session, self._preemptor, self._terms
        served = session.get(DECIDED).served(session)
        pledged = dict(session.victims.pledged)
        waits_for_checks = holds_off(session, preemptor)

        def is_refused(group: GroupState) -> bool:
            return (
                group is preemptor
                or group.uid in served
                or not terms.may_take_group(group)
                or (bool(pledged) and _is_pledged(group, pledged))
                or (waits_for_checks and _keeps_its_victims(group, preemptor))
            )

        return is_refused

    def _has_just_started(self, victim: Victim) -> bool:
        """Return whether an earlier session has bound any of its pods at this very instant."""
        before = self._session.effects.before.get(victim.group.uid)
        return any(
            pod.status.bound_at == self._session.now_ms
            and (before is None or not _is_new(pod, before[1].get(pod.metadata.uid)))
            for pod in victim.pods
        )

    def _in_order(
        self,
        lines: dict[str, list[Entry]],
        ask: Ask,
        is_refused: Callable[[GroupState], bool] = lambda _: False,
    ) -> Iterator[Victim]:
        """Yield the victims that may be taken when their turn comes: lowest priority first, then
        from the queue with the largest share, in the order of its line.
        """
        lines = {name: line for name, line in lines.items() if line}
        below = self._by_ancestor(lines)
        turns: dict[str, Turn] = {}
        heap: list[Turn] = []
        for line in lines.values():
            # Taken from its end.
            line.reverse()

        def stand(name: str) -> None:
            line = lines[name]
            while line and is_refused(line[-1][1].group):
                line.pop()
            if line:
                turns[name] = turn = self._turn(name, line[-1])
                heapq.heappush(heap, turn)

        for name in lines:
            stand(name)
        while heap:
            turn = heapq.heappop(heap)
            name = turn.queue
            if turns[name] is not turn:
                continue
            _, victim = lines[name].pop()
            if not is_there(victim) or not ask(victim):
                stand(name)
                continue
            if self._has_just_started(victim):
                # From the next instant on, it is a candidate, and those behind it may stay.
                self._session.victims.spares_the_new = True
                return
            yield victim
            # Taking a victim lowers what its queue and the queues above hold.
            for queue in victim.group.chain:
                self._shares.pop(queue, None)
            moved = dict.fromkeys(
                one for queue in victim.group.chain for one in below.get(queue, ())
            )
            for one in {**moved, name: None}:
                stand(one)

    def _by_ancestor(self, lines: Iterable[str]) -> dict[str, list[str]]:
        """Return the queues of these lines below each queue that is not above all of them."""
        below: dict[str, list[str]] = {}
        for name in lines:
            for queue in self._session.tree.chain(name):
                below.setdefault(queue, []).append(name)
        most = max(map(len, below.values()), default=0)
        return {queue: names for queue, names in below.items() if len(names) < most}

    def _turn(self, queue: str, first: Entry) -> Turn:
        key, _ = first
        path = share_path(self._session, queue, self._shares)
        return Turn(key[0], tuple([-share.rank() for share in path]), key, queue)


def stoppable(session: Session, group: GroupState) -> list[Pod]:
    """Return the pods that hold a node, are not being stopped and are not pledged."""
    return [
        pod
        for pod in group.live_pods.values()
        if pod.status.phase in ON_NODE
        and not pod.status.terminating
        and pod.metadata.uid not in session.victims.pledged
    ]


class Needs(NamedTuple):
    """What a request needs at least: places for a gang, and amounts within all of its limits."""

    gang: Gang
    amounts: Amounts


class Staying(NamedTuple):
    """What stays on each node and in each scope, whichever victims are taken, and the uids of the
    groups whose charge the scopes contain.
    """

    on_nodes: Mapping[str, Amounts]
    in_scopes: Mapping[str, Amounts]
    charged: Collection[str]


class UpperBound:
    """An upper bound on what a preemptor could have: what is left if everything left that any
    search might take, and all capacity kept for others became free. A request for more finds no
    victims, which taking all of them on trial, one by one, would only confirm.

    The answers are valid until the session changes. Counting what stays visits each group that
    holds anything. Visits that leave out no search are limited, so that the bound costs no more
    than the searches that it saves: `_FREE_VISITS` of them in a session, and then `_VISITS_A_TRIAL`
    for each victim that a failed search has tried.
    """

    def __init__(self) -> None:
        #: The number of victims that failed searches have taken on trial.
        self.failed_trials = 0
        self._visits = 0
        self._seen = (-1, -1, -1)
        #: By the queues of the victims, whether those of others may be taken over, and the queue
        #: and priority of the preemptor for which the policies were asked, if they were.
        self._staying: dict[tuple[Any, ...], Staying] = {}
        #: By the same and a shape: its places on all nodes.
        self._places: dict[tuple[Any, ...], int] = {}

    def may_suffice(
        self, session: Session, preemptor: GroupState, queues: Sequence[str], needs: Needs
    ) -> bool:
        """Return False if victims in these queues cannot suffice for what a preemptor needs."""
        changed, joined = session.ledger.changed_groups, session.effects.joined
        seen = (len(changed), len(joined), len(session.intents))
        if seen != self._seen:
            self._seen, self._staying, self._places = seen, {}, {}
        takes_over, former = bool(outranked_by(session, preemptor)), self._visits
        # Without the votes on each group, one count serves the preemptors of all queues.
        for asking in (None, preemptor):
            key = (tuple(queues), takes_over, asking and (asking.queue, asking.priority))
            if key not in self._staying:
                if self._visits > _FREE_VISITS + self.failed_trials * _VISITS_A_TRIAL:
                    return True
                self._staying[key] = self._what_stays(
                    session, asking, frozenset(queues), takes_over=takes_over
                )
            if not self._may_fit(session, preemptor, key, needs):
                # The search that is left out would have cost more.
                self._visits = former
                return False
        return True

    def _may_fit(
        self, session: Session, preemptor: GroupState, key: tuple[Any, ...], needs: Needs
    ) -> bool:
        _, in_scopes, charged = self._staying[key]
        own = session.ledger.charged(preemptor) if preemptor.uid in charged else {}
        return all(
            in_scopes.get(scope, {}).get(name, 0) - own.get(name, 0) + need <= limit
            for scope, name, need, limit in session.ledger.limited(preemptor.scopes, needs.amounts)
        ) and all(self._places_for(session, key, shape) >= count for shape, count in needs.gang)

    def _places_for(self, session: Session, key: tuple[Any, ...], shape: TaskShape) -> int:
        found = self._places.get((key, shape.shape))
        if found is None:
            staying = self._staying[key].on_nodes
            found = self._places[key, shape.shape] = sum(
                _places_beside(node.total, staying.get(node.name, {}), shape.requests)
                for node in usable_nodes(session, shape)
            )
        return found

    def _what_stays(
        self,
        session: Session,
        asking: GroupState | None,
        queues: frozenset[str],
        *,
        takes_over: bool,
    ) -> Staying:
        """Return what stays whatever the policies say about victims, or what stays for the
        preemptor that is `asking`; with `takes_over`, victims of others may leave, too.
        """
        pledged, ledger = session.victims.pledged, session.ledger
        on_nodes: dict[str, dict[str, int]] = {}
        in_scopes: dict[tuple[str, ...], dict[str, int]] = {}
        charged: set[str] = set()
        for groups in ledger.holding.values():
            self._visits += len(groups)
            for group in groups.values():
                # What the session itself has begun can be undone.
                if group.uid in session.effects.before or (
                    (group.queue in queues or (takes_over and group.uid in pledged))
                    and not (asking and _is_always_refused(session, asking, group))
                ):
                    continue
                counts = not group.status.pledge.stands
                for uid, pod in group.live_pods.items():
                    if pod.status.phase not in ON_NODE:
                        continue
                    if takes_over if uid in pledged else pod.status.terminating:
                        counts = False
                        continue
                    node = on_nodes.setdefault(pod.status.node, {})
                    add_to(node, of_pod(pod.spec.requests))
                if counts:
                    charged.add(group.uid)
                    add_to(in_scopes.setdefault(group.scopes, {}), ledger.charged(group))
        by_scope: dict[str, dict[str, int]] = {}
        for scopes, amounts in in_scopes.items():
            for scope in scopes:
                add_to(by_scope.setdefault(scope, {}), amounts)
        return Staying(on_nodes, by_scope, charged)


def _places_beside(whole: Amounts, staying: Amounts, requests: Amounts) -> int:
    """Return how many pods with these requests a node takes beside what stays on it."""
    places = (
        (whole.get(name, 0) - staying.get(name, 0)) // units
        for name, units in requests.items()
        if units
    )
    return max(0, min(places, default=0))


def _is_always_refused(session: Session, preemptor: GroupState, group: GroupState) -> bool:
    """Return whether a group, and each of its pods, is refused whatever other victims leave."""
    point = "preemptable" if group.queue == preemptor.queue else "reclaimable"
    lasting = [entry for entry in session.plugins.points[point] if entry.traits.refusals_last]

    def is_refused(victim: Victim) -> bool:
        return is_protected(session, victim, point) or any(
            entry.function(session, preemptor, victim, _NO_SHORTAGE) is False for entry in lasting
        )

    pods = stoppable(session, group)
    return is_refused(Victim(group, tuple(pods), whole=True)) and not (
        may_lose_pods(session, group, point)
        and any(not is_refused(Victim(group, (pod,), whole=False)) for pod in pods)
    )


#: The trial of a victim takes about as long as this many visits of groups, which take 1 µs each.
_VISITS_A_TRIAL = 128
_FREE_VISITS = 20_000
_NO_SHORTAGE = Shortage()


def is_there(victim: Victim) -> bool:
    """Return whether there is still something to take from a victim."""
    group = victim.group
    if not victim.whole:
        return victim.pods[0].metadata.uid in group.pods
    return group.reserved or any(pod.metadata.uid in group.pods for pod in victim.pods)


def share_path(
    session: Session, queue: str, known: dict[str, Share] | None = None
) -> tuple[Share, ...]:
    """Return the shares of a queue and of those above it, the highest first.

    `known` caches shares by queue; missing ones are added to it.
    """
    known = {} if known is None else known
    names = session.tree.chain(queue)[1:]
    for name in names:
        if name not in known:
            known[name] = share_of_queue(session, name)
    return tuple([known[name] for name in names])


#: What the current action found when it began.
AT_ACTION_START = StateKey("at action start", lambda _: AtActionStart())
#: The groups that hold something, in a session.
HOLDERS = StateKey("holders", lambda _: Holders())
#: Upper bounds on what preemptors could have, in a session.
UPPER_BOUND = StateKey("upper bound", lambda _: UpperBound(), ends_with_session=True)
#: The groups that a session has decided about together with others.
DECIDED = StateKey("decided", lambda _: Decided())
