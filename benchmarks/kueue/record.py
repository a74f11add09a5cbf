"""Record every write of a run in order, from the change stream.

During the run the recorder only writes the raw bytes to a file, which is cheap; they are decoded
after the run.
"""

from __future__ import annotations

import marshal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchq.api.views import Change
from batchq.store import keys
from batchq.store.mirror import read_changes
from batchq.store.redis import RedisStore

#: The pause between two reads. The stream keeps 65,536 changes, many times those of a pause.
_EVERY_S = 0.05
_MOST = 20_000
_COMPLETED = b'"phase":"Completed"'


class Recorder:
    """A record of all changes since its creation; owned by one thread."""

    def __init__(self, store: RedisStore, path: Path) -> None:
        self._store = store
        self._path = path
        cursor, _ = self._store.watch(None, 0)
        self._first = int(cursor.split("-")[0])
        self._after = cursor
        self._file = path.open("wb")
        self.completed = 0

    def step(self) -> None:
        """Pause, then write new changes to the file."""
        time.sleep(_EVERY_S)
        reply: Any = self._store.link.ask(
            lambda client: client.xread({keys.CHANGES: self._after}, count=_MOST)
        )
        if not reply:
            return
        [(_, entries)] = reply
        marshal.dump((time.monotonic(), entries), self._file)
        self._after = entries[-1][0].decode()
        self.completed += sum(_COMPLETED in fields[b"value"] for _, fields in entries)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def changes(self) -> Iterator[tuple[float, Change]]:
        """Yield (seconds of the monotonic clock, accurate to 0.05 s or so; change), in order.

        Raises Trimmed if a change is missing.
        """
        revision = self._first
        with self._path.open("rb") as file:
            while file.peek(1):
                at, entries = marshal.load(file)
                for change in read_changes([(b"", entries)], revision):
                    revision = change.revision
                    yield at, change
