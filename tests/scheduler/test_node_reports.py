"""Node reports are applied only within their node's rights, and repetitions have no effect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_features import DEVICES_ANNOTATION, LOCKED, Device, encode_devices
from batchq.api.node_report import (
    Ended,
    Leaves,
    NodeReport,
    PodOutcome,
    Pulls,
    Runs,
    Serves,
    StartClaim,
)
from batchq.api.objects import Launch, Node, Pod, PodGroup, PodGroupStatus, Taint
from batchq.api.transaction import Charge, Transaction, Write, fence_of
from batchq.scheduler import node_reports
from batchq.scheduler.node_reports import (
    NodeReportProcessor,
    PostedReport,
    ReportResult,
    Superseded,
    claim,
    runs,
)
from batchq.store.memory import MemoryStore
from batchq.system import CountingIds
from tests.builders import a_group, a_pod

CLAIM = StartClaim(pod="g-1-0", attempt=1, author="horse")
LOST = PodOutcome(stopped="NodeLost", message="its work-horse died")


def end(**outcome: Any) -> Ended:
    return Ended(pod="g-1-0", attempt=1, outcome=PodOutcome(**outcome), author="horse")


PLACE = {"address": "10.0.0.1", "ports": (61_440, 61_441)}


class Reports:
    """A store with one group of one pod, and a node-report processor."""

    def __init__(self, launch: Launch | None = None, **status: Any) -> None:
        self.store = MemoryStore()
        self.ids = CountingIds()
        self.processor = NodeReportProcessor(self.store, self.ids)
        in_queue = PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1)
        group = a_group("g", launch=launch, status=in_queue)
        pod = a_pod(group, **{"phase": PodPhase.BOUND, "node": "n1", **status})
        self.commit(
            Write(kind="PodGroup", key="default/g", expect=0, value=group),
            Write(kind="Pod", key="g-1-0", expect=0, value=pod),
            charge=Charge(holder="pod:g-1-0", scopes=("node:n1",), amounts={"cpu": 1000}),
        )

    def commit(self, *writes: Write, charge: Charge | None = None) -> None:
        charges = () if charge is None else (charge,)
        transaction = Transaction(subject="test", writes=writes, charges=charges)
        assert not self.store.commit([transaction], request_id=self.ids.new_uid()).refused

    def change(self, **status: Any) -> None:
        """Change the pod's status, as the scheduler would."""
        pod = self.pod()
        after = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **status))
        revision = pod.metadata.revision
        self.commit(
            Write(kind="Pod", key="g-1-0", expect=revision, value=after, fence=fence_of(pod))
        )

    def hear(self, *reports: NodeReport, node: str = "n1", **how: Any) -> ReportResult:
        posted = [PostedReport(node=node, report=report) for report in reports]
        return self.processor.apply(posted, **{"now_ms": 7, **how})

    def pod(self) -> Pod:
        pod = self.store.get("Pod", "g-1-0")
        assert isinstance(pod, Pod)
        return pod

    def node(self) -> Node:
        node = self.store.get("Node", "n1")
        assert isinstance(node, Node)
        return node

    def phase(self) -> tuple[str, str]:
        return str(self.pod().status.phase), self.pod().status.reason


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_a_bound_pod_is_claimed_once(reports: Reports) -> None:
    assert words(reports.hear(CLAIM)) == ["done"]
    status = reports.pod().status
    assert (status.phase, status.started_at, status.holder) == (PodPhase.RUNNING, 7, "horse")
    other = StartClaim(pod="g-1-0", attempt=1, author="another horse")
    assert words(reports.hear(other)) == ["superseded"]
    assert reports.pod().status.holder == "horse"


def test_a_start_claim_applied_twice_changes_nothing_and_is_not_counted(reports: Reports) -> None:
    reports.hear(CLAIM)
    revision = reports.pod().metadata.revision
    assert words(reports.hear(CLAIM)) == ["done"]
    assert reports.pod().metadata.revision == revision


def test_another_attempt_another_node_and_another_pod_claim_nothing(reports: Reports) -> None:
    for report, node in (
        (StartClaim(pod="g-1-0", attempt=2, author="horse"), "n1"),
        (CLAIM, "n2"),
        (StartClaim(pod="g-1-9", attempt=1, author="horse"), "n1"),
    ):
        assert words(reports.hear(report, node=node)) == ["superseded"]
    assert reports.phase() == ("Bound", "")


