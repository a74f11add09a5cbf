"""A third-party plugin that raises counts as a refusal, which affects no other group."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.reasons import Verdict
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.extension import POINTS
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.errors import PluginFailed
from batchq.scheduler.cycle import Scheduler
from batchq.scheduler.timers import next_due_at
from tests.builders import Decided, a_group, a_node, a_queue, a_snapshot


class Owner:
    """A plugin that raises for one group at preEnqueue, and for all calls at other points."""

    name = "owner"

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        if group.record.metadata.name != "boom":
            return []
        if self.answer is not None:
            answer: list[Verdict] = self.answer
            return answer
        raise KeyError("owner")

    def _raise(self, *arguments: Any) -> Any:
        raise ValueError("kaboom")

    admissible = permit = predicate = score = group_ready = _raise
    preemptable = reclaimable = queue_order = group_order = pod_order = due_at = _raise


def _with(plugin: Any, *points: str) -> Scheduler:
    usual = assemble(SchedulerConfig())
    standing = {
        point: (((plugin, 1),) if point in points else ()) + tuple(usual.plugins[point])
        for point in POINTS
    }
    return Scheduler(actions=usual.actions, plugins=standing, settings=usual.settings)


def _decided(
    scheduler: Scheduler, *groups: str, queues: tuple[str, ...] = ("default",), pods: int = 1
) -> Decided:
    """Decide with each group in each queue; order functions need at least two items to compare."""
    asking = [
        a_group(f"{name}{place or ''}", pods, queue=queue)
        for place, queue in enumerate(queues)
        for name in groups
    ]
    world = (a_node(cpu=4), *map(a_queue, queues), *asking)
    return Decided(scheduler.decide(a_snapshot(*world), 0))


def test_only_the_group_for_which_the_plugin_raises_waits() -> None:
    done = _decided(_with(Owner(), "preEnqueue"), "a", "boom", "c")
    assert done.admitted == ["default/a", "default/c"]
    assert done.reasons("boom") == ["Misconfigured"]
    assert done.message("boom") == "plugin owner failed at preEnqueue: KeyError: 'owner'"
    assert done.session.plugins.failures == {"owner at preEnqueue": "KeyError: 'owner'"}


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (7, "TypeError: 'int' object is not iterable"),
        (["no"], "TypeError: expected a list of Verdict, found ['no']"),
    ],
)
def test_an_invalid_answer_of_the_plugin_counts_as_a_refusal(answer: Any, wanted: str) -> None:
    done = _decided(_with(Owner(answer), "preEnqueue"), "a", "boom")
    assert done.admitted == ["default/a"]
    assert done.message("boom") == f"plugin owner failed at preEnqueue: {wanted}"


@pytest.mark.parametrize("point", ["admissible", "permit"])
def test_an_error_is_a_refusal_at_every_point_that_refuses_groups(point: str) -> None:
    done = _decided(_with(Owner(), point), "a")
    assert done.admitted == []
    assert done.message("a") == f"plugin owner failed at {point}: ValueError: kaboom"


def test_a_node_for_which_the_plugin_raises_takes_no_pods_and_scores_zero() -> None:
    done = _decided(_with(Owner(), "predicate"), "a")
    assert (done.admitted, done.bound) == ([], {})
    assert "plugin owner failed at predicate: ValueError: kaboom" in done.message("a")
    assert _decided(_with(Owner(), "score"), "a").bound == {"default/a-w-0": "n1"}


def test_a_plugin_that_raises_makes_no_group_ready_and_agrees_to_no_victim() -> None:
    scheduler = _with(Owner(), "groupReady", "preemptable", "reclaimable")
    assert _decided(scheduler, "a").bound == {}


@pytest.mark.parametrize("point", ["queueOrder", "groupOrder", "podOrder"])
def test_an_error_in_an_order_function_is_raised(point: str) -> None:
    with pytest.raises(PluginFailed) as stopped:
        _decided(_with(Owner(), point), "a", "c", queues=("default", "other"), pods=2)
    assert stopped.value.message == f"plugin owner failed at {point}: ValueError: kaboom"
    assert stopped.value.hint == f"take owner off {point} in scheduler.yaml, or correct it"


def test_a_due_time_function_that_raises_adds_no_instants() -> None:
    session = _decided(_with(Owner(), "preEnqueue")).session
    assert next_due_at(session) is None
    assert session.plugins.failures == {"owner at due_at": "ValueError: kaboom"}
