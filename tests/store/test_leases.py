"""What work-horses and agents write: renewals, heartbeats, output."""

from __future__ import annotations

import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import PodAttempt
from batchq.store import keys
from batchq.store.liveness import leases_of
from batchq.store.redis import LOG_BYTES_KEPT, RedisStore, Renewal
from tests.contract.made import gone, node, pod, put, writing


def running(store: RedisStore, *, stop: str = "", attempt: int = 1) -> None:
    """Create one running pod on n1, or replace it."""
    made = pod(0, phase=PodPhase.RUNNING, attempt=attempt, stop=stop, node="n1")
    store.commit([writing(put(made))], request_id=f"running {stop} {attempt}")


#: How far a store's estimate of the server's time may be from it, in ms: half a round trip, which
#: takes long on a busy machine.
CLOCK_ERROR_MS = 250


def clock_of(raw: redis.Redis) -> int:
    """Return the server's time, in ms."""
    seconds, microseconds = raw.time()
    return int(seconds * 1000 + microseconds // 1000)


def test_a_snapshot_shows_a_renewed_lease(redis_store: RedisStore, raw: redis.Redis) -> None:
    running(redis_store)
    before = clock_of(raw)
    renewal = redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    assert renewal == Renewal(word="ok", is_running=True)
    lease = redis_store.snapshot().leases["u1-1-0"]
    assert before + 30_000 <= lease + CLOCK_ERROR_MS
    assert lease - CLOCK_ERROR_MS <= clock_of(raw) + 30_000


def test_one_request_renews_several_leases_and_answers_for_each(redis_store: RedisStore) -> None:
    running(redis_store)
    other = pod(1, phase=PodPhase.BOUND, attempt=1, node="n1")
    redis_store.commit([writing(put(other))], request_id="other")
    attempts = [(PodAttempt("u1-1-1", 1), "u1 1 1"), (PodAttempt("u1-1-0", 7), "u1 1 7")]
    attempts.append((PodAttempt("u1-1-0", 1), "u1 1 1"))
    answers = [Renewal(word="ok"), Renewal(word="fenced"), Renewal(word="ok", is_running=True)]
    assert redis_store.alive.renew_all("n1", attempts, 30_000) == answers
    assert redis_store.alive.leased("n1") == [("u1-1-0", 1), ("u1-1-0", 7), ("u1-1-1", 1)]
    ends = leases_of(redis_store.alive.read(["n1"]))
    assert len(set(ends.values())) == 1
    assert redis_store.alive.look(attempts) == answers


def test_a_renewal_of_a_terminating_pod_returns_the_reason_and_keeps_the_lease(
    redis_store: RedisStore,
) -> None:
    running(redis_store, stop="Preempted")
    result = redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    assert result == Renewal(word="stop", reason="Preempted", is_running=True)
    assert list(redis_store.snapshot().leases) == ["u1-1-0"]


def test_a_superseded_attempt_is_fenced_and_its_lease_is_ignored(
    redis_store: RedisStore,
) -> None:
    running(redis_store, attempt=2)
    for fence in ("u1 1 1", "u1 2 2", "u2 1 2", ""):
        renewal = redis_store.renew("n1", "u1-1-0", 1, fence, 30_000)
        assert renewal == Renewal(word="fenced")
    assert redis_store.renew("n1", "u1-1-9", 2, "u1 1 2", 30_000) == Renewal(word="fenced")
    assert redis_store.renew("n1", "u1-1-9", 2, "", 30_000) == Renewal(word="fenced")
    assert redis_store.snapshot().leases == {}


def test_a_lost_pod_cannot_renew_its_lease(redis_store: RedisStore) -> None:
    running(redis_store)
    redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    evicted = put(pod(0, phase=PodPhase.EVICTED, attempt=1, node="n1"), expect=1)
    redis_store.commit([writing(evicted)], request_id="evict")
    assert redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000) == Renewal(word="fenced")
    assert redis_store.snapshot().leases == {}


