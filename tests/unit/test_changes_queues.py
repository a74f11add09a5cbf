"""Changes of the queue tree: valid parents, consistent amounts, and deletions."""

from __future__ import annotations

from itertools import count, permutations
from typing import Any

import pytest

from batchq.api.manifest import decode
from batchq.api.objects import Object, Queue
from batchq.api.transaction import Refusal, Transaction
from batchq.api.views import Effect
from batchq.client import changes
from batchq.client.changes.queue_rules import MOST_QUEUES, first_contradiction
from batchq.client.requests import RequestPlan, plan_steps
from batchq.errors import BatchqError, Conflict, NotFound, Rejected
from batchq.store.memory import MemoryStore

NOW = 1_000_000
REQUESTS = count()


def queue(name: str, parent: str | None = None, **spec: Any) -> Object:
    if parent is not None:
        spec["parent"] = parent
    metadata = {"name": name}
    return decode({"apiVersion": "batchq/v1", "kind": "Queue", "metadata": metadata, "spec": spec})


def group(name: str, queue: str) -> Object:
    tasks = [{"name": "w", "template": {"command": ["true"]}}]
    metadata = {"name": name}
    spec = {"queue": queue, "tasks": tasks}
    kind = "PodGroup"
    return decode({"apiVersion": "batchq/v1", "kind": kind, "metadata": metadata, "spec": spec})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def apply(store: MemoryStore, obj: Object) -> Transaction | None:
    return changes.apply(store, obj, now_ms=NOW, uid=f"uid{next(REQUESTS)}")


def plan_of(store: MemoryStore, *objects: Object) -> RequestPlan:
    def step(reader: Any, item: Object) -> Transaction | None:
        uid = f"uid{next(REQUESTS)}"
        return changes.apply(reader, item, now_ms=NOW, uid=uid, in_part=True)

    return plan_steps(store, objects, step)


def together(store: MemoryStore, *objects: Object) -> None:
    """Apply several objects in one request, which must be accepted."""
    planned = plan_of(store, *objects)
    assert planned.transaction is not None
    assert commit(store, planned.transaction) is None


def alone(store: MemoryStore, *objects: Object) -> None:
    """Apply each of the objects in a separate request."""
    for obj in objects:
        transaction = apply(store, obj)
        assert transaction is not None
        assert commit(store, transaction) is None


def commit(store: MemoryStore, transaction: Transaction) -> Refusal | None:
    refused = store.commit([transaction], request_id=f"r{next(REQUESTS)}").refused
    return refused[0] if refused else None


def refusal(store: MemoryStore, *objects: Object) -> BatchqError:
    """Return the error of a refused request; a single object must give the same error alone."""
    with pytest.raises(BatchqError) as caught:
        plan_of(store, *objects)
    if len(objects) == 1:
        with pytest.raises(type(caught.value)) as again:
            apply(store, objects[0])
        assert again.value.message == caught.value.message
    return caught.value


def stored(store: MemoryStore, name: str) -> Queue:
    found = store.get("Queue", name)
    assert isinstance(found, Queue)
    return found


def test_a_missing_parent_is_refused_with_the_nearest_name(store: MemoryStore) -> None:
    alone(store, queue("research"))
    error = refusal(store, queue("team", "reserach"))
    assert isinstance(error, NotFound)
    assert error.message == "Queue team: spec.parent: there is no queue 'reserach'"
    assert error.hint == "did you mean research?"


def test_root_is_a_valid_parent_without_being_stored(store: MemoryStore) -> None:
    alone(store, queue("b", "root"))
    assert stored(store, "b").spec.parent == ""


def test_the_parent_root_means_no_parent(store: MemoryStore) -> None:
    alone(store, queue("a", "root", guarantee={"cpu": 1}))
    assert apply(store, queue("a", guarantee={"cpu": 1})) is None
    assert apply(store, queue("a", "root", guarantee={"cpu": 1})) is None


