"""A head reservation binds only the groups that would delay the head, of any queue."""

from __future__ import annotations

from typing import Any

from tests.sim.worlds import Manifest, group, node, outcome, phases, pod, queue, starts


def wide_waits_until_100() -> list[Manifest]:
    """One of four cpus is free until 100; then the head of `a`, which asks for four, starts."""
    return [
        node("n1", 4),
        queue("a", strategy={"type": "Backfill"}, deserved={"cpu": 4}),
        queue("b", strategy={"type": "Backfill"}),
        *running_until_100("busy", 3),
        group("wide", 4, runtime="10s", walltime="10s", queue="a", created=0),
    ]


def running_until_100(name: str, pods: int) -> list[Manifest]:
    status: dict[str, Any] = {"phase": "Running", "startedAt": 5}
    return [
        group(name, pods, runtime="100s", walltime="100s", queue="a", status=status),
        *(pod(f"{name}-t-{k}", name, k, node="n1", **status) for k in range(pods)),
    ]


def test_a_head_passes_another_queues_reservation_that_it_does_not_delay() -> None:
    """`wide` waits for 100; a group that ends at 50 delays nothing, although it is a head, too."""
    came = outcome(
        *wide_waits_until_100(),
        group("short", 1, runtime="50s", walltime="50s", queue="b", created=2),
    )
    begun = starts(came)
    assert begun["wide-t-0"] == 100
    assert begun["short-t-0"] == 0
    assert set(phases(came).values()) == {"Completed"}


def test_a_short_group_passes_a_long_head_of_its_queue_that_waits_for_another_queue() -> None:
    """`long` waits until `wide` has ended, at 110: a group that ends at 50 delays neither of
    them.
    """
    came = outcome(
        *wide_waits_until_100(),
        group("long", 1, runtime="500s", walltime="500s", queue="b", created=1),
        group("short", 1, runtime="50s", walltime="50s", queue="b", created=2),
    )
    begun = starts(came)
    assert begun["short-t-0"] == 0
    assert begun["wide-t-0"] == 100
    assert begun["long-t-0"] == 110
    assert set(phases(came).values()) == {"Completed"}


def test_no_group_passes_a_head_that_waits_for_another_queue_if_it_would_delay_either() -> None:
    """A group that ends at 105 would delay `wide`, and so `long` behind it."""
    came = outcome(
        *wide_waits_until_100(),
        group("long", 1, runtime="500s", walltime="500s", queue="b", created=1),
        group("later", 1, runtime="105s", walltime="105s", queue="b", created=2),
    )
    begun = starts(came)
    assert begun["wide-t-0"] == 100
    assert begun["long-t-0"] == 110
    assert begun["later-t-0"] == 110


def test_pods_of_an_array_pass_another_queues_reservation_that_they_do_not_delay() -> None:
    """Three of six cpus are free until 100: each pod ends at 50, before `wide` needs them all."""
    came = outcome(
        node("n1", 6),
        queue("a", strategy={"type": "Backfill"}, deserved={"cpu": 6}),
        queue("b"),
        *running_until_100("busy", 3),
        group("wide", 6, runtime="10s", walltime="10s", queue="a", created=0),
        group("array", 3, runtime="50s", walltime="50s", queue="b", minMember=1, created=2),
    )
    begun = starts(came)
    assert [begun[f"array-t-{k}"] for k in range(3)] == [0, 0, 0]
    assert begun["wide-t-0"] == 100


def test_a_pod_of_an_array_that_would_delay_another_queues_head_waits_for_it() -> None:
    """The first pod runs on beside `wide`, which needs the five other cpus from 100 to 110."""
    runs: dict[str, Any] = {"phase": "Running", "startedAt": 5}
    came = outcome(
        node("n1", 6),
        queue("a", strategy={"type": "Backfill"}, deserved={"cpu": 6}),
        queue("b"),
        *running_until_100("busy", 3),
        group("wide", 5, runtime="10s", walltime="10s", queue="a", created=0),
        group("array", 2, runtime="150s", walltime="150s", queue="b", minMember=1, status=runs),
        pod("array-t-0", "array", 0, node="n1", **runs),
    )
    begun = starts(came)
    assert (begun["wide-t-0"], begun["array-t-1"]) == (100, 110)


def test_pods_of_an_array_use_the_node_that_another_queues_head_does_not_wait_for() -> None:
    """`wide` will start on n1; the guaranteed cpus of n2 had one pod of `array` until then."""
    came = outcome(
        node("n1", 4),
        node("n2", 4),
        queue("a", strategy={"type": "Backfill"}, deserved={"cpu": 4}),
        queue("b", guarantee={"cpu": 4}, deserved={"cpu": 4}),
        *running_until_100("busy", 4),
        group("wide", 1, 4, runtime="10s", walltime="10s", queue="a", created=0),
        group("array", 4, runtime="500s", queue="b", minMember=1, created=2),
    )
    begun = starts(came)
    assert [begun[f"array-t-{k}"] for k in range(4)] == [0, 0, 0, 0]
    assert begun["wide-t-0"] == 100