def test_the_lease_that_another_node_writes_for_a_pod_is_ignored(redis_store: RedisStore) -> None:
    running(redis_store)
    redis_store.renew("n2", "u1-1-0", 1, "u1 1 1", 30_000)
    redis_store.commit([writing(put(node("n2")))], request_id="n2")
    assert redis_store.snapshot().leases == {}


def test_a_lease_goes_with_its_attempt_at_once_however_seldom_leases_are_read(
    redis_store: RedisStore,
) -> None:
    store = RedisStore(redis_store.url, heartbeats_every_ms=3_600_000)
    running(store)
    store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    assert list(store.snapshot().leases) == ["u1-1-0"]
    evicted = put(pod(0, phase=PodPhase.EVICTED, attempt=1, node="n1"), expect=1)
    store.commit([writing(evicted)], request_id="evict")
    assert store.snapshot().leases == {}
    again = put(pod(0, phase=PodPhase.BOUND, attempt=2, node="n1"), expect=2)
    store.commit([writing(again)], request_id="again")
    assert store.snapshot().leases == {}
    store.close()


def test_an_ended_lease_is_removed_and_leased_attempts_are_listed(redis_store: RedisStore) -> None:
    running(redis_store)
    redis_store.beat("n1")
    redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    redis_store.renew("n1", "u1-1-0", 2, "u1 1 2", 30_000)
    assert redis_store.alive.leased("n1") == [("u1-1-0", 1), ("u1-1-0", 2)]
    redis_store.end_lease("n1", "u1-1-0", 1)
    redis_store.end_lease("n1", "u1-1-0", 1)
    assert redis_store.alive.leased("n1") == [("u1-1-0", 2)]
    assert redis_store.snapshot().leases == {}


