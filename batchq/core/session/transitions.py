"""Transitions of groups and pods in a session, each as one function on a Statement.

These functions define how a transition changes the records; actions and
`batchq.scheduler.pod_controller` decide when it happens. The functions on ordinals, at the end, say
which pods an admitted group lacks and make them from the templates of its tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

import msgspec
from msgspec import structs

from batchq.api import intents
from batchq.api.lifecycle import ON_NODE, PodGroupPhase, PodPhase
from batchq.api.node_features import image_to_pull
from batchq.api.objects import (
    Condition,
    GroupClaim,
    Metadata,
    Pod,
    PodGroupStatus,
    PodSpec,
    PodStatus,
    PodTemplate,
    final_reports,
    stopped,
    uid_of_pod,
    with_condition,
)
from batchq.api.reasons import Finish, Leaving
from batchq.api.resources import Amounts, describe
from batchq.api.transaction import following
from batchq.core.eligibility import cleared, pause_ms
from batchq.core.kept_capacity import end_pledge, release_places
from batchq.core.preemption.protection import RECLAIM, with_group_run, with_pod_run
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement

#: These reasons cost the group its place in line; a timeout does so only if its pods had nodes and
#: did not start.
_NEW_QUEUE_TIME = frozenset({Leaving.IN_QUEUE_TIMEOUT, Leaving.CHECK_RETRY})
#: These reasons are followed by a growing backoff.
_BACKS_OFF = frozenset(
    {
        Leaving.IN_QUEUE_TIMEOUT,
        Leaving.UNSCHEDULABLE,
        Leaving.RECOVERY_TIMEOUT,
        Leaving.CLAIM_LAPSED,
    }
)

_HAS_STARTED = frozenset({PodPhase.RUNNING, PodPhase.SUCCEEDED})
#: What a group that is no longer admitted has not got.
_NOT_ADMITTED: Mapping[str, object] = {
    "phase": PodGroupPhase.PENDING,
    "in_queue_at": None,
    "started_at": None,
    "rests_at": None,
    "unknown_at": None,
}
#: The empty claim, shared by all groups.
_NO_CLAIM = GroupClaim()
_NO_TEMPLATE = PodTemplate()

#: How many pods keep their number of failures in the group's record across an eviction.
MOST_SPENT = 10_000

_set = msgspec.structs.replace


def set_condition(
    statement: Statement,
    group: GroupState,
    kind: str,
    state: Literal["True", "False", "Unknown"],
    reason: str,
    message: str = "",
) -> None:
    """Set one condition; does nothing if it is set already."""
    now_ms = statement.session.now_ms
    conditions = with_condition(group.status.conditions, kind, state, reason, message, now_ms)
    if conditions is not group.status.conditions:
        statement.set_status(group, conditions=conditions)


def admit(statement: Statement, group: GroupState, *, reservation: Amounts) -> None:
    """Pending -> InQueue: store the reservation (which may be empty) and count the admission."""
    statement.put_status(group, _status_admitted(statement.session, group, reservation))
    statement.say(intents.AdmitGroup(group=group.key, admission=group.status.admission))


def admit_all(statement: Statement, groups: Sequence[GroupState]) -> None:
    """Admit many groups, each with its own request as its reservation, and create their pods."""
    session, new = statement.session, []
    statement.put_statuses(
        [(group, _status_admitted(session, group, group.reservation)) for group in groups]
    )
    for group in groups:
        pods = pods_of(group, wanted_ordinals(group))
        new.append((group, pods))
        names = tuple([pod_name(pod) for pod in pods])
        statement.intents += (
            intents.AdmitGroup(group=group.key, admission=group.status.admission),
            intents.CreatePods(group=group.key, pods=names),
        )
    statement.put_pods_of(new)


def _status_admitted(session: Session, group: GroupState, reservation: Amounts) -> PodGroupStatus:
    last = session.get(LAST_ADMISSION)
    former, asked = group.status, (reservation, group.left_out, group.domain, group.is_elastic)
    if not last or last[0] != former or last[1] != asked:
        last[:] = former, asked, _admitted(session, group, reservation)
    status: PodGroupStatus = last[2]
    return status


def _admitted(session: Session, group: GroupState, reservation: Amounts) -> PodGroupStatus:
    now_ms = session.now_ms
    return _set(
        group.status,
        phase=PodGroupPhase.IN_QUEUE,
        admission=group.status.admission + 1,
        reserved_at=_reserved_at(group, now_ms) if reservation else None,
        reservation=reservation,
        left_out=group.left_out,
        domain=group.domain,
        nodes_lacked_at=None,
        set_aside_on={},
        in_queue_at=now_ms,
        started_at=None,
        rests_at=None,
        unknown_at=None,
        backoff_until=None,
        set_aside_at=None,
        reasons=(),
        claim=_NO_CLAIM,
        reported=final_reports(group.status) if group.is_elastic else {},
        conditions=_on_admission(session, group, reservation),
    )


def _on_admission(
    session: Session, group: GroupState, reservation: Amounts
) -> tuple[Condition, ...]:
    former = group.status.conditions
    key, known = tuple(reservation.items()), session.get(FIRST_CONDITIONS)
    if not former and key in known:
        return known[key]
    now_ms, message = session.now_ms, f"reserved {describe(reservation)}"
    found = with_condition(former, "Admitted", "True", "Admitted", message, now_ms)
    if reservation:
        found = with_condition(found, "QuotaReserved", "True", "QuotaReserved", message, now_ms)
    for one in former:
        if one.type == "Evicted":
            # The reason of the last eviction is kept, because it is passed to the next pods.
            found = with_condition(found, "Evicted", "False", one.reason, one.message, now_ms)
        if one.type == "Scheduled":
            found = with_condition(found, "Scheduled", "False", "Admitted", message, now_ms)
    if not former:
        known[key] = found
    return found


def _reserved_at(group: GroupState, now_ms: int) -> int:
    """Return when the group reserved its quota; a preemptor reserves before its admission."""
    return group.status.reserved_at if group.status.reserved_at is not None else now_ms


def reserve(
    statement: Statement, group: GroupState, message: str, amounts: Amounts | None = None
) -> None:
    """Reserve quota, so that no other group can be admitted to it: these amounts, or as much as the
    group requests.
    """
    statement.set_status(
        group,
        reserved_at=statement.session.now_ms,
        reservation=group.reservation if amounts is None else amounts,
        left_out=group.left_out,
        domain=group.domain,
        set_aside_at=None,
        set_aside_on={},
    )
    set_condition(statement, group, "QuotaReserved", "True", "QuotaReserved", message)
    statement.say(intents.ReserveQuota(group=group.key))


def create_pods(statement: Statement, group: GroupState, ordinals: list[int]) -> list[Pod]:
    """Create pods, Pending, for the current admission."""
    pods = pods_of(group, ordinals)
    if pods:
        if group.status.left_out != group.left_out:
            statement.set_status(group, left_out=group.left_out)
        statement.put_pods(group, pods)
        names = tuple([pod_name(pod) for pod in pods])
        statement.say(intents.CreatePods(group=group.key, pods=names))
    return pods


def create_placed(
    statement: Statement, group: GroupState, ordinals: list[int], nodes: Sequence[NodeState]
) -> None:
    """Create pods and bind them, one to each of the nodes, which have taken their requests."""
    then = _pods_bound(statement, pods_of(group, ordinals), nodes)
    statement.put_pods(group, then)
    names = tuple([pod_name(pod) for pod in then])
    statement.say(intents.CreatePods(group=group.key, pods=names))
    _say_bound(statement, group, then)


def roll_back(
    statement: Statement,
    group: GroupState,
    reason: Leaving,
    message: str = "",
    *,
    by: str = "",
    action: str = "",
    backs_off: bool = False,
) -> None:
    """Move the group back to Pending: without reservation, its pods deleted or being stopped.

    `by` and `action` name the preemptor, if the group is its victim. With `backs_off`, the group
    backs off whatever the reason.
    """
    session = statement.session
    status, settings, now_ms = group.status, session.settings, session.now_ms
    changes: dict[str, object] = {}
    if action == RECLAIM:
        changes["evictions"] = with_group_run(group, now_ms)
    only_lacked_nodes = (
        reason == Leaving.IN_QUEUE_TIMEOUT
        and not group.is_external
        and not session.group_ready(group)
    )
    if reason in _NEW_QUEUE_TIME and not only_lacked_nodes:
        changes["queue_time"] = now_ms
    if backs_off or (reason in _BACKS_OFF and not only_lacked_nodes):
        pause = pause_ms(settings, status.backoff_count)
        changes |= {"backoff_until": now_ms + pause, "backoff_count": status.backoff_count + 1}
    statement.say(intents.RollBack(group=group.key, reason=reason, message=message))
    # Together with its reservation, a preemptor loses its pledge.
    end_pledge(statement, group)
    release_places(statement, group)
    statement.set_status(
        group,
        **_NOT_ADMITTED,
        reserved_at=None,
        reservation={},
        left_out=(),
        domain={},
        # That some extra pods had no node is no reason why the group waits now.
        reasons=() if group.phase == PodGroupPhase.RUNNING else status.reasons,
        claim=stopped(status.claim, reason, now_ms),
        reported=final_reports(status) if group.is_elastic else {},
        # A check that requested a retry stays False for the requested time.
        checks=status.checks if reason == Leaving.CHECK_RETRY else cleared(session, group),
        **changes,
    )
    set_condition(statement, group, "QuotaReserved", "False", reason, message)
    _set_evicted(statement, group, reason, message)
    if group.is_elastic and (spent := _spent(group)) != group.status.spent:
        statement.set_status(group, spent=spent)
    clear_pods(statement, group, reason, keep_final=group.is_elastic, by=by, action=action)


def _set_evicted(statement: Statement, group: GroupState, reason: Leaving, message: str) -> None:
    set_condition(statement, group, "Admitted", "False", reason, message)
    set_condition(statement, group, "Evicted", "True", reason, message)
    if any(condition.type == "Scheduled" for condition in group.status.conditions):
        set_condition(statement, group, "Scheduled", "False", reason, message)


def restart(
    statement: Statement, group: GroupState, message: str, *, failures: int, not_before: int
) -> None:
    """Stop all pods of a gang with `spec.launch`, so that it starts again as a whole.

    It goes back to Pending with what is left of its reservation, its checks and its place in line,
    and is admitted again, whole, once its former pods have ended: no pod of one round runs beside
    one of another.
    `failures` counts the rounds that a failed pod has ended, this one included.
    """
    reason = Leaving.GANG_RESTART
    statement.say(intents.RollBack(group=group.key, reason=reason, message=message))
    end_pledge(statement, group)
    release_places(statement, group)
    statement.set_status(
        group,
        **_NOT_ADMITTED,
        reasons=(),
        # Each step is stored: it is admitted again in the next session at the earliest.
        backoff_until=max(not_before, statement.session.now_ms + 1),
        restarts=group.status.restarts + 1,
        failed_rounds=failures,
    )
    _set_evicted(statement, group, reason, message)
    clear_pods(statement, group, reason, keep_final=False)


def _spent(group: GroupState) -> dict[str, int]:
    """Return the failures of each pod that has not ended for good, stored ones included."""
    counts = dict(group.status.spent)
    for pod in group.current():
        ordinal = str(group.shape_of(pod).first + pod.spec.index)
        if group.is_final(pod):
            counts.pop(ordinal, None)
        elif pod.status.failures:
            counts[ordinal] = pod.status.failures
    return bounded_spent(counts)


def bounded_spent(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts limited to what one record may hold: the pods that failed most often.

    The others get all their retries back, which costs some runs; a record with a million entries
    would be written and sent at each change of its group.
    """
    if len(counts) <= MOST_SPENT:
        return counts
    most = sorted(counts, key=lambda ordinal: (-counts[ordinal], int(ordinal)))[:MOST_SPENT]
    return {ordinal: counts[ordinal] for ordinal in sorted(most, key=int)}


