"""Finding victims: a trial on the session's own state, which is undone whatever comes of it.

    nobody is evicted unless the claimant then reaches its minMember

Victims leave the state one by one, as if their processes had ended; after each the claimant is
tried against the limits and the nodes. What proves not to be needed is filled back, what was
chosen last first. The idea, and the fill-back, are Kueue's (preemption.go, `minimalPreemptions`).

Before victims come the pledges of claimants that stand behind this one: it may take them over
(batchq.core.preemption.candidates). What their victims were told already ends anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import GroupClaim, Pledge, Pod, PodGroupStatus
from batchq.api.resources import Amounts
from batchq.api.transaction import POD_GROUPS
from batchq.core.placement.kept_places import keep_again, release
from batchq.core.preemption.candidates import (
    FIRST_SEARCH,
    Pool,
    SearchTerms,
    ending,
    outranked_by,
    told_and_untold,
    undoable,
)
from batchq.core.preemption.pledges import (
    PLEDGED_ROOM,
    end_pledge,
    keep_room_anew,
    leaves_whole,
    resume_pledge,
    room_of,
    victims_left,
    withdraw_pledge,
)
from batchq.core.session.node_state import KeptPlaces
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim
from batchq.core.session.statement import Statement

Kind = Literal["undo", "ending", "pledge", "pod", "group"]
#: How a victim leaves in a trial.
Leave = Callable[[Statement, Victim], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """A victim of a trial, and how its group was before, with the places that were kept for it."""

    kind: Kind
    victim: Victim
    former: tuple[PodGroupStatus, dict[str, Pod]]
    kept: KeptPlaces | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """How a trial stands: whether the claimant reaches what it claims, the room that it takes on
    nodes if so, and which pod where, and the dimensions that it lacks if not.
    """

    fits: bool
    room: dict[str, Amounts] = field(default_factory=dict)
    plan: dict[str, str] = field(default_factory=dict)
    lacking: frozenset[str] = frozenset()
    #: What those of the pods ask for that fit, of a request for single pods.
    fitting: Amounts = field(default_factory=dict)

    def shortage(self, leaving: Mapping[str, Amounts] | None = None) -> Shortage:
        """Return what the preemptor lacks; `leaving`: see `Shortage`."""
        return Shortage(self.lacking, self.fitting, {} if leaving is None else leaving)


class PreemptionRequest(Protocol):
    """What a claimant wants, and from whom an action may take it."""

    @property
    def claimant(self) -> GroupState:
        """Who claims."""

    def fit(self, session: Session) -> Fit:
        """Try it on the session as it is; leaves no trace."""

    def needs_nobody(self, session: Session) -> bool:
        """Whether it has what it claims already, and only has to be placed."""

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return what the action's own rule and the policies' votes say now."""

    def may_take_over(
        self,
        session: Session,
        other: GroupState,
        told: list[Victim],
        shortage: Shortage,
        *,
        have_ended: bool,
    ) -> bool:
        """Return whether it may count as its own what the victims of another claimant leave that
        were told to stop, or have left if all `have_ended`; asked while these are not pledged.
        """

    def ends_well(self, session: Session, victims: list[Victim]) -> bool:
        """Whether the action may let it end like this, once the claimant fits."""

    def lacks_own_victims(self, session: Session) -> bool:
        """Whether it cannot end well, as it stands, whatever other queues give."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Victims that suffice, none of them spare.

    `undone`: what this session had done and takes back; `ending`: pods that stop anyway;
    `outranked`: claimants behind this one whose pledges it takes over.
    """

    room: dict[str, Amounts]
    plan: dict[str, str]
    undone: list[Taken]
    ending: list[Victim]
    victims: list[Victim]
    outranked: list[Taken] = field(default_factory=list)


def find_victims(
    session: Session,
    claim: PreemptionRequest,
    queues: list[str],
    completing: list[str] | None = None,
    *,
    terms: SearchTerms = FIRST_SEARCH,
) -> Decision | None:
    """The victims in these queues that let the claimant have what it claims, completed by others
    of the queues `completing`; None if they would not suffice, or if what stops anyway will.
    Nothing in the session has changed afterwards.
    """
    if claim.needs_nobody(session):
        return Decision(room={}, plan={}, undone=[], ending=[], victims=[])
    with Statement(session) as trial:
        decision = _SearchTrial(session, trial, claim, terms).run([queues, completing or []])
    takes = decision is not None and (decision.victims or decision.outranked)
    # One that had victims keeps to those: it would lose its reservation, and claim again as soon as
    # others had taken what was left.
    waits = takes and not terms.again and _fits_when_victims_end(session, claim)
    return None if waits else decision


