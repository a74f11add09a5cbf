"""A client of redis-py that sends commands with less work of its own.

redis-py spends as much on retries and metrics that are switched off, and on the types of words, as
on the command itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
import redis
from redis import exceptions as broken
from redis.client import Pipeline


class DirectClient(redis.Redis):
    """A client that sends a command and reads its answer, and leaves retries to its owner."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """See `redis.Redis`."""
        with _Borrowed(self.connection_pool) as connection:
            connection.send_packed_command([_packed(args)])
            return self.parse_response(connection, args[0], **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """See `redis.Redis`."""
        if transaction:
            return super().pipeline(transaction, shard_hint)
        return DirectPipeline(self.connection_pool, self.response_callbacks, False, shard_hint)


class DirectPipeline(Pipeline):
    """The same for several commands that are no transaction."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """See `redis.Redis`."""
        stack, answers = self.command_stack, []
        if not stack:
            return []
        try:
            with _Borrowed(self.connection_pool) as connection:
                connection.send_packed_command(connection.pack_commands([one for one, _ in stack]))
                for words, options in stack:
                    try:
                        answer = self.parse_response(connection, words[0], **options)  # type: ignore[no-untyped-call]
                    except broken.ResponseError as error:
                        answer = error
                    answers.append(answer)
            if raise_on_error:
                self.raise_first_error(stack, answers)  # type: ignore[no-untyped-call]
        finally:
            self.reset()
        return answers


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


class _Borrowed:
    """A connection of a pool, which is closed if it breaks. Not a generator, which costs more."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __enter__(self) -> Any:
        self._connection = self._pool.get_connection()
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The answer to an interrupted command must not be taken for that of the next.
        if kind is not None and not issubclass(kind, broken.ResponseError):
            self._connection.disconnect()
        self._pool.release(self._connection)
