"""What one session sees: every live object at one revision, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from batchq.api.objects import Node, Pod, PodGroup, PriorityClass, Queue, ResourceQuota
from batchq.api.resources import Amounts


class Snapshot(Struct, frozen=True, kw_only=True):
    """Immutable records. Every tuple is ordered by key.

    `pods` are grouped by the uid of their group; `leases` maps a pod's uid to the instant in
    milliseconds at which the lease of its current attempt ends.
    """

    revision: int = 0
    queues: tuple[Queue, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    nodes: tuple[Node, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    groups: tuple[PodGroup, ...] = ()
    pods: Mapping[str, tuple[Pod, ...]] = {}
    leases: Mapping[str, int] = {}
    #: Scope -> the limits under which a described world states more than fits: those who hold it
    #: stay until a limit falls below that. A store never over-admits, so there it is empty.
    overbooked: Mapping[str, Amounts] = {}
