"""External groups that must stop: their consumers are asked, and have time to."""

from __future__ import annotations

import pytest

from batchq.api.objects import Dependency, PodGroup, Task
from batchq.client import changes
from batchq.client.changes import consumer_leases
from batchq.errors import Conflict
from tests.builders import a_priority, a_queue
from tests.scheduler.conftest import Stack
from tests.scheduler.consumers import (
    CHARGED,
    SECOND,
    claim,
    external,
    in_queue,
    later,
    phase,
    refusal,
    release,
    renew,
    report,
    resume,
    suspend,
)


def test_suspended_it_is_pending_at_once_and_charged_until_its_consumer_has_stopped(
    stack: Stack,
) -> None:
    in_queue(stack, external())
    token = claim(stack)
    report(stack, token, "running")
    stack.until_idle()
    suspend(stack)
    assert phase(stack) == "Pending"
    assert stack.store.ledger()["queue:default"] == CHARGED
    renewed = renew(stack, token)
    assert (renewed.stop_reason, renewed.transaction) == ("Suspended", None)
    assert refusal(stack, report, token, "succeeded") == (
        "PodGroup default/e: worker-1 was told to stop (Suspended), so it cannot be succeeded"
    )
    # No other consumer may run it while the first has not stopped.
    resume(stack)
    assert phase(stack) == "Pending"
    assert [str(one.reason) for one in stack.group("e").status.reasons] == ["BackingOff"]
    report(stack, token, "evicted")
    assert consumer_leases.report(stack.store, token, "evicted", now_ms=stack.clock.at_ms) is None
    stack.until_idle()
    assert (phase(stack), stack.group("e").status.admission) == ("InQueue", 2)
    assert stack.store.ledger()["queue:default"] == CHARGED


def test_a_renewal_asks_to_stop_before_the_next_session(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack)
    stack.commit(changes.suspend(stack.store, "default/e", now_ms=stack.clock.at_ms))
    assert renew(stack, token).stop_reason == "Suspended"


def test_a_silent_consumer_has_until_the_end_of_the_grace_to_stop(
    stack: Stack,
) -> None:
    in_queue(stack, external())
    token = claim(stack, ttl_s=60)
    over_at = stack.clock.at_ms + 90 * SECOND
    suspend(stack)
    resume(stack)
    later(stack, 59)
    # Renewals no longer extend the claim.
    assert renew(stack, token).over_at == over_at
    later(stack, 30)
    # The token is dead, but may still report that the work has stopped.
    assert phase(stack) == "Pending"
    assert stack.turn().next_due_at == over_at
    later(stack, 1)
    assert (phase(stack), stack.group("e").status.admission) == ("InQueue", 2)


def test_cancelled_it_is_charged_and_cannot_be_deleted_until_its_consumer_has_stopped(
    stack: Stack,
) -> None:
    in_queue(stack, external())
    token = claim(stack)
    now = stack.clock.at_ms
    stack.commit(changes.cancel(stack.store, "default/e", now_ms=now))
    stack.until_idle()
    assert renew(stack, token).stop_reason == "Cancelled"
    assert stack.store.ledger()["queue:default"] == CHARGED
    with pytest.raises(Conflict, match="its consumer worker-1 must stop first"):
        changes.delete(stack.store, "PodGroup", "default/e", now_ms=now)
    later(stack, 90)
    assert stack.store.ledger() == {}
    stack.commit(changes.delete(stack.store, "PodGroup", "default/e", now_ms=now))


@pytest.mark.parametrize("replicas", [1, 3])
def test_past_its_walltime_it_has_failed_and_its_consumer_must_stop(
    stack: Stack, replicas: int
) -> None:
    tasks = (Task(name="w", replicas=replicas),)
    in_queue(stack, external(tasks=tasks, min_member=1, walltime=40 * SECOND))
    token = claim(stack)
    report(stack, token, "running")
    stack.until_idle()
    later(stack, 40)
    assert phase(stack) == "Failed"
    group = stack.store.get("PodGroup", "default/e")
    assert isinstance(group, PodGroup)
    messages = {one.type: one.message for one in group.status.conditions}
    assert messages["Finished"] == "its walltime of 40s is over"
    assert renew(stack, token).stop_reason == "WalltimeExceeded"


def test_a_group_whose_end_was_reported_cannot_be_suspended(stack: Stack) -> None:
    in_queue(stack, external())
    report(stack, claim(stack), "succeeded")
    with pytest.raises(Conflict, match=r"is Completed already and cannot be suspended"):
        suspend(stack)


def test_an_end_reported_for_a_pod_counts_more_than_a_suspension_right_after(stack: Stack) -> None:
    in_queue(stack, external())
    report(stack, claim(stack), "succeeded", pod="one")
    suspend(stack)
    assert phase(stack) == "Completed"


