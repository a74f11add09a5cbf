"""What would happen if objects were submitted now: a session on a snapshot that contains them.

One session of the scheduler decides on the live snapshot with the request's objects in it. The plan
reads its result; nothing is written. The leader's next session decides the same if the same objects
are submitted and nothing else changes before. For groups that would wait, further sessions try
what would help.

    plan = client.plan([group])
    plan.outcome            # Now, Evicts, Waits or Never; the worst of its groups
    plan.groups[0].nodes    # where it would run
    plan.evicted            # its victims
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.intents import Eviction
from batchq.api.notation import counted
from batchq.api.objects import (
    Node,
    Object,
    PodGroup,
    Queue,
    full_name,
    gates_of,
    is_gated,
    key_of,
    kind_of,
    without_gates,
)
from batchq.api.reasons import Waiting
from batchq.api.resources import MEMORY, PODS, Amounts, describe_quantity, with_amount
from batchq.api.transaction import Ledger, Transaction
from batchq.api.views import Advice, Applied, Effect, GroupPlan, Outcome, Plan
from batchq.client.changes import apply, create
from batchq.client.outcomes import (
    SnapshotReader,
    TrialScheduler,
    check_objects_allowed,
    delayed,
    group_plan,
    ledger_of,
    missing_nodes,
    victims,
    with_objects,
    with_starts,
    writes_of,
)
from batchq.client.remedies import MOST_UNCORDONED, uncordon_command
from batchq.client.request import decoded
from batchq.client.requests import plan_steps
from batchq.core.eligibility import names_in
from batchq.core.placement.feasibility import largest_node, named_nodes, nodes_away
from batchq.core.placement.placement import gang_of
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.errors import InvalidInput
from batchq.ports import Reader

if TYPE_CHECKING:
    from batchq.client.request import Objects
    from batchq.store.redis import RedisStore


_ORDER = tuple(Outcome)

#: How many groups of one request get advice.
MOST_ADVISED = 3
#: Sessions for finding the largest size that starts now; then queues, and priority classes.
MOST_SIZES = 7
MOST_QUEUES = 5
MOST_CLASSES = 4

#: Sizes that people would write: amounts in hundreds are tried as whole units, and so on.
_STEPS = {MEMORY: (2**30, 64 * 2**20)}
_USUAL_STEPS = (1000, 100)


class Planner:
    """Plans requests on one snapshot. `reader` reads objects that a snapshot does not contain."""

    def __init__(
        self, deciding: TrialScheduler, reader: Reader, new_uid: Callable[[], str]
    ) -> None:
        self._deciding = deciding
        self._reader = reader
        self._new_uid = new_uid

    def plan(
        self, objects: Sequence[Object], *, keep_stop: Collection[str] = (), advise: bool = True
    ) -> Plan:
        """See `Client.plan`."""
        keys = [key_of(item) for item in objects if isinstance(item, PodGroup)]
        if not keys:
            raise InvalidInput(
                "expected at least one PodGroup to plan, found none",
                hint="`batchq apply --dry-run -f FILE` is for files of other objects",
            )
        before = self._deciding.snapshot
        seen = SnapshotReader(before, self._reader)
        request = plan_steps(seen, objects, self._step, keep_stop=keep_stop, held=self._held)
        # The request has new groups, so there is a transaction.
        assert request.transaction is not None
        check_objects_allowed(
            before,
            request.transaction,
            per_namespace=self._deciding.scheduler.settings.max_pod_groups_per_namespace,
        )
        after = with_objects(before, writes_of(request.transaction))
        session, without = self._deciding.decide(after), self._deciding.decide()
        groups = with_starts(session, [group_plan(session, key) for key in keys])
        evicted = victims(session, without, keys)
        gone = {victim.key for victim in evicted}
        return Plan(
            at=self._deciding.now_ms,
            outcome=_worst(groups, evicted),
            groups=self._advised(after, session, groups) if advise else groups,
            evicted=tuple(evicted),
            delayed=tuple(delayed(session, without, gone)),
            changes=tuple(
                _change_line(one) for one in request.applied if not isinstance(one.object, PodGroup)
            ),
            warnings=tuple(warning for one in request.applied for warning in one.warnings),
        )

    def _held(self) -> Ledger:
        return ledger_of(self._deciding.session())

    def _step(self, reader: Reader, item: Object) -> Transaction | None:
        """Build the transaction of a submission: groups are created, other objects applied."""
        do = create if isinstance(item, PodGroup) else apply
        return do(reader, item, now_ms=self._deciding.now_ms, uid=self._new_uid(), in_part=True)

    def _advised(
        self, snapshot: Snapshot, session: Session, groups: tuple[GroupPlan, ...]
    ) -> tuple[GroupPlan, ...]:
        """Add advice to the first groups that wait."""
        waiting = [one.key for one in groups if one.outcome in (Outcome.WAITS, Outcome.NEVER)]
        helped = waiting[:MOST_ADVISED]
        return tuple(
            structs.replace(one, advice=tuple(advice_for(self._deciding, snapshot, session, one)))
            if one.key in helped
            else one
            for one in groups
        )


def _worst(groups: Sequence[GroupPlan], evicted: Sequence[Eviction]) -> Outcome:
    """Return the worst outcome of the groups; a start that evicts other groups is not Now."""
    worst = max((group.outcome for group in groups), key=_ORDER.index)
    return Outcome.EVICTS if worst is Outcome.NOW and evicted else worst


def _change_line(one: Applied) -> str:
    """Return e.g. `queue a configured: weight 1 -> 2`."""
    name = f"{kind_of(one.object).lower()} {full_name(one.object)}"
    changes = f": {one.changes}" if one.effect is Effect.CONFIGURED and one.changes else ""
    return f"{name} {one.effect}{changes}"


def plan_request(
    store: RedisStore,
    objects: Objects,
    new_uid: Callable[[], str],
    *,
    keep_stop: Collection[str],
    advise: bool,
) -> Plan:
    """Plan a request on the server's current state; see `Client.plan`."""
    wanted, without_policy = decoded(objects)
    planner = Planner(TrialScheduler.open(store), store, new_uid)
    return planner.plan(wanted, keep_stop=without_policy.union(keep_stop), advise=advise)


