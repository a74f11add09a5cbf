"""Placing pods at once on ranked nodes equals the plain algorithm, which evaluates every node for
every pod and chooses the best, ties by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroupStatus, Taint, Task, Toleration
from batchq.api.reasons import Verdict, Waiting
from batchq.assembly import assemble
from batchq.config import PluginEntry, SchedulerConfig
from batchq.core.extension import POINTS
from batchq.core.placement import node_matrix, placement
from batchq.core.placement.node_matrix import NODE_ROWS, RowRanking
from batchq.core.placement.node_order import Judge, rank_of
from batchq.core.placement.placement import (
    RANKINGS,
    bind_until_ready,
    fill_nodes,
    find_node,
    slots_for,
    start_gang,
)
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.specs import TaskShape
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, wanted_ordinals
from batchq.scheduler.cycle import Scheduler
from tests.builders import Decided, a_group, a_node, a_pod, a_snapshot, a_task, amounts, decide
from tests.property.worlds import dump


@pytest.fixture(
    params=[(1, 2), (1, 1_000), (1_000, 1_000)],
    ids=["many pods by columns", "by columns", "one by one"],
    autouse=True,
)
def sizes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each way to rank nodes is taken for few nodes and for many, or few pods and many; here all
    are for few.
    """
    former = placement.MANY_NODES, node_matrix.MANY_PODS
    placement.MANY_NODES, node_matrix.MANY_PODS = request.param
    yield
    placement.MANY_NODES, node_matrix.MANY_PODS = former


_SCORES = ("leastAllocated", "mostAllocated", "balancedAllocation", "binpack")
_ZONES = st.sampled_from(["", "east", "west"])
_SOME_NODES = st.sampled_from([(), (), (), ("n0", "n2"), ("n1",)])
_TAINTS = {
    "gpu": Taint(key="gpu", value="yes", effect="NoSchedule"),
    "soft": Taint(key="soft", effect="PreferNoSchedule"),
}
_TOLERATES = Toleration(key="gpu", operator="Exists")


