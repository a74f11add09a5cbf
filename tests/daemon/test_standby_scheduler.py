"""Standby schedulers: they keep their mirror warm, announce themselves, and take over in time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from msgspec import structs

from batchq import __version__
from batchq.api.objects import Object, Pod, PodGroup, Queue
from batchq.api.transaction import Delivery, Transaction
from batchq.daemon import app, detached
from batchq.daemon.detached import Record
from batchq.daemon.embedded_server import ensure_server
from batchq.daemon.reload import Reload
from batchq.lab.simulation.initial_state import stated
from batchq.paths import HOME_VARIABLE, Home
from batchq.scheduler.cycle import Cycle
from batchq.store.redis import RedisStore, open_store
from batchq.store.schedulers import SchedulerEntry, attend, attending, depart
from batchq.system import CountingIds, RandomIds
from tests.builders import a_group, a_node, a_queue, a_running_group, as_charged
from tests.contract.made import put
from tests.daemon.waiting import until

LEASE_MS = 5_000


class Nothing:
    """An executor that delivers nothing."""

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        return 0


class Follower:
    """A scheduler's turns, with an epoch that the test sets."""

    def __init__(self, store: RedisStore) -> None:
        self.epoch: int | None = None
        self.effective = Reload(None).current
        self.turn = app.LeaderTurn(
            store,
            Cycle(store, self.effective.scheduler, store, RandomIds()),
            Nothing(),
            effective=lambda: self.effective,
            clock=store,
            epoch=lambda: self.epoch,
            ids=CountingIds(),
        )


def write(store: RedisStore, *objects: Object) -> None:
    """Write these objects to the store."""
    one = Transaction(subject="test", writes=tuple(put(item) for item in objects))
    assert not store.commit([one], request_id=RandomIds().new_uid()).refused


def lists_made(raw: redis.Redis) -> int:
    """Return how often the server was asked for a page of a hash, as lists of objects are."""
    stats = raw.info("commandstats")
    assert isinstance(stats, dict)
    return int(stats.get("cmdstat_hscan", {}).get("calls", 0))


