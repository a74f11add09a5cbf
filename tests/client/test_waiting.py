"""Waiting, following and explaining from Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from batchq.api.views import Result
from batchq.client import Client
from batchq.errors import Conflict, InvalidInput, NotFound, WaitTimedOut
from batchq.store.redis import RedisStore
from tests.builders import a_queue
from tests.client.stage import Stage
from tests.harness.server import Server

SOON_S = 60


class Waiter:
    """`client.wait` in a thread with its own connection, begun before the test continues."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._threads = ThreadPoolExecutor(max_workers=2)

    def wait(self, *groups: str, **options: object) -> Future[list[Result]]:
        began = Event()

        class Told(RedisStore):
            def get(self, kind, key):  # type: ignore[no-untyped-def]
                item = super().get(kind, key)
                began.set()
                return item

        def call() -> list[Result]:
            store = Told(self._server.url)
            try:
                return list(Client(store=store).wait(groups, **options))  # type: ignore[arg-type]
            finally:
                store.close()

        future = self._threads.submit(call)
        assert began.wait(SOON_S)
        return future

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def waiter(server: Server) -> Iterator[Waiter]:
    waiter = Waiter(server)
    yield waiter
    waiter.close()


def test_wait_returns_when_the_group_has_completed(stage: Stage, waiter: Waiter) -> None:
    stage.client.submit(command=["true"], name="x")
    future = waiter.wait("x")
    stage.turn()
    stage.start("x")
    assert not future.done()
    stage.end("x")
    [result] = future.result(SOON_S)
    assert (result.key, result.phase, result.reached) == ("default/x", "Completed", True)
    assert result.exit_code == 0


def test_a_failed_group_has_the_exit_code_of_its_first_failed_pod(stage: Stage) -> None:
    stage.client.submit(command=["false"], name="x", replicas=2)
    stage.run("x", exit_code=7)
    [result] = stage.client.wait(["x"])
    assert (result.phase, result.reached, result.exit_code) == ("Failed", False, 7)
    assert result.reason == "RetriesSpent"


def test_waiting_for_a_cancelled_group_waits_for_its_processes(
    stage: Stage, waiter: Waiter
) -> None:
    stage.client.submit(command=["sleep"], name="x")
    stage.turn()
    stage.start("x")
    stage.client.cancel("x", reason="changed my mind")
    stage.turn()
    assert stage.phase("x") == "Cancelled"
    future = waiter.wait("x")
    with pytest.raises(WaitTimedOut) as caught:
        stage.client.wait(["x"], timeout_s=0.2)
    assert re.fullmatch(
        r"PodGroup default/x is Cancelled after 200ms, but processes of it still run",
        caught.value.message,
    )
    assert not future.done()
    stage.end("x", exit_code=143)
    [result] = future.result(SOON_S)
    assert (result.phase, result.message) == ("Cancelled", "changed my mind")


def test_one_can_wait_for_the_start(stage: Stage, waiter: Waiter) -> None:
    stage.client.submit(command=["true"], name="x")
    admitted, running = waiter.wait("x", for_="admitted"), waiter.wait("x", for_="running")
    stage.turn()
    assert admitted.result(SOON_S)[0].phase == "InQueue"
    assert not running.done()
    stage.start("x")
    assert running.result(SOON_S)[0].phase == "Running"


def test_waiting_for_success_ends_with_the_first_failure(stage: Stage, waiter: Waiter) -> None:
    stage.client.submit(command=["false"], name="bad")
    stage.client.submit(command=["true"], name="good")
    future = waiter.wait("good", "bad", for_="succeeded")
    stage.turn()
    stage.start("bad")
    stage.end("bad", exit_code=1)
    good, bad = future.result(SOON_S)
    assert (bad.phase, bad.reached) == ("Failed", False)
    assert good.reached is False


