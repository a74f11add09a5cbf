"""A thread that reads for one stream, since what it reads with is blocking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from batchq.client.access_control import Delegate
from batchq.errors import BatchqError
from batchq.http.calls import ApiCall

T = TypeVar("T")

#: A batch is sent when its items have this size.
_BATCH = 32 * 1024
#: Batches that a reader may be behind; then the thread waits.
_MOST_BATCHES = 16
_LOOK_S = 0.5


class ReaderThread(Generic[T]):
    """Reads items on a connection of its own, and hands them to the event loop in batches."""

    def __init__(
        self,
        call: ApiCall,
        read: Callable[[Delegate, Callable[[], bool]], Iterator[T | None]],
        *,
        size_of: Callable[[T], int],
        beats: bool,
    ) -> None:
        """`read` returns the items, and None when it has to wait for the next; it may ask whether
        the stream is over. `beats`: an empty batch comes twice a second if there is nothing.
        """
        self._call = call
        self._read = read
        self._size_of = size_of
        self._beats = beats
        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[Sequence[T] | BatchqError | None] = asyncio.Queue(
            _MOST_BATCHES
        )
        self._stopping = threading.Event()
        self._items: list[T] = []
        self._size = 0

    async def batches(self) -> AsyncIterator[Sequence[T]]:
        """Yield the items. Raises the error of the first read."""
        thread = threading.Thread(target=self._run, name="reader", daemon=False)
        thread.start()
        try:
            while True:
                try:
                    found = await asyncio.wait_for(self._batches.get(), _LOOK_S)
                except TimeoutError:
                    if self._beats:
                        yield ()
                    continue
                if found is None or self._call.context.is_ending():
                    return
                if isinstance(found, BatchqError):
                    raise found
                yield found
        finally:
            self._stopping.set()

    def _run(self) -> None:
        try:
            with self._call.context.connect() as delegate:
                for item in self._read(delegate, self._is_over):
                    if item is None:
                        self._hand_over()
                    else:
                        self._items.append(item)
                        self._size += self._size_of(item)
                    if self._size >= _BATCH:
                        self._hand_over()
                    if self._stopping.is_set():
                        return
            self._hand_over()
            self._put(None)
        except BatchqError as error:
            self._put(error)

    def _is_over(self) -> bool:
        # A reader that follows asks after each look at what there is, and then waits.
        self._hand_over()
        return self._stopping.is_set()

    def _hand_over(self) -> None:
        if self._items:
            items, self._items, self._size = tuple(self._items), [], 0
            self._put(items)

    def _put(self, batch: Sequence[T] | BatchqError | None) -> None:
        putting = self._batches.put(batch)
        try:
            done = asyncio.run_coroutine_threadsafe(putting, self._loop)
        except RuntimeError:
            # The loop has ended.
            putting.close()
            self._stopping.set()
            return
        while not self._stopping.is_set():
            try:
                done.result(_LOOK_S)
                return
            except TimeoutError:
                continue
        done.cancel()
