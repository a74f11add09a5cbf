"""A work-horse as a small state machine, which follows the real one step by step.

It claims its attempt, starts the command when the claim is applied, renews the lease, and reports
the end. The lease runs from the time of the request; the work-horse kills the pod before the lease
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import (
    AGENT_ANNOTATION,
    Ended,
    Leaves,
    PodOutcome,
    Runs,
    Serves,
    StartClaim,
    subject_of_pod,
)
from batchq.api.objects import Node, Pod, PodGroup
from batchq.api.reasons import Finish, Leaving
from batchq.errors import StoreUnavailable
from batchq.ports import Clock
from tests.faults.machines import Attempt, Machine, Process
from tests.faults.server import FaultyStore


class Paces(Struct, frozen=True, kw_only=True):
    """Intervals of the periodic work, and the length of a lease; milliseconds."""

    lease_ms: int = 12_000
    margin_ms: int = 2_000
    renew_ms: int = 3_000
    beat_ms: int = 4_000
    look_ms: int = 1_000
    reconcile_ms: int = 10_000
    patience_ms: int = 10_000
    say_again_ms: int = 5_000
    report_for_ms: int = 15_000


class Stage(Enum):
    """The state of a work-horse."""

    CLAIMS = "claims"
    RUNS = "runs"
    REPORTS = "reports"
    GONE = "gone"


class Horse:
    """One attempt of one pod: claim, run, report. Its lease runs from the time of the request."""

    def __init__(
        self,
        store: FaultyStore,
        machine: Machine,
        clock: Clock,
        *,
        attempt: Attempt,
        agent: str,
        author: str,
        paces: Paces,
        say: Callable[[str], None],
    ) -> None:
        self.attempt = attempt
        self.author = author
        self.stage = Stage.CLAIMS
        self.outcome: PodOutcome | None = None
        self.process: Process | None = None
        self.due_at = clock.now_ms()
        self._agent = agent
        self._store = store
        self._machine = machine
        self._clock = clock
        self._paces = paces
        self._say = say
        self._renew_at = 0
        self._lease_ends_at = clock.now_ms() + paces.lease_ms
        self._kill_at: int | None = None
        self._exits_at: int | None = None
        self._stopped = ""
        self._started_at = 0
        self._grace_ms = 0
        self._report_until = 0
        self._say_at = 0
        #: Reported to a restarted server, and not acknowledged yet.
        self._says_it_runs = False
        self._walltime_ms: int | None = None

    @property
    def alive(self) -> bool:
        return self.stage != Stage.GONE

    def step(self) -> None:
        """Do the work that is due now, and return when the next is due."""
        now_ms = self._clock.now_ms()
        self.due_at = now_ms + self._paces.look_ms
        try:
            match self.stage:
                case Stage.CLAIMS:
                    self._claim(now_ms)
                case Stage.RUNS:
                    self._run(now_ms)
                case Stage.REPORTS:
                    self._report(now_ms)
                case Stage.GONE:
                    pass
        except StoreUnavailable:
            if self.stage == Stage.REPORTS and now_ms >= self._report_until:
                self.stage = Stage.GONE

    # --- claiming -----------------------------------------------------------------------------

    def _claim(self, now_ms: int) -> None:
        if self._lease_is_lost(now_ms):
            self._has_ended(
                PodOutcome(stopped=Leaving.NODE_LOST, message="the claim was never answered")
            )
            return
        pod = self._pod()
        if pod is None or pod.status.node != self._machine.name or self._is_anothers(pod):
            self._forget("declined")
            return
        uid, number = self.attempt
        answer = self._store.renew(self._machine.name, uid, number, now_ms + self._paces.lease_ms)
        if answer.word == "fenced":
            self._forget("fenced before it started")
            return
        self._lease_ends_at = now_ms + self._paces.lease_ms
        if pod.status.phase == PodPhase.RUNNING:
            # The claim was applied, perhaps while the server did not answer.
            self._start(pod, now_ms)
        elif answer.word == "stop":
            self._has_ended(PodOutcome(stopped=answer.reason, message="stopped before it started"))
        elif now_ms >= self._say_at:
            claim = StartClaim(pod=uid, attempt=number, author=self.author)
            self._store.post(self._machine.name, claim)
            self._say_at = now_ms + self._paces.say_again_ms

    def _is_anothers(self, pod: Pod) -> bool:
        status = pod.status
        if status.phase == PodPhase.BOUND:
            return False
        return status.phase != PodPhase.RUNNING or status.holder != self.author

    def _start(self, pod: Pod, now_ms: int) -> None:
        self._grace_ms = pod.spec.termination_grace
        group = self._store.get("PodGroup", f"{pod.metadata.namespace}/{pod.spec.pod_group}")
        if isinstance(group, PodGroup):
            self._walltime_ms = _walltime_of_pod(group)
        self.process = self._machine.truth.start(self._machine, pod)
        self._say(f"{self.author} starts {self.attempt}")
        self.stage = Stage.RUNS
        self._started_at = now_ms
        self._exits_at = self.process.ends_at
        self._renew_at = now_ms + self._paces.renew_ms
        self._plan(now_ms)

    # --- running ------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> None:
        assert self.process is not None
        if self._lease_is_lost(now_ms):
            self._kill(Leaving.NODE_LOST)
            return
        if self._exits_at is not None and now_ms >= self._exits_at:
            self._exit()
            return
        if self._kill_at is not None and now_ms >= self._kill_at:
            self._kill(self._stopped)
            return
        if self._walltime_ms is not None and now_ms >= self._started_at + self._walltime_ms:
            self._stop(Finish.WALLTIME_EXCEEDED, now_ms)
        if now_ms >= self._renew_at:
            self._renew_at = now_ms + self._paces.look_ms
            self._renew(now_ms)
        if self.stage == Stage.RUNS:
            self._plan(now_ms)

    def _renew(self, now_ms: int) -> None:
        uid, number = self.attempt
        try:
            answer = self._store.renew(
                self._machine.name, uid, number, now_ms + self._paces.lease_ms
            )
        except StoreUnavailable:
            return
        self._renew_at = now_ms + self._paces.renew_ms
        if answer.word == "fenced":
            if not self._may_be_forgotten():
                self._end_process(by_itself=False)
                self._forget("fenced")
            return
        self._says_it_runs = False
        self._lease_ends_at = now_ms + self._paces.lease_ms
        if answer.word == "stop":
            self._stop(answer.reason, now_ms)

    def _may_be_forgotten(self) -> bool:
        """Return whether the server may only have forgotten this attempt, until it has applied the
        new report.

        The lease runs on meanwhile. A read that fails is repeated at the next step.
        """
        runs = self.runs()
        try:
            if runs is None or self._store.has_reported(self._machine.name):
                return False
            if not self._says_it_runs:
                self._store.post(self._machine.name, runs)
                self._says_it_runs = True
                return True
            return runs.subject in self._store.pending(self._machine.name)
        except StoreUnavailable:
            return True

    def _stop(self, reason: str, now_ms: int) -> None:
        """Send SIGTERM: the command takes its time to stop, at most the grace period."""
        if self._stopped or self.process is None:
            return
        self._stopped = reason
        self._kill_at = now_ms + self._grace_ms
        self._exits_at = min(now_ms + self.process.stops_in_ms, self.process.ends_at)

    def _plan(self, now_ms: int) -> None:
        due = [self._renew_at, self._lease_ends_at - self._paces.margin_ms]
        due += [at for at in (self._exits_at, self._kill_at) if at is not None]
        if self._walltime_ms is not None and not self._stopped:
            due.append(self._started_at + self._walltime_ms)
        self.due_at = max(now_ms, min(due))

    def _exit(self) -> None:
        assert self.process is not None
        code = self.process.exit_code if not self._stopped else 143
        self._end_process(by_itself=not self._stopped)
        self._has_ended(
            PodOutcome(exit_code=code, stopped=self._stopped, how=f"exited with {code}")
        )

    def _kill(self, reason: str) -> None:
        self._end_process(by_itself=False)
        stopped = self._stopped or reason
        self._has_ended(PodOutcome(exit_code=137, signal=9, stopped=stopped, how="killed"))

    def _end_process(self, *, by_itself: bool) -> None:
        if self.process is not None:
            self._machine.truth.end(self.process, by_itself=by_itself)
            self._say(f"{self.author} {self.attempt} has ended")
            self.process = None

    def _has_ended(self, outcome: PodOutcome) -> None:
        self.outcome = outcome
        self.stage = Stage.REPORTS
        now_ms = self._clock.now_ms()
        self._report_until = now_ms + self._paces.report_for_ms
        self.due_at = now_ms

    # --- reporting ----------------------------------------------------------------------------

    def _report(self, now_ms: int) -> None:
        """Report the end once, because a posted report lasts. The run file stays until the agent
        sees the end.
        """
        assert self.outcome is not None
        uid, number = self.attempt
        report = Ended(pod=uid, attempt=number, outcome=self.outcome, author=self.author)
        self._store.post(self._machine.name, report)
        self._store.end_lease(self._machine.name, uid, number)
        self._say(f"{self.author} {self.attempt} has reported its end")
        self.stage = Stage.GONE

    def _pod(self) -> Pod | None:
        return pod_of(self._store, self.attempt)

    def _forget(self, why: str) -> None:
        self._say(f"{self.author} {self.attempt}: {why}")
        self.stage = Stage.GONE
        if self._machine.horses.get(self.attempt) is self:
            del self._machine.horses[self.attempt]
        try:
            self._store.end_lease(self._machine.name, *self.attempt)
        except StoreUnavailable:
            # The agent finds leases of attempts that do not run here.
            return

    def _lease_is_lost(self, now_ms: int) -> bool:
        return now_ms >= self._lease_ends_at - self._paces.margin_ms

    # --- faults ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: the kernel and the guard end the pod's processes."""
        self._end_process(by_itself=False)
        self.stage = Stage.GONE

    def end_at_once(self) -> None:
        """Its agent has died: end the pod, report that once, and remove the node from the list."""
        if self.stage == Stage.RUNS:
            self._kill(Leaving.NODE_LOST)
        elif self.stage == Stage.CLAIMS:
            self._has_ended(PodOutcome(stopped=Leaving.NODE_LOST, message="its node went away"))
        self._report_until = 0
        try:
            self._store.post(self._machine.name, Leaves(agent=self._agent))
        except StoreUnavailable:
            return

    def freeze(self) -> None:
        """The machine freezes."""
        if self.process is not None:
            self._machine.truth.suspend(self.process)

    def thaw(self) -> None:
        """The machine resumes; the work-horse first checks its lease."""
        if self.process is None:
            return
        if self._lease_is_lost(self._clock.now_ms()):
            self.process = None
            self._has_ended(PodOutcome(exit_code=137, signal=9, stopped=Leaving.NODE_LOST))
        else:
            self._machine.truth.resume(self._machine, self.process)

    def runs(self) -> Runs | None:
        """Return the report of this run to a server that may have forgotten it."""
        if self.stage != Stage.RUNS:
            return None
        uid, number = self.attempt
        return Runs(pod=uid, attempt=number, author=self.author, started_at=self._started_at)


