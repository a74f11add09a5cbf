"""What a client has for many groups at once; one at a time is `Client.submit`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from batchq.client.groups import Submitted

if TYPE_CHECKING:
    from batchq.client.accepting import Existing, Tally
    from batchq.client.bulk import Submission
    from batchq.errors import BatchqError
    from batchq.ports import IdSource
    from batchq.store.redis import RedisStore


class Submitting(ABC):
    """Part of `batchq.client.Client`, whose connection it uses."""

    _store: RedisStore
    _ids: IdSource

    @property
    @abstractmethod
    def user(self) -> str:
        """Under which name what this client asks for is remembered."""

    def submit_many(
        self,
        requests: Iterable[Submitted],
        /,
        *,
        existing: Existing = "refuse",
        keep_going: bool = True,
        dry_run: bool = False,
        progress: Callable[[Tally], None] | None = None,
        **defaults: Any,
    ) -> Submission:
        """Submit many new groups, one batch after the other, and tell what became of each.

        `requests` may be an iterator, and never ends up in memory as a whole. Each is what `submit`
        takes first, or a dict of its keywords, for which `defaults` say what it leaves open. The
        answer is to be iterated over, or `.all()` to be called: for each request in order an
        `Accepted` with its `place` (from 0) and its `group`, or a `Refused` with the `error` that
        `submit` would have raised. Every group is accepted whole or refused by itself, and may
        depend on others that come before it.

        With `existing="keep"` a request whose name is taken by a group that says the same is
        accepted as `unchanged`: what was interrupted may be run again. Without `keep_going` nothing
        is sent any more after a batch in which one was refused. `progress` hears a `Tally` after
        each batch. `dry_run` checks everything and writes nothing; it remembers every name.

        Raises InvalidInput for defaults that are wrong by themselves. The iteration raises
        StoreUnavailable, and may be gone on with then.
        """
        from batchq.client.bulk import Submission

        return Submission(
            self._store,
            self._ids,
            requests,
            defaults,
            user=lambda: self.user,
            existing=existing,
            keep_going=keep_going,
            dry_run=dry_run,
            progress=progress,
        )

    def checker(self, **defaults: Any) -> Callable[[Submitted], BatchqError | None]:
        """What tells of one request after the other what is wrong with it by itself, and with the
        queue and the priority class that it names; None if nothing is. Whether its name is taken,
        and what it depends on, is not asked. Queues and priority classes are read once.

        Raises InvalidInput for defaults that are wrong by themselves; what it returns raises
        StoreUnavailable.
        """
        from batchq.client.accepting import Checker

        return Checker(self._store, defaults)
