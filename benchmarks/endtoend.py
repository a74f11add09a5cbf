"""Drain 2,000 pods that do nothing, from a held queue to their recorded ends, and compare with RQ.

Everything is real: the same server for both, batchq's scheduler daemon and its agent as processes,
RQ's forked work-horses, groups of one pod each. The groups are submitted while the node is
cordoned, and the jobs are enqueued under another key, so that only draining is measured: from the
release of the queue to the last end of a pod or job that the system recorded. CPU covers all
processes of a system, including children that ended; the server's CPU has a separate column.

`BATCHQ_BENCH_PODS` and `BATCHQ_BENCH_RUNS` set the numbers of pods and runs.

`main_array` compares an array of commands with HyperQueue's local cluster: a server and a worker in
one process, controlled by its Python package (`pip install hyperqueue`). Both are measured from the
submission to the end of the last task, and neither writes output files. `BATCHQ_BENCH_TASKS` sets
the number of tasks.
"""

from __future__ import annotations

import multiprocessing
import os
import py_compile
import resource
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import psutil
import redis
from msgspec import Struct
from rq import Queue, Worker
from rq.job import Job
from rq.utils import as_text

from batchq.api.objects import Pod, PodGroup
from batchq.client import Client, Request
from batchq.daemon import detached
from batchq.daemon import embedded_server as embedded
from benchmarks.noop import noop
from benchmarks.table import report
from tests.e2e.machine import Machine, until

PODS = int(os.environ.get("BATCHQ_BENCH_PODS", "2000"))
RUNS = int(os.environ.get("BATCHQ_BENCH_RUNS", "5"))
TASKS = int(os.environ.get("BATCHQ_BENCH_TASKS", "10000"))
SLOTS, ARRAY_SLOTS = (2, 4), 4
FUNCTION, COMMAND, RQ = "batchq, function", "batchq, command", "rq"
ARRAY, HYPERQUEUE = "batchq, array", "HyperQueue"
TITLES = [
    "slots",
    "what",
    "jobs/s",
    "jobs/s / rq's",
    "CPU ms/job",
    "CPU ms/job added",
    "server CPU ms/job",
]
ARRAY_TITLES = ["slots", "what", "tasks/s", "tasks/s / HyperQueue's", "CPU ms/task"]

_ROOT = Path(__file__).parents[1]
_NODE = "bench"
_QUEUE = "noops"
_KEY, _HELD = f"rq:queue:{_QUEUE}", f"held:{_QUEUE}"
_ARRAY = "array"
_BATCH = 500
_WITHIN_S = 900.0


class Drained(Struct, frozen=True, kw_only=True):
    """The result of one run, per pod or job."""

    per_s: float
    cpu_ms: float
    server_ms: float


def main() -> None:
    rows: list[list[object]] = []
    # RQ's workers import the function once; in a read-only checkout each pod would compile it.
    py_compile.compile(noop.__code__.co_filename)
    for slots in SLOTS:
        rows += compare(pods=PODS, slots=slots, runs=RUNS)
    report("endtoend", TITLES, rows)
    for other, is_there in _others():
        if not is_there:
            print(f"  {other} is not installed and not measured")


def compare(*, pods: int, slots: int, runs: int) -> list[list[object]]:
    """Return a row for each system with the medians of its runs."""
    ways = {FUNCTION: _functions, COMMAND: _commands, RQ: _jobs}
    medians = _medians(ways, pods, slots, runs)
    rq = medians[RQ]
    return [
        [
            slots,
            what,
            one.per_s,
            one.per_s / rq.per_s,
            one.cpu_ms,
            one.cpu_ms - rq.cpu_ms,
            one.server_ms,
        ]
        for what, one in medians.items()
    ]


def main_array() -> None:
    """Compare an array of commands with HyperQueue, if that is installed."""
    if find_spec("hyperqueue") is None:
        print("  HyperQueue is not installed and not measured: pip install hyperqueue")
        return
    report("array", ARRAY_TITLES, compare_array(tasks=TASKS, slots=ARRAY_SLOTS, runs=RUNS))


def compare_array(*, tasks: int, slots: int, runs: int) -> list[list[object]]:
    """Return a row for each system with the medians of its runs. CPU includes batchq's server."""
    medians = _medians({ARRAY: _array, HYPERQUEUE: _hyperqueue}, tasks, slots, runs)
    other = medians[HYPERQUEUE].per_s
    return [
        [slots, what, one.per_s, one.per_s / other, one.cpu_ms + one.server_ms]
        for what, one in medians.items()
    ]


