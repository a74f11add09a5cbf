"""The agent makes this machine a Node and runs the pods that are bound to it.

It is one process with one thread and one loop, the shell of a state machine
(`batchq.worker.agent.state_machine`), which decides everything about pods. The loop tells the
machine what happens: attempts in the node's RQ queue, work-horses that have ended, signals, answers
of the server, and the time. It carries out the machine's instructions. The node itself, its
heartbeat, and the processes of this machine are the loop's own concern.

    SIGTERM or SIGINT   drain: the node accepts no new pods; running pods may finish within the
                        drain timeout and are then stopped with their grace period (NodeLost)
    a second signal     kill the running pods at once
"""

from __future__ import annotations

import gc
import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from time import time

from batchq.api.node_features import DEVICES_ANNOTATION, encode_devices
from batchq.api.node_report import (
    ADDRESS_ANNOTATION,
    PORTS_ANNOTATION,
    RUN_AS_ANNOTATION,
    SPOILED,
    PodAttempt,
)
from batchq.api.notation import HOUR, SECOND
from batchq.api.transaction import LEASE_ANNOTATION, MEMORY_LIMIT_ANNOTATION
from batchq.errors import StoreUnavailable
from batchq.store import records
from batchq.store.link import is_damaged, is_forbidden
from batchq.store.liveness import own_address
from batchq.store.node_channels import WakeReason
from batchq.store.outage import Backoff, Outage
from batchq.store.redis import open_when_up
from batchq.store.rq_link import RqLink
from batchq.system import structlog
from batchq.worker.agent.exec_sessions import ExecSessions
from batchq.worker.agent.image_pulls import PULL_ENDS_WITHIN_MS, ImagePulls
from batchq.worker.agent.leftovers import prune_logs, sweep
from batchq.worker.agent.messages import (
    AgentEvent,
    ClaimsApplied,
    ClaimsDue,
    DeclinePod,
    DeliveredPod,
    DisownPod,
    EndProcesses,
    EndsDue,
    EnqueuePods,
    ForgetPods,
    FormerPodsFound,
    HorseEnd,
    HorsesEnded,
    IgnoreDelivery,
    Instruction,
    LeasesDue,
    PodsDelivered,
    ProcessesEnded,
    PullImage,
    ServerAnswered,
    SignalsReceived,
    StartPod,
    StopHorses,
    StopPod,
    StopPull,
    StopsAnnounced,
    UnstartedPodsRead,
    VouchFor,
)
from batchq.worker.agent.node import (
    AgentSettings,
    Membership,
    NodeOffer,
    default_slots,
    own_identity,
    within_slots,
)
from batchq.worker.agent.pod_reports import PodReports
from batchq.worker.agent.pod_states import Paces, patience_ms
from batchq.worker.agent.slots import HEARTBEAT_S, Paused, Slots
from batchq.worker.agent.state_machine import AgentState
from batchq.worker.agent.wakeups import PeriodicTasks, WakeUpListener
from batchq.worker.host import containment, node_resources, processes
from batchq.worker.host.accounts import Announcement, announced
from batchq.worker.host.device_pool import own_devices
from batchq.worker.host.gpu_tools import DeviceCheck
from batchq.worker.host.node_resources import (
    PortPool,
    choose_enforcement,
    detect_resources,
)
from batchq.worker.host.processes import Signals, child_pids, kill_children, reap_orphans
from batchq.worker.rq_delivery import PodJob
from batchq.worker.workhorse.guard import GuardPost
from batchq.worker.workhorse.reporter import monotonic_ms
from batchq.worker.workhorse.run_file import RunFiles, own_boot
from batchq.worker.workhorse.run_pod import Harness
from batchq.worker.workhorse.supervision import KILL_SIGNAL, STOP_SIGNAL

__all__ = ["Agent", "AgentSettings"]

log = structlog.get_logger(__name__)

