"""A node's wake-up channel: its listener is notified, and no failure hides a notification."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from batchq.api.transaction import Delivery, Transaction
from batchq.errors import StoreUnavailable
from batchq.store import node_channels
from batchq.store.direct import NOTHING, read_answer, read_arrived
from batchq.store.link import LONGEST_BLOCK_MS
from batchq.store.node_channels import EVERYTHING, WakeReason, WakeUpChannel, notify
from batchq.store.redis import RedisStore
from batchq.worker.rq_delivery import Relay
from tests.harness.server import Server

KEY = "{bq}:doorbell:n1"


@pytest.fixture
def bell(redis_store: RedisStore) -> Iterator[WakeUpChannel]:
    made = WakeUpChannel(redis_store.url, "n1")
    yield made
    made.close()


def is_heard(bell: WakeUpChannel, *, within_ms: int) -> bool:
    """Return whether a notification wakes the poller."""
    return bool(words_heard(bell, within_ms=within_ms))


def words_heard(bell: WakeUpChannel, *, within_ms: int = 10_000) -> frozenset[WakeReason]:
    """Return the reasons that the poller is woken for."""
    descriptor = bell.fileno()
    assert descriptor is not None
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bell.hear() if poll.poll(within_ms) else frozenset()


def test_a_listener_is_woken_once_for_each_notification(
    redis_store: RedisStore, bell: WakeUpChannel
) -> None:
    assert bell.fileno() is None
    for _ in range(3):
        bell.listen()
        assert not is_heard(bell, within_ms=20)
        notify(redis_store.link, ["n0", "n1"], WakeReason.PODS)
        assert is_heard(bell, within_ms=10_000)


def test_no_listener_is_woken_by_the_channel_of_another_node(
    redis_store: RedisStore, bell: WakeUpChannel
) -> None:
    bell.listen()
    notify(redis_store.link, ["n10", "n2"], WakeReason.PODS)
    assert not is_heard(bell, within_ms=50)


def test_notifications_before_the_first_listener_are_heard(
    redis_store: RedisStore, bell: WakeUpChannel
) -> None:
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    bell.listen()
    assert is_heard(bell, within_ms=10_000)
    bell.listen()
    assert not is_heard(bell, within_ms=20)


def test_a_wait_that_ends_is_not_a_notification_and_the_next_wait_hears(
    redis_store: RedisStore, bell: WakeUpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "LONGEST_BLOCK_MS", 10)
    bell.listen()
    assert not is_heard(bell, within_ms=10_000)
    monkeypatch.undo()
    bell.listen()
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    assert is_heard(bell, within_ms=10_000)


def test_a_broken_connection_counts_as_a_notification_and_is_replaced(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "_AGAIN_S", 0.0)
    bell.listen()
    raw.client_kill_filter(skipme=True)
    assert is_heard(bell, within_ms=10_000)
    assert bell.fileno() is None
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    bell.listen()
    assert is_heard(bell, within_ms=10_000)


def test_a_listener_keeps_its_only_connection_through_a_silence(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "LONGEST_BLOCK_MS", 10)
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    before = {one["id"] for one in raw.client_list()}
    bell.listen()
    assert is_heard(bell, within_ms=10_000)
    (first,) = {one["id"] for one in raw.client_list()} - before
    bell.listen()
    assert words_heard(bell) == frozenset()
    assert {one["id"] for one in raw.client_list()} - before == {first}
    bell.listen()
    notify(redis_store.link, ["n1"], WakeReason.CLAIMS)
    assert words_heard(bell) <= {WakeReason.CLAIMS}


def test_a_connection_that_says_nothing_for_too_long_is_given_up(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell.listen()
    (first,) = (one["id"] for one in raw.client_list() if one["cmd"] == "xread")
    monkeypatch.setattr(node_channels, "ANSWER_TIMEOUT_S", -LONGEST_BLOCK_MS / 1000)
    bell.listen()
    monkeypatch.undo()
    notify(redis_store.link, ["n1"], WakeReason.PODS)
    assert is_heard(bell, within_ms=10_000)
    assert first not in {one["id"] for one in raw.client_list()}


def test_a_damaged_channel_does_not_stop_the_listener_and_is_retried_later(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel
) -> None:
    raw.set(KEY, "spoiled")
    notify(redis_store.link, ["n1", "n2"], WakeReason.PODS)
    assert raw.xlen("{bq}:doorbell:n2") == 1
    bell.listen()
    assert is_heard(bell, within_ms=10_000)
    bell.listen()
    assert bell.fileno() is None


def test_an_unavailable_server_is_reported() -> None:
    with Server() as server:
        bell = WakeUpChannel(server.url, "n1")
        bell.listen()
        server.stop()
        assert is_heard(bell, within_ms=10_000)
        bell._not_before = 0.0
        with pytest.raises(StoreUnavailable, match="is not running"):
            bell.listen()
        server.start()
        bell.listen()
        assert bell.fileno() is not None
        bell.close()


def test_a_listener_hears_the_wake_reason_or_all_reasons_if_some_may_be_missed(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel
) -> None:
    for rung, heard in (
        ([WakeReason.CLAIMS], {WakeReason.CLAIMS}),
        ([WakeReason.PODS, WakeReason.PODS], {WakeReason.PODS}),
        ([WakeReason.PODS, WakeReason.CLAIMS], {WakeReason.PODS, WakeReason.CLAIMS}),
        ([WakeReason.PODS] * 20, EVERYTHING),
    ):
        for word in rung:
            notify(redis_store.link, ["n1"], word)
        bell.listen()
        assert words_heard(bell) == heard
    raw.xadd(KEY, {"word": "of a later version"})
    bell.listen()
    assert words_heard(bell) == EVERYTHING


def test_a_listener_keeps_the_newest_jobs_that_notifications_name(
    raw: redis.Redis, bell: WakeUpChannel
) -> None:
    bell.listen()
    raw.xadd(KEY, {"word": "pods", "jobs": "a-1 b-1"})
    assert words_heard(bell) == {WakeReason.PODS}
    bell.listen()
    raw.xadd(KEY, {"word": "pods", "jobs": " ".join(f"c-{number}" for number in range(7))})
    assert words_heard(bell) == {WakeReason.PODS}
    assert bell.take_announced() == [b"b-1", *(b"c-%d" % number for number in range(7))]
    assert bell.take_announced() == []


def test_a_listener_keeps_the_pods_of_applied_claims_if_it_has_heard_of_all(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel
) -> None:
    bell.listen()
    raw.execute_command("XADD", KEY, "*", "word", "claims", "pod", "a", "pod", "b")
    assert words_heard(bell) == {WakeReason.CLAIMS}
    assert bell.take_claimed() == [b"a", b"b"]
    assert bell.take_claimed() == []
    raw.execute_command("XADD", KEY, "*", "word", "claims", "pod", "c")
    notify(redis_store.link, ["n1"], WakeReason.CLAIMS)
    bell.listen()
    assert words_heard(bell) == {WakeReason.CLAIMS}
    assert bell.take_claimed() == []
    for _ in range(8):
        raw.execute_command("XADD", KEY, "*", "word", "claims", "pod", "d")
    bell.listen()
    assert words_heard(bell) == EVERYTHING
    assert bell.take_claimed() == []


def test_only_a_few_of_many_notifications_are_kept(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    for _ in range(50):
        notify(redis_store.link, ["n1"], WakeReason.PODS)
    assert raw.xlen(KEY) == 8
    assert 0 < raw.ttl(KEY) <= 24 * 3600


@pytest.mark.parametrize("spoiled", [False, True])
def test_delivered_pods_notify_their_nodes(
    redis_store: RedisStore, raw: redis.Redis, bell: WakeUpChannel, spoiled: bool
) -> None:
    if spoiled:
        raw.set("{bq}:doorbell:n2", "spoiled")
    delivered = [Delivery(pod=f"u1-1-{n}", attempt=1, node=f"n{n}") for n in (1, 2)]
    transaction = Transaction(subject="a test", deliveries=tuple(delivered))
    assert not redis_store.commit([transaction], request_id="1").refused
    bell.listen()
    relay = Relay(redis_store)
    assert relay.deliver() == 2
    relay.close()
    assert is_heard(bell, within_ms=10_000)
    assert [raw.llen(f"{{bq}}-rq:n{number}:queue:bq-node-n{number}") for number in (1, 2)] == [1, 1]
    assert redis_store.outbox() == ()


@pytest.fixture
def ends() -> Iterator[tuple[redis.Connection, socket.socket]]:
    """Return a client's connection, and the server's end of it."""
    ours, theirs = socket.socketpair()
    connection: Any = redis.Connection(socket_timeout=30)  # type: ignore[no-untyped-call]
    ours.settimeout(30)
    connection._sock = ours
    connection._parser.on_connect(connection)
    with ours, theirs:
        yield connection, theirs


def test_an_answer_is_read_once_the_server_has_begun_to_send_it(
    ends: tuple[redis.Connection, socket.socket],
) -> None:
    connection, server = ends
    assert read_arrived(connection, rest_within_s=0.01) is NOTHING
    server.sendall(b"$-1\r\n+two\r\n-ERR three\r\n+fo")
    assert read_arrived(connection, rest_within_s=0.01) is None
    assert read_arrived(connection, rest_within_s=0.01) == b"two"
    with pytest.raises(redis.ResponseError, match="three"):
        read_arrived(connection, rest_within_s=0.01)
    rest = threading.Timer(0.05, server.sendall, [b"ur\r\n"])
    rest.start()
    assert read_arrived(connection, rest_within_s=60) == b"four"
    rest.join()


def test_an_answer_whose_rest_does_not_come_or_cannot_come_is_an_error(
    ends: tuple[redis.Connection, socket.socket],
) -> None:
    connection, server = ends
    server.sendall(b"+o")
    with pytest.raises(redis.TimeoutError):
        read_arrived(connection, rest_within_s=0.01)
    server.close()
    with pytest.raises(redis.ConnectionError):
        read_arrived(connection, rest_within_s=0.01)


@pytest.mark.parametrize(
    "read", [read_answer, lambda connection: read_arrived(connection, rest_within_s=5.0)]
)
def test_a_connection_that_is_reset_is_broken_as_for_redis_py(
    ends: tuple[Any, socket.socket], read: Callable[[Any], object]
) -> None:
    connection, server = ends
    # Closing a socket with something unread resets its peer.
    connection._sock.sendall(b"PING")
    server.close()
    with pytest.raises(redis.ConnectionError, match="reset by peer"):
        read(connection)
