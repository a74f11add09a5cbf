"""Report queues: the last report on a subject is kept until it is applied."""

from __future__ import annotations

import pytest
import redis
import structlog

from batchq.api.node_report import Ended, Leaves, PodOutcome, Serves, StartClaim
from batchq.store import node_channels
from batchq.store.node_channels import MOST_REPORT_BYTES, REPORTS_A_CALL, ReportQueues
from batchq.store.redis import RedisStore
from tests.contract.made import node, put, writing

CLAIM = StartClaim(pod="u1-1-0", attempt=1, author="horse")
END = Ended(pod="u1-1-0", attempt=1, outcome=PodOutcome(exit_code=0), author="horse")


def test_only_the_last_report_on_a_subject_is_kept(redis_store: RedisStore) -> None:
    there = redis_store.report_queues
    there.post("n1", CLAIM)
    there.post("n1", Leaves(agent="a"))
    there.post("n1", END)
    there.post("n2", CLAIM)
    found = [(one.node, one.subject, one.report) for one in there.look(["n1", "n2", "n3"])]
    assert found == [
        ("n1", "node", Leaves(agent="a")),
        ("n1", "u1-1-0-1", END),
        ("n2", "u1-1-0-1", CLAIM),
    ]
    assert sorted(there.pending("n1"), key=str) == sorted([Leaves(agent="a"), END], key=str)


def test_an_applied_report_is_removed_but_not_a_newer_one(
    redis_store: RedisStore,
) -> None:
    there = redis_store.report_queues
    there.post("n1", CLAIM)
    there.post("n2", CLAIM)
    seen = there.look(["n1", "n2"])
    there.post("n1", END)
    there.remove(seen)
    there.remove(seen)
    assert [(one.node, one.report) for one in there.look(["n1", "n2"])] == [("n1", END)]


def test_a_report_queue_expires(redis_store: RedisStore, raw: redis.Redis) -> None:
    redis_store.report_queues.post("n1", CLAIM)
    assert 604_000 < raw.ttl("{bq}:inbox:n1") <= 604_800


def test_notifications_before_the_first_reader_are_read(
    redis_store: RedisStore,
) -> None:
    there = redis_store.report_queues
    there.post("n2", CLAIM)
    there.post("n1", CLAIM)
    there.post("n1", END)
    assert there.notified(0) == {"n1", "n2"}
    assert there.notified(20) == set()
    there.post("n3", CLAIM)
    assert there.notified(1000) == {"n3"}


def with_busy_node(store: RedisStore) -> ReportQueues:
    """Return queues whose last look found a report of n1, and nothing else."""
    there = store.report_queues
    there.post("n1", CLAIM)
    there.remove(there.look(sorted(there.notified(0))))
    return there


