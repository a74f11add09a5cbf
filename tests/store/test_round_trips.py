"""A session's writes, deliveries and reads take a few round trips, however many there are.

The tests count how often a connection sends: each sender waits for its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import redis

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import Ended, PodOutcome, StartClaim, encode
from batchq.api.objects import Pod
from batchq.api.transaction import Delivery, Event, Transaction
from batchq.daemon.node_reports import NodeReportReader
from batchq.errors import StoreUnavailable
from batchq.store import commits, keys, link, scripts
from batchq.store.redis import RedisStore
from batchq.system import RandomIds
from batchq.worker.rq_delivery import DELIVERIES_AT_ONCE, Relay
from tests.contract.made import charge, group, pod, put, queue, words, writing
from tests.harness.trips import Trips

NODES = 50


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


@pytest.fixture
def relay(redis_store: RedisStore) -> Iterator[Relay]:
    made = Relay(redis_store)
    yield made
    made.close()


def binding(number: int) -> Transaction:
    """Return a group's admission, with the creation and bind of its pod."""
    uid = f"u{number}"
    node = f"n{number % NODES}"
    bound = pod(0, group_uid=uid, phase=PodPhase.PENDING, attempt=1, node=node)
    return Transaction(
        subject=f"x/g{number}",
        writes=(put(group(f"g{number}", uid=uid, phase=PodGroupPhase.PENDING)), put(bound)),
        charges=(charge(f"group:{uid}", "queue:q", "ns:x", cpu=5),),
        deliveries=(Delivery(pod=f"{uid}-1-0", attempt=1, node=node),),
        events=(Event(kind="PodGroup", key=f"x/g{number}", reason="Admitted"),),
    )


@pytest.fixture
def warm(redis_store: RedisStore, relay: Relay) -> RedisStore:
    """A store and a relay that have connected, on a server that knows the scripts."""
    redis_store.commit([binding(10**6)], request_id="warm up")
    relay.deliver()
    redis_store.snapshot()
    redis_store.report_queues.remove(redis_store.report_queues.look(["n1"]))
    return redis_store


@pytest.mark.parametrize("groups", [10, 100, 1_000, 5_000])
def test_a_session_that_binds_any_number_of_groups_takes_few_round_trips(
    warm: RedisStore, relay: Relay, trips: Trips, groups: int
) -> None:
    decided = [binding(number) for number in range(groups)]
    assert trips.of(lambda: warm.commit(decided, request_id="1")) == 1
    assert trips.of(relay.deliver) == (2 if groups <= DELIVERIES_AT_ONCE else 3)
    assert warm.outbox() == ()
    # Changes are read in one round trip; heartbeats, now and then, in another.
    assert trips.of(warm.snapshot) <= 2
    assert len(warm.snapshot().groups) == groups + 1


def test_pods_that_a_session_has_bound_are_delivered_in_one_round_trip(
    warm: RedisStore, relay: Relay, trips: Trips
) -> None:
    commit = warm.commit([binding(1), binding(2)], request_id="1")
    bound = [delivery for done in commit.applied for delivery in done.deliveries]
    assert trips.of(lambda: relay.deliver(bound)) == 1
    assert warm.outbox() == ()


@pytest.mark.parametrize("number", [1, DELIVERIES_AT_ONCE + 1])
def test_failed_deliveries_stay_in_the_outbox(
    warm: RedisStore, relay: Relay, raw: redis.Redis, number: int
) -> None:
    commit = warm.commit([binding(one) for one in range(number)], request_id="1")
    bound = [delivery for done in commit.applied for delivery in done.deliveries]
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable):
            relay.deliver(bound)
    finally:
        raw.config_set("maxmemory", 0)
    assert len(warm.outbox()) == number
    assert relay.deliver() == number


@pytest.mark.parametrize(("pods", "most"), [(1, 5), (10, 5), (1_000, 6), (5_000, 6)])
def test_reports_on_any_number_of_pods_are_applied_in_a_few_round_trips(
    warm: RedisStore, raw: redis.Redis, trips: Trips, pods: int, most: int
) -> None:
    bound = [
        pod(0, group_uid=f"u{number}", phase=PodPhase.BOUND, attempt=1, node=f"n{number % NODES}")
        for number in range(pods)
    ]
    warm.commit([writing(put(one)) for one in bound], request_id="1")
    desk = NodeReportReader(warm, RandomIds())
    desk.turn(None)
    for report in (
        lambda uid: StartClaim(pod=uid, attempt=1, author="horse"),
        lambda uid: Ended(pod=uid, attempt=1, author="horse", outcome=PodOutcome(exit_code=0)),
    ):
        post_all(raw, bound, report)
        # The channel, the queues with the pods of few reports, the pods of many, and the commit,
        # which removes applied reports; and the clock and the sweep, when they are due.
        assert trips.of(lambda: desk.turn(None)) <= most
    ended = warm.get_many("Pod", [one.metadata.uid for one in bound])
    assert {one.status.phase for one in ended.values() if isinstance(one, Pod)} == {
        PodPhase.SUCCEEDED
    }
    assert len(ended) == pods