def test_the_first_session_after_a_takeover_lists_nothing(
    redis_store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A turn of more than a second looks for damage twice, and each look reads a page of heads.
    monkeypatch.setattr("batchq.daemon.leader._LOOK_EVERY_S", 3_600.0)
    write(redis_store, a_queue(), a_group("before"))
    follower = Follower(redis_store)
    raw.config_resetstat()
    follower.turn()
    assert lists_made(raw) > 0
    write(redis_store, a_group("meanwhile"))
    follower.turn()

    raw.config_resetstat()
    follower.epoch = redis_store.lead("follower", 60_000)
    follower.turn()

    # The leader reads a page each of ledger, charges and limits, and of the heads of 7 kinds.
    assert lists_made(raw) == 3 + 7
    for name in ("before", "meanwhile"):
        group = redis_store.get("PodGroup", f"default/{name}")
        assert isinstance(group, PodGroup)
        assert [str(verdict.reason) for verdict in group.status.reasons] == ["WaitingForResources"]


def test_the_leader_announces_to_nodes_that_it_stops_pods(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    group, *pods = as_charged(*a_running_group("g", 2, node="n1", suspend=True))
    redis_store.commit([stated(group, tuple(pods))], request_id="a running group")
    write(redis_store, a_queue(), a_node("n1", cpu=4), a_node("n2", cpu=4))
    follower = Follower(redis_store)
    follower.epoch = redis_store.lead("follower", 60_000)
    follower.turn()
    stopped = redis_store.get("Pod", pods[0].metadata.uid)
    assert isinstance(stopped, Pod)
    assert stopped.status.terminating
    assert [fields for _, fields in raw.xrange("{bq}:doorbell:n1")] == [{b"word": b"stops"}]
    assert raw.xlen("{bq}:doorbell:n2") == 0


def test_a_configuration_that_was_reloaded_is_published_and_not_reported_as_damage(
    redis_store: RedisStore, raw: redis.Redis, tmp_path: Path
) -> None:
    follower = Follower(redis_store)
    follower.epoch = redis_store.lead("follower", 60_000)
    follower.turn()
    path = tmp_path / "scheduler.yaml"
    path.write_text("minRuntime: 7m\n")
    follower.effective = Reload(path).current
    follower.turn.mender.hurry()
    follower.turn()
    stored = raw.get("{bq}:config")
    assert isinstance(stored, bytes)
    assert b"minRuntime: 7m" in stored
    assert not [one for one in redis_store.events() if one.reason == "Mended"]


def test_a_follower_tells_how_far_its_mirror_is(redis_store: RedisStore) -> None:
    follower = Follower(redis_store)
    assert follower.turn.mirrored is None
    follower.turn()
    assert follower.turn.mirrored == 0
    write(redis_store, a_group("new"))
    follower.turn()
    assert follower.turn.mirrored == 1


def test_present_schedulers_are_listed_until_they_depart(redis_store: RedisStore) -> None:
    before = redis_store.now_ms()
    attend(redis_store, "b:2:x", version="0.2.0", mirrored=None)
    attend(redis_store, "a:1:x", version="0.1.0", mirrored=7, config="107d581d", refused_file=True)
    first, second = attending(redis_store)
    assert structs.replace(first, seen_at=0) == SchedulerEntry(
        identity="a:1:x",
        seen_at=0,
        version="0.1.0",
        mirrored=7,
        config="107d581d",
        refused_file=True,
    )
    assert structs.replace(second, seen_at=0) == SchedulerEntry(
        identity="b:2:x", seen_at=0, version="0.2.0", mirrored=None
    )
    assert before <= second.seen_at <= redis_store.now_ms()
    depart(redis_store, "a:1:x")
    assert [seen.identity for seen in attending(redis_store)] == ["b:2:x"]


def test_a_scheduler_silent_for_a_minute_is_forgotten(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    long_ago = redis_store.now_ms() - 61_000
    lately = redis_store.now_ms() - 50_000
    raw.hset("{bq}:schedulers", mapping={"gone": f"{long_ago} 5 0.1.0", "here": f"{lately} 5 0.1"})
    assert [seen.identity for seen in attending(redis_store)] == ["here"]
    attend(redis_store, "new", version="0.1.0", mirrored=5)
    assert set(raw.hgetall("{bq}:schedulers")) == {b"here", b"new"}
    assert 0 < raw.ttl("{bq}:schedulers") <= 60


@pytest.fixture
def store(home: Home) -> Iterator[RedisStore]:
    opened = open_store(ensure_server(home).url)
    yield opened
    opened.close()


@pytest.fixture
def pair(home: Home, store: RedisStore) -> Iterator[dict[str, Record]]:
    """Start two schedulers with short leases; return them by identity, in no particular order."""
    home.prepare()
    code = (
        "import sys; from batchq.daemon.app import SchedulerOptions, run_scheduler;"
        f"sys.exit(run_scheduler(SchedulerOptions(url={store.url!r}, lease_ms={LEASE_MS})))"
    )
    root = Path(__file__).parents[2]
    environ = {
        **os.environ,
        HOME_VARIABLE: str(home.root),
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'actions'}",
    }
    records = []
    for name in ("one", "two"):
        log = home.logs / f"{name}.log"
        pid = detached.spawn([sys.executable, "-P", "-c", code], log=log, environ=environ)
        birth = detached.birth_of(pid) or ""
        records.append(Record(name=name, pid=pid, birth=birth, log=str(log), started_at=0))
    until(lambda: sum(seen.mirrored is not None for seen in attending(store)) == 2)
    until(lambda: store.leader() is not None)
    by_pid = {str(record.pid): record for record in records}
    yield {seen.identity: by_pid[seen.identity.split(":")[1]] for seen in attending(store)}
    for record in records:
        detached.end(record, patience_s=60)


@pytest.mark.e2e
def test_a_killed_leader_is_succeeded_in_a_later_epoch_when_its_lease_is_over(
    pair: dict[str, Record], store: RedisStore
) -> None:
    leader = store.leader()
    assert leader is not None
    [other] = set(pair) - {leader.identity}
    before = leader.epoch
    assert {seen.version for seen in attending(store)} == {__version__}

    os.kill(pair[leader.identity].pid, signal.SIGKILL)

    def succeeded() -> bool:
        now = store.leader()
        return now is not None and now.identity == other and now.epoch > before

    until(succeeded)


@pytest.mark.e2e
def test_a_scheduler_that_ends_normally_departs(pair: dict[str, Record], store: RedisStore) -> None:
    leader = store.leader()
    assert leader is not None
    [other] = set(pair) - {leader.identity}
    os.kill(pair[other].pid, signal.SIGTERM)
    until(lambda: [seen.identity for seen in attending(store)] == [leader.identity])
    assert isinstance(store.get("Queue", "default"), Queue)


def reasons_of(store: RedisStore, name: str) -> list[str]:
    """Return the stored reasons for which a group waits."""
    group = store.get("PodGroup", f"default/{name}")
    assert isinstance(group, PodGroup)
    return [str(verdict.reason) for verdict in group.status.reasons]


def test_changed_reasons_are_written_once_a_second_and_first_ones_at_once(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=lambda: now_s))
    follower = Follower(redis_store)
    follower.epoch = redis_store.lead("follower", 60_000)
    write(redis_store, a_queue(), a_group("early", cpu=4))
    follower.turn()
    assert reasons_of(redis_store, "early") == ["WaitingForResources"]

    write(redis_store, a_node("n1", cpu=1), a_group("late", cpu=5))
    now_s += 0.2
    report = follower.turn()
    assert report.due_in_ms == 800
    assert reasons_of(redis_store, "early") == ["WaitingForResources"]
    assert reasons_of(redis_store, "late") == ["ExceedsCapacity"]
    now_s += 0.2
    assert follower.turn().due_in_ms == 600

    now_s += 0.6
    follower.turn()
    assert reasons_of(redis_store, "early") == ["ExceedsCapacity"]
