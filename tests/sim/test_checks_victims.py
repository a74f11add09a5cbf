"""Checks and victims, continued: rules checked again when all checks have passed, and reserved
groups as victims.
"""

from __future__ import annotations

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq.scheduler.transactions import transactions_of
from tests.sim.test_checks_preemption import ALL, CLASSES, HI, LATE, asks, play, runs
from tests.sim.worlds import (
    admitted,
    answers,
    evicted,
    group,
    manifest,
    node,
    of,
    pledged,
    queue,
    requeued,
    reserved,
    taker,
    timeline,
)
from tests.yaml_text import text_of_all


def test_a_preemption_that_becomes_necessary_during_the_checks_is_done_when_they_pass() -> None:
    """Another queue has got a guarantee meanwhile, which is not available any more."""
    came = play(
        node("n1", 4),
        asks("any"),
        queue("other"),
        *runs("low", 1, 2),
        group("hi", 1, 2, **HI),
        timeline(
            {"at": "3s", "apply": queue("other", guarantee={"cpu": 2})},
            answers(5, "hi", "any", "True"),
        ),
    )
    assert reserved(came)[0] == (0, ["default/hi"])
    assert evicted(came) == [(5, [("default/low-t-0", "Preempted")])]
    assert admitted(came) == [(15, ["default/hi"])]


def test_a_group_whose_checks_have_passed_is_requeued_if_it_may_preempt_no_group() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        queue("other"),
        *runs("top", 1, 2, priorityClassName="top"),
        group("hi", 1, 2, **HI),
        timeline(
            {"at": "3s", "apply": queue("other", guarantee={"cpu": 2})},
            answers(5, "hi", "any", "True"),
        ),
    )
    assert requeued(came) == [(5, [("default/hi", "CapacityCut")])]
    assert (evicted(came), admitted(came)) == ([], [])
    assert of(came, "hi").checks == {"any": "Unknown"}


def test_a_reserved_group_is_preempted_and_its_checks_are_cleared() -> None:
    came = play(
        node("n1", 4),
        asks("any", "late"),
        group("low", 1, 3, queue="q"),
        timeline(
            answers(1, "low", "any", "True"),
            {"at": "3s", "apply": group("hi", 1, 3, **HI)},
            answers(4, "hi", "late", "True"),
        ),
    )
    assert pledged(came)[0] == (3, {"default/hi": ["default/low"]})
    assert requeued(came) == [(4, [("default/low", "Preempted")])]
    assert of(came, "low").checks == {"any": "Unknown", "late": "Unknown"}
    assert admitted(came) == []


def test_a_reserved_victim_whose_checks_pass_first_keeps_its_reservation_and_waits() -> None:
    """Until the preemptor's checks are decided; then one of the two starts."""
    for answer, at, first in (("True", 9, "hi"), ("False", 9, "low")):
        came = play(
            node("n1", 4),
            asks("late"),
            group("low", 1, 3, queue="q"),
            timeline(
                {"at": "3s", "apply": group("hi", 1, 3, **HI)},
                answers(4, "low", "late", "True"),
                answers(at, "hi", "late", answer, "Reject" if answer == "False" else ""),
            ),
        )
        assert reserved(came)[:2] == [(0, ["default/low"]), (3, ["default/hi"])]
        assert [one for one in requeued(came) if one[0] < at] == []
        assert admitted(came) == [(at, [f"default/{first}"])]


def test_a_reserved_group_has_no_process_to_wait_for() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        group("low", 1, 3, queue="q"),
        timeline(
            answers(1, "low", "any", "Unknown"),
            {"at": "3s", "apply": group("hi", 1, 3, queue="q", priorityClassName="high")},
            answers(5, "hi", "any", "True"),
        ),
    )
    assert requeued(came) == [(3, [("default/low", "Preempted")])]
    assert reserved(came) == [(0, ["default/low"]), (3, ["default/hi"])]
    assert (evicted(came), admitted(came)) == ([], [(5, ["default/hi"])])


def test_a_reserved_group_of_another_queue_is_reclaimed_from() -> None:
    came = play(
        node("n1", 4),
        queue("b", deserved={"cpu": 1}, admissionChecks=["any"]),
        taker("a", deserved={"cpu": 3}),
        group("borrows", 1, 3, queue="b"),
        timeline({"at": "3s", "apply": group("in", 1, 3, queue="a", runtime="1s")}),
    )
    assert reserved(came)[0] == (0, ["default/borrows"])
    assert requeued(came) == [(3, [("default/borrows", "Reclaimed")])]
    assert admitted(came) == [(3, ["default/in"])]


def test_reserved_groups_after_an_eviction_are_no_more_than_fit_together() -> None:
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("low", 1, 4),
        group("hi1", 1, 2, **HI),
        group("hi2", 1, 2, **HI),
        group("hi3", 1, 2, **HI),
    )
    assert (reserved(came), evicted(came)) == ([(0, ["default/hi1"])], [])


