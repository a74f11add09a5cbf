"""The known schedulers: each records periodically that it is alive, and its mirror's revision.

No decision depends on this. It shows operators which processes can take over the lead, with
their versions, and whether they could begin at once. Entries expire.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from batchq.api.transaction import (
    EVERY_NAMESPACE,
    ONE_GROUP,
    POD_GROUPS,
    Limit,
    Transaction,
    objects_scope,
)
from batchq.store import keys, scripts
from batchq.store.records import DAMAGE, name_of, read_ledger, read_limit, read_limits
from batchq.store.redis import RedisStore


class SchedulerEntry(Struct, frozen=True, kw_only=True):
    """A scheduler's last record of itself.

    `seen_at` is in the server's milliseconds. `mirrored` is its mirror's revision at that time;
    None: it has no mirror yet, and would list everything before its first session. `config` is the
    digest of its configuration, '' from an older version; `refused_file` says that its file has
    changed since, and is wrong.
    """

    identity: str
    seen_at: int
    version: str
    mirrored: int | None
    config: str = ""
    refused_file: bool = False


def attend(
    store: RedisStore,
    identity: str,
    *,
    version: str,
    mirrored: int | None,
    config: str = "",
    refused_file: bool = False,
) -> None:
    """Record that this scheduler is alive. Raises StoreUnavailable."""
    # Older versions read all but the revision as the version.
    suffix = f";{config}{'!' if refused_file else ''}" if config else ""
    entry = f"{'-' if mirrored is None else mirrored} {version}{suffix}"
    store.link.run(
        scripts.ATTEND,
        (keys.SCHEDULERS,),
        (identity, store.now_ms(), entry, keys.SCHEDULERS_TTL_S),
    )


def depart(store: RedisStore, identity: str) -> None:
    """Remove this scheduler's entry. Raises StoreUnavailable."""
    store.link.ask(lambda client: client.hdel(keys.SCHEDULERS, identity))


def attending(store: RedisStore) -> Sequence[SchedulerEntry]:
    """Return the schedulers of the last minute, by identity. Raises StoreUnavailable."""
    stored = store.link.ask(
        lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.SCHEDULERS))
    )
    oldest = store.now_ms() - keys.SCHEDULERS_TTL_S * 1000
    found = [read_entry(identity, stored[identity]) for identity in sorted(stored)]
    return [one for one in found if one is not None and one.seen_at >= oldest]


#: A scheduler's entry. The script removes malformed ones.
_ENTRY = re.compile(r"(\d{1,16}) (-|\d{1,16}) ([^\s;]{1,64})(?:;([0-9a-f]{1,16})(!?))?")


def read_entry(identity: bytes, stored: bytes) -> SchedulerEntry | None:
    """Return a scheduler's entry; None for a malformed one."""
    found = _ENTRY.fullmatch(stored.decode(errors="replace"))
    if found is None:
        return None
    seen_at, mirrored, version, config, refused = found.groups()
    return SchedulerEntry(
        identity=name_of(identity),
        seen_at=int(seen_at),
        version=version,
        mirrored=None if mirrored == "-" else int(mirrored),
        config=config or "",
        refused_file=bool(refused),
    )


def publish_config(store: RedisStore, text: str, *, epoch: int | None = None) -> bool:
    """Publish the configuration of the leader of `epoch`; return False if another leads by now.

    `epoch` None: publish under any leader. Raises StoreUnavailable.
    """
    answer = store.link.run(
        scripts.PUBLISH, (keys.CONFIG, keys.EPOCH), (text, "" if epoch is None else epoch)
    )
    return bool(answer == b"ok")


def read_config_text(store: RedisStore) -> str | None:
    """Return the last published text; None before the first leader. Raises StoreUnavailable."""
    stored = store.link.ask(lambda client: cast("bytes | None", client.get(keys.CONFIG)))
    return None if stored is None else stored.decode(errors="replace")


def publish_object_limit(store: RedisStore, most: int, *, request_id: str, epoch: int) -> None:
    """Set the number of unfinished groups allowed in each namespace without a ResourceQuota for
    them, as the leader of `epoch`; nothing happens if another leads by now. Raises
    StoreUnavailable.
    """
    limit = Limit(scope=EVERY_NAMESPACE, amounts={POD_GROUPS: most * ONE_GROUP})
    transaction = Transaction(subject="every namespace", limits=(limit,))
    store.commit([transaction], request_id=request_id, epoch=epoch)


def read_object_limit(store: RedisStore) -> int | None:
    """Return the number of unfinished groups allowed in a namespace without a ResourceQuota for
    them; None if it is unpublished or unreadable. Raises StoreUnavailable.
    """
    stored = store.link.ask(
        lambda client: cast("bytes | None", client.hget(keys.LIMITS, EVERY_NAMESPACE))
    )
    try:
        units = read_limit(stored or b"{}").get(POD_GROUPS)
    except DAMAGE:
        return None
    return None if units is None else units // ONE_GROUP


def read_object_counts(store: RedisStore, namespace: str) -> tuple[int, int] | None:
    """Return the number of unfinished groups that a namespace may have, and the present number;
    None if there is no limit, or one of the two is unreadable. Raises StoreUnavailable.
    """
    scope = objects_scope(namespace)
    scopes, field = (scope, EVERY_NAMESPACE), f"{scope} {POD_GROUPS}"

    def asked(client: Any) -> list[Any]:
        pipeline = client.pipeline(transaction=True)
        pipeline.hmget(keys.LIMITS, scopes)
        pipeline.hget(keys.LEDGER, field)
        return cast("list[Any]", pipeline.execute())

    stored, counted = store.link.ask(asked)
    stated = {
        one.encode(): limit for one, limit in zip(scopes, stored, strict=True) if limit is not None
    }
    sums = {field.encode(): counted} if counted is not None else {}
    (limits, damaged), (ledger, damaged_sums) = read_limits(stated, 0), read_ledger(sums)
    found = (limits.get(one, {}).get(POD_GROUPS) for one in scopes)
    limit = next((one for one in found if one is not None), None)
    if limit is None or damaged or damaged_sums:
        return None
    return limit // ONE_GROUP, ledger.get(scope, {}).get(POD_GROUPS, 0) // ONE_GROUP
