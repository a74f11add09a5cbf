"""What a client can tell of the future: what the scheduler would make of a request."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchq.client.deciding import Deciding
    from batchq.client.planning import Plan
    from batchq.client.requests import Objects
    from batchq.client.starts import Starts
    from batchq.ports import IdSource
    from batchq.store.redis import RedisStore


class Foretelling:
    """A part of `Client`, which has the connection."""

    _store: RedisStore
    _ids: IdSource

    def plan(
        self, objects: Objects, *, keep_stop: Collection[str] = (), advise: bool = True
    ) -> Plan:
        """What the scheduler's next session would make of new groups, were they submitted now, with
        whatever else is among `objects` applied; nothing is written, and no right to is needed.

        Of groups that would wait, it tells what would help, unless `advise` is False: finding out
        takes a few sessions more.
        Raises what `submit_all` raises, and InvalidInput where there is no group at all, or where
        the scheduler goes by a configuration that this machine cannot follow.
        """
        from batchq.client.deciding import Deciding
        from batchq.client.planning import Planner
        from batchq.client.requests import decoded

        wanted, silent = decoded(objects)
        deciding = Deciding.open(self._store)
        planner = Planner(deciding, self._store, self._ids.new_uid)
        return planner.plan(wanted, keep_stop=silent.union(keep_stop), advise=advise)

    def starts(self, *, namespace: str = "", queue: str = "") -> Starts:
        """When those who wait are expected to start, the first to start first; of one namespace, of
        one queue and those below it. Nothing is written, and no right to is needed.

        Everybody ahead in line is counted; what runs, and what is planned, lasts as long as its
        walltime. At most 1,000 groups in line are planned.
        Raises InvalidInput where this machine cannot follow the scheduler's configuration.
        """
        from batchq.client.deciding import Deciding
        from batchq.client.starts import starts_of

        return starts_of(Deciding.open(self._store), namespace=namespace, queue=queue)

    def deciding(self) -> Deciding:
        """Everything that stands in the server, the scheduler that decides there by the
        configuration that its leader has published, and the server's time; nothing is written.

        Raises InvalidInput where this machine cannot follow that configuration.
        """
        from batchq.client.deciding import Deciding

        return Deciding.open(self._store)
