"""After any changes a table reads like a sorted dict, and any two of its states list exactly their
differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.core import chunks as framework_rows
from batchq.core.chunks import CHUNK, Rows
from batchq.store import memory as store_row
from batchq.store.memory import MOST_WAITING, ObjectRow

State = tuple[dict[str, object], Rows[object]]


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks so small that they split and join all the time."""
    monkeypatch.setattr(framework_rows, "CHUNK", 8)
    monkeypatch.setattr(store_row, "CHUNK", 8)
    monkeypatch.setattr(store_row, "SMALL", 2)
    monkeypatch.setattr(store_row, "ROOMY", 6)


STEPS = st.lists(st.tuples(st.sampled_from("ppprr="), st.integers(0, 60)), max_size=150)


def history(steps: list[tuple[str, int]], *, filled: int) -> list[State]:
    """Return the states of a table with their expected contents; each `=` takes a view."""
    expected: dict[str, object] = {f"{number:03}": object() for number in range(filled)}
    row: ObjectRow[object] = ObjectRow()
    row.fill(expected)
    states = [(dict(expected), row.all())]
    for what, number in steps:
        key = f"{number:03}"
        match what:
            case "p":
                item = object()
                assert row.put(key, item) is expected.get(key)
                expected[key] = item
            case "r":
                assert row.remove(key) is expected.pop(key, None)
            case _:
                states.append((dict(expected), row.all()))
        assert row.get(key) is expected.get(key)
    return [*states, (dict(expected), row.all())]


def differences(before: dict[str, object], now: dict[str, object]) -> list[object]:
    return [
        (key, before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) is not now.get(key)
    ]


@pytest.mark.usefixtures("tiny_chunks")
@given(steps=STEPS, filled=st.integers(0, 61))
def test_a_table_reads_like_a_sorted_dict_in_every_state(
    steps: list[tuple[str, int]], filled: int
) -> None:
    for expected, rows in history(steps, filled=filled):
        assert list(rows.items()) == sorted(expected.items(), key=lambda pair: pair[0])
        assert len(rows) == len(expected)
        assert all(rows.get(key) is item for key, item in expected.items())
        assert list(rows) == [rows[place] for place in range(len(rows))]


@pytest.mark.usefixtures("tiny_chunks")
@given(steps=STEPS, filled=st.integers(0, 61), pick=st.integers(0, 10_000))
def test_any_two_states_list_their_differences(
    steps: list[tuple[str, int]], filled: int, pick: int
) -> None:
    states = history(steps, filled=filled)
    before, former = states[pick % len(states)]
    for now, rows in states:
        assert list(rows.differences(former)) == differences(before, now)


def shuffled(count: int) -> list[str]:
    return [f"{number * 7919 % count:05}" for number in range(count)]


@pytest.mark.parametrize("keys", [sorted(shuffled(5_003)), shuffled(5_003)], ids=["sorted", "not"])
def test_chunks_are_never_too_long_and_rarely_short(keys: list[str]) -> None:
    row: ObjectRow[str] = ObjectRow()
    for key in keys:
        row.put(key, key)
    sizes = [len(chunk.keys) for chunk in row.all()._chunks]
    assert max(sizes) <= CHUNK
    assert len(sizes) <= 2 * 5_003 // CHUNK + 1
    for key in shuffled(5_003)[:4_900]:
        row.remove(key)
    assert len(row.all()._chunks) <= 4


@pytest.mark.parametrize("count", [1, MOST_WAITING, MOST_WAITING + 1, 3 * CHUNK])
def test_all_differences_are_listed_for_any_number_of_changed_keys(count: int) -> None:
    row: ObjectRow[object] = ObjectRow()
    row.fill({f"{number:05}": number for number in range(0, 5_000, 2)})
    former = row.all()
    for number in range(count):
        row.put(f"{number:05}", -number)
    row.remove("04998")
    before, now = dict(former.items()), dict(row.all().items())
    assert list(row.all().differences(former)) == differences(before, now)
    assert len(now) == 2_500 + count // 2 - 1
