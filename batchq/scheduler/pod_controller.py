"""What happens to groups by themselves, at the start of each session, before any action.

Nodes fall silent, pods end, clocks run out, people suspend and cut quotas: the controller lets
groups and pods follow, along the lifecycle's table. Pure: it moves the session's state through
Statements, like an action. One function for each kind of event, called in the order of `settle`.
"""

from __future__ import annotations

from collections import Counter

from batchq.api import intents
from batchq.api.leases import ended
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.reasons import Finish, Leaving, Waiting
from batchq.api.resources import Amounts, describe_quantity, minus, of_pod, plus, total
from batchq.api.times import format_duration, format_instant
from batchq.api.transaction import CLUSTER, POD_GROUPS
from batchq.core.pending.eligibility import WANTED, are_honoured, names_in, never_met, stops_of
from batchq.core.placement.feasibility import fits_when_empty, why_not_when_empty
from batchq.core.placement.kept_places import keep_stored
from batchq.core.placement.placement import gang_of
from batchq.core.preemption.pledges import clock_stands, keep_rooms, nodes_awaited
from batchq.core.quota.ledger import falls_by, is_booked, title_of
from batchq.core.session.pods import wanted_ordinals
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
    requeue,
    rest,
    roll_back,
    stop_leftovers,
    wake,
)
from batchq.scheduler.admission_checks import follow_checks
from batchq.scheduler.pledge_upkeep import follow_pledges
from batchq.scheduler.progress import GroupProgress, remaining_reservation
from batchq.scheduler.timers import (
    astir,
    lease_over_at,
    note_settled,
    pod_walltime_over_at,
    requeue_due_at,
    walltime_over_at,
)

_RUNS = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


def settle(session: Session) -> None:
    """Let everything follow what has happened since the last session."""
    _notice_silent_nodes(session)
    stirring, _ = astir(session, session.busy())
    stirring = [group for group in stirring if group.uid not in session.asleep]
    for group in [*stirring, *_asked_for_checks(session)]:
        with Statement(session) as statement:
            _settle_group(statement, group)
            _settle_charge(statement, group)
            statement.commit()
        if group.steady and group.uid not in session.touched:
            note_settled(session, group)
    follow_pledges(session)
    leave_where_cut(session)
    leave_where_impossible(session)
    keep_rooms(session)
    keep_stored(session)
    # Last: a group that has just left must not leave pods behind in the story.
    _create_what_lacks(session, {group.uid for group in stirring})


def _asked_for_checks(session: Session) -> list[GroupState]:
    """Of the groups that only wait, those whose queue asks for checks that they do not list yet."""
    if not session.admission_checks_are_asked_for or not are_honoured(session):
        return []
    lines = [
        queue.line
        for name, queue in session.queues.items()
        if names_in(session, session.tree.chain(name))
    ]
    return [group for line in lines for group in line.in_order() if group.bare]


def _notice_silent_nodes(session: Session) -> None:
    for node in session.nodes.values():
        if node.record.status.ready and not node.ready:
            session.unready.append(node.name)
            session.intents.append(intents.SetNodeReady(node=node.name, ready=False))


def _create_what_lacks(session: Session, stirring: set[str]) -> None:
    """Of those in whom something stirs, by uid, or who have been touched: whoever was settled
    before lacked nothing then.
    """
    for group in session.busy():
        if group.uid not in stirring and group.uid not in session.touched:
            continue
        if not is_admitted(group) or group.has_all_placed:
            continue
        if missing := wanted_ordinals(group):
            with Statement(session) as statement:
                create_pods(statement, group, missing)
                statement.commit()


def _settle_group(statement: Statement, group: GroupState) -> None:
    # What is written off now is requeued by the next session: each step of a pod is stored.
    lost = _write_off_lost_pods(statement, group)
    if not is_admitted(group):
        claim_is_over(statement, group)
    if group.phase in TERMINAL:
        _bury(statement, group)
    elif is_admitted(group):
        _settle_admitted(statement, group, lost)
    else:
        _settle_pending(statement, group)


def _settle_charge(statement: Statement, group: GroupState) -> None:
    """Pods that ended since the last session still count in the ledger: let it follow."""
    if statement.intents or is_booked(group, statement.session.ledger.owed(group)):
        return
    statement.session.touched[group.uid] = group
    statement.say(intents.Settle(group=group.key))


