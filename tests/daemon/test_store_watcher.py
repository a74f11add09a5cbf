"""Changes in the store wake the loop, but not too often."""

from __future__ import annotations

import threading
import time

from batchq.daemon.loop import watcher
from batchq.errors import StoreUnavailable
from tests.daemon.waiting import until


class Flag:
    """Changes that the test makes, in a store that can become unavailable."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.away = False
        self.calls = 0

    def wait_for_change(self, timeout_ms: int) -> bool:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("the server is not running")
        if not self.changed.wait(min(timeout_ms, 10) / 1000):
            return False
        self.changed.clear()
        return True


class Flood:
    """A store that changes all the time."""

    def wait_for_change(self, timeout_ms: int) -> bool:
        return True


def test_changes_and_quiet_periods_are_both_reported() -> None:
    flag, seen = Flag(), list[str]()
    service = watcher(
        flag,
        changed=lambda: seen.append("changed"),
        unchanged=lambda: seen.append("unchanged"),
        apart_s=lambda: 0.001,
    )
    service.start()
    until(lambda: "unchanged" in seen)
    assert "changed" not in seen
    flag.changed.set()
    until(lambda: "changed" in seen)
    service.stop()
    assert not service.alive


def test_a_flood_of_changes_is_reported_a_few_times() -> None:
    seen: list[float] = []
    service = watcher(
        Flood(),
        changed=lambda: seen.append(time.monotonic()),
        unchanged=lambda: None,
        apart_s=lambda: 0.02,
    )
    service.start()
    until(lambda: len(seen) >= 4)
    service.stop()
    assert seen[3] - seen[0] >= 0.06


def test_the_watcher_backs_off_from_an_unavailable_store_and_resumes() -> None:
    flag, seen = Flag(), list[str]()
    flag.away = True
    service = watcher(
        flag, changed=lambda: seen.append("changed"), unchanged=lambda: None, apart_s=lambda: 0.001
    )
    service.start()
    until(lambda: flag.calls >= 2)
    flag.away = False
    flag.changed.set()
    until(lambda: seen == ["changed"])
    service.stop()
