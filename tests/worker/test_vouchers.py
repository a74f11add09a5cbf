"""Tests of how an agent vouches for its work-horses, so that these need no connection."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.store.node_channels import WakeReason, notify
from batchq.worker.workhorse.leases import Lease, OwnServer, ServerWatch, Voucher, VoucherTable
from batchq.worker.workhorse.supervision import AgentContact
from tests.daemon.waiting import until
from tests.worker.stage import Stage, members

LEASE_MS = 30_000
#: The user of the agents whose connections are counted.
AGENTS = "agents"


def a_voucher(*, asked_at: int = 1_000) -> Voucher:
    voucher = VoucherTable(1).take()
    assert voucher is not None
    voucher.begin(asked_at=asked_at, now_ms=asked_at)
    return voucher


def contact(voucher: Voucher | None, server: ServerWatch | None = None) -> AgentContact:
    return AgentContact(voucher, server=server or ServerWatch(lambda: None), lease_ms=LEASE_MS)


def test_a_work_horse_counts_its_lease_from_the_request_that_its_agent_sent() -> None:
    voucher, lease = a_voucher(), Lease(now_ms=1_000, lease_ms=LEASE_MS)
    voucher.renew(asked_at=3_500)
    assert contact(voucher).hear(lease) == ""
    assert lease.ends_at == 33_500


def test_a_work_horse_asks_the_server_itself_after_a_third_of_a_lease_without_a_renewal() -> None:
    agent = contact(a_voucher(asked_at=1_000))
    assert not agent.is_lost(10_999)
    assert agent.is_lost(11_000)


def test_a_work_horse_without_a_voucher_asks_the_server_itself() -> None:
    assert contact(None).is_lost(0)


def test_a_work_horse_asks_the_server_itself_while_the_server_does_not_know_its_attempt() -> None:
    voucher = a_voucher()
    voucher.disown()
    assert contact(voucher).is_lost(1_001)
    voucher.renew(asked_at=3_500)
    assert not contact(voucher).is_lost(3_501)


def test_a_work_horse_hears_why_its_pod_is_to_stop() -> None:
    voucher = a_voucher()
    voucher.stop("Preempted")
    assert contact(voucher).hear(Lease(now_ms=1_000, lease_ms=LEASE_MS)) == "Preempted"


def test_the_next_pod_of_a_work_horse_is_not_told_what_the_one_before_was_told() -> None:
    voucher = a_voucher()
    voucher.stop("Preempted")
    voucher.disown()
    voucher.begin(asked_at=5_000, now_ms=6_000)
    assert (voucher.stop_reason, voucher.is_disowned) == ("", False)
    assert (voucher.asked_at, voucher.seen_at) == (5_000, 6_000)


def test_rows_of_the_table_do_not_touch_each_other_and_are_used_again() -> None:
    table = VoucherTable(2)
    first, second = table.take(), table.take()
    assert first is not None
    assert second is not None
    assert table.take() is None
    first.stop("x" * 500)
    second.renew(asked_at=7)
    table.tick(9, OwnServer(4711, 12))
    assert first.stop_reason == "x" * 96
    assert (second.asked_at, second.stop_reason, second.seen_at) == (7, "", 0)
    first.give_back()
    assert table.take() is not None


def test_a_work_horse_believes_its_agent_about_the_server_only_while_the_agent_gives_signs() -> (
    None
):
    table = VoucherTable(1)
    voucher, watch = table.take(), ServerWatch(lambda: None)
    # A process that does not run.
    table.tick(1_000, OwnServer(2**22 - 1, 1))
    agent = contact(voucher, watch)
    assert agent.is_server_away(10_999)
    watch.learn(None)
    assert not agent.is_server_away(11_000)


def test_a_work_horse_knows_the_server_from_its_start_on_whatever_its_agent_does_then() -> None:
    table = VoucherTable(1)
    voucher, watch = table.take(), ServerWatch(lambda: None)
    # A process that does not run.
    table.tick(1_000, OwnServer(2**22 - 1, 1))
    assert contact(voucher, watch).is_server_away(1_000_000)


def test_a_server_that_was_replaced_unnoticed_is_looked_up_over_the_new_connection() -> None:
    pids, connections = [2**22 - 1, os.getpid()], [1]
    watch = ServerWatch(lambda: pids[connections[0] - 1], connections=lambda: connections[0])
    watch.heard()
    assert watch.is_away()
    connections[0] = 2
    watch.heard()
    assert not watch.is_away()


@pytest.fixture
def agents_url(stage: Stage, raw: redis.Redis) -> Iterator[str]:
    """The server's URL with a user whose only connections are those of agents and work-horses."""
    raw.acl_setuser(
        AGENTS, enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all"]
    )
    yield stage.store.url.replace("unix://", f"unix://{AGENTS}:any@")
    raw.acl_deluser(AGENTS)


