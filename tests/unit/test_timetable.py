"""What is charged when: slots, bookings and what is left beside them, one sentence each."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.objects import Pod, PodGroup, PodGroupStatus
from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.core.forecast.timeline import LedgerTimeline
from batchq.core.session.session import Session
from batchq.core.session.settings import Settings
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit
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
    """A session at NOW that has decided nothing."""
    return assemble(SchedulerConfig()).open(a_snapshot(*objects), NOW)


def by_sums(*objects: Any) -> Session:
    """The same, of a scheduler that places no pods: it goes by sums."""
    config = SchedulerConfig(actions=("enqueue", "backfill"))
    return assemble(config).open(a_snapshot(*objects), NOW)


def running(name: str, cpu: int, ends_at: int | None, **more: Any) -> tuple[Any, ...]:
    """A group that runs since 0."""
    return a_running_group(name, cpu=cpu, walltime=ends_at, **more)


def of(session: Session, name: str) -> GroupState:
    return session.by_key[f"default/{name}"]


def slot(*objects: Any, length: int | None = MINUTE, name: str = "g") -> int | None:
    session = opened(*objects)
    return LedgerTimeline(session).slot(of(session, name), length)


FILLED = (a_node(cpu=4), *running("r", 3, 400_000))


def test_a_group_that_fits_has_a_slot_now() -> None:
    assert slot(*FILLED, a_group("g", cpu=1)) == NOW


def test_a_group_that_does_not_fit_has_a_slot_at_the_end_that_it_takes() -> None:
    assert slot(*FILLED, a_group("g", cpu=4)) == 400_000


def test_a_slot_waits_for_as_many_of_several_ends_as_leave_enough() -> None:
    world = (a_node(cpu=4), *running("a", 2, 300_000), *running("b", 2, 400_000))
    assert slot(*world, a_group("g", cpu=2)) == 300_000
    assert slot(*world, a_group("g", cpu=3)) == 400_000


def test_a_group_that_should_have_ended_leaves_in_a_second() -> None:
    assert slot(a_node(cpu=4), *running("r", 3, 50_000), a_group("g", cpu=4)) == NOW + 1_000


def test_no_slot_lies_behind_a_group_that_never_ends() -> None:
    assert slot(a_node(cpu=4), *running("r", 3, None), a_group("g", cpu=4)) is None


def test_no_slot_is_found_for_more_than_a_limit() -> None:
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
    """Between 200 s and 300 s there are three cpus, and from 400 s on."""
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


def test_whether_one_fits_now_goes_by_how_long() -> None:
    session = opened(*FILLED, a_group("head", cpu=4), a_group("g", cpu=1))
    table = LedgerTimeline(session)
    table.book(of(session, "head"), 400_000, MINUTE)
    assert table.fits_now(of(session, "g"), 300_000)
    assert not table.fits_now(of(session, "g"), 300_001)
    assert not table.fits_now(of(session, "g"), None)


def test_a_started_group_counts_until_its_end_even_if_no_slot_was_asked_for_before() -> None:
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


def test_a_booking_in_a_plan_beside_is_not_booked_here() -> None:
    session = opened(*FILLED, a_group("head", cpu=4), a_group("g", cpu=1))
    table = LedgerTimeline(session)
    plan = table.beside()
    plan.book(of(session, "head"), NOW, None)
    assert plan.slot(of(session, "g"), MINUTE) is None
    assert table.slot(of(session, "g"), MINUTE) == NOW


# --- Who is charged still for what it left --------------------------------------------------------


def left(name: str, cpu: int, queue: str = "default") -> tuple[PodGroup, Pod]:
    """A group that is Pending again; its pod was told to stop at NOW, and has thirty seconds."""
    group, pod = a_running_group(name, cpu=cpu, queue=queue)
    status = structs.replace(pod.status, terminating=True, terminating_at=NOW)
    group = structs.replace(group, status=PodGroupStatus(admission=1))
    return group, structs.replace(pod, status=status)


def test_by_sums_a_group_does_not_wait_for_its_own_pods() -> None:
    session = by_sums(a_node(cpu=4), *left("g", 4))
    assert LedgerTimeline(session).slot(of(session, "g"), MINUTE) == NOW


def test_nor_where_anything_is_guaranteed_to_others() -> None:
    siblings = (a_queue("s", guarantee=amounts(cpu=1)), a_queue("q"))
    session = by_sums(a_node(cpu=4), *siblings, *left("g", 3, queue="q"))
    assert LedgerTimeline(session).slot(of(session, "g"), MINUTE) == NOW


def test_on_nodes_it_waits_until_its_own_pods_have_ended() -> None:
    assert slot(a_node(cpu=4), *left("g", 4)) == NOW + 30_000
    assert slot(a_node(cpu=8), *left("g", 4)) == NOW


def test_others_wait_for_them() -> None:
    assert slot(a_node(cpu=4), *left("r", 4), a_group("g", cpu=1)) == NOW + 30_000


def test_room_a_group_still_holds_is_part_of_what_is_booked_for_it() -> None:
    """Of five cpus it holds two, and is to have three: two are left, before and after."""
    group, pod = left("back", 2)
    group = structs.replace(group, spec=structs.replace(group.spec, min_resources=amounts(cpu=3)))
    session = by_sums(a_node(cpu=5), group, pod, a_group("g", cpu=2), a_group("h", cpu=3))
    table = LedgerTimeline(session)
    table.book(of(session, "back"), NOW, MINUTE)
    assert table.slot(of(session, "g"), MINUTE) == NOW
    assert table.slot(of(session, "h"), MINUTE) == NOW + MINUTE


def test_its_pods_count_until_they_end_and_what_is_booked_from_its_start() -> None:
    """Two until its pod has ended, none until its start, three from then on."""
    group, pod = left("back", 2)
    group = structs.replace(group, spec=structs.replace(group.spec, min_resources=amounts(cpu=3)))
    session = by_sums(a_node(cpu=5), group, pod, a_group("g", cpu=3), a_group("h", cpu=5))
    table = LedgerTimeline(session)
    table.book(of(session, "back"), NOW + 2 * MINUTE, MINUTE)
    assert table.slot(of(session, "g"), MINUTE) == NOW
    assert table.slot(of(session, "h"), MINUTE) == NOW + 30_000
    assert table.slot(of(session, "h"), 2 * MINUTE) == NOW + 3 * MINUTE


def test_nor_does_it_count_twice_where_its_time_is_over_before_its_pods_have_ended() -> None:
    session = by_sums(a_node(cpu=5), *left("back", 3), a_group("g", cpu=2))
    table = LedgerTimeline(session)
    table.book(of(session, "back"), NOW, 10_000)
    assert table.slot(of(session, "g"), MINUTE) == NOW


# --- Nodes ----------------------------------------------------------------------------------------


def test_room_that_is_free_in_pieces_is_no_room_for_one_pod() -> None:
    """One cpu is free on each node; on n1 the rest ends at 400 s, on n2 at 300 s."""
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4)]
    world += [*running("a", 3, 400_000, node="n1"), *running("b", 3, 300_000, node="n2")]
    assert slot(*world, a_group("g", cpu=2)) == 300_000
    assert slot(*world, a_group("g", 2, cpu=1)) == NOW
    assert slot(*world, a_group("g", 2, cpu=4)) == 400_000


def test_no_sum_of_nodes_makes_room_for_what_no_node_has() -> None:
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4), *running("r", 1, 300_000)]
    assert slot(*world, a_group("g", cpu=5)) is None


def test_a_cordoned_node_takes_nobody_however_much_is_free_there() -> None:
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4, cordoned=True), *running("r", 3, 300_000)]
    assert slot(*world, a_group("g", cpu=4)) == 300_000


def test_nodes_that_a_selector_leaves_out_are_no_room() -> None:
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4, labels={"gpu": "no"})]
    world += running("r", 3, 300_000, node="n1")
    task = a_task("w", 1, requests={"cpu": 2}, node_selector={"gpu": "no"})
    assert slot(*world, a_group("g", tasks=(task,))) == NOW
    task = a_task("w", 1, requests={"cpu": 2}, node_selector={"gpu": "yes"})
    assert slot(*world, a_group("g", tasks=(task,))) is None


def test_a_booking_takes_room_on_nodes_that_others_leave_to_it() -> None:
    """At 300 s both nodes are whole: for `head`, and one for another."""
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


def test_the_largest_pods_of_several_sizes_find_their_nodes_first_if_need_be() -> None:
    """In the order written, small ones would leave no node for the large one."""
    tasks = (a_task("small", 4, requests={"cpu": 1}), a_task("large", 1, requests={"cpu": 4}))
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4)]
    assert slot(*world, a_group("g", tasks=tasks)) == NOW


def test_where_more_is_promised_than_machines_have_sums_decide() -> None:
    config = SchedulerConfig(settings=Settings(overcommit=1500))
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4), *running("r", 4, None), a_group("g", cpu=6)]
    session = assemble(config).open(a_snapshot(*world), NOW)
    assert LedgerTimeline(session).slot(of(session, "g"), MINUTE) == NOW
