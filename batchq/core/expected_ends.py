"""The expected ends of everything that holds resources, as far as they are known.

The walltime of a group gives its latest end: the group may end earlier, and later only by the
termination grace of its pods. The expected ends (as listed in the manual under backfill) are:

- a Running group: its start + walltime
- a group that is admitted or has reserved quota and does not run yet: now + walltime
- each pod of an array: its own start + walltime
- a pod that is being stopped: the end of its termination grace
- anything that should have ended already: now + 1 s
- a group without a walltime: never
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import SECOND
from batchq.api.objects import Pod
from batchq.core.eligibility import are_honoured, retry_at
from batchq.core.kept_capacity import awaits_victims, drop_group, gives_way_to, victims_left
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import Gang
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement


class ExpectedEnd(Struct, frozen=True):
    """An expected end at the instant `at` (ms): the end of some pods of a group, or, with `whole`,
    of everything that the group is charged for.

    Pods that are being stopped have ends of their own and are not part of a `whole` end.
    """

    at: int
    group: GroupState
    pods: tuple[Pod, ...]
    whole: bool


def ends(session: Session) -> list[ExpectedEnd]:
    """Return every expected end, ordered by instant, then by the order of the groups."""
    found: list[ExpectedEnd] = []
    now_ms = session.now_ms
    for groups in session.ledger.holding.values():
        for group in groups.values():
            at = group.ends_at
            if (
                at is not None
                and at > now_ms
                and group.status is group.record.status
                and not group.changed_pods
            ):
                # Most groups run as they did in the last session, and there may be many.
                found.append(ExpectedEnd(at, group, (), True))
            elif (end := _running_end(session, group)) is not None:
                found.append(end)
            else:
                found += _ends_of(session, group)
    found.sort(key=lambda end: (end.at, end.group.order, end.whole))
    return found


def not_before_of(session: Session, group: GroupState) -> int | None:
    """Return the instant (ms) until which a group is ineligible because of its own state: its
    backoff, an open claim or its victims. None if that instant is unknown.
    """
    instants: list[int | None] = [session.now_ms]
    until = group.status.backoff_until
    if until is not None:
        instants.append(until)
    if are_honoured(session) and not group.reserved and (at := retry_at(session, group)):
        instants.append(at)
    claim = group.status.claim
    if group.is_external and claim.is_open:
        instants.append(claim.over_at)
    for preemptor in (group, gives_way_to(session, group)):
        if preemptor is not None and awaits_victims(session, preemptor):
            instants += _ends_of_victims(session, preemptor)
    known = [at for at in instants if at is not None]
    return max(known) if len(known) == len(instants) else None


def own_pods_end(session: Session, group: GroupState, gang: Gang) -> int:
    """Return the instant (ms) until which pods of a waiting group's former admission may leave too
    few others for its gang (`waits_for_its_own`).
    """
    stopping: dict[str, list[int]] = {}
    for pod in group.live_pods.values():
        if pod.status.phase in ON_NODE:
            stopping.setdefault(pod.spec.task, []).append(_stops_at(session, pod))
    needed: Counter[str] = Counter()
    for shape, count in gang:
        needed[shape.task.name] += count
    ends_at = session.now_ms
    for shape, left in zip(group.tasks, group.ungated(), strict=True):
        task = shape.task.name
        may_stay = max(0, left - needed[task])
        must_end = sorted(stopping.get(task, ()), reverse=True)[may_stay:]
        if needed[task]:
            ends_at = max(ends_at, *must_end, 0)
    return ends_at


def _ends_of_victims(session: Session, group: GroupState) -> Iterator[int | None]:
    for victim, pods, _ in victims_left(session, group.status.pledge):
        if victim.is_external:
            yield victim.status.claim.over_at
        for pod in pods:
            # A victim that has not been asked to stop yet will have its whole termination grace.
            yield _stops_at(session, pod)


def _running_end(session: Session, group: GroupState) -> ExpectedEnd | None:
    """Return the end of a running group with a walltime and no pod being stopped: the usual case,
    in which the group's end is stored for later sessions.
    """
    started_at, walltime = group.status.started_at, group.record.spec.walltime
    if (
        not group.steady
        or group.status is not group.record.status
        or started_at is None
        or walltime is None
        or group.is_array
        or not group.reserved
    ):
        return None
    for pod in group.live_pods.values():
        if pod.status.terminating:
            return None
    if group.is_as_stored:
        group.ends_at = started_at + walltime
    return ExpectedEnd(_later(session, started_at + walltime), group, (), True)


def _ends_of(session: Session, group: GroupState) -> Iterator[ExpectedEnd]:
    stopping = [pod for pod in group.live_pods.values() if is_stopping(group, pod)]
    for pod in stopping:
        yield ExpectedEnd(_stops_at(session, pod), group, (pod,), whole=False)
    claim = group.status.claim
    if group.is_external and claim.is_open and not group.reserved:
        if claim.over_at is not None:
            yield ExpectedEnd(_later(session, claim.over_at), group, (), whole=True)
    elif group.reserved and group.record.spec.walltime is not None:
        yield from _by_walltime(session, group, group.record.spec.walltime)


def _by_walltime(session: Session, group: GroupState, walltime_ms: int) -> Iterator[ExpectedEnd]:
    started_at = group.status.started_at
    runs = [pod for pod in group.current() if pod.status.phase in ON_NODE]
    if not group.is_array or group.is_external or (started_at is None and not runs):
        begins_at = session.now_ms if started_at is None else started_at
        yield ExpectedEnd(_later(session, begins_at + walltime_ms), group, (), whole=True)
        return
    last_at = session.now_ms
    for pod in runs:
        if pod.status.terminating:
            continue
        is_running = pod.status.phase == PodPhase.RUNNING and pod.status.started_at is not None
        begins_at = (pod.status.started_at or 0) if is_running else session.now_ms
        at = _later(session, begins_at + walltime_ms)
        last_at = max(last_at, at)
        yield ExpectedEnd(at, group, (pod,), whole=False)
    # From then on it holds nothing, and pods still to be started are in line again.
    if runs and not _any_stops(runs):
        yield ExpectedEnd(last_at, group, (), whole=True)


def _any_stops(pods: Sequence[Pod]) -> bool:
    """Return whether a pod is being evicted: it will be bound again, and has not ended for good."""
    return any(pod.status.terminating for pod in pods)


def is_stopping(group: GroupState, pod: Pod) -> bool:
    """Return whether a pod has to stop and is still on its node."""
    over = pod.status.terminating or group.phase in TERMINAL
    return over and pod.status.phase in ON_NODE


def _stops_at(session: Session, pod: Pod) -> int:
    stopping_since = pod.status.terminating_at if pod.status.terminating else None
    began_at = session.now_ms if stopping_since is None else stopping_since
    return _later(session, began_at + pod.spec.termination_grace)


def _later(session: Session, at: int) -> int:
    """Return the instant, or now + 1 s if it has passed already."""
    return at if at > session.now_ms else session.now_ms + SECOND


def carry_out(trial: Statement, end: ExpectedEnd) -> None:
    """Apply an end to the trial."""
    if end.whole:
        drop_group(trial, end.group, PodGroupPhase.COMPLETED)
    for pod in end.pods:
        if pod.metadata.uid in end.group.pods:
            trial.drop_pod(end.group, pod.metadata.uid)
