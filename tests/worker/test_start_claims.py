"""Tests of start claims: which become pods of ours, which are declined, and which are given
back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import Ended, PodAttempt, PodOutcome, StartClaim
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.transaction import Transaction, Write, fence_of
from batchq.daemon.node_reports import NodeReportReader
from batchq.errors import StoreUnavailable
from batchq.store.liveness import pid_of_server
from batchq.store.redis import RedisStore
from batchq.system import RandomIds
from batchq.worker.agent.messages import (
    AgentEvent,
    ClaimsDue,
    ClaimsPosted,
    DeclinePod,
    DeliveredPod,
    Instruction,
    LeasesDue,
    PodsDelivered,
    SignalsReceived,
    StartPod,
)
from batchq.worker.agent.pod_reports import PodReports
from batchq.worker.agent.pod_states import Paces, PodState
from batchq.worker.agent.state_machine import AgentState
from batchq.worker.workhorse.reporter import ReportSender
from batchq.worker.workhorse.run_file import RunFiles
from tests.builders import a_group, a_pod
from tests.harness.server import Server

HERE = PodAttempt("g-1-0", 1)
Answer = StartPod | DeclinePod


def an_agent(*, patience_ms: int) -> AgentState:
    paces = Paces(patience_ms=patience_ms)
    return AgentState(
        node="n1",
        author="agent",
        slots=8,
        lease_ms=30_000,
        drain_timeout_ms=30_000,
        paces=paces,
    )


class Node:
    """One node with one pod bound to it, and a leader that applies reports when a test calls it."""

    def __init__(self, store: RedisStore, home: Path) -> None:
        self.store = store
        self.desk = ReportSender(store, "n1")
        self.files = RunFiles(home)
        self.reports = PodReports(store, "n1", self.files, author="agent", lease_ms=30_000)
        self.agent = an_agent(patience_ms=500)
        self.answer: Answer | None = None
        self.loses_answers = False
        self.ids = RandomIds()
        self.leader = NodeReportReader(store, self.ids)
        #: The monotonic clock of the agent.
        self.now_ms = 1_000

    def put(self, **status: Any) -> None:
        group = a_group("g", status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
        pod = a_pod(group, **{"phase": PodPhase.BOUND, "node": "n1", **status})
        self._commit(
            Write(kind="PodGroup", key="default/g", expect=0, value=group),
            Write(kind="Pod", key="g-1-0", expect=0, value=pod),
        )

    def change(self, **status: Any) -> None:
        """Write the pod's status as the scheduler would."""
        pod = self.pod()
        after = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **status))
        revision = pod.metadata.revision
        self._commit(
            Write(kind="Pod", key="g-1-0", expect=revision, value=after, fence=fence_of(pod))
        )

    def apply(self) -> None:
        self.leader.apply(["n1"], None)

    def claim(self, between: Callable[[], None]) -> Answer:
        """Claim the pod, and call `between` before each further check."""
        self.deliver()
        for _ in range(200):
            if (answer := self.check()) is not None:
                return answer
            between()
            self.now_ms = self.agent.next_check_at() or 0
        raise AssertionError("nothing was decided")

    def deliver(self, stored: Pod | None = None) -> None:
        delivery = DeliveredPod(attempt=HERE, pod=stored)
        self.handle(PodsDelivered(now_ms=self.now_ms, deliveries=(delivery,)))

    def check(self) -> Answer | None:
        """Check the claims once, and return what was decided."""
        self.answer = None
        self.handle(ClaimsDue(now_ms=self.now_ms))
        self.agent.check()
        return self.answer

    def drain(self) -> None:
        self.handle(SignalsReceived(now_ms=self.now_ms, count=1))

    def handle(self, event: AgentEvent) -> None:
        self.agent.drive(event, self._carry_out)

    def _carry_out(self, instruction: Instruction) -> AgentEvent | None:
        if isinstance(instruction, StartPod | DeclinePod):
            self.answer = instruction
            return None
        answer = self.reports.carry_out(instruction)  # type: ignore[arg-type]  # no other follows
        if self.loses_answers and isinstance(answer, ClaimsPosted):
            raise StoreUnavailable("the answer was lost")
        if answer is None:
            return None
        # The test's clock, not the machine's.
        at = {name: self.now_ms for name in ("now_ms", "asked_at") if hasattr(answer, name)}
        return msgspec.structs.replace(answer, **at)

    def pod(self) -> Pod:
        pod = self.store.get("Pod", "g-1-0")
        assert isinstance(pod, Pod)
        return pod

    def phase(self) -> tuple[str, str]:
        return str(self.pod().status.phase), self.pod().status.reason

    def _commit(self, *writes: Write) -> None:
        transaction = Transaction(subject="test", writes=writes)
        assert not self.store.commit([transaction], request_id=self.ids.new_uid()).refused


