"""The scheduler's interfaces to its environment, each with at least two implementations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from batchq.api.objects import Object
from batchq.api.transaction import Commit, Delivery, Event, Ledger, Transaction
from batchq.core.session.snapshot import Snapshot


class Clock(Protocol):
    """The only source of the present time."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""


class IdSource(Protocol):
    """The only source of uids, and of randomness in objects."""

    def new_uid(self) -> str:
        """Return a new uid of 16 characters out of `[a-z0-9]`, which sorts by creation time."""


class Reader(Protocol):
    """Reads single objects in their present state."""

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object, with its revision in its metadata, or None.

        Raises StoreUnavailable.
        """

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind (of one namespace), ordered by key.

        Raises StoreUnavailable.
        """


class Store(Reader, Protocol):
    """Keeps objects, the ledger and events."""

    def get_many(self, kind: str, keys: Sequence[str]) -> Mapping[str, Object]:
        """Return those of the objects that exist, by key, in their present state.

        Raises StoreUnavailable.
        """

    def snapshot(self) -> Snapshot:
        """Return everything a session reads, at one revision, every sequence in a fixed order."""

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

        `request_id` makes the call idempotent: repeated with the same id, it applies nothing and
        returns the first answer. `epoch`, for a leader's commits, must be the current one, or all
        transactions are refused. `overcommit` is in thousandths. `seen` is the revision of the
        snapshot that the decisions are based on: a transaction in which a checked charge grows
        anywhere but on a node is refused (CONFLICT, `the limits`) if a limit other than a node's
        was written later. With None, nothing was decided by a combination of limits.

        Raises StoreUnavailable when it is unknown whether the call was applied: call again with the
        same `request_id`.
        """

    def ledger(self) -> Ledger:
        """Return the sums of every scope, without zeros."""

    def charges(self) -> Mapping[str, tuple[tuple[str, ...], dict[str, int]]]:
        """Return every holder's scopes and amounts."""

    def events(self, *, kind: str = "", key: str = "", most: int = 100) -> Sequence[Event]:
        """Return the latest events (of one object), oldest first."""


class CommitStream(Protocol):
    """A commit whose transactions are handed over in portions, from one thread."""

    def add(self, transactions: Iterable[Transaction]) -> None:
        """Add transactions. The store may apply them, in order, while the next are decided.

        Raises StoreUnavailable.
        """

    def finish(self) -> Commit:
        """Apply the rest, and return the outcome of all; to be called once.

        Raises StoreUnavailable when it is unknown which were applied: those before one that was
        applied were answered.
        """


class BeginCommit(Protocol):
    """Begins a commit of which a store may apply some transactions before it has all."""

    def __call__(
        self,
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> CommitStream:
        """Begin a commit; the arguments are those of `Store.commit`."""


class Executor(Protocol):
    """Carries deliveries from the outbox to the nodes."""

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        """Hand over everything in the outbox, or only `bound`, if the caller knows what it has just
        bound; return the number of deliveries. Delivering twice is harmless.
        """
