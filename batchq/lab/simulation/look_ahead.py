"""Copy the live state into a store in memory and play it on, or export it as a described world.

The copy is exact, ledger included, so that the first session decides what the live one would. Only
heartbeats and the leases of controllers are changed: those that are valid now never expire. Nothing
sends heartbeats in virtual time, so all nodes would soon be lost otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeVar

from msgspec import structs

from batchq.api import intents
from batchq.api.intents import Eviction
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.manifest import encode
from batchq.api.notation import DAY, format_duration
from batchq.api.objects import (
    RUNTIME_ANNOTATION,
    AdmissionCheck,
    GroupClaim,
    Metadata,
    Node,
    Object,
    Pod,
    PodGroup,
    PodTemplate,
    PriorityClass,
    Task,
    ended,
    full_name,
    grace_of,
    is_claimable,
)
from batchq.api.transaction import Event, Transaction, Write, fence_of
from batchq.client.changes.object_writes import put
from batchq.core.preemption.evictions import evictions_of
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.errors import InvariantBroken
from batchq.lab import simulation
from batchq.lab.simulation.initial_state import stated
from batchq.lab.simulation.report import (
    Future,
    GroupFuture,
    Lasting,
    Present,
    Stopped,
    WorldOutcome,
    outcome_of,
    pod_ends_at,
    present_groups,
    stated_ms,
)
from batchq.lab.simulation.world import CountedIds, VirtualClock, whole_second, write
from batchq.ports import Clock, IdSource
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler
from batchq.scheduler.timers import next_due_at
from batchq.store.memory import MemoryStore

#: An object of any one kind.
T = TypeVar("T", bound=Object)


def copy_of_live(session: Session, requests: IdSource) -> MemoryStore:
    """Return a store with everything that a fresh session was opened on."""
    snapshot, store = session.snapshot, MemoryStore()
    # One by one, because a quota's limits include those of the quotas before it.
    for obj in (*snapshot.queues, *live_others(session)):
        _commit(store, requests, put(store, _unwritten(obj), expect=0, event=_EVENT))
    for group in snapshot.groups:
        pods = snapshot.pods.get(group.metadata.uid, ())
        _commit(store, requests, stated(_unwritten(group), tuple(map(_unwritten, pods))))
    for pod, until_ms in _leases_to_keep(session):
        store.hold_lease(pod, until_ms)
    store.set_standing(snapshot.standing)
    return store


_EVENT = Event(kind="World", key="live", reason="Seen", at=0)


def live_others(session: Session) -> Iterator[Object]:
    """Yield quotas, classes, checks and nodes, the live ones without an expiry."""
    snapshot: Snapshot = session.snapshot
    yield from snapshot.quotas
    yield from snapshot.priority_classes
    for check in snapshot.admission_checks:
        yield _renewing(check, session.now_ms)
    for node in snapshot.nodes:
        yield _beating(session, node)


def _beating(session: Session, node: Node) -> Node:
    """Return a node that needs no further heartbeat if it sends them now."""
    state = session.nodes.by_name[node.metadata.name]
    if not (state.ready and state.heard):
        return node
    return structs.replace(node, status=structs.replace(node.status, heartbeat=None))


def _renewing(check: AdmissionCheck, now_ms: int) -> AdmissionCheck:
    """Return a check that stays active if its controller is there, though it answers nothing."""
    expires_at = check.status.expires_at
    if expires_at is None or expires_at <= now_ms:
        return check
    return structs.replace(check, status=structs.replace(check.status, expires_at=None))


def _leases_to_keep(session: Session) -> Iterator[tuple[str, int]]:
    """Yield leases that will run out: those on silent nodes, and those not renewed in time."""
    silent = {
        name for name, node in session.nodes.by_name.items() if not (node.ready and node.heard)
    }
    nodes = {
        pod.metadata.uid: pod.status.node for pods in session.snapshot.pods.values() for pod in pods
    }
    for pod, until_ms in sorted(session.snapshot.leases.items()):
        node = nodes.get(pod)
        if node is not None and (node in silent or until_ms <= session.now_ms):
            yield pod, until_ms


def _unwritten(obj: T) -> T:
    """Reset the revision, which the store assigns."""
    return structs.replace(obj, metadata=structs.replace(obj.metadata, revision=0))


def _commit(store: MemoryStore, requests: IdSource, transaction: Transaction) -> None:
    commit = store.commit([transaction], request_id=requests.new_uid())
    if commit.refused:
        raise InvariantBroken(f"{transaction.subject} as it is cannot be: {commit.refused[0]}")


#: The holder of claims on external groups here.
CONSUMER = "a consumer"


class Work:
    """All nodes and consumers; owns the schedule of ends."""

    def __init__(
        self, store: MemoryStore, clock: Clock, requests: IdSource, lasting: Lasting
    ) -> None:
        self._store = store
        self._clock = clock
        self._requests = requests
        self._lasting = lasting
        self._seen_at = clock.now_ms()
        #: (instant, kind, uid of a pod or key of a group, its attempt or admission).
        self._ahead: list[tuple[int, str, str, int]] = []

    def take_up(self, session: Session) -> None:
        """Continue everything that runs; call once, after the first session."""
        for group in session.groups.values():
            if group.is_external:
                self._claim(group)
            for uid in group.pods:
                self._take_up_pod(group, uid)
        self._store.delivered(self._store.outbox())

    def follow(self, session: Session, said: Iterable[intents.Intent]) -> None:
        """Carry out what a session decided."""
        for intent in said:
            match intent:
                case intents.Bind(group=key, uid=uid) | intents.Evict(group=key, uid=uid):
                    self._take_up_pod(session.by_key[key], uid)
                case intents.AdmitGroup(group=key) if session.by_key[key].is_external:
                    self._claim(session.by_key[key])
                case _:
                    pass
        self._store.delivered(self._store.outbox())

    def next_end_at(self) -> int | None:
        """Return the earliest possible next end, in ms."""
        return self._ahead[0][0] if self._ahead else None

    def end_due(self) -> None:
        """End what is due by now."""
        while self._ahead and self._ahead[0][0] <= self._clock.now_ms():
            _, kind, name, number = heappop(self._ahead)
            if kind == "Pod":
                self._end_pod(name, number)
            else:
                self._end_claim(name, number)

    def _take_up_pod(self, group: GroupState, uid: str) -> None:
        """Start the pod if it is bound, and schedule its end."""
        pod = self._pod(uid)
        if pod is None or pod.status.phase not in ON_NODE:
            return
        if pod.status.phase == PodPhase.BOUND and not pod.status.terminating:
            self._write(simulation.start(pod, now_ms=self._clock.now_ms()))
            pod = self._pod(uid)
            assert pod is not None
        at = simulation.grace_over_at(pod) if pod.status.terminating else self._done_at(group, pod)
        if at is not None:
            heappush(self._ahead, (at, "Pod", uid, pod.status.attempt))

    def _done_at(self, group: GroupState, pod: Pod) -> int | None:
        at = pod_ends_at(self._lasting, group, pod, seen_at=self._seen_at)
        return None if at is None else whole_second(at)

    def _end_pod(self, uid: str, attempt: int) -> None:
        pod, now_ms = self._pod(uid), self._clock.now_ms()
        if pod is None or pod.status.attempt != attempt or pod.status.phase not in ON_NODE:
            return
        if pod.status.terminating:
            over_at = simulation.grace_over_at(pod)
            if over_at is not None and over_at <= now_ms:
                self._write(simulation.stop(pod, now_ms=now_ms))
            return
        node = self._store.get("Node", pod.status.node)
        # A silent node is assumed to be lost: it does not report the end of its pods.
        if not isinstance(node, Node) or node.status.ready:
            self._write(simulation.end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0))

    def _pod(self, uid: str) -> Pod | None:
        found = self._store.get("Pod", uid)
        return found if isinstance(found, Pod) else None

    def _claim(self, state: GroupState) -> None:
        """Claim the group or continue its claim, which then never expires."""
        group, now_ms = self._group(state.key), self._clock.now_ms()
        if group is None:
            return
        claim = group.status.claim
        if is_claimable(group):
            claim = GroupClaim(
                holder=CONSUMER,
                claimed_at=now_ms,
                grace=grace_of(group.spec),
                holding=group.status.reservation,
            )
        elif not claim.is_open or claim.stop_reason or _lapsed(claim, now_ms):
            return
        goes_on = structs.replace(claim, phase="Running", expires_at=None)
        self._put(group, goes_on, "Running")
        over_at = self._claim_over_at(state, goes_on)
        if over_at is not None:
            heappush(self._ahead, (over_at, "PodGroup", state.key, group.status.admission))

    def _claim_over_at(self, state: GroupState, claim: GroupClaim) -> int | None:
        started_at = state.status.started_at
        if started_at is None or state.phase == PodGroupPhase.IN_QUEUE:
            # A claim runs at once here, and the next session sees it.
            started_at = self._clock.now_ms()
        walltime = state.record.spec.walltime
        stated = (stated_ms(task.template.annotations) for task in state.record.spec.tasks)
        at = self._lasting.ends_at(
            started_at=started_at,
            seen_at=self._seen_at,
            stated_ms=max((ms for ms in stated if ms is not None), default=None),
            walltime_over_at=None if walltime is None else started_at + walltime,
        )
        return None if at is None else whole_second(at)

    def _end_claim(self, key: str, admission: int) -> None:
        group = self._group(key)
        if group is None or group.status.admission != admission:
            return
        claim = group.status.claim
        if claim.is_open and not claim.stop_reason:
            self._put(group, ended(claim, "Succeeded"), "Succeeded")

    def _put(self, group: PodGroup, claim: GroupClaim, reason: str) -> None:
        key = full_name(group)
        event = Event(kind="PodGroup", key=key, reason=reason, at=self._clock.now_ms())
        change = Write(
            kind="PodGroup",
            key=key,
            expect=group.metadata.revision,
            value=structs.replace(group, status=structs.replace(group.status, claim=claim)),
            fence=fence_of(group),
        )
        self._write(Transaction(subject=f"PodGroup {key}", writes=(change,), events=(event,)))

    def _group(self, key: str) -> PodGroup | None:
        found = self._store.get("PodGroup", key)
        return found if isinstance(found, PodGroup) else None

    def _write(self, transaction: Transaction) -> None:
        write(self._store, self._requests, transaction)


def _lapsed(claim: GroupClaim, now_ms: int) -> bool:
    return claim.expires_at is not None and claim.expires_at <= now_ms


class FutureRecorder:
    """Records the futures of the groups that had not ended at the start."""

    def __init__(self, present: Sequence[Present]) -> None:
        self.groups = {one.key: GroupFuture(key=one.key, phase=one.phase) for one in present}
        self.evictions: list[Eviction] = []
        self.ended = 0

    def note(self, report: CycleReport) -> bool:
        """Record a session's decisions; return whether any group started or ended."""
        session = report.session
        changed = False
        for intent in report.intents:
            match intent:
                case intents.MoveGroup(group=key, phase=phase):
                    changed |= self._moved(session, key, PodGroupPhase(phase))
                case intents.AdmitGroup(group=key):
                    self._set(key, phase=PodGroupPhase.IN_QUEUE)
                case intents.FinishGroup(group=key, phase=phase, reason=reason):
                    self._ended(key, PodGroupPhase(phase), reason, session.now_ms)
                    changed = True
                case intents.RollBack(group=key):
                    self._set(key, phase=PodGroupPhase.PENDING)
                case _:
                    pass
        for eviction in evictions_of(session, report.intents):
            self._evicted(eviction, is_external=session.by_key[eviction.key].is_external)
        return changed

    def close(self, outcome: WorldOutcome) -> None:
        """Record what the groups that do not run at the end wait for."""
        for key, group in outcome.podgroups.items():
            known = self.groups.get(key)
            runs = known is not None and known.phase == PodGroupPhase.RUNNING
            if known is None or runs or known.phase in TERMINAL:
                continue
            open_checks = [name for name, status in group.checks.items() if status != "True"]
            self._set(
                key,
                phase=PodGroupPhase(group.phase),
                waits_for=tuple(group.reasons),
                unanswered=tuple(sorted(open_checks)),
            )

    def _moved(self, session: Session, key: str, phase: PodGroupPhase) -> bool:
        """Return whether the group has started; a recovered one has not."""
        recovers = session.by_key[key].record.status.phase == PodGroupPhase.UNKNOWN
        starts = phase == PodGroupPhase.RUNNING and not recovers
        self._set(key, phase=phase)
        if starts and key in self.groups:
            self._set(key, starts=(*self.groups[key].starts, session.now_ms))
        return starts

    def _ended(self, key: str, phase: PodGroupPhase, reason: str, now_ms: int) -> None:
        self.ended += 1
        self._set(key, phase=phase, ends_at=now_ms, ending=str(reason))

    def _evicted(self, eviction: Eviction, *, is_external: bool) -> None:
        if not eviction.pods and not is_external:
            return
        self.evictions.append(eviction)
        if eviction.key in self.groups:
            self._set(eviction.key, evictions=self.groups[eviction.key].evictions + 1)

    def _set(self, key: str, **changes: object) -> None:
        if key in self.groups:
            self.groups[key] = structs.replace(self.groups[key], **changes)