def test_the_queues_of_one_file_may_come_in_any_order() -> None:
    tree = [
        queue("org", deserved={"cpu": 8}),
        queue("team", "org", deserved={"cpu": 8}),
        queue("lab", "team", guarantee={"cpu": 4}),
    ]
    for order in permutations(tree):
        store = MemoryStore()
        together(store, *order)
        assert [item.metadata.name for item in store.list("Queue")] == [
            "default", "lab", "org", "team",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "way"),
    [
        ("abc", "a -> b -> c -> a"),
        ("bca", "a -> b -> c -> a"),
        ("cab", "a -> b -> c -> a"),
        ("acb", "a -> c -> b -> a"),
        ("bac", "a -> c -> b -> a"),
        ("cba", "a -> c -> b -> a"),
    ],
)
def test_a_cycle_of_parents_is_refused_for_every_queue_that_closes_it(
    store: MemoryStore, names: str, way: str
) -> None:
    lowest, middle, highest = names
    alone(store, queue(highest), queue(middle, highest), queue(lowest, middle))
    error = refusal(store, queue(highest, lowest))
    assert isinstance(error, Rejected)
    assert error.message == f"Queue a: spec.parent goes in a circle: {way}"


def test_a_queue_below_a_cycle_is_not_named_as_its_cause(store: MemoryStore) -> None:
    error = refusal(store, queue("a", "b"), queue("b", "c"), queue("c", "b"))
    assert error.message == "Queue b: spec.parent goes in a circle: b -> c -> b"


def test_the_tree_is_at_most_sixteen_levels_deep(store: MemoryStore) -> None:
    chain = [queue("q1"), *(queue(f"q{n}", f"q{n - 1}") for n in range(2, 17))]
    together(store, *chain)
    error = refusal(store, queue("q17", "q16"))
    assert isinstance(error, Rejected)
    assert error.message == (
        "Queue q17: spec.parent: expected at most 16 levels of queues, found more: q1 >"
        " q2 > q3 > q4 > q5 > q6 > q7 > q8 > q9 > q10 > q11 > q12 > q13 > q14 > q15 > q16 > q17"
    )
    # The descendants move with the queue.
    alone(store, queue("top"))
    assert refusal(store, queue("q1", "top")).message.startswith("Queue q16: spec.parent: expected")


def test_the_number_of_queues_is_limited() -> None:
    queues = [queue(f"q{number}") for number in range(MOST_QUEUES - 1)]
    assert first_contradiction(item for item in queues if isinstance(item, Queue)) is None
    queues.append(queue("one-more"))
    found = first_contradiction(item for item in queues if isinstance(item, Queue))
    assert found is not None
    assert found[1].message == "Queue q9998: expected at most 10000 queues, found 10001"


Tree = list[Object]

FITS: dict[str, Tree] = {
    "guarantees that fill their parent's": [
        queue("p", guarantee={"cpu": 3}),
        queue("a", "p", guarantee={"cpu": 1}),
        queue("b", "p", guarantee={"cpu": 2}),
    ],
    "deserved parts that fill their parent's": [
        queue("p", deserved={"cpu": 3}),
        queue("a", "p", deserved={"cpu": 1}),
        queue("b", "p", deserved={"cpu": 2}),
    ],
    "a resource of which the parent says nothing": [
        queue("p", guarantee={"cpu": 1}, deserved={"cpu": 1}, capability={"cpu": 1}),
        queue("a", "p", guarantee={"gpu": 5}, deserved={"gpu": 9}),
    ],
    "a child that may hold more than its parent": [
        queue("p", capability={"cpu": 1}),
        queue("a", "p", capability={"cpu": 5}),
    ],
    "children that deserve more than their parent may hold but does not state": [
        queue("p", capability={"cpu": 1}),
        queue("a", "p", deserved={"cpu": 5}),
    ],
    "a root that says nothing": [
        queue("root", stopPolicy="Hold"),
        queue("a", guarantee={"cpu": 5}, deserved={"cpu": 9}),
    ],
    "a root that has just enough": [
        queue("root", guarantee={"cpu": 5}, deserved={"cpu": 9}, capability={"cpu": 9}),
        queue("a", guarantee={"cpu": 5}, deserved={"cpu": 9}),
    ],
}