def clear_pods(
    statement: Statement,
    group: GroupState,
    reason: str,
    *,
    keep_final: bool,
    by: str = "",
    action: str = "",
) -> None:
    """Stop pods on nodes and drop the others; `keep_final` spares pods that ended for good."""
    pods = group.live_pods if keep_final else group.pods
    in_order = sorted(pods.items(), key=lambda item: _ordinal(group, item[1]))
    for uid, pod in in_order:
        phase = pod.status.phase
        if phase in ON_NODE:
            evict(statement, group, pod, reason, by=by, action=action)
        elif not (keep_final and group.is_final(pod)):
            statement.drop_pod(group, uid)


def _ordinal(group: GroupState, pod: Pod) -> tuple[int, int]:
    return (pod.status.admission, group.shape_of(pod).first + pod.spec.index)


def move_group(statement: Statement, group: GroupState, phase: PodGroupPhase) -> None:
    """Move the group to Running or Unknown."""
    now_ms = statement.session.now_ms
    if phase == PodGroupPhase.RUNNING:
        statement.put_status(
            group, status_running(group.status, _runs_since(group, now_ms), now_ms)
        )
    else:
        statement.set_status(group, phase=phase, unknown_at=now_ms)
    statement.say(intents.MoveGroup(group=group.key, phase=phase))