def test_a_pod_that_is_to_stop_is_evicted_instead_of_claimed() -> None:
    reports = Reports(terminating=True, reason="Suspended")
    assert words(reports.hear(CLAIM)) == ["done"]
    assert reports.phase() == ("Evicted", "Suspended")
    assert reports.store.ledger().get("node:n1", {}) == {}


def test_a_pod_that_was_bound_before_the_server_was_restarted_is_not_started(
    reports: Reports,
) -> None:
    answer = claim(reports.pod(), "n1", CLAIM, now_ms=7, generation=1)
    assert isinstance(answer, Transaction)
    after = answer.writes[0].value
    assert isinstance(after, Pod)
    assert (after.status.phase, after.status.reason) == (PodPhase.EVICTED, "NodeLost")


def test_the_history_of_a_group_says_which_of_its_pods_was_lost_and_why(
    reports: Reports,
) -> None:
    """Otherwise it would show a second start, and not the end of the first one."""
    reports.hear(CLAIM)
    reports.hear(end(stopped="NodeLost", message="its work-horse died"))
    [event] = [one for one in reports.store.events(kind="PodGroup") if one.reason == "PodLost"]
    assert event.message.endswith("Evicted on n1: its work-horse died")


def test_the_end_frees_what_the_pod_held(reports: Reports) -> None:
    reports.hear(CLAIM)
    assert reports.store.ledger()["node:n1"] == {"cpu": 1000}
    assert words(reports.hear(end(exit_code=0))) == ["done"]
    assert reports.store.ledger().get("node:n1", {}) == {}
    assert reports.phase() == ("Succeeded", "")


def test_an_end_is_applied_once_and_contradicting_ends_are_superseded(reports: Reports) -> None:
    reports.hear(CLAIM)
    assert words(reports.hear(end(exit_code=3, how="exited with 3"))) == ["done"]
    assert words(reports.hear(end(exit_code=3))) == ["done"]
    assert words(reports.hear(Ended(pod="g-1-0", attempt=1, outcome=LOST))) == ["superseded"]
    status = reports.pod().status
    assert (status.phase, status.failures, status.message) == ("Failed", 1, "exited with 3")
    assert [event.reason for event in reports.store.events()] == ["Failed"]


def test_a_superseded_attempt_ends_nothing(reports: Reports) -> None:
    reports.hear(CLAIM)
    old = Ended(pod="g-1-0", attempt=2, outcome=PodOutcome(exit_code=0))
    assert words(reports.hear(old)) == ["superseded"]
    assert words(reports.hear(end(exit_code=0), node="n2")) == ["superseded"]
    assert reports.phase() == ("Running", "")


def test_an_end_that_comes_after_the_pod_was_written_off_is_superseded(reports: Reports) -> None:
    reports.hear(CLAIM)
    reports.change(phase=PodPhase.EVICTED, reason="NodeLost")
    assert words(reports.hear(end(exit_code=0))) == ["superseded"]
    assert reports.phase() == ("Evicted", "NodeLost")


def test_a_server_that_forgot_the_claim_still_gets_the_success(reports: Reports) -> None:
    assert words(reports.hear(end(exit_code=0))) == ["again"]
    assert words(reports.hear(end(exit_code=0))) == ["done"]
    assert reports.phase() == ("Succeeded", "")


def test_an_order_to_stop_that_overtakes_the_end_is_heard(reports: Reports) -> None:
    reports.hear(CLAIM)
    reports.change(terminating=True, reason="Preempted")
    assert words(reports.hear(end(exit_code=1))) == ["done"]
    assert reports.phase() == ("Evicted", "Preempted")


def test_a_node_that_talks_without_end_is_cut_short(reports: Reports) -> None:
    reports.hear(CLAIM)
    reports.hear(end(exit_code=1, stopped="x" * 100_000, message="y" * 100_000))
    status = reports.pod().status
    assert (len(status.reason), len(status.message)) == (64, 2_000)


def test_an_attempt_that_the_server_has_forgotten_goes_on() -> None:
    reports = Reports(phase=PodPhase.PENDING, node="")
    runs = Runs(pod="g-1-0", attempt=2, author="horse", started_at=5)
    assert words(reports.hear(runs)) == ["again"]
    assert words(reports.hear(runs)) == ["done"]
    status = reports.pod().status
    assert (status.phase, status.node, status.attempt) == ("Running", "n1", 2)
    assert (status.started_at, status.holder) == (5, "horse")
    assert reports.store.ledger()["node:n1"] == {"cpu": 1000, "pods": 1000}


