"""`fairness.order: usage`: the queue that has used least of its share over time is served first."""

from __future__ import annotations

import pytest

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.scheduler.timers import next_due_at
from tests.builders import a_group, a_node, a_queue, a_snapshot
from tests.sim.worlds import Manifest, applies, group, node, outcome, queue, starts, timeline

USAGE = "fairness: {order: usage}"


def filled_by(*queues: str) -> list[Manifest]:
    """Return a node of four cpus, filled for 100 s by one job of each of these queues."""
    jobs = [group(f"first-{k}", runtime="100s", queue=name) for k, name in enumerate(queues)]
    return [node("n1", 4), *jobs]


def four_each(*queues: str) -> Manifest:
    """Return what comes at 50 s: four jobs of 100 s in each queue, one of each queue in turn."""
    return comes(
        50, *(group(f"{one}-{k}", runtime="100s", queue=one) for k in range(4) for one in queues)
    )


def comes(second: int, *groups: Manifest) -> Manifest:
    """Return a timeline in which these groups come at a second, in this order."""
    return timeline(*(applies(second, one) for one in groups))


def at(second: int, begun: dict[str, int]) -> list[str]:
    """Return the jobs that start at a second, by name."""
    return sorted(name.removesuffix("-t-0") for name, when in begun.items() if when == second)


def test_by_default_two_queues_share_what_is_free_whatever_they_have_used() -> None:
    world = [queue("a"), queue("b"), *filled_by("b", "b", "b", "b"), four_each("a", "b")]
    assert at(100, starts(outcome(*world))) == ["a-0", "a-1", "b-0", "b-1"]


def test_the_queue_that_has_used_less_goes_first_until_it_has_caught_up() -> None:
    world = [queue("a"), queue("b"), *filled_by("b", "b", "b", "b"), four_each("a", "b")]
    begun = starts(outcome(*world, config=USAGE))
    assert at(100, begun) == ["a-0", "a-1", "a-2", "a-3"]
    assert at(200, begun) == ["b-0", "b-1", "b-2", "b-3"]


def test_a_queue_of_three_times_the_weight_may_use_three_times_as_much() -> None:
    """After three jobs of `a` and one of `b`, both have used as much of their shares."""
    world = [queue("a", weight=3), queue("b"), *filled_by("a", "a", "a", "b"), four_each("b", "a")]
    begun = starts(outcome(*world, config=USAGE))
    assert at(100, begun) == ["a-0", "a-1", "a-2", "b-0"]


def test_a_queue_may_use_what_it_states_to_deserve() -> None:
    """`a` has used two thirds of the three cpus that it deserves, and `b` twice its only one."""
    world = [queue("a", deserved={"cpu": 3}), queue("b", deserved={"cpu": 1})]
    world += [*filled_by("a", "a", "b", "b"), four_each("b", "a")]
    assert at(100, starts(outcome(*world, config=USAGE))) == ["a-0", "a-1", "a-2", "a-3"]


def test_use_of_what_a_queue_does_not_deserve_counts_as_a_part_of_the_cluster() -> None:
    """`b` deserves no cpu and has used one of four; `c`, as little entitled, has used three."""
    world = [queue("a", deserved={"cpu": 4}), queue("b"), queue("c")]
    world += [*filled_by("b", "c", "c", "c"), four_each("c", "b")]
    assert at(100, starts(outcome(*world, config=USAGE))) == ["b-0", "b-1", "b-2", "b-3"]


def test_use_of_what_no_node_offers_any_more_is_left_out() -> None:
    """`b` has used the gpu of a node that is gone, and less of the cpus than `a`."""
    on_gpu = {"requests": {"gpu": 1}, "annotations": {"batchq/runtime": "40s"}}
    world = [queue("a"), queue("b"), node("n1", 4), node("n2", 0, gpu=1)]
    world += [group("gpu", queue="b", tasks=[{"name": "t", "replicas": 1, "template": on_gpu}])]
    world += [group(f"first-{k}", runtime="100s", queue=one) for k, one in enumerate("aaab")]
    steps = timeline({"at": "45s", "delete": "Node/n2"}, *four_each("b", "a")["spec"])
    assert at(100, starts(outcome(*world, steps, config=USAGE))) == ["b-0", "b-1", "b-2", "b-3"]


def test_usage_is_compared_level_by_level() -> None:
    """`a1` has used nothing, but the queue above it has used more than `b`, above `b1`."""
    world = [queue("a"), queue("b"), queue("a1", parent="a"), queue("a2", parent="a")]
    world += [queue("b1", parent="b"), *filled_by("a2", "a2", "a2", "b1"), four_each("a1", "b1")]
    assert at(100, starts(outcome(*world, config=USAGE))) == ["b1-0", "b1-1", "b1-2", "b1-3"]


def test_a_queue_with_little_to_do_keeps_its_share() -> None:
    """Two of four jobs were those of `b`, which is its half, though it has one more job only."""
    many = [group(f"a-{k}", runtime="100s", queue="a") for k in range(8)]
    one = comes(50, *many, group("b-0", runtime="100s", queue="b"))
    world = [queue("a"), queue("b"), *filled_by("a", "a", "b", "b"), one]
    assert at(100, starts(outcome(*world, config=USAGE))) == ["a-0", "a-1", "a-2", "b-0"]


def test_old_usage_counts_less() -> None:
    """`b` has used four cpus for 100 s, ten hours ago; `a` has just used one for 200 s."""
    ten_hours = 36_000
    late = timeline(
        applies(ten_hours, group("a-first", runtime="200s", queue="a")),
        applies(ten_hours + 5, group("a-0", 1, 4, runtime="9s", queue="a")),
        applies(ten_hours + 5, group("b-0", 1, 4, runtime="9s", queue="b")),
    )
    world = [queue("a"), queue("b"), *filled_by("b", "b", "b", "b"), late]
    week = starts(outcome(*world, config=USAGE))
    assert at(ten_hours + 200, week) == ["a-0"]
    hour = starts(outcome(*world, config="fairness: {order: usage, halfLife: 1h}"))
    assert at(ten_hours + 200, hour) == ["b-0"]


@pytest.mark.parametrize("order", ["current", "usage"])
def test_reclaim_gives_a_queue_what_it_deserves_now_in_either_order(order: str) -> None:
    """`a` gets its half back at once, and no more, although it has used nothing."""
    world = [queue("a", preemption={"reclaim": "Any"}), queue("b"), *filled_by("b", "b", "b", "b")]
    begun = starts(outcome(*world, four_each("a", "b"), config=f"fairness: {{order: {order}}}"))
    assert len(at(50, begun)) + len(at(80, begun)) == 2


def test_the_order_follows_usage_while_nothing_else_happens() -> None:
    """A session runs when usage counts anew, once a minute, and only if two queues wait."""
    waits = [a_group(one, cpu=8, queue=one) for one in ("a", "b")]
    scheduler = assemble(read_config(USAGE, "scheduler.yaml"))
    queues = (a_node(cpu=4), a_queue("a"), a_queue("b"))
    alone = scheduler.decide(a_snapshot(*queues, waits[0]), 90_000)
    assert next_due_at(alone) is None
    both = scheduler.without_memory().decide(a_snapshot(*queues, *waits), 90_000)
    assert next_due_at(both) == 120_000
