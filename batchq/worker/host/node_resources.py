"""The resources of this machine: how they are detected, and how pods are held to them; its
container runtimes; and the TCP ports that are reserved for pods.

In a container its limits count, not the machine's size: the cpu affinity, the cgroup's cpu quota,
and the cgroup's memory limit. Pods are held to the memory that they request in one of these ways:

    cgroup   all processes of a pod together; if they use more, they are killed, and the pod's
             message says so
    rlimit   each process separately (RLIMIT_DATA): allocations beyond it fail with ENOMEM, which
             Python shows as MemoryError. Not RLIMIT_AS: CUDA, Go and Java reserve far more
             addresses than they use
    none     no limit

A pod that requests no memory is not limited.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Container, Mapping
from enum import StrEnum
from pathlib import Path

import psutil
from msgspec import Struct

from batchq.api.node_features import AGENT_LABELS, NO, RUNTIME_LABEL, RUNTIMES, YES
from batchq.api.node_report import PodAttempt
from batchq.api.notation import resource_problem
from batchq.api.resources import CPU, MEMORY, describe_quantity, parse_quantity
from batchq.errors import UsageError
from batchq.system import structlog
from batchq.worker.host import cgroup
from batchq.worker.host.cgroup import PodCgroup, Unusable

log = structlog.get_logger(__name__)

_CGROUPS = Path("/sys/fs/cgroup")
#: cgroup v1 writes "no limit" as a number close to 2^63.
_NO_LIMIT = 1 << 60
#: How programs say that they were refused memory: of Python (PyTorch's OutOfMemoryError is about a
#: GPU's), of the C library, and of C++.
_REFUSED = re.compile(r"(?<!OutOf)MemoryError\b|Cannot allocate memory|std::bad_alloc")


def detect_resources() -> dict[str, int]:
    """Return cpu in milli-cores and memory in bytes. Devices are found by `gpu_tools`."""
    return {CPU: _cpu_milli(), MEMORY: _memory_bytes()}


def parse_resources(text: str) -> dict[str, int]:
    """Return the amounts in a text such as `cpu=16,memory=64Gi,gpu=4`.

    Raise UsageError, which names the faulty part, for any other text.
    """
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, equals, written = part.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(
                f"--resources: expected name=quantity, found {part.strip()!r}",
                hint="write them as in cpu=16,memory=64Gi,gpu=4",
            )
        if problem := resource_problem(name):
            raise UsageError(f"--resources: {problem}")
        if name in amounts:
            raise UsageError(f"--resources: {name} is named twice", hint="name it once")
        try:
            amounts[name] = parse_quantity(name, written.strip())
        except ValueError as wrong:
            raise UsageError(f"--resources: {name}: {wrong}") from None
    return amounts


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
    """Return the folders of this process's cgroups and their ancestors; each may set a limit."""
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


class Enforce(StrEnum):
    """The operator's choice; AUTO means CGROUP if that is possible, else RLIMIT."""

    AUTO = "auto"
    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    NONE = "none"


class ProcessBounds(Struct, frozen=True, kw_only=True):
    """The limits within which one command is started."""

    cgroup: PodCgroup | None = None
    #: Descriptors that the command inherits, so that its devices stay locked while it lives.
    locks: tuple[int, ...] = ()
    #: The limit in bytes; enforced by `cgroup` if there is one, else as an rlimit of each process.
    memory_bytes: int | None = None

    def trouble(self) -> str:
        """Return what the limits did to the command, for the pod's message; empty if nothing."""
        if self.cgroup is None or self.memory_bytes is None:
            return ""
        if not self.cgroup.has_run_out_of_memory():
            return ""
        return f"killed: used more than {_request(self.memory_bytes)}"

    def refusal(self, output: str) -> str:
        """Return which limit a failed command met, for the pod's message, if its output ends with
        a refusal of memory and an rlimit is why; else "".
        """
        last = output.rstrip().rpartition("\n")[2]
        if self.cgroup is not None or self.memory_bytes is None or not _REFUSED.search(last):
            return ""
        return f"refused memory: each process of the pod may use {_request(self.memory_bytes)}"


def _request(memory_bytes: int) -> str:
    amount = describe_quantity(MEMORY, memory_bytes)
    return f"its memory request of {amount}; request more with `batchq submit --mem`"


UNBOUNDED = ProcessBounds()


