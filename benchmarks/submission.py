"""Submit 20,000 groups one by one, in bulk and from a file, and compare with RQ's enqueue.

All methods use one real server with an append-only file. Each round runs all of them, so that a
slow minute of the machine affects all. The table shows the wall time and the CPU time of the
submitting process and of the server.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import redis
from rq import Queue

from batchq.client import Client
from benchmarks.table import report
from tests.harness.server import Server

MANY = 20_000
#: Submission one by one is much slower, and its rate does not depend on the number.
FEW = 1_000
ROUNDS = 5
_COLUMNS = [
    "", "a round", "groups/s", "client CPU us", "server CPU us", "RQ one by one = 1", "RQ many = 1",
]  # fmt: skip


class Taken(NamedTuple):
    """Times of one round in microseconds per group: wall, CPU of the client, CPU of the server."""

    wall_us: float
    client_us: float
    server_us: float


Way = Callable[[int], None]


def main() -> None:
    with Server("--appendonly", "yes") as server:
        rows = measure(server, many=MANY, few=FEW, rounds=ROUNDS)
    report("submission", _COLUMNS, rows)


def measure(server: Server, *, many: int, few: int, rounds: int) -> list[list[object]]:
    """Return a row for each method with the medians over all rounds."""
    raw = redis.Redis(unix_socket_path=str(server.socket))
    queue = Queue("bench", connection=raw)
    file = server.folder / "jobs.jsonl"
    with Client(server.url) as client:

        def one_by_one(run: int) -> None:
            for number in range(few):
                client.submit(**a_request(f"one-{run}", number))

        def in_bulk(run: int) -> None:
            requests = (a_request(f"bulk-{run}", number) for number in range(many))
            tally = client.submit_many(requests).all()
            assert tally.submitted == many

        def from_file(run: int) -> None:
            submit_file(server, file)

        def enqueue(run: int) -> None:
            for number in range(few):
                queue.enqueue("os.path.join", "a", str(number))

        def enqueue_many(run: int) -> None:
            # As RQ's manual recommends: prepare all data first, then one call.
            queue.enqueue_many(
                [Queue.prepare_data("os.path.join", ("a", str(number))) for number in range(many)]
            )

        ways: dict[str, tuple[Way, int]] = {
            "RQ enqueue": (enqueue, few),
            "RQ enqueue_many": (enqueue_many, many),
            "client.submit": (one_by_one, few),
            "client.submit_many": (in_bulk, many),
            "submit --from-file": (from_file, many),
        }
        taken: dict[str, list[Taken]] = {name: [] for name in ways}
        for run in range(rounds):
            for name, (way, count) in ways.items():
                write_file(file, f"file-{run}", many)
                taken[name].append(_took(lambda way=way, run=run: way(run), count, raw))  # type: ignore[misc]
                # Each measurement begins with an empty server.
                raw.flushall()
    raw.close()
    medians = {name: _median(found) for name, found in taken.items()}
    singly, together = medians["RQ enqueue"].wall_us, medians["RQ enqueue_many"].wall_us
    return [
        [
            name,
            ways[name][1],
            round(1e6 / of.wall_us),
            round(of.client_us, 1),
            round(of.server_us, 1),
            singly / of.wall_us,
            together / of.wall_us,
        ]
        for name, of in medians.items()
    ]


def a_request(stem: str, number: int) -> dict[str, Any]:
    """Return a request as in most files: only the name and the command differ."""
    return {
        "name": f"{stem}-{number}",
        "command": ["python3", "train.py", "--seed", str(number)],
        "cpus": 2,
        "mem": "4Gi",
        "walltime": "2h",
        "labels": {"sweep": "seeds"},
    }


def write_file(file: Path, stem: str, many: int) -> None:
    lines = (json.dumps(a_request(stem, number)) for number in range(many))
    file.write_text("".join(f"{line}\n" for line in lines))


def submit_file(server: Server, file: Path) -> None:
    """Run `batchq submit --from-file` in a new process."""
    words = ["--redis-url", server.url, "submit", "--from-file", str(file)]
    subprocess.run(
        [sys.executable, "-m", "batchq.cli", *words], check=True, stdout=subprocess.DEVNULL
    )


def _took(run: Callable[[], None], count: int, raw: redis.Redis) -> Taken:
    server_s, client_s, started = _server_cpu_s(raw), _client_cpu_s(), time.perf_counter()
    run()
    wall_s = time.perf_counter() - started
    client_s, server_s = _client_cpu_s() - client_s, _server_cpu_s(raw) - server_s
    return Taken(*(1e6 * seconds / count for seconds in (wall_s, client_s, server_s)))


def _client_cpu_s() -> float:
    """Return the CPU seconds of this process and of children that it waited for."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def _server_cpu_s(raw: redis.Redis) -> float:
    cpu = raw.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def _median(found: list[Taken]) -> Taken:
    return Taken(*(statistics.median(column) for column in zip(*found, strict=True)))


if __name__ == "__main__":
    main()
