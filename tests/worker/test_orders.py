"""Tests of a work-horse that waits for its agent's next order."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from threading import Thread

import msgspec
import pytest

from batchq.worker.host.processes import Signals, is_readable
from batchq.worker.workhorse.inner_commands import DESCRIPTORS, InnerOrder, receive_order
from batchq.worker.workhorse.run_pod import _announce_end, _next_order
from batchq.worker.workhorse.supervision import KILL_SIGNAL, STOP_SIGNAL


@pytest.fixture
def signals() -> Iterator[Signals]:
    found = Signals(STOP_SIGNAL, KILL_SIGNAL)
    found.install()
    yield found
    found.close()


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_a_work_horse_without_an_agent_gets_no_order(
    signals: Signals, control: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = control
    theirs.close()
    assert not _announce_end(ours)
    assert _next_order(signals, ours) is None


def test_an_agent_killed_before_it_has_read_the_end_gives_no_order(
    signals: Signals, control: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = control

    def close_with_the_byte_unread() -> None:
        is_readable(theirs.fileno(), within_ms=10_000)
        theirs.close()

    agent = Thread(target=close_with_the_byte_unread)
    agent.start()
    assert _announce_end(ours)
    assert _next_order(signals, ours) is None
    agent.join()


def test_orders_arrive_whole_one_by_one_with_their_descriptors(
    control: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = control
    sent = [InnerOrder(argv=("echo", "x" * length)) for length in (100_000, 10)]
    for order in sent:
        socket.send_fds(theirs, [msgspec.json.encode(order)], [theirs.fileno()] * DESCRIPTORS)
    theirs.close()
    received = [receive_order(ours) for _ in sent]
    assert [order for order, _ in received] == sent
    for _, descriptors in received:
        assert len(descriptors) == DESCRIPTORS
        for descriptor in descriptors:
            os.close(descriptor)
    assert receive_order(ours) == (None, [])
