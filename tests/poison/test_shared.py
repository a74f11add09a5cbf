"""Damage in a key that all share, or that one node writes, costs no other decision."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace

import pytest
import redis
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import PROTOCOL, SPOILED, Serves
from batchq.api.objects import Node, PodGroup
from batchq.api.transaction import Delivery
from batchq.assembly import assemble
from batchq.client import Client
from batchq.client.doctor import Level, examine
from batchq.daemon import app, node_reports
from batchq.daemon.node_reports import NodeReportReader
from batchq.daemon.reload import Reload
from batchq.errors import StoreUnavailable
from batchq.scheduler.cycle import Cycle
from batchq.store import keys, node_channels
from batchq.store.inspection import SHARED
from batchq.store.node_channels import WakeReason, WakeUpChannel, notify
from batchq.store.redis import RedisStore
from batchq.store.schedulers import attend, attending
from batchq.system import RandomIds
from tests.daemon.waiting import until
from tests.effort import grid
from tests.poison.damage import DAMAGES, DEEP, HUGE

#: Short, since a damaged identity may look like another leader, whose lease has to end first.
LEASE_MS = 200


#: Read once; each scheduler gets actions and plugins of its own.
DEFAULTS = Reload(None).current

#: The damage to a node's own keys is done to the first one.
NODES = ("n1", "n2")


class Bound:
    """An executor that treats delivered pods as started."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        there = self._store.outbox() if bound is None else bound
        self._store.delivered(there)
        return len(there)


class Small:
    """A scheduler and a node in this process, on a real server."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        store.link.waits_for_mending = False
        self._desk = NodeReportReader(store, RandomIds())
        self._begin()
        for node in NODES:
            store.report_queues.post(
                node, Serves(agent="a", protocol=PROTOCOL, resources={"cpu": 8000})
            )
        self.turn()
        self.turn()

    def _begin(self) -> None:
        first = structs.replace(DEFAULTS, scheduler=assemble(DEFAULTS.config))
        self.epoch: int | None = None
        self._turn = app.LeaderTurn(
            self.store,
            Cycle(self.store, first.scheduler, self.store, RandomIds()),
            Bound(self.store),
            effective=lambda: first,
            clock=self.store,
            epoch=lambda: self.epoch,
            ids=RandomIds(),
        )

    def restart(self) -> None:
        """Start another scheduler, with a mirror of its own."""
        self.store.forget()
        self._begin()

    def turn(self) -> None:
        """Do what a scheduler's threads do in a second, whatever the last step met."""
        until(lambda: self.store.lead("me", LEASE_MS) is not None)
        self.epoch = self.store.lead("me", LEASE_MS)
        # As in the daemon: this is for display only.
        with suppress(StoreUnavailable):
            attend(self.store, "me", version="1", mirrored=None)
        self._turn.mender.hurry()
        self._turn()
        self.read_reports()
        # The node's own key may be in the way, until a leader has repaired it.
        for node in NODES:
            with suppress(StoreUnavailable):
                self.store.beat(node, self.store.run_id())
                # As its agent does for attempts that do not run there: none does.
                for pod, attempt in self.store.alive.leased(node):
                    self.store.end_lease(node, pod, attempt)

    def read_reports(self) -> None:
        nodes = self.store.report_queues.notified(0) | self.store.report_queues.nodes() | {"n1"}
        self._desk.apply(sorted(nodes), self.epoch)

    def reason_of(self, node: str) -> str:
        """Return why a node is not ready; "" if it is."""
        found = self.store.get("Node", node)
        assert isinstance(found, Node)
        return "" if found.status.ready else found.status.reason

    def completes(self, name: str) -> None:
        """Check that a group that is submitted now is admitted and bound."""
        self.turn()
        with Client(self.store.url) as client:
            client.submit(name=name, command=("true",), namespace="other")
        for _ in range(3):
            self.turn()
            group = self.store.get("PodGroup", f"other/{name}")
            assert isinstance(group, PodGroup)
            pods = [one for one in self.store.list("Pod") if one.metadata.name.startswith(name)]
            if [pod.status.phase for pod in pods] == [PodPhase.BOUND]:  # type: ignore[union-attr]
                break
        else:
            pytest.fail(f"{name} is not bound after three turns: {group.status}")
        assert group.status.phase == PodGroupPhase.IN_QUEUE


