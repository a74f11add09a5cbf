"""Checks of queues: whether what is promised to them can be kept."""

from __future__ import annotations

from batchq.changes import Overpromised, overpromised
from batchq.client.doctor.finding import Finding, Level, or_ok, unseen
from batchq.client.doctor.state import State

_READS = "reading (`+@read`) of batchq's keys"


def guarantees(state: State) -> tuple[Finding, ...]:
    """What is guaranteed to all queues together fits on the ready nodes."""
    check = "guarantees"
    if state.books is None:
        return unseen(check, "the queues and nodes", _READS)
    over = overpromised(state.queues(), state.nodes())
    return or_ok((_finding(check, one) for one in over), check, "within what the ready nodes have")


def _finding(check: str, one: Overpromised) -> Finding:
    return Finding(
        check=check,
        level=Level.WARNING,
        subject=one.resource,
        found=f"{one.sentence()}: no queue gets more of it than it is guaranteed",
        expected="no more than the ready nodes have",
        remedy="bring nodes back or add some, or lower guarantees: `batchq queues apply -f FILE`",
    )
