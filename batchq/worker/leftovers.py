"""What a former agent of this node left running, ended before anything new begins.

A work-horse dies with its agent and takes its pod along. Only where both were killed at once may
processes be left; they are known by the `BATCHQ_STOP_FILE` in their environment, which lies in this
agent's folder and in no other's, by the process groups in the run files, and by their cgroups.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

import psutil
import structlog

from batchq.worker.cgroup import PodCgroup
from batchq.worker.pidfds import await_death
from batchq.worker.process import send_to_group
from batchq.worker.runfile import RunFile, own_boot, started_ms

log = structlog.get_logger(__name__)

_HORSE_ENDS_WITHIN_S = 3.0
_KILLED_WITHIN_S = 10.0
_ROUND_S = 0.2


def sweep(run_dir: Path, runs: Iterable[RunFile], cgroups: Iterable[PodCgroup] = ()) -> list[int]:
    """End everything of the pods that used `run_dir`; the pids that could not be killed.

    `cgroups`: those of its pods that exist; they are removed.
    """
    # The numbers in a record from before a reboot are by now those of other people's processes.
    runs = [run for run in runs if run.boot == own_boot()]
    _await_horses([run for run in runs if started_ms(run.horse) == run.horse_started_ms])
    for one in cgroups:
        if left := one.end(_KILLED_WITHIN_S):
            log.error("processes cannot be killed", pids=left, cgroup=str(one.path))
    deadline = monotonic() + _KILLED_WITHIN_S
    while True:
        for run in runs:
            _kill_group(run_dir, run)
        left = _marked(run_dir)
        if not left or monotonic() >= deadline:
            break
        log.warning("leftover processes killed", run_dir=str(run_dir), pids=left)
        for pid in left:
            _kill(pid)
        await_death(left, _ROUND_S)
    if left:
        log.error("processes cannot be killed", pids=left)
    return left


def _await_horses(runs: list[RunFile]) -> None:
    """A work-horse without its agent is about to end its pod; one that does not is killed."""
    deadline = monotonic() + _HORSE_ENDS_WITHIN_S
    while alive := [run.horse for run in runs if started_ms(run.horse) == run.horse_started_ms]:
        if monotonic() >= deadline:
            for pid in alive:
                _kill(pid)
            return
        await_death(alive, _ROUND_S)


def _kill_group(run_dir: Path, run: RunFile) -> None:
    """While a group has members its number is nobody else's; a leader that lives must be ours."""
    if run.group and (not psutil.pid_exists(run.group) or _is_marked(run.group, run_dir)):
        send_to_group(run.group, signal.SIGKILL)


def _marked(run_dir: Path) -> list[int]:
    me = os.getpid()
    return [pid for pid in psutil.pids() if pid != me and _is_marked(pid, run_dir)]


def _is_marked(pid: int, run_dir: Path) -> bool:
    try:
        process = psutil.Process(pid)
        stop_file = process.environ().get("BATCHQ_STOP_FILE", "")
        return Path(stop_file).parent == run_dir and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
