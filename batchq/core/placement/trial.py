"""Trials of a gang's placement, and holds (rule 4 of an admission: nodes take the gang now).

A trial is allocate's own placement, on what is free and not kept for other groups. The places that
it finds are taken off the nodes at once and kept (batchq.core.kept_capacity); refused gangs
are cached (batchq.core.placement.feasibility).

Enqueue calls `keep_places` before it tries groups: pods covered by a reservation get their places,
and a gang that has waited long, the first of its queue, holds what nodes have free for it. After
the last group, `note_first_waiting` stores since when the first group of a queue waits only for
nodes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.notation import counted
from batchq.api.reasons import Verdict, Waiting, ranked
from batchq.api.resources import Amounts, covers, describe, describe_quantity, minus, plus, smaller
from batchq.core.kept_capacity import hold_capacity
from batchq.core.node_timeline import AmountsByNode, nodes_decide
from batchq.core.pending_queue import (
    blockers,
    is_in_class,
    out_of_line_refusals,
    unpark_class,
    waits_in_line,
)
from batchq.core.placement.feasibility import (
    NODE_REFUSALS,
    fits_when_empty,
    named_nodes,
    wanted_of,
    why_not_when_empty,
)
from batchq.core.placement.placement import (
    bind_until_ready,
    explain_no_node,
    fill_largest_first,
    fill_nodes,
    gang_of,
    most_free_for,
    slots_for,
    waits_for_its_own,
)
from batchq.core.placement.topology import (
    choose_domain,
    domains_for,
    may_choose,
    preferred,
    why_in_no_domain,
)
from batchq.core.preemption.protection import EVICTION_BUDGET
from batchq.core.quota import ROOT
from batchq.core.quota.head_reservation import (
    keeping_off,
    length_of,
    reserved_against_gang,
    reserved_for_later_heads,
    reserves_on_nodes,
    together,
)
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import Gang, KeptPlaces, NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.timeline import timeline_of

#: The plugin name in the verdicts of this module.
PLUGIN = "nodes"
#: From this number of pods on, the number of slots is checked before a trial.
_MANY_PODS = 64
_PARTS = 1_000_000
_ITS_OWN = Verdict(
    plugin=PLUGIN,
    reason=Waiting.WAITING_FOR_RESOURCES,
    detail="its own pods of a former admission have not ended yet",
    in_line=True,
)


def seek(session: Session, group: GroupState) -> KeptPlaces | Verdict:
    """Return places for a group's gang, whose capacity is then taken, or why nodes do not take it.

    Pods are tried in the gang's order, each on the best node. If that fails, the largest pods come
    first, each on the fullest node that takes it.
    """
    if session.nodes.binding_refused is not None:
        return session.nodes.binding_refused
    if group.uid not in session.nodes.held:
        return _seek(session, group)
    # The capacity already held for this group is available to it.
    by_node = session.nodes.put_back_hold(group.uid)
    found = _seek(session, group)
    if isinstance(found, KeptPlaces):
        for name in by_node:
            session.nodes.freed.note(name)
    else:
        hold_capacity(session, group, by_node)
    return found


def seek_alike(session: Session, groups: Sequence[GroupState]) -> list[KeptPlaces]:
    """Return places for the gangs of groups with equal requests that have no pods, group by group,
    as `seek` would find them one after the other; their capacity is then taken. Fewer if nodes do
    not take all gangs, and none if each group must be tried for itself.
    """
    gang = gang_of(session, groups[0])
    shape, count = gang[0] if len(gang) == 1 else (None, 0)
    if (
        shape is None
        or shape.sharing is not None
        or not 0 < count < _MANY_PODS
        or groups[0].record.spec.topology
        or session.nodes.held
        or session.nodes.kept.keys() & {group.uid for group in groups}
        or session.get(NODE_REFUSALS)
        or reserves_on_nodes(session)
    ):
        return []
    filled: list[NodeState] = []
    fill_nodes(session, shape, count * len(groups), filled)
    whole = len(filled) - len(filled) % count
    session.nodes.put_back_places(KeptPlaces(((shape, tuple(filled[whole:])),)))
    if count == 1:
        return [KeptPlaces(((shape, (node,)),)) for node in filled]
    starts = range(0, whole, count)
    return [KeptPlaces(((shape, tuple(filled[start : start + count])),)) for start in starts]


def _seek(session: Session, group: GroupState) -> KeptPlaces | Verdict:
    if not group.record.spec.topology or not may_choose(group):
        return _seek_there(session, group)
    refused, freed = session.get(_IN_NO_DOMAIN), session.nodes.freed.count
    known = refused.get(group.own_shape.alike)
    if known is not None and known[0] == freed and not group.pods:
        choose_domain(session, group)
        return known[1]
    for domain in domains_for(session, group):
        group.confine(domain)
        found = _seek_there(session, group)
        if isinstance(found, KeptPlaces):
            return found
    choose_domain(session, group)
    found = _seek_there(session, group)
    assert isinstance(found, Verdict)
    verdict = structs.replace(found, detail=why_in_no_domain(group, found), passing="")
    if found.plugin == PLUGIN and not group.pods and not reserves_on_nodes(session):
        refused[group.own_shape.alike] = (freed, verdict)
    return verdict


#: What a group asks for -> how much had been freed when no domain took it in this session, and why.
_IN_NO_DOMAIN: StateKey[dict[tuple[object, ...], tuple[int, Verdict]]] = StateKey(
    "refusals in all domains", lambda _: {}
)


def _seek_there(session: Session, group: GroupState) -> KeptPlaces | Verdict:
    """Return the same on the nodes to which the group is confined."""
    gang = gang_of(session, group)
    if not gang:
        # Its pods have ended for good or are held by gates: there is nothing to place.
        return KeptPlaces(())
    if waits_for_its_own(group, gang):
        return _ITS_OWN
    for narrower in preferred(session, group, gang) if group.record.spec.topology else ():
        found = _beside_heads(session, group, narrower)
        if isinstance(found, KeptPlaces):
            return found
    refusals, lacking = session.get(NODE_REFUSALS), None
    if refusals:
        wanted = wanted_of(gang)
        refused = refusals.find(session, wanted)
        if refused is not None:
            return refused
        if (larger := refusals.asks_for_more(session, wanted)) is not None:
            lacking = next(shape for shape, _ in gang if shape.shape == larger)
    if lacking is None:
        found = _beside_heads(session, group, gang)
        if not isinstance(found, TaskShape):
            return found
        lacking = found
    return refusals.note(session, gang, _verdict(session, gang, lacking))


def _beside_heads(
    session: Session, group: GroupState, gang: Gang
) -> KeptPlaces | Verdict | TaskShape:
    """Return places outside the reservations for heads of other queues; a verdict if only the heads
    of queues tried earlier keep the gang out; the shape of a refused pod otherwise.
    """
    if not reserves_on_nodes(session):
        return _try(session, gang)
    against, to_come = (
        reserved_against_gang(session, group),
        reserved_for_later_heads(session, group),
    )
    for by_node in [together([against, to_come])] if to_come else []:
        with keeping_off(session, by_node):
            found = _try(session, gang)
        if isinstance(found, KeptPlaces):
            return found
    with keeping_off(session, against):
        found = _try(session, gang)
    if isinstance(found, KeptPlaces) or not against:
        return found
    found = _try(session, gang)
    if isinstance(found, TaskShape):
        return found
    session.nodes.put_back_places(found)
    heads = ", ".join(queue for queue in session.ledger.head_reservations if queue != group.queue)
    detail = f"nodes that could take its {_noun(gang)} are reserved for the head of {heads}"
    return Verdict(
        plugin="enqueue", reason=Waiting.WAITING_FOR_RESOURCES, detail=detail, in_line=True
    )


def refused_by_nodes(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Return why nodes do not take a group's gang now, or nothing; leaves no trace."""
    if group.is_external or not nodes_decide(session) or group.uid in session.nodes.kept:
        return ()
    found = seek(session, group)
    if isinstance(found, KeptPlaces):
        session.nodes.put_back_places(found)
        return ()
    return (found,)


