"""A mistake in a world is reported in one sentence, and nothing is played."""

from __future__ import annotations

import pytest

from batchq.config import SchedulerConfig
from batchq.errors import InvalidInput
from batchq.lab.simulation import play
from tests.sim.worlds import (
    Manifest,
    check,
    group,
    manifest,
    node,
    outcome,
    phases,
    pod,
    queue,
    reasons,
    refusal,
    refused_steps,
    timeline,
)

BAD: dict[str, tuple[list[Manifest], str]] = {
    "a pod without its group": ([pod("x", "ghost")], "its PodGroup default/ghost is not described"),
    "a pod of an unknown task": (
        [group("a"), pod("x", "a", task="u")],
        "has no task u; its tasks: t",
    ),
    "a pod beyond the replicas": ([group("a", 2), pod("x", "a", 2)], "has 2 replicas"),
    "two pods with one index": (
        [group("a"), pod("x", "a"), pod("y", "a")],
        "and so is default/x",
    ),
    "a running pod without a node": (
        [group("a"), pod("x", "a", phase="Running")],
        "does not say where",
    ),
    "a waiting pod that terminates": (
        [group("a"), pod("x", "a", terminating=True)],
        "only a pod on a node can be terminating",
    ),
    "a group twice": ([group("a"), group("a")], "PodGroup default/a is given twice"),
    "pods of two groups with one name": (
        [
            group("a", tasks=[{"name": "b-t", "template": {"requests": {"cpu": 1}}}]),
            group("a-b"),
        ],
        (
            "PodGroup default/a-b: pods of its task t would be called a-b-t-0 and so on, as pods of"
            " task b-t of PodGroup default/a are"
        ),
    ),
    "a uid twice": ([group("a", uid="7"), group("b", uid="7")], "uid 7 is given twice"),
    "a uid equal to a place in the file": (
        [group("a"), group("b", uid="1")],
        "uid 1 is given twice",
    ),
    "two default priority classes": (
        [
            manifest("PriorityClass", "a", {"value": 1, "default": True}),
            manifest("PriorityClass", "b", {"value": 2, "default": True}),
        ],
        "is the default already",
    ),
    "an unknown field": ([group("a", minMembers=2)], "did you mean 'minMember'"),
    "an unknown kind": ([manifest("PodGruop", "a")], "did you mean 'PodGroup'"),
    "an invalid runtime": ([group("a", runtime="soon")], "annotation batchq/runtime"),
    "a check that a queue asks for twice": (
        [queue("q", admissionChecks=["c", "c"])],
        "Queue q: spec.admissionChecks: 'c' is named twice",
    ),
    "a check with an impossible name": (
        [queue("q", admissionChecks=["No!"])],
        "Queue q: spec.admissionChecks[0]",
    ),
    "a parent that does not exist": (
        [queue("research"), queue("q", parent="reserach")],
        "Queue q: spec.parent: there is no queue 'reserach'",
    ),
    "a cycle of queues": (
        [queue("b", parent="a"), queue("a", parent="b")],
        "Queue a: spec.parent goes in a circle: a -> b -> a",
    ),
    "a queue that is its own parent": ([queue("a", parent="a")], "cannot be its own parent"),
    "a root below another queue": (
        [queue("a"), queue("root", parent="a")],
        "Queue root: spec.parent: the root queue has no parent",
    ),
    "seventeen levels of queues": (
        [queue("q1"), *(queue(f"q{number}", parent=f"q{number - 1}") for number in range(2, 18))],
        "Queue q17: spec.parent: expected at most 16 levels of queues, found more: q1 >",
    ),
    "guarantees above the parent's": (
        [
            queue("a", parent="p", guarantee={"cpu": 2}),
            queue("p", guarantee={"cpu": 3}),
            queue("b", parent="p", guarantee={"cpu": 2}),
        ],
        "Queue p: spec.guarantee.cpu: expected at least 4, what the queues below it are guaranteed",
    ),
    "shares deserved above the root's": (
        [queue("a", deserved={"cpu": 4}), queue("root", deserved={"cpu": 3})],
        "Queue root: spec.deserved.cpu: expected at least 4, what the queues below it deserve",
    ),
    "a guarantee above deserved": (
        [queue("a", guarantee={"cpu": 2}, deserved={"cpu": 1})],
        "Queue a: spec.guarantee.cpu: expected at most its deserved of 1, found 2",
    ),
    "a check with a negative delay": (
        [check("c", retryDelayMinutes=-1)],
        "AdmissionCheck c: spec.retryDelayMinutes: expected",
    ),
    "a check with no time to answer in": (
        [check("c", unknownTimeout="0s")],
        "AdmissionCheck c: spec.unknownTimeout: expected at least 1s, found 0s",
    ),
    "a check with an unknown policy": (
        [check("c", preemptionPolicy="Sometime")],
        "spec.preemptionPolicy",
    ),
    "an impossible answer of a check": (
        [group("a", status={"checks": [{"name": "c", "status": False}]})],
        (
            "PodGroup default/a: status.checks: check c: expected with status False the reason"
            " 'Retry' or 'Reject', found none"
        ),
    ),
    "an unknown answer of a check": (
        [group("a", status={"checks": [{"name": "c", "status": "Maybe"}]})],
        "status.checks[0].status",
    ),
    "a pledge of an unknown pod": (
        [group("a", status={"pledge": {"victims": ["default/b-main-0"]}})],
        (
            "PodGroup default/a: status.pledge.victims: expected the namespace/name of another"
            " group's Pod, or of another external PodGroup, that is described, found"
            " 'default/b-main-0'"
        ),
    ),
    "a pledge of a group's own pod": (
        [
            node("n"),
            group("a", status={"pledge": {"victims": ["default/a-t-0"]}}),
            pod("a-t-0", "a", phase="Running", node="n"),
        ],
        "PodGroup default/a: status.pledge.victims: default/a-t-0 is a pod of the group itself",
    ),
    "a pod that is pledged to two groups": (
        [
            node("n"),
            group("a", status={"pledge": {"victims": ["default/v-t-0"]}}),
            group("b", status={"pledge": {"victims": ["default/v-t-0"]}}),
            group("v", status={"phase": "Running"}),
            pod("v-t-0", "v", phase="Running", node="n"),
        ],
        "PodGroup default/b: status.pledge.victims: default/v-t-0 is pledged to default/a too",
    ),
    "an unknown step": ([timeline({"at": 0, "failPods": "a"})], "did you mean 'failPod'"),
    "a step without a time": ([timeline({"failNode": "n1"})], "expected when"),
    "a step at an invalid time": (
        [timeline({"at": "soon", "failNode": "n1"})],
        "expected a duration",
    ),
    "a step with two verbs": (
        [timeline({"at": 0, "failNode": "a", "suspend": "b"})],
        "expected one of",
    ),
    "a step without a verb": ([timeline({"at": 0})], "found none"),
    "a Timeline that is no list": (
        [manifest("Timeline", "t", {"at": 0})],
        "expected a list of steps",
    ),
    "a bad manifest in a step": (
        [timeline({"at": 0, "apply": group("a", minMembers=2)})],
        "did you mean 'minMember'",
    ),
    "an answer without a group": (
        [timeline({"at": 0, "setCheck": {"check": "c", "status": True}})],
        "expected a name, found",
    ),
    "an answer without a check": (
        [timeline({"at": 0, "setCheck": {"podGroup": "default/a", "status": True}})],
        "expected a name, found",
    ),
    "an exit code of 0": (
        [timeline({"at": 0, "failPod": "a", "exitCode": 0})],
        "expected a number from 1 to 255, found 0",
    ),
    "a step about an unknown node": (
        [timeline({"at": 0, "failNode": "n9"})],
        "there is no Node n9",
    ),
    "a step about an unknown pod": (
        [timeline({"at": 0, "finishPod": "x"})],
        "there is no Pod default/x",
    ),
    "a step about an unknown group": (
        [timeline({"at": 0, "suspend": "x"})],
        "default/x does not exist",
    ),
    "a step about an unknown gate": (
        [
            group("a", schedulingGates=[{"name": "x"}]),
            timeline({"at": 0, "openGate": {"podGroup": "default/a", "gate": "y"}}),
        ],
        "has no scheduling gate 'y'",
    ),
    "deleting an unknown object": (
        [timeline({"at": 0, "delete": "Queue/q"})],
        "Queue q does not exist",
    ),
    "deleting nothing": ([timeline({"at": 0, "delete": "Quue/q"})], "did you mean 'Queue'"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    manifests, expected = BAD[name]
    sentence = refusal(*manifests)
    assert expected in sentence
    assert "\n" not in sentence
    assert sentence.startswith("world")


def test_an_impossible_step_is_reported_with_its_line_and_time() -> None:
    sentence = refusal(node("n1"), timeline({"at": "90s", "recoverNode": "n2"}))
    assert sentence == "world, line 15: recoverNode at 90s: there is no Node n2"


@pytest.mark.parametrize("text", ["", "---\n---\n", "a: [", "just words", "- 1", "\tx: 1"])
def test_text_that_is_no_world_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        play(text, "world", config=SchedulerConfig())


def test_a_contradiction_of_queues_names_the_queue_wherever_it_is_in_the_file() -> None:
    manifests = [
        queue("team", parent="org", guarantee={"cpu": 2}),
        node("n1"),
        queue("org", guarantee={"cpu": 1}),
    ]
    sentence = (
        "Queue org: spec.guarantee.cpu: expected at least 2, what the queues below it are"
        " guaranteed (team 2), found 1"
    )
    assert refusal(*manifests) == f"world, line 21: {sentence}"
    assert refusal(*manifests[::-1]) == f"world, line 4: {sentence}"


def test_queues_may_precede_their_parent_and_be_below_a_default_not_described() -> None:
    result = outcome(
        queue("team", parent="org", guarantee={"cpu": 1}),
        queue("org", parent="default"),
        node("n1"),
        group("a", queue="team", runtime="1s"),
        group("b", queue="org", runtime="1s"),
        group("c", runtime="1s"),
    )
    assert phases(result) == {"a": "Completed", "b": "Pending", "c": "Pending"}
    assert [reasons(result, name) for name in "bc"] == [["Misconfigured"], ["Misconfigured"]]


def test_a_step_that_contradicts_the_queues_is_refused_and_the_world_goes_on() -> None:
    assert refused_steps(
        node("n1"),
        queue("org", guarantee={"cpu": 1}),
        timeline(
            {"at": 0, "apply": queue("team", parent="org", guarantee={"cpu": 2})},
            {"at": "1s", "apply": queue("team", parent="org", guarantee={"cpu": 1})},
            {"at": "2s", "delete": "Queue/org"},
        ),
    ) == (
        (
            "world.yaml, line 23: apply at 0s: Queue org: spec.guarantee.cpu: expected at least 2,"
            " what the queues below it are guaranteed (team 2), found 1"
        ),
        "world.yaml, line 43: delete at 2s: Queue org still has 1 queue below it: team",
    )


def test_a_world_may_lack_commands() -> None:
    assert outcome(node("n1"), group("a", runtime="1s")).podgroups["default/a"].phase == "Completed"


def test_a_later_group_whose_pods_would_have_taken_names_is_refused() -> None:
    later = group("a-b")
    [refused] = refused_steps(
        node("n1", 4),
        group("a", tasks=[{"name": "b-t", "template": {"requests": {"cpu": 1}}}]),
        timeline({"at": "1s", "apply": later}),
    )
    assert "pods of its task t would be called a-b-t-0 and so on" in refused
