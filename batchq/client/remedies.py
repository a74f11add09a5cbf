"""What to do about a reason for which a group waits: one concrete line each.

What ends by itself says so; the rest names the command to type, or the number to ask for.
"""

from __future__ import annotations

from collections.abc import Callable

from batchq.api.gates import gates_of, is_gated
from batchq.api.lifecycle import ADMITTED
from batchq.api.objects import Pledge
from batchq.api.quantity import PODS, describe_quantity
from batchq.api.reasons import Verdict, Waiting
from batchq.api.times import format_duration, format_instant
from batchq.api.transaction import POD_GROUPS
from batchq.client.backfilling import backfilling_of
from batchq.client.leading import NO_LEADER
from batchq.client.partly import gates_of_task
from batchq.framework.checks import PLUGIN as CHECKS
from batchq.framework.checks import open_checks, refused_with, retry_at
from batchq.framework.dependencies import DependencyState, dependency_state
from batchq.framework.eligibility import stops_of
from batchq.framework.feasibility import largest_node, why_no_known_node
from batchq.framework.panel import GATES
from batchq.framework.placement import gang_of
from batchq.framework.session import Session
from batchq.framework.state import GroupState

_Remedy = Callable[[Session, GroupState, Verdict], str]


#: What time ends, of a group that can run some day; of another one, nothing does.
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


def remedy_for(
    session: Session, group: GroupState, verdict: Verdict, *, led: bool, never: bool = False
) -> str:
    """What ends this wait; '' where only time does and the message says so already. `never`: as
    things are the group cannot run, however long it waits.
    """
    if verdict.reason == Waiting.PENDING_EVALUATION:
        return "nothing: the scheduler's next session looks at it" if led else NO_LEADER
    if never and verdict.reason in _ENDS_WITH_TIME:
        return _what_would_fit(session, group)
    return _REMEDIES[verdict.reason](session, group, verdict)


def short_key(key: str) -> str:
    """A group as commands name it in the namespace `default`."""
    return key.removeprefix("default/")


def _misconfigured(session: Session, group: GroupState, verdict: Verdict) -> str:
    known = group.queue in session.queues
    if known and not session.tree.is_leaf(group.queue) and not is_gated(group.record):
        # The queue of a group that is not gated stays what it is.
        return f"`batchq cancel {short_key(group.key)}`, and submit it to one of the queues below"
    return "correct the manifest and apply it: `batchq apply -f FILE`"


def _queue_not_found(session: Session, group: GroupState, verdict: Verdict) -> str:
    return (
        f"create queue {group.queue} (`batchq apply -f FILE`),"
        " or submit it anew to one that is there"
    )


