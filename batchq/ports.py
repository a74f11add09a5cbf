"""What the scheduler needs of the world, as protocols, each with at least two implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from batchq.api.objects import Object
from batchq.api.transaction import Commit, Delivery, Event, Ledger, Transaction
from batchq.core.session.snapshot import Snapshot


class Clock(Protocol):
    """Tells the time; the only source of `now`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""


class IdSource(Protocol):
    """Makes uids; the only source of randomness in objects."""

    def new_uid(self) -> str:
        """A fresh uid of 16 characters out of `[a-z0-9]`, which sorts by time of making."""


class Reader(Protocol):
    """Objects as they are now."""

    def get(self, kind: str, key: str) -> Object | None:
        """The object, its revision in its metadata, or None.

        Raises StoreUnavailable.
        """

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """All objects of a kind (of one namespace), ordered by key.

        Raises StoreUnavailable.
        """


class Store(Reader, Protocol):
    """Where objects, the ledger and events are kept."""

    def get_many(self, kind: str, keys: Sequence[str]) -> Mapping[str, Object]:
        """Those of the objects that there are, by key, as they are now.

        Raises StoreUnavailable.
        """

    def snapshot(self) -> Snapshot:
        """Everything a session reads, at one revision, every sequence in a fixed order."""

    def commit(
        self,
        transactions: Sequence[Transaction],
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> Commit:
        """Apply each transaction whole or not at all, in order.

        `request_id` makes the call repeatable: the same id again answers what it answered first
        and applies nothing. `epoch`, for a leader's commits, must be the current one, or all
        are refused. `overcommit` is in thousandths. `seen` is the revision of the snapshot that all
        was decided on: a transaction in which a checked charge grows anywhere but on a node is
        refused (CONFLICT, `the limits`) if a limit other than a node's was written later. None:
        nothing was decided by what several limits say together.

        Raises StoreUnavailable when it cannot be known whether the call was applied: call again
        with the same `request_id`.
        """

    def ledger(self) -> Ledger:
        """The sums of every scope, without zeros."""

    def charges(self) -> Mapping[str, tuple[tuple[str, ...], dict[str, int]]]:
        """Every holder's scopes and amounts."""

    def events(self, *, kind: str = "", key: str = "", most: int = 100) -> Sequence[Event]:
        """The latest events (of one object), oldest first."""


class Executor(Protocol):
    """Carries deliveries from the outbox to the nodes."""

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        """Hand over what waits in the outbox, or only what was `bound` just now, by whoever has
        that in hand; how many that were. Twice is harmless.
        """
