"""What a loop does now and then, each thing at its own pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog

from batchq.errors import BatchqError, InvariantBroken, StoreUnavailable, UnreadableRecord
from batchq.store.link import is_damaged
from batchq.store.outage import Backoff, Outage

log = structlog.get_logger(__name__)

_AGAIN_MS = 500
_AGAIN_MOST_MS = 2000


class Chores:
    """Steps with their periods; owned by one loop. Instants are monotonic milliseconds.

    `outage` hears of a server that is away; that it is back says who knows that it has answered.
    """

    def __init__(
        self, steps: dict[Callable[[], object], int], *, now_ms: int, outage: Outage
    ) -> None:
        self._outage = outage
        #: How often each step has failed, by its name.
        self.failures: Counter[str] = Counter()
        self._backoff = Backoff(first_ms=_AGAIN_MS, longest_ms=_AGAIN_MOST_MS)
        self._periods = dict(steps)
        self._due_at = dict.fromkeys(steps, now_ms)
        #: Steps that are to come round again sooner than after their period.
        self._hurried: dict[Callable[[], object], int] = {}

    def add(self, step: Callable[[], object], period_ms: int, *, now_ms: int) -> None:
        """One more step, due now."""
        self._periods[step] = period_ms
        self._due_at[step] = now_ms

    def hurry(self, step: Callable[[], object], *, now_ms: int) -> None:
        """Let a step be due at `now_ms` at the latest, though it may be under way."""
        self._hurried[step] = min(now_ms, self._hurried.get(step, now_ms))
        self._due_at[step] = min(now_ms, self._due_at[step])

    def next_due_at(self) -> int:
        """When `do` has something to do."""
        return min(self._due_at.values())

    def do(self, *, now_ms: int) -> None:
        """What is due. A step that the server does not let happen is tried again soon; one that
        fails for another reason, or meets what batchq never writes, is told of, counted, and due
        again after its period: pods that run are not to end with it.

        The steps behind it wait for the next turn: asking a server that is away takes seconds,
        and signals are looked at between turns.
        """
        for step, due_at in list(self._due_at.items()):
            if now_ms < due_at:
                continue
            self._hurried.pop(step, None)
            try:
                step()
            except StoreUnavailable as trouble:
                if not is_damaged(trouble):
                    self._outage.failed(trouble)
                    self._due_at[step] = now_ms + self._backoff.next_ms()
                    return
                self._note_failure(step, trouble)
            except UnreadableRecord as error:
                self._note_failure(step, error)
            except (BatchqError, InvariantBroken):
                # What this agent is to end for: another serves its node, or a mistake of ours.
                raise
            except Exception as error:  # RQ raises anything over what anybody has written there
                self._note_failure(step, error)
            if not self._outage.unavailable:
                self._backoff.reset()
            due_at = now_ms + self._periods[step]
            self._due_at[step] = min(due_at, self._hurried.get(step, due_at))

    def _note_failure(self, step: Callable[[], object], error: Exception) -> None:
        name = getattr(step, "__name__", "step").strip("_")
        self.failures[name] += 1
        log.error("chore failed", chore=name, times=self.failures[name], error=str(error)[:200])
