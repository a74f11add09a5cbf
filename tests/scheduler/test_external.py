"""External groups over real stores: admitted by the ledger, run by their consumers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from batchq.api.objects import PodTemplate, Task
from batchq.api.transaction import Word
from batchq.client.changes import consumer_leases
from batchq.config import SchedulerConfig
from batchq.errors import Conflict, InvalidInput, NotFound
from tests.builders import a_group, a_node, a_queue, amounts
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
)


def test_an_external_group_without_nodes_or_pods_is_admitted_and_charged_to_its_queue(
    stack: Stack,
) -> None:
    in_queue(stack, external())
    assert stack.pods() == []
    assert stack.store.ledger() == {
        "queue:default": CHARGED,
        "queue:root": CHARGED,
        "ns:default": CHARGED,
        "objects:default": {"podgroups": 1000},
    }


def test_an_external_group_uses_nothing_of_the_nodes(stack: Stack) -> None:
    stack.ready(a_node(cpu=4))
    in_queue(stack, external())
    pods = (Task(name="w", template=PodTemplate(command=("true",), requests=amounts(cpu=4))),)
    stack.apply(a_group("ours", tasks=pods))
    stack.until_idle()
    assert phase(stack, "ours") == "InQueue"
    assert len(stack.pods()) == 1


def test_a_capability_of_its_queue_binds_it_and_one_of_the_root(stack: Stack) -> None:
    stack.apply(a_queue("small", capability={"cpu": 6}), a_queue("root", capability={"cpu": 9}))
    in_queue(stack, external("a", queue="small"))
    stack.apply(external("b", queue="small"), external("c", queue="default", cpu=6))
    stack.until_idle()
    assert phase(stack, "b") == "Pending"
    assert str(stack.group("b").status.reasons[0].reason) == "WaitingForQuota"
    assert phase(stack, "c") == "Pending"
    assert stack.group("c").status.reasons[0].subject == "queue root"


def test_task_requests_of_an_external_group_are_reserved_and_stay_whole_while_it_runs(
    stack: Stack,
) -> None:
    tasks = (Task(name="w", replicas=2, template=PodTemplate(requests=amounts(cpu=3))),)
    in_queue(stack, external(tasks=tasks))
    assert stack.pods() == []
    charged = {"cpu": 6000, "pods": 2000, "podgroups": 1000}
    assert stack.store.ledger()["queue:default"] == charged
    token = claim(stack)
    report(stack, token, "succeeded", pod="one")
    report(stack, token, "running", pod="two")
    stack.until_idle()
    assert phase(stack) == "Running"
    assert stack.store.ledger()["queue:default"] == charged


def test_unclaimed_it_falls_under_the_in_queue_timeout(stack: Stack) -> None:
    in_queue(stack, external())
    later(stack, 299)
    assert phase(stack) == "InQueue"
    assert stack.turn().next_due_at == stack.clock.at_ms + SECOND
    later(stack, 1)
    assert phase(stack) == "Pending"
    assert stack.group("e").status.backoff_until == stack.clock.at_ms + 10 * SECOND


def test_claimed_running_and_succeeded(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack)
    later(stack, 50)
    assert phase(stack) == "InQueue"
    report(stack, token, "running")
    stack.until_idle()
    assert phase(stack) == "Running"
    report(stack, token, "succeeded", message="42 files")
    stack.until_idle()
    group = stack.group("e")
    assert (phase(stack), group.status.claim.phase) == ("Completed", "Succeeded")
    assert stack.store.ledger() == {}


@pytest.mark.parametrize(
    ("reported", "ended", "reason"),
    [("succeeded", "Completed", "Succeeded"), ("failed", "Failed", "RetriesSpent")],
)
def test_its_end_takes_effect_with_the_report_without_a_session(
    stack: Stack, reported: str, ended: str, reason: str
) -> None:
    in_queue(stack, external())
    token = claim(stack)
    claimed_at = stack.clock.at_ms
    stack.clock.at_ms += 50 * SECOND
    report(stack, token, reported)
    status = stack.group("e").status
    finished = next(one for one in status.conditions if one.type == "Finished")
    assert (status.phase, finished.reason) == (ended, reason)
    assert (status.started_at, status.finished_at) == (claimed_at, claimed_at + 50 * SECOND)
    assert stack.store.charges() == {}
    latest = stack.store.events(kind="PodGroup", key="default/e")[-1]
    assert (latest.reason, latest.message) == (ended, "reported by worker-1")
    revision = stack.group("e").metadata.revision
    stack.until_idle()
    assert stack.group("e").metadata.revision == revision


def test_with_reports_on_pods_the_scheduler_decides_how_it_ends(stack: Stack) -> None:
    in_queue(stack, external(min_member=2))
    token = claim(stack)
    report(stack, token, "failed", pod="one")
    report(stack, token, "succeeded")
    assert phase(stack) == "InQueue"
    stack.until_idle()
    assert phase(stack) == "Completed"
    assert stack.store.charges() == {}


def test_the_token_is_not_stored_and_only_its_digest_is(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack)
    claim_stored = stack.group("e").status.claim
    assert token.startswith(f"default/e/{stack.group('e').metadata.uid}/1/")
    assert len(claim_stored.token) == 64
    assert token.rpartition("/")[2] not in str(stack.group("e"))


def test_reported_as_failed_it_has_failed_with_the_consumers_words(stack: Stack) -> None:
    in_queue(stack, external())
    report(stack, claim(stack), "failed", message="disk full")
    stack.until_idle()
    assert phase(stack) == "Failed"
    conditions = {one.type: one for one in stack.group("e").status.conditions}
    assert (conditions["Finished"].reason, conditions["Finished"].message) == (
        "RetriesSpent",
        "reported by worker-1: disk full",
    )
    assert stack.store.ledger() == {}


def test_a_gang_runs_once_min_member_pods_do_and_completes_when_all_have(stack: Stack) -> None:
    in_queue(stack, external(min_member=2))
    token = claim(stack)
    report(stack, token, "running", pod="a")
    stack.until_idle()
    assert phase(stack) == "InQueue"
    report(stack, token, "running", pod="b")
    stack.until_idle()
    assert phase(stack) == "Running"
    report(stack, token, "succeeded", pod="a")
    report(stack, token, "succeeded", pod="b")
    stack.until_idle()
    assert phase(stack) == "Completed"
    assert stack.store.ledger() == {}


def test_a_gang_fails_at_its_first_failure_and_its_consumer_must_stop(stack: Stack) -> None:
    in_queue(stack, external(min_member=2))
    token = claim(stack)
    report(stack, token, "running", pod="a")
    report(stack, token, "failed", pod="b")
    stack.until_idle()
    assert phase(stack) == "Failed"
    assert renew(stack, token).stop_reason == "RetriesSpent"
    # Pod a may still run.
    assert stack.store.ledger()["queue:default"] == CHARGED
    report(stack, token, "evicted")
    stack.until_idle()
    assert stack.store.ledger() == {}


def test_an_elastic_group_goes_on_while_enough_pods_can_still_succeed(stack: Stack) -> None:
    tasks = (Task(name="w", replicas=3),)
    in_queue(stack, external(tasks=tasks, min_member=1))
    token = claim(stack)
    report(stack, token, "failed", pod="a")
    report(stack, token, "running", pod="b")
    stack.until_idle()
    assert phase(stack) == "Running"
    report(stack, token, "succeeded", pod="b")
    report(stack, token, "succeeded", pod="c")
    stack.until_idle()
    assert phase(stack) == "Failed"
    assert stack.store.ledger() == {}


def test_renewals_carry_it_past_its_ttl(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack, ttl_s=60)
    for _ in range(4):
        later(stack, 50)
        renewed = renew(stack, token)
        assert renewed.expires_at == stack.clock.at_ms + 60 * SECOND
    assert renew(stack, token, ttl_s=10).expires_at == stack.clock.at_ms + 10 * SECOND
    report(stack, token, "succeeded")
    stack.until_idle()
    assert phase(stack) == "Completed"


def test_lapsed_its_token_is_dead_at_once_and_after_the_grace_another_may_have_it(
    stack: Stack,
) -> None:
    tasks = (Task(name="w", template=PodTemplate(termination_grace=20 * SECOND)),)
    in_queue(stack, external(tasks=tasks))
    token = claim(stack)
    report(stack, token, "running")
    stack.until_idle()
    later(stack, 60)
    assert phase(stack) == "Running"
    said = "PodGroup default/e: the claim of worker-1 lapsed at 1970-01-01T00:17:40Z; "
    assert refusal(stack, renew, token) == said + "the group is requeued at 1970-01-01T00:18:00Z"
    assert refusal(stack, report, token, "succeeded").startswith(said)
    with pytest.raises(Conflict, match="is claimed by worker-1; that lapsed at"):
        claim(stack, holder="worker-2")
    assert stack.turn().next_due_at == stack.clock.at_ms + 20 * SECOND

    later(stack, 19)
    assert stack.store.ledger()["queue:default"]["cpu"] == 4000
    later(stack, 1)
    group = stack.group("e")
    assert (phase(stack), group.status.backoff_count) == ("Pending", 1)
    conditions = {one.type: one for one in group.status.conditions}
    assert conditions["Evicted"].reason == "ClaimLapsed"
    assert refusal(stack, report, token, "succeeded") == said + "the group was requeued"
    assert "queue:default" not in stack.store.ledger()

    later(stack, 10)
    assert phase(stack) == "InQueue"
    assert refusal(stack, renew, token) == (
        "PodGroup default/e: the claim was on admission 1, and the group has been admitted again"
        " since (admission 2)"
    )
    report(stack, claim(stack, holder="worker-2"), "succeeded")
    stack.until_idle()
    assert phase(stack) == "Completed"


def test_one_of_two_concurrent_claims_wins(stack: Stack) -> None:
    in_queue(stack, external())
    made = [
        consumer_leases.claim(
            stack.store, "default/e", holder=holder, ttl_ms=SECOND, secret=holder, now_ms=1
        )
        for holder in ("left", "right")
    ]
    first = stack.store.commit([made[0].transaction], request_id="a")
    second = stack.store.commit([made[1].transaction], request_id="b")
    assert (len(first.applied), second.refused[0].answer.word) == (1, Word.CONFLICT)
    # A consumer that missed the answer asks again, and gets the same one.
    again = stack.store.commit([made[0].transaction], request_id="a")
    assert len(again.applied) == 1
    assert stack.group("e").status.claim.holder == "left"


def test_a_report_may_be_repeated(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack)
    now = stack.clock.at_ms
    report(stack, token, "succeeded")
    assert consumer_leases.report(stack.store, token, "succeeded", now_ms=now) is None
    stack.until_idle()
    assert consumer_leases.report(stack.store, token, "succeeded", now_ms=now) is None
    assert refusal(stack, report, token, "failed") == (
        "PodGroup default/e: the claim of worker-1 has ended: it was reported as Succeeded"
    )


def test_given_back_it_can_be_claimed_at_once(stack: Stack) -> None:
    in_queue(stack, external())
    later(stack, 200)
    first = claim(stack)
    later(stack, 50)
    release(stack, first)
    second = claim(stack, holder="worker-2")
    assert refusal(stack, renew, first) == (
        "PodGroup default/e: the token is not that of its claim: worker-2 has claimed it since"
    )
    release(stack, second)
    # The wait for a consumer has started again.
    later(stack, 299)
    assert phase(stack) == "InQueue"
    later(stack, 1)
    assert phase(stack) == "Pending"


def test_given_back_while_it_ran_it_is_unknown_until_another_runs_it(stack: Stack) -> None:
    in_queue(stack, external())
    first = claim(stack)
    report(stack, first, "running")
    stack.until_idle()
    release(stack, first)
    stack.until_idle()
    assert phase(stack) == "Unknown"
    assert stack.store.ledger()["queue:default"] == CHARGED
    report(stack, claim(stack, holder="worker-2"), "running")
    stack.until_idle()
    assert phase(stack) == "Running"


def test_only_an_admitted_external_group_can_be_claimed(stack: Stack) -> None:
    work = (Task(name="w", template=PodTemplate(command=("true",))),)
    stack.apply(a_group("ours", tasks=work), external("later", suspend=True))
    stack.until_idle()
    with pytest.raises(Conflict, match="is run by batchq itself"):
        claim(stack, "ours")
    with pytest.raises(Conflict, match="is Pending, and only admitted groups can be claimed"):
        claim(stack, "later")
    with pytest.raises(NotFound, match="PodGroup default/none does not exist"):
        claim(stack, "none")


@pytest.mark.parametrize("token", ["", "a/b", "default/e/u/1", "default/e/u/one/s", "a/b/c/1/d/e"])
def test_a_token_that_is_none_is_refused_without_being_repeated(stack: Stack, token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        renew(stack, token)
    assert caught.value.message.startswith("this is not a token")
    assert not token or token not in caught.value.message


def test_a_token_with_another_secret_or_of_another_group_is_refused(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack)
    assert "not that of its claim" in refusal(stack, renew, token[:-1] + "!")
    uid = stack.group("e").metadata.uid
    assert "was deleted" in refusal(stack, renew, token.replace(uid, "0" * len(uid)))


@pytest.mark.parametrize(
    ("holder", "ttl_s", "said"),
    [("", 60, "holder: expected"), ("a\nb", 60, "holder: expected"), ("w", 0, "ttl: expected")],
)
def test_a_claim_without_a_holder_or_a_time_to_live_is_refused(
    stack: Stack, holder: str, ttl_s: int, said: str
) -> None:
    in_queue(stack, external())
    with pytest.raises(InvalidInput, match=said):
        claim(stack, holder=holder, ttl_s=ttl_s)


def test_no_more_pods_are_reported_than_there_are_and_ends_are_final(stack: Stack) -> None:
    in_queue(stack, external(min_member=2))
    token = claim(stack)
    report(stack, token, "running", pod="a")
    report(stack, token, "succeeded", pod="a")
    with pytest.raises(Conflict, match="pod a was reported as Succeeded"):
        report(stack, token, "running", pod="a")
    report(stack, token, "running", pod="b")
    with pytest.raises(InvalidInput, match="pod c would be number 3 of 2"):
        report(stack, token, "running", pod="c")
    report(stack, token, "evicted", pod="b")
    report(stack, token, "running", pod="c")
    assert stack.group("e").status.reported == {"a": "Succeeded", "c": "Running"}


def test_without_enqueue_its_limits_hold_at_its_admission(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack(structs.replace(SchedulerConfig(), actions=("allocate",)))
    stack.apply(a_queue("q", capability={"cpu": 4}))
    stack.apply(external("a", queue="q"), external("b", queue="q"))
    stack.until_idle()
    assert [phase(stack, "a"), phase(stack, "b")] == ["InQueue", "Pending"]
    assert stack.store.ledger()["queue:q"] == CHARGED


def test_given_back_and_not_taken_up_again_it_is_requeued_after_the_recovery_timeout(
    stack: Stack,
) -> None:
    in_queue(stack, external())
    token = claim(stack)
    report(stack, token, "running")
    stack.until_idle()
    release(stack, token)
    stack.until_idle()
    later(stack, 299)
    assert phase(stack) == "Unknown"
    later(stack, 1)
    conditions = {one.type: one for one in stack.group("e").status.conditions}
    assert (phase(stack), conditions["Evicted"].reason) == ("Pending", "RecoveryTimeout")
    assert "queue:default" not in stack.store.ledger()


def test_a_scheduler_that_was_away_finds_an_end_that_was_reported_in_time(stack: Stack) -> None:
    in_queue(stack, external())
    token = claim(stack, ttl_s=60)
    stack.clock.at_ms += 59 * SECOND
    report(stack, token, "succeeded", pod="one")
    # When the next session runs, the claim and its grace are over.
    later(stack, 120)
    assert phase(stack) == "Completed"


def test_claimed_but_not_running_yet_it_is_left_alone_by_the_in_queue_timeout(
    stack: Stack,
) -> None:
    in_queue(stack, external())
    token = claim(stack, ttl_s=250)
    later(stack, 200)
    renew(stack, token)
    later(stack, 200)
    assert phase(stack) == "InQueue"


def test_reported_pods_are_dropped_with_the_claim_except_for_ends_of_an_elastic_group(
    stack: Stack,
) -> None:
    tasks = (Task(name="w", replicas=3),)
    in_queue(stack, external("gang", tasks=tasks), external("loose", tasks=tasks, min_member=2))
    for name in ("gang", "loose"):
        token = claim(stack, name)
        report(stack, token, "succeeded", pod="a")
        report(stack, token, "running", pod="b")
    later(stack, 90)
    assert [phase(stack, name) for name in ("gang", "loose")] == ["Pending", "Pending"]
    assert stack.group("gang").status.reported == {}
    assert stack.group("loose").status.reported == {"a": "Succeeded"}
    later(stack, 10)
    assert stack.group("loose").status.reported == {"a": "Succeeded"}


def test_a_session_visits_no_group_that_a_consumer_runs_until_something_concerns_it(
    stack: Stack,
) -> None:
    stack.apply(a_queue())
    in_queue(stack, external("a"), external("b"))
    report(stack, claim(stack, "a"), "running")
    report(stack, claim(stack, "b", ttl_s=600), "running")
    stack.until_idle()
    stack.apply(external("c"))
    visited = stack.turn().session.unsettled()
    assert [group.key for group in visited] == ["default/c"]

    # A clock of one of them runs out: its claim has lapsed, and the grace is over.
    later(stack, 91)
    assert (phase(stack, "a"), phase(stack, "b")) == ("Pending", "Running")
    # The configuration changes.
    stack.apply(a_queue(stop_policy="HoldAndDrain"))
    stack.until_idle()
    assert stack.group("b").status.claim.stop_reason == "QueueStopped"