def status_running(status: PodGroupStatus, since: int, now_ms: int) -> PodGroupStatus:
    """Return the status of a group that has been Running since an instant (ms)."""
    return _set(
        status,
        phase=PodGroupPhase.RUNNING,
        unknown_at=None,
        started_at=since,
        backoff_count=0,
        reasons=(),
        conditions=with_condition(status.conditions, "Scheduled", "True", "Scheduled", "", now_ms),
    )


def _runs_since(group: GroupState, now_ms: int) -> int:
    """Return since when (ms) the group has been Running in this admission: since the start of the
    last pod that it needs, even if a session sees it later. For an external group, it is the
    session's time.
    """
    status = group.status
    if status.started_at is not None:
        return status.started_at
    started_at = _gang_started_at(group)
    if started_at is None:
        return now_ms
    # Clocks of nodes may be wrong: the result is neither before the admission nor after now.
    return min(now_ms, max(started_at, status.in_queue_at or 0))


def _gang_started_at(group: GroupState) -> int | None:
    """Return when the last pod that it needs started (ms); None if too few pods have started."""
    started = sorted(
        pod.status.started_at
        for pod in group.current()
        if pod.status.started_at is not None and pod.status.phase in _HAS_STARTED
    )
    if not started or len(started) < group.min_member:
        return None
    return started[group.min_member - 1]


