"""The pending queue: which groups are tried next, why a group is not admitted, and what a refusal
means for groups with equal requests.

Actions call `candidates` for the groups to try, `blockers` for the refusals of a group, and
`refuse` to store them. Groups with equal requests are evaluated once, and parked while a limit
keeps them out (batchq.core.equivalence); actions do not see this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Blockers, Verdict, Waiting
from batchq.api.resources import Amounts
from batchq.api.transaction import CLUSTER, POD_GROUPS, namespace_scope
from batchq.core.chunks import uid_order
from batchq.core.eligibility import is_lifted_with_all, state_refusals
from batchq.core.equivalence import PendingIterator, PendingQueue
from batchq.core.extension import Registration
from batchq.core.kept_capacity import awaits_victims, gives_way_to
from batchq.core.placement.feasibility import NODE_REFUSALS
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.limit_checks import claim_of, over_any_limit
from batchq.core.session.session import Key, Session
from batchq.core.session.session_nodes import Wanted
from batchq.core.session.state import EquivalenceClass, GroupState, Headroom

#: No verdicts, at no version of the ledger.
_NO_VERDICTS: tuple[int, tuple[Verdict, ...]] = (-1, ())


def blockers(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Return every refusal: why it is ineligible, and what plugins and limits refuse."""
    peers = group.peers
    if peers is not None and group.status is group.record.status:
        return _with_own(session, group, _of_class(session, peers, group))
    if group.uid in session.pending.parked:
        return session.pending.parked[group.uid]
    if alike(session, group):
        return _with_own(session, group, _refused_alike(session, group))
    ineligible = out_of_line_refusals(session, group)
    if awaits_victims(session, group):
        # It has reserved its quota, and waits only for its victims to end.
        return ineligible
    return (*ineligible, *victim_refusals(session, group), *_inadmissible(session, group))


#: The most groups that are admitted in one step, which bounds its temporary data.
_MOST_ALIKE = 1_000


class Candidates:
    """The groups of a queue that an action tries, in order; owned by the action."""

    def __init__(
        self, session: Session, groups: PendingIterator, *, whole: bool, may_grow: bool = False
    ) -> None:
        self._session = session
        self._groups = groups
        #: Whether any group that needs a trial asks for more pods once it is admitted.
        self.may_grow = may_grow
        #: Whether the groups that a limit or the nodes still keep out are tried, too.
        self.is_whole = whole
        #: The youngest of the groups at the front that were skipped since the last turn.
        self._skipped: GroupState | None = None

    def next(self) -> GroupState | None:
        """Return the next waiting group; None at the end."""
        self._skipped = None
        while (group := self._groups.next()) is not None:
            if group.phase == PodGroupPhase.PENDING or group.next_pod is not None:
                return group
        return None

    def is_kept_out(self, group: GroupState) -> bool:
        """Return whether a group needs no trial: it would be refused as in the last session."""
        if self.is_whole or group.peers is None or not group.peers.is_parked:
            return False
        return is_in_class(group) and is_kept_out(self._session, group.peers)

    def head(self) -> GroupState | None:
        """Return the group by whose age the queue competes; None at the end.

        That is the next group, or one that was skipped at the front and is younger: the turn of the
        next group would have come after its turn.
        """
        group, skipped = self._groups.peek(), self._skipped
        if group is None or skipped is None or _age_of(group) > _age_of(skipped):
            return group
        return skipped

    def next_ineligible(self, *, skips: bool) -> GroupState | None:
        """Return the next group if it is ineligible; None, without a step, if the line goes on with
        another one or has ended.

        Ineligible groups that are kept out are skipped before, and with `skips` other groups that
        are kept out.
        """
        groups = self._groups
        while (group := groups.peek()) is not None:
            is_ineligible = _is_ineligible(self._session, group)
            is_kept_out = (is_ineligible or skips) and self.is_kept_out(group)
            if not is_ineligible and not is_kept_out:
                return None
            groups.next()
            if not is_kept_out:
                return group
            groups.pass_over()
            skipped = self._skipped
            if not is_ineligible and (skipped is None or _age_of(group) > _age_of(skipped)):
                self._skipped = group
        return None

    def following_alike(self) -> list[GroupState]:
        """Return the groups that come next and equal the last one, which has just been admitted: as
        many as plugins and limits let in after it.
        """
        session, peers = self._session, self._groups.peers
        if peers is None or peers.is_parked or session.plugins.for_groups:
            return []
        first = self._groups.following(1)
        if not first or _class_ineligible(session, peers, first[0]):
            return []
        # Few have states after a start, so those that do not fit are left alone.
        most = min(_fitting(session, peers, first[0]), _MOST_ALIKE)
        return list(takewhile(_is_pending_member, self._groups.following(most)))

    def skip(self, count: int) -> None:
        """Go on after the first groups of `following_alike`."""
        self._groups.skip(count)

    def pass_over(self) -> None:
        """Skip the groups that share the last group's refusal."""
        self._groups.pass_over()


