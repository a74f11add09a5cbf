"""The controller: brings groups and pods up to date at the start of each session.

Nodes fall silent, pods end, clocks run out, users suspend groups and cut quotas. The controller
moves groups and pods along the lifecycle's table in response. Pure: it changes the session's state
through Statements, like an action. `settle` calls one function for each kind of event, in order.

It also maintains pledges across sessions: it evicts the remaining victims, and ends pledges. A
pledge ends when the preemptor has been placed, or loses its reservation. If its victims have not
ended in time, the preemptor is rolled back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec
from msgspec import Struct

from batchq.api import intents
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import format_duration, format_instant
from batchq.api.objects import Pledge, Pod, ended
from batchq.api.reasons import Finish, Leaving, Waiting
from batchq.api.resources import (
    Amounts,
    describe_quantity,
    minus,
    named,
    of_pod,
    plus,
    smaller,
    times,
    total,
)
from batchq.api.transaction import CLUSTER, POD_GROUPS, generation_of
from batchq.core.eligibility import (
    WANTED,
    are_honoured,
    evicts_late,
    holds_off,
    names_in,
    never_met,
    stops_of,
)
from batchq.core.kept_capacity import (
    clock_stands,
    end_pledge,
    has_lost_nodes,
    hold_pledged_capacity,
    keep_stored_places,
    nodes_awaited,
    standing_pledges,
    victims_left,
)
from batchq.core.placement.feasibility import fits_when_empty, why_not_when_empty
from batchq.core.placement.placement import gang_of
from batchq.core.preemption.evictions import REASONS, action_against
from batchq.core.quota.ledger import falls_by, is_booked, title_of
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import (
    create_pods,
    evict,
    expire,
    finish,
    lose,
    move_group,
    pause_walltime,
    requeue,
    restart,
    resume_walltime,
    roll_back,
    stop_leftovers,
    wanted_ordinals,
)
from batchq.scheduler.admission_checks import apply_checks
from batchq.scheduler.timers import (
    DEFERRED_MS,
    lease_over_at,
    needing_action,
    note_settled,
    pod_walltime_over_at,
    requeue_due_at,
    walltime_over_at,
)

_RUNS = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


def settle(session: Session) -> None:
    """Apply everything that has happened since the last session."""
    _notice_silent_nodes(session)
    active, _ = needing_action(session)
    active = [group for group in active if group.uid not in session.pending.parked]
    for group in [*active, *_groups_missing_checks(session)]:
        with Statement(session) as statement:
            _settle_group(statement, group)
            _settle_charge(statement, group)
            statement.commit()
        if (group.steady or group.runs_whole) and group.uid not in session.effects.touched:
            note_settled(session, group)
    update_pledges(session)
    roll_back_over_limits(session)
    roll_back_unplaceable(session)
    hold_pledged_capacity(session)
    keep_stored_places(session)
    # Last, so that no pods are created for a group that has just left.
    _create_missing_pods(session, {group.uid for group in active})


def _groups_missing_checks(session: Session) -> list[GroupState]:
    """Return waiting groups whose queue asks for checks that they do not list yet."""
    if not session.tree.asks_for_checks or not are_honoured(session):
        return []
    lines = [
        queue.line
        for name, queue in session.queues.items()
        if names_in(session, session.tree.chain(name))
    ]
    return [group for line in lines for group in line.in_order() if group.record_only]


def _notice_silent_nodes(session: Session) -> None:
    for node in session.nodes.by_name.values():
        if node.record.status.ready and not node.ready:
            session.effects.unready.append(node.name)
            session.intents.append(intents.SetNodeReady(node=node.name, ready=False))


def _create_missing_pods(session: Session, active: set[str]) -> None:
    """Create missing pods of groups that were touched or need action; others lack none."""
    for group in session.unsettled():
        if group.uid not in active and group.uid not in session.effects.touched:
            continue
        if not is_admitted(group) or group.has_all_placed:
            continue
        if missing := wanted_ordinals(group):
            with Statement(session) as statement:
                create_pods(statement, group, missing)
                statement.commit()


def _settle_group(statement: Statement, group: GroupState) -> None:
    # Pods lost now are requeued by the next session, because each step of a pod is stored.
    lost = _write_off_lost_pods(statement, group)
    if not is_admitted(group):
        end_lapsed_claim(statement, group)
    if group.phase in TERMINAL:
        _clean_up_finished(statement, group)
    elif is_admitted(group):
        _settle_admitted(statement, group, lost)
    else:
        _settle_pending(statement, group)


def _settle_charge(statement: Statement, group: GroupState) -> None:
    """Let the session's commit write the group's charge without the pods that have ended since the
    last session.
    """
    if statement.intents or is_booked(group, statement.session.ledger.owed(group)):
        return
    statement.session.effects.touched[group.uid] = group
    statement.say(intents.Settle(group=group.key))


def _write_off_lost_pods(statement: Statement, group: GroupState) -> set[str]:
    lost = set()
    for uid, pod in list(group.live_pods.items()):
        over_at = lease_over_at(statement.session, pod)
        if over_at is not None and over_at <= statement.session.now_ms:
            lose(statement, group, pod)
            lost.add(uid)
    return lost


def _requeue_pods(statement: Statement, group: GroupState, spared: set[str]) -> None:
    """Requeue evicted pods at once, unless they were lost repeatedly, and failed pods after their
    back-off; delete the pods of former admissions.
    """
    for uid, pod in list(group.live_pods.items()):
        phase = pod.status.phase
        if uid in spared or phase in ON_NODE:
            continue
        if not group.is_current(pod):
            statement.drop_pod(group, uid)
        elif group.is_final(pod):
            continue
        elif (
            phase in (PodPhase.EVICTED, PodPhase.FAILED)
            and requeue_due_at(statement.session, group, pod) <= statement.session.now_ms
        ):
            requeue(statement, group, pod)


def _restart_if_broken(statement: Statement, group: GroupState, spared: set[str]) -> bool:
    """Restart a gang with `spec.launch` that has lost a pod: the others would wait for it in vain.

    A pod that left its node before it had claimed it is requeued alone, because the gang does not
    start without its claim. So no more than one attempt of each pod starts in an admission.
    """
    session, status = statement.session, group.status
    broken = [
        pod
        for pod in group.current()
        if pod.metadata.uid not in spared
        and (
            pod.status.phase == PodPhase.FAILED
            or (pod.status.phase == PodPhase.EVICTED and pod.status.started_at is not None)
        )
    ]
    failed = [pod for pod in broken if pod.status.phase == PodPhase.FAILED]
    if broken:
        first = min(broken, key=lambda pod: (pod.status.finished_at or 0, pod.metadata.uid))
        what = f"left node {first.status.node}: {first.status.reason}"
        how = _how_it_failed(first) if first in failed else what
        message = f"its pod {first.metadata.name} {how}"
    elif _is_of_two_runs(session, group):
        message = "the server was restarted while its pods started"
    else:
        return False
    failures = status.failed_rounds + bool(failed)
    due = [requeue_due_at(session, group, pod) for pod in broken]
    restart(statement, group, message, failures=failures, not_before=max(due, default=0))
    return True


def _is_of_two_runs(session: Session, group: GroupState) -> bool:
    """Return whether only some pods of a gang have started before the server's last restart.

    The server may have forgotten that the others had, too, and these may have met them.
    """
    generation = session.snapshot.standing.generation
    started = [
        pod
        for pod in group.current()
        if pod.status.started_at is not None and generation_of(pod.status.attempt) < generation
    ]
    return bool(started) and len(started) < group.replicas


def _stop_overdue_pods(statement: Statement, group: GroupState) -> None:
    """Stop pods of an array whose walltime is over; each has its own."""
    for pod in list(group.live_pods.values()):
        over_at = pod_walltime_over_at(group, pod)
        if over_at is not None and over_at <= statement.session.now_ms:
            evict(statement, group, pod, Finish.WALLTIME_EXCEEDED)


def _settle_pending(statement: Statement, group: GroupState) -> None:
    if _apply_checks(statement, group):
        return
    if group.reserved and _roll_back_if_stopped(statement, group):
        return
    dependency = never_met(group, statement.session.groups)
    if dependency is not None:
        message = (
            f"waits for {dependency.name} {WANTED[dependency.condition]}, which is impossible now"
        )
        finish(statement, group, PodGroupPhase.FAILED, Finish.DEPENDENCY_NEVER_MET, message)
        return
    for uid, pod in list(group.live_pods.items()):
        # A described world may contain pods of the next admission, which are used then.
        of_old = pod.status.admission <= group.status.admission
        if of_old and pod.status.phase not in ON_NODE:
            statement.drop_pod(group, uid)


def _settle_admitted(statement: Statement, group: GroupState, lost: set[str]) -> None:
    if group.is_external:
        _settle_external(statement, group)
        return
    progress = GroupProgress.of(group)
    # First, so that a group that has just completed is not rolled back and run again.
    if _finish_if_done(statement, group, progress) or _roll_back_if_withdrawn(statement, group):
        return
    launch = group.record.spec.launch
    restarts_whole = launch is not None and launch.restart == "group"
    if restarts_whole and _restart_if_broken(statement, group, lost):
        return
    _requeue_pods(statement, group, lost)
    if group.is_array:
        _stop_overdue_pods(statement, group)
    enough = progress.running + progress.succeeded >= group.min_member
    _follow_pods(statement, group, progress, enough=enough)
    _pause_walltime(statement, group)
    if group.phase != PodGroupPhase.IN_QUEUE:
        remaining = remaining_reservation(group, progress)
        if remaining != group.status.reservation:
            statement.set_status(group, reservation=remaining)


def _pause_walltime(statement: Statement, group: GroupState) -> None:
    """Pause the walltime of a group that has pods left but none on a node: it queues again."""
    if group.record.spec.walltime is None or group.is_array:
        return
    rests = group.phase in _RUNS and not group.held and not group.has_all_placed
    if rests and group.status.rests_at is None:
        pause_walltime(statement, group)
    elif not rests and group.status.rests_at is not None:
        resume_walltime(statement, group)


def _settle_external(statement: Statement, group: GroupState) -> None:
    """Apply the consumer's reports and the clocks; the reservation stays whole until the end."""
    progress = reported_progress(group)
    if finish_if_reported(statement, group, progress) or _finish_if_overdue(statement, group):
        return
    if end_lapsed_claim(statement, group) or _roll_back_if_withdrawn(statement, group):
        return
    _follow_pods(statement, group, progress, enough=runs_enough(group, progress))


