"""What a hostile submitter can do past batchq's client, as docs/security.md says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.guarded import ADMIN, GuardedServer


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedServer]:
    """A server with users, and without data."""
    with GuardedServer() as server:
        assert isinstance(server, GuardedServer)
        yield server


def test_a_submitter_could_take_all_groups_away_at_once(guarded: GuardedServer) -> None:
    with guarded.as_user(ADMIN) as admin, guarded.as_user("submitter") as submitter:
        admin.hset("{bq}:PodGroup", "default/somebodys", "{}")
        assert submitter.set("{bq}:PodGroup", "")
        assert admin.type("{bq}:PodGroup") == b"string"


def test_a_submitter_could_erase_past_events(guarded: GuardedServer) -> None:
    with guarded.as_user(ADMIN) as admin, guarded.as_user("submitter") as submitter:
        admin.xadd("{bq}:events", {"a": "b"})
        submitter.xadd("{bq}:events", {"a": "b"}, maxlen=0, approximate=False)
        assert admin.xlen("{bq}:events") == 0


def test_a_submitter_could_fill_the_servers_memory(guarded: GuardedServer) -> None:
    with guarded.as_user("submitter") as submitter:
        for place in range(10):
            assert submitter.set(f"{{bq}}:request:{place}", "x" * 2**20)
        used = submitter.info("memory")["used_memory"]
    assert used > 10 * 2**20
