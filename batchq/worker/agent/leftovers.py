"""Ends what a former agent of this node left running, and prunes old pod logs.

A work-horse dies with its agent and ends its pod. Processes remain only if both were killed at the
same time, which a pod of the same user can do. They are found by their mark
(`batchq.worker.host.processes`), by the process groups in the run files, and by their cgroups.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection, Iterable
from os import stat_result
from pathlib import Path
from time import monotonic

import psutil

from batchq.api.notation import DAY, SECOND
from batchq.system import structlog
from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.processes import await_death, has_mark, mark_of
from batchq.worker.workhorse.process import send_to_group
from batchq.worker.workhorse.run_file import RunFile, own_boot, started_ms

log = structlog.get_logger(__name__)

_HORSE_ENDS_WITHIN_S = 3.0
_KILLED_WITHIN_S = 10.0
_ROUND_S = 0.2
#: How many rounds in a row must find no process of a pod, if in each a process vanished before it
#: could be read. A program that forks and exits in a loop is caught about once in this many rounds.
_QUIET_ROUNDS = 100


def sweep(
    run_dir: Path,
    runs: Iterable[RunFile],
    cgroups: Iterable[PodCgroup] = (),
    *,
    keep: Collection[int] = (),
    within_s: float = _KILLED_WITHIN_S,
) -> list[int]:
    """End every process of the pods that used `run_dir`, and their guard.

    Return the pids that could not be killed within about `within_s` seconds. `cgroups`: the
    existing cgroups of these pods; they are removed. `keep`: processes with the mark that are to
    live on, such as the guard of a new agent.
    """
    # After a reboot the pids in a run file belong to unrelated processes.
    runs = [run for run in runs if run.boot == own_boot()]
    _await_horses([run for run in runs if started_ms(run.horse) == run.horse_started_ms])
    left = [pid for one in cgroups for pid in one.end(within_s)]
    for run in runs:
        _kill_group(run_dir, run)
    left += _Search(run_dir, keep).end_all(within_s)
    if left:
        log.error("processes cannot be killed", pids=left)
    return left


def _await_horses(runs: list[RunFile]) -> None:
    """Wait for work-horses, which end pods without an agent; kill those that take too long."""
    deadline = monotonic() + _HORSE_ENDS_WITHIN_S
    while alive := [run.horse for run in runs if started_ms(run.horse) == run.horse_started_ms]:
        if monotonic() >= deadline:
            for pid in alive:
                _kill(pid)
            return
        await_death(alive, _ROUND_S)


def _kill_group(run_dir: Path, run: RunFile) -> None:
    """Kill the run's process group, unless its number belongs to an unrelated process by now.

    The number of a group is not reused while the group has members; a living leader must bear the
    mark.
    """
    mark = mark_of(run_dir)
    if run.group and (not psutil.pid_exists(run.group) or has_mark(run.group, mark, run_dir)):
        send_to_group(run.group, signal.SIGKILL)


class _Search:
    """The search for processes that bear the mark of a folder.

    No parent ties these processes to this one, so the search reads every process. A program that
    changes its pid all the time is caught by reading only the new processes again, which takes less
    time than such a process lives.
    """

    def __init__(self, run_dir: Path, keep: Collection[int]) -> None:
        self._run_dir = run_dir
        self._keep = {os.getpid(), *keep}
        self._mark = mark_of(run_dir)
        #: Processes that were read and do not belong to a pod.
        self._others = set(self._keep)

    def end_all(self, within_s: float) -> list[int]:
        """Kill all of them, and return the pids of those that remain."""
        deadline = monotonic() + within_s
        before: list[int] = []
        quiet, is_logged, is_last = 0, False, False
        while True:
            ours, is_sure = self._look()
            if ours and not is_logged:
                log.warning("leftover processes killed", run_dir=str(self._run_dir), pids=ours)
                is_logged = True
            for pid in ours:
                _kill(pid)
            quiet = 0 if ours else quiet + 1
            is_last = is_last and not ours
            if not ours and (is_sure or quiet >= _QUIET_ROUNDS):
                if is_last:
                    return []
                # Read all processes once more: a pid may have been reused since it was read.
                self._others, is_last = set(self._keep), True
            # A process that vanished unread may have been one of them, so the search goes on for a
            # while.
            if ours and monotonic() >= deadline:
                return ours
            if ours and ours == before:
                await_death(ours, _ROUND_S)
            before = ours

    def _look(self) -> tuple[list[int], bool]:
        """Return the unread processes of pods, and whether none vanished before it was read."""
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - faster
        self._others &= listed
        ours, is_sure = [], True
        # The newest first: older processes are less likely to be about to exit.
        for pid in sorted(listed - self._others, reverse=True):
            match has_mark(pid, self._mark, self._run_dir):
                case True:
                    ours.append(pid)
                case False:
                    self._others.add(pid)
                case None:
                    # It may have forked another one. A zombie that stays does that only once.
                    is_sure = False
                    self._others.add(pid)
        return ours, is_sure


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


#: As long as the store keeps its copy.
KEPT_S = 7 * DAY // SECOND
KEPT_BYTES = 4 << 30

#: `<group uid>-<admission>-<ordinal>-<attempt>.log`; the daemons' own logs may be in the same
#: folder.
_POD_LOG = re.compile(r"([a-z0-9]+(?:-[0-9]+){3})\.log(?:\.1)?")


def prune_logs(
    log_dir: Path, *, running: Collection[str], now_s: float, most_bytes: int = KEPT_BYTES
) -> None:
    """Remove logs that are too old, and then the oldest until the rest fits into `most_bytes`.

    `running`: ids of attempts whose logs are still written to; these stay, and count.
    """
    files = sorted(_pod_logs(log_dir), key=lambda one: (-one[2].st_mtime, one[1]))
    size = sum(found.st_size for attempt, _, found in files if attempt in running)
    for attempt, path, found in files:
        if attempt in running:
            continue
        if found.st_mtime < now_s - KEPT_S or size + found.st_size > most_bytes:
            _remove(path)
        else:
            size += found.st_size


def _pod_logs(log_dir: Path) -> list[tuple[str, Path, stat_result]]:
    found = []
    for path in log_dir.glob("*.log*"):
        try:
            if (match := _POD_LOG.fullmatch(path.name)) is not None:
                found.append((match[1], path, path.lstat()))
        except OSError as trouble:
            log.warning("log file not looked at", path=str(path), trouble=str(trouble))
    return found


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as trouble:
        log.warning("log file not removed", path=str(path), trouble=str(trouble))
