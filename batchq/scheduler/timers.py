"""Every instant at which something becomes due by the clock alone, in milliseconds.

The controllers act on them, and `next_due_at` tells the loop and the simulator when to run next.
"""

from __future__ import annotations

from collections.abc import Iterable

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Leaving
from batchq.core.eligibility import instants, names_in, pause_ms
from batchq.core.kept_capacity import clock_stands
from batchq.core.preemption import protection
from batchq.core.session.open_session import binding_held_until, lease_ms_on, since
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted

#: How many node losses in one admission a pod may have before a new bind waits.
FREE_LOSSES = 2
#: For how long a session may defer status that only informs people (ms).
DEFERRED_MS = 1_000
#: Later than all instants.
NEVER = 2**63 - 1
_REQUEUED = frozenset({PodPhase.EVICTED, PodPhase.FAILED})


def lease_over_at(session: Session, pod: Pod) -> int | None:
    """Return when a pod counts as lost: when its lease and its grace have passed. None if never.

    A pod that its node has not claimed yet has no lease. It is lost only with its node, one lease
    after the node's last heartbeat.
    """
    status = pod.status
    if status.phase not in ON_NODE:
        return None
    grace = pod.spec.termination_grace
    ends_at = session.snapshot.leases.get(pod.metadata.uid)
    node = session.nodes.by_name.get(status.node)
    lease_ms = session.settings.pod_lease_ms
    if status.phase == PodPhase.RUNNING and ends_at is not None:
        if node is not None:
            lease_ms = lease_ms_on(session, node)
        # The last renewal was one lease before the end, unless the server was unreachable then.
        return max(ends_at, since(session, ends_at - lease_ms) + lease_ms) + grace
    if node is not None and (node.ready or node.record.status.heartbeat is None):
        return None
    heartbeat = 0 if node is None else node.record.status.heartbeat or 0
    # An instant of the future is no sign of a node: a submitter can write it past batchq.
    signs = (heartbeat, status.bound_at or 0, status.started_at or 0)
    last_sign_at = max(at if at <= session.now_ms else 0 for at in signs)
    return since(session, last_sign_at) + lease_ms + grace


def requeue_due_at(session: Session, group: GroupState, pod: Pod) -> int:
    """Return when a pod that was evicted, or failed with a retry left, may be bound again.

    Node losses do not count as retries, but they are not free for ever: if every attempt is lost at
    once, as on a machine that stalls, a pod would be bound many times a second.
    """
    status = pod.status
    ended_at = status.finished_at or 0
    if status.phase == PodPhase.FAILED:
        return ended_at + group.record.spec.retry.backoff
    if status.reason != Leaving.NODE_LOST or status.losses <= FREE_LOSSES:
        return ended_at
    return ended_at + pause_ms(session.settings, status.losses - FREE_LOSSES - 1)


def walltime_over_at(group: GroupState) -> int | None:
    """Return when a group's walltime is over; None for an array, whose pods have their own."""
    walltime, started_at = group.record.spec.walltime, group.status.started_at
    if walltime is None or started_at is None or group.status.rests_at is not None:
        return None
    if group.is_array and not group.is_external:
        return None
    return started_at + walltime


def pod_walltime_over_at(group: GroupState, pod: Pod) -> int | None:
    """Return when the walltime of an array's pod is over."""
    walltime, status = group.record.spec.walltime, pod.status
    if walltime is None or status.phase != PodPhase.RUNNING or status.started_at is None:
        return None
    return None if status.terminating else status.started_at + walltime


def next_due_at(session: Session, groups: Iterable[GroupState] | None = None) -> int | None:
    """Return the next instant after now at which a controller would act; None if there is none.

    With `groups`, only these groups count.
    """
    due = _of_session(session)
    for group in session.effects.touched.values():
        group.settled_until = None
    active, first_at = needing_action(session, groups)
    due.append(first_at)
    for group in active:
        if group.uid not in session.effects.expired:
            due += clocks_of(session, group)
    if groups is None and (at := session.next_at()) is not None:
        due.append(at)
    next_at = min([at for at in due if at > session.now_ms], default=NEVER)
    return None if next_at == NEVER else next_at


def _of_session(session: Session) -> list[int]:
    """Return the instants that belong to no group, past ones included."""
    timeout_ms = session.settings.node_timeout_ms
    due = [
        since(session, node.record.status.heartbeat) + timeout_ms
        for node in session.nodes.by_name.values()
        if node.ready and node.record.status.heartbeat is not None
    ]
    if session.victims.spares_the_new:
        due.append(session.now_ms + 1)
    half_ms = session.settings.in_queue_timeout_ms // 2
    due += [
        lacked_at + half_ms + 1
        for group in session.carried.waits_for_nodes.values()
        if (lacked_at := group.status.nodes_lacked_at) is not None
    ]
    if (held_until := binding_held_until(session)) is not None:
        due.append(held_until)
    for clock in session.plugins.clocks:
        due += clock(session)
    return due


