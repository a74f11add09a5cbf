"""The pace of the scheduler. Every turn here is counted; the periods are short or very long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from structlog.testing import capture_logs
from structlog.typing import EventDict

from batchq.core.session.snapshot import Settings
from batchq.daemon.loop import SOON_S, Loop, TurnReport
from batchq.errors import InvariantBroken, StoreUnavailable
from batchq.store.outage import Backoff, Outage
from tests.daemon.waiting import until

HOUR_MS = 3_600_000


class Turns:
    """Counts its turns, and how many of them run at once."""

    def __init__(self, inside: Callable[[int], TurnReport] = lambda _: TurnReport()) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.threads: set[int] = set()
        self.most_at_once = 0
        self._inside = inside

    @property
    def count(self) -> int:
        return len(self.ended)

    def __call__(self) -> TurnReport:
        self.began.append(time.monotonic())
        self.threads.add(threading.get_ident())
        self.most_at_once = max(self.most_at_once, len(self.began) - len(self.ended))
        try:
            return self._inside(len(self.began))
        finally:
            self.ended.append(time.monotonic())


def turned(anyway: bool) -> TurnReport:
    """Return an empty report after a wait, whatever its result."""
    del anyway
    return TurnReport()


@contextmanager
def running(
    turns: Turns,
    *,
    period_ms: int = HOUR_MS,
    apart_ms: int = 1,
    crashed: Callable[[BaseException], None] = lambda _: None,
    asking_s: Callable[[int], float] = lambda _: 0.0,
) -> Iterator[Loop]:
    """A loop that has taken its first turn, and is stopped afterwards."""
    loop = Loop(
        turns,
        settings=Settings(schedule_period_ms=period_ms, min_session_interval_ms=apart_ms),
        outage=Outage(),
        crashed=crashed,
        asking_s=asking_s,
        backoff=Backoff(first_ms=10, longest_ms=20),
        patience_s=60,
    )
    loop.start()
    try:
        until(lambda: len(turns.began) > 0)
        yield loop
    finally:
        loop.stop()


def events(lines: list[EventDict]) -> list[str]:
    return [line["event"] for line in lines]


def test_the_first_turn_is_taken_at_once_and_others_every_period() -> None:
    turns = Turns()
    with running(turns, period_ms=20):
        until(lambda: turns.count >= 4)


def test_turns_are_taken_in_one_thread_and_one_at_a_time() -> None:
    turns = Turns()
    with running(turns, period_ms=5) as loop:
        while turns.count < 20:
            loop.wake()
    assert turns.most_at_once == 1
    assert len(turns.threads) == 1
    assert threading.get_ident() not in turns.threads


def test_a_wake_brings_the_next_turn_forward() -> None:
    turns = Turns()
    with running(turns) as loop:
        until(lambda: turns.count == 1)
        loop.wake()
        until(lambda: turns.count == 2)


def test_many_wakes_during_a_turn_are_one_turn_after_it() -> None:
    let_go = threading.Event()
    turns = Turns(lambda number: turned(number > 1 or let_go.wait(60)))
    with running(turns) as loop:
        for _ in range(1000):
            loop.wake()
        let_go.set()
        until(lambda: turns.count >= 2)
    assert turns.count == 2


def test_turns_keep_their_distance_after_any_number_of_wakes() -> None:
    turns = Turns()
    with running(turns, apart_ms=30) as loop:
        while turns.count < 5:
            loop.wake()
    gaps = [start - end for start, end in zip(turns.began[1:], turns.ended, strict=False)]
    assert min(gaps) >= 0.03


def test_a_long_turn_is_followed_after_an_eighth_of_its_duration() -> None:
    turns = Turns(lambda _: turned(threading.Event().wait(0.16)))
    with running(turns, apart_ms=150) as loop:
        while turns.count < 30:
            loop.wake()
            gaps = [start - end for start, end in zip(turns.began[1:], turns.ended, strict=False)]
            # The shortest gap counts, because the machine may be busy.
            if turns.count >= 3 and min(gaps) < 0.15:
                break
    assert 0.02 <= min(gaps) < 0.15


#: A pause after which a loop has taken its first turn.
FAR_APART = Settings(schedule_period_ms=50, min_session_interval_ms=HOUR_MS)


def test_a_hurried_turn_does_not_wait_for_the_distance_between_turns() -> None:
    turns = Turns()
    with running(turns) as loop:
        loop.go_by(FAR_APART)
        until(lambda: turns.count > 0 and time.monotonic() - turns.ended[-1] > 0.2)
        before = turns.count
        loop.wake()
        until(lambda: time.monotonic() - turns.ended[-1] > 0.3)
        # One turn has begun and waits, because no resources were reported as freed.
        assert turns.count == before
        loop.hurry()
        until(lambda: turns.count == before + 1)
        until(lambda: time.monotonic() - turns.ended[-1] > 0.2)
        assert turns.count == before + 1


def test_turns_that_are_hurried_take_no_more_than_four_fifths_of_the_time() -> None:
    turns = Turns(lambda _: turned(threading.Event().wait(0.2)))
    with running(turns) as loop:
        loop.go_by(FAR_APART)
        while turns.count < 5:
            loop.hurry()
    gaps = [start - end for start, end in zip(turns.began[1:], turns.ended, strict=False)]
    assert min(gaps[1:]) >= 0.05


def test_hurried_turns_are_no_further_apart_than_others() -> None:
    turns = Turns(lambda _: turned(threading.Event().wait(1.0)))
    with running(turns, apart_ms=1) as loop:
        for number in range(1, 30):
            until(lambda: len(turns.began) == number)  # noqa: B023
            gaps = [start - end for start, end in zip(turns.began[1:], turns.ended, strict=False)]
            # A quarter of a turn would be 0.25 s. The shortest gap counts, because the machine may
            # be busy.
            if number >= 4 and min(gaps) < 0.25:
                break
            loop.hurry()
    assert min(gaps) < 0.25


def test_wakes_from_many_threads_block_neither_each_other_nor_a_stop() -> None:
    turns = Turns()
    with running(turns, period_ms=1) as loop:

        def wake_often() -> None:
            for _ in range(300):
                loop.wake()

        wakers = [threading.Thread(target=wake_often) for _ in range(6)]
        for waker in wakers:
            waker.start()
        until(lambda: turns.count > 10)
    for waker in wakers:
        waker.join(60)
        assert not waker.is_alive()


def test_the_loop_wakes_when_something_is_due() -> None:
    turns = Turns(lambda number: TurnReport(due_in_ms=30 if number == 1 else None))
    with running(turns):
        until(lambda: turns.count == 2)
    assert turns.began[1] - turns.ended[0] >= 0.03


def test_an_overdue_instant_does_not_make_the_loop_spin() -> None:
    turns = Turns(lambda _: TurnReport(due_in_ms=-5))
    with running(turns, period_ms=50):
        until(lambda: turns.count >= 9)
    # A turn that came late is followed by one that is on time.
    assert turns.began[8] - turns.began[0] >= 8 * 0.025


def test_a_loop_that_a_clock_put_off_is_pushed_on() -> None:
    turns = Turns()
    with running(turns, period_ms=20) as loop:
        until(lambda: turns.count >= 1)

        # The effect on the plan of a clock that is set back by an hour.
        in_an_hour = datetime.now(UTC) + timedelta(hours=1)
        loop._scheduler.modify_job("period", next_run_time=in_an_hour)
        before = turns.count
        until(lambda: time.monotonic() - turns.ended[-1] > 0.05)
        until(lambda: bool(loop.keep_pace() or turns.count > before))


def test_a_loop_on_time_is_not_pushed() -> None:
    turns = Turns()
    with running(turns) as loop:
        until(lambda: turns.count == 1)
        for _ in range(100):
            loop.keep_pace()
    assert turns.count == 1


def test_an_unavailable_store_is_asked_less_often_and_logged_once() -> None:
    def refuse(number: int) -> TurnReport:
        if number < 6:
            raise StoreUnavailable("the server is not running")
        return TurnReport()

    turns = Turns(refuse)
    with capture_logs() as lines, running(turns, period_ms=HOUR_MS) as loop:
        while turns.count < 6:
            # A wake does not shorten the back-off of an unavailable store.
            loop.wake()
        until(lambda: "store.back" in events(lines))
    assert events(lines) == ["store.unavailable", "store.back"]
    gaps = [b - a for a, b in zip(turns.ended[:5], turns.began[1:6], strict=True)]
    assert min(gaps) >= 0.005
    assert min(gaps[1:]) >= 0.01


def test_a_hanging_turn_is_logged_with_duration_and_place() -> None:
    let_go = threading.Event()
    turns = Turns(lambda number: turned(number != 1 or let_go.wait(60)))
    with capture_logs() as lines, running(turns, period_ms=10) as loop:
        until(lambda: events(lines).count("session.hangs") >= 2)
        assert loop.hanging_s() > 0.1
        let_go.set()
        until(lambda: "session.ended_at_last" in events(lines))
        until(lambda: turns.count > 1)
    complaints = [line for line in lines if line["event"] == "session.hangs"]
    assert complaints[0]["for_s"] >= 0.1
    assert "threading.py" in complaints[0]["where"]
    # The second message comes when the turn has lasted twice as long.
    assert complaints[1]["for_s"] >= 0.2


def test_a_turn_that_waits_for_a_hanging_store_is_an_outage() -> None:
    let_go = threading.Event()

    def ask(number: int) -> TurnReport:
        if number == 1:
            let_go.wait(60)
            raise StoreUnavailable("the server does not answer within 10 s")
        return TurnReport()

    asked: list[int] = []
    turns = Turns(ask)

    def asking_s(thread: int) -> float:
        asked.append(thread)
        return time.monotonic() - turns.began[0]

    with capture_logs() as lines, running(turns, period_ms=10, asking_s=asking_s) as loop:
        until(lambda: loop.hanging_s() > 0.2)
        let_go.set()
        until(lambda: "store.back" in events(lines))
    # On a busy machine, a later turn may hang.
    assert events(lines)[:2] == ["store.unavailable", "store.back"]
    assert set(asked) == turns.threads


def test_the_log_reports_a_hang_before_its_end() -> None:
    let_go = threading.Event()
    told: list[str] = []

    def inside(number: int) -> TurnReport:
        if number == 1:
            let_go.wait(60)
        elif number == 2:
            # On a busy machine, a later turn may hang, too.
            told.extend(events(lines))
        return TurnReport()

    turns = Turns(inside)

    def asking_s(_: int) -> float:
        # The turn ends just when the second message about its hang is due.
        if "session.hangs" in events(lines) and time.monotonic() - turns.began[0] > 0.4:
            let_go.set()
            threading.Event().wait(0.1)
        return 0.0

    with capture_logs() as lines, running(turns, period_ms=10, asking_s=asking_s):
        until(lambda: "session.ended_at_last" in events(lines))
        until(lambda: turns.count > 1)
    assert told[-1] == "session.ended_at_last"
    assert set(told[:-1]) == {"session.hangs"}


def test_a_turn_of_several_periods_is_not_reported_as_hanging() -> None:
    turns = Turns(lambda number: turned(number != 1 or not threading.Event().wait(0.5)))
    with capture_logs() as lines, running(turns, period_ms=200):
        until(lambda: turns.count >= 3)
    longest_s = max(end - start for start, end in zip(turns.began, turns.ended, strict=True))
    # On a busy machine, a turn may last as long as one that hangs.
    assert events(lines) == [] or longest_s > 1.9


def test_an_internal_error_is_reported_and_no_further_turn_runs() -> None:
    met: list[BaseException] = []

    def broken(number: int) -> TurnReport:
        if number == 2:
            raise InvariantBroken("node n1 is oversubscribed by 3 cpu")
        return TurnReport()

    turns = Turns(broken)
    with running(turns, period_ms=10, crashed=met.append) as loop:
        until(lambda: len(met) == 1)
        loop.wake()
        loop.keep_pace()
    assert str(met[0]) == "node n1 is oversubscribed by 3 cpu"
    assert turns.count == 2


def test_a_stop_waits_for_the_turn_that_runs() -> None:
    began = threading.Event()

    def slow(number: int) -> TurnReport:
        began.set()
        threading.Event().wait(0.1)
        return TurnReport()

    turns = Turns(slow)
    with running(turns, period_ms=5) as loop:
        began.wait(10)
        loop.stop()
        assert len(turns.began) == turns.count
        assert not loop.alive


def test_a_stop_does_not_wait_for_ever() -> None:
    let_go = threading.Event()
    turns = Turns(lambda _: turned(let_go.wait(60)))
    loop = Loop(turns, settings=Settings(), outage=Outage(), crashed=print, patience_s=0.05)
    loop.start()
    until(lambda: len(turns.began) == 1)
    with capture_logs() as lines:
        loop.stop()
    assert events(lines) == ["service.stuck"]
    assert loop.alive
    let_go.set()
    until(lambda: not loop.alive)


def test_a_loop_may_be_stopped_twice_and_before_its_start() -> None:
    turns = Turns()
    loop = Loop(turns, settings=Settings(), outage=Outage(), crashed=print)
    loop.stop()
    loop.start()
    loop.stop()
    assert turns.count == 0
    with running(turns) as other:
        other.stop()
        other.stop()
        other.start()
        other.wake()
    assert turns.count == 1


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with running(Turns(), period_ms=5):
        added = set(threading.enumerate()) - before
        assert not any(thread.daemon for thread in added)
    until(lambda: set(threading.enumerate()) <= before)


def test_another_pace_counts_from_the_turn_that_takes_it_up() -> None:
    def inside(number: int) -> TurnReport:
        if number == 2:
            loops[0].go_by(Settings(schedule_period_ms=20, min_session_interval_ms=1))
        return TurnReport()

    loops: list[Loop] = []
    turns = Turns(inside)
    with running(turns) as loop:
        loops.append(loop)
        until(lambda: turns.count == 1)
        loop.wake()
        until(lambda: turns.count >= 6)
        assert loop.period_s == 0.02


def test_a_longer_pace_puts_the_next_turn_off() -> None:
    turns = Turns()
    with running(turns, period_ms=5) as loop:
        until(lambda: turns.count >= 3)
        loop.go_by(Settings(schedule_period_ms=HOUR_MS, min_session_interval_ms=1))
        # A turn may just have begun.
        until(lambda: len(turns.began) == turns.count)
        before = turns.count
        assert not threading.Event().wait(0.1)
        assert turns.count <= before + 1
        loop.wake()
        until(lambda: turns.count > before)


def test_a_reloaded_min_session_interval_applies_to_the_next_turns() -> None:
    turns = Turns()
    with running(turns) as loop:
        until(lambda: turns.count == 1)
        loop.go_by(Settings(schedule_period_ms=HOUR_MS, min_session_interval_ms=60))
        while turns.count < 4:
            loop.wake()
    gaps = [began - ended for ended, began in zip(turns.ended, turns.began[1:], strict=False)]
    assert min(gaps[1:]) >= 0.055


def test_a_change_that_no_decision_waits_for_has_its_turn_a_moment_later() -> None:
    turns = Turns()
    with running(turns) as loop:
        until(lambda: turns.count == 1)
        asked_at = time.monotonic()
        loop.wake_soon()
        loop.wake_soon()
        until(lambda: turns.count == 2)
        assert turns.began[1] - asked_at >= SOON_S


def test_a_change_that_no_decision_waits_for_keeps_the_distance_between_turns() -> None:
    turns = Turns()
    with running(turns, apart_ms=500) as loop:
        until(lambda: turns.count == 1)
        loop.wake_soon()
        until(lambda: turns.count == 2)
    assert turns.began[1] - turns.ended[0] >= 0.49


def test_a_change_that_no_decision_waits_for_shares_the_turn_of_the_next() -> None:
    let_go = threading.Event()
    turns = Turns(lambda number: turned(number > 1 or let_go.wait(60)))
    with running(turns) as loop:
        loop.wake_soon()
        loop.wake()
        let_go.set()
        until(lambda: turns.count == 2)
        began = turns.began[1]
        loop.wake_soon()
        until(lambda: turns.count == 3)
        # A third turn for the first of these changes would have begun by then.
        assert turns.began[2] - began >= SOON_S
