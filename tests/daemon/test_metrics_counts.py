"""Counters of evictions, refusals, reloads and outages, and standbys, which export none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from prometheus_client.exposition import generate_latest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import (
    PodGroup,
)
from batchq.api.transaction import Transaction, Write
from batchq.config import SchedulerConfig
from batchq.daemon.loop import TurnReport
from batchq.daemon.metrics import MEASURES, Metrics
from batchq.daemon.metrics_server import MetricsServer
from batchq.errors import StoreUnavailable
from batchq.store.memory import MemoryStore
from batchq.store.outage import Outage
from tests.builders import a_node, a_priority
from tests.daemon.scrapes import Scrape
from tests.daemon.watched import Watched, labels, put

_set = msgspec.structs.replace
MINUTE_MS = 60_000


@pytest.fixture
def watched() -> Watched:
    return Watched(MemoryStore())


def test_evictions_are_counted_once_with_what_they_cost(watched: Watched) -> None:
    watched.ready(a_node(cpu=2))
    watched.apply(a_priority("high", 10))
    watched.submit("low", 2)
    watched.until_idle()
    watched.start_pods()
    watched.until_idle()
    watched.later(60_000)
    watched.submit("high", 2, priority_class_name="high")
    watched.until_idle()
    watched.later(1_000)
    watched.until_idle()
    seen = watched.scrape()
    assert seen.all("evicted_pods_total") == {
        labels(queue="default", action="preempt", reason="Preempted"): 2
    }
    assert seen.all("requeued_groups_total") == {labels(queue="default", reason="Preempted"): 1}
    assert seen.all("pledges_total") == {labels(queue="default", action="preempt"): 1}
    assert seen.value("lost_resource_seconds_total", queue="default", resource="cpu") == 120


def test_a_pod_that_was_stopping_and_then_lost_is_one_eviction(watched: Watched) -> None:
    watched.ready(a_node(cpu=1, heartbeat=watched.clock.at_ms))
    watched.submit("g")
    watched.until_idle()
    watched.start_pods()
    watched.until_idle()
    put(watched, "PodGroup", "default/g", suspended(watched.group("g")))
    watched.until_idle()
    watched.later(10 * MINUTE_MS)
    watched.until_idle()
    assert [pod.status.phase for pod in watched.pods(PodPhase.RUNNING)] == []
    assert watched.scrape().all("evicted_pods_total") == {
        labels(queue="default", action="", reason="Suspended"): 1
    }


def test_a_pod_lost_with_its_node_is_an_eviction(watched: Watched) -> None:
    watched.ready(a_node(cpu=1, heartbeat=watched.clock.at_ms))
    watched.submit("g")
    watched.until_idle()
    watched.start_pods()
    watched.until_idle()
    watched.later(10 * MINUTE_MS)
    watched.until_idle()
    seen = watched.scrape()
    assert seen.value("evicted_pods_total", queue="default", action="", reason="NodeLost") == 1
    assert seen.value("nodes", state="silent") == 1


def test_pods_that_end_with_their_group_are_no_evictions(watched: Watched) -> None:
    watched.ready(a_node(cpu=1))
    watched.submit("g", walltime=1_000)
    watched.until_idle()
    watched.start_pods()
    watched.until_idle()
    watched.later(2_000)
    watched.until_idle()
    watched.end_pods(PodPhase.FAILED, reason="WalltimeExceeded")
    watched.until_idle()
    seen = watched.scrape()
    assert seen.all("evicted_pods_total") == {}
    assert list(seen.all("finished_groups_total").values()) == [1]


def suspended(group: PodGroup) -> PodGroup:
    return _set(group, spec=_set(group.spec, suspend=True))


class Meanwhile(MemoryStore):
    """A store that writes a group between the scheduler's snapshot and its commit, once."""

    def __init__(self) -> None:
        super().__init__()
        self.key = ""

    def commit(self, transactions: Any, **more: Any) -> Any:
        if self.key and more.get("seen") is not None:
            key, self.key = self.key, ""
            group = self.get("PodGroup", key)
            assert group is not None
            write = Write(kind="PodGroup", key=key, expect=group.metadata.revision, value=group)
            super().commit([Transaction(subject=key, writes=(write,))], request_id="x")
        return super().commit(transactions, **more)


def test_a_refused_admission_is_a_refusal_and_no_admission() -> None:
    store = Meanwhile()
    watched = Watched(store)
    watched.ready(a_node(cpu=1))
    watched.submit("g")
    store.key = "default/g"
    watched.turn()
    seen = watched.scrape()
    assert seen.value("transactions_total", word="conflict") == 1
    assert seen.value("transactions_total", word="ok") == 0
    assert seen.value("intents_total", intent="AdmitGroup", result="refused") == 1
    assert seen.value("admission_wait_seconds_count", queue="default") is None
    watched.turn()
    seen = watched.scrape()
    assert seen.value("transactions_total", word="ok") == 1
    assert seen.value("intents_total", intent="AdmitGroup", result="applied") == 1
    assert seen.value("admission_wait_seconds_count", queue="default") == 1


