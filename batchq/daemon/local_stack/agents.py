"""The agents that batchq starts on one machine: their names, their shares, and temporary ones."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from batchq.api.resources import CPU, MEMORY, format_quantity
from batchq.daemon.local_stack import detached
from batchq.daemon.local_stack.detached import Record
from batchq.errors import BatchqError, Conflict
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home
from batchq.worker.host.node_resources import GPU

_MIB = 1024 * 1024
#: A label has at most 63 characters; the rest is left for the number.
_LONGEST_HOST = 50


def node_names(count: int, *, host: str | None = None) -> tuple[str, ...]:
    """Return `<host>-1`, `<host>-2` …, as valid labels of a Node."""
    first = (host if host is not None else socket.gethostname()).partition(".")[0].lower()
    label = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:_LONGEST_HOST].strip("-") or "node"
    return tuple(f"{label}-{number}" for number in range(1, count + 1))


def divide(
    machine: Mapping[str, int], taken: Mapping[str, Mapping[str, int]], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return what each of `names` gets of the machine, less what other agents have `taken`.

    CPU and memory are split evenly; the first agent of the machine gets all GPUs, because GPUs are
    identified by index. Amounts are in units of `batchq.api.resources`.

    Raises Conflict when nothing is left to divide.
    """
    if not names:
        return {}
    free = dict(machine)
    for other in taken.values():
        for resource, amount in other.items():
            free[resource] = free.get(resource, 0) - amount
    cpu, memory = free.get(CPU, 0) // len(names), free.get(MEMORY, 0) // len(names)
    if cpu < 1 or memory < _MIB:
        count = len(taken) + len(names)
        raise Conflict(
            f"no cpu or memory of this machine is left for {', '.join(names)}: "
            + (f"{', '.join(taken)} take all of it" if taken else "the machine is too small"),
            hint=f"`batchq down`, then `batchq up --agents {count}` divides it again; or let them "
            f"share it: `batchq up --agents {count} --resources cpu=1,memory=1Gi`",
        )
    shares = {name: {CPU: cpu, MEMORY: memory // _MIB * _MIB} for name in names}
    if free.get(GPU, 0) > 0 and free[GPU] == machine.get(GPU):
        shares[names[0]][GPU] = free[GPU]
    return shares


def written(amounts: Mapping[str, int]) -> str:
    """Return `cpu=2,memory=4294967296`, as `--resources` parses it."""
    return ",".join(f"{name}={format_quantity(name, amounts[name])}" for name in sorted(amounts))


#: How long temporary agents have to end; their pods have ended or are of no interest any more.
ENDS_WITHIN_S = 15.0


@contextmanager
def temporary_agents(
    home: Home, url: str, agents: Mapping[str, Sequence[str]]
) -> Iterator[Sequence[Record]]:
    """Run agents by node name, each with options of `batchq worker`; end them on leaving.

    Names must be new each time. The logs stay if the block raises.

    Raises OSError where a process cannot be started.
    """
    home.prepare()
    records: list[Record] = []
    failed = True
    try:
        for name, options in agents.items():
            records.append(_start(home, url, name, options))
        yield tuple(records)
        failed = False
    finally:
        detached.end_all(records, patience_s=ENDS_WITHIN_S)
        for record in records:
            (home.run / f"{record.name}.json").unlink(missing_ok=True)
            if not failed:
                Path(record.log).unlink(missing_ok=True)
        for name in agents:
            # The run files of its pods: no agent comes back under this name.
            shutil.rmtree(home.run / name, ignore_errors=True)


def refuse_dead(records: Sequence[Record]) -> None:
    """Raise BatchqError with the end of its log if one of the agents has died."""
    for record in records:
        if not detached.is_running(record):
            said = detached.tail(Path(record.log)) or "its log is empty"
            raise BatchqError(
                f"the {record.name.replace('-', ' ', 1)} has died: {said}",
                hint=f"its log is {record.log}",
            )


def _start(home: Home, url: str, name: str, options: Sequence[str]) -> Record:
    log = home.logs / f"agent-{name}.log"
    pid = detached.spawn(
        [sys.executable, "-P", "-m", "batchq.cli", "worker", "--name", name, *options],
        log=log,
        environ={**os.environ, HOME_VARIABLE: str(home.root), URL_VARIABLE: url},
    )
    record = Record(
        name=f"agent-{name}",
        pid=pid,
        birth=detached.birth_of(pid) or "",
        log=str(log),
        started_at=time.time_ns() // 1_000_000,
        notes={"url": hashlib.sha256(url.encode()).hexdigest()[:16]},
    )
    detached.write_record(home.run / f"{record.name}.json", record)
    return record
