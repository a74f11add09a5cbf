"""Batched reads and writes of the commit script have the effect of single ones."""

from __future__ import annotations

import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.transaction import Event, Transaction
from batchq.store.redis import RedisStore
from tests.contract.made import charge, charging, gone, limiting, pod, put, queue, words, writing


def calls_of(raw: redis.Redis) -> dict[str, int]:
    stats = raw.info("commandstats")
    return {name.removeprefix("cmdstat_"): result["calls"] for name, result in stats.items()}


def making(number: int) -> Transaction:
    """Return the creation and bind of a pod that is charged in two scopes."""
    uid = f"u{number}"
    return Transaction(
        subject=uid,
        writes=(put(pod(0, group_uid=uid, phase=PodPhase.BOUND, attempt=1, node="n1")),),
        charges=(charge(f"pod:{uid}", "node:n1", "ns:x", cpu=1),),
        events=(Event(kind="Pod", key=uid, reason="Bound"),),
    )


def test_a_hash_is_read_and_written_once_for_many_transactions(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    raw.config_resetstat()
    redis_store.commit([making(number) for number in range(100)], request_id="1")
    calls = calls_of(raw)
    # Heads, charges and sums; then objects, heads, charges and sums. The types of the objects and
    # of the sums are read before any decision.
    assert (calls["hmget"], calls["hset"], calls["hget"]) == (3, 4, 2)
    # No XINFO: its reply has two whole entries.
    assert (calls["xadd"], calls.get("xinfo|stream")) == (200, None)
    assert redis_store.ledger() == {"node:n1": {"cpu": 100}, "ns:x": {"cpu": 100}}


def test_the_sums_and_limits_of_many_scopes_are_read_once(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    scopes = [f"ns:{number}" for number in range(100)]
    redis_store.commit([limiting(scope, cpu=2) for scope in scopes], request_id="1")
    raw.config_resetstat()
    many = [charging(charge(f"pod:{scope}", scope, checked=True, cpu=3)) for scope in scopes]
    few = [charging(charge(f"pod:{scope}", scope, checked=True, cpu=2)) for scope in scopes]
    assert words(redis_store.commit([*many, *few], request_id="2")) == ["limit"] * 100
    # Two calls; in each, one of the charges, one of the sums, and one of the limits.
    assert calls_of(raw)["hmget"] == 6
    assert redis_store.ledger() == {scope: {"cpu": 2} for scope in scopes}


def test_a_transaction_finds_what_the_one_before_it_has_written(redis_store: RedisStore) -> None:
    result = redis_store.commit(
        [
            writing(put(queue("a"))),
            writing(put(queue("a"))),
            writing(put(queue("a"), expect=1)),
            writing(gone(queue("a"), expect=1)),
            writing(gone(queue("a"), expect=2)),
            writing(gone(queue("a"), expect=2)),
            writing(put(queue("a"))),
        ],
        request_id="1",
    )
    assert words(result) == ["conflict", "conflict", "conflict"]
    assert [one.metadata.revision for one in redis_store.list("Queue")] == [4]


def test_an_object_made_and_deleted_in_one_call_does_not_exist(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.commit(
        [writing(put(queue("a"))), writing(gone(queue("a"), expect=1))], request_id="1"
    )
    assert raw.keys("{bq}:Queue*") == []
    assert [result.value for result in redis_store.watch("0-0", 0)[1]][1:] == [None]


def test_a_holder_that_is_charged_again_in_one_call_counts_once(redis_store: RedisStore) -> None:
    again = [charging(charge("pod:a", "ns:x", cpu=units)) for units in (5, 3, 9)]
    ended = [charging(charge("pod:b", "ns:x", cpu=4)), charging(charge("pod:b"))]
    redis_store.commit([*again, *ended], request_id="1")
    assert redis_store.ledger() == {"ns:x": {"cpu": 9}}
    assert list(redis_store.charges()) == ["pod:a"]


def test_each_write_has_its_own_value_beside_refused_ones_and_deletions(
    redis_store: RedisStore,
) -> None:
    redis_store.commit([writing(put(queue("old")))], request_id="1")
    result = redis_store.commit(
        [
            writing(put(queue("a")), put(queue("old"))),
            writing(put(queue("b")), gone(queue("old"), expect=1), put(queue('ü"\\n\x7f'))),
            writing(put(queue("c"), expect=7)),
            writing(put(queue("d"))),
        ],
        request_id="2",
    )
    assert words(result) == ["conflict", "conflict"]
    found = {one.metadata.name: one for one in redis_store.list("Queue")}
    assert sorted(found) == ["b", "d", 'ü"\\n\x7f']
    assert [redis_store.get("Queue", name) for name in found] == list(found.values())


def test_more_than_fits_on_luas_stack_is_written_in_one_transaction(
    redis_store: RedisStore,
) -> None:
    made: list[Pod] = [pod(number) for number in range(10_000)]
    charges = [charge(f"pod:{one.metadata.uid}", "ns:x", pods=1000) for one in made]
    whole = Transaction(subject="x", writes=tuple(map(put, made)), charges=tuple(charges))
    assert redis_store.commit([whole], request_id="1").refused == ()
    assert len(redis_store.list("Pod")) == 10_000
    assert redis_store.ledger() == {"ns:x": {"pods": 10_000_000}}
    deletions = [gone(one, expect=number + 1) for number, one in enumerate(made)]
    freed = tuple(charge(one.holder) for one in charges)
    none = Transaction(subject="x", writes=tuple(deletions), charges=freed)
    assert redis_store.commit([none], request_id="2").refused == ()
    assert redis_store.list("Pod") == ()
    assert redis_store.ledger() == {}