def test_a_run_on_another_node_or_of_an_evicted_attempt_does_not_go_on(reports: Reports) -> None:
    runs = Runs(pod="g-1-0", attempt=1, author="horse", started_at=5)
    assert words(reports.hear(runs, node="n2")) == ["superseded"]
    reports.change(phase=PodPhase.EVICTED)
    reports.change(phase=PodPhase.PENDING, node="", attempt=2)
    assert words(reports.hear(runs)) == ["superseded"]


def serves(**changed: Any) -> Serves:
    return Serves(**{"agent": "host:1:1", "resources": {"cpu": 4000}, **changed})


def test_a_node_is_made_of_what_its_agent_offers(reports: Reports) -> None:
    taint = Taint(key="own", effect="NoSchedule")
    report = serves(labels={"disk": "fast"}, annotations={"a": "b"}, taints=(taint,), protocol=2)
    assert words(reports.hear(report)) == ["done"]
    node = reports.node()
    assert node.spec.resources == {"cpu": 4000}
    assert node.spec.taints == (taint,)
    assert node.metadata.labels == {"disk": "fast"}
    assert node.metadata.annotations == {
        "a": "b",
        "batchq/agent": "host:1:1",
        "batchq/protocol": "2",
    }
    assert (node.status.ready, node.status.heartbeat) == (True, 7)
    assert reports.store.ledger()["capacity"] == {"cpu": 4000, "pods": 1_000_000_000_000}


def test_an_offer_that_changes_nothing_writes_nothing(reports: Reports) -> None:
    reports.hear(serves())
    revision = reports.node().metadata.revision
    assert words(reports.hear(serves(), now_ms=9)) == ["done"]
    assert reports.node().metadata.revision == revision


def test_a_node_is_left_by_the_agent_that_serves_it_and_by_no_other(reports: Reports) -> None:
    reports.hear(serves())
    reports.hear(Leaves(agent="host:2:2"))
    assert reports.node().status.ready
    reports.hear(Leaves(agent="host:1:1"))
    assert not reports.node().status.ready
    assert "capacity" not in reports.store.ledger()


@pytest.mark.parametrize(
    ("is_dead", "message"), [(False, "its agent leaves"), (True, "its agent has died")]
)
def test_a_node_that_is_left_says_whether_its_agent_has_died(
    reports: Reports, is_dead: bool, message: str
) -> None:
    reports.hear(serves())
    reports.hear(Leaves(agent="host:1:1", is_dead=is_dead))
    told = [event.message for event in reports.store.events() if event.reason == "NotReady"]
    assert told == [message]
    assert reports.node().status.reason == ""


def test_an_agent_that_takes_its_node_out_of_service_states_the_reason(
    reports: Reports,
) -> None:
    reports.hear(serves())
    reports.hear(Leaves(agent="host:1:1", reason="processes cannot be killed: 7" + 2000 * "x"))
    assert not reports.node().status.ready
    assert reports.node().status.reason == ("processes cannot be killed: 7" + 2000 * "x")[:1000]
    assert [event.at for event in reports.store.events() if event.reason == "NotReady"] == [7]
    reports.hear(serves())
    assert reports.node().status.ready
    assert reports.node().status.reason == ""


def test_a_node_out_of_service_gets_a_further_reason_and_keeps_the_last(reports: Reports) -> None:
    reports.hear(serves())
    for reason in ("first", "second", ""):
        reports.hear(Leaves(agent="host:1:1", reason=reason))
    assert (reports.node().status.ready, reports.node().status.reason) == (False, "second")
    told = [event.message for event in reports.store.events() if event.reason == "NotReady"]
    assert told == ["first", "second"]


@pytest.mark.parametrize(
    "offer",
    [
        {"resources": {"cpu": -5}},
        {"resources": {"cpu": 2**60}},
        {"resources": {"c p u": 5}},
        {"labels": {"a b": "c"}},
        {"labels": {f"l{number}": "x" for number in range(1_000)}},
    ],
)
def test_impossible_resources_or_labels_of_a_node_are_not_offered(
    reports: Reports, offer: dict[str, Any]
) -> None:
    assert words(reports.hear(serves(**offer))) == ["superseded"]
    assert reports.store.get("Node", "n1") is None


def test_a_name_that_no_node_can_have_is_not_made(reports: Reports) -> None:
    assert words(reports.hear(serves(), node="N 1")) == ["superseded"]


def test_a_node_of_an_older_agent_keeps_its_protocol(reports: Reports) -> None:
    reports.hear(serves(protocol=0))
    assert reports.node().metadata.annotations["batchq/protocol"] == "0"


def test_a_succeeded_leader_applies_nothing(reports: Reports) -> None:
    former = reports.store.next_epoch()
    reports.store.next_epoch()
    assert words(reports.hear(CLAIM, serves(), epoch=former)) == ["again", "again"]
    assert reports.phase() == ("Bound", "")