@pytest.fixture
def node(redis_store: RedisStore, tmp_path: Path) -> Node:
    return Node(redis_store, tmp_path)


def declined(why: str) -> DeclinePod:
    return DeclinePod(HERE, why)


def test_a_pod_is_ours_once_its_claim_is_applied(node: Node) -> None:
    node.put()
    claimed = node.claim(node.apply)
    assert isinstance(claimed, StartPod)
    assert (claimed.pod.status.phase, claimed.pod.status.holder) == (PodPhase.RUNNING, "agent")
    assert claimed.group.metadata.name == "g"
    assert claimed.lease_from == 1_000
    assert node.desk.pending() == []


def test_the_lease_is_taken_before_the_pod_runs(node: Node) -> None:
    node.put()
    leased: list[object] = []

    def check_the_lease() -> None:
        leased.append((node.pod().status.phase, node.store.alive.leased("n1")))
        node.apply()

    node.claim(check_the_lease)
    assert leased == [(PodPhase.BOUND, [("g-1-0", 1)])]


def test_a_run_file_is_written_before_the_claim_and_removed_if_it_is_declined(node: Node) -> None:
    node.put()

    def superseded() -> None:
        run = node.files.read("g-1-0", 1)
        assert run is not None
        assert (run.horse, run.group) == (0, 0)
        node.change(phase=PodPhase.EVICTED)

    assert isinstance(node.claim(superseded), DeclinePod)
    assert node.files.read("g-1-0", 1) is None


def test_a_pod_not_bound_here_is_declined_without_a_report(node: Node) -> None:
    assert node.claim(node.apply) == declined("gone or superseded")
    node.put(node="n2")
    assert node.claim(node.apply) == declined("Bound on n2")
    node.change(node="n1")
    node.change(phase=PodPhase.RUNNING, holder="another agent")
    assert node.claim(node.apply) == declined("Running on n1")
    assert node.desk.pending() == []


def test_one_of_two_claims_on_an_attempt_is_declined(node: Node) -> None:
    node.put()

    def other_is_faster() -> None:
        node.change(phase=PodPhase.RUNNING, holder="another agent")

    assert node.claim(other_is_faster) == declined("Running on n1")
    node.apply()
    assert node.pod().status.holder == "another agent"


def test_a_pod_whose_claim_was_applied_during_an_outage_is_ours(node: Node) -> None:
    node.put()
    node.deliver()
    node.loses_answers = True
    with pytest.raises(StoreUnavailable):
        node.check()
    node.loses_answers = False
    node.apply()
    assert node.phase() == ("Running", "")
    node.now_ms = node.agent.next_check_at() or 0
    assert isinstance(node.check(), StartPod)


def test_a_terminating_pod_is_given_back(node: Node) -> None:
    node.put(terminating=True, reason="Suspended")
    assert node.claim(node.apply) == declined("stopped before it started")
    node.apply()
    assert node.phase() == ("Evicted", "Suspended")


def test_a_stop_before_the_claim_is_applied_gives_the_pod_back(node: Node) -> None:
    node.put()

    def stop_the_pod() -> None:
        node.change(terminating=True, reason="Preempted")

    assert node.claim(stop_the_pod) == declined("stopped before it started")
    node.apply()
    assert node.phase() == ("Evicted", "Preempted")