def _age_of(group: GroupState) -> Key:
    return (group.queue_time, uid_order(group.uid))


def _is_pending_member(group: GroupState) -> bool:
    return is_in_class(group) and group.phase == PodGroupPhase.PENDING


def _is_ineligible(session: Session, group: GroupState) -> bool:
    """Return whether a group that has reserved nothing is ineligible, whatever is free."""
    if group.phase != PodGroupPhase.PENDING or group.reserved:
        return False
    return any(
        not verdict.in_line and verdict.reason != Waiting.WAITING_FOR_QUOTA
        for verdict in out_of_line_refusals(session, group)
    )


def candidates(
    session: Session,
    also: Mapping[str, Sequence[GroupState]],
    *,
    whole: Callable[[str], bool],
) -> dict[str, Candidates]:
    """Return the candidates of each queue in which any group needs a trial.

    `also` has running groups, by queue, that queue again for their next pod. In a queue that is not
    `whole`, groups that are still kept out by a limit or the nodes need none.
    """
    freed: dict[str, list[EquivalenceClass]] = {}
    for peers in session.carried.wake_up_index.freed(session.ledger.sums):
        freed.setdefault(peers.queue, []).append(peers)
    for peers in session.get(NODE_REFUSALS).freed(session):
        freed.setdefault(peers.queue, []).append(peers)
    for group in session.effects.touched.values():
        if group.peers is not None:
            freed.setdefault(group.queue, []).append(group.peers)
    found = {}
    for name, queue in session.queues.items():
        line = queue.line
        if not (line.singles or line.classes or name in also):
            continue
        is_whole = whole(name)
        if is_whole or line.unparked or line.singles or name in freed or name in also:
            singles = [*line.in_order(), *also.get(name, ())]
            groups = PendingIterator(line.classes.values(), singles, session.group_key)
            tried = line.classes if is_whole else line.unparked
            classes = (*tried.values(), *freed.get(name, ()))
            # An elastic group may ask for more once it is admitted, which changes shares.
            elastic = [one for one in singles if one.is_elastic and not one.is_external]
            may_grow = bool(elastic) or any([peers.may_grow for peers in classes])  # noqa: C419 - a list is faster
            found[name] = Candidates(session, groups, whole=is_whole, may_grow=may_grow)
    return found


def candidates_in_one_line(
    session: Session, also: Mapping[str, Sequence[GroupState]]
) -> Candidates:
    """Return the candidates of all queues in one order."""
    classes = [peers for queue in session.queues.values() for peers in queue.line.classes.values()]
    singles = [group for queue in session.queues.values() for group in queue.line.in_order()]
    singles += [group for groups in also.values() for group in groups]
    return Candidates(session, PendingIterator(classes, singles, session.group_key), whole=True)


