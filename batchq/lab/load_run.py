"""Play a load: start and end its pods in place of agents, and run sessions in virtual time.

A bound pod starts at once, runs as long as its job, and succeeds; a pod that was asked to stop ends
when its grace is over. A finished group is removed from the store with its last pod. If no group
depends on another, no session is needed to note that all pods of a group have started or succeeded:
the group is Running with the start of its last pod, and removed with the end of its last pod.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence, Set
from dataclasses import replace
from heapq import heappop, heappush
from itertools import islice
from typing import TypeAlias

from msgspec import Struct, structs

from batchq.api import intents
from batchq.api.intents import Evict
from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import SECOND
from batchq.api.objects import Pod, PodGroup, group_key_of, key_of
from batchq.api.reasons import Leaving
from batchq.api.transaction import Transaction, Write
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.core.session.transitions import status_running
from batchq.errors import InvariantBroken
from batchq.lab import simulation
from batchq.lab.schedule import GroupRequest, Look, Part, Progress, Schedule, schedule_of
from batchq.lab.simulation.world import (
    CountedIds,
    InvariantWatch,
    VirtualClock,
    whole_second,
    write_once,
)
from batchq.lab.traces import Load, Submitter, empty_cluster, removal_of
from batchq.ports import Clock
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.scheduler.timers import next_due_at
from batchq.store.memory import MemoryStore

#: Later than every instant.
_NEVER = 2**63
_LEAVING = frozenset(map(str, Leaving))
#: The intents of a start beside the admission, and those of a group that waits.
_OF_STARTS = (intents.CreatePods, intents.Bind, intents.SetReasons)


class OnNode(Struct, frozen=True, kw_only=True):
    """A started pod. `order` counts starts; `predicted_at` is its start plus walltime."""

    pod: str
    group: str
    order: int
    started_at: int
    ends_at: int | None
    predicted_at: int | None


class Running:
    """The pods on nodes; owns the heap of ends and the heap of graces."""

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        progress: Progress,
        *,
        stores_at_once: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._progress = progress
        #: Whether a group's start and end are stored with those of its pods, before a session has
        #: seen them.
        self._stores_at_once = stores_at_once
        self._on_node: dict[str, OnNode] = {}
        self._stopping: dict[str, OnNode] = {}
        self._ends: list[tuple[int, int, OnNode]] = []
        self._graces: list[tuple[int, int, OnNode]] = []
        #: Uid -> key of ended groups that still have pods on nodes.
        self._leaving: dict[str, str] = {}
        self._started = 0
        #: Uid -> one started pod, for groups whose start no session has seen yet. Cleared by the
        #: caller before each session.
        self.unseen: dict[str, OnNode] = {}
        #: The uids of groups that were removed with the ends of their last pods since then.
        self.removed: set[str] = set()
        #: The number of pods that have left their nodes so far.
        self.ended = 0

    def any(self) -> bool:
        """Return whether anything that runs will end on its own."""
        return self.next_at() is not None

    def next_at(self) -> int | None:
        """Return when the next pod ends or has stopped; None if none does."""
        ends, graces, on_node = self._ends, self._graces, self._on_node
        while ends and on_node.get(ends[0][2].pod) is not ends[0][2]:
            heappop(ends)
        if not graces:
            return ends[0][0] if ends else None
        return min(ends[0][0], graces[0][0]) if ends else graces[0][0]

    def is_stopping(self) -> bool:
        """Return whether a pod was asked to stop and is still on its node."""
        return bool(self._stopping)

    def groups_until(self, at: int) -> set[str]:
        """Return the groups, by uid, with pods that end by an instant (ms) at the latest."""
        return {
            one.group
            for one in self._on_node.values()
            if one.predicted_at is not None and one.predicted_at <= at
        }

    def start_bound(self) -> None:
        """Start all bound pods; that takes no time."""
        deliveries = self._store.outbox()
        for delivery in deliveries:
            pod = self._store.get("Pod", delivery.pod)
            bound = isinstance(pod, Pod) and pod.status.phase == PodPhase.BOUND
            if isinstance(pod, Pod) and bound and pod.status.attempt == delivery.attempt:
                self._start(pod)
        self._store.delivered(deliveries)

    def due(self) -> list[OnNode]:
        """Return the pods whose work is done by now, in the order in which they started."""
        now_ms, ends, found = self._clock.now_ms(), self._ends, []
        while ends and ends[0][0] <= now_ms:
            one = heappop(ends)[2]
            if self._on_node.get(one.pod) is one:
                found.append(one)
        return sorted(found, key=lambda one: one.order) if len(found) > 1 else found

    def end(self, one: OnNode) -> bool:
        """End a pod with success; return False if it had ended or was asked to stop."""
        if self._on_node.get(one.pod) is not one:
            return False
        del self._on_node[one.pod]
        pod, now_ms = self._pod(one), self._clock.now_ms()
        removal = self._removal_with(pod) if self._stores_at_once else None
        if removal is None:
            ended = simulation.end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0)
            write_once(self._store, ended)
        else:
            write_once(self._store, removal)
            self.removed.add(one.group)
            self.unseen.pop(one.group, None)
        self._gone(one, pod)
        if removal is not None:
            self._progress.ended(one.group, now_ms // SECOND)
        return True

    def _removal_with(self, pod: Pod) -> Transaction | None:
        """Return the removal of a pod's group if all of its other pods have succeeded, and nothing
        of it may outlast the pod.
        """
        group = self._store.get("PodGroup", group_key_of(pod))
        uid = pod.status.group_uid
        if not isinstance(group, PodGroup) or group.status.phase not in ADMITTED:
            return None
        if group.status.evictions.recent or group.status.pledge.stands:
            return None
        pods = self._store.pods_of(uid)
        if len(pods) != self._progress.pods(uid):
            return None
        if any([one is not pod and one.status.phase != PodPhase.SUCCEEDED for one in pods]):  # noqa: C419 - a list is faster
            return None
        return removal_of(group, pods)

    def _start_of_group(self, pod: Pod, now_ms: int) -> tuple[Write, ...]:
        """Return the transition InQueue -> Running of a pod's group if its other pods run."""
        group, uid = self._store.get("PodGroup", group_key_of(pod)), pod.status.group_uid
        if not isinstance(group, PodGroup) or group.status.phase != PodGroupPhase.IN_QUEUE:
            return ()
        pods = self._store.pods_of(uid)
        if group.status.pledge.stands or len(pods) != self._progress.pods(uid):
            return ()
        if any([one is not pod and one.status.phase != PodPhase.RUNNING for one in pods]):  # noqa: C419 - a list is faster
            return ()
        running = structs.replace(group, status=status_running(group.status, now_ms, now_ms))
        key, meta = key_of(group), group.metadata
        return (Write(kind="PodGroup", key=key, expect=meta.revision, value=running),)

    def has_succeeded(self, group: str) -> bool:
        """Return whether all pods of a group, by its uid, have succeeded."""
        if group in self.removed:
            return True
        pods = self._store.pods_of(group)
        return len(pods) == self._progress.pods(group) and all(
            pod.status.phase == PodPhase.SUCCEEDED for pod in pods
        )

    def has_any_overrun(self) -> bool:
        """Return whether any group whose start no session has seen is beyond its walltime."""
        now_ms = self._clock.now_ms()
        return any(
            one.predicted_at is not None and one.predicted_at <= now_ms and one.pod in self._on_node
            for one in self.unseen.values()
        )

    def end_graces(self) -> bool:
        """End the pods whose grace is over; return whether there were any."""
        now_ms, before = self._clock.now_ms(), self.ended
        while self._graces and self._graces[0][0] <= now_ms:
            one = heappop(self._graces)[2]
            del self._stopping[one.pod]
            pod = self._pod(one)
            write_once(self._store, simulation.stop(pod, now_ms=now_ms))
            self._gone(one, pod)
        return self.ended != before

    def ask_to_stop(self, evict: Evict) -> None:
        """Start a pod's grace, if the store has accepted the eviction."""
        pod = self._store.get("Pod", evict.uid)
        one = self._on_node.get(evict.uid)
        if one is None or not isinstance(pod, Pod):
            return
        over_at = simulation.grace_over_at(pod)
        if over_at is None:
            return
        del self._on_node[one.pod]
        self._stopping[one.pod] = one
        heappush(self._graces, (over_at, one.order, one))
        if evict.reason in _LEAVING:
            held_s = (over_at - one.started_at) // SECOND
            self._progress.evicted(one.group, pod.status.admission, held_s)

    def forget(self, group: PodGroup) -> None:
        """Remove a finished group from the store, now or with its last pod.

        A group that still counts in an eviction budget stays.
        """
        if group.status.evictions.recent:
            return
        pods = self._store.pods_of(group.metadata.uid)
        if any(pod.status.phase in ON_NODE for pod in pods):
            self._leaving[group.metadata.uid] = key_of(group)
        else:
            write_once(self._store, removal_of(group, pods))

    def _start(self, pod: Pod) -> None:
        now_ms, group = self._clock.now_ms(), pod.status.group_uid
        with_it = self._start_of_group(pod, now_ms) if self._stores_at_once else ()
        write_once(self._store, _start_of(pod, now_ms, with_it))
        arrival = self._progress.arrival(group)
        run_s, walltime = arrival.run_s, arrival.group.spec.walltime
        one = OnNode(
            pod=pod.metadata.uid,
            group=group,
            order=self._started,
            started_at=now_ms,
            ends_at=None if run_s is None else now_ms + run_s * SECOND,
            predicted_at=None if walltime is None else whole_second(now_ms + walltime),
        )
        self._started += 1
        self._on_node[one.pod] = one
        self.unseen[group] = one
        if one.ends_at is not None:
            heappush(self._ends, (one.ends_at, one.order, one))
        self._progress.started(group, pod, now_ms // SECOND)

    def _gone(self, one: OnNode, pod: Pod) -> None:
        self.ended += 1
        self._progress.stopped(one.group, pod, self._clock.now_ms() // SECOND)
        key = self._leaving.pop(one.group, None)
        group = self._store.get("PodGroup", key) if key is not None else None
        if isinstance(group, PodGroup):
            self.forget(group)

    def _pod(self, one: OnNode) -> Pod:
        pod = self._store.get("Pod", one.pod)
        assert isinstance(pod, Pod)
        return pod


def _start_of(pod: Pod, now_ms: int, with_it: tuple[Write, ...]) -> Transaction:
    """Return the transition Bound -> Running, without an event, since nothing reads it, and what
    else is written with it.
    """
    status = structs.replace(pod.status, phase=PodPhase.RUNNING, started_at=now_ms)
    running, meta = structs.replace(pod, status=status), pod.metadata
    write = Write(kind="Pod", key=meta.uid, expect=meta.revision, value=running)
    return Transaction(subject=meta.name, writes=(write, *with_it))


def is_settled(report: CycleReport) -> bool:
    """Return whether another session at the same instant would decide nothing.

    That is so if the actions decided nothing, and the bookkeeping before them was only about groups
    that started or succeeded, which the actions have seen. The reasons written last admit no group.
    With many ends, this saves every second session.
    """
    if report.commit.refused:
        return False
    before_actions = report.session.effects.first_intent
    for place, intent in enumerate(report.intents):
        if isinstance(intent, intents.SetReasons):
            continue
        if place >= before_actions or not _is_bookkeeping(intent):
            return False
    return True


def is_queue_of_equals(load: Load, config: SchedulerConfig) -> bool:
    """Return whether all groups are independent gangs of one queue and one priority, on a single
    machine, under the default plugins.

    Then there are no victims, and no start admits another group: the actions would refuse the
    same groups again. On several nodes, a group that is placed may leave another one a better place
    than it had.
    """
    specs = [arrival.group.spec for arrival in load.arrivals]
    return (
        config == SchedulerConfig(settings=config.settings)
        and len(load.nodes) == 1
        and len({(spec.queue, spec.priority_class_name) for spec in specs}) == 1
        and not any(queue.spec.admission_checks or queue.spec.guarantee for queue in load.queues)
        and not any(spec.depends_on or spec.controller == "external" for spec in specs)
        and all(
            not spec.min_member or spec.min_member == sum(task.replicas for task in spec.tasks)
            for spec in specs
        )
    )


def waits_only_for_resources(load: Load, config: SchedulerConfig) -> bool:
    """Return whether, in addition, only free resources decide.

    Then no session is needed for arrivals that do not fit, because they queue behind all others,
    and no actions are needed after ends if no group fits. With shortest-first order an arrival may
    change the order.
    """
    return (
        is_queue_of_equals(load, config)
        and config.settings.overcommit == Settings().overcommit
        and all(queue.spec.strategy.order == "fcfs" for queue in load.queues)
    )


def next_due_without(session: Session, over: Set[str]) -> int | None:
    """Return when the next clock runs out after a session if these groups, by uid, which ran then,
    had already ended; in ms, None if no clock runs.
    """
    others = [group for group in session.busy() if group.uid not in over]
    due = (next_due_at(session, others), session.next_at())
    return min((at for at in due if at is not None and at > session.now_ms), default=None)


def leaves_only_starts(report: CycleReport) -> bool:
    """Return whether the actions of another session at the same instant would decide nothing: for
    one queue of equals, all admitted groups were placed, and only have to start.
    """
    if report.commit.refused:
        return False
    session = report.session
    before_actions = session.effects.first_intent
    for place, intent in enumerate(report.intents):
        if isinstance(intent, intents.AdmitGroup):
            if session.by_key[intent.group].has_all_placed:
                continue
        elif isinstance(intent, _OF_STARTS):
            continue
        if place >= before_actions or not _is_bookkeeping(intent):
            return False
    return True


def _is_bookkeeping(intent: intents.Intent) -> bool:
    """Return whether the actions of the same session have seen all consequences of an intent."""
    match intent:
        case intents.MoveGroup():
            return intent.phase == PodGroupPhase.RUNNING
        case intents.FinishGroup():
            return intent.phase == PodGroupPhase.COMPLETED
        case intents.Settle() | intents.ExpireGroup():
            return True
        case _:
            return False


#: The most sessions at one instant, in case they never end.
MOST_SESSIONS_AT_ONCE = 32
#: When nothing runs or arrives any more, only clocks can admit a group; after this many instants
#: without a change, nothing ever will.
MOST_FRUITLESS_INSTANTS = 100
#: Interval of full invariant checks, unless they are wanted after each session.
SESSIONS_BETWEEN_LOOKS = 1_000

#: Called with the number of finished jobs, and the total.
Tell: TypeAlias = Callable[[int, int], None]


class LoadRun:
    """A load being played; owns its clock, its store and the arrivals still to come.

    `first` is the index of the first arrival that comes; those before it have left no trace.
    """

    def __init__(
        self,
        load: Load,
        config: SchedulerConfig,
        *,
        watch: bool,
        look: Look | None = None,
        first: int = 0,
    ) -> None:
        scheduler = assemble(config)
        self._is_queue_of_equals = is_queue_of_equals(load, config)
        if self._is_queue_of_equals:
            # Nothing reads the reasons, and no group is parked alone for them.
            scheduler = replace(scheduler, most_written=0)
        start_s = load.arrivals[first].at_s if load.arrivals else 0
        self._load = load
        self._first, self._until = first, len(load.arrivals)
        self._clock = VirtualClock(start_s * SECOND)
        requests = CountedIds()
        self.store: MemoryStore = empty_cluster(load, requests)
        self._cycle = Cycle(self.store, scheduler, self._clock, requests, writes_events=False)
        self._submitter = Submitter(self.store)
        self._coming = deque(islice(enumerate(load.arrivals), first, None))
        self._progress = Progress(load, look, finished=first)
        self._running = Running(
            self.store,
            self._clock,
            self._progress,
            stores_at_once=not any(one.group.spec.depends_on for one in load.arrivals),
        )
        self._watch = InvariantWatch(self.store)
        self._checks_each_time = watch
        self._waits_only_for_resources = waits_only_for_resources(load, config)
        self.sessions = 0
        self._refused = 0
        #: When the next clock runs out (ms). If more groups have ended or started since it was
        #: computed (`_is_due_exact` is False), the next one runs out no earlier than that.
        self._due_at: int | None = None
        self._is_due_exact = True
        #: Uids of ended groups, which the next session will see.
        self._over: set[str] = set()
        self._last: Session | None = None

    def run(self, *, per_event: bool, tell: Tell | None, stops: Set[int] = frozenset()) -> None:
        """Play until nothing is due any more, or nothing changes; or until the cluster is idle
        before an arrival whose index is one of `stops`.
        """
        fruitless = 0
        while (now_ms := self._next_at()) is not None and fruitless < MOST_FRUITLESS_INSTANTS:
            if stops and self._is_idle_before(stops):
                self._until = self._coming[0][0]
                return
            self._clock.jump_to(now_ms)
            before = self._progress.changes
            if per_event:
                self._play_by_event()
            else:
                self._play_at_once()
            if tell is not None:
                tell(self._progress.finished, len(self._load.arrivals))
            idle = self._progress.changes == before and not self._coming
            fruitless = fruitless + 1 if idle and not self._running.any() else 0
        if self._over:
            self._settle(without_actions=True)
        self._watch.after_outside()

    def _is_idle_before(self, stops: Set[int]) -> bool:
        """Return whether all earlier groups have ended before an arrival of `stops`, which is the
        next one.
        """
        if not self._coming or self._coming[0][0] not in stops:
            return False
        return self._progress.finished == self._coming[0][0] and not self._running.any()

    def part(self) -> Part:
        """Return the outcome of the arrivals up to the stop, or of all that follow `first`."""
        progress = self._progress
        return Part(
            first=self._first,
            until=self._until,
            jobs=progress.outcome(self._first, self._until),
            meter=progress.meter,
            until_s=min(self._clock.now_ms() // SECOND, progress.last_change_s),
            evictions=progress.evictions,
            lost_s=progress.lost_s,
            sessions=self.sessions,
            refused=self._refused,
        )

    def schedule(self, name: str, real_s: float) -> Schedule:
        """Return the outcome of all jobs so far."""
        return schedule_of(self._load, [self.part()], name=name, real_s=real_s)

    def _play_at_once(self) -> None:
        stopped = self._running.end_graces()
        ended = [one.group for one in self._running.due() if self._running.end(one)]
        came = []
        while self._comes_now():
            came.append(self._submit())
        self._decide(ended, came, stopped=stopped)

    def _decide(self, ended: Sequence[str], came: Sequence[str], *, stopped: bool) -> None:
        """Run the sessions after some groups, by uid, have ended and others have come; none if no
        session would decide anything now. `stopped`: whether a pod has ended that was asked to
        stop.
        """
        if ended:
            # Without the clocks of these groups, the next one runs out no earlier.
            self._is_due_exact = False
        if ended or stopped:
            if self._may_admit():
                self._settle()
            elif stopped or not all(map(self._running.has_succeeded, ended)):
                self._settle(without_actions=True)
            else:
                self._defer(ended)
        elif not came or self._may_admit(came):
            self._settle()
        elif self._checks_each_time:
            self._check_settled()

    def _may_admit(self, came: Sequence[str] = ()) -> bool:
        """Return whether the actions of a session could admit a group now; with `came`, one of the
        groups, by uid, whose arrival is the only change.
        """
        now_ms, progress = self._clock.now_ms(), self._progress
        due_at = self._due_by(now_ms)
        is_due = due_at is not None and due_at <= now_ms
        if is_due or progress.evictions or not self._waits_only_for_resources:
            return True
        asked = map(progress.request, came) if came else progress.free.asked()
        fitting = progress.free.fitting(asked)
        return bool(fitting) and self._may_pass_head(fitting)

    def _may_pass_head(self, fitting: Sequence[GroupRequest]) -> bool:
        """Return whether a group with one of these requests, which fit now, may start: the head of
        a queue in which all others wait for it, or one that does not delay the head of a Backfill
        queue, as far as the last session knows that head.

        Everything has ended since then by its expected end, and no group has started. So the head
        starts no later than was expected then, and no more is left beside it.
        """
        session, now_ms, progress = self._last, self._clock.now_ms(), self._progress
        head = None if session is None else next(iter(session.heads.strict.values()), None)
        if session is None or head is None or self._running.is_stopping():
            return True
        at, request = session.heads.starts.get(head.uid), progress.request(head.uid)
        if progress.free.fits(request):
            return True
        if session.queues[head.queue].record.spec.strategy.type == "StrictFIFO":
            return False
        if at is None or at <= now_ms:
            return True
        if any(one.ends_by(at, now_ms) for one in fitting):
            return True
        ended = map(progress.request, self._running.groups_until(at))
        left = progress.free.after(ended, request)
        return any(one.is_within(left) for one in fitting)

    def _defer(self, over: Sequence[str] = ()) -> None:
        """Leave ends (`over`) and starts to the next session, if no group can be admitted now.

        The outcome is independent of when a session sees them: all pods of the former have
        succeeded, and the latter have run since their pods started.
        """
        unseen = self._running.unseen
        for uid in dict.fromkeys(over):
            if uid not in self._running.removed:
                self._over.add(uid)
                self._progress.ended(uid, self._clock.now_ms() // SECOND)
            unseen.pop(uid, None)
        if not over:
            # Starts add only their walltimes.
            self._is_due_exact = False
            ends = [one.predicted_at for one in unseen.values()]
            self._due_at = min((at for at in (self._due_at, *ends) if at is not None), default=None)
        if self._checks_each_time:
            self._check_settled()

    def _next_clock(self) -> int | None:
        """Return when the next clock runs out, apart from those of ends and starts that no session
        has seen; in ms, None if no clock runs.
        """
        if self._last is None:
            return self._due_at
        unseen = self._running.unseen
        due = [next_due_without(self._last, {*self._over, *self._running.removed, *unseen})]
        due += [one.predicted_at for one in unseen.values()]
        return min((at for at in due if at is not None), default=None)

    def _due_by(self, at: int) -> int | None:
        """Return when the next clock runs out (ms): exactly if that is at or before an instant, and
        perhaps too early otherwise.
        """
        if not self._is_due_exact and self._due_at is not None and self._due_at <= at:
            self._due_at, self._is_due_exact = self._next_clock(), True
        return self._due_at

    def _play_by_event(self) -> None:
        """Play the pass of each event: of each submit, after the ends that were predicted for this
        instant; then of each other end.
        """
        stopped = self._running.end_graces()
        due, now_ms = self._running.due(), self._clock.now_ms()
        ended = [one.group for one in due if one.predicted_at == now_ms and self._running.end(one)]
        is_first = True
        while self._comes_now():
            self._decide(ended, [self._submit()], stopped=stopped)
            ended, stopped, is_first = [], False, False
        for one in due:
            if self._running.end(one):
                ended.append(one.group)
            if ended or stopped:
                self._decide(ended, (), stopped=stopped)
            ended, stopped, is_first = [], False, False
        if is_first:
            self._decide(ended, (), stopped=stopped)

    def _comes_now(self) -> bool:
        return bool(self._coming) and self._coming[0][1].at_s * SECOND <= self._clock.now_ms()

    def _submit(self) -> str:
        place, arrival = self._coming.popleft()
        now_ms = self._clock.now_ms()
        uid = str(place)
        write_once(self.store, self._submitter.submitted(arrival.group, uid, now_ms))
        self._progress.submitted(uid, now_ms // SECOND)
        return uid

    def _settle(self, *, without_actions: bool = False) -> None:
        """Run sessions until another would have nothing to do.

        `without_actions`: skip actions, which would decide nothing until resources are freed.
        """
        if self._running.has_any_overrun():
            # A group whose walltime is over before a session saw it run first runs, then stops.
            self._run_session(self._cycle.settle_once)
        turn = self._cycle.settle_once if without_actions else self._cycle.run_once
        for _ in range(MOST_SESSIONS_AT_ONCE):
            report = self._run_session(turn)
            if report.rested or is_settled(report):
                self._due_at, self._is_due_exact = report.next_due_at, True
                if self._checks_each_time and not report.rested:
                    self._check_settled()
                return
            starts = self._is_queue_of_equals and leaves_only_starts(report)
            if starts and self._waits_only_for_resources:
                self._defer()
                return
            turn = self._cycle.settle_once if starts else self._cycle.run_once
        self._due_at, self._is_due_exact = report.next_due_at, True

    def _run_session(self, turn: Callable[[], CycleReport]) -> CycleReport:
        """Run a session and carry out its decisions."""
        self._running.unseen.clear()
        self._running.removed.clear()
        report = turn()
        self._last = report.session
        if not report.rested:
            self.sessions += 1
            self._refused += len(report.commit.refused)
            if self._checks_each_time or self.sessions % SESSIONS_BETWEEN_LOOKS == 0:
                self._watch.after_session(report.commit)
            self._follow(report)
        return report

    def _check_settled(self) -> None:
        """Run another session at the same instant, and check that it has nothing to do."""
        report = self._cycle.run_once()
        self._last = report.session
        # The next session may still write reasons, which nothing reads meanwhile.
        decided = [
            one
            for one in report.intents
            if not isinstance(one, intents.SetReasons) and not self._is_deferred(one)
        ]
        if decided:
            raise InvariantBroken(
                f"the sessions at {self._clock.now_ms()} ms ended too early:"
                f" another session decides {decided[0]}"
            )
        self._running.unseen.clear()
        self._running.removed.clear()
        self._follow(report)

    def _is_deferred(self, intent: intents.Intent) -> bool:
        """Return whether an intent is only the start or end of a group that was left to it."""
        match intent:
            case intents.FinishGroup(phase=PodGroupPhase.COMPLETED):
                known: Container[str] = self._over
            case intents.MoveGroup(phase=PodGroupPhase.RUNNING):
                known = self._running.unseen
            case _:
                return False
        group = self.store.get("PodGroup", intent.group)
        return group is not None and group.metadata.uid in known

    def _follow(self, report: CycleReport) -> None:
        """Start bound pods, stop evicted ones, remove ended groups."""
        for intent in report.intents:
            match intent:
                case intents.Evict():
                    self._running.ask_to_stop(intent)
                case intents.FinishGroup():
                    self._finish(intent.group)
        self._running.start_bound()

    def _finish(self, key: str) -> None:
        group = self.store.get("PodGroup", key)
        if isinstance(group, PodGroup) and group.status.phase in TERMINAL:
            uid = group.metadata.uid
            if uid in self._over:
                self._over.remove(uid)
            else:
                self._progress.ended(uid, self._clock.now_ms() // SECOND)
            self._running.forget(group)

    def _next_at(self) -> int | None:
        """Return the next instant at which anything is due, not before now."""
        at = self._running.next_at()
        if self._coming:
            comes_at = self._coming[0][1].at_s * SECOND
            at = comes_at if at is None or comes_at < at else at
        # The clocks of ended groups still run, but their effects do not matter.
        if self._progress.finished < len(self._load.arrivals):
            due_at = self._due_by(_NEVER if at is None else at)
            if due_at is not None and (at is None or due_at < at):
                at = whole_second(due_at) if at is None else min(at, whole_second(due_at))
        return None if at is None else max(at, self._clock.now_ms())
