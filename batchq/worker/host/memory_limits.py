"""How pods are held to the memory that they request on this machine.

    cgroup   all processes of a pod together; if they use more, they are killed, and the pod's
             message says so
    rlimit   each process separately (RLIMIT_DATA): allocations beyond it fail with ENOMEM, which
             Python shows as MemoryError. Not RLIMIT_AS: CUDA, Go and Java reserve far more
             addresses than they use
    none     no limit

A pod that requests no memory is not limited.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import structlog
from msgspec import Struct

from batchq.api.resources import MEMORY, describe_quantity
from batchq.errors import UsageError
from batchq.worker.host import cgroup
from batchq.worker.host.cgroup import PodCgroup, Unusable

log = structlog.get_logger(__name__)


class Enforce(StrEnum):
    """The operator's choice; AUTO means CGROUP if that is possible, else RLIMIT."""

    AUTO = "auto"
    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    NONE = "none"


class ProcessBounds(Struct, frozen=True, kw_only=True):
    """The limits within which one command is started."""

    cgroup: PodCgroup | None = None
    #: The limit in bytes; enforced by `cgroup` if there is one, else as an rlimit of each process.
    memory_bytes: int | None = None

    def trouble(self) -> str:
        """Return what the limits did to the command, for the pod's message; empty if nothing."""
        if self.cgroup is None or self.memory_bytes is None:
            return ""
        if not self.cgroup.has_run_out_of_memory():
            return ""
        request = describe_quantity(MEMORY, self.memory_bytes)
        return f"killed: used more than its memory request of {request}"


UNBOUNDED = ProcessBounds()


class Enforcement(Struct, frozen=True, kw_only=True):
    """What this machine can enforce; made once by `settle`, given to every work-horse."""

    kind: Enforce
    #: Set only with `CGROUP`.
    base: Path | None = None
    #: Distinguishes this agent's pods from those of other agents below the same base.
    mark: str = ""

    def of_pod(self, attempt: str) -> PodCgroup | None:
        """Return the cgroup of a pod's attempt, whether it exists or not; None if pods have
        none.
        """
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


def settle(
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