def _roll_back_if_withdrawn(statement: Statement, group: GroupState) -> bool:
    """Return whether the group lost its admission by a check, a suspension or a stopped queue."""
    return _apply_checks(statement, group) or _roll_back_if_stopped(statement, group)


def _apply_checks(statement: Statement, group: GroupState) -> bool:
    """Return whether its checks rolled back or finished the group; most groups have none."""
    has_any = group.status.checks or statement.session.tree.asks_for_checks
    return bool(has_any) and apply_checks(statement, group)


def _roll_back_if_stopped(statement: Statement, group: GroupState) -> bool:
    """Roll back a group that is suspended, or whose queue is stopped or drained."""
    if group.record.spec.suspend:
        roll_back(statement, group, Leaving.SUSPENDED)
        return True
    for name, policy in stops_of(statement.session, group):
        if policy == "HoldAndDrain" or group.phase == PodGroupPhase.PENDING:
            how = "drained" if policy == "HoldAndDrain" else "stopped"
            roll_back(statement, group, Leaving.QUEUE_STOPPED, f"queue {name} is {how}")
            return True
    return False


def _finish_if_done(statement: Statement, group: GroupState, progress: GroupProgress) -> bool:
    """Finish the group if it has succeeded, spent its retries, or used up its walltime."""
    if progress.succeeded == group.replicas:
        finish(statement, group, PodGroupPhase.COMPLETED, Finish.SUCCEEDED)
        return True
    if progress.cannot_succeed(group):
        finish(
            statement,
            group,
            PodGroupPhase.FAILED,
            progress.failure_reason(),
            f"{progress.failed} of {group.replicas} pods failed; {progress.first_failure()}",
        )
        return True
    return _finish_if_overdue(statement, group)