_LAUNCHES_PER_TURN = 8
_RECONCILE_MS = 10 * SECOND
#: How often the agent looks whether leases are due for a renewal.
LEASES_MS = 500
_PACES = Paces()
_RQ_CLEAN_MS = 60 * SECOND
_SETTLE_MS = 1 * SECOND
#: Between two checks whether a restarted server knows what runs here.
_RESYNC_MS = 100
_ORPHANS_MS = 5 * SECOND
_DEVICES_MS = 20 * SECOND
_AWAY_MS = 1 * SECOND
#: How long a stopping agent waits for a leader to apply its withdrawal, and how often it checks.
_LEAVE_MS, _LEAVE_LOOK_MS = 3 * SECOND, 20
#: The cluster misses the node as soon as the server is back, so the retry interval stays short.
_AWAY_MAX_MS = 2 * SECOND
#: How long a starting agent tries to end the leftovers of its predecessor, and how long each later
#: attempt may take.
_SWEEP_S, _END_ROUND_S = 10.0, 1.0
_SHOWN_PIDS = 5
#: How long a node takes no pods after unreadable data was found under its RQ keys.
_SPOILED_MS = 10 * SECOND
#: How much longer the node stays out of service for a leader that has not heard why.
_TOLD_WITHIN_MS = 10 * SECOND
#: Causes that are reported at once.
_MOST_SPOILED = 10
#: More than a work-horse needs to kill its pod and to report the end to a slow server.
_END_MS = 90 * SECOND
#: A killed work-horse is gone within this time unless a debugger holds it.
_KILLED_MS = 10 * SECOND


class Agent:
    """The agent of one node; it owns the signals and children of its process. Call `run` once."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        home = settings.home.resolve()
        self._log_dir = home / "logs"
        self._run_dir = home / "run" / settings.node
        self._files = RunFiles(self._run_dir)
        self._identity = own_identity()
        self._signals = Signals(signal.SIGTERM, signal.SIGINT)
        self._poll = select.poll()
        self._listener = WakeUpListener(settings.url, settings.node, self._poll)
        self._away_until = 0
        self._outage = Outage()
        self._backoff = Backoff(longest_ms=_AWAY_MAX_MS)
        self._ports = PortPool(settings.ports)
        self._paused = Paused(patience_ms=patience_ms(settings.lease_ms))
        self._devices = own_devices(settings.resources, settings.devices)
        self._device_check = DeviceCheck()
        self._resources = detect_resources() if settings.resources is None else settings.resources
        self._most_pods = settings.slots or default_slots(self._resources)
        #: Whether processes of a former agent's pods still run; no pod is started beside them.
        self._has_leftovers = False
        #: Whether the node takes no pods because the processes of some pods cannot be killed.
        self._is_out_of_service = False
        #: Until when, and why, the node takes no pods after unreadable data was found under its
        #: keys; and whether the leader has not been told yet.
        self._spoiled_until = 0
        self._spoiled_by: list[str] = []
        self._is_spoiled_untold = False
        #: The RQ job of each attempt that waits for its start.
        self._jobs: dict[PodAttempt, PodJob] = {}
        #: How often processes of ended pods were killed, and the pids that the last time has left.
        self._kill_rounds = 0
        self._unkilled: list[int] = []

    def run(self) -> int:
        """Run until a signal has drained the agent, and return the exit code.

        Wait for a server that does not answer yet. Raise Conflict if another agent serves the node,
        and UsageError if the system is not Linux.
        """
        processes.require()
        self._run_as = announced(self._settings.accounts)
        is_wanted = self._settings.accounts is None and not self._settings.is_one_account
        self._announcement = Announcement(is_wanted=is_wanted)
        self._signals.install()
        store = open_when_up(self._settings.url, pause=self._pause)
        if store is None:
            self._signals.close()
            return 0
        self._store = store
        self._link = RqLink(self._settings.url)
        try:
            self._link.find_place(self._settings.node)
            self._begin()
            try:
                self._loop()
            finally:
                self._end()
        finally:
            self._signals.close()
            self._announcement.close()
            self._files.release()
            self._ports.keep()
            self._devices.close()
            self._device_check.close()
            self._link.close()
            self._listener.close()
            self._store.close()
        return 0

    def _pause(self, seconds: float) -> bool:
        """Wait, and return whether no signal has arrived."""
        self._signals.wait(seconds)
        return not self._signals_seen()

    def _signals_seen(self) -> int:
        return self._signals.count(signal.SIGTERM) + self._signals.count(signal.SIGINT)

    def _begin(self) -> None:
        settings = self._settings
        address = settings.address or own_address(self._store.link)
        self._state = AgentState(
            node=settings.node,
            author=self._identity,
            slots=self._most_pods,
            lease_ms=settings.lease_ms,
            address=address,
            drain_timeout_ms=round(settings.drain_timeout_s * SECOND),
            paces=_PACES,
        )
        self._enforcement = choose_enforcement(settings.enforce, run_dir=self._run_dir)
        self._boundary = containment.choose(
            settings.containment, enforcement=self._enforcement, run_dir=self._run_dir
        )
        offer = NodeOffer(
            name=settings.node,
            resources=within_slots(self._devices.offer(self._resources), self._most_pods),
            labels={
                **settings.labels,
                **self._boundary.labels(),
                **node_resources.runtime_labels(),
            },
            taints=settings.taints,
            annotations={
                MEMORY_LIMIT_ANNOTATION: self._enforcement.kind,
                LEASE_ANNOTATION: str(settings.lease_ms),
                ADDRESS_ANNOTATION: address,
                PORTS_ANNOTATION: str(settings.ports),
                DEVICES_ANNOTATION: encode_devices(self._devices.devices()),
                RUN_AS_ANNOTATION: self._run_as,
            },
        )
        beat_ms = round(settings.beat_s * SECOND)
        self._member = Membership(self._store, offer, identity=self._identity, beat_ms=beat_ms)
        self._reports = PodReports(
            self._store,
            settings.node,
            self._files,
            author=self._identity,
            lease_ms=settings.lease_ms,
            address=address,
            ports=self._ports,
            devices=self._devices,
        )
        self._member.refuse_if_served()
        self._files.occupy(is_shared=settings.accounts is not None)
        self._boot = own_boot()
        self._post = GuardPost(processes.mark_of(self._run_dir))
        self._devices.share_locks(self._post.hold)
        # The guard is among the children that are left alone: it is collected when this process
        # ends.
        self._foreign_children = child_pids()
        processes.adopt_orphans()
        self._poll.register(self._signals.fileno(), select.POLLIN)
        self._slots = Slots(
            self._link,
            settings.node,
            prefix=f"bq-{self._identity.replace(':', '.')}-{settings.node}",
            most=2 * self._most_pods,
            own_sockets=self._ports.locks,
        )
        self._exec = ExecSessions(
            self._store,
            settings.node,
            self._slots,
            poll=self._poll,
            run_dir=self._run_dir,
            accounts=settings.accounts,
        )
        self._pulls = ImagePulls(
            self._store,
            self._poll,
            run_dir=self._run_dir,
            secrets=(settings.url,),
            boundary=self._boundary,
            accounts=settings.accounts,
        )
        self._tasks = PeriodicTasks(
            {
                self._renew_leases: min(LEASES_MS, settings.lease_ms // _PACES.renew_parts),
                self._beat: beat_ms,
                self._settle_all: _SETTLE_MS,
                self._reconcile: _RECONCILE_MS,
                self._collect_orphans: _ORPHANS_MS,
                self._rq_heartbeat: HEARTBEAT_S * SECOND,
                self._slots.clean: _RQ_CLEAN_MS,
                self._prune_logs: HOUR,
                self._let_idle_go: SECOND,
                self._leave_spoiled: SECOND,
                self._end_paused: min(SECOND, settings.lease_ms // 6),
                self._check_devices: _DEVICES_MS,
                self._offer_devices: _SETTLE_MS,
            },
            now_ms=monotonic_ms(),
            outage=self._outage,
        )
        self._slots.delete_damaged(of_node=True)
        self._slots.clean()
        self._exec.keep_open(self._listener)
        self._has_leftovers = bool(self._sweep(within_s=_SWEEP_S))
        self._offer_devices()
        former = tuple(PodAttempt(run.pod, run.attempt) for run in self._files.all())
        self._handle(FormerPodsFound(now_ms=monotonic_ms(), attempts=former))
        self._settle_all()
        self._files.forget_all(keep={attempt.id for attempt in self._state.ended()})
        self._reconcile()
        # Nothing runs here yet, and the scheduler may bind pods as soon as it sees the node ready.
        self._handle(ServerAnswered(now_ms=monotonic_ms(), run=self._store.run_id()))
        self._store.beat(settings.node, self._state.known_to)
        # Damaged keys take the node out of service a moment later, with the reason.
        if not self._is_out_of_service:
            self._member.register()
        # A garbage collection would write to every memory page that work-horses share with this
        # process.
        gc.collect()
        gc.freeze()
        log.info("agent started", node=settings.node, agent=self._identity)

    def _end(self) -> None:
        """End all work-horses, whatever ended the loop; then report and withdraw if possible."""
        self._pulls.stop_all()
        self._slots.send(KILL_SIGNAL)
        pulls_killed_at = monotonic_ms() + PULL_ENDS_WITHIN_MS
        give_up_at = monotonic_ms() + _END_MS
        while self._slots.horses():
            self._handle_events(_AWAY_MS)
            self._end_paused()
            if monotonic_ms() >= give_up_at:
                self._slots.send(signal.SIGKILL)
            if monotonic_ms() >= give_up_at + _KILLED_MS:
                log.error("work-horses cannot be ended", horses=sorted(self._slots.horses()))
                break
        while self._pulls.pids() and monotonic_ms() < pulls_killed_at:
            self._handle_events(_LEAVE_LOOK_MS)
        self._pulls.close()
        # Users hear that their commands have ended with the pods.
        give_up_at = monotonic_ms() + _LEAVE_MS
        while self._exec.pids() and monotonic_ms() < give_up_at:
            self._handle_events(_LEAVE_LOOK_MS)
        self._collect_orphans()
        try:
            self._settle_all()
            self._await_withdrawal()
            self._slots.close()
        except StoreUnavailable as trouble:
            log.warning("agent left unannounced", trouble=trouble.message)
        self._post.end()
        log.info("agent stopped", node=self._settings.node)

    def _await_withdrawal(self) -> None:
        """Wait briefly until a leader has marked the node unready and has applied all ends."""
        give_up_at = monotonic_ms() + _LEAVE_MS
        while not self._withdraw() or self._state.ended():
            if monotonic_ms() >= give_up_at:
                log.warning("agent left before anybody noted it", pods=len(self._state.ended()))
                return
            self._signals.wait(_LEAVE_LOOK_MS / 1000)
            self._handle(EndsDue(now_ms=monotonic_ms()))

    def _loop(self) -> None:
        while not self._state.is_drained:
            self._claim_and_launch()
            self._handle_events(self._pause_ms())
            self._tasks.do(now_ms=monotonic_ms())
            self._drain()

    def _pause_ms(self) -> int:
        now_ms = monotonic_ms()
        due = self._tasks.next_due_at()
        if now_ms < self._away_until:
            return max(0, min(due, now_ms + _AWAY_MS // 4) - now_ms)
        if self._state.is_draining:
            due = min(due, now_ms + _AWAY_MS // 4)
        elif self._state.free() and not self._has_leftovers:
            due = min(due, self._listener.look_at)
        check_at = self._state.next_check_at()
        return max(0, (due if check_at is None else min(due, check_at)) - now_ms)

    def _claim_and_launch(self) -> None:
        """Claim the pods that are bound here and start those that are granted.

        Each turn starts a few at most, so that the loop keeps noticing pods that end.
        """
        if monotonic_ms() < self._away_until or self._has_leftovers:
            return
        try:
            try:
                if not self._state.is_draining:
                    self._take_jobs()
                self._handle(ClaimsDue(now_ms=monotonic_ms()))
            finally:
                # Last, because a pod may wait for the others. Nothing is missed: the channel keeps
                # what is sent meanwhile.
                self._listener.listen()
        except StoreUnavailable as trouble:
            if is_damaged(trouble):
                self._slots.delete_damaged()
            if is_forbidden(trouble):
                # The server's ACL users may have changed.
                self._find_place()
            self._outage.failed(trouble)
            self._listener.look_at = 0
            self._away_until = monotonic_ms() + self._backoff.next_ms()

    def _find_place(self) -> None:
        with suppress(StoreUnavailable):
            self._link.find_place(self._settings.node)

    def _take_jobs(self) -> None:
        now_ms = monotonic_ms()
        most = min(self._state.free(), _LAUNCHES_PER_TURN)
        if arrived := self._listener.take_arrived(free=most, now_ms=now_ms):
            jobs = self._slots.note_arrived(arrived)
        elif not most or now_ms < self._listener.look_at:
            return
        else:
            most = self._listener.limit(most)
            jobs, has_more = self._slots.take(most, self._listener.take_announced())
            self._note_answer()
            self._listener.note_look(now_ms=now_ms, has_more=has_more)
        deliveries: list[DeliveredPod] = []
        for job in jobs:
            attempt = job.requested_attempt()
            deliveries.append(DeliveredPod(attempt=attempt, pod=records.pod_if_readable(job.pod)))
            if attempt not in self._state:
                self._jobs[attempt] = job
        if deliveries:
            self._handle(PodsDelivered(now_ms=now_ms, deliveries=tuple(deliveries)))

    def _note_answer(self) -> None:
        """Note an answer of the server; after an outage it may be another server, so a beat
        follows.
        """
        if self._outage.unavailable:
            self._tasks.hurry(self._beat, now_ms=monotonic_ms())
        self._outage.succeeded()
        self._backoff.reset()

    def _launch(self, start: StartPod) -> None:
        attempt = start.attempt
        job = self._jobs.pop(attempt)
        # The next turn may have to wait for the server, and the work-horse must know its process.
        self._slots.note(self._reports.server(), now_ms=monotonic_ms())
        harness = Harness(
            url=self._settings.url,
            node=self._settings.node,
            agent=self._identity,
            run_dir=self._run_dir,
            log_dir=self._log_dir,
            lease_ms=self._settings.lease_ms,
            start=start,
            visible=self._devices.variables(
                self._devices.of(attempt), by_uuid=self._settings.gpu_env == "uuid"
            ),
            locks=self._devices.locks_of(attempt),
            enforcement=self._enforcement,
            boundary=self._boundary,
            post=self._post,
            boot=self._boot,
            api_server=self._settings.api_server,
            accounts=self._settings.accounts,
        )
        for descriptor in self._slots.launch(job, harness):
            self._poll.register(descriptor, select.POLLIN)

    def _handle_events(self, wait_ms: int) -> None:
        ends: list[HorseEnd] = []
        for descriptor, _ in self._poll.poll(wait_ms):
            if descriptor == self._signals.fileno():
                self._signals.clear()
                continue
            if self._listener.is_at(descriptor):
                self._hear(self._listener.answer())
                continue
            if self._has_handled(descriptor):
                continue
            if not self._slots.knows(descriptor):
                # Closed a moment ago, together with the other descriptor of the same work-horse.
                continue
            update = self._slots.handle(descriptor, now_ms=monotonic_ms())
            for gone in update.gone:
                self._poll.unregister(gone)
            if update.attempt is not None:
                ends.append(self._collect(update.attempt, update.exit_code))
        for fresh in self._slots.launch_unread():
            self._poll.register(fresh, select.POLLIN)
        if ends:
            try:
                self._handle(HorsesEnded(now_ms=monotonic_ms(), ends=tuple(ends)))
            except StoreUnavailable as trouble:
                # The machine repeats the reports.
                self._outage.failed(trouble)

    def _has_handled(self, descriptor: int) -> bool:
        """Handle the descriptor of a process that is no work-horse; return whether it was one."""
        if self._device_check.is_at(descriptor):
            self._read_devices(descriptor)
        elif self._exec.owns(descriptor):
            self._exec.collect(descriptor)
        elif self._pulls.is_at(descriptor):
            ended = self._pulls.collect(descriptor)
            # Only a pull whose keeper was killed has left anything.
            kill_children(keep=self._left_alone(), within_s=_END_ROUND_S)
            self._handle(ended)
        else:
            return False
        return True

    def _hear(self, reasons: frozenset[WakeReason]) -> None:
        try:
            if WakeReason.CLAIMS in reasons:
                self._handle(
                    ClaimsApplied(now_ms=monotonic_ms(), pods=self._listener.take_claimed())
                )
            if WakeReason.STOPS in reasons:
                self._handle(StopsAnnounced(now_ms=monotonic_ms()))
        except StoreUnavailable as trouble:
            # The claims are checked again soon, and the next renewal reads the stops, too.
            self._outage.failed(trouble)
        if requests := self._listener.take_requests():
            try:
                self._exec.open_all(requests, frozenset(self._jobs))
            except StoreUnavailable as trouble:
                self._outage.failed(trouble)

    def _collect(self, attempt: PodAttempt, exit_code: int) -> HorseEnd:
        """Return the end of a work-horse's attempt, with what it has left."""
        record = self._reports.record_of(attempt)
        if exit_code or (record is not None and record.outcome is None):
            log.warning("work-horse left a pod", pod=attempt.pod, exit_code=exit_code)
        else:
            self._devices.give_back(attempt)
        return HorseEnd(attempt=attempt, exit_code=exit_code, record=record)

    def _handle(self, event: AgentEvent) -> None:
        """Tell the machine an event, and carry out what follows. Raise StoreUnavailable."""
        self._state.drive(event, self._carry_out)

    def _carry_out(self, instruction: Instruction) -> AgentEvent | None:
        """Carry out an instruction, and return the event that answers it, if one does."""
        match instruction:
            case StartPod():
                self._launch(instruction)
            case DeclinePod(attempt, why):
                self._jobs.pop(attempt, None)
                log.info("pod declined", pod=attempt.pod, why=why)
            case IgnoreDelivery(attempt):
                log.info("pod delivered twice", pod=attempt.pod, attempt=attempt.attempt)
            case EndProcesses(attempts):
                self._end_processes(attempts)
                are_left = bool(self._unkilled)
                return ProcessesEnded(now_ms=monotonic_ms(), attempts=attempts, are_left=are_left)
            case EnqueuePods(attempts):
                for attempt in self._slots.enqueue_missing(attempts):
                    log.warning("pod handed in again", pod=attempt.pod, attempt=attempt.attempt)
            case PullImage() | StopPull():
                return self._pulls.carry_out(instruction)
            case VouchFor() | StopPod() | DisownPod():
                self._slots.pass_on(instruction)
            case StopHorses(kills):
                self._slots.send(KILL_SIGNAL if kills else STOP_SIGNAL)
            case ForgetPods(attempts):
                for attempt in attempts:
                    self._jobs.pop(attempt, None)
                return self._reports.carry_out(instruction)
            case _:
                return self._reports.carry_out(instruction)
        return None

    def _drain(self) -> None:
        asked = self._signals_seen()
        if not asked:
            return
        now_ms = monotonic_ms()
        if not self._state.is_draining:
            log.info("agent drains", node=self._settings.node, pods=len(self._state.running()))
            self._tasks.add(self._withdraw, _SETTLE_MS, now_ms=now_ms)
        self._handle(SignalsReceived(now_ms=now_ms, count=asked))

    def _withdraw(self) -> bool:
        """Withdraw the node and give back unstarted pods; return whether no pod can follow."""
        # Withdraw first: a pod that is bound before the withdrawal takes effect is then seen below.
        is_withdrawn = self._member.withdraw()
        if self._member.is_taken_over():
            return True
        pods = self._store.pods_on(self._settings.node, self._state.known_pods())
        self._handle(UnstartedPodsRead(now_ms=monotonic_ms(), pods=pods))
        return is_withdrawn

    def _beat(self) -> None:
        run = self._store.run_id()
        self._handle(ServerAnswered(now_ms=monotonic_ms(), run=run))
        ready = not self._state.is_draining and not self._is_closed()
        try:
            self._member.beat(ready=ready, run=self._state.known_to)
        except StoreUnavailable as trouble:
            # A leader repairs the keys of the nodes that it knows, and reports this.
            if is_damaged(trouble) and not self._member.is_registered():
                self._slots.delete_damaged(of_node=True)
            raise
        self._note_answer()
        if run != self._state.known_to:
            self._tasks.hurry(self._beat, now_ms=monotonic_ms() + _RESYNC_MS)

    def _renew_leases(self) -> None:
        """Renew the leases of all pods, if they are due."""
        now_ms = monotonic_ms()
        self._slots.note(self._reports.server(), now_ms=now_ms)
        silent = self._slots.silent(since_ms=now_ms - patience_ms(self._settings.lease_ms))
        self._handle(LeasesDue(now_ms=now_ms, silent=silent))

    def _settle_all(self) -> None:
        """Report ends that work-horses could not, once the last process of each pod is gone."""
        rounds = self._kill_rounds
        self._ports.keep(self._state)
        self._devices.keep(self._state)
        self._handle(EndsDue(now_ms=monotonic_ms()))
        if rounds == self._kill_rounds and (self._has_leftovers or self._is_out_of_service):
            self._end_processes(())
        if rounds != self._kill_rounds:
            self._take_out_of_service(self._unkilled)

    def _end_processes(self, attempts: Sequence[PodAttempt]) -> None:
        """End processes of these attempts and of a former agent; note the pids that remain."""
        left = kill_children(keep=self._left_alone(), within_s=_END_ROUND_S)
        for attempt in attempts:
            cgroup = self._enforcement.of_pod(attempt.id)
            left += cgroup.end(_END_ROUND_S) if cgroup is not None else []
        for abandoned in self._boundary.abandoned(self._in_cgroups()):
            left += abandoned.end(_END_ROUND_S)
        if self._has_leftovers:
            swept = self._sweep(within_s=_END_ROUND_S)
            self._has_leftovers = bool(swept)
            left += swept
        self._kill_rounds += 1
        self._unkilled = left

    def _in_cgroups(self) -> frozenset[int]:
        """Return the processes that may have a cgroup of their own."""
        return self._slots.horses() | self._pulls.pids()

    def _left_alone(self) -> frozenset[int]:
        """Return the descendants of this process that belong to no pod."""
        own = self._in_cgroups() | self._exec.pids() | self._device_check.pids()
        return own | self._foreign_children

    def _sweep(self, *, within_s: float) -> list[int]:
        """End what a former agent has left. Call it only while this agent has started no pod."""
        existing = [*self._enforcement.existing(), *self._boundary.abandoned(())]
        runs, keep = list(self._files.all()), (self._post.pid,)
        return sweep(self._run_dir, runs, existing, keep=keep, within_s=within_s)

    def _take_out_of_service(self, left: Sequence[int]) -> None:
        """Withdraw the node while some processes cannot be killed, and no longer."""
        if left:
            pids = sorted(set(left))
            shown = ", ".join(map(str, pids[:_SHOWN_PIDS]))
            log.error("processes cannot be killed", pids=shown, count=len(pids))
            self._member.withdraw(f"processes of its pods cannot be killed: {shown}")
        elif self._is_out_of_service:
            self._tasks.hurry(self._beat, now_ms=monotonic_ms())
        self._is_out_of_service = bool(left)

    def _is_closed(self) -> bool:
        """Return whether the node is to take no pods although its agent serves it."""
        return self._is_out_of_service or self._is_spoiled()

    def _is_spoiled(self) -> bool:
        """Return whether damaged keys keep the node out of service; somewhat longer if the leader
        has not heard of it yet. An offer would replace the report that says so.
        """
        until = self._spoiled_until + (_TOLD_WITHIN_MS if self._is_spoiled_untold else 0)
        return monotonic_ms() < until

    def _note_spoiled(self) -> None:
        """Stop taking pods for a while if another program writes under RQ's keys of this node.

        Pods that run here continue.
        """
        if spoiled := self._slots.take_spoiled():
            if monotonic_ms() >= self._spoiled_until:
                self._spoiled_by = []
            found = dict.fromkeys((*self._spoiled_by, *spoiled))
            self._spoiled_by = list(found)[-_MOST_SPOILED:]
            self._spoiled_until = monotonic_ms() + _SPOILED_MS
            self._is_spoiled_untold = True

    def _leave_spoiled(self) -> None:
        self._note_spoiled()
        if self._state.is_draining or not self._is_spoiled():
            return
        reason = f"{SPOILED}: {'; '.join(self._spoiled_by)}"
        self._member.withdraw(reason, is_new=self._is_spoiled_untold)
        if self._is_spoiled_untold:
            self._member.register_if_unknown()
            self._is_spoiled_untold = not self._member.has_told(reason)
        self._tasks.hurry(self._beat, now_ms=max(self._spoiled_until, monotonic_ms()))

    def _reconcile(self) -> None:
        """Compare the pods that the store has on this node with those that are known here."""
        self._handle(self._reports.read_node(self._state.known_pods()))

    def _end_paused(self) -> None:
        """Kill work-horses that are stopped, well before their pods' leases expire; have the guard
        and the keepers of pulls go on.

        Also kill pods that trace a work-horse or the guard: a tracer could keep them from ending
        pods.
        """
        horses = self._slots.horses()
        for traced in sorted((*horses, self._post.pid)):
            for tracer in processes.tracers_of(traced):
                if not (lineage := processes.lineage(tracer)):
                    continue
                log.warning("pod killed that traces batchq", tracer=tracer, traced=traced)
                for pid in (tracer, *horses.intersection(lineage)):
                    processes.send(pid, signal.SIGKILL)
        for keeper in processes.stopped([self._post.pid, *self._pulls.pids()]):
            processes.send(keeper, signal.SIGCONT)
        for horse in self._paused.overdue(processes.stopped(horses), now_ms=monotonic_ms()):
            log.warning("paused work-horse killed", horse=horse)
            os.kill(horse, signal.SIGKILL)

    def _collect_orphans(self) -> None:
        reap_orphans(keep=self._left_alone())
        for abandoned in self._boundary.abandoned(self._in_cgroups()):
            abandoned.end(0.0)

    def _check_devices(self) -> None:
        """Ask the tools of the GPUs for their condition, if this machine has any."""
        if self._devices.may_change:
            descriptor = self._device_check.start(now_ms=monotonic_ms())
            if descriptor is not None:
                self._devices.begin_check()
                self._poll.register(descriptor, select.POLLIN)

    def _read_devices(self, descriptor: int) -> None:
        found = self._device_check.read()
        if found is None:
            return
        self._poll.unregister(descriptor)
        self._devices.update(found)
        self._offer_devices()

    def _offer_devices(self) -> None:
        """Offer what the devices are worth now, with the next beat."""
        if self._devices.lock_released():
            # Idle work-horses have not inherited the new locks.
            self._slots.end_idle(now_ms=monotonic_ms(), after_ms=0)
            # A program that is no pod may use what has been released.
            self._tasks.hurry(self._check_devices, now_ms=monotonic_ms())
        if self._member.change(
            resources=within_slots(self._devices.offer(self._resources), self._most_pods),
            annotations={DEVICES_ANNOTATION: encode_devices(self._devices.devices())},
        ):
            self._tasks.hurry(self._beat, now_ms=monotonic_ms())

    def _let_idle_go(self) -> None:
        self._pulls.kill_overdue()
        self._slots.end_idle(now_ms=monotonic_ms())

    def _rq_heartbeat(self) -> None:
        self._slots.delete_damaged()
        self._slots.heartbeat()
        self._exec.keep_open(self._listener)

    def _prune_logs(self) -> None:
        """Remove old pod logs.

        Agents of several nodes may share the folder, so the run files of all of them count.
        """
        running = {path.stem for path in self._run_dir.parent.glob("*/*.*")}
        prune_logs(self._log_dir, running=running, now_s=time())