def test_strange_fields_in_a_nodes_own_hash_do_no_harm(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    running(redis_store)
    redis_store.commit([writing(put(node("n1")))], request_id="n1")
    strange = {"beat": "soon", "u1-1-0-1": "-5", "u1-1-0-x": "1", "": "2", b"\xff-1": "3"}
    raw.hset("{bq}:alive:n1", mapping=strange)
    snapshot = redis_store.snapshot()
    assert snapshot.leases == {"u1-1-0": 0}
    assert snapshot.nodes[0].status.heartbeat == 0


def test_a_nodes_status_shows_its_heartbeat(redis_store: RedisStore) -> None:
    redis_store.commit([writing(put(node("n1")), put(node("n2")))], request_id="1")
    redis_store.beat("n1")
    beats = redis_store.beats()
    assert list(beats) == ["n1"]
    heard = [one.status.heartbeat for one in redis_store.snapshot().nodes]
    assert heard == [beats["n1"], None]
    assert abs(redis_store.now_ms() - beats["n1"]) < 60_000


def test_the_heartbeat_of_a_deleted_node_expires(redis_store: RedisStore, raw: redis.Redis) -> None:
    redis_store.commit([writing(put(node("n1")))], request_id="1")
    redis_store.beat("n1")
    redis_store.commit([writing(gone(node("n1"), expect=1))], request_id="2")
    assert redis_store.beats() == {}
    assert list(redis_store.beats(["n1"])) == ["n1"]
    assert 0 < raw.ttl("{bq}:alive:n1") <= 86_400


def test_output_comes_back_in_order_and_can_be_read_on(redis_store: RedisStore) -> None:
    redis_store.append_log("n1", "p", 1, "stdout", b"one\n")
    redis_store.append_log("n1", "p", 1, "stderr", b"\xff\x00two\n")
    redis_store.append_log("n1", "p", 2, "stdout", b"another attempt")
    first = redis_store.read_log("n1", "p", 1)
    assert [(chunk.stream, chunk.data) for chunk in first] == [
        ("stdout", b"one\n"),
        ("stderr", b"\xff\x00two\n"),
    ]
    assert list(redis_store.read_log("n1", "p", 1, after=first[-1].id)) == []
    redis_store.append_log("n1", "p", 1, "stdout", b"three\n")
    assert [chunk.data for chunk in redis_store.read_log("n1", "p", 1, first[-1].id)] == [
        b"three\n"
    ]


def test_waiting_for_output_ends_in_time(redis_store: RedisStore) -> None:
    assert list(redis_store.read_log("n1", "p", 1, block_ms=20)) == []


def test_only_the_newest_mebibyte_of_output_is_kept(redis_store: RedisStore) -> None:
    for number in range(40):
        redis_store.append_log("n1", "p", 1, "stdout", bytes([number]) * 100_000)
    kept: list[bytes] = []
    after = "0"
    while chunks := redis_store.read_log("n1", "p", 1, after):
        kept += [chunk.data for chunk in chunks]
        after = chunks[-1].id
    assert LOG_BYTES_KEPT <= sum(map(len, kept)) <= LOG_BYTES_KEPT + 2 * 65_536
    assert kept[-1][-1] == 39


def test_one_large_piece_of_output_is_cut(redis_store: RedisStore) -> None:
    redis_store.append_log("n1", "p", 1, "stdout", b"x" * 3_000_000)
    size = sum(len(chunk.data) for chunk in redis_store.read_log("n1", "p", 1))
    assert LOG_BYTES_KEPT <= size <= LOG_BYTES_KEPT + 2 * 65_536


def test_a_late_renewal_does_not_shorten_a_lease(redis_store: RedisStore) -> None:
    running(redis_store)
    redis_store.commit([writing(put(node("n1")))], request_id="n1")
    redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    [ends_at] = redis_store.snapshot().leases.values()
    redis_store.renew("n1", "u1-1-0", 1, "u1 1 1", 5_000)
    assert redis_store.snapshot().leases == {"u1-1-0": ends_at}


def test_a_clock_that_was_set_back_is_followed(redis_store: RedisStore, raw: redis.Redis) -> None:
    redis_store.beat("n1")
    before = redis_store.beats(["n1"])["n1"]
    raw.hset("{bq}:alive:n1", "beat", before + 3_600_000)
    redis_store.beat("n1")
    assert before <= redis_store.beats(["n1"])["n1"] < before + 3_600_000


def calls_of(raw: redis.Redis, command: str) -> int:
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def test_the_leases_of_many_pods_are_renewed_by_few_commands(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    attempts = [(PodAttempt(f"u1-1-{number}", 1), "u1 1 1") for number in range(2_500)]
    redis_store.alive.renew_all("n1", attempts, 30_000)
    first = leases_of(redis_store.alive.read(["n1"]))
    raw.hset(keys.alive("n1"), "u1-1-7-1", "9")
    raw.hset(keys.alive("n1"), "u1-1-2400-1", "soon")
    wrote = calls_of(raw, "hset"), calls_of(raw, "hmget")
    redis_store.alive.renew_all("n1", attempts, 60_000)
    # Three parts are read and written, and the heads of all pods are read.
    assert (calls_of(raw, "hset"), calls_of(raw, "hmget")) == (wrote[0] + 3, wrote[1] + 4)
    second = leases_of(redis_store.alive.read(["n1"]))
    assert second.keys() == first.keys()
    assert all(second[place] >= first[place] + 30_000 for place in first)


def test_a_renewal_of_many_leases_shortens_none_of_them(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    attempts = [(PodAttempt(f"u1-1-{number}", 1), "u1 1 1") for number in range(2_001)]
    redis_store.alive.renew_all("n1", attempts, 60_000)
    before = raw.hgetall(keys.alive("n1"))
    raw.hdel(keys.alive("n1"), "u1-1-2000-1")
    redis_store.alive.renew_all("n1", attempts, 30_000)
    after = raw.hgetall(keys.alive("n1"))
    assert int(after.pop(b"u1-1-2000-1")) < int(before.pop(b"u1-1-2000-1"))
    assert after == before