def _finish_if_overdue(statement: Statement, group: GroupState) -> bool:
    over_at = walltime_over_at(group)
    if over_at is None or statement.session.now_ms < over_at:
        return False
    limit = format_duration(group.record.spec.walltime or 0)
    message = f"its walltime of {limit} is over"
    finish(statement, group, PodGroupPhase.FAILED, Finish.WALLTIME_EXCEEDED, message)
    return True


def _follow_pods(
    statement: Statement, group: GroupState, progress: GroupProgress, *, enough: bool
) -> None:
    """Move between InQueue, Running and Unknown by the number of running pods, with timeouts."""
    settings, now_ms = statement.session.settings, statement.session.now_ms
    status = group.status
    match group.phase, enough:
        case PodGroupPhase.IN_QUEUE, True if _may_defer_running(statement.session, group, progress):
            group.settled_until = (statement.session.pending.generation, now_ms + DEFERRED_MS)
        case ((PodGroupPhase.IN_QUEUE | PodGroupPhase.UNKNOWN), True):
            move_group(statement, group, PodGroupPhase.RUNNING)
        case PodGroupPhase.RUNNING, False:
            move_group(statement, group, PodGroupPhase.UNKNOWN)
        case PodGroupPhase.IN_QUEUE, False:
            since = status.in_queue_at if status.in_queue_at is not None else now_ms
            # An open claim has a clock of its own, and the timeout is suspended while the group
            # waits for victims.
            stands = clock_stands(statement.session, group) or _pulls_images(group)
            waits = not status.claim.is_open and not stands
            if waits and since + settings.in_queue_timeout_ms <= now_ms:
                limit = format_duration(settings.in_queue_timeout_ms)
                message = "; ".join((f"not Running within {limit}", *_missing_nodes(group)))
                roll_back(statement, group, Leaving.IN_QUEUE_TIMEOUT, message)
        case PodGroupPhase.UNKNOWN, False:
            since = status.unknown_at if status.unknown_at is not None else now_ms
            if since + settings.recovery_timeout_ms <= now_ms and not _pulls_images(group):
                limit = format_duration(settings.recovery_timeout_ms)
                message = f"too few of its pods ran for {limit}"
                roll_back(statement, group, Leaving.RECOVERY_TIMEOUT, message)