@pytest.fixture
def small(redis_store: RedisStore) -> Small:
    return Small(redis_store)


def other_type(raw: redis.Redis, name: str, type_: str) -> None:
    """Replace a key by one of a wrong type."""
    raw.delete(name)
    if type_ == "string":
        raw.rpush(name, "x")
    else:
        raw.set(name, "x")


def doctor_ends(small: Small) -> list[str]:
    """Run the doctor to its end; return the subjects of its findings about records."""
    findings = examine(small.store.url).findings
    wrong = [one for one in findings if one.check == "records" and one.level == Level.ERROR]
    assert all(one.remedy for one in wrong)
    return [one.subject for one in wrong]


def goes_on(small: Small) -> None:
    """Check that groups are admitted by the running scheduler and by a new one, and that the damage
    is repaired.
    """
    small.completes("first")
    small.restart()
    small.completes("second")
    small.store.events()
    attending(small.store)
    small.store.leader()
    small.store.counts()
    assert doctor_ends(small) == []


def test_a_healthy_cluster_goes_on(small: Small) -> None:
    goes_on(small)


@pytest.mark.parametrize("key", SHARED, ids=lambda key: key.name)
def test_a_shared_key_of_another_type_is_reported_deleted_and_rebuilt(
    small: Small, raw: redis.Redis, key: keys.Key
) -> None:
    is_of_objects = key.name == keys.objects("Node")
    other_type(raw, key.name, key.type)
    assert f"Key {key.name}" in doctor_ends(small)
    if is_of_objects:
        # The nodes themselves are deleted with it, until their agents offer them again.
        small.turn()
        small.store.report_queues.post(
            "n1", Serves(agent="a", protocol=PROTOCOL, resources={"cpu": 8000})
        )
        small.turn()
    goes_on(small)


def test_a_quota_below_zero_refuses_no_group(small: Small, raw: redis.Redis) -> None:
    quota = '{"metadata":{"name":"q","namespace":"other","uid":"u9"},"spec":{"hard":%s}}'
    raw.hset(keys.objects("ResourceQuota"), "other/q", quota % '{"podgroups":-5,"cpu":-1}')
    assert list(small.store.compare()) == []
    # The leader then derives all limits from the objects.
    raw.hset(keys.LEDGER, "ns:x cpu", "NaN")
    small.turn()
    small.completes("first")
    assert doctor_ends(small) == ["ResourceQuota other/q"]


#: Unreadable values for each shared key with one value, or with fields of its own.
FIELDS = (
    *((keys.LEADER, field) for field in ("identity", "epoch", "expires_at")),
    *((keys.SERVER, field) for field in ("run", "generation", "since")),
    (keys.SCHEDULERS, "other"),
    (keys.OUTBOX, "u1-1-0-1"),
    (keys.COUNTS, "unreadable"),
)


@pytest.mark.parametrize(("place", "damage"), grid(FIELDS, DAMAGES))
def test_an_unreadable_field_costs_no_decision(
    small: Small, raw: redis.Redis, place: tuple[str, str], damage: str
) -> None:
    name, field = place
    raw.hset(name, field, DAMAGES[damage])
    raw.hset(name, b"\xff", DAMAGES[damage])
    doctor_ends(small)
    goes_on(small)


@pytest.mark.parametrize(
    ("name", "damage"), grid([keys.REVISION, keys.EPOCH, keys.CONFIG], DAMAGES)
)
def test_an_unreadable_value_costs_no_decision(
    small: Small, raw: redis.Redis, name: str, damage: str
) -> None:
    raw.set(name, DAMAGES[damage])
    doctor_ends(small)
    goes_on(small)
    if name == keys.CONFIG:
        stored = raw.get(name)
        assert isinstance(stored, bytes)
        assert stored.startswith(b"actions:")


