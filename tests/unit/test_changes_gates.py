"""KEP-3521's table of transitions cell by cell, the openers of gates, and edits while gated."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from batchq.api import validation
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.manifest import decode
from batchq.api.objects import Object, OpenedGate, PodGroup, SchedulingGate, key_of, kind_of
from batchq.api.transaction import Transaction, Write
from batchq.client import changes
from batchq.errors import Conflict, InvalidInput, NotFound
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_pod

NOW = 1_000_000
REQUESTS = count()
GATE = {"name": "data"}


def manifest(kind: str, name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, **metadata}
    return {"apiVersion": "batchq/v1", "kind": kind, "metadata": meta, "spec": spec}


def task(name: str = "w", replicas: int = 1, *gates: str, **template: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"command": ["true"], **template}
    if gates:
        found["schedulingGates"] = [{"name": gate} for gate in gates]
    return {"name": name, "replicas": replicas, "template": found}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for name in ("default", "batch"):
        apply(store, manifest("Queue", name))
    apply(store, manifest("PriorityClass", "high", {"value": 5}))
    return store


def commit(store: MemoryStore, transaction: Transaction | None) -> None:
    assert transaction is not None
    assert not store.commit([transaction], request_id=f"r{next(REQUESTS)}").refused


def apply(store: MemoryStore, data: Any, by: str = "alice") -> None:
    uid = f"uid{store.snapshot().revision}"
    transaction = changes.apply(store, decode(data), now_ms=NOW, uid=uid, by=by)
    if transaction is not None:
        commit(store, transaction)


def stored(store: MemoryStore) -> PodGroup:
    found = store.get("PodGroup", "default/g")
    assert isinstance(found, PodGroup)
    return found


def put(store: MemoryStore, obj: Object) -> None:
    write = Write(kind=kind_of(obj), key=key_of(obj), expect=obj.metadata.revision, value=obj)
    commit(store, Transaction(subject="test", writes=(write,)))


def move(store: MemoryStore, phase: PodGroupPhase) -> None:
    """Give the group a reservation (it stays Pending), or make it InQueue or Running."""
    group = stored(store)
    status = structs.replace(group.status, reserved_at=NOW, reservation={"cpu": 1000})
    put(store, structs.replace(group, status=status))
    for step in (PodGroupPhase.IN_QUEUE, PodGroupPhase.RUNNING):
        if phase != PodGroupPhase.PENDING and stored(store).status.phase != phase:
            group = stored(store)
            status = structs.replace(group.status, phase=step, admission=1)
            put(store, structs.replace(group, status=status))


def messages(store: MemoryStore, reason: str) -> list[str]:
    events = store.events(kind="PodGroup", key="default/g")
    return [event.message for event in events if event.reason == reason]


#
#   |                      | gates     | no gates  |
#   | unscheduled, create  | yes       | yes       |
#   | unscheduled, update  | no: never | yes       |
#   | scheduled, create    | no        | yes       |
#   | scheduled, update    | no        | yes       |
#
# batchq creates all pods that have a node, so their rows are tested with described clusters.


def pod(*gates: str, **status: Any) -> Object:
    spec = {"podGroup": "g", "task": "w", "schedulingGates": [{"name": gate} for gate in gates]}
    return decode({**manifest("Pod", "g-w-0", spec), "status": status})


def test_unscheduled_with_gates_create_is_allowed(store: MemoryStore) -> None:
    tasks = [task("w", 1, "pods")]
    apply(store, manifest("PodGroup", "g", {"tasks": tasks, "schedulingGates": [GATE]}))
    assert stored(store).spec.scheduling_gates == (SchedulingGate(name="data"),)
    assert stored(store).spec.tasks[0].template.scheduling_gates == (SchedulingGate(name="pods"),)
    validation.check(pod("data"), described=True)


def test_unscheduled_without_gates_create_is_allowed(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", {"tasks": [task()]}))
    validation.check(pod(), described=True)


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ({"tasks": [task()]}, {"tasks": [task()], "schedulingGates": [GATE]}, "schedulingGates"),
        ({"tasks": [task()]}, {"tasks": [task("w", 1, "data")]}, "tasks: task w"),
        (
            {"tasks": [task("w", 1, "other"), task("v")]},
            {"tasks": [task("w", 1, "other"), task("v", 1, "data")]},
            "tasks: task v",
        ),
        # A new task cannot add a gate either.
        ({"tasks": [task()]}, {"tasks": [task(), task("v", 1, "data")]}, "tasks: task v"),
    ],
)
@pytest.mark.parametrize("phase", [None, PodGroupPhase.PENDING, PodGroupPhase.RUNNING])
def test_with_gates_update_is_refused_with_and_without_a_node(
    store: MemoryStore, before: Any, after: Any, where: str, phase: PodGroupPhase | None
) -> None:
    apply(store, manifest("PodGroup", "g", before))
    if phase is not None:
        move(store, phase)
    with pytest.raises(Conflict) as caught:
        apply(store, manifest("PodGroup", "g", after))
    assert caught.value.message == (
        f"PodGroup default/g: spec.{where}: gate 'data' cannot be added after creation; gates can"
        " only be removed"
    )
    assert caught.value.hint == "suspend the group to hold it back"


def test_unscheduled_without_gates_update_is_allowed_in_any_order(store: MemoryStore) -> None:
    gates = [{"name": name} for name in ("a", "b", "c")]
    apply(
        store, manifest("PodGroup", "g", {"tasks": [task("w", 1, "d")], "schedulingGates": gates})
    )
    apply(
        store,
        manifest("PodGroup", "g", {"tasks": [task("w", 1, "d")], "schedulingGates": gates[::2]}),
    )
    apply(store, manifest("PodGroup", "g", {"tasks": [task()], "schedulingGates": gates[2:]}))
    apply(store, manifest("PodGroup", "g", {"tasks": [task()]}))
    assert stored(store).spec.scheduling_gates == ()


@pytest.mark.parametrize(
    "status", [{"node": "n1"}, {"phase": "Running"}, {"phase": "Failed"}], ids=str
)
def test_scheduled_with_gates_create_and_update_are_refused(
    store: MemoryStore, status: dict[str, Any]
) -> None:
    bad = pod("data", **status)
    said = (
        "Pod default/g-w-0: spec.schedulingGates: a pod with a node, or in a phase after Pending,"
        " cannot have scheduling gates"
    )
    for change in (
        lambda: changes.create(store, bad, now_ms=NOW, uid="u", described=True),
        lambda: changes.update(store, bad, now_ms=NOW, described=True),
    ):
        with pytest.raises(InvalidInput) as caught:
            change()
        assert caught.value.message == said


def test_scheduled_without_gates_is_allowed(store: MemoryStore) -> None:
    validation.check(pod(node="n1", phase="Running"), described=True)
    group = a_group("g")
    validation.check(a_pod(group, node="n1"), described=True)


def test_gates_of_pods_are_removed_while_the_group_runs(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", {"tasks": [task("a"), task("b", 1, "x", "y")]}))
    move(store, PodGroupPhase.RUNNING)
    apply(store, manifest("PodGroup", "g", {"tasks": [task("a"), task("b", 1, "y")]}))
    commit(store, changes.open_gate(store, "default/g", "y", now_ms=NOW))
    assert [one.template.scheduling_gates for one in stored(store).spec.tasks] == [(), ()]


def test_another_order_of_gates_is_not_a_change(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", {"tasks": [task("w", 1, "x", "y")]}))
    turned = decode(manifest("PodGroup", "g", {"tasks": [task("w", 1, "y", "x")]}))
    assert changes.apply(store, turned, now_ms=NOW, uid="u") is None


BOTH = {
    "tasks": [task("a", 1, "data", "x"), task("b", 1, "data")],
    "schedulingGates": [GATE, {"name": "money"}],
}


def test_the_submitter_and_the_opener_of_a_gate_are_recorded_in_the_group_and_its_events(
    store: MemoryStore,
) -> None:
    apply(store, manifest("PodGroup", "g", BOTH), by="alice@laptop")
    commit(store, changes.open_gate(store, "default/g", "data", now_ms=NOW + 1, by="bob@gpu-01"))
    commit(store, changes.open_gate(store, "default/g", "data", now_ms=NOW + 2, by="quota (op)"))
    left = [task("a"), task("b")]
    apply(store, manifest("PodGroup", "g", {"tasks": left, "schedulingGates": [{"name": "money"}]}))
    status = stored(store).status
    assert status.submitted_by == "alice@laptop"
    assert status.opened_gates == (
        OpenedGate(name="data", by="bob@gpu-01", at=NOW + 1),
        OpenedGate(name="data", task="a", by="quota (op)", at=NOW + 2),
        OpenedGate(name="data", task="b", by="quota (op)", at=NOW + 2),
        OpenedGate(name="x", task="a", by="alice", at=NOW),
    )
    assert messages(store, "Submitted") == ["to queue default by alice@laptop"]
    assert messages(store, "GateOpened") == [
        "gate data by bob@gpu-01; 4 gates left",
        "gates data of task a, data of task b by quota (op); 2 gates left",
        "gate x of task a by alice; 1 gate left",
    ]


def test_a_gate_of_one_task_is_opened_by_its_name(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", BOTH))
    commit(store, changes.open_gate(store, "default/g", "data", task="b", now_ms=NOW))
    spec = stored(store).spec
    assert [gate.name for gate in spec.scheduling_gates] == ["data", "money"]
    assert [len(one.template.scheduling_gates) for one in spec.tasks] == [2, 0]
    assert changes.open_gate(store, "default/g", "data", task="b", now_ms=NOW) is None


def test_all_gates_are_opened_at_once(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", BOTH))
    commit(store, changes.open_all_gates(store, "default/g", task="a", now_ms=NOW))
    assert [len(one.template.scheduling_gates) for one in stored(store).spec.tasks] == [0, 1]
    commit(store, changes.open_all_gates(store, "default/g", now_ms=NOW))
    assert changes.open_all_gates(store, "default/g", now_ms=NOW) is None
    assert messages(store, "GateOpened")[-1] == "gates data, money, data of task b; no gate left"


def test_opening_a_gate_that_does_not_exist_is_refused_with_a_message(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", BOTH))
    for gate, of, message, hint in (
        ("dota", "", "PodGroup default/g has no scheduling gate 'dota'", "did you mean data?"),
        ("x", "b", "PodGroup default/g: task b has no scheduling gate 'x'", "there are: data"),
        ("x", "c", "PodGroup default/g has no task 'c'", "there are: a, b"),
    ):
        with pytest.raises(NotFound) as caught:
            changes.open_gate(store, "default/g", gate, task=of, now_ms=NOW)
        assert (caught.value.message, caught.value.hint) == (message, hint)
    commit(store, changes.cancel(store, "default/g", now_ms=NOW))
    with pytest.raises(Conflict) as refused:
        changes.open_all_gates(store, "default/g", now_ms=NOW)
    assert refused.value.message == (
        "PodGroup default/g is Cancelled already and cannot have a gate opened"
    )


def test_gates_of_a_task_that_an_edit_removes_are_not_recorded_as_opened(
    store: MemoryStore,
) -> None:
    apply(store, manifest("PodGroup", "g", BOTH))
    edited = {**BOTH, "tasks": [BOTH["tasks"][0]]}
    apply(store, manifest("PodGroup", "g", edited))
    assert stored(store).status.opened_gates == ()


GATED_BY_GROUP = {"tasks": [task("w", 2)], "schedulingGates": [GATE]}
GATED_BY_PODS = {"tasks": [task("w", 2, "data")]}
UNGATED = {"tasks": [task("w", 2)]}
#: The group can start without these pods.
HALF_GATED = {"tasks": [task("w", 2), task("x", 1, "data")], "minMember": 2}


def template(before: dict[str, Any], **fields: Any) -> dict[str, Any]:
    first, *rest = before["tasks"]
    return {"tasks": [{**first, "template": {**first["template"], **fields}}, *rest]}


FIELDS: dict[str, Any] = {
    "queue": lambda before: {"queue": "batch"},
    "requests": lambda before: template(before, requests={"cpu": 2}),
    "labels": lambda before: template(before, labels={"tier": "gold"}),
    "env": lambda before: template(before, env={"MODE": "fast"}),
    "nodeSelector": lambda before: template(before, nodeSelector={"zone": "a"}),
    "minResources": lambda before: {"minResources": {"cpu": 4}},
    "walltime": lambda before: {"walltime": "1h"},
    "priorityClassName": lambda before: {"priorityClassName": "high"},
    "suspend": lambda before: {"suspend": True},
}
ALWAYS = {"priorityClassName", "suspend"}
#: State of the group -> its spec, its history, and the fields that may be edited.
STATES: dict[str, tuple[Any, PodGroupPhase | None, set[str]]] = {
    "gated": (GATED_BY_GROUP, None, set(FIELDS)),
    "gated by its pods": (GATED_BY_PODS, None, set(FIELDS)),
    "ungated, pending": (UNGATED, None, set(FIELDS) - {"queue"}),
    "ungated but for some pods": (HALF_GATED, None, set(FIELDS) - {"queue"}),
    "reserved": (UNGATED, PodGroupPhase.PENDING, ALWAYS),
    "gated and reserved": (GATED_BY_GROUP, PodGroupPhase.PENDING, ALWAYS),
    "in queue": (UNGATED, PodGroupPhase.IN_QUEUE, ALWAYS),
    "running": (UNGATED, PodGroupPhase.RUNNING, ALWAYS),
    "running, some pods gated": (HALF_GATED, PodGroupPhase.RUNNING, ALWAYS),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("state", STATES)
def test_editable_fields_depend_on_gates_and_phase(
    store: MemoryStore, state: str, field: str
) -> None:
    before, phase, editable = STATES[state]
    apply(store, manifest("PodGroup", "g", before))
    if phase is not None:
        move(store, phase)
    former = stored(store).spec
    edit = manifest("PodGroup", "g", {**before, **FIELDS[field](before)})
    if field in editable:
        apply(store, edit)
        assert stored(store).spec != former
        return
    with pytest.raises(Conflict) as caught:
        apply(store, edit)
    named = field if field in ("queue", "minResources", "walltime") else "tasks"
    assert caught.value.message.startswith(
        f"PodGroup default/g: spec.{named} can change only while"
    )
    assert stored(store).spec == former


def test_the_last_gate_may_be_opened_in_the_edit_that_uses_it(store: MemoryStore) -> None:
    apply(store, manifest("PodGroup", "g", GATED_BY_GROUP))
    apply(store, manifest("PodGroup", "g", {"tasks": [task("w", 2)], "queue": "batch"}))
    assert (stored(store).spec.queue, stored(store).spec.scheduling_gates) == ("batch", ())