def refuse(
    session: Session,
    group: GroupState,
    verdicts: tuple[Verdict, ...],
    *,
    wanted: Wanted | None = None,
    is_head: bool = False,
) -> None:
    """Store why a group waits. The verdicts apply to all groups with equal requests, unless a
    plugin refuses only this one or it is the head (`is_head`) that others wait for.

    `wanted` is the request to nodes, if nodes refused it.
    """
    kept = session.as_kept(verdicts)
    is_alone = is_in_class(group) and kept.are_own
    if is_in_class(group) and not is_alone and not is_head:
        refuse_class(session, group, kept, wanted=wanted)
    else:
        group.is_refused_alone = is_alone
        session.refuse(group, kept)


def refuse_behind(
    session: Session, name: str, head: GroupState, verdict: Verdict, also: Sequence[GroupState]
) -> None:
    """Store for the groups behind a head that they wait for it, unless they are ineligible. `also`
    has running groups that queue again for their next pod.
    """
    line, head_key = session.queues[name].line, session.group_key(head)
    for peers in list(line.classes.values()):
        # A parked class has these verdicts already.
        if peers.behind != verdict.detail or not is_kept_out(session, peers):
            _refuse_class_behind(session, peers, head_key, verdict)
    for group in line.in_order():
        if group.phase == PodGroupPhase.PENDING and session.group_key(group) > head_key:
            verdicts = blockers(session, group)
            behind = (verdict,) if not verdicts or waits_in_line(verdicts) else ()
            session.refuse(group, (*verdicts, *behind))
    for group in also:
        if session.group_key(group) > head_key:
            session.refuse(group, (verdict,))


def _refuse_class_behind(
    session: Session, peers: EquivalenceClass, head_key: Key, verdict: Verdict
) -> None:
    key = head_key
    while (following := peers.members.after(key)) is not None:
        key, group = following
        has_changed = group.status is not group.record.status
        if has_changed and group.phase != PodGroupPhase.PENDING:
            continue
        if not has_changed and _still_waits_only_behind(session, peers, group, verdict):
            return
        verdicts = session.as_kept(blockers(session, group))
        behind = verdict if not verdicts or verdicts.wait_in_line else None
        if not has_changed and not verdicts.are_own:
            refuse_class(session, group, verdicts, behind)
            return
        session.refuse(group, (*verdicts, behind) if behind else verdicts)


def _still_waits_only_behind(
    session: Session, peers: EquivalenceClass, group: GroupState, verdict: Verdict
) -> bool:
    """Return whether a class waits for nothing but a head, as it did in the last session."""
    return (
        peers.verdicts is not None
        and not peers.verdicts
        and peers.shown is not None
        and peers.behind == verdict.detail
        and not peers.is_parked
        and not session.plugins.for_groups
        and not _class_ineligible(session, peers, group)
        and _fits(session, peers, group)
    )


def groups_after(
    session: Session,
    name: str,
    key: Key,
    also: Iterable[GroupState],
    *,
    kept_out: bool,
) -> PendingIterator:
    """Return the groups of a queue after a position, in order, including those of `also`; without
    `kept_out`, groups that are still kept out by a full limit or the nodes are left out.
    """
    line = session.queues[name].line
    classes = [one for one in line.classes.values() if kept_out or not is_kept_out(session, one)]
    singles = [one for one in (*line.in_order(), *also) if session.group_key(one) > key]
    return PendingIterator(classes, singles, session.group_key, after=key)


def count_classes(
    session: Session, line: PendingQueue, could_be_let_in: Callable[[GroupState], bool]
) -> None:
    """Set whether the classes of a pending queue count in its demand, with all of their members;
    `let_in_of_classes` then has the ones admitted in this session. One member that has not changed
    is evaluated for all.
    """
    for peers in list(line.unparked.values()):
        if _is_always_in_line(session, peers):
            line.count(peers, counts=True)
        elif (group := next(filter(is_in_class, peers.members), None)) is not None:
            line.count(peers, counts=could_be_let_in(group))


