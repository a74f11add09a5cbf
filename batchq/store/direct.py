"""A client of redis-py that sends commands with less work of its own.

redis-py spends as much on retries and metrics that are switched off, on the types of words, and on
its pool, as on the command itself.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import hiredis
import redis
from redis import exceptions as broken
from redis.client import NEVER_DECODE, Pipeline
from redis.sentinel import SentinelConnectionPool

#: A connection that was used within this time is used again without a look at it: the look is two
#: system calls. If the server has closed it since, the command fails as if that came a moment
#: later.
_FRESH_S = 0.1


class DirectClient(redis.Redis):
    """A client that sends a command and reads its answer, and leaves retries to its owner."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """See `redis.Redis`."""
        super().__init__(*args, **options)
        # A pool of sentinels asks them which server is primary when a connection is taken from it.
        asks_anew = isinstance(self.connection_pool, SentinelConnectionPool)
        self.idle = None if asks_anew else _Idle()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis`."""
        with _Borrowed(self.connection_pool, self.idle) as connection:
            connection.send_packed_command([_packed(args)])
            return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """See `redis.Redis`."""
        pipeline = DirectPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )
        pipeline.idle = self.idle
        return pipeline


class AskedAhead:
    """A command whose answer is read later, over a connection that is in no other use meanwhile.

    To be closed; whatever interrupts it closes the connection, so that no later command reads its
    answer.
    """

    def __init__(self, client: redis.Redis, words: Sequence[Any]) -> None:
        """Send the command."""
        self._client = client
        self._name = words[0]
        idle = client.idle if isinstance(client, DirectClient) else None
        self._borrowed: _Borrowed | None = _Borrowed(client.connection_pool, idle)
        self._connection = self._borrowed.__enter__()
        try:
            self._connection.send_packed_command([_packed(words)])
        except BaseException as error:  # Ctrl-C, too, leaves an answer unread
            self._end(type(error))
            raise

    def read(self) -> Any:
        """Return the answer, once, as redis-py's methods have it."""
        try:
            answer = self._client.parse_response(self._connection, self._name)  # type: ignore[no-untyped-call]
        except BaseException as error:  # Ctrl-C, too, leaves an answer unread
            self._end(type(error))
            raise
        self._end(None)
        return answer

    def close(self) -> None:
        """Close the connection, unless the answer was read."""
        self._end(InterruptedError)

    def _end(self, kind: type[BaseException] | None) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.__exit__(kind)


def forget_idle(client: redis.Redis) -> None:
    """Give every connection that is not in use back to the client's pool."""
    if isinstance(client, DirectClient) and client.idle is not None:
        client.idle.give_back_all(client.connection_pool)


class DirectPipeline(Pipeline):
    """The same for several commands."""

    idle: _Idle | None = None

    def __init__(self, pool: Any, callbacks: Any, transaction: bool, shard_hint: Any) -> None:
        """See `redis.Redis.pipeline`."""
        super().__init__(pool, callbacks, transaction, shard_hint)
        self._is_transaction = transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """See `redis.Redis`."""
        if self.watching or self.explicit_transaction or self.scripts:
            return super().execute(raise_on_error)
        stack = self.command_stack
        if not stack:
            return []
        words = [one for one, _ in stack]
        if self._is_transaction:
            words = [("MULTI",), *words, ("EXEC",)]
        sent = b"".join(map(_packed, words))
        try:
            with _Borrowed(self.connection_pool, self.idle) as connection:
                connection.send_packed_command([sent])
                if self._is_transaction:
                    answers = _answers_of_transaction(connection, len(stack))
                else:
                    answers = [read_answer(connection) for _ in stack]
            answers = [
                answer if isinstance(answer, Exception) else self._converted(answer, *command)
                for answer, command in zip(answers, stack, strict=True)
            ]
            if raise_on_error:
                self.raise_first_error(stack, answers)  # type: ignore[no-untyped-call]
        finally:
            self.reset()
        return answers

    def _converted(self, answer: Any, words: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return an answer as redis-py's methods have it."""
        callbacks = cast("Mapping[str, Any]", self.response_callbacks)
        if words[0] not in callbacks:
            return answer
        # What redis-py uses itself.
        own = {name: one for name, one in options.items() if name not in ("keys", NEVER_DECODE)}
        return callbacks[words[0]](answer, **own)


def read_answer(connection: Any) -> Any:
    """Return the next answer, or the error that the server has answered."""
    try:
        return connection.read_response()
    except broken.ResponseError as error:
        return error


def _answers_of_transaction(connection: Any, commands: int) -> list[Any]:
    """Raise the server's error if it has executed nothing."""
    queued = [read_answer(connection) for _ in range(1 + commands)]
    answers = read_answer(connection)
    if isinstance(answers, Exception):
        # The server says why when it refuses a command, and only refers to that at the end.
        raise next((one for one in queued if isinstance(one, Exception)), answers)
    return cast("list[Any]", answers)


def _packed(words: Sequence[Any]) -> bytes:
    """Return a command as it is sent. Raises DataError for a word that is no text and no number."""
    name = words[0]
    if " " in name:
        words = (*name.split(), *words[1:])
    try:
        packed: bytes = hiredis.pack_command(tuple(words))
    except TypeError as error:
        raise broken.DataError(str(error)) from error
    return packed


class _Idle:
    """Connections of a pool that were used a moment ago. For the pool, they are in use."""

    def __init__(self) -> None:
        #: Each with the instant of its last use, and the process. Appending to a deque and taking
        #: from it need no lock.
        self._kept: deque[tuple[Any, float, int]] = deque()

    def take(self, pool: Any) -> Any:
        """Return a connection; from the pool, after a look at it, if none was used just now."""
        try:
            connection, used_at, pid = self._kept.pop()
        except IndexError:
            return pool.get_connection()
        if pid == os.getpid():
            if time.monotonic() - used_at < _FRESH_S:
                return connection
            pool.release(connection)
        return pool.get_connection()

    def put(self, connection: Any) -> None:
        """Keep a connection."""
        self._kept.append((connection, time.monotonic(), os.getpid()))

    def give_back_all(self, pool: Any) -> None:
        """Give every connection back to the pool."""
        while self._kept:
            try:
                connection, _, pid = self._kept.pop()
            except IndexError:
                return
            if pid == os.getpid():
                pool.release(connection)


class _Borrowed:
    """A connection of a pool, which is closed if it breaks. Not a generator, which costs more."""

    __slots__ = ("_connection", "_idle", "_pool")

    def __init__(self, pool: Any, idle: _Idle | None) -> None:
        self._pool = pool
        self._idle = idle

    def __enter__(self) -> Any:
        idle = self._idle
        self._connection = self._pool.get_connection() if idle is None else idle.take(self._pool)
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The answer to an interrupted command must not be taken for that of the next.
        if kind is not None and not issubclass(kind, broken.ResponseError):
            self._connection.disconnect()
        elif self._idle is not None:
            self._idle.put(self._connection)
            return
        self._pool.release(self._connection)
