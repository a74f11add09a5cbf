"""Node reports are removed from their queues together with the commit that applies them."""

from __future__ import annotations

import select
from typing import cast

import pytest
import redis
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Ended, NodeReport, PodOutcome, StartClaim
from batchq.api.objects import Pod
from batchq.api.transaction import Commit, Transaction
from batchq.store import commits, node_channels
from batchq.store.node_channels import (
    AcknowledgedReport,
    QueuedReport,
    WakeReason,
    WakeUpChannel,
)
from batchq.store.redis import RedisStore
from tests.contract.made import pod, put, queue, writing

LEADER_CHANNEL = "{bq}:doorbell:n1"


def claim(number: int = 0) -> StartClaim:
    return StartClaim(pod=f"u1-1-{number}", attempt=1, author="horse")


END = Ended(pod="u1-1-0", attempt=1, outcome=PodOutcome(exit_code=0), author="horse")


def left(store: RedisStore, node: str = "n1") -> list[NodeReport]:
    return list(store.report_queues.pending(node))


def look(store: RedisStore, *nodes: str) -> list[QueuedReport]:
    return store.report_queues.look(nodes or ("n1",))


def commit(
    store: RedisStore, *pairs: tuple[Transaction, AcknowledgedReport | None], request_id: str = "1"
) -> Commit:
    return store.commit(
        [transaction for transaction, _ in pairs],
        request_id=request_id,
        acknowledged=[acknowledged for _, acknowledged in pairs],
    )


def making(name: str) -> Transaction:
    return writing(put(queue(name)))


def making_twice() -> Transaction:
    """Return a transaction that is refused: the queue exists."""
    return writing(put(queue("there")))


