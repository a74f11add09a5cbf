"""By which configuration the leading scheduler goes, for those who want to know what it would do.

The leader publishes it when it begins to lead and when it has taken up another one. The text is
YAML that `batchq.config.load.read_config` reads, every default written out. It stays when nobody
leads: it is then what the last leader went by.
"""

from __future__ import annotations

from typing import cast

from batchq.api.transaction import EVERY_NAMESPACE, ONE_GROUP, POD_GROUPS, Limit, Transaction
from batchq.store import codec, keys, scripts
from batchq.store.redis import RedisStore


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
