"""Why a group waits: a world for every reason, the message with its numbers, and the remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import json, structs

from batchq.api.objects import (
    Dependency,
    Evictions,
    PodGroup,
    PodGroupStatus,
)
from batchq.api.reasons import Waiting
from batchq.api.views import Others, Why
from batchq.assembly import assemble
from batchq.cli.diagnosis import show_why
from batchq.client.overview import others
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Settings
from tests.builders import RECLAIMS, a_node, a_priority, a_queue
from tests.client.waits import MINUTE, NEVER, NOW, World, a_check, asks, everything, waiting
from tests.effort import usually
from tests.tidy.command_lines import accept
from tests.tidy.source import ROOT

#: Group -> its reason, the message, and the remedy.
TOLD = {
    "misconfigured": (
        Waiting.MISCONFIGURED,
        "there is no priority class urgent",
        "correct the manifest and apply it: `batchq apply -f FILE`",
    ),
    "lost": (
        Waiting.QUEUE_NOT_FOUND,
        (
            "there is no queue nowhere; there are: approved, budgeted, claims, default, full, held,"
            " strict"
        ),
        "create queue nowhere (`batchq apply -f FILE`), or submit it to an existing queue",
    ),
    "huge": (
        Waiting.EXCEEDS_CAPACITY,
        (
            "needs cpu 100, and the cluster, with every node that was seen within a day, allows at"
            " most 80"
        ),
        "ask for less cpu: at most 40 can ever fit, on the largest node",
    ),
    "over": (
        Waiting.EXCEEDS_MAX_QUOTA,
        "needs cpu 2, and queue full allows at most 1",
        "ask for less cpu: at most 1 can ever fit",
    ),
    "stopped": (
        Waiting.QUEUE_STOPPED,
        "queue held is stopped (Hold)",
        "`batchq queues resume held`",
    ),
    "suspended": (Waiting.SUSPENDED, "the group is suspended", "`batchq resume suspended`"),
    "gated": (
        Waiting.SCHEDULING_GATED,
        "Scheduling is blocked due to non-empty scheduling gates: data-ready",
        "`batchq gates open gated data-ready`",
    ),
    "depends": (
        Waiting.DEPENDENCY_NOT_MET,
        "waits for gated to complete; gated is Pending",
        "see why that one waits: `batchq why gated`",
    ),
    "pauses": (
        Waiting.BACKING_OFF,
        (
            "pauses for 20s, until 1970-01-01T00:18:40Z, 2 times in a row; InQueueTimeout: not"
            " Running within 5m"
        ),
        "nothing: it returns to the line at 1970-01-01T00:18:40Z; check what evicted it",
    ),
    "unapproved": (
        Waiting.WAITING_FOR_CHECKS,
        "0 of 1 check passed; check approval is Unknown, for at most 30m from the reservation",
        ("ask finance, or if people answer it: `batchq checks set unapproved approval True`"),
    ),
    "unbudgeted": (
        Waiting.CHECK_INACTIVE,
        "check budget is inactive: finance holds no lease on it",
        (
            "start its controller, finance; where people answer it, `batchq checks serve finance`;"
            " or take it off queue budgeted"
        ),
    ),
    "quota": (
        Waiting.WAITING_FOR_QUOTA,
        "needs cpu 1, and queue full has 0 free (1 of 1 in use)",
        "wait until others of queue full end, or have its capability raised",
    ),
    "head": (
        Waiting.WAITING_FOR_RESOURCES,
        "needs gpu 1, and the cluster has 0 free (1 of 1 in use)",
        "wait until others end, or have nodes added",
    ),
    "turn": (
        Waiting.WAITING_FOR_TURN,
        (
            "waits behind the head of its queue, which is first come, first served"
            " (StrictFIFO); that is default/head (priority 0, cpu 1, gpu 1)"
        ),
        "see what the head waits for: `batchq why head`; a higher priority class goes ahead",
    ),
    "claimant": (
        Waiting.WAITING_FOR_PREEMPTION,
        "waits until default/victim-w-0 has stopped for it, at the latest at 1970-01-01T00:19:10Z",
        "nothing: it starts once they have stopped",
    ),
    "homeless": (
        Waiting.WAITING_FOR_RESOURCES,
        (
            "nodes cannot take its pod now; no node takes a pod that asks for tpu 2, and"
            " the most tpu that one node has free is 1, on n2"
        ),
        "wait until others end, or have nodes added",
    ),
}


@pytest.fixture(scope="module")
def world() -> World:
    return everything()


@pytest.mark.parametrize("name", TOLD)
def test_an_explanation_has_the_deciding_numbers_and_a_remedy(world: World, name: str) -> None:
    [reason] = world.why(name).reasons
    assert (reason.reason, reason.message, reason.remedy) == TOLD[name]


def test_every_reason_but_two_is_among_them() -> None:
    """PendingEvaluation and Unschedulable, for a group that lost its nodes, are tested below."""
    untold = set(Waiting) - {reason for reason, _, _ in TOLD.values()}
    assert untold == {Waiting.PENDING_EVALUATION, Waiting.UNSCHEDULABLE}


@pytest.mark.parametrize("name", [group.metadata.name for group in waiting()])
def test_an_explanation_survives_a_round_trip_through_json(world: World, name: str) -> None:
    result = world.why(name)
    assert json.decode(json.encode(result), type=Why) == result


def test_a_new_group_waits_for_a_session() -> None:
    world = World(a_node(cpu=4))
    world.add(asks("new"))
    result = world.why("new")
    assert [(one.reason, one.message, one.remedy) for one in result.reasons] == [
        (
            Waiting.PENDING_EVALUATION,
            "the scheduler has not looked at it yet",
            "nothing: the scheduler's next session looks at it",
        )
    ]
    assert result.next == "the next session admits it"
    alone = world.why("new", led=False).reasons[0].remedy
    assert alone == "no scheduler leads: start one with `batchq scheduler` or `batchq up`"


def test_numbers_are_a_resource_s_own_units(world: World) -> None:
    [reason] = world.why("quota").reasons
    assert (reason.resource, reason.need, reason.limit, reason.seen, reason.free) == (
        *("cpu", 1000, 1000, 1000),
        0,
    )
    assert (reason.subject, reason.plugin, reason.revision) == ("queue full", "capacity", 3)


def test_an_outdated_stored_reason_is_shown_with_its_revision(world: World) -> None:
    roomy = everything()
    roomy.snapshot = structs.replace(
        roomy.snapshot,
        revision=9,
        queues=tuple(
            structs.replace(one, spec=structs.replace(one.spec, capability={"cpu": 2000}))
            if one.metadata.name == "full"
            else one
            for one in roomy.snapshot.queues
        ),
    )
    result = roomy.why("quota")
    assert (result.reasons, result.next) == ((), "the next session admits it")
    [former] = result.former
    assert (former.message, former.revision) == (
        "needs cpu 1, and queue full has 0 free (1 of 1 in use)",
        3,
    )


@pytest.mark.parametrize("name", TOLD)
def test_remedies_are_commands_that_batchq_accepts(name: str) -> None:
    _, _, remedy = TOLD[name]
    for command in re.findall(r"`batchq ([^`]+)`", remedy):
        accept(command.split())


def test_the_page_shows_what_is_printed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
    for name in TOLD.keys() - {"resources"}:
        show_why(world.why(name), history=False)
        first = capsys.readouterr().out.partition("\n\n")[0]
        assert f"```text\n{first}\n```" in page, f"docs/why.md tells something else of {name}"


def test_the_start_follows_from_the_walltimes_of_running_groups(world: World) -> None:
    start = world.why("quota").start
    assert start is not None
    assert (start.at, start.ends) == (NOW + 60 * MINUTE, Others(named=("default/fills",)))


def test_without_a_walltime_the_start_is_unknown() -> None:
    world = World(a_node(cpu=1))
    world.run(asks("runs"))
    world.add(asks("waits"))
    world.settle()
    start = world.why("waits").start
    assert start is not None
    assert start.at is None
    assert start.why == (
        "no end of a running group is known: it needs cpu 1, and the cluster has 0 free (1 of 1 in"
        " use)"
    )


def test_groups_of_other_namespaces_are_only_counted() -> None:
    keys = ["b/x", "a/1", "a/2", "b/y", "a/3", "a/4", "a/5"]
    result = others(keys, "a")
    assert result == Others(named=("a/1", "a/2", "a/3"), more=2, elsewhere=2)
    assert result.count == 7


def test_the_groups_ahead_are_those_before_it_in_its_queue(world: World) -> None:
    result = world.why("turn")
    assert (result.position, result.ahead) == (2, Others(named=("default/head",)))


def test_an_explanation_says_that_a_group_can_never_run(world: World) -> None:
    assert world.why("quota").ever == ""
    assert world.why("huge").ever == TOLD["huge"][1]


def test_a_gang_that_no_empty_node_takes_can_never_run() -> None:
    world = World(a_node("n1", cpu=2), a_node("n2", cpu=2))
    world.run(asks("runs", requests={"cpu": 2}))
    world.add(asks("wide", requests={"cpu": 3}))
    world.turn()
    assert world.why("wide").ever == (
        "not even empty nodes take it: task w: 0/2 nodes fit: 2 insufficient cpu; a pod needs"
        " cpu 3, and the largest node has 2"
    )


def test_an_explanation_has_the_time_waited_by_reason() -> None:
    world = World(a_node(cpu=1))
    world.run(asks("first", created=NOW))
    world.add(asks("second", created=NOW))
    world.settle()
    world.now_ms += 5 * MINUTE
    result = world.why("second")
    assert result.waited == {"WaitingForResources": 5 * MINUTE}
    assert [(spell.phase, spell.reasons) for spell in result.history] == [
        ("Pending", ("WaitingForResources",))
    ]
    result = world.why("first")
    assert (result.phase, result.nodes, result.reasons, result.started_at) == (
        "Running",
        ("n1",),
        (),
        NOW,
    )


@pytest.mark.parametrize(
    ("cpus", "remedy"),
    [
        (8, "wait for it to end: `batchq progress first`"),
        (1, "see why that one waits: `batchq why first`"),
    ],
)
def test_a_group_that_depends_on_a_running_one_is_not_told_that_this_one_waits(
    cpus: int, remedy: str
) -> None:
    world = World(a_node(cpu=8))
    world.run(asks("full", requests={"cpu": 8 - cpus}))
    first = asks("first", requests={"cpu": 4})
    if cpus == 8:
        world.run(first)
    else:
        world.add(first)
    world.add(asks("second", depends_on=(Dependency(name="first", uid=first.metadata.uid),)))
    world.turn()
    [reason, *_] = world.why("second").reasons
    assert (reason.reason, reason.remedy) == (Waiting.DEPENDENCY_NOT_MET, remedy)
    for command in re.findall(r"`batchq ([^`]+)`", remedy):
        accept(command.split())


def spared(world: World, name: str) -> dict[str, tuple[str, ...]]:
    return {one.action: one.reasons for one in world.why(name).spared}


def crowded(*objects: Any, runs: tuple[PodGroup, ...], waits: PodGroup, cpus: int = 4) -> World:
    """Return a world in which one group lacks the capacity that the running ones hold."""
    world = World(a_node(cpu=cpus), a_priority("high", 100), *objects)
    world.run(*runs)
    world.add(waits)
    world.turn()
    return world


def test_groups_of_equal_priority_are_not_victims() -> None:
    world = crowded(runs=(asks("a", requests={"cpu": 4}),), waits=asks("b"))
    assert spared(world, "b") == {
        "preempt": (
            (
                "its priority is 0, and no group in queue default has a lower one:"
                " the lowest of 1 group is 0"
            ),
        )
    }


def test_a_queue_may_exclude_preemption_within_itself() -> None:
    world = crowded(
        a_queue("default", preemption=NEVER),
        runs=(asks("a", requests={"cpu": 4}),),
        waits=asks("b", priority_class_name="high"),
    )
    assert spared(world, "b") == {
        "preempt": ("queue default evicts none of its own groups (preemption.withinQueue Never)",)
    }


def test_a_group_that_has_only_just_started_is_protected() -> None:
    world = World(a_node(cpu=4), a_priority("high", 100))
    settings = Settings(min_runtime_ms=10 * MINUTE)
    world.scheduler = assemble(SchedulerConfig(settings=settings))
    world.run(asks("a", requests={"cpu": 4}))
    world.add(asks("b", priority_class_name="high"))
    world.turn()
    assert spared(world, "b") == {
        "preempt": ("1 group is protected by minRuntime until 1970-01-01T00:26:40Z",)
    }


def of_three_queues(deserved: int, *, asked: int) -> World:
    """Return a world of 6 cpus in which `b` waits in `mine`, where it could evict `low` (1 cpu);
    `theirs` could give back `lent` (3 cpus), and `kept` (2 cpus) is within its share.
    """
    return crowded(
        a_queue("mine", deserved={"cpu": deserved}, preemption=RECLAIMS),
        a_queue("theirs", deserved={"cpu": 1000}),
        a_queue("other", deserved={"cpu": 2000}),
        runs=(
            asks("low", queue="mine", requests={"cpu": 1}),
            asks("lent", queue="theirs", requests={"cpu": 3}),
            asks("kept", queue="other", requests={"cpu": 2}),
        ),
        waits=asks("b", queue="mine", requests={"cpu": asked}, priority_class_name="high"),
        cpus=6,
    )


def test_victims_of_both_actions_that_do_not_suffice_together_are_counted() -> None:
    world = of_three_queues(5000, asked=5)
    assert spared(world, "b") == {
        "preempt": (
            "1 group could make way, but even together they would not leave enough of cpu",
        ),
        "reclaim": ("queue mine would hold cpu 6, more than the 5 that it deserves",),
        "preempt and reclaim": (
            "2 groups could make way, but even together they would not leave enough of cpu",
        ),
    }


def test_victims_of_both_actions_are_not_taken_for_more_than_the_queue_deserves() -> None:
    world = of_three_queues(3000, asked=4)
    assert spared(world, "b")["preempt and reclaim"] == (
        "2 groups could make way, but queue mine would end above what it deserves",
    )


def test_victims_whose_queue_keeps_what_it_deserves_are_said_not_to_be_enough() -> None:
    """Each node would be free without its two groups, and queue theirs gives up one of the four."""
    world = crowded(
        a_node("n2", cpu=2),
        a_queue("mine", deserved={"cpu": 2000}, preemption=RECLAIMS),
        a_queue("theirs", deserved={"cpu": 3000}),
        runs=tuple(asks(name, queue="theirs", requests={"cpu": 1}) for name in "cdef"),
        waits=asks("b", queue="mine", requests={"cpu": 2}),
        cpus=2,
    )
    (why,) = spared(world, "b")["reclaim"]
    assert why == (
        "4 groups could make way, but not enough of them before their queues hold only what they"
        " deserve"
    )


def test_pods_of_an_array_whose_queue_keeps_its_guarantee_are_counted() -> None:
    """Queue theirs keeps one cpu, so the array may not be taken whole; the two of its pods that the
    queue gives back do not leave three cpus.
    """
    world = crowded(
        a_node("n2", cpu=3),
        a_queue("mine", deserved={"cpu": 3000}, preemption=RECLAIMS),
        a_queue("theirs", deserved={"cpu": 4000}, guarantee={"cpu": 1000}),
        runs=(asks("array", queue="theirs", requests={"cpu": 1}, replicas=6, min_member=1),),
        waits=asks("b", queue="mine", requests={"cpu": 3}),
        cpus=3,
    )
    [why] = spared(world, "b")["reclaim"]
    assert why == (
        "1 group could make way, but not enough of them before their queues hold only what they"
        " deserve"
    )


def test_the_queue_whose_head_keeps_victims_from_a_group_is_named() -> None:
    """Queue theirs borrows two cpus, which `b` would get if `head` did not wait for two."""
    world = crowded(
        a_queue("heads", deserved={"cpu": 2000}, strict=True),
        a_queue("mine", deserved={"cpu": 2000}, preemption=RECLAIMS),
        a_queue("theirs", deserved={"cpu": 2000}),
        runs=(
            asks("before", queue="heads", requests={"cpu": 2}, walltime=MINUTE),
            asks("array", queue="theirs", requests={"cpu": 1}, replicas=4, min_member=1),
        ),
        waits=asks("head", queue="heads", requests={"cpu": 2}),
        cpus=6,
    )
    world.now_ms += 1_000
    world.add(asks("b", queue="mine", requests={"cpu": 2}, created=world.now_ms))
    world.turn()
    [why] = spared(world, "b")["reclaim"]
    assert why == (
        "1 group could make way, but part of what they would leave is reserved for the head of"
        " heads"
    )


def test_victims_of_both_actions_are_not_named_if_one_action_has_none() -> None:
    world = of_three_queues(5000, asked=5)
    world.scheduler = assemble(SchedulerConfig(settings=Settings(min_runtime_ms=MINUTE)))
    assert "preempt and reclaim" not in spared(world, "b")


def test_protection_for_the_cost_of_former_reclaims_is_named() -> None:
    costly = PodGroupStatus(evictions=Evictions(longest_run=30 * MINUTE))
    world = crowded(
        a_queue("mine", deserved={"cpu": 4000}, preemption=RECLAIMS),
        a_queue("theirs"),
        runs=(structs.replace(asks("a", queue="theirs", requests={"cpu": 4}), status=costly),),
        waits=asks("b", queue="mine", requests={"cpu": 2}),
    )
    assert spared(world, "b")["reclaim"] == (
        "1 group is protected until 1970-01-01T01:16:40Z by what reclaim took before",
    )


def test_a_queue_above_what_it_deserves_reclaims_nothing() -> None:
    world = crowded(
        a_queue("mine", deserved={"cpu": 1000}, preemption=RECLAIMS),
        a_queue("theirs"),
        runs=(asks("a", queue="theirs", requests={"cpu": 4}),),
        waits=asks("b", queue="mine", requests={"cpu": 2}),
    )
    assert spared(world, "b")["reclaim"] == (
        "queue mine would hold cpu 2, more than the 1 that it deserves",
    )


def test_a_queue_that_is_not_reclaimable_is_named() -> None:
    world = crowded(
        a_queue("mine", deserved={"cpu": 2000}, preemption=RECLAIMS),
        a_queue("theirs", reclaimable=False),
        runs=(asks("a", queue="theirs", requests={"cpu": 4}),),
        waits=asks("b", queue="mine", requests={"cpu": 2}),
    )
    assert spared(world, "b")["reclaim"][0] == (
        "queue theirs holds more than it deserves, and is reclaimable: false"
    )


def test_a_priority_class_without_evictions_is_named() -> None:
    shy = a_priority("shy", 50)
    shy = structs.replace(shy, spec=structs.replace(shy.spec, preemption_policy="Never"))
    world = crowded(
        shy,
        runs=(asks("a", requests={"cpu": 4}),),
        waits=asks("b", priority_class_name="shy"),
    )
    assert spared(world, "b") == {
        "preempt": ("its priority class shy does not allow evictions (preemptionPolicy Never)",)
    }


def test_a_system_namespace_is_left_alone() -> None:
    world = crowded(
        runs=(asks("a", requests={"cpu": 4}, namespace="system"),),
        waits=asks("b", priority_class_name="high"),
    )
    assert spared(world, "b") == {"preempt": ("1 group is in a protected namespace",)}


def test_guarantees_of_siblings_are_named() -> None:
    world = World(a_node(cpu=8), a_queue("mine"), a_queue("theirs", guarantee={"cpu": 6000}))
    world.add(asks("b", queue="mine", requests={"cpu": 3}))
    world.turn()
    [reason] = world.why("b").reasons
    assert (reason.reason, reason.message) == (
        Waiting.EXCEEDS_MAX_QUOTA,
        (
            "needs cpu 3, and queue mine, beside what its siblings are guaranteed, allows at"
            " most 2; guaranteed are theirs cpu 6"
        ),
    )


def test_idle_sessions_write_nothing(world: World) -> None:
    waits = {world.reasons(group.metadata.name)[0] for group in waiting()}
    # Unschedulable applies to an admitted group that has lost its nodes.
    assert waits == set(map(str, Waiting)) - {"PendingEvaluation", "Unschedulable"}
    idle = everything()
    before = idle.writes
    for _ in range(usually(200, 1_000)):
        idle.turn()
        idle.now_ms += 10
    assert idle.writes - before == 0


def test_a_group_behind_a_head_is_not_written_when_the_head_changes(world: World) -> None:
    """The name of the head changes, but not the cause."""
    changing = World(a_node(cpu=4), a_queue("strict", strict=True, preemption=NEVER))
    changing.run(asks("runs", queue="strict", requests={"cpu": 4}))
    changing.add(asks("one", queue="strict", created=NOW + 1, requests={"cpu": 4}))
    changing.add(asks("two", queue="strict", created=NOW + 2, requests={"cpu": 4}))
    changing.settle()
    assert "that is default/one" in changing.why("two").reasons[-1].message
    before = changing.writes
    first = asks("first", queue="strict", created=NOW, requests={"cpu": 4})
    changing.add(first)
    changing.turn()
    assert "that is default/first" in changing.why("two").reasons[-1].message
    assert [one.key for one in changing.events[-2:]] == ["default/first", "default/one"]
    assert changing.writes - before == 2


def test_an_explanation_of_a_preemptor_says_when_its_victims_must_have_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_why(everything().why("claimant"), history=False)
    result = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Earliest:")]
    assert result == ["Earliest:  1970-01-01T00:18:10Z (in 30s), when default/victim has ended"]


def test_a_victim_cannot_count_on_the_capacity_that_it_leaves() -> None:
    """Its preemptor holds the capacity next, and has no walltime that limits how long."""
    start = everything().why("victim").start
    assert start is not None
    assert start.at is None
    assert start.why == (
        "no walltime says when what it lacks will be free: it needs fpga 1, and the cluster has 0"
        " free (1 of 1 in use)"
    )


def test_a_group_that_no_empty_node_takes_has_no_start() -> None:
    world = World(a_node("n1", cpu=2), a_node("n2", cpu=2))
    world.run(asks("runs", requests={"cpu": 2}, walltime=MINUTE))
    world.add(asks("wide", requests={"cpu": 3}))
    world.settle()
    result = world.why("wide")
    assert result.start is not None
    assert (result.start.at, result.start.why) == (None, result.ever)


def test_a_single_pod_is_advised_about_one_node() -> None:
    world = World(a_node("n1", cpu=4), a_node("n2", cpu=4), a_queue("default", preemption=NEVER))
    world.run(asks("one", requests={"cpu": 3}), asks("two", requests={"cpu": 2}))
    world.add(asks("pod", requests={"cpu": 4}), asks("gang", requests={"cpu": 1}, replicas=4))
    world.settle()
    assert world.why("pod").reasons[0].remedy == (
        "wait until others end, ask for at most cpu 2, or have nodes added"
    )
    assert world.why("gang").reasons[0].remedy == (
        "wait until others end, ask for at most cpu 3 in all, or have nodes added"
    )


def test_a_group_is_not_advised_to_ask_for_what_is_guaranteed_to_other_queues() -> None:
    world = World(
        a_node(cpu=8),
        a_queue("sure", guarantee={"cpu": 2000}),
        a_queue("mine", preemption=NEVER),
    )
    world.run(asks("runs", queue="mine", requests={"cpu": 3}))
    world.add(asks("wide", queue="mine", requests={"cpu": 2}, replicas=3))
    world.settle()
    assert world.why("wide").reasons[0].remedy == (
        "wait until others end, ask for at most cpu 3 in all, or have nodes added"
    )


def test_a_group_of_a_queue_that_got_children_must_be_submitted_again() -> None:
    world = World(a_node(cpu=1), a_queue("team"), a_queue("part", parent="team"))
    world.add(asks("waits", queue="team"))
    world.settle()
    assert world.why("waits").reasons[0].remedy == (
        "`batchq cancel waits`, and submit it to one of the queues below"
    )


def test_every_check_that_is_open_is_named() -> None:
    checks = (a_check("approval", active=True), a_check("budget", active=True))
    queue = a_queue("checked", admission_checks=("approval", "budget"))
    world = World(a_node(cpu=1), queue, *checks)
    world.add(asks("waits", queue="checked"))
    world.settle()
    assert world.why("waits").reasons[0].remedy == (
        "ask finance, or if people answer it: `batchq checks set waits approval True`"
        " and `batchq checks set waits budget True`"
    )