def _medians(
    ways: Mapping[str, Callable[[int, int], Drained]], count: int, slots: int, runs: int
) -> dict[str, Drained]:
    """Return the medians of each system's runs; the systems take turns."""
    found: dict[str, list[Drained]] = {what: [] for what in ways}
    for run in range(runs):
        # The first one of a round finds the emptiest server, so each round begins with another.
        names = list(ways)
        for what in names[run % len(names) :] + names[: run % len(names)]:
            drained = ways[what](count, slots)
            found[what].append(drained)
            _say(f"{slots} slots, run {run + 1}: {what}: {drained.per_s:.1f}/s")
    return {what: _median(some) for what, some in found.items()}


def _functions(pods: int, slots: int) -> Drained:
    return _drain_groups(pods, slots, {"function": "benchmarks.noop:noop"})


def _commands(pods: int, slots: int) -> Drained:
    return _drain_groups(pods, slots, {"command": _no_op()})


def _no_op() -> list[str]:
    return [shutil.which("true") or "/bin/true"]


def _array(tasks: int, slots: int) -> Drained:
    with _a_machine() as machine, machine.client() as client:
        watched = _watched_agent(machine, client, slots)
        request = Request(
            name=_ARRAY,
            command=_no_op(),
            cpus=1,
            replicas=tasks,
            min_member=1,
            working_dir=str(_ROOT),
        )
        client.submit_all([client.group_of(request)])
        took_s = watched.until(lambda: _is_done(client, _ARRAY), lambda: _last_end_ms(client))
        return watched.drained(tasks, took_s)


def _watched_agent(machine: Machine, client: Client, slots: int) -> _Watched:
    """Start an agent, and watch it and the scheduler."""
    resources = f"cpu={slots},memory=512Mi"
    agent = machine.start("worker", "--name", _NODE, "--resources", resources)
    until(lambda: any(node.status.ready for node in client.nodes()), within_s=_WITHIN_S)
    scheduler = detached.read_record(machine.home.run / "scheduler.json")
    assert scheduler is not None
    return _Watched(machine, scheduler.pid, agent.pid)


def _drain_groups(pods: int, slots: int, what: dict[str, Any]) -> Drained:
    with _a_machine() as machine, machine.client() as client:
        watched = _watched_agent(machine, client, slots)
        client.cordon(_NODE)
        names = _submit(client, pods, what)
        watched.begin()

        def has_ended() -> bool:
            # The last submitted group is among the last to end; check the others only after it.
            return _is_done(client, names[-1]) and _all_done(client, pods)

        client.uncordon(_NODE)
        took_s = watched.until(has_ended, lambda: _last_end_ms(client))
        return watched.drained(pods, took_s)


def _submit(client: Client, pods: int, what: dict[str, Any]) -> list[str]:
    names = [f"noop-{number:06}" for number in range(pods)]
    for start in range(0, pods, _BATCH):
        requests = (
            Request(name=name, cpus=1, working_dir=str(_ROOT), **what)
            for name in names[start : start + _BATCH]
        )
        client.submit_all([client.group_of(request) for request in requests])
    return names


def _is_done(client: Client, name: str) -> bool:
    found = client.get("PodGroup", name)
    return isinstance(found, PodGroup) and found.status.phase == "Completed"


def _all_done(client: Client, pods: int) -> bool:
    groups = [one for one in client.list("PodGroup") if isinstance(one, PodGroup)]
    phases = [str(one.status.phase) for one in groups]
    assert len(phases) == pods
    return set(phases) == {"Completed"}


def _last_end_ms(client: Client) -> int:
    pods = [one for one in client.list("Pod") if isinstance(one, Pod)]
    return max(pod.status.finished_at or 0 for pod in pods)


def _jobs(jobs: int, slots: int) -> Drained:
    with _a_machine() as machine, _connected(machine) as client:
        queue = Queue(_QUEUE, connection=client)
        for start in range(0, jobs, _BATCH):
            batch = min(_BATCH, jobs - start)
            queue.enqueue_many([Queue.prepare_data(noop, result_ttl=3600) for _ in range(batch)])
        client.rename(_KEY, _HELD)
        workers = _start_workers(str(machine.home.socket), slots)
        try:
            until(lambda: client.scard("rq:workers") == slots, within_s=_WITHIN_S)
            watched = _Watched(machine, *(worker.pid or 0 for worker in workers))
            client.rename(_HELD, _KEY)
            took_s = watched.until(
                lambda: client.zcard(f"rq:finished:{_QUEUE}") == jobs, lambda: _last_job_ms(client)
            )
            return watched.drained(jobs, took_s)
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()