def _ran_since(group: GroupState, now_ms: int) -> int | None:
    """Return since when (ms) a group that ends has run, which no session may have shown."""
    status = group.status
    if status.started_at is not None or not is_admitted(group):
        return status.started_at
    if group.is_external:
        return status.claim.claimed_at
    return None if _gang_started_at(group) is None else _runs_since(group, now_ms)


def pause_walltime(statement: Statement, group: GroupState) -> None:
    """Pause the walltime of a running group without a pod on any node."""
    statement.set_status(group, rests_at=statement.session.now_ms)


def resume_walltime(statement: Statement, group: GroupState) -> None:
    """Resume the walltime of a group; the length of the pause does not count."""
    status, now_ms = group.status, statement.session.now_ms
    rested_ms = now_ms - (status.rests_at if status.rests_at is not None else now_ms)
    since = status.started_at
    statement.set_status(
        group, rests_at=None, started_at=None if since is None else since + rested_ms
    )


def finish(
    statement: Statement,
    group: GroupState,
    phase: PodGroupPhase,
    reason: Finish,
    message: str = "",
) -> None:
    """End the group: no reservation, pods on nodes are stopped, the others are kept."""
    now_ms = statement.session.now_ms
    statement.say(intents.FinishGroup(group=group.key, phase=phase, reason=reason, message=message))
    end_pledge(statement, group)
    release_places(statement, group)
    since = _ran_since(group, now_ms)
    statement.put_status(
        group, status_finished(group.status, phase, reason, message, since=since, now_ms=now_ms)
    )
    stop_leftovers(statement, group, reason)


