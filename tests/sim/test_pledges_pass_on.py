"""A pledge passes to a preemptor that comes before its holder: by priority, queue time, uid.

Otherwise a group would start only to be evicted for a group that waited already.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    applies,
    check,
    evicted,
    group,
    node,
    outcome,
    phases,
    pledged,
    pod,
    priority,
    queue,
    requeued,
    reserved,
    taker,
    timeline,
)

CLASSES = [priority(*one) for one in (("mid", 5), ("high", 10), ("top", 20))]
LATE = check("late", preemptionPolicy="AfterCheckPassedOrOnDemand")


def runs(
    name: str, pods: int = 4, *, on: str = "n1", grace: str = "30s", **spec: object
) -> list[Manifest]:
    """Return a group of pods of a cpu each that all run on one node."""
    status = {"phase": "Running", "reservedAt": 0}
    each = [
        pod(f"{name}-t-{index}", name, index, phase="Running", node=on, startedAt=0)
        for index in range(pods)
    ]
    return [group(name, pods, status=status, grace=grace, **spec), *each]


def claims(name: str, pods: int, prio: str = "", **spec: object) -> Manifest:
    """Return a group that runs for 20 s once it fits."""
    prioritized = {"priorityClassName": prio} if prio else {}
    return group(name, pods, runtime="20s", **prioritized, **spec)


def pods_of(name: str, pods: int = 4) -> list[str]:
    return [f"default/{name}-t-{index}" for index in range(pods)]


def test_a_preemptor_that_is_outranked_is_not_started_only_to_be_evicted() -> None:
    """The victims were told to stop at 5 and end at 35; no preemptor waits for a second grace
    period.
    """
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low"),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, claims("urgent", 4, "top"))),
    )
    assert [(at, sorted(pod for pod, _ in gone)) for at, gone in evicted(came)] == [
        (5, pods_of("low"))
    ]
    assert [(at, who) for at, who in pledged(came)] == [
        (5, {"default/hi": pods_of("low")}),
        (10, {"default/urgent": pods_of("low")}),
    ]
    assert requeued(came) == [
        (5, [("default/low", "Preempted")]),
        (10, [("default/hi", "Preempted")]),
    ]
    assert admitted(came)[:2] == [(35, ["default/urgent"]), (55, ["default/hi"])]


def test_the_outranked_preemptor_chooses_other_victims_in_the_same_commit() -> None:
    """The preemptor that comes first starts first; each group is evicted once."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        node("n2", 4),
        *runs("low"),
        *runs("other", on="n2", priorityClassName="mid"),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, claims("urgent", 4, "top"))),
    )
    assert pledged(came) == [
        (5, {"default/hi": pods_of("low")}),
        (10, {"default/urgent": pods_of("low"), "default/hi": pods_of("other")}),
    ]
    assert [at for at, _ in evicted(came)] == [5, 10]
    assert ("default/hi", "Preempted") not in [one for _, left in requeued(came) for one in left]
    assert admitted(came)[:2] == [(35, ["default/urgent"]), (40, ["default/hi"])]


def test_an_equal_preemptor_that_came_later_takes_no_pledge_over() -> None:
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low"),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, claims("later", 4, "high"))),
    )
    assert pledged(came) == [(5, {"default/hi": pods_of("low")})]
    assert admitted(came)[:2] == [(35, ["default/hi"]), (55, ["default/later"])]


