"""Volcano's own cases: real sessions play each, and the result is compared with a literal row."""

from __future__ import annotations

import pytest

from tests.cases.peers import (
    Data,
    case_file,
    counts_of,
    counts_told,
    listed,
    missing,
    pages_business,
    the_page,
)
from tests.cases.volcano_file import cases_of
from tests.cases.volcano_play import came_of
from tests.cases.volcano_sections import is_volcanos, result_of
from tests.cases.volcano_table import TABLE

PAGE = "peers-cases-volcano.md"
PLAYED = [name for name, row in TABLE.items() if row.word in ("same", "differs")]

#: Cases of eviction in which the preemptor may already be admitted. In the other cases its queue
#: would then exceed its capability, or is closed.
IN_QUEUE_ALREADY = [
    *("PRE-1", "PRE-3", "PRE-4", "PRE-6", "PRE-8", "PRE-9", "PRE-10", "PRE-13", "PRE-15"),
    *("REC-1", "REC-3", "REC-4", "REC-7", "REC-9"),
    *("CAP-2", "CAP-3", "CAP-6", "CAP-9", "CH-A5", "CH-A6", "CH-A7"),
]


@pytest.fixture(scope="module")
def cases() -> dict[str, Data]:
    return cases_of(case_file("volcano.yaml"))


def test_every_case_and_row_of_the_file_is_in_the_table_once(cases: dict[str, Data]) -> None:
    assert missing(cases, TABLE) == ([], [])
    assert len(cases) == 77


@pytest.mark.parametrize("name", PLAYED)
def test_the_result_of_a_case_is_what_its_row_says(name: str, cases: dict[str, Data]) -> None:
    came = result_of(name, cases[name])
    assert came == TABLE[name].came
    assert is_volcanos(name, cases[name], came) == (TABLE[name].word == "same")


@pytest.mark.parametrize("name", IN_QUEUE_ALREADY)
def test_an_admitted_preemptor_has_the_same_victims(name: str, cases: dict[str, Data]) -> None:
    came = came_of(cases[name], "InQueue")
    row = TABLE[name].came
    assert [came.get(key) for key in ("evict", "binds", "then")] == [
        row.get(key) for key in ("evict", "binds", "then")
    ]


def test_the_page_explains_every_case_that_is_not_the_same() -> None:
    assert listed(the_page(PAGE)) == pages_business(TABLE)


def test_the_counts_of_the_page_equal_those_of_the_table() -> None:
    assert counts_told(the_page(PAGE)) == counts_of(TABLE)
