"""The outbox: what has been bound and not yet been handed over to the nodes' queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchq.api.transaction import Delivery
from batchq.store import codec, keys

#: Of one command: the server does nothing else meanwhile.
_A_COMMAND = 1_000


def add_taking_out(pipeline: Any, deliveries: Sequence[Delivery]) -> None:
    """Take these out of the outbox, with what else is sent. Twice is harmless."""
    fields = [codec.delivery_field(delivery) for delivery in deliveries]
    for start in range(0, len(fields), _A_COMMAND):
        pipeline.hdel(keys.OUTBOX, *fields[start : start + _A_COMMAND])
