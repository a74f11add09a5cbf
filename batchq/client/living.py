"""When nodes were heard of, and what must not be deleted, since it lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.objects import Node, Object
from batchq.api.times import describe_age
from batchq.errors import Conflict

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

#: An agent that was heard of so lately lives: three of its usual beats.
_LATELY_MS = 15_000


def nodes_as_heard(store: RedisStore) -> list[Node]:
    """All nodes by name, `status.heartbeat` being when each was last heard of."""
    beats = store.beats()
    found = []
    for node in store.list("Node"):
        assert isinstance(node, Node)
        heard = beats.get(node.metadata.name, node.status.heartbeat)
        status = structs.replace(node.status, heartbeat=heard)
        found.append(structs.replace(node, status=status))
    return found


def refuse_living(store: RedisStore, objects: Iterable[Object]) -> None:
    """A node whose agent lives would be made anew with the agent's next beat.

    Raises Conflict.
    """
    for item in objects:
        if not isinstance(item, Node) or not item.status.ready:
            continue
        name = item.metadata.name
        heard = store.beats().get(name)
        silent_ms = _LATELY_MS if heard is None else store.now_ms() - heard
        if silent_ms < _LATELY_MS:
            raise Conflict(
                f"Node {name} has an agent, heard of {describe_age(silent_ms)} ago, which"
                " would make it again",
                hint="stop the agent first: end its `batchq worker`, or `batchq down` on that"
                " machine",
            )
