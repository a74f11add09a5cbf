"""What one session sees: every live object at one revision, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from batchq.api.objects import (
    AdmissionCheck,
    Node,
    Pod,
    PodGroup,
    PriorityClass,
    Queue,
    ResourceQuota,
)
from batchq.api.resources import Amounts
from batchq.core.cache.chunks import ByUid, Rows


class ContactStanding(Struct, frozen=True, kw_only=True):
    """How the reader of a snapshot stands with its server. Instants are milliseconds of its clock.

    `generation`: that of attempts (see `batchq.api.transaction`). `contact_since`: the reader
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


def says_the_same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots differ in nothing but signs of life: nodes' beats, pods' leases.

    Records that did not change are the same objects in both. What signs of life decide, they
    decide by the clock: when one is late.
    """
    return (
        one.groups is other.groups
        and one.pods is other.pods
        and one.queues is other.queues
        and one.quotas is other.quotas
        and one.priority_classes is other.priority_classes
        and one.admission_checks is other.admission_checks
        and one.overbooked == other.overbooked
        and one.standing == other.standing
        and len(one.nodes) == len(other.nodes)
        and all(map(_same_but_for_beats, one.nodes, other.nodes))
    )


def _same_but_for_beats(one: Node, other: Node) -> bool:
    return one is other or (
        one.metadata == other.metadata
        and one.spec == other.spec
        and one.status.ready == other.status.ready
    )


class Snapshot(Struct, frozen=True, kw_only=True):
    """Immutable records. Every sequence is ordered by key.

    A store's `groups` and `pods` are Rows and ByUid (batchq.core.cache.chunks): they share with
    those of the snapshot before all that did not change. `pods` are grouped by the uid of their
    group; `leases` maps a pod's uid to the instant in milliseconds at which the lease of its
    current attempt ends.
    """

    revision: int = 0
    queues: tuple[Queue, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    nodes: tuple[Node, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    admission_checks: tuple[AdmissionCheck, ...] = ()
    groups: Sequence[PodGroup] = ()
    pods: Mapping[str, tuple[Pod, ...]] = {}
    leases: Mapping[str, int] = {}
    #: Scope -> the limits under which a described world states more than fits: those who hold it
    #: stay until a limit falls below that. A store never over-admits, so there it is empty.
    overbooked: Mapping[str, Amounts] = {}
    standing: ContactStanding = ContactStanding()


def groups_changed(
    former: Sequence[PodGroup], now: Sequence[PodGroup]
) -> Iterator[tuple[PodGroup | None, PodGroup | None]]:
    """(before, now) of each group whose record is not the very same."""
    if isinstance(former, Rows) and isinstance(now, Rows):
        for _, old, new in now.differences(former):
            yield old, new
        return
    if former is now:
        return
    before = {record.metadata.uid: record for record in former}
    for record in now:
        old = before.pop(record.metadata.uid, None)
        if old is not record:
            yield old, record
    for record in before.values():
        yield record, None


def pods_changed(
    former: Mapping[str, tuple[Pod, ...]], now: Mapping[str, tuple[Pod, ...]]
) -> Iterator[str]:
    """The uids of the groups whose pods are not the very same."""
    if former is now:
        return
    if isinstance(former, ByUid) and isinstance(now, ByUid):
        yield from (uid for uid, _, _ in now.rows.differences(former.rows))
        return
    for uid in dict.fromkeys((*former, *now)):
        if former.get(uid, ()) is not now.get(uid, ()):
            yield uid
