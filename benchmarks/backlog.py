"""Measure sessions over a full cluster with a backlog of 1,000 to 1,000,000 groups.

A real server, a `RedisStore`, and the real `Cycle` with the default configuration in a separate
process. Scenarios: `cold` (a new process lists everything and decides), `quiet` (no change),
`freed` (a pod ended, so that one group is admitted), `submitted` (1,000 more groups, which stay
pending) and `full` (limits changed, so that all groups are evaluated again).

Environment variables select the cells: BATCHQ_BENCH_MOST (the largest backlog; 100000 by default, a
million when all benchmarks run), BATCHQ_BENCH_WAITING=1000,10000, BATCHQ_BENCH_QUEUES=1,10,
BATCHQ_BENCH_SCENARIOS=quiet,freed, BATCHQ_BENCH_REPEATS=5.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import redis

from batchq.store.redis import RedisStore
from benchmarks.backlog_scenarios import SCENARIOS
from benchmarks.backlog_session import COLD, Answer, Order
from benchmarks.backlog_world import (
    LEADER,
    LONG_MS,
    Spec,
    as_settled,
    renew_leases,
    submit,
    waiting,
    write_full_cluster,
)
from benchmarks.table import report
from tests.harness.server import Server

WAITING = (1_000, 10_000, 100_000, 1_000_000)
QUEUES = (1, 10, 1_000)
#: An additional cell, in which all groups differ in shape.
MANY_SHAPES = Spec(waiting=100_000, queues=10, shapes=100_000)
_MOST = 100_000
_REPEATS = 5
#: After this many seconds a scenario of a cell is not repeated again.
_LONGEST_S = 60.0
#: Figures of other schedulers for the same or a similar operation; not measured here.
_VOLCANO_SESSION = (
    "Volcano: every session over 100,000 waiting jobs in 10 queues took about 5 s of CPU in the"
    " action enqueue and 1-2 s more to open (our measurement on two cores: its code of May 2023"
    " in memory, without Kubernetes)."
)
_VOLCANO_RESTART = (
    "Volcano: 8 min 17 s from restart to first bind with 87,031 jobs"
    " (github.com/volcano-sh/volcano/issues/5819)."
)
_KUEUE = (
    "Kueue: about 42 admissions a second in its own tests, with 15,000 workloads as with 50,000"
    " (github.com/kubernetes-sigs/kueue, test/performance/scheduler/configs)."
)
COLUMNS = [
    *("waiting", "queues", "shapes", "scenario", "turns", "all ms", "CPU ms", "read ms"),
    *("decide ms", "decide CPU ms", "commit ms", "writes", "admitted", "MB", "times least"),
]
NOTES = (
    "all: the whole cycle, for cold from the start of the process; MB: peak memory of the process.",
    "times least: ratio of CPU ms to the smallest backlog with as many queues, same scenario.",
    _VOLCANO_SESSION,
    _VOLCANO_RESTART,
    _KUEUE,
)


def main() -> None:
    # The server must end too when `timeout` ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    scenarios = tuple(_listed("SCENARIOS", (COLD, *SCENARIOS)))
    rows: list[list[object]] = []
    least: dict[tuple[int, str], float] = {}
    failed: list[str] = []
    for spec in _specs():
        _say(f"backlog: {spec.title}")
        try:
            answers = measure(spec, scenarios)
        except RuntimeError as error:
            # The other cells are still useful.
            failed.append(f"{spec.title}: {error}")
            continue
        for answer in answers:
            base = None
            if spec.shapes is None:
                base = least.setdefault((spec.queues, answer.scenario), answer.took.all_cpu_s)
            rows.append(_row(spec, answer, base))
    report("backlog", COLUMNS, rows, notes=(*failed, *NOTES))
    if failed:
        sys.exit("some cells failed; see the notes of the table")


def measure(spec: Spec, scenarios: tuple[str, ...]) -> list[Answer]:
    """Measure the scenarios one after the other in one cluster, on a new server."""
    repeats = int(os.environ.get("BATCHQ_BENCH_REPEATS", _REPEATS))
    others = tuple(scenario for scenario in scenarios if scenario != COLD)
    with Server() as server:
        started_at = time.monotonic()
        build(server.url, spec)
        _say(f"  built in {time.monotonic() - started_at:.1f} s")
        order = Order(
            url=server.url,
            spec=spec,
            scenarios=others,
            repeats=repeats,
            most_s=_LONGEST_S,
            started_at=time.monotonic(),
        )
        answers = list(_answers(order))
    return [answer for answer in answers if answer.scenario in scenarios]


def build(url: str, spec: Spec) -> None:
    """Write the cluster as a scheduler at rest leaves it to an empty server, then enable the
    append-only file, as the bundled server does.
    """
    store = RedisStore(url)
    try:
        store.lead(LEADER, LONG_MS)
        now_ms = store.now_ms() - LONG_MS
        write_full_cluster(store, spec, now_ms)
        submit(store, as_settled(waiting(spec, now_ms), spec, now_ms))
        renew_leases(store, LONG_MS)
    finally:
        store.close()
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        client.config_set("appendonly", "yes")
        pause = threading.Event()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            pause.wait(0.05)


def _answers(order: Order) -> Iterator[Answer]:
    """Yield the answers of a process that executes the order. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "benchmarks.backlog_session"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield from _lines(process, order)
        except BaseException:  # The child must end with this process; it would run for minutes.
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"the process for {order.spec.title} exited with {process.returncode}")


def _lines(process: subprocess.Popen[bytes], order: Order) -> Iterator[Answer]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(order))
    process.stdin.close()
    for line in process.stdout:
        answer = msgspec.json.decode(line, type=Answer)
        _say(f"  {answer.scenario}: {1000 * answer.took.all_s:,.1f} ms, {answer.mb:.0f} MB")
        yield answer


def _specs() -> list[Spec]:
    most = int(os.environ.get("BATCHQ_BENCH_MOST", _MOST))
    waits = [int(each) for each in _listed("WAITING", [str(n) for n in WAITING if n <= most])]
    queues = [int(each) for each in _listed("QUEUES", [str(n) for n in QUEUES])]
    specs = [Spec(waiting=wait, queues=some) for some in queues for wait in waits]
    if MANY_SHAPES.waiting in waits and MANY_SHAPES.queues in queues:
        specs.append(MANY_SHAPES)
    return specs


def _listed(name: str, otherwise: list[str] | tuple[str, ...]) -> list[str]:
    written = os.environ.get(f"BATCHQ_BENCH_{name}", "")
    return [each.strip() for each in written.split(",")] if written else list(otherwise)


def _row(spec: Spec, answer: Answer, base_s: float | None) -> list[object]:
    took = answer.took
    parts = (took.read_s, took.decide_s, took.decide_cpu_s, took.commit_s)
    return [
        spec.waiting,
        spec.queues,
        spec.shapes or 10,
        answer.scenario,
        answer.turns,
        1000 * took.all_s,
        1000 * took.all_cpu_s,
        *(1000 * part for part in parts),
        took.writes,
        took.admitted,
        round(answer.mb),
        took.all_cpu_s / base_s if base_s else "-",
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