class Enforcement(Struct, frozen=True, kw_only=True):
    """What this machine can enforce; `choose_enforcement` makes it once for all work-horses."""

    kind: Enforce
    #: Set only with `CGROUP`.
    base: Path | None = None
    #: Distinguishes this agent's pods from those of other agents below the same base.
    mark: str = ""

    def of_pod(self, attempt: str) -> PodCgroup | None:
        """Return the cgroup of a pod's attempt, which may not exist; None if pods have none."""
        return None if self.base is None else cgroup.pod_cgroup(self.base, self.mark, attempt)

    def existing(self) -> list[PodCgroup]:
        """Return the cgroups of this agent's pods, leftovers included."""
        return [] if self.base is None else cgroup.pod_cgroups(self.base, self.mark)

    def bounds(self, attempt: str, requests: Mapping[str, int]) -> ProcessBounds:
        """Return the bounds for the command of a pod's attempt, and create its cgroup.

        If the cgroup cannot be created, that is logged and an rlimit takes its place.
        """
        memory_bytes = requests.get(MEMORY) or None
        if self.kind == Enforce.NONE:
            return UNBOUNDED
        made = self.of_pod(attempt)
        if made is not None:
            try:
                made.make(memory_bytes)
            except OSError as trouble:
                log.warning("cgroup not made", path=str(made.path), trouble=str(trouble))
                made.end(0.0)
                made = None
        return ProcessBounds(cgroup=made, memory_bytes=memory_bytes)


NOTHING_ENFORCED = Enforcement(kind=Enforce.NONE)


def choose_enforcement(
    wanted: Enforce,
    *,
    run_dir: Path,
    mount: Path = cgroup.MOUNT,
    own: Path = cgroup.OWN,
    me: int | None = None,
) -> Enforcement:
    """Find out what can be enforced, take the cgroup if possible, and log the result.

    Raise UsageError if a cgroup is demanded and not possible.
    """
    why = ""
    if wanted in (Enforce.AUTO, Enforce.CGROUP):
        found = _take_cgroup(mount, own, os.getpid() if me is None else me)
        if isinstance(found, Path):
            mark = cgroup.mark_of(run_dir)
            log.info("memory requests are enforced", by="cgroup", base=str(found))
            return Enforcement(kind=Enforce.CGROUP, base=found, mark=mark)
        if wanted == Enforce.CGROUP:
            raise UsageError(
                f"--enforce cgroup: expected a delegated cgroup v2, but {found.why}",
                hint="start the agent as a systemd service with Delegate=yes, or with "
                "--enforce auto",
            )
        why = found.why
    if wanted == Enforce.NONE:
        log.info("memory requests are not enforced")
        return NOTHING_ENFORCED
    log.info("memory requests are enforced", by="rlimit", no_cgroup=why)
    return Enforcement(kind=Enforce.RLIMIT)