MOST_SESSIONS = 200_000
MOST_SESSIONS_AT_ONCE = 10
#: The longest look ahead by default, and how long it goes on without a start or an end.
MOST_AHEAD_MS = 366 * DAY
MOST_IDLE_MS = DAY

#: Called with the number of ended groups, and the present instant in ms.
Tell = Callable[[int, int], None]


def look_ahead(
    snapshot: Snapshot,
    scheduler: Scheduler,
    *,
    now_ms: int,
    lasting: Lasting | None = None,
    until_ms: int | None = None,
    tell: Tell | None = None,
) -> Future:
    """Return the future of everything in `snapshot`, taken at `now_ms`, under this scheduler.

    Ends when nothing can change any more, or after `until_ms` of virtual time. `tell` is called at
    every instant.
    """
    run = _FutureRun(snapshot, scheduler.without_memory(), now_ms, lasting or Lasting())
    return run.run(until_ms, tell or (lambda ended, now_ms: None))


class _FutureRun:
    """A future being played; owns its clock, store and schedule."""

    def __init__(
        self, snapshot: Snapshot, scheduler: Scheduler, now_ms: int, lasting: Lasting
    ) -> None:
        self._scheduler = scheduler
        self._clock = VirtualClock(now_ms)
        self._requests = CountedIds()
        opened = scheduler.open(snapshot, now_ms)
        self._store = copy_of_live(opened, self._requests)
        self._work = Work(self._store, self._clock, self._requests, lasting)
        self._cycle = Cycle(self._store, scheduler, self._clock, self._requests)
        self._recorder = FutureRecorder(present_groups(opened))
        self._depended_on = _depended_on(snapshot)
        self._leaving = [key for key, group in opened.by_key.items() if group.phase in TERMINAL]
        self._sessions = 0
        self._refused = 0
        self._moved_at = now_ms

    def run(self, until_ms: int | None, tell: Tell) -> Future:
        """Play until the end."""
        began_at = self._clock.now_ms()
        last_at = began_at + (MOST_AHEAD_MS if until_ms is None else until_ms)
        self._work.take_up(self._session().session)
        while True:
            report = self._settle()
            tell(self._recorder.ended, self._clock.now_ms())
            due_at = self._next_due_at(report)
            stopped = self._stops(due_at, last_at, asked=until_ms is not None)
            if stopped is not None:
                break
            assert due_at is not None
            self._clock.jump_to(due_at)
            self._work.end_due()
        if stopped is Stopped.UNTIL:
            self._clock.jump_to(last_at)
        return self._future(report, began_at, stopped)

    def _session(self) -> CycleReport:
        report = self._cycle.run_once()
        self._sessions += 1
        self._refused += len(report.commit.refused)
        if self._recorder.note(report):
            self._moved_at = self._clock.now_ms()
        return report

    def _settle(self) -> CycleReport:
        """Run sessions at this instant until one decides nothing; return the last report."""
        for _ in range(MOST_SESSIONS_AT_ONCE):
            report = self._session()
            self._work.follow(report.session, report.intents)
            self._remove_ended(report.session)
            if not report.intents:
                break
        return report

    def _next_due_at(self, report: CycleReport) -> int | None:
        """Return the next instant at which anything is due, not before now."""
        session = report.session
        instants = [
            whole_second(at)
            for at in (next_due_at(session, _with_clocks(session)), self._work.next_end_at())
            if at is not None
        ]
        return max(min(instants), self._clock.now_ms()) if instants else None

    def _stops(self, due_at: int | None, last_at: int, *, asked: bool) -> Stopped | None:
        if due_at is None:
            return Stopped.SETTLED
        if due_at > last_at:
            return Stopped.UNTIL if asked else Stopped.TOO_FAR
        if self._sessions >= MOST_SESSIONS:
            return Stopped.TOO_FAR
        idle = self._work.next_end_at() is None and due_at - self._moved_at > MOST_IDLE_MS
        return Stopped.IDLE if idle and not asked else None

    def _remove_ended(self, session: Session) -> None:
        """Remove groups that have ended and that nothing depends on: each costs every session time.

        Groups with recent evictions stay, because these still count.
        """
        self._leaving += [
            group.key for group in session.effects.touched.values() if group.phase in TERMINAL
        ]
        if self._leaving:
            pods = self._store.snapshot().pods
            names = dict.fromkeys(self._leaving)
            self._leaving = [key for key in names if not self._try_to_remove(key, pods)]

    def _try_to_remove(self, key: str, pods_of: Mapping[str, Sequence[Pod]]) -> bool:
        """Remove a group if possible; return False if it must be checked again."""
        group = self._store.get("PodGroup", key)
        if not isinstance(group, PodGroup):
            return True
        if group.metadata.uid in self._depended_on or group.status.evictions.recent:
            return True
        pods = pods_of.get(group.metadata.uid, ())
        runs = group.status.claim.is_open or any(pod.status.phase in ON_NODE for pod in pods)
        if runs or group.status.charge:
            return False
        removed = [Write(kind="PodGroup", key=key, expect=group.metadata.revision, value=None)]
        removed += [
            Write(kind="Pod", key=pod.metadata.uid, expect=pod.metadata.revision, value=None)
            for pod in pods
        ]
        write(self._store, self._requests, Transaction(subject=key, writes=tuple(removed)))
        return True

    def _future(self, report: CycleReport, began_at: int, stopped: Stopped) -> Future:
        self._recorder.close(outcome_of(self._scheduler, self._store, self._clock, [], report))
        return Future(
            began_at=began_at,
            stopped_at=self._clock.now_ms(),
            stopped=stopped,
            sessions=self._sessions,
            refused=self._refused,
            groups=self._recorder.groups,
            evictions=tuple(self._recorder.evictions),
        )


