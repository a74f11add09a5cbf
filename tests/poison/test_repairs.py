"""A repair and its event are written together, by the leader alone, where there is damage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from batchq.daemon import leader
from batchq.daemon.leader import Mender
from batchq.errors import StoreUnavailable
from batchq.store import keys, scripts
from batchq.store.inspection import damaged_keys, mend
from batchq.store.redis import RedisStore
from batchq.system import RandomIds
from tests.contract.made import group, put, writing
from tests.poison.test_books import booked, epoch, in_books

__all__ = ["booked"]


def spoiled_key(raw: redis.Redis, name: str) -> None:
    raw.delete(name)
    raw.set(name, "damage")


def repairs_told(store: RedisStore) -> list[tuple[str, str]]:
    found = store.events()
    return [
        (one.reason, one.key)
        for one in found
        if one.reason in ("Mended", "Recounted") and one.kind != "Pod"
    ]


def look(mender: Mender, epoch: int) -> None:
    mender.hurry()
    mender.look(epoch)


def other_leads(store: RedisStore) -> int:
    store.resign("me")
    store.lead("other", 60_000)
    return epoch(store)


def answered_too_late(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, after: Callable[[], object]
) -> list[str]:
    """Call `after` when the first script of a repair has run; return the names of these scripts."""
    run, ran = store.link.run, []

    def slow(script: scripts.Script, *call: Any) -> Any:
        answer = run(script, *call)
        if script in (scripts.MEND, scripts.RECOUNT):
            ran.append(script.name)
            if len(ran) == 1:
                after()
        return answer

    monkeypatch.setattr(store.link, "run", slow)
    return ran


def unavailable() -> None:
    raise StoreUnavailable("the connection is lost")


DAMAGES: dict[str, Callable[[redis.Redis], object]] = {
    "a key": lambda raw: spoiled_key(raw, keys.SCHEDULERS),
    "the event stream": lambda raw: spoiled_key(raw, keys.EVENTS),
    "the count of writes": lambda raw: spoiled_key(raw, keys.REVISION),
    "a head": lambda raw: raw.hset(keys.heads("Node"), "n1", "rubbish"),
    "a sum": lambda raw: raw.hset(keys.LEDGER, "node:n1 cpu", "rubbish"),
    "a delivery": lambda raw: raw.hset(keys.OUTBOX, "u1-1-0-1", "rubbish"),
}
TOLD = {
    "a key": ("Mended", keys.SCHEDULERS),
    "the event stream": ("Mended", keys.EVENTS),
    "the count of writes": ("Mended", keys.REVISION),
    "a head": ("Recounted", "n1"),
    "a sum": ("Recounted", r"node:n1\x20cpu"),
    "a delivery": ("Mended", "u1-1-0-1"),
}


@pytest.mark.parametrize("how", ["another leads", "unavailable"])
@pytest.mark.parametrize("what", DAMAGES)
def test_the_event_of_a_repair_is_kept_whatever_follows_the_repair(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    first = epoch(booked)
    DAMAGES[what](raw)
    after = unavailable if how == "unavailable" else lambda: other_leads(booked)
    ran = answered_too_late(booked, monkeypatch, after)
    try:
        look(Mender(booked, RandomIds()), first)
    except StoreUnavailable:
        assert how == "unavailable"
    assert ran
    for _ in range(3):
        look(Mender(booked, RandomIds()), epoch(booked))
    assert repairs_told(booked) == [TOLD[what]]


@pytest.mark.parametrize("what", DAMAGES)
def test_a_former_leader_repairs_nothing_and_counts_no_repair(
    booked: RedisStore, raw: redis.Redis, what: str
) -> None:
    first = epoch(booked)
    other_leads(booked)
    DAMAGES[what](raw)
    before = {name: raw.dump(name) for name in raw.keys("*")}
    mender = Mender(booked, RandomIds())
    # Without a count of writes, nothing more can be read.
    with suppress(StoreUnavailable):
        look(mender, first)
    assert {name: raw.dump(name) for name in raw.keys("*")} == before
    assert mender.mended == 0


@pytest.mark.parametrize("who", ["the same leader", "a successor"])
@pytest.mark.parametrize("name", [keys.objects("PodGroup"), keys.EVENTS, keys.COUNTS])
def test_a_key_that_was_repaired_since_it_was_seen_is_left_alone(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, who: str, name: str
) -> None:
    first = epoch(booked)
    booked.snapshot()
    spoiled_key(raw, name)
    looks = 0

    def found_late(*asked: Any) -> Any:
        nonlocal looks
        looks += 1
        found = damaged_keys(*asked)
        if looks == 1:
            now = other_leads(booked) if who == "a successor" else first
            look(Mender(booked, RandomIds()), now)
            made = writing(put(group("mine")))
            assert booked.commit([made], request_id="mine").refused == ()
            raw.hset(keys.COUNTS, "superseded", "7")
        return found

    monkeypatch.setattr(leader, "damaged_keys", found_late)
    Mender(booked, RandomIds()).look(first)
    assert [one.metadata.name for one in booked.snapshot().groups] == ["mine"]
    assert raw.hget(keys.COUNTS, "superseded") == b"7"
    assert repairs_told(booked).count(("Mended", name)) == 1


def test_a_delivery_that_was_replaced_since_it_was_seen_is_left_alone(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.hset(keys.OUTBOX, "u1-1-0-1", "rubbish")
    run = booked.link.run

    def late(script: scripts.Script, *call: Any) -> Any:
        if script is scripts.RECOUNT:
            raw.hset(keys.OUTBOX, "u1-1-0-1", "replaced")
        return run(script, *call)

    monkeypatch.setattr(booked.link, "run", late)
    look(Mender(booked, RandomIds()), epoch(booked))
    assert raw.hget(keys.OUTBOX, "u1-1-0-1") == b"replaced"
    assert repairs_told(booked) == []


@pytest.mark.parametrize(
    "name", [keys.LEDGER, keys.CHARGES, *map(keys.heads, ("Queue", "Node", "Pod"))]
)
def test_books_are_rebuilt_after_the_answer_to_the_repair_of_their_key_was_lost(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(leader, "_RECOUNT_APART", 0)
    before = in_books(booked, raw)
    booked.snapshot()
    spoiled_key(raw, name)
    answered_too_late(booked, monkeypatch, unavailable)
    mender = Mender(booked, RandomIds())
    with pytest.raises(StoreUnavailable):
        look(mender, epoch(booked))
    look(mender, epoch(booked))
    assert in_books(booked, raw) == before


def test_an_epoch_of_another_type_is_followed_by_a_higher_one_and_reported(
    booked: RedisStore, raw: redis.Redis
) -> None:
    first = epoch(booked)
    raw.delete(keys.EPOCH)
    raw.rpush(keys.EPOCH, "damage")
    mender = Mender(booked, RandomIds())
    with pytest.raises(StoreUnavailable):
        look(mender, first)
    second = booked.lead("me", 60_000)
    assert second is not None
    assert second > first
    look(mender, second)
    assert repairs_told(booked) == [("Mended", keys.EPOCH)]
    assert mender.mended == 1


def test_the_report_of_a_repair_by_a_write_waits_for_the_server(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    booked.snapshot()
    raw.set(keys.REVISION, "1")
    booked.commit([writing(put(group("late", uid="u9")))], request_id="late")
    booked.snapshot()
    mender, commit = Mender(booked, RandomIds()), booked.commit
    monkeypatch.setattr(booked, "commit", lambda *_, **__: unavailable())
    with pytest.raises(StoreUnavailable):
        look(mender, epoch(booked))
    monkeypatch.setattr(booked, "commit", commit)
    look(mender, epoch(booked))
    look(mender, epoch(booked))
    assert repairs_told(booked).count(("Mended", keys.REVISION)) == 1
    assert mender.mended == len(repairs_told(booked))


def test_a_malformed_count_continues_after_the_objects_at_once_if_changes_are_missing(
    booked: RedisStore, raw: redis.Redis
) -> None:
    highest = int(raw.get(keys.REVISION) or 0)
    assert highest > 1
    entry, fields = raw.xrange(keys.CHANGES)[0]
    raw.delete(keys.CHANGES)
    raw.xadd(keys.CHANGES, fields, id=entry)
    raw.set(keys.REVISION, "x")
    damaged = damaged_keys(booked.link, highest)
    mend(booked.link, damaged, epoch=epoch(booked), now_ms=1, highest=highest)
    assert raw.get(keys.REVISION) == str(highest).encode()
