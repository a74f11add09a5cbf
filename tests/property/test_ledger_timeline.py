"""The timetable equals a plain search: end after end, with all limits each time."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.core.expected_ends import carry_out, ends
from batchq.core.kept_capacity import kept_capacity, standing_pledges
from batchq.core.placement.placement import gang_of, waits_for_its_own
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.session.session import Session
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.timeline import LedgerTimeline
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_priority,
    a_queue,
    a_running_group,
    a_task,
    amounts,
    decide,
)
from tests.property.test_forecast import worlds_with_walltimes

NOW = 50_000
minutes = st.integers(1, 6).map(lambda count: count * 60_000)
LENGTHS = st.one_of(st.none(), st.integers(1, 400).map(lambda seconds: seconds * 1_000))


@st.composite
def trees(draw: st.DrawFn) -> list[Any]:
    """Draw one or two nodes and a tree of queues, mostly filled with groups that have ends."""
    cpus = st.integers(0, 3).map(lambda count: amounts(cpu=count) if count else {})
    limit = st.one_of(st.just({}), st.integers(3, 8).map(lambda count: {"cpu": count}))
    nodes = draw(st.integers(1, 2))
    world: list[Any] = [
        *(a_node(f"n{place}", cpu=draw(st.integers(4, 8)), pods=12) for place in range(nodes)),
        a_priority("high", 10),
        a_queue("p", capability=draw(limit)),
        a_queue(
            "a",
            parent="p",
            guarantee=draw(cpus),
            max_pod_groups=draw(st.sampled_from([None, None, 2, 4])),
        ),
        a_queue("b", parent="p", guarantee=draw(cpus)),
        a_queue("d", guarantee=draw(cpus), capability=draw(limit)),
    ]
    for place in range(draw(st.integers(1, 6))):
        pods = draw(st.integers(1, 3))
        group, *its = a_running_group(
            f"r{place}",
            pods,
            node=f"n{draw(st.integers(0, nodes - 1))}",
            cpu=1,
            queue=draw(st.sampled_from(["a", "b", "d"])),
            min_member=draw(st.integers(1, pods)),
            walltime=draw(st.one_of(st.none(), minutes, minutes, minutes)),
        )
        match draw(st.sampled_from(["runs", "runs", "runs", "a pod stops", "left"])):
            case "a pod stops":
                its[0] = _stopping(its[0])
            case "left":
                status = PodGroupStatus(admission=1)
                group, its = structs.replace(group, status=status), [_stopping(its[0])]
        world += [group, *its]
    for place in range(draw(st.integers(1, 4))):
        pods = draw(st.integers(1, 4))
        world.append(
            a_group(
                f"g{place}",
                pods,
                cpu=draw(st.integers(1, 3)),
                queue=draw(st.sampled_from(["a", "b", "d"])),
                created=1,
                min_member=draw(st.integers(1, pods)),
                walltime=draw(st.one_of(st.none(), minutes)),
                priority_class_name=draw(st.sampled_from(["", "", "high"])),
            )
        )
    return world


def _stopping(pod: Pod) -> Pod:
    status = structs.replace(pod.status, terminating=True, terminating_at=40_000)
    return structs.replace(pod, status=status)


def waiting(session: Session) -> list[GroupState]:
    return [
        group
        for group in session.groups.values()
        if group.phase == PodGroupPhase.PENDING and not group.reserved
    ]


def fits_at_each_step(session: Session, group: GroupState) -> list[tuple[int, bool]]:
    """Yield (instant, whether rules 2 to 4 hold until the next), by simulating the ends."""
    former, session.ledger.head_reservations = session.ledger.head_reservations, {}
    gang = gang_of(session, group)
    with Statement(session) as trial:
        found = [(session.now_ms, _holds(session, group, gang))]
        for at, together in groupby(ends(session), key=lambda end: end.at):
            for end in together:
                carry_out(trial, end)
            found.append((at, _holds(session, group, gang)))
    session.ledger.head_reservations = former
    return found


def _holds(session: Session, group: GroupState, gang: list[tuple[TaskShape, int]]) -> bool:
    """Return whether limits and nodes fit a group now, less the pledges to preemptors."""
    if over_any_limit(session, group) or (group.pods and waits_for_its_own(group, gang)):
        return False
    free = {name: dict(node.free) for name, node in session.nodes.by_name.items() if node.open}
    for _, pledge in standing_pledges(session):
        for name, room in kept_capacity(session, pledge).items():
            for resource, units in room.items():
                free[name][resource] -= units
    return _can_place([shape.requests for shape, count in gang for _ in range(count)], free)


def _can_place(pods: list[dict[str, int]], free: dict[str, dict[str, int]]) -> bool:
    """Return whether any placement fits all of these pods."""
    if not pods:
        return True
    first, rest = pods[0], pods[1:]
    for node in free.values():
        if all(units <= node.get(name, 0) for name, units in first.items()):
            for name, units in first.items():
                node[name] -= units
            placed = _can_place(rest, free)
            for name, units in first.items():
                node[name] += units
            if placed:
                return True
    return False


def slots_by_hand(steps: list[tuple[int, bool]], length: int | None) -> list[int]:
    """Return every instant of an end from which the group fits for so long."""
    return [
        start
        for start, _ in steps
        if all(
            fits for at, fits in steps if at >= start and (length is None or at < start + length)
        )
    ]


#: A gang that fits in one way only, which neither order of its pods tries.
_HARD_TO_PLACE = [
    a_node("n0", cpu=2, pods=2),
    a_node("n1", cpu=3, pods=2),
    a_group("first", 1, cpu=1, created=0, walltime=60_000),
    a_group(
        "gang", created=1, min_member=4, tasks=(a_task("s", 3), a_task("l", requests={"cpu": 2}))
    ),
]


@given(st.one_of(worlds_with_walltimes(), trees()), LENGTHS)
@example(_HARD_TO_PLACE, None)
def test_a_slot_is_the_first_that_a_search_by_hand_finds(
    world: list[Any], length: int | None
) -> None:
    """With pods of several sizes, the slot found is valid and never too early."""
    session = decide(*world, now_ms=NOW).session
    table = LedgerTimeline(session)
    for group in waiting(session):
        by_hand = slots_by_hand(fits_at_each_step(session, group), length)
        found = table.slot(group, length)
        if len(gang_of(session, group)) < 2:
            assert found == next(iter(by_hand), None), group.key
            assert table.fits_now(group, length) == (found == NOW), group.key
        else:
            assert found is None or found in by_hand, group.key
            assert not table.fits_now(group, length) or NOW in by_hand, group.key


def test_a_group_is_expected_when_enough_of_its_former_pods_have_ended() -> None:
    """One of its two pods is enough, so it need not wait for the second former one."""
    status = PodGroupStatus(phase=PodGroupPhase.PENDING, admission=1)
    group = a_group("g", tasks=(a_task("w", 2),), min_member=1, status=status)
    former = [
        a_pod(
            group,
            index,
            phase=PodPhase.RUNNING,
            node="n1",
            started_at=0,
            terminating=True,
            terminating_at=since,
        )
        for index, since in enumerate((10_000, 20_000))
    ]
    session = decide(a_node("n1", cpu=4), group, *former, now_ms=25_000).session
    (waits,) = waiting(session)
    assert LedgerTimeline(session).slot(waits, None) == 40_000
