"""A finding: what a check has seen, what it should have seen, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad it is, in rising order: `ok` is as it should be, a `note` is worth knowing, a
    `warning` will be trouble, an `error` is.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for ok."""
        return list(Level).index(self)


class Finding(Struct, frozen=True, kw_only=True):
    """`subject` is what it is about (a node, a group, a setting), empty for the whole system.

    `expected` and `remedy` are empty where everything is as it should be.
    """

    check: str
    level: Level
    subject: str = ""
    found: str
    expected: str = ""
    remedy: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """All findings, by check in the order of the table; every check has one at least."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Level:
        """The level of the worst of them."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank)

    def count(self, level: Level) -> int:
        """How many findings are of a level."""
        return sum(finding.level is level for finding in self.findings)


def ok(check: str, found: str) -> tuple[Finding, ...]:
    """All is as it should be."""
    return (Finding(check=check, level=Level.OK, found=found),)


def unseen(check: str, what: str, permission: str) -> tuple[Finding, ...]:
    """This user may not look."""
    return (
        Finding(
            check=check,
            level=Level.NOTE,
            found=f"cannot see {what}",
            expected="a user who may look",
            remedy=f"grant this user {permission}, or ask with an operator's credentials",
        ),
    )


def or_ok(findings: Iterable[Finding], check: str, found: str) -> tuple[Finding, ...]:
    """The findings, or that there are none."""
    return tuple(findings) or ok(check, found)
