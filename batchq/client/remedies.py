"""What to do about a reason for which a group waits: one concrete line each.

What ends by itself says so; the rest names the command to type, or the number to ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import structs

from batchq.api.lifecycle import ADMITTED
from batchq.api.notation import counted
from batchq.api.objects import Pledge, PodGroup, gates_of, is_gated, without_gates
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import MEMORY, PODS, Amounts, describe_quantity
from batchq.api.times import format_duration, format_instant
from batchq.api.transaction import POD_GROUPS
from batchq.client.cluster import NO_LEADER
from batchq.client.outcomes import Advice, GroupPlan, Outcome, group_plan, supposed, victims
from batchq.client.position import backfilling_of, gates_of_task
from batchq.client.start_estimates import Deciding
from batchq.core.pending.eligibility import (
    DependencyState,
    dependency_state,
    names_in,
    open_checks,
    refused_with,
    retry_at,
    stops_of,
)
from batchq.core.placement.feasibility import largest_node, why_no_known_node
from batchq.core.placement.placement import gang_of
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.plugins.checks import CHECKS
from batchq.plugins.gates import GATES

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
    if not any(node.ready for node in session.nodes.by_name.values()):
        return "bring a node up: `batchq up`, or `batchq worker`; `batchq nodes` lists them"
    free = _free(verdict)
    if group.min_member == 1 and not group.is_external:
        # One pod gets what one node has, whatever they have together.
        nodes = [node for node in session.nodes.by_name.values() if node.open]
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
    head = session.heads.strict.get(group.queue)
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


#: So many groups of one request are advised.
MOST_ADVISED = 3
#: Sessions for finding the largest size that starts now; then queues, and priority classes.
MOST_SIZES = 7
MOST_QUEUES = 5
MOST_CLASSES = 4

#: Sizes people would write: of what is asked for in hundreds, wholes are tried, and so on.
_STEPS = {MEMORY: (2**30, 64 * 2**20)}
_USUAL_STEPS = (1000, 100)


def advice_for(
    deciding: Deciding, snapshot: Snapshot, session: Session, plan: GroupPlan
) -> Iterator[Advice]:
    """What would help a group of this snapshot, which this session has let wait."""
    record = session.by_key[plan.key].record
    trial = _AdviceTrial(deciding, snapshot, plan)
    if _is_held(record):
        # Whoever holds it back knows how to let it go; nothing else about it is wrong yet.
        yield from _released(trial, record)
        return
    yield from _smaller(trial, record, session, plan)
    yield from _fewer(trial, record, plan)
    if plan.never:
        # The nodes are the same in every queue, and of every class.
        return
    if not _is_kept_out(plan):
        yield from _elsewhere(trial, record, session)
    yield from _more_important(trial, record, session)


@dataclass(frozen=True, slots=True)
class _Result:
    """What a try came to, and how many pods it would have evicted."""

    plan: GroupPlan
    evicted: int

    @property
    def outcome(self) -> Outcome:
        return self.plan.outcome

    @property
    def starts(self) -> bool:
        return self.outcome in (Outcome.NOW, Outcome.EVICTS)

    def words(self) -> str:
        """`would start now`"""
        match self.outcome:
            case Outcome.NOW:
                return "would start now"
            case Outcome.EVICTS:
                return f"would start, and {counted(self.evicted, 'pod')} of others would be evicted"
            case Outcome.WAITS:
                return "would wait in line, and could start one day"
            case _:
                return "could never start"


class _AdviceTrial:
    """Decides what would become of another form of one group."""

    def __init__(self, deciding: Deciding, snapshot: Snapshot, plan: GroupPlan) -> None:
        self._deciding = deciding
        self._snapshot = snapshot
        self._key = plan.key

    def of(self, other: PodGroup) -> _Result:
        """The same group, asking for something else."""
        session = self._deciding.tried(supposed(self._snapshot, {("PodGroup", self._key): other}))
        taken = victims(session, session, {self._key})
        evicted = sum(len(victim.pods) for victim in taken)
        return _Result(group_plan(session, self._key), evicted)


# --- held back by its author ------------------------------------------------------------------


def _is_held(group: PodGroup) -> bool:
    spec = group.spec
    return bool(is_gated(group) or spec.suspend or spec.depends_on)


def _released(trial: _AdviceTrial, group: PodGroup) -> Iterator[Advice]:
    spec = group.spec
    holds = []
    gates = gates_of(spec)
    if is_gated(group):
        holds.append(f"gate {', '.join(dict.fromkeys(gate.name for gate in gates))} is open")
    if spec.suspend:
        holds.append("it is resumed")
    if spec.depends_on:
        names = ", ".join(one.name for one in spec.depends_on)
        holds.append(
            f"{names} {'has' if len(spec.depends_on) == 1 else 'have'} ended as it waits for"
        )
    free = structs.replace(without_gates(spec, gates), suspend=False, depends_on=())
    result = trial.of(structs.replace(group, spec=free))
    why = "" if result.starts else _first_reason(result)
    yield Advice(
        change="released",
        value="",
        outcome=result.outcome,
        sentence=f"once {' and '.join(holds)}, it {_as_things_stand(result)}{why}",
    )


def _as_things_stand(result: _Result) -> str:
    words = {Outcome.NOW: "would start, as things stand", Outcome.WAITS: "would wait all the same"}
    return words.get(result.outcome) or result.words()


def _first_reason(result: _Result) -> str:
    if result.plan.never:
        return f": {result.plan.never}"
    return "".join(f": {one.reason}, {one.message()}" for one in result.plan.blockers[:1])


# --- smaller ----------------------------------------------------------------------------------


def _smaller(
    trial: _AdviceTrial, group: PodGroup, session: Session, plan: GroupPlan
) -> Iterator[Advice]:
    """Asking for less of one resource."""
    asked = _asked(group)
    if asked is None:
        return
    amounts, each, resize = asked
    largest = {name: 2**53 if plan.external else largest_node(session, name) for name in amounts}
    for resource in _lacking(plan, amounts, largest):
        units = amounts[resource]
        step = _step_below(resource, units)
        room = min(_room(plan, resource) // each, largest[resource])
        most = min((units - 1) // step, room // step)

        def with_steps(steps: int, resource: str = resource, step: int = step) -> PodGroup:
            return resize(resource, steps * step)

        found = _largest(trial, with_steps, 1, most, or_waiting=plan.outcome is Outcome.NEVER)
        if found is None:
            continue
        steps, result = found
        new = describe_quantity(resource, steps * step)
        per_pod = "" if each == 1 else " per pod"
        yield Advice(
            change="requests",
            value=f"{resource}={new}",
            outcome=result.outcome,
            sentence=f"asking for {resource} {new} instead of {describe_quantity(resource, units)}"
            f"{per_pod}, it {result.words()}",
        )
        return


def _asked(group: PodGroup) -> tuple[Amounts, int, Callable[[str, int], PodGroup]] | None:
    """What it asks for, how many times, and itself asking for another amount of a resource; None
    where pods differ, and there is no one number to change.
    """
    spec = group.spec
    if spec.controller == "external":

        def resized(resource: str, units: int) -> PodGroup:
            resources = {**spec.min_resources, resource: units}
            return structs.replace(group, spec=structs.replace(spec, min_resources=resources))

        return dict(spec.min_resources), 1, resized
    if len(spec.tasks) != 1 or spec.min_resources:
        return None
    task = spec.tasks[0]

    def with_requests(resource: str, units: int) -> PodGroup:
        requests = {**task.template.requests, resource: units}
        template = structs.replace(task.template, requests=requests)
        tasks = (structs.replace(task, template=template),)
        return structs.replace(group, spec=structs.replace(spec, tasks=tasks))

    least = task.replicas if spec.min_member is None else spec.min_member
    return dict(task.template.requests), max(1, least), with_requests


def _lacking(plan: GroupPlan, amounts: Amounts, largest: Amounts) -> list[str]:
    """The resources of which no node has so much; else those that it waits for; all that it names,
    where only nodes say no.
    """
    if oversize := [name for name, units in amounts.items() if units > largest[name]]:
        return oversize
    told = [verdict.resource for verdict in plan.blockers if verdict.resource in amounts]
    named = [name for name, units in sorted(amounts.items()) if units and name != PODS]
    return list(dict.fromkeys(told)) or named


def _room(plan: GroupPlan, resource: str) -> int:
    """The most that no limit speaks against, by the numbers: now, or of what can never be, ever."""
    rooms = [
        verdict.limit if plan.never else max(0, verdict.limit - (verdict.seen or 0))
        for verdict in plan.blockers
        if verdict.resource == resource and verdict.limit is not None
    ]
    return min(rooms, default=2**53)


def _step_below(resource: str, units: int) -> int:
    large, small = _STEPS.get(resource, _USUAL_STEPS)
    coarse = units >= 2 * large and units % large == 0
    return large if coarse or resource not in ("cpu", MEMORY) else small


def _fewer(trial: _AdviceTrial, group: PodGroup, plan: GroupPlan) -> Iterator[Advice]:
    """Starting with fewer pods; the others come as there is room."""
    spec = group.spec
    least = max(1, sum(task.min_available for task in spec.tasks))
    if not spec.tasks or plan.least <= least:
        return

    def with_members(count: int) -> PodGroup:
        return structs.replace(group, spec=structs.replace(spec, min_member=count))

    found = _largest(trial, with_members, least, plan.least - 1)
    if found is not None:
        count, result = found
        yield Advice(
            change="minMember",
            value=str(count),
            outcome=result.outcome,
            sentence=f"with minMember {count} instead of {plan.least}, it {result.words()}"
            f" with {counted(count, 'pod')} or more",
        )


def _largest(
    trial: _AdviceTrial,
    form: Callable[[int], PodGroup],
    least: int,
    most: int,
    *,
    or_waiting: bool = False,
) -> tuple[int, _Result] | None:
    """The largest size with which it would start now, nobody evicted; or else, where that is asked
    for, the largest that was tried with which it would stand in line.
    """
    found: tuple[int, _Result] | None = None
    waiting: tuple[int, _Result] | None = None
    size = most
    for _ in range(MOST_SIZES):
        if least > most:
            break
        result = trial.of(form(size))
        if result.outcome is Outcome.NOW:
            found, least = (size, result), size + 1
        else:
            if result.outcome is Outcome.WAITS and waiting is None:
                waiting = size, result
            most = size - 1
        size = (least + most + 1) // 2
    return found or (waiting if or_waiting else None)


# --- elsewhere, and more important ------------------------------------------------------------


def _is_kept_out(plan: GroupPlan) -> bool:
    """Whether its queue, or one above, is closed to it by whoever owns that: stopped, or full by
    its quota. Another queue is no way around that.
    """
    return any(
        verdict.reason == Waiting.QUEUE_STOPPED
        or (
            verdict.reason in (Waiting.WAITING_FOR_QUOTA, Waiting.EXCEEDS_MAX_QUOTA)
            and verdict.subject.startswith("queue ")
        )
        for verdict in plan.blockers
    )


def _elsewhere(trial: _AdviceTrial, group: PodGroup, session: Session) -> Iterator[Advice]:
    """In another queue that asks for at least the same checks, those with the lowest share first.

    A queue without a check that this one asks for is no advice, but a way around it.
    """
    asked = set(names_in(session, session.tree.chain(group.spec.queue)))
    others = [
        queue
        for name, queue in session.queues.items()
        if name != group.spec.queue
        and session.tree.is_leaf(name)
        and asked.issubset(names_in(session, session.tree.chain(name)))
    ]
    others.sort(key=session.queue_key)
    for queue in others[:MOST_QUEUES]:
        spec = structs.replace(group.spec, queue=queue.name)
        result = trial.of(structs.replace(group, spec=spec))
        if result.starts:
            sentence = f"in queue {queue.name}, it {result.words()}"
            yield Advice(
                change="queue", value=queue.name, outcome=result.outcome, sentence=sentence
            )


def _more_important(trial: _AdviceTrial, group: PodGroup, session: Session) -> Iterator[Advice]:
    """With a higher priority class; the lowest that helps."""
    mine = session.by_key[f"{group.metadata.namespace}/{group.metadata.name}"].priority
    classes = [item for item in session.snapshot.priority_classes if item.spec.value > mine]
    classes.sort(key=lambda item: (item.spec.value, item.metadata.name))
    for item in classes[:MOST_CLASSES]:
        name = item.metadata.name
        spec = structs.replace(group.spec, priority_class_name=name)
        result = trial.of(structs.replace(group, spec=spec))
        if result.starts:
            sentence = f"with priority class {name}, it {result.words()}"
            yield Advice(
                change="priorityClass", value=name, outcome=result.outcome, sentence=sentence
            )
            return
