"""Random events for the agent's state machine, beside a small server whose answers may be lost.

Nothing is started twice, or without its lease; and when the faults are over, every pod that the
server has on the node comes to an end, and the agent forgets it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from hypothesis.strategies import booleans, integers, sampled_from

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import Ended, PodAttempt, PodOutcome, StartClaim
from batchq.api.objects import Pod
from batchq.errors import StoreUnavailable
from batchq.worker.agent import messages
from batchq.worker.agent.pod_states import attempt_of, lease_margin_ms, pods_of
from tests.agents import LEASE_MS, a_bound_pod, an_agent, changed, granted, the_group

PODS = 4


class Cluster:
    """The server and the machine around an agent, which carry out its instructions."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.agent = an_agent(slots=3)
        self.pods: dict[str, Pod] = {}
        self.queue: list[PodAttempt] = []
        self.reports: dict[str, StartClaim | Ended] = {}
        self.leases: dict[PodAttempt, int] = {}
        self.horses: set[PodAttempt] = set()
        self.records: dict[PodAttempt, messages.EndRecord] = {}
        self.started: list[PodAttempt] = []
        self.signals = 0
        #: What the next requests to the server meet: nothing, or a failure before or after it.
        self.failures: list[str] = []

    def tell(self, event: messages.Event) -> None:
        try:
            self.agent.drive(event, self._carry_out)
        except StoreUnavailable:
            return

    def _carry_out(self, instruction: messages.Instruction) -> messages.Event | None:
        match instruction:
            case messages.StartPod():
                return self._start(instruction)
            case messages.DeclinePod() | messages.IgnoreDelivery() | messages.StopHorses():
                return None
            case messages.VouchFor(attempts):
                assert self.horses.issuperset(attempts), "a pod that does not run is vouched for"
                return None
            case messages.StopPod(attempt) | messages.DisownPod(attempt):
                assert attempt in self.horses, "a pod that does not run is told to stop"
                return None
            case messages.ForgetPods(attempts):
                for attempt in attempts:
                    self.records.pop(attempt, None)
                return None
            case messages.EndProcesses(attempts):
                return messages.ProcessesEnded(
                    now_ms=self.now_ms, attempts=attempts, are_left=False
                )
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "before":
            raise StoreUnavailable("it was not sent")
        answer = self._ask(instruction)
        if failure == "after":
            raise StoreUnavailable("the answer was lost")
        return answer

    def _start(self, start: messages.StartPod) -> None:
        assert start.attempt not in self.started, "started twice"
        assert self.leases[start.attempt] >= self.now_ms, "started without its lease"
        assert self.now_ms < start.lease_from + LEASE_MS - lease_margin_ms(LEASE_MS)
        assert start.pod.status.phase == PodPhase.RUNNING
        self.started.append(start.attempt)
        self.horses.add(start.attempt)
        self.records[start.attempt] = messages.EndRecord()

    def _ask(self, instruction: messages.Instruction) -> messages.Event | None:
        now_ms = self.now_ms
        match instruction:
            case messages.ReadClaimedPods(uids):
                return messages.ClaimedPodsRead(now_ms=now_ms, pods=pods_of(uids, self.pods))
            case messages.ReadEndedPods(uids):
                return messages.EndedPodsRead(now_ms=now_ms, pods=pods_of(uids, self.pods))
            case messages.PostClaims(claims):
                answers = tuple(self._claim(claim) for claim, _, _ in claims)
                return messages.ClaimsPosted(now_ms=now_ms, asked_at=now_ms, answers=answers)
            case messages.RenewLeases() | messages.ReadStops():
                return self._ask_of_leases(instruction)
            case messages.PostReport(StartClaim() as claim):
                self.reports[claim.subject] = claim
            case messages.ReportEnds(ends):
                attempts = tuple(PodAttempt(one.report.pod, one.report.attempt) for one in ends)
                for end, attempt in zip(ends, attempts, strict=True):
                    assert attempt not in self.horses, "the end of a running pod is reported"
                    self.report_end(end.report)
                return messages.EndsReported(now_ms=now_ms, attempts=attempts)
            case messages.ReadDueEnds(attempts):
                return messages.DueEndsRead(
                    now_ms=now_ms,
                    attempts=attempts,
                    posted=frozenset(self.reports),
                    pods=pods_of([one.pod for one in attempts], self.pods),
                    leases_ms={one: self.leases.get(one, now_ms) - now_ms for one in attempts},
                    records={one: self.records[one] for one in attempts if one in self.records},
                )
            case messages.ConcludeEnds(attempts, _):
                self._end_leases(attempts)
                return messages.EndsConcluded(now_ms=now_ms, attempts=attempts)
            case messages.EndLeases(attempts):
                self._end_leases(attempts)
            case messages.EnqueuePods(attempts):
                self.queue += [one for one in attempts if one not in self.queue]
            case _:
                raise AssertionError(f"unexpected: {instruction}")
        return None

    def _ask_of_leases(
        self, instruction: messages.RenewLeases | messages.ReadStops
    ) -> messages.Event:
        now_ms = self.now_ms
        answers = tuple(self._answer(attempt) for attempt, _ in instruction.attempts)
        if isinstance(instruction, messages.ReadStops):
            return messages.StopsRead(now_ms=now_ms, answers=answers)
        for attempt, _ in instruction.attempts:
            self.leases[attempt] = now_ms + LEASE_MS
        return messages.LeasesRenewed(now_ms=now_ms, asked_at=now_ms, answers=answers)

    def _claim(self, claim: StartClaim) -> messages.ClaimAnswer:
        attempt = PodAttempt(claim.pod, claim.attempt)
        self.leases[attempt] = self.now_ms + LEASE_MS
        self.reports[claim.subject] = claim
        pod = self.pods[claim.pod]
        answer = self._answer(attempt)
        return messages.ClaimAnswer(
            attempt=attempt,
            word=answer.word,
            reason=pod.status.reason,
            is_running=answer.is_running,
            group=the_group(),
        )

    def _answer(self, attempt: PodAttempt) -> messages.AttemptAnswer:
        status = self.pods[attempt.pod].status
        is_running = status.phase == PodPhase.RUNNING
        if not self.is_current(attempt):
            return messages.AttemptAnswer(attempt=attempt, word="fenced")
        if status.terminating:
            return messages.AttemptAnswer(attempt=attempt, word="stop", is_running=is_running)
        return messages.AttemptAnswer(attempt=attempt, word="ok", is_running=is_running)

    def is_current(self, attempt: PodAttempt) -> bool:
        pod = self.pods[attempt.pod]
        return pod.status.attempt == attempt.attempt and pod.status.phase in ON_NODE

    def report_end(self, report: Ended) -> None:
        self.reports[report.subject] = report
        self.leases.pop(PodAttempt(report.pod, report.attempt), None)

    def _end_leases(self, attempts: tuple[PodAttempt, ...]) -> None:
        for attempt in attempts:
            assert attempt not in self.horses, "the lease of a running pod is ended"
            self.leases.pop(attempt, None)

    def apply_reports(self) -> None:
        """Apply all reports, as the leader does."""
        for report in self.reports.values():
            pod = self.pods[report.pod]
            if not self.is_current(PodAttempt(report.pod, report.attempt)):
                continue
            if isinstance(report, Ended):
                self.pods[report.pod] = changed(pod, phase=PodPhase.EVICTED, terminating=False)
            elif pod.status.phase == PodPhase.BOUND and not pod.status.terminating:
                self.pods[report.pod] = granted(pod)
        self.reports.clear()

    def lose_expired(self) -> None:
        """End Running pods whose lease is over, as the leader does."""
        for uid, pod in self.pods.items():
            is_over = self.leases.get(attempt_of(pod), 0) < self.now_ms
            if pod.status.phase == PodPhase.RUNNING and is_over:
                self.pods[uid] = changed(pod, phase=PodPhase.EVICTED)

    def list_node(self) -> None:
        ends = frozenset(name for name, one in self.reports.items() if isinstance(one, Ended))
        event = messages.NodePodsRead(
            now_ms=self.now_ms,
            server_now_ms=self.now_ms,
            pods=[pod for pod in self.pods.values() if pod.status.phase in ON_NODE],
            reported=ends,
            leased=tuple(self.leases),
        )
        self.tell(event)

    def deliver(self) -> None:
        taken = self.queue[: self.agent.free()]
        del self.queue[: len(taken)]
        if taken:
            deliveries = tuple(messages.DeliveredPod(attempt=one) for one in taken)
            self.tell(messages.PodsDelivered(now_ms=self.now_ms, deliveries=deliveries))

    def horse_ends(self, attempt: PodAttempt, how: str) -> None:
        """End a pod as its work-horse does: it keeps its lease until then."""
        self.horses.discard(attempt)
        outcome, exit_code = PodOutcome(exit_code=0), 0
        record: messages.EndRecord | None = messages.EndRecord(outcome=outcome)
        match how:
            case "reports":
                self.report_end(
                    Ended(pod=attempt.pod, attempt=attempt.attempt, outcome=outcome, author="h")
                )
            case "hands over":
                record = messages.EndRecord(outcome=outcome, hands_over=True)
            case "is killed":
                record, exit_code = messages.EndRecord(), -9
        if record is not None:
            self.records[attempt] = record
        end = messages.HorseEnd(attempt=attempt, exit_code=exit_code, record=record)
        self.tell(messages.HorsesEnded(now_ms=self.now_ms, ends=(end,)))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for attempt in self.horses:
            self.leases[attempt] = max(self.leases.get(attempt, 0), self.now_ms + LEASE_MS)
        self.lose_expired()


