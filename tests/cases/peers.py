"""What the tables of peers' cases share: the file, the classes, and the page held against them.

A peer's cases are data that belongs to nobody's checkout; they are looked for beside ours, and a
test that needs them says so and skips where they are not. What batchq is expected to do stands in
a table in this repository, so that the expectation does not move with what batchq does.
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

#: Whatever happens after this is told of no case.
HORIZON_S = 60

DOCS = Path(__file__).parents[2] / "docs"


class Row(Struct, frozen=True):
    """One case or variant: how batchq stands to it, and what comes of it here.

    `came` is literal; absent where the case cannot be played.
    """

    word: Word
    came: Any = None


def same(value: Any = None, **came: Any) -> Row:
    """batchq does what the peer's case expects, which is this."""
    return Row("same", came if value is None else value)


def differs(value: Any = None, **came: Any) -> Row:
    """batchq does this instead, on purpose; the page says why."""
    return Row("differs", came if value is None else value)


#: There is nothing in batchq that the case could be about; the page says why.
not_applicable = Row("not applicable")


def case_file(name: str) -> Data:
    """The file out of BATCHQ_CASES, or out of `shared/cases` beside the checkout; else a skip."""
    beside = Path(__file__).parents[3] / "shared" / "cases"
    folder = Path(os.environ.get("BATCHQ_CASES") or beside)
    path = folder / name
    if not path.is_file():
        pytest.skip(f"there is no {name} in {folder}; BATCHQ_CASES may name another folder")
    found: Data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def told_reason(reasons: Sequence[WorldReason]) -> str:
    """Whether a group waits for victims of its own; else the foremost reason that it waits for."""
    words = [str(reason.reason) for reason in reasons]
    return "WaitingForPreemption" if "WaitingForPreemption" in words else words[0]


def the_page(name: str) -> str:
    """A page of the guide, as written."""
    return (DOCS / name).read_text(encoding="utf-8")


def listed(page: str) -> dict[str, Word]:
    """What the page says of which case: the rows of its tables, by the heading they are under.

    A case is listed once; a row without a reason is none.
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
        name, told = row.groups()
        assert name not in found, f"{name} is listed twice"
        assert all(cell.strip() for cell in told.split(" | ")), f"{name}: a cell is empty"
        found[name] = word
    return found


def counts_told(page: str) -> dict[str, int]:
    """The page's table of counts: `| same | 12 |`."""
    rows = re.findall(r"^\| (same|differs|not applicable) \| (\d+) \|$", page, re.MULTILINE)
    return {word: int(number) for word, number in rows}


def counts_of(table: Mapping[str, Row]) -> dict[str, int]:
    return dict(Counter(row.word for row in table.values()))


def pages_business(table: Mapping[str, Row]) -> dict[str, Word]:
    """The rows that a page has to explain."""
    return {name: row.word for name, row in table.items() if row.word != "same"}


def missing(names: Iterable[str], table: Mapping[str, Row]) -> tuple[list[str], list[str]]:
    """Cases without a row, and rows without a case."""
    names = list(names)
    assert len(set(names)) == len(names), "two cases of the file have the same name"
    return [name for name in names if name not in table], [n for n in table if n not in names]
