"""The service that applies node reports while its process leads, and counts what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import Ended, Leaves, NodeReport, PodOutcome, Serves, StartClaim
from batchq.api.objects import Launch, Node, Pod, PodGroupStatus
from batchq.api.transaction import Write
from batchq.daemon import ThreadService
from batchq.daemon.app import frees_resources
from batchq.daemon.node_reports import NodeReportReader, node_report_service
from batchq.store import keys
from batchq.store.node_channels import WakeReason
from batchq.store.redis import RedisStore
from batchq.system import RandomIds
from tests.builders import a_group, a_pod
from tests.contract.made import pod, put, writing
from tests.daemon.waiting import until
from tests.harness.server import Server

SERVES = Serves(agent="host:1:1", resources={"cpu": 1000})


class Election:
    """The epoch in which this process leads, if any."""

    def __init__(self) -> None:
        self.epoch: int | None = None

    def __call__(self) -> int | None:
        return self.epoch


@pytest.fixture
def election() -> Election:
    return Election()


@pytest.fixture
def service(redis_store: RedisStore, election: Election) -> Iterator[ThreadService]:
    made = node_report_service(redis_store, epoch=election, ids=RandomIds())
    made.start()
    yield made
    made.stop()


def is_ready(store: RedisStore, name: str) -> bool:
    node = store.get("Node", name)
    return isinstance(node, Node) and node.status.ready


@pytest.mark.usefixtures("service")
def test_reports_posted_while_no_scheduler_led_are_applied_by_the_next_leader(
    redis_store: RedisStore, election: Election
) -> None:
    redis_store.report_queues.post("n1", SERVES)
    election.epoch = redis_store.lead("one", 60_000)
    until(lambda: is_ready(redis_store, "n1"))
    election.epoch = None
    redis_store.report_queues.post("n1", Leaves(agent="host:1:1"))
    election.epoch = redis_store.lead("one", 60_000)
    until(lambda: not is_ready(redis_store, "n1"))
    until(lambda: redis_store.report_queues.pending("n1") == [])


@pytest.mark.usefixtures("service")
def test_a_former_leader_applies_nothing(redis_store: RedisStore, election: Election) -> None:
    former = redis_store.lead("one", 0)
    redis_store.lead("two", 60_000)
    redis_store.report_queues.post("n1", SERVES)
    election.epoch = former
    # When it hears the second notification, it has handled the first.
    reader = NodeReportReader(redis_store, RandomIds())
    reader.turn(former)
    assert redis_store.get("Node", "n1") is None
    assert redis_store.report_queues.pending("n1") == [SERVES]


@pytest.mark.usefixtures("service")
def test_a_report_whose_notification_was_lost_is_applied_by_the_next_sweep(
    redis_store: RedisStore, election: Election, raw: redis.Redis
) -> None:
    election.epoch = redis_store.lead("one", 60_000)
    redis_store.report_queues.post("n1", SERVES)
    until(lambda: is_ready(redis_store, "n1"))
    raw.hset("{bq}:inbox:n1", "node", '{"fact":"leaves","agent":"host:1:1"}')
    until(lambda: not is_ready(redis_store, "n1"))


def test_the_service_survives_a_restart_of_its_server(tmp_path: object) -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        epoch = store.lead("one", 600_000)
        service = node_report_service(store, epoch=lambda: epoch, ids=RandomIds())
        service.start()
        store.report_queues.post("n1", SERVES)
        until(lambda: is_ready(store, "n1"))
        server.stop()
        server.start()
        epoch = store.lead("one", 600_000)
        store.report_queues.post("n1", Leaves(agent="host:1:1"))
        until(lambda: not is_ready(store, "n1"), within_s=30.0)
        service.stop()
        assert not service.alive
        store.close()


def test_superseded_reports_are_logged_counted_and_removed(redis_store: RedisStore) -> None:
    reader = NodeReportReader(redis_store, RandomIds())
    redis_store.commit([writing(put(pod(0)))], request_id="1")
    queues = redis_store.report_queues
    queues.post("n1", StartClaim(pod="u1-1-0", attempt=1, author="horse"))
    queues.post("n1", Ended(pod="u1-1-7", attempt=3, outcome=PodOutcome(exit_code=0)))
    queues.post("n2", Serves(agent="a", resources={"cpu": -1}))
    reader.turn(None)
    assert redis_store.counts() == {"superseded": 3}
    events = [(event.kind, event.key, event.reason) for event in redis_store.events()]
    assert sorted(events) == [
        ("Node", "n2", "Superseded"),
        ("Pod", "u1-1-0", "Superseded"),
        ("Pod", "u1-1-7", "Superseded"),
    ]
    message = redis_store.events(kind="Pod", key="u1-1-7")[0].message
    assert message == "n1 reported the end of attempt 3, which is not, or no longer, its own"
    assert redis_store.report_queues.look(["n1", "n2"]) == []


def test_a_flood_of_superseded_reports_is_counted_and_displaces_no_events(
    redis_store: RedisStore,
) -> None:
    reader = NodeReportReader(redis_store, RandomIds())
    for number in range(1_200):
        redis_store.report_queues.post("n1", StartClaim(pod=f"p-{number}", attempt=1, author="x"))
    while redis_store.report_queues.pending("n1"):
        reader.turn(None)
    assert redis_store.counts() == {"superseded": 1_200}
    assert len(redis_store.events(most=1_000)) <= 60


def test_unreadable_reports_do_not_stop_the_service(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    raw.hset("{bq}:inbox:n1", mapping={"a": "nonsense", "b": '{"fact":"of the future"}'})
    redis_store.report_queues.post("n1", SERVES)
    NodeReportReader(redis_store, RandomIds()).turn(None)
    assert is_ready(redis_store, "n1")
    assert redis_store.counts() == {"unreadable": 2}


def test_a_thousand_simultaneous_starts_are_applied_at_once(redis_store: RedisStore) -> None:
    bound = [pod(number, phase=PodPhase.BOUND, attempt=1, node="n1") for number in range(1_000)]
    redis_store.commit([writing(put(one)) for one in bound], request_id="1")
    for one in bound:
        redis_store.report_queues.post(
            "n1", StartClaim(pod=one.metadata.uid, attempt=1, author="horse")
        )
    NodeReportReader(redis_store, RandomIds()).turn(None)
    phases = [one.status.phase for one in redis_store.list("Pod") if isinstance(one, Pod)]
    assert phases == ["Running"] * 1_000
    assert redis_store.report_queues.pending("n1") == []


def test_an_end_and_a_new_node_free_resources_and_other_reports_do_not(
    redis_store: RedisStore,
) -> None:
    seen: list[bool] = []
    redis_store.changes.wrote = lambda written: seen.append(any(map(frees_resources, written)))
    reader = NodeReportReader(redis_store, RandomIds())
    bound = pod(0, phase=PodPhase.BOUND, attempt=1, node="n1")
    redis_store.commit([writing(put(bound))], request_id="1")
    reports: tuple[NodeReport, ...] = (
        SERVES,
        StartClaim(pod=bound.metadata.uid, attempt=1, author="agent"),
        Ended(pod=bound.metadata.uid, attempt=1, outcome=PodOutcome(exit_code=0)),
        Leaves(agent="host:1:1"),
    )
    for report in reports:
        redis_store.report_queues.post("n1", report)
        reader.turn(None)
    assert seen == [False, True, False, True, False]


def test_a_node_is_notified_when_its_claim_is_applied_and_not_for_an_end(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    reader = NodeReportReader(redis_store, RandomIds())
    bound = pod(0, phase=PodPhase.BOUND, attempt=1, node="n1")
    redis_store.commit([writing(put(bound))], request_id="1")
    rung = []
    for report in (
        StartClaim(pod=bound.metadata.uid, attempt=1, author="agent"),
        Ended(pod=bound.metadata.uid, attempt=1, outcome=PodOutcome(exit_code=0)),
    ):
        redis_store.report_queues.post("n1", report)
        reader.turn(None)
        rung.append(raw.xinfo_stream("{bq}:doorbell:n1")["entries-added"])
    assert rung == [1, 1]


def end_of_pod_0(store: RedisStore, *, style: str, exit_code: int = 0) -> list[str]:
    """Have pod 0 of a gang of three end; return which nodes are then told to look at their pods."""
    status = PodGroupStatus(phase=PodGroupPhase.RUNNING, admission=1)
    group = a_group("g", 3, launch=Launch(style=style), token="self", status=status)
    pods = [
        a_pod(group, index, phase=PodPhase.BOUND, node=f"n{index}", bound_at=0)
        for index in range(3)
    ]
    gang = Write(kind="PodGroup", key="default/g", expect=0, value=group)
    store.commit([writing(gang, *map(put, pods))], request_id="1")
    reader = NodeReportReader(store, RandomIds())
    for one in pods:
        claim = StartClaim(
            pod=one.metadata.uid, attempt=1, author="a", address="10.0.0.1", ports=(61_440,)
        )
        store.report_queues.post(one.status.node, claim)
    reader.turn(None)
    end = Ended(pod=pods[0].metadata.uid, attempt=1, outcome=PodOutcome(exit_code=exit_code))
    store.report_queues.post("n0", end)
    reader.turn(None)
    return [node for node in ("n0", "n1", "n2") if WakeReason.STOPS in wakes(store, node)]


def wakes(store: RedisStore, node: str) -> set[str]:
    entries = store.link.ask(lambda client: client.xrange(keys.wake_up_channel(node)))
    return {fields[b"word"].decode() for _, fields in entries}


def test_the_end_of_pod_0_wakes_the_other_agents_of_an_mpi_gang(redis_store: RedisStore) -> None:
    assert end_of_pod_0(redis_store, style="mpi") == ["n1", "n2"]


def test_the_failure_of_pod_0_wakes_nobody_since_the_gang_is_stopped(
    redis_store: RedisStore,
) -> None:
    assert end_of_pod_0(redis_store, style="mpi", exit_code=1) == []


def test_the_end_of_pod_0_of_another_gang_wakes_nobody(redis_store: RedisStore) -> None:
    assert end_of_pod_0(redis_store, style="rank") == []
