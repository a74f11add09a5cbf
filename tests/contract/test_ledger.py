"""The ledger's sums follow the charges exactly, and no checked charge passes a limit."""

from __future__ import annotations

import pytest

from batchq.api.transaction import Answer, Charge, Limit, Transaction, Word
from batchq.errors import InvariantBroken
from tests.contract.conftest import AnyStore
from tests.contract.made import answers, charge, charging, limiting, put, queue, words

MOST = 2**53 - 1


def ask(store: AnyStore, number: int, *asked: Transaction, overcommit: int = 1000) -> list[Answer]:
    """Return the refusals of one commit."""
    return answers(store.commit(asked, request_id=str(number), overcommit=overcommit))


def test_a_charge_counts_in_each_of_its_scopes(store: AnyStore) -> None:
    ask(
        store,
        1,
        charging(charge("group:a", "queue:q", "ns:x", cpu=2000, gpu=0)),
        charging(charge("group:b", "queue:q", cpu=500, memory=7)),
    )
    assert store.ledger() == {"ns:x": {"cpu": 2000}, "queue:q": {"cpu": 2500, "memory": 7}}
    assert store.charges() == {
        "group:a": (("queue:q", "ns:x"), {"cpu": 2000}),
        "group:b": (("queue:q",), {"cpu": 500, "memory": 7}),
    }


def test_a_charge_replaces_the_holders_former_one(store: AnyStore) -> None:
    ask(store, 1, charging(charge("group:a", "queue:q", "ns:x", cpu=5, memory=2)))
    ask(store, 2, charging(charge("group:a", "queue:r", "ns:x", cpu=3, gpu=1)))
    assert store.ledger() == {"ns:x": {"cpu": 3, "gpu": 1}, "queue:r": {"cpu": 3, "gpu": 1}}


@pytest.mark.parametrize("amounts", [{}, {"cpu": 0}])
def test_a_charge_of_nothing_leaves_no_trace(store: AnyStore, amounts: dict[str, int]) -> None:
    ask(store, 1, charging(charge("group:a", "queue:q", cpu=5)))
    ask(store, 2, charging(Charge(holder="group:a", scopes=("queue:q",), amounts=amounts)))
    assert (store.ledger(), store.charges()) == ({}, {})


def test_a_checked_charge_passes_no_limit(store: AnyStore) -> None:
    ask(store, 1, limiting("queue:q", cpu=10), charging(charge("group:a", "queue:q", cpu=6)))
    refused = ask(store, 2, charging(charge("group:b", "queue:q", checked=True, cpu=5)))
    assert refused == [
        Answer(word=Word.LIMIT, subject="queue:q", resource="cpu", need=5, limit=10, seen=6)
    ]
    assert ask(store, 3, charging(charge("group:b", "queue:q", checked=True, cpu=4))) == []
    assert store.ledger() == {"queue:q": {"cpu": 10}}


def test_an_unchecked_charge_may_pass_a_limit_and_a_checked_one_may_stay(store: AnyStore) -> None:
    ask(store, 1, limiting("queue:q", cpu=10))
    assert ask(store, 2, charging(charge("group:a", "queue:q", cpu=12, memory=1))) == []
    smaller = charge("group:a", "queue:q", checked=True, cpu=11, memory=5)
    assert ask(store, 3, charging(smaller)) == []
    assert len(ask(store, 4, charging(charge("group:a", "queue:q", checked=True, cpu=12)))) == 1


def test_a_charge_may_grow_by_as_much_as_its_transaction_gives_back_above_a_cut_limit(
    store: AnyStore,
) -> None:
    ask(store, 1, limiting("queue:q", cpu=10), charging(charge("group:a", "queue:q", cpu=12)))
    gives = Charge(holder="group:a")
    as_much = charge("group:b", "queue:q", checked=True, cpu=12)
    too_much = charge("group:b", "queue:q", checked=True, cpu=13)
    assert ask(store, 2, charging(gives, too_much)) == [
        Answer(word=Word.LIMIT, subject="queue:q", resource="cpu", need=13, limit=10, seen=0)
    ]
    assert ask(store, 3, charging(gives, as_much)) == []
    assert store.ledger() == {"queue:q": {"cpu": 12}}


def test_a_holder_that_moves_to_another_scope_grows_there(store: AnyStore) -> None:
    ask(store, 1, limiting("node:n2", cpu=3), charging(charge("pod:a", "node:n1", cpu=4)))
    moved = charging(charge("pod:a", "node:n2", checked=True, cpu=4))
    assert [answer.subject for answer in ask(store, 2, moved)] == ["node:n2"]