def _depended_on(snapshot: Snapshot) -> frozenset[str]:
    """Return the uids of groups that others depend on."""
    return frozenset(
        dependency.uid
        for group in snapshot.groups
        if group.status.phase not in TERMINAL
        for dependency in group.spec.depends_on
    )


def _with_clocks(session: Session) -> Iterator[GroupState]:
    """Yield the groups whose clocks count; deleting ended groups after a week changes nothing."""
    return (group for group in session.groups.values() if group.phase not in TERMINAL or group.held)


#: A world begins at its latest timestamp: that of this unused class.
MARK = "saved-from-live"


def as_world(session: Session, lasting: Lasting) -> list[dict[str, object]]:
    """Return a session's manifests, without ended groups that no group depends on."""
    return [encode(obj) for obj in _objects(session, lasting)]


def _objects(session: Session, lasting: Lasting) -> Iterator[Object]:
    yield PriorityClass(metadata=Metadata(name=MARK, creation_timestamp=session.now_ms))
    for obj in (*session.snapshot.queues, *live_others(session)):
        if not (isinstance(obj, PriorityClass) and obj.metadata.name == MARK):
            yield _unwritten(obj)
    groups = sorted(session.groups.values(), key=lambda group: group.key)
    needed = {one.uid for group in groups for one in group.record.spec.depends_on}
    for group in groups:
        if group.phase in TERMINAL and group.uid not in needed and not group.held:
            continue
        yield _group(group, lasting)
        for uid in sorted(group.pods):
            yield _pod(group, group.pods[uid], lasting, session.now_ms)


