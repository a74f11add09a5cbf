"""The connection that RQ is given, and what goes wrong on it in batchq's words.

RQ knows one set of keys, `rq:...`, for all that use it. Whoever may write them for one node could
take and spoil what is another's. So each node has a set of its own: a connection of a node puts
every such name behind the node's prefix on its way to the server.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import structlog
from redis import exceptions as broken
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

from batchq.store import keys
from batchq.store.link import (
    ANSWER_TIMEOUT_S,
    FIRST_DELAY_S,
    Link,
    close_client,
    new_client,
)

log = structlog.get_logger(__name__)

#: Commands of which more than the first argument are keys.
_ALL_KEYS = frozenset({"DEL", "EXISTS", "UNLINK", "WATCH"})
_TWO_KEYS = frozenset({"LMOVE", "RENAME", "RPOPLPUSH", "SMOVE"})


class _Place:
    """Whether nodes have keys apart: not where users are from a file of before they had."""

    def __init__(self) -> None:
        self.is_apart = True


class RqConnection(redis.Redis):
    """A client whose commands on `rq:...` go to those keys of its node; without one, as they are.

    Values are sent as they are, also where they look like names of keys.
    """

    node = ""
    place = _Place()

    def key(self, name: str) -> str:
        """The key that stands for RQ's."""
        return keys.of_rq(self.node, name) if self.node and self.place.is_apart else name

    def of(self, node: str) -> RqConnection:
        """A client for a node's keys, over the same connections, which stay this one's."""
        other = copy.copy(self)
        other.node, other.auto_close_connection_pool = node, False
        return other

    def with_keys(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """A command with the keys of the node."""
        if not self.node:
            return words
        command = str(words[0]).upper()
        past = len(words) if command in _ALL_KEYS else 3 if command in _TWO_KEYS else 2
        return (words[0], *map(self._key_of, words[1:past]), *words[past:])

    def _key_of(self, word: Any) -> Any:
        if isinstance(word, bytes):
            return self.key(word.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        return self.key(word) if isinstance(word, str) else word

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis`."""
        words = self.with_keys(args)
        return super().execute_command(*words, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """See `redis.Redis`."""
        return _RqPipeline(self, transaction, shard_hint)


class _RqPipeline(Pipeline):
    def __init__(self, of: RqConnection, transaction: bool, shard_hint: Any) -> None:
        super().__init__(of.connection_pool, of.response_callbacks, transaction, shard_hint)
        self._of = of

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        words = self._of.with_keys(args)
        return super().execute_command(*words, **kwargs)  # type: ignore[no-untyped-call]


def rq_connection(url: str) -> RqConnection:
    """A connection for RQ alone: it repeats on its own, since RQ would give up and lose a result.

    What RQ then does twice is harmless: an attempt is claimed by one work-horse only.
    """
    retry = Retry(ExponentialWithJitterBackoff(base=FIRST_DELAY_S, cap=2.0), 60)
    made = new_client(url, retry=retry, socket_timeout=ANSWER_TIMEOUT_S, kind=RqConnection)
    assert isinstance(made, RqConnection)
    made.place = _Place()
    return made


class RqLink:
    """One connection for RQ.

    Impatient, unlike `rq_connection` itself: an agent's loop must not wait for minutes for a
    server that is away. What a lost reply loses the agent finds again, and RQ's own records of
    what ran are not the truth.
    """

    def __init__(self, url: str) -> None:
        self.connection = rq_connection(url)
        self._link = Link(url, client=self.connection)
        self.connection.set_retry(Retry(NoBackoff(), 0))

    @property
    def is_apart(self) -> bool:
        """Whether each node has keys of its own, and no other program uses them."""
        return self.connection.place.is_apart

    def find_place(self, node: str) -> None:
        """See whether this user may use the keys of a node's own, or those of before that.

        Raises StoreUnavailable.
        """
        place = self.connection.place
        with self.errors():
            place.is_apart = True
            try:
                self.connection.of(node).exists("rq:workers")
            except broken.NoPermissionError:
                place.is_apart = False
                tell_shared(f"batchq acl worker --node {node}")

    def use_other_place(self) -> None:
        """This user was refused the keys that were tried: try the others from now on."""
        place = self.connection.place
        place.is_apart = not place.is_apart
        if not place.is_apart:
            tell_shared("batchq acl scheduler")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Around calls of RQ: raises StoreUnavailable for what redis-py raises."""
        try:
            with self._link.under_way():
                yield
        except (broken.RedisError, OSError) as error:
            raise self._link.unavailable(error) from error

    def asking_s(self, thread: int) -> float:
        """For how long this thread has been waiting for RQ's calls; 0 if it is not."""
        return self._link.asking_s(thread)

    def close(self) -> None:
        """Let go of the connection."""
        close_client(self.connection)


def tell_shared(command: str) -> None:
    """Say that a user of an older file is in use."""
    log.warning(
        "rq keys shared by all nodes",
        why="this user of the server may not use those of a node's own",
        hint=f"print its line in the file of users again: `{command}`",
    )