TOO_MUCH: dict[str, tuple[Tree, str]] = {
    "more guaranteed than the parent is": (
        [
            queue("p", guarantee={"cpu": 3}),
            queue("a", "p", guarantee={"cpu": 1}),
            queue("b", "p", guarantee={"cpu": "2500m"}),
        ],
        (
            "Queue p: spec.guarantee.cpu: expected at least 3500m, what the queues below it are"
            " guaranteed (b 2500m, a 1), found 3"
        ),
    ),
    "more deserved than the parent does": (
        [
            queue("p", deserved={"memory": "3Gi"}),
            queue("a", "p", deserved={"memory": "2Gi"}),
            queue("b", "p", deserved={"memory": "2Gi"}),
        ],
        (
            "Queue p: spec.deserved.memory: expected at least 4Gi, what the queues below it deserve"
            " (a 2Gi, b 2Gi), found 3Gi"
        ),
    ),
    "none where some is guaranteed": (
        [queue("p", guarantee={"gpu": 0}), queue("a", "p", guarantee={"gpu": 1})],
        (
            "Queue p: spec.guarantee.gpu: expected at least 1, what the queues below it are"
            " guaranteed (a 1), found 0"
        ),
    ),
    "more guaranteed than a parent deserves that guarantees nothing itself": (
        [queue("p", deserved={"cpu": 3}), queue("a", "p", guarantee={"cpu": 4})],
        (
            "Queue p: spec.deserved.cpu: expected at least 4, what the queues below it are"
            " guaranteed (a 4), found 3"
        ),
    ),
    "more guaranteed than a parent may hold that states nothing else": (
        [queue("p", capability={"cpu": 3}), queue("a", "p", guarantee={"cpu": 4})],
        (
            "Queue p: spec.capability.cpu: expected at least 4, what the queues below it are"
            " guaranteed (a 4), found 3"
        ),
    ),
    "a sum that a silent parent hands up": (
        [
            queue("org", guarantee={"cpu": 5}),
            queue("p", "org"),
            queue("a", "p", guarantee={"cpu": 2}),
            queue("b", "p", guarantee={"cpu": 2}),
            queue("c", "org", guarantee={"cpu": 2}),
        ],
        (
            "Queue org: spec.guarantee.cpu: expected at least 6, what the queues below it are"
            " guaranteed (p 4, c 2), found 5"
        ),
    ),
    "more guaranteed than the root may hold": (
        [queue("root", capability={"cpu": 3}), queue("a", "root", guarantee={"cpu": 4})],
        (
            "Queue root: spec.capability.cpu: expected at least 4, what the queues below it are"
            " guaranteed (a 4), found 3"
        ),
    ),
    "more deserved than the root does": (
        [queue("root", deserved={"cpu": 3}), queue("a", deserved={"cpu": 4})],
        (
            "Queue root: spec.deserved.cpu: expected at least 4, what the queues below it deserve"
            " (a 4), found 3"
        ),
    ),
    "many small ones": (
        [
            queue("p", guarantee={"cpu": 6}),
            *(queue(f"t{number}", "p", guarantee={"cpu": 1}) for number in range(7)),
        ],
        (
            "Queue p: spec.guarantee.cpu: expected at least 7, what the queues below it are"
            " guaranteed (t0 1, t1 1, t2 1, t3 1, t4 1 and 2 more), found 6"
        ),
    ),
}


@pytest.mark.parametrize("case", FITS)
def test_a_consistent_queue_tree_is_accepted(store: MemoryStore, case: str) -> None:
    together(store, *FITS[case])


@pytest.mark.parametrize("case", TOO_MUCH)
def test_an_inconsistent_queue_tree_is_refused_in_any_order(case: str) -> None:
    tree, message = TOO_MUCH[case]
    for objects in (tree, tree[::-1]):
        error = refusal(MemoryStore(), *objects)
        assert isinstance(error, Rejected)
        assert error.message == message
        assert error.hint == "raise it, or lower theirs"


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_queue_that_makes_the_stored_tree_inconsistent_is_refused(case: str) -> None:
    tree, message = TOO_MUCH[case]
    store = MemoryStore()
    alone(store, *tree[:-1])
    assert refusal(store, tree[-1]).message == message
    assert store.get("Queue", tree[-1].metadata.name) is None


