"""Placement of a gang: minMember pods of a group, with minAvailable pods of every task.

The first attempt takes the pods in the gang's own order, each on the best node. That may put small
pods on the best nodes and leave no node for a large one. So the second attempt takes the largest
pods first, each on the fullest node that takes it; if it fails too, pods with the fewest possible
nodes come first, because large pods may otherwise fill all of these nodes.

The caller owns the Statement and decides what to do with a gang that was only partly placed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, Amounts, describe_quantity, of_pod, times, total
from batchq.core.kept_capacity import end_pledge
from batchq.core.placement.node_order import Judge, OnlyNode, ShapeRanking, pods_short
from batchq.core.quota.limit_checks import over_limit_by, over_limit_with
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import Gang, KeptPlaces, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import (
    bind,
    bind_all_placed,
    bind_placed,
    create_placed,
    create_pods,
    pod_of,
    wanted_ordinals,
)

_PARTS = 1_000_000


def bind_until_ready(
    session: Session,
    statement: Statement,
    group: GroupState,
    waiting: Sequence[Pod] | None = None,
) -> list[Verdict] | None:
    """Bind pods until the group is ready and return None; otherwise return why nodes or limits
    refuse the rest. `waiting` is the list of its pods without a node (`least_first`), if the caller
    knows it.

    Pods are tried in their order, each on the best node. If that fails and they differ in size, the
    largest come first, each on the fullest node that takes it.
    """
    if waiting is None:
        waiting = least_first(session, group)
    if len(group.tasks) == 1:
        return _bind_in_order(session, statement, group, waiting)
    with Statement(session) as attempt:
        if _bind_in_order(session, attempt, group, waiting) is None:
            attempt.join(statement)
            return None
    with Statement(session) as attempt:
        if _bind_largest_first(session, attempt, group, waiting):
            attempt.join(statement)
            return None
    return _bind_in_order(session, statement, group, waiting)


def start_gang(session: Session, statement: Statement, group: GroupState) -> None:
    """Create the pods of a gang that was just admitted, and bind them until the group is ready."""
    ordinals = wanted_ordinals(group)
    if not _starts_whole(session, group, len(ordinals)):
        create_pods(statement, group, ordinals)
        bind_until_ready(session, statement, group)
        return
    # The usual case: all of its pods are alike and new, so each is bound as it is created.
    filled: list[NodeState] = []
    fill_nodes(session, group.tasks[0], len(ordinals), filled)
    if len(filled) == len(ordinals):
        create_placed(statement, group, ordinals, filled)
    else:
        session.nodes.put_back_places(KeptPlaces(((group.tasks[0], tuple(filled)),)))


def _starts_whole(session: Session, group: GroupState, count: int) -> bool:
    """Return whether a group has one task and no pods, and needs and has reserved all of these."""
    return (
        len(group.tasks) == 1
        and not group.pods
        and not group.is_elastic
        and count == group.replicas == pods_short(session, group)
        and not group.status.pledge.plan
        and group.status.left_out == group.left_out
        and _pods_within_charge(session, group, group.tasks[0]) >= count
    )


def _bind_in_order(
    session: Session, statement: Statement, group: GroupState, waiting: Sequence[Pod]
) -> list[Verdict] | None:
    """Bind pods in their order, each on the best node; see `bind_until_ready`.

    Pods of one task are bound in one batch if the gang needs all of them and its reservation covers
    them: the group cannot become ready, nor a limit refuse, in the middle of such a batch.
    """
    refused: list[TaskShape] = []
    plan = group.status.pledge.plan
    place = 0
    while place < len(waiting):
        pod = waiting[place]
        shape = group.shape_of(pod)
        if shape in refused:
            place += 1
            continue
        alike = [] if plan else _needed_alike(session, group, shape, waiting, place)
        if alike:
            bound = bind_alike(statement, group, shape, alike)
        else:
            alike = [pod]
            node = node_for(session, shape, plan, shape.first + pod.spec.index)
            if node is not None and (over := over_limit_with(session, group, shape)):
                return over
            bound = 0 if node is None else 1
            if node is not None:
                bind(statement, group, pod, node.name)
        place += len(alike)
        if bound < len(alike):
            refused.append(shape)
        if bound and session.group_ready(group):
            return None
    return [explain_no_node(session, shape) for shape in refused]


def _bind_largest_first(
    session: Session, statement: Statement, group: GroupState, waiting: Sequence[Pod]
) -> bool:
    """Bind the pods that a gang lacks, the largest first, each on the fullest node that takes it;
    return whether the group is ready then.
    """
    pods = _lacked(group, waiting)
    parts = [(shape, len(many)) for shape, many in pods]
    if len(parts) < 2 or any(slots_for(session, *part) < part[1] for part in parts):
        return False
    asked = total(times(shape.requests, count) for shape, count in parts)
    if over_limit_by(session, group, asked):
        return False
    found = fill_largest_first(session, parts)
    if found is None:
        return False
    for (_, many), nodes in zip(pods, found, strict=True):
        bind_placed(statement, group, many, nodes)
    return session.group_ready(group)


def _lacked(group: GroupState, waiting: Sequence[Pod]) -> list[tuple[TaskShape, list[Pod]]]:
    """Return the pods without a node that a gang needs to be ready, by task; none if one of them
    was created before its task was edited.
    """
    placed = group.placed
    least = sum(max(0, one.task.min_available - placed[one.task.name]) for one in group.tasks)
    short = max(least, group.min_member - sum(placed.values()))
    found: dict[str, tuple[TaskShape, list[Pod]]] = {}
    for pod in waiting[:short]:
        shape = group.shape_of(pod)
        if group.requests_of(pod) != shape.requests:
            return []
        found.setdefault(shape.task.name, (shape, []))[1].append(pod)
    return list(found.values())


def bind_kept(session: Session, group: GroupState, waiting: Sequence[Pod]) -> bool:
    """Bind the pods of a gang to the places that are kept for it; return whether it is ready then.

    The capacity of the places is already taken. If the group's charge grows, for example beside a
    pod that is being stopped, limits are checked again, because other groups may have been admitted
    meanwhile. `waiting` is the list of its pods without a node.
    """
    places = session.nodes.kept.get(group.uid)
    if places is None or session.nodes.binding_refused is not None:
        return False
    chosen = _pods_for(places, waiting)
    if chosen is None or _grows_over(session, group, places):
        return False
    session.nodes.use_kept(group.uid)
    with Statement(session) as statement:
        statement.also_undo(lambda: session.nodes.keep(group.uid, places))
        for pods, (_, nodes) in zip(chosen, places.parts, strict=True):
            bind_placed(statement, group, pods, nodes)
        if not session.group_ready(group):
            return False
        end_pledge(statement, group)
        if group.status.places:
            statement.set_status(group, places={})
        statement.commit()
    return True


def bind_kept_together(session: Session, groups: Iterable[GroupState]) -> int:
    """Bind the first of these gangs as `bind_kept` would one after the other, but in one change;
    return how many.

    These are gangs of one task whose charges stay the same, so that none affects another.
    """
    found: list[tuple[GroupState, KeptPlaces, list[Pod]]] = []
    for group in groups if session.nodes.binding_refused is None else ():
        places, status = session.nodes.kept.get(group.uid), group.status
        if places is None or len(places.parts) != 1 or status.places or status.pledge.victims:
            break
        if not _has_reserved_places(session, group):
            break
        chosen = _pods_for(places, least_first(session, group))
        if chosen is None:
            break
        found.append((group, places, chosen[0]))
    if not found:
        return 0
    with Statement(session) as statement:
        for group, _, _ in found:
            session.nodes.use_kept(group.uid)
        statement.also_undo(lambda: _keep_again(session, found))
        bind_all_placed(statement, [(group, pods, one.parts[0][1]) for group, one, pods in found])
        if not all(session.group_ready(group) for group, _, _ in found):
            return 0
        statement.commit()
    return len(found)


def _keep_again(
    session: Session, groups: Sequence[tuple[GroupState, KeptPlaces, list[Pod]]]
) -> None:
    for group, places, _ in groups:
        session.nodes.keep(group.uid, places)


def _has_reserved_places(session: Session, group: GroupState) -> bool:
    """Return whether the places kept for a group are those of its gang, as it has reserved them."""
    return (
        not group.held
        and group.status.reservation is group.shape.reservation
        and not session.ledger.owed(group)
    )


def _grows_over(session: Session, group: GroupState, places: KeptPlaces) -> bool:
    """Return whether its pods on these places would raise the group's charge above a limit."""
    if _has_reserved_places(session, group):
        return False
    if len(places.parts) == 1:
        ((shape, nodes),) = places.parts
        if _pods_within_charge(session, group, shape) >= len(nodes):
            return False
    asked = total(times(shape.requests, len(nodes)) for shape, nodes in places.parts)
    return bool(over_limit_by(session, group, asked))


