"""The earliest instant at which a group fits, from the expected ends of running groups.

The walltime of a group gives its latest end: the group may end earlier, and later only by the
termination grace of its pods. The forecast assumes these ends and no other admissions. A group fits
when rules 2 to 4 of an admission hold (batchq/core/README.md), which depend on many sums at once.
So the forecast removes charges from the session itself, one expected end after another, until the
rules hold, and then undoes all of it.

Expected ends (as listed in the manual under backfill):

- a Running group: its start + walltime
- a group that is admitted or has reserved quota and does not run yet: now + walltime
- each pod of an array: its own start + walltime
- a pod that is being stopped: the end of its termination grace
- anything that should have ended already: now + 1 s
- a group without a walltime: never
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import GroupClaim, Pledge, Pod
from batchq.api.reasons import NEVER_FITS, Verdict, Waiting
from batchq.api.times import SECOND
from batchq.core.pending.eligibility import are_honoured, retry_at
from batchq.core.pending.queue import out_of_line_refusals
from batchq.core.preemption.pledges import awaits_victims, end_pledge, gives_way_to, victims_left
from batchq.core.quota.ledger import title_of
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement

#: Reasons for ineligibility that end with time or do not depend on capacity.
PASSES = frozenset(
    {Waiting.BACKING_OFF, Waiting.WAITING_FOR_PREEMPTION, Waiting.WAITING_FOR_CHECKS}
)
UNKNOWN_VICTIMS = "it waits for victims whose ends are unknown"


class ExpectedEnd(Struct, frozen=True):
    """An expected end at the instant `at` (ms): the end of some pods of a group, or, with `whole`,
    of everything that the group is charged for.

    Pods that are being stopped have ends of their own and are not part of a `whole` end.
    """

    at: int
    group: GroupState
    pods: tuple[Pod, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """The earliest instant (ms) at which a group could be admitted, and the `ends` up to then that
    free something it lacks; or `at` None, with the reason in `why`.
    """

    at: int | None
    ends: tuple[ExpectedEnd, ...] = ()
    why: str = ""


def ends(session: Session) -> list[ExpectedEnd]:
    """Return every expected end, ordered by instant, then by the order of the groups."""
    charged = (group for groups in session.ledger.holding.values() for group in groups.values())
    found: list[ExpectedEnd] = []
    for group in charged:
        if (end := _running_end(session, group)) is not None:
            found.append(end)
        else:
            found += _ends_of(session, group)
    found.sort(key=lambda end: (end.at, end.group.order, end.whole))
    return found


def earliest_start(
    session: Session, group: GroupState, known: Sequence[ExpectedEnd] | None = None
) -> int | None:
    """Return the earliest instant (ms) at which rules 2 to 4 hold for a group; None if no expected
    end leads there. `known` is the result of `ends`, if the caller has it already.
    """
    return forecast(session, group, known).at


def forecast(
    session: Session, group: GroupState, known: Sequence[ExpectedEnd] | None = None
) -> Forecast:
    """Return the same as `earliest_start`, with the reasons. Costs one check of the limits for each
    instant with an end; leaves no trace in the session.
    """
    if group.phase != PodGroupPhase.PENDING:
        return Forecast(at=session.now_ms)
    firm = _firm(session, group)
    if firm is not None:
        return Forecast(at=None, why=f"{firm.reason}: {firm.message()}")
    not_before = not_before_of(session, group)
    if not_before is None:
        return Forecast(at=None, why=UNKNOWN_VICTIMS)
    aside, session.ledger.aside = session.ledger.aside, {}
    try:
        found = _first_fit(session, group, ends(session) if known is None else known)
    finally:
        session.ledger.aside = aside
    if found.at is None or found.at >= not_before:
        return found
    return Forecast(at=not_before, ends=found.ends)


def _firm(session: Session, group: GroupState) -> Verdict | None:
    """Return the first refusal that no end of other groups changes, if any."""
    aside = out_of_line_refusals(session, group)
    firm = [verdict for verdict in aside if verdict.reason not in PASSES]
    never = (
        verdict
        for verdict in session.refusals_at("admissible", group)
        if verdict.reason in NEVER_FITS
    )
    return firm[0] if firm else next(never, None)


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
    for claimant in (group, gives_way_to(session, group)):
        if claimant is not None and awaits_victims(session, claimant):
            instants += _ends_of_victims(session, claimant)
    known = [at for at in instants if at is not None]
    return max(known) if len(known) == len(instants) else None


def _ends_of_victims(session: Session, group: GroupState) -> Iterator[int | None]:
    for victim, pods in victims_left(session, group.status.pledge):
        if victim.is_external:
            yield victim.status.claim.over_at
        for pod in pods:
            # A victim that has not been asked to stop yet will have its whole termination grace.
            yield _stops_at(session, pod)


# --- Expected ends --------------------------------------------------------------------------------


def _running_end(session: Session, group: GroupState) -> ExpectedEnd | None:
    """Return the end of a running group with a walltime and no pod being stopped. This is the usual
    case, and the fast path.
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
    for pod in group.pods.values():
        if pod.status.terminating:
            return None
    return ExpectedEnd(_later(session, started_at + walltime), group, (), True)


