"""The plugin proportion at `reclaimable`: the queues from which a preemptor may reclaim."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import a_group, a_node, a_queue, amounts
from tests.unit.voting import answer, opened, running, some_pods, whole


def asked(
    *objects: Any,
    lacking: tuple[str, ...] = ("cpu",),
    victim: str = "v",
    pods: tuple[int, ...] = (),
    claimant: str = "c",
) -> bool | None:
    """Return the vote of proportion on `claimant` evicting `victim`, or these pods of it."""
    session = opened(*objects, plugins=("proportion",))
    taken = some_pods(session, victim, *pods) if pods else whole(session, victim)
    return answer(session, "reclaimable", claimant, taken, lacking=lacking)


def queues(**of_b: Any) -> tuple[Any, ...]:
    """Return queues `a` and `b`, which deserve four of eight cpus each."""
    four = {"deserved": amounts(cpu=4)}
    return (a_node(cpu=8), a_queue("a", **four), a_queue("b", **(four | of_b)))


CLAIMANT = a_group("c", queue="a", cpu=1)


def test_usage_above_what_a_queue_deserves_may_be_reclaimed() -> None:
    assert asked(*queues(), *running("v", cpu=5, queue="b"), CLAIMANT) is True


def test_nothing_is_reclaimed_from_a_queue_at_what_it_deserves() -> None:
    assert asked(*queues(), *running("v", cpu=4, queue="b"), CLAIMANT) is False


def test_a_victim_may_take_its_queue_below_what_it_deserves() -> None:
    """The usage before the eviction counts, or a gang larger than the surplus would never leave."""
    assert asked(*queues(), *running("v", 5, cpu=1, queue="b"), CLAIMANT) is True


def test_only_dimensions_that_the_preemptor_lacks_count() -> None:
    world = (
        a_node(cpu=8, gpu=2),
        a_queue("a", deserved=amounts(cpu=4, gpu=2)),
        a_queue("b", deserved=amounts(cpu=4, gpu=0)),
        *running("v", cpu=5, queue="b"),
        CLAIMANT,
    )
    assert asked(*world, lacking=("gpu",)) is False
    assert asked(*world, lacking=("cpu", "gpu")) is True
    assert asked(*world, lacking=()) is False


def test_pods_count_only_in_a_queue_that_states_deserved_pods() -> None:
    deserves_two = {"deserved": amounts(cpu=4, pods=2)}
    victims = running("v", 3, cpu=1, queue="b")
    assert asked(*queues(), *victims, CLAIMANT, lacking=("pods",)) is False
    assert asked(*queues(**deserves_two), *victims, CLAIMANT, lacking=("pods",)) is True
    assert asked(*queues(), *victims, CLAIMANT, lacking=("podgroups",)) is False


def test_nothing_is_reclaimed_from_a_queue_that_is_not_reclaimable() -> None:
    assert asked(*queues(reclaimable=False), *running("v", cpu=5, queue="b"), CLAIMANT) is False


@pytest.mark.parametrize(("guaranteed", "agreed"), [(2, True), (3, False)])
def test_a_queue_keeps_its_guarantee(guaranteed: int, agreed: bool) -> None:
    world = queues(guarantee=amounts(cpu=guaranteed))
    victims = (*running("v", cpu=3, queue="b"), *running("w", cpu=2, queue="b"))
    assert asked(*world, *victims, CLAIMANT) is agreed


def test_a_guarantee_of_a_resource_that_the_victim_does_not_hold_does_not_count() -> None:
    world = queues(guarantee=amounts(memory="1Gi"))
    assert asked(*world, *running("v", cpu=5, queue="b"), CLAIMANT) is True


def test_evicting_pods_beyond_min_member_frees_only_their_own_resources() -> None:
    world = queues(guarantee=amounts(cpu=4))
    victims = running("v", 5, minimum=1, cpu=1, queue="b")
    assert asked(*world, *victims, CLAIMANT, pods=(4,)) is True
    assert asked(*world, *victims, CLAIMANT, pods=(3, 4)) is False


def test_victims_that_were_chosen_before_no_longer_count() -> None:
    session = opened(
        *queues(), *running("v", 5, minimum=1, cpu=1, queue="b"), CLAIMANT, plugins=("proportion",)
    )
    group = session.by_key["default/v"]
    victim = some_pods(session, "v", 3)
    assert answer(session, "reclaimable", "c", victim, lacking=["cpu"]) is True
    group.exchange("v-1-4", group.pods["v-1-4"], None)
    session.ledger.recharge(group)
    assert answer(session, "reclaimable", "c", victim, lacking=["cpu"]) is False


def test_nothing_is_reclaimed_within_a_queue() -> None:
    assert asked(*queues(), *running("v", cpu=5, queue="a"), CLAIMANT) is False


def tree(*, of_org: dict[str, Any] | None = None, of_team: dict[str, Any] | None = None) -> Any:
    """Return a tree of `a` and `org`, whose children are the teams `x` and `y`."""
    return (
        a_node(cpu=8),
        a_queue("a", deserved=amounts(cpu=4)),
        a_queue("org", **({"deserved": amounts(cpu=4)} | (of_org or {}))),
        a_queue("x", parent="org", **({"deserved": amounts(cpu=2)} | (of_team or {}))),
        a_queue("y", parent="org", deserved=amounts(cpu=2)),
    )


def test_a_team_that_borrows_within_its_organisation_gives_nothing_back_to_others() -> None:
    assert asked(*tree(), *running("v", cpu=3, queue="x"), CLAIMANT) is False
    y = a_group("c", queue="y", cpu=1)
    assert asked(*tree(), *running("v", cpu=3, queue="x"), y) is True


def test_a_team_and_its_organisation_above_what_they_deserve_give_back() -> None:
    assert asked(*tree(), *running("v", cpu=5, queue="x"), CLAIMANT) is True


@pytest.mark.parametrize(
    "kept",
    [
        {"of_org": {"reclaimable": False}},
        {"of_team": {"reclaimable": False}},
        {"of_org": {"guarantee": amounts(cpu=1)}},
        {"of_team": {"guarantee": amounts(cpu=1)}},
    ],
)
def test_protection_of_an_organisation_covers_its_teams(kept: Any) -> None:
    assert asked(*tree(**kept), *running("v", cpu=5, queue="x"), CLAIMANT) is False


def test_a_guarantee_of_an_organisation_does_not_count_between_its_teams() -> None:
    world = tree(of_org={"guarantee": amounts(cpu=3), "reclaimable": False})
    y = a_group("c", queue="y", cpu=1)
    assert asked(*world, *running("v", cpu=3, queue="x"), y) is True
