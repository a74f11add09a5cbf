"""The process that imitates the workers: claim admitted groups, wait, and report their ends.

An evicted group stops at once, and its work is lost. The process records every run, so that
`truth.py` can check the store's records against the runs.

`python -m benchmarks.kueue.consumer FOLDER` runs until the file `done` exists, and writes
`consumer.json`.
"""

from __future__ import annotations

import heapq
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from batchq.client import Client
from batchq.client.external import Consumer, Held
from benchmarks.kueue.load import class_of, read_scenario
from benchmarks.kueue.stage import peak_mib

#: The pause between two turns; groups admitted in the meantime are claimed in one request.
_PAUSE_S = 0.005
#: The longest wait for groups, and so the longest delay until `done` is noticed.
_WAIT_S = 0.2
_MOST = 1_000


class Farm:
    """The runs of virtual workers: when each began, when each is due to end, and how it ended."""

    def __init__(self, consumer: Consumer, run_ms: dict[str, int]) -> None:
        self._consumer = consumer
        self._run_s = {name: ms / 1000 for name, ms in run_ms.items()}
        #: (due end, number, held group); a heap that also contains stopped runs.
        self._ends: list[tuple[float, int, Held]] = []
        self._began: dict[str, tuple[Held, float]] = {}
        self._count = 0
        self.runs: list[tuple[str, float, float, str]] = []
        self.refused: list[str] = []

    def turn(self) -> None:
        """Claim admitted groups, stop evicted ones, and report ended ones."""
        taken = self._consumer.claim(most=_MOST, wait_s=self._wait_s(), reported="running")
        now = time.monotonic()
        for held in taken:
            self._count += 1
            self._began[held.key] = held, now
            ends = now + self._run_s[class_of(held.group.metadata.name)]
            heapq.heappush(self._ends, (ends, self._count, held))
        over: list[tuple[Held, Any]] = []
        for held in self._consumer.stopping():
            # A run whose report was refused has already ended.
            self._end(held, time.monotonic(), "evicted")
            over.append((held, "evicted"))
        now = time.monotonic()
        while self._ends and self._ends[0][0] <= now:
            held = heapq.heappop(self._ends)[2]
            if self._began.get(held.key, (None, 0))[0] is held:
                self._end(held, now, "succeeded")
                over.append((held, "succeeded"))
        if over:
            self._report(over)

    def _report(self, over: list[tuple[Held, Any]]) -> None:
        for refused in self._consumer.report(over):
            self.refused.append(str(refused.error))
            # A run that ended after its eviction completed nothing.
            place = next(
                place
                for place in reversed(range(len(self.runs)))
                if self.runs[place][0] == refused.held.group.metadata.name
            )
            self.runs[place] = (*self.runs[place][:3], "too late")

    def _end(self, held: Held, now: float, how: str) -> None:
        found = self._began.get(held.key)
        if found is not None and found[0] is held:
            del self._began[held.key]
            self.runs.append((held.group.metadata.name, found[1], now, how))

    def _wait_s(self) -> float:
        if not self._ends:
            return _WAIT_S
        return min(_WAIT_S, max(0.0, self._ends[0][0] - time.monotonic()))


def main(folder: Path) -> None:
    run_ms = {one.name: one.run_ms for one in read_scenario(folder).classes}
    with Client() as client:
        farm = Farm(client.external.consumer(holder="farm", ttl="60s"), run_ms)
        farm.turn()
        (folder / "consumer.ready").touch()
        cpu_before = time.process_time()
        while not (folder / "done").exists():
            farm.turn()
            time.sleep(_PAUSE_S)
        result = {
            "runs": farm.runs,
            "refused": farm.refused,
            "cpu_s": time.process_time() - cpu_before,
            "peak_mib": peak_mib(),
        }
    (folder / "consumer.json").write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
