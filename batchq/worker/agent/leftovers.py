"""What a former agent of this node left running, ended before anything new begins.

A work-horse dies with its agent and takes its pod along. Only where both were killed at once, as a
pod of the same user can do it, may processes be left; they are known by their mark
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
import structlog

from batchq.api.times import DAY, SECOND
from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.processes import await_death, bears, mark_of
from batchq.worker.workhorse.process import send_to_group
from batchq.worker.workhorse.run_file import RunFile, own_boot, started_ms

log = structlog.get_logger(__name__)

_HORSE_ENDS_WITHIN_S = 3.0
_KILLED_WITHIN_S = 10.0
_ROUND_S = 0.2
#: In how many rounds something may vanish before it was looked at, and still nothing be left. What
#: forks and exits in a loop is hit in one of so many.
_QUIET_ROUNDS = 100


def sweep(
    run_dir: Path,
    runs: Iterable[RunFile],
    cgroups: Iterable[PodCgroup] = (),
    *,
    keep: Collection[int] = (),
    within_s: float = _KILLED_WITHIN_S,
) -> list[int]:
    """End everything of the pods that used `run_dir`, and a guard of theirs that is left; the pids
    that could not be killed within about `within_s`.

    `cgroups`: those of its pods that exist; they are removed. `keep`: processes with its mark that
    are to live on, such as the guard of a new agent.
    """
    # The numbers in a record from before a reboot are by now those of other people's processes.
    runs = [run for run in runs if run.boot == own_boot()]
    _await_horses([run for run in runs if started_ms(run.horse) == run.horse_started_ms])
    left = [pid for one in cgroups for pid in one.end(within_s)]
    for run in runs:
        _kill_group(run_dir, run)
    left += _Hunt(run_dir, keep).end_all(within_s)
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
    mark = mark_of(run_dir)
    if run.group and (not psutil.pid_exists(run.group) or bears(run.group, mark, run_dir)):
        send_to_group(run.group, signal.SIGKILL)


class _Hunt:
    """The search for what bears the mark of a folder. Nothing else ties it to this process, so it
    is found by looking at every process, and what changes its pid all the time by looking again
    at those that are new, which takes less time than such a process lives.
    """

    def __init__(self, run_dir: Path, keep: Collection[int]) -> None:
        self._run_dir = run_dir
        self._keep = {os.getpid(), *keep}
        self._mark = mark_of(run_dir)
        #: Who was looked at, and is not of a pod.
        self._others = set(self._keep)

    def end_all(self, within_s: float) -> list[int]:
        """Kill all of them; those that are left."""
        deadline = monotonic() + within_s
        before: list[int] = []
        quiet, is_told = 0, False
        while True:
            ours, is_sure = self._look()
            if ours and not is_told:
                log.warning("leftover processes killed", run_dir=str(self._run_dir), pids=ours)
                is_told = True
            for pid in ours:
                _kill(pid)
            quiet = 0 if ours else quiet + 1
            if not ours and (is_sure or quiet >= _QUIET_ROUNDS):
                # Once more at all of them: a number may have been given away again meanwhile.
                self._others = set(self._keep)
                ours, _ = self._look()
                if not ours:
                    return []
            # What was gone too soon may have been one of them: then the hunt goes on a little.
            if ours and monotonic() >= deadline:
                return ours
            if ours and ours == before:
                await_death(ours, _ROUND_S)
            before = ours

    def _look(self) -> tuple[list[int], bool]:
        """The processes of pods, of those not known yet; and whether none was gone too soon."""
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - in a race
        self._others &= listed
        ours, is_sure = [], True
        # The newest first: older ones have time.
        for pid in sorted(listed - self._others, reverse=True):
            match bears(pid, self._mark, self._run_dir):
                case True:
                    ours.append(pid)
                case False:
                    self._others.add(pid)
                case None:
                    is_sure = False
        return ours, is_sure


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


#: As long as the store keeps its copy.
KEPT_S = 7 * DAY // SECOND
KEPT_BYTES = 4 << 30

#: `<group uid>-<admission>-<ordinal>-<attempt>.log`; the daemons' own logs may lie beside them.
_POD_LOG = re.compile(r"([a-z0-9]+(?:-[0-9]+){3})\.log(?:\.1)?")


def prune_logs(
    log_dir: Path, *, running: Collection[str], now_s: float, most_bytes: int = KEPT_BYTES
) -> None:
    """Remove what is too old, and then the oldest until the rest is small enough.

    `running`: ids of attempts whose files are still written to; they stay, and count.
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