def test_a_claim_that_no_leader_applies_is_withdrawn_after_a_time(node: Node) -> None:
    node.put()
    pauses: list[int] = []

    def wait_without_a_leader() -> None:
        pauses.append((node.agent.next_check_at() or 0) - node.now_ms)

    assert node.claim(wait_without_a_leader) == declined("no scheduler let it start within 0 s")
    assert pauses == [20, 40, 80, 160, 200]
    [left] = node.desk.pending()
    assert isinstance(left, Ended)
    node.apply()
    assert node.phase() == ("Evicted", "NodeLost")
    assert node.store.alive.leased("n1") == []


def test_a_waiting_claim_keeps_its_lease_and_is_posted_again(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    node = Node(redis_store, tmp_path)
    node.agent = an_agent(patience_ms=20_000)
    node.put()
    first: list[int] = []
    inbox = node.store.report_queues

    def forgotten_by_the_server() -> None:
        node.handle(LeasesDue(now_ms=node.now_ms))
        if not first:
            first.append(node.store.now_ms())
            inbox.remove(inbox.look(["n1"]))
        elif node.desk.pending():
            node.apply()

    claimed = node.claim(forgotten_by_the_server)
    assert isinstance(claimed, StartPod)
    assert 6_000 <= node.now_ms <= 6_600
    assert 0 <= node.now_ms - claimed.lease_from <= 2_700


def test_a_claim_whose_node_goes_away_starts_nothing_later(node: Node) -> None:
    node.put()
    assert node.claim(node.drain) == declined("its node went away before it started")
    node.apply()
    assert node.phase() == ("Evicted", "NodeLost")


def test_a_claim_that_is_superseded_while_it_waits_is_dropped(node: Node) -> None:
    node.put()

    def evict_and_bind_again() -> None:
        node.change(phase=PodPhase.EVICTED)
        node.change(phase=PodPhase.BOUND, attempt=2)

    assert node.claim(evict_and_bind_again) == declined("gone or superseded")
    node.apply()
    assert node.phase() == ("Bound", "")
    assert node.store.counts() == {"superseded": 1}


def test_claims_wait_for_an_unavailable_server(node: Node, server: Server) -> None:
    node.put()
    node.deliver()
    with stopped(server), pytest.raises(StoreUnavailable):
        node.check()
    assert node.agent.state_of(HERE) == PodState.DELIVERED
    assert node.agent.next_check_at() == 1_020


def test_an_end_replaces_the_claim_and_ends_the_lease(node: Node) -> None:
    node.put()
    node.desk.post(StartClaim(pod="g-1-0", attempt=1, author="horse"))
    node.store.renew("n1", "g-1-0", 1, "g 1 1", 30_000)
    node.desk.ended("g-1-0", 1, PodOutcome(exit_code=0), author="horse")
    assert [type(report) for report in node.desk.pending()] == [Ended]
    assert node.store.alive.leased("n1") == []
    node.apply()
    assert node.phase() == ("Succeeded", "")


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server for a while."""
    server.stop()
    try:
        yield
    finally:
        server.start()


def test_a_pod_whose_group_is_gone_is_given_back(node: Node) -> None:
    node.put()
    group = node.store.get("PodGroup", "default/g")
    assert group is not None
    revision = group.metadata.revision
    node._commit(Write(kind="PodGroup", key="default/g", expect=revision, value=None))
    assert node.claim(node.apply) == declined("its group is gone")
    [left] = node.desk.pending()
    assert isinstance(left, Ended)
    assert left.outcome.stopped == "NodeLost"


def test_the_process_of_the_server_is_known_before_a_claimed_pod_starts(node: Node) -> None:
    node.put()
    assert node.reports.server() is None
    assert isinstance(node.claim(node.apply), StartPod)
    server = node.reports.server()
    assert server is not None
    assert server.pid == pid_of_server(node.store.link)


def test_the_pod_read_with_a_delivery_is_used_for_the_first_check_only(node: Node) -> None:
    node.put()
    node.deliver(node.pod())
    assert node.check() is None
    node.apply()
    node.now_ms = 2_000
    claimed = node.check()
    assert isinstance(claimed, StartPod)
    assert claimed.pod.status.phase == PodPhase.RUNNING


def test_a_pod_that_was_superseded_since_it_was_delivered_is_not_claimed(node: Node) -> None:
    node.put()
    stored = node.pod()
    node.change(attempt=2)
    node.deliver(stored)
    assert node.check() == declined("gone or superseded")
