"""Expected ends of groups, and the start that they allow: one test for each rule of the manual."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupStatus, SchedulingGate
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.estimates import earliest_start
from batchq.core.expected_ends import ends
from batchq.core.session.session import Session
from tests.builders import a_group, a_node, a_queue, a_running_group, a_snapshot, a_task

NOW = 100_000
HOUR = 3_600_000


def opened(*objects: Any) -> Session:
    """Open a session at NOW, without running actions."""
    return assemble(SchedulerConfig()).open(a_snapshot(*objects), NOW)


def forecast_of(*objects: Any) -> list[tuple[int, str, int, bool]]:
    """Return for each end: time, group, number of single pods, and whether it is complete."""
    return [(end.at, end.group.key, len(end.pods), end.whole) for end in ends(opened(*objects))]


def stopping(pod: Pod, at: int, grace: int = 30_000) -> Pod:
    status = structs.replace(pod.status, terminating=True, terminating_at=at)
    return structs.replace(
        pod, status=status, spec=structs.replace(pod.spec, termination_grace=grace)
    )


def test_a_running_group_ends_at_its_start_plus_its_walltime() -> None:
    assert forecast_of(a_node(cpu=4), *a_running_group("r", 2, walltime=HOUR)) == [
        (HOUR, "default/r", 0, True)
    ]


def test_an_overdue_group_is_expected_to_end_in_a_second() -> None:
    running = a_running_group("r", walltime=60_000)
    assert forecast_of(a_node(cpu=4), *running) == [(NOW + 1_000, "default/r", 0, True)]


def test_a_group_without_a_walltime_never_ends() -> None:
    assert forecast_of(a_node(cpu=4), *a_running_group("r")) == []


def test_the_walltime_of_an_admitted_group_that_does_not_run_counts_from_now() -> None:
    group, pod = a_running_group("r", walltime=HOUR)
    status = structs.replace(group.status, phase="InQueue", started_at=None)
    bound = structs.replace(pod, status=structs.replace(pod.status, phase=PodPhase.BOUND))
    group = structs.replace(group, status=status)
    assert forecast_of(a_node(cpu=4), group, bound) == [(NOW + HOUR, "default/r", 0, True)]


def test_pods_of_an_array_end_one_by_one_and_the_last_frees_the_reservation() -> None:
    group, first, second = a_running_group("r", 2, walltime=HOUR, min_member=1)
    later = structs.replace(second, status=structs.replace(second.status, started_at=50_000))
    assert forecast_of(a_node(cpu=4), group, first, later) == [
        (HOUR, "default/r", 1, False),
        (HOUR + 50_000, "default/r", 1, False),
        (HOUR + 50_000, "default/r", 0, True),
    ]


def test_an_array_with_pending_pods_holds_nothing_after_its_running_pods() -> None:
    group, first, _ = a_running_group("r", 2, walltime=HOUR, min_member=1)
    assert forecast_of(a_node(cpu=4), group, first) == [
        (HOUR, "default/r", 1, False),
        (HOUR, "default/r", 0, True),
    ]


def test_a_terminating_pod_ends_with_its_grace_period() -> None:
    group, pod = a_running_group("r", walltime=HOUR)
    assert forecast_of(a_node(cpu=4), group, stopping(pod, 90_000)) == [
        (120_000, "default/r", 1, False),
        (HOUR, "default/r", 0, True),
    ]


def waits(cpu: int = 1, **more: Any) -> PodGroup:
    return a_group("g", cpu=cpu, **more)


def test_a_group_starts_when_enough_other_groups_have_ended() -> None:
    session = opened(
        a_node(cpu=3),
        *a_running_group("late", walltime=3 * HOUR),
        *a_running_group("early", walltime=HOUR),
        *a_running_group("middle", walltime=2 * HOUR),
        waits(cpu=2),
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert found.at == 2 * HOUR
    assert list(found.ended) == ["default/early", "default/middle"]


def test_a_group_starts_when_one_node_has_room_for_its_pod() -> None:
    """All nodes together have four cpus free from the beginning, but no node has three."""
    session = opened(
        a_node("n1", cpu=4),
        a_node("n2", cpu=4),
        *a_running_group("late", cpu=2, node="n1", walltime=2 * HOUR),
        *a_running_group("early", cpu=2, node="n2", walltime=HOUR),
        waits(cpu=3),
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert (found.at, found.ended) == (HOUR, ("default/early",))


def test_a_group_whose_nodes_are_never_known_to_be_free_has_no_start() -> None:
    session = opened(
        a_node("n1", cpu=4),
        a_node("n2", cpu=4),
        *a_running_group("first", cpu=2, node="n1"),
        *a_running_group("second", cpu=2, node="n2"),
        waits(cpu=3),
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert (found.at, found.why) == (
        None,
        "no end of a running group is known: it finds no nodes with capacity for all its pods",
    )


def test_the_end_of_a_group_in_another_queue_does_not_free_a_queues_limit() -> None:
    session = opened(
        a_node(cpu=4),
        a_queue("mine", capability={"cpu": 1}),
        *a_running_group("other", walltime=HOUR),
        *a_running_group("own", walltime=2 * HOUR, queue="mine"),
        waits(queue="mine"),
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert (found.at, found.ended) == (2 * HOUR, ("default/own",))


def test_the_end_of_a_group_opens_no_gate() -> None:
    gated = waits(scheduling_gates=(SchedulingGate(name="data-ready"),))
    session = opened(a_node(cpu=4), gated)
    found = earliest_start(session, session.by_key["default/g"])
    assert found.at is None
    assert found.why == (
        "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates: data-ready"
    )


def test_a_group_in_backoff_waits_for_its_end_even_if_it_fits() -> None:
    paused = waits(status=PodGroupStatus(backoff_until=NOW + 20_000, backoff_count=1))
    session = opened(a_node(cpu=4), paused)
    assert earliest_start(session, session.by_key["default/g"]).at == NOW + 20_000


def test_a_group_that_fits_starts_now() -> None:
    session = opened(a_node(cpu=4), waits())
    assert earliest_start(session, session.by_key["default/g"]).at == NOW


def test_a_group_in_backoff_that_fits_waits_for_no_other_group() -> None:
    paused = waits(status=PodGroupStatus(backoff_until=NOW + HOUR, backoff_count=1))
    session = opened(
        *(a_node("n1", cpu=4), a_node("n2", cpu=4)),
        *a_running_group("small", walltime=HOUR),
        paused,
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert (found.at, found.ended) == (NOW + HOUR, ())


def test_a_group_waits_for_no_end_on_a_node_that_it_may_not_use() -> None:
    gpu = a_task(requests={"cpu": 3}, node_selector={"pool": "gpu"})
    session = opened(
        *(a_node("n1", cpu=4, labels={"pool": "gpu"}), a_node("n2", cpu=4)),
        *a_running_group("there", cpu=2, node="n1", walltime=2 * HOUR),
        *a_running_group("elsewhere", cpu=2, node="n2", walltime=HOUR),
        waits(tasks=(gpu,)),
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert (found.at, found.ended) == (2 * HOUR, ("default/there",))


def test_a_group_waits_for_no_end_that_others_make_up_for() -> None:
    """The cpus of `early` alone do not suffice, and those of `late` do."""
    session = opened(
        *(a_node("n1", cpu=4), a_node("n2", cpu=4)),
        *a_running_group("early", cpu=1, node="n1", walltime=HOUR),
        *a_running_group("late", cpu=3, node="n1", walltime=2 * HOUR),
        *a_running_group("stays", cpu=4, node="n2"),
        waits(cpu=3),
    )
    found = earliest_start(session, session.by_key["default/g"])
    assert (found.at, found.ended) == (2 * HOUR, ("default/late",))
