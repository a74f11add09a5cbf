"""When there will be room: whose charge goes at which instant, and from when on a group would fit.

Nobody knows when work ends; its walltime says when it has to. So the forecast is made of these ends
and holds as long as nobody else takes the room: an end may come earlier, never later but for the
grace of what has to be stopped. Limits are many dimensions at once, and a group fits when all of
them hold; so charges are taken away one instant after the other, on the session itself, until the
rules 2 to 4 of an admission hold, and then all of it is undone.

What ends when (the manual's list, under backfill): a Running group at its start + walltime; one
that is admitted, or has reserved, and does not run yet at now + walltime; an array's pods each by
themselves, at their own start + walltime; what is told to stop at the end of its grace; what should
have ended already at now + 1 s; what has no walltime never.
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
from batchq.core.pending.queue import standing_aside
from batchq.core.preemption.pledges import awaits_victims, end_pledge, gives_way_to, victims_left
from batchq.core.quota.ledger import title_of
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement

#: What puts a group out of line, and either passes by the clock alone or is no matter of room.
PASSES = frozenset(
    {Waiting.BACKING_OFF, Waiting.WAITING_FOR_PREEMPTION, Waiting.WAITING_FOR_CHECKS}
)
UNKNOWN_VICTIMS = "it waits for victims of which nobody knows when they end"


class ExpectedEnd(Struct, frozen=True):
    """What is gone from `at` on: pods of a group, or with `whole` all that it is charged.

    Pods that were told to stop end by themselves, and are not part of a whole.
    """

    at: int
    group: GroupState
    pods: tuple[Pod, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """The earliest instant at which a group could be admitted, in milliseconds, and the `ends` that
    it takes, of those that leave what it lacks; or None, and `why` there is none.
    """

    at: int | None
    ends: tuple[ExpectedEnd, ...] = ()
    why: str = ""


def ends(session: Session) -> list[ExpectedEnd]:
    """Every end that is known of, the first to come first; later ones of one instant by uid."""
    charged = (group for groups in session.ledger.holding.values() for group in groups.values())
    found: list[ExpectedEnd] = []
    for group in charged:
        if (end := _of_one_that_runs(session, group)) is not None:
            found.append(end)
        else:
            found += _ends_of(session, group)
    found.sort(key=lambda end: (end.at, end.group.order, end.whole))
    return found


def earliest_start(
    session: Session, group: GroupState, known: Sequence[ExpectedEnd] | None = None
) -> int | None:
    """The earliest instant (in milliseconds) at which rules 2 to 4 hold for a group; None if no end
    that is known of leads there. `known`: the ends, where they have been worked out already.
    """
    return forecast(session, group, known).at


def forecast(
    session: Session, group: GroupState, known: Sequence[ExpectedEnd] | None = None
) -> Forecast:
    """The same with its reasons. Costs a look at the limits for each instant at which one ends;
    leaves no trace in the session.
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
        found = _when_room(session, group, ends(session) if known is None else known)
    finally:
        session.ledger.aside = aside
    if found.at is None or found.at >= not_before:
        return found
    return Forecast(at=not_before, ends=found.ends)


def _firm(session: Session, group: GroupState) -> Verdict | None:
    """What no end of anybody's changes, if there is anything."""
    aside = standing_aside(session, group)
    firm = [verdict for verdict in aside if verdict.reason not in PASSES]
    never = (
        verdict
        for verdict in session.refusals_at("admissible", group)
        if verdict.reason in NEVER_FITS
    )
    return firm[0] if firm else next(never, None)


def not_before_of(session: Session, group: GroupState) -> int | None:
    """Until when its own state keeps it out of line: a pause, a claim, victims; None: unknown."""
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
            # Who has not been told yet will be, with its whole grace.
            yield _stops_at(session, pod)


# --- Whose charge goes when ---------------------------------------------------------------------


def _of_one_that_runs(session: Session, group: GroupState) -> ExpectedEnd | None:
    """The end of a group that runs, has a walltime and is told to stop nothing: the usual case."""
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
    stopping = [pod for pod in group.pods.values() if _is_to_stop(group, pod)]
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
    # With pods yet to be started, it keeps what it has reserved for them.
    if runs and sum(group.unfinished()) == len(runs) and not _any_stops(runs):
        yield ExpectedEnd(last_at, group, (), whole=True)


def _any_stops(pods: Sequence[Pod]) -> bool:
    """A pod that is evicted has not ended for good: it is bound again."""
    return any(pod.status.terminating for pod in pods)


def _is_to_stop(group: GroupState, pod: Pod) -> bool:
    over = pod.status.terminating or group.phase in TERMINAL
    return over and pod.status.phase in ON_NODE


def _stops_at(session: Session, pod: Pod) -> int:
    told_at = pod.status.terminating_at if pod.status.terminating else None
    began_at = session.now_ms if told_at is None else told_at
    return _later(session, began_at + pod.spec.termination_grace)


def _later(session: Session, at: int) -> int:
    """What should have ended already does so in a second."""
    return at if at > session.now_ms else session.now_ms + SECOND


# --- From when on there is room -----------------------------------------------------------------


def _when_room(session: Session, group: GroupState, known: Sequence[ExpectedEnd]) -> Forecast:
    needed: list[ExpectedEnd] = []
    with Statement(session) as trial:
        # What it holds still and has to leave is owed to its claimant, which will hold it then.
        for pod in [pod for pod in group.pods.values() if _is_to_stop(group, pod)]:
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
            # What stood behind one limit may show once that holds.
            lacking.update(verdict.resource for verdict in left)
            subjects.update(verdict.subject for verdict in left)
            refused = left
    why = "no walltime says when what it lacks will be free" if known else "nothing is known to end"
    at_last = refused[0].message()
    # Other numbers than those of this moment have to say so.
    still = "" if at_last == at_first else "once all have ended whose end is known, "
    return Forecast(at=None, why=f"{why}: {still}it {at_last}")


def _happens(trial: Statement, end: ExpectedEnd, lacking: set[str], subjects: set[str]) -> bool:
    """Let an end happen; whether it left anything of what is lacking, where it is."""
    group, ledger = end.group, trial.session.ledger
    before = ledger.charged(group)
    carry_out(trial, end)
    after = ledger.charged(group)
    freed = any(before.get(name, 0) > after.get(name, 0) for name in lacking)
    return freed and any(title_of(scope) in subjects for scope in group.scopes)


def carry_out(trial: Statement, end: ExpectedEnd) -> None:
    """Let an end happen."""
    if end.whole:
        _leave(trial, end.group)
    for pod in end.pods:
        if pod.metadata.uid in end.group.pods:
            trial.drop_pod(end.group, pod.metadata.uid)


def _leave(trial: Statement, group: GroupState) -> None:
    """All that a group is charged goes, but for what is told to stop and has its own end."""
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
