"""Gauge values after a session: groups, queues, nodes and checks.

The session thread reads them off the session that has just ended; the result is immutable, so any
other thread may read it. The cost is one look at each queue, at each equivalence class of waiting
groups (batchq.core.equivalence), and at each other group that has not ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import AdmissionCheck
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, UNLIMITED_PODS, Amounts, minus, plus, times, units_per_whole
from batchq.api.transaction import queue_scope
from batchq.core.eligibility import is_active
from batchq.core.pending_queue import WaitingAlike, waiting_alike
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import deserved_of_queues, reported_share, resources_named
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.state import GroupState

#: The label of all queues that do not exist; their names are arbitrary user input.
NO_QUEUE = ""

KINDS = ("deserved", "guarantee", "capability", "allocated", "reserved", "pending")

#: First reasons of groups that compete for capacity. Groups with other reasons are ineligible.
_COMPETING = frozenset(
    {
        Waiting.WAITING_FOR_QUOTA,
        Waiting.WAITING_FOR_RESOURCES,
        Waiting.WAITING_FOR_TURN,
        Waiting.WAITING_FOR_PREEMPTION,
        Waiting.PENDING_EVALUATION,
    }
)


class QueueLevels(Struct, frozen=True, kw_only=True):
    """The values of one queue: `amounts` is kind -> resource -> whole units."""

    amounts: dict[str, dict[str, float]]
    #: None if it holds and deserves nothing.
    share: float | None
    weight: int | None


class Levels(Struct, frozen=True, kw_only=True):
    """All gauge values of one session.

    Ages are stored as instants in milliseconds: no session runs while nothing changes, but the
    oldest group still grows older.
    """

    #: The time of the session.
    at_ms: int
    #: (queue, phase) -> groups that have not ended.
    groups: dict[tuple[str, str], int]
    #: (queue, phase, reason) -> groups.
    waiting: dict[tuple[str, str, str], int]
    #: Queue -> gated groups; and when the oldest of them was created, if there is one.
    gated: dict[str, int]
    gated_since: dict[str, int | None]
    waiting_since: dict[str, int | None]
    queues: dict[str, QueueLevels]
    #: `ready`, `cordoned`, `silent` -> nodes.
    nodes: dict[str, int]
    #: Check -> when its controller's lease expires, in ms.
    checks: dict[str, float]


def levels_of(session: Session) -> Levels:
    """Return the levels of a session that has ended."""
    counts = {name: _QueueSums() for name in session.queues}
    nowhere = _QueueSums()
    for group in _single_groups(session):
        if group.status.phase not in TERMINAL and group.uid not in session.effects.expired:
            counts.get(group.record.spec.queue, nowhere).add(group)
    for alike in waiting_alike(session):
        counts.get(alike.queue, nowhere).add_alike(alike)
    everywhere = counts | ({NO_QUEUE: nowhere} if nowhere.groups else {})
    return Levels(
        at_ms=session.now_ms,
        groups={
            (name, phase): groups
            for name, count in everywhere.items()
            for phase, groups in count.groups.items()
        },
        waiting={
            (name, *key): groups
            for name, count in everywhere.items()
            for key, groups in count.waiting.items()
        },
        gated={name: count.gated for name, count in everywhere.items()},
        gated_since={name: count.gated_since for name, count in everywhere.items()},
        waiting_since={name: count.waiting_since for name, count in everywhere.items()},
        queues=_queues(session, counts),
        nodes=_nodes(session.nodes.by_name.values()),
        checks={
            name: _active_until(check, session.now_ms)
            for name, check in sorted(session.admission_checks.items())
        },
    )


def _single_groups(session: Session) -> Iterable[GroupState]:
    """Return groups in no class and groups that this session changed, if they still exist."""
    found = {group.uid: group for group in session.busy()}
    for line in session.lines():
        found |= line.singles
    found |= {uid: session.groups[uid] for uid in session.pending.parked if uid in session.groups}
    return found.values()


def resources_of(session: Session) -> list[str]:
    """Return the resources that metrics name, without those that only groups ask for."""
    return sorted({*resources_named(session), PODS})


def in_wholes(resource: str, units: int) -> float:
    """Convert to cores, bytes, or pieces."""
    return units / units_per_whole(resource)


class _QueueSums:
    """The sums of one queue, without the queues below it."""

    __slots__ = ("asked", "gated", "gated_since", "groups", "live", "waiting", "waiting_since")

    def __init__(self) -> None:
        #: Phase -> groups; (phase, reason) -> groups.
        self.groups: dict[PodGroupPhase, int] = {}
        self.waiting: dict[tuple[PodGroupPhase, Waiting], int] = {}
        self.gated = 0
        self.gated_since: int | None = None
        self.waiting_since: int | None = None
        #: What pods use on nodes; what Pending groups without a reservation ask for.
        self.live: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def add(self, group: GroupState) -> None:
        """Count a group. Thousands may wait, so this does little for each."""
        status = group.status
        phase: PodGroupPhase = status.phase
        reasons = status.reasons
        self.groups[phase] = self.groups.get(phase, 0) + 1
        is_pending = phase == PodGroupPhase.PENDING
        if reasons or is_pending:
            first = reasons[0].reason if reasons else Waiting.PENDING_EVALUATION
            self.waiting[phase, first] = self.waiting.get((phase, first), 0) + 1
        if not is_pending or group.pods or group.is_external:
            # The pods of a Pending group are stopping.
            _add_up(self.live, group.held)
        if is_pending:
            self._add_pending(group, first)

    def add_alike(self, alike: WaitingAlike) -> None:
        """Count the unchanged groups of an equivalence class without a look at each."""
        phase: PodGroupPhase = alike.example.status.phase
        reasons = alike.example.status.reasons
        first = reasons[0].reason if reasons else Waiting.PENDING_EVALUATION
        self.groups[phase] = self.groups.get(phase, 0) + alike.groups
        self.waiting[phase, first] = self.waiting.get((phase, first), 0) + alike.groups
        if first in _COMPETING:
            self.waiting_since = _earlier(self.waiting_since, alike.oldest.queue_time)
        _add_up(self.asked, times(alike.example.shape.reservation, alike.groups))

    def _add_pending(self, group: GroupState, first: Waiting) -> None:
        status = group.status
        if first in _COMPETING:
            self.waiting_since = _earlier(self.waiting_since, group.queue_time)
        elif _is_gated(status.reasons):
            self.gated += 1
            created = group.record.metadata.creation_timestamp
            self.gated_since = _earlier(self.gated_since, created or 0)
        if status.reserved_at is None:
            _add_up(self.asked, group.shape.reservation)


def _add_up(sums: dict[str, int], amounts: Amounts) -> None:
    for resource, units in amounts.items():
        sums[resource] = sums.get(resource, 0) + units


def _is_gated(reasons: tuple[Verdict, ...]) -> bool:
    """Return whether a gate is among the reasons; a more fundamental reason may come first."""
    return any(verdict.reason == Waiting.SCHEDULING_GATED for verdict in reasons)


def _earlier(known: int | None, at: int) -> int:
    return at if known is None or at < known else known


def _active_until(check: AdmissionCheck, now_ms: int) -> float:
    if not is_active(check, now_ms):
        return 0
    expires_at = check.status.expires_at
    return math.inf if expires_at is None else expires_at


def _queues(session: Session, counts: dict[str, _QueueSums]) -> dict[str, QueueLevels]:
    """Return the levels of every queue and the root, each with the queues below it."""
    live: dict[str, Amounts] = {}
    pending: dict[str, Amounts] = {}
    for name, count in counts.items():
        for above in session.tree.chain(name):
            live[above] = plus(live.get(above, {}), count.live)
            pending[above] = plus(pending.get(above, {}), count.asked)
    resources = resources_of(session)
    found = {}
    for name in dict.fromkeys((ROOT, *session.queues)):
        charged = session.ledger.sums.get(queue_scope(name), {})
        used = live.get(name, {})
        by_kind = _stated(session, name) | {
            "allocated": used,
            "reserved": minus(charged, used),
            "pending": pending.get(name, {}),
        }
        found[name] = _queue(session, name, by_kind, resources)
    return found


def _stated(session: Session, name: str) -> dict[str, Amounts]:
    """Return what a queue may have. An unstated amount is absent: it is neither 0 nor unlimited."""
    queue = session.queues.get(name)
    deserved = deserved_of_queues(session).get(name, {})
    return {
        "deserved": {
            resource: units
            for resource, units in deserved.items()
            if resource != PODS or units < UNLIMITED_PODS
        },
        "guarantee": dict(session.tree.guarantee(name)),
        "capability": {} if queue is None else queue.record.spec.capability,
    }


def _queue(
    session: Session, name: str, by_kind: dict[str, Amounts], resources: list[str]
) -> QueueLevels:
    held = ("allocated", "reserved", "pending")
    queue = session.queues.get(name)
    share = reported_share(session, name)
    return QueueLevels(
        amounts={
            kind: {
                resource: in_wholes(resource, by_kind[kind].get(resource, 0))
                for resource in resources
                if kind in held or resource in by_kind[kind]
            }
            for kind in KINDS
        },
        share=None if share is None else float(share),
        weight=None if queue is None else queue.record.spec.weight,
    )


def _nodes(nodes: Iterable[NodeState]) -> dict[str, int]:
    found = {"ready": 0, "cordoned": 0, "silent": 0}
    for node in nodes:
        found["ready" if node.open else "cordoned" if node.ready else "silent"] += 1
    return found
