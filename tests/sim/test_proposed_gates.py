"""Sentences of KEP-3521 that no other test shows.

docs/sources.md has the whole document, sentence by sentence.
"""

from __future__ import annotations

import pytest

from batchq.api.objects import SchedulingGate
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.session.session import Session
from tests.builders import a_group, a_node, a_running_group, a_snapshot
from tests.sim.worlds import (
    bound,
    evicted,
    finished,
    group,
    node,
    of,
    outcome,
    phases,
    pod,
    priority,
    queue,
    timeline,
)

OFF = "plugins: {multiPoint: {disabled: [gates]}}"
GATES = (SchedulingGate(name="data"),)


def test_a_scheduled_pod_without_gates_is_accepted_and_proceeds() -> None:
    came = outcome(
        node("n1", 4),
        group("g", status={"phase": "Running", "reservedAt": 0}),
        pod("g-t-0", "g", phase="Running", node="n1", startedAt=0),
        timeline({"at": "5s", "finishPod": "default/g-t-0"}),
    )
    assert finished(came) == [(5, ["default/g"])]


def test_without_gated_groups_the_plugin_changes_nothing() -> None:
    """Two queues, two priorities, a gang, an array, and a victim."""
    world = (
        node("n1", 4),
        node("n2", 4),
        queue("a", weight=2),
        queue("b", capability={"cpu": 5}),
        priority("high", 10),
        group("gang", 4, queue="a", runtime="20s", schedulingGates=[]),
        group("array", 9, queue="b", minMember=1, runtime="7s"),
        group("next", 3, queue="a", runtime="5s"),
        timeline(
            {"at": "3s", "apply": group("urgent", 4, queue="a", priorityClassName="high")},
        ),
    )
    with_gates, without = outcome(*world), outcome(*world, config=OFF)
    assert with_gates == without
    assert [at for at, _ in evicted(with_gates)] == [3]


#: The sla plugin refuses an invalid waiting time.
UNREADABLE = {"batchq/sla-waiting-time": "soon"}


@pytest.mark.parametrize(
    ("plugins", "phase"),
    [
        ("multiPoint: {enabled: [sla]}", "Pending"),
        ("preEnqueue: {enabled: [sla]}", "Pending"),
        ("preEnqueue: {enabled: [sla, gates], disabled: ['*']}", "Pending"),
        ("multiPoint: {enabled: [sla]}\n  preEnqueue: {disabled: [sla]}", "Running"),
        ("groupOrder: {enabled: [sla]}", "Running"),
        ("multiPoint: {}", "Running"),
    ],
)
def test_a_plugin_is_called_at_pre_enqueue_through_multi_point_or_its_own_point(
    plugins: str, phase: str
) -> None:
    late = group("late")
    late["metadata"]["annotations"] = UNREADABLE
    came = outcome(node("n1", 4), late, group("g"), config=f"plugins:\n  {plugins}\n")
    assert phases(came) == {"late": phase, "g": "Running"}


def decided(text: str, *objects: object) -> Session:
    return assemble(read_config(text, "scheduler.yaml")).decide(a_snapshot(*objects), 0)


def test_off_on_and_off_again_gates_are_ignored_respected_and_ignored() -> None:
    waits = a_group("g", scheduling_gates=GATES)
    seen = []
    for text in (OFF, "", OFF):
        session = decided(text, a_node(cpu=4), waits)
        found = session.by_key["default/g"]
        seen.append(str(found.phase))
        # They are neither silently dropped nor refused.
        assert found.record.spec.scheduling_gates == GATES
    assert seen == ["InQueue", "Pending", "InQueue"]


def test_a_running_group_with_closed_gates_continues_when_they_are_respected_again() -> None:
    """It was admitted while the plugin was off."""
    session = decided("", a_node(cpu=4), *a_running_group("g", scheduling_gates=GATES))
    assert str(session.by_key["default/g"].phase) == "Running"
    assert {type(intent).__name__ for intent in session.intents} <= {"Settle"}


def test_a_gated_group_is_scheduled_when_all_its_gates_are_removed_at_once() -> None:
    gates = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    came = outcome(
        node("n1", 4),
        group("g", schedulingGates=gates),
        timeline({"at": "15s", "apply": group("g")}),
    )
    assert bound(came) == [(15, {"default/g-t-0": "n1"})]
    assert of(came, "g").phase == "Running"
