"""`run_pod`: the one function that a work-horse runs.

RQ hands over a pod's uid and an attempt, nothing else; the agent has claimed the pod by then, and
what to run is in the memory that the work-horse was forked with. The work-horse starts the command,
watches over it and sees to the report of its end. A pod that ends at once is reported by the agent,
out of the run file: then the work-horse has had nothing to ask the server.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, structs

from batchq.api.node_report import Runs
from batchq.api.objects import Pod, PodGroup, Task
from batchq.api.reasons import Leaving
from batchq.api.transaction import fence_of
from batchq.errors import StoreUnavailable
from batchq.store.liveness import pid_of_server
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore, Renewal
from batchq.worker.agent.node import ServerWatch, agent_pid, withdraw
from batchq.worker.agent.start_claims import Claimed
from batchq.worker.host import processes
from batchq.worker.host.containment import OF_CHILDREN, Boundary, Enclosure
from batchq.worker.host.memory_limits import NOTHING_ENFORCED, UNBOUNDED, Enforcement
from batchq.worker.host.processes import Signals
from batchq.worker.rq.delivery import entry_point
from batchq.worker.workhorse import output_log, process
from batchq.worker.workhorse.guard import GuardPost
from batchq.worker.workhorse.output_log import LogFile, LogStream, PodLog
from batchq.worker.workhorse.process import CALLEE, Program, base_environment, pod_environment
from batchq.worker.workhorse.reporter import Messenger, ReportSender, monotonic_ms
from batchq.worker.workhorse.run_file import (
    NOT_FOUND,
    PodOutcome,
    RunFile,
    RunFiles,
    own_boot,
    started_ms,
)
from batchq.worker.workhorse.standby import Functions
from batchq.worker.workhorse.supervision import KILL_SIGNAL, STOP_SIGNAL, Lease, Limits, Supervisor

log = structlog.get_logger(__name__)

#: How long a work-horse tries to report; then the agent does it, out of the run file.
_REPORT_FOR_MS = 60_000
_REPORT_FOR_WHEN_STOPPING_MS = 5_000
_RETRY_FIRST_MS = 200
_RETRY_MOST_MS = 2_000
#: More output than this a work-horse sends itself.
_HANDED_OVER_MOST_BYTES = 64 * 1024
#: No message between agent and work-horse is longer.
_MOST_ORDER_BYTES = 1 << 20


class Harness(Struct, frozen=True, kw_only=True):
    """What the agent gives a work-horse on its way."""

    url: str
    node: str
    #: Who writes to the store: the agent's identity; the work-horse adds its pid.
    agent: str
    run_dir: Path
    log_dir: Path
    lease_ms: int
    gpus: str | None
    claimed: Claimed
    enforcement: Enforcement = NOTHING_ENFORCED
    boundary: Boundary = OF_CHILDREN
    post: GuardPost | None = None
    boot: str = ""
    #: Of the work-horse itself: what is around its pods, what forks functions, what it hands on of
    #: its environment, and when it was started.
    enclosure: Enclosure | None = None
    functions: Functions | None = None
    environment: Mapping[str, str] | None = None
    started_ms: int | None = None


#: Set in the work-horse for each pod: what it was given, and the signals it hears.
HARNESS: ContextVar[tuple[Harness, Signals]] = ContextVar("harness")


class NotEnded(Exception):
    """A pod has left processes that cannot be killed; its outcome is in the run file. The agent
    becomes their parent and sees to them, and to the report once there are none.
    """


class RunOrder(Struct, frozen=True, kw_only=True):
    """What is different from one pod to the next of the same agent."""

    claimed: Claimed
    gpus: str | None


def order_of(harness: Harness) -> bytes:
    """For a work-horse that is idle."""
    return msgspec.json.encode(RunOrder(claimed=harness.claimed, gpus=harness.gpus))


def serve(harness: Harness, signals: Signals, reins: socket.socket) -> None:
    """Run the pod that the work-horse was forked for, and others after it.

    After each, a byte tells the agent that it may send the next order; it lets go of the reins when
    there is no more to do. Raises NotEnded.
    """
    processes.put_on(processes.mark_of(harness.run_dir))
    enclosure = Enclosure(harness.boundary)
    functions = Functions(CALLEE, enclosure)
    harness = structs.replace(
        harness,
        enclosure=enclosure,
        functions=functions,
        environment=_environment_of(harness),
        started_ms=started_ms(os.getpid()),
    )
    try:
        while True:
            HARNESS.set((harness, signals))
            attempt = harness.claimed.attempt
            run_pod(attempt.pod, attempt.attempt)
            order = _next_order(signals, reins)
            if order is None:
                return
            harness = structs.replace(harness, claimed=order.claimed, gpus=order.gpus)
    finally:
        functions.close()
        enclosure.close()


def _next_order(signals: Signals, reins: socket.socket) -> RunOrder | None:
    poll = select.poll()
    poll.register(reins.fileno(), select.POLLIN)
    poll.register(signals.fileno(), select.POLLIN)
    # An agent that is gone shows as a broken pipe; as a reset, if it had not read that byte.
    with suppress(BrokenPipeError, ConnectionResetError):
        reins.send(b".")
        while not (signals.count(KILL_SIGNAL) or signals.count(STOP_SIGNAL)):
            heard = {descriptor for descriptor, _ in poll.poll()}
            if reins.fileno() in heard:
                told = reins.recv(_MOST_ORDER_BYTES)
                return msgspec.json.decode(told, type=RunOrder) if told else None
            signals.clear()
    return None


@entry_point.register
def run_pod(uid: str, attempt: int) -> None:
    """Run one attempt of a pod, which the agent has claimed, to the report of its end. Raises
    NotEnded.
    """
    harness, signals = HARNESS.get()
    structlog.contextvars.bind_contextvars(pod=uid, attempt=attempt)
    horse = WorkHorse(harness, signals)
    try:
        horse.run()
    finally:
        horse.close()
        structlog.contextvars.unbind_contextvars("pod", "attempt")


def _environment_of(harness: Harness) -> Mapping[str, str]:
    """What pods are given of this process's own environment."""
    return base_environment(os.environ, secrets=(harness.url,))


