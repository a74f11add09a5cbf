"""The ports that agents reserve for pods of gangs with `spec.launch`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from batchq.api.node_report import PodAttempt
from batchq.store.liveness import own_address
from batchq.store.redis import RedisStore
from batchq.worker.host.node_resources import PortPool, PortRange
from tests.harness.ports import free_ports
from tests.harness.server import Server

A, B, C = (PodAttempt(uid, 1) for uid in "abc")


@pytest.fixture
def within() -> PortRange:
    """A range of four free ports."""
    first = free_ports(4)
    return PortRange(first, first + 3)


@pytest.fixture
def make_pool(within: PortRange) -> Iterator[Callable[[], PortPool]]:
    """Pools of agents on one machine, with the same four ports."""
    made: list[PortPool] = []

    def make() -> PortPool:
        made.append(PortPool(within))
        return made[-1]

    yield make
    for pool in made:
        pool.keep()


@pytest.fixture
def pool(make_pool: Callable[[], PortPool]) -> PortPool:
    return make_pool()


def test_no_port_is_given_twice(within: PortRange, pool: PortPool) -> None:
    given = (*pool.take(A, 1), *pool.take(B, 3))
    assert sorted(given) == list(range(within.first, within.last + 1))
    assert pool.take(C, 1) == ()


def test_two_pools_of_one_machine_give_no_port_twice(
    within: PortRange, make_pool: Callable[[], PortPool]
) -> None:
    one, other = make_pool(), make_pool()
    given = (*one.take(A, 2), *other.take(B, 2))
    assert sorted(given) == list(range(within.first, within.last + 1))
    assert one.take(C, 1) == ()
    other.give_back(B)
    assert len(one.take(C, 2)) == 2


def test_the_ports_of_an_agent_that_was_killed_are_free(within: PortRange, pool: PortPool) -> None:
    script = (
        "import sys; from batchq.api.node_report import PodAttempt;"
        " from batchq.worker.host.node_resources import PortPool, PortRange;"
        f" pool = PortPool(PortRange({within.first}, {within.last}));"
        " print(len(pool.take(PodAttempt('x', 1), 4)), flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "4\n"
        assert pool.take(A, 1) == ()
        agent.kill()
        agent.wait()
    assert len(pool.take(A, 4)) == 4


def test_a_port_that_another_program_uses_is_not_given(within: PortRange, pool: PortPool) -> None:
    with socket.create_server(("127.0.0.1", within.first + 1)):
        given = pool.take(A, 3)
        assert sorted(given) == [within.first, within.first + 2, within.last]


@pytest.mark.parametrize("process", range(4))
def test_the_next_round_gets_other_ports_wherever_the_search_begins(
    process: int, within: PortRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: process)
    pool = PortPool(within)
    first = pool.take(A, 2)
    pool.give_back(A)
    second = pool.take(B, 2)
    pool.keep()
    assert not set(first) & set(second)


def test_a_claim_that_is_repeated_keeps_its_ports(pool: PortPool) -> None:
    assert pool.take(A, 2) == pool.take(A, 2)


def test_too_few_ports_are_no_ports(pool: PortPool) -> None:
    pool.take(A, 3)
    assert pool.take(B, 2) == ()
    # The one that was free is free again.
    assert len(pool.take(C, 1)) == 1


def test_ports_of_attempts_that_are_over_are_released(pool: PortPool) -> None:
    pool.take(A, 2)
    kept = pool.take(B, 2)
    pool.keep({B})
    assert len(pool.take(C, 2)) == 2
    assert pool.take(B, 2) == kept


def test_a_child_of_the_agent_can_close_its_copies_of_all_locks(pool: PortPool) -> None:
    pool.take(A, 3)
    names = sorted(lock.getsockname() for lock in pool.locks())
    assert len(names) == 3
    pool.give_back(A)
    assert pool.locks() == []


def test_the_address_is_this_end_of_the_connection() -> None:
    with Server() as server:
        store = RedisStore(server.url)
        assert own_address(store.link) == "127.0.0.1"
        store.close()
