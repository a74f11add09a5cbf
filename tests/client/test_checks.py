"""Admission checks from Python: leases, requests, answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from batchq.api.objects import PodGroup
from batchq.client import Client
from batchq.client.checks import CheckRequest, CheckWatch
from batchq.errors import Conflict, InvalidInput, NotFound, UsageError
from tests.builders import a_priority, amounts
from tests.client.checking import a_check, asking
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.proxy import ControlledProxy
from tests.harness.server import Server

SOON_S = 60


@pytest.fixture
def asked(stage: Stage) -> Stage:
    """A queue `q` that requires the check `approval` of the controller `boss`."""
    stage.furnish(a_check(), asking("q", "approval"))
    return stage


@pytest.fixture
def other(server: Server) -> Iterator[Client]:
    """A client of another process."""
    with Client(server.url) as client:
        yield client


def submit(stage: Stage, name: str = "g", **request: object) -> None:
    stage.client.submit(command=["true"], name=name, queue="q", **request)
    stage.turn()


def requests_of(watch: CheckWatch, timeout_s: float = SOON_S) -> list[tuple[str, str]]:
    return [(request.kind, request.name) for request in watch.poll(timeout_s)]


def active(client: Client, name: str = "approval") -> bool:
    return {check.name: check.active for check in client.checks.records()}[name]


def waits_for(stage: Stage, name: str = "g") -> list[str]:
    group = stage.client.get("PodGroup", name)
    assert isinstance(group, PodGroup)
    return [str(verdict.reason) for verdict in group.status.reasons]


def test_a_check_is_active_while_its_controller_runs(asked: Stage) -> None:
    assert not active(asked.client)
    with asked.client.checks.watch("boss") as watch:
        assert watch.held == ("approval",)
        assert active(asked.client)
    assert not active(asked.client)
    assert watch.held == ()


def test_an_applied_check_says_nothing_of_being_active(stage: Stage) -> None:
    check = a_check()
    assert check.status.active
    stage.furnish(check)
    assert not active(stage.client)


def test_an_edit_of_a_check_leaves_it_active(asked: Stage) -> None:
    with asked.client.checks.watch("boss"):
        asked.client.apply([a_check(retry_delay_minutes=1)])
        assert active(asked.client)


def test_without_a_controller_a_queue_is_held_and_nothing_reserved(asked: Stage) -> None:
    submit(asked)
    assert waits_for(asked) == ["CheckInactive"]
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        assert requests_of(watch) == [("asked", "g")]


def test_a_check_that_comes_later_is_taken_up(asked: Stage) -> None:
    with asked.client.checks.watch("boss", lease_s=3600) as watch:
        asked.furnish(a_check("second"))
        until(lambda: watch.poll(0.05) == [] and active(asked.client, "second"))
        assert watch.held == ("approval", "second")


def test_a_check_of_another_controller_is_left_alone(asked: Stage) -> None:
    asked.furnish(a_check("theirs", controller="them"))
    with asked.client.checks.watch("boss") as watch:
        assert watch.held == ("approval",)
        assert not active(asked.client, "theirs")


def test_a_lease_is_renewed_and_leaves_no_event_each_time(
    asked: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every 200 ms, so that a busy machine misses no lease.
    monkeypatch.setattr("batchq.client.checks._RENEWALS_A_LEASE", 300)
    with asked.client.checks.watch("boss", lease_s=60) as watch:
        first = asked.client.checks.records()[0].active_until
        assert first is not None
        until(lambda: (asked.client.checks.records()[0].active_until or 0) > first + 1000)
        assert watch.held == ("approval",)
    events = asked.client.events(kind="AdmissionCheck", key="approval")
    assert [event.reason for event in events] == ["Created", "Active", "Inactive"]


def test_a_second_controller_stands_by_and_takes_over(asked: Stage, other: Client) -> None:
    submit(asked)
    with asked.client.checks.watch("boss", lease_s=3600) as first:
        asked.turn()
        with other.checks.watch("boss", lease_s=3600) as second:
            assert second.held == ()
            assert requests_of(first) == [("asked", "g")]
            assert requests_of(second, 0.0) == []
            first.__exit__(None, None, None)
            assert requests_of(second) == [("asked", "g")]
            assert second.held == ("approval",)
        # The first watch ends once more, and has nothing to release.
    assert not active(asked.client)


def test_an_unrenewed_lease_lapses_and_another_controller_takes_over(
    asked: Stage, server: Server, other: Client
) -> None:
    with (
        ControlledProxy(server.socket) as road,
        Client(road.url) as far,
        far.checks.watch("boss", lease_s=3) as cut_off,
    ):
        assert cut_off.held == ("approval",)
        road.cut()
        until(lambda: not active(asked.client))
        # Its clock is its own, so it may look a moment later.
        until(lambda: cut_off.held == ())
        submit(asked)
        assert waits_for(asked) == ["CheckInactive"]
        with other.checks.watch("boss", lease_s=3600) as standby:
            assert standby.held == ("approval",)
            road.mend()
            assert cut_off.poll(1.0) == []
            assert cut_off.held == ()


def test_a_controller_taking_up_a_former_ones_name_need_not_wait(
    asked: Stage, other: Client
) -> None:
    with (
        asked.client.checks.watch("boss", holder="boss-0", lease_s=3600),
        other.checks.watch("boss", holder="boss-0", lease_s=3600) as again,
    ):
        assert again.held == ("approval",)


@pytest.mark.parametrize("lease_s", [0.5, 0.0, -1.0, 3601.0, float("nan")])
def test_an_invalid_lease_is_refused(asked: Stage, lease_s: float) -> None:
    with pytest.raises(InvalidInput, match="lease_s: expected 1 to 3600 seconds, found"):
        asked.client.checks.watch("boss", lease_s=lease_s)


def test_a_request_says_what_is_asked_for(asked: Stage) -> None:
    asked.furnish(a_check(parameters={"tariff": "night"}))
    asked.client.submit(command=["true"], name="g", queue="q", cpus=2, replicas=2, walltime="1h")
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        [request] = watch.poll(SOON_S)
    assert (request.key, request.namespace, request.name) == ("default/g", "default", "g")
    assert (request.kind, request.check, request.queue) == ("asked", "approval", "q")
    assert (request.walltime_s, request.must_stop) == (3600.0, False)
    assert request.reserved == amounts(cpu=4, pods=2)
    assert request.parameters == {"tariff": "night"}
    assert request.reserved_at == request.group.status.reserved_at


def test_each_step_of_a_checked_group_is_reported_once(asked: Stage) -> None:
    submit(asked)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        [request] = watch.poll(SOON_S)
        assert requests_of(watch, 0.0) == []
        assert asked.client.checks.set(request, "True")
        assert not asked.client.checks.set(request, "True")
        assert requests_of(watch) == [("approved", "g")]
        asked.turn()
        assert requests_of(watch) == [("admitted", "g")]
        asked.start("g")
        assert requests_of(watch) == [("running", "g")]
        asked.end("g")
        assert requests_of(watch) == [("finished", "g")]
        asked.client.delete("PodGroup", "g")
        assert requests_of(watch, 0.2) == []


def test_a_restarted_controller_gets_all_requests_again(asked: Stage, other: Client) -> None:
    for name in ("waits", "runs", "lost", "ended", "never"):
        submit(asked, name, suspend=name == "never")
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        for request in watch.poll(SOON_S):
            if request.name != "waits":
                asked.client.checks.set(request, "True")
        asked.turn()
        for name in ("runs", "ended"):
            asked.start(name)
        asked.client.suspend("lost")
        asked.end("ended")
        asked.turn()
    with other.checks.watch("boss") as again:
        assert sorted(requests_of(again)) == [
            ("asked", "waits"),
            ("finished", "ended"),
            ("lost", "lost"),
            ("running", "runs"),
        ]


def test_a_lost_reservation_is_reported_under_its_own_identity(asked: Stage) -> None:
    submit(asked)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        [request] = watch.poll(SOON_S)
        asked.client.suspend("g")
        asked.turn()
        [lost] = watch.poll(SOON_S)
        assert (lost.kind, lost.must_stop) == ("lost", True)
        assert lost.reserved_at == request.reserved_at is not None


def test_a_reservation_replaced_between_two_looks_is_reported_as_lost_and_asked(
    asked: Stage,
) -> None:
    submit(asked)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        [first] = watch.poll(SOON_S)
        reserve_anew(asked, first)
        lost, second = watch.poll(SOON_S)
        assert (lost.kind, lost.reserved_at) == ("lost", first.reserved_at)
        assert (second.kind, second.name) == ("asked", "g")
        assert (second.reserved_at or 0) > (first.reserved_at or 0)


def reserve_anew(stage: Stage, first: CheckRequest) -> None:
    """Let the group lose its reservation and reserve again, at a later millisecond."""
    stage.client.suspend("g")
    stage.turn()
    until(lambda: stage.client.now_ms() > (first.reserved_at or 0))
    stage.client.resume("g")
    stage.turn()


def test_a_preempted_reservation_is_lost_and_its_check_unknown_again(asked: Stage) -> None:
    asked.furnish(a_priority("high", 10))
    with asked.client.checks.watch("boss") as watch:
        submit(asked, "low", cpus=8)
        [low] = watch.poll(SOON_S)
        asked.client.checks.set(low, "Unknown", message="thinking about it")
        assert watch.poll(0.1) == []
        submit(asked, "high", cpus=8, priority_class="high")
        assert ("lost", "low") in requests_of(watch)
        [state] = asked.client.checks.list("low")
        assert (state.status, state.message) == ("Unknown", "")


def test_a_check_that_is_set_back_is_asked_for_again(asked: Stage) -> None:
    asked.furnish(a_check("second"), asking("q", "approval", "second"))
    submit(asked)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        assert len(watch.poll(SOON_S)) == 2
        asked.client.checks.set("g", "True", check="approval")
        assert requests_of(watch) == [("approved", "g")]
        asked.client.checks.set("g", "Unknown", check="approval")
        assert requests_of(watch) == [("asked", "g")]
        asked.client.checks.set("g", "Unknown", "PreemptionRequired", check="approval")
        assert requests_of(watch, 0.2) == []


def test_a_check_that_the_queue_no_longer_requires_is_reported_as_dropped(asked: Stage) -> None:
    submit(asked)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        assert requests_of(watch) == [("asked", "g")]
        asked.furnish(asking("q"))
        asked.turn()
        assert requests_of(watch) == [("dropped", "g")]


def test_stop_ends_the_wait(asked: Stage) -> None:
    with asked.client.checks.watch("boss") as watch:
        threading.Timer(0.05, watch.stop).start()
        assert list(watch) == []


def test_a_server_that_is_away_is_waited_for(asked: Stage, server: Server) -> None:
    with (
        ControlledProxy(server.socket) as road,
        Client(road.url) as client,
        client.checks.watch("boss", lease_s=30) as watch,
    ):
        road.cut()
        submit(asked)
        back = threading.Timer(0.5, road.mend)
        back.start()
        assert requests_of(watch) == [("asked", "g")]
        assert client.checks.set("g", "True")
        back.join()


def test_a_controller_that_regains_its_lease_gets_all_requests_again(
    asked: Stage, server: Server
) -> None:
    submit(asked)
    with (
        ControlledProxy(server.socket) as road,
        Client(road.url) as client,
        client.checks.watch("boss", lease_s=3) as watch,
    ):
        asked.turn()
        assert requests_of(watch) == [("asked", "g")]
        road.cut()
        until(lambda: not active(asked.client))
        road.mend()
        assert requests_of(watch) == [("asked", "g")]


def test_an_answer_without_a_reservation_is_refused(asked: Stage) -> None:
    submit(asked)
    with pytest.raises(Conflict) as refused:
        asked.client.checks.set("g", "True")
    assert refused.value.message == (
        "PodGroup default/g has no quota reserved, so its check approval cannot be set"
    )


def test_an_answer_that_comes_after_the_reservation_was_lost_is_refused(asked: Stage) -> None:
    submit(asked)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        [request] = watch.poll(SOON_S)
        reserve_anew(asked, request)
        with pytest.raises(Conflict, match="has a new reservation since"):
            asked.client.checks.set(request, "True")
        [state] = asked.client.checks.list("g")
        assert state.status == "Unknown"


def test_an_answer_to_a_finished_group_is_refused(asked: Stage) -> None:
    submit(asked)
    asked.client.cancel("g")
    with pytest.raises(Conflict, match="PodGroup default/g is Cancelled already and no check"):
        asked.client.checks.set("g", "True")


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        ("True", "Retry", "check approval: status True takes no reason, found 'Retry'"),
        ("False", "", "expected with status False the reason 'Retry' or 'Reject', found none"),
        ("Unknown", "Reject", "with status Unknown the reason 'PreemptionRequired', or none"),
        ("Maybe", "", "expected True, False or Unknown, found 'Maybe'"),
    ],
)
def test_other_combinations_are_refused(
    asked: Stage, status: str, reason: str, sentence: str
) -> None:
    submit(asked)
    with pytest.raises(InvalidInput) as refused:
        asked.client.checks.set("g", status, reason)
    assert sentence in refused.value.message


def test_an_unknown_check_is_answered_with_the_nearest(asked: Stage) -> None:
    submit(asked)
    with pytest.raises(NotFound) as refused:
        asked.client.checks.set("g", "True", check="aproval")
    assert refused.value.message == "PodGroup default/g has no admission check 'aproval'"
    assert refused.value.hint == "did you mean approval?"


def test_a_group_without_checks_has_none_to_set(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="g")
    with pytest.raises(NotFound, match="PodGroup default/g has no admission checks"):
        stage.client.checks.set("g", "True")


def test_an_answer_to_a_group_with_several_checks_has_to_name_one(asked: Stage) -> None:
    asked.furnish(a_check("second"), asking("q", "approval", "second"))
    submit(asked)
    with pytest.raises(UsageError) as refused:
        asked.client.checks.set("g", "True")
    assert refused.value.hint == "they are: approval, second"


def test_a_retry_frees_the_quota_at_once_and_stays_false(asked: Stage) -> None:
    submit(asked, "first", cpus=8)
    submit(asked, "second", cpus=8)
    with asked.client.checks.watch("boss") as watch:
        asked.turn()
        [request] = watch.poll(SOON_S)
        asked.client.checks.set(request, "False", "Retry", "come back later")
        asked.turn()
        assert requests_of(watch) == [("lost", "first"), ("asked", "second")]
        [state] = asked.client.checks.list("first")
        assert (state.status, state.reason, state.message) == ("False", "Retry", "come back later")