def limit_data(memory_bytes: int) -> None:
    """Limit the private memory of this process and of each process that it starts.

    Runs between fork and exec. A lower limit that is already set stays.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _take_cgroup(mount: Path, own: Path, me: int) -> Path | Unusable:
    base = cgroup.find(mount=mount, own=own, me=me)
    if isinstance(base, Unusable):
        return base
    return cgroup.take(base, me=me) or base


log = structlog.get_logger(__name__)

_TRIED_WITHIN_S = 10.0
_ROOT = Path("/")
#: The nodes that a program needs for any NVIDIA GPU, beside that of the GPU.
_SHARED_BY_NVIDIA = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_FIELD = re.compile(r"^(GPU UUID|Device Minor):\s*(\S+)", re.MULTILINE)


def runtime_labels() -> dict[str, str]:
    """Return the labels that say which runtimes a node has, and log them.

    bwrap is tried out, because kernels and security modules forbid what it needs in different
    ways. The others are looked up: trying them would need an image.
    """
    found = {name: shutil.which(name) is not None for name in RUNTIMES}
    why = ""
    if found["bwrap"] and (why := _trouble_of_bwrap()):
        found["bwrap"] = False
    has = ", ".join(name for name, works in found.items() if works)
    log.info("container runtimes", found=has or "none", bwrap=why or None)
    labels = {f"{RUNTIME_LABEL}{name}": YES if works else NO for name, works in found.items()}
    return {**labels, **AGENT_LABELS}


def _trouble_of_bwrap() -> str:
    try:
        done = subprocess.run(
            ["bwrap", "--bind", "/", "/", "--dev", "/dev", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=_TRIED_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return str(trouble)
    return "" if done.returncode == 0 else done.stderr.strip()[:200] or f"exit {done.returncode}"


def device_nodes(environment: Mapping[str, str], *, root: Path = _ROOT) -> list[str]:
    """Return the device nodes of the GPUs that a pod's environment names; empty for none.

    All nodes are returned for AMD devices and for MIG instances, which cannot be told apart.
    """
    uuids = frozenset(filter(None, environment.get("BATCHQ_GPU_UUIDS", "").split(",")))
    if not uuids:
        return []
    if environment.get("ROCR_VISIBLE_DEVICES"):
        return ["/dev/kfd", "/dev/dri"]
    minors = _minors(uuids, root)
    own = sorted((root / "dev").glob("nvidia[0-9]*"))
    nodes = [path.name for path in own if minors is None or path.name in minors]
    return [f"/dev/{name}" for name in (*nodes, *_SHARED_BY_NVIDIA)]


def _minors(uuids: frozenset[str], root: Path) -> set[str] | None:
    """Return the names of the nodes of these GPUs; None if the driver does not know them all."""
    names = {}
    for path in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        fields = dict(_FIELD.findall(path.read_text(errors="replace")))
        names[fields.get("GPU UUID", "")] = f"nvidia{fields.get('Device Minor', '')}"
    if not uuids <= names.keys():
        return None
    return {names[uuid] for uuid in uuids}


#: Above the ports that Linux chooses itself, and those that JAX uses.
FIRST_PORT, LAST_PORT = 61_440, 65_535


class PortRange(Struct, frozen=True):
    """The ports from `first` to `last`, both included."""

    first: int = FIRST_PORT
    last: int = LAST_PORT

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class PortPool:
    """The TCP ports that an agent reserves for pods with `spec.launch`; owned by its loop.

    Several agents, of several users, may share a machine, and a pod binds its ports only seconds
    after it was started. So an agent holds a lock on each port for as long as the pod is on its
    node. The lock is an abstract Unix socket named after the port: the kernel keeps these names for
    each network namespace, as it does ports, and frees them when the agent ends, however that
    happens. A lock file would need a folder that all users can write, and containers that share the
    network of their host would not see it; a socket that is bound to the port itself would have to
    be closed before the pod binds it, and another agent could take the port in between.
    """

    def __init__(self, within: PortRange) -> None:
        self._range = within
        self._held: dict[PodAttempt, dict[int, socket.socket]] = {}
        # A gang that restarts gets other ports than before, even on a new agent: what is left of
        # its former round may still connect to the old ones.
        self._next = os.getpid() % (within.last - within.first + 1)

    def take(self, holder: PodAttempt, count: int) -> tuple[int, ...]:
        """Reserve `count` free ports, and return them; empty if there are too few.

        A holder that asks again keeps what it has.
        """
        held = self._held.setdefault(holder, {})
        size = self._range.last - self._range.first + 1
        for step in range(size):
            if len(held) >= count:
                break
            port = self._range.first + (self._next + step) % size
            if (lock := _locked(port)) is not None:
                held[port] = lock
        if len(held) < count:
            self.give_back(holder)
            return ()
        # After the last one taken, not the highest: the search may have begun again at the first.
        self._next = (list(held)[-1] + 1 - self._range.first) % size
        return tuple(held)

    def give_back(self, holder: PodAttempt) -> None:
        """Release the ports of `holder`, if it has any."""
        for lock in self._held.pop(holder, {}).values():
            lock.close()

    def locks(self) -> list[socket.socket]:
        """Return all locks: a child of the agent closes its copies, or the ports would stay locked
        for as long as it lives.
        """
        return [lock for held in self._held.values() for lock in held.values()]

    def keep(self, holders: Container[PodAttempt] = ()) -> None:
        """Release the ports of all holders but these."""
        for holder in [one for one in self._held if one not in holders]:
            self.give_back(holder)


def _locked(port: int) -> socket.socket | None:
    """Return a lock on a port; None if it is locked or in use."""
    try:
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError as trouble:
        if trouble.errno in (errno.EMFILE, errno.ENFILE):
            return None
        raise
    try:
        lock.bind(f"\0batchq-port-{port}")
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", port))
    except OSError:
        lock.close()
        return None
    return lock
