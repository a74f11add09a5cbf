"""Pods beyond minMember: which of them wait, and how they are bound."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import NamedTuple

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.resources import ONE_POD, PODS, Amounts, add_to, covers, minus, of_pod, times
from batchq.core.kept_capacity import (
    awaits_victims,
    end_pledge,
    gives_way_to,
    release_to,
)
from batchq.core.placement.placement import (
    bind_until_ready,
    find_node,
    node_for,
    pending_pods,
    slots_for,
    tasks_in_order,
    usable_nodes,
)
from batchq.core.quota.head_reservation import keeping_off, reserved_against
from batchq.core.quota.limit_checks import growth_with, over_limit_by, over_limit_with
from batchq.core.session.session import Key, Session, StateKey
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import beyond, bind, create_pods, pod_of, shape_of_extra

_RUNS = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


def waits_behind(session: Session, group: GroupState) -> bool:
    """Return whether more pods of the group would overtake the head of its strict queue.

    The head is a gang that needs its capacity all at once; single pods would take each piece as
    soon as it is freed, and the gang would starve.
    """
    head = session.heads.strict.get(group.queue)
    return head is not None and session.group_key(head) < session.group_key(group)


def is_drained(group: GroupState) -> bool:
    """Return whether a group runs, has pods left to start and holds nothing: none of its pods is on
    a node, and its gang is complete. Such a group queues again, with its next pod as a gang of one.
    """
    return (
        group.phase in _RUNS
        and group.is_elastic
        and not group.is_external
        and not group.charge()
        and not group.has_all_placed
    )


class _Growth(NamedTuple):
    """What the pods take that some groups could bind now, and what that follows from."""

    follows_from: tuple[object, ...]
    on_nodes: Mapping[str, Amounts]
    in_scopes: Mapping[str, Amounts]


class GrowingGroups:
    """The admitted groups that can still grow, by queue; owned by one action.

    Lower-priority groups of a queue are tested as if all pods that these groups could bind now were
    bound, because pods of the more important groups come first.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_queue: dict[str, list[GroupState]] = {}
        #: Queue -> the growth that a trial has found last, if it can be counted without one.
        self._found: dict[str, _Growth] = {}
        for group in session.unsettled() if "allocate" in session.actions else ():
            if is_admitted(group):
                self.note(group)

    def note(self, group: GroupState) -> None:
        """Add a group that has just been admitted, if it can grow."""
        if group.is_elastic and not group.is_external and not group.has_all_placed:
            self._by_queue.setdefault(group.queue, []).append(group)

    @contextmanager
    def grown(self, group: GroupState) -> Iterator[None]:
        """While the context is open, let the pods count as bound that groups of higher priority in
        a group's queue could bind now.

        While groups are admitted, nothing is freed, so a growth stays possible that a trial has
        found, unless others have taken what it needs. Then the next trial looks again.
        """
        session, above = self._session, self._above(group)
        found = self._found.get(group.queue)
        if not above:
            yield
        elif found is not None and self._still_holds(found, group.queue, above):
            with _counted(session, found):
                yield
        else:
            with Statement(session) as trial:
                self._note_growth(trial, group.queue, above)
                yield

    def _above(self, group: GroupState) -> list[GroupState]:
        """Return the groups of higher priority in a group's queue, in queue order."""
        growing = self._by_queue.get(group.queue)
        if not growing:
            return []
        found = [one for one in growing if one.priority > group.priority]
        return sorted(found, key=self._session.group_key)

    def _still_holds(self, found: _Growth, queue: str, groups: list[GroupState]) -> bool:
        nodes, ledger = self._session.nodes.by_name, self._session.ledger
        return (
            found.follows_from == self._follows_from(queue, groups)
            # What must be left to siblings changes with each admission.
            and not ledger.unused
            and all(
                units <= max(0, nodes[name].free.get(resource, 0))
                for name, amounts in found.on_nodes.items()
                for resource, units in amounts.items()
            )
            and all(
                ledger.used(scope, resource) + need <= limit
                for scope, amounts in found.in_scopes.items()
                for _, resource, need, limit in ledger.limited((scope,), amounts)
            )
        )

    def _follows_from(
        self, queue: str, groups: Iterable[GroupState]
    ) -> tuple[object, list[str], list[tuple[GroupState, PodGroupStatus, Amounts]]]:
        """Return what a growth depends on, besides free capacity."""
        session = self._session
        heads = [reservation.head for reservation in session.ledger.head_reservations.values()]
        states = [(one, one.status, session.ledger.charged(one)) for one in groups]
        return session.heads.strict.get(queue), heads, states

    def _note_growth(self, trial: Statement, queue: str, groups: list[GroupState]) -> None:
        """Let groups grow on a trial statement, and note what that takes, unless it depends on more
        than free capacity.
        """
        session = self._session
        ledger, nodes = session.ledger, session.nodes
        before = {
            one.uid: (ledger.charged(one), _on_nodes(one), nodes.kept.get(one.uid))
            for one in groups
        }
        *others, states = self._follows_from(queue, groups)
        self._grow(trial, groups)
        growing = {one.uid for one in self._by_queue[queue]}
        grown = [one for one in groups if one.uid in growing]
        self._found.pop(queue, None)
        if any(
            one.sharing is not None or one.status.pledge.victims or one.uid in nodes.held
            for one in grown
        ):
            return
        on_nodes: dict[str, dict[str, int]] = {}
        in_scopes: dict[str, dict[str, int]] = {}
        for one in grown:
            charge, pods, kept = before[one.uid]
            for uid, pod in _on_nodes(one).items():
                if uid not in pods:
                    add_to(on_nodes.setdefault(pod.status.node, {}), of_pod(pod.spec.requests))
            if kept is not None and one.uid not in nodes.kept:
                for name, amounts in kept.by_node().items():
                    add_to(on_nodes.setdefault(name, {}), amounts, -1)
            for scope in one.scopes:
                add_to(in_scopes.setdefault(scope, {}), ledger.charged(one))
                add_to(in_scopes[scope], charge, -1)
        follows_from = (*others, [state for state in states if state[0].uid in growing])
        self._found[queue] = _Growth(follows_from, on_nodes, in_scopes)

    def _grow(self, trial: Statement, groups: Iterable[GroupState]) -> None:
        """Bind the pods that these groups could bind now, on a trial statement that the caller
        undoes.

        Only the reservations of heads that were tried before a group restrict its growth, as they
        do when its pods are bound for good.
        """
        session = self._session
        heads = tuple(reservation.head for reservation in session.ledger.head_reservations.values())
        for group in groups:
            session.heads.grown_beside.setdefault(group.uid, heads)
            if waits_behind(session, group):
                continue
            if session.group_ready(group) and gives_way_to(session, group) is not None:
                # Allocate binds none of its pods before the preemptor that it yielded to.
                continue
            bound: list[Pod] = []
            if group.status.pledge.extra:
                bound = _bind_promised(trial, group)
            else:
                release_to(trial, group)
            if _becomes_ready(trial, group):
                more, _ = start_extras(trial, group, group.replicas)
                bound += more
            if not bound:
                # Nothing is freed while groups are admitted, so it cannot grow later either.
                self._by_queue[group.queue].remove(group)