@pytest.mark.parametrize(
    ("scope", "limit"), [("cluster", 0), ("node:n1", 0), ("queue:q", None), ("ns:x", None)]
)
def test_only_a_cluster_or_node_limit_forbids_resources_it_does_not_name(
    store: AnyStore, scope: str, limit: int | None
) -> None:
    ask(store, 1, limiting(scope, memory=5))
    refused = ask(store, 2, charging(charge("group:a", scope, checked=True, cpu=1)))
    assert [answer.limit for answer in refused] == ([] if limit is None else [limit])


def test_a_limit_can_be_replaced_and_removed(store: AnyStore) -> None:
    ask(store, 1, limiting("queue:q", cpu=1, memory=1), limiting("queue:q", memory=2))
    held = charging(charge("group:a", "queue:q", checked=True, cpu=9, memory=2))
    assert ask(store, 2, held) == []
    more = charging(charge("group:a", "queue:q", checked=True, memory=3))
    assert len(ask(store, 3, more)) == 1
    ask(store, 4, Transaction(subject="a", limits=(Limit(scope="queue:q", amounts=None),)))
    assert ask(store, 5, more) == []


def test_the_clusters_limit_is_its_capacity_with_overcommit_rounded_down(store: AnyStore) -> None:
    ask(store, 1, charging(charge("node:n1", "capacity", cpu=1999)))
    fits = charging(charge("group:a", "cluster", checked=True, cpu=2498))
    too_much = charging(charge("group:a", "cluster", checked=True, cpu=2499))
    refused = ask(store, 2, too_much, fits, overcommit=1250)
    assert [(answer.subject, answer.need, answer.limit) for answer in refused] == [
        ("cluster", 2499, 2498)
    ]


def test_the_transactions_own_limits_and_capacity_count(store: AnyStore) -> None:
    asked = Transaction(
        subject="a",
        limits=(Limit(scope="queue:q", amounts={"cpu": 2}),),
        charges=(
            charge("group:a", "queue:q", "cluster", checked=True, cpu=2),
            charge("node:n1", "capacity", cpu=2),
        ),
    )
    assert ask(store, 1, asked) == []


def test_the_capacity_that_a_charge_adds_counts_for_the_same_charge(store: AnyStore) -> None:
    both = charge("group:a", "cluster", "capacity", checked=True, cpu=5)
    assert ask(store, 1, charging(both), overcommit=1000) == []
    more = charge("group:b", "cluster", "capacity", checked=True, cpu=4000)
    [refused] = ask(store, 2, charging(more), overcommit=500)
    assert (refused.word, refused.subject, refused.limit) == (Word.LIMIT, "cluster", 2002)


def test_a_transaction_that_takes_capacity_away_may_not_use_it(store: AnyStore) -> None:
    ask(store, 1, charging(charge("node:n1", "capacity", cpu=5)))
    asked = charging(
        charge("group:a", "cluster", checked=True, cpu=4), charge("node:n1", "capacity", cpu=3)
    )
    assert [answer.limit for answer in ask(store, 2, asked)] == [3]


def test_the_charges_of_one_transaction_count_together(store: AnyStore) -> None:
    ask(store, 1, limiting("node:n1", cpu=10), charging(charge("pod:old", "node:n1", cpu=8)))
    swapped = charging(
        charge("pod:a", "node:n1", checked=True, cpu=5),
        charge("pod:b", "node:n1", checked=True, cpu=5),
        charge("pod:old"),
    )
    too_much = charging(
        charge("pod:c", "node:n1", checked=True, cpu=1),
        charge("pod:a", "node:n1", checked=True, cpu=6),
    )
    assert ask(store, 2, swapped) == []
    assert ask(store, 3, too_much) == [
        Answer(word=Word.LIMIT, subject="node:n1", resource="cpu", need=1, limit=10, seen=11)
    ]


def test_a_refused_charge_writes_no_object(store: AnyStore) -> None:
    asked = Transaction(
        subject="a",
        writes=(put(queue()),),
        charges=(charge("group:a", "cluster", checked=True, cpu=1),),
    )
    assert words(store.commit([asked], request_id="1")) == ["limit"]
    assert (store.get("Queue", "q"), store.ledger(), store.charges()) == (None, {}, {})


