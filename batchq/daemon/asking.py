"""Asking the scheduler of this machine to read its file again, and hearing what came of it."""

from __future__ import annotations

import signal
import socket
import time

from batchq.api.transaction import Event
from batchq.client import Client
from batchq.client.leading import process_of
from batchq.daemon import processes, stack
from batchq.daemon.reload import SCHEDULER
from batchq.errors import NotFound, WaitTimedOut
from batchq.paths import Home

ANSWERS_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.1


def ask_to_reload(home: Home, client: Client, *, within_s: float = ANSWERS_WITHIN_S) -> Event:
    """What the scheduler that `up` has started here says of its file: Reloaded or ReloadFailed.

    Raises NotFound if none runs, or on another server than the client's; WaitTimedOut.
    """
    record = stack.running_scheduler(home)
    if record is None:
        raise NotFound(
            "no scheduler that `batchq up` has started runs on this machine",
            hint="send SIGHUP to the process that is to read its file again",
        )
    identity = _identity_of(record.pid, client)
    before = client.events(kind=SCHEDULER, key=identity, most=1)
    processes.send(record, signal.SIGHUP)
    deadline = time.monotonic() + within_s
    while (latest := client.events(kind=SCHEDULER, key=identity, most=1)) == before:
        if time.monotonic() >= deadline:
            raise WaitTimedOut(
                f"the scheduler (pid {record.pid}) has not answered within {within_s:.0f} s",
                hint=f"its log is {record.log}",
            )
        time.sleep(_LOOK_EVERY_S)
    return latest[0]


def _identity_of(pid: int, client: Client) -> str:
    """By which name the server knows it."""
    here = process_of(f"{socket.gethostname()}:{pid}:")
    for one in sorted(client.schedulers().there, key=lambda one: one.seen_ms_ago):
        if process_of(one.identity) == here:
            return one.identity
    raise NotFound(
        f"the scheduler of this machine (pid {pid}) is unknown to this server",
        hint="it works for another one (name it with --redis-url), or has only just been started",
    )
