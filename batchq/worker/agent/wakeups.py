"""When an agent looks whether pods were brought to its node: when its doorbell rings, and seldom
otherwise.
"""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Callable

import structlog

from batchq.api.times import SECOND
from batchq.errors import BatchqError, InvariantBroken, StoreUnavailable, UnreadableRecord
from batchq.store.link import is_damaged
from batchq.store.node_channels import WakeReason, WakeUpChannel
from batchq.store.outage import Backoff, Outage

#: Between two looks at an empty queue, should nobody have rung: a leader of before there was a
#: doorbell, or a server that lost its last second.
LOOK_MS = 1 * SECOND


class Door:
    """The node's door; owned by the agent's loop, whose `poll` hears the bell beside all else.

    Instants are monotonic milliseconds.
    """

    def __init__(self, url: str, node: str, poll: select.poll) -> None:
        self._bell = WakeUpChannel(url, node)
        self._poll = poll
        self._heard_on: int | None = None
        #: When there is something to look for, and how much may have come.
        self.look_at = 0
        self._may_be_many = False

    def listen(self) -> None:
        """Have the bell among what is waited for. Raises StoreUnavailable."""
        try:
            self._bell.listen()
        finally:
            self._hear_on(self._bell.fileno())

    def is_at(self, descriptor: int) -> bool:
        """Whether it is the bell that this descriptor tells of."""
        return descriptor == self._heard_on

    def answer(self) -> bool:
        """Hear what it rings for: for pods, there is something to look for; whether for claims."""
        words = self._bell.hear()
        # It has another descriptor after each connection that broke.
        self._hear_on(self._bell.fileno())
        if WakeReason.PODS in words:
            self.look_at, self._may_be_many = 0, True
        return WakeReason.CLAIMS in words

    def most(self, room: int) -> int:
        """How many to look for, with so much room: one where nobody has said that there are any."""
        return room if self._may_be_many else min(1, room)

    def has_looked(self, *, now_ms: int, are_more: bool) -> None:
        """Something was looked for, and there may be more."""
        self.look_at = now_ms if are_more else now_ms + LOOK_MS
        self._may_be_many = are_more

    def close(self) -> None:
        """Stop listening."""
        self._hear_on(None)
        self._bell.close()

    def _hear_on(self, descriptor: int | None) -> None:
        if descriptor == self._heard_on:
            return
        if self._heard_on is not None:
            self._poll.unregister(self._heard_on)
        if descriptor is not None:
            self._poll.register(descriptor, select.POLLIN)
        self._heard_on = descriptor


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