def needing_action(
    session: Session, groups: Iterable[GroupState] | None = None
) -> tuple[list[GroupState], int]:
    """Return the groups that may need action, by key, and the first instant of the others (NEVER
    without). With `groups`, only these groups count.

    A settled group needs no action while none of its clocks has run out, no pledge counts on its
    resources, and the configuration generation (`session.pending.generation`) is the same.
    """
    generation, now_ms, preemptors = (
        session.pending.generation,
        session.now_ms,
        session.ledger.preemptors,
    )
    found: list[GroupState] = []
    first_at = NEVER
    if groups is None:
        groups, whole_at = _may_need_action(session)
        first_at = NEVER if whole_at is None else whole_at
    for group in groups:
        until = group.settled_until
        if until is None or until[0] != generation or until[1] <= now_ms or group.uid in preemptors:
            found.append(group)
        elif until[1] < first_at:
            first_at = until[1]
    return found, first_at


def _may_need_action(session: Session) -> tuple[list[GroupState], int | None]:
    """Return the busy groups, by key, without those that run with all of their pods and are known
    to be settled, and the first instant of the latter.
    """
    found, whole = session.unsettled(), session.carried.whole
    more = [
        *whole.due(session.pending.generation, session.now_ms),
        *[
            group
            for uid in session.ledger.preemptors
            if (group := session.groups.get(uid)) is not None and group.key in whole
        ],
    ]
    if more:
        by_key = {group.key: group for group in (*found, *more)}
        found = [by_key[key] for key in sorted(by_key)]
    return found, whole.next_at()


def note_settled(session: Session, group: GroupState) -> None:
    """Mark a running group as settled until the first of its clocks runs out.

    A group with a clock that has run out already is not marked.
    """
    first_at = min(clocks_of(session, group), default=NEVER)
    asked = session.tree.asks_for_checks and names_in(session, group.chain)
    if not asked and first_at > session.now_ms:
        group.settled_until = (session.pending.generation, first_at)
        session.carried.whole.settle(group, first_at)


def clocks_of(session: Session, group: GroupState) -> list[int]:
    """Return every instant at which something becomes due for a group, past ones included."""
    status = group.status
    due = _of_phase(session, group)
    if status.checks:
        due += instants(session, group)
    if status.claim.is_open and status.claim.over_at is not None:
        due.append(status.claim.over_at)
    if status.pledge.stands and status.pledge.expires is not None and group.phase not in TERMINAL:
        due.append(status.pledge.expires)
    if session.settings.eviction_budget is not None:
        # An eviction that leaves the budget's window allows another one.
        due += [int(at) + session.settings.eviction_window_ms for at in status.evictions.recent]
    due += protection.instants(session, group)
    for pod in group.live_pods.values():
        due += _of_pod(session, group, pod)
    return due


def _of_phase(session: Session, group: GroupState) -> list[int]:
    status, phase = group.status, group.phase
    if phase in TERMINAL:
        return [(status.finished_at or 0) + group.record.spec.ttl_after_finished]
    if not is_admitted(group):
        return [] if status.backoff_until is None else [status.backoff_until]
    due = []
    if phase == PodGroupPhase.IN_QUEUE and status.in_queue_at is not None:
        due += _of_wait(session, group, status.in_queue_at)
    if phase == PodGroupPhase.UNKNOWN and status.unknown_at is not None:
        due.append(status.unknown_at + session.settings.recovery_timeout_ms)
    if (over_at := walltime_over_at(group)) is not None:
        due.append(over_at)
    return due


def _of_wait(session: Session, group: GroupState, since: int) -> list[int]:
    """Return the clocks of a group that is InQueue, but not Running yet."""
    timeout_ms = session.settings.in_queue_timeout_ms
    if group.status.claim.is_open or clock_stands(session, group):
        return []
    if group.is_external or session.group_ready(group):
        return [since + timeout_ms]
    # From half of the timeout on, the group reserves the free resources that it finds.
    return [since + timeout_ms, since + timeout_ms // 2 + 1]


def _of_pod(session: Session, group: GroupState, pod: Pod) -> list[int]:
    due = []
    if (over_at := lease_over_at(session, pod)) is not None:
        due.append(over_at)
    if pod.status.phase in _REQUEUED and not group.is_final(pod):
        due.append(requeue_due_at(session, group, pod))
    if group.is_array and (over_at := pod_walltime_over_at(group, pod)) is not None:
        due.append(over_at)
    return due