def test_sessions_are_counted_by_their_result(watched: Watched) -> None:
    watched.ready(a_node(cpu=1))
    watched.submit("g")
    watched.turn()
    watched.turn()

    def away() -> TurnReport:
        raise StoreUnavailable("the server does not answer")

    with pytest.raises(StoreUnavailable):
        watched.metrics.watching(away)()
    seen = watched.scrape()
    assert seen.value("sessions_total", result="changed") == 1
    assert seen.value("sessions_total", result="idle") == 1
    assert seen.value("sessions_total", result="unavailable") == 1


def test_a_standby_scheduler_exports_nothing_of_groups_and_queues(watched: Watched) -> None:
    watched.submit("g")
    watched.turn()
    seen = watched.scrape()
    assert seen.value("leader") == 1
    assert seen.value("leader_epoch") == 7
    assert seen.value("groups", queue="default", phase="Pending") == 1
    watched.epoch = None
    seen = watched.scrape()
    assert seen.value("leader") == 0
    assert seen.value("leader_epoch") == 0
    assert seen.all("groups") == {}
    assert seen.all("queue_resource") == {}
    # Counters keep their values.
    assert seen.value("sessions_total", result="changed") == 1


def test_reloads_outages_mirror_and_configuration_are_exported(watched: Watched) -> None:
    seen = watched.scrape()
    assert seen.value("config_last_reload_successful") == 1
    assert seen.value("config_info", hash="0badcafe") == 1
    assert seen.value("mirror_revision") == 42
    watched.metrics.reloaded(ok=True)
    watched.metrics.reloaded(ok=False)
    watched.outage.failed(StoreUnavailable("away"))
    watched.outage.failed(StoreUnavailable("away"))
    seen = watched.scrape()
    assert seen.value("config_reloads_total", result="ok") == 1
    assert seen.value("config_reloads_total", result="refused") == 1
    assert seen.value("config_last_reload_successful") == 0
    assert seen.value("store_unavailable") == 1
    assert seen.value("store_outages_total") == 1
    watched.outage.succeeded()
    away_s = watched.scrape().value("store_unavailable_seconds_total")
    assert away_s is not None
    assert away_s > 0
    assert watched.scrape().value("store_unavailable") == 0
    assert watched.scrape().value("store_unavailable_seconds_total") == away_s


def test_levels_are_worked_out_once_in_a_while_only(watched: Watched) -> None:
    watched.metrics = Metrics(levels_every_s=60, clock=lambda: watched.clock.at_ms / 1000)
    watched.metrics.follow(
        epoch=lambda: 1,
        revision=lambda: 1,
        config_hash=lambda: "",
        unreadable=dict,
        mended=lambda: 0,
        outage=Outage(),
    )
    watched.submit("first")
    watched.turn()
    watched.submit("second")
    watched.turn()
    assert watched.scrape().value("groups", queue="default", phase="Pending") == 1
    assert watched.scrape().value("sessions_total", result="changed") == 2
    # The skipped update is made up for, although nothing happens any more.
    watched.later(MINUTE_MS)
    watched.turn()
    assert watched.scrape().value("groups", queue="default", phase="Pending") == 2


def test_exactly_the_defined_metrics_are_exported(watched: Watched) -> None:
    actual = {
        line.split()[2] for line in watched.scrape().text.splitlines() if line.startswith("# TYPE")
    }
    assert actual == {measure.name for measure in MEASURES}


def test_without_an_address_nothing_is_measured() -> None:
    server = MetricsServer()
    scheduler = server.assemble(SchedulerConfig())
    assert scheduler.instrument is None
    assert server.metrics is None

    def turn() -> TurnReport:
        return TurnReport()

    assert server.watching(turn) is turn
    server.start()
    assert not server.alive
    server.stop()


def test_two_daemons_in_one_process_share_no_number() -> None:
    one, other = Metrics(), Metrics()
    one.reloaded(ok=False)
    text = generate_latest(other.registry).decode()
    assert Scrape(text).value("config_reloads_total", result="refused") == 0


def test_the_closed_lists_of_words_begin_at_zero() -> None:
    seen = Scrape(generate_latest(Metrics().registry).decode())
    zeros: Mapping[frozenset[tuple[str, str]], float] = seen.all("transactions_total")
    assert set(zeros.values()) == {0}
    assert len(zeros) == 6


def test_records_that_cannot_be_read_are_counted_by_kind(watched: Watched) -> None:
    actual = watched.scrape()
    assert actual.value("unreadable_records", kind="PodGroup") == 1
    assert actual.value("unreadable_records", kind="Queue") == 0
    assert actual.value("mended_records_total") == 3
