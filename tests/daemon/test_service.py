"""Services start once and stop once, from any thread and after any number of calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchq.daemon import Services, ThreadService


class Diary:
    """A service that records the calls."""

    def __init__(self, name: str, lines: list[str], *, broken: bool = False) -> None:
        self.name = name
        self.alive = False
        self._lines = lines
        self._broken = broken

    def start(self) -> None:
        if self._broken:
            raise OSError("broken")
        self._lines.append(f"{self.name} starts")

    def stop(self) -> None:
        self._lines.append(f"{self.name} stops")


def wait_for_stop(stopping: threading.Event) -> None:
    stopping.wait()


def test_a_service_runs_until_it_is_stopped() -> None:
    service = ThreadService("waits", wait_for_stop)
    assert not service.alive
    service.start()
    assert service.alive
    service.stop()
    assert not service.alive


def test_its_thread_is_not_left_to_die() -> None:
    seen: list[bool] = []
    service = ThreadService("looks", lambda _: seen.append(threading.current_thread().daemon))
    service.start()
    service.stop()
    assert seen == [False]


def test_started_twice_it_runs_once() -> None:
    runs: list[str] = []
    service = ThreadService("once", lambda _: runs.append("run"))
    service.start()
    service.start()
    service.stop()
    service.start()
    assert runs == ["run"]


def test_stopped_before_its_start_it_never_starts() -> None:
    runs: list[str] = []
    service = ThreadService("never", lambda _: runs.append("run"))
    service.stop()
    service.start()
    service.stop()
    assert runs == []


def test_starts_and_stops_from_everywhere_at_once_end_in_a_stopped_service() -> None:
    for _ in range(50):
        service = ThreadService("raced", wait_for_stop)
        with ThreadPoolExecutor(8) as pool:
            for turn in range(8):
                pool.submit(service.start if turn % 2 else service.stop)
        service.stop()
        assert not service.alive


def test_a_service_may_stop_itself() -> None:
    made: list[ThreadService] = []
    service = ThreadService("itself", lambda _: made[0].stop())
    made.append(service)
    service.start()
    service.stop()
    assert not service.alive


def test_a_thread_that_does_not_end_is_left_after_a_while() -> None:
    released = threading.Event()

    def deaf(stopping: threading.Event) -> None:
        released.wait()

    service = ThreadService("deaf", deaf, patience_s=0.01)
    service.start()
    service.stop()
    assert service.alive
    released.set()
    service.stop()


def test_several_start_in_order_and_stop_in_reverse() -> None:
    lines: list[str] = []
    services = Services([Diary("first", lines), Diary("second", lines)])
    services.start()
    services.stop()
    assert lines == ["first starts", "second starts", "second stops", "first stops"]


def test_when_one_does_not_start_those_before_it_are_stopped() -> None:
    lines: list[str] = []
    services = Services([Diary("first", lines), Diary("second", lines, broken=True)])
    with pytest.raises(OSError, match="broken"):
        services.start()
    assert lines == ["first starts", "second stops", "first stops"]
