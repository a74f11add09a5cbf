"""What keeps the processes of a pod together, so that all of them end with it.

    cgroup          work-horse and pod have a cgroup (version 2) of their own; `cgroup.kill` kills
                    every process in it in one step
    pid-namespace   the pods of a work-horse have a PID namespace: they see no process outside, and
                    the kernel kills all of them with the namespace's first process
    subreaper       the work-horse becomes the parent of the pod's orphans, and kills its children
                    until none is left

The first kind that works here is used, unless the operator names one. The agent tries each out when
it starts, since kernels, containers and security modules refuse them in different ways. The
work-horse kills its remaining children with every kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from batchq.api.transaction import CONTAINMENT_LABEL
from batchq.errors import UsageError
from batchq.system import structlog
from batchq.worker.host import cgroup, pid_namespace
from batchq.worker.host.cgroup import PodCgroup, Unusable
from batchq.worker.host.node_resources import Enforcement
from batchq.worker.host.pid_namespace import PidNamespace
from batchq.worker.host.processes import has_children_of, kill_children

log = structlog.get_logger(__name__)

_HORSE = "horse"
_QUICK_S = 0.05


class Containment(StrEnum):
    """The operator's choice; AUTO means the first of the others that works here."""

    AUTO = "auto"
    CGROUP = "cgroup"
    PID_NAMESPACE = "pid-namespace"
    SUBREAPER = "subreaper"


class Boundary(Struct, frozen=True, kw_only=True):
    """The kind of containment on this machine; made once by `choose`, given to every work-horse."""

    kind: Containment
    #: The cgroup below which each work-horse has its own. None if each pod has a cgroup already,
    #: for its memory limit, or if no cgroups are used.
    base: Path | None = None
    #: Distinguishes this agent's cgroups from those of other agents below the same base.
    mark: str = ""

    def labels(self) -> dict[str, str]:
        """Return the label by which a node says what its containment is."""
        return {CONTAINMENT_LABEL: str(self.kind)}

    def of_horse(self, pid: int) -> PodCgroup | None:
        """Return the cgroup of a work-horse, whether it exists or not; None without a base."""
        if self.base is None:
            return None
        return cgroup.pod_cgroup(self.base, self.mark, f"{_HORSE}-{pid}")

    def abandoned(self, horses: Collection[int]) -> list[PodCgroup]:
        """Return the cgroups of work-horses that have ended: all but those of `horses`."""
        if self.base is None:
            return []
        kept = {self.of_horse(pid) for pid in horses}
        return [one for one in cgroup.pod_cgroups(self.base, self.mark) if one not in kept]


OF_CHILDREN = Boundary(kind=Containment.SUBREAPER)