def author_of(agent: str, horse: int) -> str:
    """Who a work-horse is, in what it says: its agent's identity, and its pid."""
    return f"{agent}:{horse}"


def log_path(log_dir: Path, uid: str, attempt: int) -> Path:
    """The local file that holds the newest output of an attempt."""
    return log_dir / f"{uid}-{attempt}.log"


class WorkHorse:
    """One attempt of one pod, in a process of its own."""

    def __init__(self, harness: Harness, signals: Signals) -> None:
        self._harness = harness
        self._signals = signals
        claimed = harness.claimed
        self._pod, self._group = claimed.pod, claimed.group
        self._uid, self._attempt = claimed.attempt.pod, claimed.attempt.attempt
        self._author = author_of(harness.agent, os.getpid())
        self._files = RunFiles(harness.run_dir)
        #: Told to a server that was started anew, and not answered yet.
        self._says_it_runs = False
        self._lease_from = claimed.lease_from
        self._own_server = ServerWatch(lambda: pid_of_server(self._store.link))
        self._bounds = UNBOUNDED
        self._outage = Outage()
        #: What the command has left, and could not be killed.
        self._left: list[int] = []
        #: Once the command has run: what of its output has not been sent yet.
        self._messenger: Messenger | None = None
        self._run = RunFile(
            pod=self._uid,
            attempt=self._attempt,
            horse=os.getpid(),
            horse_started_ms=harness.started_ms or started_ms(os.getpid()) or 0,
            boot=harness.boot or own_boot(),
        )

    def run(self) -> None:
        """Run, report. Raises NotEnded."""
        outcome = self._outcome(self._pod, self._group)
        if self._left:
            self._note(outcome=outcome)
            self._keep_unsent()
            raise NotEnded(f"{len(self._left)} processes of its pod cannot be killed")
        if outcome is None:
            log.warning("pod superseded")
            self._let_go()
        else:
            self._report(outcome)

    def close(self) -> None:
        """Let go of the connection, if one was made."""
        if "_store" in self.__dict__:
            self._store.close()

    @cached_property
    def _store(self) -> RedisStore:
        """Connected at the first question; most pods that end at once never ask one."""
        return RedisStore(self._harness.url)

    @cached_property
    def _desk(self) -> ReportSender:
        return ReportSender(self._store, self._harness.node)

    def _let_go(self) -> None:
        """The attempt is somebody else's, or over: leave nothing of it behind."""
        self._files.forget(self._uid, self._attempt)
        with suppress(StoreUnavailable):
            self._desk.end_lease(self._uid, self._attempt)

    def _outcome(self, pod: Pod, group: PodGroup) -> PodOutcome | None:
        """Run the command; None if the attempt turns out to be superseded."""
        task = next((task for task in group.spec.tasks if task.name == pod.spec.task), None)
        if task is None:
            return PodOutcome(
                exit_code=NOT_FOUND, message=f"its group has no task {pod.spec.task!r}"
            )
        lease = Lease(now_ms=self._lease_from, lease_ms=self._harness.lease_ms)
        if self._signals.count(KILL_SIGNAL) or lease.is_lost(monotonic_ms()):
            return PodOutcome(stopped=Leaving.NODE_LOST, message="its node went away")
        self._bounds = self._harness.enforcement.bounds(
            f"{self._uid}-{self._attempt}", pod.spec.requests
        )
        try:
            program = Program(task.template)
        except process.NotStarted as failure:
            process.end_cgroup(self._bounds)
            return failure.outcome
        try:
            return self._outcome_of(program, task, lease)
        finally:
            program.close()

    def _outcome_of(self, program: Program, task: Task, lease: Lease) -> PodOutcome | None:
        pod, group, functions = self._pod, self._group, self._harness.functions
        try:
            command = process.start(
                program.argv,
                self._environment(pod, group, task),
                task.template.working_dir,
                stdin=program.stdin,
                bounds=self._bounds,
                until_ms=lease.guarded_until,
                post=self._harness.post,
                starter=functions.fork if functions and program.is_function else None,
                enclosure=self._harness.enclosure,
            )
        except process.NotStarted as failure:
            process.end_cgroup(self._bounds)
            return failure.outcome
        self._note(group=command.group, started_at=pod.status.started_at or 0)
        outcome = self._supervise(command, pod, group, lease)
        if outcome is None:
            return None
        outcome, result = program.settled(outcome)
        self._run = msgspec.structs.replace(self._run, result=result)
        return outcome

    def _supervise(
        self, command: process.Command, pod: Pod, group: PodGroup, lease: Lease
    ) -> PodOutcome | None:
        stream = LogStream()
        path = log_path(self._harness.log_dir, self._uid, self._attempt)
        self._messenger = Messenger(
            stream,
            renew=lambda: self._renew(fence_of(pod)),
            send=self._send,
            outage=self._outage,
        )
        supervisor = Supervisor(
            command,
            pod_log=PodLog(LogFile(path), stream),
            lease=lease,
            limits=Limits(
                grace_ms=pod.spec.termination_grace, walltime_ms=walltime_of_pod_ms(group)
            ),
            messenger=self._messenger,
            tell_stop=lambda reason: self._files.tell_stop(self._uid, self._attempt, reason),
            signals=self._signals,
            is_server_away=self._own_server.is_away,
        )
        outcome = supervisor.run()
        self._left = command.left
        return outcome

    def _send(self, stream: str, data: bytes) -> None:
        self._store.append_log(self._harness.node, self._uid, self._attempt, stream, data)

    def _renew(self, fence: str) -> Renewal:
        asked_at = monotonic_ms()
        lease_ms = self._harness.lease_ms
        try:
            renewal = self._store.renew(
                self._harness.node, self._uid, self._attempt, fence, lease_ms
            )
        except StoreUnavailable as trouble:
            self._own_server.lost(refused=trouble.lasts)
            raise
        self._own_server.heard()
        if renewal.word == "fenced" and self._may_be_forgotten():
            # No answer: the lease runs on, from when there was one.
            raise StoreUnavailable("the server was started anew, and does not know this attempt")
        self._says_it_runs = False
        self._lease_from = asked_at
        return renewal

    def _may_be_forgotten(self) -> bool:
        """Whether a server that does not know this attempt may only have forgotten it.

        It may have since it was started, until the node has told it everything. It is told that
        the attempt runs; what it says once that is folded is final.
        """
        if not self._run.group or self._store.alive.has_reported(self._harness.node):
            return False
        fact = Runs(
            pod=self._uid,
            attempt=self._attempt,
            author=self._author,
            started_at=self._run.started_at,
        )
        if not self._says_it_runs:
            self._desk.post(fact)
            self._says_it_runs = True
            return True
        return any(left.subject == fact.subject for left in self._desk.pending())

    def _environment(self, pod: Pod, group: PodGroup, task: Task) -> dict[str, str]:
        return pod_environment(
            self._harness.environment or _environment_of(self._harness),
            pod,
            group,
            task,
            gpus=self._harness.gpus,
            stop_file=self._files.stop_file(self._uid, self._attempt),
        )

    def _note(
        self,
        *,
        group: int = 0,
        started_at: int = 0,
        outcome: PodOutcome | None = None,
        hands_over: bool = False,
    ) -> None:
        self._run = msgspec.structs.replace(
            self._run,
            group=group or self._run.group,
            started_at=started_at or self._run.started_at,
            outcome=outcome,
            hands_over=hands_over,
        )
        self._files.write(self._run)

    def _report(self, outcome: PodOutcome) -> None:
        """Report the end, patiently; what cannot be reported is left in the run file."""
        if self._may_hand_over():
            if self._messenger is not None and self._messenger.rest():
                self._keep_unsent()
            self._note(outcome=outcome, hands_over=True)
            log.info("pod ended", exit_code=outcome.exit_code, stopped=outcome.stopped)
            return
        self._note(outcome=outcome)
        since = monotonic_ms()
        backoff = Backoff(first_ms=_RETRY_FIRST_MS, longest_ms=_RETRY_MOST_MS)
        while True:
            try:
                self._tell(outcome)
            except StoreUnavailable as trouble:
                self._outage.failed(trouble)
                self._keep_unsent()
                if monotonic_ms() - since >= self._patience_ms():
                    log.warning("end not reported", trouble=trouble.message)
                    return
                self._signals.wait(backoff.next_ms() / 1000)
                continue
            self._outage.succeeded()
            log.info("pod ended", exit_code=outcome.exit_code, stopped=outcome.stopped)
            output_log.keep(self._files.unsent_file(self._uid, self._attempt), ())
            return

    def _may_hand_over(self) -> bool:
        """Whether the agent is to report: it lives, nothing has been sent yet, and it is little."""
        if self._signals.count(KILL_SIGNAL) or os.getppid() != agent_pid(self._harness.agent):
            return False
        if self._messenger is None:
            return True
        size = sum(len(data) for _, data in self._messenger.rest())
        return not self._messenger.has_started and size <= _HANDED_OVER_MOST_BYTES

    def _tell(self, outcome: PodOutcome) -> None:
        """Output and result first: whoever sees the end may read all of them.

        The run file stays: the agent lets go of it when it sees the end, and says it again until
        then.
        """
        if self._messenger is not None:
            self._messenger.send_rest()
        if self._run.result is not None:
            node = self._harness.node
            self._store.put_result(node, self._uid, self._attempt, self._run.result)
        self._withdraw_if_orphaned()
        self._desk.ended(self._uid, self._attempt, outcome, author=self._author)

    def _withdraw_if_orphaned(self) -> None:
        """A node whose agent is dead would be given this very pod again.

        A parent that lives is this process's parent, whatever the clocks say; and a node that
        another agent has taken over is left alone.
        """
        if os.getppid() != agent_pid(self._harness.agent):
            withdraw(self._store, self._harness.node, agent=self._harness.agent)

    def _keep_unsent(self) -> None:
        """For the agent, should this process not live to send it."""
        if self._messenger is not None:
            path = self._files.unsent_file(self._uid, self._attempt)
            output_log.keep(path, self._messenger.rest())

    def _patience_ms(self) -> int:
        """An agent that is to go is not kept waiting by a server that is away."""
        if self._signals.count(KILL_SIGNAL):
            return 0
        if self._signals.count(STOP_SIGNAL):
            return _REPORT_FOR_WHEN_STOPPING_MS
        return _REPORT_FOR_MS


def walltime_of_pod_ms(group: PodGroup) -> int | None:
    """The walltime of each pod of an array; the scheduler sees to that of every other group.

    An array is a group with `minMember: 1` and more replicas.
    """
    replicas = sum(task.replicas for task in group.spec.tasks)
    return group.spec.walltime if group.spec.min_member == 1 and replicas > 1 else None
