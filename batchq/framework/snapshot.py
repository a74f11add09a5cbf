"""What one session sees: every live object at one revision, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from batchq.api.objects import Node, Pod, PodGroup, PriorityClass, Queue, ResourceQuota
from batchq.api.resources import Amounts


class Standing(Struct, frozen=True, kw_only=True):
    """How the reader of a snapshot stands with its server. Instants are milliseconds of its clock.

    `generation`: in which attempts are numbered (`batchq.api.fences`). `contact_since`: the reader
    has heard of the server without a break since then, and so would have heard whoever could reach
    it; None where there is no server to lose. `restarted_at`: when the server's present run was
    first led; nodes in `reported` have said since then what runs on them. `forgot`: the server is
    known to have lost writes in that restart.
    """

    generation: int = 0
    contact_since: int | None = None
    restarted_at: int | None = None
    reported: frozenset[str] = frozenset()
    forgot: bool = False

    @property
    def hears_since(self) -> int | None:
        """Silence before this instant says nothing. A server that was started anew may have
        forgotten beats and renewals, even if its reader has noticed no break.
        """
        known = [at for at in (self.contact_since, self.restarted_at) if at is not None]
        return max(known, default=None)


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
    standing: Standing = Standing()
