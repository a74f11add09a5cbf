"""The function that does nothing: what is left is the cost of whoever runs it."""

from __future__ import annotations


def noop() -> None:
    """Return at once."""
