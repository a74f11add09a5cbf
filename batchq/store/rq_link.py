"""The connection that RQ is given, and its errors in batchq's terms.

RQ uses one set of keys, `rq:...`, for all its users. A user with write access to them for one node
could take and damage those of another. So each node has a set of its own: a node's connection adds
the node's prefix to every such name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import exceptions as broken
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

from batchq.store import keys
from batchq.store.direct import DirectPipeline
from batchq.store.link import (
    ANSWER_TIMEOUT_S,
    FIRST_DELAY_S,
    Link,
    close_client,
    new_client,
)
from batchq.system import structlog

log = structlog.get_logger(__name__)

#: Commands with more than one key.
_ALL_KEYS = frozenset({"DEL", "EXISTS", "UNLINK", "WATCH"})
_TWO_KEYS = frozenset({"LMOVE", "RENAME", "RPOPLPUSH", "SMOVE"})


class _Place:
    """Whether nodes have separate keys: users from an older ACL file do not."""

    def __init__(self) -> None:
        self.is_apart = True


class RqConnection(redis.Redis):
    """A client that maps the keys `rq:...` to those of its node; without a node, it maps nothing.

    Values are sent unchanged, even if they look like names of keys.
    """

    node = ""
    place = _Place()

    def key(self, name: str) -> str:
        """Return the key that stands for RQ's."""
        return keys.of_rq(self.node, name) if self.node and self.place.is_apart else name

    def of(self, node: str) -> RqConnection:
        """Return a client for a node's keys over this connection, which it does not close."""
        other = copy.copy(self)
        other.node, other.auto_close_connection_pool = node, False
        return other

    def with_keys(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a command with the keys of the node."""
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


class _RqPipeline(DirectPipeline):
    def __init__(self, of: RqConnection, transaction: bool, shard_hint: Any) -> None:
        super().__init__(of.connection_pool, of.response_callbacks, transaction, shard_hint)
        self._of = of

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        words = self._of.with_keys(args)
        return super().execute_command(*words, **kwargs)


def rq_connection(url: str) -> RqConnection:
    """Return a connection for RQ alone, which repeats single commands; a pipeline fails at once.

    RQ's repeated commands are harmless: an attempt is claimed only once.
    """
    retry = Retry(ExponentialWithJitterBackoff(base=FIRST_DELAY_S, cap=2.0), 60)
    made = new_client(
        url,
        retry=retry,
        socket_timeout=ANSWER_TIMEOUT_S,
        kind=RqConnection,
        health_check_interval=30,
    )
    assert isinstance(made, RqConnection)
    made.place = _Place()
    return made


class RqLink:
    """One connection for RQ.

    It does not retry, unlike `rq_connection`: an agent's loop must not wait for minutes for an
    unavailable server. The agent recovers from lost replies, and RQ's own records of running jobs
    are not authoritative.
    """

    def __init__(self, url: str) -> None:
        self.connection = rq_connection(url)
        self._link = Link(url, client=self.connection)
        self.connection.set_retry(Retry(NoBackoff(), 0))

    @property
    def is_apart(self) -> bool:
        """Whether each node has separate keys, unused by any other program."""
        return self.connection.place.is_apart

    def find_place(self, node: str) -> None:
        """Determine whether this user may use the node's own keys, or only the shared ones.

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
        """Switch to the other set of keys, after this user was refused the present one."""
        place = self.connection.place
        place.is_apart = not place.is_apart
        if not place.is_apart:
            tell_shared("batchq acl scheduler")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Wrap calls of RQ: raise StoreUnavailable for what redis-py raises."""
        try:
            with self._link.waiting():
                yield
        except (broken.RedisError, OSError) as error:
            raise self._link.unavailable(error) from error

    def asking_s(self, thread: int) -> float:
        """How long this thread has been waiting for RQ's calls, in seconds; 0 if it is not."""
        return self._link.asking_s(thread)

    def close(self) -> None:
        """Close the connection."""
        close_client(self.connection)


def tell_shared(command: str) -> None:
    """Warn that a user from an older ACL file is in use."""
    log.warning(
        "rq keys shared by all nodes",
        why="this user of the server may not use the keys of its node alone",
        hint=f"renew its line in the ACL file: `{command}`",
    )