def _may_defer_running(session: Session, group: GroupState, progress: GroupProgress) -> bool:
    """Return whether a group that runs may be shown as InQueue a little longer, as no decision
    depends on it: a short one then ends without a write of its own for that.
    """
    spec = group.record.spec
    if not session.effects.defers_status or group.settled_until is not None:
        return False
    if group.status is not group.record.status or spec.walltime is not None:
        return False
    if group.is_external:
        return True
    return (
        spec.launch is None
        and progress.running == group.replicas
        and remaining_reservation(group, progress) == group.status.reservation
    )


def _pulls_images(group: GroupState) -> bool:
    """Return whether images of its pods are being pulled, which the agents limit in time. A Bound
    pod has a message only meanwhile.
    """
    return any(
        pod.status.phase == PodPhase.BOUND and pod.status.message
        for pod in group.live_pods.values()
    )


def _missing_nodes(group: GroupState) -> list[str]:
    """Return what nodes lacked for its pods when they were last asked."""
    found = (one for one in group.status.reasons if one.reason == Waiting.UNSCHEDULABLE)
    return [verdict.message() for verdict in found]


def _clean_up_finished(statement: Statement, group: GroupState) -> None:
    """Stop what still runs of a finished group, and delete the group after its time to live."""
    finished = next((c for c in group.status.conditions if c.type == "Finished"), None)
    stop_leftovers(statement, group, finished.reason if finished else Finish.CANCELLED)
    finished_at = group.status.finished_at or 0
    over = finished_at + group.record.spec.ttl_after_finished <= statement.session.now_ms
    busy = group.held or group.status.claim.is_open
    if over and not busy and not _has_dependents(statement.session, group):
        expire(statement, group)


def _has_dependents(session: Session, group: GroupState) -> bool:
    """Return whether a waiting group still needs the outcome of this one."""
    others = (session.groups.get(uid) for uid in session.carried.dependents.get(group.uid, ()))
    return any(
        other is not None and other.phase == PodGroupPhase.PENDING and not other.status.admission
        for other in others
    )


def roll_back_over_limits(session: Session) -> None:
    """Roll back reserved groups, the last first, in scopes whose limit was reduced below their
    charges.
    """
    in_queue = [
        group for group in session.unsettled() if _may_leave(group) and group.status.reservation
    ]
    if not in_queue:
        return
    scopes = sorted({scope for group in in_queue for scope in group.scopes})
    # As a rule, no limit was reduced.
    over = [scope for scope in scopes if _excess(session, scope)]
    if over:
        in_queue.sort(key=session.group_key, reverse=True)
    for scope in over:
        _cut(session, scope, [group for group in in_queue if scope in group.scopes])


