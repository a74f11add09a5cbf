"""Nothing grows that was decided under other limits; the next decision uses the new ones."""

from __future__ import annotations

import itertools

import pytest

from batchq.api.objects import AdmissionCheck, Metadata, Object, key_of, kind_of
from batchq.api.transaction import Answer, Commit, Event, Limit, Transaction, Word
from batchq.client.changes import object_writes
from batchq.errors import InvariantBroken
from tests.builders import a_node, a_priority, a_queue, a_quota, amounts
from tests.contract.conftest import AnyStore
from tests.contract.made import answers, charge, charging, group, limiting, pod, put, words, writing

REQUESTS = (f"request {number}" for number in itertools.count())
OUTDATED = Answer(word=Word.CONFLICT, subject="the limits")
EVENT = Event(kind="Node", key="n1", reason="Ready")


def ask(store: AnyStore, *asked: Transaction, seen: int | None = None) -> Commit:
    return store.commit(asked, request_id=next(REQUESTS), seen=seen)


def edited(store: AnyStore, item: Object) -> Transaction:
    """Return what an edit of the object writes, with its limits."""
    stored = store.get(kind_of(item), key_of(item))
    expect = 0 if stored is None else stored.metadata.revision
    return object_writes.put(store, item, expect=expect, event=EVENT)


def edit(store: AnyStore, *objects: Object) -> None:
    for item in objects:
        assert ask(store, edited(store, item)).refused == ()


def delete(store: AnyStore, kind: str, key: str) -> None:
    stored = store.get(kind, key)
    assert stored is not None
    assert ask(store, object_writes.remove(store, stored, event=EVENT)).refused == ()


@pytest.fixture
def world(store: AnyStore) -> AnyStore:
    """Create two queues, a quota and a node."""
    edit(store, a_queue("default"), a_queue("a"), a_queue("b"), a_quota("x", cpu=8))
    edit(store, a_node("n1", cpu=8), a_priority("high", 10))
    return store


def admit(name: str = "g", *, queue: str = "a", cpu: int = 1000) -> Transaction:
    """Return an admission: a record and its charge."""
    return Transaction(
        subject=f"x/{name}",
        writes=(put(group(name, uid=name)),),
        charges=(
            charge(f"group:{name}", "cluster", f"queue:{queue}", "ns:x", checked=True, cpu=cpu),
        ),
        events=(Event(kind="PodGroup", key=f"x/{name}", reason="Admitted"),),
    )


EDITS: dict[str, tuple[Object, ...]] = {
    "a quota": (a_quota("x", cpu=7),),
    "a quota that is new": (a_quota("y", cpu=7),),
    "a capability": (a_queue("b", capability={"cpu": 7}),),
    "a guarantee": (a_queue("b", guarantee=amounts(cpu=7)),),
    "a parent": (a_queue("c"), a_queue("b", parent="c")),
    "a queue that is new": (a_queue("c"),),
}


@pytest.mark.parametrize("objects", EDITS.values(), ids=EDITS)
def test_nothing_grows_that_was_decided_before_an_edit_of(
    world: AnyStore, objects: tuple[Object, ...]
) -> None:
    seen = world.snapshot().revision
    edit(world, *objects)
    before = (world.snapshot(), world.ledger(), world.charges(), list(world.events()))
    assert answers(ask(world, admit(), seen=seen)) == [OUTDATED]
    assert (world.snapshot(), world.ledger(), world.charges(), list(world.events())) == before
    assert ask(world, admit(), seen=world.snapshot().revision).refused == ()
    assert world.ledger()["queue:a"] == {"cpu": 1000}


@pytest.mark.parametrize(("kind", "key"), [("Queue", "b"), ("ResourceQuota", "x/quota")])
def test_nothing_grows_that_was_decided_before_a_deletion(
    world: AnyStore, kind: str, key: str
) -> None:
    seen = world.snapshot().revision
    delete(world, kind, key)
    assert answers(ask(world, admit(), seen=seen)) == [OUTDATED]
    assert ask(world, admit(), seen=world.snapshot().revision).refused == ()


UNRELATED: dict[str, Object] = {
    "a priority class": a_priority("high", 11),
    "an admission check": AdmissionCheck(metadata=Metadata(name="licences")),
    "a node that joins": a_node("n2", cpu=8),
    "a node that is larger now": a_node("n1", cpu=9),
    "a group": group("other", uid="other"),
    "a pod": pod(),
}


@pytest.mark.parametrize("written", UNRELATED.values(), ids=UNRELATED)
def test_a_charge_grows_whatever_unrelated_object_was_written_meanwhile(
    world: AnyStore, written: Object
) -> None:
    seen = world.snapshot().revision
    match kind_of(written):
        case "PodGroup" | "Pod":
            assert ask(world, writing(put(written))).refused == ()
        case _:
            edit(world, written)
    assert world.snapshot().revision == seen + 1
    assert ask(world, admit(), seen=seen).refused == ()


