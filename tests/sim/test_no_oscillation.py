"""A long time with pods that end and are replaced: queues become even once, and stay even.

It is an hour of virtual time in a thorough run, and some 17 minutes in others. The first
convergence needs as many evictions as pods have to move; from then on a queue gets its share when
pods end.
"""

from __future__ import annotations

import pytest

from tests.effort import sample, usually
from tests.sim.worlds import Manifest, evicted, group, node, outcome, priority, taker, timeline

HOUR_S = 3600
LONG_S = usually(1000, HOUR_S)


def an_array(name: str, of: str, runtime: str = "47s", cpu: int = 1, memory: int = 0) -> Manifest:
    """Return more pods than an hour is enough for."""
    template = {
        "requests": {"cpu": cpu, "memory": memory},
        "annotations": {"batchq/runtime": runtime},
        "terminationGrace": "5s",
    }
    tasks = [{"name": "t", "replicas": 1_000, "template": template}]
    return group(name, queue=of, minMember=1, tasks=tasks)


def gangs(prefix: str, of: str, runtime: str, pods: int) -> list[Manifest]:
    """Return more gangs than an hour is enough for."""
    return [
        group(f"{prefix}-{number}", pods, 1, queue=of, runtime=runtime, grace="5s")
        for number in range(200)
    ]


def arrives(at_s: int, *manifests: Manifest) -> Manifest:
    return timeline(*({"at": f"{at_s}s", "apply": one} for one in manifests))


A, B, C = taker("a"), taker("b"), taker("c")
#: One array holds everything when the other comes.
BOTH = (an_array("one", "a"), arrives(60, an_array("two", "b", "31s")))
HIGH = [
    group(f"high-{number}", 3, 1, queue="a", runtime="50s", priorityClassName="high")
    for number in range(3)
]

#: The world, (instant, pods) of each session with evictions, and enough sessions for an hour.
WORLDS: dict[str, tuple[list[Manifest], list[tuple[int, int]], int]] = {
    "two equal queues: half of eight": (
        [node("n1", 8), A, B, *BOTH],
        [(60, 1), (65, 3)],
        620,
    ),
    "a seventh cpu, half of which either queue deserves, stays where it is": (
        [node("n1", 7), A, B, *BOTH],
        [(60, 1), (65, 2)],
        620,
    ),
    "weights of one and three": (
        [node("n1", 8), taker("a", weight=1), taker("b", weight=3), *BOTH],
        [(60, 1), (65, 5)],
        620,
    ),
    "a third queue reclaims a pod from each of the two above their third": (
        [node("n1", 8), A, B, C, *BOTH, arrives(200, an_array("three", "c", "23s"))],
        [(60, 1), (65, 3), (200, 1), (205, 1)],
        1170,
    ),
    "two queues below one parent get the half of it that they deserve": (
        [
            *(node("n1", 8), taker("left"), taker("right")),
            *(taker("a", parent="left"), taker("b", parent="left"), taker("c", parent="right")),
            *(an_array("one", "a"), an_array("two", "b", "31s")),
            arrives(200, an_array("three", "c", "23s")),
        ],
        [(200, 1), (205, 3)],
        960,
    ),
    "queues of pods of different shapes are even in what each lacks": (
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
    "gangs on small nodes, where places for single pods do not fit a gang": (
        [node("n1", 3), node("n2", 3), A, B, *gangs("gang", "a", "47s", 2), an_array("two", "b")],
        [],
        250,
    ),
    "each more important gang costs only what it needs": (
        [
            *(node("n1", 8), priority("high", 10), A, B),
            *(an_array("one", "a"), an_array("two", "b", "31s")),
            *(arrives(at_s, gang) for at_s, gang in zip((300, 600, 900), HIGH, strict=True)),
        ],
        [(300, 3), (600, 3), (900, 3)],
        540,
    ),
}


@pytest.mark.parametrize("name", sample(WORLDS, 3))
def test_no_pod_is_evicted_once_the_queues_are_even(name: str) -> None:
    world, expected, sessions = WORLDS[name]
    came = outcome(*world, cycles=sessions * LONG_S // HOUR_S)
    assert any(cycle.bound for cycle in came.cycles if cycle.time >= LONG_S), (
        "the run ended too early"
    )
    assert [(time, len(pods)) for time, pods in evicted(came)] == expected
