"""The short requests: cancel, delete, suspend, resume, open a gate, cordon, set a quota."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.manifest import decode
from batchq.api.objects import Metadata, Node, Pledge, Pod, PodGroup, PodSpec, PodStatus
from batchq.api.transaction import Charge, Transaction, Write
from batchq.client import changes
from batchq.errors import Conflict, InvalidInput, NotFound, Rejected
from batchq.store.memory import MemoryStore

NOW = 1_000_000
REQUESTS = count()
WORK = {"tasks": [{"name": "w", "template": {"command": ["true"]}}]}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    make(store, "Queue", "default")
    return store


def make(store: MemoryStore, kind: str, name: str, spec: Any = None, **metadata: Any) -> None:
    data = {
        "apiVersion": "batchq/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": WORK if kind == "PodGroup" and spec is None else spec,
    }
    uid = f"uid-of-{name}"
    commit(store, changes.create(store, decode(data), now_ms=NOW, uid=uid))


def commit(store: MemoryStore, transaction: Transaction | None) -> None:
    assert transaction is not None
    assert not store.commit([transaction], request_id=f"r{next(REQUESTS)}").refused


def group(store: MemoryStore, name: str = "a") -> PodGroup:
    found = store.get("PodGroup", f"default/{name}")
    assert isinstance(found, PodGroup)
    return found


def admit(store: MemoryStore) -> None:
    """Admit group `a`, with a reservation and one pod that runs on node `n`."""
    found = group(store)
    status = structs.replace(
        found.status,
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=NOW,
        reservation={"cpu": 100},
    )
    put(store, "PodGroup", structs.replace(found, status=status))
    put_pod(store, PodPhase.RUNNING)


def put_pod(store: MemoryStore, phase: PodPhase) -> None:
    uid = "uid-of-a-1-0"
    old = store.get("Pod", uid)
    pod = Pod(
        metadata=Metadata(
            name="a-w-0",
            namespace="default",
            uid=uid,
            revision=old.metadata.revision if old else 0,
        ),
        spec=PodSpec(pod_group="a", task="w"),
        status=PodStatus(phase=phase, group_uid="uid-of-a", admission=1, attempt=1, node="n"),
    )
    put(store, "Pod", pod)


def put(store: MemoryStore, kind: str, value: PodGroup | Pod) -> None:
    meta = value.metadata
    key = meta.uid if kind == "Pod" else f"{meta.namespace}/{meta.name}"
    write = Write(kind=kind, key=key, expect=meta.revision, value=value)
    commit(store, Transaction(subject=key, writes=(write,)))


def test_a_cancelled_group_is_cancelled_at_once_and_holds_no_reservation(
    store: MemoryStore,
) -> None:
    make(store, "PodGroup", "a")
    admit(store)
    commit(store, changes.cancel(store, "default/a", now_ms=NOW + 5, message="by anna"))
    status = group(store).status
    assert status.phase == "Cancelled"
    assert status.finished_at == NOW + 5
    assert (status.reserved_at, status.reservation) == (None, {})
    (condition,) = status.conditions
    assert (condition.type, condition.status, condition.reason, condition.message) == (
        "Finished",
        "True",
        "Cancelled",
        "by anna",
    )


def test_a_cancelled_group_no_longer_counts_as_unfinished(store: MemoryStore) -> None:
    make(store, "PodGroup", "a")
    assert store.ledger()["objects:default"] == {"podgroups": 1000}
    commit(store, changes.cancel(store, "default/a", now_ms=NOW))
    assert "objects:default" not in store.ledger()


def test_a_finished_group_cannot_be_cancelled_suspended_resumed_or_opened(
    store: MemoryStore,
) -> None:
    make(store, "PodGroup", "a")
    commit(store, changes.cancel(store, "default/a", now_ms=NOW))
    with pytest.raises(Conflict) as caught:
        changes.cancel(store, "default/a", now_ms=NOW)
    assert caught.value.message == "PodGroup default/a is Cancelled already and cannot be cancelled"
    for verb in (changes.suspend, changes.resume):
        with pytest.raises(Conflict, match="is Cancelled already"):
            verb(store, "default/a", now_ms=NOW)
    with pytest.raises(Conflict, match="is Cancelled already"):
        changes.open_gate(store, "default/a", "g", now_ms=NOW)


def test_a_missing_group_is_not_found(store: MemoryStore) -> None:
    make(store, "PodGroup", "train")
    with pytest.raises(NotFound) as caught:
        changes.cancel(store, "default/trian", now_ms=NOW)
    assert caught.value.message == "PodGroup default/trian does not exist"
    assert caught.value.hint == "did you mean default/train?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "train-w-0",
            "train-w-0 is a pod of train: name the group (`batchq logs` also takes --pod w-0)",
        ),
        # Neither is a pod of the group, which has one.
        ("train-w-1", "did you mean default/train?"),
        ("train-w-00", "did you mean default/train?"),
        ("train-w-\u0660", "did you mean default/train?"),
        ("train-w-" + 19 * "0", "there are: default/train"),
        ("train-u-0", "did you mean default/train?"),
    ],
)
def test_the_name_of_a_pod_in_place_of_a_group_is_answered_with_its_group(
    store: MemoryStore, name: str, hint: str
) -> None:
    make(store, "PodGroup", "train")
    with pytest.raises(NotFound) as caught:
        changes.cancel(store, f"default/{name}", now_ms=NOW)
    assert (caught.value.message, caught.value.hint) == (
        f"PodGroup default/{name} does not exist",
        hint,
    )


def test_deleting_a_finished_group_deletes_its_pods(store: MemoryStore) -> None:
    make(store, "PodGroup", "a")
    admit(store)
    commit(store, changes.cancel(store, "default/a", now_ms=NOW))
    with pytest.raises(Conflict, match="is Cancelled, but 1 pod of it must end first"):
        changes.delete(store, "PodGroup", "default/a", now_ms=NOW)
    put_pod(store, PodPhase.EVICTED)
    held = Charge(holder="group:uid-of-a", scopes=("cluster",), amounts={"cpu": 1})
    commit(store, Transaction(subject="a", charges=(held,)))
    commit(store, changes.delete(store, "PodGroup", "default/a", now_ms=NOW))
    assert store.get("PodGroup", "default/a") is None
    assert store.list("Pod") == ()
    assert store.ledger() == {}


def test_deleting_a_preemptor_removes_all_its_charges(store: MemoryStore) -> None:
    make(store, "PodGroup", "a")
    owed = {"queue:default": {"cpu": 1000}}
    pledge = Pledge(claimant="default/a", victims=("default/v-w-0",), owed=owed)
    status = structs.replace(group(store).status, charge={"cpu": 3000}, pledge=pledge)
    put(store, "PodGroup", structs.replace(group(store), status=status))
    held = [
        Charge(holder="group:uid-of-a", scopes=("cluster",), amounts={"cpu": 3000}),
        Charge(
            holder="group:uid-of-a:queue:default", scopes=("queue:default",), amounts={"cpu": 2000}
        ),
    ]
    commit(store, Transaction(subject="a", charges=tuple(held)))
    commit(store, changes.cancel(store, "default/a", now_ms=NOW))
    commit(store, changes.delete(store, "PodGroup", "default/a", now_ms=NOW))
    assert store.ledger() == {}


def test_deleting_a_group_keeps_pods_of_an_earlier_group_of_its_name(store: MemoryStore) -> None:
    make(store, "PodGroup", "a")
    put_pod(store, PodPhase.EVICTED)
    other = structs.replace(group(store).metadata, uid="another")
    later = structs.replace(group(store), metadata=other)
    (write,) = changes.delete(
        _Only(later, finished=True), "PodGroup", "default/a", now_ms=NOW
    ).writes
    assert (write.kind, write.value) == ("PodGroup", None)


class _Only:
    """A reader of one group and of one pod that is not the group's."""

    def __init__(self, found: PodGroup, *, finished: bool) -> None:
        phase = PodGroupPhase.COMPLETED if finished else found.status.phase
        self._group = structs.replace(found, status=structs.replace(found.status, phase=phase))

    def get(self, kind: str, key: str) -> PodGroup:
        return self._group

    def list(self, kind: str, *, namespace: str = "") -> list[Pod]:
        status = PodStatus(phase=PodPhase.RUNNING, group_uid="uid-of-a")
        spec = PodSpec(pod_group="a", task="w")
        meta = Metadata(name="a-w-0", namespace="default", uid="x")
        return [Pod(metadata=meta, spec=spec, status=status)] if kind == "Pod" else []


