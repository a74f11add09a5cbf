"""Votes on victims: gang, priority, conformance and drf one at a time, and minRuntime."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import QueuePreemption
from batchq.core.preemption.protection import vote
from batchq.core.session.state import Shortage
from batchq.scheduler.timers import next_due_at
from tests.builders import a_group, a_node, a_priority, a_queue
from tests.unit.voting import answer, opened, running, some_pods, two_tasks, whole

BOTH = ("preemptable", "reclaimable")


@pytest.mark.parametrize("point", BOTH)
def test_only_pods_beyond_min_member_may_be_evicted_one_by_one(point: str) -> None:
    session = opened(*running("v", 3, minimum=2), a_group("c"), plugins=("gang",))
    assert answer(session, point, "c", some_pods(session, "v", 2)) is None
    assert answer(session, point, "c", some_pods(session, "v", 1, 2)) is False


@pytest.mark.parametrize("point", BOTH)
def test_a_gang_is_evicted_whole_or_not_at_all(point: str) -> None:
    session = opened(*running("v", 2), a_group("c"), plugins=("gang",))
    assert answer(session, point, "c", some_pods(session, "v", 1)) is False
    assert answer(session, point, "c", whole(session, "v")) is None


def test_the_last_pod_of_an_array_is_not_beyond_min_member() -> None:
    session = opened(*running("v", 1, minimum=1, replicas=5), a_group("c"), plugins=("gang",))
    assert answer(session, "preemptable", "c", some_pods(session, "v", 0)) is False


def test_a_pod_that_was_chosen_before_does_not_count_as_remaining() -> None:
    session = opened(*running("v", 3, minimum=2), a_group("c"), plugins=("gang",))
    group = session.by_key["default/v"]
    victim = some_pods(session, "v", 1)
    leaving = group.pods["v-1-2"]
    group.exchange("v-1-2", leaving, None)
    assert answer(session, "preemptable", "c", victim) is False


def test_a_terminating_pod_does_not_count_as_remaining() -> None:
    group, first, second, third = running("v", 3, minimum=2)
    ending = structs.replace(third, status=structs.replace(third.status, terminating=True))
    session = opened(group, first, second, ending, a_group("c"), plugins=("gang",))
    assert answer(session, "preemptable", "c", some_pods(session, "v", 1)) is False


def test_a_task_keeps_its_min_available_even_if_the_group_has_enough_pods() -> None:
    session = opened(*two_tasks("v", least=2, lead=1, work=3), a_group("c"), plugins=("gang",))
    assert answer(session, "preemptable", "c", some_pods(session, "v", 0, task="lead")) is False
    assert answer(session, "preemptable", "c", some_pods(session, "v", 2, task="work")) is None
    two = some_pods(session, "v", 1, 2, task="work")
    assert answer(session, "preemptable", "c", two) is None
    three = some_pods(session, "v", 0, 1, 2, task="work")
    assert answer(session, "preemptable", "c", three) is False


CLASSES = (a_priority("low", 1), a_priority("mid", 5), a_priority("high", 9))

#: (preemptor's class, victim's class) -> votes on a gang, its extra pods, an array's pods.
BY_CLASS = {
    ("high", "mid"): (True, True, True),
    ("mid", "mid"): (False, True, False),
    ("low", "mid"): (False, False, False),
}


def by_class(session: Any, point: str) -> tuple[bool | None, bool | None, bool | None]:
    return (
        answer(session, point, "c", whole(session, "gang")),
        answer(session, point, "c", some_pods(session, "elastic", 2)),
        answer(session, point, "c", some_pods(session, "array", 1)),
    )


def of_classes(preemptor: str, victim: str, **preemption: Any) -> Any:
    named: dict[str, Any] = {"priority_class_name": victim, "queue": "b"}
    return opened(
        *CLASSES,
        a_queue("a", preemption=QueuePreemption(**preemption)),
        a_queue("b"),
        *running("gang", 2, **named),
        *running("elastic", 3, minimum=2, **named),
        *running("array", 2, minimum=1, **named),
        a_group("c", priority_class_name=preemptor, queue="a"),
        plugins=("priority",),
    )


@pytest.mark.parametrize(("preemptor", "victim"), BY_CLASS)
def test_priority_agrees_to_victims_of_lower_priority(preemptor: str, victim: str) -> None:
    session = of_classes(preemptor, victim)
    assert by_class(session, "preemptable") == BY_CLASS[preemptor, victim]


@pytest.mark.parametrize(("preemptor", "victim"), BY_CLASS)
def test_reclaim_lower_priority_applies_the_rule_of_one_queue_between_queues(
    preemptor: str, victim: str
) -> None:
    session = of_classes(preemptor, victim, reclaim="LowerPriority")
    assert by_class(session, "reclaimable") == BY_CLASS[preemptor, victim]


def test_a_queue_that_reclaims_from_any_ignores_priority_between_queues() -> None:
    session = of_classes("low", "high", reclaim="Any")
    assert by_class(session, "reclaimable") == (True, True, True)


def test_by_default_a_queue_reclaims_from_none() -> None:
    session = of_classes("high", "low")
    assert by_class(session, "reclaimable") == (False, False, False)


@pytest.mark.parametrize("point", BOTH)
@pytest.mark.parametrize("namespace", ["system", "kube-system"])
def test_groups_of_system_namespaces_are_not_evicted(point: str, namespace: str) -> None:
    victims = (*running("v", namespace=namespace), *running("w", namespace="systems"))
    session = opened(*victims, a_group("c"), plugins=("conformance",))
    assert answer(session, point, "c", whole(session, "v", namespace)) is False
    assert answer(session, point, "c", whole(session, "w", "systems")) is None


def test_the_protected_namespaces_can_be_configured() -> None:
    victims = (*running("v", namespace="system"), *running("w", namespace="ops"))
    session = opened(
        *victims,
        a_group("c"),
        plugins=("conformance",),
        plugin_config={"conformance": {"namespaces": ["ops"]}},
    )
    assert answer(session, "preemptable", "c", whole(session, "v", "system")) is None
    assert answer(session, "preemptable", "c", whole(session, "w", "ops")) is False


def votes(session: Any, point: str = "preemptable") -> bool:
    return bool(vote(session, point, session.by_key["default/c"], whole(session, "v"), Shortage()))


#: A configuration in which only the plugin `priority` votes.
AGREED: dict[str, Any] = {"plugins": ("priority",), "min_runtime_ms": 30_000}


def low_and_high(**low: Any) -> tuple[Any, ...]:
    high = a_group("c", priority_class_name="high")
    reclaims = a_queue(preemption=QueuePreemption(reclaim="Any"))
    return (*CLASSES, reclaims, *running("v", priority_class_name="low", **low), high)


@pytest.mark.parametrize("point", BOTH)
def test_a_group_that_has_run_for_less_than_min_runtime_is_no_victim(point: str) -> None:
    world = low_and_high(started=10_000)
    assert votes(opened(*world, now_ms=39_999, **AGREED), point) is False
    assert votes(opened(*world, now_ms=40_000, **AGREED), point) is True


def test_a_group_that_lost_pods_in_the_meantime_is_still_protected() -> None:
    world = low_and_high(started=10_000, phase=PodGroupPhase.UNKNOWN)
    assert votes(opened(*world, now_ms=39_999, **AGREED)) is False
    assert votes(opened(*world, now_ms=40_000, **AGREED)) is True


def test_pods_beyond_min_member_are_protected_like_the_group() -> None:
    world = (*running("v", 3, minimum=2, started=10_000), a_group("c"))
    for now_ms, may in ((39_999, False), (40_000, True)):
        session = opened(*world, now_ms=now_ms, **AGREED)
        victim = some_pods(session, "v", 2)
        assert vote(session, "preemptable", session.by_key["default/c"], victim, Shortage()) is may


def test_no_plugin_is_asked_about_a_protected_victim() -> None:
    session = opened(*low_and_high(started=10_000), now_ms=39_999, **AGREED)
    asked: list[str] = []

    def listen(session: Any, preemptor: Any, victim: Any, shortage: Any) -> bool:
        asked.append(victim.group.key)
        return True

    session.plugins.points["preemptable"].add("listener", listen)
    assert votes(session) is False
    assert asked == []


def test_without_min_runtime_no_group_is_protected() -> None:
    session = opened(*low_and_high(started=10), plugins=("priority",), now_ms=10)
    assert votes(session) is True


def test_a_group_that_is_in_queue_and_does_not_run_is_not_protected() -> None:
    session = opened(*low_and_high(phase=PodGroupPhase.IN_QUEUE), **AGREED)
    assert votes(session) is True


def test_a_session_runs_when_a_protection_ends() -> None:
    early, late = running("v", started=10_000), running("w", started=5_000)
    world = (a_node(cpu=4), *early, *late, a_group("c"))
    session = opened(*world, now_ms=36_000, **AGREED)
    assert next_due_at(session) == 40_000
    ended = running("e", started=10_000, phase=PodGroupPhase.COMPLETED)[0]
    session = opened(ended, now_ms=36_000, **AGREED)
    assert next_due_at(session) == 7 * 86_400_000
    session = opened(*world, plugins=("priority",), now_ms=36_000)
    assert next_due_at(session) is None


def test_drf_agrees_to_extra_pods_while_the_victim_keeps_as_much_as_the_preemptor_gets() -> None:
    world = (
        a_node(cpu=8, memory="8Gi"),
        *running("v", 4, minimum=1),
        a_group("one", cpu=3),
        a_group("two", cpu="3001m"),
    )
    session = opened(*world, plugins=("drf",))
    assert answer(session, "preemptable", "one", some_pods(session, "v", 3)) is True
    assert answer(session, "preemptable", "two", some_pods(session, "v", 3)) is False
    assert answer(session, "preemptable", "one", some_pods(session, "v", 2, 3)) is False


def test_drf_compares_the_dominant_share_of_each() -> None:
    """3 of 8 cpus is a lower share than 7 of 16 GiB, although the dimensions differ."""
    world = (a_node(cpu=8, memory="16Gi"), *running("v", 4, minimum=1))
    memory = a_group("m", min_resources={"memory": 7 * 2**30})
    less = a_group("l", min_resources={"memory": 6 * 2**30})
    session = opened(*world, memory, less, plugins=("drf",))
    assert answer(session, "preemptable", "m", some_pods(session, "v", 3)) is False
    assert answer(session, "preemptable", "l", some_pods(session, "v", 3)) is True


def test_drf_refuses_a_victim_that_leaves_whole_and_keeps_no_share() -> None:
    session = opened(a_node(cpu=8), *running("v", 4), a_group("c", cpu=1), plugins=("drf",))
    assert answer(session, "preemptable", "c", whole(session, "v")) is False


def test_drf_orders_groups_by_their_share_of_the_cluster() -> None:
    world = (
        a_node(cpu=8, gpu=2),
        *running("much", 4, minimum=1),
        *running("little", 1, minimum=1, replicas=9),
        a_group("nothing", created=7),
    )
    session = opened(*world, plugins=("drf",))
    in_order = sorted(session.groups.values(), key=session.group_key)
    assert [group.key for group in in_order] == [
        "default/nothing",
        "default/little",
        "default/much",
    ]
