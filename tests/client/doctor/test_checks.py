"""Each check of the doctor on constructed states: the finding, its level and its remedy."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_features import DEVICES_ANNOTATION, Device, encode_devices
from batchq.api.node_report import AGENT_ANNOTATION, RUN_AS_ANNOTATION, SPOILED
from batchq.api.objects import Dependency, Unreadable
from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import Delivery, Event
from batchq.api.views import Leading, Schedulers
from batchq.client.doctor import CHECKS, Level, diagnose
from batchq.client.doctor.system_state import Finding, Installed, State
from batchq.core.session.snapshot import ContactStanding
from batchq.store.books import sums_of
from tests.builders import a_queue
from tests.client.doctor.made import (
    FOLLOWS,
    HOME,
    LEADS,
    MINUTE,
    NOW,
    a_server,
    a_state,
    books_of,
    node,
    running,
    waiting,
)

NOTE, WARNING, ERROR = Level.NOTE, Level.WARNING, Level.ERROR


def beside_the_healthy(*objects: object, **changes: object) -> State:
    return a_state(a_queue(), node(), *objects, **changes)  # type: ignore[arg-type]


def with_devices(*devices: Device) -> dict[str, str]:
    return {AGENT_ANNOTATION: "n1:1:1", DEVICES_ANNOTATION: encode_devices(devices)}


def with_hopeless(reason: Waiting, *, age_ms: int) -> State:
    verdict = Verdict(plugin="capacity", reason=reason, resource="cpu", need=9000, limit=4000)
    return beside_the_healthy(waiting("big", age_ms=age_ms, reasons=(verdict,)))


def with_leader(left_ms: int | None, *, followers: bool = False) -> State:
    leader = None if left_ms is None else Leading(identity="a:1:x", epoch=3, left_ms=left_ms)
    there = [FOLLOWS] if followers else []
    return a_state(schedulers=Schedulers(leader=leader, there=there))


def with_follower(**changes: object) -> State:
    found = a_state().schedulers
    assert found is not None
    there = [LEADS, structs.replace(FOLLOWS, **changes)]
    return a_state(schedulers=structs.replace(found, there=there))


def with_sum(scope: str, resource: str, units: int) -> State:
    books = a_state().books
    assert books is not None
    sums = {**books.ledger, scope: {**books.ledger.get(scope, {}), resource: units}}
    return a_state(books=structs.replace(books, ledger=sums))


def with_charge(holder: str, scope: str, units: int) -> State:
    """Return a state with a charge that differs from its object; the sums include the charge."""
    books = a_state().books
    assert books is not None
    charges = {**books.charges, holder: ((scope,), {"cpu": units})}
    return a_state(books=structs.replace(books, charges=charges, ledger=sums_of(charges)))


def with_limit(scope: str, units: int) -> State:
    books = a_state().books
    assert books is not None
    return a_state(books=structs.replace(books, limits={**books.limits, scope: {"cpu": units}}))


def with_standing(**standing: object) -> State:
    books = a_state().books
    assert books is not None
    return a_state(books=structs.replace(books, standing=ContactStanding(**standing)))  # type: ignore[arg-type]


def on_n1(**pod: object) -> State:
    return beside_the_healthy(*running(**pod))


def bound(ago_ms: int, **changes: object) -> State:
    group, pod = running(phase=PodPhase.BOUND, bound_at=NOW - ago_ms)
    return beside_the_healthy(group, pod, **changes)


def depending(condition: str) -> State:
    dependency = Dependency(name="first", condition=condition, uid="gone")  # type: ignore[arg-type]
    return beside_the_healthy(waiting("second", spec={"depends_on": (dependency,)}))


def twins() -> State:
    """Return a state with two groups of one uid."""
    first, second = waiting("first"), waiting("second")
    metadata = structs.replace(second.metadata, uid=first.metadata.uid)
    return beside_the_healthy(first, structs.replace(second, metadata=metadata))


UNREADABLE = Unreadable(kind="PodGroup", key="default/poison", why="JSON is malformed")
MENDED = Event(
    kind="Ledger", key="cluster cpu", reason="Recounted", message="counted again: 5", at=NOW
)

#: Problem -> the state, the check that finds it, its level, the subject, and words of the finding.
UNHAPPY: dict[str, tuple[State, str, Level, str, str]] = {
    "an object that cannot be read is deleted by its name": (
        a_state(unreadable=(UNREADABLE,)),
        *("records", ERROR, "PodGroup default/poison", "JSON is malformed"),
    ),
    "of two groups with one uid only the first starts": (
        twins(),
        *("records", ERROR, "PodGroup default/second", "the uid of PodGroup default/first"),
    ),
    "repairs by the leader are worth knowing": (
        a_state(mended=(MENDED,)),
        *("records", NOTE, "Ledger cluster cpu", "counted again"),
    ),
    "a server before 6.2 will not do": (
        a_state(server=a_server(version="Redis 6.0.16", numbers=(6, 0, 16))),
        *("version", ERROR, "", "Redis 6.0.16"),
    ),
    "a server before 7.0 reads no ACL files of ours": (
        a_state(server=a_server(version="Redis 6.2.14", numbers=(6, 2, 14))),
        *("version", NOTE, "", "Redis 6.2.14"),
    ),
    "a cluster will not do": (
        a_state(server=a_server(cluster=True)),
        *("version", ERROR, "", "part of a cluster"),
    ),
    "a replica cannot be written to": (
        a_state(server=a_server(role="replica")),
        *("role", ERROR, "", "replica"),
    ),
    "a server that evicts forgets groups": (
        a_state(server=a_server(maxmemory_policy="allkeys-lru")),
        *("eviction", ERROR, "", "maxmemory-policy allkeys-lru"),
    ),
    "keys were evicted": (
        a_state(server=a_server(evicted_keys=7)),
        *("evicted", ERROR, "", "7 keys were evicted"),
    ),
    "without an append-only file a restart loses everything": (
        a_state(server=a_server(aof=False)),
        *("persistence", WARNING, "", "appendonly no"),
    ),
    "everysec may lose two seconds": (
        a_state(server=a_server(appendfsync="everysec")),
        *("persistence", NOTE, "", "up to two seconds"),
    ),
    "appendfsync no may lose half a minute": (
        a_state(server=a_server(appendfsync="no")),
        *("persistence", WARNING, "", "appendfsync no"),
    ),
    "the append-only file could not be written": (
        a_state(server=a_server(aof_write_ok=False)),
        *("writing", ERROR, "append-only file", "the last write failed"),
    ),
    "beside an append-only file a failed save is only a warning": (
        a_state(server=a_server(rdb_save_ok=False)),
        *("writing", WARNING, "RDB file", "the last save failed"),
    ),
    "memory is nearly used up": (
        a_state(server=a_server(used_bytes=7 * 1024**3)),
        *("memory", WARNING, "", "7Gi used of 8Gi"),
    ),
    "connections are nearly used up": (
        a_state(server=a_server(clients=8_000)),
        *("connections", WARNING, "", "8000 clients of 10000"),
    ),
    "connections were rejected": (
        a_state(server=a_server(rejected_connections=2)),
        *("connections", WARNING, "", "2 connections were rejected"),
    ),
    "the server is slow": (
        a_state(server=a_server(answers_us=(100, 30_000, 30_000, 30_000, 40_000))),
        *("latency", NOTE, "", "an answer takes 30.0 ms, at most 40.0 ms"),
    ),
    "the server hardly answers": (
        a_state(server=a_server(answers_us=(600_000,) * 5)),
        *("latency", WARNING, "", "an answer takes 600.0 ms"),
    ),
    "the server was restarted recently": (
        a_state(server=a_server(uptime_s=90)),
        *("uptime", NOTE, "", "up for 1m30s"),
    ),
    "this machine's clock is ahead": (
        a_state(server=a_server(skew_ms=90_000)),
        *("clock", WARNING, "", "1m30s ahead of the server's"),
    ),
    "this machine's clock is behind": (
        a_state(server=a_server(skew_ms=-2_000)),
        *("clock", WARNING, "", "2s behind the server's"),
    ),
    "a worker's user sees less": (
        a_state(server=a_server(user="worker-n1", appendfsync=None), books=None),
        *("permissions", NOTE, "worker-n1", "by its name a worker) may not read: CONFIG GET, obj"),
    ),
    "no scheduler leads or ever led": (
        with_leader(None),
        *("leader", ERROR, "", "no scheduler leads"),
    ),
    "the leader has fallen silent": (
        with_leader(-12_000),
        *("leader", ERROR, "", "no scheduler leads; a:1:x did until 12s ago (epoch 3)"),
    ),
    "no scheduler leads although one is on standby": (
        with_leader(None, followers=True),
        *("leader", ERROR, "", "one stands by and should take over at once"),
    ),
    "a rolling restart was not finished": (
        with_follower(version="0.2.0"),
        *("schedulers", WARNING, "pid 2 on b", "batchq 0.2.0 stands by, the leader is 0.1.0"),
    ),
    "a follower would decide by another configuration": (
        with_follower(config="9f00aa11"),
        *("schedulers", WARNING, "pid 2 on b"),
        "stands by with configuration 9f00aa11, the leader uses 107d581d",
    ),
    "a scheduler's configuration file is wrong since it was changed": (
        with_follower(refused_file=True),
        *("schedulers", WARNING, "pid 2 on b", "its configuration file is wrong; the former"),
    ),
    "a follower has no mirror yet": (
        with_follower(behind=None),
        *("schedulers", NOTE, "pid 2 on b", "has no mirror yet"),
    ),
    "a scheduler was killed": (
        with_follower(seen_ms_ago=12_000),
        *("schedulers", NOTE, "pid 2 on b", "has not reported itself for 12s"),
    ),
    "a follower does not follow": (
        with_follower(behind=12_000),
        *("schedulers", WARNING, "pid 2 on b", "is 12000 writes behind"),
    ),
    "there are no nodes": (a_state(a_queue()), "nodes", WARNING, "", "there are no nodes"),
    "no node is ready": (
        a_state(a_queue(), node(ready=False)),
        *("nodes", ERROR, "", "none of 1 nodes is ready"),
    ),
    "one node is not ready": (
        a_state(node(), node("n2", ready=False, heartbeat=NOW - 5 * MINUTE)),
        *("nodes", WARNING, "Node n2", "not ready, last heartbeat 5m ago"),
    ),
    "an agent has taken its node out of service": (
        a_state(node(), node("n2", ready=False, reason="processes cannot be killed: 7")),
        *("nodes", WARNING, "Node n2", "out of service: processes cannot be killed: 7"),
    ),
    "what stands under a node's own keys cannot be read": (
        a_state(node(), node("n2", ready=False, reason=f"{SPOILED}: a fact in its inbox")),
        *("nodes", WARNING, "Node n2", f"out of service: {SPOILED}: a fact in its inbox"),
    ),
    "a node has fallen silent": (
        a_state(node(), node("n2", heartbeat=NOW - 16_000)),
        *("nodes", WARNING, "Node n2", "silent, last heartbeat 16s ago"),
    ),
    "the latest beat counts, wherever it stands": (
        a_state(node(heartbeat=NOW), beats={"n1": NOW - 20_000}),
        *("nodes", WARNING, "Node n1", "silent, last heartbeat 20s ago"),
    ),
    "a node is cordoned": (
        a_state(node(), node("n2", cordoned=True)),
        *("nodes", NOTE, "Node n2", "cordoned"),
    ),
    "more is guaranteed than the ready nodes have": (
        beside_the_healthy(a_queue("a", guarantee={"cpu": 5000}), node("n2", ready=False)),
        *("guarantees", WARNING, "cpu", "cpu 5 is guaranteed in all (a 5), and the ready"),
    ),
    "an agent is one protocol ahead": (
        a_state(node(annotations={"batchq/protocol": "5"})),
        *("protocols", NOTE, "Node n1", "its agent uses protocol 5, this batchq 4"),
    ),
    "an agent is two protocols ahead": (
        a_state(node(annotations={"batchq/protocol": "6"})),
        *("protocols", ERROR, "Node n1", "its agent uses protocol 6, this batchq 4"),
    ),
    "a node states a protocol that is no number": (
        a_state(node(annotations={"batchq/protocol": "²"})),
        *("protocols", ERROR, "Node n1", "its agent uses protocol ², this batchq 4"),
    ),
    "a node states a protocol of 5,000 digits": (
        a_state(node(annotations={"batchq/protocol": "9" * 5000})),
        *("protocols", ERROR, "Node n1", f"its agent uses protocol {'9' * 20}, this batchq 4"),
    ),
    "a node has not reported since the server's start": (
        with_standing(restarted_at=NOW - 10_000),
        *("reported", NOTE, "Node n1", "has not reported its pods since the server's start 10s"),
    ),
    "a node does not report at all": (
        with_standing(restarted_at=NOW - 2 * MINUTE),
        *("reported", WARNING, "Node n1", "has not reported its pods since the server's start"),
    ),
    "node reports could not be read": (
        a_state(counts={"unreadable": 3, "superseded": 9}),
        *("inboxes", NOTE, "", "3 node reports could not be read"),
    ),
    "one agent serves two names": (
        a_state(
            node(annotations={"batchq/agent": "h:1:1"}),
            node("n2", annotations={"batchq/agent": "h:1:1"}),
        ),
        *("agents", ERROR, "Node n1, Node n2", "2 names are served by one agent, h:1:1"),
    ),
    "two agents serve one name": (
        a_state(contested=(("n1", "h:1:1", "h:2:2"),)),
        *("agents", ERROR, "Node n1", "two agents serve it: h:1:1 and h:2:2"),
    ),
    "a device has failed": (
        a_state(node(annotations=with_devices(Device(index=3, id="GPU-d", trouble="GPU is lost")))),
        *("devices", WARNING, "Node n1"),
        "device 3 (GPU-d): GPU is lost; it is not offered to pods",
    ),
    "two pods have one device": (
        a_state(
            node(annotations=with_devices(Device(index=0, id="GPU-a"))),
            *running("a", devices=("GPU-a",)),
            *running("b", devices=("GPU-a",)),
        ),
        *("devices", ERROR, "Node n1"),
        "device 0 (GPU-a) is used by 2 pods: default/a-w-0, default/b-w-0",
    ),
    "a group has been InQueue for too long": (
        beside_the_healthy(
            waiting(phase=PodGroupPhase.IN_QUEUE, admission=1, in_queue_at=NOW - 7 * MINUTE)
        ),
        *("groups", WARNING, "PodGroup default/waits", "InQueue for 7m"),
    ),
    "a group is Unknown": (
        beside_the_healthy(
            waiting(phase=PodGroupPhase.UNKNOWN, admission=1, unknown_at=NOW - MINUTE)
        ),
        *("groups", NOTE, "PodGroup default/waits", "Unknown for 1m"),
    ),
    "a group has been Unknown for too long": (
        beside_the_healthy(
            waiting(phase=PodGroupPhase.UNKNOWN, admission=1, unknown_at=NOW - 7 * MINUTE)
        ),
        *("groups", WARNING, "PodGroup default/waits", "Unknown for 7m"),
    ),
    "a group waits for the impossible": (
        with_hopeless(Waiting.EXCEEDS_MAX_QUOTA, age_ms=11 * MINUTE),
        *("groups", WARNING, "PodGroup default/big", "waits for more than 10m: ExceedsMaxQuota"),
    ),
    "a group waits for a deleted group": (
        depending("ok"),
        *("dependencies", WARNING, "PodGroup default/second", "waits for first, which was deleted"),
    ),
    "a bound pod does not start": (
        bound(2 * MINUTE),
        *("pods", WARNING, "Pod default/train-w-0", "bound to node n1 2m ago, and not started"),
    ),
    "a pod does not stop": (
        on_n1(terminating=True, terminating_at=NOW - 5 * MINUTE),
        *("pods", WARNING, "Pod default/train-w-0", "asked to stop 5m ago, and still on node n1"),
    ),
    "a delivery lies in the outbox": (
        bound(2 * MINUTE, outbox=(Delivery(pod="train-1-0", attempt=1, node="n1"),)),
        *("outbox", WARNING, "Pod default/train-w-0", "not yet handed to node n1"),
    ),
    "reports stay in a report queue": (
        a_state(stuck_reports=(("n1", "node"), ("n1", "u-1-0-1"))),
        *("inboxes", WARNING, "Node n1", "2 reports are in its report queue"),
    ),
    "a sum is not that of its charges": (
        with_sum("queue:default", "cpu", 3000),
        *("ledger", ERROR, "queue:default cpu", "the sum is 3"),
    ),
    "a sum is left where nothing is charged": (
        with_sum("queue:gone", "cpu", 3000),
        *("ledger", ERROR, "queue:gone cpu", "the sum is 3"),
    ),
    "a pod is charged more than it asks for": (
        with_charge("pod:train-1-0", "node:n1", 2000),
        *("ledger", ERROR, "Pod default/train-w-0 cpu", "is charged 2"),
    ),
    "a deleted group is charged": (
        with_charge("group:gone", "queue:default", 2000),
        *("ledger", ERROR, "group:gone cpu", "is charged 2"),
    ),
    "a charge counts in another place": (
        with_charge("node:n1", "cluster", 4000),
        *("ledger", ERROR, "Node n1", "is charged in cluster"),
    ),
    "a limit is not its queue's": (
        with_limit("queue:default", 99_000),
        *("limits", ERROR, "queue:default cpu", "99"),
    ),
    "a deleted node has a limit": (
        with_limit("node:gone", 4000),
        *("limits", ERROR, "node:gone cpu", "4"),
    ),
    "the home's disk is nearly full": (
        a_state(home=structs.replace(HOME, free_bytes=500 * 1024**2)),
        *("home", WARNING, "/var/batchq", "500Mi are free"),
    ),
    "the home's disk is full": (
        a_state(home=structs.replace(HOME, free_bytes=0)),
        *("home", ERROR, "/var/batchq", "0 are free"),
    ),
    "the home is open to others": (
        a_state(home=structs.replace(HOME, open_to={"/var/batchq/data": 0o755})),
        *("home", WARNING, "/var/batchq/data", "its mode is 755"),
    ),
    "RQ is too new": (
        a_state(libraries=(Installed(name="rq", version="3.0.1", least=(2, 12), below=(3,)),)),
        *("libraries", ERROR, "rq", "3.0.1 is installed"),
    ),
    "RQ is too old": (
        a_state(libraries=(Installed(name="rq", version="2.9", least=(2, 12), below=(3,)),)),
        *("libraries", ERROR, "rq", "2.9 is installed"),
    ),
    "schedulers are of another version than this command": (
        a_state(version="0.2.0"),
        *("batchq", NOTE, "", "this is batchq 0.2.0, schedulers are 0.1.0"),
    ),
}


def of_check(state: State, check: str) -> list[Finding]:
    return [finding for finding in diagnose(state).findings if finding.check == check]


@pytest.mark.parametrize("what", UNHAPPY)
def test_the_doctor_finds_that(what: str) -> None:
    state, check, level, subject, words = UNHAPPY[what]
    found = [one for one in of_check(state, check) if one.subject == subject]
    assert [one.level for one in found] == [level], of_check(state, check)
    assert words in found[0].found
    assert found[0].expected
    assert found[0].remedy


def test_every_check_has_an_unhappy_case() -> None:
    assert {check for _, check, _, _, _ in UNHAPPY.values()} == {check.__name__ for check in CHECKS}


def test_nothing_is_found_in_a_healthy_system() -> None:
    report = diagnose(a_state())
    assert [one for one in report.findings if one.level is not Level.OK] == []
    assert [one.check for one in report.findings] == [check.__name__ for check in CHECKS]
    assert report.worst is Level.OK


def test_ready_nodes_say_under_which_accounts_their_pods_run() -> None:
    nodes = [
        node(name, annotations={AGENT_ANNOTATION: f"{name}:1:1", RUN_AS_ANNOTATION: said})
        for name, said in (("n1", "owner"), ("n2", "root"), ("n3", "owner"))
    ]
    [found] = [one for one in diagnose(a_state(*nodes)).findings if one.check == "nodes"]
    assert (found.level, found.found) == (Level.OK, "3 ready; pods run as owner on 2, root on 1")


def test_every_check_says_what_it_wants() -> None:
    assert [check.__name__ for check in CHECKS if not check.__doc__] == []


#: States that resemble one of the above but are healthy.
HEALTHY_AFTER_ALL: dict[str, tuple[State, str]] = {
    "a server without a limit of memory": (
        a_state(server=a_server(maxmemory_bytes=0, used_bytes=10**12)),
        "memory",
    ),
    "Valkey stands in for Redis 7.2": (
        a_state(server=a_server(version="Valkey 9.1.2", numbers=(7, 2, 4))),
        "version",
    ),
    "one slow PING of five": (
        a_state(server=a_server(answers_us=(90, 90, 90, 90, 900_000))),
        "latency",
    ),
    "a group that has been InQueue for less than its timeout": (
        beside_the_healthy(
            waiting(phase=PodGroupPhase.IN_QUEUE, admission=1, in_queue_at=NOW - 5 * MINUTE)
        ),
        "groups",
    ),
    "a group that has only begun to wait for what can never be": (
        with_hopeless(Waiting.EXCEEDS_MAX_QUOTA, age_ms=9 * MINUTE),
        "groups",
    ),
    "a group that waits for its turn, however long": (
        with_hopeless(Waiting.WAITING_FOR_RESOURCES, age_ms=10_000 * MINUTE),
        "groups",
    ),
    "the end of a deleted group meets `any`": (depending("any"), "dependencies"),
    "a pod that has just been bound": (bound(MINUTE // 2), "pods"),
    "a delivery of this moment": (
        bound(100, outbox=(Delivery(pod="train-1-0", attempt=1, node="n1"),)),
        "outbox",
    ),
    "a delivery of a deleted pod, which its node will drop": (
        a_state(outbox=(Delivery(pod="gone-1-0", attempt=1, node="n1"),)),
        "outbox",
    ),
    "a pod within its grace and its lease": (
        on_n1(terminating=True, terminating_at=NOW - MINUTE),
        "pods",
    ),
    "a server elsewhere": (a_state(home=None), "home"),
    "a node that has reported": (
        with_standing(restarted_at=NOW - 2 * MINUTE, reported=frozenset({"n1"})),
        "reported",
    ),
    "reports that came too late, as they may": (a_state(counts={"superseded": 9}), "inboxes"),
    "no scheduler is on standby": (with_leader(4_000), "schedulers"),
    "an agent that names no protocol": (a_state(node(annotations={})), "protocols"),
    "a node that is not ready holds no capacity": (
        a_state(node(), node("n2", ready=False)),
        "ledger",
    ),
}


@pytest.mark.parametrize("what", HEALTHY_AFTER_ALL)
def test_nothing_is_wrong_with(what: str) -> None:
    state, check = HEALTHY_AFTER_ALL[what]
    assert [one.level for one in of_check(state, check)] == [Level.OK], of_check(state, check)


def test_a_check_without_permission_is_a_note_naming_the_missing_permission() -> None:
    bare = a_server(
        informed=False,
        version="",
        numbers=(),
        role="",
        uptime_s=None,
        maxmemory_policy=None,
        maxmemory_bytes=None,
        used_bytes=None,
        evicted_keys=None,
        clients=None,
        maxclients=None,
        rejected_connections=None,
        aof=None,
        aof_write_ok=None,
        rdb_save_ok=None,
        appendfsync=None,
        user=None,
    )
    report = diagnose(
        a_state(
            server=bare,
            schedulers=None,
            books=None,
            unreadable=None,
            outbox=None,
            stuck_reports=None,
        )
    )
    hidden = {one.check for one in report.findings if one.found.startswith("cannot see")}
    assert hidden == {check.__name__ for check in CHECKS} - {
        *("latency", "clock", "permissions", "home", "libraries", "batchq")
    }
    assert report.worst is NOTE
    assert {
        one.remedy.startswith("grant this user") for one in report.findings if one.check in hidden
    } == {True}


def test_a_constantly_changing_ledger_is_reported_as_not_compared() -> None:
    state = a_state(books=None, moving=True)
    [finding] = of_check(state, "ledger")
    assert (finding.level, finding.found.startswith("not compared")) == (NOTE, True)


def test_every_difference_is_a_finding() -> None:
    books = books_of(*(node(f"n{number}") for number in range(1000)))
    state = a_state(books=structs.replace(books, charges={}, ledger={}))
    # cpu, memory and pods of each group.
    assert len(of_check(state, "ledger")) == 3000
