"""A flood of new groups is taken up in parts, from each namespace and queue in turn."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Dependency, PodGroup
from batchq.api.transaction import Write
from batchq.core.session.snapshot import Snapshot
from batchq.store.mirror import Arrivals
from batchq.store.redis import RedisStore
from tests.contract.made import gone, group, put, writing


def waiting(name: str, namespace: str = "x", queue: str = "q", after: str = "") -> PodGroup:
    made = group(name, uid=f"uid-{name}", namespace=namespace)
    needed = (Dependency(name=after),) if after else ()
    return structs.replace(made, spec=structs.replace(made.spec, queue=queue, depends_on=needed))


def arrivals_of(*groups: PodGroup) -> Arrivals:
    arrivals = Arrivals()
    for one in groups:
        arrivals.put(f"{one.metadata.namespace}/{one.metadata.name}", one)
    return arrivals


def taken(arrivals: Arrivals, most: int) -> list[str]:
    return [group.metadata.name for _, group in arrivals.take(most)]


def test_every_namespace_and_queue_has_an_equal_share() -> None:
    flood = [waiting(f"f{number}") for number in range(10)]
    arrivals = arrivals_of(*flood, waiting("a", "y"), waiting("b", queue="other"))
    assert taken(arrivals, 6) == ["f0", "f1", "a", "b", "f2", "f3"]
    assert taken(arrivals, 3) == ["f4", "f5", "f6"]
    assert taken(arrivals, 9) == ["f7", "f8", "f9"]
    assert not arrivals


def test_with_more_queues_than_are_taken_each_has_its_turn() -> None:
    arrivals = arrivals_of(*(waiting(f"g{number}", queue=f"q{number % 3}") for number in range(6)))
    assert taken(arrivals, 2) == ["g0", "g1"]
    assert taken(arrivals, 2) == ["g2", "g3"]
    assert taken(arrivals, 2) == ["g4", "g5"]


def test_dependencies_of_a_group_are_taken_up_before_it() -> None:
    first = waiting("first", queue="slow")
    middle = waiting("middle", queue="slow", after="first")
    last = waiting("last", queue="quick", after="middle")
    arrivals = arrivals_of(*(waiting(f"f{n}", queue="slow") for n in range(3)), first, middle, last)
    assert taken(arrivals, 1) == ["f0"]
    assert taken(arrivals, 1) == ["first", "middle", "last"]


def test_a_changed_group_keeps_its_place_and_a_deleted_one_is_not_taken_up() -> None:
    arrivals = arrivals_of(waiting("a"), waiting("b"), waiting("c"))
    arrivals.put("x/a", structs.replace(waiting("a"), spec=waiting("a", queue="else").spec))
    arrivals.remove("x/b")
    assert arrivals.get("PodGroup", "x/b") is None
    assert taken(arrivals, 3) == ["a", "c"]


@pytest.fixture
def leading(redis_store: RedisStore) -> RedisStore:
    """Return a store that takes groups up in turns, after its first list."""
    redis_store.commit([writing(put(waiting("before")))], request_id="before")
    redis_store.take_up_in_turns()
    assert names(redis_store.snapshot_in_turn(1)) == ["before"]
    groups = [*(waiting(f"f{number}") for number in range(4)), waiting("other", "y")]
    redis_store.commit([writing(put(one)) for one in groups], request_id="flood")
    return redis_store


def names(snapshot: Snapshot) -> list[str]:
    return [group.metadata.name for group in snapshot.groups]


def test_a_session_sees_a_part_of_many_new_groups_and_the_next_sees_more(
    leading: RedisStore,
) -> None:
    assert names(leading.snapshot_in_turn(2)) == ["before", "f0", "other"]
    assert leading.is_behind
    assert names(leading.snapshot_in_turn(2)) == ["before", "f0", "f1", "f2", "other"]
    assert names(leading.snapshot_in_turn(2)) == ["before", "f0", "f1", "f2", "f3", "other"]
    assert not leading.is_behind


def test_a_full_snapshot_has_groups_that_are_kept_back_too(leading: RedisStore) -> None:
    leading.snapshot_in_turn(1)
    assert names(leading.snapshot()) == ["before", "f0", "f1", "f2", "f3", "other"]
    assert not leading.is_behind


def test_groups_kept_back_are_no_difference_to_the_server(leading: RedisStore) -> None:
    leading.snapshot_in_turn(1)
    assert leading.compare() == []
    assert leading.is_behind


def test_changes_of_a_group_that_is_kept_back_are_applied(leading: RedisStore) -> None:
    leading.snapshot_in_turn(1)
    stored = leading.get("PodGroup", "x/f2")
    assert isinstance(stored, PodGroup)
    status = structs.replace(stored.status, phase=PodGroupPhase.CANCELLED)
    cancelled = Write(
        kind="PodGroup",
        key="x/f2",
        expect=stored.metadata.revision,
        value=structs.replace(stored, status=status),
    )
    last = leading.get("PodGroup", "x/f3")
    assert last is not None
    leading.commit(
        [writing(cancelled), writing(gone(last, expect=last.metadata.revision))], request_id="end"
    )
    found = leading.snapshot_in_turn(1)
    assert names(found) == ["before", "f0", "f2", "other"]
    assert [one.status.phase for one in found.groups if one.metadata.name == "f2"] == ["Cancelled"]
    assert names(leading.snapshot()) == ["before", "f0", "f1", "f2", "other"]


def test_groups_of_a_list_are_not_new(leading: RedisStore) -> None:
    leading.snapshot_in_turn(1)
    leading.forget()
    assert names(leading.snapshot_in_turn(1)) == ["before", "f0", "f1", "f2", "f3", "other"]
