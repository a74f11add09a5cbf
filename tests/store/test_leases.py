"""What work-horses and agents tell: renewals, beats, output."""

from __future__ import annotations

import redis

from batchq.api.lifecycle import PodPhase
from batchq.store.redis import LOG_BYTES_KEPT, RedisStore, Renewal
from tests.contract.made import gone, node, pod, put, writing


def running(store: RedisStore, *, stop: str = "", attempt: int = 1) -> None:
    """One running pod, made anew."""
    made = pod(0, phase=PodPhase.RUNNING, attempt=attempt, stop=stop)
    store.commit([writing(put(made))], request_id=f"running {stop} {attempt}")


def test_a_renewed_lease_stands_in_the_snapshot(redis_store: RedisStore) -> None:
    running(redis_store)
    before = redis_store.now_ms()
    assert redis_store.renew("u1-1-0", "u1 1 1", 30_000) == Renewal(word="ok")
    lease = redis_store.snapshot().leases["u1-1-0"]
    assert before + 30_000 <= lease <= redis_store.now_ms() + 30_000


def test_a_terminating_pod_is_told_why_and_keeps_its_lease(redis_store: RedisStore) -> None:
    running(redis_store, stop="Preempted")
    told = redis_store.renew("u1-1-0", "u1 1 1", 30_000)
    assert told == Renewal(word="stop", reason="Preempted")
    assert list(redis_store.snapshot().leases) == ["u1-1-0"]


def test_a_superseded_attempt_renews_nothing(redis_store: RedisStore) -> None:
    running(redis_store, attempt=2)
    for fence in ("u1 1 1", "u1 2 2", "u2 1 2", ""):
        assert redis_store.renew("u1-1-0", fence, 30_000) == Renewal(word="fenced")
    assert redis_store.renew("u1-1-9", "u1 1 2", 30_000) == Renewal(word="fenced")
    assert redis_store.renew("u1-1-9", "", 30_000) == Renewal(word="fenced")
    assert redis_store.snapshot().leases == {}


def test_a_pod_that_was_written_off_renews_nothing(redis_store: RedisStore) -> None:
    running(redis_store)
    redis_store.renew("u1-1-0", "u1 1 1", 30_000)
    evicted = put(pod(0, phase=PodPhase.EVICTED, attempt=1), expect=1)
    redis_store.commit([writing(evicted)], request_id="evict")
    assert redis_store.renew("u1-1-0", "u1 1 1", 30_000) == Renewal(word="fenced")
    assert redis_store.snapshot().leases == {}


def test_a_beat_stands_in_the_nodes_status(redis_store: RedisStore) -> None:
    redis_store.commit([writing(put(node("n1")), put(node("n2")))], request_id="1")
    redis_store.beat("n1")
    beats = redis_store.beats()
    assert list(beats) == ["n1"]
    heard = [one.status.heartbeat for one in redis_store.snapshot().nodes]
    assert heard == [beats["n1"], None]
    assert abs(redis_store.now_ms() - beats["n1"]) < 10_000


def test_a_beat_of_a_node_that_is_gone_leaves_nothing(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.beat("n1")
    assert redis_store.beats() == {}
    redis_store.commit([writing(put(node("n1")))], request_id="1")
    redis_store.beat("n1")
    redis_store.commit([writing(gone(node("n1"), expect=1))], request_id="2")
    assert redis_store.beats() == {}
    assert raw.exists("{bq}:beats") == 0


def test_output_comes_back_in_order_and_can_be_read_on(redis_store: RedisStore) -> None:
    redis_store.append_log("p", 1, "stdout", b"one\n")
    redis_store.append_log("p", 1, "stderr", b"\xff\x00two\n")
    redis_store.append_log("p", 2, "stdout", b"another attempt")
    first = redis_store.read_log("p", 1)
    assert [(chunk.stream, chunk.data) for chunk in first] == [
        ("stdout", b"one\n"),
        ("stderr", b"\xff\x00two\n"),
    ]
    assert list(redis_store.read_log("p", 1, after=first[-1].id)) == []
    redis_store.append_log("p", 1, "stdout", b"three\n")
    assert [chunk.data for chunk in redis_store.read_log("p", 1, first[-1].id)] == [b"three\n"]


def test_waiting_for_output_ends_in_time(redis_store: RedisStore) -> None:
    assert list(redis_store.read_log("p", 1, block_ms=20)) == []


def test_of_much_output_the_newest_mebibyte_is_kept(redis_store: RedisStore) -> None:
    for number in range(40):
        redis_store.append_log("p", 1, "stdout", bytes([number]) * 100_000)
    kept: list[bytes] = []
    after = "0"
    while chunks := redis_store.read_log("p", 1, after):
        kept += [chunk.data for chunk in chunks]
        after = chunks[-1].id
    assert LOG_BYTES_KEPT <= sum(map(len, kept)) <= LOG_BYTES_KEPT + 2 * 65_536
    assert kept[-1][-1] == 39


def test_one_large_piece_of_output_is_cut(redis_store: RedisStore) -> None:
    redis_store.append_log("p", 1, "stdout", b"x" * 3_000_000)
    size = sum(len(chunk.data) for chunk in redis_store.read_log("p", 1))
    assert LOG_BYTES_KEPT <= size <= LOG_BYTES_KEPT + 2 * 65_536