def test_an_unfinished_group_must_be_cancelled_before_it_is_deleted(store: MemoryStore) -> None:
    make(store, "PodGroup", "a")
    with pytest.raises(Conflict) as caught:
        changes.delete(store, "PodGroup", "default/a", now_ms=NOW)
    assert caught.value.message == (
        "PodGroup default/a is Pending, and only finished groups can be deleted"
    )
    assert caught.value.hint == "cancel it first: `batchq cancel a`"


def test_the_default_queue_cannot_be_deleted(store: MemoryStore) -> None:
    with pytest.raises(Rejected, match="Queue default always exists"):
        changes.delete(store, "Queue", "default", now_ms=NOW)


def test_a_queue_can_be_deleted_when_its_groups_have_finished(store: MemoryStore) -> None:
    make(store, "Queue", "batch", {"capability": {"cpu": 1}})
    make(store, "PodGroup", "a", {**WORK, "queue": "batch"})
    with pytest.raises(Conflict) as caught:
        changes.delete(store, "Queue", "batch", now_ms=NOW)
    assert caught.value.message == "Queue batch still has 1 unfinished pod group"
    commit(store, changes.cancel(store, "default/a", now_ms=NOW))
    transaction = changes.delete(store, "Queue", "batch", now_ms=NOW)
    assert [(limit.scope, limit.amounts) for limit in transaction.limits] == [("queue:batch", None)]


