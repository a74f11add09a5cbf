"""The effect of sessions on the metrics; all expected numbers are computed by hand."""

from __future__ import annotations

import msgspec
import pytest

from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    AdmissionCheckStatus,
    Metadata,
)
from batchq.client import changes
from batchq.store.memory import MemoryStore
from tests.builders import a_node, a_queue, a_task, amounts
from tests.daemon.watched import GATE, Watched, labels, put
from tests.scheduler.consumers import claim, external, in_queue, report

_set = msgspec.structs.replace


@pytest.fixture
def watched() -> Watched:
    return Watched(MemoryStore())


def test_gated_groups_are_counted_apart_from_groups_that_do_not_fit(watched: Watched) -> None:
    watched.ready(a_node(cpu=4))
    watched.apply(a_queue("small", capability={"cpu": 1}))
    watched.submit("gated", scheduling_gates=GATE)
    watched.submit("large", 2, queue="small", cpu=2)
    watched.submit("runs", cpu=3)
    watched.submit("waits", cpu=2)
    watched.until_idle()
    assert watched.scrape().all("waiting_groups") == {
        labels(queue="default", phase="Pending", reason="SchedulingGated"): 1,
        labels(queue="default", phase="Pending", reason="WaitingForResources"): 1,
        labels(queue="small", phase="Pending", reason="ExceedsMaxQuota"): 1,
    }
    assert watched.scrape().all("gated_groups") == {
        labels(queue="default"): 1,
        labels(queue="small"): 0,
    }
    assert watched.scrape().all("groups") == {
        labels(queue="default", phase="Pending"): 2,
        labels(queue="default", phase="InQueue"): 1,
        labels(queue="small", phase="Pending"): 1,
    }


def test_a_gate_counts_behind_a_more_fundamental_reason(watched: Watched) -> None:
    watched.submit("both", scheduling_gates=GATE, suspend=True)
    watched.until_idle()
    seen = watched.scrape()
    assert seen.value("waiting_groups", queue="default", phase="Pending", reason="Suspended") == 1
    assert seen.value("gated_groups", queue="default") == 1


def test_the_oldest_gated_and_the_oldest_waiting_group_have_ages(watched: Watched) -> None:
    watched.ready(a_node(cpu=1))
    watched.submit("gated", scheduling_gates=GATE)
    watched.later(5_000)
    watched.submit("runs", cpu=1)
    watched.until_idle()
    watched.submit("first", cpu=1)
    watched.later(2_000)
    watched.submit("second", cpu=1)
    watched.later(1_500)
    watched.until_idle()
    seen = watched.scrape()
    assert seen.value("oldest_gated_seconds", queue="default") == 8.5
    assert seen.value("oldest_waiting_seconds", queue="default") == 3.5
    # Time passes without events.
    watched.later(1_000)
    watched.turn()
    seen = watched.scrape()
    assert seen.value("oldest_gated_seconds", queue="default") == 9.5
    assert seen.value("oldest_waiting_seconds", queue="default") == 4.5


def test_unknown_queue_names_share_one_series(watched: Watched) -> None:
    for number in range(3):
        watched.apply(a_queue(f"typo-{number}"))
        watched.submit(f"g{number}", queue=f"typo-{number}")
        watched.delete("Queue", f"typo-{number}")
    watched.turn()
    seen = watched.scrape()
    assert seen.all("waiting_groups") == {
        labels(queue="", phase="Pending", reason="QueueNotFound"): 3
    }
    assert not [value for value in seen.label_values if "typo" in value]


def test_a_resource_that_only_a_group_asks_for_makes_no_series(watched: Watched) -> None:
    watched.ready(a_node(cpu=1, gpu=2))
    task = a_task(requests={"cpu": 1, "gpu": 1, "unicorns": 3})
    watched.submit("dreams", tasks=(task,))
    watched.turn()
    seen = watched.scrape()
    pending = {"queue": "default", "kind": "pending"}
    assert seen.value("queue_resource", resource="gpu", **pending) == 1
    assert "unicorns" not in seen.label_values