def _cut(session: Session, scope: str, last_first: list[GroupState]) -> None:
    excess = _excess(session, scope)
    for group in last_first:
        if not excess:
            return
        charge = session.ledger.counts_for(group, scope)
        short = next((name for name in excess if charge.get(name)), None)
        if short is None or not _may_leave(group):
            continue
        if scope == CLUSTER and nodes_awaited(session, group.status.pledge):
            # Its node is expected back, so no other group has to leave for that capacity.
            excess = minus(excess, charge)
            continue
        limit = describe_quantity(short, session.ledger.limit(scope, short) or 0)
        message = (
            f"{title_of(scope)} allows {short} {limit} now, less than what groups have reserved"
        )
        reason = Leaving.NODE_LOST if scope == CLUSTER else Leaving.CAPACITY_CUT
        with Statement(session) as statement:
            roll_back(statement, group, reason, message)
            statement.commit()
        excess = minus(excess, charge)


def _may_leave(group: GroupState) -> bool:
    """Return whether it may lose its reservation without losing work: InQueue, or still Pending."""
    return group.phase == PodGroupPhase.IN_QUEUE or (
        group.phase == PodGroupPhase.PENDING and group.reserved
    )


def _excess(session: Session, scope: str) -> Amounts:
    """Return what the scope holds beyond its limit, less what is already being stopped.

    A described world may state more than fits; such a limit does not count as cut.
    """
    stated = session.snapshot.overbooked.get(scope, {})
    over: Amounts = {}
    for name, units in session.ledger.sums.get(scope, {}).items():
        limit = session.ledger.limit(scope, name)
        if limit is None or units <= limit or (scope == CLUSTER and name == POD_GROUPS):
            continue
        if name not in stated or limit < stated[name]:
            over[name] = units - limit
    return minus(over, _leaving(session, scope)) if over else {}


def _leaving(session: Session, scope: str) -> Amounts:
    """Return by how much charges fall once every pod that was asked to stop has stopped."""
    leaving: Amounts = {}
    for group in session.busy():
        stopping = total(
            of_pod(pod.spec.requests)
            for pod in group.live_pods.values()
            if pod.status.terminating and pod.status.phase in ON_NODE
        )
        if group.is_external:
            # What it holds without a reservation belongs to a claim that is being stopped.
            stopping = group.held
        if stopping and scope in group.scopes:
            leaving = plus(leaving, falls_by(group, stopping))
    return leaving


def roll_back_unplaceable(session: Session) -> None:
    """Roll back InQueue groups that could not fit even on empty nodes.

    Asked once a session for each combination of shapes.
    """
    known: dict[tuple[object, ...], bool] = {}
    for group in session.unsettled():
        if group.phase != PodGroupPhase.IN_QUEUE or group.is_external:
            continue
        if session.group_ready(group) or nodes_awaited(session, group.status.pledge):
            continue
        gang = gang_of(session, group)
        shapes = tuple((shape.shape, count) for shape, count in gang)
        if shapes not in known:
            known[shapes] = fits_when_empty(session, gang)
        if not known[shapes]:
            with Statement(session) as statement:
                why = why_not_when_empty(session, gang)
                roll_back(statement, group, Leaving.UNSCHEDULABLE, why)
                statement.commit()


def reported_progress(group: GroupState) -> GroupProgress:
    """Return the progress by the reports on single pods; reports on the whole are in the claim."""
    if not group.status.reported:
        return _NONE_REPORTED
    counts = Counter(group.status.reported.values())
    failed = sorted(name for name, phase in group.status.reported.items() if phase == "Failed")
    return GroupProgress(
        running=counts["Running"],
        succeeded=counts["Succeeded"],
        failed=counts["Failed"],
        reported_failure=f"{failed[0]} was reported as failed" if failed else "",
    )


def runs_enough(group: GroupState, progress: GroupProgress) -> bool:
    """Return whether it counts as Running: the consumer says so, or minMember pods have started."""
    if group.status.claim.phase == "Running":
        return True
    return progress.running + progress.succeeded >= group.min_member