def test_charges_grow_while_nodes_come_and_fall_silent(world: AnyStore) -> None:
    seen = world.snapshot().revision
    stored = world.get("Node", "n1")
    assert stored is not None
    silent = a_node("n1", cpu=8, ready=False)
    ask(world, object_writes.put_node(a_node("n2", cpu=1), expect=0, event=EVENT))
    ask(world, object_writes.put_node(silent, expect=stored.metadata.revision, event=EVENT))
    refused = ask(world, admit("large", cpu=1001), admit("small"), seen=seen).refused
    assert [(one.transaction.subject, one.answer.word) for one in refused] == [
        ("x/large", Word.LIMIT)
    ]


def test_a_commit_without_a_revision_seen_is_held_to_single_limits_only(
    world: AnyStore,
) -> None:
    edit(world, a_queue("b", guarantee=amounts(cpu=7)))
    assert ask(world, admit()).refused == ()


def test_charges_that_do_not_grow_or_are_not_checked_are_written_anyway(
    world: AnyStore,
) -> None:
    ask(world, admit(cpu=3000), admit("over", cpu=1000))
    seen = world.snapshot().revision
    edit(world, a_queue("b", guarantee=amounts(cpu=7)))
    shrinks = charging(charge("group:g", "cluster", "queue:a", "ns:x", checked=True, cpu=2000))
    unchecked = charging(charge("group:over", "cluster", "queue:a", "ns:x", cpu=1500))
    leaves = charging(charge("group:over"))
    assert ask(world, shrinks, unchecked, leaves, writing(put(pod())), seen=seen).refused == ()
    assert world.ledger()["queue:a"] == {"cpu": 2000}


def test_a_bind_within_the_reservation_is_written_anyway(world: AnyStore) -> None:
    """Capacity on a node is compared only with that node's limit, in the store itself."""
    seen = world.snapshot().revision
    edit(world, a_quota("x", cpu=7))
    bind = charging(charge("pod:p", "node:n1", checked=True, cpu=8000))
    more = charging(charge("pod:q", "node:n1", checked=True, cpu=1))
    assert words(ask(world, bind, more, seen=seen)) == ["limit"]


def test_growth_in_one_scope_is_enough(world: AnyStore) -> None:
    ask(world, charging(charge("group:g", "queue:a", cpu=1000)))
    seen = world.snapshot().revision
    edit(world, a_quota("x", cpu=7))
    moves = charging(charge("group:g", "queue:b", checked=True, cpu=1000))
    assert answers(ask(world, moves, seen=seen)) == [OUTDATED]
    assert world.charges()["group:g"] == (("queue:a",), {"cpu": 1000})


def test_only_the_growing_transactions_of_a_commit_are_refused(world: AnyStore) -> None:
    seen = world.snapshot().revision
    edit(world, a_quota("x", cpu=7))
    commit = ask(world, writing(put(pod(0))), admit(), writing(put(pod(1))), seen=seen)
    assert [one.transaction.subject for one in commit.refused] == ["x/g"]
    assert len(commit.applied) == 2


def test_the_limits_of_a_transaction_itself_count_as_seen(world: AnyStore) -> None:
    seen = world.snapshot().revision
    made = edited(world, a_queue("a", guarantee=amounts(cpu=1)))
    both = Transaction(
        subject="both", writes=made.writes, limits=made.limits, charges=admit().charges
    )
    assert ask(world, both, seen=seen).refused == ()


def test_limits_of_an_earlier_transaction_of_the_same_commit_count_as_unseen(
    world: AnyStore,
) -> None:
    seen = world.snapshot().revision
    cut = edited(world, a_quota("x", cpu=7))
    commit = ask(world, admit("first"), cut, admit("second"), seen=seen)
    assert [one.transaction.subject for one in commit.refused] == ["x/second"]
    assert answers(commit) == [OUTDATED]


def test_a_later_revision_than_the_stores_has_seen_everything(world: AnyStore) -> None:
    edit(world, a_quota("x", cpu=7))
    assert ask(world, admit(), seen=2**53 - 1).refused == ()


def test_a_request_that_is_repeated_after_an_edit_answers_as_before(world: AnyStore) -> None:
    seen = world.snapshot().revision
    first = world.commit([admit()], request_id="lost", seen=seen)
    edit(world, a_quota("x", cpu=7))
    assert world.commit([admit()], request_id="lost", seen=seen) == first
    assert first.refused == ()


def test_a_large_commit_is_refused_from_the_edit_on_in_all_its_calls(world: AnyStore) -> None:
    seen = world.snapshot().revision
    cut = edited(world, a_quota("x", cpu=7))
    many = [charging(charge(f"group:{n}", "queue:a", checked=True, cpu=1)) for n in range(2_500)]
    commit = ask(world, *many[:500], cut, *many[500:], seen=seen)
    assert len(commit.applied) == 501
    assert set(answers(commit)) == {OUTDATED}


def test_limits_that_return_to_their_former_amounts_have_changed(world: AnyStore) -> None:
    seen = world.snapshot().revision
    edit(world, a_quota("x", cpu=7), a_quota("x", cpu=8))
    assert answers(ask(world, admit(), seen=seen)) == [OUTDATED]


def test_no_scope_has_a_space_in_it(store: AnyStore) -> None:
    """The field `last change` is stored beside the scopes."""
    for asked in (
        limiting("last change", cpu=1),
        Transaction(subject="a", limits=(Limit(scope="queue q", amounts=None),)),
    ):
        with pytest.raises(InvariantBroken, match="a scope with a space in it"):
            ask(store, asked)