def _pods_for(places: KeptPlaces, waiting: Sequence[Pod]) -> list[list[Pod]] | None:
    """Return the pods for each part of kept places; None if a task has fewer pods than places."""
    if len(places.parts) == 1:
        ((shape, nodes),) = places.parts
        pods = list(waiting[: len(nodes)])
        if len(pods) == len(nodes) and {pod.spec.task for pod in pods} == {shape.task.name}:
            return [pods]
    by_task: dict[str, list[Pod]] = {}
    for pod in reversed(waiting):
        by_task.setdefault(pod.spec.task, []).append(pod)
    chosen = []
    for shape, nodes in places.parts:
        left = by_task.get(shape.task.name, [])
        if len(left) < len(nodes):
            return None
        chosen.append([left.pop() for _ in nodes])
    return chosen


def bind_alike(
    statement: Statement, group: GroupState, shape: TaskShape, pods: Sequence[Pod]
) -> int:
    """Bind pods of one task, each to the best node at that moment; return how many were bound."""
    filled: list[NodeState] = []
    fill_nodes(statement.session, shape, len(pods), filled)
    bind_placed(statement, group, pods[: len(filled)], filled)
    return len(filled)


def _needed_alike(
    session: Session, group: GroupState, shape: TaskShape, waiting: Sequence[Pod], place: int
) -> list[Pod]:
    """Return the pods of one task from this place on that can be bound in one batch: the group is
    not ready before the last of them, and its charge does not grow. A pod created before its task
    was edited may request something else and ends the batch.
    """
    most = min(pods_short(session, group), _pods_within_charge(session, group, shape))
    if most < 1:
        return []
    task, requests = shape.task.name, waiting[place].spec.requests
    if requests is not shape.stated and of_pod(requests) != shape.requests:
        return []
    if most == 1:
        return [waiting[place]]
    return list(
        takewhile(
            lambda pod: (
                pod.spec.task == task
                and (pod.spec.requests is requests or pod.spec.requests == requests)
            ),
            waiting[place : place + most],
        )
    )


