"""What a loop does now and then, each thing at its own pace."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from batchq.errors import StoreUnavailable

log = structlog.get_logger(__name__)

_AGAIN_MS = 1000


class Chores:
    """Steps with their periods; owned by one loop. Instants are monotonic milliseconds."""

    def __init__(self, steps: dict[Callable[[], None], int], *, now_ms: int) -> None:
        self._periods = dict(steps)
        self._due_at = dict.fromkeys(steps, now_ms)

    def add(self, step: Callable[[], None], period_ms: int, *, now_ms: int) -> None:
        """One more step, due now."""
        self._periods[step] = period_ms
        self._due_at[step] = now_ms

    def next_due_at(self) -> int:
        """When `do` has something to do."""
        return min(self._due_at.values())

    def do(self, *, now_ms: int) -> None:
        """What is due. A step that the server does not let happen is tried again in a second.

        The steps behind it wait for the next turn: asking a server that is away takes seconds,
        and signals are looked at between turns.
        """
        for step, due_at in list(self._due_at.items()):
            if now_ms < due_at:
                continue
            try:
                step()
            except StoreUnavailable as trouble:
                log.warning("chore put off", chore=step.__name__, trouble=trouble.message)
                self._due_at[step] = now_ms + _AGAIN_MS
                return
            self._due_at[step] = now_ms + self._periods[step]