def finish_if_reported(statement: Statement, group: GroupState, progress: GroupProgress) -> bool:
    """Finish the group as Completed or Failed, as reported for the group or for its pods.

    If pods may still run, the consumer is asked to stop, and the charge stays until it has.
    """
    claim = group.status.claim
    if claim.phase == "Succeeded" or progress.succeeded == group.replicas:
        if claim.is_open:
            statement.set_status(group, claim=ended(claim, "Succeeded"))
        finish(statement, group, PodGroupPhase.COMPLETED, Finish.SUCCEEDED)
        return True
    if claim.phase == "Failed" or progress.cannot_succeed(group):
        failed = f"{progress.failed} of {group.replicas} pods failed; {progress.first_failure()}"
        if claim.is_open and progress.succeeded + progress.failed == group.replicas:
            statement.set_status(group, claim=ended(claim, "Failed"))
        message = failed if progress.failed else f"reported by {claim.holder}"
        if claim.message:
            message = f"{message}: {claim.message}"
        finish(statement, group, PodGroupPhase.FAILED, Finish.RETRIES_SPENT, message)
        return True
    return False


def end_lapsed_claim(statement: Statement, group: GroupState) -> bool:
    """End a claim that lapsed and whose grace is over: free its resources and requeue the group."""
    claim = group.status.claim
    over_at = claim.over_at if claim.is_open else None
    if over_at is None or statement.session.now_ms < over_at:
        return False
    statement.set_status(group, claim=ended(claim, "Lapsed"))
    if is_admitted(group):
        lapsed_at = format_instant(over_at if claim.expires_at is None else claim.expires_at)
        message = f"the claim of {claim.holder} lapsed at {lapsed_at}"
        roll_back(statement, group, Leaving.CLAIM_LAPSED, message)
    else:
        statement.say(intents.Settle(group=group.key))
    return True


_LATE = "the victims whose resources were pledged to it did not end in time"
_NO_NODE = "a node with resources pledged to it has not returned in time, and there is no other"


def update_pledges(session: Session) -> None:
    """Update every standing pledge."""
    for preemptor, pledge in list(standing_pledges(session)):
        with Statement(session) as statement:
            _update_pledge(statement, preemptor, pledge)
            statement.commit()


def _update_pledge(statement: Statement, preemptor: GroupState, pledge: Pledge) -> None:
    session = statement.session
    is_admitted = preemptor.phase != PodGroupPhase.PENDING
    # Without the action `enqueue`, groups are admitted without a reservation.
    has_left = not is_admitted and not preemptor.reserved
    if has_left or (is_admitted and not pledge.extra and session.group_ready(preemptor)):
        end_pledge(statement, preemptor)
        return
    left = victims_left(session, pledge)
    # A preemptor that waits only for its checks, or did until now, is not late because of victims.
    has_checks = bool(preemptor.status.checks) and are_honoured(session)
    is_served = not is_admitted and not left and has_checks
    if pledge.expires is not None and pledge.expires <= session.now_ms and not is_served:
        _end_late_pledge(statement, preemptor)
        return
    is_young = pledge.expires is None and evicts_late(session, preemptor)
    if left and is_young and (pledge.action in session.actions or holds_off(session, preemptor)):
        # No victim has been evicted yet: the action chooses victims again.
        return
    for group, pods, leaves in left:
        # A described world may leave the kind of its pledges open.
        action = action_against(preemptor, group) if pledge.action else ""
        reason = REASONS.get(action, Leaving.PREEMPTED)
        if leaves:
            message = f"made room for {preemptor.key}"
            roll_back(statement, group, reason, message, by=preemptor.key, action=action)
            continue
        for pod in pods:
            evict(statement, group, pod, reason, by=preemptor.key, action=action)
    if not left and pledge.made_at is not None:
        _shift_timeout(statement, preemptor, pledge)


def _end_late_pledge(statement: Statement, preemptor: GroupState) -> None:
    """End the pledge; a preemptor that does not run yet also loses its reservation."""
    if preemptor.phase not in (PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE):
        end_pledge(statement, preemptor)
    elif has_lost_nodes(statement.session, preemptor.status.pledge):
        roll_back(statement, preemptor, Leaving.NODE_LOST, _NO_NODE)
    else:
        roll_back(statement, preemptor, Leaving.IN_QUEUE_TIMEOUT, _LATE)


