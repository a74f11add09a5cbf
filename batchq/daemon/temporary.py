"""Node agents that run for as long as something is done with them, and end with it.

They are recorded like those of `batchq up`, so that `batchq down` ends them should whoever
started them have died. What they offer is declared, not a part of this machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from batchq.daemon import processes
from batchq.daemon.processes import Record
from batchq.errors import BatchqError
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home

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
        processes.end_all(records, patience_s=ENDS_WITHIN_S)
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
        if not processes.is_running(record):
            said = processes.tail(Path(record.log)) or "it said nothing"
            raise BatchqError(
                f"the {record.name.replace('-', ' ', 1)} has died: {said}",
                hint=f"its log is {record.log}",
            )


def _start(home: Home, url: str, name: str, options: Sequence[str]) -> Record:
    log = home.logs / f"agent-{name}.log"
    pid = processes.spawn(
        [sys.executable, "-P", "-m", "batchq.cli", "worker", "--name", name, *options],
        log=log,
        environ={**os.environ, HOME_VARIABLE: str(home.root), URL_VARIABLE: url},
    )
    record = Record(
        name=f"agent-{name}",
        pid=pid,
        birth=processes.birth_of(pid) or "",
        log=str(log),
        started_at=time.time_ns() // 1_000_000,
        notes={"url": hashlib.sha256(url.encode()).hexdigest()[:16]},
    )
    processes.write_record(home.run / f"{record.name}.json", record)
    return record
