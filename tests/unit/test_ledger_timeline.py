"""Future charges: slots, bookings and remaining capacity, one test for each rule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.objects import Pod, PodGroup, PodGroupStatus
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit
from batchq.core.timeline import LedgerTimeline
from tests.builders import (
    a_group,
    a_node,
    a_queue,
    a_quota,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
)

NOW = 100_000
MINUTE = 60_000


def opened(*objects: Any) -> Session:
    """Open a session at NOW, without running actions."""
    return assemble(SchedulerConfig()).open(a_snapshot(*objects), NOW)


def by_sums(*objects: Any) -> Session:
    """Open a session of a scheduler that places no pods and so compares only sums."""
    config = SchedulerConfig(actions=("enqueue", "backfill"))
    return assemble(config).open(a_snapshot(*objects), NOW)


def running(name: str, cpu: int, ends_at: int | None, **more: Any) -> tuple[Any, ...]:
    """Return a group that started at 0."""
    return a_running_group(name, cpu=cpu, walltime=ends_at, **more)


def of(session: Session, name: str) -> GroupState:
    return session.by_key[f"default/{name}"]


def slot(*objects: Any, length: int | None = MINUTE, name: str = "g") -> int | None:
    session = opened(*objects)
    return LedgerTimeline(session).slot(of(session, name), length)


FILLED = (a_node(cpu=4), *running("r", 3, 400_000))


def test_a_group_that_fits_has_a_slot_now() -> None:
    assert slot(*FILLED, a_group("g", cpu=1)) == NOW


def test_a_group_that_does_not_fit_has_a_slot_at_the_end_of_another_group() -> None:
    assert slot(*FILLED, a_group("g", cpu=4)) == 400_000


def test_a_slot_begins_when_enough_groups_have_ended() -> None:
    world = (a_node(cpu=4), *running("a", 2, 300_000), *running("b", 2, 400_000))
    assert slot(*world, a_group("g", cpu=2)) == 300_000
    assert slot(*world, a_group("g", cpu=3)) == 400_000


def test_an_overdue_group_is_expected_to_end_in_a_second() -> None:
    assert slot(a_node(cpu=4), *running("r", 3, 50_000), a_group("g", cpu=4)) == NOW + 1_000


def test_a_group_that_never_ends_leaves_no_slot() -> None:
    assert slot(a_node(cpu=4), *running("r", 3, None), a_group("g", cpu=4)) is None


def test_a_request_above_a_limit_has_no_slot() -> None:
    assert slot(*FILLED, a_group("g", cpu=5)) is None


@pytest.mark.parametrize(
    ("limited", "expected"),
    [
        (a_queue(capability={"cpu": 3}), 400_000),
        (a_queue(max_pod_groups=1), 400_000),
        (a_quota(cpu=3), 400_000),
        (a_queue(capability={"cpu": 4}), NOW),
    ],
    ids=["its queue's capability", "the number of groups", "its namespace's quota", "none of them"],
)
def test_every_limit_counts(limited: Any, expected: int) -> None:
    assert slot(*FILLED, limited, a_group("g", cpu=1)) == expected


def test_a_siblings_guarantee_delays_a_slot() -> None:
    siblings = (a_queue("s", guarantee=amounts(cpu=1)), a_queue("q"))
    assert slot(*FILLED, *siblings, a_group("g", cpu=1, queue="q")) == 400_000


def test_a_slot_is_long_enough() -> None:
    """Three cpus are free between 200 s and 300 s, and from 400 s on."""
    session = opened(
        a_node(cpu=4),
        *running("r", 3, 200_000),
        a_group("g", cpu=3),
        a_group("h", cpu=2),
    )
    table = LedgerTimeline(session)
    table.book(of(session, "h"), 300_000, 100_000)
    assert table.slot(of(session, "g"), 100_000) == 200_000
    assert table.slot(of(session, "g"), 100_001) == 400_000
    assert table.slot(of(session, "g"), None) == 400_000


def test_whether_a_group_fits_now_depends_on_its_length() -> None:
    session = opened(*FILLED, a_group("head", cpu=4), a_group("g", cpu=1))
    table = LedgerTimeline(session)
    table.book(of(session, "head"), 400_000, MINUTE)
    assert table.fits_now(of(session, "g"), 300_000)
    assert not table.fits_now(of(session, "g"), 300_001)
    assert not table.fits_now(of(session, "g"), None)


def test_a_started_group_counts_until_its_end_without_an_earlier_slot() -> None:
    session = opened(a_node(cpu=4), a_group("g", cpu=3), a_group("h", cpu=3))
    asked, unasked = LedgerTimeline(session), LedgerTimeline(session)
    assert asked.slot(of(session, "h"), MINUTE) == NOW
    started = of(session, "g")
    with Statement(session) as statement:
        admit(statement, started, reservation=started.reservation)
        statement.commit()
    for table in (asked, unasked):
        table.started(started, MINUTE, {})
        assert table.slot(of(session, "h"), MINUTE) == NOW + MINUTE


def test_a_booking_in_a_copied_plan_does_not_change_the_original() -> None:
    session = opened(*FILLED, a_group("head", cpu=4), a_group("g", cpu=1))
    table = LedgerTimeline(session)
    plan = table.beside()
    plan.book(of(session, "head"), NOW, None)
    assert plan.slot(of(session, "g"), MINUTE) is None
    assert table.slot(of(session, "g"), MINUTE) == NOW


def left(name: str, cpu: int, queue: str = "default") -> tuple[PodGroup, Pod]:
    """Return a group that is Pending again, with a pod that terminates within 30 s of NOW."""
    group, pod = a_running_group(name, cpu=cpu, queue=queue)
    status = structs.replace(pod.status, terminating=True, terminating_at=NOW)
    group = structs.replace(group, status=PodGroupStatus(admission=1))
    return group, structs.replace(pod, status=status)


def test_without_placement_a_group_does_not_wait_for_its_own_former_pods() -> None:
    session = by_sums(a_node(cpu=4), *left("g", 4))
    assert LedgerTimeline(session).slot(of(session, "g"), MINUTE) == NOW


def test_with_guarantees_a_group_does_not_wait_for_its_own_former_pods_either() -> None:
    siblings = (a_queue("s", guarantee=amounts(cpu=1)), a_queue("q"))
    session = by_sums(a_node(cpu=4), *siblings, *left("g", 3, queue="q"))
    assert LedgerTimeline(session).slot(of(session, "g"), MINUTE) == NOW


def test_on_nodes_a_group_waits_until_its_former_pods_have_ended() -> None:
    assert slot(a_node(cpu=4), *left("g", 4)) == NOW + 30_000
    assert slot(a_node(cpu=8), *left("g", 4)) == NOW + 30_000


def test_other_groups_wait_until_its_former_pods_have_ended() -> None:
    assert slot(a_node(cpu=4), *left("r", 4), a_group("g", cpu=1)) == NOW + 30_000


def test_capacity_that_a_group_still_holds_is_part_of_its_booking() -> None:
    """The group holds two of five cpus and is booked for three: two remain before and after."""
    group, pod = left("back", 2)
    group = structs.replace(group, spec=structs.replace(group.spec, min_resources=amounts(cpu=3)))
    session = by_sums(a_node(cpu=5), group, pod, a_group("g", cpu=2), a_group("h", cpu=3))
    table = LedgerTimeline(session)
    table.book(of(session, "back"), NOW, MINUTE)
    assert table.slot(of(session, "g"), MINUTE) == NOW
    assert table.slot(of(session, "h"), MINUTE) == NOW + MINUTE


def test_former_pods_count_until_they_end_and_a_booking_from_its_start() -> None:
    """The group counts for two until its pod ends, for none until its start, then for three."""
    group, pod = left("back", 2)
    group = structs.replace(group, spec=structs.replace(group.spec, min_resources=amounts(cpu=3)))
    session = by_sums(a_node(cpu=5), group, pod, a_group("g", cpu=3), a_group("h", cpu=5))
    table = LedgerTimeline(session)
    table.book(of(session, "back"), NOW + 2 * MINUTE, MINUTE)
    assert table.slot(of(session, "g"), MINUTE) == NOW
    assert table.slot(of(session, "h"), MINUTE) == NOW + 30_000
    assert table.slot(of(session, "h"), 2 * MINUTE) == NOW + 3 * MINUTE


def test_a_booking_that_ends_before_the_former_pods_is_not_counted_twice() -> None:
    session = by_sums(a_node(cpu=5), *left("back", 3), a_group("g", cpu=2))
    table = LedgerTimeline(session)
    table.book(of(session, "back"), NOW, 10_000)
    assert table.slot(of(session, "g"), MINUTE) == NOW


def test_free_capacity_spread_over_nodes_does_not_fit_one_pod() -> None:
    """One cpu is free on each node; the other pods end at 400 s on n1 and at 300 s on n2."""
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4)]
    world += [*running("a", 3, 400_000, node="n1"), *running("b", 3, 300_000, node="n2")]
    assert slot(*world, a_group("g", cpu=2)) == 300_000
    assert slot(*world, a_group("g", 2, cpu=1)) == NOW
    assert slot(*world, a_group("g", 2, cpu=4)) == 400_000


def test_a_pod_larger_than_every_node_has_no_slot() -> None:
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4), *running("r", 1, 300_000)]
    assert slot(*world, a_group("g", cpu=5)) is None


def test_a_cordoned_node_takes_no_group() -> None:
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4, cordoned=True), *running("r", 3, 300_000)]
    assert slot(*world, a_group("g", cpu=4)) == 300_000


def test_nodes_excluded_by_a_selector_do_not_count() -> None:
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4, labels={"gpu": "no"})]
    world += running("r", 3, 300_000, node="n1")
    task = a_task("w", 1, requests={"cpu": 2}, node_selector={"gpu": "no"})
    assert slot(*world, a_group("g", tasks=(task,))) == NOW
    task = a_task("w", 1, requests={"cpu": 2}, node_selector={"gpu": "yes"})
    assert slot(*world, a_group("g", tasks=(task,))) is None


def test_a_booking_takes_nodes_that_other_groups_must_leave_free() -> None:
    """At 300 s both nodes are free: one for `head` and one for another group."""
    session = opened(
        a_node("n1", cpu=4),
        a_node("n2", cpu=4),
        *running("a", 4, 300_000, node="n1"),
        *running("b", 2, 300_000, node="n2"),
        a_group("head", cpu=4),
        a_group("g", cpu=2),
        a_group("h", cpu=4),
    )
    table = LedgerTimeline(session)
    table.book(of(session, "head"), 300_000, None)
    assert table.booked_until(200_000) == {}
    assert table.slot(of(session, "h"), None) == 300_000
    assert table.fits_now(of(session, "g"), None)
    table.book(of(session, "h"), 300_000, None)
    assert table.booked_until(200_001) == {"n2": amounts(cpu=2)}
    assert table.fits_now(of(session, "g"), 200_000)
    assert not table.fits_now(of(session, "g"), 200_001)


def test_the_largest_of_several_pod_sizes_are_placed_first_if_necessary() -> None:
    """In the written order, the small pods would leave no node for the large one."""
    tasks = (a_task("small", 4, requests={"cpu": 1}), a_task("large", 1, requests={"cpu": 4}))
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4)]
    assert slot(*world, a_group("g", tasks=tasks)) == NOW


def test_with_overcommitted_nodes_only_the_sums_count() -> None:
    config = SchedulerConfig(settings=Settings(overcommit=1500))
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4), *running("r", 4, None), a_group("g", cpu=6)]
    session = assemble(config).open(a_snapshot(*world), NOW)
    assert LedgerTimeline(session).slot(of(session, "g"), MINUTE) == NOW
