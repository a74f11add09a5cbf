"""Which fields of a stored object may be edited, when, and what an edit keeps."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.manifest import decode, encode
from batchq.api.objects import PodGroup
from batchq.api.transaction import Transaction, Write
from batchq.client import changes
from batchq.errors import Conflict, NotFound, Rejected
from batchq.store.memory import MemoryStore

NOW = 1_000_000
REQUESTS = count()
EDITABLE = {
    "minMember": 2,
    "minResources": {"cpu": 1},
    "walltime": "1h",
    "retry": {"limit": 1},
    "ttlAfterFinished": "1h",
    "tasks": [{"name": "other", "replicas": 3, "template": {"command": ["false"]}}],
}


def manifest(kind: str, name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batchq/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def work(**spec: Any) -> dict[str, Any]:
    tasks = [{"name": "w", "replicas": 2, "template": {"command": ["true"]}}]
    return {"tasks": tasks, **spec}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for name in ("default", "batch"):
        apply(store, manifest("Queue", name))
    apply(store, manifest("PriorityClass", "high", {"value": 5}))
    return store


def apply(store: MemoryStore, data: Any) -> Transaction | None:
    revision = store.snapshot().revision
    transaction = changes.apply(store, decode(data), now_ms=NOW, uid=f"uid{revision}")
    if transaction is not None:
        commit(store, transaction)
    return transaction


def commit(store: MemoryStore, transaction: Transaction) -> None:
    assert not store.commit([transaction], request_id=f"r{next(REQUESTS)}").refused


def stored(store: MemoryStore, key: str = "default/a") -> PodGroup:
    group = store.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    return group


def put_status(store: MemoryStore, *phases: PodGroupPhase, **changes_: Any) -> None:
    """Take the group through `phases`, with a status."""
    for phase in phases:
        group = stored(store)
        status = structs.replace(group.status, phase=phase, **changes_)
        write = Write(
            kind="PodGroup",
            key="default/a",
            expect=group.metadata.revision,
            value=structs.replace(group, status=status),
        )
        commit(store, Transaction(subject="a", writes=(write,)))


def test_applying_the_same_object_again_changes_nothing(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work(schedulingGates=[{"name": "x"}, {"name": "y"}])))
    again = work(schedulingGates=[{"name": "y"}, {"name": "x"}])
    assert apply(store, manifest("PodGroup", "a", again)) is None


def test_applying_the_output_of_get_changes_nothing(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "first", work()))
    apply(store, manifest("PodGroup", "a", work(dependsOn=[{"name": "first"}])))
    put_status(store, PodGroupPhase.IN_QUEUE, admission=1, reserved_at=NOW)
    assert apply(store, encode(stored(store))) is None


def test_an_edit_of_an_old_revision_is_a_conflict(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    printed = encode(stored(store))
    put_status(store, PodGroupPhase.PENDING, backoff_count=1)
    printed["spec"] = work(walltime="1h")
    with pytest.raises(Conflict, match="PodGroup default/a has changed since it was read"):
        apply(store, printed)


@pytest.mark.parametrize("field", EDITABLE)
def test_a_pending_group_may_be_edited(store: MemoryStore, field: str) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    before = stored(store)
    apply(store, manifest("PodGroup", "a", work(**{field: EDITABLE[field]})))
    after = stored(store)
    assert after.spec != before.spec
    assert (after.metadata.uid, after.status) == (before.metadata.uid, before.status)


@pytest.mark.parametrize("field", EDITABLE)
@pytest.mark.parametrize(
    "phases", [["InQueue"], ["InQueue", "Running"]], ids=["InQueue", "Running"]
)
def test_an_admitted_group_may_not_be_edited(
    store: MemoryStore, field: str, phases: list[str]
) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    put_status(store, *map(PodGroupPhase, phases), reserved_at=NOW)
    with pytest.raises(Conflict) as caught:
        apply(store, manifest("PodGroup", "a", work(**{field: EDITABLE[field]})))
    assert caught.value.message == (
        f"PodGroup default/a: spec.{field} can change only while the group is Pending and nothing"
        f" is reserved for it; it is {phases[-1]}"
    )


def test_a_group_with_a_reservation_may_not_be_edited(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    put_status(store, PodGroupPhase.PENDING, reserved_at=NOW, reservation={"cpu": 1})
    with pytest.raises(Conflict, match=r"spec\.walltime can change only"):
        apply(store, manifest("PodGroup", "a", work(walltime="1h")))


@pytest.mark.parametrize("edit", [{"suspend": True}, {"priorityClassName": "high"}])
def test_suspension_and_priority_may_always_change(store: MemoryStore, edit: Any) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    put_status(store, PodGroupPhase.IN_QUEUE, PodGroupPhase.RUNNING, reserved_at=NOW)
    assert apply(store, manifest("PodGroup", "a", work(**edit))) is not None


def test_labels_may_always_change(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    put_status(store, PodGroupPhase.CANCELLED)
    apply(store, manifest("PodGroup", "a", work(), labels={"kept": "yes"}))
    assert stored(store).metadata.labels == {"kept": "yes"}


def test_a_finished_group_may_not_be_edited(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    put_status(store, PodGroupPhase.CANCELLED)
    with pytest.raises(Conflict) as caught:
        apply(store, manifest("PodGroup", "a", work(suspend=True)))
    assert caught.value.message == (
        "PodGroup default/a is Cancelled, so spec.suspend can no longer change"
    )


def test_the_queue_may_change_while_gated(store: MemoryStore) -> None:
    gated = work(schedulingGates=[{"name": "review"}])
    apply(store, manifest("PodGroup", "a", gated))
    apply(store, manifest("PodGroup", "a", {**gated, "queue": "batch"}))
    assert stored(store).spec.queue == "batch"
    with pytest.raises(NotFound, match="there is no queue 'bartch'"):
        apply(store, manifest("PodGroup", "a", {**gated, "queue": "bartch"}))
    apply(store, manifest("PodGroup", "a", work(queue="batch")))
    with pytest.raises(Conflict, match=r"spec\.queue can change only while the group has sched"):
        apply(store, manifest("PodGroup", "a", work(queue="default")))


def test_an_edit_moves_no_group_to_a_queue_that_does_not_accept_its_namespace(
    store: MemoryStore,
) -> None:
    gated = work(schedulingGates=[{"name": "review"}])
    apply(store, manifest("PodGroup", "a", gated))
    apply(store, manifest("Queue", "batch", {"namespaces": ["lab"]}))
    with pytest.raises(Rejected, match="queue batch accepts only groups of namespace lab, not of"):
        apply(store, manifest("PodGroup", "a", {**gated, "queue": "batch"}))


def test_a_group_may_be_edited_whose_queue_accepts_its_namespace_no_longer(
    store: MemoryStore,
) -> None:
    apply(store, manifest("PodGroup", "a", work(queue="batch")))
    apply(store, manifest("Queue", "batch", {"namespaces": ["lab"]}))
    apply(store, manifest("PodGroup", "a", work(queue="batch", suspend=True)))
    assert stored(store).spec.suspend


def test_gates_are_only_removed(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work(schedulingGates=[{"name": "x"}, {"name": "y"}])))
    with pytest.raises(Conflict) as caught:
        apply(store, manifest("PodGroup", "a", work(schedulingGates=[{"name": "z"}])))
    assert caught.value.message == (
        "PodGroup default/a: spec.schedulingGates: gate 'z' cannot be added after creation;"
        " gates can only be removed"
    )
    apply(store, manifest("PodGroup", "a", work(schedulingGates=[{"name": "y"}])))
    assert [gate.name for gate in stored(store).spec.scheduling_gates] == ["y"]


def test_an_edit_cannot_create_a_cycle_of_dependencies(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "a", work()))
    apply(store, manifest("PodGroup", "b", work(dependsOn=[{"name": "a"}])))
    apply(store, manifest("PodGroup", "c", work(dependsOn=[{"name": "b"}])))
    with pytest.raises(Rejected) as caught:
        apply(store, manifest("PodGroup", "a", work(dependsOn=[{"name": "c"}])))
    way = caught.value.message.rpartition(": ")[2]
    assert way in ("a -> c -> b -> a", "b -> a -> c -> b", "c -> b -> a -> c")


def test_an_edit_keeps_the_stored_uid_of_a_dependency(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "first", work()))
    bound_to = stored(store, "default/first").metadata.uid
    apply(store, manifest("PodGroup", "a", work(dependsOn=[{"name": "first"}])))
    commit(store, changes.cancel(store, "default/first", now_ms=NOW))
    commit(store, changes.delete(store, "PodGroup", "default/first", now_ms=NOW))
    apply(store, manifest("PodGroup", "a", work(dependsOn=[{"name": "first"}], walltime="1h")))
    assert stored(store).spec.depends_on[0].uid == bound_to


def test_an_edit_of_a_queue_changes_its_limit(store: MemoryStore) -> None:
    transaction = apply(store, manifest("Queue", "batch", {"capability": {"cpu": 2}}))
    assert transaction is not None
    (limit,) = transaction.limits
    assert (limit.scope, limit.amounts) == ("queue:batch", {"cpu": 2000})


def test_an_edit_of_a_node_changes_the_capacity_and_keeps_the_status(store: MemoryStore) -> None:
    apply(store, manifest("Node", "n", {"resources": {"cpu": 4, "pods": 1}}))
    apply(store, manifest("Node", "n", {"resources": {"cpu": 2, "pods": 1}}, labels={"a": "b"}))
    assert store.ledger()["capacity"] == {"cpu": 2000, "pods": 1000}


def test_a_missing_object_cannot_be_updated(store: MemoryStore) -> None:
    with pytest.raises(NotFound) as caught:
        changes.update(store, decode(manifest("Queue", "bach")), now_ms=NOW)
    assert (caught.value.message, caught.value.hint) == (
        "Queue bach does not exist",
        "did you mean batch?",
    )
