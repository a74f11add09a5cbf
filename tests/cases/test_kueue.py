"""Kueue's own cases: real sessions play each, and the result is compared with a literal row."""

from __future__ import annotations

import pytest

from tests.cases.kueue_file import cases_of
from tests.cases.kueue_play import WORLDS, came_of, came_to_others, is_kueues
from tests.cases.kueue_table import TABLE
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
from tests.effort import sample

PAGE = "peers-cases-kueue.md"
PLAYED = [name for name, row in TABLE.items() if row.word in ("same", "differs")]

#: From K33 on the cases are about order, parking and checks.
ABOUT_QUOTA = [name for name in PLAYED if name < "K33"]


@pytest.fixture(scope="module")
def cases() -> dict[str, Data]:
    return cases_of(case_file("kueue.yaml"))


def test_every_case_variant_and_row_of_the_file_is_in_the_table_once(
    cases: dict[str, Data],
) -> None:
    assert missing(cases, TABLE) == ([], [])
    assert len(cases) == 69


@pytest.mark.parametrize("name", PLAYED)
def test_the_result_of_a_case_is_what_its_row_says(name: str, cases: dict[str, Data]) -> None:
    came = came_of(cases[name])
    assert came == TABLE[name].came
    assert is_kueues(cases[name], came) == (TABLE[name].word == "same")


@pytest.mark.parametrize("name", sample(ABOUT_QUOTA, 9))
def test_external_groups_have_the_same_result(name: str, cases: dict[str, Data]) -> None:
    assert cases[name]["mode"] in WORLDS
    assert came_to_others(cases[name]) == TABLE[name].came


def test_the_page_explains_every_case_that_is_not_the_same() -> None:
    assert listed(the_page(PAGE)) == pages_business(TABLE)


def test_the_counts_of_the_page_equal_those_of_the_table() -> None:
    assert counts_told(the_page(PAGE)) == counts_of(TABLE)