@pytest.mark.parametrize("units", [MOST, MOST - 1, 10**15 + 1, 9_007_199_254_740_881])
def test_large_amounts_are_exact(store: AnyStore, units: int) -> None:
    ask(store, 1, limiting("queue:q", memory=units))
    most = charging(charge("group:a", "queue:q", checked=True, memory=units - 1))
    last = charging(charge("group:b", "queue:q", checked=True, memory=1))
    more = charging(charge("group:c", "queue:q", checked=True, memory=1))
    assert len(ask(store, 2, most, last, more)) == 1
    assert store.ledger() == {"queue:q": {"memory": units}}
    assert store.charges()["group:a"] == (("queue:q",), {"memory": units - 1})


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("units", [MOST + 1, 2**60 + 1, 2**70])
def test_no_sum_passes_what_lua_can_count(store: AnyStore, units: int, checked: bool) -> None:
    refused = ask(store, 1, charging(charge("group:a", "queue:q", checked=checked, cpu=units)))
    assert [(answer.limit, answer.need) for answer in refused] == [(MOST, MOST)]
    two = charging(charge("group:a", "queue:q", cpu=MOST), charge("group:b", "queue:q", cpu=1))
    assert len(ask(store, 2, two)) == 1
    assert store.ledger() == {}


@pytest.mark.parametrize("capacity", [MOST, MOST - 41, 9_007_199_254_740_999 - 10_000])
@pytest.mark.parametrize("overcommit", [1, 999, 1000])
def test_overcommit_of_a_large_cluster_is_exact(
    store: AnyStore, capacity: int, overcommit: int
) -> None:
    ask(store, 1, charging(charge("node:n1", "capacity", memory=capacity)))
    limit = capacity * overcommit // 1000
    over = charging(charge("group:a", "cluster", checked=True, memory=limit + 1))
    fits = charging(charge("group:a", "cluster", checked=True, memory=limit))
    refused = ask(store, 2, over, fits, overcommit=overcommit)
    assert [answer.limit for answer in refused] == [limit]


@pytest.mark.parametrize(
    "transaction",
    [
        charging(charge("group:a", "queue:q", cpu=-1)),
        charging(charge("group:a", "queue q", cpu=1)),
        charging(charge("group:a"), charge("group:a")),
        limiting("queue:q", cpu=-1),
    ],
    ids=["negative", "space", "twice", "negative limit"],
)
def test_an_ill_formed_charge_is_a_broken_invariant(
    store: AnyStore, transaction: Transaction
) -> None:
    with pytest.raises(InvariantBroken):
        store.commit([transaction], request_id="1")


def test_a_scope_named_twice_counts_once(store: AnyStore) -> None:
    ask(store, 1, charging(Charge(holder="a", scopes=("ns:x", "ns:x"), amounts={"cpu": 2})))
    assert store.ledger() == {"ns:x": {"cpu": 2}}


def test_groups_are_counted_in_the_cluster_but_not_limited_there(store: AnyStore) -> None:
    node = charging(charge("node:a", "capacity", cpu=4000))
    group = charging(charge("group:a", "cluster", checked=True, cpu=4000, podgroups=1000))
    assert ask(store, 1, node, group) == []
    assert store.ledger()["cluster"] == {"cpu": 4000, "podgroups": 1000}


def a_group_in(namespace: str, name: str) -> Charge:
    return charge(f"object:{name}", f"objects:{namespace}", checked=True, podgroups=1000)


def test_a_namespace_without_a_limit_of_its_own_has_the_default_limit(
    store: AnyStore,
) -> None:
    ask(store, 1, limiting("objects:*", podgroups=2000), limiting("objects:large", podgroups=3000))
    assert ask(store, 2, *(charging(a_group_in("small", name)) for name in "ab")) == []
    assert ask(store, 3, charging(a_group_in("small", "c"))) == [
        Answer(
            word=Word.LIMIT,
            subject="objects:small",
            resource="podgroups",
            need=1000,
            limit=2000,
            seen=2000,
        )
    ]
    assert ask(store, 4, *(charging(a_group_in("large", name)) for name in "def")) == []
    assert len(ask(store, 5, charging(a_group_in("large", "g")))) == 1


def test_the_default_limit_of_namespaces_may_be_lowered_below_their_use(store: AnyStore) -> None:
    ask(store, 1, limiting("objects:*", podgroups=2000))
    ask(store, 2, charging(a_group_in("x", "a")), charging(a_group_in("x", "b")))
    ask(store, 3, limiting("objects:*", podgroups=1000))
    assert len(ask(store, 4, charging(a_group_in("x", "c")))) == 1
    ask(store, 5, charging(Charge(holder="object:a")))
    assert len(ask(store, 6, charging(a_group_in("x", "c")))) == 1
    ask(store, 7, charging(Charge(holder="object:b")))
    assert ask(store, 8, charging(a_group_in("x", "c"))) == []
