"""The future free capacity of nodes equals that of a separate search of every instant."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.expected_ends import ends
from batchq.core.node_timeline import NodeTimeline
from batchq.core.placement.placement import gang_of
from batchq.core.session.session import Session
from tests.builders import a_group, a_node, a_running_group, a_snapshot, a_task, amounts
from tests.property.test_ledger_timeline import _can_place

NOW = 50_000
SECONDS = st.integers(51, 120)
LENGTHS = st.one_of(st.none(), st.integers(1, 70).map(lambda seconds: seconds * 1_000))


class Hold(NamedTuple):
    """Cpus booked on a node for a period; `end` None means for ever."""

    node: str
    cpu: int
    start: int
    end: int | None

    def is_at(self, instant: int) -> bool:
        return self.start <= instant and (self.end is None or instant < self.end)


@st.composite
def worlds_of_nodes(draw: st.DrawFn) -> list[Any]:
    """Draw one to three nodes, groups that end, and a pending group of one or two tasks."""
    count = draw(st.integers(1, 3))
    world: list[Any] = []
    for place in range(count):
        size, gpus = draw(st.integers(2, 6)), draw(st.integers(0, 2))
        world.append(a_node(f"n{place}", cpu=size, gpu=gpus, cordoned=draw(st.integers(0, 9)) == 0))
        for number in range(draw(st.integers(0, 2))):
            cpu = draw(st.integers(1, max(1, size // 2)))
            ends_s = draw(st.one_of(st.none(), SECONDS, SECONDS))
            walltime = None if ends_s is None else ends_s * 1_000
            name = f"r{place}-{number}"
            world += a_running_group(name, cpu=cpu, node=f"n{place}", walltime=walltime)
    tasks = [a_task("a", draw(st.integers(1, 3)), requests={"cpu": draw(st.integers(1, 5))})]
    if draw(st.booleans()):
        requests = {"cpu": draw(st.integers(1, 4)), "gpu": draw(st.integers(0, 1))}
        tasks.append(a_task("b", draw(st.integers(1, 2)), requests=requests))
    return [*world, a_group("g", tasks=tuple(tasks))]


@st.composite
def holds(draw: st.DrawFn) -> list[Hold]:
    found = []
    for _ in range(draw(st.integers(0, 4))):
        start, lasts = draw(st.integers(50, 110)), draw(st.one_of(st.none(), st.integers(1, 40)))
        node, cpu = f"n{draw(st.integers(0, 1))}", draw(st.integers(2, 5)) * 1_000
        end = None if lasts is None else (start + lasts) * 1_000
        found.append(Hold(node, cpu, start * 1_000, end))
    return found


def free_at(session: Session, held: list[Hold], instant: int) -> dict[str, dict[str, int]]:
    """Return the free cpus of each schedulable node at an instant."""
    free = {name: dict(node.free) for name, node in session.nodes.by_name.items() if node.open}
    for end in ends(session):
        for pod in end.group.pods.values() if end.at <= instant else ():
            if pod.status.node in free:
                for name, units in {**pod.spec.requests, **amounts(pods=1)}.items():
                    free[pod.status.node][name] += units
    for hold in held:
        if hold.node in free and hold.is_at(instant):
            free[hold.node]["cpu"] -= hold.cpu
    return free


def instants_of(session: Session, held: list[Hold]) -> list[int]:
    """Return now and every instant at which anything changes."""
    found = {NOW, *(end.at for end in ends(session)), *(hold.start for hold in held)}
    return sorted(found | {hold.end for hold in held if hold.end is not None})


def free_throughout(
    session: Session, held: list[Hold], start: int, length: int | None
) -> dict[str, dict[str, int]]:
    """Return the cpus of each node that are free at every instant of a window."""
    within = [at for at in instants_of(session, held) if at > start]
    within = [start, *(at for at in within if length is None or at < start + length)]
    each = [free_at(session, held, at) for at in within]
    return {
        name: {one: min(free[name].get(one, 0) for free in each) for one in each[0][name]}
        for name in each[0]
    }


def opened(world: list[Any]) -> Session:
    return assemble(SchedulerConfig()).open(a_snapshot(*world), NOW)


@given(worlds_of_nodes(), holds(), LENGTHS)
def test_a_slot_on_nodes_is_the_first_that_a_search_of_every_instant_finds(
    world: list[Any], held: list[Hold], length: int | None
) -> None:
    """With pods of several sizes, the slot found is valid and never too early."""
    session = opened(world)
    gang = gang_of(session, session.by_key["default/g"])
    pods = [shape.requests for shape, count in gang for _ in range(count)]
    table = NodeTimeline(session, ends(session))
    for hold in held:
        table.hold({hold.node: {"cpu": hold.cpu}}, hold.start, hold.end)
    by_hand = next(
        (
            at
            for at in instants_of(session, held)
            if _can_place(pods, free_throughout(session, held, at, length))
        ),
        None,
    )
    found = table.slot(gang, length, NOW)
    if len(gang) == 1:
        assert found == by_hand
        assert table.fits_now(gang, None if length is None else NOW + length) == (by_hand == NOW)
    elif found is not None:
        assert by_hand is not None
        assert found >= by_hand
        assert _can_place(pods, free_throughout(session, held, found, length))


@given(worlds_of_nodes(), holds(), LENGTHS)
def test_booked_capacity_was_free_all_the_time(
    world: list[Any], held: list[Hold], length: int | None
) -> None:
    session = opened(world)
    gang = gang_of(session, session.by_key["default/g"])
    table = NodeTimeline(session, ends(session))
    for hold in held:
        table.hold({hold.node: {"cpu": hold.cpu}}, hold.start, hold.end)
    start = table.slot(gang, length, NOW)
    if start is None:
        return
    room = table.places_for(gang, start, None if length is None else start + length)
    assert room is not None
    free = free_throughout(session, held, start, length)
    assert all(units <= free[name][one] for name, its in room.items() for one, units in its.items())
    asked = sum(shape.requests["cpu"] * count for shape, count in gang)
    assert sum(its["cpu"] for its in room.values()) == asked


@given(worlds_of_nodes(), holds())
def test_holds_in_a_copy_of_a_timeline_do_not_change_the_timeline(
    world: list[Any], held: list[Hold]
) -> None:
    session = opened(world)
    gang = gang_of(session, session.by_key["default/g"])
    table = NodeTimeline(session, ends(session))
    before = table.slot(gang, 20_000, NOW)
    plan = table.beside()
    for hold in held:
        plan.hold({hold.node: {"cpu": hold.cpu}}, hold.start, hold.end)
    assert table.slot(gang, 20_000, NOW) == before
    other = NodeTimeline(session, ends(session))
    for hold in held:
        other.hold({hold.node: {"cpu": hold.cpu}}, hold.start, hold.end)
    assert plan.slot(gang, 20_000, NOW) == other.slot(gang, 20_000, NOW)


@given(worlds_of_nodes(), holds())
def test_a_search_from_a_later_instant_finds_no_earlier_slot(
    world: list[Any], held: list[Hold]
) -> None:
    session = opened(world)
    gang = gang_of(session, session.by_key["default/g"])
    table = NodeTimeline(session, ends(session))
    for hold in held:
        table.hold({hold.node: {"cpu": hold.cpu}}, hold.start, hold.end)
    found = [table.slot(gang, 20_000, at) for at in range(NOW, NOW + 100_000, 7_000)]
    known = [at for at in found if at is not None]
    assert all(one <= other for one, other in pairwise(known))
    assert found == known + [None] * (len(found) - len(known))
