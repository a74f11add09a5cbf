"""By which configuration the scheduler goes that leads, or led last."""

from __future__ import annotations

from msgspec import Struct

from batchq.client.connecting import connect
from batchq.client.leading import NO_LEADER, nobody_leads
from batchq.errors import NotFound
from batchq.store.effective import read_config_text


class Published(Struct, frozen=True, kw_only=True):
    """A configuration as a file that has every default. `led`: somebody leads, and goes by it."""

    text: str
    led: bool


def published_config(url: str | None) -> Published:
    """What the leader has published.

    Raises InvalidInput, StoreUnavailable, and NotFound if nobody has ever led there.
    """
    store = connect(url)
    try:
        text = read_config_text(store)
        if text is None:
            raise NotFound(
                "no scheduler has published what it goes by",
                hint=NO_LEADER if nobody_leads(store) else "one of an older version leads",
            )
        return Published(text=text, led=not nobody_leads(store))
    finally:
        store.close()