def _start_workers(socket: str, count: int) -> Sequence[BaseProcess]:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(socket,)) for _ in range(count)]
    for worker in workers:
        worker.start()
    return workers


def _work(socket: str) -> None:
    connection = redis.Redis(unix_socket_path=socket)
    Worker([_QUEUE], connection=connection, log_job_description=False).work(logging_level="ERROR")


def _last_job_ms(client: redis.Redis) -> int:
    ids = [as_text(cast("bytes", id_)) for id_ in client.zrange(f"rq:finished:{_QUEUE}", 0, -1)]
    found = Job.fetch_many(ids, connection=client)
    return max(round(1000 * job.ended_at.timestamp()) for job in found if job and job.ended_at)


def _hyperqueue(tasks: int, slots: int) -> Drained:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_drain_hyperqueue, args=(theirs, tasks, slots))
    process.start()
    # Without this copy, the pipe ends with the process.
    theirs.close()
    try:
        took_s, cpu_s = ours.recv()
    finally:
        process.join()
    return Drained(per_s=tasks / took_s, cpu_ms=1000 * cpu_s / tasks, server_ms=0.0)


def _drain_hyperqueue(results: Connection, tasks: int, slots: int) -> None:
    """Run a local cluster in this process, and send the seconds of wall and CPU time."""
    # It prints a table and a progress bar.
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(empty, descriptor)
    package = import_module("hyperqueue")
    with package.LocalCluster() as cluster:
        cluster.start_worker(package.cluster.WorkerConfig(cores=slots))
        client = cluster.client()
        job = package.Job()
        for _ in range(tasks):
            job.program(_no_op(), stdout=None, stderr=None)
        began_s, cpu_s = time.monotonic(), _own_cpu_s()
        client.wait_for_jobs([client.submit(job)])
        results.send((time.monotonic() - began_s, _own_cpu_s() - cpu_s))


def _own_cpu_s() -> float:
    of_all = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in of_all)


class _Watched:
    """The CPU time of processes, with their descendants, and of the server, since `begin`."""

    def __init__(self, machine: Machine, *pids: int) -> None:
        server = detached.read_record(embedded.record_path(machine.home))
        assert server is not None
        self._server = server.pid
        self._pids = pids
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._before = self._spent_s()
        self._began_ms = time.time_ns() // 1_000_000

    def until(self, has_ended: Callable[[], bool], last_end_ms: Callable[[], int]) -> float:
        """Wait for `has_ended`; return the seconds from `begin` to the last end."""
        deadline = time.monotonic() + _WITHIN_S
        never = threading.Event()
        while not has_ended():
            assert time.monotonic() < deadline, f"not within {_WITHIN_S} s"
            never.wait(0.2)
        self._after = self._spent_s()
        return (last_end_ms() - self._began_ms) / 1000

    def drained(self, count: int, took_s: float) -> Drained:
        """Return the result per pod or job."""
        own_s, server_s = (
            after - before for after, before in zip(self._after, self._before, strict=True)
        )
        return Drained(
            per_s=count / took_s, cpu_ms=1000 * own_s / count, server_ms=1000 * server_s / count
        )

    def _spent_s(self) -> tuple[float, float]:
        return sum(_cpu_s(pid) for pid in self._pids), _cpu_s(self._server)


def _cpu_s(pid: int) -> float:
    process = psutil.Process(pid)
    spent = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            # The process ended in the meantime; its parent's figures include it.
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


@contextmanager
def _a_machine() -> Iterator[Machine]:
    """Start a server and a default scheduler, for runs of batchq and of RQ alike."""
    with Machine() as machine:
        machine.batchq("up", "--agents", "0")
        yield machine


@contextmanager
def _connected(machine: Machine) -> Iterator[redis.Redis]:
    client = redis.Redis(unix_socket_path=str(machine.home.socket))
    try:
        yield client
    finally:
        client.close()


def _median(some: Sequence[Drained]) -> Drained:
    return Drained(
        per_s=statistics.median(one.per_s for one in some),
        cpu_ms=statistics.median(one.cpu_ms for one in some),
        server_ms=statistics.median(one.server_ms for one in some),
    )


def _others() -> Iterator[tuple[str, bool]]:
    """Yield other systems that could be compared, and whether each is installed."""
    yield "Huey", find_spec("huey") is not None
    yield "Celery", find_spec("celery") is not None
    yield "Slurm", shutil.which("sbatch") is not None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
