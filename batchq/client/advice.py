"""What would help a group that waits: other requests, tried one by one in sessions of their own.

Nothing is guessed from numbers alone: whatever is advised was decided by a session. How many are
tried is bounded, whatever the group asks for; an advice that did not help is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import structs

from batchq.api.gates import gates_of, is_gated, without_gates
from batchq.api.names import counted
from batchq.api.objects import PodGroup
from batchq.api.quantity import MEMORY, PODS, describe_quantity
from batchq.api.reasons import Waiting
from batchq.api.resources import Amounts
from batchq.client.deciding import Deciding
from batchq.client.outcomes import Advice, GroupPlan, Outcome, group_plan, victims
from batchq.client.supposing import supposed
from batchq.framework.checks import names_in
from batchq.framework.feasibility import largest_node
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot

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
    trial = _Trial(deciding, snapshot, plan)
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


class _Trial:
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


def _released(trial: _Trial, group: PodGroup) -> Iterator[Advice]:
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


def _smaller(trial: _Trial, group: PodGroup, session: Session, plan: GroupPlan) -> Iterator[Advice]:
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


def _fewer(trial: _Trial, group: PodGroup, plan: GroupPlan) -> Iterator[Advice]:
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
    trial: _Trial,
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


def _elsewhere(trial: _Trial, group: PodGroup, session: Session) -> Iterator[Advice]:
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


def _more_important(trial: _Trial, group: PodGroup, session: Session) -> Iterator[Advice]:
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