def test_a_queue_whose_capability_is_cut_sends_it_back_and_waits_for_its_consumer(
    stack: Stack,
) -> None:
    stack.apply(a_queue("q", capability={"cpu": 4}))
    in_queue(stack, external(queue="q"))
    token = claim(stack)
    stack.apply(a_queue("q", capability={"cpu": 3}))
    stack.until_idle()
    assert phase(stack) == "Pending"
    assert renew(stack, token).stop_reason == "CapacityCut"
    assert stack.store.ledger()["queue:q"] == CHARGED


def test_a_consumer_may_report_that_work_has_stopped_until_the_grace_is_over(stack: Stack) -> None:
    in_queue(stack, external("a"), external("b"))
    tokens = [claim(stack, name, ttl_s=60) for name in ("a", "b")]
    suspend(stack, "a")
    suspend(stack, "b")
    later(stack, 89)
    assert stack.store.ledger()["queue:default"]["cpu"] == 8000
    report(stack, tokens[0], "evicted")
    stack.until_idle()
    assert stack.store.ledger()["queue:default"]["cpu"] == 4000
    later(stack, 1)
    assert "queue:default" not in stack.store.ledger()
    assert refusal(stack, report, tokens[1], "evicted").endswith("the group was requeued")


def test_its_spec_cannot_be_edited_while_a_consumer_may_still_run_it(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack)
    suspend(stack)
    with pytest.raises(Conflict, match=r"spec.minResources can change only while"):
        stack.apply(external(cpu=5, suspend=True))
    release(stack, token)
    stack.apply(external(cpu=5, suspend=True))


def test_a_cut_counts_stopping_pods_and_spares_other_groups(stack: Stack) -> None:
    stack.apply(a_queue("q", capability={"cpu": 8}))
    in_queue(stack, external("first", queue="q"))
    stack.clock.at_ms += SECOND
    in_queue(stack, external("last", queue="q"))
    claim(stack, "last")
    stack.apply(a_queue("q", capability={"cpu": 4}))
    stack.until_idle()
    assert [phase(stack, "first"), phase(stack, "last")] == ["InQueue", "Pending"]
    later(stack, 1)
    assert phase(stack, "first") == "InQueue"


def test_an_external_group_is_kept_while_its_consumer_may_still_run_it(stack: Stack) -> None:
    in_queue(stack, external(ttl_after_finished=10 * SECOND))
    claim(stack)
    stack.commit(changes.cancel(stack.store, "default/e", now_ms=stack.clock.at_ms))
    later(stack, 89)
    assert phase(stack) == "Cancelled"
    later(stack, 1)
    assert stack.store.get("PodGroup", "default/e") is None


def test_a_dependent_starts_when_the_consumer_of_its_dependency_has_stopped(stack: Stack) -> None:
    in_queue(stack, external("first"))
    token = claim(stack, "first")
    report(stack, token, "running")
    stack.apply(external("second", depends_on=(Dependency(name="first", condition="any"),)))
    stack.until_idle()
    stack.commit(changes.cancel(stack.store, "default/first", now_ms=stack.clock.at_ms))
    stack.until_idle()
    later(stack, 5)
    assert (phase(stack, "first"), phase(stack, "second")) == ("Cancelled", "Pending")
    report(stack, token, "evicted")
    stack.until_idle()
    assert phase(stack, "second") == "InQueue"


def test_a_dependent_starts_when_the_consumer_never_answers_and_the_grace_is_over(
    stack: Stack,
) -> None:
    in_queue(stack, external("first"))
    claim(stack, "first", ttl_s=60)
    stack.apply(external("second", depends_on=(Dependency(name="first", condition="any"),)))
    stack.until_idle()
    stack.commit(changes.cancel(stack.store, "default/first", now_ms=stack.clock.at_ms))
    stack.until_idle()
    later(stack, 89)
    assert phase(stack, "second") == "Pending"
    later(stack, 1)
    assert phase(stack, "second") == "InQueue"


def test_one_that_was_admitted_cannot_be_claimed_while_others_have_to_stop_for_it_again(
    stack: Stack,
) -> None:
    """What was freed for `mid` goes to `high`, which arrived at that moment."""
    stack.apply(
        *(a_priority(name, value) for name, value in (("mid", 5), ("high", 9))),
        a_queue("q", capability={"cpu": 4}),
    )
    in_queue(stack, *(external(name, cpu=2, queue="q") for name in ("one", "two")))
    tokens = {name: claim(stack, name) for name in ("one", "two")}
    later(stack, 1)
    stack.apply(external("mid", cpu=2, queue="q", priority_class_name="mid"))
    stack.until_idle()
    [stopping] = [name for name in tokens if phase(stack, name) == "Pending"]
    [goes_on] = set(tokens) - {stopping}
    report(stack, tokens[stopping], "evicted")
    stack.apply(external("high", cpu=2, queue="q", priority_class_name="high"))
    stack.until_idle()
    assert (phase(stack, "high"), phase(stack, goes_on)) == ("InQueue", "Pending")
    claim(stack, "high")
    assert refusal(stack, claim, "mid") == (
        "PodGroup default/mid waits for 1 victim that may still run"
    )
    report(stack, tokens[goes_on], "evicted")
    stack.until_idle()
    assert phase(stack, "mid") == "InQueue"
    claim(stack, "mid")