def _pods_within_charge(session: Session, group: GroupState, shape: TaskShape) -> int:
    """Return how many more pods of a task fit into the group's charge, where no limit applies."""
    if not group.reserved or session.ledger.owed(group):
        return 0
    held, reservation = group.held, group.status.reservation
    most = group.replicas
    for name, units in shape.requests.items():
        fits = (reservation.get(name, 0) - held.get(name, 0)) // units
        if fits < most:
            most = fits
    return most


def node_for(
    session: Session, shape: TaskShape, plan: Mapping[str, str], ordinal: int
) -> NodeState | None:
    """Return the node that was planned for a pod when its victims were chosen, if it still takes
    the pod; otherwise the best node.

    The plan comes first because small pods on the best nodes could leave no node for a large one,
    although victims were evicted for all of them.
    """
    if plan and session.nodes.binding_refused is None:
        node = session.nodes.by_name.get(plan.get(str(ordinal), ""))
        if node is not None and session.refused_by(shape, node) is None:
            return node
    return find_node(session, shape)


def least_first(session: Session, group: GroupState) -> list[Pod]:
    """Return pending pods, with those that make up each task's minAvailable first."""
    pending = pending_pods(session, group)
    if len(group.tasks) == 1 or not any(shape.task.min_available for shape in group.tasks):
        return pending
    first: list[Pod] = []
    rest: list[Pod] = []
    placed = dict(group.placed)
    for pod in pending:
        task = group.shape_of(pod).task
        if placed.get(task.name, 0) < task.min_available:
            placed[task.name] += 1
            first.append(pod)
        else:
            rest.append(pod)
    return first + rest


def pending_pods(session: Session, group: GroupState) -> list[Pod]:
    """Return the pods without a node that no gate holds, by podOrder plugins, task and index."""
    admission, gated = group.status.admission, group.shape.gated
    pods = [
        pod
        for pod in group.live_pods.values()
        if pod.status.phase == _PENDING
        and pod.status.admission == admission
        and not ((gated or pod.spec.scheduling_gates) and group.is_held_back(pod))
    ]
    if len(pods) < 2:
        return pods
    firsts = {shape.task.name: shape.first for shape in group.tasks}
    orders = [entry.function for entry in session.plugins.points["podOrder"]]
    keys = [
        (
            *[order(session, group, pod) for order in orders],
            firsts.get(pod.spec.task, 0),
            pod.spec.index,
            place,
        )
        for place, pod in enumerate(pods)
    ]
    return [pods[key[-1]] for key in sorted(keys)]


