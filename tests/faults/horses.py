"""A work-horse as a small state machine, which follows the real one step by step.

It starts the command of a claimed attempt, and reports the end, or leaves the report to its agent.
The agent vouches for it; it renews the lease itself while the agent does not. The lease runs from
the time of the request; the work-horse kills the pod before the lease ends. What it writes to its
run file survives it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from msgspec import Struct

from batchq.api.node_report import Ended, PodAttempt, PodOutcome, Runs
from batchq.api.objects import PodGroup
from batchq.api.reasons import Finish, Leaving
from batchq.api.transaction import fence_of
from batchq.errors import StoreUnavailable
from batchq.ports import Clock
from batchq.worker.agent.messages import EndRecord, HorseEnd, StartPod
from batchq.worker.agent.node import withdraw
from batchq.worker.agent.pod_states import patience_ms
from batchq.worker.workhorse.leases import Lease, Voucher
from batchq.worker.workhorse.supervision import AgentContact
from tests.faults.machines import Machine, Process
from tests.faults.server import FaultyStore


class HorsePaces(Struct, frozen=True, kw_only=True):
    """Intervals of a work-horse, and the length of a lease; milliseconds."""

    lease_ms: int = 12_000
    turn_ms: int = 2_000
    look_ms: int = 1_000
    report_for_ms: int = 15_000


class Stage(Enum):
    """The state of a work-horse."""

    RUNS = "runs"
    REPORTS = "reports"
    GONE = "gone"


class Horse:
    """One claimed attempt of one pod: run it, and report its end."""

    def __init__(
        self,
        store: FaultyStore,
        machine: Machine,
        clock: Clock,
        *,
        start: StartPod,
        agent: str,
        author: str,
        voucher: Voucher,
        paces: HorsePaces,
        say: Callable[[str], None],
    ) -> None:
        self.attempt: PodAttempt = start.attempt
        self.author = author
        self.stage = Stage.RUNS
        self.process: Process | None = None
        self.due_at = clock.now_ms()
        self._start = start
        self._agent = agent
        self._store = store
        self._machine = machine
        self._clock = clock
        self._paces = paces
        self._say = say
        self._lease = Lease(now_ms=start.lease_from, lease_ms=paces.lease_ms)
        self.voucher = voucher
        self._own_server = store.watch()
        self._contact = AgentContact(voucher, server=self._own_server, lease_ms=paces.lease_ms)
        self.on_end = machine.on_horse_end
        self._outcome: PodOutcome | None = None
        self._renew_at = 0
        self._has_renewed = False
        self._kill_at: int | None = None
        self._exits_at: int | None = None
        self._stopped = ""
        self._started_at = 0
        self._report_until = 0
        #: Until when it is stopped, and since when; while it is, its guard acts for it.
        self._paused_until = self._paused_at = 0
        #: Reported to a restarted server, and not acknowledged yet.
        self._says_it_runs = False
        self._walltime_ms = _walltime_of_pod(start.group)

    @property
    def alive(self) -> bool:
        return self.stage != Stage.GONE

    def begin(self) -> None:
        """Start the command, as the first thing that the new process does."""
        now_ms = self._clock.now_ms()
        if self._lease.is_lost(now_ms):
            self._has_ended(PodOutcome(stopped=Leaving.NODE_LOST, message="its node went away"))
            return
        self.process = self._machine.truth.start(self._machine, self._start.pod)
        self._say(f"{self.author} starts {self.attempt.id}")
        self._started_at = now_ms
        self._exits_at = self.process.ends_at
        self._plan(now_ms)

    def wake(self) -> None:
        """Receive the agent's signal."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._paused_until:
            self.due_at = min(self.due_at, now_ms)

    def step(self) -> None:
        """Do the work that is due now, and set when the next is due."""
        now_ms = self._clock.now_ms()
        if now_ms < self._paused_until:
            self._be_paused(now_ms)
            return
        self.due_at = now_ms + self._paces.look_ms
        match self.stage:
            case Stage.RUNS:
                self._run(now_ms)
            case Stage.REPORTS:
                self._report(now_ms)
            case Stage.GONE:
                pass

    def _run(self, now_ms: int) -> None:
        if self.process is None:
            self._has_ended(PodOutcome(exit_code=137, signal=9, stopped=Leaving.NODE_LOST))
            return
        self._contact.sign(now_ms)
        reason = self._contact.hear(self._lease)
        if self._contact.is_server_away(now_ms):
            self._lease.extend(asked_at=now_ms)
        if self._lease.is_lost(now_ms):
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
        if reason:
            self._stop(reason, now_ms)
        if now_ms >= self._renew_at and self._contact.is_lost(now_ms):
            self._renew_at = now_ms + self._paces.look_ms
            self._renew(now_ms)
        if self.stage == Stage.RUNS:
            self._plan(now_ms)

    def _renew(self, now_ms: int) -> None:
        fence = fence_of(self._start.pod)
        try:
            answer = self._store.renew(
                self._machine.name, self.attempt, fence, now_ms + self._paces.lease_ms
            )
        except StoreUnavailable:
            self._own_server.lost()
            return
        self._own_server.heard()
        self._has_renewed = True
        if answer.word == "fenced":
            if not self._may_be_forgotten():
                self._end_process(by_itself=False)
                self._forget("fenced")
            return
        self._says_it_runs = False
        self._lease.extend(asked_at=now_ms)
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
            reports = self._store.pending(self._machine.name)
            return any(report.subject == runs.subject for report in reports)
        except StoreUnavailable:
            return True

    def _stop(self, reason: str, now_ms: int) -> None:
        """Send SIGTERM: the command takes its time to stop, at most the grace period."""
        if self._stopped or self.process is None:
            return
        self._stopped = reason
        self._kill_at = now_ms + self._start.pod.spec.termination_grace
        self._exits_at = min(now_ms + self.process.stops_in_ms, self.process.ends_at)

    def _plan(self, now_ms: int) -> None:
        due = [now_ms + self._paces.turn_ms, self._lease.ends_at - self._lease.margin_ms]
        if self._contact.is_lost(now_ms):
            due.append(self._renew_at)
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
            self._say(f"{self.author} {self.attempt.id} has ended")
            self.process = None

    def _has_ended(self, outcome: PodOutcome) -> None:
        """Record the outcome. The agent reports it if nothing was sent to the server yet."""
        self._outcome = outcome
        hands_over = self._machine.agent_lives and not self._has_renewed
        self._machine.records[self.attempt] = EndRecord(outcome=outcome, hands_over=hands_over)
        if hands_over:
            self._leave(0)
            return
        self.stage = Stage.REPORTS
        now_ms = self._clock.now_ms()
        self._report_until = now_ms + self._paces.report_for_ms
        self.due_at = now_ms

    def _report(self, now_ms: int) -> None:
        """Report the end, and try again for a while. The run file stays until the agent sees the
        end.
        """
        assert self._outcome is not None
        report = Ended(
            pod=self.attempt.pod,
            attempt=self.attempt.attempt,
            outcome=self._outcome,
            author=self.author,
        )
        try:
            if not self._machine.agent_lives:
                withdraw(self._store, self._machine.name, agent=self._agent)  # type: ignore[arg-type]
            self._store.end(self._machine.name, [report])
        except StoreUnavailable:
            if now_ms >= self._report_until:
                self._leave(0)
            return
        self._say(f"{self.author} {self.attempt.id} has reported its end")
        self._leave(0)

    def _leave(self, exit_code: int) -> None:
        self.stage = Stage.GONE
        record = self._machine.records.get(self.attempt)
        end = HorseEnd(attempt=self.attempt, exit_code=exit_code, record=record)
        self._machine.horse_ended(self, end)

    def _forget(self, why: str) -> None:
        self._say(f"{self.author} {self.attempt.id}: {why}")
        self._machine.records.pop(self.attempt, None)
        # The agent finds leases of attempts that do not run here.
        with suppress(StoreUnavailable):
            self._store.end_leases(self._machine.name, [self.attempt])
        self._leave(0)

    def pause(self, lasts_ms: int) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self._paused_at = self._clock.now_ms()
        self._paused_until = self._paused_at + lasts_ms
        self._be_paused(self._paused_at)

    def _be_paused(self, now_ms: int) -> None:
        """The guard kills the pod at the end of its lease, and the agent the work-horse."""
        machine = self._machine
        killed_at = self._paused_at + patience_ms(self._paces.lease_ms)
        killed_at = max(killed_at, machine.agent_is_stopped_until)
        if now_ms >= killed_at and machine.agent_lives:
            self.kill()
            return
        if self.process is not None and now_ms >= self._lease.guarded_until:
            self._end_process(by_itself=False)
        due = [self._paused_until, killed_at, self._lease.guarded_until]
        self.due_at = min((at for at in due if at > now_ms), default=now_ms + 1)

    def kill(self) -> None:
        """SIGKILL: the kernel and the guard end the pod's processes."""
        self._end_process(by_itself=False)
        self._leave(-9)

    def stop(self, *, kills: bool) -> None:
        """Its agent stops: stop the pod with its grace period, or kill it."""
        if self.stage == Stage.RUNS and kills:
            self._kill(Leaving.NODE_LOST)
        elif self.stage == Stage.RUNS:
            self._stop(Leaving.NODE_LOST, self._clock.now_ms())
            self._plan(self._clock.now_ms())

    def end_at_once(self) -> None:
        """Its agent has died: end the pod, and try once to report that and to withdraw the node."""
        if self.stage == Stage.RUNS:
            self._kill(Leaving.NODE_LOST)
        self._report_until = 0

    def freeze(self) -> None:
        """The machine freezes."""
        if self.process is not None:
            self._machine.truth.suspend(self.process)

    def thaw(self) -> None:
        """The machine resumes; the work-horse first checks its lease."""
        if self.process is None:
            return
        self._contact.hear(self._lease)
        if self._lease.is_lost(self._clock.now_ms()):
            self.process = None
            self._has_ended(PodOutcome(exit_code=137, signal=9, stopped=Leaving.NODE_LOST))
        else:
            self._machine.truth.resume(self._machine, self.process)

    def runs(self) -> Runs | None:
        """Return the report of this run to a server that may have forgotten it."""
        if self.stage != Stage.RUNS:
            return None
        uid, number = self.attempt.pod, self.attempt.attempt
        return Runs(pod=uid, attempt=number, author=self.author, started_at=self._started_at)


def _walltime_of_pod(group: PodGroup) -> int | None:
    """Return the walltime of each pod of an array; the scheduler enforces all others."""
    replicas = sum(task.replicas for task in group.spec.tasks)
    return group.spec.walltime if group.spec.min_member == 1 and replicas > 1 else None
