"""Descriptions of queue edits, and warnings about their unintended consequences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from batchq.api.manifest import decode
from batchq.api.objects import Object, Queue
from batchq.api.transaction import Ledger, Transaction
from batchq.api.views import Applied
from batchq.client import changes
from batchq.client.changes import differences, overpromised
from batchq.client.request import decoded
from batchq.client.requests import RequestPlan, plan_steps
from batchq.errors import NotFound, Rejected
from batchq.store.memory import MemoryStore
from tests.builders import a_node, a_queue

NOW = 1_000_000
REQUESTS = count()


def manifest(kind: str, name: str, **spec: Any) -> dict[str, object]:
    return {"apiVersion": "batchq/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def queue(name: str, **spec: Any) -> Queue:
    item = decode(manifest("Queue", name, **spec))
    assert isinstance(item, Queue)
    return item


def group(name: str, queue: str, namespace: str = "default") -> Object:
    tasks = [{"name": "w", "template": {"command": ["true"]}}]
    written = manifest("PodGroup", name, queue=queue, tasks=tasks)
    return decode({**written, "metadata": {"name": name, "namespace": namespace}})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def planned(store: MemoryStore, *given: Any, held: Callable[[], Ledger] = dict) -> RequestPlan:
    def step(reader: Any, item: Object) -> Transaction | None:
        uid = f"uid{next(REQUESTS)}"
        return changes.apply(reader, item, now_ms=NOW, uid=uid, in_part=True)

    objects, silent = decoded(given)
    return plan_steps(store, objects, step, keep_stop=silent, held=held)


def apply(store: MemoryStore, *given: Any) -> tuple[Applied, ...]:
    plan = planned(store, *given)
    if plan.transaction is not None:
        name = f"r{next(REQUESTS)}"
        assert not store.commit([plan.transaction], request_id=name).refused
    return plan.applied


def stored(store: MemoryStore, name: str) -> Queue:
    item = store.get("Queue", name)
    assert isinstance(item, Queue)
    return item


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({"weight": 1}, {"weight": 1}, ""),
        ({"deserved": {"cpu": 4}}, {"weight": 2}, "deserved cpu 4 -> unstated, weight 1 -> 2"),
        (
            {"capability": {"memory": "64Gi", "cpu": 2}},
            {"capability": {"memory": "1Gi", "cpu": 2, "gpu": 1}},
            "capability gpu unstated -> 1, capability memory 64Gi -> 1Gi",
        ),
        (
            {"preemption": {"borrowing": 5}, "strategy": {"type": "StrictFIFO"}},
            {},
            "preemption.borrowing 5 -> Never, strategy.type StrictFIFO -> BestEffortFIFO",
        ),
        ({}, {"parent": "org"}, "parent root -> org"),
        ({"maxPodGroups": 3}, {"reclaimable": False}, "maxPodGroups 3 -> unstated, reclaimable"),
        ({"overcommit": 1.5}, {"admissionChecks": ["a", "b"]}, "admissionChecks none -> a+b, over"),
        ({"overcommit": 1.5}, {}, "overcommit 1.5 -> 1"),
        ({"namespaces": ["lab"]}, {"namespaces": ["lab", "ml"]}, "namespaces lab -> lab+ml"),
        ({"namespaces": ["lab"]}, {}, "namespaces lab -> all"),
        ({"stopPolicy": "Hold"}, {}, "stopPolicy Hold -> None"),
    ],
)
def test_an_edit_is_described_field_by_field(
    old: dict[str, Any], new: dict[str, Any], words: str
) -> None:
    found = differences(queue("q", **old), queue("q", **new))
    assert found == words or (words and found.startswith(words)), found
    assert bool(found) == bool(words)


def test_eight_of_many_differences_are_named() -> None:
    amounts = {f"licence{number}": 1 for number in range(11)}
    found = differences(queue("q"), queue("q", capability=amounts))
    assert found.count(" -> ") == 8
    assert found.endswith(" and 3 more")


def test_the_event_and_the_response_of_an_edit_have_the_same_text(store: MemoryStore) -> None:
    apply(store, queue("q", deserved={"cpu": 4}))
    plan = planned(store, queue("q", weight=2))
    assert plan.transaction is not None
    [event] = [event for event in plan.transaction.events if event.key == "q"]
    assert (event.reason, event.message) == ("Updated", "deserved cpu 4 -> unstated, weight 1 -> 2")
    assert [one.changes for one in plan.applied] == ["deserved cpu 4 -> unstated, weight 1 -> 2"]


def test_a_new_or_unchanged_queue_has_no_differences(store: MemoryStore) -> None:
    assert [(one.effect, one.changes) for one in apply(store, queue("q"))] == [("created", "")]
    assert [(one.effect, one.changes) for one in apply(store, queue("q"))] == [("unchanged", "")]


def test_a_manifest_without_a_stop_policy_keeps_the_stored_one(store: MemoryStore) -> None:
    apply(store, queue("q", stopPolicy="HoldAndDrain"))
    [one] = apply(store, manifest("Queue", "q", weight=2))
    assert stored(store, "q").spec.stop_policy == "HoldAndDrain"
    assert one.changes == "weight 1 -> 2"
    assert one.warnings == (
        (
            "Queue q stays stopped (HoldAndDrain), since the manifest does not set stopPolicy;"
            " `batchq queues resume q` resumes it"
        ),
    )
    [again] = apply(store, manifest("Queue", "q", weight=2))
    assert again.effect == "unchanged"


@pytest.mark.parametrize("absent", [{}, {"stopPolicy": None}])
def test_a_null_stop_policy_counts_as_missing(store: MemoryStore, absent: dict[str, Any]) -> None:
    apply(store, queue("q", stopPolicy="Hold"))
    apply(store, manifest("Queue", "q", **absent))
    assert stored(store, "q").spec.stop_policy == "Hold"


def test_the_stop_policy_none_in_a_manifest_or_an_object_resumes_the_queue(
    store: MemoryStore,
) -> None:
    for resuming in (manifest("Queue", "q", stopPolicy="None"), queue("q")):
        apply(store, queue("q", stopPolicy="Hold"))
        [one] = apply(store, resuming)
        assert (one.changes, one.warnings) == ("stopPolicy Hold -> None", ())
        assert stored(store, "q").spec.stop_policy == "None"


def test_only_the_stop_policy_is_kept_when_missing(store: MemoryStore) -> None:
    apply(store, queue("a", stopPolicy="Hold"), queue("b", stopPolicy="Hold"))
    apply(store, manifest("Queue", "a"), manifest("Queue", "b", stopPolicy="None"))
    assert stored(store, "a").spec.stop_policy == "Hold"
    assert stored(store, "b").spec.stop_policy == "None"


def with_nodes(store: MemoryStore, *nodes: Any) -> None:
    for node in nodes:
        transaction = changes.put_node(node, expect=0, event=_heard(node))
        assert not store.commit([transaction], request_id=f"r{next(REQUESTS)}").refused


def _heard(node: Any) -> Any:
    from batchq.api.transaction import Event

    return Event(kind="Node", key=node.metadata.name, reason="Registered", at=NOW)


def test_guarantees_above_the_cluster_give_one_warning_with_the_largest(store: MemoryStore) -> None:
    with_nodes(store, a_node("n1", cpu=4), a_node("n2", cpu=4), a_node("n3", cpu=90, ready=False))
    apply(store, queue("small", guarantee={"cpu": 2}))
    applied = apply(
        store,
        queue("org"),
        queue("team", parent="org", guarantee={"cpu": 7}),
        queue("other"),
    )
    assert [one.warnings for one in applied] == [
        (),
        (
            (
                "cpu 9 is guaranteed in all (org 7, small 2), and the ready nodes have 8: no queue"
                " gets more cpu than its guarantee, and a queue without a guarantee gets none;"
                " lower guarantees, or add nodes"
            ),
        ),
        (),
    ]


def test_a_guarantee_that_just_fits_or_precedes_all_nodes_gives_no_warning(
    store: MemoryStore,
) -> None:
    assert apply(store, queue("early", guarantee={"cpu": 1}))[0].warnings == ()
    with_nodes(store, a_node("n1", cpu=8))
    assert apply(store, queue("fits", guarantee={"cpu": 7}))[0].warnings == ()


def test_an_edit_of_a_queue_without_a_guarantee_gives_no_warning_about_others(
    store: MemoryStore,
) -> None:
    with_nodes(store, a_node("n1", cpu=1))
    apply(store, queue("big", guarantee={"cpu": 7}))
    assert apply(store, queue("meek", weight=3))[0].warnings == ()


def test_waiting_groups_that_a_queue_no_longer_accepts_are_named_with_the_edit(
    store: MemoryStore,
) -> None:
    apply(store, queue("school"), queue("gpu", parent="school"), queue("free"))
    apply(store, group("a", "gpu", "home"), group("b", "gpu", "lab"), group("c", "gpu", "course"))
    apply(store, group("d", "gpu", "home"), group("e", "free", "home"))
    [applied] = apply(store, queue("school", namespaces=["lab"]))
    [warning] = applied.warnings
    assert warning == (
        "queue gpu no longer accepts 3 pod groups that wait there, of course, home; submit them"
        " elsewhere, or name their namespaces in spec.namespaces: until then, they are"
        " Misconfigured"
    )
    # It was said when the list changed.
    [again] = apply(store, queue("school", namespaces=["lab"], weight=2))
    assert again.warnings == ()
    [more] = apply(store, queue("school", namespaces=["lab", "home"]))
    assert more.warnings == ()


def test_a_queue_that_accepts_no_namespace_any_more_is_named(store: MemoryStore) -> None:
    apply(store, queue("school", namespaces=["lab", "course"]))
    [applied] = apply(store, queue("gpu", parent="school", namespaces=["home"]))
    sentence = (
        "queue gpu accepts groups of no namespace: its spec.namespaces and those of the queues"
        " above it have none in common"
    )
    assert applied.warnings == (sentence,)
    apply(store, queue("gpu", parent="school"))
    assert apply(store, queue("gpu", parent="school", namespaces=["lab"]))[0].warnings == ()
    # The change above it counts, too.
    assert apply(store, queue("school", namespaces=["course"]))[0].warnings == (sentence,)


def test_without_ready_nodes_guarantees_give_no_warning() -> None:
    assert overpromised([a_queue("q", guarantee={"cpu": 2})], [a_node("n1", ready=False)]) == []


def test_a_guarantee_of_a_resource_that_no_node_has_gives_a_warning() -> None:
    [one] = overpromised([a_queue("q", guarantee={"gpu": 2000})], [a_node("n1", cpu=8)])
    assert one.sentence() == "gpu 2 is guaranteed in all (q 2), and the ready nodes have 0"


def holding(**cpus: int) -> Callable[[], Ledger]:
    return lambda: {f"queue:{name}": {"cpu": 1000 * cpu} for name, cpu in cpus.items()}


def test_a_capability_below_the_usage_gives_a_warning(store: MemoryStore) -> None:
    apply(store, queue("a"), queue("b", capability={"cpu": 8}))
    held = holding(a=6, b=6)
    lower = [queue("a", capability={"cpu": 4}), queue("b", capability={"cpu": 5, "gpu": 1})]
    assert [one.warnings for one in planned(store, *lower, held=held).applied] == [
        (
            (
                f"Queue {name} now holds more than its limit: cpu 6 of {most}; admitted groups go"
                " on, and no group that requests these is admitted until enough of them have ended"
            ),
        )
        for name, most in (("a", 4), ("b", 5))
    ]


def test_a_capability_equal_to_the_usage_or_a_raised_one_gives_no_warning(
    store: MemoryStore,
) -> None:
    apply(store, queue("a"), queue("b", capability={"cpu": 2}))
    raised = [queue("a", capability={"cpu": 6}), queue("b", capability={"cpu": 3})]
    plan = planned(store, *raised, held=holding(a=6, b=6))
    assert [one.warnings for one in plan.applied] == [(), ()]


def test_a_group_in_an_inner_queue_is_refused_with_the_names_of_the_leaves(
    store: MemoryStore,
) -> None:
    tree = [queue("org"), queue("team", parent="org"), queue("lab", parent="team")]
    apply(store, *tree, queue("crew", parent="org"), queue("other"))
    with pytest.raises(Rejected) as caught:
        planned(store, group("g", "org"))
    assert caught.value.message == (
        "PodGroup default/g: spec.queue: queue org has queues below it, and holds no groups"
    )
    assert caught.value.hint == "name a queue below it: crew, lab"
    apply(store, queue("crew", parent="org", namespaces=["ml"]))
    with pytest.raises(Rejected) as caught:
        planned(store, group("g", "org"))
    assert caught.value.hint == "name a queue below it: lab"
    assert [one.effect for one in apply(store, group("g", "lab"))] == ["created"]


def test_queues_of_the_same_request_count_as_children(store: MemoryStore) -> None:
    apply(store, queue("p"))
    with pytest.raises(Rejected):
        planned(store, queue("a", parent="p"), group("g", "p"))
    apply(store, queue("a", parent="p"), group("g", "a"))


def test_default_gets_no_children_because_it_holds_groups_that_name_no_queue(
    store: MemoryStore,
) -> None:
    apply(store, group("early", "default"), queue("org"), queue("below", parent="org"))
    for child in ("new", "below"):
        with pytest.raises(Rejected) as caught:
            planned(store, queue(child, parent="default"))
        assert caught.value.message == (
            f"Queue {child}: spec.parent: default holds the groups that name no queue, and a queue"
            " with children holds no groups"
        )
        assert caught.value.hint == "name another parent, or none"
    apply(store, group("late", "default"))


def test_a_missing_queue_is_named_with_its_neighbours(store: MemoryStore) -> None:
    apply(store, queue("below"))
    with pytest.raises(NotFound, match="there is no queue 'belov'"):
        planned(store, group("typo", "belov"))


def test_existing_groups_and_described_clusters_are_not_refused(store: MemoryStore) -> None:
    apply(store, queue("p"), group("g", "p"))
    apply(store, queue("a", parent="p"))
    assert [one.effect for one in apply(store, group("g", "p"))] == ["unchanged"]
    changes.create(store, group("h", "p"), now_ms=NOW, uid="u", described=True)
