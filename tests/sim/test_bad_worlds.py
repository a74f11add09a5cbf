"""What is wrong with a world is told in one sentence, and nothing is played."""

from __future__ import annotations

import pytest

from batchq.config.model import SchedulerConfig
from batchq.errors import InvalidInput
from batchq.sim.run import play
from tests.sim.worlds import (
    Manifest,
    group,
    manifest,
    node,
    outcome,
    pod,
    queue,
    refusal,
    timeline,
)

BAD: dict[str, tuple[list[Manifest], str]] = {
    "a pod without its group": ([pod("x", "ghost")], "its PodGroup default/ghost is not described"),
    "a pod of no task": ([group("a"), pod("x", "a", task="u")], "has no task u; its tasks: t"),
    "a pod beyond the replicas": ([group("a", 2), pod("x", "a", 2)], "has 2 replicas"),
    "two pods in one place": ([group("a"), pod("x", "a"), pod("y", "a")], "and so is default/x"),
    "a running pod nowhere": ([group("a"), pod("x", "a", phase="Running")], "does not say where"),
    "a waiting pod that terminates": (
        [group("a"), pod("x", "a", terminating=True)],
        "only a pod on a node can be terminating",
    ),
    "a group twice": ([group("a"), group("a")], "PodGroup default/a is given twice"),
    "a uid twice": ([group("a", uid="7"), group("b", uid="7")], "uid 7 is given twice"),
    "a uid that is a place": ([group("a"), group("b", uid="1")], "uid 1 is given twice"),
    "two default priority classes": (
        [
            manifest("PriorityClass", "a", {"value": 1, "default": True}),
            manifest("PriorityClass", "b", {"value": 2, "default": True}),
        ],
        "is the default already",
    ),
    "an unknown field": ([group("a", minMembers=2)], "did you mean 'minMember'"),
    "an unknown kind": ([manifest("PodGruop", "a")], "did you mean 'PodGroup'"),
    "a runtime that is none": ([group("a", runtime="soon")], "annotation batchq/runtime"),
    "what is not built yet": ([queue("q", parent="p")], "is not available in this version"),
    "a check": ([manifest("AdmissionCheck", "c", {})], "are not available in this version"),
    "a pledge": ([group("a", status={"pledge": {"claimant": "b"}})], "not available"),
    "an unknown step": ([timeline({"at": 0, "failPods": "a"})], "did you mean 'failPod'"),
    "a step without a time": ([timeline({"failNode": "n1"})], "expected when"),
    "a step at no time": ([timeline({"at": "soon", "failNode": "n1"})], "expected a duration"),
    "a step of two": ([timeline({"at": 0, "failNode": "a", "suspend": "b"})], "expected one of"),
    "a step of none": ([timeline({"at": 0})], "found none"),
    "steps that are none": ([manifest("Timeline", "t", {"at": 0})], "expected a list of steps"),
    "a bad manifest in a step": (
        [timeline({"at": 0, "apply": group("a", minMembers=2)})],
        "did you mean 'minMember'",
    ),
    "a step about checks": ([timeline({"at": 0, "setCheck": {}})], "not available in this version"),
    "an exit code of 0": (
        [timeline({"at": 0, "failPod": "a", "exitCode": 0})],
        "expected a number from 1 to 255, found 0",
    ),
    "a step about no node": ([timeline({"at": 0, "failNode": "n9"})], "there is no Node n9"),
    "a step about no pod": ([timeline({"at": 0, "finishPod": "x"})], "there is no Pod default/x"),
    "a step about no group": ([timeline({"at": 0, "suspend": "x"})], "default/x does not exist"),
    "a step about no gate": (
        [
            group("a", schedulingGates=[{"name": "x"}]),
            timeline({"at": 0, "openGate": {"podGroup": "default/a", "gate": "y"}}),
        ],
        "has no scheduling gate 'y'",
    ),
    "deleting what is not there": (
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


def test_a_step_that_cannot_be_done_is_named_with_its_line_and_time() -> None:
    sentence = refusal(node("n1"), timeline({"at": "90s", "recoverNode": "n2"}))
    assert sentence == "world, line 15: recoverNode at 90s: there is no Node n2"


@pytest.mark.parametrize("text", ["", "---\n---\n", "a: [", "just words", "- 1", "\tx: 1"])
def test_what_is_no_world_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        play(text, "world", config=SchedulerConfig())


def test_a_world_may_lack_commands() -> None:
    assert outcome(node("n1"), group("a", runtime="1s")).podgroups["default/a"].phase == "Completed"
