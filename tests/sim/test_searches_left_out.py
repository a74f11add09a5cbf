"""A search for victims is left out if all possible victims together would not suffice. Then no
victim is tried, whatever the number of preemptors; and no search is left out that would succeed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Pod, PodGroup, QueuePreemption
from batchq.api.resources import Amounts, of_pod, total
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.config.load import read_config
from batchq.core.extension import Plugin, PluginTraits, everywhere
from batchq.core.placement.elastic import short_of_extras, start_extras
from batchq.core.preemption import order, preemptors, search
from batchq.core.preemption.candidates import FIRST_SEARCH, UPPER_BOUND, SearchTerms, UpperBound
from batchq.core.preemption.search import VICTIMS_TRIED, Decision, PreemptionRequest, find_victims
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim
from batchq.core.session.statement import Statement
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq_actions import reclaim
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
)
from tests.effort import usually
from tests.harness.calls import counting_calls
from tests.worlds.making import described
from tests.worlds.play import MOST_SESSIONS

NODES = 6
IMPORTANT = {"queue": "q", "priority_class_name": "high"}


def a_cluster(*, peers_a_node: int, spare_nodes: int = 0, **queue: object) -> list[object]:
    """Return nodes of 8 cpus, each full of groups of one cpu, of which some are as important as the
    gangs to come.
    """
    names = [f"n{place}" for place in range(NODES)]
    running = [
        a_running_group(
            f"{name}-{cpu}",
            node=name,
            queue="q",
            **({"priority_class_name": "high"} if cpu < peers_a_node else {}),
        )
        for name in names
        for cpu in range(8)
    ]
    spare = [f"s{place}" for place in range(spare_nodes)]
    return [
        a_priority("high", 100),
        a_queue("q", **queue),
        *(a_node(name, cpu=8) for name in (*names, *spare)),
        *(one for group in running for one in group),
    ]


def gangs(*sizes: int, cpu: int = 8) -> list[object]:
    return [
        a_group(f"gang-{place}", size, cpu=cpu, min_member=size, created=place, **IMPORTANT)
        for place, size in enumerate(sizes)
    ]


ACTIONS = "actions: [enqueue, allocate, preempt]"


def decided(
    *objects: object, plugin: Plugin | None = None, config: SchedulerConfig | None = None
) -> tuple[int, list[str]]:
    """Return how many victims the searches of a session tried, and who has victims after it."""
    scheduler = assemble(config or read_config(ACTIONS, "scheduler.yaml"))
    if plugin is not None:
        beside = everywhere([(plugin, 1)])
        places = {point: (*beside[point], *scheduler.plugins[point]) for point in beside}
        scheduler = replace(scheduler, plugins=places)
    session = scheduler.begin(a_snapshot(*objects), 1_000_000)
    tried = session.get(VICTIMS_TRIED)
    scheduler.conclude(session)
    served = [group.key for group in session.groups.values() if group.status.pledge.stands]
    return tried.victims, sorted(served)


def test_gangs_for_whole_nodes_try_no_victims_if_each_node_has_a_group_as_important() -> None:
    tried, served = decided(*a_cluster(peers_a_node=1), *gangs(1, 2, 3, 4, 5))
    assert (tried, served) == (0, [])


def test_one_place_too_few_is_left_out() -> None:
    """Each node keeps three peers, and has two places for pods of two cpus beside them."""
    tried, served = decided(*a_cluster(peers_a_node=3), *gangs(13, 14, cpu=2))
    assert (tried, served) == (0, [])


def test_a_gang_that_needs_all_places_is_served() -> None:
    tried, served = decided(*a_cluster(peers_a_node=3), *gangs(12, cpu=2))
    assert tried >= 24
    assert served == ["default/gang-0"]


def test_beside_hopeless_gangs_one_that_can_be_served_is_served() -> None:
    _, served = decided(*a_cluster(peers_a_node=3), *gangs(13, 14, 12, cpu=2))
    assert served == ["default/gang-2"]


def test_gangs_beyond_their_queues_limit_try_no_victims() -> None:
    """Of 48 cpus, 36 may leave; the queue may hold 48, though there are nodes for more."""
    world = a_cluster(peers_a_node=2, spare_nodes=20, capability={"cpu": 48})
    tried, served = decided(*world, *gangs(37, 38, cpu=1))
    assert (tried, served) == (0, [])
    _, served = decided(*world, *gangs(36, cpu=1))
    assert served == ["default/gang-0"]


def a_reserved_group(name: str, created: int, cpu: int, **template: object) -> PodGroup:
    group = a_group(
        name, created=created, tasks=(a_task(requests={"cpu": cpu}, **template),), **IMPORTANT
    )
    status = structs.replace(
        group.status,
        phase=PodGroupPhase.IN_QUEUE,
        reserved_at=900_000,
        in_queue_at=900_000,
        reservation=amounts(cpu=cpu),
        admission=1,
    )
    return structs.replace(group, status=status)


def test_behind_a_hopeless_reserved_group_one_that_can_be_served_is_served() -> None:
    """The queue may hold 10 cpus: 5 run, and both groups have reserved what they need."""
    peers = [a_running_group(f"peer-{k}", node="n1", **IMPORTANT) for k in range(4)]
    objects = [
        a_priority("high", 100),
        a_queue("q", capability={"cpu": 10}),
        a_node("n1", cpu=4, labels={"zone": "a"}),
        a_node("n2", cpu=4),
        *(one for group in peers for one in group),
        *a_running_group("low", node="n2", queue="q"),
        a_reserved_group("first", 1, cpu=1, node_selector={"zone": "a"}),
        a_reserved_group("second", 2, cpu=4),
    ]
    config = read_config(f"{ACTIONS}\novercommit: 2", "scheduler.yaml")
    _, served = decided(*objects, config=config)
    assert served == ["default/second"]


def test_gangs_beside_groups_that_may_run_for_a_while_try_no_victims() -> None:
    """All have run for 1,000 s, which `minRuntime` grants them."""
    for protected, expected in (("1000001ms", []), ("1000s", ["default/gang-0"])):
        config = read_config(f"{ACTIONS}\nminRuntime: {protected}", "scheduler.yaml")
        tried, served = decided(*a_cluster(peers_a_node=0), *gangs(1), config=config)
        assert served == expected
        assert bool(tried) == bool(expected)


def test_preemptors_of_many_queues_share_one_count_of_what_stays() -> None:
    """Each node has a group of a queue at its share; each queue wants whole nodes."""

    def cost_of(reclaiming: int) -> int:
        names = [f"n{place}" for place in range(20)]
        queues = [f"r{place}" for place in range(reclaiming)]
        reclaims = QueuePreemption(reclaim="Any")
        session = assemble(read_config("actions: [enqueue, allocate, reclaim]", "c.yaml"))
        objects: list[object] = [
            a_queue("peer", deserved=amounts(cpu=20)),
            a_queue("low"),
            *(a_queue(name, deserved=amounts(cpu=16), preemption=reclaims) for name in queues),
            *(a_node(name, cpu=8) for name in names),
            *(a_group(f"gang-{name}", 2, cpu=8, min_member=2, queue=name) for name in queues),
        ]
        for name in names:
            objects += a_running_group(f"{name}-peer", node=name, queue="peer")
            for place in range(7):
                objects += a_running_group(f"{name}-{place}", node=name, queue="low")
        decided, calls = counting_calls(lambda: session.decide(a_snapshot(*objects), 1_000_000))
        assert decided.get(VICTIMS_TRIED).victims == 0
        return calls

    # A count for each queue would visit the 160 groups twelve more times: 46,000 calls.
    assert cost_of(18) - cost_of(6) < 20_000


def test_groups_of_the_lowest_priority_do_not_each_look_at_all_that_run() -> None:
    """All have one priority, but there are priority classes; exclusive groups form no class."""

    def cost_of(waiting: int, running: int) -> int:
        ran = [a_running_group(f"run-{place}", queue="q") for place in range(running)]
        objects = [
            a_priority("high", 100),
            a_queue("q"),
            a_node("n1", cpu=running, memory=1_000),
            *(one for some in ran for one in some),
        ]
        for place in range(waiting):
            tasks = (a_task(requests={"cpu": 1, "memory": 1 + place}),)
            objects.append(a_group(f"wait-{place}", tasks=tasks, queue="q", exclusive=True))
        scheduler = assemble(read_config(ACTIONS, "scheduler.yaml"))
        _, calls = counting_calls(lambda: scheduler.decide(a_snapshot(*objects), 1_000_000))
        return calls

    few, many = (cost_of(30, running) - cost_of(10, running) for running in (20, 200))
    assert many < 1.5 * few


def a_running_elastic_group(name: str, pods: int, **spec: object) -> list[Any]:
    """Return a group of four pods and minMember 2, of which some run."""
    group, *running = a_running_group(name, pods, queue="q", min_member=2, **spec)
    tasks = (a_task(replicas=4),)
    return [structs.replace(group, spec=structs.replace(group.spec, tasks=tasks)), *running]


def test_only_pods_beyond_min_member_give_way_to_a_group_of_equal_priority() -> None:
    for running, expected in ((2, []), (3, ["default/gang-0"])):
        objects = [a_priority("high", 100), a_queue("q"), a_node("n1", cpu=running)]
        objects += a_running_elastic_group("wide", running, priority_class_name="high")
        tried, served = decided(*objects, *gangs(1, cpu=1))
        assert served == expected
        assert bool(tried) == bool(expected)


def test_elastic_groups_that_run_with_min_member_pods_are_not_searched_for_victims() -> None:
    def cost_of(waiting: int, running: int) -> int:
        objects = [a_priority("high", 100), a_queue("q")]
        objects.append(a_node("n1", cpu=2 * running, memory=1_000))
        for place in range(running):
            objects += a_running_elastic_group(f"wide-{place}", 2)
        for place in range(waiting):
            tasks = (a_task(replicas=4, requests={"cpu": 1, "memory": 1 + place}),)
            objects.append(a_group(f"wait-{place}", tasks=tasks, min_member=2, queue="q"))
        scheduler = assemble(read_config(ACTIONS, "scheduler.yaml"))
        _, calls = counting_calls(lambda: scheduler.decide(a_snapshot(*objects), 1_000_000))
        return calls

    few, many = (cost_of(30, running) - cost_of(10, running) for running in (10, 100))
    assert many < 1.5 * few


class Refuses:
    """A plugin that refuses all victims; with `lasts` it says that it always will."""

    name = "refuses"

    def __init__(self, *, lasts: bool) -> None:
        self.traits = PluginTraits(refusals_last=lasts)
        self.asked = 0

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool:
        self.asked += 1
        return False


def test_a_plugin_whose_refusals_last_is_asked_once_about_each_group() -> None:
    """Otherwise each preemptor asks again."""
    asked = {}
    for lasts in (True, False):
        plugin = Refuses(lasts=lasts)
        tried, served = decided(*a_cluster(peers_a_node=0), *gangs(1, 2, 3, 4, 5), plugin=plugin)
        assert (tried, served) == (0, [])
        asked[lasts] = plugin.asked
    assert asked[True] == 8 * NODES
    assert asked[False] == 5 * 8 * NODES


@pytest.mark.parametrize("seed", range(usually(6, 60)))
def test_no_search_is_left_out_that_would_find_victims(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_suffice = UpperBound.may_suffice

    def compared(
        session: Session,
        request: PreemptionRequest,
        queues: list[str],
        completing: list[str] | None = None,
        *,
        terms: SearchTerms = FIRST_SEARCH,
    ) -> Decision | None:
        needs = request.needs(session)
        is_left_out = (
            needs is not None
            and not request.needs_no_victims(session)
            and not may_suffice(
                session.get(UPPER_BOUND),
                session,
                request.preemptor,
                [*queues, *(completing or [])],
                needs,
            )
        )
        found = find_victims(session, request, queues, completing, terms=terms)
        assert found is None or not is_left_out, request.preemptor.key
        return found

    monkeypatch.setattr(UpperBound, "may_suffice", lambda *_: True)
    for module in (order, preemptors, reclaim):
        monkeypatch.setattr(module, "find_victims", compared)
    world = described(seed)
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    WorldRun(read_world(world.text, "a world"), scheduler).run(MOST_SESSIONS, bounded=True)


def a_gang_among_many(seed: int) -> list[object]:
    """Return nodes full of groups of lower priority that began at different instants, some of them
    on two nodes, and a gang for whole nodes or for a part of each.
    """
    dice = random.Random(seed)
    names = [f"n{place}" for place in range(dice.randint(2, 6))]
    free = dict.fromkeys(names, 8)
    found: list[object] = [a_priority("high", 100), a_queue("q")]
    found += [a_node(name, cpu=8) for name in names]
    while any(free.values()):
        name = f"low-{len(found)}"
        node = max(free, key=lambda one: free[one])
        cpu = dice.randint(1, min(4, free[node]))
        group, *pods = a_running_group(name, dice.choice((1, 1, 2)), node=node, cpu=cpu, queue="q")
        for pod in pods:
            there = [one for one, left in free.items() if left >= cpu]
            if there:
                node = dice.choice(there)
                free[node] -= cpu
                found.append(replaced(pod, node=node))
        began = dice.randint(0, 900_000)
        found.append(structs.replace(group, status=structs.replace(group.status, started_at=began)))
    size = dice.randint(1, len(names))
    return [*found, *gangs(size, cpu=dice.randint(4, 8))]


def replaced(pod: Pod, **status: Any) -> Pod:
    return structs.replace(pod, status=structs.replace(pod.status, **status))


def test_victims_on_other_nodes_are_given_back_at_once_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare with giving them back one by one, the last chosen first."""
    saved = 0
    at_once = search._SearchTrial._give_back_elsewhere
    for seed in range(usually(60, 2000)):
        world = a_gang_among_many(seed)
        asked = []
        found = []
        for give_back in (at_once, lambda *_: False):
            monkeypatch.setattr(search._SearchTrial, "_give_back_elsewhere", give_back)
            is_enough, calls = search._SearchTrial._is_enough, [0]

            def counted(trial: Any, calls: list[int] = calls, is_enough: Any = is_enough) -> bool:
                calls[0] += 1
                return bool(is_enough(trial))

            with monkeypatch.context() as patch:
                patch.setattr(search._SearchTrial, "_is_enough", counted)
                scheduler = assemble(read_config(ACTIONS, "scheduler.yaml"))
                session = scheduler.decide(a_snapshot(*world), 1_000_000)
            asked.append(calls[0])
            found.append(session.by_key["default/gang-0"].status.pledge)
        assert found[0] == found[1], seed
        saved += asked[1] - asked[0]
    assert saved > 0


