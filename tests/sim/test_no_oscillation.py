"""An hour of virtual time with pods that end and are replaced: queues get even once, and stay so.

The first convergence needs as many evictions as pods have to move; from then on whatever a queue is
to have comes to it by itself, when pods end.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import Manifest, evicted, group, node, outcome, priority, taker, timeline

HOUR_S = 3600


def an_array(name: str, of: str, runtime: str = "47s", cpu: int = 1, memory: int = 0) -> Manifest:
    """More pods than an hour is enough for."""
    template = {
        "requests": {"cpu": cpu, "memory": memory},
        "annotations": {"batchq/runtime": runtime},
        "terminationGrace": "5s",
    }
    tasks = [{"name": "t", "replicas": 1_000, "template": template}]
    return group(name, queue=of, minMember=1, tasks=tasks)


def gangs(prefix: str, of: str, runtime: str, pods: int) -> list[Manifest]:
    """More gangs than an hour is enough for."""
    return [
        group(f"{prefix}-{number}", pods, 1, queue=of, runtime=runtime, grace="5s")
        for number in range(200)
    ]


def arrives(at_s: int, *manifests: Manifest) -> Manifest:
    return timeline(*({"at": f"{at_s}s", "apply": one} for one in manifests))


A, B, C = taker("a"), taker("b"), taker("c")
#: One array has everything, when the other comes.
BOTH = (an_array("one", "a"), arrives(60, an_array("two", "b", "31s")))
HIGH = [
    group(f"high-{number}", 3, 1, queue="a", runtime="50s", priorityClassName="high")
    for number in range(3)
]

#: What there is, (instant, pods) of each session that evicts any, and sessions enough for an hour.
WORLDS: dict[str, tuple[list[Manifest], list[tuple[int, int]], int]] = {
    "two equal queues: half of eight": (
        [node("n1", 8), A, B, *BOTH],
        [(60, 1), (65, 3)],
        620,
    ),
    "a seventh cpu, half of which either deserves, stays where it is": (
        [node("n1", 7), A, B, *BOTH],
        [(60, 1), (65, 2)],
        620,
    ),
    "weights of one and three": (
        [node("n1", 8), taker("a", weight=1), taker("b", weight=3), *BOTH],
        [(60, 1), (65, 5)],
        620,
    ),
    "a third queue takes a pod from each of the two that have more than their third": (
        [node("n1", 8), A, B, C, *BOTH, arrives(200, an_array("three", "c", "23s"))],
        [(60, 1), (65, 3), (200, 1), (205, 1)],
        1170,
    ),
    "two queues below one get the half of it that they deserve": (
        [
            *(node("n1", 8), taker("left"), taker("right")),
            *(taker("a", parent="left"), taker("b", parent="left"), taker("c", parent="right")),
            *(an_array("one", "a"), an_array("two", "b", "31s")),
            arrives(200, an_array("three", "c", "23s")),
        ],
        [(200, 1), (205, 3)],
        960,
    ),
    "queues of pods of different forms are even in what each lacks": (
        [
            *(node("n1", 8, memory=8), A, B, an_array("one", "a", cpu=2, memory=1)),
            arrives(60, an_array("two", "b", "31s", cpu=1, memory=2)),
        ],
        [(60, 1)],
        400,
    ),
    "gangs of three beside an array, on a cluster that neither divides evenly": (
        [node("n1", 8), A, B, *gangs("gang", "a", "47s", 3), an_array("two", "b", "31s")],
        [],
        480,
    ),
    "gangs on small nodes, where a pod's room here and there is no room for a gang": (
        [node("n1", 3), node("n2", 3), A, B, *gangs("gang", "a", "47s", 2), an_array("two", "b")],
        [],
        250,
    ),
    "each more important gang costs what it needs, and no more": (
        [
            *(node("n1", 8), priority("high", 10), A, B),
            *(an_array("one", "a"), an_array("two", "b", "31s")),
            *(arrives(at_s, gang) for at_s, gang in zip((600, 1200, 1800), HIGH, strict=True)),
        ],
        [(600, 3), (1200, 3), (1800, 3)],
        540,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_within_an_hour_nobody_is_evicted_but_for(name: str) -> None:
    world, expected, sessions = WORLDS[name]
    came = outcome(*world, cycles=sessions)
    assert any(cycle.bound for cycle in came.cycles if cycle.time >= HOUR_S), "the hour was over"
    assert [(time, len(pods)) for time, pods in evicted(came)] == expected
