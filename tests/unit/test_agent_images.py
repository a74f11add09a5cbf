"""The agent's state machine and images: no pod claims its place before its image is there."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import PodOutcome, Pulls
from batchq.api.objects import Container, Pod
from batchq.errors import StoreUnavailable
from batchq.worker.agent import messages
from batchq.worker.agent.pod_states import Paces, PodState, attempt_of
from batchq.worker.agent.state_machine import AgentState
from tests.agents import AUTHOR, LEASE_MS, NODE, changed
from tests.builders import a_group, a_pod, a_task

IMAGE = "registry.example/torch:2"
GROUP = a_group("u1", tasks=(a_task("w", 2, container=Container(image=IMAGE)),))
BOUND = a_pod(GROUP, 0, phase=PodPhase.BOUND, node=NODE, bound_at=0)
HERE = attempt_of(BOUND)
PACES = Paces(pull_told_ms=500, pull_again_ms=10_000, pull_patience_ms=600_000)


def an_agent() -> AgentState:
    return AgentState(node=NODE, author=AUTHOR, slots=8, lease_ms=LEASE_MS, paces=PACES)


def a_delivery(agent: AgentState, *, now_ms: int = 1_000) -> list[messages.Instruction]:
    """Deliver the pod; return what follows."""
    delivery = messages.DeliveredPod(attempt=HERE, pod=BOUND)
    agent.handle(messages.PodsDelivered(now_ms=now_ms, deliveries=(delivery,)))
    return agent.handle(messages.ClaimsDue(now_ms=now_ms))


def a_pulling_pod() -> AgentState:
    """Return an agent that pulls the image of a pod."""
    agent = an_agent()
    assert a_delivery(agent) == [messages.PullImage(HERE, BOUND)]
    assert agent.handle(messages.PullStarted(now_ms=1_000, attempt=HERE)) == []
    assert agent.state_of(HERE) == PodState.PULLING
    agent.check()
    return agent


def look(agent: AgentState, pod: Pod | None, *, now_ms: int) -> list[messages.Instruction]:
    """Check the pods while the server shows this one; return what follows."""
    agent.handle(messages.ClaimsApplied(now_ms=now_ms))
    [read] = agent.handle(messages.ClaimsDue(now_ms=now_ms))
    assert read == messages.ReadClaimedPods((HERE.pod,))
    return agent.handle(messages.ClaimedPodsRead(now_ms=now_ms, pods={HERE.pod: pod}))


def pull_ended(
    agent: AgentState, trouble: str = "", *, now_ms: int, is_final: bool = False
) -> None:
    event = messages.PullEnded(now_ms=now_ms, attempts=(HERE,), trouble=trouble, is_final=is_final)
    assert agent.handle(event) == []


def end_of(instructions: list[messages.Instruction]) -> PodOutcome:
    """Return the outcome that is reported of the pod."""
    [reported] = [one for one in instructions if isinstance(one, messages.ReportEnds)]
    return reported.ends[0].report.outcome


def test_a_pod_whose_image_is_there_is_claimed_at_once() -> None:
    agent = an_agent()
    a_delivery(agent)
    pull_ended(agent, now_ms=1_000)
    [posted] = agent.handle(messages.ClaimsDue(now_ms=1_000))
    assert isinstance(posted, messages.PostClaims)
    assert posted.claims[0][0].pulled_ms == 0


def test_a_pod_without_an_image_to_pull_is_claimed_at_once() -> None:
    agent, file = an_agent(), structs.replace(BOUND, spec=structs.replace(BOUND.spec, image=""))
    delivery = messages.DeliveredPod(attempt=HERE, pod=file)
    agent.handle(messages.PodsDelivered(now_ms=1_000, deliveries=(delivery,)))
    [posted] = agent.handle(messages.ClaimsDue(now_ms=1_000))
    assert isinstance(posted, messages.PostClaims)


def test_no_claim_is_posted_before_the_image_is_there() -> None:
    agent = a_pulling_pod()
    reported = [look(agent, BOUND, now_ms=at) for at in (1_100, 1_500, 2_000, 6_500)]
    news = [messages.PostReport(Pulls(pod=HERE.pod, attempt=1))]
    assert reported == [[], news, [], news]
    pull_ended(agent, now_ms=8_000)
    [posted] = look(agent, BOUND, now_ms=8_000)
    assert isinstance(posted, messages.PostClaims)
    assert posted.claims[0][0].pulled_ms == 7_000


def test_a_long_pull_takes_nothing_from_the_time_in_which_its_claim_may_be_applied() -> None:
    agent = a_pulling_pod()
    pull_ended(agent, now_ms=500_000)
    [posted] = look(agent, BOUND, now_ms=500_000)
    assert isinstance(posted, messages.PostClaims)


def test_a_pull_that_could_not_be_asked_for_is_asked_for_again() -> None:
    agent = an_agent()
    delivery = messages.DeliveredPod(attempt=HERE, pod=BOUND)
    agent.handle(messages.PodsDelivered(now_ms=1_000, deliveries=(delivery,)))

    def refuse(instruction: messages.Instruction) -> None:
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        agent.drive(messages.ClaimsDue(now_ms=1_000), refuse)
    assert agent.state_of(HERE) == PodState.DELIVERED
    assert agent.handle(messages.ClaimsDue(now_ms=2_000)) == [messages.PullImage(HERE, BOUND)]


def test_a_cancel_ends_the_pull() -> None:
    agent = a_pulling_pod()
    agent.handle(messages.StopsAnnounced(now_ms=2_000))
    [read] = agent.handle(messages.ClaimsDue(now_ms=2_000))
    assert read == messages.ReadClaimedPods((HERE.pod,))
    stopping = changed(BOUND, terminating=True, reason="Cancelled")
    event = messages.ClaimedPodsRead(now_ms=2_000, pods={HERE.pod: stopping})
    stop, declined, reported = agent.handle(event)
    assert stop == messages.StopPull(HERE)
    assert declined == messages.DeclinePod(HERE, "stopped before it started")
    assert end_of([reported]).stopped == "Cancelled"


def test_a_pull_of_a_pod_that_is_gone_ends() -> None:
    assert look(a_pulling_pod(), None, now_ms=2_000)[0] == messages.StopPull(HERE)


def test_a_draining_agent_ends_its_pulls() -> None:
    agent = a_pulling_pod()
    agent.handle(messages.SignalsReceived(now_ms=2_000, count=1))
    assert not agent.is_drained
    stop, _, reported = look(agent, BOUND, now_ms=2_000)
    assert stop == messages.StopPull(HERE)
    assert end_of([reported]).stopped == "NodeLost"
    assert agent.is_drained


def test_a_pull_that_fails_is_tried_again_and_its_trouble_is_told() -> None:
    agent = a_pulling_pod()
    pull_ended(agent, "i/o timeout", now_ms=3_000)
    told = Pulls(pod=HERE.pod, attempt=1, failures=1, trouble="i/o timeout")
    assert look(agent, BOUND, now_ms=3_000) == [messages.PostReport(told)]
    assert look(agent, BOUND, now_ms=4_000) == []
    assert messages.PullImage(HERE, BOUND) in look(agent, BOUND, now_ms=13_000)
    agent.handle(messages.PullStarted(now_ms=13_000, attempt=HERE))
    assert look(agent, BOUND, now_ms=13_100) == []


def test_a_pod_fails_when_its_image_could_not_be_pulled_three_times() -> None:
    agent = a_pulling_pod()
    for at in (3_000, 13_000, 33_000):
        pull_ended(agent, "i/o timeout", now_ms=at)
        found = look(agent, BOUND, now_ms=at)
    assert end_of(found) == PodOutcome(
        exit_code=125,
        message=f"image {IMAGE} could not be pulled on node n1, tried 3 times: i/o timeout",
    )
    assert agent.state_of(HERE) == PodState.UNREPORTED


def test_a_pod_whose_image_does_not_exist_fails_at_once() -> None:
    agent = a_pulling_pod()
    pull_ended(agent, "manifest unknown", now_ms=3_000, is_final=True)
    assert end_of(look(agent, BOUND, now_ms=3_000)) == PodOutcome(
        exit_code=125, message=f"image {IMAGE} could not be pulled on node n1: manifest unknown"
    )


def test_a_cancel_comes_before_a_pull_that_has_failed_for_good() -> None:
    agent = a_pulling_pod()
    pull_ended(agent, "manifest unknown", now_ms=3_000, is_final=True)
    stopping = changed(BOUND, terminating=True, reason="Cancelled")
    assert end_of(look(agent, stopping, now_ms=3_000)).stopped == "Cancelled"


def test_a_pull_that_takes_too_long_is_given_up() -> None:
    agent = a_pulling_pod()
    found = look(agent, BOUND, now_ms=601_000)
    assert found[0] == messages.StopPull(HERE)
    assert end_of(found).message == f"image {IMAGE} could not be pulled on node n1 within 10m"


def test_the_end_of_a_pull_for_a_pod_that_is_gone_changes_nothing() -> None:
    agent = a_pulling_pod()
    look(agent, None, now_ms=2_000)
    pull_ended(agent, now_ms=3_000)
    agent.handle(messages.PullStarted(now_ms=3_000, attempt=HERE))
    assert HERE not in agent


def test_a_pulling_pod_takes_a_slot() -> None:
    assert a_pulling_pod().free() == 7
