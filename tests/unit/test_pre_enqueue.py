"""preEnqueue with several plugins; waiting for a gate costs a group nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from batchq.api.intents import Intent
from batchq.api.objects import PodGroup, SchedulingGate
from batchq.api.reasons import Verdict, Waiting
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.extension import Plugin
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.scheduler.cycle import Scheduler
from tests.builders import Decided, a_group, a_node, a_snapshot, a_task, decide

GATED = (SchedulingGate(name="data"), SchedulingGate(name="money"))
MESSAGE = "Scheduling is blocked due to non-empty scheduling gates: data, money"


class Licence:
    """A third-party plugin: groups labelled with a licence need one."""

    name = "licence"

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        wanted = group.record.metadata.labels.get("licence")
        if wanted is None:
            return []
        detail = f"all licences of {wanted} are in use"
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail=detail)]


def scheduler(*more: Plugin, without: str = "") -> Scheduler:
    """Return the default scheduler with these plugins first at preEnqueue, and one removed."""
    usual = assemble(SchedulerConfig())
    others = tuple(one for one in usual.plugins["preEnqueue"] if one[0].name != without)
    standing = {**usual.plugins, "preEnqueue": (*((plugin, 1) for plugin in more), *others)}
    return Scheduler(actions=usual.actions, plugins=standing, settings=usual.settings)


def decided(how: Scheduler, *objects: object, now_ms: int = 0) -> Decided:
    return Decided(how.decide(a_snapshot(a_node(cpu=8), *objects), now_ms))


def labelled(group: PodGroup) -> PodGroup:
    return structs.replace(
        group, metadata=structs.replace(group.metadata, labels={"licence": "cad"})
    )


def said(done: Decided, name: str) -> list[tuple[str, str, str]]:
    reasons = done.session.by_key[f"default/{name}"].status.reasons
    return [(one.plugin, str(one.reason), one.message()) for one in reasons]


def test_all_plugins_must_agree_before_a_group_joins_the_pending_queue() -> None:
    done = decided(
        scheduler(Licence()),
        a_group("both", scheduling_gates=GATED[:1]),
        labelled(a_group("licence")),
        a_group("free"),
        a_group("gated", scheduling_gates=GATED),
    )
    assert done.admitted == ["default/free"]


def test_all_refusals_of_all_plugins_are_recorded() -> None:
    done = decided(scheduler(Licence()), labelled(a_group("g", scheduling_gates=GATED)))
    assert said(done, "g") == [
        ("licence", "SchedulingGated", "all licences of cad are in use"),
        ("gates", "SchedulingGated", MESSAGE),
    ]


def test_with_the_plugin_disabled_others_decide_and_gates_are_kept() -> None:
    group = labelled(a_group("g", scheduling_gates=GATED))
    done = decided(scheduler(Licence(), without="gates"), group)
    assert said(done, "g") == [("licence", "SchedulingGated", "all licences of cad are in use")]
    free = a_group("g", scheduling_gates=GATED)
    done = decided(scheduler(Licence(), without="gates"), free)
    assert done.admitted == ["default/g"]
    assert done.session.by_key["default/g"].record.spec.scheduling_gates == GATED


def test_with_the_plugin_disabled_gates_of_pods_are_ignored() -> None:
    tasks = (a_task("a", 1), a_task("b", 2, scheduling_gates=GATED[:1]))
    group = a_group("g", tasks=tasks, min_member=3)
    assert decided(scheduler(), group).reasons("g") == ["SchedulingGated"]
    done = decided(scheduler(without="gates"), group)
    assert sorted(done.bound) == ["default/g-a-0", "default/g-b-0", "default/g-b-1"]


def test_one_process_may_run_schedulers_with_and_without_the_plugin() -> None:
    """Results derived from a spec are cached across sessions, but not across a reload."""
    with_gates, group = scheduler(), a_group("g", tasks=(a_task(scheduling_gates=GATED),))
    assert decided(with_gates, group).reasons("g") == ["SchedulingGated"]
    without = Scheduler(
        actions=with_gates.actions,
        plugins=scheduler(without="gates").plugins,
        settings=with_gates.settings,
        _carried=with_gates._carried,
    )
    assert decided(without, group).bound == {"default/g-w-0": "n1"}
    assert decided(with_gates, group).reasons("g") == ["SchedulingGated"]


def test_the_condition_of_a_gated_group_has_the_message_of_the_kep() -> None:
    done = decide(a_node(cpu=8), a_group("g", scheduling_gates=GATED))
    [scheduled] = [
        one for one in done.session.by_key["default/g"].status.conditions if one.type == "Scheduled"
    ]
    assert (scheduled.status, scheduled.reason) == ("False", "SchedulingGated")
    assert scheduled.message == MESSAGE


@pytest.mark.parametrize(
    "gated",
    [
        lambda: a_group("g", created=5, scheduling_gates=GATED),
        lambda: a_group("g", created=5, tasks=(a_task(scheduling_gates=GATED),)),
    ],
    ids=["group", "template"],
)
def test_waiting_for_a_gate_costs_no_retry_and_no_position_and_only_one_write(
    gated: Callable[[], PodGroup],
) -> None:
    how, group = scheduler(), gated()
    written: list[Intent] = []
    for now_ms in range(1_000, 3_600_000, 200_000):
        done = decided(how, group, now_ms=now_ms)
        written += done.intents
        status = done.session.by_key["default/g"].status
        group = structs.replace(group, status=status)
        assert (status.backoff_count, status.backoff_until) == (0, None)
        assert done.session.by_key["default/g"].queue_time == 5
        assert done.reasons("g") == ["SchedulingGated"]
    assert [type(intent).__name__ for intent in written] == ["SetReasons"]


def test_an_opened_group_has_its_original_position() -> None:
    early = a_group("early", 8, created=1, scheduling_gates=GATED)
    late = a_group("late", 8, created=2)
    assert decide(a_node(cpu=8), early, late).admitted == ["default/late"]
    opened = structs.replace(early, spec=structs.replace(early.spec, scheduling_gates=()))
    assert decide(a_node(cpu=8), opened, late).admitted == ["default/early"]


def test_an_external_group_counts_the_pods_of_its_tasks_and_its_additional_resources() -> None:
    asks = {"cpu": 1000}
    tasks = (a_task("a", 1, scheduling_gates=GATED[:1]),)
    of_many = a_group("g", tasks=tasks, min_member=3, controller="external", min_resources=asks)
    assert decide(a_node(cpu=8), of_many).reasons("g") == ["SchedulingGated"]
    of_any = a_group("g", controller="external", min_resources=asks, min_member=3)
    assert decide(a_node(cpu=8), of_any).admitted == ["default/g"]
