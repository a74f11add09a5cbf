"""Play a described world in virtual time: nodes, outside actions, and real sessions over a store in
memory.

`play` is the entry point; `batchq simulate` calls it. Nothing here decides: the scheduler comes
from `batchq.assembly` and runs through `batchq.scheduler.cycle`, as in the daemon.

Sessions at one instant normally come to an end, because each decides by the present state. If they
do not, the rules of the scheduler or of a plugin contradict each other, and the run ends with an
error that names two decisions that undo each other.

`look_ahead.look_ahead` continues from a snapshot of the live state, under the present configuration
or others. `report.compared` compares these futures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

import batchq.client.changes as changes
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodPhase
from batchq.api.objects import Node, Object, Pod, PodGroup, PodGroupSpec, full_name
from batchq.api.reasons import Finish, Leaving
from batchq.api.transaction import Charge, Event, Transaction, Write, fence_of
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.errors import BatchqError, Conflict, EndlessSessions, InvalidInput, NotFound, Rejected
from batchq.lab.simulation.initial_state import exceeded_since_start, found, overbooked
from batchq.lab.simulation.report import CycleStory, WorldOutcome, outcome_of, story_of
from batchq.lab.simulation.world import (
    Apply,
    CountedIds,
    Deed,
    Delete,
    FailNode,
    FailPod,
    FinishPod,
    InvariantWatch,
    OpenGate,
    RecoverNode,
    Resume,
    SetCheck,
    Step,
    Suspend,
    VirtualClock,
    World,
    read_world,
    runtime_of,
    whole_second,
    write,
)
from batchq.ports import Clock, IdSource
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler
from batchq.scheduler.timers import next_due_at
from batchq.store.memory import MemoryStore


def endless_sessions_error(stories: Sequence[CycleStory]) -> EndlessSessions:
    """Return the error for the sessions of one instant, when the last one still decided."""
    done, undone = _last_undone(stories) or (_describe(stories[-2]), _describe(stories[-1]))
    return EndlessSessions(
        f"at {stories[-1].time}s sessions do not end ({len(stories)} so far):"
        f" one decides that {done}, a later one that {undone}",
        hint="a rule of the scheduler or of a plugin contradicts another one; please report it",
    )


def _last_undone(stories: Sequence[CycleStory]) -> tuple[str, str] | None:
    """Return the last decision that a later one has undone, and the later one."""
    done: dict[str, str] = {}
    found = None
    for story in stories:
        for subject, undoing in _losses(story).items():
            if subject in done:
                found = (done.pop(subject), undoing)
        done |= _gains(story)
    return found


def _gains(story: CycleStory) -> dict[str, str]:
    """Return group or pod -> what it was given."""
    gains = {group: f"{group} reserves its quota" for group in story.reserved}
    gains |= {group: f"{group} is InQueue" for group in story.admitted}
    for group, victims in story.pledged.items():
        gains[group] = f"{group} has a pledge of the resources of {', '.join(victims)}"
    return gains | {pod: f"{pod} starts on {node}" for pod, node in story.bound.items()}


def _losses(story: CycleStory) -> dict[str, str]:
    """Return group or pod -> what was taken from it."""
    losses = {}
    for pod in story.evicted:
        preemptor = f" for {pod.by}" if pod.by else ""
        losses[pod.pod] = f"{pod.pod} has to stop ({pod.reason}{preemptor})"
    for left in story.requeued:
        losses[left.group] = f"{left.group} goes back to Pending ({left.reason})"
    return losses


def _describe(story: CycleStory) -> str:
    """Return all visible decisions of a session as a text."""
    texts = [*_losses(story).values(), *_gains(story).values()]
    return " and ".join(texts) or "groups are charged for something else"


#: Signal and shell exit code of a process that SIGTERM ends.
_SIGTERM, _ENDED_BY_SIGTERM = 15, 143


def start(pod: Pod, *, now_ms: int) -> Transaction:
    """Return the transition Bound -> Running."""
    status = structs.replace(pod.status, phase=PodPhase.RUNNING, started_at=now_ms)
    return _change(pod, structs.replace(pod, status=status), now_ms)


def end(
    pod: Pod,
    phase: PodPhase,
    *,
    now_ms: int,
    exit_code: int | None = None,
    reason: str = "",
    message: str = "",
    signal: int | None = None,
) -> Transaction:
    """Return the transition Running -> Succeeded, Failed or Evicted, which frees the node."""
    status = structs.replace(
        pod.status,
        phase=phase,
        reason=str(reason),
        finished_at=now_ms,
        terminating=False,
        exit_code=exit_code,
        signal=signal,
        message=message,
        failures=pod.status.failures + (phase == PodPhase.FAILED),
    )
    charge = Charge(holder=f"pod:{pod.metadata.uid}")
    return _change(pod, structs.replace(pod, status=status), now_ms, charge)


def stop(pod: Pod, *, now_ms: int) -> Transaction:
    """Return the end of a pod that was asked to stop."""
    reason = pod.status.reason
    if reason != Finish.WALLTIME_EXCEEDED:
        return end(pod, PodPhase.EVICTED, now_ms=now_ms, reason=reason)
    return end(
        pod,
        PodPhase.FAILED,
        now_ms=now_ms,
        exit_code=_ENDED_BY_SIGTERM,
        reason=reason,
        message="its walltime was over",
        signal=_SIGTERM,
    )


def grace_over_at(pod: Pod) -> int | None:
    """Return when the grace of a pod that was asked to stop is over; None if it was not asked."""
    status = pod.status
    if not status.terminating:
        return None
    return whole_second((status.terminating_at or 0) + pod.spec.termination_grace)


def _change(before: Pod, after: Pod, now_ms: int, *charges: Charge) -> Transaction:
    uid, status = before.metadata.uid, after.status
    write = Write(
        kind="Pod",
        key=uid,
        expect=before.metadata.revision,
        value=after,
        fence=fence_of(before),
    )
    event = Event(
        kind="Pod",
        key=uid,
        reason=status.reason or str(status.phase),
        message=f"{full_name(after)} {status.phase} on {status.node}",
        at=now_ms,
    )
    return Transaction(subject=full_name(after), writes=(write,), charges=charges, events=(event,))


class Execution:
    """All nodes of the world, as the changes of pods on them; stateless except for its store."""

    def __init__(self, store: MemoryStore, clock: Clock, requests: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._requests = requests

    def start_bound(self) -> None:
        """Start all bound pods; that takes no time."""
        for pod in self._on_nodes():
            if pod.status.phase == PodPhase.BOUND and not pod.status.terminating:
                self._write(start(pod, now_ms=self._clock.now_ms()))
        self._store.delivered(self._store.outbox())

    def end_due(self) -> None:
        """End pods whose work is done by now, then those whose grace is over."""
        now_ms = self._clock.now_ms()
        for pod in self._on_nodes():
            done_at = self._done_at(pod)
            if done_at is not None and done_at <= now_ms:
                self._write(end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0))
        for pod in self._on_nodes():
            over_at = grace_over_at(pod)
            if over_at is not None and over_at <= now_ms:
                self._write(stop(pod, now_ms=now_ms))

    def next_end_at(self) -> int | None:
        """Return when the next pod ends on its own; None if none does."""
        instants = (
            at
            for pod in self._on_nodes()
            for at in (self._done_at(pod), grace_over_at(pod))
            if at is not None
        )
        return min(instants, default=None)

    def finish_pod(self, name: str, exit_code: int) -> None:
        """End a running pod's process with `exit_code`; a pod that was asked to stop has stopped.

        Raises NotFound or Conflict.
        """
        pod, now_ms = self._running(name), self._clock.now_ms()
        if pod.status.terminating:
            self._write(stop(pod, now_ms=now_ms))
            return
        phase = PodPhase.FAILED if exit_code else PodPhase.SUCCEEDED
        message = f"exited with {exit_code}" if exit_code else ""
        self._write(end(pod, phase, now_ms=now_ms, exit_code=exit_code, message=message))

    def lose_pods_on(self, node: str) -> None:
        """Evict every pod on the node at once."""
        for pod in self._on_nodes():
            if pod.status.node == node:
                reason = pod.status.reason if pod.status.terminating else Leaving.NODE_LOST
                overdue = reason == Finish.WALLTIME_EXCEEDED
                phase = PodPhase.FAILED if overdue else PodPhase.EVICTED
                now_ms = self._clock.now_ms()
                self._write(end(pod, phase, now_ms=now_ms, reason=reason))

    def _on_nodes(self) -> Iterator[Pod]:
        for pod in self._store.list("Pod"):
            if isinstance(pod, Pod) and pod.status.phase in ON_NODE:
                yield pod

    def _running(self, name: str) -> Pod:
        namespace = name.partition("/")[0]
        there = [
            pod
            for pod in self._store.list("Pod", namespace=namespace)
            if isinstance(pod, Pod) and full_name(pod) == name
        ]
        if not there:
            raise NotFound(
                f"there is no Pod {name} at that moment",
                hint="pods are called <group>-<task>-<index>, and exist once their group is"
                " admitted",
            )
        # Two admissions of a group may both have a pod of this name: take the live one.
        running = [pod for pod in there if pod.status.phase in ON_NODE]
        if not running:
            raise Conflict(f"Pod {name} is {there[-1].status.phase} at that moment: it cannot end")
        return min(running, key=lambda pod: pod.status.terminating)

    def _done_at(self, pod: Pod) -> int | None:
        """Return when the pod succeeds on its own."""
        status, runtime = pod.status, runtime_of(pod.metadata.annotations)
        if runtime is None or status.started_at is None or status.terminating:
            return None
        node = self._store.get("Node", status.node)
        if isinstance(node, Node) and not node.status.ready:
            return None
        return whole_second(status.started_at + runtime)

    def _write(self, transaction: Transaction) -> None:
        write(self._store, self._requests, transaction)


class Outside:
    """Carries out steps of the Timeline; owns the list of groups to delete once they have ended."""

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        ids: IdSource,
        requests: IdSource,
        execution: Execution,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._requests = requests
        self._execution = execution
        self._leaving: list[str] = []
        self.refused: list[str] = []

    def carry_out(self, step: Step) -> None:
        """Carry out a step; a step that the rules refuse is added to `refused`.

        A person would be refused as well, and the world goes on. Raises InvalidInput, with the
        step's place, for an unknown name or an invalid value.
        """
        where = f"{step.where}: {_verb(step.deed)} at {step.after_ms // 1000}s"
        try:
            self._do(step.deed)
        except (Conflict, Rejected) as problem:
            self.refused.append(f"{where}: {problem.message}")
        except BatchqError as problem:
            raise InvalidInput(f"{where}: {problem.message}", hint=problem.hint) from None

    def take_away(self) -> None:
        """Delete the groups to be deleted whose last pod has ended."""
        for key in list(self._leaving):
            group = self._store.get("PodGroup", key)
            if not isinstance(group, PodGroup):
                self._leaving.remove(key)
            elif group.status.phase in TERMINAL and not self._still_runs(group):
                self._leaving.remove(key)
                self._write(changes.delete(self._store, "PodGroup", key, now_ms=self._now_ms()))

    def _do(self, deed: Deed) -> None:
        store, now_ms = self._store, self._now_ms()
        match deed:
            case Apply(obj):
                self._apply(obj)
            case Delete(kind, key):
                self._delete(kind, key)
            case OpenGate(group, gate, task):
                self._write(changes.open_gate(store, group, gate, task=task, now_ms=now_ms))
            case SetCheck():
                self._answer(deed)
            case Suspend(group):
                self._write(changes.suspend(store, group, now_ms=now_ms))
            case Resume(group):
                self._write(changes.resume(store, group, now_ms=now_ms))
            case FailNode(node):
                self._fail_node(node)
            case RecoverNode(node):
                self._set_ready(self._node(node), ready=True)
            case FinishPod(pod):
                self._execution.finish_pod(pod, 0)
            case FailPod(pod, exit_code):
                self._execution.finish_pod(pod, exit_code)

    def _answer(self, deed: SetCheck) -> None:
        answer = (deed.group, deed.check, deed.status, deed.reason, deed.message)
        self._write(changes.set_check(self._store, *answer, now_ms=self._now_ms()))

    def _apply(self, obj: Object) -> None:
        uid = obj.metadata.uid or self._ids.new_uid()
        self._write(changes.apply(self._store, obj, now_ms=self._now_ms(), uid=uid, described=True))

    def _delete(self, kind: str, key: str) -> None:
        obj = self._store.get(kind, key)
        if isinstance(obj, PodGroup):
            if obj.status.phase not in TERMINAL:
                self._write(changes.cancel(self._store, key, now_ms=self._now_ms()))
            self._leaving.append(key)
            self.take_away()
            return
        if isinstance(obj, Node):
            self._fail_node(key)
        self._write(changes.delete(self._store, kind, key, now_ms=self._now_ms()))

    def _fail_node(self, name: str) -> None:
        self._set_ready(self._node(name), ready=False)
        self._execution.lose_pods_on(name)

    def _node(self, name: str) -> Node:
        node = self._store.get("Node", name)
        if not isinstance(node, Node):
            there = ", ".join(item.metadata.name for item in self._store.list("Node"))
            raise NotFound(f"there is no Node {name}", hint=f"nodes: {there or 'none'}")
        return node

    def _set_ready(self, node: Node, *, ready: bool) -> None:
        """Set readiness. A failing node gets a last heartbeat now; a healthy one needs none."""
        now_ms = self._now_ms()
        status = structs.replace(node.status, ready=ready, heartbeat=None if ready else now_ms)
        event = Event(
            kind="Node",
            key=node.metadata.name,
            reason="Ready" if ready else "NotReady",
            at=now_ms,
        )
        new = structs.replace(node, status=status)
        self._write(changes.put_node(new, expect=node.metadata.revision, event=event))

    def _still_runs(self, group: PodGroup) -> bool:
        return group.status.claim.is_open or any(
            isinstance(pod, Pod)
            and pod.status.group_uid == group.metadata.uid
            and pod.status.phase in ON_NODE
            for pod in self._store.list("Pod", namespace=group.metadata.namespace)
        )

    def _write(self, transaction: Transaction | None) -> None:
        write(self._store, self._requests, transaction)

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def _verb(deed: Deed) -> str:
    """Return the verb as in a Timeline: `failNode`."""
    name = type(deed).__name__
    return name[0].lower() + name[1:]


MOST_SESSIONS = 1_000
MOST_SESSIONS_AT_ONCE = 10


class PlayedWorld(Struct, frozen=True, kw_only=True):
    """The result of playing a world.

    `exhausted`: the limit of sessions ended it while more was due. `refused`: how many transactions
    the store refused; with a single scheduler, none should be. `refused_steps`: a sentence for each
    step of the Timeline that the rules refused.
    """

    outcome: WorldOutcome
    exhausted: bool
    refused: int
    refused_steps: tuple[str, ...] = ()


def play(
    text: str | bytes, source: str, *, config: SchedulerConfig, cycles: int | None = None
) -> PlayedWorld:
    """Read a world, and run it until nothing can change any more, or for `cycles` sessions.

    Raises InvalidInput for any mistake in the file, in one sentence, and EndlessSessions if the
    sessions at one instant undo each other.
    """
    scheduler = assemble(config)
    world = read_world(text, source)
    try:
        run = WorldRun(world, scheduler)
    except InvalidInput:
        raise
    except BatchqError as problem:
        # NotFound, Conflict …: for the author of the file, all of these are invalid content.
        raise InvalidInput(f"{source}: {problem.message}", hint=problem.hint) from None
    return run.run(MOST_SESSIONS if cycles is None else cycles, bounded=cycles is None)


class WorldRun:
    """A world being played; owns its clock, its store and the rest of its Timeline."""

    #: More sessions than this at one instant are an error.
    most_at_once = MOST_SESSIONS_AT_ONCE

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self._start_at = world.start_at
        self._steps = deque(world.steps)
        self._scheduler = scheduler
        self._clock = VirtualClock(world.start_at)
        taken = frozenset(group.metadata.uid for group in world.groups)
        ids = CountedIds(world.documents + 1, taken)
        requests = CountedIds()
        gates_hold = scheduler.open(Snapshot(), world.start_at).gates_hold
        self.store = found(world, requests, gates_hold=gates_hold)
        self._execution = Execution(self.store, self._clock, requests)
        self._outside = Outside(self.store, self._clock, ids, requests, self._execution)
        self._cycle = Cycle(self.store, scheduler, self._clock, requests)
        self._watch = InvariantWatch(self.store)
        self._stories: list[CycleStory] = []
        self._refused = 0
        self.store.overbooked = overbooked(scheduler.open(self.store.snapshot(), world.start_at))
        self._execution.start_bound()

    def run(self, most: int, *, bounded: bool) -> PlayedWorld:
        """Play until nothing is due any more, or for `most` sessions in all.

        Raises EndlessSessions if those at one instant do not end.
        """
        report: CycleReport | None = None
        due_at: int | None = self._clock.now_ms()
        while due_at is not None and len(self._stories) < most:
            self._clock.jump_to(due_at)
            self._let_happen()
            report = self._settle(most)
            due_at = self._next_due_at(report)
        unsettled = due_at is not None or bool(report and report.intents)
        return PlayedWorld(
            outcome=outcome_of(self._scheduler, self.store, self._clock, self._stories, report),
            exhausted=bounded and unsettled and len(self._stories) >= most,
            refused=self._refused,
            refused_steps=tuple(self._outside.refused),
        )

    def _let_happen(self) -> None:
        now_ms = self._clock.now_ms()
        self._execution.end_due()
        self._outside.take_away()
        while self._steps and self._at(self._steps[0].after_ms) <= now_ms:
            self._outside.carry_out(self._steps.popleft())
        self._outside.take_away()
        self._watch.after_outside()

    def _settle(self, most: int) -> CycleReport:
        """Run sessions at this instant until one decides nothing; return the last report."""
        began = len(self._stories)
        while True:
            report = self._cycle.run_once()
            self._refused += len(report.commit.refused)
            # Once an overbooked limit holds, only a lower one counts as a cut.
            self.store.overbooked = exceeded_since_start(self.store.overbooked, report.session)
            self._watch.after_session(report.commit)
            self._stories.append(story_of(report, self._since_start()))
            # Starting moves no charge; deletions are checked with the next event.
            self._execution.start_bound()
            self._outside.take_away()
            if not report.intents or len(self._stories) >= most:
                return report
            if len(self._stories) - began >= self.most_at_once:
                raise endless_sessions_error(self._stories[began:])

    def _next_due_at(self, report: CycleReport) -> int | None:
        """Return the next instant at which anything is due, not before now."""
        instants = [
            whole_second(at)
            for at in (
                next_due_at(report.session, _with_clocks(report.session)),
                self._execution.next_end_at(),
            )
            if at is not None
        ]
        if self._steps:
            instants.append(self._at(self._steps[0].after_ms))
        return max(min(instants), self._clock.now_ms()) if instants else None

    def _since_start(self) -> int:
        return (self._clock.now_ms() - self._start_at) // 1000

    def _at(self, after_ms: int) -> int:
        return whole_second(self._start_at + after_ms)


def _with_clocks(session: Session) -> list[GroupState]:
    """Return the groups whose clocks the world waits for.

    The default time for which finished groups are kept is not waited for: it only serves people who
    look at them, and the report replaces that. Any other time was stated to be seen.
    """
    kept = PodGroupSpec().ttl_after_finished
    return [
        group
        for group in session.groups.values()
        if group.phase not in TERMINAL or group.held or group.record.spec.ttl_after_finished != kept
    ]