def _shift_timeout(statement: Statement, preemptor: GroupState, pledge: Pledge) -> None:
    """Extend inQueueTimeout by the time for which the preemptor waited for its victims."""
    waited = statement.session.now_ms - (pledge.made_at or 0)
    since = preemptor.status.in_queue_at
    statement.set_status(
        preemptor,
        pledge=msgspec.structs.replace(pledge, made_at=None),
        in_queue_at=None if since is None else since + waited,
    )


class GroupProgress(Struct, frozen=True):
    """Counts over a group's pods; pods that do not exist yet count as unfinished. `failures` are
    the pods that failed for good, and `reported_failure` says the same of an external group.
    """

    running: int
    succeeded: int
    failed: int
    failures: Collection[Pod] = ()
    reported_failure: str = ""

    @classmethod
    def of(cls, group: GroupState) -> GroupProgress:
        """Count the group's present pods."""
        running = succeeded = 0
        failures: list[Pod] = []
        for pod in group.live_pods.values():
            phase = pod.status.phase
            if not group.is_current(pod):
                continue
            if phase == PodPhase.RUNNING:
                running += 1
            elif phase == PodPhase.SUCCEEDED:
                succeeded += 1
            elif group.is_final(pod):
                failures.append(pod)
        if (index := group.elastic_pods) is not None:
            succeeded, failed = index.succeeded.total(), index.failed.values()
            return cls(running, succeeded, len(failed), failed)
        return cls(running, succeeded, len(failures), failures)

    def first_failure(self) -> str:
        """Return how the first of the failed pods ended; empty if none failed."""
        if not self.failures:
            return self.reported_failure
        first = min(self.failures, key=lambda pod: (pod.status.finished_at or 0, pod.metadata.uid))
        return f"the first, {first.metadata.name}, {_how_it_failed(first)}"

    def failure_reason(self) -> Finish:
        """Return why the group failed: all of its failed pods exceeded their walltime, or not."""
        reasons = {pod.status.reason for pod in self.failures}
        if reasons == {Finish.WALLTIME_EXCEEDED}:
            return Finish.WALLTIME_EXCEEDED
        return Finish.RETRIES_SPENT

    def cannot_succeed(self, group: GroupState) -> bool:
        """Return whether the group can no longer succeed, or has ended with failures.

        A full gang fails at its first final failure. An elastic group fails when all pods have
        ended, or as soon as succeeded + unfinished < minMember, or a task has fewer pods left than
        its minAvailable, because it can then never be placed again.
        """
        if self.failed == 0:
            return False
        if not group.is_elastic:
            return True
        unfinished = group.replicas - self.succeeded - self.failed
        if unfinished == 0 or self.succeeded + unfinished < group.min_member:
            return True
        by_task = Counter(pod.spec.task for pod in self.failures)
        return any(
            task.replicas - by_task[task.name] < task.min_available
            for task in group.record.spec.tasks
        )


def _how_it_failed(pod: Pod) -> str:
    status = pod.status
    if status.reason == Finish.WALLTIME_EXCEEDED:
        return "exceeded its walltime"
    if status.signal is not None and status.message.startswith("killed by signal "):
        return f"was {status.message}"
    how = (
        f"exited with {status.exit_code}"
        if status.signal is None
        else f"was ended by signal {status.signal}"
    )
    return f"{how} ({status.message})" if status.message and status.message != how else how


_NONE_REPORTED = GroupProgress(running=0, succeeded=0, failed=0)


def remaining_reservation(group: GroupState, progress: GroupProgress) -> Amounts:
    """Return what a running group still reserves, which never grows: the least of its reservation
    and the requests of the pods that its gang lacks (`GroupState.lacks_for_gang`).
    """
    shape = group.shape
    is_as_admitted = (
        not progress.succeeded
        and not progress.failed
        and not group.status.opened_gates
        and group.status.reservation == shape.reservation
    )
    if is_as_admitted and not shape.spec.min_resources:
        # It reserves what its pods ask for, and none of them has ended.
        return group.status.reservation
    lacks = group.lacks_for_gang()
    asked = total(
        times(shape.requests, count) for shape, count in zip(group.tasks, lacks, strict=True)
    )
    return named(smaller(group.status.reservation, asked))