def post_all(
    raw: redis.Redis, pods: Sequence[Pod], fact_about: Callable[[str], StartClaim | Ended]
) -> None:
    """Post a report about each, as their nodes would, by a shorter way."""
    pipeline = raw.pipeline(transaction=False)
    for one in pods:
        report = fact_about(one.metadata.uid)
        pipeline.hset(keys.report_queue(one.status.node), report.subject, encode(report))
    for node in {one.status.node for one in pods}:
        pipeline.xadd(keys.LEADER_CHANNEL, {"node": node})
    pipeline.execute()


@pytest.mark.parametrize("nodes", [10, 1_000])
def test_the_report_queues_of_any_number_of_nodes_are_read_in_one_round_trip(
    warm: RedisStore, trips: Trips, nodes: int
) -> None:
    names = [f"n{number}" for number in range(nodes)]
    assert trips.of(lambda: warm.report_queues.look(names)) == 1


def test_a_missing_script_is_loaded_once(warm: RedisStore, raw: redis.Redis, trips: Trips) -> None:
    raw.script_flush()
    decided = [binding(number) for number in range(2_000)]
    assert trips.of(lambda: warm.commit(decided, request_id="1")) == 3
    assert raw.script_exists(*(script.sha for script in scripts.ALL)) == [True] * 17
    assert len(warm.list("PodGroup")) == 2_001


def test_a_gigantic_commit_goes_in_bounded_parts(
    warm: RedisStore, trips: Trips, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "BYTES_A_TRIP", 100_000)
    decided = [binding(number) for number in range(3_000)]
    assert 4 <= trips.of(lambda: warm.commit(decided, request_id="1")) <= 30
    assert len(warm.list("PodGroup")) == 3_001


def asked(name: str) -> Transaction:
    return writing(put(queue(name)))


def test_a_commit_that_fails_halfway_applies_its_rest_only_when_asked_again(
    warm: RedisStore, raw: redis.Redis
) -> None:
    decided = [asked(f"q{number:04}") for number in range(4 * commits.TRANSACTIONS_A_CALL)]
    # The second call's answer cannot be kept: a key of another type is in its place.
    raw.lpush(keys.request("1.1"), "spoiled")
    with pytest.raises(StoreUnavailable):
        warm.commit(decided, request_id="1")
    applied = [one.metadata.name for one in warm.list("Queue")]
    assert applied == [f"q{number:04}" for number in range(commits.TRANSACTIONS_A_CALL)]
    raw.delete(keys.request("1.1"))
    assert words(warm.commit(decided, request_id="1")) == []
    assert len(warm.list("Queue")) == 4 * commits.TRANSACTIONS_A_CALL


def test_a_malformed_charge_refuses_only_the_transaction_that_changes_it(
    warm: RedisStore, raw: redis.Redis
) -> None:
    before = warm.snapshot().revision
    raw.hset(keys.CHARGES, "group:spoiled", "no JSON")
    spoiled = Transaction(subject="x", charges=(charge("group:spoiled", "ns:x", cpu=1),))
    counted = Transaction(
        subject="x", writes=(put(queue("a")),), charges=(charge("group:a", "ns:a", cpu=7),)
    )
    commit = warm.commit([counted, spoiled, asked("b")], request_id="1")
    [refused] = commit.refused
    assert (refused.answer.word, refused.answer.subject) == ("conflict", "the ledger")
    assert warm.ledger()["ns:a"] == {"cpu": 7}
    assert [one.metadata.name for one in warm.snapshot().queues] == ["a", "b"]
    assert warm.snapshot().revision == before + 2


def test_a_malformed_sum_and_limit_refuse_only_the_transaction_that_needs_them(
    warm: RedisStore, raw: redis.Redis
) -> None:
    warm.snapshot()
    raw.hset(keys.LEDGER, "ns:x cpu", "no number")
    raw.hset(keys.LIMITS, "ns:x", "no JSON")
    each = [
        Transaction(
            subject=name, charges=(charge(f"group:{name}", f"ns:{name}", cpu=7, checked=True),)
        )
        for name in ("x", "y")
    ]
    [refused] = warm.commit(each, request_id="1").refused
    assert (refused.transaction.subject, refused.answer.subject) == ("x", "the ledger")
    assert raw.hget(keys.LEDGER, "ns:y cpu") == b"7"


def test_the_queue_of_each_node_holds_its_pods_in_the_order_of_binding(
    warm: RedisStore, relay: Relay, raw: redis.Redis
) -> None:
    raw.delete(*raw.keys("{bq}-rq:*:queue:*"))
    warm.commit([binding(number) for number in range(2 * NODES)], request_id="1")
    relay.deliver()
    waiting = raw.lrange("{bq}-rq:n3:queue:bq-node-n3", 0, -1)
    assert waiting == [b"u3-1-0-1", b"u53-1-0-1"]
