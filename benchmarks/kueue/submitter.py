"""The process that submits every group on the generator's schedule, due groups in one request.

`python -m benchmarks.kueue.submitter FOLDER` waits for the file `go`, and writes
`submitter.json`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from batchq.api.objects import PodGroup
from batchq.api.views import Refused
from batchq.client import Client
from benchmarks.kueue.load import read_scenario, submissions
from benchmarks.kueue.stage import peak_mib

#: The pause between two requests, unless the submitter is late.
_PAUSE_S = 0.03
_MOST = 5_000


def main(folder: Path) -> None:
    due = submissions(read_scenario(folder))
    with Client() as client:
        client.queues()
        (folder / "submitter.ready").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        cpu_before = time.process_time()
        late_ms = submit_all(client, due)
        result = {
            "late_mean_ms": sum(late_ms) / len(late_ms),
            "late_most_ms": max(late_ms),
            "cpu_s": time.process_time() - cpu_before,
            "peak_mib": peak_mib(),
        }
    (folder / "submitter.json").write_bytes(msgspec.json.encode(result))


def submit_all(client: Client, due: list[tuple[int, PodGroup]]) -> list[float]:
    """Submit each group when it is due; return the delays of the acknowledgements, in ms."""
    late_ms: list[float] = []
    place = 0
    started = time.monotonic() - due[0][0] / 1000
    while place < len(due):
        now_ms = (time.monotonic() - started) * 1000
        stop = place
        while stop < len(due) and stop - place < _MOST and due[stop][0] <= now_ms:
            stop += 1
        if stop == place:
            time.sleep(max(_PAUSE_S, min(due[place][0] - now_ms, 1000) / 1000))
            continue
        for outcome in client.submit_many([group for _, group in due[place:stop]]):
            if isinstance(outcome, Refused):
                raise outcome.error
            now_ms = (time.monotonic() - started) * 1000
            late_ms.append(now_ms - due[place + outcome.place][0])
        place = stop
    return late_ms


if __name__ == "__main__":
    main(Path(sys.argv[1]))