def place_largest_first(
    parts: Sequence[tuple[TaskShape, int]],
    nodes: Iterable[NodeState],
    whole: Amounts,
    *,
    choices: Callable[[TaskShape], int],
    takes: Callable[[TaskShape, NodeState], bool],
    take: Callable[[TaskShape, NodeState], None],
    give_back: Callable[[TaskShape, NodeState], None],
) -> list[tuple[NodeState, ...]] | None:
    """Let the pods of each part take nodes; return the nodes of each part, or None, with nothing
    taken, if a pod finds no node.

    `choices` returns how many nodes would take a pod if they were empty: among pods of one size,
    those with fewer choices come first. `takes` says whether a node takes one more pod, and `take`
    places it. Pods are compared by their largest dimension as a fraction of `whole`, then by the
    sum of all. Nodes are compared by how much is free in the requested dimensions, then in the
    others, so that a pod without GPUs leaves GPU nodes free. Pod slots do not count: beside nodes
    without a limit, one with a limit would always be the fullest.
    """
    there = list(nodes)
    sizes = [_size(shape, whole) for shape, _ in parts]
    fewest = [choices(shape) for shape, _ in parts]
    places = [shape.place for shape, _ in parts]
    all_parts = range(len(parts))
    by_size = sorted(all_parts, key=lambda part: (sizes[part], fewest[part], places[part]))
    by_choice = sorted(all_parts, key=lambda part: (fewest[part], sizes[part], places[part]))
    for order in (by_size, by_choice) if by_choice != by_size else (by_size,):
        placed: list[list[NodeState]] = [[] for _ in parts]
        if _place(order, parts, there, whole, takes, take, placed):
            return [tuple(found) for found in placed]
        for (shape, _), found in zip(parts, placed, strict=True):
            for node in found:
                give_back(shape, node)
    return None


def _place(
    order: Iterable[int],
    parts: Sequence[tuple[TaskShape, int]],
    there: Sequence[NodeState],
    whole: Amounts,
    takes: Callable[[TaskShape, NodeState], bool],
    take: Callable[[TaskShape, NodeState], None],
    placed: list[list[NodeState]],
) -> bool:
    """Place the parts in this order, each pod on the fullest node; return whether all pods fit."""
    for part in order:
        shape, count = parts[part]
        asked = [name for name in shape.requests if whole.get(name) and name != PODS]
        others = [name for name in whole if whole[name] and name not in shape.requests]
        takers = sorted(
            (_free_part(asked, node, whole), _free_part(others, node, whole), node.name, node)
            for node in there
            if takes(shape, node)
        )
        found = placed[part]
        for *_, node in takers:
            # A node that takes a pod stays the fullest until it takes no more.
            while len(found) < count and takes(shape, node):
                take(shape, node)
                found.append(node)
        if len(found) < count:
            return False
    return True


def _size(shape: TaskShape, whole: Amounts) -> tuple[int, int]:
    """Return a pod's largest request and the sum of its requests, negated."""
    parts = [
        units * _PARTS // whole[name] for name, units in shape.requests.items() if whole.get(name)
    ]
    return -max(parts, default=0), -sum(parts)


