"""What a client has for programs that work hand in hand with the scheduler: those that run external
groups, those that answer admission checks, and those that open scheduling gates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from batchq.api.transaction import Transaction

if TYPE_CHECKING:
    from batchq.client.checks import Checks
    from batchq.client.external import External
    from batchq.client.gating import Gates
    from batchq.store.redis import RedisStore


class Controlling(ABC):
    """Part of `batchq.client.Client`, whose connection it uses."""

    _store: RedisStore
    _tell: Callable[[str], None]
    _component: str

    @cached_property
    def user(self) -> str:
        """The name under which what this client asks for is remembered: the server's user, or
        whoever runs the program and where, after the `component` that it says it is.
        """
        from batchq.client.identity import user_of

        return user_of(self._store, self._component)

    @cached_property
    def gates(self) -> Gates:
        """The scheduling gates, which people and controllers of yours open."""
        from batchq.client.gating import Gates

        return Gates(self._store, self._change, lambda: self.user)

    @cached_property
    def external(self) -> External:
        """The external groups, which a program of yours claims and runs."""
        from batchq.client.external import External

        return External(self._store, self._change)

    @cached_property
    def checks(self) -> Checks:
        """The admission checks, which controllers of yours keep active and answer."""
        from batchq.client.checks import Checks

        return Checks(self._store, self._change, self._tell)

    @abstractmethod
    def _change(self, build: Callable[[int], Transaction | None]) -> bool:
        """Ask for a change, anew if somebody else was faster; whether anything changed."""