def test_reports_of_many_nodes_are_applied_in_one_commit(reports: Reports) -> None:
    old = StartClaim(pod="g-1-0", attempt=9, author="old")
    assert words(reports.hear(serves(), old, CLAIM)) == ["superseded", "done", "done"]
    assert reports.phase() == ("Running", "")


def words(result: ReportResult) -> list[str]:
    """Return the result of each report: first those without effect, then the others, in order."""
    refused = {id(one) for one in result.superseded}
    done = ["superseded" if id(one) in refused else "done" for one in result.done]
    return done + ["again"] * len(result.again)


def test_long_after_a_restart_unknown_running_attempts_are_superseded() -> None:
    group = a_group("g", status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
    waiting = a_pod(group, phase=PodPhase.PENDING)
    claimed = Runs(pod=waiting.metadata.uid, attempt=7, author="horse", started_at=0)
    adopted = runs(waiting, group, "n1", claimed, now_ms=9)
    assert isinstance(adopted, Transaction)
    assert [(event.reason, event.at) for event in adopted.events] == [("Found", 9)]
    unknown = runs(waiting, group, "n1", claimed, now_ms=9, accepts_unknown=False)
    assert unknown == Superseded()


def test_a_claim_states_where_the_other_pods_reach_this_one() -> None:
    reports = Reports(Launch(ports=2))
    reports.hear(msgspec.structs.replace(CLAIM, **PLACE))
    status = reports.pod().status
    assert status.phase == PodPhase.RUNNING
    assert (status.address, status.ports) == ("10.0.0.1", (61_440, 61_441))


def test_a_claim_of_any_other_pod_states_no_place() -> None:
    reports = Reports()
    reports.hear(msgspec.structs.replace(CLAIM, **PLACE))
    status = reports.pod().status
    assert (status.phase, status.address, status.ports) == (PodPhase.RUNNING, "", ())


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"address": "10.0.0.1"},
        {"address": "10.0.0.1", "ports": (61_440,)},
        {"address": "10.0.0.1", "ports": (61_440, 61_440)},
        {"address": "10.0.0.1", "ports": (61_440, 0)},
        {"address": "10.0.0.1", "ports": (61_440, 65_536)},
        {"address": "gpu-01", "ports": (61_440, 61_441)},
        {"address": "10.0.0.1\nRANK=0", "ports": (61_440, 61_441)},
        {"address": "fe80::1%" + "x" * 100, "ports": (61_440, 61_441)},
    ],
)
def test_a_pod_without_a_place_of_its_own_is_not_started(place: dict[str, Any]) -> None:
    reports = Reports(Launch(ports=2))
    reports.hear(msgspec.structs.replace(CLAIM, **place))
    status = reports.pod().status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    assert status.message == (
        "its agent states no address with 2 ports, which the other pods of its gang need"
    )


