"""A function that does nothing, so that only the overhead of running it is measured."""

from __future__ import annotations


def noop() -> None:
    """Return at once."""