def test_an_equal_preemptor_that_has_waited_longer_comes_first_once_it_may_start() -> None:
    """It was suspended when the pledge was made to the other one."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        *runs("low"),
        claims("first", 4, "high", suspend=True),
        timeline(applies(5, claims("second", 4, "high")), {"at": "10s", "resume": "default/first"}),
    )
    assert admitted(came)[:2] == [(35, ["default/first"]), (55, ["default/second"])]
    assert [at for at, _ in evicted(came)] == [5]


def test_a_preemptor_that_fits_beside_the_holder_leaves_its_pledge_alone() -> None:
    """The capacity that one large victim releases is enough for both."""
    came = outcome(
        *CLASSES,
        node("n1", 8),
        *runs("low", 8),
        timeline(applies(5, claims("hi", 4, "high")), applies(10, claims("urgent", 4, "top"))),
    )
    assert admitted(came)[0] == (35, ["default/hi", "default/urgent"])
    assert requeued(came) == [(5, [("default/low", "Preempted")])]


def test_a_pledge_between_queues_passes_on_by_priority_and_not_by_share() -> None:
    """Both queues are within what they deserve, and `theirs` has only 4 to give."""
    came = outcome(
        *CLASSES,
        node("n1", 8),
        taker("a", deserved={"cpu": 4}),
        taker("c", deserved={"cpu": 4}),
        queue("theirs", deserved={"cpu": 0}),
        queue("stays", deserved={"cpu": 0}, reclaimable=False),
        *runs("lent", queue="theirs"),
        *runs("kept", queue="stays"),
        timeline(
            applies(5, claims("one", 4, "mid", queue="a")),
            applies(10, claims("two", 4, "top", queue="c")),
        ),
    )
    assert pledged(came) == [
        (5, {"default/one": pods_of("lent")}),
        (10, {"default/two": pods_of("lent")}),
    ]
    assert admitted(came)[:2] == [(35, ["default/two"]), (55, ["default/one"])]


def test_reclaimed_capacity_is_not_taken_by_its_former_borrowers() -> None:
    """The more important group of the borrowers' queue would lose it again at once."""
    came = outcome(
        *CLASSES,
        node("n1", 4),
        taker("a", deserved={"cpu": 4}),
        taker("theirs", deserved={"cpu": 0}),
        *runs("lent", queue="theirs"),
        timeline(
            applies(5, claims("one", 4, queue="a")),
            applies(10, claims("two", 4, "top", queue="theirs")),
        ),
    )
    assert pledged(came) == [(5, {"default/one": pods_of("lent")})]
    assert admitted(came)[:2] == [(35, ["default/one"]), (55, ["default/two"])]


@pytest.mark.parametrize("of", ["c", "theirs"], ids=["third queue", "victims' queue"])
def test_a_pledge_without_evictions_does_not_block_a_more_important_group(of: str) -> None:
    """Its check stays open for half an hour."""
    came = outcome(
        *CLASSES,
        LATE,
        node("n1", 8),
        taker("a", deserved={"cpu": 4}, admissionChecks=["late"]),
        taker("c", deserved={"cpu": 4}),
        queue("theirs", deserved={"cpu": 0}),
        queue("stays", deserved={"cpu": 0}, reclaimable=False),
        *runs("lent", queue="theirs", grace="10s"),
        *runs("kept", queue="stays"),
        timeline(
            applies(5, claims("one", 4, queue="a")),
            applies(10, claims("two", 4, "top", queue=of)),
        ),
        cycles=8,
    )
    assert reserved(came)[:2] == [(5, ["default/one"]), (10, ["default/two"])]
    assert admitted(came)[0] == (20, ["default/two"])


def test_a_preemptor_with_open_checks_leaves_terminating_victims_to_their_preemptor() -> None:
    """Their capacity would only be idle until its check has passed."""
    came = outcome(
        *CLASSES,
        LATE,
        node("n1", 4),
        queue("q"),
        queue("late", admissionChecks=["late"]),
        *runs("low", queue="q"),
        timeline(
            applies(5, claims("hi", 4, "high", queue="q")),
            applies(10, claims("urgent", 4, "top", queue="late")),
            answers(600, "urgent", "late", "True"),
        ),
        cycles=12,
    )
    assert admitted(came)[0] == (35, ["default/hi"])
    assert phases(came)["hi"] == "Completed"


def test_a_preemptor_does_not_wait_for_victims_of_others_that_may_stay() -> None:
    """`hi` takes over the victims that `mid` counts on, and `mid` then counts on a larger one. No
    check has passed, so no pod is told to stop.
    """
    came = outcome(
        *CLASSES,
        LATE,
        node("n1", 8),
        queue("q", admissionChecks=["late"]),
        *runs("small", 2, queue="q"),
        *runs("large", 6, queue="q"),
        timeline(
            applies(5, claims("mid", 2, "mid", queue="q")),
            applies(6, claims("hi", 2, "high", queue="q")),
        ),
        cycles=12,
    )
    until_then = [found for at, found in pledged(came) if at <= 6]
    result = {name: victims for found in until_then for name, victims in found.items()}
    assert sorted(result["default/hi"]) == pods_of("small", 2)
    assert sorted(result["default/mid"]) == pods_of("large", 6)
    assert sum(cycle.time == 6 for cycle in came.cycles) == 3
    assert evicted(came) == []
