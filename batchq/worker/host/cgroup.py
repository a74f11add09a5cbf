"""A cgroup (v2) for each pod: it bounds the pod's memory, and no process of the pod escapes its
end.

It is possible where the machine delegates to the agent the cgroup that it runs in (systemd's
`Delegate=yes`, or a container with a writable cgroup file system), and the agent is alone in it:

    <base>              the agent's cgroup as it was found; empty once it is taken
    <base>/agent        the agent and its work-horses: only a cgroup without processes may pass
                        the memory controller on to its children
    <base>/pod-…        one for each pod attempt; the name contains a hash of the agent's run
                        folder, so that agents with the same base recognize their own

This module touches only processes of the agent and its pods, and leaves a base alone that holds any
other process.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

from msgspec import Struct

from batchq.worker.host.processes import await_death, read_kernel_file

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MOUNTS = Path("/proc/self/mounts")

_AGENT = "agent"
#: The files that the owner of a delegated cgroup has to own, according to the kernel.
_DELEGATED = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
_ROUND_S = 0.1
_TRIAL_S = 5.0
#: Its name in the folder above it, and its own.
_LINKS_OF_A_LEAF = 2
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Unusable(Struct, frozen=True):
    """Pods cannot have cgroups here; `why` is for people."""

    why: str


class PodCgroup(Struct, frozen=True):
    """The cgroup of one pod attempt, whether it exists or not."""

    path: Path

    def make(self, memory_bytes: int | None) -> None:
        """Create it, with a limit of `memory_bytes` unless that is None. Raise OSError."""
        self.path.mkdir(exist_ok=True)
        if memory_bytes is None:
            return
        _write(self.path / "memory.max", str(memory_bytes))
        swap, group = self.path / "memory.swap.max", self.path / "memory.oom.group"
        if swap.exists():
            _write(swap, "0")
        if group.exists():
            _write(group, "1")

    def entrance(self) -> int:
        """Return a descriptor; a process that writes `0` to it enters the cgroup. Raise OSError."""
        return os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def enter(self) -> None:
        """Move this process into it. Raise OSError."""
        _write(self.path / "cgroup.procs", "0")

    def has_run_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process in it for exceeding the limit."""
        with suppress(ValueError):
            for line in _read(self.path / "memory.events").splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def kill(self) -> None:
        """Send SIGKILL to every process in it; do nothing if it does not exist."""
        try:
            _write(self.path / "cgroup.kill", "1")
        except OSError:
            # Linux before 5.14 has no cgroup.kill. A process that is forked meanwhile is killed in
            # the next round.
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """Return the processes in it and in the cgroups below it."""
        try:
            # A folder with two links has no folder in it, and listing it takes longer than this.
            if os.stat(self.path).st_nlink == _LINKS_OF_A_LEAF:  # noqa: PTH116 - pathlib is slower
                return sorted(_pids(self.path))
        except OSError:
            return []
        return sorted(pid for folder in self._folders() for pid in _pids(folder))

    def end(self, within_s: float) -> list[int]:
        """Kill every process in it and remove it; return the pids that could not be killed.

        The caller must reap its own children in it, or have none there.
        """
        if left := self.kill_all(within_s):
            return left
        for folder in self._folders():
            # A cgroup that is not empty yet is removed by the next sweep.
            with suppress(OSError):
                folder.rmdir()
        return []

    def kill_all(self, within_s: float) -> list[int]:
        """Kill every process in it; return the pids that could not be killed. The cgroup stays."""
        deadline = monotonic() + within_s
        while pids := self._killed():
            rest = deadline - monotonic()
            if rest <= 0:
                return pids
            await_death(pids, min(_ROUND_S, rest))
        return []

    def _killed(self) -> list[int]:
        pids = self.pids()
        if pids:
            self.kill()
        return pids

    def _folders(self) -> Iterator[Path]:
        """Yield it and the cgroups below it, the deepest first."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            yield Path(folder)


def find(*, mount: Path = MOUNT, own: Path = OWN, me: int) -> Path | Unusable:
    """Return the base below which pods can have cgroups; change nothing.

    `own` is the file that names the cgroup of the process `me`, such as /proc/self/cgroup.
    """
    if not (mount / "cgroup.controllers").is_file():
        return Unusable(f"{mount} is not a cgroup v2 file system")
    name = _name_in(own)
    if name is None or ".." in Path(name).parts:
        return Unusable("the agent's cgroup is outside of what this container can see")
    mine = mount / name.lstrip("/")
    # The leaf may exist already: made by the service manager (systemd's DelegateSubgroup=agent), or
    # by a former agent in the same process.
    base = mine.parent if mine.name == _AGENT and not _pids(mine.parent) else mine
    if not (base / "cgroup.type").is_file():
        return Unusable(f"the agent runs in {base}, which is the root cgroup or does not exist")
    if (kind := _read(base / "cgroup.type")) != "domain":
        return Unusable(f"{base} is of type {kind!r}, expected 'domain'")
    if "memory" not in _read(base / "cgroup.controllers").split():
        return Unusable(f"{base} has no memory controller")
    if not all(os.access(path, os.W_OK) for path in _needed(base)):
        return Unusable(f"{base} is not writable: it is not delegated to this user")
    if others := [pid for pid in _pids(base) if pid != me]:
        shown = ", ".join(map(str, others[:5]))
        return Unusable(f"{base} also holds processes that are not the agent's: {shown}")
    return base


def take(base: Path, *, me: int) -> Unusable | None:
    """Move the process `me` out of the base, and enable the memory controller for the pods.

    If that fails, everything is as before.
    """
    leaf = base / _AGENT
    try:
        leaf.mkdir(exist_ok=True)
        moved = me in _pids(base)
        if moved:
            _write(leaf / "cgroup.procs", str(me))
        try:
            _write(base / "cgroup.subtree_control", "+memory")
        except OSError:
            if moved:
                _write(base / "cgroup.procs", str(me))
                leaf.rmdir()
            raise
    except OSError as trouble:
        return Unusable(f"{base} cannot be used: {trouble.strerror}")
    return None


def own_cgroup(*, mounts: Path = MOUNTS, own: Path = OWN) -> Path | Unusable:
    """Return this process's cgroup if others can be made in it; change nothing.

    These cgroups have no controllers.
    """
    mount = next(
        (
            Path(where)
            for _, where, kind, *_ in map(str.split, _read(mounts).splitlines())
            if kind == "cgroup2"
        ),
        None,
    )
    if mount is None:
        return Unusable("no cgroup v2 file system is mounted")
    name = _name_in(own)
    if name is None or ".." in Path(name).parts:
        return Unusable("the agent's cgroup is outside of what this container can see")
    base = mount / name.lstrip("/")
    if not all(os.access(path, os.W_OK) for path in (base, base / "cgroup.procs")):
        return Unusable(f"{base} is not writable: it is not delegated to this user")
    return base


def hand_over(uid: int, gid: int) -> None:
    """Let another account make cgroups in this process's, as a service manager does for the account
    of a service. Root's cgroup of the whole machine stays root's. Raise OSError.
    """
    base = own_cgroup()
    if isinstance(base, Unusable):
        return
    for folder in (base, base.parent) if base.name == _AGENT else (base,):
        if (folder / "cgroup.type").is_file():
            for path in (folder, *(folder / name for name in _DELEGATED)):
                os.chown(path, uid, gid)


def try_out(trial: PodCgroup) -> Unusable | None:
    """Make a cgroup with a process in it, kill that by `cgroup.kill`, and remove the cgroup.

    Return why that failed, or None. The calling process must have a single thread.
    """
    child = 0
    try:
        trial.make(None)
        if not (trial.path / "cgroup.kill").exists():
            return Unusable("it has no cgroup.kill, which Linux has since 5.14")
        child = os.fork()
        if child == 0:
            with suppress(OSError):
                trial.enter()
                signal.pause()
            os._exit(0)
        # Wait until the child is in the cgroup, or has ended because it could not enter.
        deadline = monotonic() + _TRIAL_S
        while child not in trial.pids() and os.waitid(os.P_PID, child, _HAS_ENDED) is None:
            if monotonic() >= deadline:
                return Unusable(f"no process appeared in {trial.path}")
        _write(trial.path / "cgroup.kill", "1")
        await_death([child], _TRIAL_S)
        if os.waitid(os.P_PID, child, _HAS_ENDED) is None or trial.pids():
            return Unusable(f"cgroup.kill of {trial.path} did not kill")
        _, wait_status = os.waitpid(child, 0)
        child = 0
        if os.waitstatus_to_exitcode(wait_status) != -signal.SIGKILL:
            return Unusable(f"no process may enter {trial.path}")
    except OSError as trouble:
        return Unusable(f"{trial.path} cannot be used: {trouble.strerror}")
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        trial.end(_TRIAL_S)
    return None


def mark_of(run_dir: Path) -> str:
    """Return the part of its pods' cgroup names that identifies an agent: a hash of its folder."""
    return hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]


def pod_cgroups(base: Path, mark: str) -> list[PodCgroup]:
    """Return the existing cgroups of the agent with this mark."""
    return [PodCgroup(path) for path in sorted(base.glob(f"pod-{mark}-*"))]


def pod_cgroup(base: Path, mark: str, attempt: str) -> PodCgroup:
    """Return the cgroup of a pod's attempt."""
    return PodCgroup(base / f"pod-{mark}-{attempt}")


def _name_in(own: Path) -> str | None:
    """Return the path in the line `0::<path>`, which is the one of version 2."""
    for line in _read(own).splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None


def _needed(base: Path) -> tuple[Path, ...]:
    return (base, base / "cgroup.procs", base / "cgroup.subtree_control")


def _pids(folder: Path) -> list[int]:
    return [int(line) for line in _read(f"{folder}/cgroup.procs").split() if line.isdigit()]


def _read(path: Path | str) -> str:
    """Return the content without its end of line; empty if it cannot be read."""
    try:
        return os.fsdecode(read_kernel_file(path)).strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    """Write to an existing kernel file; never create one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
