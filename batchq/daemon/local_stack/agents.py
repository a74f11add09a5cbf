"""How the agents of one machine divide it among themselves, and what they are called."""

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
from batchq.worker.host.devices import GPU

_MIB = 1024 * 1024
#: A label has 63 characters; some are left for the number.
_LONGEST_HOST = 50


def node_names(count: int, *, host: str | None = None) -> tuple[str, ...]:
    """`<host>-1`, `<host>-2` …, as labels that a Node may have."""
    first = (host if host is not None else socket.gethostname()).partition(".")[0].lower()
    label = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:_LONGEST_HOST].strip("-") or "node"
    return tuple(f"{label}-{number}" for number in range(1, count + 1))


def divide(
    machine: Mapping[str, int], taken: Mapping[str, Mapping[str, int]], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """What each of `names` gets of the machine, less what others on it have `taken` already.

    cpu and memory in equal parts; the GPUs all go to the first agent of the machine, since they
    are told apart by their index. Raises Conflict when nothing is left to divide.
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
            f"nothing of this machine is left for {', '.join(names)}: "
            + (f"{', '.join(taken)} take all of its cpu or memory" if taken else "it is too small"),
            hint=f"`batchq down`, then `batchq up --agents {count}` divides it anew; or let them "
            f"share it: `batchq up --agents {count} --resources cpu=1,memory=1Gi`",
        )
    shares = {name: {CPU: cpu, MEMORY: memory // _MIB * _MIB} for name in names}
    if free.get(GPU, 0) > 0 and free[GPU] == machine.get(GPU):
        shares[names[0]][GPU] = free[GPU]
    return shares


def written(amounts: Mapping[str, int]) -> str:
    """`cpu=2,memory=4294967296`, as `--resources` reads it."""
    return ",".join(f"{name}={format_quantity(name, amounts[name])}" for name in sorted(amounts))


#: They are asked to end when their pods have ended or are of no interest any more.
ENDS_WITHIN_S = 15.0


@contextmanager
def temporary_agents(
    home: Home, url: str, agents: Mapping[str, Sequence[str]]
) -> Iterator[Sequence[Record]]:
    """Agents by node name, each with the options of its `batchq worker`; ended on leaving.

    Names are to be new each time. Logs stay where something went wrong.

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
            # Their records of what runs: nobody will come back under this name.
            shutil.rmtree(home.run / name, ignore_errors=True)


def refuse_dead(records: Sequence[Record]) -> None:
    """Raises BatchqError with the end of its log if one of the agents has died."""
    for record in records:
        if not detached.is_running(record):
            said = detached.tail(Path(record.log)) or "it said nothing"
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
