"""Users of a Redis server: making, removing and saving them.

Users are not part of a server's data: they are kept in its ACL file, and not replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from batchq.errors import StoreUnavailable
from batchq.store.link import Link


class ServerUsers:
    """The users of one server, for a user of the role registrar. Belongs to one thread."""

    def __init__(self, url: str) -> None:
        """Connects at the first request. Raises InvalidInput for a malformed URL."""
        self._link = Link(url)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def write(self, name: str, rules: Sequence[str]) -> None:
        """Make a user with these rules, and save that. If there is a user of that name, it is
        replaced, and its connections end. Raises StoreUnavailable.
        """

        def written(client: redis.Redis) -> None:
            # In one step: a user that is removed and not made again would be locked out.
            pipeline = client.pipeline(transaction=True)
            for words in (("DELUSER", name), ("SETUSER", name, *rules)):
                pipeline.execute_command("ACL", *words)  # type: ignore[no-untyped-call]
            pipeline.execute()

        self._link.ask(written)
        self.save()

    def delete(self, name: str) -> bool:
        """Remove a user, end its connections, and save that; return whether there was one.

        Raises StoreUnavailable.
        """
        count = self._link.ask(lambda client: client.acl_deluser(name))
        self.save()
        return bool(count)

    def save(self) -> None:
        """Save the users in the server's ACL file. Raises StoreUnavailable."""

        def saved(client: redis.Redis) -> Any:
            return client.acl_save()

        try:
            self._link.ask(saved)
        except StoreUnavailable as error:
            if "ACL file" not in str(error.__cause__):
                raise
            raise StoreUnavailable(
                f"the server at {self._link.shown} keeps its users in no file, and would lose new"
                " ones",
                hint="start it with an `aclfile` that its account may write: conf/acl/README.md",
                lasts=True,
            ) from error