def connections(raw: redis.Redis) -> int:
    """Return how many connections agents and their work-horses have."""
    return sum(one["user"] == AGENTS for one in raw.client_list())


@pytest.mark.e2e
def test_an_agent_has_three_connections_whatever_the_number_of_its_quiet_pods(
    stage: Stage, raw: redis.Redis, agents_url: str
) -> None:
    stage.start_agent(url=agents_url)
    until(lambda: connections(raw) == 3)
    for pod in stage.bind("sleep", "600", replicas=16):
        stage.started(pod)
    # A work-horse reports the start of its pod over a connection that it then closes.
    until(lambda: connections(raw) == 3)
    assert len(stage.store.alive.leased("n1")) == 16


@pytest.mark.e2e
def test_a_pod_that_has_written_something_lets_its_connection_go(
    stage: Stage, raw: redis.Redis, agents_url: str
) -> None:
    stage.start_agent(url=agents_url)
    flag = stage.home / "flag"
    writes = f"while ! test -e {flag}; do echo up; sleep 0.1; done; sleep 600"
    (pod,) = stage.bind("sh", "-c", writes)
    stage.started(pod, saying="up")
    until(lambda: connections(raw) == 4)
    flag.touch()
    until(lambda: connections(raw) == 3)


@pytest.mark.e2e
def test_a_quiet_pod_outlives_its_first_lease_while_its_agent_runs(stage: Stage) -> None:
    stage.start_agent(lease_ms=8_000)
    (pod,) = stage.bind("sh", "-c", "sleep 600")
    group = stage.started(pod)
    started_at = stage.store.now_ms()
    until(lambda: stage.store.now_ms() > started_at + 9_000)
    assert members(group) != []
    assert stage.now(pod).status.phase == PodPhase.RUNNING
    stage.stop(pod)
    assert stage.ended(pod).status.reason == "Preempted"


@pytest.mark.e2e
def test_a_stop_is_read_as_soon_as_the_leader_announces_it(stage: Stage) -> None:
    # Renewals are 100 s apart; the first one follows the start at once.
    stage.start_agent(lease_ms=1_200_000)
    (pod,) = stage.bind("sleep", "600")
    stage.started(pod)
    started_at = stage.store.now_ms()
    until(lambda: stage.store.now_ms() > started_at + 1_500)
    stage.stop(pod)
    notify(stage.store.link, ["n1"], WakeReason.STOPS)
    assert stage.ended(pod).status.reason == "Preempted"


@pytest.mark.e2e
def test_a_stop_that_a_former_scheduler_does_not_announce_comes_with_the_next_renewal(
    stage: Stage,
) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sleep", "600")
    stage.started(pod)
    stage.stop(pod)
    assert stage.ended(pod).status.reason == "Preempted"


@pytest.mark.e2e
def test_a_quiet_pod_is_killed_when_its_agent_is_stopped_and_the_server_is_gone(
    stage: Stage, raw: redis.Redis
) -> None:
    agent = stage.start_agent(lease_ms=9_000)
    (pod,) = stage.bind("sh", "-c", "sleep 600")
    group = stage.started(pod)
    agent.send_signal(signal.SIGSTOP)
    raw.config_set("maxclients", 1)
    raw.client_kill_filter(_type="normal", skipme=True)
    until(lambda: members(group) == [])
    raw.config_set("maxclients", 1_000)
    agent.send_signal(signal.SIGCONT)
    assert stage.ended(pod).status.reason == "NodeLost"
