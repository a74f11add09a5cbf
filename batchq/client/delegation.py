"""A connection on which a program acts for other users, as the HTTP API does."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType

from batchq.client import Client
from batchq.client.access_control import AccessControl
from batchq.client.connection import connect, user_of
from batchq.client.watch import Watch
from batchq.store.schedulers import revision


class Delegate:
    """A connection to the server; a context manager. One delegate must not be shared by threads."""

    def __init__(self, url: str | None = None) -> None:
        """Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers."""
        self._store = connect(url)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def __enter__(self) -> Delegate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def client_of(self, user: str) -> Client:
        """Return a client on this connection, whose requests are recorded under a user's name.

        It need not be closed.
        """
        client = Client(store=self._store)
        client.user = user  # in place of the cached property
        return client

    @cached_property
    def access(self) -> AccessControl:
        """The tokens, bindings and the audit trail of the HTTP API."""
        return AccessControl(self._store)

    @property
    def user(self) -> str:
        """The name under which the server records this program: `alice@laptop`, or its user."""
        return user_of(self._store, "")

    def revision(self) -> int:
        """Return the count of writes: what is read from now on includes all of these."""
        return revision(self._store)

    def watcher(self, *kinds: str) -> Watch:
        """Return a reader of changes, which lists what exists and then polls for changes."""
        return Watch(self._store, kinds)

    def now_ms(self) -> int:
        """Return the server's time. Raises StoreUnavailable."""
        return self._store.now_ms()