def advice_for(
    deciding: TrialScheduler, snapshot: Snapshot, session: Session, plan: GroupPlan
) -> Iterator[Advice]:
    """Yield what would help a group of this snapshot that waits in this session."""
    record = session.by_key[plan.key].record
    trial = _AdviceTrial(deciding, snapshot, plan)
    if _is_held(record):
        # Its owner holds it back and can release it; other advice would be premature.
        yield from _advise_release(trial, record)
        return
    yield from _advise_nodes(trial, record, session, plan)
    yield from _advise_smaller(trial, record, session, plan)
    yield from _advise_fewer(trial, record, plan)
    if plan.never:
        # The nodes are the same for every queue and priority class.
        return
    yield from _reclaim(trial, record, session)
    if not _is_closed(plan):
        yield from _other_queue(trial, record, session)
    yield from _higher_priority(trial, record, session)


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a trial, and the number of pods that it would have evicted."""

    plan: GroupPlan
    evicted: int
    #: Whether it would need still more nodes that are cordoned or not ready.
    lacks_nodes: bool

    @property
    def outcome(self) -> Outcome:
        return self.plan.outcome

    @property
    def starts(self) -> bool:
        return self.outcome in (Outcome.NOW, Outcome.EVICTS)

    def words(self) -> str:
        """Return e.g. `would start now`."""
        match self.outcome:
            case Outcome.NOW:
                return "would start now"
            case Outcome.EVICTS:
                return f"would start, and {counted(self.evicted, 'pod')} of others would be evicted"
            case Outcome.WAITS:
                return "would wait in line, and could start later"
            case _:
                return "could never start"


class _AdviceTrial:
    """Decides what would happen to a changed form of one group."""

    def __init__(self, deciding: TrialScheduler, snapshot: Snapshot, plan: GroupPlan) -> None:
        self._deciding = deciding
        self._snapshot = snapshot
        self._key = plan.key

    def of(self, other: PodGroup, changes: Sequence[Node | Queue] = ()) -> _Result:
        """Try the group in another form, with these nodes or this queue changed."""
        changed: dict[tuple[str, str], Object | None] = {("PodGroup", self._key): other}
        changed |= {(kind_of(one), one.metadata.name): one for one in changes}
        session = self._deciding.decide_variant(with_objects(self._snapshot, changed))
        taken = victims(session, session, {self._key})
        evicted = sum(len(victim.pods) for victim in taken)
        lacks_nodes = bool(changes and missing_nodes(session, session.by_key[self._key]))
        return _Result(group_plan(session, self._key), evicted, lacks_nodes)


def _is_held(group: PodGroup) -> bool:
    spec = group.spec
    return bool(is_gated(group) or spec.suspend or spec.depends_on)


def _advise_release(trial: _AdviceTrial, group: PodGroup) -> Iterator[Advice]:
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
        sentence=f"once {' and '.join(holds)}, it {_outcome_words(result)}{why}",
    )


def _outcome_words(result: _Result) -> str:
    words = {Outcome.NOW: "would start, if nothing else changes", Outcome.WAITS: "would still wait"}
    return words.get(result.outcome) or result.words()


def _first_reason(result: _Result) -> str:
    if result.plan.never:
        return f": {result.plan.never}"
    return "".join(f": {one.reason}, {one.message}" for one in result.plan.blockers[:1])


def _advise_nodes(
    trial: _AdviceTrial, group: PodGroup, session: Session, plan: GroupPlan
) -> Iterator[Advice]:
    """Advise to uncordon the nodes that would take its pods, or to bring them back: a command of
    batchq before a walk to a machine, and both only if neither suffices.
    """
    if plan.external or plan.never:
        return
    away = nodes_away(session, gang_of(session, session.by_key[plan.key]))
    cordoned = away.cordoned if len(away.cordoned) <= MOST_UNCORDONED else ()
    needs_them = bool(missing_nodes(session, session.by_key[plan.key]))
    ways = ((cordoned, ()), ((), away.not_ready), (cordoned, away.not_ready))
    for uncordoned, returned in dict.fromkeys(ways):
        names = (*uncordoned, *returned)
        if not names:
            continue
        result = trial.of(group, [_available(session, name) for name in names])
        could_start = needs_them and result.outcome is Outcome.WAITS and not result.lacks_nodes
        if result.outcome is not Outcome.NOW and not could_start:
            continue
        conditions = (
            f"after {uncordon_command(uncordoned)}" if uncordoned else "",
            _once_ready(returned) if returned else "",
        )
        yield Advice(
            change="nodeReady" if returned else "uncordon",
            value=" ".join(names),
            outcome=result.outcome,
            sentence=f"{', and '.join(filter(None, conditions))}, it {result.words()}",
        )
        return


def _once_ready(names: Sequence[str]) -> str:
    are = "is" if len(names) == 1 else "are"
    return f"once {named_nodes(names)} {are} ready again (`batchq nodes`)"


def _available(session: Session, name: str) -> Node:
    """Return the record of a node as it is when it is heard now, and takes pods."""
    node = session.nodes.by_name[name].record
    spec = structs.replace(node.spec, unschedulable=False)
    status = structs.replace(node.status, ready=True, heartbeat=session.now_ms)
    return structs.replace(node, spec=spec, status=status)


def _advise_smaller(
    trial: _AdviceTrial, group: PodGroup, session: Session, plan: GroupPlan
) -> Iterator[Advice]:
    """Advise to ask for less of one resource."""
    asked = _asked(group)
    if asked is None:
        return
    amounts, each, resize = asked
    largest = {name: 2**53 if plan.external else largest_node(session, name) for name in amounts}
    for resource in _lacking(plan, amounts, largest):
        units = amounts[resource]
        step = _step_below(resource, units)
        headroom = min(_limit_left(plan, resource) // each, largest[resource])
        most = min((units - 1) // step, headroom // step)

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
    """Return what each pod asks for, the number of pods, and a function that resizes the group;
    None if its pods differ, so that there is no single number to change.
    """
    spec = group.spec
    if spec.controller == "external":

        def resized(resource: str, units: int) -> PodGroup:
            resources = with_amount(spec.min_resources, resource, units)
            return structs.replace(group, spec=structs.replace(spec, min_resources=resources))

        return dict(spec.min_resources), 1, resized
    if len(spec.tasks) != 1 or spec.min_resources:
        return None
    task = spec.tasks[0]

    def with_requests(resource: str, units: int) -> PodGroup:
        requests = with_amount(task.template.requests, resource, units)
        template = structs.replace(task.template, requests=requests)
        tasks = (structs.replace(task, template=template),)
        return structs.replace(group, spec=structs.replace(spec, tasks=tasks))

    least = task.replicas if spec.min_member is None else spec.min_member
    return dict(task.template.requests), max(1, least), with_requests


def _lacking(plan: GroupPlan, amounts: Amounts, largest: Amounts) -> list[str]:
    """Return the resources to ask less of: those that exceed every node, else those in the reasons,
    else all, if only nodes refuse the group.
    """
    if oversize := [name for name, units in amounts.items() if units > largest[name]]:
        return oversize
    named_resources = [reason.resource for reason in plan.blockers if reason.resource in amounts]
    named = [name for name, units in sorted(amounts.items()) if units and name != PODS]
    return list(dict.fromkeys(named_resources)) or named


def _limit_left(plan: GroupPlan, resource: str) -> int:
    """Return the most that the limits allow now, or ever if the group could never run."""
    headrooms = [
        reason.limit if plan.never else max(0, reason.limit - (reason.seen or 0))
        for reason in plan.blockers
        if reason.resource == resource and reason.limit is not None
    ]
    return min(headrooms, default=2**53)


def _step_below(resource: str, units: int) -> int:
    large, small = _STEPS.get(resource, _USUAL_STEPS)
    coarse = units >= 2 * large and units % large == 0
    return large if coarse or resource not in ("cpu", MEMORY) else small


def _advise_fewer(trial: _AdviceTrial, group: PodGroup, plan: GroupPlan) -> Iterator[Advice]:
    """Advise to start with fewer pods; the others follow as capacity becomes free."""
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
    """Return the largest size with which it would start now without victims; with `or_waiting`,
    else the largest tried size with which it would stand in line.
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


