"""Claiming external groups from Python."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from batchq.client import Client
from batchq.client.external import Claim
from batchq.errors import Conflict, InvalidInput, NotFound, WaitTimedOut
from tests.builders import a_priority, a_queue
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.proxy import LossyProxy
from tests.harness.server import Server

SOON_S = 60


@pytest.fixture
def quick_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew a claim for a minute every 200 ms; a busy machine does not miss so many renewals."""
    monkeypatch.setattr("batchq.client.external._RENEWALS_A_TTL", 300)


def submit(stage: Stage, *names: str, **request: Any) -> None:
    """Submit external groups and let them be admitted."""
    for name in names:
        stage.client.submit(external=True, name=name, **request)
    stage.turn()


@pytest.fixture
def other(server: Server) -> Iterator[Client]:
    """A client of another process."""
    with Client(server.url) as client:
        yield client


def claimed(stage: Stage, name: str) -> str:
    group = stage.client.get("PodGroup", name)
    return str(getattr(group, "status").claim.phase)  # noqa: B009 - an Object may be any kind


def test_submitted_as_external_a_request_states_its_resources(stage: Stage) -> None:
    group = stage.client.submit(
        external=True, name="g", cpus=2, replicas=3, min_member=2, command=["sim"], env={"A": "b"}
    )
    [task] = group.spec.tasks
    assert group.spec.controller == "external"
    assert group.spec.min_resources == {"cpu": 4000}
    assert (task.replicas, task.template.command, task.template.requests) == (3, ("sim",), {})
    assert task.template.env == {"A": "b"}


def test_without_a_command_it_is_called_external(stage: Stage) -> None:
    group = stage.client.submit(external=True)
    assert group.metadata.name.startswith("external-")


def test_groups_wait_in_the_order_of_the_line(stage: Stage) -> None:
    stage.furnish(a_priority("high", 10), a_queue("q"))
    submit(stage, "first", "second")
    submit(stage, "urgent", priority_class="high")
    submit(stage, "elsewhere", queue="q")
    stage.client.submit(command=["true"], name="ours")
    stage.turn()
    names = [group.metadata.name for group in stage.client.external.waiting()]
    assert names == ["urgent", "first", "second", "elsewhere"]
    [only] = stage.client.external.waiting(queue="q")
    assert only.metadata.name == "elsewhere"
    assert stage.client.external.waiting(namespace="research") == []


def test_a_claim_reports_and_the_group_completes(stage: Stage) -> None:
    submit(stage, "g")
    with stage.client.external.claim("g", holder="w") as claim:
        assert claim.key == "default/g"
        claim.report("running")
        stage.turn()
        assert stage.phase("g") == "Running"
        claim.report("succeeded")
    stage.turn()
    assert stage.phase("g") == "Completed"
    [result] = stage.client.wait(["g"], timeout_s=SOON_S)
    assert (result.reached, result.exit_code) == (True, 0)


def test_claiming_without_a_name_takes_the_first_group(stage: Stage) -> None:
    submit(stage, "a", "b")
    names = [stage.client.external.claim(holder="w").group.metadata.name for _ in range(2)]
    assert names == ["a", "b"]
    with pytest.raises(NotFound, match="no external group can be claimed"):
        stage.client.external.claim(holder="w")


def test_each_group_goes_to_one_of_several_consumers_claiming_at_once(
    stage: Stage, server: Server
) -> None:
    submit(stage, *(f"g{number}" for number in range(6)))

    def claim_three(holder: str) -> list[str]:
        with Client(server.url) as client:
            found = [client.external.next(holder=holder, timeout_s=SOON_S) for _ in range(3)]
            return [claim.key for claim in found if claim is not None]

    with ThreadPoolExecutor(2) as threads:
        left, right = threads.map(claim_three, ("left", "right"))
    assert sorted(left + right) == [f"default/g{number}" for number in range(6)]


def test_next_waits_until_a_group_is_admitted(stage: Stage, other: Client) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.external.next, holder="w", timeout_s=SOON_S)
        submit(stage, "late")
        claim = waiting.result(SOON_S)
    assert claim is not None
    assert claim.key == "default/late"


def test_next_respects_its_timeout(stage: Stage) -> None:
    assert stage.client.external.next(holder="w", timeout_s=0.05) is None


@pytest.mark.usefixtures("quick_renewals")
def test_a_claim_is_renewed_while_its_with_block_runs(stage: Stage, other: Client) -> None:
    submit(stage, "g")
    with stage.client.external.claim("g", holder="w", ttl="60s") as claim:
        first = claim.group.status.claim.expires_at or 0

        def expires_at() -> int:
            group: Any = other.get("PodGroup", "g")
            return int(group.status.claim.expires_at)

        until(lambda: expires_at() > first, within_s=SOON_S)
        assert claim.alive
        claim.report("succeeded")
    assert not claim.alive


