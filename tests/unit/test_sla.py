"""The plugin sla: overdue groups come first, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.intents import Evict
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroup, PodGroupStatus
from batchq.config import DEFAULT_PLUGINS, PluginEntry, SchedulerConfig
from batchq.scheduler.timers import next_due_at
from tests.builders import Decided, a_group, a_node, a_priority, a_queue, decide
from tests.unit.voting import opened, running

HOUR = 3_600_000
#: Before the others, so that it overrules priority.
FIRST = (PluginEntry(name="sla"), *DEFAULT_PLUGINS)
LAST = (*DEFAULT_PLUGINS, PluginEntry(name="sla"))


def waits(name: str, *, sla: str | None = None, created: int = 0, **spec: Any) -> PodGroup:
    group = a_group(name, created=created, **spec)
    notes = {} if sla is None else {"batchq/sla-waiting-time": sla}
    return structs.replace(group, metadata=structs.replace(group.metadata, annotations=notes))


def decided(
    *objects: Any, now_ms: int, plugins: tuple[PluginEntry, ...] = FIRST, **arguments: object
) -> Decided:
    config = SchedulerConfig(plugins=plugins, plugin_config={"sla": arguments})
    return decide(*objects, now_ms=now_ms, config=config)


IMPORTANT = (a_priority("high", 9), a_group("new", created=HOUR, priority_class_name="high"))


def test_an_overdue_group_comes_before_groups_of_higher_priority() -> None:
    world = (a_node(cpu=1), *IMPORTANT, waits("old", sla="1h"))
    assert decided(*world, now_ms=HOUR).admitted == ["default/old"]


def test_a_group_that_is_not_overdue_keeps_its_position() -> None:
    world = (a_node(cpu=1), *IMPORTANT, waits("old", sla="1h"))
    assert decided(*world, now_ms=HOUR - 1).admitted == ["default/new"]


def test_sla_after_priority_orders_only_groups_of_equal_priority() -> None:
    world = (a_node(cpu=1), *IMPORTANT, waits("old", sla="1h"))
    assert decided(*world, now_ms=HOUR, plugins=LAST).admitted == ["default/new"]


def test_an_overdue_group_is_not_preempted_by_groups_that_it_passed() -> None:
    """It started after it became overdue; otherwise the next session would evict it."""
    group, pod = running("old", started=2 * HOUR)
    old = structs.replace(group, metadata=waits("old", sla="1h").metadata)
    world = (a_node(cpu=1), *IMPORTANT, old, pod)
    assert decided(*world, now_ms=3 * HOUR).of(Evict) == []
    evicted = decided(*world, now_ms=3 * HOUR, plugins=LAST).of(Evict)
    assert [intent.pod for intent in evicted] == ["default/old-w-0"]


def test_a_group_that_started_in_time_is_a_victim_like_any_other() -> None:
    group, pod = running("old", started=HOUR - 1)
    old = structs.replace(group, metadata=waits("old", sla="1h").metadata)
    evicted = decided(a_node(cpu=1), *IMPORTANT, old, pod, now_ms=3 * HOUR).of(Evict)
    assert [intent.pod for intent in evicted] == ["default/old-w-0"]


def test_a_group_that_has_been_overdue_for_longer_still_preempts() -> None:
    group, pod = running("old", started=2 * HOUR)
    old = structs.replace(group, metadata=waits("old", sla="1h", created=5).metadata)
    longer = waits("longer", sla="1h", priority_class_name="high")
    world = (a_node(cpu=1), a_priority("high", 9), longer, old, pod)
    evicted = decided(*world, now_ms=3 * HOUR).of(Evict)
    assert [intent.pod for intent in evicted] == ["default/old-w-0"]


def test_the_longest_overdue_goes_first() -> None:
    world = (a_node(cpu=1), waits("older", sla="3h"), waits("overdue", sla="1h", created=60_000))
    assert decided(*world, now_ms=4 * HOUR).admitted == ["default/overdue"]


def test_the_argument_applies_to_all_groups_and_the_annotation_to_one() -> None:
    world = (a_node(cpu=1), *IMPORTANT, waits("old"))
    assert decided(*world, now_ms=HOUR).admitted == ["default/new"]
    assert decided(*world, now_ms=HOUR, waitingTime="1h").admitted == ["default/old"]
    patient = (a_node(cpu=1), *IMPORTANT, waits("old", sla="2h"))
    assert decided(*patient, now_ms=HOUR, waitingTime="1h").admitted == ["default/new"]


def test_sla_lets_no_group_past_a_limit() -> None:
    world = (a_node(cpu=1), waits("large", sla="1h", cpu=2), waits("small", created=1))
    done = decided(*world, now_ms=5 * HOUR)
    assert done.admitted == ["default/small"]
    assert done.reasons("large") == ["ExceedsCapacity"]
    full = (a_queue("q", capability={"cpu": 0}), waits("old", sla="1h", queue="q"), a_node(cpu=4))
    assert decided(*full, now_ms=5 * HOUR).admitted == []


def test_the_wait_counts_from_the_queue_time_and_not_from_the_creation() -> None:
    back_again = PodGroupStatus(queue_time=2 * HOUR)
    back = structs.replace(waits("old", sla="1h"), status=back_again)
    world = (a_node(cpu=1), *IMPORTANT, back)
    assert decided(*world, now_ms=2 * HOUR).admitted == ["default/new"]
    assert decided(*world, now_ms=3 * HOUR).admitted == ["default/old"]


def test_an_annotation_that_is_not_a_duration_is_an_error() -> None:
    done = decided(a_node(cpu=1), waits("g", sla="soon"), now_ms=0)
    assert done.admitted == []
    assert done.reasons("g") == ["Misconfigured"]
    assert done.message("g") == (
        "annotation batchq/sla-waiting-time: expected a duration such as 90s, 2h or 1d,"
        " found 'soon'"
    )


def test_a_session_runs_when_a_group_becomes_overdue() -> None:
    world = (a_node(cpu=1), waits("g", sla="1h", created=5), waits("h", sla="2h"))
    assert next_due_at(opened(*world, plugins=("sla",), now_ms=10)) == HOUR + 5
    assert next_due_at(opened(*world, plugins=("sla",), now_ms=HOUR + 5)) == 2 * HOUR
    assert next_due_at(opened(*world, plugins=("gang",), now_ms=10)) is None


@pytest.mark.parametrize(
    "phase", [PodGroupPhase.RUNNING, PodGroupPhase.COMPLETED, PodGroupPhase.CANCELLED]
)
def test_a_group_that_runs_or_has_ended_has_no_due_time(phase: PodGroupPhase) -> None:
    gone = structs.replace(waits("g", sla="1h"), status=PodGroupStatus(phase=phase))
    session = opened(a_node(cpu=1), gone, waits("w"), plugins=("sla",), now_ms=2 * HOUR)
    keys = {key: session.group_key(group)[0] for key, group in session.by_key.items()}
    assert keys == {"default/g": (1, 0), "default/w": (1, 0)}