@contextmanager
def _counted(session: Session, growth: _Growth) -> Iterator[None]:
    nodes, ledger = session.nodes, session.ledger
    for name, amounts in growth.on_nodes.items():
        nodes.take(nodes.by_name[name], amounts)
    for scope, amounts in growth.in_scopes.items():
        ledger.add(scope, amounts)
    try:
        yield
    finally:
        for scope, amounts in growth.in_scopes.items():
            ledger.add(scope, times(amounts, -1))
        for name, amounts in growth.on_nodes.items():
            nodes.put_back(nodes.by_name[name], amounts)


def _on_nodes(group: GroupState) -> dict[str, Pod]:
    return {uid: pod for uid, pod in group.live_pods.items() if pod.status.phase in ON_NODE}


def bind_promised(statement: Statement, group: GroupState) -> list[Pod] | None:
    """End the group's pledge and bind the pods beyond minMember for which victims were evicted, on
    the nodes that were kept for them. Return the bound pods, or None if the pledge must go on; the
    caller discards the statement then.

    When all victims have ended, head reservations do not apply to these pods, because pledged
    capacity is never reserved for a head, and neither do limits, because the group is charged for
    it. Before that, both apply, because the pods would start on capacity that is not their
    victims'.
    """
    session, pledge = statement.session, group.status.pledge
    has_all = not awaits_victims(session, group)
    heads = [reservation.head for reservation in session.ledger.head_reservations.values()]
    with session.ledger.regarding(() if has_all else heads):
        end_pledge(statement, group)
        pods = max(0, sum(amounts.get(PODS, 0) for amounts in pledge.room.values())) // ONE_POD
        if group.sharing is not None:
            # Its pods may take more than they request, or nothing.
            pods = len(pledge.plan)
        promised = pledge.extra if has_all else None
        bound, _ = start_extras(statement, group, pods, pledge.plan, promised=promised)
    # The pledge ends as soon as the pods fit without the victims that are still awaited.
    return bound if has_all or (pods and len(bound) == pods) else None


def _bind_promised(trial: Statement, group: GroupState) -> list[Pod]:
    """Bind the promised pods as allocate will; what is kept for them stays kept if it cannot."""
    with Statement(trial.session) as attempt:
        bound = bind_promised(attempt, group)
        if bound is not None:
            attempt.join(trial)
    return bound or []