def _fits_when_victims_end(session: Session, claim: PreemptionRequest) -> bool:
    """Whether the victims of others leave more than is pledged, and enough for this claim, too.

    Several small claimants would each take a large victim otherwise, where one is enough for all.
    Should it fit before these are told, they are spared.
    """
    if not session.get(PLEDGED_ROOM).is_more_than_needed(session):
        return False
    claimants = session.get(PLEDGED_ROOM).with_more_than_they_need(session)
    with Statement(session) as trial:
        for claimant in claimants:
            pledge = claimant.status.pledge
            for group, pods in victims_left(session, pledge):
                if leaves_whole(pledge, group):
                    send_off(trial, Victim(group, pods, whole=True))
                for pod in pods:
                    if pod.metadata.uid in group.pods:
                        _drop(trial, Victim(group, (pod,), whole=False))
        for group, pod in ending(session):
            _drop(trial, Victim(group, (pod,), whole=False))
        for claimant in claimants:
            keep_room_anew(trial, claimant)
        # Whatever is set aside for heads: of a claimant that has reserved nothing of it is asked.
        with session.ledger.regarding(()):
            return claim.fit(session).fits and claim.ends_well(session, [])


class _SearchTrial:
    """Owns the victims chosen so far; everything that it does is undone by its caller."""

    def __init__(
        self,
        session: Session,
        statement: Statement,
        claim: PreemptionRequest,
        terms: SearchTerms,
    ) -> None:
        self._session = session
        self._terms = terms
        self._statement = statement
        self._claim = claim
        self._taken: list[Taken] = []
        self._fit = Fit(fits=False)
        self._leaving = session.get(PLEDGED_ROOM).leaving(session)
        self._shortage = self._fit.shortage(self._leaving)

    def run(self, stages: list[list[str]]) -> Decision | None:
        if not self._is_enough() and not self._take_until_enough(stages):
            return None
        self._fill_back()
        return self._decision()

    # ----------------------------------------------------------------------------------------

    def _is_enough(self) -> bool:
        self._fit = self._claim.fit(self._session)
        self._shortage = self._fit.shortage(self._leaving)
        return self._fit.fits and self._claim.ends_well(self._session, self._victims())

    def _victims(self) -> list[Victim]:
        return [taken.victim for taken in self._taken if taken.kind in ("undo", "pod", "group")]

    def _take_until_enough(self, stages: list[list[str]]) -> bool:
        queues = [name for stage in stages for name in stage]
        for victim, whole in undoable(self._session, self._claim.claimant, queues):
            if self._claim.may_take(self._session, victim, self._shortage):
                self._take("undo", victim, put_back if whole else unbind)
                if self._is_enough():
                    return True
        if self._take_what_ends():
            return True
        for other in outranked_by(self._session, self._claim.claimant, self._terms):
            if self._take_over(other) and (self._take_what_ends() or self._is_enough()):
                return True
        left = deque(stages)
        while left:
            stage, passes = left.popleft(), 0
            own_to_come = any(self._claim.claimant.queue in later for later in left)
            while stage and passes <= self._pledges_ended():
                passes += 1
                pool = Pool(self._session, self._claim.claimant, stage)
                if self._take_from(pool, own_to_come=own_to_come):
                    return True
                if own_to_come and self._has_enough_of_others():
                    # Should its own not suffice, others may still give up something.
                    left.append(stage)
                    break
                if self._pledges_ended() and self._take_what_ends():
                    return True
        return False

    def _has_enough_of_others(self) -> bool:
        """Whether it fits, and only what its own queue gives up is still missing."""
        return self._fit.fits and self._claim.lacks_own_victims(self._session)

    def _take_what_ends(self) -> bool:
        """Count on all that stops anyway, and is pledged to nobody; whether it is enough."""
        stopping = ending(self._session)
        for group, pod in stopping:
            self._take("ending", Victim(group, (pod,), whole=False), _drop)
        return bool(stopping) and self._is_enough()

    def _take_over(self, other: GroupState) -> bool:
        """Let another claimant lose its pledge, if its victims are for this one to take, too."""
        session, pledge = self._session, other.status.pledge
        taken = Taken("pledge", Victim(other, (), whole=True), (other.status, dict(other.pods)))
        with Statement(session) as attempt:
            lose_pledge(attempt, other)
            self._follow_pledges()
            told, untold = told_and_untold(session, pledge)
            have_ended = not told and not untold
            may_take_over = self._claim.may_take_over(
                session, other, told, self._shortage, have_ended=have_ended
            )
            if may_take_over and all(
                self._claim.may_take(session, victim, self._shortage) for victim in untold
            ):
                self._taken.append(taken)
                attempt.keep_in(self._statement)
                return True
        self._follow_pledges()
        return False

    def _follow_pledges(self) -> None:
        """Look again at what earlier victims leave for others."""
        self._leaving = self._session.get(PLEDGED_ROOM).leaving(self._session)
        self._shortage = self._fit.shortage(self._leaving)

    def _pledges_ended(self) -> int:
        """How many of those taken counted on victims of their own, which others may take now."""
        return sum(
            taken.kind in ("group", "pledge") and taken.former[0].pledge.stands
            for taken in self._taken
        )

    def _take_from(self, pool: Pool, *, own_to_come: bool) -> bool:
        """Take victims one by one; whether they are enough.

        Where the claimant's own queue comes after these, no more than it lacks beside its own.
        """
        if own_to_come and self._has_enough_of_others():
            return False
        for kind, leave, victims in self._kinds(pool):
            for victim in victims:
                if kind == "group" and victim.group.status.pledge.extra:
                    # Its pods that run may stay if the room for its next ones is enough.
                    self._take("pledge", Victim(victim.group, (), whole=True), _lose_pledge)
                    if self._is_enough():
                        return True
                self._take(kind, victim, leave)
                if self._is_enough():
                    return True
                if own_to_come and self._has_enough_of_others():
                    return False
        return False

    def _kinds(self, pool: Pool) -> Iterator[tuple[Kind, Leave, Iterator[Victim]]]:
        """Single pods, then whole groups, and how they leave."""
        yield "pod", _drop, pool.extras(self._may_take)
        yield "group", send_off, pool.groups(self._may_take)

    def _may_take(self, victim: Victim) -> bool:
        lacks_place = POD_GROUPS in self._shortage.resources
        if lacks_place and victim.whole and self._is_shared(victim.group):
            return False
        return self._claim.may_take(self._session, victim, self._shortage)

    def _is_shared(self, group: GroupState) -> bool:
        """Whether pods of a group are pledged to others: then its place is not free before those
        others have waited for these, too, and claimants could wait for each other.
        """
        return any(uid in self._session.victims.pledged for uid in group.pods)

    def _take(self, kind: Kind, victim: Victim, leave: Leave) -> None:
        group = victim.group
        kept = self._session.nodes.kept.get(group.uid)
        self._taken.append(Taken(kind, victim, (group.status, dict(group.pods)), kept))
        leave(self._statement, victim)

    def _fill_back(self) -> None:
        """Give back what is not needed, the last chosen first.

        The very last is: without it the claimant did not fit. Only pods that end anyway are
        counted in all at once.
        """
        if not self._taken:
            return
        fit, last = self._fit, self._taken[-1]
        for taken in reversed(self._taken[:]):
            is_needed = taken is last and taken.kind not in ("ending", "pledge")
            if is_needed or self._is_part_of_a_group(taken) or self._is_counted_on(taken):
                continue
            spare = self._taken
            self._taken = [other for other in spare if other is not taken]
            with Statement(self._session) as attempt:
                _restore(attempt, taken)
                if self._is_enough():
                    fit = self._fit
                    attempt.keep_in(self._statement)
                else:
                    self._taken = spare
        self._fit = fit

    def _is_part_of_a_group(self, taken: Taken) -> bool:
        """A pod of a group that leaves whole cannot stay."""
        return not taken.victim.whole and any(
            other.kind == "group" and other.victim.group is taken.victim.group
            for other in self._taken
        )

    def _is_counted_on(self, taken: Taken) -> bool:
        """Whether victims of a pledge that was taken over, or of a group that was taken, are."""
        status = taken.former[0]
        if taken.kind not in ("pledge", "group") or not status.pledge.stands:
            return False
        holds, groups = status.pledge.holds, status.pledge.groups
        return any(
            (other.kind == "group" and other.victim.group.uid in groups)
            or any(pod.metadata.uid in holds for pod in other.victim.pods)
            for other in self._taken
            if other is not taken
        )

    def _decision(self) -> Decision:
        whole = {t.victim.group.uid for t in self._taken if t.kind == "group"}
        return Decision(
            room=self._fit.room,
            plan=self._fit.plan,
            undone=[taken for taken in self._taken if taken.kind == "undo"],
            ending=[taken.victim for taken in self._taken if taken.kind == "ending"],
            outranked=[taken for taken in self._taken if taken.kind == "pledge"],
            victims=[
                self._with_all_its_pods(taken.victim) if taken.kind == "group" else taken.victim
                for taken in self._taken
                if taken.kind == "group"
                or (taken.kind == "pod" and taken.victim.group.uid not in whole)
            ],
        )

    def _with_all_its_pods(self, whole: Victim) -> Victim:
        """A group that leaves takes those of its pods along that were chosen before it was."""
        former = [
            pod
            for taken in self._taken
            if taken.kind == "pod" and taken.victim.group is whole.group
            for pod in taken.victim.pods
        ]
        return Victim(whole.group, (*former, *whole.pods), whole=True)


