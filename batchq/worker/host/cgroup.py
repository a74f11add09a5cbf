"""A cgroup (v2) for each pod: a bound on its memory, and an end that nothing of it escapes.

Possible where the machine lends the agent the cgroup that it runs in (systemd's `Delegate=yes`, a
container whose cgroup file system may be written), and the agent is alone in it:

    <base>              the agent's cgroup as it found it; empty once it is taken
    <base>/agent        the agent and its work-horses: only a cgroup without processes may pass
                        the memory controller on to those below it
    <base>/pod-…        one for each pod attempt, named after the agent's run folder, too, so that
                        agents that share a base know their own

Nothing here touches a process that is not the agent's or a pod's: a base that anybody else is in
is left alone.
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

from batchq.worker.host.processes import await_death

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MOUNTS = Path("/proc/self/mounts")

_AGENT = "agent"
_ROUND_S = 0.1
_TRIAL_S = 5.0
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Unusable(Struct, frozen=True):
    """No pod can be given a cgroup here; `why` is for people."""

    why: str


class PodCgroup(Struct, frozen=True):
    """The cgroup of one pod attempt, whether it exists or not."""

    path: Path

    def make(self, memory_bytes: int | None) -> None:
        """Create it; with `memory_bytes` nothing in it can use more. Raises OSError."""
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
        """A descriptor: whoever writes `0` to it is inside from then on. Raises OSError."""
        return os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def enter(self) -> None:
        """Have this process be in it. Raises OSError."""
        _write(self.path / "cgroup.procs", "0")

    def has_run_out_of_memory(self) -> bool:
        """Whether the kernel killed something in it for passing its bound."""
        with suppress(OSError, ValueError):
            for line in (self.path / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def kill(self) -> None:
        """SIGKILL for everything in it; nothing happens where it does not exist."""
        try:
            _write(self.path / "cgroup.kill", "1")
        except OSError:
            # Linux before 5.14 has no cgroup.kill; what forks meanwhile is met the next time.
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """The processes in it and in the cgroups that they made below it."""
        return sorted(pid for folder in self._folders() for pid in _pids(folder))

    def end(self, within_s: float) -> list[int]:
        """Kill everything in it and remove it; the pids that could not be killed.

        For whoever reaps its processes, or is no parent of theirs.
        """
        if left := self.kill_all(within_s):
            return left
        for folder in self._folders():
            # One that is not empty yet goes with the next sweep.
            with suppress(OSError):
                folder.rmdir()
        return []

    def kill_all(self, within_s: float) -> list[int]:
        """Kill everything in it, and leave it where it is; the pids that could not be killed."""
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
        """It and those below it, the deepest first."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            yield Path(folder)


def find(*, mount: Path = MOUNT, own: Path = OWN, me: int) -> Path | Unusable:
    """The base below which pods could have cgroups of their own; looks, and changes nothing.

    `own` says which cgroup the process `me` is in, as /proc/self/cgroup does.
    """
    if not (mount / "cgroup.controllers").is_file():
        return Unusable(f"{mount} is no cgroup v2 file system")
    name = _name_in(own)
    if name is None or ".." in Path(name).parts:
        return Unusable("the agent's cgroup lies outside of what this container can see")
    mine = mount / name.lstrip("/")
    # Where the service's starter (systemd's DelegateSubgroup=agent), or this agent's predecessor
    # in the same process, has made the leaf already.
    base = mine.parent if mine.name == _AGENT and not _pids(mine.parent) else mine
    if not (base / "cgroup.type").is_file():
        return Unusable(f"the agent runs in {base}, which is the root of all cgroups or not there")
    if (kind := _read(base / "cgroup.type")) != "domain":
        return Unusable(f"{base} is of type {kind!r}, expected 'domain'")
    if "memory" not in _read(base / "cgroup.controllers").split():
        return Unusable(f"{base} has no memory controller")
    if not all(os.access(path, os.W_OK) for path in _needed(base)):
        return Unusable(f"{base} may not be written: it has not been delegated to this user")
    if strangers := [pid for pid in _pids(base) if pid != me]:
        shown = ", ".join(map(str, strangers[:5]))
        return Unusable(f"{base} also holds processes that are not the agent's: {shown}")
    return base


def take(base: Path, *, me: int) -> Unusable | None:
    """Move the process `me` out of the base and have the memory controller passed on.

    Where that fails, everything is as it was before.
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
    """The cgroup of this process, below which others can be made, without any controller; looks,
    and changes nothing.
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
        return Unusable("the agent's cgroup lies outside of what this container can see")
    base = mount / name.lstrip("/")
    if not all(os.access(path, os.W_OK) for path in (base, base / "cgroup.procs")):
        return Unusable(f"{base} may not be written: it has not been delegated to this user")
    return base


def try_out(trial: PodCgroup) -> Unusable | None:
    """Make a cgroup, have a process in it, kill that by `cgroup.kill`, and remove it.

    The calling process must have a single thread.
    """
    child = 0
    try:
        trial.make(None)
        if not (trial.path / "cgroup.kill").exists():
            return Unusable("it has no cgroup.kill, which Linux has from 5.14 on")
        child = os.fork()
        if child == 0:
            with suppress(OSError):
                trial.enter()
                signal.pause()
            os._exit(0)
        # It is there, or has ended without.
        deadline = monotonic() + _TRIAL_S
        while child not in trial.pids() and os.waitid(os.P_PID, child, _HAS_ENDED) is None:
            if monotonic() >= deadline:
                return Unusable(f"no process gets into {trial.path}")
        _write(trial.path / "cgroup.kill", "1")
        await_death([child], _TRIAL_S)
        if os.waitid(os.P_PID, child, _HAS_ENDED) is None or trial.pids():
            return Unusable(f"cgroup.kill of {trial.path} ends nothing")
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
    """What the cgroups of an agent's pods are named after, made of its folder."""
    return hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]


def pod_cgroups(base: Path, mark: str) -> list[PodCgroup]:
    """Those that exist, of the agent with this mark."""
    return [PodCgroup(path) for path in sorted(base.glob(f"pod-{mark}-*"))]


def pod_cgroup(base: Path, mark: str, attempt: str) -> PodCgroup:
    """The one of a pod's attempt."""
    return PodCgroup(base / f"pod-{mark}-{attempt}")


def _name_in(own: Path) -> str | None:
    """The path in the line `0::<path>`, which is that of version 2."""
    for line in _read(own).splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None


def _needed(base: Path) -> tuple[Path, ...]:
    return (base, base / "cgroup.procs", base / "cgroup.subtree_control")


def _pids(folder: Path) -> list[int]:
    return [int(line) for line in _read(folder / "cgroup.procs").split() if line.isdigit()]


def _read(path: Path) -> str:
    """The content without its end of line; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    """One write to a file that the kernel made: never creates one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
