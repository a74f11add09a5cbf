"""The outcome, as `batchq simulate` prints it."""

from __future__ import annotations

import json

from batchq.lab.simulation.report import as_json, as_table
from tests.sim.worlds import cordoned, group, node, of, outcome, queue, timeline

WORLD = (node("n1", "1500m", memory="1Gi"), group("a"), group("b"))


def test_every_key_is_there_in_every_cycle() -> None:
    result = json.loads(as_json(outcome(*WORLD)))
    assert result["cycles"] == [
        {
            "time": 0,
            "reserved": ["default/a"],
            "admitted": ["default/a"],
            "requeued": [],
            "created": ["default/a-t-0"],
            "bound": {"default/a-t-0": "n1"},
            "evicted": [],
            "pledged": {},
            "finished": [],
        },
        *[
            {
                "time": 0,
                "reserved": [],
                "admitted": [],
                "requeued": [],
                "created": [],
                "bound": {},
                "evicted": [],
                "pledged": {},
                "finished": [],
            }
        ]
        * 2,
    ]


def test_groups_and_queues_have_every_key() -> None:
    result = json.loads(as_json(outcome(*WORLD)))
    assert result["podgroups"] == {
        "default/a": {
            "phase": "Running",
            "shown": "Running",
            "position": None,
            "reasons": [],
            "checks": {},
        },
        "default/b": {
            "phase": "Pending",
            "shown": "Pending",
            "position": 1,
            "reasons": [
                {
                    "reason": "WaitingForResources",
                    "message": "needs cpu 1, and the cluster has 500m free (1 of 1500m in use)",
                }
            ],
            "checks": {},
        },
    }
    assert result["queues"] == {
        "default": {
            "deserved": {"cpu": "1500m", "memory": "0"},
            "allocated": {"cpu": "1", "memory": "0", "pods": "1"},
            "reserved": {"cpu": "0", "memory": "0"},
            "share": 0.666667,
        }
    }


def test_reserved_and_allocated_amounts_are_reported_separately() -> None:
    result = outcome(
        *(node("n1", 2), node("n2", 2), cordoned("n3", 3)),
        group("a", 1, cpu=3, minResources={"gpu": 0}),
        config="overcommit: 2",
        cycles=1,
    )
    stands = result.queues["default"]
    assert stands.reserved == {"cpu": "3", "pods": "1"}
    assert stands.allocated == {"cpu": "0"}


def test_weights_divide_the_cluster_if_all_queues_want_it() -> None:
    came = outcome(
        node("n1", 6),
        queue("one", weight=1),
        queue("two", weight=2),
        group("a", 9, minMember=1, queue="one"),
        group("b", 9, minMember=1, queue="two"),
    )
    assert {name: item.deserved["cpu"] for name, item in came.queues.items()} == {
        "default": "0",
        "one": "2",
        "two": "4",
    }
    assert {name: item.allocated["cpu"] for name, item in came.queues.items()} == {
        "default": "0",
        "one": "2",
        "two": "4",
    }


def test_a_queue_that_holds_and_deserves_nothing_has_an_infinite_share() -> None:
    came = outcome(node("n1", 1), queue("idle", weight=0), group("a", queue="idle"))
    assert came.queues["idle"].share == "inf"


def test_positions_count_from_one_in_each_queue() -> None:
    came = outcome(
        queue("q"), group("a"), group("b"), group("c", queue="q"), group("d", suspend=True)
    )
    assert [of(came, name).position for name in "abcd"] == [1, 2, 1, 3]


def test_cycles_stops_after_this_many_sessions_with_their_intents_applied() -> None:
    world = (node("n1", 1), group("a", runtime="5s"))
    one = outcome(*world, cycles=1)
    assert len(one.cycles) == 1
    assert of(one, "a").phase == "InQueue"
    assert one.queues["default"].allocated["cpu"] == "1"
    assert len(outcome(*world, cycles=4).cycles) == 4


def test_cycles_ends_early_when_nothing_is_due() -> None:
    world = (node("n1", 1), group("a", runtime="5s"))
    assert len(outcome(*world, cycles=500).cycles) == len(outcome(*world).cycles) == 5


def test_a_world_that_never_settles_ends_after_a_thousand_sessions() -> None:
    # With overcommit, groups are admitted without a look at nodes.
    came = outcome(node("n1", 2), cordoned("n2", 3), group("a", cpu=3), config="overcommit: 2")
    assert len(came.cycles) == 1000


def test_a_requeued_group_says_why_it_waits() -> None:
    came = outcome(
        node("n1", 1), group("a"), timeline({"at": "5s", "suspend": "default/a"}), cycles=4
    )
    assert [reason.reason for reason in of(came, "a").reasons] == ["Suspended"]


def test_a_group_that_no_session_has_evaluated_since_says_so() -> None:
    came = outcome(
        node("n1", 1),
        cordoned("n2", 2),
        group("a", cpu=2),
        config="{backoffFirst: 1ms, overcommit: 2}",
        cycles=2,
    )
    assert [reason.reason for reason in of(came, "a").reasons] == ["BackingOff"]


def test_the_table_says_the_same_for_people() -> None:
    why = "needs cpu 1, and the cluster has 500m free (1 of 1500m in use)"
    assert as_table(outcome(*WORLD)).splitlines() == [
        "TIME  WHAT     WHO",
        "0s    InQueue  default/a",
        "0s    bound    default/a-t-0 to n1",
        "",
        "PODGROUP   PHASE    POSITION  REASON",
        "default/a  Running  -         -",
        f"default/b  Pending  1         WaitingForResources: {why}",
        "",
        "QUEUE    SHARE     ALLOCATED      RESERVED  DESERVED",
        "default  0.666667  cpu 1, pods 1  -         cpu 1500m",
        "",
        "3 sessions, the last at 0s",
    ]


def test_the_table_has_a_dash_for_the_share_of_a_queue_that_holds_nothing() -> None:
    came = outcome(node("n1"), queue("idle"), queue("owed", deserved={"cpu": 2}))
    rows = [line.split() for line in as_table(came).splitlines() if line[:4] in ("idle", "owed")]
    assert [row[:2] for row in rows] == [["idle", "-"], ["owed", "-"]]
    assert (came.queues["idle"].share, came.queues["owed"].share) == (1.0, 0.0)