# --- Pods -----------------------------------------------------------------------------------


def _write_off_lost_pods(statement: Statement, group: GroupState) -> set[str]:
    lost = set()
    for uid, pod in list(group.pods.items()):
        over_at = lease_over_at(statement.session, pod)
        if over_at is not None and over_at <= statement.session.now_ms:
            lose(statement, group, pod)
            lost.add(uid)
    return lost


def _requeue_pods(statement: Statement, group: GroupState, spared: set[str]) -> None:
    """Evicted pods at once, unless they were lost again and again; failed ones after their
    back-off; what older admissions left goes.
    """
    for uid, pod in list(group.pods.items()):
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


def _stop_overdue_pods(statement: Statement, group: GroupState) -> None:
    """An array's pods have a walltime each."""
    for pod in list(group.pods.values()):
        over_at = pod_walltime_over_at(group, pod)
        if over_at is not None and over_at <= statement.session.now_ms:
            evict(statement, group, pod, Finish.WALLTIME_EXCEEDED)


# --- Groups ---------------------------------------------------------------------------------


def _settle_pending(statement: Statement, group: GroupState) -> None:
    if _follows_checks(statement, group):
        return
    if group.reserved and _leaves_by_order(statement, group):
        return
    dependency = never_met(group, statement.session.groups)
    if dependency is not None:
        message = f"waits for {dependency.name} {WANTED[dependency.condition]}, which it never will"
        finish(statement, group, PodGroupPhase.FAILED, Finish.DEPENDENCY_NEVER_MET, message)
        return
    for uid, pod in list(group.pods.items()):
        # A described world may state pods of the admission to come: they are used then.
        of_old = pod.status.admission <= group.status.admission
        kept = pod.status.phase in ON_NODE or (group.is_elastic and group.is_final(pod))
        if of_old and not kept:
            statement.drop_pod(group, uid)


def _settle_admitted(statement: Statement, group: GroupState, lost: set[str]) -> None:
    if group.is_external:
        _settle_external(statement, group)
        return
    progress = GroupProgress.of(group)
    # First: who has come to its end is not sent back to do it all again.
    if _ends(statement, group, progress) or _is_taken_back(statement, group):
        return
    _requeue_pods(statement, group, lost)
    if group.is_array:
        _stop_overdue_pods(statement, group)
    enough = progress.running + progress.succeeded >= group.min_member
    _follow_pods(statement, group, enough=enough)
    _let_walltime_rest(statement, group)
    if group.phase != PodGroupPhase.IN_QUEUE:
        remaining = remaining_reservation(group, progress)
        if remaining != group.status.reservation:
            statement.set_status(group, reservation=remaining)


def _let_walltime_rest(statement: Statement, group: GroupState) -> None:
    """A group with pods left and none on a node stands in line again, and its walltime rests."""
    if group.record.spec.walltime is None or group.is_array:
        return
    rests = group.phase in _RUNS and not group.held and not group.has_all_placed
    if rests and group.status.rests_at is None:
        rest(statement, group)
    elif not rests and group.status.rests_at is not None:
        wake(statement, group)


def _settle_external(statement: Statement, group: GroupState) -> None:
    """By what its consumer reports, and the clocks; its reservation stays whole to the end."""
    progress = reported_progress(group)
    if comes_to_its_end(statement, group, progress) or _walltime_passes(statement, group):
        return
    if claim_is_over(statement, group) or _is_taken_back(statement, group):
        return
    _follow_pods(statement, group, enough=runs_enough(group, progress))


def _is_taken_back(statement: Statement, group: GroupState) -> bool:
    """An admission check has turned False, or somebody said so."""
    return _follows_checks(statement, group) or _leaves_by_order(statement, group)


def _follows_checks(statement: Statement, group: GroupState) -> bool:
    """Whether it has left or ended by its checks; most groups have none."""
    has_any = group.status.checks or statement.session.admission_checks_are_asked_for
    return bool(has_any) and follow_checks(statement, group)


