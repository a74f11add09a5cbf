"""Two concurrent changes of queues cannot together produce a state that each alone may not."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from batchq.api.manifest import decode
from batchq.api.objects import Object, Queue
from batchq.api.transaction import Refusal, Transaction, Word
from batchq.client import changes
from batchq.errors import BatchqError
from batchq.store.memory import MemoryStore

NOW = 1_000_000
REQUESTS = count()


def queue(name: str, parent: str | None = None, **spec: Any) -> Object:
    if parent is not None:
        spec["parent"] = parent
    metadata = {"name": name}
    return decode({"apiVersion": "batchq/v1", "kind": "Queue", "metadata": metadata, "spec": spec})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def apply(store: MemoryStore, obj: Object) -> Transaction | None:
    return changes.apply(store, obj, now_ms=NOW, uid=f"uid{next(REQUESTS)}")


def alone(store: MemoryStore, *objects: Object) -> None:
    """Apply each of the objects in a separate request."""
    for obj in objects:
        transaction = apply(store, obj)
        assert transaction is not None
        assert commit(store, transaction) is None


def commit(store: MemoryStore, transaction: Transaction) -> Refusal | None:
    refused = store.commit([transaction], request_id=f"r{next(REQUESTS)}").refused
    return refused[0] if refused else None


def stored(store: MemoryStore, name: str) -> Queue:
    found = store.get("Queue", name)
    assert isinstance(found, Queue)
    return found


def planned_by_both(store: MemoryStore, left: Object, right: Object) -> tuple[Transaction, ...]:
    """Plan two requests from the same state; each alone is valid."""
    transactions = apply(store, left), apply(store, right)
    assert None not in transactions
    return tuple(one for one in transactions if one is not None)


RACES: dict[str, tuple[list[Object], Object, Object]] = {
    "two children that together are too much": (
        [queue("p", guarantee={"cpu": 3})],
        queue("a", "p", guarantee={"cpu": 2}),
        queue("b", "p", guarantee={"cpu": 2}),
    ),
    "two grandchildren below silent parents": (
        [queue("org", guarantee={"cpu": 3}), queue("p", "org"), queue("q", "org")],
        queue("a", "p", guarantee={"cpu": 2}),
        queue("b", "q", guarantee={"cpu": 2}),
    ),
    "a parent that is cut while a child is raised": (
        [queue("p", capability={"cpu": 3}), queue("a", "p")],
        queue("p", capability={"cpu": 1}),
        queue("a", "p", guarantee={"cpu": 2}),
    ),
    "a root that is written down while a queue asks for more than it has": (
        [],
        queue("root", deserved={"cpu": 1}),
        queue("a", deserved={"cpu": 2}),
    ),
    "two queues that are put below each other": (
        [queue("a"), queue("b")],
        queue("a", "b"),
        queue("b", "a"),
    ),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("case", RACES)
def test_the_second_of_two_concurrent_writers_must_read_again(case: str, turned: bool) -> None:
    before, left, right = RACES[case]
    store = MemoryStore()
    alone(store, *before)
    first, second = planned_by_both(store, *((right, left) if turned else (left, right)))
    assert commit(store, first) is None
    refused = commit(store, second)
    assert refused is not None
    assert refused.answer.word is Word.CONFLICT
    # After reading again, the request is refused as invalid.
    with pytest.raises(BatchqError, match=r"expected at least|goes in a circle"):
        apply(store, left if turned else right)


@pytest.mark.parametrize("turned", [False, True])
def test_a_queue_is_not_deleted_while_another_is_put_below_it(turned: bool) -> None:
    store = MemoryStore()
    alone(store, queue("p"))
    removal = changes.delete(store, "Queue", "p", now_ms=NOW)
    birth = apply(store, queue("a", "p"))
    assert birth is not None
    first, second = (birth, removal) if turned else (removal, birth)
    assert commit(store, first) is None
    refused = commit(store, second)
    assert refused is not None
    assert refused.answer.word is Word.CONFLICT


def test_independent_changes_do_not_conflict(store: MemoryStore) -> None:
    alone(store, queue("p", guarantee={"cpu": 3}), queue("a", "p"))
    left = apply(store, queue("a", "p", weight=4, stopPolicy="Hold"))
    right = apply(store, queue("b", capability={"cpu": 1}))
    assert left is not None
    assert right is not None
    assert commit(store, left) is None
    assert commit(store, right) is None
    assert [(write.kind, write.key) for write in left.writes] == [("Queue", "a")]


def test_an_edit_of_the_queue_tree_also_writes_the_unchanged_queue_default(
    store: MemoryStore,
) -> None:
    alone(store, queue("default", weight=7), queue("p", guarantee={"cpu": 3}))
    before = stored(store, "default")
    transaction = apply(store, queue("p", guarantee={"cpu": 4}))
    assert transaction is not None
    assert [write.key for write in transaction.writes] == ["p", "default"]
    assert [event.key for event in transaction.events] == ["p"]
    assert commit(store, transaction) is None
    after = stored(store, "default")
    assert after.metadata.revision > before.metadata.revision
    assert after.spec == before.spec
