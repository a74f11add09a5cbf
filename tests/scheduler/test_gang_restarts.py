"""A gang with `spec.launch` that has lost a pod starts again as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Launch, Pod, PodGroup, Retry
from batchq.core.session.snapshot import ContactStanding
from tests.builders import a_group, a_node, a_queue, a_running_group, a_task, decide
from tests.scheduler.conftest import Stack

SECOND = 1000
LAUNCH = Launch(ports=2)


def a_gang(*, launch: Launch | None = LAUNCH, **spec: Any) -> PodGroup:
    return a_group("g", tasks=(a_task("w", 3, command=("true",)),), launch=launch, **spec)


def run(stack: Stack, **spec: Any) -> dict[str, Pod]:
    """Have a gang of three run on two nodes."""
    stack.ready(a_node("n1", cpu=2), a_node("n2", cpu=2))
    stack.apply(a_queue(), a_gang(**spec))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING
    return by_name(stack)


def by_name(stack: Stack) -> dict[str, Pod]:
    return {pod.metadata.name: pod for pod in stack.pods()}


def lose(stack: Stack, pod: Pod) -> None:
    stack.move(
        pod,
        phase=PodPhase.EVICTED,
        reason="NodeLost",
        finished_at=stack.clock.at_ms,
        losses=pod.status.losses + 1,
    )


def fail(stack: Stack, pod: Pod) -> None:
    stack.move(
        pod,
        phase=PodPhase.FAILED,
        exit_code=1,
        message="out of luck",
        finished_at=stack.clock.at_ms,
        failures=pod.status.failures + 1,
    )


def stop_all(stack: Stack) -> None:
    """End every pod that was told to stop, a moment later."""
    stack.clock.at_ms += 1
    for pod in stack.pods():
        if pod.status.terminating:
            stack.move(
                pod, phase=PodPhase.EVICTED, terminating=False, finished_at=stack.clock.at_ms
            )


def states(stack: Stack) -> list[tuple[str, str]]:
    """Return phase and stop reason of each pod."""
    return sorted((str(pod.status.phase), pod.status.reason) for pod in stack.pods())


def test_each_pod_has_the_ports_of_its_group(stack: Stack) -> None:
    pods = run(stack)
    assert [pod.spec.ports for pod in pods.values()] == [2, 2, 2]


def test_a_lost_pod_stops_the_others_and_all_start_again(stack: Stack) -> None:
    pods = run(stack)
    lose(stack, pods["g-w-1"])
    stack.until_idle()
    assert states(stack) == [("Running", "GangRestart"), ("Running", "GangRestart")]
    stop_all(stack)
    stack.until_idle()
    again = by_name(stack)
    assert states(stack) == [("Bound", ""), ("Bound", ""), ("Bound", "")]
    assert {pod.status.admission for pod in again.values()} == {2}
    assert {pod.status.last_reason for pod in again.values()} == {"GangRestart"}
    status = stack.group("g").status
    assert (status.phase, status.restarts, status.failed_rounds) == (PodGroupPhase.IN_QUEUE, 1, 0)
    stack.start_pods()
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING


def test_no_pod_of_the_next_round_is_made_while_one_of_the_last_still_stops(stack: Stack) -> None:
    pods = run(stack)
    lose(stack, pods["g-w-1"])
    stack.until_idle()
    stopping = by_name(stack)["g-w-0"]
    stack.move(stopping, phase=PodPhase.EVICTED, terminating=False, finished_at=stack.clock.at_ms)
    stack.until_idle()
    of_round = [pod.status.phase for pod in stack.pods() if pod.status.admission == 2]
    assert PodPhase.BOUND not in of_round
    stop_all(stack)
    stack.until_idle()
    assert states(stack) == [("Bound", ""), ("Bound", ""), ("Bound", "")]


def test_the_reservation_and_the_place_in_line_stay(stack: Stack) -> None:
    pods = run(stack)
    held = stack.group("g").status.charge
    # It needs the third cpu of the gang, and is behind it in line.
    stack.apply(a_group("other", tasks=(a_task("w", 1, requests={"cpu": 2}, command=("true",)),)))
    stack.until_idle()
    before = stack.group("g").status
    lose(stack, pods["g-w-1"])
    stack.until_idle()
    stop_all(stack)
    stack.turn()
    status = stack.group("g").status
    assert status.charge == held
    assert status.reserved_at == before.reserved_at
    assert status.queue_time == before.queue_time
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.IN_QUEUE
    assert stack.group("other").status.phase == PodGroupPhase.PENDING


def test_a_failure_with_a_retry_left_restarts_the_gang_after_the_backoff(stack: Stack) -> None:
    pods = run(stack, retry=Retry(limit=1, backoff=7 * SECOND))
    fail(stack, pods["g-w-2"])
    stack.until_idle()
    stop_all(stack)
    stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.restarts, status.failed_rounds) == (PodGroupPhase.PENDING, 1, 1)
    assert [str(one.reason) for one in status.reasons] == ["BackingOff"]
    evicted = next(one for one in status.conditions if one.type == "Evicted")
    assert evicted.reason == "GangRestart"
    assert evicted.message == "its pod g-w-2 exited with 1 (out of luck)"
    stack.clock.at_ms += 7 * SECOND
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.IN_QUEUE


def test_the_retries_count_rounds_of_the_gang(stack: Stack) -> None:
    run(stack, retry=Retry(limit=1, backoff=0))
    fail(stack, by_name(stack)["g-w-0"])
    stack.until_idle()
    stop_all(stack)
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    # Another pod fails this time: it is the second failure of the gang.
    fail(stack, by_name(stack)["g-w-1"])
    stack.until_idle()
    group = stack.group("g")
    assert group.status.phase == PodGroupPhase.FAILED
    finished = next(one for one in group.status.conditions if one.type == "Finished")
    assert finished.reason == "RetriesSpent"


def test_a_gang_that_is_requeued_keeps_the_count_of_its_failures(stack: Stack) -> None:
    run(stack, retry=Retry(limit=1, backoff=0))
    fail(stack, by_name(stack)["g-w-0"])
    stack.until_idle()
    stack.apply(a_gang(retry=Retry(limit=1, backoff=0), suspend=True))
    stack.until_idle()
    assert stack.group("g").status.reserved_at is None
    stack.apply(a_gang(retry=Retry(limit=1, backoff=0)))
    stop_all(stack)
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    fail(stack, by_name(stack)["g-w-1"])
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.FAILED


def test_without_retries_the_first_failure_ends_the_gang(stack: Stack) -> None:
    pods = run(stack)
    fail(stack, pods["g-w-0"])
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.FAILED
    assert stack.group("g").status.restarts == 0


def test_losses_of_nodes_cost_no_retry(stack: Stack) -> None:
    run(stack)
    for _ in range(2):
        lose(stack, by_name(stack)["g-w-0"])
        stack.until_idle()
        stop_all(stack)
        stack.until_idle()
        stack.start_pods()
        stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.restarts) == (PodGroupPhase.RUNNING, 2)


def test_from_the_third_loss_on_the_gang_waits(stack: Stack) -> None:
    run(stack)
    for _ in range(2):
        lose(stack, by_name(stack)["g-w-0"])
        stack.until_idle()
        stop_all(stack)
        stack.until_idle()
        stack.start_pods()
        stack.until_idle()
    lost_at = stack.clock.at_ms
    lose(stack, by_name(stack)["g-w-0"])
    stack.until_idle()
    stop_all(stack)
    stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.backoff_until) == (
        PodGroupPhase.PENDING,
        lost_at + 10 * SECOND,
    )


def test_a_pod_that_succeeded_runs_again_with_its_gang(stack: Stack) -> None:
    pods = run(stack)
    stack.move(pods["g-w-0"], phase=PodPhase.SUCCEEDED, finished_at=stack.clock.at_ms)
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING
    lose(stack, by_name(stack)["g-w-1"])
    stack.until_idle()
    stop_all(stack)
    stack.until_idle()
    assert states(stack) == [("Bound", ""), ("Bound", ""), ("Bound", "")]


def test_a_pod_that_leaves_before_its_claim_is_bound_again_alone(stack: Stack) -> None:
    stack.ready(a_node("n1", cpu=2), a_node("n2", cpu=2))
    stack.apply(a_queue(), a_gang())
    stack.until_idle()
    first, *others = stack.pods(PodPhase.BOUND)
    for pod in others:
        stack.move(pod, phase=PodPhase.RUNNING, started_at=stack.clock.at_ms)
    stack.move(first, phase=PodPhase.EVICTED, reason="NodeLost", finished_at=stack.clock.at_ms)
    stack.until_idle()
    assert stack.group("g").status.restarts == 0
    attempts = {pod.metadata.name: pod.status.attempt for pod in stack.pods()}
    assert attempts[first.metadata.name] == 2
    assert [attempts[pod.metadata.name] for pod in others] == [1, 1]


def test_a_pod_that_is_lost_while_the_others_still_claim_restarts_all(stack: Stack) -> None:
    stack.ready(a_node("n1", cpu=2), a_node("n2", cpu=2))
    stack.apply(a_queue(), a_gang())
    stack.until_idle()
    first, *_ = stack.pods(PodPhase.BOUND)
    stack.move(first, phase=PodPhase.RUNNING, started_at=stack.clock.at_ms)
    stack.until_idle()
    lose(stack, by_name(stack)[first.metadata.name])
    stack.until_idle()
    assert states(stack) == [("Bound", "GangRestart"), ("Bound", "GangRestart")]


@pytest.mark.parametrize("launch", [None, LAUNCH])
def test_only_gangs_with_launch_restart_whole(stack: Stack, launch: Launch | None) -> None:
    stack.ready(a_node("n1", cpu=2), a_node("n2", cpu=2))
    stack.apply(a_queue(), a_gang(launch=launch))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    lose(stack, by_name(stack)["g-w-1"])
    stack.until_idle()
    assert stack.group("g").status.restarts == (0 if launch is None else 1)


def test_a_gang_of_which_all_pods_fail_at_once_is_restarted(stack: Stack) -> None:
    run(stack, retry=Retry(limit=1, backoff=0))
    for pod in stack.pods():
        fail(stack, pod)
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.PENDING
    stack.clock.at_ms += 1
    stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.failed_rounds) == (PodGroupPhase.IN_QUEUE, 1)
    assert states(stack) == [("Bound", ""), ("Bound", ""), ("Bound", "")]


@pytest.mark.parametrize(
    ("forgotten", "restarts"),
    [({}, 0), ({"phase": PodPhase.BOUND, "started_at": None}, 1), ({"phase": PodPhase.PENDING}, 1)],
    ids=["nothing", "a claim", "a bind"],
)
def test_a_gang_starts_again_if_a_restarted_server_has_forgotten_one_of_its_pods(
    forgotten: dict[str, Any], restarts: int
) -> None:
    group, *pods = a_running_group("g", 2, launch=LAUNCH)
    first, second = pods
    status = structs.replace(second.status, **forgotten)
    if status.phase == PodPhase.PENDING:
        status = structs.replace(status, node="", attempt=0, started_at=None)
    standing = ContactStanding(generation=1, reported=frozenset({"n1"}))
    decided = decide(
        a_node("n1", cpu=2),
        group,
        first,
        structs.replace(second, status=status),
        standing=standing,
    )
    assert decided.session.groups["g"].status.restarts == restarts


ALONE = Launch(ports=2, restart="pod")


@pytest.mark.parametrize("strike", [lose, fail])
def test_with_restart_pod_only_the_broken_pod_starts_again(
    stack: Stack, strike: Callable[[Stack, Pod], None]
) -> None:
    pods = run(stack, launch=ALONE, retry=Retry(limit=1, backoff=0))
    strike(stack, pods["g-w-1"])
    stack.until_idle()
    assert states(stack) == [("Bound", ""), ("Running", ""), ("Running", "")]
    assert stack.group("g").status.phase == PodGroupPhase.UNKNOWN
    stack.start_pods()
    stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.admission, status.restarts) == (PodGroupPhase.RUNNING, 1, 0)


def test_with_restart_pod_the_retries_of_each_pod_count(stack: Stack) -> None:
    pods = run(stack, launch=ALONE, retry=Retry(limit=1, backoff=0))
    for name in ("g-w-0", "g-w-1"):
        fail(stack, pods[name])
        stack.until_idle()
        stack.start_pods()
        stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING
    fail(stack, by_name(stack)["g-w-1"])
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.FAILED


def test_an_elastic_gang_starts_with_its_least_pods_and_goes_on_without_the_others(
    stack: Stack,
) -> None:
    stack.ready(a_node("n1", cpu=2))
    stack.apply(a_queue(), a_gang(launch=ALONE, min_member=2))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING
    stack.ready(a_node("n2", cpu=2))
    stack.until_idle()
    assert states(stack) == [("Bound", ""), ("Running", ""), ("Running", "")]
    stack.start_pods()
    stack.until_idle()
    lose(stack, by_name(stack)["g-w-2"])
    stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.admission, status.restarts) == (PodGroupPhase.RUNNING, 1, 0)