def test_a_world_may_state_a_pledge_without_evictions() -> None:
    hi = group("hi", 1, 3, **HI)
    hi["status"] = {
        "reservedAt": 0,
        "checks": [{"name": "late", "status": "Unknown"}],
        "pledge": {"victims": ["default/low-t-0"], "action": "preempt"},
    }
    came = play(
        node("n1", 4),
        asks("late"),
        *runs("low", 1, 4),
        hi,
        timeline(answers(5, "hi", "late", "True")),
    )
    assert evicted(came) == [(5, [("default/low-t-0", "Preempted")])]
    assert (0, ["default/hi"]) not in reserved(came)
    assert admitted(came) == [(15, ["default/hi"])]


def test_a_preemptor_of_a_class_that_preempts_nothing_reserves_no_victims() -> None:
    polite = manifest("PriorityClass", "polite", {"value": 50, "preemptionPolicy": "Never"})
    came = play(
        node("n1", 4),
        polite,
        asks("late"),
        *runs("low", 1, 4),
        group("hi", 1, 3, queue="q", priorityClassName="polite"),
    )
    assert (reserved(came), pledged(came)) == ([], [])


def test_a_reservation_of_this_session_is_undone_without_a_trace() -> None:
    came = play(
        node("n1", 4),
        asks("any"),
        *runs("runs", 1, 2),
        group("hi", 1, 4, **HI),
        group("small", 1, 2, queue="q"),
        until=5,
    )
    assert reserved(came) == [(0, ["default/hi"])]
    assert requeued(came) == [(0, [("default/runs", "Preempted")])]
    assert "WaitingForChecks" not in [one.reason for one in of(came, "small").reasons]


def test_a_new_group_in_its_queue_does_not_cost_a_preemptor_its_pledge() -> None:
    """Without its own promise the preemptor's queue would seem to hold less than before."""
    came = play(
        node("n1", 10),
        asks("late", deserved={"cpu": 4}),
        queue("other", deserved={"cpu": 6}, preemption={"reclaim": "Never"}),
        *runs("low", 1, 3),
        *runs("lender", 1, 2, queue="other"),
        *runs("stays", 1, 4, queue="other"),
        group("hi", 1, 4, **HI),
        timeline(
            {"at": "3s", "apply": group("newcomer", 1, 2, **HI)},
            {"at": "3s", "finishPod": "lender-t-0"},
            answers(9, "hi", "late", "True"),
        ),
    )
    assert reserved(came) == [(0, ["default/hi"]), (3, ["default/newcomer"])]
    assert evicted(came) == [(9, [("default/low-t-0", "Preempted")])]
    assert [one for one in requeued(came) if one[0] < 9] == []
    assert admitted(came) == [(19, ["default/hi"])]


def test_a_pledge_ends_and_its_victims_are_pledged_again_in_one_commit() -> None:
    """Otherwise one of the two writes might be refused, and both preemptors be pledged the same
    pods.
    """
    first = group("first", 1, 3, suspend=True, **HI)
    first["status"] = {
        "reservedAt": 0,
        "pledge": {"victims": ["default/low-t-0"], "action": "preempt"},
    }
    world = [*CLASSES, LATE, node("n1", 4), asks("late"), *runs("low", 1, 4), first]
    world.append(group("second", 1, 3, **HI))
    scheduler = assemble(read_config(ALL, "config"))
    stage = WorldRun(read_world(text_of_all(world), "world"), scheduler)
    session = scheduler.decide(stage.store.snapshot(), 0)
    written = [
        sorted(write.key for write in one.writes if write.kind == "PodGroup")
        for one in transactions_of(session)
    ]
    assert written == [["default/first", "default/second"]]


def test_a_preemptor_with_open_checks_hands_its_victims_to_a_more_important_one() -> None:
    """The holder has evicted no pod, and holds nothing but a reservation: otherwise the least
    important group would keep the most important one waiting while its own check is open.
    """
    came = play(
        node("n1", 3),
        asks("late"),
        *runs("low", 1, 3),
        group("hi", 1, 3, **HI),
        timeline(
            {"at": "5s", "apply": group("top", 1, 3, queue="q", priorityClassName="top")},
            answers(7, "top", "late", "True"),
        ),
    )
    assert reserved(came)[:2] == [(0, ["default/hi"]), (5, ["default/top"])]
    assert pledged(came)[:2] == [
        (0, {"default/hi": ["default/low-t-0"]}),
        (5, {"default/top": ["default/low-t-0"]}),
    ]
    assert requeued(came)[0] == (5, [("default/hi", "Preempted")])
    assert evicted(came)[0] == (7, [("default/low-t-0", "Preempted")])
    assert admitted(came)[0][1] == ["default/top"]
