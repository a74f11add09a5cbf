"""Uids: their form, their order and their uniqueness."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from batchq.system import CountingIds, RandomIds


class StillClock:
    """A clock whose time the test sets."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


def many(count: int) -> list[str]:
    """Return uids of one source; called in other processes."""
    ids = RandomIds()
    return [ids.new_uid() for _ in range(count)]


def test_a_uid_is_sixteen_letters_and_digits() -> None:
    assert all(re.fullmatch("[a-z0-9]{16}", uid) for uid in many(1000))


def test_uids_of_one_source_increase_even_within_a_millisecond() -> None:
    clock = StillClock(1_800_000_000_000)
    ids = RandomIds(clock)
    made = [ids.new_uid() for _ in range(1000)]
    clock.time_ms += 1
    made.append(ids.new_uid())
    assert made == sorted(set(made))


def test_uids_increase_even_if_the_clock_is_set_back() -> None:
    clock = StillClock(1_800_000_000_000)
    ids = RandomIds(clock)
    before = ids.new_uid()
    clock.time_ms -= 3_600_000
    assert ids.new_uid() > before


def test_a_later_uid_of_another_source_sorts_later() -> None:
    earlier = RandomIds(StillClock(1_800_000_000_000)).new_uid()
    assert RandomIds(StillClock(1_800_000_000_001)).new_uid() > earlier


def test_a_clock_before_the_first_millisecond_still_gives_uids() -> None:
    assert re.fullmatch("0{8}[a-z0-9]{8}", RandomIds(StillClock(0)).new_uid())


def test_threads_of_one_source_never_create_equal_uids() -> None:
    ids = RandomIds()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: ids.new_uid(), range(20_000)))
    assert len(set(made)) == 20_000


def test_processes_never_create_equal_uids() -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        made = [uid for batch in pool.map(many, [20_000, 20_000]) for uid in batch]
    assert len(set(made)) == 40_000


def test_counting_ids_are_the_same_in_every_run() -> None:
    ids = CountingIds(first=35)
    assert [ids.new_uid(), ids.new_uid()] == ["000000000000000z", "0000000000000010"]