def status_finished(
    status: PodGroupStatus,
    phase: PodGroupPhase,
    reason: Finish,
    message: str,
    *,
    since: int | None,
    now_ms: int,
) -> PodGroupStatus:
    """Return the status of a group that ends now and has run since an instant (ms; None: never)."""
    return _set(
        status,
        phase=phase,
        started_at=since,
        finished_at=now_ms,
        reserved_at=None,
        reservation={},
        unknown_at=None,
        set_aside_on={},
        reasons=(),
        claim=stopped(status.claim, reason, now_ms),
        conditions=with_condition(status.conditions, "Finished", "True", reason, message, now_ms),
    )


def stop_leftovers(statement: Statement, group: GroupState, reason: str) -> None:
    """Stop the pods on nodes of a group that has ended, and drop its waiting pods."""
    for uid, pod in list(group.live_pods.items()):
        if pod.status.phase in ON_NODE:
            if not pod.status.terminating:
                evict(statement, group, pod, reason)
        elif pod.status.phase == PodPhase.PENDING:
            statement.drop_pod(group, uid)


def expire(statement: Statement, group: GroupState) -> None:
    """Delete a finished group and its pods."""
    for uid in list(group.pods):
        statement.drop_pod(group, uid)
    statement.session.effects.expired.add(group.uid)
    statement.session.effects.touched[group.uid] = group
    statement.say(intents.ExpireGroup(group=group.key))


def bind(statement: Statement, group: GroupState, pod: Pod, node: str) -> Pod:
    """Move a pod Pending -> Bound: its next attempt, on `node`."""
    if group.status.rests_at is not None:
        resume_walltime(statement, group)
    bound = _bound(statement, pod.status, node)
    pod_then = Pod(metadata=pod.metadata, spec=pod.spec, status=bound)
    statement.put_pod(group, pod_then)
    _say_bound(statement, group, (pod_then,))
    return pod_then


def bind_placed(
    statement: Statement, group: GroupState, pods: Sequence[Pod], nodes: Sequence[NodeState]
) -> None:
    """Bind many pods, one to each of the nodes, which have taken their requests already."""
    then = _pods_bound(statement, pods, nodes)
    statement.put_pods(group, then)
    _say_bound(statement, group, then)


def bind_all_placed(
    statement: Statement,
    groups: Iterable[tuple[GroupState, Sequence[Pod], Sequence[NodeState]]],
) -> None:
    """Do the same as `bind_placed` for many groups, in a single change."""
    then = [(group, _pods_bound(statement, pods, nodes)) for group, pods, nodes in groups]
    statement.put_pods_of(then)
    for group, pods in then:
        _say_bound(statement, group, pods)


def _pods_bound(statement: Statement, pods: Sequence[Pod], nodes: Sequence[NodeState]) -> list[Pod]:
    then: list[Pod] = []
    former = bound = None
    for pod, node in zip(pods, nodes, strict=True):
        # Pods created together share their first status.
        if bound is None or pod.status is not former:
            former = pod.status
            bound = _bound(statement, former, node.name)
        elif bound.node != node.name:
            bound = _set(bound, node=node.name)
        then.append(Pod(metadata=pod.metadata, spec=pod.spec, status=bound))
    return then


def _bound(statement: Statement, status: PodStatus, node: str) -> PodStatus:
    """Return the status of a pod that begins its next attempt on a node."""
    generation = statement.session.snapshot.standing.generation
    # A new status is made several times faster than a changed one.
    return PodStatus(
        phase=PodPhase.BOUND,
        node=node,
        attempt=following(status.attempt, generation=generation),
        bound_at=statement.session.now_ms,
        last_reason=status.reason or status.last_reason,
        group_uid=status.group_uid,
        admission=status.admission,
        last_node=status.last_node,
        failures=status.failures,
        retry_at=status.retry_at,
        holder=status.holder,
        losses=status.losses,
    )