def _is_closed(plan: GroupPlan) -> bool:
    """Return whether its queue, or one above it, refuses the group by its owner's decision: it is
    stopped, or its quota is used up. Another queue would circumvent that decision.
    """
    return any(
        one.reason == Waiting.QUEUE_STOPPED
        or (
            one.reason in (Waiting.WAITING_FOR_QUOTA, Waiting.EXCEEDS_MAX_QUOTA)
            and one.subject.startswith("queue ")
        )
        for one in plan.blockers
    )


def _reclaim(trial: _AdviceTrial, group: PodGroup, session: Session) -> Iterator[Advice]:
    """Advise to let its queue, which takes nothing back, reclaim what other queues borrow."""
    queue = session.tree.records.get(group.spec.queue)
    if queue is None or queue.spec.preemption.reclaim != "Never":
        return
    preemption = structs.replace(queue.spec.preemption, reclaim="Any")
    changed = structs.replace(queue, spec=structs.replace(queue.spec, preemption=preemption))
    result = trial.of(group, [changed])
    if result.starts:
        name = queue.metadata.name
        yield Advice(
            change="reclaim",
            value=name,
            outcome=result.outcome,
            sentence=f"with `preemption.reclaim: Any` set on queue {name}, it {result.words()}",
        )


def _other_queue(trial: _AdviceTrial, group: PodGroup, session: Session) -> Iterator[Advice]:
    """Advise another queue that requires at least the same checks, the lowest share first.

    A queue that lacks one of this queue's checks would circumvent the check.
    """
    asked = set(names_in(session, session.tree.chain(group.spec.queue)))
    others = [
        queue
        for name, queue in session.queues.items()
        if name != group.spec.queue
        and session.tree.is_leaf(name)
        and session.tree.accepts(name, group.metadata.namespace)
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


def _higher_priority(trial: _AdviceTrial, group: PodGroup, session: Session) -> Iterator[Advice]:
    """Advise the lowest priority class that helps."""
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
