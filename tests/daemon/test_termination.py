"""Requests to end a process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from batchq.daemon import Termination


@pytest.fixture
def ending() -> Iterator[Termination]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Termination()
    yield made
    for number, action in before.items():
        signal.signal(number, action)
    made.close()


def test_a_wait_without_a_request_to_end_is_over_in_time(ending: Termination) -> None:
    assert ending.wait(0.01) is None
    assert not ending.asked


def test_a_signal_asks_with_zero(ending: Termination) -> None:
    ending.on_signals(signal.SIGTERM, signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert ending.wait(90) == 0


def test_a_signal_that_comes_during_the_wait_ends_it(ending: Termination) -> None:
    ending.on_signals(signal.SIGINT)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert ending.wait() == 0
    timer.join()


def test_the_first_requested_exit_code_counts(ending: Termination) -> None:
    ending.ask(70)
    ending.ask(0)
    assert (ending.wait(), ending.wait(1)) == (70, 70)


def test_more_requests_than_a_pipe_holds_do_not_block(ending: Termination) -> None:
    for _ in range(70_000):
        ending.ask(3)
    assert ending.wait() == 3


def test_a_signal_that_another_thread_is_given_ends_the_wait(ending: Termination) -> None:
    ending.on_signals(signal.SIGINT)
    # The main thread blocks the signal, so its system call is not interrupted.
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        assert ending.wait(90) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    timer.join()


def test_a_signal_that_means_something_else_leaves_the_wait_to_go_on(ending: Termination) -> None:
    ending.on_signals(signal.SIGINT)
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        assert ending.wait(0.05) is None
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGHUP]
