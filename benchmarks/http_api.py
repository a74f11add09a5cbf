"""The HTTP API on its socket beside the client that speaks to the Redis server itself.

Compared are the submission of many groups and of one, the CPU time of everyday commands, and how
soon 1,000 watchers learn of one change. Runs of both are interleaved, so that a slow minute of the
machine affects both.
"""

from __future__ import annotations

import asyncio
import compileall
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import redis

import batchq
from batchq.api.access import parse_binding
from batchq.api_session import ApiCredentials
from batchq.client import Client
from batchq.client.access_control import Actor, Delegate
from batchq.client.api_client import ApiClient
from benchmarks.submission import a_request
from benchmarks.table import report
from tests.harness.server import Server
from tests.http.api_process import ApiProcess

MANY, ROUNDS, RUNS, WATCHERS = 20_000, 3, 20, 1_000
#: Submissions of one client before the other one has its turn.
_IN_A_ROW = 20
#: The groups of `batchq jobs`, which prints a line for each.
_LISTED = 20
#: A user may have 100 watches.
_OF_A_USER = 50
TITLES = ["", "direct", "API", "API / direct", "aim"]
#: What any command over HTTP needs at least.
LEAST = [sys.executable, "-c", "import click, http.client"]
_ROOT = Actor(user="benchmark", via="redis")


def main() -> None:
    # Installed modules are compiled; those of a clone may not be.
    compileall.compile_dir(*batchq.__path__, quiet=1)
    # Each watcher has a connection.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with Server("--appendonly", "yes") as server, ApiProcess(server.url) as api:
        rows = measure(server, api.socket, many=MANY, rounds=ROUNDS, runs=RUNS, watchers=WATCHERS)
    report("api", TITLES, rows)


def measure(
    server: Server, socket: Path, *, many: int, rounds: int, runs: int, watchers: int
) -> list[list[object]]:
    """Return a row for each comparison."""
    address = f"unix:{socket}"
    with Client(server.url) as direct, ApiClient(ApiCredentials(server=address)) as through:
        raw = redis.Redis(unix_socket_path=str(server.socket))
        rows = [
            _rates(direct, through, raw, many, rounds),
            _single(direct, through, runs),
        ]
        _forget_groups(raw)
        for number in range(_LISTED):
            direct.submit(**a_request("listed", number))
        rows += _commands(server.url, address, runs)
        _forget_groups(raw)
        raw.close()
    rows.append(_watched(server.url, socket, watchers))
    return rows


def _rates(
    direct: Client, through: Client, raw: redis.Redis, many: int, rounds: int
) -> list[object]:
    """Submit many groups with both clients; return groups a second."""
    found: dict[str, list[float]] = {"direct": [], "api": []}
    for run in range(rounds):
        for name, client in (("direct", direct), ("api", through)):
            requests = (a_request(f"{name}-{run}", number) for number in range(many))
            began = time.perf_counter()
            tally = client.submit_many(requests).all()
            found[name].append(many / (time.perf_counter() - began))
            assert tally.submitted == many
            _forget_groups(raw)
    one, other = (statistics.median(taken) for taken in found.values())
    return ["submit_many, groups/s", round(one), round(other), other / one, "5,000 groups/s"]


def _forget_groups(raw: redis.Redis) -> None:
    # Each measurement begins without groups.
    raw.flushall()


def _single(direct: Client, through: Client, runs: int) -> list[object]:
    """Submit one group at a time with both clients; return milliseconds.

    The 10th percentile is that of calls in which other programs took little of the machine.
    """
    found: dict[str, list[float]] = {"direct": [], "api": []}
    for run in range(runs):
        for name, client in (("direct", direct), ("api", through)):
            for number in range(_IN_A_ROW):
                began = time.perf_counter()
                client.submit(**a_request(f"single-{name}-{run}", number))
                found[name].append((time.perf_counter() - began) * 1000)
    one, other = (sorted(taken)[len(taken) // 10] for taken in found.values())
    return ["client.submit, ms", one, other, other / one, "-"]


def _commands(url: str, address: str, runs: int) -> list[list[object]]:
    """Return the CPU time of commands over both, and beside what HTTP needs at least."""
    batchq = [sys.executable, "-m", "batchq.cli"]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("BATCHQ_")}
    over_api, over_redis = plain | {"BATCHQ_SERVER": address}, plain | {"BATCHQ_REDIS_URL": url}
    words = {
        "submit": ("submit", "--", "true"),
        "jobs": ("jobs",),
        "describe": ("describe", "queue", "default"),
    }
    taken: dict[str, list[float]] = {"least": []}
    for _ in range(runs):
        taken["least"].append(_cpu_ms(LEAST, plain))
        for name, arguments in words.items():
            for door, environment in (("direct", over_redis), ("api", over_api)):
                used = _cpu_ms([*batchq, *arguments], environment)
                taken.setdefault(f"{name} {door}", []).append(used)
    median = {name: statistics.median(some) for name, some in taken.items()}
    rows: list[list[object]] = [
        [
            f"batchq {name}, CPU ms",
            median[f"{name} direct"],
            median[f"{name} api"],
            median[f"{name} api"] / median[f"{name} direct"],
            "1.3" if name == "submit" else "-",
        ]
        for name in words
    ]
    least, jobs = median["least"], median["jobs api"]
    rows.append(["jobs beside `import click, http.client`", least, jobs, jobs / least, "1.2"])
    return rows


def _cpu_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the CPU time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 6), done.stderr
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used * 1000


def _watched(url: str, socket: Path, watchers: int) -> list[object]:
    """Return how many milliseconds after a change the last of the watchers has learnt of it."""
    users = [f"watcher-{number}" for number in range(-(-watchers // _OF_A_USER))]
    with Delegate(url) as delegate, Client(url) as client:
        for user in users:
            delegate.access.grant(parse_binding(f"user:{user}", "viewer", "default"), _ROOT)
        tokens = [delegate.access.create_token(user, _ROOT).text for user in users]

        def change() -> None:
            client.submit(**a_request("watched", 0))

        last_s = asyncio.run(_last_to_learn(socket, tokens, watchers, change))
    return [f"the last of {watchers} watchers learns, ms", "-", last_s * 1000, "-", "1,000 ms"]


async def _last_to_learn(
    socket: Path, tokens: Sequence[str], watchers: int, change: Callable[[], None]
) -> float:
    loop = asyncio.get_running_loop()
    readers, writers = [], []
    for number in range(watchers):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(
            b"GET /v1/groups?watch=true&queue=default HTTP/1.1\r\nHost: localhost\r\n"
            b"Accept: application/x-ndjson\r\n"
            + f"Authorization: Bearer {tokens[number % len(tokens)]}\r\n\r\n".encode()
        )
        await reader.readuntil(b'"BOOKMARK"')
        readers.append(reader)
        writers.append(writer)

    async def learnt(reader: asyncio.StreamReader) -> float:
        await reader.readuntil(b'"watched-0"')
        return loop.time()

    waiting = [asyncio.create_task(learnt(reader)) for reader in readers]
    began = loop.time()
    await loop.run_in_executor(None, change)
    at = await asyncio.gather(*waiting)
    for writer in writers:
        writer.close()
    return max(at) - began


if __name__ == "__main__":
    main()
