"""An agent's state machine without a shell: a test carries out its instructions."""

from __future__ import annotations

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import PodAttempt
from batchq.api.objects import Pod, PodGroup, PodGroupStatus
from batchq.worker.agent.messages import (
    ClaimAnswer,
    ClaimedPodsRead,
    ClaimsDue,
    ClaimsPosted,
    DeliveredPod,
    PodsDelivered,
    PostClaims,
    ReadClaimedPods,
    StartPod,
)
from batchq.worker.agent.pod_states import Paces, attempt_of
from batchq.worker.agent.state_machine import AgentState
from tests.builders import a_group, a_pod

NODE, AUTHOR, LEASE_MS = "n1", "host:1:1", 30_000


def an_agent(
    *, slots: int = 8, drain_timeout_ms: int = 0, paces: Paces | None = None
) -> AgentState:
    """Return the machine of an agent on `n1` that knows no pods."""
    return AgentState(
        node=NODE,
        author=AUTHOR,
        slots=slots,
        lease_ms=LEASE_MS,
        drain_timeout_ms=10_000,
        paces=paces,
    )


def the_group() -> PodGroup:
    """Return the group of all pods here."""
    status = PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1)
    return a_group("u1", 8, status=status)


def a_bound_pod(index: int = 0) -> Pod:
    """Return a pod that is Bound to `n1`, in its first attempt."""
    return a_pod(the_group(), index, phase=PodPhase.BOUND, node=NODE, bound_at=0)


def changed(pod: Pod, **status: object) -> Pod:
    """Return the pod with another status."""
    return structs.replace(pod, status=structs.replace(pod.status, **status))


def granted(pod: Pod) -> Pod:
    """Return the pod after the leader has applied this agent's claim."""
    return changed(pod, phase=PodPhase.RUNNING, holder=AUTHOR)


def claim(agent: AgentState, *pods: Pod, now_ms: int = 1_000) -> None:
    """Deliver pods, and have their claims posted."""
    deliveries = tuple(DeliveredPod(attempt=attempt_of(pod), pod=pod) for pod in pods)
    assert agent.handle(PodsDelivered(now_ms=now_ms, deliveries=deliveries)) == []
    [posted] = agent.handle(ClaimsDue(now_ms=now_ms))
    assert isinstance(posted, PostClaims)
    answers = tuple(
        ClaimAnswer(attempt=attempt_of(pod), word="ok", group=the_group()) for pod in pods
    )
    event = ClaimsPosted(now_ms=now_ms, asked_at=now_ms, answers=answers)
    assert agent.handle(event) == []


def start(agent: AgentState, pod: Pod, *, now_ms: int = 1_000) -> PodAttempt:
    """Deliver a pod, and have it claimed and started."""
    claim(agent, pod, now_ms=now_ms - 100)
    attempt = attempt_of(pod)
    assert agent.handle(ClaimsDue(now_ms=now_ms)) == [ReadClaimedPods((attempt.pod,))]
    event = ClaimedPodsRead(now_ms=now_ms, pods={attempt.pod: granted(pod)})
    [started] = agent.handle(event)
    assert isinstance(started, StartPod)
    return attempt