def _becomes_ready(trial: Statement, group: GroupState) -> bool:
    """Return whether the group is ready, after binding the missing pods of its gang if nodes and
    limits allow. Without a complete gang, no pod of it is bound.
    """
    session = trial.session
    if session.group_ready(group):
        return True
    with Statement(session) as attempt:
        if bind_until_ready(session, attempt, group) is None and session.group_ready(group):
            attempt.join(trial)
            return True
    return False


def waiting_extras(
    session: Session, group: GroupState, *, most: int | None = None
) -> Iterator[Pod | int]:
    """Yield pods without a node, and the ordinals of pods that do not exist yet, in pod order; at
    most `most` ordinals of each task.
    """
    pending = ((session.pod_key(group, pod), pod) for pod in pending_pods(session, group))
    for _, extra in heapq.merge(pending, _unborn(session, group, most), key=lambda pair: pair[0]):
        yield extra


def _unborn(
    session: Session, group: GroupState, most: int | None
) -> Iterator[tuple[Key, Pod | int]]:
    for shape in tasks_in_order(session, group):
        # The pods of a task differ only in their index.
        *head, _ = session.pod_key(group, pod_of(group, shape.first))
        for ordinal in islice(beyond(group, shape), most):
            yield (*head, ordinal - shape.first), ordinal


def waiting_shapes(session: Session, group: GroupState) -> Iterator[TaskShape]:
    """Yield the shapes of a group's pods without a node, in pod order."""
    pending = {pod.spec.task for pod in pending_pods(session, group)}
    for shape in tasks_in_order(session, group):
        if shape.task.name in pending or next(beyond(group, shape), None) is not None:
            yield shape


def start_extras(
    statement: Statement,
    group: GroupState,
    count: int,
    plan: Mapping[str, str] | None = None,
    *,
    promised: Amounts | None = None,
) -> tuple[list[Pod], frozenset[str]]:
    """Bind up to `count` more pods of a group; return the bound pods and the dimensions that the
    next pod lacks. The group was charged for what is `promised`, so no limit refuses pods within
    that.
    """
    session = statement.session
    bound: list[Pod] = []
    promised = promised or {}
    lacking: frozenset[str] = frozenset()
    refused: set[str] = set()
    for extra in list(waiting_extras(session, group, most=count)):
        shape = shape_of_extra(group, extra)
        if len(bound) == count:
            break
        if shape.task.name in refused:
            continue
        is_promised = covers(promised, shape.requests)
        over = [] if is_promised else over_limit_with(session, group, shape)
        ordinal = extra if isinstance(extra, int) else shape.first + extra.spec.index
        node = None if over else node_for_extra(session, group, shape, plan or {}, ordinal)
        if node is None:
            refused.add(shape.task.name)
            lacking = lacking or (
                frozenset(verdict.resource for verdict in over)
                or lacking_on_nodes(session, [(shape, 1)])
            )
            continue
        pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
        bound.append(bind(statement, group, pod, node.name))
        if is_promised:
            promised = minus(promised, shape.requests)
    return bound, lacking


def short_of_extras(
    session: Session, group: GroupState, count: int
) -> tuple[Amounts, frozenset[str]] | None:
    """Return what `start_extras` would bind of this many pods, and what the next pod lacks, without
    binding any. Return None if it would bind all, or if only binding them tells: then the pods
    differ, or capacity is reserved for heads.

    Of pods that are alike, nodes and limits take a number that does not depend on where each goes.
    """
    if len(group.tasks) > 1 or session.ledger.head_reservations:
        return None
    shape = group.tasks[0]
    if sum(1 for _ in islice(waiting_extras(session, group, most=count), count)) < count:
        return None
    on_nodes = slots_for(session, shape, count)

    def is_over(pods: int) -> bool:
        return bool(over_limit_by(session, group, times(shape.requests, pods)))

    # The largest number within the limits.
    fitting = bisect_left(range(1, on_nodes + 1), True, key=is_over)
    if fitting == count:
        return None
    over = over_limit_by(session, group, times(shape.requests, fitting + 1))
    lacking = frozenset(verdict.resource for verdict in over) or lacking_on_nodes(
        session, [(shape, fitting + 1)]
    )
    return times(shape.requests, fitting) if fitting else {}, lacking


def node_for_extra(
    session: Session, group: GroupState, shape: TaskShape, plan: Mapping[str, str], ordinal: int
) -> NodeState | None:
    """Return the node for one more pod of a group, or None. Nodes reserved for heads of other
    queues are left out, unless the pod is already covered by the group's reservation.
    """
    is_reserved = not session.ledger.head_reservations or not growth_with(session, group, shape)
    with keeping_off(
        session, {} if is_reserved else reserved_against(session, group, shape.requests)
    ):
        return node_for(session, shape, plan, ordinal)


