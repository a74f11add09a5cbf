"""`run_pod`, the function that a work-horse runs.

RQ delivers only a pod's uid and an attempt. The agent has claimed the pod by then, and the
work-horse was forked with everything it needs to know about the pod in its memory. It starts the
command, supervises it, and sees that its end is reported. If a pod ends at once, the agent reports
it from the run file, and the work-horse never contacts the server.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from signal import Signals as Signal

import msgspec
from msgspec import Struct, structs

from batchq.api.access import digest_of_secret, token_text
from batchq.api.node_features import runtime_of
from batchq.api.node_report import PodAttempt, Runs
from batchq.api.objects import Container, Pod, PodGroup, PodTemplate, StopWarning, Task
from batchq.api.reasons import Leaving
from batchq.api.transaction import fence_of
from batchq.errors import StoreUnavailable
from batchq.store.liveness import pid_of_server
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import RedisStore, Renewal
from batchq.system import structlog
from batchq.worker.agent.messages import StartPod
from batchq.worker.agent.node import agent_pid, withdraw
from batchq.worker.host import privileges, processes
from batchq.worker.host.accounts import NoAccount, PodAccounts
from batchq.worker.host.containment import OF_CHILDREN, Boundary, Enclosure
from batchq.worker.host.device_pool import inherited_locks
from batchq.worker.host.node_resources import NOTHING_ENFORCED, UNBOUNDED, Enforcement, device_nodes
from batchq.worker.host.privileges import Account
from batchq.worker.host.processes import Signals
from batchq.worker.rendezvous import (
    RendezvousFiles,
    is_mpi,
    launch_environment,
    unreachable,
    waiting_for_pod_0,
)
from batchq.worker.rq_delivery import entry_point
from batchq.worker.workhorse import process, reporter
from batchq.worker.workhorse.container_commands import (
    ContainerHost,
    PodProgram,
    activated,
    contained,
    files_of,
    start_failure,
)
from batchq.worker.workhorse.guard import GuardPost
from batchq.worker.workhorse.inner_commands import (
    InnerCommands,
    InnerOrder,
    PodInterior,
    RunOrder,
    receive_order,
    refuse,
)
from batchq.worker.workhorse.leases import Lease, ServerWatch, Voucher
from batchq.worker.workhorse.process import (
    CALLEE,
    Program,
    base_environment,
    pod_environment,
    without_person,
)
from batchq.worker.workhorse.reporter import (
    LogFile,
    LogStream,
    Messenger,
    PodLog,
    ReportSender,
    author_of,
    monotonic_ms,
)
from batchq.worker.workhorse.run_file import (
    NO_CONTAINER,
    NOT_EXECUTABLE,
    NOT_FOUND,
    PodOutcome,
    RunFile,
    RunFiles,
    StartReport,
    own_boot,
    started_ms,
)
from batchq.worker.workhorse.standby import Functions
from batchq.worker.workhorse.supervision import (
    KILL_SIGNAL,
    STOP_SIGNAL,
    AgentContact,
    Limits,
    Supervisor,
)

log = structlog.get_logger(__name__)

#: How long a work-horse tries to report; after that the agent reports from the run file.
_REPORT_FOR_MS = 60_000
_REPORT_FOR_WHEN_STOPPING_MS = 5_000
_RETRY_FIRST_MS = 200
_RETRY_MAX_MS = 2_000
#: A work-horse sends more output than this itself.
_HANDED_OVER_MAX_BYTES = 64 * 1024


class Harness(Struct, frozen=True, kw_only=True):
    """What the agent gives to a work-horse."""

    url: str
    node: str
    #: The author of the work-horse's reports: the agent's identity, to which the work-horse adds
    #: its pid.
    agent: str
    run_dir: Path
    log_dir: Path
    lease_ms: int
    start: StartPod
    #: The variables that name the pod's devices, and the descriptors of their locks, by device.
    visible: Mapping[str, str] = {}
    locks: Mapping[str, int] = {}
    enforcement: Enforcement = NOTHING_ENFORCED
    boundary: Boundary = OF_CHILDREN
    post: GuardPost | None = None
    boot: str = ""
    #: The address of the HTTP API, for pods with a token; "" if the agent knows none.
    api_server: str = ""
    #: How to find the account that runs a pod; None: the agent's own runs all.
    accounts: PodAccounts | None = None
    #: Where the agent vouches for this work-horse; None if it does not.
    voucher: Voucher | None = None
    #: Set by the work-horse itself: the enclosure of its pods, the starter of functions, the part
    #: of its environment that pods get, and when it was started.
    enclosure: Enclosure | None = None
    functions: Functions | None = None
    environment: Mapping[str, str] | None = None
    started_ms: int | None = None


#: Set in the work-horse for each pod: its harness, the signals it receives, and the socket to its
#: agent.
HARNESS: ContextVar[tuple[Harness, Signals, socket.socket]] = ContextVar("harness")


class NotEnded(Exception):
    """A pod has left processes that cannot be killed; its outcome is in the run file.

    The agent becomes their parent, ends them, and reports the pod once none remains.
    """


def order_of(harness: Harness) -> bytes:
    """Return the encoded order for an idle work-horse."""
    order = RunOrder(start=harness.start, visible=harness.visible, locks=harness.locks)
    return msgspec.json.encode(order)


def serve(harness: Harness, signals: Signals, control: socket.socket) -> None:
    """Run the pod that the work-horse was forked for, and then every pod that the agent sends.

    After each pod, a byte on the control socket tells the agent that it may send the next order;
    the work-horse closes the socket when it has no more to do. Raise NotEnded.
    """
    processes.set_mark(processes.mark_of(harness.run_dir))
    if harness.voucher is not None:
        harness.voucher.keep_from_children()
    enclosure = Enclosure(harness.boundary)
    environment = _environment_of(harness)
    functions = Functions(CALLEE, enclosure, environment)
    harness = structs.replace(
        harness,
        enclosure=enclosure,
        functions=functions,
        environment=environment,
        started_ms=started_ms(os.getpid()),
    )
    try:
        while True:
            HARNESS.set((harness, signals, control))
            attempt = harness.start.attempt
            outcome = run_pod(attempt.pod, attempt.attempt)
            # The next pod may wait for this, and for nothing of what follows.
            has_agent = _announce_end(control)
            if outcome is not None:
                how = {"exit_code": outcome.exit_code, "stopped": outcome.stopped}
                log.info("pod ended", pod=attempt.pod, attempt=attempt.attempt, **how)
            if not has_agent:
                return
            functions.fork_ahead()
            order = _next_order(signals, control)
            if order is None:
                return
            harness = structs.replace(
                harness, start=order.start, visible=order.visible, locks=order.locks
            )
    finally:
        functions.close()
        enclosure.close()


def _announce_end(control: socket.socket) -> bool:
    """Tell the agent that it may send the next order; return whether there is an agent."""
    # If it is gone, the send fails with a broken pipe, or with a reset if the last byte is unread.
    with suppress(BrokenPipeError, ConnectionResetError):
        return control.send(b".") > 0
    return False


def _next_order(signals: Signals, control: socket.socket) -> RunOrder | None:
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    poll.register(signals.fileno(), select.POLLIN)
    with suppress(BrokenPipeError, ConnectionResetError):
        while not (signals.count(KILL_SIGNAL) or signals.count(STOP_SIGNAL)):
            readable = {descriptor for descriptor, _ in poll.poll()}
            if control.fileno() in readable:
                order, descriptors = receive_order(control)
                if not isinstance(order, InnerOrder):
                    return order
                # It was for the pod that has just ended.
                refuse(descriptors)
            signals.clear()
    return None


@entry_point.register
def run_pod(uid: str, attempt: int) -> PodOutcome | None:
    """Run one claimed attempt of a pod, up to the report of its end; return its outcome, None if
    it could not be reported or the attempt is superseded. Raise NotEnded.
    """
    harness, signals, control = HARNESS.get()
    structlog.contextvars.bind_contextvars(pod=uid, attempt=attempt)
    horse = WorkHorse(harness, signals, control)
    try:
        return horse.run()
    finally:
        horse.close()
        structlog.contextvars.unbind_contextvars("pod", "attempt")


def _environment_of(harness: Harness) -> Mapping[str, str]:
    """Return the part of this process's environment that pods get."""
    return base_environment(os.environ, secrets=(harness.url,))


