"""Every claim of docs/security.md names an existing test that shows it."""

from __future__ import annotations

import re

from batchq.store.roles import ROLES
from tests.tidy.source import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def claims() -> list[str]:
    """Return the rows of the tables whose last column names tests."""
    rows: list[str] = []
    for table in re.findall(r"^\| \| shown by \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE):
        rows += table.splitlines()
    return rows


def test_every_claim_has_a_test() -> None:
    rows = claims()
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", row)] == []


def test_every_role_has_its_row() -> None:
    named = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(named) == sorted(role.name for role in ROLES)
