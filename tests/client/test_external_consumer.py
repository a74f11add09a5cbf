"""A consumer of many external groups: claims, reports and renewals in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_type_hints

import msgspec
import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import GroupClaim, Object, Unreadable, is_claimable
from batchq.client import Client
from batchq.client.external import Consumer, Held, may_be_claimable
from batchq.errors import Conflict, InvalidInput
from batchq.store import mirror
from batchq.store.records import Decode, read_record
from tests.builders import a_group, a_priority, a_queue
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.proxy import LossyProxy
from tests.harness.server import Server
from tests.harness.trips import Trips

SOON_S = 60


def submit(stage: Stage, *names: str, **request: object) -> None:
    """Submit external groups and let them be admitted."""
    for name in names:
        stage.client.submit(external=True, name=name, **request)
    stage.turn()


@pytest.fixture
def consumer(server: Server) -> Iterator[Consumer]:
    """A consumer in another process, with a client of its own."""
    with Client(server.url) as client:
        yield client.external.consumer(holder="farm")


def names(held: list[Held]) -> list[str]:
    return [one.group.metadata.name for one in held]


def claim_of(stage: Stage, name: str) -> str:
    group = stage.client.get("PodGroup", name)
    return str(getattr(group, "status").claim.phase)  # noqa: B009 - an Object may be any kind


def test_all_that_wait_are_claimed_and_reported_in_one_go(stage: Stage, consumer: Consumer) -> None:
    submit(stage, *(f"g{number}" for number in range(8)))
    held = consumer.claim()
    assert sorted(names(held)) == [f"g{number}" for number in range(8)]
    assert consumer.report([(one, "running") for one in held]) == []
    stage.turn()
    assert {stage.phase(f"g{number}") for number in range(8)} == {"Running"}
    assert consumer.report([(one, "succeeded") for one in held[:6]]) == []
    assert consumer.report([(one, "failed") for one in held[6:]], message="no licence") == []
    stage.turn()
    phases = sorted(stage.phase(f"g{number}") for number in range(8))
    assert phases == ["Completed"] * 6 + ["Failed"] * 2
    assert consumer.held == ()


@pytest.mark.parametrize("count", [8, 80])
def test_a_batch_costs_a_bounded_number_of_round_trips(
    stage: Stage, consumer: Consumer, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(stage, *(f"g{number}" for number in range(count)))
    consumer.stopping()
    trips = Trips(monkeypatch)

    def claim_and_report() -> None:
        assert len(held := consumer.claim()) == count
        assert consumer.report([(one, "running") for one in held]) == []

    # The claim reads changes and the time, and commits. The report commits, reads the groups that
    # have changed, and commits those again. Four are for connecting.
    assert trips.of(claim_and_report) <= 7 + 4


def test_a_claim_may_report_its_groups_as_running_at_once(stage: Stage, consumer: Consumer) -> None:
    submit(stage, "g")
    consumer.claim(reported="running")
    assert claim_of(stage, "g") == "Running"
    stage.turn()
    assert stage.phase("g") == "Running"


def test_a_consumer_with_a_limit_takes_the_first_groups_of_the_line(
    stage: Stage, consumer: Consumer
) -> None:
    stage.furnish(a_priority("high", 10))
    submit(stage, "first", "second")
    submit(stage, "urgent", priority_class="high")
    assert names(consumer.claim(most=2)) == ["urgent", "first"]
    assert names(consumer.claim(most=2)) == ["second"]
    assert consumer.claim(most=2) == []


def test_a_consumer_claims_only_from_its_queue_and_namespace(stage: Stage, server: Server) -> None:
    stage.furnish(a_queue("q"))
    submit(stage, "here", queue="q")
    submit(stage, "elsewhere")
    with Client(server.url) as client:
        assert names(client.external.consumer(holder="w", queue="q").claim()) == ["here"]
        assert client.external.consumer(holder="w", namespace="research").claim() == []


def test_each_group_goes_to_one_of_two_consumers(
    stage: Stage, server: Server, consumer: Consumer
) -> None:
    submit(stage, "a", "b", "c")
    with Client(server.url) as client:
        other = client.external.consumer(holder="other")
        other.stopping()
        consumer.stopping()
        taken = consumer.claim(most=2)
        # Whether it has seen the change or not, no group is claimed twice.
        assert sorted(names(taken) + names(other.claim())) == ["a", "b", "c"]


def test_an_evicted_group_is_named_with_the_reason_and_comes_back(
    stage: Stage, consumer: Consumer
) -> None:
    submit(stage, "g", "h")
    held = {one.group.metadata.name: one for one in consumer.claim(reported="running")}
    stage.turn()
    stage.client.suspend("g")
    stage.turn()
    [result] = consumer.stopping(wait_s=SOON_S)
    assert (result, result.stop_reason, result.grace_s) == (held["g"], "Suspended", 30.0)
    assert consumer.stopping() == []
    [refused] = consumer.report([(result, "succeeded"), (held["h"], "succeeded")])
    assert refused.held is result
    assert isinstance(refused.error, Conflict)
    assert "told to stop (Suspended)" in str(refused.error)
    assert consumer.report([(result, "evicted")]) == []
    assert consumer.held == ()
    stage.client.resume("g")
    stage.turn()
    assert names(consumer.claim()) == ["g"]


def test_an_end_reported_after_the_eviction_is_refused_and_the_work_must_stop(
    stage: Stage, consumer: Consumer
) -> None:
    submit(stage, "g")
    [held] = consumer.claim()
    stage.client.suspend("g")
    stage.turn()
    [refused] = consumer.report([(held, "succeeded")])
    assert "told to stop (Suspended)" in str(refused.error)
    assert [one.stop_reason for one in consumer.stopping()] == ["Suspended"]
    assert consumer.report([(held, "evicted")]) == []
    assert claim_of(stage, "g") == "Released"


def test_a_consumer_that_keeps_polling_renews_its_claims(
    stage: Stage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every 200 ms, so that a busy machine misses no claim.
    monkeypatch.setattr("batchq.client.external._RENEWALS_A_TTL", 300)
    submit(stage, "g", "h")
    with Client(server.url) as client:
        consumer = client.external.consumer(holder="w", ttl="60s")
        held = consumer.claim()
        first = held[0].group.status.claim.expires_at or 0

        def goes_on() -> bool:
            assert consumer.stopping(wait_s=0.05) == []
            groups = [stage.client.get("PodGroup", name) for name in ("g", "h")]
            return all(group.status.claim.expires_at > first for group in groups)  # type: ignore[union-attr]

        until(goes_on, within_s=SOON_S)
        assert consumer.report([(one, "succeeded") for one in held]) == []


def test_a_consumer_paused_for_too_long_learns_that_its_claims_have_lapsed(
    stage: Stage, server: Server
) -> None:
    submit(stage, "g")
    with Client(server.url) as client:
        consumer = client.external.consumer(holder="w", ttl="1s")
        [held] = consumer.claim()
        expires_at = held.group.status.claim.expires_at or 0
        until(lambda: stage.store.now_ms() > expires_at, within_s=SOON_S)
        assert [one.stop_reason for one in consumer.stopping()] == ["ClaimLapsed"]
        [refused] = consumer.report([(held, "succeeded")])
        assert "lapsed at" in str(refused.error)
        assert consumer.held == ()


def test_a_group_that_is_deleted_is_to_be_stopped(stage: Stage, consumer: Consumer) -> None:
    submit(stage, "g")
    [held] = consumer.claim()
    stage.erase("g")
    [result] = consumer.stopping(wait_s=SOON_S)
    assert (result, result.stop_reason) == (held, "ClaimLapsed")
    [refused] = consumer.report([(held, "succeeded")])
    assert "was deleted" in str(refused.error)


def test_a_repeated_report_changes_nothing(stage: Stage, consumer: Consumer) -> None:
    submit(stage, "g")
    [held] = consumer.claim()
    assert consumer.report([(held, "succeeded")]) == []
    before = stage.names()
    assert consumer.report([(held, "succeeded")]) == []
    assert stage.names() == before


def test_claims_and_reports_whose_answers_are_lost_are_made_once(
    stage: Stage, server: Server
) -> None:
    submit(stage, "g", "h")
    with LossyProxy(server.socket) as proxy:
        with Client(proxy.url) as client:
            consumer = client.external.consumer(holder="w")
            consumer.stopping()
            proxy.lose("Claimed")
            held = consumer.claim()
            proxy.lose("Succeeded")
            assert consumer.report([(one, "succeeded") for one in held]) == []
        assert proxy.lost == 2
    stage.turn()
    assert [stage.phase(name) for name in ("g", "h")] == ["Completed", "Completed"]


def test_with_nothing_to_claim_it_waits_for_the_next_change(
    stage: Stage, consumer: Consumer
) -> None:
    assert consumer.claim(wait_s=0.05) == []
    submit(stage, "late")
    assert names(consumer.claim(wait_s=SOON_S)) == ["late"]


def test_a_holder_without_a_name_is_refused(stage: Stage) -> None:
    submit(stage, "g")
    with pytest.raises(InvalidInput, match="holder: expected a name"):
        stage.client.external.consumer(holder="").claim()
    with pytest.raises(InvalidInput, match="ttl: "):
        stage.client.external.consumer(holder="w", ttl="soon")


def test_changes_of_groups_that_cannot_be_claimed_are_not_decoded(
    stage: Stage, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(stage, "held")
    [held] = consumer.claim()
    consumer.stopping()
    decoded: list[str] = []

    def counted(kind: str, key: str, stored: bytes, *decode: Decode) -> Object | Unreadable:
        decoded.append(key)
        return read_record(kind, key, stored, *decode)

    monkeypatch.setattr(mirror, "read_record", counted)
    for number in range(3):
        stage.client.submit(name=f"batchq-runs-it-{number}", command=["true"])
    stage.furnish(a_queue("q"))
    stage.client.submit(name="waits", external=True, suspend=True)
    consumer.stopping()
    assert decoded == []
    stage.client.suspend("held")
    stage.turn()
    decoded.clear()
    assert consumer.stopping() == [held]
    assert set(decoded) == {"default/held"}
    consumer.report([(held, "evicted")])
    stage.client.resume("waits")
    stage.turn()
    assert names(consumer.claim()) == ["waits"]


@pytest.mark.parametrize("phase", list(PodGroupPhase))
@pytest.mark.parametrize("claim", get_args(get_type_hints(GroupClaim)["phase"]))
@pytest.mark.parametrize("controller", ["batchq", "external"])
def test_a_claimable_group_is_never_passed_over_at_a_glance(
    phase: PodGroupPhase, claim: str, controller: str
) -> None:
    group = a_group("g", controller=controller)
    status = structs.replace(group.status, phase=phase, claim=GroupClaim(phase=claim))  # type: ignore[arg-type]
    group = structs.replace(group, status=status)
    assert may_be_claimable(msgspec.json.encode(group)) == is_claimable(group)


def test_a_malformed_group_is_left_to_the_reader() -> None:
    assert may_be_claimable(b'{"spec":{"controller":5}}')
    assert may_be_claimable(b"not JSON")


def test_groups_that_another_has_claimed_between_two_looks_are_not_tried(
    stage: Stage, server: Server, consumer: Consumer
) -> None:
    with Client(server.url) as client:
        other = client.external.consumer(holder="other")
        other.stopping()
        consumer.stopping()
        submit(stage, *(f"old{number}" for number in range(5)))
        assert len(other.claim()) == 5
        submit(stage, "new")
        assert names(consumer.claim(most=5)) == ["new"]


def test_groups_that_ended_between_two_looks_cost_later_looks_nothing(
    stage: Stage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(server.url) as mine, Client(server.url) as client:
        other = client.external.consumer(holder="other")
        other.stopping()
        assert mine.external.next(holder="me", timeout_s=0) is None
        submit(stage, *(f"old{number}" for number in range(30)))
        other.report([(one, "succeeded") for one in other.claim()])
        stage.turn()
        assert mine.external.next(holder="me", timeout_s=0) is None
        trips = Trips(monkeypatch)
        assert trips.of(lambda: mine.external.next(holder="me", timeout_s=0)) <= 4