def _say_bound(statement: Statement, group: GroupState, pods: Iterable[Pod]) -> None:
    statement.intents += [
        intents.Bind(
            group=group.key,
            pod=pod_name(pod),
            uid=pod.metadata.uid,
            node=pod.status.node,
            attempt=pod.status.attempt,
        )
        for pod in pods
    ]


def evict(
    statement: Statement,
    group: GroupState,
    pod: Pod,
    reason: str,
    *,
    by: str = "",
    action: str = "",
) -> None:
    """Stop a pod on a node. Later calls neither extend its grace nor change the reason."""
    if pod.status.terminating:
        return
    now_ms = statement.session.now_ms
    if action == RECLAIM and group.is_elastic:
        statement.set_status(group, evictions=with_pod_run(group, pod, now_ms))
    status = _set(pod.status, terminating=True, terminating_at=now_ms, reason=str(reason))
    statement.put_pod(group, _set(pod, status=status))
    statement.say(
        intents.Evict(
            group=group.key,
            pod=pod_name(pod),
            uid=pod.metadata.uid,
            reason=str(reason),
            by=by,
            action=action,
        )
    )


def lose(statement: Statement, group: GroupState, pod: Pod) -> Pod:
    """Write off a pod whose node has become silent: -> Evicted, NodeLost.

    A pod that was being stopped ends as it would have: as Failed if its walltime was over.
    """
    reason = pod.status.reason if pod.status.terminating else str(Leaving.NODE_LOST)
    overdue = reason == Finish.WALLTIME_EXCEEDED
    status = _set(
        pod.status,
        phase=PodPhase.FAILED if overdue else PodPhase.EVICTED,
        failures=pod.status.failures + overdue,
        losses=pod.status.losses + (reason == Leaving.NODE_LOST),
        finished_at=statement.session.now_ms,
        terminating=False,
        reason=reason,
    )
    lost = _set(pod, status=status)
    statement.put_pod(group, lost)
    statement.say(intents.LosePod(group=group.key, pod=pod_name(pod), uid=pod.metadata.uid))
    return lost


def requeue(statement: Statement, group: GroupState, pod: Pod) -> None:
    """Evicted or Failed -> Pending, to be bound again."""
    status = _set(
        pod.status,
        phase=PodPhase.PENDING,
        node="",
        last_node=pod.status.node,
        holder="",
        terminating=False,
        bound_at=None,
    )
    statement.put_pod(group, _set(pod, status=status))
    statement.say(intents.RequeuePod(group=group.key, pod=pod_name(pod), uid=pod.metadata.uid))


#: The status of the group that was admitted last before it was, the other inputs to its status, and
#: its status: most groups are admitted like the group before, and share its status.
LAST_ADMISSION: StateKey[list[Any]] = StateKey("last admission", lambda _: [])

#: Reservation -> the conditions of groups first admitted with it, in a session.
FIRST_CONDITIONS: StateKey[dict[tuple[tuple[str, int], ...], tuple[Condition, ...]]] = StateKey(
    "first conditions", lambda _: {}
)


def pod_uid(group: GroupState, ordinal: int | str) -> str:
    """Return the uid of the pod with this ordinal, of the current admission."""
    return uid_of_pod(group.uid, group.status.admission, ordinal)


def shape_at(group: GroupState, ordinal: int) -> TaskShape:
    """Return the task of the pod with this ordinal. Raise IndexError if there is none."""
    for shape in group.tasks:
        if ordinal in shape.ordinals:
            return shape
    raise IndexError(f"{group.key} has no pod number {ordinal}")


def shape_of_extra(group: GroupState, extra: Pod | int) -> TaskShape:
    """Return the task of a pod without a node: a pod, or the ordinal of one not created yet."""
    return shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)


def pod_of(group: GroupState, ordinal: int) -> Pod:
    """Return the new pod with this ordinal: Pending, of the current admission."""
    return pods_of(group, [ordinal])[0]