def _group(group: GroupState, lasting: Lasting) -> Object:
    record = group.record
    spec, status = record.spec, record.status
    depends_on = tuple(structs.replace(one, uid="") for one in spec.depends_on)
    tasks = tuple(_task(task, record, lasting) for task in spec.tasks)
    # No consumer renews a claim in a world.
    claim = structs.replace(status.claim, expires_at=None, token="")
    return _unwritten(
        structs.replace(
            record,
            spec=structs.replace(spec, tasks=tasks, depends_on=depends_on),
            status=structs.replace(status, claim=claim, reasons=()),
        )
    )


def _task(task: Task, group: PodGroup, lasting: Lasting) -> Task:
    template = task.template
    stated, walltime = stated_ms(template.annotations), group.spec.walltime
    length_ms = lasting.length_ms(stated_ms=stated, walltime_ms=walltime)
    kept = PodTemplate(
        labels=template.labels,
        annotations=_with_runtime(template.annotations, length_ms),
        requests=template.requests,
        node_selector=template.node_selector,
        nodes=template.nodes,
        exclude_nodes=template.exclude_nodes,
        tolerations=template.tolerations,
        priority=template.priority,
        scheduling_gates=template.scheduling_gates,
        termination_grace=template.termination_grace,
    )
    return structs.replace(task, template=kept)


def _pod(group: GroupState, pod: Pod, lasting: Lasting, now_ms: int) -> Object:
    if pod.status.phase in ON_NODE and pod.status.started_at is not None:
        ends_at = pod_ends_at(lasting, group, pod, seen_at=now_ms)
        lasts_ms = None if ends_at is None else ends_at - pod.status.started_at
        annotations = _with_runtime(pod.metadata.annotations, lasts_ms)
        pod = structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=annotations))
    return _unwritten(pod)


def _with_runtime(annotations: dict[str, str], length_ms: int | None) -> dict[str, str]:
    rest = {name: text for name, text in annotations.items() if name != RUNTIME_ANNOTATION}
    return rest if length_ms is None else {**rest, RUNTIME_ANNOTATION: format_duration(length_ms)}