class Enclosure:
    """What surrounds the pods of a work-horse, one pod after the other; owned by the work-horse."""

    def __init__(self, boundary: Boundary = OF_CHILDREN) -> None:
        """Set it up around this process, which has a single thread and has started nothing."""
        self._boundary = boundary
        #: Made with the first command; the starter of functions uses it as well.
        self.namespace: PidNamespace | None = None
        self.cgroup = boundary.of_horse(os.getpid())
        if self.cgroup is None:
            return
        try:
            self.cgroup.make(None)
            self.cgroup.enter()
        except OSError as trouble:
            log.error("cgroup not entered", path=str(self.cgroup.path), trouble=str(trouble))
            self.cgroup = None

    def make_ready(self) -> None:
        """Prepare for the next command. Raise OSError.

        A namespace that ended because its first process was killed is replaced.
        """
        if self._boundary.kind != Containment.PID_NAMESPACE:
            return
        if self.namespace is not None and self.namespace.is_gone():
            self.namespace.close()
            self.namespace = None
        if self.namespace is None:
            self.namespace = PidNamespace()

    def keeps(self) -> tuple[int, ...]:
        """Return the children of this process that belong to the enclosure."""
        return () if self.namespace is None else (self.namespace.pid,)

    def end_all(
        self,
        *,
        keep: Collection[int],
        within_s: float,
        kill_others: Callable[[], bool] | None = None,
    ) -> list[int]:
        """Kill every process of the last pod; return those that remain.

        The pod's command has been collected. `within_s`: about how long this may take. `keep`:
        children of this process that belong to no pod. They are killed as well if they have
        children, or, in a cgroup, if any other process is left there. `kill_others` has the process
        that stays in the namespace kill all others in it, and returns whether it did.
        """
        keep = (*keep, *self.keeps())
        if self.namespace is not None:
            has_killed = kill_others is not None and kill_others()
            end = self.namespace.await_all if has_killed else self.namespace.end_all
            return end(within_s) + kill_children(keep=keep, within_s=within_s)
        if self.cgroup is None:
            # A pod can put a child below the process that it was forked from, beside itself.
            alone = [pid for pid in keep if not has_children_of(pid)]
            return kill_children(keep=alone, within_s=within_s)
        # Leaving the cgroup takes the kernel longer than killing what most pods leave.
        left = kill_children(keep=keep, within_s=min(_QUICK_S, within_s))
        if set(self.cgroup.pids()) <= {os.getpid(), *keep}:
            return left
        return self._end_cgroup(self.cgroup, within_s) + kill_children(keep=keep, within_s=within_s)

    def close(self) -> None:
        """Remove it; the agent ends the processes that are left in it."""
        if self.namespace is not None:
            self.namespace.close()
        if self.cgroup is not None:
            with suppress(OSError):
                PodCgroup(self.cgroup.path.parent).enter()
                self.cgroup.path.rmdir()

    def _end_cgroup(self, inside: PodCgroup, within_s: float) -> list[int]:
        """Leave the cgroup, kill every process in it, and enter it again."""
        try:
            PodCgroup(inside.path.parent).enter()
            left = inside.kill_all(within_s)
            inside.enter()
        except OSError as trouble:
            log.error("cgroup not left", path=str(inside.path), trouble=str(trouble))
            return [pid for pid in inside.pids() if pid != os.getpid()]
        return left


def choose(
    wanted: Containment,
    *,
    enforcement: Enforcement,
    run_dir: Path,
    mounts: Path = cgroup.MOUNTS,
    own: Path = cgroup.OWN,
) -> Boundary:
    """Find out which containment works here, and log it.

    Raise UsageError, with the reason, if the wanted one does not work.
    """
    refused: dict[Containment, str] = {}
    for kind in (Containment.CGROUP, Containment.PID_NAMESPACE, Containment.SUBREAPER):
        if wanted not in (Containment.AUTO, kind):
            continue
        found = _try(kind, enforcement, run_dir, mounts, own)
        if isinstance(found, Boundary):
            log.info("pods are contained", by=str(kind), refused=_reasons(refused))
            return found
        refused[kind] = found.why
    raise UsageError(
        f"--containment {wanted}: {refused[wanted]}",
        hint="start the agent with --containment auto, or set this machine up for it:"
        " docs/security.md",
    )


def _try(
    kind: Containment, enforcement: Enforcement, run_dir: Path, mounts: Path, own: Path
) -> Boundary | Unusable:
    match kind:
        case Containment.CGROUP:
            if enforcement.base is not None:
                return Boundary(kind=kind)
            mark = cgroup.mark_of(run_dir)
            base = cgroup.own_cgroup(mounts=mounts, own=own)
            if isinstance(base, Unusable):
                return base
            unusable = cgroup.try_out(cgroup.pod_cgroup(base, mark, "trial"))
            return unusable or Boundary(kind=kind, base=base, mark=mark)
        case Containment.PID_NAMESPACE:
            trouble = pid_namespace.try_out()
            return Unusable(trouble) if trouble else Boundary(kind=kind)
        case _:
            return Boundary(kind=kind)


def _reasons(refused: dict[Containment, str]) -> str:
    return "; ".join(f"{kind}: {why}" for kind, why in refused.items())
