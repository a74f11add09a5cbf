"""By which configuration the leading scheduler goes, for those who want to know what it would do.

The leader publishes it when it begins to lead and when it has taken up another one. The text is
YAML that `batchq.config.load.read_config` reads, every default written out. It stays when nobody
leads: it is then what the last leader went by.
"""

from __future__ import annotations

from typing import cast

from batchq.store import keys, scripts
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