def _leaves_by_order(statement: Statement, group: GroupState) -> bool:
    """Somebody said so: the group is suspended, or its queue is drained."""
    if group.record.spec.suspend:
        roll_back(statement, group, Leaving.SUSPENDED)
        return True
    for name, policy in stops_of(statement.session, group):
        if policy == "HoldAndDrain" or group.phase == PodGroupPhase.PENDING:
            how = "drained" if policy == "HoldAndDrain" else "stopped"
            roll_back(statement, group, Leaving.QUEUE_STOPPED, f"queue {name} is {how}")
            return True
    return False


def _ends(statement: Statement, group: GroupState, progress: GroupProgress) -> bool:
    """Completed, or Failed: retries spent, or walltime passed."""
    if progress.succeeded == group.replicas:
        finish(statement, group, PodGroupPhase.COMPLETED, Finish.SUCCEEDED)
        return True
    if progress.is_hopeless(group):
        finish(
            statement,
            group,
            PodGroupPhase.FAILED,
            progress.failure_reason,
            f"{progress.failed} of {group.replicas} pods failed; {progress.first_failure}",
        )
        return True
    return _walltime_passes(statement, group)


def _walltime_passes(statement: Statement, group: GroupState) -> bool:
    over_at = walltime_over_at(group)
    if over_at is None or statement.session.now_ms < over_at:
        return False
    finish(statement, group, PodGroupPhase.FAILED, Finish.WALLTIME_EXCEEDED)
    return True


def _follow_pods(statement: Statement, group: GroupState, *, enough: bool) -> None:
    """InQueue, Running and Unknown, by how many pods run; and the clocks of InQueue and Unknown."""
    settings, now_ms = statement.session.settings, statement.session.now_ms
    status = group.status
    match group.phase, enough:
        case ((PodGroupPhase.IN_QUEUE | PodGroupPhase.UNKNOWN), True):
            move_group(statement, group, PodGroupPhase.RUNNING)
        case PodGroupPhase.RUNNING, False:
            move_group(statement, group, PodGroupPhase.UNKNOWN)
        case PodGroupPhase.IN_QUEUE, False:
            since = status.in_queue_at if status.in_queue_at is not None else now_ms
            # Whoever has claimed it has started to: the claim has a clock of its own. And while
            # victims are awaited, the clock stands.
            waits = not status.claim.is_open and not clock_stands(statement.session, group)
            if waits and since + settings.in_queue_timeout_ms <= now_ms:
                limit = format_duration(settings.in_queue_timeout_ms)
                told = "; ".join((f"not Running within {limit}", *_no_node(group)))
                roll_back(statement, group, Leaving.IN_QUEUE_TIMEOUT, told)
        case PodGroupPhase.UNKNOWN, False:
            since = status.unknown_at if status.unknown_at is not None else now_ms
            if since + settings.recovery_timeout_ms <= now_ms:
                limit = format_duration(settings.recovery_timeout_ms)
                told = f"too few of its pods ran for {limit}"
                roll_back(statement, group, Leaving.RECOVERY_TIMEOUT, told)


def _no_node(group: GroupState) -> list[str]:
    """What nodes lacked for its pods when they were last asked."""
    found = (one for one in group.status.reasons if one.reason == Waiting.UNSCHEDULABLE)
    return [verdict.message() for verdict in found]


def _bury(statement: Statement, group: GroupState) -> None:
    """A finished group: stop what still runs; forget it when its time is over."""
    finished = next((c for c in group.status.conditions if c.type == "Finished"), None)
    stop_leftovers(statement, group, finished.reason if finished else Finish.CANCELLED)
    finished_at = group.status.finished_at or 0
    over = finished_at + group.record.spec.ttl_after_finished <= statement.session.now_ms
    busy = group.held or group.status.claim.is_open
    if over and not busy and not _is_depended_on(statement.session, group):
        expire(statement, group)


def _is_depended_on(session: Session, group: GroupState) -> bool:
    """Whether a group that waits still has to learn how this one ended."""
    others = (session.groups.get(uid) for uid in session.dependents.get(group.uid, ()))
    return any(
        other is not None and other.phase == PodGroupPhase.PENDING and not other.status.admission
        for other in others
    )