ENTRIES = (
    *((keys.EVENTS, field) for field in ("event", "other")),
    (keys.CHANGES, "kind"),
    (keys.LEADER_CHANNEL, "node"),
)


@pytest.mark.parametrize(("place", "damage"), grid(ENTRIES, DAMAGES))
def test_an_unreadable_entry_costs_no_decision(
    small: Small, raw: redis.Redis, place: tuple[str, str], damage: str
) -> None:
    name, field = place
    raw.xadd(name, {field: DAMAGES[damage], b"\xff": b"\xff"})
    doctor_ends(small)
    goes_on(small)


def test_a_lost_epoch_is_followed_by_a_higher_one(small: Small, raw: redis.Redis) -> None:
    before = small.epoch
    assert before is not None
    for damage in (b"NaN", HUGE, b"-1"):
        raw.set(keys.EPOCH, damage)
        small.turn()
        assert small.epoch is not None
        assert small.epoch > before
        before = small.epoch


@pytest.mark.parametrize(
    "name",
    [keys.alive("n1"), keys.report_queue("n1"), keys.wake_up_channel("n1"), keys.alive("gone")],
)
def test_a_nodes_key_of_another_type_costs_that_node_only(
    small: Small, raw: redis.Redis, name: str
) -> None:
    raw.delete(name)
    raw.set(name, "x")
    goes_on(small)


def unread(raw: redis.Redis, name: str) -> None:
    other_type(raw, name, "hash")


SPOILINGS = {
    "alive of another type": (
        lambda raw: unread(raw, keys.alive("n1")),
        "{bq}:alive:n1: it is of another type",
    ),
    "inbox of another type": (
        lambda raw: unread(raw, keys.report_queue("n1")),
        "{bq}:inbox:n1 is of another type",
    ),
    "a beat that is none": (
        lambda raw: raw.hset(keys.alive("n1"), "beat", "NaN"),
        "{bq}:alive:n1: its field beat is neither a heartbeat nor a lease",
    ),
    "a lease that is none": (
        lambda raw: raw.hset(keys.alive("n1"), "garbage", "1"),
        "{bq}:alive:n1: its field garbage is neither a heartbeat nor a lease",
    ),
    "a fact that is none": (
        lambda raw: raw.hset(keys.report_queue("n1"), "node", b"\xff"),
        "a report in {bq}:inbox:n1 is unreadable",
    ),
}


@pytest.mark.parametrize("spoiling", SPOILINGS)
def test_a_node_whose_keys_cannot_be_read_is_not_ready_and_says_why(
    small: Small, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, spoiling: str
) -> None:
    # Longer than the slowest machine takes until the time is skipped.
    kept_out_s, skipped_s = 600.0, 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped_s)
    monkeypatch.setattr(node_reports, "KEPT_OUT_S", kept_out_s)
    monkeypatch.setattr(node_reports, "time", clock)
    spoil, what = SPOILINGS[spoiling]
    spoil(raw)
    # The mirror's last read is older than this.
    until(lambda: bool(small.turn() or small.reason_of("n1")), within_s=60)
    reason = f"{SPOILED}: {what}"
    assert small.reason_of("n1") == reason
    assert small.reason_of("n2") == ""
    [result] = [
        one for one in small.store.events(kind="Node", key="n1") if one.reason == "NotReady"
    ]
    assert result.message == reason
    [found, repaired] = [
        one for one in examine(small.store.url).findings if one.subject == "Node n1"
    ]
    assert (found.check, repaired.check) == ("nodes", "records")
    assert found.found == f"out of service: {reason}"

    small.turn()
    small.store.report_queues.post(
        "n1", Serves(agent="a", protocol=PROTOCOL, resources={"cpu": 8000})
    )
    small.turn()
    assert small.reason_of("n1") == reason
    skipped_s = kept_out_s
    until(lambda: bool(small.turn() or not small.reason_of("n1")), within_s=60)
    goes_on(small)