def test_a_queue_shows_what_it_may_have_holds_and_asks_for_in_cores_and_bytes(
    watched: Watched,
) -> None:
    watched.ready(a_node(cpu=4, memory="8Gi"))
    watched.apply(
        _set(
            a_queue("team", capability={"cpu": 3}),
            spec=_set(
                a_queue("team", capability={"cpu": 3}).spec,
                weight=3,
                guarantee=amounts(cpu="500m"),
                deserved=amounts(cpu=2),
            ),
        )
    )
    first = a_task("w", 1, requests={"cpu": "1500m", "memory": "1Gi"})
    watched.submit("first", tasks=(first,), queue="team")
    watched.until_idle()
    watched.start_pods()
    watched.submit("second", 1, cpu=2, queue="team")
    watched.turn()
    seen = watched.scrape()

    def cores(kind: str, queue: str = "team") -> float | None:
        return seen.value("queue_resource", queue=queue, resource="cpu", kind=kind)

    assert cores("deserved") == 2
    assert cores("guarantee") == 0.5
    assert cores("capability") == 3
    assert cores("allocated") == 1.5
    assert cores("reserved") == 0
    assert cores("pending") == 2
    assert cores("allocated", "root") == 1.5
    memory = {"queue": "team", "resource": "memory"}
    assert seen.value("queue_resource", **memory, kind="allocated") == 1_073_741_824
    assert seen.value("queue_resource", **memory, kind="capability") is None
    # It holds all of its deserved memory, because it requests no more.
    assert seen.value("queue_share", queue="team") == 1
    assert seen.value("queue_share", queue="default") is None
    assert seen.value("queue_weight", queue="team") == 3


def test_reserved_amounts_are_shown_apart_from_those_on_nodes(watched: Watched) -> None:
    watched.ready(a_node(cpu=4), a_node("n2", cpu=4, cordoned=True))
    task = _set(a_task("w", 1), template=_set(a_task("w", 1).template, node_selector={"x": "y"}))
    watched.submit("nowhere", tasks=(task,))
    watched.turn()
    seen = watched.scrape()
    kinds = {"queue": "default", "resource": "cpu"}
    assert seen.value("queue_resource", **kinds, kind="reserved") in (0, 1)
    assert seen.value("nodes", state="ready") == 1
    assert seen.value("nodes", state="cordoned") == 1
    assert seen.value("nodes", state="silent") == 0


def test_the_series_of_a_queue_that_is_gone_end(watched: Watched) -> None:
    watched.ready(a_node(cpu=4))
    watched.apply(a_queue("passing"))
    watched.submit("g", queue="passing")
    watched.until_idle()
    assert watched.scrape().value("admission_wait_seconds_count", queue="passing") == 1
    watched.start_pods()
    watched.end_pods()
    watched.until_idle()
    watched.later(8 * 24 * 3_600_000)
    watched.until_idle()
    watched.delete("Queue", "passing")
    watched.turn()
    assert "passing" not in watched.scrape().label_values


def test_waits_for_admission_and_for_the_start_are_seen_once_each(watched: Watched) -> None:
    watched.submit("g")
    watched.turn()
    watched.later(90_000)
    watched.ready(a_node(cpu=4))
    watched.until_idle()
    watched.later(20_000)
    watched.start_pods()
    watched.until_idle()
    watched.turn()
    seen = watched.scrape()
    assert seen.value("admission_wait_seconds_count", queue="default") == 1
    assert seen.value("admission_wait_seconds_sum", queue="default") == 90
    assert seen.value("admission_wait_seconds_bucket", queue="default", le="60.0") == 0
    assert seen.value("admission_wait_seconds_bucket", queue="default", le="300.0") == 1
    assert seen.value("start_wait_seconds_count", queue="default") == 1
    assert seen.value("start_wait_seconds_sum", queue="default") == 20