def leave_where_cut(session: Session) -> None:
    """Scope by scope: the cluster, queues, namespaces."""
    in_queue = [group for group in session.busy() if _may_leave(group) and group.status.reservation]
    if not in_queue:
        return
    in_queue.sort(key=session.group_key, reverse=True)
    last_first: dict[str, list[GroupState]] = {}
    for group in in_queue:
        for scope in group.scopes:
            last_first.setdefault(scope, []).append(group)
    for scope in sorted(last_first):
        _cut(session, scope, last_first[scope])


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
            # Nobody else leaves for what is lost for a while with its node.
            excess = minus(excess, charge)
            continue
        limit = describe_quantity(short, session.ledger.limit(scope, short) or 0)
        message = (
            f"{title_of(scope)} allows {short} {limit} now,"
            " which is not enough for all that have reserved"
        )
        reason = Leaving.NODE_LOST if scope == CLUSTER else Leaving.CAPACITY_CUT
        with Statement(session) as statement:
            roll_back(statement, group, reason, message)
            statement.commit()
        excess = minus(excess, charge)


def _may_leave(group: GroupState) -> bool:
    """InQueue, or Pending with a reservation: nothing that runs is lost."""
    return group.phase == PodGroupPhase.IN_QUEUE or (
        group.phase == PodGroupPhase.PENDING and group.reserved
    )


def _excess(session: Session, scope: str) -> Amounts:
    """What the scope holds beyond its limit, less what is being stopped already.

    A limit under which a described world states more than fits has not been cut.
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
    """What charges will fall by when everything that was told to stop has stopped."""
    leaving: Amounts = {}
    for group in session.busy():
        stopping = total(
            of_pod(pod.spec.requests)
            for pod in group.pods.values()
            if pod.status.terminating and pod.status.phase in ON_NODE
        )
        if group.is_external:
            # What it holds without a reservation is a claim that is being stopped.
            stopping = group.held
        if stopping and scope in group.scopes:
            leaving = plus(leaving, falls_by(group, stopping))
    return leaving


def leave_where_impossible(session: Session) -> None:
    """Asked once a session for each combination of shapes."""
    known: dict[tuple[object, ...], bool] = {}
    for group in session.busy():
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
    """How far it is by what was reported of its pods; a word for all of it is in the claim."""
    counts = Counter(group.status.reported.values())
    failed = sorted(name for name, phase in group.status.reported.items() if phase == "Failed")
    return GroupProgress(
        running=counts["Running"],
        succeeded=counts["Succeeded"],
        failed=counts["Failed"],
        finished_by_task={},
        failed_by_task={},
        first_failure=f"{failed[0]} was reported as failed" if failed else "",
        failure_reason=Finish.RETRIES_SPENT,
    )


def runs_enough(group: GroupState, progress: GroupProgress) -> bool:
    """Whether it counts as Running: its consumer says so, or minMember pods have started."""
    if group.status.claim.phase == "Running":
        return True
    return progress.running + progress.succeeded >= group.min_member


def comes_to_its_end(statement: Statement, group: GroupState, progress: GroupProgress) -> bool:
    """Completed or Failed, as reported of the group itself or of its pods.

    Where pods may still run, the consumer is told to stop, and the charge stays for as long.
    """
    claim = group.status.claim
    if claim.phase == "Succeeded" or progress.succeeded == group.replicas:
        if claim.is_open:
            statement.set_status(group, claim=ended(claim, "Succeeded"))
        finish(statement, group, PodGroupPhase.COMPLETED, Finish.SUCCEEDED)
        return True
    if claim.phase == "Failed" or progress.is_hopeless(group):
        failed = f"{progress.failed} of {group.replicas} pods failed; {progress.first_failure}"
        if claim.is_open and progress.succeeded + progress.failed == group.replicas:
            statement.set_status(group, claim=ended(claim, "Failed"))
        message = failed if progress.failed else f"reported by {claim.holder}"
        if claim.message:
            message = f"{message}: {claim.message}"
        finish(statement, group, PodGroupPhase.FAILED, Finish.RETRIES_SPENT, message)
        return True
    return False


def claim_is_over(statement: Statement, group: GroupState) -> bool:
    """A claim that lapsed, its grace over too: what it held is free, and the group waits anew."""
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