def log_path(log_dir: Path, uid: str, attempt: int) -> Path:
    """Return the path of the local file with the newest output of an attempt."""
    return log_dir / f"{uid}-{attempt}.log"


class WorkHorse:
    """One attempt of one pod, in a process of its own."""

    def __init__(self, harness: Harness, signals: Signals, control: socket.socket) -> None:
        self._harness = harness
        self._signals = signals
        self._control = control
        start = harness.start
        self._pod, self._group = start.pod, start.group
        self._uid, self._attempt = start.attempt.pod, start.attempt.attempt
        self._author = author_of(harness.agent, os.getpid())
        self._files = RunFiles(harness.run_dir)
        #: Whether a `Runs` report for a restarted server is posted and not answered yet.
        self._has_posted_runs = False
        self._own_server = ServerWatch(
            lambda: pid_of_server(self._store.link),
            connections=lambda: self._store.link.connections,
        )
        self._bounds = UNBOUNDED
        #: The account that runs the pod; None: this process's own.
        self._account: Account | None = None
        #: The pipe to the input of the command, if that stays open: its ends.
        self._input: tuple[int, int] | None = None
        #: Whether the program of the pod's container was executed; None without a container.
        self._start_report: StartReport | None = None
        self._outage = Outage()
        #: Processes that the command has left and that could not be killed.
        self._left: list[int] = []
        #: Set once the command runs; holds the output that has not been sent yet.
        self._messenger: Messenger | None = None
        self._run = RunFile(
            pod=self._uid,
            attempt=self._attempt,
            horse=os.getpid(),
            horse_started_ms=harness.started_ms or started_ms(os.getpid()) or 0,
            boot=harness.boot or own_boot(),
        )

    def run(self) -> PodOutcome | None:
        """As `run_pod`."""
        outcome = self._outcome(self._pod, self._group)
        if self._left:
            self._write_run_file(outcome=outcome)
            self._keep_unsent()
            raise NotEnded(f"{len(self._left)} processes of its pod cannot be killed")
        if outcome is None:
            log.warning("pod superseded")
            self._forget()
            return None
        return outcome if self._report(outcome) else None

    def close(self) -> None:
        """Close the connection, if there is one; the next request opens another."""
        self.__dict__.pop("_reports", None)
        store: RedisStore | None = self.__dict__.pop("_store", None)
        if store is not None:
            store.close()
            self._own_server.lost()

    @cached_property
    def _store(self) -> RedisStore:
        """Connect on first use; a pod that ends at once, or writes nothing, needs no connection."""
        return RedisStore(self._harness.url)

    @cached_property
    def _reports(self) -> ReportSender:
        return ReportSender(self._store, self._harness.node)

    def _forget(self) -> None:
        """Remove the files and the lease of an attempt that is superseded or over."""
        self._files.forget(self._uid, self._attempt)
        with suppress(StoreUnavailable):
            self._reports.end_lease(self._uid, self._attempt)

    def _outcome(self, pod: Pod, group: PodGroup) -> PodOutcome | None:
        """Run the command, and return its outcome; None if the attempt is superseded."""
        task = next((task for task in group.spec.tasks if task.name == pod.spec.task), None)
        if task is None:
            return PodOutcome(
                exit_code=NOT_FOUND, message=f"its group has no task {pod.spec.task!r}"
            )
        if self._harness.accounts is not None:
            try:
                self._account = self._files.reader = self._harness.accounts.of(group)
            except NoAccount as why:
                return PodOutcome(exit_code=NOT_EXECUTABLE, message=str(why))
        lease = Lease(now_ms=self._harness.start.lease_from, lease_ms=self._harness.lease_ms)
        if self._signals.count(KILL_SIGNAL) or lease.is_lost(monotonic_ms()):
            return PodOutcome(stopped=Leaving.NODE_LOST, message="its node went away")
        bounds = self._harness.enforcement.bounds(f"{self._uid}-{self._attempt}", pod.spec.requests)
        locks = inherited_locks(self._harness.locks)
        self._bounds = structs.replace(bounds, locks=locks) if locks else bounds
        try:
            program = Program(task.template)
        except process.NotStarted as failure:
            process.end_cgroup(self._bounds)
            return failure.outcome
        try:
            return self._run_program(program, task, lease)
        finally:
            program.close()
            if self._start_report is not None:
                self._start_report.close()
            for descriptor in self._input or ():
                os.close(descriptor)

    def _run_program(self, program: Program, task: Task, lease: Lease) -> PodOutcome | None:
        pod, group = self._pod, self._group
        # A process that forks the functions of one account must not fork those of another, and it
        # has the agent's own interpreter.
        functions = self._harness.functions
        if self._account is not None or task.template.env_activate or task.template.container:
            functions = None
        try:
            files = self._rendezvous_files(group)
            launch = self._launch_environment(pod, group, files)
            environment = self._environment(pod, group, task, launch)
            environment |= self._access_to_api(group)
            plain = self._activated(program, task.template, environment)
            if files is not None and is_mpi(group) and launch["BATCHQ_RANK"] != "0":
                plain = structs.replace(plain, argv=waiting_for_pod_0(files))
            container = task.template.container
            host = self._container_host(container, environment)
            runs = contained(plain, container, host)
            if task.template.stdin:
                self._input = os.pipe2(os.O_CLOEXEC)
                # A program may open /dev/stdin, which the kernel treats like a file.
                privileges.give(self._input[0], self._account)
            command = process.start(
                runs.argv,
                runs.environment,
                runs.folder,
                stdin=program.stdin if self._input is None else self._input[0],
                bounds=self._bounds,
                until_ms=lease.guarded_until,
                post=self._harness.post,
                starter=functions.fork if functions and program.is_function else None,
                enclosure=self._harness.enclosure,
                account=self._account,
                spares_leader=runs.spares_leader,
            )
        except process.NotStarted as failure:
            process.end_cgroup(self._bounds)
            return failure.outcome
        self._write_run_file(group=command.group, started_at=pod.status.started_at or 0)
        interior = PodInterior(
            environment=plain.environment,
            working_dir=task.template.working_dir,
            container=container,
            host=host and structs.replace(host, report=""),
            bounds=self._bounds,
            enclosure=self._harness.enclosure or Enclosure(),
            post=self._harness.post,
            account=self._account,
            input=None if self._input is None else self._input[1],
        )
        outcome = self._supervise(command, pod, group, lease, interior)
        if outcome is None:
            return None
        if self._start_report is not None and not (outcome.stopped or outcome.signal):
            outcome = self._outcome_of_container(self._start_report, outcome)
        outcome, result = program.resolve(outcome)
        if outcome.exit_code and not outcome.stopped and self._bounds.memory_bytes is not None:
            refusal = self._bounds.refusal(self._end_of_output())
            outcome = process.explained(outcome, outcome.message, refusal)
        self._run = msgspec.structs.replace(self._run, result=result)
        return outcome

    def _activated(
        self, program: Program, template: PodTemplate, environment: Mapping[str, str]
    ) -> PodProgram:
        """Return the program in its environment of Python, if it names one. Raises NotStarted."""
        argv, folder = program.argv, template.env_activate
        if folder:
            # No right is raised: the pod must not learn of folders that its account may not see.
            is_conda = os.path.isdir(f"{folder}/conda-meta")  # noqa: PTH112 - never raises
            if not self._may_be_there(f"{folder}/bin", is_folder=True):
                message = f"envActivate {folder} is no environment on this node: it has no bin"
                raise process.NotStarted(PodOutcome(exit_code=NOT_EXECUTABLE, message=message))
            environment = activated(environment, folder, is_conda=is_conda)
            if program.is_function:
                argv = (f"{folder}/bin/python", *argv[1:])
        return PodProgram(argv=argv, environment=environment, folder=template.working_dir)

    def _may_be_there(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a path exists, as a folder if that is asked for; or something could be
        there that only the pod's account sees.
        """
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - as it is written
            return stat.S_ISDIR(mode) or not is_folder
        except PermissionError:
            return self._account is not None
        except (OSError, ValueError):
            return False

    def _container_host(
        self, container: Container | None, environment: Mapping[str, str]
    ) -> ContainerHost | None:
        """Return what this node gives to the pod's container; None without one.

        Raises NotStarted.
        """
        if container is None:
            return None
        name = runtime_of(container)
        program, message = shutil.which(name), ""
        if program is None:
            message = f"its container needs {name}, which this node does not have"
        for what, path in files_of(container):
            if not message and not self._may_be_there(path):
                message = f"the {what} {path} of its container is not on this node"
        if program is None or message:
            raise process.NotStarted(PodOutcome(exit_code=NO_CONTAINER, message=message))
        if name == "bwrap":
            try:
                self._start_report = self._files.start_report(self._uid, self._attempt)
            except OSError as trouble:
                log.warning("start not reported", trouble=str(trouble))
        return ContainerHost(
            program=program,
            run_dir=str(self._harness.run_dir),
            nodes=device_nodes(environment),
            gpus=tuple(filter(None, environment.get("BATCHQ_GPU_UUIDS", "").split(","))),
            report="" if self._start_report is None else self._start_report.path,
            is_root=(os.geteuid() if self._account is None else self._account.uid) == 0,
        )

    def _outcome_of_container(self, report: StartReport, outcome: PodOutcome) -> PodOutcome:
        """Return the outcome of the container's program, or why it was not executed."""
        if report.has_run():
            return outcome
        return start_failure(self._end_of_output())

    def _end_of_output(self) -> str:
        return reporter.end_of_log(log_path(self._harness.log_dir, self._uid, self._attempt))

    def _access_to_api(self, group: PodGroup) -> dict[str, str]:
        """Return the variables by which the pod finds the HTTP API and its token, if its group asks
        for one. The digest of the token is kept before the pod starts. Raises NotStarted.
        """
        if not group.spec.token:
            return {}
        secret = secrets.token_urlsafe(32)
        text = token_text("pod", f"{self._uid}-{self._attempt}", secret)
        self._run = structs.replace(self._run, token=digest_of_secret(secret))
        attempt = PodAttempt(self._uid, self._attempt)
        try:
            path = self._files.write_token(self._uid, self._attempt, text)
            self._store.alive.put_token(self._harness.node, attempt, self._run.token)
        except OSError as trouble:
            raise process.NotStarted(
                PodOutcome(
                    exit_code=NOT_EXECUTABLE,
                    message=f"the file of its token cannot be written: {trouble.strerror}",
                )
            ) from trouble
        except StoreUnavailable as trouble:
            message = f"its token cannot be kept: {trouble.message}"
            if trouble.lasts:
                raise process.NotStarted(
                    PodOutcome(exit_code=NOT_EXECUTABLE, message=message)
                ) from trouble
            lost = PodOutcome(stopped=Leaving.NODE_LOST, message=message)
            raise process.NotStarted(lost) from trouble
        finally:
            # Most pods need no connection after this.
            self.close()
        server = self._harness.api_server
        return {"BATCHQ_TOKEN_FILE": str(path)} | ({"BATCHQ_SERVER": server} if server else {})

    def _supervise(
        self,
        command: process.Command,
        pod: Pod,
        group: PodGroup,
        lease: Lease,
        interior: PodInterior,
    ) -> PodOutcome | None:
        stream = LogStream()
        path = log_path(self._harness.log_dir, self._uid, self._attempt)
        agent = AgentContact(
            self._harness.voucher, server=self._own_server, lease_ms=self._harness.lease_ms
        )
        self._messenger = Messenger(
            stream,
            must_renew=lambda: agent.is_lost(monotonic_ms()),
            renew=lambda: self._renew(fence_of(pod)),
            send=self._send,
            disconnect=self.close,
            outage=self._outage,
        )
        supervisor = Supervisor(
            command,
            pod_log=PodLog(LogFile(path), stream),
            lease=lease,
            limits=Limits(
                grace_ms=pod.spec.termination_grace,
                walltime_ms=walltime_of_pod_ms(group),
                warning=warning_of(group),
                warn_at=self._warn_at(group),
            ),
            messenger=self._messenger,
            agent=agent,
            write_stop=lambda reason: self._files.write_stop(self._uid, self._attempt, reason),
            signals=self._signals,
            inner=InnerCommands(self._control, interior),
        )
        outcome = supervisor.run()
        self._left = command.left
        return outcome

    def _warn_at(self, group: PodGroup) -> int | None:
        """Return the instant (monotonic) of a gang's warning before its walltime is over."""
        warn, walltime = warning_spec(group), group.spec.walltime
        if warn is None or walltime is None:
            return None
        runs_ms = 0
        if group.status.started_at is not None:
            with suppress(StoreUnavailable):
                runs_ms = self._store.now_ms() - group.status.started_at
            self.close()
        return monotonic_ms() + walltime - warn.before - runs_ms

    def _send(self, stream: str, data: bytes) -> None:
        self._store.append_log(self._harness.node, self._uid, self._attempt, stream, data)

    def _renew(self, fence: str) -> Renewal:
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
            # Without an answer the lease runs on from its last renewal.
            raise StoreUnavailable("the server was restarted and does not know this attempt")
        self._has_posted_runs = False
        return renewal

    def _may_be_forgotten(self) -> bool:
        """Return whether a server that does not know this attempt may only have forgotten it.

        A restarted server may have lost the attempt until the node has reported everything to it.
        Post a report that the attempt runs; the server's answer is final once that report is
        applied.
        """
        if not self._run.group or self._store.alive.has_reported(self._harness.node):
            return False
        report = Runs(
            pod=self._uid,
            attempt=self._attempt,
            author=self._author,
            started_at=self._run.started_at,
            devices=tuple(self._harness.locks),
        )
        if not self._has_posted_runs:
            self._reports.post(report)
            self._has_posted_runs = True
            return True
        return any(pending.subject == report.subject for pending in self._reports.pending())

    def _rendezvous_files(self, group: PodGroup) -> RendezvousFiles | None:
        """Write the files by which a pod of a gang with `spec.launch` finds the others; return None
        if it has none. Raise NotStarted.
        """
        peers = self._harness.start.peers
        if not peers:
            return None
        message = unreachable(peers)
        if is_mpi(group) and not self._harness.api_server:
            message = (
                "its gang is started by MPI through the HTTP API, whose address its agent does not"
                " know; start the agent with --api-server"
            )
        try:
            files = self._files.write_peers(self._uid, self._attempt, peers)
            if is_mpi(group):
                files = self._files.write_launcher(self._uid, self._attempt, files, peers)
        except OSError as trouble:
            message = f"the addresses of its gang cannot be written: {trouble.strerror}"
        if message:
            raise process.NotStarted(PodOutcome(exit_code=NOT_EXECUTABLE, message=message))
        return files

    def _launch_environment(
        self, pod: Pod, group: PodGroup, files: RendezvousFiles | None
    ) -> Mapping[str, str]:
        """Return the variables by which a pod of a gang with `spec.launch` finds the others."""
        if files is None:
            return {}
        peers, place = self._harness.start.peers, (pod.spec.task, pod.spec.index)
        me = next(peer for peer in peers if (peer.task, peer.index) == place)
        return launch_environment(me, peers, pod, group, files)

    def _environment(
        self, pod: Pod, group: PodGroup, task: Task, launch: Mapping[str, str]
    ) -> dict[str, str]:
        base = self._harness.environment or _environment_of(self._harness)
        if self._account is not None:
            base = without_person(base) | self._account.environment()
        return pod_environment(
            base,
            pod,
            group,
            task,
            visible=self._harness.visible,
            stop_file=self._files.stop_file(self._uid, self._attempt),
            launch=launch,
        )

    def _write_run_file(
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

    def _report(self, outcome: PodOutcome) -> bool:
        """Report the end, with retries, or leave that to the agent; return whether it was possible.
        What cannot be reported stays in the run file.
        """
        if self._may_hand_over():
            if self._messenger is not None and self._messenger.rest():
                self._keep_unsent()
            self._write_run_file(outcome=outcome, hands_over=True)
            return True
        self._write_run_file(outcome=outcome)
        since = monotonic_ms()
        backoff = Backoff(first_ms=_RETRY_FIRST_MS, longest_ms=_RETRY_MAX_MS)
        while True:
            try:
                self._send_end(outcome)
            except StoreUnavailable as trouble:
                self._outage.failed(trouble)
                self._keep_unsent()
                if monotonic_ms() - since >= self._patience_ms():
                    log.warning("end not reported", trouble=trouble.message)
                    return False
                self._signals.wait(backoff.next_ms() / 1000)
                continue
            self._outage.succeeded()
            reporter.keep_unsent(Path(self._files.unsent_file(self._uid, self._attempt)), ())
            return True

    def _may_hand_over(self) -> bool:
        """Return whether the agent is to report the end.

        It does if it lives, nothing has been sent yet, and little output waits.
        """
        if self._signals.count(KILL_SIGNAL) or os.getppid() != agent_pid(self._harness.agent):
            return False
        if self._messenger is None:
            return True
        size = sum(len(data) for _, data in self._messenger.rest())
        return not self._messenger.has_started and size <= _HANDED_OVER_MAX_BYTES

    def _send_end(self, outcome: PodOutcome) -> None:
        """Send output and result, and then the end, whose readers can so read all of them.

        The run file stays: the agent repeats the report until it sees the end, and then removes the
        file.
        """
        if self._messenger is not None:
            self._messenger.send_rest()
        if self._run.result is not None:
            node = self._harness.node
            self._store.put_result(node, self._uid, self._attempt, self._run.result)
        self._withdraw_if_orphaned()
        self._reports.ended(self._uid, self._attempt, outcome, author=self._author)

    def _withdraw_if_orphaned(self) -> None:
        """Withdraw the node if its agent is dead; otherwise it could be given this very pod again.

        The parent pid shows whether the agent lives, whatever the clocks say. A node that another
        agent has taken over is left alone.
        """
        if os.getppid() != agent_pid(self._harness.agent):
            withdraw(self._store, self._harness.node, agent=self._harness.agent)

    def _keep_unsent(self) -> None:
        """Write the unsent output to a file, from which the agent sends it if this process dies."""
        if self._messenger is not None:
            path = Path(self._files.unsent_file(self._uid, self._attempt))
            reporter.keep_unsent(path, self._messenger.rest())

    def _patience_ms(self) -> int:
        """Return how long to retry the report: briefly if the agent stops."""
        if self._signals.count(KILL_SIGNAL):
            return 0
        if self._signals.count(STOP_SIGNAL):
            return _REPORT_FOR_WHEN_STOPPING_MS
        return _REPORT_FOR_MS


def warning_spec(group: PodGroup) -> StopWarning | None:
    """Return the warning that the pods of a group ask for."""
    return None if group.spec.launch is None else group.spec.launch.warn


def warning_of(group: PodGroup) -> Signal | None:
    """Return its signal."""
    warn = warning_spec(group)
    return None if warn is None else Signal[f"SIG{warn.signal}"]


def walltime_of_pod_ms(group: PodGroup) -> int | None:
    """Return the walltime of each pod of an array; None for other groups.

    An array is a group with `minMember: 1` and more than one replica. The scheduler enforces the
    walltime of all other groups.
    """
    replicas = sum(task.replicas for task in group.spec.tasks)
    return group.spec.walltime if group.spec.min_member == 1 and replicas > 1 else None