def test_the_report_of_an_applied_transaction_is_removed_and_acknowledged(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.report_queues.post("n1", claim())
    [entry] = look(redis_store)
    done = commit(redis_store, (making("a"), AcknowledgedReport(entry=entry, notifies=True)))
    assert len(done.applied) == 1
    assert left(redis_store) == []
    notifications = cast("list[tuple[bytes, dict[bytes, bytes]]]", raw.xrange(LEADER_CHANNEL))
    assert [fields for _, fields in notifications] == [{b"word": b"claims"}]
    assert 0 < raw.ttl(LEADER_CHANNEL) <= 24 * 3600


def test_a_notification_carries_the_pods_of_all_claims_that_it_acknowledges(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    for number in (0, 1):
        redis_store.report_queues.post("n1", claim(number))
    first, second = look(redis_store)
    running = [pod(number, phase=PodPhase.RUNNING, attempt=1, node="n1") for number in (0, 1)]
    commit(
        redis_store,
        (writing(put(running[0])), AcknowledgedReport(entry=first, notifies=True)),
        (writing(put(running[1])), AcknowledgedReport(entry=second, notifies=True)),
    )
    bell = WakeUpChannel(redis_store.url, "n1")
    bell.listen()
    assert select.select([bell.fileno()], [], [], 10)[0]
    assert bell.hear() == {WakeReason.CLAIMS}
    assert bell.take_claimed() == [raw.hget("{bq}:Pod", f"u1-1-{number}") for number in (0, 1)]
    bell.close()


@pytest.mark.parametrize("size", [10, 20_000], ids=["one is missing", "they are large"])
def test_a_notification_carries_no_pods_if(
    redis_store: RedisStore, raw: redis.Redis, size: int
) -> None:
    for number in (0, 1):
        redis_store.report_queues.post("n1", claim(number))
    first, second = look(redis_store)
    running = pod(0, phase=PodPhase.RUNNING, attempt=1, node="n1")
    status = structs.replace(running.status, message="m" * size)
    commit(
        redis_store,
        (
            writing(put(structs.replace(running, status=status))),
            AcknowledgedReport(entry=first, notifies=True),
        ),
        (making("a"), AcknowledgedReport(entry=second, notifies=True)),
    )
    notifications = cast("list[tuple[bytes, dict[bytes, bytes]]]", raw.xrange(LEADER_CHANNEL))
    assert [fields for _, fields in notifications] == [{b"word": b"claims"}]


def test_only_requested_notifications_are_sent(redis_store: RedisStore, raw: redis.Redis) -> None:
    redis_store.report_queues.post("n1", END)
    [entry] = look(redis_store)
    commit(redis_store, (making("a"), AcknowledgedReport(entry=entry)))
    assert left(redis_store) == []
    assert not raw.exists(LEADER_CHANNEL)


def test_reports_of_refused_transactions_stay_without_a_notification(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.commit([making("there")], request_id="0")
    for number in (0, 1):
        redis_store.report_queues.post("n1", claim(number))
    redis_store.report_queues.post("n2", claim(2))
    first, second, other = look(redis_store, "n1", "n2")
    done = commit(
        redis_store,
        (making_twice(), AcknowledgedReport(entry=other, notifies=True)),
        (making("a"), AcknowledgedReport(entry=first)),
        (making("b"), None),
        (making_twice(), AcknowledgedReport(entry=second, notifies=True)),
    )
    assert (len(done.applied), len(done.refused)) == (2, 2)
    assert left(redis_store) == [claim(1)]
    assert left(redis_store, "n2") == [claim(2)]
    assert not raw.exists(LEADER_CHANNEL, "{bq}:doorbell:n2")


def test_an_acknowledgement_keeps_a_newer_report(redis_store: RedisStore) -> None:
    redis_store.report_queues.post("n1", claim())
    [entry] = look(redis_store)
    redis_store.report_queues.post("n1", END)
    commit(redis_store, (making("a"), AcknowledgedReport(entry=entry)))
    assert left(redis_store) == [END]


def test_a_former_leader_removes_nothing(redis_store: RedisStore) -> None:
    epoch = redis_store.lead("a", 60_000)
    assert epoch is not None
    redis_store.report_queues.post("n1", claim())
    [entry] = look(redis_store)
    done = redis_store.commit(
        [making("a")],
        request_id="1",
        epoch=epoch - 1,
        acknowledged=[AcknowledgedReport(entry=entry)],
    )
    assert done.applied == ()
    assert left(redis_store) == [claim()]


def test_a_damaged_channel_is_ignored(redis_store: RedisStore, raw: redis.Redis) -> None:
    raw.set(LEADER_CHANNEL, "spoiled")
    redis_store.report_queues.post("n1", claim())
    [entry] = look(redis_store)
    done = commit(redis_store, (making("a"), AcknowledgedReport(entry=entry, notifies=True)))
    assert len(done.applied) == 1
    assert left(redis_store) == []


def test_a_repeated_request_is_done_once(redis_store: RedisStore) -> None:
    redis_store.report_queues.post("n1", claim())
    [entry] = look(redis_store)
    for _ in range(2):
        done = commit(redis_store, (making("a"), AcknowledgedReport(entry=entry)))
        assert len(done.applied) == 1
    assert left(redis_store) == []


def test_both_missing_scripts_are_loaded(redis_store: RedisStore, raw: redis.Redis) -> None:
    for name in ("a", "b"):
        redis_store.report_queues.post("n1", claim())
        [entry] = look(redis_store)
        raw.script_flush()
        commit(redis_store, (making(name), AcknowledgedReport(entry=entry)), request_id=name)
        assert left(redis_store) == []


def test_each_call_of_a_large_commit_acknowledges_its_own(redis_store: RedisStore) -> None:
    number = commits.TRANSACTIONS_A_CALL + 2
    for place in range(number):
        redis_store.report_queues.post("n1", claim(place))
    by_subject = {entry.subject: entry for entry in look(redis_store)}
    redis_store.commit([making("there")], request_id="0")
    # The first transaction of the second call is refused.
    transactions = [making(f"q{place}") for place in range(number)]
    transactions[-2] = making_twice()
    pairs = [
        (transaction, AcknowledgedReport(entry=by_subject[claim(place).subject]))
        for place, transaction in enumerate(transactions)
    ]
    commit(redis_store, *pairs)
    assert left(redis_store) == [claim(number - 2)]


def bound(store: RedisStore, number: int) -> Pod:
    one = pod(number, phase=PodPhase.BOUND, attempt=1, node="n1")
    store.commit([writing(put(one))], request_id=f"pod {number}")
    stored = store.get("Pod", one.metadata.uid)
    assert isinstance(stored, Pod)
    return stored


def test_reports_are_read_with_their_pods(redis_store: RedisStore) -> None:
    there = bound(redis_store, 0)
    redis_store.report_queues.post("n1", claim(0))
    redis_store.report_queues.post("n1", claim(1))
    assert [entry.pod for entry in look(redis_store)] == [there, None]


def test_only_a_few_of_many_pods_are_read_with_the_reports(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "POD_BYTES_A_CALL", 1)
    for number in range(3):
        bound(redis_store, number)
        redis_store.report_queues.post("n1", claim(number))
    found = look(redis_store)
    assert len(found) == 3
    assert len([entry for entry in found if entry.pod is not None]) == 1