def pods_of(group: GroupState, ordinals: Iterable[int]) -> list[Pod]:
    """Return the new pods with these ordinals; pods of one task share their common parts."""
    name, namespace, status = group.record.metadata.name, group.namespace, group.status
    fresh = PodStatus(
        group_uid=group.uid,
        admission=status.admission,
        last_reason=_left_because(group),
        # In a gang that restarts whole, what ended the rounds before counts for each pod.
        failures=status.failed_rounds,
        losses=max(0, status.restarts - status.failed_rounds),
    )
    spent = status.spent if group.is_elastic else {}
    prefix = pod_uid(group, "")
    pods: list[Pod] = []
    shape: TaskShape | None = None
    template = _NO_TEMPLATE
    for ordinal in ordinals:
        if shape is None or ordinal not in shape.ordinals:
            shape = shape_at(group, ordinal)
            template = group.record.spec.tasks[shape.place].template
        index = ordinal - shape.first
        metadata = Metadata(
            name=f"{name}-{shape.task.name}-{index}",
            namespace=namespace,
            labels=template.labels,
            annotations=template.annotations,
            uid=f"{prefix}{ordinal}",
        )
        spec = PodSpec(
            pod_group=name,
            task=shape.task.name,
            index=index,
            requests=shape.stated,
            termination_grace=template.termination_grace,
            priority=template.priority,
            ports=shape.ports,
            image=image_to_pull(template.container),
        )
        failures = spent.get(str(ordinal), 0) if spent else 0
        first = structs.replace(fresh, failures=failures) if failures else fresh
        pods.append(Pod(metadata=metadata, spec=spec, status=first))
    return pods


def _left_because(group: GroupState) -> str:
    """Return why the group lost its former admission, for the records of its next pods."""
    if group.status.admission < 2:
        return ""
    return next((one.reason for one in group.status.conditions if one.type == "Evicted"), "")


def pod_name(pod: Pod) -> str:
    """Return `namespace/name`."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def wanted_ordinals(group: GroupState) -> list[int]:
    """Return the ordinals of the pods that an admitted group's gang lacks and that do not exist
    yet.

    They are in the gang's order (`GroupState.choose`). Pods that ended for good are not created
    again; other pods replace them, and also gated ones. An external group lacks none, because its
    consumer creates its pods.
    """
    if group.is_external:
        return []
    if not group.pods and len(group.tasks) == 1 and not group.shape.gated:
        return list(group.tasks[0].ordinals[: group.min_member])
    if not group.pods:
        new = group.choose(group.min_member, group.ungated())
        parts = zip(group.tasks, new, strict=True)
        return [ordinal for shape, count in parts for ordinal in shape.ordinals[:count]]
    of_tasks = group.lacks_for_gang()
    if not any(of_tasks):
        return []
    there = Counter(
        pod.spec.task
        for pod in group.live_pods.values()
        if group.is_current(pod) and _may_run(group, pod)
    )
    missing: list[int] = []
    elsewhere = 0
    unborn: list[Iterator[int]] = []
    for shape, count in zip(group.tasks, of_tasks, strict=True):
        lacks = count - there[shape.task.name]
        if lacks <= 0:
            unborn.append(beyond(group, shape))
            continue
        ordinals = beyond(group, shape)
        own = list(islice(ordinals, lacks))
        missing += own
        if len(own) < lacks and shape.task.min_available:
            return missing
        elsewhere += lacks - len(own)
        unborn.append(ordinals)
    # Pods that are being stopped or wait for a retry are replaced by pods of other tasks.
    return missing + list(islice(chain.from_iterable(unborn), elsewhere))


def _may_run(group: GroupState, pod: Pod) -> bool:
    """Return whether a pod counts towards minMember. A pod of an elastic group does not count while
    it is being stopped or waits for a retry: another pod replaces it, so that its capacity is not
    idle.
    """
    if group.is_final(pod) or (pod.status.phase == PodPhase.PENDING and group.is_held_back(pod)):
        return False
    away = pod.status.phase == PodPhase.FAILED or pod.status.terminating
    return not (group.is_elastic and away)


def beyond(group: GroupState, shape: TaskShape) -> Iterator[int]:
    """Yield the ordinals of a task's pods that may be created and do not exist yet."""
    return iter(()) if shape.gated else group.open_ordinals(shape, pod_uid(group, ""))
