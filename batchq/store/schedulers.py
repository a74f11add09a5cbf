"""Which schedulers there are: each says at its pace that it is there, and how far its mirror is.

Nothing is decided by this. It is there for people, who want to know which processes stand by to
lead, of which version, and whether they could begin at once. Entries go by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from msgspec import Struct

from batchq.api.transaction import EVERY_NAMESPACE, ONE_GROUP, POD_GROUPS, Limit, Transaction
from batchq.store import codec, keys, scripts
from batchq.store.link import read_revision
from batchq.store.records import name_of
from batchq.store.redis import RedisStore


class SchedulerSeen(Struct, frozen=True, kw_only=True):
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


def attending(store: RedisStore) -> Sequence[SchedulerSeen]:
    """All that were there within the last minute, by identity. Raises StoreUnavailable."""
    stored = store.link.ask(
        lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.SCHEDULERS))
    )
    oldest = store.now_ms() - keys.SCHEDULERS_TTL_S * 1000
    found = [_read(identity, stored[identity]) for identity in sorted(stored)]
    return [one for one in found if one is not None and one.seen_at >= oldest]


def revision(store: RedisStore) -> int:
    """How many writes there have been: where a mirror is that lacks none.

    Raises StoreUnavailable.
    """
    return read_revision(store.link)


#: What schedulers say of themselves. The script forgets what is none.
_SAID = re.compile(r"(\d{1,16}) (-|\d{1,16}) (\S{1,64})")


def _read(identity: bytes, stored: bytes) -> SchedulerSeen | None:
    said = _SAID.fullmatch(stored.decode(errors="replace"))
    if said is None:
        return None
    seen_at, mirrored, version = said.groups()
    return SchedulerSeen(
        identity=name_of(identity),
        seen_at=int(seen_at),
        version=version,
        mirrored=None if mirrored == "-" else int(mirrored),
    )


def publish_config(store: RedisStore, text: str, *, epoch: int | None = None) -> bool:
    """Say, as the leader of `epoch`, what is gone by from now on; False if another leads since.

    `epoch` None: whoever leads. Raises StoreUnavailable.
    """
    answer = store.link.run(
        scripts.PUBLISH, (keys.CONFIG, keys.EPOCH), (text, "" if epoch is None else epoch)
    )
    return bool(answer == b"ok")


def read_config_text(store: RedisStore) -> str | None:
    """What was published last; None if nobody has ever led. Raises StoreUnavailable."""
    stored = store.link.ask(lambda client: cast("bytes | None", client.get(keys.CONFIG)))
    return None if stored is None else stored.decode(errors="replace")


def publish_object_limit(store: RedisStore, most: int, *, request_id: str, epoch: int) -> None:
    """Allow so many unfinished groups in each namespace whose ResourceQuotas do not say otherwise,
    as the leader of `epoch`; nothing happens if another leads since. Raises StoreUnavailable.
    """
    limit = Limit(scope=EVERY_NAMESPACE, amounts={POD_GROUPS: most * ONE_GROUP})
    transaction = Transaction(subject="every namespace", limits=(limit,))
    store.commit([transaction], request_id=request_id, epoch=epoch)


def read_object_limit(store: RedisStore) -> int | None:
    """How many unfinished groups a namespace may have unless its ResourceQuotas say otherwise; None
    if nobody has published that, or it cannot be read. Raises StoreUnavailable.
    """
    stored = store.link.ask(
        lambda client: cast("bytes | None", client.hget(keys.LIMITS, EVERY_NAMESPACE))
    )
    try:
        units = codec.read_limit(stored or b"{}").get(POD_GROUPS)
    except codec.DAMAGE:
        return None
    return None if units is None else units // ONE_GROUP
