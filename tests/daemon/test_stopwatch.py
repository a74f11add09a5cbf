"""Times of plugins and actions, by a clock that the called functions advance."""

from __future__ import annotations

import pytest

from batchq.daemon.metrics import Stopwatch


class Clock:
    """A clock that `work` advances."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at

    def work(self, seconds: float) -> str:
        self.at += seconds
        return f"{seconds} s of work"


def test_all_calls_of_a_session_add_up() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    gates = stopwatch.plugin("gates", "preEnqueue", clock.work)
    assert gates(1.0) == "1.0 s of work"
    gates(2.0)
    assert stopwatch.read() == ({("gates", "preEnqueue"): 3.0}, {})


def test_time_spent_in_a_plugin_another_one_calls_is_the_called_ones() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    inner = stopwatch.plugin("capacity", "admissible", clock.work)

    def order() -> None:
        clock.work(1.0)
        inner(5.0)
        clock.work(2.0)
        inner(7.0)

    outer = stopwatch.plugin("proportion", "queueOrder", order)
    enqueue = stopwatch.action("enqueue", lambda _: outer())
    enqueue(None)
    plugins, actions = stopwatch.read()
    assert plugins == {("capacity", "admissible"): 12.0, ("proportion", "queueOrder"): 3.0}
    assert actions == {"enqueue": 15.0}


def test_an_uncalled_plugin_has_no_time_and_a_reading_resets_the_stopwatch() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)
    stopwatch.plugin("gang", "preemptable", clock.work)
    stopwatch.action("enqueue", clock.work)(1.0)  # type: ignore[arg-type]  # a bound method
    assert stopwatch.read() == ({}, {"enqueue": 1.0})
    assert stopwatch.read() == ({}, {})


def test_a_plugin_that_raises_leaves_the_times_of_others_right() -> None:
    clock = Clock()
    stopwatch = Stopwatch(clock)

    def broken() -> None:
        clock.work(1.0)
        raise ZeroDivisionError

    inner = stopwatch.plugin("broken", "score", broken)

    def patient() -> None:
        with pytest.raises(ZeroDivisionError):
            inner()
        clock.work(2.0)

    stopwatch.plugin("patient", "predicate", patient)()
    plugins, _ = stopwatch.read()
    assert plugins == {("broken", "score"): 1.0, ("patient", "predicate"): 2.0}
