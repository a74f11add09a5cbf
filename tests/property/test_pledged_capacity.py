"""Sums of pledges are the same whether updated incrementally or computed from scratch."""

from __future__ import annotations

import pytest

from batchq.api.lifecycle import ON_NODE
from batchq.api.resources import Amounts, minus, plus, total
from batchq.core.kept_capacity import (
    PLEDGED_CAPACITY,
    leaves_whole,
    promised_to,
    still_charged,
    victims_left,
)
from batchq.core.preemption import search
from batchq.core.preemption.candidates import DECIDED, STOPPING
from batchq.core.quota.ledger import counted
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from tests.effort import usually
from tests.worlds.play import failure_of

#: In the first two, preemptors often wait for victims.
SEEDS = (6, 8, *range(usually(0, 40)))


def test_incremental_sums_equal_the_sums_of_all_pledges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []

    def find_victims(session: Session, *rest: object, **terms: object) -> object:
        preemptors = _waiting_for_victims(session)
        leaving, owed = (
            session.get(PLEDGED_CAPACITY).leaving(session),
            _leaving(session, preemptors),
        )
        assert {name: some for name, some in leaving.items() if some} == owed
        spare = [one for one in preemptors if _has_more_than_it_needs(session, one)]
        assert session.get(PLEDGED_CAPACITY).is_more_than_needed(session) == bool(spare)
        moving = [one for one in spare if _would_anything_move(session, one)]
        assert session.get(PLEDGED_CAPACITY).with_more_than_they_need(session) == moving
        stopping = {group.uid for group in session.busy() if _stops(group)}
        assert {group.uid for group in session.get(STOPPING).groups(session)} == stopping
        assert session.get(DECIDED).all(session) == {
            uid for some in session.effects.joined for uid in some
        }
        assert session.get(DECIDED).served(session) == {some[0] for some in session.effects.joined}
        compared.append((bool(owed), bool(spare)))
        return found(session, *rest, **terms)  # type: ignore[arg-type]

    found = search.find_victims
    for module in (
        "batchq.core.preemption.order",
        "batchq_actions.reclaim",
        "batchq.core.preemption.preemptors",
    ):
        monkeypatch.setattr(f"{module}.find_victims", find_victims)
    for seed in SEEDS:
        assert failure_of(seed) is None
    # Without any pledge the test would show nothing.
    assert sum(owes for owes, _ in compared) > 10


def _waiting_for_victims(session: Session) -> list[GroupState]:
    owners = session.ledger.preemptors.values()
    return list({one.uid: one for some in owners for one in some.values()}.values())


def _leaving(session: Session, preemptors: list[GroupState]) -> dict[str, Amounts]:
    falls: dict[str, Amounts] = {}
    for preemptor in preemptors:
        pledge = preemptor.status.pledge
        for group, pods in victims_left(session, pledge):
            for scope in group.scopes:
                amounts = still_charged(pledge, group, pods)
                falls[scope] = plus(falls.get(scope, {}), amounts)
    for preemptor in preemptors:
        for scope, amounts in session.ledger.owed(preemptor).items():
            falls[scope] = minus(falls.get(scope, {}), amounts)
    some = {scope: minus(amounts, {}) for scope, amounts in falls.items()}
    return {scope: amounts for scope, amounts in some.items() if amounts}


def _has_more_than_it_needs(session: Session, preemptor: GroupState) -> bool:
    pledge = preemptor.status.pledge
    left = total(
        still_charged(pledge, group, pods) for group, pods in victims_left(session, pledge)
    )
    return bool(minus(left, counted(pledge.extra or promised_to(preemptor))))


def _would_anything_move(session: Session, preemptor: GroupState) -> bool:
    pledge = preemptor.status.pledge
    return bool(pledge.room) or any(
        pods or leaves_whole(pledge, group) for group, pods in victims_left(session, pledge)
    )


def _stops(group: GroupState) -> bool:
    return any(
        pod.status.terminating and pod.status.phase in ON_NODE for pod in group.pods.values()
    )