def test_a_node_can_be_deleted_when_no_pod_runs_on_it(store: MemoryStore) -> None:
    make(store, "Node", "n", {"resources": {"cpu": 1}})
    make(store, "PodGroup", "a")
    admit(store)
    with pytest.raises(Conflict) as caught:
        changes.delete(store, "Node", "n", now_ms=NOW)
    assert (caught.value.message, caught.value.hint) == (
        "Node n still runs 1 pod",
        "drain it first: `batchq nodes drain n`",
    )
    put_pod(store, PodPhase.SUCCEEDED)
    commit(store, changes.delete(store, "Node", "n", now_ms=NOW))
    assert "capacity" not in store.ledger()


def test_a_priority_class_can_be_deleted_when_no_group_uses_it(store: MemoryStore) -> None:
    make(store, "PriorityClass", "high", {"value": 1})
    make(store, "PodGroup", "a", {**WORK, "priorityClassName": "high"})
    with pytest.raises(Conflict, match="PriorityClass high is still named by 1 unfinished"):
        changes.delete(store, "PriorityClass", "high", now_ms=NOW)
    commit(store, changes.cancel(store, "default/a", now_ms=NOW))
    commit(store, changes.delete(store, "PriorityClass", "high", now_ms=NOW))


def test_deleting_the_quota_of_a_namespace_removes_its_limits(store: MemoryStore) -> None:
    make(store, "ResourceQuota", "one", {"hard": {"cpu": 1, "podgroups": 1}})
    make(store, "ResourceQuota", "two", {"hard": {"cpu": 2}})
    for name, left in (("one", {"cpu": 2000}), ("two", None)):
        transaction = changes.delete(store, "ResourceQuota", f"default/{name}", now_ms=NOW)
        assert [(limit.scope, limit.amounts) for limit in transaction.limits] == [
            ("ns:default", left),
            ("objects:default", None),
        ]
        commit(store, transaction)


def test_pods_cannot_be_deleted_by_users(store: MemoryStore) -> None:
    put_pod(store, PodPhase.RUNNING)
    with pytest.raises(Rejected, match="batchq makes pods"):
        changes.delete(store, "Pod", "uid-of-a-1-0", now_ms=NOW)


