"""Evictions that went wrong once, each in the smallest world that showed it."""

from __future__ import annotations

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from tests.sim.worlds import (
    Manifest,
    admitted,
    bound,
    evicted,
    group,
    node,
    outcome,
    phases,
    pod,
    priority,
    requeued,
    taker,
    timeline,
)
from tests.yaml_text import text_of_all

ALL = "actions: [enqueue, allocate, reclaim, preempt]\n"


def running(
    name: str, pods: int, on: str, *, of: int | None = None, **more: object
) -> list[Manifest]:
    """Return a group whose first pods run on a node; `of` is the number of its pods."""
    status = {"phase": "Running", "startedAt": 0}
    return [
        group(name, of or pods, status=status, **more),  # type: ignore[arg-type]
        *(
            pod(f"{name}-t-{index}", name, index, phase="Running", node=on, startedAt=0)
            for index in range(pods)
        ),
    ]


def pledged(*manifests: Manifest, config: str = ALL) -> list[dict[str, list[str]]]:
    return [c.pledged for c in outcome(*manifests, config=config).cycles if c.pledged]


def test_a_group_evicted_whole_pledges_also_its_pods_that_were_chosen_earlier() -> None:
    world = [
        node("n1", 2),
        priority("high", 10),
        *running("victim", 2, "n1", grace="5s", minMember=1),
        group("preemptor", 2, priorityClassName="high"),
    ]
    assert pledged(*world) == [{"default/preemptor": ["default/victim-t-1", "default/victim-t-0"]}]
    assert phases(outcome(*world, config=ALL))["preemptor"] == "Running"


def test_without_enqueue_a_preemptor_keeps_its_pledge_until_its_victims_end() -> None:
    world = [
        node("n1", 3),
        priority("high", 10),
        *running("victim", 3, "n1", grace="5s"),
        group("preemptor", 1, priorityClassName="high", status={"phase": "InQueue"}),
    ]
    result = outcome(*world, config="actions: [allocate, preempt]\n")
    assert [len(cycle.pledged) for cycle in result.cycles if cycle.pledged] == [1]
    assert evicted(result)[0][0] == 0
    assert (5, {"default/preemptor-t-0": "n1"}) in bound(result)


def test_a_victim_is_not_readmitted_on_pods_pledged_to_a_running_group() -> None:
    world = [
        node("n1", 6),
        taker("lender"),
        taker("borrower", weight=0),
        *running("preemptor", 1, "n1", of=6, queue="lender", minMember=1),
        *running("victim", 5, "n1", queue="borrower", grace="30s"),
    ]
    result = outcome(*world, config=ALL, cycles=6)
    assert requeued(result) == [(0, [("default/victim", "Reclaimed")])]
    assert [time for time, groups in admitted(result) if "default/victim" in groups] == []


def test_reclaim_for_a_second_queue_does_not_take_a_queue_below_its_guarantee() -> None:
    world = [
        node("n1", 10),
        taker("giver", guarantee={"cpu": 4}, deserved={"cpu": 4}),
        taker("one", deserved={"cpu": 3}),
        taker("other", deserved={"cpu": 3}),
        *running("first", 4, "n1", queue="giver", grace="30s"),
        *running("second", 6, "n1", queue="giver", grace="30s"),
        group("a", 3, queue="one"),
        group("b", 3, queue="other", created=1),
    ]
    result = outcome(*world, config=ALL, cycles=1)
    assert len(requeued(result)) == 1
    assert len(requeued(result)[0][1]) == 1


def test_pods_with_a_pledge_come_before_the_reservation_of_a_strict_head() -> None:
    world = [
        node("n1", 6),
        taker("lender"),
        taker("borrower"),
        taker("strict", strategy={"type": "StrictFIFO"}),
        *running("preemptor", 1, "n1", of=2, queue="lender", minMember=1, grace="0s"),
        *running("victim", 5, "n1", queue="borrower", minMember=1, grace="5s"),
        timeline({"at": "2s", "apply": group("head", 4, queue="strict", created=2)}),
    ]
    result = outcome(*world, config=ALL, cycles=8)
    assert (5, {"default/preemptor-t-1": "n1"}) in [
        (time, {pod: on for pod, on in pods.items() if "preemptor" in pod})
        for time, pods in bound(result)
    ]


def test_reserved_capacity_is_not_given_to_pods_beyond_the_reservation() -> None:
    small = {"name": "small", "replicas": 2, "template": {"requests": {"cpu": 1}}}
    large = {"name": "large", "replicas": 1, "template": {"requests": {"cpu": 2}}}
    world = [
        node("n1", 5),
        priority("high", 10),
        taker("lender", weight=3, preemption={"borrowing": 5}),
        taker("borrower", weight=0),
        *running("victim", 2, "n1", queue="borrower", minMember=1, grace="5s"),
        group(
            "preemptor",
            tasks=[small, large],
            queue="lender",
            minMember=1,
            minResources={"cpu": 3},
            priorityClassName="high",
        ),
    ]
    scheduler = assemble(read_config(ALL, "config"))
    stage = WorldRun(read_world(text_of_all(world), "world"), scheduler)
    result = stage.run(1, bounded=False).outcome
    assert [time for time, _ in evicted(result)] == [0]
    assert stage.store.ledger()["cluster"]["cpu"] == 5000