def test_a_node_with_two_damaged_keys_names_both(small: Small, raw: redis.Redis) -> None:
    raw.hset(keys.report_queue("n1"), "node", b"\xff")
    raw.hset(keys.alive("n1"), "beat", "NaN")
    # The report is removed before the other key is read.
    small.store.report_queues.look(["n1"])
    until(lambda: bool(small.turn() or small.reason_of("n1")), within_s=60)
    assert small.reason_of("n1") == (
        f"{SPOILED}: a report in {{bq}}:inbox:n1 is unreadable;"
        " {bq}:alive:n1: its field beat is neither a heartbeat nor a lease"
    )


def test_why_a_node_is_closed_is_said_after_the_server_could_not_take_it(
    small: Small, raw: redis.Redis
) -> None:
    raw.hset(keys.report_queue("n1"), "node", b"\xff")
    raw.set(keys.REVISION, "NaN")
    with pytest.raises(StoreUnavailable):
        small.read_reports()
    until(lambda: bool(small.turn() or small.reason_of("n1")), within_s=60)
    assert small.reason_of("n1") == f"{SPOILED}: a report in {{bq}}:inbox:n1 is unreadable"


LEASES = (b"beat", b"run", b"u1-1-0-1", b"\xff", b"x-" + b"9" * 5000)


@pytest.mark.parametrize(("field", "damage"), grid(LEASES, DAMAGES))
def test_an_unreadable_heartbeat_or_lease_costs_no_decision(
    small: Small, raw: redis.Redis, field: bytes, damage: str
) -> None:
    raw.hset(keys.alive("n1"), field, DAMAGES[damage])
    goes_on(small)


def test_the_doctor_names_unreadable_parts_of_nodes_and_events(
    small: Small, raw: redis.Redis
) -> None:
    raw.hset(keys.alive("n1"), mapping={"x-" + "9" * 5000: "1", "beat": "NaN"})
    raw.delete(keys.report_queue("n1"))
    raw.set(keys.report_queue("n1"), "x")
    raw.xadd(keys.EVENTS, {"event": b"\xff"})
    small.store.report_queues.look(["n1"])
    assert doctor_ends(small) == ["Key {bq}:alive:n1", "Key {bq}:alive:n1", "Key {bq}:inbox:n1"]
    notes = [one.subject for one in examine(small.store.url).findings if one.check == "records"]
    assert any(subject.startswith("Entry {bq}:events ") for subject in notes)
    # As the agent does.
    small.store.alive.leased("n1")
    small.turn()
    assert doctor_ends(small) == []


FACTS = {
    **DAMAGES,
    "huge attempt": b'{"fact":"claim","pod":"p","attempt":' + HUGE + b',"agent":"a","fence":"f"}',
    "deep": b'{"fact":"serves","agent":"a","resources":{},"unknown":' + DEEP[:60_000],
    "huge resources": b'{"fact":"serves","agent":"a","resources":{"cpu":' + HUGE + b"}}",
    "negative resources": b'{"fact":"serves","agent":"a","resources":{"cpu":-5}}',
    "no text": b'{"fact":"leaves","agent":"\xff"}',
}


SUBJECTS = (b"node", b"u1-1-0-1", b"\xff", b"", b"x" * 100_000)


@pytest.mark.parametrize(
    ("subject", "damage"),
    grid(SUBJECTS, FACTS),
    ids=lambda part: len(part) if isinstance(part, bytes) else None,
)
def test_an_unreadable_report_is_removed(
    small: Small, raw: redis.Redis, subject: bytes, damage: str
) -> None:
    raw.hset(keys.report_queue("n1"), subject, FACTS[damage])
    goes_on(small)
    assert raw.hlen(keys.report_queue("n1")) == 0


#: No clock and no count of writes reaches these ids, and no entry can follow the first.
FAR_IDS = (f"{2**64 - 1}-{2**64 - 1}", f"9999999999999999-{2**64 - 1}")


STREAMS = (keys.EVENTS, keys.LEADER_CHANNEL, keys.wake_up_channel("n1"))


