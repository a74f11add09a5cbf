"""What to do about each reason for waiting: one concrete line per reason.

A remedy names a command to type or a number to ask for, or says that the wait ends without help.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from msgspec import structs

from batchq.api.lifecycle import ADMITTED, TERMINAL
from batchq.api.node_features import (
    is_named,
    lacking_runtime,
    no_node_matches,
    no_node_tolerated,
)
from batchq.api.notation import SECOND, format_duration, format_instant
from batchq.api.objects import Pledge, Strategy, gates_of, is_gated
from batchq.api.reasons import NEVER_FITS, Verdict, Waiting
from batchq.api.resources import PODS, describe_quantity, minus
from batchq.api.transaction import POD_GROUPS
from batchq.api.views import Backfilling
from batchq.client.changes.object_writes import abbreviated
from batchq.client.outcomes import (
    agents_to_upgrade,
    missing_nodes,
)
from batchq.client.overview import borrowers, gates_of_task, queue_views
from batchq.core.eligibility import (
    DependencyState,
    dependency_state,
    namespace_refusal,
    open_checks,
    refused_with,
    retry_at,
    stops_of,
)
from batchq.core.pending_queue import blockers
from batchq.core.placement.feasibility import (
    largest_node,
    named_nodes,
    nodes_away,
    why_no_known_node,
)
from batchq.core.placement.placement import gang_of, slots_for
from batchq.core.placement.topology import most_within, within_text
from batchq.core.placement.trial import verdicts_of
from batchq.core.preemption.preemptors import RECLAIM, ends_above
from batchq.core.quota.head_reservation import is_array_with_retries, length_of, still_waits
from batchq.core.quota.limit_checks import keeps_guarantees
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState, is_known
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState
from batchq.core.timeline import LedgerTimeline
from batchq.plugins.gates import CHECKS, GATES
from batchq_actions.backfill import reservations_of

_Remedy = Callable[[Session, GroupState, Verdict], str]

#: How many nodes one command uncordons.
MOST_UNCORDONED = 8
#: Waits that end with time, for a group that can run some day.
_ENDS_WITH_TIME = frozenset(
    {
        Waiting.BACKING_OFF,
        Waiting.WAITING_FOR_QUOTA,
        Waiting.WAITING_FOR_RESOURCES,
        Waiting.WAITING_FOR_TURN,
        Waiting.WAITING_FOR_PREEMPTION,
        Waiting.UNSCHEDULABLE,
    }
)
_LACKS_NODES = frozenset({Waiting.WAITING_FOR_RESOURCES, Waiting.UNSCHEDULABLE})


def remedy_for(
    session: Session, group: GroupState, verdict: Verdict, *, unled: str, never: bool = False
) -> str:
    """Return what ends this wait; '' if only time does and the message already says so. `never`:
    the group cannot run with the current nodes and limits.
    """
    if verdict.reason == Waiting.PENDING_EVALUATION:
        return unled or "nothing: the scheduler's next session looks at it"
    if never and verdict.reason in _ENDS_WITH_TIME:
        if verdict.reason not in _LACKS_NODES and _has_no_prospects(session, group):
            # The remedy is at the reason that no waiting removes.
            return ""
        return _fitting_request(session, group)
    return _REMEDIES[verdict.reason](session, group, verdict)


def _has_no_prospects(session: Session, group: GroupState) -> bool:
    return any(one.reason in NEVER_FITS for one in verdicts_of(session, group))


def short_key(key: str) -> str:
    """Return the name of a group as commands take it in the namespace `default`."""
    return key.removeprefix("default/")


def _misconfigured(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.detail and verdict.detail == namespace_refusal(session, group):
        return _accepting_queue(session, group)
    known = group.queue in session.queues
    if known and not session.tree.is_leaf(group.queue) and not is_gated(group.record):
        # Only a gated group may still change its queue.
        return f"`batchq cancel {short_key(group.key)}`, and submit it to one of the queues below"
    return "correct the manifest and apply it: `batchq apply -f FILE`"


def _accepting_queue(session: Session, group: GroupState) -> str:
    """Return what to do about a queue that does not accept groups of this namespace."""
    tree, namespace = session.tree, group.namespace
    queues = tree.open_to(namespace)
    closed = ", ".join(tree.closed_to(group.queue, namespace))
    added = f"have {namespace} added to spec.namespaces of {closed}"
    if not queues:
        return added
    others = f"another queue ({abbreviated(queues)})"
    if is_gated(group.record):
        # Only a gated group may still change its queue.
        return f"apply it with {others}, or {added}"
    name = short_key(group.key)
    again = f"`batchq resubmit {name} -q {queues[0]}`"
    return f"`batchq cancel {name}`, and submit it to {others}: {again}; or {added}"


def _queue_not_found(session: Session, group: GroupState, verdict: Verdict) -> str:
    return f"create queue {group.queue} (`batchq apply -f FILE`), or submit it to an existing queue"


def _exceeds(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.limit is None:
        return "ask for less"
    resource, limit = verdict.resource, verdict.limit
    if verdict.reason == Waiting.EXCEEDS_CAPACITY and not session.settings.overcommit:
        return "set overcommit in the scheduler's configuration to 1 or more: 0 admits no pods"
    if resource == POD_GROUPS:
        most = describe_quantity(resource, limit)
        return f"have {verdict.subject} allow more than {most} groups"
    of_nodes = not group.is_external and resource != PODS
    largest = largest_node(session, resource) if of_nodes else limit
    if not largest:
        return _not_offered(resource) if not group.is_external else f"ask for no {resource}"
    if not limit:
        return f"ask for no {resource}, or have the limit raised"
    on_one = describe_quantity(resource, largest)
    if group.min_member == 1 and largest < limit:
        # One pod is bounded by one node, not by the sum of the nodes.
        return f"ask for less {resource}: at most {on_one} can ever fit, on the largest node"
    in_domain = most_within(session, group, _of_known_nodes(session, resource)) if of_nodes else 0
    # Without any domain, the labels are what is wrong.
    within = within_text(group) if 0 < in_domain < limit else ""
    most = describe_quantity(resource, in_domain if within else limit)
    if any(shape.requests.get(resource, 0) > largest for shape in group.tasks):
        return (
            f"ask for less {resource}: at most {most} in all, and {on_one} a pod, can ever fit"
            f"{within}"
        )
    return f"ask for less {resource}: at most {most} can ever fit{within}"


def _of_known_nodes(session: Session, resource: str) -> Callable[[NodeState], int]:
    """Return what a node has of a resource if it was seen within a day, else 0."""
    return lambda node: (
        node.total.get(resource, 0) if is_known(node, session.now_ms, session.settings) else 0
    )


def _exceeds_nodes(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.limit is None:
        return _fitting_request(session, group)
    return _exceeds(session, group, verdict)


def _not_offered(resource: str) -> str:
    return f"no node offers {resource}: ask for none, or start a worker that does"


def _fitting_request(session: Session, group: GroupState) -> str:
    """Return what to ask for if no known node would take the group; '' if some would."""
    gang = gang_of(session, group)
    if group.is_external or not why_no_known_node(session, gang):
        return ""
    for shape, _ in gang:
        for resource, need in shape.requests.items():
            largest = largest_node(session, resource)
            if not largest and need:
                return _not_offered(resource)
            if need > largest:
                most = describe_quantity(resource, largest)
                return (
                    f"ask for at most {resource} {most} a pod, which is what the largest node has,"
                    " or start a worker that has more"
                )
        if why_no_known_node(session, [(shape, 1)]):
            return (
                _matching_node(session, shape)
                or _newer_agents(session, shape)
                or _tolerated_node(session, shape)
                or (
                    "let nodes take its pods (`batchq nodes -o wide`: taints, labels), or start a"
                    " worker that would"
                )
            )
    return "let it start with fewer pods (minMember) or smaller ones, or start more workers"


def _tolerated_node(session: Session, shape: TaskShape) -> str:
    """Return how to tolerate the taints of the nodes that a pod could use; '' if one takes it."""
    template = shape.task.template
    nodes = [node.record for node in session.nodes.known_when_empty().nodes.values()]
    tainted = no_node_tolerated(template, nodes)
    if not tainted:
        return ""
    return (
        f"{tainted}: tolerate it (`batchq submit --toleration KEY`), or start a worker without it"
    )


def _matching_node(session: Session, shape: TaskShape) -> str:
    """Return how to find a node with the names and labels that a pod asks for; '' if one has them.

    If a node has the name but not the labels, the labels are named.
    """
    template = shape.task.template
    nodes = [node.record for node in session.nodes.known_when_empty().nodes.values()]
    unmatched = no_node_matches(template, nodes)
    if not unmatched:
        return ""
    named = [name for name in template.nodes if name not in template.exclude_nodes]
    missing = [key for key, value in template.node_selector.items() if not value]
    if missing:
        # `spec.topology` requires a label that no node has, with any value.
        label = missing[0]
        return (
            f"no node has the label {label}: correct the topology, or start workers that have it"
            f" (`batchq worker --label {label}=VALUE`)"
        )
    if any(is_named(node.metadata.name, template) for node in nodes):
        if runtime := lacking_runtime(
            template.node_selector, (node.metadata.labels for node in nodes)
        ):
            return f"{unmatched}: install {runtime} on a node, and restart its worker"
        labels = [f"--label {key}={value}" for key, value in template.node_selector.items()]
        has = "has it" if len(labels) == 1 else "has them"
        command = f"`batchq worker {' '.join(labels)}`"
        return f"{unmatched}: correct the selector, or start a worker that {has} ({command})"
    if not named:
        return f"{unmatched}: exclude fewer, or start another worker"
    return (
        f"{unmatched}: name another (`batchq nodes`), or start a worker of that name"
        f" (`batchq worker --name {named[0]}`)"
    )


def _newer_agents(session: Session, shape: TaskShape) -> str:
    old = agents_to_upgrade(session, shape)
    if not old:
        return ""
    its = "its agent" if len(old) == 1 else "the agents"
    return (
        f"upgrade batchq on {named_nodes(old)} and restart {its} there (`batchq worker`): agents of"
        " this version would take its pods"
    )


def _stopped(session: Session, group: GroupState, verdict: Verdict) -> str:
    names = [name for name, _ in stops_of(session, group)]
    return " and ".join(f"`batchq queues resume {name}`" for name in names)


def _suspended(session: Session, group: GroupState, verdict: Verdict) -> str:
    return f"`batchq resume {short_key(group.key)}`"


def _gated(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.plugin != GATES:
        # It has no gates to open; the plugin's message already says what it waits for.
        return ""
    command = f"batchq gates open {short_key(group.key)}"
    if verdict.subject and group.phase in ADMITTED:
        names = gates_of_task(group, verdict.subject)
        return f"`{command} {' '.join(names)} --task {verdict.subject}`"
    gates = dict.fromkeys(gate.name for gate in gates_of(group.record.spec))
    for pod in group.live_pods.values():
        gates |= dict.fromkeys(gate.name for gate in pod.spec.scheduling_gates)
    return f"`{command} {' '.join(gates)}`"


def _dependent(session: Session, group: GroupState, verdict: Verdict) -> str:
    for one in group.record.spec.depends_on:
        if dependency_state(group, one, session.groups) is DependencyState.MET:
            continue
        name, other = short_key(f"{group.namespace}/{one.name}"), session.groups.get(one.uid)
        if other is None or other.phase not in (*ADMITTED, *TERMINAL):
            return f"see why that one waits: `batchq why {name}`"
        if other.phase in ADMITTED:
            return f"wait for it to end: `batchq progress {name}`"
        return "nothing: its last processes are stopping"
    return ""


def _backs_off(session: Session, group: GroupState, verdict: Verdict) -> str:
    ends = [group.status.backoff_until, group.status.claim.over_at, retry_at(session, group)]
    later = [at for at in ends if at is not None and at > session.now_ms]
    until = f" at {format_instant(max(later))}" if later else ""
    if verdict.plugin == CHECKS:
        names = " and ".join(state.name for state in refused_with(group, "Retry"))
        return (
            f"nothing: it returns to the line{until}; the delay is retryDelayMinutes of"
            f" AdmissionCheck {names}; shorten it to be checked again sooner"
        )
    return f"nothing: it returns to the line{until}; check what evicted it"


def _waits_for_checks(session: Session, group: GroupState, verdict: Verdict) -> str:
    waiting = open_checks(group)
    if not waiting:
        return ""
    checks = [session.admission_checks.get(one.name) for one in waiting]
    names = dict.fromkeys(check.spec.controller_name for check in checks if check is not None)
    who = " and ".join(name for name in names if name)
    by_hand = " and ".join(
        f"`batchq checks set {short_key(group.key)} {one.name} True`" for one in waiting
    )
    return f"ask {who or 'its controller'}, or if people answer it: {by_hand}"


def _inactive(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.plugin != CHECKS:
        return ""
    name = verdict.subject
    asks = [
        one
        for one in group.chain
        if (queue := session.queues.get(one)) is not None
        and name in queue.record.spec.admission_checks
    ]
    off = f"take it off queue {' and '.join(asks) or group.queue}"
    check = session.admission_checks.get(name)
    if check is None:
        return f"apply AdmissionCheck {name} (`batchq apply -f FILE`), or {off}"
    controller = check.spec.controller_name
    if not controller:
        return f"give AdmissionCheck {name} a controllerName, or {off}"
    return (
        f"start its controller, {controller}; where people answer it,"
        f" `batchq checks serve {controller}`; or {off}"
    )


def _over_quota(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.resource == POD_GROUPS:
        return f"wait until another group of {verdict.subject} has ended, or have it allow more"
    if not verdict.subject:
        return ""
    smaller, others = _at_most(session, group, verdict, _free(verdict)), _others(group)
    if verdict.subject.startswith("the quota of"):
        raised = f"raise it: `batchq quota set {group.namespace} {verdict.resource}=…`"
        return _one_of(f"wait until {others} of namespace {group.namespace} end", smaller, raised)
    return _one_of(
        f"wait until {others} of {verdict.subject} end", smaller, "have its capability raised"
    )


def _others(group: GroupState) -> str:
    return "its running pods or others" if group.phase in ADMITTED else "others"


def _one_of(*ways: str) -> str:
    """Join alternatives; empty ones are left out."""
    *others, last = filter(None, ways)
    return ", ".join((*others, f"or {last}"))


def _lacks_resources(session: Session, group: GroupState, verdict: Verdict) -> str:
    if not any(node.ready for node in session.nodes.by_name.values()):
        return "start a node: `batchq up`, or `batchq worker`; `batchq nodes` lists them"
    if returning := _returning_nodes(session, group):
        return returning
    free = _free(verdict)
    if not group.is_external:
        # The cluster's sum includes cordoned nodes; and one pod is bounded by one node.
        each = [_free_on(node, verdict.resource) for node in session.nodes.by_name.values()]
        together = most_within(session, group, lambda node: _free_on(node, verdict.resource))
        free = min(free, max(each, default=0) if group.min_member == 1 else together)
    return _one_of(
        f"wait until {_others(group)} end",
        _at_most(session, group, verdict, free),
        *_ways_with_nodes_away(session, group),
        _reclaiming(session, group, verdict),
        "have nodes added",
    )


def _free_on(node: NodeState, resource: str) -> int:
    return max(0, node.free.get(resource, 0)) if node.open else 0


def _reclaiming(session: Session, group: GroupState, verdict: Verdict) -> str:
    """Return how its queue could take back the resource that others borrow; '' if it could not."""
    queue = session.queues.get(group.queue)
    if queue is None or queue.record.spec.preemption.reclaim != "Never":
        return ""
    if group.phase in ADMITTED or RECLAIM not in session.actions:
        return ""
    need = minus(group.reservation, session.ledger.charged(group))
    if ends_above(session, queue.name, need, group.reservation):
        return ""
    loans = borrowers(queue_views(session), session.tree, queue.name)
    names = [
        loan.queue
        for loan in loans
        if verdict.resource in loan.amounts
        and (other := session.tree.records.get(loan.queue)) is not None
        and other.spec.reclaimable
    ]
    if not names:
        return ""
    whose = f"queue {names[0]} borrows" if len(names) == 1 else f"{named_nodes(names)} borrow"
    return f"have `preemption.reclaim: Any` set on queue {queue.name}, to take back what {whose}"


def _returning_nodes(session: Session, group: GroupState) -> str:
    """Return how to make the nodes available without which the group cannot start; '' if it can."""
    if not missing_nodes(session, group):
        return ""
    away = nodes_away(session, gang_of(session, group))
    ways = " and ".join(filter(None, _ways_with_nodes_away(session, group)))
    return f"{ways}: {away.text()}, and the other nodes do not suffice even when empty"


def uncordon_command(names: Sequence[str]) -> str:
    """Return the command; '' for no nodes. A long list is left to the reader."""
    if not names:
        return ""
    if len(names) > MOST_UNCORDONED:
        return "uncordon some of the cordoned nodes (`batchq nodes`)"
    return f"`batchq nodes uncordon {' '.join(names)}`"


def _ways_with_nodes_away(session: Session, group: GroupState) -> tuple[str, ...]:
    """Return how to make cordoned nodes, and those that are not ready, take pods of the group."""
    if group.is_external:
        return ()
    away = nodes_away(session, gang_of(session, group))
    returns = f"bring back {named_nodes(away.not_ready)} (`batchq nodes`)" if away.not_ready else ""
    return uncordon_command(away.cordoned), returns


def _free(verdict: Verdict) -> int:
    return max(0, (verdict.limit or 0) - (verdict.seen or 0))


def _at_most(session: Session, group: GroupState, verdict: Verdict, free: int) -> str:
    if group.phase in ADMITTED:
        return ""
    free = _beside_guarantees(session, group, verdict.resource, free)
    if free <= 0:
        return ""
    amount = describe_quantity(verdict.resource, free)
    together = " in all" if group.min_member > 1 else ""
    return f"ask for at most {verdict.resource} {amount}{together}"


def _beside_guarantees(session: Session, group: GroupState, resource: str, free: int) -> int:
    """Return how much of what is free the group may have beside the guarantees of other queues."""
    ledger = session.ledger
    with ledger.regarding(()):
        return bisect_left(
            range(1, free + 1),
            True,
            key=lambda units: not keeps_guarantees(ledger, group, {resource: units}),
        )


def _waits_for_turn(session: Session, group: GroupState, verdict: Verdict) -> str:
    head = session.heads.strict.get(group.queue)
    if head is None or verdict.plugin == "pledge":
        return "nothing: it is next after the head has started"
    if shorter := _shorter_walltime(session, group):
        return shorter
    if head.namespace != group.namespace:
        return "wait for its turn; a higher priority class goes ahead"
    why = f"`batchq why {short_key(head.key)}`"
    return f"see what the head waits for: {why}; a higher priority class goes ahead"


def _shorter_walltime(session: Session, group: GroupState) -> str:
    """Return the walltime with which it would delay no reservation; '' if there is none."""
    position = backfilling_of(session, group)
    if position is None or not position.delays:
        return ""
    has_none = group.record.spec.walltime is None
    if position.longest_ms is not None:
        most = format_duration(position.longest_ms)
        beside = ": without one it can only use what is left beside the head" if has_none else ""
        return (
            f"with a walltime of at most {most} it would go ahead now"
            f" (`batchq apply -f FILE`){beside}"
        )
    if has_none and not is_array_with_retries(group):
        return (
            "give it a walltime (`batchq apply -f FILE`): without one it can only use what is left"
            " beside the head"
        )
    return ""


def backfilling_of(session: Session, group: GroupState) -> Backfilling | None:
    """Return its position; None unless the group waits behind a head that is backfilled around."""
    head = session.heads.strict.get(group.queue)
    if head is None or not still_waits(head) or not _is_backfilled(session, head):
        return None
    reservations = reservations_of(session)
    head_at, reserved_at = reservations.get(head.uid), reservations.get(group.uid)
    if group is head:
        return Backfilling(head=head.key, head_at=head_at, reserved_at=head_at)
    if not still_waits(group) or not _waits_behind_head(session, group):
        return None
    position = Backfilling(head=head.key, head_at=head_at, reserved_at=reserved_at)
    known = LedgerTimeline(session)
    if head_at is None or not known.fits_now(group, 1):
        return position
    return _with_delay(session, group, position, known)


def _with_delay(
    session: Session, group: GroupState, position: Backfilling, known: LedgerTimeline
) -> Backfilling:
    """Complete the position of a group that would fit now but for earlier reservations."""
    now_ms, length = session.now_ms, length_of(session, group)
    reservations = _reservations_before(session, group)
    for other, at in reservations:
        known.book(other, at, length_of(session, other))
    position = structs.replace(position, fits_now=True)
    if known.fits_now(group, length):
        return position
    delayed: tuple[GroupState, int] | None = None
    for other, at in sorted(reservations, key=lambda one: one[1]):
        if not known.fits_now(group, at - now_ms):
            break
        if delayed is None or at > delayed[1]:
            delayed = other, at
    if delayed is None:
        return position
    other, at = delayed
    return structs.replace(
        position,
        delays=other.key,
        delayed_at=at,
        longest_ms=_whole_seconds(at - now_ms) if _would_start(session, group) else None,
    )


def _reservations_before(session: Session, group: GroupState) -> list[tuple[GroupState, int]]:
    """Return the groups with a reservation that are tried before it, with their starts."""
    head, found = session.heads.strict[group.queue], []
    for uid, at in reservations_of(session).items():
        if uid == group.uid:
            break
        other = session.groups[uid]
        if session.heads.strict.get(other.queue) is head:
            found.append((other, at))
    return found


def _would_start(session: Session, group: GroupState) -> bool:
    """Return whether a shorter walltime is all that the group needs in order to start now."""
    if is_array_with_retries(group) or session.refusals_at("permit", group):
        return False
    if blockers(session, group):
        return False
    gang = () if group.is_external else gang_of(session, group)
    return all(slots_for(session, shape, count) >= count for shape, count in gang)


def _whole_seconds(milliseconds: int) -> int | None:
    """Round down to whole seconds, as people write walltimes; None for zero."""
    return milliseconds // SECOND * SECOND or None


def _waits_behind_head(session: Session, group: GroupState) -> bool:
    """Return whether the group waits because of its position behind the head."""
    return any(
        verdict.reason == Waiting.WAITING_FOR_TURN and verdict.plugin == "enqueue"
        for verdict in session.refusals.get(group.uid, ())
    )


def _is_backfilled(session: Session, head: GroupState) -> bool:
    return "backfill" in session.actions and _strategy(session, head).type == "Backfill"


def _strategy(session: Session, group: GroupState) -> Strategy:
    return session.queues[group.queue].record.spec.strategy


def _preempting(session: Session, group: GroupState, verdict: Verdict) -> str:
    pledge: Pledge = group.status.pledge
    if not pledge.stands:
        return "nothing: it continues as evictions leave the window of the budget"
    return "nothing: it starts once they have stopped"


def _no_node(session: Session, group: GroupState, verdict: Verdict) -> str:
    return _returning_nodes(session, group) or (
        "wait for others to end, ask for smaller pods, or let more nodes take them"
        " (`batchq nodes`: cordoned, taints, labels)"
    )


def _no_remedy(session: Session, group: GroupState, verdict: Verdict) -> str:
    return ""


_REMEDIES: dict[Waiting, _Remedy] = {
    Waiting.MISCONFIGURED: _misconfigured,
    Waiting.QUEUE_NOT_FOUND: _queue_not_found,
    Waiting.EXCEEDS_MAX_QUOTA: _exceeds,
    Waiting.EXCEEDS_CAPACITY: _exceeds_nodes,
    Waiting.QUEUE_STOPPED: _stopped,
    Waiting.SUSPENDED: _suspended,
    Waiting.SCHEDULING_GATED: _gated,
    Waiting.DEPENDENCY_NOT_MET: _dependent,
    Waiting.BACKING_OFF: _backs_off,
    Waiting.WAITING_FOR_CHECKS: _waits_for_checks,
    Waiting.CHECK_INACTIVE: _inactive,
    Waiting.WAITING_FOR_QUOTA: _over_quota,
    Waiting.WAITING_FOR_RESOURCES: _lacks_resources,
    Waiting.WAITING_FOR_TURN: _waits_for_turn,
    Waiting.WAITING_FOR_PREEMPTION: _preempting,
    Waiting.UNSCHEDULABLE: _no_node,
    Waiting.PENDING_EVALUATION: _no_remedy,
}
