"""How a process learns that it is to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from batchq.daemon.ending import Ending


@pytest.fixture
def ending() -> Iterator[Ending]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Ending()
    yield made
    for number, action in before.items():
        signal.signal(number, action)
    made.close()


def test_nobody_asks_and_the_wait_is_over_in_time(ending: Ending) -> None:
    assert ending.wait(0.01) is None
    assert not ending.asked


def test_a_signal_asks_with_zero(ending: Ending) -> None:
    ending.on_signals(signal.SIGTERM, signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert ending.wait(5) == 0


def test_a_signal_that_comes_during_the_wait_ends_it(ending: Ending) -> None:
    ending.on_signals(signal.SIGINT)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert ending.wait() == 0
    timer.join()


def test_the_first_word_counts(ending: Ending) -> None:
    ending.ask(70)
    ending.ask(0)
    assert (ending.wait(), ending.wait(1)) == (70, 70)


def test_more_wishes_than_a_pipe_holds_do_no_harm(ending: Ending) -> None:
    for _ in range(70_000):
        ending.ask(3)
    assert ending.wait() == 3
