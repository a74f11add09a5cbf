"""The checks of a swarm: nothing is lost, runs twice at once, or is left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import psutil
import redis

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod, PodGroup
from batchq.store import keys
from batchq.store.redis import RedisStore
from batchq.store.rq_link import rq_connection
from batchq.worker.rq_delivery import queue_name
from tests.harness import leaks
from tests.swarm.diary import Run
from tests.swarm.load import Design

_FINISHED = ("Completed", "Failed", "Cancelled")
#: Signs of a bug of batchq in a log.
_SIGNS = ("Traceback", "crashed", "mirror.differs", "cannot be killed", "work-horse failed")


def lost(
    submitted: Mapping[str, Design],
    ended: Mapping[str, str],
    diaries: Mapping[str, list[Run]],
) -> list[str]:
    """Return the groups that did not end as designed, or whose pods did not do what the end
    says.
    """
    faults: list[str] = []
    for name, design in submitted.items():
        end = ended.get(name, "no end")
        if end not in design.ends:
            faults.append(f"{name}: expected {' or '.join(design.ends)}, found {end}")
        elif end == "Completed":
            faults += _undone(design, diaries)
        if design.after:
            faults += _too_early(design, diaries)
    return faults


def _undone(design: Design, diaries: Mapping[str, list[Run]]) -> list[str]:
    return [
        f"{design.name}: Completed, but pod {index} never came to its end"
        for index in range(design.replicas)
        if not any(run.end == "done" for run in diaries.get(f"{design.name}-main-{index}", []))
    ]


def _too_early(design: Design, diaries: Mapping[str, list[Run]]) -> list[str]:
    first = diaries.get(f"{design.after}-main-0", [])
    done_at = [run.last_at for run in first if run.end == "done"]
    return [
        f"{design.name}: {run} began before {design.after} had succeeded"
        for run in diaries.get(f"{design.name}-main-0", [])
        if not done_at or run.began_at < done_at[0]
    ]


def left_over(store: RedisStore, url: str, home: Path) -> list[str]:
    """Return what should be gone once everything has ended, and is not."""
    return [*_objects(store), *_ledger(store), *_lists(store, url), *_processes(home)]


def _objects(store: RedisStore) -> list[str]:
    faults = [
        f"group {group.metadata.name} is {group.status.phase}"
        for group in store.list("PodGroup")
        if isinstance(group, PodGroup) and group.status.phase not in _FINISHED
    ]
    return faults + [
        f"pod {pod.metadata.name} is {pod.status.phase} on {pod.status.node}"
        for pod in store.list("Pod")
        if isinstance(pod, Pod) and (pod.status.phase in ON_NODE or pod.status.phase == "Pending")
    ]


def _ledger(store: RedisStore) -> list[str]:
    """Check that the sums are those of the charges, and that only nodes are charged."""
    recount: dict[str, Counter[str]] = {}
    charges, ledger = store.charges(), store.ledger()
    for scopes, amounts in charges.values():
        for scope in scopes:
            recount.setdefault(scope, Counter()).update(amounts)
    faults = [f"{holder} is still charged" for holder in charges if not holder.startswith("node:")]
    if ledger != {scope: dict(sums) for scope, sums in recount.items()}:
        faults.append(f"the ledger says {ledger}, the recount of all charges {recount}")
    return faults


def _lists(store: RedisStore, url: str) -> list[str]:
    faults = [f"outbox: {delivery}" for delivery in store.outbox()]
    faults += [f"lease of pod {pod}" for pod in store.snapshot().leases]
    connection = rq_connection(url)
    try:
        faults += _of_rq(connection, sorted(store.beats()))
    finally:
        connection.close()
    return faults


def _of_rq(connection: redis.Redis, nodes: list[str]) -> list[str]:
    faults = []
    for node in nodes:
        queue = keys.of_rq(node, f"rq:queue:{queue_name(node)}")
        for key in (queue, f"{queue}:intermediate"):
            entries = cast("list[bytes]", connection.lrange(key, 0, -1))
            faults += [f"{key}: {entry.decode()}" for entry in entries]
    return faults


def lasting_keys(url: str) -> list[str]:
    """Return keys without a time to live, and data of objects that are gone."""
    connection = rq_connection(url)
    try:
        return [*leaks.lasting_keys(connection), *leaks.orphans(connection)]
    finally:
        connection.close()


def _processes(home: Path) -> list[str]:
    """Return the processes that pods of this home have started."""
    found = []
    for process in psutil.process_iter():
        try:
            stop_file = process.environ().get("BATCHQ_STOP_FILE", "")
            if stop_file.startswith(str(home)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            # It has just ended, or belongs to another account.
            continue
    return found


def broken(*folders: Path) -> list[str]:
    """Return the log lines that show a bug of batchq."""
    found = []
    for folder in folders:
        for path in sorted([*folder.glob("*.err"), *folder.glob("*.log")]):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if any(sign in line for sign in _SIGNS):
                    found.append(f"{path.name}:{number}: {line.strip()[:200]}")
    return found
