"""Names of objects are read from their heads, or from the objects where heads are missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from batchq.store import keys
from batchq.store.pages import count_objects, in_order, read_entries, read_page
from batchq.store.records import entries_after
from batchq.store.redis import RedisStore
from tests.contract.made import group, pod, put, writing
from tests.harness.server import Server


@pytest.fixture
def filled(redis_store: RedisStore) -> RedisStore:
    """A store with three groups, whose names and uids sort differently, and a pod."""
    items = [
        *(group(name, uid=uid) for name, uid in (("c", "u1"), ("a", "u2"), ("b", "u3"))),
        group("far", uid="u0", namespace="y"),
    ]
    redis_store.commit([writing(put(item)) for item in items], request_id="groups")
    redis_store.commit([writing(put(pod(group_uid="u2")))], request_id="pod")
    return redis_store


def test_a_list_of_groups_goes_by_uid(filled: RedisStore) -> None:
    entries = read_entries(filled.link, "PodGroup")
    pages = list(in_order(entries, 3))
    assert pages == [
        [(b"u0", b"y/far", b"Pending"), (b"u1", b"x/c", b"Pending"), (b"u2", b"x/a", b"Pending")],
        [(b"u3", b"x/b", b"Pending")],
    ]
    found = read_page(filled.link, "PodGroup", pages[0]).objects
    assert [item.metadata.name for item in found] == ["far", "c", "a"]


def test_the_server_picks_out_a_namespace(filled: RedisStore) -> None:
    entries = read_entries(filled.link, "PodGroup", namespace="y")
    assert entries == [(b"u0", b"y/far", b"Pending")]
    assert read_entries(filled.link, "PodGroup", namespace="*") == []


def test_the_uid_of_a_pod_is_that_of_its_group(filled: RedisStore) -> None:
    assert read_entries(filled.link, "Pod") == [(b"u2", b"u2-1-0", b"Pending")]


def test_a_token_names_a_place_in_the_list(filled: RedisStore) -> None:
    entries = read_entries(filled.link, "PodGroup")
    behind = entries_after(entries, "u1.x/c")
    assert sorted(behind) == [(b"u2", b"x/a", b"Pending"), (b"u3", b"x/b", b"Pending")]
    assert entries_after(entries, "u2.x/z") == [(b"u3", b"x/b", b"Pending")]


@pytest.mark.parametrize("heads", ["gone", "a string", "garbage"])
def test_objects_with_malformed_heads_are_listed(
    filled: RedisStore, raw: redis.Redis, heads: str
) -> None:
    raw.delete(keys.heads("PodGroup"))
    if heads == "a string":
        raw.set(keys.heads("PodGroup"), "x")
    elif heads == "garbage":
        raw.hset(keys.heads("PodGroup"), "x/a", b"\xff")
    entries = read_entries(filled.link, "PodGroup", namespace="x")
    assert sorted(entries) == [(b"", b"x/a", b""), (b"", b"x/b", b""), (b"", b"x/c", b"")]


def test_a_key_of_another_type_counts_no_objects(filled: RedisStore, raw: redis.Redis) -> None:
    assert count_objects(filled.link, "PodGroup") == 4
    raw.set(keys.objects("PodGroup"), "x")
    assert count_objects(filled.link, "PodGroup") == 0


@pytest.fixture
def of_before(server: Server, raw: redis.Redis) -> Iterator[RedisStore]:
    """The store of a user whose role lacks HLEN, as in older ACL files."""
    raw.acl_setuser(
        "before", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-hlen"]
    )
    store = RedisStore(server.url.replace("unix://", "unix://before:x@"))
    yield store
    store.close()
    raw.acl_deluser("before")


def test_a_user_who_may_not_count_reads_the_names(
    filled: RedisStore, of_before: RedisStore
) -> None:
    assert count_objects(of_before.link, "PodGroup") == 4
    assert len(read_entries(of_before.link, "PodGroup")) == 4
