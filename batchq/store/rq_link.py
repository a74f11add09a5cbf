"""The connection that RQ is given, and what goes wrong on it in batchq's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as broken
from redis.backoff import NoBackoff
from redis.retry import Retry

from batchq.store.connect import rq_connection
from batchq.store.link import Link, close_client


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