def verdicts_of(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Return why a group does not run, the most fundamental reason first: for what the actions have
    refused it; if they have not seen it, what keeps a Pending group from being admitted now.
    """
    known = session.refusals.get(group.uid)
    if known is not None or group.phase != PodGroupPhase.PENDING:
        return known or ()
    return ranked(blockers(session, group) or refused_by_nodes(session, group))


def _try(session: Session, gang: Gang) -> KeptPlaces | TaskShape:
    """Return places, whose capacity is taken, or the shape of the first pod that finds no node."""
    if len(gang) == 1 and gang[0][1] < _MANY_PODS:
        return _in_order(session, gang)
    for shape, count in gang:
        if slots_for(session, shape, count) < count:
            # These pods would not all find a node even if the rest of the gang were ignored.
            return shape
    found = _in_order(session, gang)
    if isinstance(found, TaskShape) and len(gang) > 1:
        nodes = fill_largest_first(session, gang)
        if nodes is not None:
            shapes = [shape for shape, _ in gang]
            return KeptPlaces(tuple(zip(shapes, nodes, strict=True)))
    return found


def _in_order(session: Session, gang: Gang) -> KeptPlaces | TaskShape:
    parts: list[tuple[TaskShape, tuple[NodeState, ...]]] = []
    for shape, count in gang:
        filled: list[NodeState] = []
        fill_nodes(session, shape, count, filled)
        parts.append((shape, tuple(filled)))
        if len(filled) < count:
            session.nodes.put_back_places(KeptPlaces(tuple(parts)))
            return shape
    return KeptPlaces(tuple(parts))


def _verdict(session: Session, gang: Gang, shape: TaskShape) -> Verdict:
    """Return the verdict on a refused gang: in line, unless even empty nodes that are ready and not
    cordoned would not take it.
    """
    in_line = fits_when_empty(session, gang)
    free = _largest_free_text(session, shape) if in_line else ""
    if in_line and not free:
        beside, free = _free_beside_the_gang(session, gang)
        shape = beside if free else shape
    if in_line and not free:
        explained = explain_no_node(session, shape)
        detail = explained.detail
        passing = "; ".join(filter(None, (explained.passing, _held_exclusively(session, shape))))
    elif in_line:
        detail = f"nodes cannot take its {_noun(gang)} now"
        # This detail changes with what is free, so it is not stored.
        passing = f"no node takes a pod that asks for {describe(shape.requests)}, {free}"
        if held := _held_exclusively(session, shape):
            passing = f"{passing}; {held}"
    else:
        detail, passing = why_not_when_empty(session, gang), ""
    return Verdict(
        plugin=PLUGIN,
        reason=Waiting.WAITING_FOR_RESOURCES,
        detail=detail,
        passing=passing,
        in_line=in_line,
    )


def _noun(gang: Gang) -> str:
    return "pod" if sum(count for _, count in gang) == 1 else "gang"


def _held_exclusively(session: Session, shape: TaskShape) -> str:
    """Return which other groups hold how many nodes exclusively: `2 nodes are held exclusively by
    ml/train`; '' if none does.
    """
    by_group = Counter(
        session.groups[sharing.owner].key
        for node in (session.nodes.by_name.values() if session.carried.sharing else ())
        for sharing in node.owners
        if sharing.exclusive and sharing != shape.sharing and sharing.owner in session.groups
    )
    nodes = by_group.total()
    if not nodes:
        return ""
    verb = "is" if nodes == 1 else "are"
    return f"{counted(nodes, 'node')} {verb} held exclusively by {named_nodes(sorted(by_group))}"


def _free_beside_the_gang(session: Session, gang: Gang) -> tuple[TaskShape, str]:
    """Return the first pod without a node, and the largest free amount then, as text."""
    parts: list[tuple[TaskShape, tuple[NodeState, ...]]] = []
    text = ""
    for shape, count in gang:
        filled: list[NodeState] = []
        fill_nodes(session, shape, count, filled)
        parts.append((shape, tuple(filled)))
        if len(filled) < count:
            text = _largest_free_text(session, shape)
            break
    placed = sum(len(nodes) for _, nodes in parts)
    session.nodes.put_back_places(KeptPlaces(tuple(parts)))
    return shape, f"{text}, beside {counted(placed, 'other pod')} of its gang" if text else ""


def _largest_free_text(session: Session, shape: TaskShape) -> str:
    """Return the largest free amount on one node that a pod may use, as text, in the first
    dimension in which no open node has enough; '' if the pod is refused for another reason.
    """
    found = most_free_for(session, shape)
    if found is None or found.anywhere >= shape.requests[found.resource]:
        return ""
    free = describe_quantity(found.resource, found.units)
    has = "one node has free" if not found.where else f"is free{found.where}"
    return f"and the most {found.resource} that {has} is {free}, on {found.node}"


def seek_for_admitted(session: Session, group: GroupState) -> bool:
    """Keep places for the missing pods of an admitted group's gang, as far as its reservation
    covers them; return whether nodes take them.

    If its charge would grow, for example beside a pod that is being stopped, no places are kept:
    head reservations restrict the group as they restrict others, and the two would block each
    other.
    """
    charged = session.ledger.charged(group)
    before = {uid for uid, pod in group.live_pods.items() if pod.status.phase in ON_NODE}
    with Statement(session) as trial:
        if bind_until_ready(session, trial, group) is not None:
            return False
        if minus(session.ledger.charged(group), charged):
            return True
        bound = [
            pod
            for uid, pod in group.live_pods.items()
            if pod.status.phase in ON_NODE and uid not in before
        ]
    parts: dict[str, list[NodeState]] = {}
    for pod in bound:
        shape = group.shape.by_task.get(pod.spec.task)
        if shape is None or group.requests_of(pod) != shape.requests:
            # This pod was created before its task was edited; allocate finds it a node.
            return True
        parts.setdefault(pod.spec.task, []).append(session.nodes.by_name[pod.status.node])
    places = KeptPlaces(
        tuple((group.shape.by_task[task], tuple(nodes)) for task, nodes in parts.items())
    )
    session.nodes.keep(group.uid, places)
    return True


def hold(session: Session, group: GroupState) -> None:
    """Hold capacity on nodes for a gang that has waited for long, until the session ends.

    If nodes take the gang now, its places are kept. Otherwise, if the group has a head reservation,
    the free part of that is held. Otherwise the pods that find a node hold their places, and each
    other pod holds what is free on the node that would take it empty and has most free (by name
    among equals).
    """
    gang = gang_of(session, group)
    if waits_for_its_own(group, gang):
        # It lacks more than nodes, which others may use until its former pods have ended.
        return
    # Earlier refusals do not matter here: nodes may have more capacity now.
    found = _beside_heads(session, group, gang)
    if isinstance(found, KeptPlaces):
        session.nodes.keep_taken(group.uid, found)
        return
    reserved = group.status.set_aside_on
    if reserved and all(_would_hold(session, name, amounts) for name, amounts in reserved.items()):
        hold_capacity(session, group, _still_free(session, reserved))
        return
    if group.sharing is not None:
        most_free = timeline_of(session).where_most_is_free(group)
        hold_capacity(session, group, _still_free(session, most_free))
        return
    by_node: dict[str, Amounts] = {}
    for shape, count in gang:
        filled: list[NodeState] = []
        fill_nodes(session, shape, count, filled)
        for node in filled:
            by_node[node.name] = plus(by_node.get(node.name, {}), shape.requests)
        for _ in range(count - len(filled)):
            fullest = _most_free(session, shape)
            if fullest is None:
                break
            part = {name: min(units, fullest.free[name]) for name, units in _there(fullest, shape)}
            session.nodes.take(fullest, part)
            by_node[fullest.name] = plus(by_node.get(fullest.name, {}), part)
    if by_node:
        session.nodes.hold_taken(group.uid, by_node)


def _would_hold(session: Session, name: str, amounts: Amounts) -> bool:
    """Return whether a node of this name is open and has such a total."""
    node = session.nodes.by_name.get(name)
    return node is not None and node.open and covers(node.total, amounts)


def _still_free(session: Session, by_node: AmountsByNode) -> dict[str, Amounts]:
    """Return what is free of these amounts now, by node."""
    found: dict[str, Amounts] = {}
    for name, amounts in by_node.items():
        part = minus(smaller(amounts, session.nodes.by_name[name].free), {})
        if part:
            found[name] = part
    return found


def _there(node: NodeState, shape: TaskShape) -> list[tuple[str, int]]:
    """Return the pod's requests in the dimensions in which the node has anything free."""
    return [(name, units) for name, units in shape.requests.items() if node.free.get(name, 0) > 0]


def _most_free(session: Session, shape: TaskShape) -> NodeState | None:
    """Return the node with most free of a request, of those that would take it if empty."""
    takers = [
        node
        for node in session.nodes.by_name.values()
        if node.open
        and len(_there(node, shape)) == len(shape.requests)
        and session.refused_by(shape, NodeState(node.record, ready=True)) is None
    ]
    if not takers:
        return None
    return min(takers, key=lambda node: (-_part_there(node, shape), node.name))


def _part_there(node: NodeState, shape: TaskShape) -> int:
    """Return the part of a pod's scarcest request that a node has free, in millionths."""
    return min(
        min(units, node.free[name]) * _PARTS // units for name, units in shape.requests.items()
    )


def keep_places(session: Session) -> None:
    """Keep places for pods covered by a reservation, then for gangs that have waited long."""
    if session.nodes.binding_refused is None:
        _seek_and_hold(session)
    # This is needed even if nothing is held now: former holds are free again and may unpark groups.
    session.nodes.note_held_less()


def _seek_and_hold(session: Session) -> None:
    late: dict[str, GroupState] = {}
    for group in _groups_lacking_places(session):
        if is_admitted(group):
            found = seek_for_admitted(session, group)
            waits = group.phase == PodGroupPhase.IN_QUEUE and not found
            if waits and has_waited_long(session, group, group.status.in_queue_at):
                late.setdefault(group.queue, group)
        elif isinstance(places := seek(session, group), KeptPlaces):
            session.nodes.keep_taken(group.uid, places)
    for group in sorted(session.carried.waits_for_nodes.values(), key=session.group_key):
        if _may_hold(session, group):
            late.setdefault(group.queue, group)
    for group in late.values():
        if not _has_reservation(session, group):
            hold(session, group)
            if group.uid in session.nodes.kept:
                # The group must be tried although another member of its class finds no nodes now.
                unpark_class(session, group)


def _groups_lacking_places(session: Session) -> Iterator[GroupState]:
    """Yield groups with a reservation whose gang lacks places, queues by share, groups in order."""
    lines: dict[str, deque[GroupState]] = {}
    groups = [group for group in session.unsettled() if _lacks_places(session, group)]
    if not groups:
        return
    for group in sorted(groups, key=session.group_key):
        queue = group.queue if session.plugins.points["queueOrder"] else ROOT
        lines.setdefault(queue, deque()).append(group)
    turns = FairShareSelector(session, lines, lambda name: next(iter(lines[name]), None))
    while (name := turns.next()) is not None:
        if lines[name]:
            yield lines[name].popleft()
        else:
            turns.drop(name)


def _lacks_places(session: Session, group: GroupState) -> bool:
    if group.is_external or group.status.pledge.stands or group.queue not in session.queues:
        return False
    if group.uid in session.nodes.kept:
        return False
    if is_admitted(group):
        return not group.has_all_placed and not session.group_ready(group)
    return group.phase == PodGroupPhase.PENDING and group.reserved


def has_waited_long(session: Session, group: GroupState, since: int | None) -> bool:
    """Return whether half of inQueueTimeout has passed since an instant (ms)."""
    return since is not None and session.now_ms - since > session.settings.in_queue_timeout_ms // 2


def _may_hold(session: Session, group: GroupState) -> bool:
    """Return whether a group has waited long and lacks only nodes.

    A group refused because of a head reservation holds nothing, since the two would block each
    other for ever. Nor does a group that even empty nodes refuse, because nodes are away. A group
    whose victims are spared only by the eviction budget does hold nodes: without its hold it might
    find no victims, and would hold nodes again, for ever.
    """
    return (
        group.phase == PodGroupPhase.PENDING
        and not group.reserved
        and group.queue in session.queues
        and has_waited_long(session, group, group.status.nodes_lacked_at)
        and all(verdict.plugin in (PLUGIN, EVICTION_BUDGET) for verdict in group.status.reasons)
        and fits_when_empty(session, gang_of(session, group))
        and not out_of_line_refusals(session, group)
        and not over_any_limit(session, group)
    )


def _has_reservation(session: Session, group: GroupState) -> bool:
    """Return whether a waiting group has a reservation in time, which replaces a hold: the head of
    a Backfill queue has one if its start is known.
    """
    strategy = session.queues[group.queue].record.spec.strategy.type
    if is_admitted(group) or strategy != "Backfill" or "backfill" not in session.actions:
        return False
    return timeline_of(session).slot(group, length_of(session, group)) is not None


def note_first_waiting(session: Session) -> None:
    """Store since when the first group in line of a queue waits only for nodes."""
    queues = {peers.queue for peers in session.get(NODE_REFUSALS).parked_classes()}
    for uid, refusals in session.refusals.own.items():
        for verdict in refusals:
            if verdict.plugin == PLUGIN:
                queues.add(session.groups[uid].queue)
                break
    if not queues:
        return
    for name in sorted(queues & session.queues.keys()):
        group = _first_in_line(session, name)
        if group is None or group.status.nodes_lacked_at is not None:
            continue
        verdicts = session.refusals.get(group.uid, ())
        if waits_for_its_own(group, gang_of(session, group)):
            continue
        if verdicts and all(verdict.plugin == PLUGIN and verdict.in_line for verdict in verdicts):
            with Statement(session) as statement:
                statement.set_status(group, nodes_lacked_at=session.now_ms)
                statement.commit()
            # From now on, it has verdicts of its own, separate from its class.
            session.refuse(group, verdicts)


def _first_in_line(session: Session, queue: str) -> GroupState | None:
    """Return the first group of a queue that waits in line."""
    line = session.queues[queue].line
    firsts = [
        first
        for peers in line.classes.values()
        if peers.in_demand and (first := next(filter(is_in_class, peers.members), None)) is not None
    ]
    firsts += [
        group
        for group in line.in_order()
        if group.phase == PodGroupPhase.PENDING
        and not group.reserved
        and waits_in_line(session.refusals.get(group.uid, ()))
    ][:1]
    return min(firsts, key=session.group_key, default=None)