@contextmanager
def heeding_heads_before(session: Session, group: GroupState) -> Iterator[None]:
    """While the context is open, let a group grow into the reservations of heads that were tried
    after the head of its queue.

    The head of its own queue was tried as if pods of more important groups were bound already, and
    so were the heads tried later. If its queue has no head reservation, all reservations apply,
    unless another group of the queue was tried in that way.
    """
    reservations = session.ledger.head_reservations
    if group.queue in reservations:
        before = takewhile(lambda queue: queue != group.queue, reservations)
        heads = tuple(reservations[queue].head for queue in before)
    elif group.uid in session.heads.grown_beside:
        heads = session.heads.grown_beside[group.uid]
    else:
        yield
        return
    with session.ledger.regarding(heads):
        yield


class _Room:
    """How many pods of one shape the usable nodes have room for, in each dimension alone; follows
    the session's journal of node changes.
    """

    __slots__ = ("_changes", "_nodes", "_on_node", "_requests", "_seen", "_sums")

    def __init__(self, session: Session, shape: TaskShape) -> None:
        self._requests = shape.requests
        self._nodes = {node.name: node for node in usable_nodes(session, shape)}
        self._changes = session.nodes.changes
        self._seen = len(self._changes)
        self._on_node = {name: self._room(node) for name, node in self._nodes.items()}
        self._sums = {
            name: sum(room[name] for room in self._on_node.values()) for name in self._requests
        }

    def pods(self) -> Mapping[str, int]:
        """Return the number of pods by dimension."""
        changes = self._changes
        for name in dict.fromkeys(changes[self._seen :]):
            if (node := self._nodes.get(name)) is None:
                continue
            before, now = self._on_node[name], self._room(node)
            self._on_node[name] = now
            for dimension, pods in now.items():
                self._sums[dimension] += pods - before[dimension]
        self._seen = len(changes)
        return self._sums

    def _room(self, node: NodeState) -> dict[str, int]:
        free = node.free
        return {name: max(0, free.get(name, 0)) // units for name, units in self._requests.items()}


def lacking_on_nodes(session: Session, wanted: Iterable[tuple[TaskShape, int]]) -> frozenset[str]:
    """Return the dimensions in which usable nodes are too full for these pods; every requested
    dimension if each would be enough on its own.
    """
    wanted = list(wanted)
    short: set[str] = set()
    rooms = session.get(_ROOMS)
    for shape, count in wanted:
        room = rooms.get(shape.shape)
        if room is None:
            room = rooms[shape.shape] = _Room(session, shape)
        short.update(name for name, pods in room.pods().items() if pods < count)
    if short:
        return frozenset(short)
    return frozenset(name for shape, _ in wanted for name in shape.requests)


#: Shape -> the room for its pods.
_ROOMS: StateKey[dict[tuple[object, ...], _Room]] = StateKey("rooms", lambda _: {})

#: Pods beyond minMember that an action binds in one session. A group may have a million of them
#: that ask for nothing; the next session continues.
MOST_EXTRAS = 10_000


def place_what_asks_for_nothing(session: Session) -> None:
    """Bind pods that request only a slot on a node, even behind a strict head; a gang of such pods
    is bound completely or not at all.
    """
    most = MOST_EXTRAS
    for group in session.unsettled():
        if not is_admitted(group) or group.is_external or group.has_all_placed:
            continue
        if not _has_free_pods(group) or gives_way_to(session, group) is not None:
            continue
        if not session.group_ready(group) and all(map(_asks_for_nothing, group.tasks)):
            with Statement(session) as statement:
                bind_until_ready(session, statement, group)
                if session.group_ready(group):
                    statement.commit()
        if session.group_ready(group):
            most -= _place_free_pods(session, group, most)


def _place_free_pods(session: Session, group: GroupState, most: int) -> int:
    """Bind up to `most` pods of a group that ask for nothing; return how many."""
    placed = 0
    free = (
        extra
        for extra in waiting_extras(session, group)
        if _asks_for_nothing(shape_of_extra(group, extra))
    )
    for extra in list(islice(free, most)):
        shape = shape_of_extra(group, extra)
        node = find_node(session, shape)
        if node is None or over_limit_with(session, group, shape):
            break
        placed += 1
        with Statement(session) as statement:
            pod = create_pods(statement, group, [extra])[0] if isinstance(extra, int) else extra
            bind(statement, group, pod, node.name)
            statement.commit()
    return placed


def _has_free_pods(group: GroupState) -> bool:
    return any(_asks_for_nothing(shape) for shape in group.tasks)


def _asks_for_nothing(shape: TaskShape) -> bool:
    return not shape.requests.keys() - {PODS}
