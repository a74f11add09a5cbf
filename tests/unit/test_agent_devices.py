"""The agent's state machine and devices: a pod waits for those of the pod before it, briefly."""

from __future__ import annotations

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import StartClaim
from batchq.api.objects import PodGroupStatus
from batchq.worker.agent import messages
from batchq.worker.agent.pod_states import PodState, attempt_of
from batchq.worker.agent.state_machine import AgentState
from tests.agents import AUTHOR, LEASE_MS, NODE, changed
from tests.builders import a_group, a_pod

GROUP = a_group("u1", status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
PLAIN = a_pod(GROUP, phase=PodPhase.BOUND, node=NODE, bound_at=0)
REQUESTS = {"cpu": 1000, "gpu": 2000, "gpu:h100": 2000}
BOUND = structs.replace(PLAIN, spec=structs.replace(PLAIN.spec, requests=REQUESTS))
HERE = attempt_of(BOUND)
DEVICES = ("GPU-a", "GPU-b")


def an_agent() -> AgentState:
    agent = AgentState(node=NODE, author=AUTHOR, slots=8, lease_ms=LEASE_MS)
    delivery = messages.DeliveredPod(attempt=HERE, pod=BOUND)
    agent.handle(messages.PodsDelivered(now_ms=1_000, deliveries=(delivery,)))
    return agent


def check(agent: AgentState, *, now_ms: int) -> list[messages.Instruction]:
    """Check the claims while the server shows the pod Bound; return what follows."""
    found = agent.handle(messages.ClaimsDue(now_ms=now_ms))
    if found == [messages.ReadClaimedPods((HERE.pod,))]:
        found = agent.handle(messages.ClaimedPodsRead(now_ms=now_ms, pods={HERE.pod: BOUND}))
    return found


def answer(
    agent: AgentState, word: str, *, now_ms: int, devices: tuple[str, ...] = ()
) -> list[messages.Instruction]:
    found = messages.ClaimAnswer(attempt=HERE, word=word, group=GROUP, devices=devices)
    return agent.handle(messages.ClaimsPosted(now_ms=now_ms, asked_at=now_ms, answers=(found,)))


def test_the_devices_of_a_pod_are_taken_with_its_claim() -> None:
    [posted] = check(an_agent(), now_ms=1_000)
    assert isinstance(posted, messages.PostClaims)
    assert posted.devices == {HERE: {"gpu": 2000, "gpu:h100": 2000}}


def test_a_repeated_claim_states_the_same_devices() -> None:
    agent = an_agent()
    check(agent, now_ms=1_000)
    assert answer(agent, "ok", now_ms=1_000, devices=DEVICES) == []
    claim = StartClaim(pod=HERE.pod, attempt=HERE.attempt, author=AUTHOR, devices=DEVICES)
    assert check(agent, now_ms=9_000) == [messages.PostReport(claim)]


def test_a_pod_without_free_devices_is_claimed_when_they_are_free() -> None:
    agent = an_agent()
    check(agent, now_ms=1_000)
    assert answer(agent, "no devices", now_ms=1_000) == []
    assert agent.state_of(HERE) == PodState.DELIVERED
    [posted] = check(agent, now_ms=1_100)
    assert isinstance(posted, messages.PostClaims)
    assert answer(agent, "ok", now_ms=1_100, devices=DEVICES) == []
    assert agent.state_of(HERE) == PodState.CLAIMED
    running = changed(BOUND, phase=PodPhase.RUNNING, holder=AUTHOR, started_at=1)
    agent.handle(messages.ClaimsApplied(now_ms=1_200))
    agent.handle(messages.ClaimsDue(now_ms=1_200))
    [start] = agent.handle(messages.ClaimedPodsRead(now_ms=1_200, pods={HERE.pod: running}))
    assert isinstance(start, messages.StartPod)


def test_a_pod_without_free_devices_is_given_back_after_ten_seconds() -> None:
    agent = an_agent()
    check(agent, now_ms=1_000)
    answer(agent, "no devices", now_ms=1_000)
    declined, reported = check(agent, now_ms=11_000)
    why = "too few of its node's devices became free within 10 s"
    assert declined == messages.DeclinePod(HERE, why)
    assert isinstance(reported, messages.ReportEnds)
    assert reported.ends[0].report.outcome.stopped == "NodeLost"


def test_an_attempt_that_the_server_has_forgotten_is_reported_with_its_devices() -> None:
    agent = an_agent()
    check(agent, now_ms=1_000)
    answer(agent, "ok", now_ms=1_000, devices=DEVICES)
    agent.handle(messages.ClaimsApplied(now_ms=1_100))
    agent.handle(messages.ClaimsDue(now_ms=1_100))
    running = changed(BOUND, phase=PodPhase.RUNNING, holder=AUTHOR, started_at=1)
    agent.handle(messages.ClaimedPodsRead(now_ms=1_100, pods={HERE.pod: running}))
    run = messages.StartedRun(attempt=HERE, author=AUTHOR, started_at=5)
    event = messages.RunningPodsRead(now_ms=2_000, run="new", pods={HERE.pod: None}, runs=(run,))
    [posted] = agent.handle(event)
    assert isinstance(posted, messages.PostReport)
    assert posted.report.devices == DEVICES
