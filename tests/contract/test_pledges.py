"""A preemptor and its victims are counted once where both are charged.

A group then has several holders, `group:<uid>` and `group:<uid>:<scope>`; its charge moves from one
to the other, and the sums are right after every step.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.objects import Pledge
from batchq.api.transaction import Answer, Charge, Transaction, Word
from tests.contract.conftest import AnyStore
from tests.contract.made import answers, put
from tests.contract.pledged import (
    PLEDGE,
    ask,
    audited,
    cpus,
    end_some,
    ended,
    everything,
    found,
    group_of,
    moved,
    owed,
    pledged,
    pods_of,
    rebooked,
    together,
    used,
)


@pytest.fixture
def world(store: AnyStore) -> AnyStore:
    found(store)
    return store


def test_a_preemptor_is_charged_in_full_only_where_its_victims_are_not(world: AnyStore) -> None:
    assert used(world) == {"cluster": 6, "ns:default": 6, "queue:b": 6, "queue:root": 6}
    assert ask(world, pledged(world)).refused == ()
    assert used(world) == {
        "cluster": 6,
        "queue:root": 6,
        "queue:a": 4,
        "queue:b": 6,
        "ns:default": 10,
    }
    assert world.charges()["group:preemptor"] == (("queue:a", "ns:default"), cpus(4))
    assert [holder for holder in world.charges() if holder.startswith("group:preemptor:")] == []
    assert audited(world) == []


def test_amounts_that_victims_leave_move_to_the_preemptor_and_the_sums_stay(
    world: AnyStore,
) -> None:
    ask(world, pledged(world))
    seen = []
    for count in (1, 2, 1):
        assert ask(world, end_some(world, count)).refused == ()
        assert audited(world) == []
        seen.append((used(world)["cluster"], used(world)["queue:root"], used(world)["queue:b"]))
    assert seen == [(6, 6, 5), (6, 6, 3), (6, 6, 2)]
    # The pledge is over: the group has one holder again.
    assert {holder for holder in world.charges() if "preemptor" in holder} == {
        "group:preemptor",
        "object:preemptor",
    }
    scopes, amounts = world.charges()["group:preemptor"]
    assert set(scopes) == {"cluster", "queue:root", "queue:a", "ns:default"}
    assert amounts == cpus(4)
    assert used(world, "podgroups")["cluster"] == 2


def test_meanwhile_the_preemptor_has_several_holders(world: AnyStore) -> None:
    ask(world, pledged(world), end_some_after_pledge(world))
    held = {holder: what for holder, what in world.charges().items() if ":preemptor" in holder}
    part = {"cpu": 3000, "pods": 3000}
    assert held == {
        "group:preemptor": (("queue:a", "ns:default"), cpus(4)),
        "group:preemptor:cluster": (("cluster",), part),
        "group:preemptor:queue:root": (("queue:root",), part),
        "object:preemptor": (("objects:default",), {"podgroups": 1000}),
    }
    assert audited(world) == []


def end_some_after_pledge(store: AnyStore) -> Transaction:
    """Three pods of the victim end in the commit that makes the pledge."""
    before = group_of(store, "preemptor")
    after = structs.replace(
        before,
        metadata=structs.replace(before.metadata, revision=store.snapshot().revision + 1),
        status=structs.replace(before.status, charge=cpus(4), reserved_at=1, pledge=PLEDGE),
    )
    owing = structs.replace(
        after,
        status=structs.replace(after.status, pledge=structs.replace(PLEDGE, owed=owed(1))),
    )
    claims = Transaction(
        subject="preemptor",
        writes=(put(owing, expect=after.metadata.revision),),
        charges=rebooked(after, owing, checked=True),
    )
    pods = pods_of(store, "victim")[:3]
    return together(
        *(ended(store, pod) for pod in pods), moved(store, "victim", charge=cpus(1)), claims
    )


def test_a_preemptor_takes_no_more_than_its_victims_leave(world: AnyStore) -> None:
    ask(world, pledged(world))
    before = everything(world)
    one_left = structs.replace(PLEDGE, owed=owed(3))
    early = moved(world, "preemptor", checked=True, pledge=one_left)
    assert answers(ask(world, early)) == [
        Answer(word=Word.LIMIT, subject="cluster", resource="cpu", need=1000, limit=6000, seen=6000)
    ]
    assert everything(world) == before


def test_the_order_of_charges_does_not_matter_for_final_sums(world: AnyStore) -> None:
    ask(world, pledged(world))
    asked = end_some(world, 2)
    backwards = structs.replace(asked, charges=asked.charges[::-1], writes=asked.writes[::-1])
    assert ask(world, backwards).refused == ()
    assert used(world)["cluster"] == 6
    assert audited(world) == []


def test_an_amount_that_moves_to_another_holder_is_not_counted_twice(world: AnyStore) -> None:
    """The former holder's charge is removed in the same step, or the sum would pass the limit."""
    ask(world, pledged(world))
    ask(world, end_some(world, 2))
    done = end_some(world, 2)
    kept = [one for one in done.charges if one.holder != "group:preemptor:cluster"]
    refused = ask(world, structs.replace(done, charges=tuple(kept))).refused
    assert [(one.answer.word, one.answer.subject, one.answer.seen) for one in refused] == [
        (Word.LIMIT, "cluster", 4000)
    ]
    assert ask(world, done).refused == ()


def test_the_end_of_a_pledge_frees_the_charges_of_every_holder(world: AnyStore) -> None:
    before = used(world)
    ask(world, pledged(world))
    ask(world, end_some(world, 2))
    ends = moved(world, "preemptor", charge={}, reserved_at=None, pledge=Pledge())
    assert ask(world, ends).refused == ()
    assert [holder for holder in world.charges() if holder.startswith("group:preemptor")] == []
    assert used(world) == {scope: count - 2 for scope, count in before.items()}
    assert audited(world) == []


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        ("group:preemptor:cluster", "PodGroup default/preemptor (in the cluster) cpu"),
        ("group:preemptor:queue:root", "PodGroup default/preemptor (in queue root) cpu"),
        ("group:preemptor:queue:b", "PodGroup default/preemptor (in queue b) cpu"),
        ("group:gone:cluster", "group:gone:cluster cpu"),
    ],
)
def test_the_doctor_names_the_holder_and_scope_of_a_wrong_charge(
    world: AnyStore, holder: str, expected: str
) -> None:
    ask(world, pledged(world))
    ask(world, end_some(world, 2))
    assert audited(world) == []
    wrong = Charge(
        holder=holder, scopes=(holder.split(":", 2)[2],), amounts={"cpu": 1000, "pods": 2000}
    )
    assert ask(world, Transaction(subject="a mistake", charges=(wrong,))).refused == ()
    assert any(one.startswith(expected) for one in audited(world)), audited(world)
