"""Measure an agent at rest and with 64 running pods, compared with RQ's WorkerPool(64).

Both use a real server. Memory is the private memory of the processes (USS) and their proportional
share of shared memory (PSS), without the commands of the pods; the server counts the connections.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator

import psutil
import redis
from rq import Queue
from rq.worker_pool import WorkerPool

from benchmarks.table import report
from tests.e2e.machine import Machine, group, until
from tests.harness.server import Server

PODS = 64
_SLEEP_S = 600
_MIB = 1024 * 1024


def main() -> None:
    idle, busy = _agent()
    pool_idle, pool_busy = _pool()
    columns = ["", "processes", "USS MiB", "PSS MiB", "connections", "USS: pool / agent"]
    rows = [
        ["agent, idle", *idle, pool_idle[1] / idle[1]],
        [f"agent, {PODS} pods", *busy, pool_busy[1] / busy[1]],
        [f"WorkerPool({PODS}), idle", *pool_idle, 1.0],
        [f"WorkerPool({PODS}), {PODS} jobs", *pool_busy, 1.0],
    ]
    report("agents", columns, rows)


Cost = tuple[int, float, float, int]


def _agent() -> tuple[Cost, Cost]:
    with Machine() as machine:
        machine.up()
        client = redis.Redis(unix_socket_path=str(machine.home.socket))
        before = _connections(client)
        agent = machine.agent("n1", f"cpu={PODS}")
        idle = _cost(agent.pid, client, before)
        command = ["sleep", str(_SLEEP_S)]
        with machine.client() as api:
            # This client's connection is closed before connections are counted.
            api.submit(command=command, name="many", replicas=PODS, cpus=1)
            until(lambda: group(api, "many").status.phase == "Running", within_s=120)
        busy = _cost(agent.pid, client, before)
        client.close()
    return idle, busy


def _pool() -> tuple[Cost, Cost]:
    with Server() as server:
        client = redis.Redis(unix_socket_path=str(server.socket))
        before = _connections(client)
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_serve, args=(str(server.socket),))
        process.start()
        assert process.pid is not None
        key = "rq:workers"
        until(lambda: client.scard(key) == PODS, within_s=120)
        idle = _cost(process.pid, client, before)
        queue = Queue("jobs", connection=client)
        queue.enqueue_many([Queue.prepare_data(time.sleep, (_SLEEP_S,)) for _ in range(PODS)])
        until(lambda: client.zcard("rq:wip:jobs") == PODS, within_s=120)
        busy = _cost(process.pid, client, before)
        _kill_all(process.pid)
        process.join()
        client.close()
    return idle, busy


def _serve(socket: str) -> None:
    connection = redis.Redis(unix_socket_path=socket)
    WorkerPool(["jobs"], connection=connection, num_workers=PODS).start(logging_level="ERROR")


def _cost(pid: int, client: redis.Redis, before: int) -> Cost:
    """Return the cost of a process and its children, without the commands of the pods."""
    threading.Event().wait(2.0)
    found = [_memory(one) for one in _family(pid) if _is_ours(one)]
    uss, pss = (sum(column) / _MIB for column in zip(*found, strict=True))
    return len(found), round(uss, 1), round(pss, 1), _connections(client) - before


def _family(pid: int) -> Iterator[psutil.Process]:
    process = psutil.Process(pid)
    yield process
    yield from process.children(recursive=True)


def _is_ours(process: psutil.Process) -> bool:
    return process.name() != "sleep"


def _memory(process: psutil.Process) -> tuple[int, int]:
    memory = process.memory_full_info()
    return memory.uss, memory.pss


def _connections(client: redis.Redis) -> int:
    return len(client.client_list())


def _kill_all(pid: int) -> None:
    for process in list(_family(pid)):
        process.kill()


if __name__ == "__main__":
    main()
