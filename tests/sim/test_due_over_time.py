"""A head that asks for more than its queue deserves, once its queue has used less than its share
over time.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import Manifest, applies, group, node, outcome, queue, starts, timeline

ADMIT = "actions: [enqueue, allocate, backfill]"


def staggered(strategy: str, *, deserved: int = 4) -> list[Manifest]:
    """Return eight cpus kept full by jobs of 40 s. One job ends every 5 s, and at 5 s `wide` comes,
    which asks for six cpus.
    """
    first = [group(f"b-{k:03}", runtime=f"{5 * k + 5}s", queue="b", created=0) for k in range(8)]
    rest = [group(f"b-{k:03}", runtime="40s", queue="b", created=0) for k in range(8, 60)]
    wide = group("wide", 1, 6, runtime="20s", walltime="20s", queue="a")
    return [
        node("n1", 8),
        queue("a", strategy={"type": strategy}, deserved={"cpu": deserved}),
        queue("b", deserved={"cpu": 8 - deserved}),
        *first,
        *rest,
        timeline(applies(5, wide)),
    ]


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_a_head_above_its_share_starts_once_its_queue_has_used_less_than_its_due(
    strategy: str,
) -> None:
    begun = starts(outcome(*staggered(strategy), config=ADMIT))
    assert begun["wide-t-0"] == 35


def test_without_a_half_life_the_head_waits_until_enough_is_free() -> None:
    begun = starts(
        outcome(*staggered("StrictFIFO"), config=f"{ADMIT}\nfairness: {{halfLife: off}}")
    )
    assert begun["wide-t-0"] > 250


def test_a_queue_that_deserves_nothing_has_no_head_reservation() -> None:
    begun = starts(outcome(*staggered("StrictFIFO", deserved=0), config=ADMIT))
    assert begun["wide-t-0"] > 250


def test_two_heads_above_their_deserved_shares_get_reservations_one_at_a_time() -> None:
    """Each asks for six of eight cpus; the second begins when the first has ended."""
    world = [one for one in staggered("StrictFIFO", deserved=2) if one["kind"] != "Timeline"]
    world = [one for one in world if one["metadata"]["name"] != "b"]
    world += [
        queue("b", deserved={"cpu": 4}),
        queue("c", strategy={"type": "StrictFIFO"}, deserved={"cpu": 2}),
        timeline(
            applies(5, group("wide-a", 1, 6, runtime="20s", queue="a")),
            applies(5, group("wide-c", 1, 6, runtime="20s", queue="c")),
        ),
    ]
    begun = starts(outcome(*world, config=ADMIT))
    assert begun["wide-a-t-0"] == 35
    assert begun["wide-c-t-0"] == 55


def test_reclaim_takes_nothing_that_is_idle_for_such_a_head() -> None:
    """At 12 s one of four cpus is idle for `wide`, and `b` holds 7 and deserves 2."""
    world = [one for one in staggered("StrictFIFO", deserved=2) if one["kind"] != "Timeline"]
    world = [one for one in world if one["metadata"]["name"] != "b"]
    world += [
        queue("b", deserved={"cpu": 2}),
        queue("c", deserved={"cpu": 4}, preemption={"reclaim": "Any"}),
        timeline(
            applies(5, group("wide", 1, 4, runtime="20s", queue="a")),
            applies(12, group("small", runtime="20s", queue="c")),
        ),
    ]
    came = outcome(*world)
    assert [cycle.evicted for cycle in came.cycles if cycle.evicted] == []
    begun = starts(came)
    assert (begun["wide-t-0"], begun["small-t-0"]) == (30, 25)