def _free_part(names: Iterable[str], node: NodeState, whole: Amounts) -> int:
    """Return what is free on a node in these dimensions, in millionths of the whole."""
    return sum(node.free.get(name, 0) * _PARTS // whole[name] for name in names)


class Ranking(Protocol):
    """The nodes that take one shape."""

    def best(self) -> NodeState | None:
        """Return the best node now, or None if no node takes the shape."""

    def slots(self, most: int) -> int:
        """Return how many pods of the shape fit now, counting up to `most`."""

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods each take the best node at that moment; append these nodes."""


#: From this number of nodes on, sweeps over columns are faster than checks of one node at a time.
MANY_NODES = 64


def find_node(session: Session, shape: TaskShape) -> NodeState | None:
    """Return the best node that takes a pod of this shape now, or None."""
    return None if session.nodes.binding_refused is not None else _ranking(session, shape).best()


def fill_nodes(session: Session, shape: TaskShape, count: int, filled: list[NodeState]) -> None:
    """Let up to `count` pods of this shape each take the best node; see `ShapeRanking.fill`."""
    if session.nodes.binding_refused is None:
        _ranking(session, shape).fill(count, filled)


def slots_for(session: Session, shape: TaskShape, most: int) -> int:
    """Return how many pods of this shape alone fit on the nodes now, counting up to `most`."""
    return 0 if session.nodes.binding_refused is not None else _ranking(session, shape).slots(most)


def _ranking(session: Session, shape: TaskShape) -> Ranking:
    rankings = session.get(RANKINGS)
    ranking = rankings.get(shape.shape)
    if ranking is None:
        ranking = rankings[shape.shape] = _ranked(session, shape)
    return ranking


def _ranked(session: Session, shape: TaskShape) -> Ranking:
    by_name = session.nodes.by_name
    if len(by_name) == 1:
        return OnlyNode(session, shape, *by_name.values())
    if len(by_name) < MANY_NODES or shape.sharing is not None:
        return ShapeRanking(session, shape)
    # Only sessions with many nodes load NumPy; small clusters and other commands do without it.
    from batchq.core.placement.node_matrix import NODE_ROWS, row_ranking

    rows = session.get(NODE_ROWS)
    by_rows = row_ranking(session, shape, rows) if rows.are_exact else None
    return by_rows or ShapeRanking(session, shape)


def usable_nodes(session: Session, shape: TaskShape) -> list[NodeState]:
    """Return the nodes that would take a pod of this shape if they were empty; all open nodes if
    none would. Computed once a session.
    """
    known = session.get(USABLE_NODES)
    found = known.get(shape.shape)
    if found is None:
        open_nodes = [node for node in session.nodes.by_name.values() if node.open]
        empty = [NodeState(node.record, ready=True) for node in open_nodes]
        names = {name for _, name in Judge(session, shape).ranks(empty)}
        usable = [node for node in open_nodes if node.name in names]
        found = known[shape.shape] = usable or open_nodes
    return found


def gang_of(session: Session, group: GroupState) -> list[tuple[TaskShape, int]]:
    """Return the pods that a group's gang still lacks, in placement order; for a running group that
    queues again, its next pod.

    Each task's minAvailable comes first; both parts are ordered by pod priority and task.
    """
    if group.next_pod is not None:
        return [(group.next_pod, 1)]
    if group.record_only and len(group.tasks) == 1:
        return [(group.tasks[0], min(group.min_member, group.replicas))]
    chosen = group.lacks_for_gang()
    counts = {shape.task.name: count for shape, count in zip(group.tasks, chosen, strict=True)}
    first: list[tuple[TaskShape, int]] = []
    rest: list[tuple[TaskShape, int]] = []
    for shape in tasks_in_order(session, group):
        count = counts[shape.task.name]
        least = min(shape.task.min_available, count)
        first.append((shape, least))
        rest.append((shape, count - least))
    return [(shape, count) for shape, count in first + rest if count]


def waits_for_its_own(group: GroupState, gang: Gang) -> bool:
    """Return whether pods of a former admission that have not ended leave a group with too few pods
    to start. No pod may run twice at once, so its new places would be idle until then.
    """
    if not group.pods:
        return False
    former = Counter(
        pod.spec.task for pod in group.live_pods.values() if pod.status.phase in ON_NODE
    )
    if not former:
        return False
    needed: Counter[str] = Counter()
    for shape, count in gang:
        needed[shape.task.name] += count
    left = {
        shape.task.name: count for shape, count in zip(group.tasks, group.ungated(), strict=True)
    }
    return any(left[task] - former[task] < count for task, count in needed.items())


def tasks_in_order(session: Session, group: GroupState) -> list[TaskShape]:
    """Return the tasks that have pods, in pod order: by the podOrder plugins, then as specified."""
    shapes = [shape for shape in group.tasks if shape.task.replicas]
    if len(shapes) < 2:
        return shapes
    return sorted(shapes, key=lambda shape: session.pod_key(group, pod_of(group, shape.first)))


def take_best(
    session: Session, shape: TaskShape, nodes: Mapping[str, NodeState], count: int
) -> bool:
    """Let each of `count` pods take the best of these nodes; False if one finds none."""
    if not count:
        return True
    judge = Judge(session, shape)
    heap = judge.ranks(list(nodes.values()))
    heapq.heapify(heap)
    for _ in range(count):
        if not heap:
            return False
        node = nodes[heap[0][1]]
        node.take_pod(shape)
        # Only this node's rank has changed.
        rank = judge.rank(node)
        if rank is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, rank)
    return True


def fill_largest_first(
    session: Session, parts: Sequence[tuple[TaskShape, int]]
) -> list[tuple[NodeState, ...]] | None:
    """Let pods take nodes, the largest pods first, each on the fullest node that takes it; return
    the nodes of each part, or None, with nothing taken; see `place_largest_first`.
    """

    def take(shape: TaskShape, node: NodeState) -> None:
        session.nodes.take_pod(node, shape)

    def give_back(shape: TaskShape, node: NodeState) -> None:
        session.nodes.put_back_pod(node, shape)

    return place_largest_first(
        parts,
        session.nodes.by_name.values(),
        session.nodes.ready,
        choices=lambda shape: len(usable_nodes(session, shape)),
        takes=lambda shape, node: session.refused_by(shape, node) is None,
        take=take,
        give_back=give_back,
    )


def explain_no_node(session: Session, shape: TaskShape) -> Verdict:
    """Return one verdict on all: `0/3 nodes fit: 2 insufficient cpu, 1 cordoned`."""
    detail, fitting = count_fitting(session, shape, session.nodes.by_name.values())
    if fitting and session.nodes.binding_refused is not None:
        return session.nodes.binding_refused
    passing = most_free_text(session, shape)
    return Verdict(plugin="allocate", reason=Waiting.UNSCHEDULABLE, detail=detail, passing=passing)


def count_fitting(
    session: Session, shape: TaskShape, nodes: Iterable[NodeState]
) -> tuple[str, int]:
    """Return how many nodes take a pod of a shape: as text, with the refusals of the others, and as
    a number.
    """
    refusals = [session.refused_by(shape, node) for node in nodes]
    counts = Counter(refusal.detail for refusal in refusals if refusal is not None)
    parts = ", ".join(_of_nodes(count, text) for text, count in sorted(counts.items()))
    fitting = sum(1 for refusal in refusals if refusal is None)
    detail = f"task {shape.task.name}: {fitting}/{len(refusals)} nodes fit"
    return (f"{detail}: {parts}" if parts else detail), fitting


def _of_nodes(count: int, refusal: str) -> str:
    if count > 1 and refusal.startswith("does not "):
        refusal = f"do {refusal.removeprefix('does ')}"
    return f"{count} {refusal}"


class MostFree(NamedTuple):
    """The most of a resource that one node has free for a pod, and the name of that node; and the
    most that any node has free, also one that the pod may not use.
    """

    resource: str
    units: int
    node: str
    anywhere: int

    @property
    def where(self) -> str:
        """On which nodes this is the most, as text."""
        return "" if self.units == self.anywhere else " on a node it may use"


def most_free_for(session: Session, shape: TaskShape) -> MostFree | None:
    """Return the most free amount in the first dimension in which no node that a pod may use has
    enough; None if there is none.
    """
    for resource, need in shape.requests.items():
        most, name = session.nodes.most_free(resource)
        units = most
        # The usual case is that a pod may use any node, and then no other one is looked at.
        if name and session.refused_by(shape, _when_empty(session, name)) is not None:
            usable = usable_nodes(session, shape)
            units, name = max((node.free.get(resource, 0), node.name) for node in usable)
        if name and units < need:
            return MostFree(resource, max(0, units), name, max(0, most))
    return None


def _when_empty(session: Session, name: str) -> NodeState:
    return NodeState(session.nodes.by_name[name].record, ready=True)


def most_free_text(session: Session, shape: TaskShape) -> str:
    """Return what a pod requests and the most that is free, as text, in the first dimension in
    which no node that it may use has enough; '' if there is none.
    """
    found = most_free_for(session, shape)
    if found is None:
        return ""
    resource, where = found.resource, found.where
    need, has = (describe_quantity(resource, n) for n in (shape.requests[resource], found.units))
    return (
        f"a pod needs {resource} {need}, and the most that is free{where} is {has}, on {found.node}"
    )


#: Shape -> the nodes that take it, best first, in a session.
RANKINGS: StateKey[dict[tuple[object, ...], Ranking]] = StateKey(
    "rankings", lambda _: {}, ends_with_session=True
)
#: Shape -> the nodes that would take it if they were empty, in a session.
USABLE_NODES: StateKey[dict[tuple[object, ...], list[NodeState]]] = StateKey(
    "usable nodes", lambda _: {}
)


#: Kept in a module variable, because the loop below reads it for every pod.
_PENDING = PodPhase.PENDING
