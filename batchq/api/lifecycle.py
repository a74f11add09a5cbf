"""The phases of pod groups and pods, and every move between them, as tables.

One move per (phase, event). `batchq/store/lua/moves.lua` has the same pairs and refuses all others;
a test compares the two and the README's diagram.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Owner = Literal["client", "scheduler", "agent"]


class PodGroupPhase(StrEnum):
    PENDING = "Pending"
    IN_QUEUE = "InQueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class PodPhase(StrEnum):
    PENDING = "Pending"
    BOUND = "Bound"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    EVICTED = "Evicted"


@dataclass(frozen=True, slots=True)
class Move:
    """On `event`, an object moves from `start` to `finish`; `owner` is the process that may write
    it.
    """

    start: str
    event: str
    finish: str
    owner: Owner


_P, _I, _R, _U = (
    PodGroupPhase.PENDING,
    PodGroupPhase.IN_QUEUE,
    PodGroupPhase.RUNNING,
    PodGroupPhase.UNKNOWN,
)
_DONE, _FAILED, _CANCELLED = (
    PodGroupPhase.COMPLETED,
    PodGroupPhase.FAILED,
    PodGroupPhase.CANCELLED,
)

POD_GROUP_MOVES: tuple[Move, ...] = (
    Move(_P, "admitted", _I, "scheduler"),
    Move(_I, "rolled back", _P, "scheduler"),
    Move(_I, "minMember pods started", _R, "scheduler"),
    Move(_R, "fell below minMember", _U, "scheduler"),
    Move(_U, "recovered", _R, "scheduler"),
    Move(_R, "evicted", _P, "scheduler"),
    Move(_U, "evicted", _P, "scheduler"),
    Move(_I, "every pod succeeded", _DONE, "scheduler"),
    Move(_R, "every pod succeeded", _DONE, "scheduler"),
    Move(_U, "every pod succeeded", _DONE, "scheduler"),
    Move(_P, "can never run", _FAILED, "scheduler"),
    Move(_I, "gave up", _FAILED, "scheduler"),
    Move(_R, "gave up", _FAILED, "scheduler"),
    Move(_U, "gave up", _FAILED, "scheduler"),
    Move(_P, "cancelled", _CANCELLED, "client"),
    Move(_I, "cancelled", _CANCELLED, "client"),
    Move(_R, "cancelled", _CANCELLED, "client"),
    Move(_U, "cancelled", _CANCELLED, "client"),
)

_QUEUED, _BOUND, _RUNS = PodPhase.PENDING, PodPhase.BOUND, PodPhase.RUNNING
_OK, _BAD, _OUT = PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.EVICTED

POD_MOVES: tuple[Move, ...] = (
    Move(_QUEUED, "bound", _BOUND, "scheduler"),
    Move(_BOUND, "claimed", _RUNS, "agent"),
    Move(_BOUND, "could not start", _BAD, "agent"),
    Move(_RUNS, "exited with 0", _OK, "agent"),
    Move(_RUNS, "exited otherwise", _BAD, "agent"),
    Move(_BOUND, "stopped", _OUT, "agent"),
    Move(_RUNS, "stopped", _OUT, "agent"),
    Move(_BAD, "retried", _QUEUED, "scheduler"),
    Move(_OUT, "requeued", _QUEUED, "scheduler"),
    # Requeued and bound in one session: the step between is never stored.
    Move(_BAD, "retried and bound", _BOUND, "scheduler"),
    Move(_OUT, "requeued and bound", _BOUND, "scheduler"),
)

TERMINAL = frozenset({_DONE, _FAILED, _CANCELLED})
ADMITTED = frozenset({_I, _R, _U})
#: The phases in which a pod occupies a node.
ON_NODE = frozenset({_BOUND, _RUNS})


def allowed(moves: tuple[Move, ...]) -> frozenset[tuple[str, str]]:
    """Return the pairs (start, finish) of a table."""
    return frozenset((str(move.start), str(move.finish)) for move in moves)
