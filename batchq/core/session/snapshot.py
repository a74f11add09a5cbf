"""What a session decides on: a snapshot of every live object at one revision, in a fixed order, and
the configuration's durations (in milliseconds), factors and bounds. Also the detection of changes
between snapshots, on which the caches rely (batchq/core/caches.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from batchq.api.notation import DAY, MINUTE, SECOND
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
from batchq.core.chunks import ByUid, Rows


class ContactStanding(Struct, frozen=True, kw_only=True):
    """The contact of a snapshot's reader with its server. Instants are in ms of the reader's clock.

    `generation` is that of attempts (see `batchq.api.transaction`). Since `contact_since`, the
    reader has been in touch with the server without interruption, and would have heard of every
    node that could reach it; None if there is no server. `restarted_at` is when a leader first
    served the server's current run; the nodes in `reported` have reported since then what runs on
    them. `forgot` says that the server is known to have lost writes in that restart.
    """

    generation: int = 0
    contact_since: int | None = None
    restarted_at: int | None = None
    reported: frozenset[str] = frozenset()
    forgot: bool = False

    @property
    def hears_since(self) -> int | None:
        """Return the instant (ms) before which silence means nothing. A restarted server may have
        lost heartbeats and renewals even if its reader has noticed no interruption.
        """
        contact_since, restarted_at = self.contact_since, self.restarted_at
        if contact_since is None or restarted_at is None:
            return restarted_at if contact_since is None else contact_since
        return max(contact_since, restarted_at)


def says_the_same(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two snapshots differ only in signs of life: heartbeats of nodes and leases of
    pods.

    Unchanged records are the same objects in both. Signs of life affect a decision only when they
    are late, which depends on the clock.
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

    The `groups` and `pods` of a store are Rows and ByUid (batchq.core.chunks), which share
    all unchanged parts with those of the previous snapshot. `pods` are grouped by the uid of their
    group; many pods of one group are Rows by uid. `leases` maps the uid of a pod to the instant
    (ms) at which the lease of its current attempt ends.
    """

    revision: int = 0
    queues: tuple[Queue, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    nodes: tuple[Node, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    admission_checks: tuple[AdmissionCheck, ...] = ()
    groups: Sequence[PodGroup] = ()
    pods: Mapping[str, Sequence[Pod]] = {}
    leases: Mapping[str, int] = {}
    #: Scope -> limits exceeded in a snapshot described by hand: its holders stay until a limit
    #: falls below that. A store never over-admits, so for a store this is empty.
    overbooked: Mapping[str, Amounts] = {}
    standing: ContactStanding = ContactStanding()


def groups_changed(
    former: Sequence[PodGroup], now: Sequence[PodGroup]
) -> Iterator[tuple[PodGroup | None, PodGroup | None]]:
    """Yield (before, now) for each group whose record is not the same object."""
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
    former: Mapping[str, Sequence[Pod]], now: Mapping[str, Sequence[Pod]]
) -> Iterator[str]:
    """Yield the uids of the groups whose pods are not the same objects."""
    if former is now:
        return
    if isinstance(former, ByUid) and isinstance(now, ByUid):
        yield from (uid for uid, _, _ in now.rows.differences(former.rows))
        return
    for uid in dict.fromkeys((*former, *now)):
        if former.get(uid, ()) is not now.get(uid, ()):
            yield uid


class Generation:
    """Counts how often the values of one subject have changed; owned by one cache.

    A cache has one Generation for each subject that it depends on. When a session begins, it passes
    the values of that subject to `follow`, and is cleared if they differ from the previous ones.
    Entries that last longer store the count at which they were made.
    """

    __slots__ = ("_seen", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seen: tuple[object, ...] | None = None

    def follow(self, *values: object) -> bool:
        """Store the values of the subject; return whether they differ from the former ones.

        Values are compared by identity first: a store provides the same tuple until it changes.
        """
        seen = self._seen
        if seen is not None:
            for one, other in zip(seen, values, strict=True):
                if one is not other and one != other:
                    break
            else:
                return False
        self._seen = values
        self.count += 1
        return True


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a session, with the defaults of the manual; `overcommit` is in thousandths."""

    schedule_period_ms: int = 1 * SECOND
    min_session_interval_ms: int = 20
    in_queue_timeout_ms: int = 5 * MINUTE
    recovery_timeout_ms: int = 5 * MINUTE
    node_timeout_ms: int = 40 * SECOND
    #: The length of a pod's lease, and the extra time before its silent node is written off.
    pod_lease_ms: int = 30 * SECOND
    backoff_first_ms: int = 10 * SECOND
    backoff_most_ms: int = 10 * MINUTE
    #: Nodes last seen longer ago than this no longer count as able to come back.
    node_memory_ms: int = 1 * DAY
    overcommit: int = 1000
    #: A group that has run for less than this is not taken as a victim.
    min_runtime_ms: int = 0
    #: The most pods that preempt and reclaim may evict within a window; None means any number.
    eviction_budget: int | None = None
    eviction_window_ms: int = 10 * MINUTE
    #: The most unfinished groups of a namespace whose ResourceQuotas state no other number.
    max_pod_groups_per_namespace: int = 10_000
    #: The age at which past usage counts half; None means that past usage is ignored.
    half_life_ms: int | None = 7 * DAY
    #: Queues are ordered by what they have used over time, not by what they hold. Needs a
    #: half-life.
    orders_by_usage: bool = False


class Instrument(Protocol):
    """A wrapper for measured calls; it calls the function exactly once, with the same arguments,
    and returns its result.

    Owned by the thread that runs the session.
    """

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that the session calls instead of a plugin's function at a point."""

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        """Return the function that the scheduler calls instead of an action's `execute`."""