@pytest.mark.parametrize("seed", range(usually(6, 60)))
def test_the_pods_that_fit_are_counted_as_they_would_be_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that wants more pods binds none on trial until all of them fit."""

    def compared(
        session: Session, group: GroupState, count: int
    ) -> tuple[Amounts, frozenset[str]] | None:
        found = short_of_extras(session, group, count)
        with Statement(session) as trial:
            bound, lacking = start_extras(trial, group, count)
            fitting = total(of_pod(pod.spec.requests) for pod in bound)
        assert found in (None, (fitting, lacking))
        assert found is None or len(bound) < count
        return found

    monkeypatch.setattr(preemptors, "short_of_extras", compared)
    world = described(seed)
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    WorldRun(read_world(world.text, "a world"), scheduler).run(MOST_SESSIONS, bounded=True)


def test_an_array_that_reclaims_its_share_binds_its_pods_on_trial_only_when_all_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of eight victims makes place for one pod; before, each was followed by a trial."""
    calls = []

    def counted(*arguments: Any, **options: Any) -> tuple[list[Pod], frozenset[str]]:
        calls.append(1)
        return start_extras(*arguments, **options)

    monkeypatch.setattr(preemptors, "start_extras", counted)
    session = assemble(read_config("actions: [enqueue, allocate, reclaim]", "c.yaml")).decide(
        a_snapshot(
            a_node("n1", cpu=16),
            a_queue("a", deserved=amounts(cpu=9), preemption=QueuePreemption(reclaim="Any")),
            a_queue("b", deserved=amounts(cpu=7)),
            *a_running_group("array", 1, queue="a", min_member=1, tasks=(a_task("w", 9),)),
            *(one for k in range(15) for one in a_running_group(f"b-{k:02}", queue="b")),
        ),
        1_000_000,
    )
    leaving = [one.key for one in session.groups.values() if one.queue == "b" and not one.reserved]
    assert len(leaving) == 8
    assert len(calls) < 8