def test_a_parent_cannot_be_cut_below_the_sum_of_its_children(store: MemoryStore) -> None:
    tree, message = TOO_MUCH["more guaranteed than the parent is"]
    alone(store, queue("p", guarantee={"cpu": 4}), *tree[1:])
    assert refusal(store, tree[0]).message == message
    assert stored(store, "p").spec.guarantee == {"cpu": 4000}


def test_two_children_may_exchange_amounts_in_one_request_only(store: MemoryStore) -> None:
    parent = queue("p", guarantee={"cpu": 4})
    together(
        store, parent, queue("a", "p", guarantee={"cpu": 3}), queue("b", "p", guarantee={"cpu": 1})
    )
    more, less = queue("b", "p", guarantee={"cpu": 3}), queue("a", "p", guarantee={"cpu": 1})
    assert refusal(store, more).message == (
        "Queue p: spec.guarantee.cpu: expected at least 6, what the queues below it are guaranteed"
        " (a 3, b 3), found 4"
    )
    together(store, more, less)
    assert stored(store, "b").spec.guarantee == {"cpu": 3000}


def test_a_queue_that_moves_takes_its_guarantee_along(store: MemoryStore) -> None:
    together(
        store,
        queue("p", guarantee={"cpu": 2}),
        queue("r", guarantee={"cpu": 1}),
        queue("a", "p", guarantee={"cpu": 2}),
    )
    assert refusal(store, queue("a", "r", guarantee={"cpu": 2})).message == (
        "Queue r: spec.guarantee.cpu: expected at least 2, what the queues below it are guaranteed"
        " (a 2), found 1"
    )
    alone(store, queue("a", guarantee={"cpu": 2}), queue("p"))


def test_a_queue_with_children_cannot_be_deleted(store: MemoryStore) -> None:
    together(store, queue("p"), queue("b", "p"), queue("a", "p"))
    with pytest.raises(Conflict) as caught:
        changes.delete(store, "Queue", "p", now_ms=NOW)
    assert caught.value.message == "Queue p still has 2 queues below it: a, b"
    assert caught.value.hint == "delete them first, or give them another parent"


def test_a_whole_tree_can_be_deleted_in_one_request(store: MemoryStore) -> None:
    tree = [queue("p"), queue("a", "p"), queue("b", "a")]
    together(store, *tree)

    def remove(reader: Any, item: Object) -> Transaction | None:
        name = item.metadata.name
        return changes.delete(reader, "Queue", name, now_ms=NOW, in_part=True)

    planned = plan_steps(store, [stored(store, name) for name in "pab"], remove, last_first=True)
    assert [one.effect for one in planned.applied] == [Effect.DELETED] * 3
    assert planned.transaction is not None
    assert commit(store, planned.transaction) is None
    assert [item.metadata.name for item in store.list("Queue")] == ["default"]


def test_the_stored_root_can_be_deleted_despite_its_children(store: MemoryStore) -> None:
    together(store, queue("root", capability={"cpu": 3}), queue("a"), queue("b", "a"))
    transaction = changes.delete(store, "Queue", "root", now_ms=NOW)
    assert [(limit.scope, limit.amounts) for limit in transaction.limits] == [("queue:root", None)]
    assert commit(store, transaction) is None


def test_creating_a_queue_below_a_queue_with_groups_gives_a_warning(store: MemoryStore) -> None:
    alone(store, queue("p"), queue("q"), group("one", "p"), group("two", "p"), group("x", "q"))
    planned = plan_of(store, queue("a", "p"), queue("b", "p"))
    assert [one.warnings for one in planned.applied] == [
        (
            (
                "Queue p is now the parent of a, and still has 2 unfinished pod groups: only queues"
                " without children hold groups, so waiting groups stay Misconfigured; cancel"
                " them and submit them to a child"
            ),
        ),
        (),
    ]
    together(store, queue("a", "p"))
    # The first request gave the warning.
    assert [one.warnings for one in plan_of(store, queue("b", "p")).applied] == [()]


def test_ended_groups_give_no_warning(store: MemoryStore) -> None:
    alone(store, queue("p"), group("one", "p"))
    assert commit(store, changes.cancel(store, "default/one", now_ms=NOW)) is None
    assert [one.warnings for one in plan_of(store, queue("a", "p")).applied] == [()]
