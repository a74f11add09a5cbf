"""Silence counts only while the server was reachable; after a restart all nodes report first."""

from __future__ import annotations

import pytest

from batchq.api.intents import Bind, LosePod, RollBack, SetNodeReady
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroupStatus
from batchq.api.transaction import JUMP, LEASE_ANNOTATION, count_of, following, generation_of
from batchq.core.session.snapshot import ContactStanding
from batchq.scheduler.timers import next_due_at
from tests.builders import Decided, a_group, a_node, a_running_group, amounts, decide


def lost(decided: Decided) -> list[str]:
    return [intent.pod for intent in decided.of(LosePod)]


def silent(decided: Decided) -> list[str]:
    return [intent.node for intent in decided.of(SetNodeReady)]


@pytest.mark.parametrize(
    ("contact_since", "now_ms", "expected"),
    [
        (None, 10_000 + 30_000 - 1, []),
        (None, 10_000 + 30_000, ["default/g-w-0"]),
        # The server was unreachable until 50 s: the work-horse gets a full lease from then on.
        (50_000, 10_000 + 30_000, []),
        (50_000, 80_000 + 30_000 - 1, []),
        (50_000, 80_000 + 30_000, ["default/g-w-0"]),
        # Reachable for a long time: the lease is not extended.
        (5_000, 10_000 + 30_000 + 25_000, ["default/g-w-0"]),
    ],
)
def test_a_pod_is_lost_when_lease_and_grace_are_over_and_a_renewal_was_possible(
    contact_since: int | None, now_ms: int, expected: list[str]
) -> None:
    decided = decide(
        a_node(cpu=1),
        *a_running_group("g"),
        leases={"g-1-0": 10_000},
        standing=ContactStanding(contact_since=contact_since),
        now_ms=now_ms,
    )
    assert lost(decided) == expected


@pytest.mark.parametrize(
    ("stated_ms", "over_at"),
    [
        (60_000, 50_000 + 60_000 + 30_000),
        # The scheduler's own length is the least.
        (10_000, 50_000 + 30_000 + 30_000),
    ],
)
def test_a_pod_on_a_node_of_longer_leases_gets_such_a_lease_after_an_interruption(
    stated_ms: int, over_at: int
) -> None:
    def after(now_ms: int) -> list[str]:
        return lost(
            decide(
                a_node(cpu=1, annotations={LEASE_ANNOTATION: str(stated_ms)}),
                *a_running_group("g"),
                leases={"g-1-0": 45_000},
                standing=ContactStanding(contact_since=50_000),
                now_ms=now_ms,
            )
        )

    assert after(over_at - 1) == []
    assert after(over_at) == ["default/g-w-0"]


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(80_000 + 30_000 - 1, []), (80_000 + 30_000, ["default/g-w-0"])]
)
def test_a_restarted_server_may_have_lost_renewals_without_a_noticed_interruption(
    now_ms: int, expected: list[str]
) -> None:
    decided = decide(
        a_node(cpu=1),
        *a_running_group("g"),
        leases={"g-1-0": 10_000},
        standing=ContactStanding(contact_since=0, restarted_at=50_000, reported=frozenset({"n1"})),
        now_ms=now_ms,
    )
    assert lost(decided) == expected


def test_a_restarted_server_may_have_lost_heartbeats_without_a_noticed_interruption() -> None:
    def after(now_ms: int) -> Decided:
        standing = ContactStanding(contact_since=0, restarted_at=100_000)
        return decide(a_node(cpu=1, heartbeat=1_000), standing=standing, now_ms=now_ms)

    assert silent(after(139_999)) == []
    assert silent(after(140_000)) == ["n1"]


def test_a_node_does_not_count_as_silent_while_the_server_was_unreachable() -> None:
    def after(now_ms: int) -> Decided:
        return decide(
            a_node(cpu=1, heartbeat=1_000),
            standing=ContactStanding(contact_since=100_000),
            now_ms=now_ms,
        )

    assert silent(after(139_999)) == []
    assert silent(after(140_000)) == ["n1"]
    assert next_due_at(after(139_999).session) == 140_000


def test_a_node_that_may_be_alive_counts_as_capacity_but_gets_no_pods() -> None:
    decided = decide(
        a_node("n1", cpu=1, heartbeat=1_000),
        a_group("g"),
        standing=ContactStanding(contact_since=100_000),
        now_ms=120_000,
    )
    assert decided.admitted == []
    assert decided.message("g").endswith(
        "task w: 0/1 nodes fit: 1 not heard of since the server was away"
    )


