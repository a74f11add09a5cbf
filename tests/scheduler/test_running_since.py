"""A group has been Running since its minMember-th pod started, whenever a session sees that; its
walltime counts from there.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupStatus, PodTemplate, Task
from batchq.scheduler.timers import next_due_at
from tests.builders import Decided, a_group, a_node, a_pod, a_queue, amounts, decide
from tests.scheduler.conftest import Stack
from tests.scheduler.consumers import claim, external, in_queue, report

SECOND = 1000
LET_IN_AT = 10 * SECOND
SEEN_AT = 60 * SECOND
TWO_PODS = Task(
    name="main", replicas=2, template=PodTemplate(command=("true",), requests=amounts(cpu=1))
)


def a_gang(size: int, **spec: Any) -> PodGroup:
    reserved = amounts(cpu=size, pods=size)
    status = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=LET_IN_AT,
        in_queue_at=LET_IN_AT,
        reservation=reserved,
    )
    return a_group("g", size, status=status, **spec)


def a_start(group: PodGroup, index: int, at_s: int, phase: PodPhase = PodPhase.RUNNING) -> Pod:
    on_node = {"phase": phase, "node": "n1", "bound_at": LET_IN_AT}
    return a_pod(group, index, started_at=at_s * SECOND, **on_node)


def seen(group: PodGroup, *pods: Pod) -> Decided:
    return decide(a_node(cpu=8), group, *pods, now_ms=SEEN_AT)


def since_s(decided: Decided) -> int | None:
    status = decided.session.groups["g"].status
    assert status.phase == PodGroupPhase.RUNNING
    return None if status.started_at is None else status.started_at // SECOND


def test_a_gang_runs_since_the_last_of_its_pods_has_started() -> None:
    gang = a_gang(2)
    assert since_s(seen(gang, a_start(gang, 0, 20), a_start(gang, 1, 30))) == 30


def test_an_elastic_group_runs_since_as_many_had_started_as_it_needs() -> None:
    group = a_gang(3, min_member=2)
    pods = [a_start(group, index, at_s) for index, at_s in enumerate((40, 20, 30))]
    assert since_s(seen(group, *pods)) == 30


def test_a_pod_that_waits_for_its_next_attempt_has_not_started() -> None:
    group = a_gang(3, min_member=2)
    failed = a_start(group, 0, 15, PodPhase.EVICTED)
    assert since_s(seen(group, failed, a_start(group, 1, 20), a_start(group, 2, 30))) == 30


@pytest.mark.parametrize(("said_s", "since"), [(3, 10), (500, 60)])
def test_a_start_is_neither_before_the_admission_nor_after_now(said_s: int, since: int) -> None:
    gang = a_gang(1)
    assert since_s(seen(gang, a_start(gang, 0, said_s))) == since


def test_its_walltime_counts_from_there() -> None:
    gang = a_gang(1, walltime=45 * SECOND)
    decided = seen(gang, a_start(gang, 0, 20))
    assert next_due_at(decided.session) == 65 * SECOND


def started(stack: Stack, **spec: Any) -> None:
    """Start all pods of a group of two, 300 ms after its admission, seen by no session yet."""
    stack.ready(a_node(cpu=4))
    stack.apply(a_queue(), a_group("g", tasks=(TWO_PODS,), **spec))
    stack.until_idle()
    stack.clock.at_ms += 300
    stack.start_pods()


def test_a_session_that_defers_status_shows_a_group_as_running_a_second_later(
    stack: Stack,
) -> None:
    started(stack)
    started_at = stack.clock.at_ms
    turn = stack.turn(writes_status=False)
    assert turn.intents == ()
    assert turn.next_due_at == started_at + 1_000
    stack.clock.at_ms += 999
    assert stack.turn(writes_status=False).intents == ()
    assert stack.group("g").status.phase == PodGroupPhase.IN_QUEUE

    stack.clock.at_ms += 1
    stack.turn(writes_status=False)
    status = stack.group("g").status
    assert (status.phase, status.started_at) == (PodGroupPhase.RUNNING, started_at)


def test_a_group_that_ends_before_it_was_shown_as_running_has_its_start(stack: Stack) -> None:
    started(stack)
    started_at = stack.clock.at_ms
    stack.turn(writes_status=False)
    stack.clock.at_ms += 200
    stack.end_pods()
    turn = stack.turn(writes_status=False)
    assert [type(one).__name__ for one in turn.intents] == ["FinishGroup"]
    status = stack.group("g").status
    assert (status.phase, status.started_at) == (PodGroupPhase.COMPLETED, started_at)
    assert status.finished_at == started_at + 200


def test_a_group_that_fails_before_its_gang_has_started_has_no_start(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(a_queue(), a_group("g", tasks=(TWO_PODS,)))
    stack.until_idle()
    first, second = stack.pods(PodPhase.BOUND)
    stack.move(first, phase=PodPhase.RUNNING, started_at=stack.clock.at_ms)
    at_ms = stack.clock.at_ms
    stack.move(second, phase=PodPhase.FAILED, exit_code=1, failures=1, finished_at=at_ms)
    stack.turn()
    status = stack.group("g").status
    assert (status.phase, status.started_at) == (PodGroupPhase.FAILED, None)


def test_an_external_group_that_ends_unseen_has_run_since_its_claim(stack: Stack) -> None:
    in_queue(stack, external())
    claimed_at = stack.clock.at_ms
    token = claim(stack)
    report(stack, token, "running")
    assert stack.turn(writes_status=False).intents == ()
    stack.clock.at_ms += 200
    report(stack, token, "succeeded")
    stack.turn(writes_status=False)
    status = stack.group("e").status
    assert (status.phase, status.started_at) == (PodGroupPhase.COMPLETED, claimed_at)


@pytest.mark.parametrize("spec", [{"walltime": 60 * SECOND}, {"min_resources": amounts(cpu=3)}])
def test_a_start_on_which_decisions_depend_is_shown_at_once(
    stack: Stack, spec: dict[str, Any]
) -> None:
    started(stack, **spec)
    stack.turn(writes_status=False)
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING
