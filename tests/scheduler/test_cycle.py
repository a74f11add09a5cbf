"""The cycle over real stores: reading, deciding and writing together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Node, PodGroup, PodTemplate, Retry, Task
from batchq.api.transaction import CLUSTER
from batchq.assembly import assemble
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Settings
from batchq.scheduler.transactions import transactions_of
from batchq.store.redis import RedisStore
from tests.builders import a_group, a_node, a_queue, a_quota, decide
from tests.scheduler.conftest import Stack

_set = msgspec.structs.replace


def _group(name: str, replicas: int = 1, **more: Any) -> PodGroup:
    """Return a valid group, whose pods have a command."""
    group = a_group(name, replicas, **more)
    tasks = tuple(
        _set(task, template=_set(task.template, command=("true",))) for task in group.spec.tasks
    )
    return _set(group, spec=_set(group.spec, tasks=tasks))


def test_a_group_goes_from_pending_to_completed(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g", 2))
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.IN_QUEUE
    assert [pod.status.phase for pod in stack.pods()] == ["Bound", "Bound"]
    assert stack.store.ledger()[CLUSTER] == {"cpu": 2000, "pods": 2000, "podgroups": 1000}

    stack.start_pods()
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING

    stack.end_pods()
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.COMPLETED
    # Only the node's own charge is left.
    assert stack.store.ledger().keys() == {"capacity"}


def test_a_waiting_group_of_ten_thousand_pods_is_one_record(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    stack = Stack(redis_store, SchedulerConfig())
    stack.ready(a_node(cpu=4))
    stack.apply(_group("huge", 10_000))
    before = _stored(raw)
    for _ in range(5):
        stack.turn()
    assert stack.group("huge").status.reasons[0].reason == "ExceedsCapacity"
    assert _stored(raw) == before
    assert stack.pods() == []


def _stored(raw: redis.Redis) -> dict[bytes, int]:
    """Return the number of fields of each hash of objects, without streams and answers."""
    sizes = {}
    for key in raw.scan_iter():
        if raw.type(key) == b"hash" and b"request" not in key:
            sizes[key] = raw.hlen(key)
    return sizes


def test_resources_freed_by_one_group_go_to_the_next_in_the_same_turn(stack: Stack) -> None:
    stack.ready(a_node(cpu=2))
    stack.apply(_group("first", 2), _group("second", 2))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    stack.end_pods()
    report = stack.turn()
    assert report.commit.refused == ()
    assert stack.group("first").status.phase == PodGroupPhase.COMPLETED
    assert stack.group("second").status.phase == PodGroupPhase.IN_QUEUE


def test_a_quota_cut_behind_the_sessions_back_is_caught_by_the_store(stack: Stack) -> None:
    stack.ready(a_node(cpu=8))
    stack.apply(a_quota(cpu=4), _group("g", 4))
    # The session decides on a snapshot with four cpus; the store has the new limit.
    session = assemble(SchedulerConfig()).decide(stack.store.snapshot(), stack.clock.at_ms)
    stack.apply(a_quota(cpu=2))
    commit = stack.store.commit(list(transactions_of(session)), request_id="late")
    assert [refusal.answer.word for refusal in commit.refused] == ["limit"]
    assert stack.group("g").status.phase == PodGroupPhase.PENDING
    assert stack.pods() == []


def test_a_group_that_no_longer_fits_is_rolled_back_with_its_pods(stack: Stack) -> None:
    stack.ready(a_node("n1", cpu=4), a_node("n2", cpu=4))
    stack.apply(a_quota(cpu=8), _group("first", 4), _group("second", 4))
    stack.until_idle()
    assert len(stack.pods(PodPhase.BOUND)) == 8

    stack.apply(a_quota(cpu=4))
    stack.until_idle()
    second = stack.group("second").status
    assert second.phase == PodGroupPhase.PENDING
    assert second.conditions[1].reason == "CapacityCut"
    assert stack.group("first").status.phase == PodGroupPhase.IN_QUEUE
    stopped = [pod for pod in stack.pods() if pod.status.terminating]
    assert {pod.spec.pod_group for pod in stopped} == {"second"}


def test_a_group_that_fits_on_no_node_backs_off_longer_each_time(
    make_stack: Callable[..., Stack],
) -> None:
    # With overcommit, groups are admitted without a look at nodes.
    stack = make_stack(SchedulerConfig(settings=Settings(overcommit=2000)))
    stack.ready(a_node("n1", cpu=3), a_node("n2", cpu=4, cordoned=True))
    stack.apply(_group("wide", 1, cpu=4))
    pauses = []
    for _ in range(4):
        stack.until_idle()
        status = stack.group("wide").status
        assert status.phase == PodGroupPhase.PENDING
        assert status.backoff_until is not None
        pauses.append((status.backoff_until - stack.clock.at_ms) // 1000)
        assert stack.pods() == []
        stack.clock.at_ms = status.backoff_until
    assert pauses == [10, 20, 40, 80]
    assert stack.store.ledger().keys() == {"capacity", "objects:default"}


def test_a_gang_that_does_not_start_in_time_is_rolled_back(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g", 2))
    stack.until_idle()
    stack.clock.at_ms += 5 * 60 * 1000
    stack.until_idle()
    status = stack.group("g").status
    assert status.phase == PodGroupPhase.PENDING
    assert status.queue_time == stack.clock.at_ms
    assert all(pod.status.terminating for pod in stack.pods())


def test_a_failed_pod_is_retried_after_its_backoff_and_then_fails_for_good(
    stack: Stack,
) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g", retry=Retry(limit=1)))
    stack.until_idle()
    stack.start_pods()
    stack.end_pods(PodPhase.FAILED, exit_code=3, failures=1)
    reports = stack.until_idle()
    assert stack.pods()[0].status.phase == PodPhase.FAILED
    assert reports[-1].next_due_at is not None

    stack.clock.at_ms += 10_000
    stack.until_idle()
    assert stack.pods()[0].status.phase == PodPhase.BOUND
    assert stack.pods()[0].status.attempt == 2
    stack.start_pods()
    stack.end_pods(PodPhase.FAILED, exit_code=3, failures=2)
    stack.until_idle()
    group = stack.group("g")
    assert group.status.phase == PodGroupPhase.FAILED
    finished = next(c for c in group.status.conditions if c.type == "Finished")
    assert finished.reason == "RetriesSpent"
    assert finished.message == "1 of 1 pods failed; the first, g-w-0, exited with 3"


def test_how_a_pod_failed_is_said_once(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g"))
    stack.until_idle()
    stack.start_pods()
    killed = "killed by signal 9 (SIGKILL)"
    stack.end_pods(PodPhase.FAILED, exit_code=137, signal=9, failures=1, message=killed)
    stack.until_idle()
    finished = next(c for c in stack.group("g").status.conditions if c.type == "Finished")
    assert finished.message == (
        "1 of 1 pods failed; the first, g-w-0, was killed by signal 9 (SIGKILL)"
    )


def test_pods_of_a_silent_node_are_lost_and_bound_elsewhere(stack: Stack) -> None:
    heard = stack.clock.at_ms
    stack.ready(a_node("n1", cpu=4))
    stack.apply(_group("g", 2))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    stack.ready(a_node("n2", cpu=4))
    node = _node(stack, "n1")
    stack.ready(_set(node, status=_set(node.status, heartbeat=heard)))

    stack.clock.at_ms = heard + 40_000
    stack.until_idle()
    assert _node(stack, "n1").status.ready is False
    [silent] = [event for event in stack.store.events(kind="Node") if event.reason == "NotReady"]
    assert (silent.key, silent.message, silent.at) == ("n1", "no heartbeat", heard + 40_000)
    assert {pod.status.node for pod in stack.pods(PodPhase.RUNNING)} == {"n1"}

    # Its lease (30 s) and the pods' grace (30 s) must pass before anything runs again.
    stack.clock.at_ms = heard + 60_000
    stack.until_idle()
    assert {pod.status.node for pod in stack.pods(PodPhase.BOUND)} == {"n2"}
    assert {pod.status.attempt for pod in stack.pods()} == {2}


def test_a_cancelled_group_stops_its_pods_and_keeps_their_charge_until_they_end(
    stack: Stack,
) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g", 2))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    stack.commit(changes.cancel(stack.store, "default/g", now_ms=stack.clock.at_ms))
    assert stack.group("g").status.phase == PodGroupPhase.CANCELLED
    stack.until_idle()
    assert [pod.status.reason for pod in stack.pods()] == ["Cancelled", "Cancelled"]
    assert stack.store.ledger()[CLUSTER]["cpu"] == 2000
    stack.end_pods(PodPhase.EVICTED)
    stack.until_idle()
    assert stack.store.ledger().keys() == {"capacity"}


def test_groups_of_a_drained_queue_return_to_pending_with_their_queue_time(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(a_queue("q"), _group("g", 2, queue="q"))
    queue_time = stack.group("g").status.queue_time
    stack.until_idle()
    stack.clock.at_ms += 1000
    stack.apply(a_queue("q", stop_policy="HoldAndDrain"))
    stack.until_idle()
    status = stack.group("g").status
    assert status.phase == PodGroupPhase.PENDING
    assert status.queue_time == queue_time
    assert [verdict.reason for verdict in status.reasons] == ["QueueStopped"]


def test_the_reservation_shrinks_as_pods_finish(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    template = PodTemplate(command=("true",), requests={"cpu": 1000})
    group = a_group("g", tasks=(Task(name="w", replicas=3, template=template),))
    stack.apply(group)
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    first = stack.pods(PodPhase.RUNNING)[0]
    stack.move(first, phase=PodPhase.SUCCEEDED, finished_at=stack.clock.at_ms)
    stack.until_idle()
    assert stack.store.ledger()[CLUSTER]["cpu"] == 2000
    assert stack.group("g").status.phase == PodGroupPhase.RUNNING


def test_a_finished_group_is_forgotten_when_its_time_is_over(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g", ttl_after_finished=60_000))
    stack.until_idle()
    stack.start_pods()
    stack.end_pods()
    stack.until_idle()
    assert len(stack.pods()) == 1
    stack.clock.at_ms += 60_000
    stack.until_idle()
    assert stack.store.list("PodGroup") == ()
    assert stack.pods() == []
    assert stack.store.charges().keys() == {"node:n1"}


@pytest.mark.parametrize("turns", [1, 5])
def test_turns_without_changes_write_nothing(stack: Stack, turns: int) -> None:
    stack.ready(a_node(cpu=1))
    stack.apply(_group("in"), _group("out", 1), _group("later", 1))
    stack.until_idle()
    revision = stack.store.snapshot().revision
    for _ in range(turns):
        assert stack.turn().intents == ()
    assert stack.store.snapshot().revision == revision


def _node(stack: Stack, name: str) -> Node:
    found = stack.store.get("Node", name)
    assert isinstance(found, Node)
    return found


def test_a_pod_of_the_next_attempt_has_the_reason_of_the_last_stop(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g"))
    stack.until_idle()
    stack.start_pods()
    stack.end_pods(PodPhase.EVICTED, reason="NodeLost")
    stack.until_idle()
    (pod,) = stack.pods(PodPhase.BOUND)
    assert (pod.status.attempt, pod.status.last_reason) == (2, "NodeLost")


def test_a_pod_of_the_next_admission_has_the_reason_of_the_groups_last_stop(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    stack.apply(_group("g"))
    stack.until_idle()
    stack.start_pods()
    stack.commit(changes.suspend(stack.store, "default/g", now_ms=0))
    stack.until_idle()
    stack.end_pods(PodPhase.EVICTED, reason="Suspended")
    stack.commit(changes.resume(stack.store, "default/g", now_ms=0))
    stack.until_idle()
    (pod,) = stack.pods(PodPhase.BOUND)
    assert (pod.status.admission, pod.status.last_reason) == (2, "Suspended")


def test_the_retries_of_an_array_are_spent_per_pod_whatever_admissions_come_between(
    stack: Stack,
) -> None:
    stack.ready(a_node(cpu=2))
    stack.apply(_group("g", 2, min_member=1, retry=Retry(limit=1, backoff=0)))
    stack.until_idle()
    stack.start_pods()
    stack.end_pods(PodPhase.FAILED, exit_code=1, failures=1)
    stack.commit(changes.suspend(stack.store, "default/g", now_ms=0))
    stack.until_idle()
    assert stack.pods() == []
    stack.commit(changes.resume(stack.store, "default/g", now_ms=0))
    stack.until_idle()
    assert [pod.status.failures for pod in stack.pods(PodPhase.BOUND)] == [1, 1]
    stack.start_pods()
    stack.end_pods(PodPhase.FAILED, exit_code=1, failures=2)
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.FAILED


def test_an_event_of_a_group_is_not_older_than_the_group() -> None:
    # The session had begun when the group was created, and has read it.
    decided = decide(a_node(cpu=1), a_group("late", cpu=2, created=17), now_ms=0)
    [transaction] = transactions_of(decided.session)
    assert [(event.reason, event.at) for event in transaction.events] == [("Waiting", 17)]
