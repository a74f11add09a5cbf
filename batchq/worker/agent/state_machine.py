"""The decisions of an agent about the pods on its node, as a state machine without I/O.

Events go in: deliveries, answers of the server, ends of work-horses, signals, and timers.
Instructions come out. The agent's shell carries them out, and tells their results in further
events. The machine has no clock: each event carries its instant, in monotonic milliseconds. The
simulated cluster in `tests/faults` drives this machine as well.

An instruction may fail: the server does not answer, or the answer is lost. A pod moves to its next
state only with the event that reports success, and timers repeat the instruction until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_features import devices_in
from batchq.api.node_report import NO_CONTAINER, Ended, PodAttempt, PodOutcome, Runs, StartClaim
from batchq.api.objects import Pod, group_key_of
from batchq.api.reasons import Leaving
from batchq.api.transaction import fence_of
from batchq.errors import StoreUnavailable
from batchq.worker.agent import pod_states
from batchq.worker.agent.messages import (
    LOCAL,
    TIMERS,
    AgentEvent,
    AttemptAnswer,
    ClaimedPodsRead,
    ClaimsApplied,
    ClaimsDue,
    ClaimsPosted,
    ConcludeEnds,
    DeclinePod,
    DisownPod,
    DueEndsRead,
    EndedPodsRead,
    EndLeases,
    EndProcesses,
    EndReport,
    EndsConcluded,
    EndsDue,
    EndsReported,
    EnqueuePods,
    FencedAttempts,
    ForgetPods,
    FormerPodsFound,
    GangsRead,
    HorsesEnded,
    IgnoreDelivery,
    Instruction,
    Instructions,
    LeasesDue,
    LeasesRenewed,
    NodePodsRead,
    PodsDelivered,
    PostClaims,
    PostReport,
    ProcessesEnded,
    PullEnded,
    PullStarted,
    ReadClaimedPods,
    ReadDueEnds,
    ReadEndedPods,
    ReadGangs,
    ReadRunningPods,
    ReadStops,
    RenewLeases,
    ReportEnds,
    RunningPodsRead,
    ServerAnswered,
    SignalsReceived,
    StartFailed,
    StartPod,
    StopHorses,
    StopPod,
    StopsAnnounced,
    StopsRead,
    UnstartedPodsRead,
    VouchFor,
    WritePeers,
)
from batchq.worker.agent.pod_states import (
    ENDED,
    LATE,
    STARTING,
    UNSTARTED,
    Cause,
    InvalidMove,
    Paces,
    PodOnNode,
    PodState,
    PodTable,
    attempt_of,
    is_attempt,
    is_over,
    lost_outcome,
    may_start,
)
from batchq.worker.rendezvous import Peer, has_met, is_mpi, peers_of, rejoins

_S = PodState


class AgentState:
    """What one agent knows of the pods on its node; `handle` is its only way in."""

    def __init__(
        self,
        *,
        node: str,
        author: str,
        slots: int,
        lease_ms: int,
        address: str = "",
        drain_timeout_ms: int = 0,
        paces: Paces | None = None,
    ) -> None:
        self._node = node
        self._author = author
        self._slots = slots
        self._lease_ms = lease_ms
        self._address = address
        self._drain_timeout_ms = drain_timeout_ms
        self._paces = paces or Paces()
        self._pods = PodTable()
        self._check_at = 0
        self._pause_ms = self._paces.check_first_ms
        #: When the last renewal of all leases was asked for; long ago before the first.
        self._renewed_at = -lease_ms
        #: When the gangs of running pods are read again.
        self._read_gangs_at = 0
        self._gangs_pause_ms = self._paces.read_gangs_first_ms
        self._has_listed = False
        self._draining_since: int | None = None
        self._is_told_to_stop = self._is_told_to_kill = False
        #: The run of the server that knows everything that runs here; empty for none.
        self.known_to = ""
        self._runs_posted_at: dict[PodAttempt, int] = {}
        self._handlers: Mapping[type[AgentEvent], Callable[[Any], Instructions]] = {
            PodsDelivered: self._on_delivery,
            ClaimsDue: self._check_claims,
            ClaimsApplied: self._on_claims_applied,
            ClaimedPodsRead: self._on_claimed_pods,
            ClaimsPosted: self._on_claims_posted,
            PullStarted: self._on_pulls,
            PullEnded: self._on_pulls,
            GangsRead: self._on_gangs,
            LeasesDue: self._on_leases_due,
            LeasesRenewed: self._on_leases_renewed,
            StopsAnnounced: self._on_stops_announced,
            StopsRead: lambda event: self._pass_on(event.answers),
            StartFailed: self._on_start_failed,
            HorsesEnded: self._on_horses_ended,
            FormerPodsFound: self._on_former_pods,
            EndsDue: self._on_ends_due,
            EndedPodsRead: self._on_ended_pods,
            ProcessesEnded: self._on_processes_ended,
            DueEndsRead: self._on_due_ends,
            EndsReported: self._on_ends_reported,
            EndsConcluded: self._on_ends_concluded,
            NodePodsRead: self._on_node_pods,
            ServerAnswered: self._on_server_answered,
            RunningPodsRead: self._on_running_pods,
            SignalsReceived: self._on_signals,
            UnstartedPodsRead: self._on_unstarted_pods,
        }

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._pods

    def state_of(self, attempt: PodAttempt) -> PodState | None:
        """Return the state of an attempt; None if it is unknown here."""
        one = self._pods.get(attempt)
        return None if one is None else one.state

    def free(self) -> int:
        """Return how many more pods may run beside those that run or wait for their start."""
        return max(0, self._slots - self._pods.count(_S.RUNNING, *STARTING))

    def running(self) -> frozenset[PodAttempt]:
        """Return the attempts that work-horses have."""
        return frozenset(self._pods.attempts(_S.RUNNING))

    def ended(self) -> frozenset[PodAttempt]:
        """Return the attempts whose end the server does not show yet."""
        return frozenset(self._pods.attempts(*ENDED))

    def known_pods(self) -> frozenset[str]:
        """Return the uids of all pods with a known attempt."""
        return frozenset(attempt.pod for attempt in self._pods)

    def next_check_at(self) -> int | None:
        """Return when the claims are due for a check; None while no claim waits."""
        return self._check_at if self._pods.count(*STARTING) else None

    @property
    def is_draining(self) -> bool:
        """Whether the agent was told to stop, so that no more pods are to start."""
        return self._draining_since is not None

    @property
    def is_drained(self) -> bool:
        """Whether the agent was told to stop, and no pod runs or is about to start."""
        return self.is_draining and not self._pods.count(_S.RUNNING, *STARTING)

    def story(self, attempt: PodAttempt | None = None) -> list[str]:
        """Return the last events, oldest first; those of one attempt if it is given."""
        return self._pods.story(attempt)

    def handle(self, event: AgentEvent) -> Instructions:
        """Return the instructions that follow from an event. Raise InvalidMove."""
        now_ms = event.now_ms
        if not isinstance(event, TIMERS):
            self._pods.note(now_ms, type(event).__name__)
        handler = self._handlers.get(type(event))
        if handler is None:
            raise InvalidMove(f"the agent knows no event {event!r}")
        return handler(event)

    def drive(
        self, event: AgentEvent, carry_out: Callable[[Instruction], AgentEvent | None]
    ) -> None:
        """Handle an event, have every instruction carried out, and handle the answers.

        `carry_out` returns the event that answers an instruction, if one does, and raises
        StoreUnavailable if the server does not answer. Then omit the other instructions for the
        server, have the rest carried out, and raise StoreUnavailable. Timers repeat what is left.
        """
        trouble: StoreUnavailable | None = None
        now_ms = event.now_ms
        left = deque(self.handle(event))
        while left:
            instruction, answer = left.popleft(), None
            if trouble is None or isinstance(instruction, LOCAL):
                try:
                    answer = carry_out(instruction)
                except StoreUnavailable as error:
                    trouble = error
            if answer is None and trouble is not None and isinstance(instruction, StartPod):
                answer = StartFailed(now_ms=now_ms, attempt=instruction.attempt)
            if answer is not None:
                now_ms = answer.now_ms
                left.extendleft(reversed(self.handle(answer)))
        if trouble is not None:
            raise trouble

    def check(self) -> None:
        """Raise InvariantBroken if the states contradict each other."""
        self._pods.check()

    def _on_delivery(self, event: PodsDelivered) -> Instructions:
        instructions: Instructions = []
        for delivery in event.deliveries:
            attempt = delivery.attempt
            # An attempt that is known must not run twice: the second work-horse would mistake the
            # run file of the first for its own.
            if attempt in self._pods:
                instructions.append(IgnoreDelivery(attempt))
                continue
            self._pods.move(attempt, Cause.DELIVERED, event.now_ms).pod = delivery.pod
            self._check_at, self._pause_ms = event.now_ms, self._paces.check_first_ms
        return instructions

    def _on_claims_applied(self, event: ClaimsApplied) -> Instructions:
        granted = pod_states.claimed_among(self._pods, event.pods)
        if not granted or len(granted) < len(event.pods):
            self._check_at, self._pause_ms = 0, self._paces.check_first_ms
        read = ClaimedPodsRead(now_ms=event.now_ms, pods=granted)
        return self._on_claimed_pods(read) if granted else []

    def _check_claims(self, event: ClaimsDue) -> Instructions:
        waiting, now_ms = self._pods.of(*STARTING), event.now_ms
        if not waiting or now_ms < self._check_at:
            return []
        self._check_at = now_ms + self._pause_ms
        only_gangs = len(waiting) == self._pods.count(_S.MEETING, _S.PULLING)
        self._pause_ms = min(2 * self._pause_ms, self._paces.longest_check_ms(only_gangs))
        # A pod that was just delivered is not read again.
        known = {one.attempt.pod for one in waiting if one.pod is not None}
        unread = [one.attempt.pod for one in waiting if one.attempt.pod not in known]
        if unread:
            return [ReadClaimedPods(tuple(dict.fromkeys(unread)))]
        return self._on_claimed_pods(ClaimedPodsRead(now_ms=now_ms, pods={}))

    def _on_claimed_pods(self, event: ClaimedPodsRead) -> Instructions:
        waiting = self._pods.of(*STARTING)
        pods = {one.attempt.pod: one.pod for one in waiting if one.pod is not None}
        # Starts come first: they need no answer of the server.
        instructions: Instructions = []
        repeated: Instructions = []
        fresh: list[tuple[StartClaim, str, str]] = []
        ports: dict[PodAttempt, int] = {}
        devices: dict[PodAttempt, dict[str, int]] = {}
        gangs: dict[str, None] = {}
        ends: list[EndReport] = []
        for one in waiting:
            uid, one.pod = one.attempt.pod, None
            if uid not in pods and uid not in event.pods:
                # Delivered after the pods were asked for.
                continue
            pod = pods.get(uid) or event.pods.get(uid)
            decided = self._decide_claim(one, pod, ends, event.now_ms)
            if decided is not None:
                instructions += decided
            elif pod is not None and one.state == _S.DELIVERED:
                one.claimed_pod, one.is_claim_sent, one.fence = pod, True, fence_of(pod)
                fresh.append((self._claim(one), one.fence, group_key_of(pod)))
                if pod.spec.ports:
                    ports[one.attempt] = pod.spec.ports
                if wanted := devices_in(pod.spec.requests):
                    devices[one.attempt] = wanted
            elif pod is not None and one.state == _S.MEETING and self._is_ours(pod):
                gangs[group_key_of(pod)] = None
            elif pod is not None and event.now_ms - one.posted_at >= self._paces.repeat_ms:
                one.posted_at = event.now_ms
                repeated.append(PostReport(self._claim(one)))
        if fresh:
            instructions.append(PostClaims(tuple(fresh), ports, devices))
        if gangs:
            instructions.append(ReadGangs(tuple(gangs)))
        instructions += repeated
        if ends:
            instructions.append(ReportEnds(tuple(ends)))
        return instructions

    def _claim(self, one: PodOnNode) -> StartClaim:
        pod, number = one.attempt.pod, one.attempt.attempt
        return StartClaim(
            pod=pod,
            attempt=number,
            author=self._author,
            address=self._address if one.ports else "",
            ports=one.ports,
            devices=one.devices,
            pulled_ms=one.pulled_ms,
        )

    def _on_pulls(self, event: PullStarted | PullEnded) -> Instructions:
        pod_states.note_pull(self._pods, event, self._paces)
        self._check_at, self._pause_ms = event.now_ms, self._paces.check_first_ms
        return []

    def _is_ours(self, pod: Pod) -> bool:
        return pod.status.phase == PodPhase.RUNNING and pod.status.holder == self._author

    def _decide_claim(
        self, one: PodOnNode, pod: Pod | None, ends: list[EndReport], now_ms: int
    ) -> Instructions | None:
        """Return what follows from the pod's record; None if the claim is posted, or waits."""
        if pod is None or pod.status.attempt != one.attempt.attempt:
            return self._decline(one, "gone or superseded", now_ms)
        status = pod.status
        is_ours = self._is_ours(pod)
        if any(running.pod == one.attempt.pod for running in self._pods.attempts(_S.RUNNING)):
            # A server that was restored from an older copy may bind a former attempt again.
            return self._decline(one, "another attempt of it runs here", now_ms)
        if is_ours and not one.is_claim_sent:
            # A restored server shows an attempt that has ended here since.
            self._pods.move(one.attempt, Cause.RAN_BEFORE, now_ms).due_at = now_ms
            return [DeclinePod(one.attempt, "it has run here before")]
        if status.node != self._node or not (is_ours or status.phase == PodPhase.BOUND):
            where = status.node if status.phase in ON_NODE and status.node else "no node"
            return self._decline(one, f"{status.phase} on {where}", now_ms)
        if is_ours and one.state == _S.CLAIMED:
            if not pod.spec.ports:
                return self._start(one, pod, ends, now_ms)
            self._pods.move(one.attempt, Cause.GANG_AWAITED, now_ms)
        if one.state == _S.MEETING and now_ms >= one.lost_at(self._lease_ms):
            return self._give_back(one, LATE.stopped, LATE.message, ends, now_ms)
        if status.terminating:
            return self._give_back(one, status.reason, "stopped before it started", ends, now_ms)
        if self.is_draining:
            return self._give_back(one, Leaving.NODE_LOST, pod_states.LEFT, ends, now_ms)
        if why := pod_states.why_no_image(one, pod, self._node, self._paces, now_ms):
            return self._give_back(one, "", why, ends, now_ms)
        if why := self._why_overdue(one, now_ms):
            return self._give_back(one, Leaving.NODE_LOST, why, ends, now_ms)
        return pod_states.pull_for(one, pod, self._paces, now_ms)

    def _why_overdue(self, one: PodOnNode, now_ms: int) -> str:
        """Return what a pod has awaited for too long; "" if nothing."""
        waited_ms, paces = now_ms - one.since, self._paces
        if one.lacks_devices and waited_ms >= paces.devices_patience_ms:
            within_s = paces.devices_patience_ms // 1000
            return f"too few of its node's devices became free within {within_s} s"
        if one.state in (_S.CLAIMED, _S.DELIVERED) and waited_ms >= paces.patience_ms:
            return f"no scheduler let it start within {paces.patience_ms // 1000} s"
        return ""

    def _decline(self, one: PodOnNode, why: str, now_ms: int) -> Instructions:
        stops = pod_states.stop_of_pull(one)
        self._pods.move(one.attempt, Cause.DECLINED, now_ms)
        return [*stops, DeclinePod(one.attempt, why), ForgetPods((one.attempt,))]

    def _give_back(
        self, one: PodOnNode, reason: str, why: str, ends: list[EndReport], now_ms: int
    ) -> Instructions:
        """Report an end in place of the claim, so that the pod is not left waiting. Without a
        reason to stop, the pod fails because it has no container.
        """
        stops = pod_states.stop_of_pull(one)
        self._pods.move(one.attempt, Cause.GIVEN_BACK, now_ms)
        exit_code = None if reason else NO_CONTAINER
        one.outcome = PodOutcome(exit_code=exit_code, stopped=reason, message=why)
        one.due_at, one.is_seen_dead, one.is_output_sent = now_ms, True, True
        ends.append(EndReport(report=self._end(one.attempt, one.outcome)))
        return [*stops, DeclinePod(one.attempt, why)]

    def _end(self, attempt: PodAttempt, outcome: PodOutcome) -> Ended:
        return Ended(pod=attempt.pod, attempt=attempt.attempt, outcome=outcome, author=self._author)

    def _start(
        self, one: PodOnNode, pod: Pod, ends: list[EndReport], now_ms: int, *peers: Peer
    ) -> Instructions:
        assert one.group is not None
        if now_ms >= one.lost_at(self._lease_ms):
            return self._give_back(one, LATE.stopped, LATE.message, ends, now_ms)
        if self._is_told_to_stop or self._is_told_to_kill:
            # It would not hear of that, and run on.
            return self._give_back(one, Leaving.NODE_LOST, pod_states.LEFT, ends, now_ms)
        self._pods.move(one.attempt, Cause.GANG_MET if peers else Cause.GRANTED, now_ms)
        start = StartPod(
            attempt=one.attempt, pod=pod, group=one.group, lease_from=one.lease_from, peers=peers
        )
        if rejoins(one.group) or is_mpi(one.group):
            one.gang = group_key_of(pod)
            self._gangs_pause_ms = self._paces.read_gangs_first_ms
            # Not later than before: pods that start one after another would delay the others.
            self._read_gangs_at = min(self._read_gangs_at, now_ms + self._gangs_pause_ms)
        one.pod = one.group = None
        return [start]

    def _on_gangs(self, event: GangsRead) -> Instructions:
        """Start the pods whose gangs are complete, unless a pod of theirs has been lost since, and
        tell running pods where those are that have rejoined their gangs.
        """
        instructions: Instructions = []
        ends: list[EndReport] = []
        peers_by_group: dict[str, tuple[Peer, ...] | None] = {}
        told = [one for one in self._pods.of(_S.RUNNING) if one.gang]
        for one in [*self._pods.of(_S.MEETING), *told]:
            pod = event.pods.get(one.attempt.pod)
            if pod is None or not is_attempt(pod, one.attempt):
                continue
            group = event.groups.get(group_key_of(pod))
            if group is None or not has_met(group, pod):
                continue
            if group.metadata.uid not in peers_by_group:
                peers_by_group[group.metadata.uid] = peers_of(group, event.pods)
            peers = peers_by_group[group.metadata.uid]
            if not peers or not self._is_ours(pod) or pod.status.terminating:
                continue
            if one.gang:
                instructions.append(WritePeers(one.attempt, peers))
            else:
                one.group = group
                instructions += self._start(one, pod, ends, event.now_ms, *peers)
        if ends:
            instructions.append(ReportEnds(tuple(ends)))
        return instructions

    def _on_claims_posted(self, event: ClaimsPosted) -> Instructions:
        instructions: Instructions = []
        ends: list[EndReport] = []
        for answer in event.answers:
            one = self._pods.get(answer.attempt)
            if one is None or one.state != _S.DELIVERED or one.claimed_pod is None:
                raise self._pods.broken(answer.attempt, "was claimed, although it may not be")
            pod, group, one.claimed_pod = one.claimed_pod, answer.group, None
            if answer.word == "no devices":
                # Another pod has just ended, or a device has failed. It is tried again.
                one.is_claim_sent, one.lacks_devices = False, True
                continue
            one.posted_at, one.lacks_devices = event.asked_at, False
            one.ports, one.devices = answer.ports, answer.devices
            one.extend(event.asked_at, self._lease_ms, is_running=answer.is_running)
            if answer.word == "fenced":
                instructions += self._decline(one, "gone or superseded", event.now_ms)
            elif answer.word == "no ports":
                reason, why = Leaving.NODE_LOST, f"fewer than {pod.spec.ports} ports are free"
                instructions += self._give_back(one, reason, why, ends, event.now_ms)
            elif group is None or group.metadata.uid != pod.status.group_uid:
                reason, why = Leaving.NODE_LOST, "its group is gone"
                instructions += self._give_back(one, reason, why, ends, event.now_ms)
            else:
                self._pods.move(one.attempt, Cause.CLAIM_POSTED, event.now_ms)
                one.group = group
                if pod.status.phase == PodPhase.RUNNING and not pod.spec.ports:
                    # Applied while the server did not answer.
                    instructions += self._start(one, pod, ends, event.now_ms)
                elif answer.word == "stop":
                    why = "stopped before it started"
                    instructions += self._give_back(one, answer.reason, why, ends, event.now_ms)
        if ends:
            instructions.append(ReportEnds(tuple(ends)))
        return instructions

    def _on_leases_due(self, event: LeasesDue) -> Instructions:
        """Renew all leases at once, if they are due."""
        instructions: Instructions = []
        if event.now_ms >= self._read_gangs_at:
            self._gangs_pause_ms = min(2 * self._gangs_pause_ms, self._paces.read_gangs_max_ms)
            self._read_gangs_at = event.now_ms + self._gangs_pause_ms
            instructions += self._read_joined_gangs()
        if event.now_ms < self._renewed_at + self._lease_ms // self._paces.renew_parts:
            return instructions
        if vouched := self._vouched(event.silent):
            # First, so that a slow answer about gangs delays no lease.
            instructions.insert(0, RenewLeases(vouched))
        return instructions

    def _read_joined_gangs(self) -> Instructions:
        """Read the gangs of running pods that may have to be told of others."""
        gangs = tuple(dict.fromkeys(one.gang for one in self._pods.of(_S.RUNNING) if one.gang))
        return [ReadGangs(gangs)] if gangs else []

    def _on_stops_announced(self, _event: StopsAnnounced) -> Instructions:
        """Read which pods must stop now, instead of with the next renewal, and the gangs that may
        be complete again.
        """
        if self._pods.count(_S.MEETING, _S.PULLING):
            self._check_at = 0
        running = self._pods.of(_S.RUNNING)
        stops: Instructions = [ReadStops(_fenced(running))] if running else []
        return stops + self._read_joined_gangs()

    def _vouched(self, silent: frozenset[PodAttempt]) -> FencedAttempts:
        """Return the attempts that hold resources of this node.

        A work-horse without a sign of life may be unable to end its pod, or has ended it.
        """
        running = self._pods.of(_S.RUNNING)
        return _fenced(
            [
                *self._pods.of(_S.CLAIMED, _S.MEETING),
                *(one for one in running if one.attempt not in silent),
                *(one for one in self._pods.ended() if one.has_processes),
            ]
        )

    def _on_leases_renewed(self, event: LeasesRenewed) -> Instructions:
        self._renewed_at = event.asked_at
        vouched: list[PodAttempt] = []
        for answer in event.answers:
            one = self._pods.get(answer.attempt)
            if one is None or answer.word == "fenced":
                continue
            if one.state in (_S.CLAIMED, _S.MEETING):
                one.extend(event.asked_at, self._lease_ms, is_running=answer.is_running)
            elif one.state == _S.RUNNING:
                vouched.append(answer.attempt)
        news: Instructions = [VouchFor(tuple(vouched), event.asked_at)] if vouched else []
        return news + self._pass_on(event.answers)

    def _pass_on(self, answers: Iterable[AttemptAnswer]) -> Instructions:
        """Tell work-horses what the server says of their attempts."""
        instructions: Instructions = []
        for answer in answers:
            if self.state_of(answer.attempt) != _S.RUNNING:
                continue
            if answer.word == "fenced":
                instructions.append(DisownPod(answer.attempt))
            elif answer.word == "stop":
                instructions.append(StopPod(answer.attempt, answer.reason))
        return instructions

    def _on_start_failed(self, event: StartFailed) -> Instructions:
        self._died(self._pods.move(event.attempt, Cause.NOT_STARTED, event.now_ms), event.now_ms)
        return []

    def _on_former_pods(self, event: FormerPodsFound) -> Instructions:
        for attempt in event.attempts:
            self._missing(attempt, event.now_ms)
        return []

    def _died(self, one: PodOnNode, now_ms: int) -> None:
        one.is_seen_dead, one.due_at = True, now_ms

    def _missing(self, attempt: PodAttempt, now_ms: int) -> None:
        if attempt not in self._pods:
            self._pods.move(attempt, Cause.MISSING, now_ms).due_at = now_ms

    def _on_horses_ended(self, event: HorsesEnded) -> Instructions:
        ends: list[EndReport] = []
        for end in event.ends:
            attempt, record, now_ms = end.attempt, end.record, event.now_ms
            outcome = None if record is None else record.outcome
            if end.exit_code or (record is not None and outcome is None):
                one = self._pods.move(attempt, Cause.HORSE_DIED, now_ms)
                self._died(one, now_ms)
                one.outcome = outcome
            elif record is None or outcome is None:
                self._pods.move(attempt, Cause.SUPERSEDED, now_ms)
            elif record.hands_over:
                one = self._pods.move(attempt, Cause.HANDED_OVER, now_ms)
                self._died(one, now_ms)
                one.outcome = outcome
                ends.append(EndReport(report=self._end(attempt, outcome), result=record.result))
            else:
                one = self._pods.move(attempt, Cause.HORSE_REPORTED, now_ms)
                one.outcome, one.due_at = outcome, now_ms + self._paces.repeat_ms
                one.is_seen_dead = True
        return [ReportEnds(tuple(ends))] if ends else []

    def _on_ends_due(self, _event: EndsDue) -> Instructions:
        pods = sorted({one.attempt.pod for one in self._pods.ended()})
        return [ReadEndedPods(tuple(pods))] if pods else []

    def _on_ended_pods(self, event: EndedPodsRead) -> Instructions:
        over: list[PodOnNode] = []
        due: list[PodAttempt] = []
        for one in self._pods.ended():
            uid = one.attempt.pod
            if uid not in event.pods:
                # It ended after the pods were asked for.
                continue
            one.pod = event.pods[uid]
            if is_over(one.pod, one.attempt):
                over.append(one)
            elif one.due_at <= event.now_ms:
                due.append(one.attempt)
        instructions = self._conclude(over)
        if due:
            instructions.append(EndProcesses(tuple(due)))
        return instructions

    def _conclude(self, over: Sequence[PodOnNode]) -> Instructions:
        if not over:
            return []
        unsent = tuple(
            one.attempt
            for one in over
            if not one.is_output_sent and is_attempt(one.pod, one.attempt)
        )
        return [ConcludeEnds(tuple(one.attempt for one in over), unsent)]

    def _on_processes_ended(self, event: ProcessesEnded) -> Instructions:
        ended = self._pods.ended_of(event.attempts)
        for one in ended:
            # The resources of these pods are still in use, and ends of other pods may be as
            # uncertain. An expired lease would end the pods.
            is_running = one.pod is not None and one.pod.status.phase == PodPhase.RUNNING
            one.has_processes = event.are_left and is_running
            if one.has_processes and one.pod is not None:
                one.fence = fence_of(one.pod)
        if event.are_left or not ended:
            return []
        is_unexplained = any(one.outcome is None for one in ended)
        return [ReadDueEnds(tuple(one.attempt for one in ended), is_unexplained)]

    def _on_due_ends(self, event: DueEndsRead) -> Instructions:
        """Report the outcome that the work-horse left, or a lost pod.

        A Bound pod is left to be delivered again, unless its claim or end may yet be applied.
        """
        over: list[PodOnNode] = []
        restartable: list[PodAttempt] = []
        ends: list[EndReport] = []
        for one in self._pods.ended_of(event.attempts):
            attempt = one.attempt
            one.pod, record = event.pods.get(attempt.pod), event.records.get(attempt)
            outcome = one.outcome or (None if record is None else record.outcome)
            if one.pod is None or is_over(one.pod, attempt):
                over.append(one)
            elif outcome is None and may_start(one.pod, attempt, event.posted):
                self._pods.move(attempt, Cause.RESTARTABLE, event.now_ms)
                restartable.append(attempt)
            elif outcome is None and record is None and self._may_run_elsewhere(one, event):
                one.due_at = event.now_ms + event.leases_ms[attempt]
            else:
                one.outcome = outcome or lost_outcome(one.pod)
                ends.append(
                    EndReport(
                        report=self._end(attempt, one.outcome),
                        result=None if record is None else record.result,
                        replaces_horse=not one.is_reported_for_horse,
                    )
                )
                one.is_reported_for_horse = True
        instructions = self._conclude(over)
        if restartable:
            instructions.append(ForgetPods(tuple(restartable)))
        if ends:
            instructions.append(ReportEnds(tuple(ends)))
        return instructions

    def _may_run_elsewhere(self, one: PodOnNode, event: DueEndsRead) -> bool:
        """Return whether another machine may run an attempt that is unknown here.

        The node's former machine may be unreachable or paused; there the pod runs on until its
        lease is about to expire.
        """
        is_running = one.pod is not None and one.pod.status.phase == PodPhase.RUNNING
        return is_running and not one.is_seen_dead and event.leases_ms.get(one.attempt, 0) > 0

    def _on_ends_reported(self, event: EndsReported) -> Instructions:
        for one in self._pods.ended_of(event.attempts):
            self._pods.move(one.attempt, Cause.REPORTED, event.now_ms)
            one.due_at, one.is_output_sent = event.now_ms + self._paces.repeat_ms, True
        return []

    def _on_ends_concluded(self, event: EndsConcluded) -> Instructions:
        ended = [one.attempt for one in self._pods.ended_of(event.attempts)]
        for attempt in ended:
            self._pods.move(attempt, Cause.SEEN, event.now_ms)
        return [ForgetPods(tuple(ended))] if ended else []

    def _on_node_pods(self, event: NodePodsRead) -> Instructions:
        """Compare the pods that the server has on this node with those that are known here."""
        patience_ms = self._paces.bound_patience_ms if self._has_listed else 0
        self._has_listed = True
        waiting: list[PodAttempt] = []
        for pod in event.pods:
            attempt, status = attempt_of(pod), pod.status
            if attempt in self._pods or attempt.id in event.reported:
                continue
            if status.phase == PodPhase.RUNNING or status.terminating:
                self._missing(attempt, event.now_ms)
            # No scheduler binds a pod in the future.
            elif not 0 <= event.server_now_ms - (status.bound_at or 0) < patience_ms:
                waiting.append(attempt)
        stray = tuple(attempt for attempt in event.leased if attempt not in self._pods)
        instructions: Instructions = [EndLeases(stray)] if stray else []
        return instructions if self.is_draining else [*instructions, EnqueuePods(tuple(waiting))]

    def _on_server_answered(self, event: ServerAnswered) -> Instructions:
        if event.run == self.known_to:
            return []
        running = tuple(sorted(self._pods.attempts(_S.RUNNING), key=lambda one: one.id))
        if running:
            return [ReadRunningPods(event.run, running)]
        return self._on_running_pods(
            RunningPodsRead(now_ms=event.now_ms, run=event.run, pods={}, runs=())
        )

    def _on_running_pods(self, event: RunningPodsRead) -> Instructions:
        """Report to a restarted server what runs here, until it knows all of it."""
        unknown = [
            one
            for one in event.runs
            if self.state_of(one.attempt) == _S.RUNNING
            and not self._is_known(event.pods.get(one.attempt.pod), one.attempt)
        ]
        if not unknown:
            self.known_to = event.run
            self._runs_posted_at.clear()
        reports: Instructions = []
        for one in unknown:
            posted_at = self._runs_posted_at.get(one.attempt)
            if posted_at is None or event.now_ms >= posted_at + self._paces.repeat_ms:
                # The work-horse of the attempt waits until this report is applied.
                self._runs_posted_at[one.attempt] = event.now_ms
                report = Runs(
                    pod=one.attempt.pod,
                    attempt=one.attempt.attempt,
                    author=one.author,
                    started_at=one.started_at,
                    devices=self._pods[one.attempt].devices if one.attempt in self._pods else (),
                )
                reports.append(PostReport(report))
        return reports

    def _is_known(self, pod: Pod | None, attempt: PodAttempt) -> bool:
        is_ours = is_attempt(pod, attempt) and pod is not None and pod.status.node == self._node
        return is_ours and pod is not None and pod.status.phase == PodPhase.RUNNING

    def _on_signals(self, event: SignalsReceived) -> Instructions:
        if not event.count:
            return []
        if self._draining_since is None:
            self._draining_since = event.now_ms
            self._check_at = 0
        is_over = event.now_ms >= self._draining_since + self._drain_timeout_ms
        if event.count > 1 and not self._is_told_to_kill:
            self._is_told_to_kill = True
            return [StopHorses(kills=True)]
        if event.count == 1 and is_over and not self._is_told_to_stop:
            self._is_told_to_stop = True
            return [StopHorses(kills=False)]
        return []

    def _on_unstarted_pods(self, event: UnstartedPodsRead) -> Instructions:
        """Give back the pods that are bound here and will not start."""
        ends: list[EndReport] = []
        for pod in event.pods:
            attempt = attempt_of(pod)
            if pod.status.phase != PodPhase.BOUND or attempt in self._pods:
                continue
            self._missing(attempt, event.now_ms)
            one = self._pods[attempt]
            one.outcome, one.is_reported_for_horse = UNSTARTED, True
            ends.append(EndReport(report=self._end(attempt, UNSTARTED), replaces_horse=True))
        return [ReportEnds(tuple(ends))] if ends else []


def _fenced(pods: Iterable[PodOnNode]) -> FencedAttempts:
    return tuple((one.attempt, one.fence) for one in pods)