# --- How victims leave, in a trial ----------------------------------------------------------------


def put_back(statement: Statement, victim: Victim) -> None:
    """A group goes back to how it was when the actions began."""
    release(statement, victim.group)
    _put(statement, victim.group, *_former(statement.session, victim.group))


def unbind(statement: Statement, victim: Victim) -> None:
    """A pod that was bound in this session never was."""
    _, pods = _former(statement.session, victim.group)
    uid = victim.pods[0].metadata.uid
    if uid in pods:
        statement.put_pod(victim.group, pods[uid])
    else:
        statement.drop_pod(victim.group, uid)


def _drop(statement: Statement, victim: Victim) -> None:
    """A pod has ended."""
    statement.drop_pod(victim.group, victim.pods[0].metadata.uid)


def send_off(statement: Statement, victim: Victim) -> None:
    """A group has left, and its processes have ended."""
    group = victim.group
    end_pledge(statement, group)
    release(statement, group)
    statement.set_status(
        group,
        phase=PodGroupPhase.PENDING,
        reserved_at=None,
        reservation={},
        pledge=Pledge(),
        claim=GroupClaim(),
    )
    for uid, pod in list(group.pods.items()):
        if pod.status.phase in ON_NODE and not pod.status.terminating:
            statement.drop_pod(group, uid)


