"""The doorbell of a node: it rings when something has been brought there, so nobody looks in vain.

The leader rings once pods have been handed over to the node, or claims of its have been folded.
A ring says no more than which look is worth while. One that is lost, with the server or with
whoever was about to ring, costs a while and no pod: an agent looks now and then all the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from redis import exceptions as broken
from redis.backoff import NoBackoff
from redis.retry import Retry

from batchq.store import keys
from batchq.store.link import (
    ANSWER_TIMEOUT_S,
    LONGEST_BLOCK_MS,
    Link,
    close_client,
    new_client,
)

#: An answer that has begun is there at once.
_REST_WITHIN_S = 1.0
#: After a connection that broke, or a bell that somebody has spoiled: the agent looks meanwhile.
_AGAIN_S = 1.0
#: The latest rings of a node: who hears so many at once may have missed others.
RINGS_KEPT = 8
#: So many nodes are rung in one round trip.
_NODES_A_TRIP = 1_000


class Word(StrEnum):
    """What a ring is about."""

    PODS = "pods"
    CLAIMS = "claims"


EVERYTHING = frozenset(Word)


def ring(link: Link, nodes: Sequence[str], word: Word) -> None:
    """Ring at these nodes. Twice is harmless. Raises StoreUnavailable."""
    for start in range(0, len(nodes), _NODES_A_TRIP):
        some = nodes[start : start + _NODES_A_TRIP]

        def rung(client: Any, some: Sequence[str] = some) -> None:
            pipeline = client.pipeline(transaction=False)
            add_rings(pipeline, some, word)
            check_rung(pipeline.execute(raise_on_error=False))

        link.ask(rung)


def add_rings(pipeline: Any, nodes: Sequence[str], word: Word) -> None:
    """Ring at these nodes, with what else is sent; `check_rung` is given the answers."""
    for node in nodes:
        pipeline.xadd(keys.doorbell(node), {"word": word}, maxlen=RINGS_KEPT, approximate=False)
        pipeline.expire(keys.doorbell(node), keys.ALIVE_TTL_S)


def check_rung(answers: Sequence[Any]) -> None:
    """A bell that somebody has spoiled is done without; anything else is raised."""
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, broken.ResponseError):
            raise answer


class Doorbell:
    """A node's agent at its door: one connection that waits, while the agent does other things.

    Owned by one thread, which polls `fileno` beside whatever else it waits for.
    """

    def __init__(self, url: str, node: str) -> None:
        """Connects at the first `listen`."""
        self._key = keys.doorbell(node)
        self._client = new_client(url, retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_TIMEOUT_S)
        self._link = Link(url, client=self._client)
        self._connection: Any = None
        self._asked_at: float | None = None
        self._not_before = 0.0
        # From the first that is kept: what was brought before anybody listened is heard now.
        self._heard = "0-0"

    def fileno(self) -> int | None:
        """Readable when there may be something to hear; None while nobody listens."""
        socket = None if self._connection is None else self._connection._sock
        return None if socket is None else int(socket.fileno())

    def listen(self) -> None:
        """Wait for a ring from now on, if nobody does yet. Raises StoreUnavailable."""
        if self._asked_at is not None:
            if time.monotonic() - self._asked_at < LONGEST_BLOCK_MS / 1000 + ANSWER_TIMEOUT_S:
                return
            # A server that is not there any more says nothing, either.
            self._let_go()
        if time.monotonic() < self._not_before:
            return
        try:
            if self._connection is None:
                self._connection = self._client.connection_pool.get_connection()
            self._connection.send_command(
                *("XREAD", "COUNT", RINGS_KEPT, "BLOCK", LONGEST_BLOCK_MS, "STREAMS"),
                *(self._key, self._heard),
            )
        except (broken.RedisError, OSError) as error:
            self._let_go()
            raise self._link.unavailable(error) from error
        self._asked_at = time.monotonic()

    def hear(self) -> frozenset[Word]:
        """What it has rung for, or may have: what breaks the connection may hide a ring."""
        if self._asked_at is None:
            return frozenset()
        try:
            if not self._connection.can_read(timeout=0):
                return frozenset()
            reply = self._connection.read_response(timeout=_REST_WITHIN_S)
        except (broken.RedisError, OSError):
            self._let_go()
            self._not_before = time.monotonic() + _AGAIN_S
            return EVERYTHING
        self._asked_at = None
        if not reply:
            return frozenset()
        # By the protocol's version a map or a list of pairs.
        [(_, entries)] = reply.items() if isinstance(reply, dict) else reply
        self._heard = entries[-1][0].decode()
        said = {value.decode(errors="replace") for _, fields in entries for value in fields[1::2]}
        # A word of a later version may be about anything.
        if len(entries) == RINGS_KEPT or not said <= set(Word):
            return EVERYTHING
        return frozenset(map(Word, said))

    def close(self) -> None:
        """Let go of the connection."""
        self._let_go()
        close_client(self._client)

    def _let_go(self) -> None:
        connection, self._connection, self._asked_at = self._connection, None, None
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)