def _is_always_in_line(session: Session, peers: EquivalenceClass) -> bool:
    """Return whether a class is in line however full the limits are: it was found to be eligible
    and to fit at some time, and its namespace has no limits.
    """
    generation = session.pending.generation
    return (
        session.pending.limits_decide
        and peers.could_fit_in == generation
        and peers.ineligible_in == generation
        and not peers.ineligible
        and namespace_scope(peers.first.namespace) not in session.ledger.limits
    )


def let_in_of_classes(session: Session) -> dict[str, list[Amounts]]:
    """Return, by queue, the requests of class members that this session has admitted."""
    found: dict[str, list[Amounts]] = {}
    for group in session.effects.touched.values():
        still_waits = group.phase == PodGroupPhase.PENDING and not group.reserved
        if group.peers is not None and group.peers.in_demand and not still_waits:
            found.setdefault(group.queue, []).append(group.reservation)
    return found


class WaitingAlike(NamedTuple):
    """Groups of one class with the same stored reasons: their queue, their number, an example, and
    the group of the class that has waited longest.
    """

    queue: str
    groups: int
    example: GroupState
    oldest: GroupState


def waiting_alike(session: Session) -> Iterator[WaitingAlike]:
    """Yield the members of all classes that the session has not changed, without visiting each."""
    moved: dict[EquivalenceClass, set[str]] = {}
    for group in session.effects.touched.values():
        if group.peers is not None:
            moved.setdefault(group.peers, set()).add(group.uid)
    for peers in (one for line in session.lines() for one in line.classes.values()):
        gone = moved.get(peers, set())
        # Members differ only in their order, so the first has waited longest.
        oldest = next((group for group in peers.members if group.uid not in gone), None)
        for members in peers.by_reasons.values() if oldest is not None else ():
            example = next((uid for uid in members if uid not in gone), None)
            if example is not None and oldest is not None:
                count = len(members) - sum(uid in members for uid in gone)
                yield WaitingAlike(peers.queue, count, session.groups[example], oldest)


def refuse_strayed(session: Session) -> None:
    """Store the verdicts on groups whose queue does not exist."""
    for group in session.carried.strayed.singles.values():
        if group.phase == PodGroupPhase.PENDING:
            session.refuse(group, out_of_line_refusals(session, group))
    for peers in list(session.carried.strayed.unparked.values()):
        if is_in_class(peers.first):
            refuse_class(
                session, peers.first, session.dated(out_of_line_refusals(session, peers.first))
            )


def queues_to_tell(session: Session) -> set[str]:
    """Return the queues with classes in which some records may lack the class's verdicts."""
    return {next(iter(line.unwritten.values())).queue for line in session.lines() if line.unwritten}


def tell_classes(
    session: Session,
    write: Callable[[GroupState, Blockers], bool],
    still_holds: Callable[[GroupState, Blockers], bool],
    defers: Callable[[GroupState], bool],
) -> None:
    """Write the verdicts of each class to members whose records differ.

    `write` returns False if it writes no more groups of that queue; `defers` returns whether
    all members with the same record as a group are left to a later session.
    """
    for line in list(session.lines()):
        for peers in list(line.unwritten.values()):
            written = _write_class(session, peers, write, still_holds, defers)
            if written == "stopped":
                break
            if written == "all" and peers.shown is not None:
                line.unwritten.pop(peers.asks, None)


def _write_class(
    session: Session,
    peers: EquivalenceClass,
    write: Callable[[GroupState, Blockers], bool],
    still_holds: Callable[[GroupState, Blockers], bool],
    defers: Callable[[GroupState], bool],
) -> Literal["all", "some", "stopped"]:
    shown = peers.shown
    written: Literal["all", "some"] = "all"
    for (causes, turn), members in list(peers.by_reasons.items()) if shown is not None else ():
        if shown is None or (turn and turn == shown.turn) or causes == shown.causes:
            continue
        first = session.groups[next(iter(members))]
        if still_holds(first, shown):
            continue
        if defers(first):
            written = "some"
            continue
        for uid in list(members):
            group = session.groups[uid]
            if group.status is not group.record.status or uid in session.refusals.own:
                continue
            if not write(group, shown):
                return "stopped"
    return written