@pytest.mark.usefixtures("quick_renewals")
def test_a_stopped_claim_has_a_reason_and_leaving_the_block_releases_it(
    stage: Stage,
) -> None:
    submit(stage, "g")
    with stage.client.external.claim("g", holder="w", ttl="60s") as claim:
        stage.client.suspend("g")
        stage.turn()
        assert claim.stopping.wait(SOON_S)
        assert claim.stop_reason == "Suspended"
        with pytest.raises(Conflict, match=r"was told to stop \(Suspended\)"):
            claim.report("succeeded")
        assert claimed(stage, "g") == "Claimed"
    assert claimed(stage, "g") == "Released"


def test_an_error_in_the_block_releases_the_group(stage: Stage) -> None:
    submit(stage, "g")
    with (
        pytest.raises(ZeroDivisionError),
        stage.client.external.claim("g", holder="w"),
    ):
        _ = 1 // 0
    assert claimed(stage, "g") == "Released"
    assert stage.client.external.claim("g", holder="w2").key == "default/g"


def test_a_consumer_paused_for_too_long_learns_that_its_claim_has_lapsed(stage: Stage) -> None:
    submit(stage, "g")
    claim = stage.client.external.claim("g", holder="w", ttl="1s")
    expires_at = claim.group.status.claim.expires_at or 0
    until(lambda: stage.store.now_ms() > expires_at, within_s=SOON_S)
    with claim:
        assert claim.stopping.wait(SOON_S)
        assert claim.stop_reason == "ClaimLapsed"


def test_work_stops_if_the_server_is_away_for_too_long(stage: Stage, server: Server) -> None:
    submit(stage, "g")
    with ExitStack() as there:
        proxy = there.enter_context(LossyProxy(server.socket))
        with Client(proxy.url) as client, client.external.claim("g", holder="w", ttl="1s") as claim:
            there.close()
            assert claim.stopping.wait(SOON_S)
            claim.stop()
    assert claim.stop_reason == "ClaimLapsed"
    assert claimed(stage, "g") == "Claimed"


def test_a_claim_whose_answer_is_lost_is_made_once(stage: Stage, server: Server) -> None:
    submit(stage, "g")
    with LossyProxy(server.socket) as proxy:
        with Client(proxy.url) as client:
            assert len(client.external.waiting()) == 1
            proxy.lose("Claimed")
            claim = client.external.claim("g", holder="w")
            proxy.lose("Succeeded")
            claim.report("succeeded")
        assert proxy.lost == 2
    stage.turn()
    assert stage.phase("g") == "Completed"


def test_a_group_that_was_cancelled_is_waited_for_until_its_consumer_has_stopped(
    stage: Stage,
) -> None:
    submit(stage, "g")
    claim = stage.client.external.claim("g", holder="w")
    stage.client.cancel("g")
    stage.turn()
    assert claim.renew() == "Cancelled"
    with pytest.raises(WaitTimedOut):
        stage.client.wait(["g"], timeout_s=0.1)
    claim.release()
    [result] = stage.client.wait(["g"], timeout_s=SOON_S)
    assert result.phase == "Cancelled"


def test_an_invalid_ttl_is_refused(stage: Stage) -> None:
    submit(stage, "g")
    with pytest.raises(InvalidInput, match="ttl: "):
        stage.client.external.claim("g", holder="w", ttl="soon")


def test_lists_count_what_was_reported(stage: Stage) -> None:
    submit(stage, "g", replicas=2)
    claim: Claim = stage.client.external.claim("g", holder="w")
    claim.report("running", pod="a")
    claim.report("succeeded", pod="b")
    [view] = stage.client.jobs()
    assert (view.pods.wanted, view.pods.running, view.pods.succeeded) == (2, 1, 1)


@pytest.mark.usefixtures("quick_renewals")
def test_whose_last_pod_has_succeeded_is_done_and_may_say_so_of_the_group_too(
    stage: Stage,
) -> None:
    submit(stage, "g", replicas=2)
    with stage.client.external.claim("g", holder="w", ttl="60s") as claim:
        claim.report("succeeded", pod="a")
        claim.report("succeeded", pod="b")
        stage.turn()
        assert stage.phase("g") == "Completed"
        assert claim.stopping.wait(SOON_S)
        assert claim.stop_reason == "Succeeded"
        claim.report("succeeded")
