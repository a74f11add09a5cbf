"""A client of redis-py that sends commands with less work of its own.

redis-py spends as much on retries and metrics that are switched off, on the types of words, and on
its pool, as on the command itself.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import hiredis
import redis
from redis import exceptions as broken
from redis.client import EMPTY_RESPONSE, NEVER_DECODE, Pipeline
from redis.sentinel import SentinelConnectionPool

#: A connection that was used within this time is used again without a look at it: the look is two
#: system calls. If the server has closed it since, the command fails as if that came a moment
#: later.
_FRESH_S = 0.1
_READ_BYTES = 64 << 10
#: What `read_arrived` returns instead of an answer.
NOTHING = object()


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
            if NEVER_DECODE in options or EMPTY_RESPONSE in options:
                return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]
            answer = read_answer(connection)
            if isinstance(answer, Exception):
                raise answer
        return _converted(self.response_callbacks, answer, args[0], options)

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

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis`."""
        if self.watching or args[0] == "WATCH":
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        self.command_stack.append((args, options))
        return self

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
            has_failed = False
            callbacks = self.response_callbacks
            for place, (words, options) in enumerate(stack):
                if isinstance(answers[place], Exception):
                    has_failed = True
                else:
                    answers[place] = _converted(callbacks, answers[place], words[0], options)
            if raise_on_error and has_failed:
                self.raise_first_error(stack, answers)  # type: ignore[no-untyped-call]
        finally:
            self.reset()
        return answers


def _converted(callbacks: Any, answer: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Return an answer as redis-py's methods have it."""
    callback = callbacks.get(name)
    if callback is None:
        return answer
    if options:
        # Without what redis-py uses itself.
        options = {key: one for key, one in options.items() if key not in ("keys", NEVER_DECODE)}
    return callback(answer, **options)


def read_answer(connection: Any) -> Any:
    """Return the next answer, or the error that the server has answered."""
    parser = _parser_of(connection)
    if parser is not None:
        # What the connection does around its parser takes longer than the parser.
        try:
            return parser.read_response()
        except OSError as error:
            raise _broken_by(error) from error
    try:
        return connection.read_response()
    except broken.ResponseError as error:
        return error


def read_arrived(connection: Any, *, rest_within_s: float) -> Any:
    """Return the next answer if the server has begun to send it, NOTHING if it has not. The rest
    follows within `rest_within_s`, or TimeoutError is raised.

    redis-py would look twice before it reads, and change the socket's timeout twice.
    """
    parser, own = _parser_of(connection), connection._sock
    # Not TLS, whose bytes are not those of the answer.
    if parser is None or type(own) is not socket.socket or own.gettimeout() is None:
        if not connection.can_read(timeout=0):
            return NOTHING
        return connection.read_response(timeout=rest_within_s)
    if not parser._reader.has_data():
        try:
            # The descriptor of a socket with a timeout does not block.
            arrived = os.read(own.fileno(), _READ_BYTES)
        except BlockingIOError:
            return NOTHING
        except OSError as error:
            raise _broken_by(error) from error
        if not arrived:
            raise broken.ConnectionError("the server has closed the connection")
        parser._reader.feed(arrived)
    try:
        answer = parser.read_response(timeout=rest_within_s)
    except OSError as error:
        raise _broken_by(error) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _broken_by(error: OSError) -> broken.ConnectionError:
    """Return the error that redis-py's connection raises for one of its socket."""
    return broken.ConnectionError(f"Error while reading from the server: {error}")


def _parser_of(connection: Any) -> Any:
    """Return the connection's parser if it is hiredis and connected; None otherwise."""
    parser = getattr(connection, "_parser", None)
    reader = getattr(parser, "_reader", None)
    return parser if isinstance(reader, hiredis.Reader) else None


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
