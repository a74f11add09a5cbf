"""When an agent looks whether pods were brought to its node: when its doorbell rings, and seldom
otherwise.
"""

from __future__ import annotations

import select

from batchq.api.times import SECOND
from batchq.store.doorbell import Doorbell, Word

#: Between two looks at an empty queue, should nobody have rung: a leader of before there was a
#: doorbell, or a server that lost its last second.
LOOK_MS = 1 * SECOND


class Door:
    """The node's door; owned by the agent's loop, whose `poll` hears the bell beside all else.

    Instants are monotonic milliseconds.
    """

    def __init__(self, url: str, node: str, poll: select.poll) -> None:
        self._bell = Doorbell(url, node)
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
        if Word.PODS in words:
            self.look_at, self._may_be_many = 0, True
        return Word.CLAIMS in words

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
