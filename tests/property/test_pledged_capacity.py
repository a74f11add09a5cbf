"""Sums of pledges are the same whether updated incrementally or computed from scratch; their cost
grows with the victims, not with their square.
"""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.intents import Evict
from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import PodGroup
from batchq.api.resources import Amounts, minus, named, plus, smaller, total
from batchq.config import SchedulerConfig
from batchq.core.kept_capacity import (
    PLEDGED_CAPACITY,
    promised_to,
    victims_left,
)
from batchq.core.preemption import search
from batchq.core.preemption.candidates import DECIDED, HOLDERS, Holders, UpperBound
from batchq.core.quota.ledger import counted
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_priority, a_task
from tests.effort import usually
from tests.harness.calls import counting_calls
from tests.scheduler.conftest import Stack
from tests.worlds.play import failure_of

#: In the first two, preemptors often wait for victims; in the third, for their own former pods.
SEEDS = (6, 8, 1167015, *range(usually(0, 40)))


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
        for preemptor in preemptors:
            assert session.ledger.owed(preemptor) == _owed(session, preemptor)
        spare = [one for one in preemptors if _has_more_than_it_needs(session, one)]
        assert session.get(PLEDGED_CAPACITY).is_more_than_needed(session) == bool(spare)
        moving = [one for one in spare if _would_anything_move(session, one)]
        assert session.get(PLEDGED_CAPACITY).with_more_than_they_need(session) == moving
        stopping = {group.uid for group in session.busy() if _stops(group)}
        holders, anew = session.get(HOLDERS), Holders()
        assert {stops[0][2].uid for stops in holders.stops(session)} == stopping
        for queue in session.queues:
            whole = list(anew.whole_groups(session, queue))
            assert list(holders.whole_groups(session, queue)) == whole
            elastic = {group.uid for group in anew.elastic_groups(session, queue)}
            assert {group.uid for group in holders.elastic_groups(session, queue)} == elastic
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


def test_four_times_as_many_victims_of_a_gang_cost_a_session_about_four_times_as_many_calls() -> (
    None
):
    few, many = (_calls_for_a_gang_of(victims) for victims in (30, 120))
    # If each victim were looked at again for each of the others, it would be sixteen times.
    assert 2 * few < many < 6 * few


def _calls_for_a_gang_of(size: int) -> int:
    """Return how many functions the session calls that evicts this many groups for a gang."""
    stack = Stack(MemoryStore(), SchedulerConfig())
    stack.apply(a_priority("high", 100))
    stack.ready(a_node(cpu=size))
    stack.apply(*(runnable(f"low-{place}") for place in range(size)))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    stack.clock.at_ms += 1_000
    stack.apply(runnable("gang", replicas=size, priority_class_name="high"))
    report, calls = counting_calls(stack.turn)
    assert sum(isinstance(one, Evict) for one in report.intents) == size
    return calls


def test_a_further_search_costs_no_more_calls_beside_four_times_as_many_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a session spends on the upper bound is limited as a whole.
    monkeypatch.setattr(UpperBound, "may_suffice", lambda *_: True)
    few, many = (_calls_of_eight_more_preemptors(beside=groups) for groups in (60, 240))
    assert many < 1.5 * few


def _calls_of_eight_more_preemptors(*, beside: int) -> int:
    calls = []
    for preemptors in (4, 12):
        stack = Stack(MemoryStore(), SchedulerConfig())
        stack.apply(a_priority("high", 100))
        stack.ready(a_node(cpu=beside))
        stack.apply(*(runnable(f"low-{place}") for place in range(beside)))
        stack.until_idle()
        stack.start_pods()
        stack.until_idle()
        stack.clock.at_ms += 1_000
        stack.apply(
            *(
                runnable(f"high-{place}", replicas=2, priority_class_name="high")
                for place in range(preemptors)
            )
        )
        report, cost = counting_calls(stack.turn)
        assert sum(isinstance(one, Evict) for one in report.intents) == 2 * preemptors
        calls.append(cost)
    return calls[1] - calls[0]


def runnable(name: str, *, replicas: int = 1, **spec: Any) -> PodGroup:
    return a_group(name, tasks=(a_task(replicas=replicas, command=("true",)),), **spec)


def _waiting_for_victims(session: Session) -> list[GroupState]:
    owners = session.ledger.preemptors.values()
    return list({one.uid: one for some in owners for one in some.values()}.values())


def _owed(session: Session, preemptor: GroupState) -> dict[str, Amounts]:
    """Return what its victims are still charged in its scopes, at most what it was promised."""
    if not preemptor.reserved or not preemptor.status.pledge.stands:
        return {}
    charged: dict[str, Amounts] = {}
    for left in victims_left(session, preemptor.status.pledge):
        for scope in {*left.group.scopes} & {*preemptor.scopes}:
            charged[scope] = plus(charged.get(scope, {}), left.charged())
    promised = preemptor.status.pledge.extra or promised_to(preemptor)
    owed = {scope: named(smaller(amounts, promised)) for scope, amounts in charged.items()}
    return {scope: amounts for scope, amounts in owed.items() if amounts}


def _leaving(session: Session, preemptors: list[GroupState]) -> dict[str, Amounts]:
    falls: dict[str, Amounts] = {}
    for preemptor in preemptors:
        pledge = preemptor.status.pledge
        for left in victims_left(session, pledge):
            for scope in left.group.scopes:
                falls[scope] = plus(falls.get(scope, {}), left.charged())
    for preemptor in preemptors:
        for scope, amounts in session.ledger.owed(preemptor).items():
            falls[scope] = minus(falls.get(scope, {}), amounts)
    some = {scope: minus(amounts, {}) for scope, amounts in falls.items()}
    return {scope: amounts for scope, amounts in some.items() if amounts}


def _has_more_than_it_needs(session: Session, preemptor: GroupState) -> bool:
    pledge = preemptor.status.pledge
    left = total(one.charged() for one in victims_left(session, pledge))
    return bool(minus(left, counted(pledge.extra or promised_to(preemptor))))


def _would_anything_move(session: Session, preemptor: GroupState) -> bool:
    pledge = preemptor.status.pledge
    return bool(pledge.room) or any(
        left.pods or left.whole for left in victims_left(session, pledge)
    )


def _stops(group: GroupState) -> bool:
    return any(
        pod.status.terminating and pod.status.phase in ON_NODE for pod in group.pods.values()
    )
