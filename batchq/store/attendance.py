"""Which schedulers there are: each says at its pace that it is there, and how far its mirror is.

Nothing is decided by this. It is there for people, who want to know which processes stand by to
lead, of which version, and whether they could begin at once. Entries go by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec import Struct

from batchq.store import keys, scripts
from batchq.store.redis import RedisStore


class Seen(Struct, frozen=True, kw_only=True):
    """One scheduler, as it last said of itself.

    `seen_at` is in the server's milliseconds. `mirrored` is the revision that its mirror had then;
    None: it has none yet, and would list everything before its first session.
    """

    identity: str
    seen_at: int
    version: str
    mirrored: int | None


def attend(store: RedisStore, identity: str, *, version: str, mirrored: int | None) -> None:
    """Say that this scheduler is there. Raises StoreUnavailable."""
    said = f"{'-' if mirrored is None else mirrored} {version}"
    store.link.run(
        scripts.ATTEND,
        (keys.SCHEDULERS,),
        (identity, store.now_ms(), said, keys.SCHEDULERS_TTL_S),
    )


def depart(store: RedisStore, identity: str) -> None:
    """Say that it is not there any more. Raises StoreUnavailable."""
    store.link.ask(lambda client: client.hdel(keys.SCHEDULERS, identity))


def attending(store: RedisStore) -> Sequence[Seen]:
    """All that were there within the last minute, by identity. Raises StoreUnavailable."""
    stored = store.link.ask(
        lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.SCHEDULERS))
    )
    oldest = store.now_ms() - keys.SCHEDULERS_TTL_S * 1000
    found = [_read(identity.decode(), stored[identity].decode()) for identity in sorted(stored)]
    return [one for one in found if one.seen_at >= oldest]


def revision(store: RedisStore) -> int:
    """How many writes there have been: where a mirror is that lacks none.

    Raises StoreUnavailable.
    """
    return int(store.link.ask(lambda client: cast(bytes, client.get(keys.REVISION))) or 0)


def _read(identity: str, said: str) -> Seen:
    seen_at, mirrored, version = said.split(" ", 2)
    return Seen(
        identity=identity,
        seen_at=int(seen_at),
        version=version,
        mirrored=None if mirrored == "-" else int(mirrored),
    )
