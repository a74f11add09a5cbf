"""From whose queue a claimant may take back: the proportion plugin at `reclaimable`."""

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
    """What proportion says to `claimant` taking `victim`, or these pods of it."""
    session = opened(*objects, plugins=("proportion",))
    taken = some_pods(session, victim, *pods) if pods else whole(session, victim)
    return answer(session, "reclaimable", claimant, taken, lacking=lacking)


def queues(**of_b: Any) -> tuple[Any, ...]:
    """Queues `a` and `b`, which deserve four cpus each, of eight."""
    four = {"deserved": amounts(cpu=4)}
    return (a_node(cpu=8), a_queue("a", **four), a_queue("b", **(four | of_b)))


CLAIMANT = a_group("c", queue="a", cpu=1)


def test_room_that_a_queue_holds_above_deserved_may_be_taken_back() -> None:
    assert asked(*queues(), *running("v", cpu=5, queue="b"), CLAIMANT) is True


def test_a_queue_at_what_it_deserves_is_left_alone() -> None:
    assert asked(*queues(), *running("v", cpu=4, queue="b"), CLAIMANT) is False


def test_a_victim_may_take_its_queue_below_what_it_deserves() -> None:
    """Above before the victim counts: else a gang larger than the surplus stays for good."""
    assert asked(*queues(), *running("v", 5, cpu=1, queue="b"), CLAIMANT) is True


def test_only_a_dimension_that_the_claimant_lacks_counts() -> None:
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


def test_pods_count_only_where_the_queue_says_what_it_deserves_of_them() -> None:
    deserves_two = {"deserved": amounts(cpu=4, pods=2)}
    victims = running("v", 3, cpu=1, queue="b")
    assert asked(*queues(), *victims, CLAIMANT, lacking=("pods",)) is False
    assert asked(*queues(**deserves_two), *victims, CLAIMANT, lacking=("pods",)) is True
    assert asked(*queues(), *victims, CLAIMANT, lacking=("podgroups",)) is False


def test_a_queue_that_is_not_reclaimable_keeps_what_it_has() -> None:
    assert asked(*queues(reclaimable=False), *running("v", cpu=5, queue="b"), CLAIMANT) is False


@pytest.mark.parametrize(("guaranteed", "agreed"), [(2, True), (3, False)])
def test_a_queue_keeps_its_guarantee(guaranteed: int, agreed: bool) -> None:
    world = queues(guarantee=amounts(cpu=guaranteed))
    victims = (*running("v", cpu=3, queue="b"), *running("w", cpu=2, queue="b"))
    assert asked(*world, *victims, CLAIMANT) is agreed


def test_a_guarantee_of_what_the_victim_does_not_give_back_does_not_matter() -> None:
    world = queues(guarantee=amounts(memory="1Gi"))
    assert asked(*world, *running("v", cpu=5, queue="b"), CLAIMANT) is True


def test_pods_beyond_min_member_give_back_themselves_alone() -> None:
    world = queues(guarantee=amounts(cpu=4))
    victims = running("v", 5, minimum=1, cpu=1, queue="b")
    assert asked(*world, *victims, CLAIMANT, pods=(4,)) is True
    assert asked(*world, *victims, CLAIMANT, pods=(3, 4)) is False


def test_the_victims_that_were_chosen_before_have_left() -> None:
    session = opened(
        *queues(), *running("v", 5, minimum=1, cpu=1, queue="b"), CLAIMANT, plugins=("proportion",)
    )
    group = session.by_key["default/v"]
    victim = some_pods(session, "v", 3)
    assert answer(session, "reclaimable", "c", victim, lacking=["cpu"]) is True
    group.exchange("v-1-4", group.pods["v-1-4"], None)
    session.ledger.recharge(group)
    assert answer(session, "reclaimable", "c", victim, lacking=["cpu"]) is False


def test_within_its_own_queue_there_is_nothing_to_take_back() -> None:
    assert asked(*queues(), *running("v", cpu=5, queue="a"), CLAIMANT) is False


# --- in a tree ------------------------------------------------------------------------------


def tree(*, of_org: dict[str, Any] | None = None, of_team: dict[str, Any] | None = None) -> Any:
    """`a` beside `org`, which has the teams `x` and `y`."""
    return (
        a_node(cpu=8),
        a_queue("a", deserved=amounts(cpu=4)),
        a_queue("org", **({"deserved": amounts(cpu=4)} | (of_org or {}))),
        a_queue("x", parent="org", **({"deserved": amounts(cpu=2)} | (of_team or {}))),
        a_queue("y", parent="org", deserved=amounts(cpu=2)),
    )


def test_a_team_may_borrow_within_its_organisation_without_owing_it_to_others() -> None:
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


def test_a_guarantee_of_an_organisation_does_not_matter_between_its_teams() -> None:
    world = tree(of_org={"guarantee": amounts(cpu=3), "reclaimable": False})
    y = a_group("c", queue="y", cpu=1)
    assert asked(*world, *running("v", cpu=3, queue="x"), y) is True