def _exceeds(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.limit is None:
        return "ask for less"
    resource, limit = verdict.resource, verdict.limit
    most = describe_quantity(resource, limit)
    if resource == POD_GROUPS:
        return f"have {verdict.subject} allow more than {most} groups"
    largest = limit if group.is_external or resource == PODS else largest_node(session, resource)
    if not largest:
        return _nobody_offers(resource) if not group.is_external else f"ask for no {resource}"
    if not limit:
        return f"ask for no {resource}, or have that raised"
    on_one = describe_quantity(resource, largest)
    if group.min_member == 1 and largest < limit:
        # One pod gets what one node has, whatever they have together.
        return f"ask for less {resource}: at most {on_one} can ever fit, on the largest node"
    if any(shape.requests.get(resource, 0) > largest for shape in group.tasks):
        return f"ask for less {resource}: at most {most} in all, and {on_one} a pod, can ever fit"
    return f"ask for less {resource}: at most {most} can ever fit"


def _exceeds_machines(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.limit is None:
        return _what_would_fit(session, group)
    return _exceeds(session, group, verdict)


def _nobody_offers(resource: str) -> str:
    return f"no node offers {resource}: ask for none, or start a worker that does"


def _what_would_fit(session: Session, group: GroupState) -> str:
    """What to ask for where no node that is known would take it; '' if they would."""
    gang = gang_of(session, group)
    if group.is_external or not why_no_known_node(session, gang):
        return ""
    for shape, _ in gang:
        for resource, need in shape.requests.items():
            largest = largest_node(session, resource)
            if not largest and need:
                return _nobody_offers(resource)
            if need > largest:
                most = describe_quantity(resource, largest)
                return (
                    f"ask for at most {resource} {most} a pod, which is what the largest node has,"
                    " or start a worker that has more"
                )
        if why_no_known_node(session, [(shape, 1)]):
            return (
                "let nodes take its pods (`batchq nodes -o wide`: taints, labels), or start a"
                " worker that would"
            )
    return "let it start with fewer pods (minMember) or smaller ones, or start more workers"


def _stopped(session: Session, group: GroupState, verdict: Verdict) -> str:
    names = [name for name, _ in stops_of(session, group)]
    return " and ".join(f"`batchq queues resume {name}`" for name in names)


def _suspended(session: Session, group: GroupState, verdict: Verdict) -> str:
    return f"`batchq resume {short_key(group.key)}`"


def _gated(session: Session, group: GroupState, verdict: Verdict) -> str:
    if verdict.plugin != GATES:
        # It has no gates to open; what it waits for, its plugin has said.
        return ""
    command = f"batchq gates open {short_key(group.key)}"
    if verdict.subject and group.phase in ADMITTED:
        names = gates_of_task(group, verdict.subject)
        return f"`{command} {' '.join(names)} --task {verdict.subject}`"
    gates = dict.fromkeys(gate.name for gate in gates_of(group.record.spec))
    for pod in group.pods.values():
        gates |= dict.fromkeys(gate.name for gate in pod.spec.scheduling_gates)
    return f"`{command} {' '.join(gates)}`"


def _dependent(session: Session, group: GroupState, verdict: Verdict) -> str:
    for one in group.record.spec.depends_on:
        if dependency_state(group, one, session.groups) is not DependencyState.MET:
            return (
                f"see how that gets on: `batchq why {short_key(f'{group.namespace}/{one.name}')}`"
            )
    return ""


def _backs_off(session: Session, group: GroupState, verdict: Verdict) -> str:
    ends = [group.status.backoff_until, group.status.claim.over_at, retry_at(session, group)]
    later = [at for at in ends if at is not None and at > session.now_ms]
    until = f" at {format_instant(max(later))}" if later else ""
    if verdict.plugin == CHECKS:
        names = " and ".join(state.name for state in refused_with(group, "Retry"))
        return (
            f"nothing: it stands in line again{until}; the delay is retryDelayMinutes of"
            f" AdmissionCheck {names}, which may be edited to be asked again sooner"
        )
    return f"nothing: it stands in line again{until}; what sent it back may need a look"


def _unchecked(session: Session, group: GroupState, verdict: Verdict) -> str:
    waiting = open_checks(group)
    if not waiting:
        return ""
    checks = [session.admission_checks.get(one.name) for one in waiting]
    names = dict.fromkeys(check.spec.controller_name for check in checks if check is not None)
    who = " and ".join(name for name in names if name)
    by_hand = " and ".join(
        f"`batchq checks set {short_key(group.key)} {one.name} True`" for one in waiting
    )
    return f"ask {who or 'its controller'}, or where that is a person's to say: {by_hand}"


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
    smaller = _at_most(group, verdict, _free(verdict))
    if verdict.subject.startswith("the quota of"):
        raised = f"`batchq quota set {group.namespace} {verdict.resource}=…`"
        return f"wait until others of namespace {group.namespace} end, {smaller}raise it: {raised}"
    return f"wait until others of {verdict.subject} end, {smaller}have its capability raised"


def _no_room(session: Session, group: GroupState, verdict: Verdict) -> str:
    if not any(node.ready for node in session.nodes.values()):
        return "bring a node up: `batchq up`, or `batchq worker`; `batchq nodes` lists them"
    free = _free(verdict)
    if group.min_member == 1 and not group.is_external:
        # One pod gets what one node has, whatever they have together.
        nodes = [node for node in session.nodes.values() if node.open]
        free = min(free, max((node.free.get(verdict.resource, 0) for node in nodes), default=0))
    return f"wait until others end, {_at_most(group, verdict, free)}have nodes added"


def _free(verdict: Verdict) -> int:
    return max(0, (verdict.limit or 0) - (verdict.seen or 0))


def _at_most(group: GroupState, verdict: Verdict, free: int) -> str:
    if free <= 0:
        return "or "
    amount = describe_quantity(verdict.resource, free)
    together = " in all" if group.min_member > 1 else ""
    return f"ask for at most {verdict.resource} {amount}{together}, or "


def _behind(session: Session, group: GroupState, verdict: Verdict) -> str:
    head = session.strict_heads.get(group.queue)
    if head is None or verdict.plugin == "pledge":
        return "nothing: it is next once that has started"
    if shorter := _a_walltime(session, group):
        return shorter
    if head.namespace != group.namespace:
        return "wait for its turn; a higher priority class goes ahead"
    why = f"`batchq why {short_key(head.key)}`"
    return f"see what the head waits for: {why}; a higher priority class goes ahead"


def _a_walltime(session: Session, group: GroupState) -> str:
    """The walltime with which it would delay nobody who has a reservation; '' if none would do."""
    standing = backfilling_of(session, group)
    if standing is None or not standing.delays:
        return ""
    has_none = group.record.spec.walltime is None
    if standing.longest_ms is not None:
        most = format_duration(standing.longest_ms)
        beside = ": without one it can only use what is left beside the head" if has_none else ""
        return (
            f"with a walltime of at most {most} it would go ahead now"
            f" (`batchq apply -f FILE`){beside}"
        )
    if has_none and not group.is_array:
        return (
            "give it a walltime (`batchq apply -f FILE`): without one it can only use what is left"
            " beside the head"
        )
    return ""


def _preempting(session: Session, group: GroupState, verdict: Verdict) -> str:
    pledge: Pledge = group.status.pledge
    if not pledge.stands:
        return "nothing: it goes on as evictions leave the window of the budget"
    return "nothing: it starts once they have stopped"


def _no_node(session: Session, group: GroupState, verdict: Verdict) -> str:
    return (
        "wait for others to end, ask for smaller pods, or let more nodes take them"
        " (`batchq nodes`: cordoned, taints, labels)"
    )


def _unseen(session: Session, group: GroupState, verdict: Verdict) -> str:
    return ""


_REMEDIES: dict[Waiting, _Remedy] = {
    Waiting.MISCONFIGURED: _misconfigured,
    Waiting.QUEUE_NOT_FOUND: _queue_not_found,
    Waiting.EXCEEDS_MAX_QUOTA: _exceeds,
    Waiting.EXCEEDS_CAPACITY: _exceeds_machines,
    Waiting.QUEUE_STOPPED: _stopped,
    Waiting.SUSPENDED: _suspended,
    Waiting.SCHEDULING_GATED: _gated,
    Waiting.DEPENDENCY_NOT_MET: _dependent,
    Waiting.BACKING_OFF: _backs_off,
    Waiting.WAITING_FOR_CHECKS: _unchecked,
    Waiting.CHECK_INACTIVE: _inactive,
    Waiting.WAITING_FOR_QUOTA: _over_quota,
    Waiting.WAITING_FOR_RESOURCES: _no_room,
    Waiting.WAITING_FOR_TURN: _behind,
    Waiting.WAITING_FOR_PREEMPTION: _preempting,
    Waiting.UNSCHEDULABLE: _no_node,
    Waiting.PENDING_EVALUATION: _unseen,
}
