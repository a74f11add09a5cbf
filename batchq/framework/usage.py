"""What queues and namespaces have used over time, decayed by a half-life.

A pod that has run has used what it asks for times its milliseconds, unless preempt or reclaim
ended the run. What groups that have ended used is kept in buckets of an hour, by scope of the
ledger; what others have used is added when somebody asks. A millisecond counts by
2^(-age / half-life), from a table of integers, as in the fair-share factor of Slurm's multifactor
plugin and its PriorityDecayHalfLife.

It follows from the records of groups and pods alone: so it reaches back as far as these are kept,
which is a group's `ttlAfterFinished`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

from batchq.api.lifecycle import TERMINAL
from batchq.api.reasons import Leaving
from batchq.api.resources import Amounts, of_pod
from batchq.api.times import HOUR

if TYPE_CHECKING:
    from batchq.framework.session import Session
    from batchq.framework.state import GroupState

#: Runs are told apart by the hours in which they were.
BUCKET_MS = HOUR
#: Of a run that was longer the last part counts: whoever may write a record may say anything.
LONGEST_RUN_MS = 365 * 24 * HOUR
#: What is older than so many half-lives counts for nothing.
HALF_LIVES = 20
_STEPS = 64
_TAKEN = frozenset({Leaving.PREEMPTED, Leaving.RECLAIMED})


def _sixty_fourth_root(number: int) -> int:
    for _ in range(6):
        number = isqrt(number)
    return number


#: 2^(-k/64) in parts of 2^30, rounded down.
_WEIGHTS = tuple(_sixty_fourth_root(2 ** (30 * _STEPS - step)) for step in range(_STEPS))


def weight(age_ms: int, half_life_ms: int) -> int:
    """What a millisecond of that age counts for, in parts of 2^30."""
    halves, step = divmod(max(0, age_ms) * _STEPS // half_life_ms, _STEPS)
    return 0 if halves >= HALF_LIVES else _WEIGHTS[step] >> halves


class Ended:
    """What the groups that have ended used, by scope and bucket. Owned by a Carryover."""

    def __init__(self) -> None:
        #: Scope -> bucket -> resource-milliseconds.
        self._sums: dict[str, dict[int, dict[str, int]]] = {}
        #: Group's uid -> its scopes, and what it has used in which bucket.
        self._of: dict[str, tuple[tuple[str, ...], dict[int, Amounts]]] = {}

    def add(self, group: GroupState) -> None:
        """Count a group that has ended."""
        self.drop(group.uid)
        used: dict[int, Amounts] = {}
        for amounts, began, end in _runs(group, None):
            start = max(began, end - LONGEST_RUN_MS)
            for bucket in range(start // BUCKET_MS, -(-end // BUCKET_MS)):
                first, last = bucket * BUCKET_MS, (bucket + 1) * BUCKET_MS
                _count(used.setdefault(bucket, {}), amounts, min(end, last) - max(start, first))
        if used:
            self._of[group.uid] = (group.scopes, used)
            self._count_all(group.scopes, used, 1)

    def drop(self, uid: str) -> None:
        """Count a group no more; nothing happens if it was not counted."""
        if uid in self._of:
            scopes, used = self._of.pop(uid)
            self._count_all(scopes, used, -1)

    def _count_all(self, scopes: tuple[str, ...], used: dict[int, Amounts], sign: int) -> None:
        for scope in scopes:
            buckets = self._sums.setdefault(scope, {})
            for bucket, amounts in used.items():
                _count(buckets.setdefault(bucket, {}), amounts, sign)

    def decayed(self, scope: str, now_ms: int, half_life_ms: int) -> dict[str, int]:
        """Resource-milliseconds of a scope, each by its weight."""
        found: dict[str, int] = {}
        for bucket, amounts in self._sums.get(scope, {}).items():
            _count(found, amounts, weight(now_ms - (bucket + 1) * BUCKET_MS, half_life_ms))
        return found


def used_share(session: Session, scope: str, deserved: Amounts) -> Fraction:
    """The largest part that a scope has used of what the root deserves, as that is now, over the
    time that counts; over these dimensions.
    """
    half_life_ms = session.settings.half_life_ms
    assert half_life_ms is not None
    now_ms = session.now_ms
    used = session.ended.decayed(scope, now_ms, half_life_ms)
    for group in session.busy():
        if scope in group.scopes and group.phase not in TERMINAL:
            for amounts, start, end in _runs(group, now_ms):
                _count(used, amounts, _decayed_ms(now_ms - end, now_ms - start, half_life_ms))
    whole = _decayed_ms(0, HALF_LIVES * half_life_ms, half_life_ms)
    parts = (Fraction(used.get(name, 0), units * whole) for name, units in deserved.items())
    return max(parts, default=Fraction(0))


def _decayed_ms(youngest: int, oldest: int, half_life_ms: int) -> int:
    """The milliseconds between two ages, each by its weight."""
    step_ms = max(1, half_life_ms // _STEPS)
    found, age = 0, youngest
    oldest = min(oldest, HALF_LIVES * half_life_ms)
    while age < oldest:
        until = min(oldest, (age // step_ms + 1) * step_ms)
        found += (until - age) * weight(age, half_life_ms)
        age = until
    return found


def _runs(group: GroupState, now_ms: int | None) -> Iterator[tuple[Amounts, int, int]]:
    """What ran from when until when; `now_ms`: until when what still runs has, None: it does not
    count.
    """
    status = group.status
    if group.is_external:
        end = status.finished_at or now_ms
        if status.reservation and status.started_at is not None and end is not None:
            yield status.reservation, status.started_at, end
        return
    for pod in group.pods.values():
        start, end = pod.status.started_at, pod.status.finished_at or now_ms
        if start is not None and end is not None and pod.status.reason not in _TAKEN:
            yield of_pod(pod.spec.requests), start, end


def _count(sums: dict[str, int], amounts: Amounts, times: int) -> None:
    for name, units in amounts.items():
        sums[name] = sums.get(name, 0) + units * times