def _ends_of(session: Session, group: GroupState) -> Iterator[ExpectedEnd]:
    stopping = [pod for pod in group.pods.values() if _is_stopping(group, pod)]
    for pod in stopping:
        yield ExpectedEnd(_stops_at(session, pod), group, (pod,), whole=False)
    claim = group.status.claim
    if group.is_external and claim.is_open and not group.reserved:
        if claim.over_at is not None:
            yield ExpectedEnd(_later(session, claim.over_at), group, (), whole=True)
    elif group.reserved and group.record.spec.walltime is not None:
        yield from _by_walltime(session, group, group.record.spec.walltime)


def _by_walltime(session: Session, group: GroupState, walltime_ms: int) -> Iterator[ExpectedEnd]:
    if not group.is_array or group.is_external:
        started_at = group.status.started_at
        begins_at = session.now_ms if started_at is None else started_at
        yield ExpectedEnd(_later(session, begins_at + walltime_ms), group, (), whole=True)
        return
    last_at = session.now_ms
    runs = [pod for pod in group.current() if pod.status.phase in ON_NODE]
    for pod in runs:
        if pod.status.terminating:
            continue
        is_running = pod.status.phase == PodPhase.RUNNING and pod.status.started_at is not None
        begins_at = (pod.status.started_at or 0) if is_running else session.now_ms
        at = _later(session, begins_at + walltime_ms)
        last_at = max(last_at, at)
        yield ExpectedEnd(at, group, (pod,), whole=False)
    # A group with pods still to be started keeps its reservation for them.
    if runs and sum(group.unfinished()) == len(runs) and not _any_stops(runs):
        yield ExpectedEnd(last_at, group, (), whole=True)


def _any_stops(pods: Sequence[Pod]) -> bool:
    """Return whether a pod is being evicted; such a pod has not ended for good, it is bound
    again.
    """
    return any(pod.status.terminating for pod in pods)


def _is_stopping(group: GroupState, pod: Pod) -> bool:
    over = pod.status.terminating or group.phase in TERMINAL
    return over and pod.status.phase in ON_NODE


def _stops_at(session: Session, pod: Pod) -> int:
    stopping_since = pod.status.terminating_at if pod.status.terminating else None
    began_at = session.now_ms if stopping_since is None else stopping_since
    return _later(session, began_at + pod.spec.termination_grace)


def _later(session: Session, at: int) -> int:
    """Return the instant, or now + 1 s if it has passed already."""
    return at if at > session.now_ms else session.now_ms + SECOND


# --- The first instant at which the limits hold ---------------------------------------------------


def _first_fit(session: Session, group: GroupState, known: Sequence[ExpectedEnd]) -> Forecast:
    needed: list[ExpectedEnd] = []
    with Statement(session) as trial:
        # Its own stopping pods are pledged to its preemptor, which will be charged for them then.
        for pod in [pod for pod in group.pods.values() if _is_stopping(group, pod)]:
            trial.drop_pod(group, pod.metadata.uid)
        refused = over_any_limit(session, group)
        if not refused:
            return Forecast(at=session.now_ms)
        at_first = refused[0].message()
        lacking = {verdict.resource for verdict in refused}
        subjects = {verdict.subject for verdict in refused}
        for at, together in groupby(known, key=lambda end: end.at):
            others = (end for end in together if end.group is not group)
            needed += [end for end in others if _happens(trial, end, lacking, subjects)]
            left = over_any_limit(session, group)
            if not left:
                return Forecast(at=at, ends=tuple(needed))
            # Once one limit holds, another may turn out to be exceeded.
            lacking.update(verdict.resource for verdict in left)
            subjects.update(verdict.subject for verdict in left)
            refused = left
    why = "no walltime says when what it lacks will be free" if known else "nothing is known to end"
    at_last = refused[0].message()
    # Numbers for a later instant than now are marked as such.
    still = "" if at_last == at_first else "once all have ended whose end is known, "
    return Forecast(at=None, why=f"{why}: {still}it {at_last}")


def _happens(trial: Statement, end: ExpectedEnd, lacking: set[str], subjects: set[str]) -> bool:
    """Apply an end to the trial; return whether it freed any lacking dimension in a scope that
    counts.
    """
    group, ledger = end.group, trial.session.ledger
    before = ledger.charged(group)
    carry_out(trial, end)
    after = ledger.charged(group)
    freed = any(before.get(name, 0) > after.get(name, 0) for name in lacking)
    return freed and any(title_of(scope) in subjects for scope in group.scopes)


def carry_out(trial: Statement, end: ExpectedEnd) -> None:
    """Apply an end to the trial."""
    if end.whole:
        _leave(trial, end.group)
    for pod in end.pods:
        if pod.metadata.uid in end.group.pods:
            trial.drop_pod(end.group, pod.metadata.uid)


def _leave(trial: Statement, group: GroupState) -> None:
    """Remove everything that a group is charged for, except pods that are being stopped, which have
    ends of their own.
    """
    end_pledge(trial, group)
    trial.set_status(
        group,
        phase=PodGroupPhase.COMPLETED,
        reserved_at=None,
        reservation={},
        pledge=Pledge(),
        claim=GroupClaim(),
    )
    for uid, pod in list(group.pods.items()):
        if pod.status.phase in ON_NODE and not pod.status.terminating:
            trial.drop_pod(group, uid)
