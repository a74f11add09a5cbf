"""An unreadable record costs only that record, whatever its kind and its damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from batchq.api.objects import KINDS, Object, Unreadable, key_of
from batchq.errors import UnreadableRecord
from batchq.store import keys
from batchq.store.inspection import read_books
from batchq.store.records import field_named, name_of
from batchq.store.redis import RedisStore
from tests.contract.made import group, node, pod, put, queue, writing
from tests.poison.damage import OBJECT_DAMAGES, PLACES, damaged_object

HEALTHY: tuple[Object, ...] = (group(), pod(), queue(), node())


def make_healthy(store: RedisStore) -> None:
    store.commit([writing(*map(put, HEALTHY))], request_id="healthy")


def poison(raw: redis.Redis, kind: str, damage: str) -> None:
    key = PLACES[kind]
    raw.hset(keys.objects(kind), key, damaged_object(kind, key, damage))


def is_healthy(store: RedisStore) -> None:
    """Check that everything else is present, in lists and in the snapshot."""
    snapshot = store.snapshot()
    assert [key_of(one) for one in snapshot.groups] == ["x/a"]
    assert [key_of(one) for one in snapshot.queues] == ["q"]
    assert [key_of(one) for one in snapshot.nodes] == ["n1"]
    assert [key_of(one) for pods in snapshot.pods.values() for one in pods] == ["u1-1-0"]
    for kind in KINDS:
        assert len(store.list(kind)) == sum(type(one).__name__ == kind for one in HEALTHY)


def named(found: object) -> list[tuple[str, str]]:
    assert isinstance(found, tuple)
    return [(one.kind, one.key) for one in found if isinstance(one, Unreadable) and one.why]


@pytest.mark.parametrize("damage", OBJECT_DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_unreadable_at_the_start_is_reported_and_left_out(
    redis_store: RedisStore, raw: redis.Redis, kind: str, damage: str
) -> None:
    make_healthy(redis_store)
    poison(raw, kind, damage)
    is_healthy(redis_store)
    place = (kind, PLACES[kind])
    assert named(redis_store.unreadable()) == [place]
    assert named(redis_store.listing(kind).unreadable) == [place]
    with pytest.raises(UnreadableRecord, match="is unreadable: ") as caught:
        redis_store.get(kind, PLACES[kind])
    assert caught.value.hint == f"delete it: `batchq delete {kind.lower()} {PLACES[kind]}`"
    assert redis_store.get_many(kind, [PLACES[kind]]) == {}
    assert list(redis_store.compare()) == []
    books = read_books(redis_store)
    assert books is not None
    assert named(books.unreadable) == [place]
    assert raw.hexists(keys.objects(kind), PLACES[kind])


@pytest.mark.parametrize("damage", OBJECT_DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_damaged_while_it_is_followed_is_reported_and_left_out(
    redis_store: RedisStore, raw: redis.Redis, kind: str, damage: str
) -> None:
    make_healthy(redis_store)
    is_healthy(redis_store)
    poison(raw, kind, damage)
    assert list(redis_store.compare()) == []
    is_healthy(redis_store)
    assert named(redis_store.unreadable()) == [(kind, PLACES[kind])]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unreadable_object_is_deleted_by_its_name(
    redis_store: RedisStore, raw: redis.Redis, open_redis: Callable[[], RedisStore], kind: str
) -> None:
    make_healthy(redis_store)
    poison(raw, kind, "garbage")
    raw.hset(keys.heads(kind), PLACES[kind], b"\xff")
    other = open_redis()
    for store in (redis_store, other):
        is_healthy(store)
    assert redis_store.discard(kind, PLACES[kind])
    assert not redis_store.discard(kind, PLACES[kind])
    for store in (redis_store, other):
        is_healthy(store)
        assert store.unreadable() == ()
    assert not raw.hexists(keys.objects(kind), PLACES[kind])
    assert not raw.hexists(keys.heads(kind), PLACES[kind])


def test_a_readable_record_is_not_discarded(redis_store: RedisStore) -> None:
    make_healthy(redis_store)
    assert not redis_store.discard("Queue", "q")
    assert redis_store.get("Queue", "q") is not None


#: Longer than one word of a command line may be.
LONG = b"x" * 200_000


@pytest.mark.parametrize(
    "field", [b"\xff", b"default/\xffa", b"a b", b"a\x1b[2J", b"a\\xff", b"", b"\\x", LONG]
)
def test_a_key_that_is_not_a_name_is_shown_and_deleted_in_escaped_form(
    redis_store: RedisStore, raw: redis.Redis, field: bytes
) -> None:
    make_healthy(redis_store)
    raw.hset(keys.objects("Queue"), field, "garbage")
    is_healthy(redis_store)
    [one] = redis_store.unreadable()
    assert one.key.isascii()
    assert one.key.isprintable()
    assert 0 < len(one.key) < 256
    assert field_named(name_of(field)) == field
    assert redis_store.discard("Queue", one.key)
    is_healthy(redis_store)
    assert redis_store.unreadable() == ()


def test_a_change_that_is_unreadable_is_believed_only_if_it_is_stored(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    make_healthy(redis_store)
    is_healthy(redis_store)
    for field, value in (("q", "garbage"), ("new", b"\xff")):
        revision = raw.incr(keys.REVISION)
        fields = {"kind": "Queue", "key": field, "value": value}
        raw.xadd(keys.CHANGES, fields, id=f"{revision}-0")  # type: ignore[arg-type]
    is_healthy(redis_store)
    assert redis_store.unreadable() == ()


@pytest.mark.parametrize("kind", ["Nothing", "", b"\xff"])
def test_a_change_of_a_kind_that_does_not_exist_changes_nothing(
    redis_store: RedisStore, raw: redis.Redis, kind: str
) -> None:
    make_healthy(redis_store)
    is_healthy(redis_store)
    revision = raw.incr(keys.REVISION)
    raw.xadd(keys.CHANGES, {"kind": kind, "key": "q", "value": ""}, id=f"{revision}-0")
    is_healthy(redis_store)


def test_a_record_that_was_repaired_or_removed_by_hand_is_no_longer_reported(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    make_healthy(redis_store)
    stored = raw.hget(keys.objects("Queue"), "q")
    assert isinstance(stored, bytes)
    raw.hset(keys.objects("Queue"), "q", "garbage")
    raw.hset(keys.objects("Queue"), "other", "garbage")
    assert len(redis_store.snapshot().queues) == 0
    assert len(redis_store.unreadable()) == 2
    raw.hset(keys.objects("Queue"), "q", stored)
    raw.hdel(keys.objects("Queue"), "other")
    assert list(redis_store.compare()) == []
    is_healthy(redis_store)
    assert redis_store.unreadable() == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_of_another_type_costs_the_objects_of_that_kind(
    redis_store: RedisStore, raw: redis.Redis, kind: str
) -> None:
    make_healthy(redis_store)
    raw.delete(keys.objects(kind))
    raw.set(keys.objects(kind), "no hash")
    snapshot = redis_store.snapshot()
    there = len(snapshot.queues) + len(snapshot.groups) + len(snapshot.nodes) + len(snapshot.pods)
    assert there == sum(type(one).__name__ != kind for one in HEALTHY)
    assert named(redis_store.unreadable()) == [(kind, "")]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("spec", '{"queue":"a b"}'),
        ("status", '{"chargePath":["a b"]}'),
        ("status", '{"pledge":{"owed":{"a b":{"cpu":1}}}}'),
    ],
)
def test_a_name_that_would_break_a_scope_is_unreadable(
    redis_store: RedisStore, raw: redis.Redis, part: str, text: str
) -> None:
    make_healthy(redis_store)
    meta = '{"name":"poison","namespace":"default","uid":"u9"}'
    raw.hset(keys.objects("PodGroup"), "default/poison", f'{{"metadata":{meta},"{part}":{text}}}')
    is_healthy(redis_store)
    assert named(redis_store.unreadable()) == [("PodGroup", "default/poison")]


@pytest.mark.parametrize("uid", ["a b", "a|b"])
def test_a_uid_that_would_break_a_fence_is_unreadable(
    redis_store: RedisStore, raw: redis.Redis, uid: str
) -> None:
    make_healthy(redis_store)
    stored = f'{{"metadata":{{"name":"poison","namespace":"default","uid":"{uid}"}}}}'
    raw.hset(keys.objects("PodGroup"), "default/poison", stored)
    is_healthy(redis_store)
    assert named(redis_store.unreadable()) == [("PodGroup", "default/poison")]


@pytest.mark.parametrize(
    ("kind", "spec", "why"),
    [
        ("ResourceQuota", '{"hard":{"podgroups":-5}}', "in its hard, 'podgroups' is -5"),
        ("ResourceQuota", '{"hard":{"a b":1}}', "in its hard, 'a b' is 1"),
        ("ResourceQuota", '{"hard":{"":1}}', "in its hard, '' is 1"),
        ("Queue", '{"capability":{"cpu":-1}}', "in its capability, 'cpu' is -1"),
        ("Queue", '{"guarantee":{"cpu":-1}}', "in its guarantee, 'cpu' is -1"),
        ("Queue", '{"maxPodGroups":-1}', "its maxPodGroups is -1"),
        ("Queue", '{"weight":-3}', "its weight is -3"),
        (
            "Pod",
            '{"podGroup":"g","task":"t","requests":{"cpu":-1}}',
            "in its requests, 'cpu' is -1",
        ),
        ("PodGroup", '{"minResources":{"cpu":-5}}', "in its minResources, 'cpu' is -5"),
        (
            "PodGroup",
            '{"tasks":[{"name":"w","template":{"requests":{"cpu":-5}}}]}',
            "in its task w, 'cpu' is -5",
        ),
        ("Node", '{"resources":{"cpu":-1}}', "in its resources, 'cpu' is -1"),
    ],
)
def test_an_amount_below_zero_or_without_a_name_is_unreadable(
    redis_store: RedisStore, raw: redis.Redis, kind: str, spec: str, why: str
) -> None:
    make_healthy(redis_store)
    space, _, name = PLACES[kind].rpartition("/")
    # A pod's record has the name of its uid.
    uid = name if kind == "Pod" else "u9"
    meta = f'{{"name":"{name}","namespace":"{space}","uid":"{uid}"}}'
    raw.hset(keys.objects(kind), PLACES[kind], f'{{"metadata":{meta},"spec":{spec}}}')
    is_healthy(redis_store)
    [one] = redis_store.unreadable()
    assert (one.kind, one.key, one.why) == (kind, PLACES[kind], why)