def asking(requests: dict[str, int], phase: PodPhase) -> tuple[PodGroup, Pod]:
    group = a_group("g", status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
    pod = a_pod(group, phase=phase, node="n1")
    spec = msgspec.structs.replace(pod.spec, requests=requests)
    return group, msgspec.structs.replace(pod, spec=spec)


def recorded(transaction: object) -> tuple[str, ...]:
    """Return the devices of the pod that a transaction writes."""
    assert isinstance(transaction, Transaction)
    written = transaction.writes[0].value
    assert isinstance(written, Pod)
    return written.status.devices


@pytest.mark.parametrize(
    ("requests", "devices"),
    [
        ({"gpu": 2000}, ("GPU-a", "GPU-b")),
        ({"mig-1g.10gb": 1000}, ("GPU-a", "GPU-b")),
        ({"cpu": 1000}, ()),
    ],
)
def test_a_pod_records_its_devices_if_it_asked_for_any(
    requests: dict[str, int], devices: tuple[str, ...]
) -> None:
    _, pod = asking(requests, PodPhase.BOUND)
    stated = msgspec.structs.replace(CLAIM, devices=("GPU-a", "GPU-b"))
    assert recorded(claim(pod, "n1", stated, now_ms=0)) == devices


def test_impossible_devices_are_not_recorded() -> None:
    _, pod = asking({"gpu": 2000}, PodPhase.BOUND)
    stated = ("GPU-a", "", "a\nb", "x" * 81, "GPU-a", *(f"GPU-{one}" for one in range(300)))
    devices = recorded(claim(pod, "n1", msgspec.structs.replace(CLAIM, devices=stated), now_ms=0))
    assert devices[:2] == ("GPU-a", "GPU-0")
    assert len(devices) == 256


def test_an_attempt_that_the_server_had_forgotten_records_its_devices_again() -> None:
    group, pod = asking({"gpu": 1000}, PodPhase.BOUND)
    found = Runs(pod="g-1-0", attempt=1, author="horse", started_at=5, devices=("GPU-a",))
    assert recorded(runs(pod, group, "n1", found, now_ms=9)) == ("GPU-a",)


def serving(*devices: Device) -> Serves:
    annotations = {DEVICES_ANNOTATION: encode_devices(devices)}
    return Serves(agent="h:1:1", resources={"cpu": 1000}, annotations=annotations)


def events_after(before: Serves | None, after: Serves) -> list[tuple[str, str]]:
    """Return the events of a report about a node, as reasons and messages."""
    node = None
    if before is not None:
        first = node_reports.serves(None, "n1", before, now_ms=0)
        assert isinstance(first, Transaction)
        node = first.writes[0].value
        assert isinstance(node, Node)
    found = node_reports.serves(node, "n1", after, now_ms=1)
    assert isinstance(found, Transaction)
    return [(event.reason, event.message) for event in found.events]


HEALTHY = Device(index=3, id="GPU-d")
DEAD = Device(index=3, id="GPU-d", trouble="GPU is lost")


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (None, HEALTHY, [("Ready", "")]),
        (None, DEAD, [("Ready", ""), ("DeviceUnhealthy", "device 3 (GPU-d): GPU is lost")]),
        (HEALTHY, DEAD, [("DeviceUnhealthy", "device 3 (GPU-d): GPU is lost")]),
        (DEAD, HEALTHY, [("DeviceHealthy", "device 3 (GPU-d)")]),
        (HEALTHY, Device(index=3, id="GPU-d", busy_percent=50), []),
        (HEALTHY, Device(index=3, id="GPU-d", trouble=LOCKED), []),
    ],
)
def test_the_condition_of_a_device_is_an_event_when_it_changes(
    before: Device | None, after: Device, events: list[tuple[str, str]]
) -> None:
    former = None if before is None else serving(before)
    assert events_after(former, serving(after)) == events


def with_image(reports: Reports) -> Reports:
    pod = reports.pod()
    spec = msgspec.structs.replace(pod.spec, image="torch:2")
    after = msgspec.structs.replace(pod, spec=spec)
    revision = pod.metadata.revision
    reports.commit(
        Write(kind="Pod", key="g-1-0", expect=revision, value=after, fence=fence_of(pod))
    )
    return reports


PULLS = Pulls(pod="g-1-0", attempt=1)


def test_a_pull_is_shown_until_the_pod_runs(reports: Reports) -> None:
    with_image(reports)
    assert words(reports.hear(PULLS)) == ["done"]
    assert reports.phase() == ("Bound", "")
    assert reports.pod().status.message == "pulling image torch:2 on node n1"
    revision = reports.pod().metadata.revision
    assert words(reports.hear(PULLS)) == ["done"]
    assert reports.pod().metadata.revision == revision
    reports.hear(msgspec.structs.replace(CLAIM, pulled_ms=12_000))
    assert (reports.phase(), reports.pod().status.message) == (("Running", ""), "")
    events = [(one.reason, one.message) for one in reports.store.events()]
    assert events == [
        ("Pulling", "default/g-w-0: pulling image torch:2 on node n1"),
        ("Pulled", "default/g-w-0: image torch:2 was pulled on node n1 within 12s"),
    ]


def test_a_pull_that_failed_is_shown_with_its_reason(reports: Reports) -> None:
    with_image(reports)
    reports.hear(msgspec.structs.replace(PULLS, failures=1, trouble="i/o timeout"))
    assert reports.pod().status.message == (
        "image torch:2 could not be pulled on node n1, which is tried again (1 of 3 times):"
        " i/o timeout"
    )


def test_a_pull_of_another_attempt_node_or_pod_is_not_shown(reports: Reports) -> None:
    assert words(reports.hear(PULLS)) == ["superseded"]  # it has no image
    with_image(reports)
    for report, node in (
        (msgspec.structs.replace(PULLS, attempt=2), "n1"),
        (PULLS, "n2"),
        (Pulls(pod="g-1-9", attempt=1), "n1"),
    ):
        assert words(reports.hear(report, node=node)) == ["superseded"]
    reports.hear(CLAIM)
    assert words(reports.hear(PULLS)) == ["superseded"]
    assert reports.pod().status.message == ""
