"""What it costs to read the local groups and their members, counted in steps and not in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from batchq.api.access import Identity, in_local_groups
from batchq.client.access_control import Actor
from batchq.client.user_groups import UserGroups
from batchq.store import access_records
from batchq.store.access_records import AccessState, read_access
from batchq.store.redis import RedisStore

ROOT = Actor(user="root@host", via="redis")


class CountingList(list[str]):
    """A list that counts the names that were put into it or taken from it, over all lists."""

    names = 0

    def append(self, name: str) -> None:
        CountingList.names += 1
        super().append(name)

    def __iter__(self) -> Iterator[str]:
        CountingList.names += len(self)
        return super().__iter__()


def furnish(store: RedisStore, groups: int, members: int) -> None:
    """Make some groups, each with the same users."""
    users = [f"user{number}" for number in range(members)]
    for number in range(groups):
        UserGroups(store).create(f"group{number}", users, ROOT)


def steps_of(run: Callable[[], object]) -> int:
    """Return how many instructions and lines of Python a run takes, whatever else the machine
    does.
    """
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event in ("opcode", "line")
        return count

    former = sys.gettrace()
    sys.settrace(count)
    try:
        run()
    finally:
        sys.settrace(former)
    return steps


@pytest.mark.parametrize(("groups", "members"), [(1, 60), (60, 1), (20, 20)])
def test_each_membership_is_noted_once(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch, groups: int, members: int
) -> None:
    furnish(redis_store, groups, members)
    monkeypatch.setattr(CountingList, "names", 0)
    monkeypatch.setattr(access_records, "list", CountingList, raising=False)
    found = read_access(redis_store.link)
    noted = found.memberships.values()
    assert {type(one) for one in noted} == {CountingList}
    assert CountingList.names == groups * members == sum(len(one) for one in noted)


@pytest.mark.parametrize(("groups", "members"), [(40, 5), (5, 40)])
def test_eight_times_the_memberships_take_no_more_than_eight_times_the_steps(
    redis_store: RedisStore, groups: int, members: int
) -> None:
    def reading() -> AccessState:
        return read_access(redis_store.link)

    furnish(redis_store, 5, 5)
    reading()  # Modules and codecs are loaded at the first call.
    few = steps_of(reading)
    for name in reading().groups:
        UserGroups(redis_store).delete(name, ROOT)
    furnish(redis_store, groups, members)
    assert steps_of(reading) < 8.5 * few


def test_a_request_costs_the_same_beside_groups_of_others(redis_store: RedisStore) -> None:
    identity = Identity(user="user0", via="token")

    def found(state: AccessState) -> int:
        return steps_of(lambda: in_local_groups(identity, state.memberships))

    furnish(redis_store, 1, 1)
    alone = read_access(redis_store.link)
    UserGroups(redis_store).create("other", [f"other{one}" for one in range(50)], ROOT)
    among_others = read_access(redis_store.link)
    assert len(among_others.memberships) == 51
    assert found(among_others) == found(alone)
