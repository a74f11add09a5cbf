"""Views of queues: sums of subtrees, loans, positions, and the order of victims."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import HOUR
from batchq.api.objects import Pledge, Pod, PodGroup
from batchq.api.views import QueuePage, QueueUsage, QueueView
from batchq.client.overview import Overview
from batchq.core.session.snapshot import Settings
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_running_group,
    a_snapshot,
    amounts,
)

NOW = 300_000
CPU_16 = a_node("n1", cpu=16)


def views_of(*objects: Any) -> dict[str, QueueView]:
    return {view.name: view for view in Overview(a_snapshot(CPU_16, *objects), NOW).queues()}


def page_of(name: str, *objects: Any) -> QueuePage:
    page = Overview(a_snapshot(CPU_16, *objects), NOW).queue_page(name)
    assert page is not None
    return page


def admitted(name: str, cpu: int, queue: str) -> PodGroup:
    """Return a group that is InQueue with a reservation, and without pods on nodes."""
    group = a_group(name, cpu=cpu, queue=queue)
    status = structs.replace(
        group.status,
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        reservation=amounts(cpu=cpu, pods=1),
    )
    return structs.replace(group, status=status)


def started(at: int, objects: tuple[Any, ...]) -> list[Any]:
    """Return the objects with another start time."""
    return [
        structs.replace(item, status=structs.replace(item.status, started_at=at))
        for item in objects
    ]


def test_each_queue_comes_before_those_below_it_and_siblings_go_by_name() -> None:
    names = views_of(
        a_queue("z"), a_queue("b", parent="z"), a_queue("a", parent="z"), a_queue("a1", parent="a")
    )
    assert [(view.name, view.depth, view.parent) for view in names.values()] == [
        ("default", 0, "root"),
        ("z", 0, "root"),
        ("a", 1, "z"),
        ("a1", 2, "a"),
        ("b", 1, "z"),
    ]
    assert names["z"].children == ("a", "b")


def test_a_queue_holds_and_waits_for_what_the_queues_below_it_do() -> None:
    views = views_of(
        *(a_queue("org"), a_queue("a", parent="org"), a_queue("b", parent="org")),
        *a_running_group("runs", 3, cpu=2, queue="a"),
        admitted("starts", 4, "b"),
        a_group("waits", cpu=9, queue="b"),
    )
    org = views["org"]
    assert (org.used["cpu"], org.reserved, org.charged["cpu"]) == (6000, {"cpu": 4000}, 10000)
    assert (org.admitted_groups, org.running_groups, org.pending_groups) == (2, 1, 1)
    assert org.pending["cpu"] == 9000
    assert (views["a"].used["cpu"], views["a"].reserved) == (6000, {})
    assert (views["b"].used, views["b"].reserved) == ({}, {"cpu": 4000})


def test_a_queue_borrows_the_amount_it_holds_above_its_deserved_share() -> None:
    views = views_of(
        a_queue("a", deserved=amounts(cpu=4)), *a_running_group("runs", 6, queue="a"), a_queue("b")
    )
    assert views["a"].borrowed == {"cpu": 2000}
    assert views["a"].share == 1.5
    assert views["b"].borrowed == {}


def test_a_stop_holds_for_the_queues_below() -> None:
    views = views_of(
        a_queue("org", stop_policy="HoldAndDrain"),
        a_queue("a", parent="org", stop_policy="Hold"),
        a_queue("b", parent="org"),
    )
    assert [(stop.queue, stop.policy) for stop in views["a"].stops] == [
        ("org", "HoldAndDrain"),
        ("a", "Hold"),
    ]
    assert [stop.queue for stop in views["b"].stops] == ["org"]
    assert views["default"].stops == ()


def test_a_loan_is_seen_from_both_ends_and_across_levels() -> None:
    objects = (
        a_queue("lends", deserved=amounts(cpu=8)),
        a_queue("org", deserved=amounts(cpu=4)),
        a_queue("borrows", parent="org", deserved=amounts(cpu=4)),
        *a_running_group("runs", 6, queue="borrows"),
    )
    page = page_of("borrows", *objects)
    assert [(lien.queue, lien.amounts) for lien in page.lenders] == [("lends", {"cpu": 8000})]
    assert page.borrowers == ()
    page = page_of("lends", *objects)
    assert [(lien.queue, lien.amounts) for lien in page.borrowers] == [("org", {"cpu": 2000})]
    assert page.lenders == ()


def test_nothing_is_borrowed_in_a_resource_without_a_lender() -> None:
    page = page_of(
        "a",
        a_queue("a", deserved=amounts(cpu=1)),
        a_queue("b", deserved=amounts(gpu=4)),
        *a_running_group("runs", 2, queue="a"),
    )
    assert page.view.borrowed == {"cpu": 1000}
    assert page.lenders == ()


def test_only_queues_that_state_no_deserved_share_get_one_by_weight() -> None:
    objects = (
        a_queue("a", weight=2),
        a_queue("b", weight=5),
        a_queue("c", weight=9, deserved=amounts(cpu=1)),
        *a_running_group("runs", 2, queue="a"),
        *a_running_group("goes", 2, queue="c"),
    )
    # The queue `default` has weight 1.
    assert page_of("a", *objects).weights == {"cpu": (2, 8)}
    assert page_of("c", *objects).weights == {}


def test_groups_in_line_are_ordered_by_position_and_others_listed_apart() -> None:
    page = page_of(
        "org",
        *(a_queue("org"), a_queue("a", parent="org"), a_queue("b", parent="org")),
        a_group("second", cpu=99, queue="a", created=2000),
        a_group("first", cpu=1, queue="a", created=1000),
        a_group("held", cpu=1, queue="b", suspend=True),
        a_group("other", cpu=1, queue="b", created=9000),
    )
    assert {(view.key, view.position) for view in page.line} == {
        ("default/first", 1),
        ("default/other", 1),
    }
    assert [view.key for view in page.not_in_line] == ["default/second", "default/held"]


def test_pods_beyond_the_minimum_go_first_then_the_lowest_priority_then_the_youngest() -> None:
    page = page_of(
        "a",
        *(a_queue("a"), a_priority("high", 100)),
        *started(9000, a_running_group("important", queue="a", priority_class_name="high")),
        *started(1000, a_running_group("old", queue="a")),
        *started(2000, a_running_group("young", queue="a")),
        *started(500, a_running_group("sweep", 4, queue="a", min_member=1)),
    )
    assert [(one.key, one.whole, one.pods) for one in page.first_to_go] == [
        ("default/sweep", False, 3),
        ("default/young", True, 1),
        ("default/old", True, 1),
        ("default/sweep", True, 4),
        ("default/important", True, 1),
    ]
    assert page.first_to_go[0].gives == {"cpu": 3000}
    assert page.first_to_go[0].started_at == 500


def test_the_queue_with_the_larger_share_gives_up_groups_first() -> None:
    page = page_of(
        "org",
        *(a_queue("org"), a_queue("a", parent="org", deserved=amounts(cpu=8))),
        *(a_priority("high", 100), *a_running_group("high", queue="b", priority_class_name="high")),
        a_queue("b", parent="org", deserved=amounts(cpu=2)),
        *started(2000, a_running_group("young", 2, queue="a")),
        *started(1000, a_running_group("old", 2, queue="b")),
    )
    assert [one.key for one in page.first_to_go] == [
        "default/old",
        "default/young",
        # A higher priority is evicted last, whatever the shares.
        "default/high",
    ]


def test_a_group_already_terminating_is_not_listed_first_to_go() -> None:
    group, pod = a_running_group("leaves", queue="default")
    assert isinstance(pod, Pod)
    leaving = structs.replace(pod, status=structs.replace(pod.status, terminating=True))
    assert page_of("default", group, leaving).first_to_go == ()
    assert [one.key for one in page_of("default", group, pod).first_to_go] == ["default/leaves"]


def test_a_missing_queue_has_no_page() -> None:
    assert Overview(a_snapshot(), NOW).queue_page("nobody") is None


def test_a_preemptor_names_the_groups_whose_pods_must_stop() -> None:
    victim, *pods = a_running_group("victim", 2)
    preemptor = a_group("claims", 2)
    pledge = Pledge(
        claimant="default/claims",
        action="preempt",
        victims=("default/victim-w-0", "default/victim-w-1"),
        holds={pod.metadata.uid: 1 for pod in pods},
        groups=(victim.metadata.uid,),
        whole=(victim.metadata.uid,),
        expires=NOW + 90_000,
    )
    waiting = structs.replace(preemptor, status=structs.replace(preemptor.status, pledge=pledge))
    [view] = [
        one
        for one in Overview(a_snapshot(CPU_16, waiting, victim, *pods), NOW).groups()
        if one.key == "default/claims"
    ]
    assert view.awaits is not None
    assert (view.awaits.action, view.awaits.pods) == ("preempt", 2)
    assert view.awaits.groups == ("default/victim",)
    assert view.awaits.until == 390_000
    # After all have ended, there are no victims to wait for.
    [alone] = Overview(a_snapshot(CPU_16, waiting), NOW).groups()
    assert alone.awaits is None


def test_a_page_shows_what_a_queue_has_used_of_its_share_over_time() -> None:
    """`q` had all cpus for the last 20 half-lives, and is entitled to half of them."""
    group, pod = a_running_group("r", cpu=16, queue="q")
    pod = structs.replace(pod, status=structs.replace(pod.status, started_at=0))
    snapshot = a_snapshot(
        CPU_16,
        *(a_queue(name, deserved=amounts(cpu=8)) for name in ("q", "b")),
        *(group, pod),
    )

    def used(queue: str, settings: Settings | None) -> QueueUsage | None:
        page = Overview(snapshot, 20 * HOUR, settings=lambda: settings).queue_page(queue)
        assert page is not None
        return page.usage

    hourly = Settings(half_life_ms=HOUR, orders_by_usage=True)
    assert used("q", hourly) == QueueUsage(share=2.0, half_life_ms=HOUR, decides_order=True)
    assert used("b", hourly) == QueueUsage(share=0.0, half_life_ms=HOUR, decides_order=True)
    assert used("q", Settings(half_life_ms=None)) is None
    assert used("q", None) is None
