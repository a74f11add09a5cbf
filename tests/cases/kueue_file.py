"""Kueue's cases by name: every case, every variant and every row of a table has one.

`K10/2` is the second variant of K10, `K34/StrictFIFO/1` the first row of that table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.cases.peers import Data

#: Tables of rows inside a case; its other parts are remarks and shared values of the rows.
_TABLES = ("rows", "delay_rules", "wake", "sync", "BestEffortFIFO", "StrictFIFO", "both")

#: Parts of a case that are a single row.
_SINGLE = ("evict", "bulk_example")

#: Not cases: descriptions and shared values of rows.
_SHARED = frozenset(
    {
        *("id", "title", "why", "mode", "source", "expect", "fair_sharing", "do_not_copy"),
        *("queues", "cohorts", "admitted", "incoming", "pending", "entries"),
        *("queue_flavors", "rules", "variants"),
    }
)


def cases_of(file: Data) -> dict[str, Data]:
    """Return every case by its name, in order; a variant includes the shared values of its case."""
    return {name: case for case in file["cases"] for name, case in _parts(case)}


def _parts(case: Data) -> Iterator[tuple[str, Data]]:
    name = case["id"]
    unknown = set(case) - _SHARED - {*_TABLES, *_SINGLE}
    assert not unknown, f"{name}: {sorted(unknown)} would be left out"
    alone = True
    for key, part in case.items():
        if key == "variants":
            shared = {other: value for other, value in case.items() if other != key}
            named = [(str(place), {**shared, **row}) for place, row in enumerate(part, start=1)]
        elif key in _TABLES:
            rows = part["rows"] if isinstance(part, Mapping) else part
            named = [(f"{key}/{place}", row) for place, row in enumerate(rows, start=1)]
        elif key in _SINGLE:
            named = [(key, part)]
        else:
            continue
        alone = False
        yield from ((f"{name}/{part}", {"mode": case["mode"], **row}) for part, row in named)
    if alone:
        yield name, case
