"""A pod that is lost with its node repeatedly is bound again less and less often."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.intents import RequeuePod
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import PodOutcome
from batchq.api.objects import PodGroupStatus
from batchq.scheduler.node_reports import ended
from batchq.scheduler.timers import next_due_at
from batchq.scheduler.transactions import transactions_of
from tests.builders import Decided, a_group, a_node, a_pod, a_running_group, decide

LOST_AT = 100_000
SECOND = 1000
MINUTE = 60 * SECOND


def after_a_loss(*, losses: int, later_ms: int, reason: str = "NodeLost") -> Decided:
    """Run a session this long after a running group's only pod was evicted."""
    status = PodGroupStatus(phase=PodGroupPhase.RUNNING, admission=1, started_at=0)
    group = a_group("g", status=status)
    pod = a_pod(
        group,
        phase=PodPhase.EVICTED,
        reason=reason,
        finished_at=LOST_AT,
        losses=losses,
    )
    return decide(a_node(cpu=1), group, pod, now_ms=LOST_AT + later_ms)


def requeued(decided: Decided) -> list[str]:
    return [intent.pod for intent in decided.of(RequeuePod)]


@pytest.mark.parametrize("losses", [1, 2])
def test_two_losses_are_free(losses: int) -> None:
    assert requeued(after_a_loss(losses=losses, later_ms=0)) == ["default/g-w-0"]


@pytest.mark.parametrize(
    ("losses", "wait_ms"),
    [
        (3, 10 * SECOND),
        (4, 20 * SECOND),
        (5, 40 * SECOND),
        (8, 320 * SECOND),
        (9, 10 * MINUTE),
        (1_000, 10 * MINUTE),
    ],
)
def test_from_the_third_on_it_waits_twice_as_long_each_time(losses: int, wait_ms: int) -> None:
    assert requeued(after_a_loss(losses=losses, later_ms=wait_ms - 1)) == []
    assert requeued(after_a_loss(losses=losses, later_ms=wait_ms)) == ["default/g-w-0"]


def test_the_loop_looks_again_when_the_wait_is_over() -> None:
    decided = after_a_loss(losses=3, later_ms=0)
    assert next_due_at(decided.session) == LOST_AT + 10 * SECOND


@pytest.mark.parametrize("field", ["bound_at", "started_at"])
def test_a_pod_that_states_an_instant_of_the_future_is_lost_without_its_node(field: str) -> None:
    status = PodGroupStatus(phase=PodGroupPhase.RUNNING, admission=1, started_at=0)
    group = a_group("g", status=status)
    pod = a_pod(group, phase=PodPhase.RUNNING, node="nowhere", **{field: 10**15})
    decided = decide(group, pod, now_ms=10 * MINUTE)
    (lost,) = decided.session.groups["g"].pods.values()
    assert (lost.status.phase, lost.status.reason) == (PodPhase.EVICTED, "NodeLost")


def test_a_preempted_pod_does_not_wait_for_earlier_losses() -> None:
    decided = after_a_loss(losses=7, later_ms=0, reason="Preempted")
    assert requeued(decided) == ["default/g-w-0"]


def test_a_lost_pod_counts_the_loss() -> None:
    decided = decide(a_node(cpu=1), *a_running_group("g"), leases={"g-1-0": 0}, now_ms=10 * MINUTE)
    (pod,) = decided.session.groups["g"].pods.values()
    assert (pod.status.phase, pod.status.losses) == (PodPhase.EVICTED, 1)


@pytest.mark.parametrize(
    ("outcome", "losses"),
    [
        (PodOutcome(stopped="NodeLost", signal=15), 3),
        (PodOutcome(stopped="Preempted", signal=15), 2),
        (PodOutcome(exit_code=1), 2),
        (PodOutcome(exit_code=0), 2),
    ],
)
def test_a_pod_stopped_by_its_node_without_the_server_counts_as_lost(
    outcome: PodOutcome, losses: int
) -> None:
    pod = a_pod(a_group("g"), phase=PodPhase.RUNNING, node="n1", losses=2)
    assert ended(pod, outcome, now_ms=7).status.losses == losses


def messages_of(*objects: Any, **more: Any) -> list[str]:
    """Return the events of one session as `reason: message`."""
    session = decide(*objects, **more).session
    return [
        f"{event.reason}: {event.message}"
        for transaction in transactions_of(session)
        for event in transaction.events
    ]


def test_events_name_one_pod_in_the_singular() -> None:
    assert "Bound: 1 pod to n1" in messages_of(a_node(cpu=4), a_group("g", 1))
    assert "Bound: 2 pods to n1" in messages_of(a_node(cpu=4), a_group("g", 2))


def test_events_name_one_lost_or_stopped_pod_in_the_singular() -> None:
    silent = {"leases": {"g-1-0": 0}, "now_ms": 10 * MINUTE}
    assert "PodLost: 1 pod lost with n1" in messages_of(
        a_node(cpu=4), *a_running_group("g"), **silent
    )
    stopping = messages_of(a_node(cpu=4), *a_running_group("g", suspend=True))
    assert "Evicting: 1 pod told to stop: Suspended" in stopping
    both = messages_of(a_node(cpu=4), *a_running_group("g", 2, suspend=True))
    assert "Evicting: 2 pods told to stop: Suspended" in both
