"""How much one caller may ask: requests a second, streams at a time, and failed attempts.

The counts are kept in this process, so each of several API processes grants the full amounts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias

from batchq.http.problems import too_many

Stream: TypeAlias = Literal["watches", "logs", "commands"]

#: Streams that one user may have open at a time.
MOST_STREAMS: dict[Stream, int] = {"watches": 100, "logs": 10, "commands": 40}
#: Logs and the output of commands are read by threads, which are fewer than users.
MOST_OF_ALL: dict[Stream, int] = {"logs": 64, "commands": 128}
#: Callers remembered at a time; the one that asked least recently is forgotten first, and has its
#: whole allowance again.
MOST_REMEMBERED = 10_000


class Rate(NamedTuple):
    """An allowance that grows by `per_s` up to `burst`."""

    per_s: float
    burst: float


#: A loop of one client sends some hundred requests a second; see `TurnsByUser` for the share that a
#: user may have of the API.
READS = Rate(per_s=200.0, burst=1_000.0)
WRITES = Rate(per_s=200.0, burst=1_000.0)
#: Unknown tokens from one address. Tokens cannot be guessed; this bounds the cost of attempts.
FAILURES = Rate(per_s=0.2, burst=20.0)


#: Refusals of one user that are recorded in the audit trail; more are not.
REFUSALS = Rate(per_s=1 / 6, burst=10.0)


class TokenBuckets:
    """Allowances by caller. Used by one thread."""

    def __init__(self, rate: Rate, *, clock: Callable[[], float] = monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Take one request from an allowance and return 0; or return how long until it suffices."""
        now = self._clock()
        left, since = self._left.pop(caller, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - since) * self._rate.per_s)
        missing = 1.0 - left
        self._left[caller] = (left if missing > 0 else left - 1.0, now)
        if len(self._left) > MOST_REMEMBERED:
            self._left.popitem(last=False)
        return max(0.0, missing / self._rate.per_s)

    def take(self, caller: str, what: str) -> None:
        """Take one from an allowance. Raises ApiProblem with the time to wait."""
        wait_s = self.wait_s(caller)
        if wait_s > 0:
            raise too_many(
                f"{caller} has sent more than {self._rate.per_s:g} {what} a second for a while",
                retry_s=wait_s,
            )


class StreamPlaces:
    """Counts open streams by user. Used by one thread."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Stream], int] = {}

    @contextmanager
    def place(self, user: str, stream: Stream) -> Iterator[None]:
        """Hold a place for a stream. Raises ApiProblem if there is none left."""
        count = self._open.get((user, stream), 0)
        if count >= MOST_STREAMS[stream]:
            raise too_many(
                f"user {user} has {count} {stream} open, which is the most there may be",
                retry_s=10,
            )
        most = MOST_OF_ALL.get(stream)
        if most is not None and self._count(stream) >= most:
            raise too_many(f"all {most} places for readers of {stream} are taken", retry_s=5)
        self._open[user, stream] = count + 1
        try:
            yield
        finally:
            left = self._open[user, stream] - 1
            if left:
                self._open[user, stream] = left
            else:
                del self._open[user, stream]

    def _count(self, wanted: Stream) -> int:
        return sum(count for (_, stream), count in self._open.items() if stream == wanted)


#: Explanations run a session of the scheduler, which takes a processor for up to seconds.
MOST_EXPLANATIONS, MOST_EXPLANATIONS_WAITING = 2, 16
#: Calls of one user that run at a time, so that others have threads left; and those that wait.
MOST_CALLS, MOST_CALLS_WAITING = 6, 128


class Turns:
    """Lets a few run at a time, and a few more wait. Used by one thread."""

    def __init__(self, running: int, waiting: int, what: str) -> None:
        """`what` is said to those that may not even wait."""
        self._free = asyncio.Semaphore(running)
        self._most_waiting = waiting
        self._waiting = 0
        self._what = what

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and something could run."""
        return not self._waiting and not self._free.locked()

    async def __aenter__(self) -> None:
        if self._waiting >= self._most_waiting:
            raise too_many(self._what, retry_s=2)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *error: object) -> None:
        self._free.release()


class TurnsByUser:
    """Turns for the calls of each user."""

    def __init__(self) -> None:
        self._turns: dict[str, Turns] = {}

    def of(self, user: str) -> Turns:
        """Return the turns of a user."""
        if len(self._turns) >= MOST_REMEMBERED:
            self._turns = {name: one for name, one in self._turns.items() if not one.is_idle}
        if user not in self._turns:
            what = f"user {user} has too many calls under way"
            self._turns[user] = Turns(MOST_CALLS, MOST_CALLS_WAITING, what)
        return self._turns[user]
