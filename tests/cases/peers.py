"""Shared parts of the tables of peers' cases: the file, the classes, and the check of the page.

A peer's cases are not part of this repository; tests that need them are skipped without them. The
expected results of batchq are literals in a table of this repository, so that they do not change
with batchq.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import yaml
from msgspec import Struct

from batchq.lab.simulation.report import WorldReason

Data: TypeAlias = dict[str, Any]

Word = Literal["same", "differs", "not applicable"]

#: Events after this time are not compared.
HORIZON_S = 60

DOCS = Path(__file__).parents[2] / "docs"


class Row(Struct, frozen=True):
    """One case or variant: how batchq compares, and batchq's result.

    `came` is a literal; it is absent if the case cannot be played.
    """

    word: Word
    came: Any = None


def same(value: Any = None, **came: Any) -> Row:
    """Return a row for a case in which batchq does what the peer expects, which is `came`."""
    return Row("same", came if value is None else value)


def differs(value: Any = None, **came: Any) -> Row:
    """Return a row for a case in which batchq deliberately does this; the page says why."""
    return Row("differs", came if value is None else value)


#: A row for a case whose subject batchq does not have; the page says why.
not_applicable = Row("not applicable")


def case_file(name: str) -> Data:
    """Return the file from BATCHQ_CASES or `shared/cases` beside the checkout, or skip the test."""
    beside = Path(__file__).parents[3] / "shared" / "cases"
    folder = Path(os.environ.get("BATCHQ_CASES") or beside)
    path = folder / name
    if not path.is_file():
        pytest.skip(f"there is no {name} in {folder}; BATCHQ_CASES may name another folder")
    found: Data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def told_reason(reasons: Sequence[WorldReason]) -> str:
    """Return whether a group waits for its victims, or else its first pending reason."""
    words = [str(reason.reason) for reason in reasons]
    return "WaitingForPreemption" if "WaitingForPreemption" in words else words[0]


def the_page(name: str) -> str:
    """Return the text of a page of the guide."""
    return (DOCS / name).read_text(encoding="utf-8")


def listed(page: str) -> dict[str, Word]:
    """Return the page's text for each case, from the rows of its tables, by heading.

    A case is listed once; rows without a reason are ignored.
    """
    words: dict[str, Word] = {
        "What deliberately differs": "differs",
        "What is not applicable": "not applicable",
    }
    found: dict[str, Word] = {}
    word: Word | None = None
    for line in page.splitlines():
        if line.startswith("## "):
            word = words.get(line.removeprefix("## "))
        row = re.fullmatch(r"\| `([^`]+)` \|(.+)\|", line)
        if word is None or row is None:
            continue
        name, answer = row.groups()
        assert name not in found, f"{name} is listed twice"
        assert all(cell.strip() for cell in answer.split(" | ")), f"{name}: a cell is empty"
        found[name] = word
    return found


def counts_told(page: str) -> dict[str, int]:
    """Return the page's table of counts: `| same | 12 |`."""
    rows = re.findall(r"^\| (same|differs|not applicable) \| (\d+) \|$", page, re.MULTILINE)
    return {word: int(number) for word, number in rows}


def counts_of(table: Mapping[str, Row]) -> dict[str, int]:
    return dict(Counter(row.word for row in table.values()))


def pages_business(table: Mapping[str, Row]) -> dict[str, Word]:
    """Return the rows that a page must explain."""
    return {name: row.word for name, row in table.items() if row.word != "same"}


def missing(names: Iterable[str], table: Mapping[str, Row]) -> tuple[list[str], list[str]]:
    """Return cases without a row, and rows without a case."""
    names = list(names)
    assert len(set(names)) == len(names), "two cases of the file have the same name"
    return [name for name in names if name not in table], [n for n in table if n not in names]