def _lose_pledge(statement: Statement, victim: Victim) -> None:
    """A group counts on no victims any more; its pods stay."""
    lose_pledge(statement, victim.group)


def lose_pledge(statement: Statement, claimant: GroupState) -> None:
    """A claimant counts on nobody any more, and has nothing reserved but what its pods hold."""
    if claimant.status.pledge.extra:
        end_pledge(statement, claimant)
    else:
        withdraw_pledge(statement, claimant)


def _former(session: Session, group: GroupState) -> tuple[PodGroupStatus, dict[str, Pod]]:
    known = session.effects.before.get(group.uid)
    return known if known is not None else (group.status, dict(group.pods))


def _restore(statement: Statement, taken: Taken) -> None:
    status, pods = taken.former
    group = taken.victim.group
    if taken.kind in ("ending", "pod") or (taken.kind == "undo" and not taken.victim.whole):
        for pod in taken.victim.pods:
            statement.put_pod(group, pods[pod.metadata.uid])
    else:
        _put(statement, group, status, pods)
        if taken.kept is not None and group.uid not in statement.session.nodes.kept:
            keep_again(statement, group, taken.kept)


def _put(
    statement: Statement, group: GroupState, status: PodGroupStatus, pods: dict[str, Pod]
) -> None:
    had_pledge = group.status.pledge.stands
    for uid in [uid for uid in group.pods if uid not in pods]:
        statement.drop_pod(group, uid)
    for uid, pod in pods.items():
        if group.pods.get(uid) is not pod:
            statement.put_pod(group, pod)
    if group.status is not status:
        statement.put_status(group, status)
    if status.pledge.stands and not had_pledge:
        resume_pledge(statement, group, status.pledge)


def fit_of(group: GroupState, pods: list[Pod]) -> Fit:
    """That the claimant fits, with these pods where they are now."""
    plan = {str(group.shape_of(pod).first + pod.spec.index): pod.status.node for pod in pods}
    return Fit(fits=True, room=room_of(pods), plan=plan)
