"""The resources of this machine: cpu, memory and gpus, as far as its pods can use them.

In a container its limits count, not the machine's size: the cpu affinity, the cgroup's cpu quota,
and the cgroup's memory limit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import structlog

from batchq.api.resources import CPU, MEMORY, parse_quantity
from batchq.errors import InvalidInput

log = structlog.get_logger(__name__)

_CGROUPS = Path("/sys/fs/cgroup")
_NVIDIA_SMI_TIMEOUT_S = 5.0
#: cgroup v1 writes "no limit" as a number close to 2^63.
_NO_LIMIT = 1 << 60


def detect_resources() -> dict[str, int]:
    """Return cpu in milli-cores, memory in bytes, and gpu in thousandths (absent without GPUs)."""
    found = {CPU: _cpu_milli(), MEMORY: _memory_bytes()}
    gpus = gpu_indices()
    if gpus:
        found[GPU] = 1000 * len(gpus)
    return found


def parse_resources(text: str) -> dict[str, int]:
    """Return the amounts in a text such as `cpu=16,memory=64Gi,gpu=4`.

    Raise InvalidInput, which names the faulty part, for any other text.
    """
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, equals, written = part.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidInput(
                f"--resources: expected name=quantity, found {part.strip()!r}",
                hint="write them as in cpu=16,memory=64Gi,gpu=4",
            )
        if name in amounts:
            raise InvalidInput(f"--resources: {name} is named twice", hint="name it once")
        try:
            amounts[name] = parse_quantity(name, written.strip())
        except ValueError as wrong:
            raise InvalidInput(f"--resources: {name}: {wrong}") from None
    return amounts


def gpu_indices(declared: Mapping[str, int] | None = None) -> tuple[int, ...]:
    """Return the indices of this machine's GPUs: as many as declared, or else what nvidia-smi
    lists.
    """
    if declared is not None:
        return tuple(range(declared.get(GPU, 0) // 1000))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=index", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as trouble:
        log.warning("gpus not detected", tool=tool, trouble=str(trouble))
        return ()
    return tuple(int(line) for line in answer.stdout.split() if line.isdigit())


def _cpu_milli() -> int:
    cpu_milli = 1000 * len(os.sched_getaffinity(0))
    for folder in _own_cgroups():
        quota = _quota_milli(folder)
        if quota is not None:
            cpu_milli = min(cpu_milli, max(1, quota))
    return cpu_milli


def _memory_bytes() -> int:
    memory_bytes = int(psutil.virtual_memory().total)
    for folder in _own_cgroups():
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_text(folder / name))
            if limit is not None and 0 < limit < _NO_LIMIT:
                memory_bytes = min(memory_bytes, limit)
    return memory_bytes


def _quota_milli(folder: Path) -> int | None:
    """Return the cpu quota in milli-cores; None if there is none.

    cgroup v2 writes `<quota|max> <period>`, v1 has a file for each; both are in microseconds.
    """
    both = _text(folder / "cpu.max").split()
    if len(both) == 2:
        quota, period = _number(both[0]), _number(both[1])
    else:
        quota = _number(_text(folder / "cpu.cfs_quota_us"))
        period = _number(_text(folder / "cpu.cfs_period_us"))
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota * 1000 // period


def _own_cgroups() -> list[Path]:
    """Return the folders of this process's cgroups and all their ancestors; each may set a
    limit.
    """
    folders: list[Path] = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in (_CGROUPS, *(_CGROUPS / name for name in controllers.split(",") if name)):
            place = mount / path.lstrip("/")
            while place.is_relative_to(mount):
                folders.append(place)
                place = place.parent
    return folders


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


GPU = "gpu"
_WHOLE = 1000


class GpuShares:
    """The free part of each GPU, in thousandths; owned by the agent's loop."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._free = dict.fromkeys(indices, _WHOLE)
        self._held: dict[str, dict[int, int]] = {}

    def take(self, holder: str, requests: Mapping[str, int]) -> str | None:
        """Return the value for CUDA_VISIBLE_DEVICES, or None on a node without GPUs.

        Whole GPUs are taken from those that are unused, and a fraction from the fullest GPU that
        fits. A holder that asks again gives back what it had. If less is free than requested, the
        holder gets what is free: the scheduler's count is the limit, this is only the choice.
        """
        if not self._free:
            return None
        self.give_back(holder)
        whole, rest = divmod(requests.get(GPU, 0), _WHOLE)
        untouched = [index for index, free in self._free.items() if free == _WHOLE]
        taken = dict.fromkeys(untouched[:whole], _WHOLE)
        if rest:
            fitting = [
                (free, index)
                for index, free in self._free.items()
                if free >= rest and index not in taken
            ]
            if fitting:
                taken[min(fitting)[1]] = rest
        for index, units in taken.items():
            self._free[index] -= units
        self._held[holder] = taken
        return ",".join(str(index) for index in sorted(taken))

    def give_back(self, holder: str) -> None:
        """Free what `holder` has, if anything."""
        for index, units in self._held.pop(holder, {}).items():
            self._free[index] += units
