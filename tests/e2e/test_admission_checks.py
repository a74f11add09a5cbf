"""Tests of admission checks on real processes: the reserved quota, the answers, and killed parts.

Both controllers of conf/examples run as their users start them. The budget answers for every group
automatically; a person answers by command.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from batchq.api.objects import Pod, PodGroup
from batchq.client.checks import CheckRequest, CheckWatch
from batchq.client.watch import Watch
from batchq.errors import Conflict
from tests.e2e.admitting import DESK, Admissions
from tests.e2e.machine import Machine, group, kill, phase, pods_of, until
from tests.swarm.diary import twice_at_once

#: The steps of an admission, as events show them.
STEPS = ("QuotaReserved", "CheckTrue", "CheckFalse", "CheckUnknown", "Admitted", "Completed")


@pytest.fixture(scope="module")
def whole() -> Iterator[Admissions]:
    """One stack for all tests here."""
    with Machine() as machine, Admissions(machine) as made:
        yield made


@pytest.fixture
def admissions(whole: Admissions) -> Iterator[Admissions]:
    """The stack with both controllers running; after the test nothing may be left, nor charged."""
    whole.start_controllers()
    yield whole
    whole.assert_settled()


def says(found: PodGroup, condition: str) -> bool:
    return any((one.type, one.status) == (condition, "True") for one in found.status.conditions)


def test_pods_exist_only_after_quota_is_reserved_and_both_checks_are_true(
    admissions: Admissions,
) -> None:
    client = admissions.client
    admissions.queue("a")
    with admissions.machine.store() as store:
        watch = Watch(store, ("PodGroup", "Pod"), listing=False)
        admissions.submit("a", "a-both", "sleep", "0.5")
        admissions.await_check("a-both", "approval-a")
        assert pods_of(client, "a-both") == []
        assert (
            "1. WaitingForChecks: 1 of 2 checks passed; check approval-a is Unknown"
            in admissions.machine.batchq("why", "a-both").stdout
        )
        admissions.set("a-both", "approval-a", "True", "-m", "read and tested")
        admissions.machine.batchq("wait", "a-both", "--timeout", "60s")
        history = list(watch.poll(0))

    groups = [(one.revision, one.value) for one in history if isinstance(one.value, PodGroup)]
    assert list(dict.fromkeys(str(one.status.phase) for _, one in groups)) == [
        *("Pending", "InQueue", "Running", "Completed")
    ]
    admitted_at = next(at for at, one in groups if says(one, "Admitted"))
    reserved_at = next(at for at, one in groups if says(one, "QuotaReserved"))
    pods = [one.revision for one in history if isinstance(one.value, Pod)]
    assert len(pods) >= 4
    assert reserved_at < admitted_at < min(pods), "no pod exists before Admitted"
    assert admissions.events("a-both", *STEPS) == [
        *("QuotaReserved", "CheckTrue budget-a", "CheckTrue approval-a", "Admitted", "Completed")
    ]


def test_a_retry_frees_its_quota_at_once_for_another_group_of_the_queue(
    admissions: Admissions,
) -> None:
    client = admissions.client
    admissions.queue("b")
    admissions.submit("b", "b-first", "true")
    admissions.await_check("b-first", "approval-b")
    admissions.submit("b", "b-second")
    until(lambda: admissions.reasons("b-second")[:1] == ["WaitingForQuota"])

    not_yet = ("False", "--reason", "Retry", "-m", "the data is not there yet")
    admissions.set("b-first", "approval-b", *not_yet)
    admissions.await_check("b-second", "approval-b")
    admissions.set("b-second", "approval-b", "True")
    admissions.await_running("b-second")
    assert not admissions.is_reserved("b-first")
    assert admissions.reasons("b-first")[0] == "BackingOff"
    assert (
        "check approval-b asked to retry after 30m: the data is not there yet"
        in admissions.machine.batchq("why", "b-first").stdout
    )
    assert "no quota reserved" in admissions.set("b-first", "approval-b", "True", exits=8)

    # The delay is over: both checks are asked again, the budget too, once quota is free.
    admissions.check("approval-b", retry_delay_minutes=0)
    until(
        lambda: (
            admissions.check_statuses("b-first") == {"budget-b": "Unknown", "approval-b": "Unknown"}
        )
    )
    until(lambda: admissions.reasons("b-first")[:1] == ["WaitingForQuota"])
    client.cancel("b-second")
    admissions.await_check("b-first", "approval-b")
    admissions.set("b-first", "approval-b", "True")
    admissions.machine.batchq("wait", "b-first", "--timeout", "60s")
    assert admissions.events("b-first", *STEPS) == [
        *("QuotaReserved", "CheckTrue budget-b", "CheckFalse approval-b"),
        *("QuotaReserved", "CheckTrue budget-b", "CheckTrue approval-b", "Admitted", "Completed"),
    ]
    assert group(client, "b-first").status.admission == 1, "this is its first admission"


def test_a_reject_fails_the_group_and_ends_a_wait_for_it(
    admissions: Admissions,
) -> None:
    admissions.queue("c")
    admissions.submit("c", "c-no")
    admissions.await_check("c-no", "approval-c")
    admissions.submit("c", "c-next")
    waits = admissions.machine.start("wait", "c-no", "-o", "json")
    # It has one connection for requests and one for events.
    until(lambda: admissions.machine.is_connected(waits), what="a command waits for the group")
    admissions.set("c-no", "approval-c", "False", "--reason", "Reject", "-m", "not this year")
    assert waits.wait(60) == 10
    done = admissions.machine.batchq("wait", "c-no", exits=10)
    assert "check approval-c said Reject: not this year" in done.stdout + done.stderr
    found = group(admissions.client, "c-no")
    assert (str(found.status.phase), found.status.admission) == ("Failed", 0)
    assert (found.status.reserved_at, found.status.charge) == (None, {})
    refused = admissions.set("c-no", "approval-c", "True", exits=8)
    assert "PodGroup default/c-no is Failed already" in refused
    admissions.await_check("c-next", "approval-c")


def test_an_exhausted_budget_stops_running_groups_until_it_is_raised(
    admissions: Admissions,
) -> None:
    client, hours = admissions.client, admissions.hours
    # A cpu for 1.8 seconds.
    hours.write_text("default: 40\nlab: 0.0005\n")
    admissions.queue("d", cpus=1)
    admissions.submit_diary("d", "d-meter", namespace="lab")
    admissions.await_check("lab/d-meter", "approval-d")
    admissions.set("lab/d-meter", "approval-d", "True")
    # It is stopped so soon that a busy test may not see it run.
    until(lambda: admissions.events("lab/d-meter", "Running") != [], what="it has run")
    admissions.submit("d", "d-next", "true", replicas=1, min_member=1)

    # Another group gets its quota once its process has ended.
    admissions.await_check("d-next", "approval-d")
    [run] = admissions.runs_of("d-meter")
    assert (run.stop_reason, run.end) == ("CheckRetry", "saved")
    assert phase(client, "lab/d-meter") == "Pending"
    [spent] = [one for one in client.checks.list("lab/d-meter") if one.name == "budget-d"]
    assert (spent.status, spent.reason) == ("False", "Retry")
    assert spent.message.startswith("the 0.0005 cpu-hours of lab are spent this week")
    admissions.set("d-next", "approval-d", "True")
    admissions.machine.batchq("wait", "d-next", "--timeout", "60s")

    hours.write_text("default: 40\nlab: 1\n")
    admissions.check("budget-d", retry_delay_minutes=0)
    admissions.await_check("lab/d-meter", "approval-d")
    admissions.set("lab/d-meter", "approval-d", "True")
    until(lambda: [one.after for one in admissions.runs_of("d-meter")] == ["", "CheckRetry"])
    assert twice_at_once({"d-meter": admissions.runs_of("d-meter")}) == []
    admissions.await_running("lab/d-meter")
    uid = group(client, "lab/d-meter").metadata.uid
    until(lambda: {f"{uid}/1", f"{uid}/2"} <= set(admissions.spans()), what="both are counted")


def next_request(
    watch: CheckWatch, received: list[CheckRequest], kind: str, name: str
) -> CheckRequest:
    """Return the next request that a controller receives about a group; it must be of this kind."""
    found: list[CheckRequest] = []

    def has_come() -> bool:
        received.extend(watch.poll(0.2))
        found[:] = [one for one in received if one.name == name]
        return bool(found)

    until(has_come, what=f"the controller receives that {name} is {kind}")
    received.remove(found[0])
    assert found[0].kind == kind
    return found[0]


def test_checks_of_a_preempted_reserved_group_start_again_and_old_answers_are_refused(
    admissions: Admissions,
) -> None:
    client = admissions.client
    received: list[CheckRequest] = []
    admissions.queue("e", controllers=("budget", DESK))
    with client.checks.watch(DESK) as watch:
        admissions.submit("e", "e-low", "true")
        admissions.await_check("e-low", "desk-e")
        old = next_request(watch, received, "asked", "e-low")

        admissions.submit("e", "e-high", "sleep", "0.5", priority_class="high")
        lost = next_request(watch, received, "lost", "e-low")
        assert (lost.reserved_at, lost.must_stop) == (old.reserved_at, True)
        assert admissions.check_statuses("e-low") == {"budget-e": "Unknown", "desk-e": "Unknown"}
        assert not admissions.is_reserved("e-low")
        with pytest.raises(Conflict, match="PodGroup default/e-low has no quota reserved"):
            client.checks.set(old, "True")
        assert client.checks.set(next_request(watch, received, "asked", "e-high"), "True")
        admissions.machine.batchq("wait", "e-high", "--timeout", "60s")

        admissions.await_check("e-low", "desk-e")
        again = next_request(watch, received, "asked", "e-low")
        assert again.reserved_at != old.reserved_at
        with pytest.raises(
            Conflict, match=r"has a new reservation since .* the answer of check desk-e"
        ):
            client.checks.set(old, "True")
        assert admissions.check_statuses("e-low")["desk-e"] == "Unknown"
        assert client.checks.set(again, "True")
        admissions.machine.batchq("wait", "e-low", "--timeout", "60s")
    assert admissions.events("e-low", *STEPS, "Preempted") == [
        *("QuotaReserved", "CheckTrue budget-e", "Preempted"),
        *("QuotaReserved", "CheckTrue budget-e", "CheckTrue desk-e", "Admitted", "Completed"),
    ]


def test_killed_controllers_hold_the_queue_and_their_successors_answer_waiting_groups(
    admissions: Admissions,
) -> None:
    client = admissions.client
    admissions.queue("f", cpus=6)
    admissions.submit_diary("f", "f-runs")
    admissions.await_check("f-runs", "approval-f")
    admissions.set("f-runs", "approval-f", "True")
    until(lambda: len(admissions.runs_of("f-runs")) == 1)
    admissions.submit("f", "f-early")
    admissions.await_check("f-early", "approval-f")

    admissions.kill_controllers()
    # The group is reserved, and a person asks for a new answer while no controller runs.
    admissions.set("f-early", "budget-f", "Unknown")
    until(lambda: admissions.active() == set(), what="their leases have lapsed")
    admissions.submit("f", "f-late")
    until(lambda: admissions.reasons("f-late") == ["CheckInactive", "CheckInactive"])
    for look in ("why", "describe"):
        result = admissions.machine.batchq(look, "f-late").stdout
        assert "check budget-f is inactive: budget holds no lease on it" in result
        assert "check approval-f is inactive: approval holds no lease on it" in result
    assert admissions.is_reserved("f-early"), "the earlier reservation still waits"
    assert phase(client, "f-runs") == "Running"

    admissions.start_controllers()
    for name in ("f-early", "f-late"):
        admissions.await_check(name, "approval-f")
        admissions.set(name, "approval-f", "True")
        admissions.await_running(name)
    answered = {name: admissions.events(name, *STEPS) for name in ("f-runs", "f-early", "f-late")}
    once = ["QuotaReserved", "CheckTrue budget-f", "CheckTrue approval-f", "Admitted"]
    assert answered["f-runs"] == once, "no answer was repeated"
    assert answered["f-late"] == once
    assert answered["f-early"] == [*once[:2], "CheckUnknown budget-f", *once[1:]]
    [run] = admissions.runs_of("f-runs")
    assert (run.stop_reason, run.end) == ("", "")
    # Its use is counted once, from its start.
    found = group(client, "f-runs")
    until(lambda: f"{found.metadata.uid}/1" in admissions.spans())
    assert admissions.spans()[f"{found.metadata.uid}/1"][:3] == [
        *("default", 1.0, found.status.started_at)
    ]


def test_a_scheduler_that_dies_between_an_answer_and_its_session_leaves_it_to_the_next(
    admissions: Admissions,
) -> None:
    client = admissions.client
    admissions.queue("g")
    admissions.submit_diary("g", "g-one")
    admissions.await_check("g-one", "approval-g")
    admissions.start_scheduler()
    leader = admissions.leader()
    os.kill(leader, signal.SIGSTOP)
    try:
        # Another scheduler may have a session soon; this one has none.
        client.checks.set("g-one", "True", check="approval-g")
    finally:
        kill(leader)
    admissions.await_running("g-one")
    assert admissions.leader() != leader
    assert len(pods_of(client, "g-one")) == 1
    assert group(client, "g-one").status.admission == 1
    until(lambda: len(admissions.runs_of("g-one")) == 1)
    assert admissions.events("g-one", *STEPS) == [
        *("QuotaReserved", "CheckTrue budget-g", "CheckTrue approval-g", "Admitted")
    ]
