"""The keeper of a pull: a fork of the agent that starts the runtime, and ends what it leaves.

A runtime may start processes that are to outlive it, and the account's own configuration may name
programs for it to run. The keeper adopts whatever loses its parent below it, and is in a cgroup of
its own where pods are contained by cgroups. It ends after everything else has ended, as the runtime
has: so an image that was pulled was pulled by nothing that still runs. When the agent ends, however
that happens, the kernel has the keeper end everything at once. If the keeper itself is killed, the
agent adopts what is left and ends it, or else the next agent does.

A PID namespace would not do: rootless podman notes the pid of a process that it leaves on purpose,
for its next call to join, and must find it by that pid. That process is ended, too; podman starts
another one when it needs it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

from batchq.system import structlog
from batchq.worker.host import processes
from batchq.worker.host.containment import OF_CHILDREN, Boundary, Containment, Enclosure
from batchq.worker.host.processes import Signals, await_death
from batchq.worker.workhorse.process import send_to_group

log = structlog.get_logger(__name__)

#: Sent to a keeper: the runtime is to end, and everything is to be killed at once.
STOP, KILL = signal.SIGTERM, signal.SIGUSR1
_ENDS_WITHIN_S = 30.0
_ROUND_S = 1.0
#: The exit code of a keeper whose runtime was killed by a signal, less its number, as in a shell.
OF_SIGNALS = 128
#: The exit code of a keeper whose runtime could not be started.
_NOT_STARTED = 127


def fork_keeper(
    start: Callable[[int], subprocess.Popen[bytes]], output: int, boundary: Boundary, mark: int
) -> int:
    """Fork the keeper of the runtime that `start` starts, whose parent's pid it is given; return
    its pid.

    Why a runtime could not be started is written to `output`. `mark`: how the next agent recognizes
    the processes. The calling process must have a single thread. Raise OSError.
    """
    agent = os.getpid()
    # The handlers of the agent would swallow a signal that comes before those of the keeper.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, (STOP, KILL))
    try:
        pid = os.fork()
        if pid:
            return pid
        _keep(start, output, boundary, mark, agent, former)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _keep(
    start: Callable[[int], subprocess.Popen[bytes]],
    output: int,
    boundary: Boundary,
    mark: int,
    agent: int,
    mask: set[int],
) -> NoReturn:
    exit_code = _NOT_STARTED
    try:
        processes.detach({output, 2})
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signals = Signals(STOP, KILL, signal.SIGCHLD)
        signals.install()
        processes.set_mark(mark)
        processes.adopt_orphans()
        processes.die_with_parent(KILL, agent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        enclosure = Enclosure(boundary if boundary.kind == Containment.CGROUP else OF_CHILDREN)
        try:
            process = start(os.getpid())
        except (OSError, ValueError, subprocess.SubprocessError) as trouble:
            os.write(output, f"it could not be started: {trouble}\n".encode())
        else:
            code = _await(process, signals)
            _end(enclosure)
            exit_code = code if code >= 0 else OF_SIGNALS - code
        enclosure.close()
    except Exception as error:  # anything: the pull has failed, and the agent goes on
        log.exception("keeper of a pull failed", error=str(error))
    finally:
        os._exit(exit_code)


def _await(process: subprocess.Popen[bytes], signals: Signals) -> int:
    """Return the exit code of the runtime, which is told to stop, or killed, when this process
    is.
    """
    poll = select.poll()
    ended = os.pidfd_open(process.pid)
    for descriptor in (ended, signals.fileno()):
        poll.register(descriptor, select.POLLIN)
    stops = 0
    while True:
        readable = {descriptor for descriptor, _ in poll.poll()}
        signals.clear()
        if signals.count(KILL):
            processes.send(process.pid, signal.SIGKILL)
        elif signals.count(STOP) > stops:
            stops = signals.count(STOP)
            send_to_group(process.pid, signal.SIGTERM)
        processes.reap_orphans(keep=(process.pid,))
        if ended in readable:
            wait_status = processes.collect(process.pid)
            return (
                -signal.SIGKILL if wait_status is None else os.waitstatus_to_exitcode(wait_status)
            )


def _end(enclosure: Enclosure) -> None:
    """End everything that the runtime has left."""
    deadline = monotonic() + _ENDS_WITHIN_S
    while left := enclosure.end_all(keep=(), within_s=_ROUND_S):
        if monotonic() >= deadline:
            log.error("processes of a pull cannot be killed", pids=left)
            return
        await_death(left, _ROUND_S)
