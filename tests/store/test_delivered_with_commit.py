"""A scheduler's commit delivers the pods that it binds in the same round trip."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import cast

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import PodAttempt
from batchq.api.transaction import Delivery, Transaction
from batchq.store.node_channels import WakeReason, WakeUpChannel, notify
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.worker.agent.slots import Slots
from batchq.worker.rq_delivery import DELIVERIES_AT_ONCE, Relay
from tests.contract.made import pod, put, queue, writing
from tests.harness.trips import Trips

QUEUE = "{bq}-rq:n1:queue:bq-node-n1"
RECORD = "{bq}-rq:n1:job:u1-1-0-7"
CHANNEL = "{bq}:doorbell:n1"


@pytest.fixture
def relay(redis_store: RedisStore) -> Iterator[Relay]:
    made = Relay(redis_store)
    redis_store.deliverer = made.calls
    yield made
    made.close()


def binding(uid: str = "u1", node: str = "n1", *, expect: int = 0) -> Transaction:
    bound = pod(0, group_uid=uid, phase=PodPhase.BOUND, attempt=7, node=node)
    delivery = Delivery(pod=f"{uid}-1-0", attempt=7, node=node)
    return Transaction(
        subject=f"x/{uid}", writes=(put(bound, expect=expect),), deliveries=(delivery,)
    )


@pytest.mark.usefixtures("relay")
def test_bound_pods_are_in_the_queues_of_their_nodes_after_the_commit(
    redis_store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_store.commit([writing(put(queue("q")))], request_id="0")
    trips = Trips(monkeypatch)
    some = [binding("u1"), binding("u2", "n2"), binding("u3")]
    assert trips.of(lambda: redis_store.commit(some, request_id="1")) == 1
    assert raw.lrange(QUEUE, 0, -1) == [b"u1-1-0-7", b"u3-1-0-7"]
    assert raw.lrange("{bq}-rq:n2:queue:bq-node-n2", 0, -1) == [b"u2-1-0-7"]
    assert redis_store.outbox() == ()
    notifications = cast("list[tuple[bytes, dict[bytes, bytes]]]", raw.xrange(CHANNEL))
    assert [(fields[b"word"], fields[b"jobs"]) for _, fields in notifications] == [
        (b"pods", b"u1-1-0-7 u3-1-0-7")
    ]
    assert all(0 < raw.ttl(key) <= 24 * 3600 for key in (QUEUE, RECORD, CHANNEL))


def test_the_record_of_a_job_is_the_one_that_the_relay_writes(
    redis_store: RedisStore, relay: Relay, raw: redis.Redis
) -> None:
    commit = redis_store.commit([binding()], request_id="1")
    assert commit.delivered == 1
    first = raw.hgetall(RECORD)
    raw.delete(RECORD)
    relay.deliver([Delivery(pod="u1-1-0", attempt=7, node="n1")])
    second = raw.hgetall(RECORD)
    instants = {b"created_at", b"enqueued_at"}
    assert first.keys() == second.keys() >= instants
    assert [first[name] for name in sorted(first.keys() - instants)] == [
        second[name] for name in sorted(second.keys() - instants)
    ]


@pytest.mark.usefixtures("relay")
def test_deliveries_of_a_refused_transaction_do_not_happen(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    commit = redis_store.commit([binding(expect=5), binding("u2", "n2")], request_id="1")
    assert (len(commit.refused), commit.delivered) == (1, 1)
    assert not raw.exists(QUEUE, RECORD, CHANNEL)


@pytest.mark.usefixtures("relay")
def test_a_repeated_commit_may_deliver_twice_and_binds_once(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    for _ in range(2):
        assert len(redis_store.commit([binding()], request_id="1").applied) == 1
    assert raw.lrange(QUEUE, 0, -1) == [b"u1-1-0-7", b"u1-1-0-7"]
    assert redis_store.outbox() == ()


@pytest.mark.parametrize("damaged", [QUEUE, RECORD])
def test_a_delivery_to_a_damaged_key_stays_in_the_outbox_until_the_relay_has_repaired_it(
    redis_store: RedisStore, relay: Relay, raw: redis.Redis, damaged: str
) -> None:
    raw.set(damaged, "spoiled")
    commit = redis_store.commit([binding(), binding("u2", "n2")], request_id="1")
    assert (len(commit.applied), commit.delivered) == (2, 1)
    assert [one.pod for one in redis_store.outbox()] == ["u1-1-0"]
    assert relay.deliver() == 1
    # The relay may enqueue twice what it delivers once more.
    assert set(raw.lrange(QUEUE, 0, -1)) == {b"u1-1-0-7"}
    assert redis_store.outbox() == ()


@pytest.mark.usefixtures("relay")
def test_a_damaged_wake_up_channel_delays_no_pod(redis_store: RedisStore, raw: redis.Redis) -> None:
    raw.set(CHANNEL, "spoiled")
    assert redis_store.commit([binding()], request_id="1").delivered == 1
    assert raw.lrange(QUEUE, 0, -1) == [b"u1-1-0-7"]


def test_a_user_without_the_right_to_the_queues_commits_and_delivers_otherwise(
    redis_store: RedisStore, relay: Relay, raw: redis.Redis
) -> None:
    raw.acl_setuser("default", enabled=True, nopass=True, keys=["{bq}:*", "rq:*"], reset_keys=True)
    try:
        commit = redis_store.commit([binding()], request_id="1")
        assert (len(commit.applied), commit.delivered) == (1, 0)
        assert relay.deliver() == 1
        assert redis_store.commit([binding("u2")], request_id="2").delivered == 1
    finally:
        raw.acl_setuser("default", enabled=True, nopass=True, keys=["*"], reset_keys=True)
    assert raw.lrange("rq:queue:bq-node-n1", 0, -1) == [b"u1-1-0-7", b"u2-1-0-7"]


@pytest.mark.usefixtures("relay")
def test_a_commit_that_binds_very_many_pods_leaves_them_to_the_relay(
    redis_store: RedisStore,
) -> None:
    deliveries = tuple(
        Delivery(pod=f"u{number}-1-0", attempt=7, node="n1")
        for number in range(DELIVERIES_AT_ONCE + 1)
    )
    gang = Transaction(subject="x/g", writes=(put(queue("q")),), deliveries=deliveries)
    assert redis_store.commit([gang], request_id="1").delivered == 0
    assert len(redis_store.outbox()) == DELIVERIES_AT_ONCE + 1


@pytest.fixture
def bell(redis_store: RedisStore) -> Iterator[WakeUpChannel]:
    """A listener that has heard of everything so far."""
    made = WakeUpChannel(redis_store.url, "n1")
    made.listen()
    notify(redis_store.link, ["n1"], WakeReason.CLAIMS)
    assert heard(made) == {WakeReason.CLAIMS}
    yield made
    made.close()


def heard(bell: WakeUpChannel) -> frozenset[WakeReason]:
    bell.listen()
    assert select.select([bell.fileno()], [], [], 10)[0]
    return bell.hear()


@pytest.mark.usefixtures("relay")
def test_a_notification_carries_the_pods_of_all_delivered_jobs(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel
) -> None:
    redis_store.commit([binding("u1"), binding("u2", "n2"), binding("u3")], request_id="1")
    assert heard(bell) == {WakeReason.PODS}
    assert bell.take_arrived() == {
        b"u1-1-0-7": raw.hget("{bq}:Pod", "u1-1-0"),
        b"u3-1-0-7": raw.hget("{bq}:Pod", "u3-1-0"),
    }
    assert bell.take_arrived() == {}


@pytest.mark.usefixtures("relay")
def test_the_queue_is_read_if_a_notification_carries_no_pods(
    redis_store: RedisStore, bell: WakeUpChannel
) -> None:
    redis_store.commit([binding(f"u{number}") for number in range(9)], request_id="1")
    redis_store.commit([binding("u9")], request_id="2")
    assert heard(bell) == {WakeReason.PODS}
    assert bell.take_arrived() is None


@pytest.mark.usefixtures("relay")
def test_the_queue_is_read_if_a_notification_may_be_old(redis_store: RedisStore) -> None:
    # An attempt of a former agent, which may have run since.
    redis_store.commit([binding("u1")], request_id="1")
    bell = WakeUpChannel(redis_store.url, "n1")
    assert heard(bell) == {WakeReason.PODS}
    assert bell.take_arrived() is None
    redis_store.commit([binding("u2")], request_id="2")
    assert heard(bell) == {WakeReason.PODS}
    assert [*(bell.take_arrived() or ())] == [b"u2-1-0-7"]
    bell.close()


@pytest.mark.usefixtures("relay")
def test_jobs_that_came_along_are_removed_from_the_queue_by_the_next_request(
    redis_store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = RqLink(redis_store.url)
    slots = Slots(link, "n1", prefix="test")
    slots.take(1)
    redis_store.commit([binding("u1")], request_id="1")
    trips = Trips(monkeypatch)
    arrived = {b"u1-1-0-7": b"its pod", b"u1": b"of no attempt", b"\xff-1": b"of no id"}
    [job] = slots.note_arrived(arrived)
    assert trips.of(lambda: None) == 0
    assert (job.requested_attempt(), job.pod) == (PodAttempt("u1-1-0", 7), b"its pod")
    redis_store.commit([binding("u2")], request_id="2")
    taken, has_more = slots.take(2)
    assert ([one.id for one in taken], has_more) == (["u2-1-0-7"], False)
    assert raw.lrange(QUEUE, 0, -1) == []
    assert not raw.exists(RECORD)
    redis_store.commit([binding("u3")], request_id="3")
    slots.note_arrived({b"u3-1-0-7": b"its pod"})
    slots.clean()
    assert raw.lrange(QUEUE, 0, -1) == []
    link.close()


@pytest.mark.usefixtures("relay")
def test_announced_pods_are_taken_in_one_round_trip_and_others_in_two(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = RqLink(redis_store.url)
    slots = Slots(link, "n1", prefix="test")
    slots.take(1)
    trips = Trips(monkeypatch)
    taken: list[tuple[str, bytes | None]] = []

    def take(*announced: bytes) -> None:
        jobs, _ = slots.take(2, announced)
        taken.extend((job.id, job.pod) for job in jobs)

    for number, announced in enumerate(([b"u0-1-0-7", b"\xff"], [b"u7-1-0-7"], [])):
        redis_store.commit([binding(f"u{number}")], request_id=f"{number}")
        assert trips.of(lambda announced=announced: take(*announced)) == (2 if number else 1)  # type: ignore[misc]
    assert [job for job, _ in taken] == ["u0-1-0-7", "u1-1-0-7", "u2-1-0-7"]
    assert all(b'"u%d"' % number in (pod or b"") for number, (_, pod) in enumerate(taken))
    link.close()


@pytest.mark.usefixtures("relay")
def test_an_announced_job_that_is_not_in_the_queue_is_not_taken(redis_store: RedisStore) -> None:
    link = RqLink(redis_store.url)
    slots = Slots(link, "n1", prefix="test")
    redis_store.commit([binding()], request_id="1")
    assert [job.id for job in slots.take(2, [b"u1-1-0-7"])[0]] == ["u1-1-0-7"]
    assert slots.take(2, [b"u1-1-0-7"]) == ([], False)
    link.close()
