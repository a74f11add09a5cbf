"""docs/peers-cases-kube-batch.md: the tables and counts are generated, the prose is not.

`python -m tests.cases.kube_batch_page` writes them again, and a test compares them.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.cases.kube_batch_entry import DIFFERS, NOT_APPLICABLE, SAME, Entry
from tests.cases.kube_batch_table import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "peers-cases-kube-batch.md"

#: The prose ends where the first table of cases begins.
_FIRST = "## What differs"


def written_anew(page: str) -> str:
    """Return the page with the table's counts and cases."""
    prose = page.partition(_FIRST)[0]
    counts = Counter(entry.word for entry in TABLE)
    for word in (SAME, DIFFERS, NOT_APPLICABLE):
        prose = re.sub(rf"^\| {word} \| \d+ \|", f"| {word} | {counts[word]} |", prose, flags=re.M)
    return prose + "\n".join([*_differs(), *_not_applicable(), *_same()])


def _differs() -> list[str]:
    rows = [f"| `{e.case}` | {_shown(e)} | {e.why} |" for e in TABLE if e.word == DIFFERS]
    return [_FIRST, "", "| case | what batchq does | why |", "|---|---|---|", *rows, ""]


def _not_applicable() -> list[str]:
    rows = [f"| `{e.case}` | {e.why} |" for e in TABLE if e.word == NOT_APPLICABLE]
    return ["## What is not applicable", "", "| case | why |", "|---|---|", *rows, ""]


def _same() -> list[str]:
    rows = [f"| `{e.case}` | {_shown(e)} | {e.why} |" for e in TABLE if e.word == SAME]
    head = ["## What is the same", "", "| case | what batchq does | remark |", "|---|---|---|"]
    return [*head, *rows, ""]


def _shown(entry: Entry) -> str:
    """Return the result as lines; shares have one line for each queue."""
    match entry.does:
        case tuple() as lines:
            return "<br>".join(f"`{line}`" for line in lines)
        case dict() as parts if parts:
            return "<br>".join(f"`{name}: {part}`" for name, part in parts.items())
        case _:
            return f"`{entry.does}`"


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