@pytest.mark.parametrize(("name", "id_", "is_left"), grid(STREAMS, FAR_IDS, [True, False]))
def test_a_stream_without_ids_left_is_reported_and_recreated(
    small: Small, raw: redis.Redis, name: str, id_: str, is_left: bool
) -> None:
    raw.xadd(name, {"event": "x"}, id=id_, maxlen=None if is_left else 0, approximate=False)
    assert f"Key {name}" in doctor_ends(small)
    goes_on(small)
    assert not raw.exists(name) or raw.xinfo_stream(name)["last-generated-id"] < b"2"


def test_a_commit_with_events_is_refused_before_it_has_written_anything(
    small: Small, raw: redis.Redis
) -> None:
    raw.xadd(keys.EVENTS, {"event": "x"}, id=FAR_IDS[0])
    with Client(small.store.url) as client:
        client._store.link.waits_for_mending = False
        before = raw.get(keys.REVISION)
        with pytest.raises(StoreUnavailable, match="a damaged value"):
            client.submit(name="first", command=("true",))
    assert raw.get(keys.REVISION) == before
    assert not raw.hexists(keys.objects("PodGroup"), "default/first")


def test_a_reader_of_a_notification_from_the_future_hears_the_next_one(
    small: Small, raw: redis.Redis
) -> None:
    raw.xadd(keys.LEADER_CHANNEL, {"node": "n1"}, id="4000000000000-0")
    raw.xadd(keys.EVENTS, {"event": "x"}, id="4000000000000-0")
    assert small.store.report_queues.notified(0) >= {"n1"}
    place, _ = small.store.events_after("0-0", 0)
    raw.delete(keys.LEADER_CHANNEL, keys.EVENTS)
    small.store.report_queues.post(
        "n2", Serves(agent="a", protocol=PROTOCOL, resources={"cpu": 8000})
    )
    small.store.report_queues.notified(0)
    assert small.store.report_queues.notified(0) == {"n2"}
    small.completes("first")
    place, _ = small.store.events_after(place, 0)
    assert small.store.events_after(place, 0)[1]


def test_an_agent_hears_its_channel_after_it_was_recreated(
    small: Small, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channels, "LONGEST_BLOCK_MS", 50)
    bell = WakeUpChannel(small.store.url, "n1")
    raw.xadd(keys.wake_up_channel("n1"), {"word": "pods"}, id="4000000000000-0")

    def heard() -> bool:
        bell.listen()
        return bool(bell.hear())

    until(heard)
    raw.delete(keys.wake_up_channel("n1"))
    notify(small.store.link, ["n1"], WakeReason.PODS)
    until(heard)
    bell.close()


def test_endless_leases_are_reported_and_removed(small: Small, raw: redis.Redis) -> None:
    raw.hset(keys.alive("n1"), mapping={f"u{n}-1-0-1": "9" * 13 for n in range(10_001)})
    assert doctor_ends(small) == ["Key {bq}:alive:n1"]
    until(lambda: bool(small.turn() or small.reason_of("n1")), within_s=60)
    assert small.reason_of("n2") == ""
    goes_on(small)
    assert raw.hlen(keys.alive("n1")) < 10


def test_nodes_that_were_deleted_past_batchq_come_back_with_their_next_offer(
    small: Small, raw: redis.Redis
) -> None:
    raw.hdel(keys.objects("Node"), *NODES)
    assert small.store.compare() != []
    small.turn()
    for node in NODES:
        small.store.report_queues.post(
            node, Serves(agent="a", protocol=PROTOCOL, resources={"cpu": 8000})
        )
    small.turn()
    goes_on(small)
    assert [small.reason_of(node) for node in NODES] == ["", ""]


def test_the_doctor_reads_a_part_of_a_large_report_queue_and_shows_its_size(
    small: Small, raw: redis.Redis
) -> None:
    fact = '{"fact":"claim","pod":"p%d","attempt":1,"agent":"a","fence":"f"}'
    raw.hset(keys.report_queue("n1"), mapping={f"p{n}-1": fact % n for n in range(20_000)})
    # CPU time, which other processes do not prolong.
    began = time.process_time()
    [found] = [one for one in examine(small.store.url).findings if one.check == "inboxes"]
    assert found.found.startswith("20000 reports are in its report queue")
    assert time.process_time() - began < 8