def test_reports_of_a_busy_node_are_read_with_its_notification(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    there = with_busy_node(redis_store)
    there.post("n1", END)
    there.post("n2", CLAIM)
    assert there.notified(1000) == {"n1", "n2"}
    # Nothing asks for it again.
    raw.delete("{bq}:inbox:n1")
    found, more = there.look_through(["n1", "n2"])
    assert [(one.node, one.report) for one in found] == [("n1", END), ("n2", CLAIM)]
    assert more == []
    assert there.look(["n1"]) == []


def test_reports_that_follow_a_read_ahead_come_with_the_next_notification(
    redis_store: RedisStore,
) -> None:
    there = with_busy_node(redis_store)
    # Its queue is read, and empty.
    assert there.notified(20) == {"n1"}
    there.post("n1", END)
    assert there.look(["n1"]) == []
    assert there.notified(1000) == {"n1"}
    assert [one.report for one in there.look(["n1"])] == [END]


def test_an_unreadable_report_that_is_read_ahead_is_counted_and_removed(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    there = with_busy_node(redis_store)
    raw.hset("{bq}:inbox:n1", "d", "x" * (MOST_REPORT_BYTES + 1))
    raw.hset("{bq}:inbox:n1", "a", "no json")
    assert there.notified(20) == {"n1"}
    assert there.look(["n1"]) == []
    assert redis_store.counts() == {"unreadable": 2}
    assert raw.hlen("{bq}:inbox:n1") == 0


def test_the_notification_is_kept_if_the_scripts_were_flushed(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    there = with_busy_node(redis_store)
    there.post("n1", END)
    raw.script_flush()
    assert there.notified(1000) == {"n1"}
    assert [one.report for one in there.look(["n1"])] == [END]


def test_the_leaders_wake_up_channel_is_bounded(redis_store: RedisStore, raw: redis.Redis) -> None:
    for _ in range(3):
        pipeline = raw.pipeline()
        for _ in range(1_000):
            pipeline.xadd("{bq}:bell", {"node": "n1"}, maxlen=1_000, approximate=True)
        pipeline.execute()
    redis_store.report_queues.post("n1", CLAIM)
    assert raw.xlen("{bq}:bell") <= 1_200


def test_invalid_node_names_are_ignored(redis_store: RedisStore, raw: redis.Redis) -> None:
    for fields in ({"node": "N 1"}, {"node": b"\xff"}, {"other": "n1"}, {"node": "x" * 300}):
        raw.xadd("{bq}:bell", fields)
    assert redis_store.report_queues.notified(0) == set()


def test_an_unreadable_report_is_logged_once_counted_and_removed(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    raw.hset(
        "{bq}:inbox:n1",
        mapping={
            "a": "no json",
            "b": '{"fact":"sings","song":"of a newer agent"}',
            "c": '{"fact":"leaves","agent":"but its subject is another"}',
            "d": "x" * (MOST_REPORT_BYTES + 1),
            b"\xff": "no json",
            "e" * (MOST_REPORT_BYTES + 1): "{}",
            "node": '{"fact":"leaves","agent":"a","and":"what a newer agent adds"}',
        },
    )
    with structlog.testing.capture_logs() as caught:
        found = redis_store.report_queues.look(["n1"])
    assert [one.report for one in found] == [Leaves(agent="a")]
    assert [entry["event"] for entry in caught] == ["fact.unreadable"] * 6
    assert redis_store.counts() == {"unreadable": 6}
    assert raw.hkeys("{bq}:inbox:n1") == [b"node"]
    assert max(len(str(entry)) for entry in caught) < 600


def test_a_look_takes_a_bounded_part_of_a_report_queue(redis_store: RedisStore) -> None:
    for number in range(REPORTS_A_CALL + 5):
        redis_store.report_queues.post("n1", StartClaim(pod=f"p{number}", attempt=1, author="a"))
    seen = redis_store.report_queues.look(["n1"])
    assert len(seen) == REPORTS_A_CALL
    redis_store.report_queues.remove(seen)
    assert len(redis_store.report_queues.look(["n1"])) == 5


def test_a_report_of_a_neighbouring_version_is_understood(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    raw.hset("{bq}:inbox:n1", "node", '{"fact":"serves","agent":"a","resources":{"cpu":1000}}')
    [seen] = redis_store.report_queues.look(["n1"])
    assert seen.report == Serves(agent="a", resources={"cpu": 1000}, protocol=1)


def test_registered_nodes_are_listed_by_name(redis_store: RedisStore) -> None:
    redis_store.commit([writing(put(node("n1")), put(node("n2")))], request_id="1")
    assert redis_store.report_queues.nodes() == {"n1", "n2"}


def test_a_node_with_many_reports_does_not_starve_others(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "REPORTS_A_CALL", 10)
    for number in range(35):
        redis_store.report_queues.post("n1", StartClaim(pod=f"p{number}", attempt=1, author="a"))
    redis_store.report_queues.post("n2", CLAIM)
    redis_store.report_queues.post("n3", CLAIM)
    found, more = redis_store.report_queues.look_through(["n1", "n2", "n3"])
    assert [len(found), more] == [10, ["n2", "n3", "n1"]]
    redis_store.report_queues.remove(found)
    found, more = redis_store.report_queues.look_through(more)
    assert {one.node for one in found} == {"n1", "n2", "n3"}
    assert [len(found), more] == [10, ["n1"]]


def test_a_look_opens_a_bounded_number_of_report_queues(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "INBOXES_A_CALL", 2)
    monkeypatch.setattr(node_channels, "CALLS_A_LOOK", 2)
    for number in range(5):
        redis_store.report_queues.post(f"n{number}", CLAIM)
    found, more = redis_store.report_queues.look_through([f"n{number}" for number in range(5)])
    assert [one.node for one in found] == ["n0", "n1", "n2", "n3"]
    assert more == ["n4"]


def test_long_reports_leave_the_rest_to_the_next_look(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "BYTES_A_CALL", 300)
    for number in range(5):
        claim = StartClaim(pod=f"p{number}", attempt=1, author="a" * 200)
        redis_store.report_queues.post("n1", claim)
    found, more = redis_store.report_queues.look_through(["n1", "n2"])
    assert [len(found), more] == [2, ["n1"]]
