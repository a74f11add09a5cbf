"""What victims owe to claimants, added up once a session and kept up to date as either changes.

Every search for victims asks for these sums; with a thousand pledges, adding them up for each would
cost more than the searches. The ledger tells whose charge may have changed (`stirred`), and only
the claimants of these are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from batchq.api.objects import Pledge
from batchq.api.resources import Amounts, minus, total
from batchq.framework.ledger import ByScope, counted
from batchq.framework.pledges import leaves_whole, promised_to, still_charged, victims_left
from batchq.framework.state import GroupState

if TYPE_CHECKING:
    from batchq.framework.session import Session


class _Part(NamedTuple):
    """What one claimant adds: what its victims are still charged, where; and what it counts for
    less meanwhile.
    """

    falls: list[tuple[tuple[str, ...], Amounts]]
    owed: ByScope


class Debts:
    """Owned by a session. It follows when it is asked: sums that were handed out stay as they are
    until then, whatever a trial does.
    """

    def __init__(self) -> None:
        #: Victim's uid -> when it was first pledged in this session, counted from 0.
        self._places: dict[str, int] = {}
        #: Claimant's uid -> the uids of its victims.
        self._victims: dict[str, dict[str, None]] = {}
        self._parts: dict[str, _Part] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._leaving: dict[str, Amounts] = {}
        #: Claimants whose victims leave more than is promised to them.
        self._spare: dict[str, GroupState] = {}
        #: Those of them for which anything changes when a trial lets their victims end.
        self._moving: dict[str, GroupState] = {}
        self._seen = 0

    def note(self, claimant: GroupState, pledge: Pledge) -> None:
        """Its victims owe it their room."""
        victims = self._victims.setdefault(claimant.uid, {})
        for uid in pledge.groups:
            self._places.setdefault(uid, len(self._places))
            victims[uid] = None

    def forget(self, claimant: GroupState, pledge: Pledge) -> None:
        """They owe it nothing any more."""
        victims = self._victims.get(claimant.uid, {})
        for uid in pledge.groups:
            victims.pop(uid, None)

    def leaving(self, session: Session) -> Mapping[str, Amounts]:
        """Scope -> what its sum falls by when all victims have ended, and their claimants count in
        full.

        Until then a queue that gives back to one claimant looks as if it still had too much, and
        would have to give the same to the next.
        """
        self._follow(session)
        return self._leaving

    def is_more_than_needed(self, session: Session) -> bool:
        """Whether the victims of any claimant leave more than is promised to it."""
        self._follow(session)
        return bool(self._spare)

    def with_more_than_they_need(self, session: Session) -> list[GroupState]:
        """Those claimants; first those whose victims were pledged first.

        Left out are those that wait for claims of consumers alone: these are told to stop already,
        have no room on nodes, and their end is not ours to foresee.
        """
        self._follow(session)
        if len(self._moving) < 2:
            return list(self._moving.values())
        return sorted(self._moving.values(), key=lambda claimant: self._place(session, claimant))

    # ------------------------------------------------------------------------------------------

    def _place(self, session: Session, claimant: GroupState) -> tuple[int, int]:
        owners = session.ledger.claimants
        first = min(self._victims[claimant.uid], key=lambda uid: self._places[uid])
        return (self._places[first], list(owners[first]).index(claimant.uid))

    def _follow(self, session: Session) -> None:
        stirred = session.ledger.stirred
        if len(stirred) == self._seen:
            return
        groups = {group.uid: group for group in stirred[self._seen :]}
        self._seen = len(stirred)
        scopes: set[str] = set()
        for uid, group in groups.items():
            if uid in self._victims:
                scopes.update(self._look_again(session, group))
        for scope in scopes:
            sums = self._sums[scope]
            self._leaving[scope] = {name: units for name, units in sums.items() if units > 0}

    def _look_again(self, session: Session, claimant: GroupState) -> Iterable[str]:
        """Take out what a claimant added, and add what it does by now; the scopes concerned."""
        uid = claimant.uid
        former, part = self._parts.pop(uid, None), None
        self._spare.pop(uid, None)
        self._moving.pop(uid, None)
        if self._victims[uid]:
            part = self._parts[uid] = self._part_of(session, claimant)
        scopes: set[str] = set()
        for one, sign in ((former, -1), (part, 1)):
            if one is None:
                continue
            for where, amounts in one.falls:
                for scope in where:
                    self._add(scope, amounts, sign)
                scopes.update(where)
            for scope, amounts in one.owed.items():
                self._add(scope, amounts, -sign)
            scopes.update(one.owed)
        return scopes

    def _part_of(self, session: Session, claimant: GroupState) -> _Part:
        pledge = claimant.status.pledge
        victims = victims_left(session, pledge)
        falls = [(group.scopes, still_charged(pledge, group, pods)) for group, pods in victims]
        left = total(amounts for _, amounts in falls)
        if minus(left, counted(pledge.extra or promised_to(claimant))):
            self._spare[claimant.uid] = claimant
            if pledge.room or any(pods or leaves_whole(pledge, group) for group, pods in victims):
                self._moving[claimant.uid] = claimant
        return _Part(falls, session.ledger.owed(claimant))

    def _add(self, scope: str, amounts: Mapping[str, int], sign: int) -> None:
        sums = self._sums.setdefault(scope, {})
        for name, units in amounts.items():
            sums[name] = sums.get(name, 0) + sign * units
