"""A commit that is handed over in portions: full calls are applied while the next are composed."""

from __future__ import annotations

import pytest
import redis

from batchq.api.transaction import Transaction
from batchq.errors import StoreUnavailable
from batchq.store import keys, link
from batchq.store.commits import TRANSACTIONS_A_CALL
from batchq.store.redis import RedisStore
from tests.contract.made import charge, put, queue, words
from tests.harness.trips import Trips


def asked(number: int) -> Transaction:
    return Transaction(
        subject="a test",
        writes=(put(queue(f"q{number:04}")),),
        charges=(charge(f"group:{number}", "ns:x", cpu=1),),
    )


def stored(store: RedisStore) -> list[str]:
    return [one.metadata.name for one in store.list("Queue")]


def names(most: int) -> list[str]:
    return [f"q{number:04}" for number in range(most)]


def test_full_calls_are_applied_before_the_commit_is_finished(redis_store: RedisStore) -> None:
    place, _ = redis_store.watch(None, 0)
    stream = redis_store.begin_commit(request_id="1")
    stream.add(asked(number) for number in range(TRANSACTIONS_A_CALL + 1))
    _, changes = redis_store.watch(place, 5_000)
    assert len(changes) == TRANSACTIONS_A_CALL
    stream.add([asked(TRANSACTIONS_A_CALL + 1)])
    commit = stream.finish()
    assert (words(commit), commit.revision) == ([], TRANSACTIONS_A_CALL + 2)
    assert len(commit.applied) == TRANSACTIONS_A_CALL + 2
    assert stored(redis_store) == names(TRANSACTIONS_A_CALL + 2)


def test_a_few_transactions_are_applied_together_at_the_end(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_store.commit([asked(0)], request_id="warm up")
    trips = Trips(monkeypatch)
    stream = redis_store.begin_commit(request_id="1")
    assert trips.of(lambda: stream.add([asked(1)])) == 0
    assert trips.of(lambda: stream.add([asked(2)])) == 0
    assert trips.of(stream.finish) == 1
    assert stored(redis_store) == names(3)


def test_nothing_is_sent_without_transactions(redis_store: RedisStore) -> None:
    stream = redis_store.begin_commit(request_id="1")
    stream.add([])
    commit = stream.finish()
    assert (commit.applied, commit.refused, commit.revision) == ((), (), 0)


def test_a_transaction_of_each_portion_may_be_refused_alone(redis_store: RedisStore) -> None:
    redis_store.commit([asked(3), asked(250)], request_id="another's")
    stream = redis_store.begin_commit(request_id="1")
    stream.add(asked(number) for number in range(200))
    stream.add(asked(number) for number in range(200, 300))
    commit = stream.finish()
    assert [one.answer.subject for one in commit.refused] == ["Queue q0003", "Queue q0250"]
    assert len(commit.applied) == 298
    assert stored(redis_store) == names(300)
    assert redis_store.ledger() == {"ns:x": {"cpu": 300}}


def test_all_portions_of_a_former_leader_are_refused(redis_store: RedisStore) -> None:
    former = redis_store.lead("one", 1)
    redis_store.resign("one")
    redis_store.lead("two", 30_000)
    stream = redis_store.begin_commit(request_id="1", epoch=former)
    stream.add(asked(number) for number in range(TRANSACTIONS_A_CALL))
    stream.add([asked(TRANSACTIONS_A_CALL)])
    assert words(stream.finish()) == ["epoch"] * (TRANSACTIONS_A_CALL + 1)
    assert stored(redis_store) == []


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_nothing_is_applied_after_a_call_that_fails(
    redis_store: RedisStore, raw: redis.Redis, broken: int
) -> None:
    # The answer of one call cannot be kept: a key of another type is in its place.
    raw.lpush(keys.request(f"1.{broken}"), "spoiled")
    stream = redis_store.begin_commit(request_id="1")
    for first in range(0, 3 * TRANSACTIONS_A_CALL, 50):
        stream.add(asked(number) for number in range(first, first + 50))
    stream.add([asked(300)])
    with pytest.raises(StoreUnavailable):
        stream.finish()
    assert stored(redis_store) == names(broken * TRANSACTIONS_A_CALL)
    # The next commit is not held up.
    assert words(redis_store.commit([asked(1_000)], request_id="2")) == []


def test_a_gigantic_commit_waits_for_the_answers_in_between(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "BYTES_A_TRIP", 1_000)
    stream = redis_store.begin_commit(request_id="1")
    for first in range(0, 500, 100):
        stream.add(asked(number) for number in range(first, first + 100))
        assert stored(redis_store) == names(first + 100)
    assert words(stream.finish()) == []