def is_in_class(group: GroupState) -> bool:
    """Return whether a group is in an equivalence class and unchanged in this session."""
    return group.peers is not None and group.status is group.record.status


def _with_own(
    session: Session, group: GroupState, alike: tuple[Verdict, ...]
) -> tuple[Verdict, ...]:
    """Add refusals of only this group to those of its class."""
    if not session.plugins.for_groups:
        return alike
    own = _refusals(session, session.plugins.for_groups, group)
    if not own:
        return alike
    found = session.dated((*alike, *own))
    found.are_own = True
    return found


def _refusals(
    session: Session, plugins: Iterable[Registration[Any]], group: GroupState
) -> list[Verdict]:
    return [verdict for entry in plugins for verdict in entry.function(session, group)]


def _of_class(session: Session, peers: EquivalenceClass, group: GroupState) -> tuple[Verdict, ...]:
    if peers.is_parked and peers.verdicts is not None and is_kept_out(session, peers):
        return peers.verdicts
    ineligible = _class_ineligible(session, peers, group)
    if not ineligible:
        return () if _fits(session, peers, group) else _ask_of_class(session, peers, group)
    key = ("ineligible", *group.asks, peers.asks)
    version, verdicts = session.pending.last_verdicts.get(key, _NO_VERDICTS)
    if version != session.ledger.version:
        verdicts = session.dated((*ineligible, *_ask(session, group)))
        session.pending.last_verdicts[key] = (session.ledger.version, verdicts)
    return verdicts


def _ask_of_class(
    session: Session, peers: EquivalenceClass, group: GroupState
) -> tuple[Verdict, ...]:
    verdicts = _refused_alike(session, group)
    if all(_passes(verdict) for verdict in verdicts):
        peers.could_fit_in = session.pending.generation
    return verdicts


def _passes(verdict: Verdict) -> bool:
    """Return whether a refusal may end when other groups end. A refusal by nodes that are too small
    stays out of line until nodes change.
    """
    if verdict.reason == Waiting.WAITING_FOR_RESOURCES:
        return verdict.in_line
    return verdict.reason == Waiting.WAITING_FOR_QUOTA


def _fits(session: Session, peers: EquivalenceClass, group: GroupState) -> bool:
    """Return whether every limit has capacity for one more member and no other refusal is possible.

    This gives the result of `admissible` without calling plugins, because many members are admitted
    in sequence.
    """
    ledger = session.ledger
    if not session.pending.limits_decide or peers.could_fit_in != session.pending.generation:
        return False
    if ledger.unused or ledger.head_reservations:
        return False
    if peers.headroom is None or peers.headroom.limits is not ledger.limits:
        if session.pending.last_verdicts.get(group.asks, _NO_VERDICTS)[0] == ledger.version:
            # It has just been evaluated, so verdicts exist.
            return False
        peers.headroom = _headroom_for(ledger, group)
    for sums, resource, most in peers.headroom.most:
        if sums.get(resource, 0) > most:
            return False
    return peers.headroom.are_all


def _fitting(session: Session, peers: EquivalenceClass, group: GroupState) -> int:
    """Return how many members `_fits` lets in, one after the other."""
    if not _fits(session, peers, group):
        return 0
    assert peers.headroom is not None
    claim = claim_of(group)
    counts = [
        1 + (most - sums.get(resource, 0)) // claim[resource]
        for sums, resource, most in peers.headroom.most
        if claim[resource]
    ]
    return min(counts, default=_MOST_ALIKE)