def test_resume_undoes_suspend(store: MemoryStore) -> None:
    make(store, "PodGroup", "a")
    assert changes.resume(store, "default/a", now_ms=NOW) is None
    commit(store, changes.suspend(store, "default/a", now_ms=NOW))
    assert group(store).spec.suspend
    assert changes.suspend(store, "default/a", now_ms=NOW) is None
    commit(store, changes.resume(store, "default/a", now_ms=NOW))
    assert not group(store).spec.suspend
    reasons = [event.reason for event in store.events(kind="PodGroup", key="default/a")]
    assert reasons == ["Submitted", "Suspended", "Resumed"]


def test_gates_are_opened_one_by_one_in_any_order(store: MemoryStore) -> None:
    gates = [{"name": name} for name in ("data", "review", "budget")]
    make(store, "PodGroup", "a", {**WORK, "schedulingGates": gates})
    commit(store, changes.open_gate(store, "default/a", "review", now_ms=NOW))
    assert [gate.name for gate in group(store).spec.scheduling_gates] == ["data", "budget"]
    # A client whose response was lost repeats its request.
    assert changes.open_gate(store, "default/a", "review", now_ms=NOW) is None
    with pytest.raises(NotFound) as caught:
        changes.open_gate(store, "default/a", "revue", now_ms=NOW)
    assert caught.value.message == "PodGroup default/a has no scheduling gate 'revue'"
    assert caught.value.hint == "there are: data, budget"


def test_a_cordoned_node_takes_no_more_pods_and_still_counts_as_capacity(
    store: MemoryStore,
) -> None:
    make(store, "Node", "n", {"resources": {"cpu": 1}})
    commit(store, changes.cordon(store, "n", now_ms=NOW))
    node = store.get("Node", "n")
    assert isinstance(node, Node)
    assert node.spec.unschedulable
    assert store.ledger()["capacity"]["cpu"] == 1000
    assert changes.cordon(store, "n", now_ms=NOW) is None
    commit(store, changes.uncordon(store, "n", now_ms=NOW))
    assert changes.uncordon(store, "n", now_ms=NOW) is None
    with pytest.raises(NotFound, match="Node m does not exist"):
        changes.cordon(store, "m", now_ms=NOW)


def test_a_cordoned_node_keeps_who_has_cordoned_it_and_why(store: MemoryStore) -> None:
    make(store, "Node", "n", {"resources": {"cpu": 1}})

    def kept() -> dict[str, str]:
        node = store.get("Node", "n")
        assert isinstance(node, Node)
        return dict(node.metadata.annotations)

    commit(store, changes.cordon(store, "n", now_ms=NOW, message="a fan is broken", user="olga"))
    assert kept() == {"batchq/cordoned-by": "olga", "batchq/cordon-reason": "a fan is broken"}
    # The same once more, or no reason, changes nothing; another reason does.
    again = changes.cordon(store, "n", now_ms=NOW, message="a fan is broken", user="oscar")
    assert again is None
    assert changes.cordon(store, "n", now_ms=NOW, user="oscar") is None
    commit(store, changes.cordon(store, "n", now_ms=NOW, message="no spare fan", user="oscar"))
    assert kept() == {"batchq/cordoned-by": "oscar", "batchq/cordon-reason": "no spare fan"}
    commit(store, changes.uncordon(store, "n", now_ms=NOW))
    assert kept() == {}
    told = [(one.reason, one.message) for one in store.events(kind="Node", key="n")]
    assert told[-3:] == [
        ("Cordoned", "by olga: a fan is broken"),
        ("Cordoned", "by oscar: no spare fan"),
        ("Uncordoned", ""),
    ]
    with pytest.raises(InvalidInput, match="expected at most 1000 characters, found 1001"):
        changes.cordon(store, "n", now_ms=NOW, message=1_001 * "x")


def test_a_quota_can_be_set_repeatedly(store: MemoryStore) -> None:
    commit(store, changes.set_quota(store, "team", {"cpu": 1000}, now_ms=NOW, uid="u"))
    assert changes.set_quota(store, "team", {"cpu": 1000}, now_ms=NOW, uid="u") is None
    transaction = changes.set_quota(store, "team", {"cpu": 500}, now_ms=NOW, uid="u")
    assert transaction is not None
    assert transaction.limits[0].amounts == {"cpu": 500}
