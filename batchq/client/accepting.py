"""What becomes of each of many requests: it is accepted, or refused by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from batchq.api.objects import PodGroup
from batchq.changes import Arrivals
from batchq.client.drafts import Drafts
from batchq.client.groups import Submitted
from batchq.client.requests import Effect
from batchq.errors import BatchqError, InvalidInput, NotFound, Rejected, UsageError
from batchq.ports import Store

#: What to do about a name that is taken.
Existing: TypeAlias = Literal["refuse", "keep"]


class Accepted(Struct, frozen=True, kw_only=True):
    """The request at `place` (from 0) is stored as `group`: created, or `unchanged` from before."""

    place: int
    group: PodGroup
    effect: Effect = Effect.CREATED


class Refused(Struct, frozen=True, kw_only=True):
    """The request at `place` (from 0) is not stored, for the reason that `submit` would raise."""

    place: int
    error: BatchqError


Outcome: TypeAlias = Accepted | Refused


class Tally(Struct, frozen=True, kw_only=True):
    """How far it is: of the requests that were settled, in order, so many of each sort."""

    submitted: int = 0
    unchanged: int = 0
    refused: int = 0

    @property
    def settled(self) -> int:
        return self.submitted + self.unchanged + self.refused


class Checker:
    """See `Client.checker`."""

    def __init__(self, store: Store, defaults: Mapping[str, Any]) -> None:
        self._drafts = Drafts(defaults)
        self._arrivals = Arrivals(store)

    def __call__(self, what: Submitted) -> BatchqError | None:
        """What is wrong with it, or None. Raises StoreUnavailable."""
        try:
            # Any suffix will do: the names are made again when they are submitted.
            self._arrivals.check(self._drafts.draft(what, "00000").group)
        except (InvalidInput, UsageError, NotFound, Rejected) as error:
            return error
        return None