def pod_of(store: FaultyStore, attempt: Attempt) -> Pod | None:
    """Return the pod if this is still its attempt. Raises StoreUnavailable."""
    pod = store.get("Pod", attempt[0])
    return pod if isinstance(pod, Pod) and pod.status.attempt == attempt[1] else None


def _walltime_of_pod(group: PodGroup) -> int | None:
    """Return the walltime of each pod of an array; the scheduler enforces all others."""
    replicas = sum(task.replicas for task in group.spec.tasks)
    return group.spec.walltime if group.spec.min_member == 1 and replicas > 1 else None


#: The agent's report on a pod whose work-horse died.
LOST = PodOutcome(stopped=Leaving.NODE_LOST, message="its work-horse died")


class Agent:
    """The agent of one node: sends beats, takes attempts on, and reports work-horses that died
    silently.
    """

    def __init__(
        self,
        store: FaultyStore,
        machine: Machine,
        clock: Clock,
        *,
        identity: str,
        paces: Paces,
        hire: Callable[[Agent, Attempt], Horse],
        say: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self.machine = machine
        self.alive = True
        self.due_at = clock.now_ms()
        self._store = store
        self._clock = clock
        self._paces = paces
        self._hire = hire
        self._say = say
        self._run = 0
        #: When the server last got the report of each attempt that it does not know.
        self._told_at: dict[str, int] = {}
        self._beat_at = self._reconcile_at = clock.now_ms()
        self._patience_ms = 0
        self._serves_seen = False
        self._say_at: dict[Attempt, int] = {}

    def step(self) -> None:
        """Do the work that is due now."""
        now_ms = self._clock.now_ms()
        self.due_at = now_ms + self._paces.look_ms
        try:
            self._settle(now_ms)
            if now_ms >= self._reconcile_at:
                self._reconcile(now_ms)
                self._reconcile_at = now_ms + self._paces.reconcile_ms
                self._patience_ms = self._paces.patience_ms
            if now_ms >= self._beat_at:
                self._beat(now_ms)
                is_settled = self._serves_seen and not self._told_at
                self._beat_at = now_ms + (
                    self._paces.beat_ms if is_settled else self._paces.look_ms
                )
            self._take_on()
        except StoreUnavailable:
            return
        if not self._has_unsettled():
            # Deliveries notify the agent, so it misses nothing by polling less often.
            self.due_at = min(self._beat_at, self._reconcile_at)

    def _has_unsettled(self) -> bool:
        return any(not horse.alive for horse in self.machine.horses.values())

    # --- the node -----------------------------------------------------------------------------

    def _beat(self, now_ms: int) -> None:
        run = self._store.beat(self.machine.name, now_ms)
        if run != self._run:
            self._resync(run, now_ms)
        self._store.keep_leases(self.machine.name, set(self.machine.horses))
        node = self._store.get("Node", self.machine.name)
        self._serves_seen = (
            isinstance(node, Node)
            and node.status.ready
            and node.metadata.annotations.get(AGENT_ANNOTATION) == self.identity
        )
        if not self._serves_seen:
            report = Serves(agent=self.identity, resources=dict(self.machine.resources))
            self._store.post(self.machine.name, report)

    def _resync(self, run: int, now_ms: int) -> None:
        """Report to a restarted server what runs here, until the server knows all of it."""
        unknown = [
            runs
            for attempt in sorted(self.machine.horses)
            if (runs := self.machine.horses[attempt].runs()) is not None
            and not self._is_known(attempt)
        ]
        for runs in unknown:
            if now_ms >= self._told_at.get(runs.subject, 0) + self._paces.say_again_ms:
                self._store.post(self.machine.name, runs)
                self._told_at[runs.subject] = now_ms
        if not unknown:
            self._store.report_run(self.machine.name, run)
            self._run = run
            self._told_at.clear()

    def _is_known(self, attempt: Attempt) -> bool:
        pod = pod_of(self._store, attempt)
        is_here = pod is not None and pod.status.node == self.machine.name
        return is_here and pod is not None and pod.status.phase == PodPhase.RUNNING

    # --- pods -----------------------------------------------------------------------------------

    def _take_on(self) -> None:
        while (attempt := self._store.dequeue(self.machine.name)) is not None:
            if attempt in self.machine.horses:
                continue
            self.machine.horses[attempt] = self._hire(self, attempt)

    def _settle(self, now_ms: int) -> None:
        """Report ends until the server has applied them; Bound pods may start again."""
        for attempt in sorted(self.machine.horses):
            horse = self.machine.horses[attempt]
            if horse.alive:
                continue
            pod = pod_of(self._store, attempt)
            if pod is None or is_over(pod, self.machine.name):
                self._store.end_lease(self.machine.name, *attempt)
                self._forget(attempt)
            elif now_ms < self._say_at.get(attempt, 0):
                continue
            elif horse.outcome is None and self._may_restart(pod, attempt):
                self._forget(attempt)
            else:
                terminates = pod.status.phase == PodPhase.BOUND and pod.status.terminating
                lost = PodOutcome(stopped=pod.status.reason) if terminates else LOST
                self._end(attempt, horse.outcome or lost)
                self._say_at[attempt] = now_ms + self._paces.say_again_ms

    def _forget(self, attempt: Attempt) -> None:
        del self.machine.horses[attempt]
        self._say_at.pop(attempt, None)

    def _may_restart(self, pod: Pod, attempt: Attempt) -> bool:
        """Return whether a Bound pod may start again: not while its claim may still be applied."""
        if pod.status.phase != PodPhase.BOUND or pod.status.terminating:
            return False
        return subject_of_pod(*attempt) not in self._store.pending(self.machine.name)

    def _reconcile(self, now_ms: int) -> None:
        """Compare the pods that the store assigns to this node with the processes that run here."""
        waiting: list[Attempt] = []
        for pod in self._store.list("Pod"):
            assert isinstance(pod, Pod)
            status = pod.status
            attempt = (pod.metadata.uid, status.attempt)
            if status.node != self.machine.name or status.phase not in ON_NODE:
                continue
            if attempt in self.machine.horses:
                continue
            if status.phase == PodPhase.RUNNING:
                self._end(attempt, LOST)
            elif status.terminating:
                self._end(attempt, PodOutcome(stopped=status.reason))
            elif now_ms - (status.bound_at or 0) >= self._patience_ms:
                waiting.append(attempt)
        if waiting:
            self._store.enqueue(self.machine.name, waiting)

    def _end(self, attempt: Attempt, outcome: PodOutcome) -> None:
        uid, number = attempt
        report = Ended(pod=uid, attempt=number, outcome=outcome, author=self.identity)
        self._store.post(self.machine.name, report)
        self._store.end_lease(self.machine.name, uid, number)


def is_over(pod: Pod | None, node: str) -> bool:
    """Return whether the server knows that an attempt on this node has ended or is superseded."""
    return pod is None or pod.status.phase not in ON_NODE or pod.status.node != node
