"""What keeps the processes of a pod together, so that its end is the end of all of them.

    cgroup          work-horse and pod are in a cgroup (version 2) of their own; `cgroup.kill` ends
                    in one step whatever is in it
    pid-namespace   the pod is in a PID namespace of its work-horse's: it sees no process outside,
                    and the kernel ends all of it with the namespace's first process
    subreaper       the work-horse becomes the parent of what the pod leaves behind, and kills its
                    children until there are none

The first that works here is taken, unless the operator names one. What works is found out by doing
it at the agent's start, since kernels, containers and security modules refuse each of it in ways of
their own. In all of them the work-horse looks after its children as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import structlog
from msgspec import Struct

from batchq.errors import UsageError
from batchq.worker.host import cgroup, pid_namespace
from batchq.worker.host.cgroup import PodCgroup, Unusable
from batchq.worker.host.memory_limits import Enforcement
from batchq.worker.host.pid_namespace import PidNamespace
from batchq.worker.host.processes import has_children_of, kill_children

log = structlog.get_logger(__name__)

_HORSE = "horse"
_AT_ONCE_S = 0.05


class Containment(StrEnum):
    """What the operator asks for; AUTO is the first of the others that works here."""

    AUTO = "auto"
    CGROUP = "cgroup"
    PID_NAMESPACE = "pid-namespace"
    SUBREAPER = "subreaper"


class Boundary(Struct, frozen=True, kw_only=True):
    """What holds on this machine; made once by `settle`, given to every work-horse."""

    kind: Containment
    #: Below which each work-horse has a cgroup; None where pods have some of their own already, for
    #: their memory, or none at all.
    base: Path | None = None
    #: Tells this agent's cgroups from those of another below the same base.
    mark: str = ""

    def of_horse(self, pid: int) -> PodCgroup | None:
        """The cgroup of a work-horse and its pods, made or not; None where there are none."""
        if self.base is None:
            return None
        return cgroup.pod_cgroup(self.base, self.mark, f"{_HORSE}-{pid}")

    def abandoned(self, horses: Collection[int]) -> list[PodCgroup]:
        """The cgroups of work-horses that are none of these, and have ended."""
        if self.base is None:
            return []
        kept = {self.of_horse(pid) for pid in horses}
        return [one for one in cgroup.pod_cgroups(self.base, self.mark) if one not in kept]


OF_CHILDREN = Boundary(kind=Containment.SUBREAPER)


class Enclosure:
    """What a work-horse has around its pods, one after the other; owned by the work-horse."""

    def __init__(self, boundary: Boundary = OF_CHILDREN) -> None:
        """Put it up, around this process, which has a single thread and has started nothing."""
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
        """To be called before a command is started. Raises OSError.

        A namespace that has ended, because somebody killed its first process, has a successor.
        """
        if self._boundary.kind != Containment.PID_NAMESPACE:
            return
        if self.namespace is not None and self.namespace.is_gone():
            self.namespace.close()
            self.namespace = None
        if self.namespace is None:
            self.namespace = PidNamespace()

    def keeps(self) -> tuple[int, ...]:
        """The children of this process that are part of it."""
        return () if self.namespace is None else (self.namespace.pid,)

    def end_all(
        self,
        *,
        keep: Collection[int],
        within_s: float,
        kill_others: Callable[[], bool] | None = None,
    ) -> list[int]:
        """Kill every process of the last pod, whose command has been collected; the pids of those
        that are left after about `within_s`.

        `keep`: children of this process that are no pod's. They are killed as well if they have
        children, and in a cgroup if there is anything else to kill. `kill_others` has the process
        that stays in the namespace kill all others in it, if it answers.
        """
        keep = (*keep, *self.keeps())
        if self.namespace is not None:
            has_killed = kill_others is not None and kill_others()
            end = self.namespace.await_all if has_killed else self.namespace.end_all
            return end(within_s) + kill_children(keep=keep, within_s=within_s)
        if self.cgroup is None:
            # A pod can put a child beside itself, below the process that it was forked from.
            alone = [pid for pid in keep if not has_children_of(pid)]
            return kill_children(keep=alone, within_s=within_s)
        # To step outside takes the kernel longer than to end what most pods leave.
        left = kill_children(keep=keep, within_s=min(_AT_ONCE_S, within_s))
        if set(self.cgroup.pids()) <= {os.getpid(), *keep}:
            return left
        return self._end_cgroup(self.cgroup, within_s) + kill_children(keep=keep, within_s=within_s)

    def close(self) -> None:
        """Take it down; what is left in it, if there is anything, is the agent's to end."""
        if self.namespace is not None:
            self.namespace.close()
        if self.cgroup is not None:
            with suppress(OSError):
                PodCgroup(self.cgroup.path.parent).enter()
                self.cgroup.path.rmdir()

    def _end_cgroup(self, inside: PodCgroup, within_s: float) -> list[int]:
        """Step outside, kill what is inside, and step in again."""
        try:
            PodCgroup(inside.path.parent).enter()
            left = inside.kill_all(within_s)
            inside.enter()
        except OSError as trouble:
            log.error("cgroup not left", path=str(inside.path), trouble=str(trouble))
            return [pid for pid in inside.pids() if pid != os.getpid()]
        return left


def settle(
    wanted: Containment,
    *,
    enforcement: Enforcement,
    run_dir: Path,
    mounts: Path = cgroup.MOUNTS,
    own: Path = cgroup.OWN,
) -> Boundary:
    """Find out what works here, and say so in the log.

    Raises UsageError, with the reason, if what is wanted does not.
    """
    refused: dict[Containment, str] = {}
    for kind in (Containment.CGROUP, Containment.PID_NAMESPACE, Containment.SUBREAPER):
        if wanted not in (Containment.AUTO, kind):
            continue
        found = _try(kind, enforcement, run_dir, mounts, own)
        if isinstance(found, Boundary):
            log.info("pods are contained", by=str(kind), refused=_said(refused))
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


def _said(refused: dict[Containment, str]) -> str:
    return "; ".join(f"{kind}: {why}" for kind, why in refused.items())