class RandomEvents(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.cluster = Cluster()

    @rule(index=integers(0, PODS - 1))
    def bind(self, index: int) -> None:
        pod = a_bound_pod(index)
        before = self.cluster.pods.get(pod.metadata.uid)
        if before is not None and before.status.phase in ON_NODE:
            return
        number = 1 if before is None else before.status.attempt + 1
        pod = changed(pod, attempt=number, bound_at=self.cluster.now_ms)
        self.cluster.pods[pod.metadata.uid] = pod
        self.cluster.queue.append(attempt_of(pod))

    @rule()
    def deliver(self) -> None:
        self.cluster.deliver()

    @rule(index=integers(0, PODS - 1))
    def deliver_again(self, index: int) -> None:
        pod = self.cluster.pods.get(a_bound_pod(index).metadata.uid)
        if pod is not None:
            self.cluster.queue.append(attempt_of(pod))

    @rule()
    def lose_deliveries(self) -> None:
        self.cluster.queue.clear()

    @rule()
    def check_claims(self) -> None:
        self.cluster.tell(messages.ClaimsDue(now_ms=self.cluster.now_ms))

    @rule()
    def announce_stops(self) -> None:
        self.cluster.tell(messages.StopsAnnounced(now_ms=self.cluster.now_ms))

    @rule(is_silent=booleans())
    def renew_leases(self, is_silent: bool) -> None:
        silent = frozenset(self.cluster.horses) if is_silent else frozenset()
        self.cluster.tell(messages.LeasesDue(now_ms=self.cluster.now_ms, silent=silent))

    @rule()
    def apply_reports(self) -> None:
        self.cluster.apply_reports()

    @rule(index=integers(0, PODS - 1))
    def stop(self, index: int) -> None:
        uid = a_bound_pod(index).metadata.uid
        pod = self.cluster.pods.get(uid)
        if pod is not None and pod.status.phase in ON_NODE:
            self.cluster.pods[uid] = changed(pod, terminating=True, reason="Preempted")

    @rule(how=sampled_from(["reports", "hands over", "fails to report", "is killed"]))
    def end_a_horse(self, how: str) -> None:
        if self.cluster.horses:
            self.cluster.horse_ends(min(self.cluster.horses, key=lambda one: one.id), how)

    @rule()
    def check_ends(self) -> None:
        self.cluster.tell(messages.EndsDue(now_ms=self.cluster.now_ms))

    @rule()
    def list_node(self) -> None:
        self.cluster.list_node()

    @rule(ms=sampled_from([10, 300, 1_000, 6_000, 30_000]))
    def pass_time(self, ms: int) -> None:
        self.cluster.pass_time(ms)

    @rule(how=sampled_from(["before", "after"]), is_later=booleans())
    def fail(self, how: str, is_later: bool) -> None:
        self.cluster.failures += ["", how] if is_later else [how]

    @rule()
    def drain(self) -> None:
        self.cluster.signals = 1
        cluster = self.cluster
        cluster.tell(messages.SignalsReceived(now_ms=cluster.now_ms, count=1))
        pods = [pod for pod in cluster.pods.values() if pod.status.phase in ON_NODE]
        cluster.tell(messages.UnstartedPodsRead(now_ms=cluster.now_ms, pods=pods))

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self.cluster.agent.check()
        assert self.cluster.agent.running() == self.cluster.horses

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        cluster.failures.clear()
        for _ in range(40):
            cluster.pass_time(3_000)
            cluster.tell(messages.SignalsReceived(now_ms=cluster.now_ms, count=cluster.signals))
            cluster.list_node()
            cluster.deliver()
            cluster.tell(messages.ClaimsDue(now_ms=cluster.now_ms))
            cluster.apply_reports()
            cluster.tell(messages.ClaimsDue(now_ms=cluster.now_ms + 500))
            for attempt in sorted(cluster.horses, key=lambda one: one.id):
                cluster.horse_ends(attempt, "hands over")
            cluster.apply_reports()
            cluster.tell(messages.EndsDue(now_ms=cluster.now_ms))
            if cluster.agent.is_draining:
                self.drain()
        on_node = [one for one in cluster.pods.values() if one.status.phase in ON_NODE]
        assert on_node == [], cluster.agent.story()
        assert cluster.agent.known_pods() == frozenset()
        assert cluster.leases == {}


TestRandomEvents = RandomEvents.TestCase
TestRandomEvents.settings = settings(stateful_step_count=40)