def test_a_wait_for_admission_ends_unreached_when_the_group_is_cancelled(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    stage.client.cancel("x")
    [result] = stage.client.wait(["x"], for_="admitted")
    assert (result.phase, result.reached) == ("Cancelled", False)


def test_time_runs_out_with_the_reason_why(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x", cpus=9)
    stage.turn()
    with pytest.raises(WaitTimedOut) as caught:
        stage.client.wait(["x"], timeout_s=0.1)
    assert re.match(
        r"PodGroup default/x is Pending after 100ms \(ExceedsCapacity: needs cpu 9, and",
        caught.value.message,
    )


def test_a_group_that_is_deleted_meanwhile_is_not_found(stage: Stage, waiter: Waiter) -> None:
    stage.client.submit(command=["true"], name="x")
    future = waiter.wait("x", for_="running")
    stage.erase("x")
    with pytest.raises(NotFound) as caught:
        future.result(SOON_S)
    assert caught.value.message == "PodGroup default/x was deleted while it was waited for"


def test_waiting_for_a_missing_group_raises_not_found(stage: Stage) -> None:
    with pytest.raises(NotFound) as caught:
        stage.client.wait(["nothing"])
    assert caught.value.message == "PodGroup default/nothing does not exist"


def test_a_watch_yields_existing_objects_and_then_changes(stage: Stage) -> None:
    changes = stage.client.watch("Queue", timeout_s=SOON_S)
    assert (one := next(changes)).key == "default"
    assert one.value is not None
    stage.client.apply([a_queue("b")])
    assert next(changes).key == "b"
    stage.client.delete("Queue", "b")
    gone = next(changes)
    assert (gone.key, gone.value) == ("b", None)


def test_a_watch_that_was_left_behind_lists_again(server: Server, stage: Stage) -> None:
    stage.furnish(a_queue("gone"))
    changes = stage.client.watch("Queue", timeout_s=SOON_S)
    assert [next(changes).key, next(changes).key] == ["default", "gone"]
    store = RedisStore(server.url, changes_kept=1)
    with Client(store=store) as other:
        other.delete("Queue", "gone")
        for number in range(300):
            other.apply([a_queue("busy", weight=number)])
    store.close()
    # `default` is written along with a deletion.
    news = {change.key: change.value for change in [next(changes) for _ in range(3)]}
    assert news["gone"] is None
    assert news["busy"].spec.weight == 299  # type: ignore[union-attr]


def test_an_explanation_has_current_numbers(stage: Stage) -> None:
    stage.furnish(a_queue("a", capability={"cpu": 4}))
    stage.client.submit(command=["sleep"], name="holder", queue="a", cpus=3)
    stage.turn()
    stage.start("holder")
    stage.client.submit(command=["true"], name="first", queue="a", cpus=2)
    stage.client.submit(command=["true"], name="second", queue="a", cpus=2)
    stage.turn()
    second = stage.client.why("second")
    assert second.position == 2
    assert second.line_ahead == ("default/first",)
    [blocker] = second.reasons
    assert blocker.reason == "WaitingForQuota"
    assert blocker.message == "needs cpu 2, and queue a has 1 free (3 of 4 in use)"
    assert stage.client.why("holder").position is None
    # The stored verdict does not change; the shown numbers are current.
    stage.end("holder")
    stage.client.submit(command=["sleep"], name="third", queue="a", cpus=4)
    stage.turn()
    [third] = stage.client.jobs()[-1].blockers
    assert third.message == "needs cpu 4, and queue a has 0 free (4 of 4 in use)"


def test_a_gated_group_has_no_place_in_line(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="gated", gates=["data-ready"])
    stage.turn()
    gated = stage.client.why("gated")
    assert gated.shown == "SchedulingGated"
    assert gated.position is None
    [blocker] = gated.reasons
    assert blocker.message == (
        "Scheduling is blocked due to non-empty scheduling gates: data-ready"
    )
    stage.client.open_gate("gated", "data-ready")
    stage.turn()
    assert stage.phase("gated") == "InQueue"


def test_queues_tell_what_they_hold_and_what_waits(stage: Stage) -> None:
    stage.furnish(a_queue("a", capability={"cpu": 4}))
    stage.client.submit(command=["sleep"], name="holds", queue="a", cpus=3)
    stage.client.submit(command=["sleep"], name="waits", queue="a", cpus=2)
    stage.turn()
    [a, default] = stage.client.queues()
    assert (a.used["cpu"], a.pending["cpu"]) == (3000, 2000)
    assert (a.admitted_groups, a.pending_groups) == (1, 1)
    assert a.deserved["cpu"] == 4000
    assert a.share == 0.75
    assert (default.admitted_groups, default.pending_groups) == (0, 0)


def test_suspended_groups_go_back_and_stand_in_line_again(stage: Stage) -> None:
    stage.client.submit(command=["sleep"], name="x")
    stage.turn()
    stage.start("x")
    assert stage.client.suspend("x") is True
    assert stage.client.suspend("x") is False
    stage.turn()
    assert stage.phase("x") == "Pending"
    stage.end("x", exit_code=143)
    assert stage.client.resume("x") is True
    stage.turn()
    assert stage.phase("x") == "InQueue"


def test_an_ended_group_cannot_be_cancelled(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    stage.run("x")
    with pytest.raises(Conflict) as caught:
        stage.client.cancel("x")
    assert caught.value.message == (
        "PodGroup default/x is Completed already and cannot be cancelled"
    )


def test_draining_waits_until_the_node_is_empty(stage: Stage) -> None:
    stage.client.submit(command=["sleep"], name="x")
    stage.turn()
    stage.start("x")
    assert stage.client.cordon("n1") is True
    assert stage.client.wait_until_empty("n1", timeout_s=0.1) == 1
    stage.end("x")
    assert stage.client.wait_until_empty("n1", timeout_s=SOON_S) == 0


def test_a_submitted_group_stands_for_its_name(stage: Stage) -> None:
    group = stage.client.submit(command=["true"], name="x", namespace="lab")
    then = stage.client.submit(command=["true"], after=[group], namespace="lab")
    assert [one.name for one in then.spec.depends_on] == ["x"]
    assert stage.client.why(group).key == "lab/x"
    stage.client.suspend(group)
    assert stage.client.get("PodGroup", group).metadata.uid == group.metadata.uid
    stage.client.cancel(group)
    assert stage.client.wait(group)[0].phase == "Cancelled"


def test_a_group_of_another_namespace_cannot_be_depended_on(stage: Stage) -> None:
    """Its name alone would stand for the group that has it in the other namespace."""
    theirs = stage.client.submit(command=["true"], name="x", namespace="lab")
    stage.client.submit(command=["true"], name="x")
    for after in (theirs, [theirs]):
        with pytest.raises(InvalidInput) as caught:
            stage.client.submit(command=["true"], after=after)
        assert caught.value.message == ("after: expected groups of namespace default, found lab/x")


def test_a_group_that_is_neither_named_nor_given_is_refused_with_a_sentence(
    stage: Stage,
) -> None:
    refused = {
        "name: expected text or a PodGroup, found 5": lambda: stage.client.get("PodGroup", 5),  # type: ignore[arg-type]
        "name: expected the name of a Queue, found 5": lambda: stage.client.get("Queue", 5),  # type: ignore[arg-type]
        "groups: expected a list of names, found 5": lambda: stage.client.wait(5),  # type: ignore[arg-type]
    }
    for sentence, call in refused.items():
        with pytest.raises(InvalidInput) as caught:
            call()
        assert str(caught.value) == sentence


def test_a_timeout_below_a_second_is_stated_in_milliseconds(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    with pytest.raises(WaitTimedOut, match="PodGroup default/x is Pending after 100ms"):
        stage.client.wait("x", timeout_s=0.1)


@pytest.mark.parametrize("goal", ["completed", "Finished", "", None])
def test_an_unknown_goal_is_refused_and_never_counts_as_reached(stage: Stage, goal: str) -> None:
    stage.client.submit(command=["true"], name="x")
    with pytest.raises(InvalidInput) as caught:
        stage.client.wait("x", for_=goal, timeout_s=0)  # type: ignore[arg-type]
    found = "nothing" if goal is None else repr(goal)
    assert str(caught.value) == (
        f"for_: expected one of finished, succeeded, running, admitted, found {found}"
    )


def test_a_timeout_that_is_no_number_is_refused(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    with pytest.raises(InvalidInput, match="timeout_s: expected a number of seconds or None"):
        stage.client.wait("x", timeout_s=float("nan"))