def test_groups_that_a_consumer_or_a_user_ended_are_counted_once(watched: Watched) -> None:
    in_queue(watched, external("a"), external("b"))
    token = claim(watched, "a")
    watched.later(20_000)
    report(watched, token, "failed")
    watched.commit(changes.cancel(watched.store, "default/b", now_ms=watched.clock.at_ms))
    watched.until_idle()
    watched.turn()
    seen = watched.scrape()
    ended = {"queue": "default", "phase": "Failed", "reason": "RetriesSpent"}
    assert seen.value("finished_groups_total", **ended) == 1
    ended = {"queue": "default", "phase": "Cancelled", "reason": "Cancelled"}
    assert seen.value("finished_groups_total", **ended) == 1
    assert seen.value("start_wait_seconds_count", queue="default") == 1
    assert seen.value("start_wait_seconds_sum", queue="default") == 0


def test_each_check_of_a_group_and_all_of_them_have_a_wait(watched: Watched) -> None:
    watched.ready(a_node(cpu=4))
    for name in ("budget", "approval"):
        watched.apply(a_check(name))
        lease(watched, name)
    watched.apply(
        _set(
            a_queue("careful"),
            spec=_set(a_queue().spec, admission_checks=("budget", "approval")),
        )
    )
    watched.submit("g", queue="careful")
    watched.until_idle()
    watched.later(10_000)
    answer(watched, "budget")
    watched.later(30_000)
    answer(watched, "approval")
    watched.until_idle()
    seen = watched.scrape()
    assert seen.value("check_wait_seconds_sum", check="budget") == 10
    assert seen.value("check_wait_seconds_sum", check="approval") == 40
    assert seen.value("checks_wait_seconds_count", queue="careful") == 1
    assert seen.value("checks_wait_seconds_sum", queue="careful") == 40
    assert seen.value("admission_wait_seconds_sum", queue="careful") == 40
    assert seen.value("check_active", check="budget") == 1


def test_a_check_whose_controller_is_gone_is_not_active(watched: Watched) -> None:
    watched.apply(a_check("budget"))
    lease(watched, "budget", for_ms=5_000)
    watched.turn()
    assert watched.scrape().value("check_active", check="budget") == 1
    watched.later(5_000)
    watched.turn()
    assert watched.scrape().value("check_active", check="budget") == 0


def a_check(name: str) -> AdmissionCheck:
    return AdmissionCheck(
        metadata=Metadata(name=name), spec=AdmissionCheckSpec(controller_name="tests")
    )


def lease(watched: Watched, name: str, *, for_ms: int | None = None) -> None:
    check = watched.store.get("AdmissionCheck", name)
    assert isinstance(check, AdmissionCheck)
    until = None if for_ms is None else watched.clock.at_ms + for_ms
    held = _set(check, status=AdmissionCheckStatus(active=True, holder="c", expires_at=until))
    put(watched, "AdmissionCheck", name, held)


def answer(watched: Watched, name: str) -> None:
    group = watched.group("g")
    checks = tuple(
        _set(check, status="True", since=watched.clock.at_ms) if check.name == name else check
        for check in group.status.checks
    )
    put(watched, "PodGroup", "default/g", _set(group, status=_set(group.status, checks=checks)))


def test_actions_and_plugins_are_timed_once_a_session(watched: Watched) -> None:
    watched.ready(a_node(cpu=4))
    for number in range(3):
        watched.submit(f"gated-{number}", scheduling_gates=GATE)
        watched.turn()
    seen = watched.scrape()
    assert seen.value("action_duration_seconds_count", action="enqueue") == 3
    assert seen.value("plugin_duration_seconds_count", plugin="gates", point="preEnqueue") == 3
    assert seen.value("cycle_duration_seconds_count") == 3
    # No eviction was needed, so no plugin voted on victims.
    assert seen.value("plugin_duration_seconds_count", plugin="gang", point="preemptable") is None