class Stranger:
    """A third-party plugin that evaluates one node at a time."""

    name = "stranger"

    def predicate(self, session: Session, shape: TaskShape, node: NodeState) -> Verdict | None:
        if node.free.get("cpu", 0) % 5_000 != 3_000:
            return None
        return Verdict(plugin=self.name, reason=Waiting.UNSCHEDULABLE, detail="an odd one")

    def score(self, session: Session, shape: TaskShape, node: NodeState) -> int:
        return (node.free.get("cpu", 0) // 1_000 * 7 + len(shape.requests)) % 4


@dataclass
class Watch:
    """An Instrument that counts calls."""

    calls: dict[str, int] = field(default_factory=dict)

    def plugin(self, plugin: str, point: str, function: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            self.calls[plugin] = self.calls.get(plugin, 0) + 1
            return function(*arguments)

        return counted

    def action(self, name: str, execute: Any) -> Any:
        return execute


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """Draw score plugins and weights, with or without a third-party plugin and an instrument."""
    weights = draw(st.fixed_dictionaries({name: st.integers(0, 3) for name in _SCORES}))
    entries = [PluginEntry(name=name, weight=weight) for name, weight in weights.items() if weight]
    usual = ("quota", "capacity", "gang", "priority", "predicates")
    binpack: dict[str, object] = draw(
        st.sampled_from([{}, {"resource": "cpu"}, {"weights": {"gpu": 3, "memory": 1}}])
    )
    made = assemble(
        SchedulerConfig(
            plugins=(*(PluginEntry(name=name) for name in usual), *entries),
            plugin_config={"binpack": binpack} if weights["binpack"] else {},
        )
    )
    standing = {point: tuple(made.plugins.get(point, ())) for point in POINTS}
    if draw(st.booleans()):
        weight = draw(st.sampled_from([1, 300]))
        for point in ("predicate", "score"):
            standing[point] = (*standing[point], (Stranger(), weight))
    watch = Watch() if draw(st.booleans()) else None
    return Scheduler(
        actions=made.actions, plugins=standing, settings=made.settings, instrument=watch
    )


@st.composite
def nodes(draw: st.DrawFn) -> list[Any]:
    """Draw nodes with some resources, labels and taints; some are cordoned or not ready."""
    made = []
    for place in range(draw(st.integers(1, 7))):
        resources: dict[str, Any] = {"cpu": draw(st.integers(1, 9))}
        if draw(st.booleans()):
            resources["memory"] = f"{draw(st.integers(1, 4))}Gi"
        if draw(st.booleans()):
            resources["gpu"] = draw(st.integers(0, 3))
        if draw(st.booleans()):
            resources["pods"] = draw(st.integers(1, 6))
        zone = draw(_ZONES)
        taints = draw(st.sampled_from(["", "", "", "gpu", "soft"]))
        made.append(
            a_node(
                f"n{place}",
                labels={"zone": zone} if zone else {},
                ready=draw(st.integers(0, 9)) > 0,
                cordoned=draw(st.integers(0, 9)) == 0,
                taints=(_TAINTS[taints],) if taints else (),
                **resources,
            )
        )
    return made


@st.composite
def tasks(draw: st.DrawFn, name: str = "w") -> Task:
    requests: dict[str, int | str] = {}
    if draw(st.integers(0, 5)):
        requests["cpu"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        requests["memory"] = draw(st.sampled_from(["512Mi", "1Gi"]))
    if draw(st.integers(0, 3)) == 0:
        requests["gpu"] = 1
    replicas = draw(st.integers(1, 6))
    zone = draw(_ZONES)
    return a_task(
        name,
        replicas,
        draw(st.integers(0, replicas)),
        requests=requests,
        node_selector={"zone": zone} if zone and draw(st.booleans()) else {},
        nodes=draw(_SOME_NODES),
        exclude_nodes=draw(_SOME_NODES),
        tolerations=(_TOLERATES,) if draw(st.booleans()) else (),
    )


@st.composite
def groups(draw: st.DrawFn) -> list[Any]:
    made = []
    for place in range(draw(st.integers(1, 5))):
        parts = tuple(draw(tasks(f"t{number}")) for number in range(draw(st.integers(1, 2))))
        pods = sum(task.replicas for task in parts)
        least = sum(task.min_available for task in parts)
        made.append(
            a_group(
                f"g{place}",
                tasks=parts,
                created=place,
                min_member=draw(st.integers(max(1, least), pods)),
            )
        )
    return made


def plainly(session: Session, shape: TaskShape, count: int) -> list[str]:
    """Return the nodes of the pods by the plain algorithm."""
    names = []
    for _ in range(count):
        ranks = (rank_of(session, shape, node) for node in session.nodes.by_name.values())
        best = min((rank for rank in ranks if rank is not None), default=None)
        if best is None:
            break
        session.nodes.by_name[best[1]].take(shape.requests)
        names.append(best[1])
    return names


@given(schedulers(), nodes(), st.lists(st.tuples(tasks(), st.integers(1, 12)), max_size=6))
def test_placement_by_shape_fills_the_same_nodes(
    scheduler: Scheduler, machines: list[Any], asked: list[tuple[Task, int]]
) -> None:
    asking = [a_group(f"g{n}", tasks=(task,)) for n, (task, _) in enumerate(asked)]
    one, other = (scheduler.open(a_snapshot(*machines, *asking), 0) for _ in range(2))
    for place, (_, count) in enumerate(asked):
        shape = one.by_key[f"default/g{place}"].tasks[0]
        filled: list[NodeState] = []
        fill_nodes(one, shape, count, filled)
        assert [node.name for node in filled] == plainly(other, shape, count)


@given(schedulers(), nodes(), st.lists(tasks(), min_size=1, max_size=4), st.data())
def test_a_ranking_follows_all_changes_of_nodes(
    scheduler: Scheduler, machines: list[Any], asked: list[Task], data: st.DataObject
) -> None:
    asking = [a_group(f"g{n}", tasks=(task,)) for n, task in enumerate(asked)]
    session = scheduler.open(a_snapshot(*machines, *asking), 0)
    shapes = [session.by_key[f"default/g{n}"].tasks[0] for n in range(len(asked))]
    taken: list[tuple[NodeState, TaskShape]] = []
    for _ in range(data.draw(st.integers(1, 20))):
        shape = data.draw(st.sampled_from(shapes))
        ranks = [rank_of(session, shape, node) for node in session.nodes.by_name.values()]
        best = min((rank for rank in ranks if rank is not None), default=None)
        found = find_node(session, shape)
        assert (found and found.name) == (best and best[1])
        if data.draw(st.booleans()) and taken:
            node, former = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            session.nodes.give(node, former.requests)
        elif found is not None:
            session.nodes.take(found, shape.requests)
            taken.append((found, shape))


@given(schedulers(), nodes(), tasks())
def test_ranks_of_all_nodes_at_once_are_the_ranks_of_each(
    scheduler: Scheduler, machines: list[Any], task: Task
) -> None:
    session = scheduler.open(a_snapshot(*machines, a_group("g", tasks=(task,))), 0)
    shape = session.by_key["default/g"].tasks[0]
    each = [rank_of(session, shape, node) for node in session.nodes.by_name.values()]
    best = min((rank for rank in each if rank is not None), default=None)
    found = find_node(session, shape)
    assert (found and found.name) == (best and best[1])
    judge = Judge(session, shape)
    assert judge.ranks(list(session.nodes.by_name.values())) == [
        rank for rank in each if rank is not None
    ]
    assert [judge.rank(node) for node in session.nodes.by_name.values()] == each


@given(nodes(), tasks())
def test_as_many_pods_fit_as_the_node_has_slots(machines: list[Any], task: Task) -> None:
    session = assemble(SchedulerConfig()).open(
        a_snapshot(*machines, a_group("g", tasks=(task,))), 0
    )
    shape = session.by_key["default/g"].tasks[0]
    slots = slots_for(session, shape, 50)
    filled: list[NodeState] = []
    fill_nodes(session, shape, 50, filled)
    assert len(filled) == slots


@given(schedulers(), nodes(), groups())
def test_a_session_binds_the_same_pods_one_by_one_and_at_once(
    scheduler: Scheduler, machines: list[Any], asking: list[Any]
) -> None:
    world = a_snapshot(*machines, *asking)
    at_once = Decided(scheduler.without_memory().decide(world, 0))
    one_by_one = Decided(_one_by_one(scheduler).decide(world, 0))
    assert at_once.intents == one_by_one.intents
    assert dump(at_once.session) == dump(one_by_one.session)


def _one_by_one(scheduler: Scheduler) -> Scheduler:
    """Return the scheduler with plugins that evaluate one node at a time, after each pod."""
    standing = {
        point: tuple((_Plain(plugin), weight) for plugin, weight in entries)
        for point, entries in scheduler.plugins.items()
    }
    return Scheduler(actions=scheduler.actions, plugins=standing, settings=scheduler.settings)


class _Plain:
    """A plugin without its methods for many nodes or pods at once."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self.name = plugin.name

    def __getattr__(self, name: str) -> Any:
        if name in ("predicate_for", "score_for", "pods_short"):
            raise AttributeError(name)
        return getattr(self._plugin, name)


@given(schedulers(), nodes(), groups())
def test_undoing_binds_at_once_restores_the_session(
    scheduler: Scheduler, machines: list[Any], asking: list[Any]
) -> None:
    session = scheduler.open(a_snapshot(*machines, *asking), 0)
    before = dump(session)
    with Statement(session) as statement:
        for group in session.groups.values():
            admit(statement, group, reservation=group.reservation)
            create_pods(statement, group, wanted_ordinals(group))
            bind_until_ready(session, statement, group)
    assert dump(session) == before
    for group in session.groups.values():
        for shape in group.tasks:
            each = [rank_of(session, shape, node) for node in session.nodes.by_name.values()]
            best = min((rank for rank in each if rank is not None), default=None)
            found = find_node(session, shape)
            assert (found and found.name) == (best and best[1])


@given(schedulers(), nodes(), groups())
def test_a_gang_starts_at_once_where_its_pods_would_be_bound_after_they_were_created(
    scheduler: Scheduler, machines: list[Any], asking: list[Any]
) -> None:
    in_steps, at_once = (scheduler.open(a_snapshot(*machines, *asking), 0) for _ in range(2))
    for group in in_steps.in_order():
        with Statement(in_steps) as statement:
            admit(statement, group, reservation=group.reservation)
            create_pods(statement, group, wanted_ordinals(group))
            bind_until_ready(in_steps, statement, group)
            if in_steps.group_ready(group):
                statement.commit()
        same = at_once.by_key[group.key]
        with Statement(at_once) as statement:
            admit(statement, same, reservation=same.reservation)
            start_gang(at_once, statement, same)
            if at_once.group_ready(same):
                statement.commit()
    assert at_once.intents == in_steps.intents
    assert dump(at_once) == dump(in_steps)


@pytest.mark.parametrize(
    ("memory", "by_columns"), [(2**50, True), (2**50 + 1, False)], ids=["64 bits do", "no longer"]
)
def test_amounts_beyond_what_64_bits_hold_are_ranked_one_by_one(
    memory: int, by_columns: bool
) -> None:
    placement.MANY_NODES = 1
    machines = [a_node(f"n{n}", cpu=4, memory=str(memory - n)) for n in range(3)]
    group = a_group("g", 6, tasks=(a_task("w", 6, requests={"cpu": 1, "memory": str(2**48)}),))
    session = assemble(SchedulerConfig()).open(a_snapshot(*machines, group), 0)
    shape = session.by_key["default/g"].tasks[0]
    filled: list[NodeState] = []
    fill_nodes(session, shape, 6, filled)
    assert isinstance(session.get(RANKINGS)[shape.shape], RowRanking) is by_columns
    assert [node.name for node in filled] == ["n0", "n1", "n2"] * 2


def test_few_nodes_are_ranked_without_numpy() -> None:
    placement.MANY_NODES = 64
    session = assemble(SchedulerConfig()).open(a_snapshot(a_node(cpu=4), a_group("g")), 0)
    assert find_node(session, session.by_key["default/g"].tasks[0]) is session.nodes.by_name["n1"]
    assert session.peek(NODE_ROWS) is None


def _in_queue(**reservation: int) -> PodGroupStatus:
    return PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        reservation=amounts(**reservation),
    )


def test_a_pod_created_before_an_edit_of_its_task_keeps_its_requests() -> None:
    group = a_group("g", 3, cpu=2, status=_in_queue(cpu=6, pods=3))
    old = [a_pod(group, index) for index in range(3)]
    edited = a_group("g", 3, cpu=1, status=group.status)
    done = decide(a_node(cpu=8), edited, *old)
    assert sorted(done.bound) == ["default/g-w-0", "default/g-w-1", "default/g-w-2"]
    assert done.session.nodes.by_name["n1"].free["cpu"] == 2_000
