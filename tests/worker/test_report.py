"""Claims and reports against a store: the fence decides, and nothing that others wrote is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.transaction import Charge, Transaction, Write, fence_of
from batchq.store.memory import MemoryStore
from batchq.worker.outcome import LOST, Outcome
from batchq.worker.report import Claimed, Declined, claim, report
from tests.builders import a_group, a_pod


@dataclass(frozen=True)
class Renewed:
    word: str = "ok"
    reason: str = ""


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_bound_pod_is_claimed_once(store: MemoryStore) -> None:
    put(store)
    first, second = claimed(store, "one"), claimed(store, "two")
    assert isinstance(first, Claimed)
    assert (first.pod.status.phase, first.pod.status.started_at) == (PodPhase.RUNNING, 7)
    assert second == Declined(why="Running on n1")


def test_the_lease_is_taken_before_the_pod_runs(store: MemoryStore) -> None:
    put(store)
    phases = []

    def renew(fence: str) -> Renewed:
        assert fence == "g 1 1"
        phases.append(now(store).status.phase)
        return Renewed()

    claimed(store, "one", renew=renew)
    assert phases == [PodPhase.BOUND]


def test_another_attempt_or_another_node_is_declined(store: MemoryStore) -> None:
    put(store)
    assert claimed(store, "one", attempt=2) == Declined(why="gone or superseded")
    assert claimed(store, "one", node="n2") == Declined(why="Bound on n1")


def test_a_pod_that_is_to_stop_is_evicted_instead_of_claimed(store: MemoryStore) -> None:
    put(store, terminating=True, reason="Suspended")
    assert claimed(store, "one") == Declined(why="terminating")
    assert (now(store).status.phase, now(store).status.reason) == (PodPhase.EVICTED, "Suspended")


def test_an_order_to_stop_that_arrives_during_the_claim_is_heard(store: MemoryStore) -> None:
    put(store)

    def renew(_: str) -> Renewed:
        pod = now(store)
        if not pod.status.terminating:
            change(store, pod, terminating=True, reason="Preempted")
        return Renewed("stop", "Preempted")

    assert claimed(store, "one", renew=renew) == Declined(why="terminating")
    assert now(store).status.phase == PodPhase.EVICTED


def test_an_order_to_stop_that_overtakes_the_claim_is_not_written_over(
    store: MemoryStore,
) -> None:
    put(store)

    def renew(_: str) -> Renewed:
        change(store, now(store), terminating=True, reason="Preempted")
        return Renewed()

    assert claimed(store, "one", renew=renew) == Declined(why="terminating")
    assert (now(store).status.phase, now(store).status.reason) == (PodPhase.EVICTED, "Preempted")


def test_the_end_frees_what_the_pod_held(store: MemoryStore) -> None:
    put(store)
    claimed(store, "one")
    assert store.ledger()["node:n1"] == {"cpu": 1000}
    assert reported(store, Outcome(exit_code=0))
    assert store.ledger().get("node:n1", {}) == {}
    assert now(store).status.phase == PodPhase.SUCCEEDED


def test_an_end_is_reported_once(store: MemoryStore) -> None:
    put(store)
    claimed(store, "one")
    assert reported(store, Outcome(exit_code=3))
    assert not reported(store, LOST)
    assert (now(store).status.phase, now(store).status.failures) == (PodPhase.FAILED, 1)
    assert [event.reason for event in store.events()] == ["Failed"]


def test_a_superseded_attempt_reports_nothing(store: MemoryStore) -> None:
    put(store)
    claimed(store, "one")
    assert not reported(store, Outcome(exit_code=0), attempt=2)
    assert now(store).status.phase == PodPhase.RUNNING


def test_a_server_that_forgot_the_claim_still_gets_the_success(store: MemoryStore) -> None:
    put(store)
    assert reported(store, Outcome(exit_code=0))
    assert now(store).status.phase == PodPhase.SUCCEEDED


def put(store: MemoryStore, **status: Any) -> None:
    group = a_group("g", status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
    pod = a_pod(group, **{"phase": PodPhase.BOUND, "node": "n1", **status})
    commit(
        store,
        Write(kind="PodGroup", key="default/g", expect=0, value=group),
        Write(kind="Pod", key="g-1-0", expect=0, value=pod),
        charge=Charge(holder="pod:g-1-0", scopes=("node:n1",), amounts={"cpu": 1000}),
    )


def change(store: MemoryStore, pod: Pod, **status: Any) -> None:
    after = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **status))
    revision = pod.metadata.revision
    commit(
        store,
        Write(kind="Pod", key="g-1-0", expect=revision, value=after, fence=fence_of(pod)),
    )


def commit(store: MemoryStore, *writes: Write, charge: Charge | None = None) -> None:
    charges = () if charge is None else (charge,)
    transaction = Transaction(subject="test", writes=writes, charges=charges)
    answer = store.commit([transaction], request_id=f"test-{writes[0].expect}")
    assert not answer.refused


def claimed(store: MemoryStore, author: str, **changed: Any) -> Claimed | Declined:
    details = {"attempt": 1, "node": "n1", "now_ms": 7, "renew": lambda _: Renewed(), **changed}
    return claim(store, "g-1-0", author=author, **details)


def reported(store: MemoryStore, outcome: Outcome, attempt: int = 1) -> bool:
    return report(store, "g-1-0", attempt, outcome, author="test", now_ms=9)


def now(store: MemoryStore) -> Pod:
    pod = store.get("Pod", "g-1-0")
    assert isinstance(pod, Pod)
    return pod