def _headroom_for(ledger: LedgerView, group: GroupState) -> Headroom:
    """Return the headroom of its scopes for one more group of this class."""
    most: list[tuple[dict[str, int], str, int]] = []
    are_all = True
    for scope in group.scopes:
        limits = ledger.limits.get(scope)
        if limits is None:
            are_all = are_all and scope != CLUSTER
            continue
        sums = ledger.sums.setdefault(scope, {})
        for resource, need in claim_of(group).items():
            if scope == CLUSTER and resource == POD_GROUPS:
                continue
            limit = limits.get(resource)
            if limit is not None:
                most.append((sums, resource, limit - need))
            else:
                are_all = are_all and scope != CLUSTER
    return Headroom(ledger.limits, most, are_all)


def victim_refusals(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Return the verdict on a victim, which waits in its place for its preemptor."""
    preemptor = gives_way_to(session, group)
    if preemptor is None:
        return ()
    detail = f"made room for {preemptor.key}, and waits until that group has been placed"
    reason = Waiting.WAITING_FOR_TURN
    return (Verdict(plugin="pledge", reason=reason, detail=detail, in_line=True),)


def out_of_line_refusals(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Return why a Pending group is ineligible, regardless of the ledger; empty if it is eligible.

    Computed once a session for each group or class, because it does not change within a session.
    """
    peers = group.peers
    if peers is not None and group.status is group.record.status:
        return _class_ineligible(session, peers, group)
    verdicts = session.pending.ineligible.get(group.uid)
    if verdicts is None:
        is_known = _is_known_to_stand_in_line(session, group)
        if is_known and not session.plugins.passing:
            return ()
        session.pending.evaluated += 1
        if is_known:
            found = _refusals(session, session.plugins.passing, group)
        else:
            found = [*state_refusals(session, group), *session.refusals_at("preEnqueue", group)]
        is_reserved = group.reserved and group.phase == PodGroupPhase.PENDING
        if is_reserved and "enqueue" in session.actions:
            # It has its reservation and waits for its admission checks. (Without enqueue, no group
            # waits for checks.)
            found += session.refusals_at("permit", group)
        verdicts = session.pending.ineligible[group.uid] = tuple(found)
        if not found and group.record_only and group.status is group.record.status:
            group.in_line_at = session.pending.generation
    return verdicts


def _class_ineligible(
    session: Session, peers: EquivalenceClass, group: GroupState
) -> tuple[Verdict, ...]:
    if peers.ineligible_in != session.pending.generation:
        session.pending.evaluated += 1
        found = [
            *state_refusals(session, group),
            *_refusals(session, session.plugins.lasting, group),
        ]
        peers.ineligible, peers.ineligible_in = tuple(found), session.pending.generation
    return peers.ineligible


def _is_known_to_stand_in_line(session: Session, group: GroupState) -> bool:
    """Return whether it was eligible before and nothing has happened since that could change this.

    Every plugin considered declares what lifts its refusals; so nothing else causes them.
    """
    return (
        group.in_line_at is not None
        and group.in_line_at == session.pending.generation
        and group.status is group.record.status
    )


def alike(session: Session, group: GroupState) -> bool:
    """Return whether a group is eligible, and limits treat it as all with equal requests."""
    return (
        group.record_only
        and group.status is group.record.status
        and group.uid not in session.ledger.preemptors
        and not out_of_line_refusals(session, group)
    )


def _inadmissible(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    if session.ledger.charged(group):
        return _with_own(session, group, _ask(session, group))
    return _with_own(session, group, _refused_alike(session, group))


def _refused_alike(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    """Return a group's refusals, computed once for equal requests until the ledger changes."""
    asks, known = group.asks, session.pending.last_verdicts
    version, verdicts = known.get(asks, _NO_VERDICTS)
    if version != session.ledger.version:
        verdicts = session.dated(_ask(session, group))
        known[asks] = (session.ledger.version, verdicts)
    return verdicts


def _ask(session: Session, group: GroupState) -> tuple[Verdict, ...]:
    verdicts = tuple(_refusals(session, session.plugins.for_classes, group))
    return verdicts or tuple(over_any_limit(session, group))


def waits_in_line(verdicts: tuple[Verdict, ...]) -> bool:
    """Return whether a group with these verdicts keeps its place in line."""
    known = verdicts if isinstance(verdicts, Blockers) else Blockers(verdicts)
    return known.wait_in_line


def is_kept_out(session: Session, peers: EquivalenceClass) -> bool:
    """Return whether a class is parked and the reason still holds."""
    if not peers.is_parked:
        return False
    if peers.watches is not None:
        # Only a class without a watched limit waits for nodes.
        return session.ledger.used(*peers.watches) > peers.full_above
    refusals = session.get(NODE_REFUSALS)
    return not refusals.holds(peers) or refusals.keeps_out(session, peers)


def refuse_class(
    session: Session,
    group: GroupState,
    verdicts: Blockers,
    behind: Verdict | None = None,
    *,
    wanted: Wanted | None = None,
) -> None:
    """Store the verdicts for the group's whole class, and park it if possible.

    `wanted` is the request to nodes, if nodes refused it.
    """
    peers = group.peers
    assert peers is not None
    kind, known = "" if behind is None else behind.detail, peers.verdicts
    if known is not None and peers.shown is not None and peers.behind == kind:
        if known is verdicts:
            return
        if not known and not verdicts and not peers.is_parked:
            # It still waits for nothing but the head.
            return
    peers.verdicts, peers.behind = verdicts, kind
    line = _line_of(session, group)
    shown = verdicts if behind is None else _with_behind(session, verdicts, behind)
    if peers.show(shown):
        line.unwritten[peers.asks] = peers
    line.count(peers, counts=verdicts.wait_in_line)
    _park(session, peers, group, verdicts, wanted)
    if peers.is_parked:
        line.unparked.pop(peers.asks, None)
    else:
        line.unparked[peers.asks] = peers


def _with_behind(session: Session, verdicts: Blockers, behind: Verdict) -> Blockers:
    """Return verdicts with that on the groups behind a head, which is often the only one."""
    if verdicts:
        return session.dated((*verdicts, behind))
    known = session.pending.only_behind
    if known is None or known[0] is not behind:
        known = session.pending.only_behind = (behind, session.dated((behind,)))
    return known[1]


def unpark_class(session: Session, group: GroupState) -> None:
    """Unpark the class of a group, if it has one."""
    peers = group.peers
    if peers is None:
        return
    session.carried.wake_up_index.remove(peers)
    session.get(NODE_REFUSALS).unpark(peers)
    peers.is_parked, peers.watches = False, None
    _line_of(session, group).unparked[peers.asks] = peers


def _park(
    session: Session,
    peers: EquivalenceClass,
    group: GroupState,
    verdicts: Blockers,
    wanted: Wanted | None,
) -> None:
    session.carried.wake_up_index.remove(peers)
    session.get(NODE_REFUSALS).unpark(peers)
    peers.is_parked, peers.watches = False, None
    if not session.pending.classes_may_park:
        return
    if wanted is not None:
        peers.is_parked = True
        session.get(NODE_REFUSALS).sleep(peers, wanted)
        return
    if not verdicts.wait_in_line:
        peers.is_parked = is_lifted_with_all(session, verdicts)
        return
    scopes = [scope for scope in group.scopes if not scope.startswith("ns:")]
    for scope, resource, need, limit in session.ledger.limited(scopes, claim_of(group)):
        if session.ledger.used(scope, resource) + need > limit:
            peers.is_parked, peers.watches = True, (scope, resource)
            peers.full_above = limit - need
            session.carried.wake_up_index.add(peers, peers.watches, peers.full_above)
            return


def _line_of(session: Session, group: GroupState) -> PendingQueue:
    queue = session.queues.get(group.queue)
    return session.carried.strayed if queue is None else queue.line
