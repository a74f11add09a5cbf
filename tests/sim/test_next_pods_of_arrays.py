"""A running array without pods on nodes is in line with the first of its pods that fits empty
nodes; as in a gang, pods that fit nowhere are left out.
"""

from __future__ import annotations

from tests.sim.worlds import Manifest, applies, group, node, outcome, queue, starts, timeline


def task(name: str, pods: int, cpu: int) -> Manifest:
    """Return a task of pods that run for 20 s."""
    template = {"requests": {"cpu": cpu}, "annotations": {"batchq/runtime": "20s"}}
    return {"name": name, "replicas": pods, "template": template}


def test_an_array_continues_past_many_pods_that_fit_nowhere_before_later_groups() -> None:
    came = outcome(
        node("n1", 2),
        queue("a", strategy={"type": "StrictFIFO"}),
        queue("b", strategy={"type": "StrictFIFO"}),
        group("array", tasks=[task("large", 4, 4), task("small", 2, 2)], minMember=1, queue="a"),
        group("after", 1, 2, runtime="60s", queue="b"),
    )
    assert starts(came) == {"array-small-0": 0, "array-small-1": 20, "after-t-0": 40}


def test_a_short_group_passes_an_array_whose_next_pod_waits_for_a_known_end() -> None:
    """The pod of 2 cpus starts when `busy` ends; that of 8, which comes before it, never does."""
    came = outcome(
        node("n1", 4),
        queue("a", strategy={"type": "Backfill"}),
        group("busy", 1, 3, runtime="60s", walltime="60s", queue="a", created=0),
        group(
            "array",
            tasks=[task("large", 1, 8), task("small", 1, 1), task("middle", 1, 2)],
            minMember=1,
            walltime="20s",
            queue="a",
            created=0,
        ),
        group("short", 1, 1, runtime="10s", walltime="10s", queue="a", created=1),
    )
    assert starts(came) == {
        "busy-t-0": 0,
        "array-small-0": 0,
        "short-t-0": 20,
        "array-middle-0": 60,
    }


def test_a_next_pod_for_which_guarantees_leave_too_little_delays_no_group() -> None:
    """`sure` is guaranteed one of four cpus: the pod of four never starts."""
    came = outcome(
        node("n1", 4),
        queue("sure", guarantee={"cpu": 1}),
        queue("a", strategy={"type": "StrictFIFO"}),
        queue("b"),
        group("array", tasks=[task("small", 1, 1), task("large", 1, 4)], minMember=1, queue="a"),
        timeline(applies(30, group("after", 1, 2, runtime="10s", queue="b"))),
    )
    assert starts(came) == {"array-small-0": 0, "after-t-0": 30}