def restarted(*reported: str, now_ms: int = 101_000, forgot: bool = False) -> Decided:
    """Decide with two nodes; `reported` are those that reported since the restart at 100 s."""
    standing = ContactStanding(
        generation=100,
        contact_since=100_000,
        restarted_at=100_000,
        reported=frozenset(reported),
        forgot=forgot,
    )
    return decide(
        a_node("n1", cpu=1, heartbeat=100_500),
        a_node("n2", cpu=1, heartbeat=100_500),
        a_group("g"),
        standing=standing,
        now_ms=now_ms,
    )


def test_nothing_is_bound_before_every_ready_node_has_reported_its_pods() -> None:
    decided = restarted("n1")
    assert decided.admitted == []
    assert decided.bound == {}
    assert decided.message("g") == (
        "nothing is bound until n2 has reported after the server's restart"
    )


def test_pods_are_bound_once_all_nodes_have_reported() -> None:
    assert restarted("n1", "n2").bound == {"default/g-w-0": "n1"}


def test_pods_are_bound_once_all_nodes_reported_even_if_the_clock_is_behind_the_leaders() -> None:
    assert restarted("n1", "n2", now_ms=99_990).bound == restarted("n1", "n2").bound != {}


def test_the_scheduler_waits_for_a_silent_node_no_longer_than_a_lease() -> None:
    held = restarted("n1", now_ms=129_999)
    assert held.bound == {}
    assert next_due_at(held.session) == 130_000
    assert list(restarted("n1", now_ms=130_000).bound) == ["default/g-w-0"]


def test_after_lost_writes_binding_waits_for_a_lease_even_if_all_nodes_reported() -> None:
    held = restarted("n1", "n2", forgot=True)
    assert held.bound == {}
    assert held.message("g") == (
        "nothing is bound for the length of a lease after the server's restart,"
        " in which it lost writes"
    )
    assert list(restarted("n1", "n2", now_ms=130_000, forgot=True).bound) == ["default/g-w-0"]


def test_the_scheduler_waits_for_the_longer_lease_of_a_node() -> None:
    def after(now_ms: int) -> Decided:
        standing = ContactStanding(
            generation=100, contact_since=0, restarted_at=100_000, reported=frozenset({"n1"})
        )
        return decide(
            a_node("n1", cpu=1, heartbeat=now_ms),
            # The node went silent before the restart, and may run a pod whose bind was lost.
            a_node("n2", cpu=1, heartbeat=99_000, annotations={"batchq/lease-ms": "300000"}),
            a_group("g"),
            standing=standing,
            now_ms=now_ms,
        )

    assert after(399_999).bound == {}
    assert next_due_at(after(399_999).session) == 400_000
    assert after(400_000).bound == {"default/g-w-0": "n1"}


def test_the_scheduler_does_not_wait_for_a_node_that_is_not_ready() -> None:
    standing = ContactStanding(
        generation=100, contact_since=0, restarted_at=100_000, reported=frozenset({"n1"})
    )
    decided = decide(
        a_node("n1", cpu=1),
        a_node("n2", cpu=1, ready=False),
        a_group("g"),
        standing=standing,
        now_ms=101_000,
    )
    assert decided.bound == {"default/g-w-0": "n1"}


def test_attempts_of_a_new_generation_are_greater_than_all_of_the_last() -> None:
    [bind] = restarted("n1", "n2").of(Bind)
    assert bind.attempt == 100 * JUMP + 1


@pytest.mark.parametrize(
    ("number", "generation", "expected"),
    [
        (0, 0, 1),
        (41, 0, 42),
        (0, 7, 7_000_001),
        (3, 7, 7_000_004),
        (7_000_004, 7, 7_000_005),
        (7_000_004, 9, 9_000_005),
        # Attempts do not decrease when the clock was set back.
        (9_000_005, 7, 9_000_006),
    ],
)
def test_attempts_jump_with_the_generation_and_their_count_continues(
    number: int, generation: int, expected: int
) -> None:
    assert following(number, generation=generation) == expected


def test_users_see_the_count_of_attempts() -> None:
    assert (count_of(9_000_005), generation_of(9_000_005)) == (5, 9)


def test_a_group_that_waits_for_reports_of_nodes_is_not_unschedulable() -> None:
    waiting = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        in_queue_at=100_000,
        reservation=amounts(cpu=1, pods=1),
    )
    standing = ContactStanding(generation=100, contact_since=0, restarted_at=100_000)
    decided = decide(a_node(cpu=1), a_group("g", status=waiting), standing=standing, now_ms=101_000)
    assert decided.of(RollBack) == []
    assert decided.reasons("g") == ["WaitingForResources"]
