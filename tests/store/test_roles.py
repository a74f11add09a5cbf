"""What each role may not do, tried on a real server with the permissions of the table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from batchq.api.node_report import Leaves, PodAttempt
from batchq.api.objects import (
    AdmissionCheck,
    Metadata,
    Node,
    Object,
    PriorityClass,
    Queue,
    ResourceQuota,
    key_of,
)
from batchq.api.transaction import (
    Charge,
    Commit,
    Delivery,
    Event,
    Limit,
    Transaction,
    Word,
    Write,
)
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.redis import RedisStore
from batchq.store.roles import ROLES
from batchq.store.rq_link import RqLink
from batchq.worker.rq_delivery import Relay, enqueue, node_queue
from tests.builders import a_group, a_pod
from tests.harness.guarded import ADMIN, USERS, GuardedServer, users_file

KINDS = ("Queue", "ResourceQuota", "Node", "PriorityClass", "AdmissionCheck", "PodGroup", "Pod")
WRITTEN: dict[str, Object] = {
    "Queue": Queue(metadata=Metadata(name="a-queue")),
    "ResourceQuota": ResourceQuota(metadata=Metadata(name="a-resourcequota", namespace="x")),
    "Node": Node(metadata=Metadata(name="a-node")),
    "PriorityClass": PriorityClass(metadata=Metadata(name="a-priorityclass")),
    "AdmissionCheck": AdmissionCheck(metadata=Metadata(name="a-admissioncheck")),
    "PodGroup": a_group("a-podgroup"),
    "Pod": a_pod(a_group("a-podgroup")),
}
REQUESTS = itertools.count()
EVENT = Event(kind="Pod", key="p", reason="Tested", at=1)
#: Which users may write which keys. All other combinations are refused.
OF_N1 = {
    *("{bq}:inbox:n1", "{bq}:alive:n1", "{bq}:doorbell:n1", "{bq}:bell"),
    *("{bq}:log:n1:p-1", "{bq}:result:n1:p-1", "{bq}:token:n1:p-1"),
}
OF_N2 = {name.replace("n1", "n2") for name in OF_N1}
COMMANDS_OF_N1 = {
    *("exec:{bq}:requests:n1", "exec:{bq}:input:n1:s", "exec:{bq}:output:n1:s"),
}
COMMANDS_OF_N2 = {name.replace("n1", "n2") for name in COMMANDS_OF_N1}
COMMANDS = COMMANDS_OF_N1 | COMMANDS_OF_N2
COMMITTED = {
    *("{bq}:request:1", "{bq}:revision", "{bq}:changes", "{bq}:events"),
    *("{bq}:ledger", "{bq}:charges"),
}
OF_GROUPS = {"{bq}:PodGroup", "{bq}:PodGroup:head", "{bq}:Pod", "{bq}:Pod:head"}
OF_OTHERS = {
    f"{{bq}}:{kind}{end}"
    for kind in ("Queue", "ResourceQuota", "Node", "PriorityClass", "AdmissionCheck")
    for end in ("", ":head")
}
OF_ANSWERS = {
    *("{bq}:PodGroup", "{bq}:PodGroup:head"),
    *("{bq}:AdmissionCheck", "{bq}:AdmissionCheck:head"),
}
OF_THE_API = {f"access:{{bq}}:{name}" for name in ("tokens", "used", "bindings", "state", "audit")}
LEADERS = {
    *("{bq}:epoch", "{bq}:server", "{bq}:leader", "{bq}:schedulers", "{bq}:outbox"),
    *("{bq}:config", "{bq}:counts"),
}
MAY_WRITE = {
    "readonly": set(),
    "worker-n1": OF_N1 | COMMANDS_OF_N1,
    "worker-n2": OF_N2 | COMMANDS_OF_N2,
    "submitter": COMMITTED | OF_GROUPS,
    "controller": COMMITTED | OF_ANSWERS,
    "api": COMMITTED | OF_GROUPS | OF_OTHERS | {"{bq}:limits"} | COMMANDS | OF_THE_API,
    "registrar": set(),
    "operator": COMMITTED | OF_GROUPS | OF_OTHERS | {"{bq}:limits"} | COMMANDS,
    "scheduler": COMMITTED | OF_GROUPS | OF_OTHERS | {"{bq}:limits"} | LEADERS | OF_N1 | OF_N2,
}


def every_key() -> list[tuple[str, str]]:
    """Return the names of keys, and their types."""
    found = set()
    for key in keys.TABLE:
        for node in ("n1", "n2"):
            name = key.name.replace("<node>", node).replace("<pod>", "p").replace("<attempt>", "1")
            name = name.replace("<id>", "1").replace("<session>", "s")
            found.add((name, key.type))
    return sorted(found)


KEYS = every_key()


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedServer]:
    with GuardedServer() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def _scripts(guarded: GuardedServer) -> None:
    """Load the scripts, as an earlier scheduler does."""
    store = RedisStore(guarded.url_of("scheduler"))
    assert store.link.keep_scripts()
    store.close()


@pytest.fixture(autouse=True)
def _empty(guarded: GuardedServer) -> None:
    with guarded.as_user(ADMIN) as admin:
        admin.flushall()
        admin.acl_log_reset()


def write(client: redis.Redis, name: str, type_: str) -> Any:
    match type_:
        case "hash":
            return client.hset(name, "field", "value")
        case "stream":
            return client.xadd(name, {"field": "value"})
    return client.set(name, "1")


def may(client: redis.Redis, *words: str) -> bool:
    """Return whether the server permits the command to a user, whatever its result."""
    try:
        client.execute_command(*words)
    except redis.exceptions.NoPermissionError:
        return False
    except redis.exceptions.ResponseError as error:
        return "ACL failure" not in str(error) and "can't access" not in str(error)
    return True


def test_some_role_may_write_every_key_of_the_table() -> None:
    assert {name for name, _ in KEYS} == MAY_WRITE["scheduler"] | COMMANDS | OF_THE_API


@pytest.mark.parametrize("user", USERS)
def test_only_permitted_roles_may_write_each_key(guarded: GuardedServer, user: str) -> None:
    written = set()
    with guarded.as_user(user) as client, guarded.as_user(ADMIN) as admin:
        for name, type_ in KEYS:
            with suppress(redis.exceptions.NoPermissionError):
                write(client, name, type_)
                written.add(name)
        assert {name for name, _ in KEYS if admin.exists(name)} == written
    assert written == MAY_WRITE[user]


@pytest.mark.parametrize("user", USERS)
def test_a_script_may_write_no_more_than_its_caller(guarded: GuardedServer, user: str) -> None:
    call = {"hash": "'HSET', {}, 'f', 'v'", "stream": "'XADD', {}, '*', 'f', 'v'"}
    named: set[str] = set()
    hidden: set[str] = set()
    with guarded.as_user(user) as client, guarded.as_user(ADMIN) as admin:
        for name, type_ in KEYS:
            written = call.get(type_, "'SET', {}, '1'")
            by_name, by_stealth = (
                admin.script_load(f"return redis.call({written.format(place)})")
                for place in ("KEYS[1]", "ARGV[1]")
            )
            # The second call does not name the key.
            for found, place in ((named, (by_name, "1", name)), (hidden, (by_stealth, "0", name))):
                if may(client, "EVALSHA", *place):
                    found.add(name)
                assert admin.delete(name) == (name in found)
    assert named == hidden == MAY_WRITE[user]


#: Commands that administer the server, or touch the keys of other programs.
FORBIDDEN = (
    *("FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "SHUTDOWN NOSAVE", "SAVE", "BGREWRITEAOF"),
    *("CONFIG SET appendonly no", "ACL LIST", "ACL SETUSER worker-n1 +@all", "ACL LOG"),
    *("MONITOR", "SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION FLUSH", "REPLICAOF NO ONE"),
    *("CLIENT KILL ID 1", "CLIENT PAUSE 1", "MODULE LIST", "RENAME rq:a rq:b", "SWAPDB 0 1"),
    *(
        "SUBSCRIBE secrets",
        "PUBLISH secrets 1",
        "SET other 1",
        "GET other",
        "MIGRATE h 1 k 0 1",
    ),
)


@pytest.mark.parametrize("user", USERS)
def test_no_role_may_administer_the_server_or_touch_other_keys(
    guarded: GuardedServer, user: str
) -> None:
    # What a registrar is for.
    tried = [one for one in FORBIDDEN if user != "registrar" or not one.startswith("ACL SETUSER")]
    with guarded.as_user(user) as client:
        assert [words for words in tried if may(client, *words.split())] == []


ENDLESS = "redis.call('SET', KEYS[1], 'x') while true do end"


@pytest.mark.parametrize(
    "words",
    [
        ("EVAL", ENDLESS, "1", "{bq}:ledger"),
        ("EVAL_RO", "while true do end", "0"),
        ("SCRIPT", "LOAD", ENDLESS),
        ("FUNCTION", "LOAD", "#!lua name=a\nredis.register_function('a', function() end)"),
        ("FCALL", "a", "0"),
        ("FUNCTION", "RESTORE", "x"),
    ],
    ids=lambda words: " ".join(words[:2])[:16],
)
@pytest.mark.parametrize("user", [user for user in USERS if user != "scheduler"])
def test_only_a_scheduler_may_run_scripts_of_its_own(
    guarded: GuardedServer, user: str, words: tuple[str, ...]
) -> None:
    with guarded.as_user(user) as client:
        assert not may(client, *words)


@pytest.mark.parametrize(
    "user", ["readonly", "worker-n1", "submitter", "controller", "api", "scheduler"]
)
def test_only_an_operator_may_read_settings_which_include_passwords(
    guarded: GuardedServer, user: str
) -> None:
    with guarded.as_user(user) as client, guarded.as_user("operator") as operator:
        assert not may(client, "CONFIG", "GET", "primaryauth")
        assert may(operator, "CONFIG", "GET", "primaryauth")


@pytest.mark.parametrize(
    "user", ["readonly", "submitter", "controller", "operator", "api", "worker-n2"]
)
@pytest.mark.parametrize(
    "words",
    [
        *("RPUSH {}queue:bq-node-n1 x", "HSET {}job:x data y", "DEL {}job:x"),
        *("LRANGE {}queue:bq-node-n1 0 -1", "HGETALL {}job:x", "LMOVE {}a {}b LEFT LEFT"),
    ],
)
def test_only_its_worker_and_schedulers_may_use_the_rq_keys_of_a_node(
    guarded: GuardedServer, user: str, words: str
) -> None:
    with guarded.as_user(user) as client:
        assert not may(client, *words.format("{bq}-rq:n1:", "{bq}-rq:n1:").split())
        # RQ's keys of other programs are not batchq's.
        assert not may(client, *words.format("rq:", "rq:").split())


@pytest.mark.parametrize("node", ["n11", "n1.example", "n", "*", "?1"])
def test_a_node_name_with_the_same_beginning_is_another_node(
    guarded: GuardedServer, node: str
) -> None:
    with guarded.as_user("worker-n1") as client:
        for name in (
            keys.report_queue(node),
            keys.alive(node),
            keys.result(node, "p", 1),
            keys.pod_token(node, "p", 1),
        ):
            assert not may(client, "HSET", name, "f", "v")
            assert not may(client, "SET", name, "v")


def a_write(kind: str) -> Write:
    return Write(kind=kind, key=key_of(WRITTEN[kind]), expect=0, value=WRITTEN[kind])


def commit(
    guarded: GuardedServer,
    user: str,
    *,
    epoch: int | None = None,
    seen: int | None = None,
    **asked: Any,
) -> Commit:
    store = RedisStore(guarded.url_of(user))
    try:
        transaction = Transaction(subject="test", **asked)
        request = f"r{next(REQUESTS)}"
        return store.commit([transaction], request_id=request, epoch=epoch, seen=seen)
    finally:
        store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("user", "kinds"),
    [
        ("readonly", ()),
        ("worker-n1", ()),
        ("submitter", ("PodGroup", "Pod")),
        ("api", KINDS),
        ("controller", ("AdmissionCheck", "PodGroup")),
        ("operator", KINDS),
        ("scheduler", KINDS),
    ],
)
def test_only_permitted_roles_may_commit_objects_of_each_kind(
    guarded: GuardedServer, user: str, kinds: tuple[str, ...], kind: str
) -> None:
    charge = Charge(holder="h", scopes=("namespace:x",), amounts={"cpu": 1}, checked=True)
    asked = {"writes": (a_write(kind),), "charges": (charge,), "events": (EVENT,)}
    if kind in kinds:
        assert commit(guarded, user, **asked).refused == ()
        return
    with pytest.raises(StoreUnavailable, match="does not permit this user to write") as raised:
        commit(guarded, user, **asked)
    least = {"PodGroup": "submitter", "Pod": "submitter", "AdmissionCheck": "controller"}.get(
        kind, "operator"
    )
    assert (raised.value.lasts, raised.value.hint) == (
        True,
        f"use a user of the role {least}: see `batchq acl {least}`",
    )


@pytest.mark.parametrize("user", ["readonly", "worker-n1", "submitter", "controller", "operator"])
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"epoch": 1}, id="as the leader"),
        pytest.param({"deliveries": (Delivery(pod="p", attempt=1, node="n1"),)}, id="deliveries"),
    ],
)
def test_only_a_scheduler_decides_and_binds(
    guarded: GuardedServer, user: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(StoreUnavailable, match="does not permit"):
        commit(guarded, user, writes=(a_write("PodGroup"),), **asked)
    assert commit(guarded, "scheduler", writes=(a_write("PodGroup"),), **asked)


@pytest.mark.parametrize("user", ["readonly", "worker-n1", "submitter", "controller"])
def test_only_operators_and_schedulers_set_limits(guarded: GuardedServer, user: str) -> None:
    limits = (Limit(scope="namespace:x", amounts={"cpu": 1}),)
    with pytest.raises(StoreUnavailable, match="does not permit"):
        commit(guarded, user, limits=limits)
    assert commit(guarded, "operator", limits=limits).refused == ()


def test_a_submitter_is_held_to_limits_that_it_may_not_write(guarded: GuardedServer) -> None:
    commit(guarded, "operator", limits=(Limit(scope="namespace:x", amounts={"cpu": 1}),))
    charge = Charge(holder="h", scopes=("namespace:x",), amounts={"cpu": 2}, checked=True)
    [refused] = commit(guarded, "submitter", charges=(charge,)).refused
    assert (refused.answer.word, refused.answer.limit) == (Word.LIMIT, 1)


@pytest.mark.parametrize("user", ["submitter", "controller", "operator", "scheduler"])
def test_a_charge_planned_before_the_last_change_of_limits_is_refused(
    guarded: GuardedServer, user: str
) -> None:
    limits = (Limit(scope="namespace:x", amounts={"cpu": 1}),)
    commit(guarded, "operator", writes=(a_write("Queue"),), limits=limits)
    charge = Charge(holder="h", scopes=("namespace:x",), amounts={"cpu": 1}, checked=True)
    [refused] = commit(guarded, user, seen=0, charges=(charge,)).refused
    assert (refused.answer.word, refused.answer.subject) == (Word.CONFLICT, "the limits")
    assert commit(guarded, user, seen=1, charges=(charge,)).refused == ()


@pytest.mark.parametrize(
    "user", ["readonly", "worker-n1", "submitter", "controller", "operator", "api"]
)
def test_only_a_scheduler_may_lead(guarded: GuardedServer, user: str) -> None:
    store = RedisStore(guarded.url_of(user))
    with pytest.raises(StoreUnavailable, match="does not permit this user to do this"):
        store.lead("me", 1_000)
    store.close()


@pytest.mark.parametrize("user", [user for user in USERS if user != "registrar"])
def test_all_users_may_read_all_keys_but_those_of_the_api_and_of_commands(
    guarded: GuardedServer, user: str
) -> None:
    with guarded.as_user(user) as client:
        for name, type_ in KEYS:
            if name in OF_THE_API | COMMANDS and name not in MAY_WRITE[user]:
                continue
            word = {"hash": "HGETALL", "stream": "XREVRANGE", "string": "GET"}[type_]
            assert may(client, word, name, *(("+", "-") if type_ == "stream" else ()))


@pytest.mark.parametrize("user", [user for user in USERS if user != "api"])
def test_only_the_api_may_read_tokens_bindings_and_the_audit_trail(
    guarded: GuardedServer, user: str
) -> None:
    with guarded.as_user(user) as client, guarded.as_user("api") as api:
        for name in sorted(OF_THE_API):
            for words in (("HGETALL", name), ("XREVRANGE", name, "+", "-"), ("GET", name)):
                assert not may(client, *words)
                assert may(api, *words)


def test_every_role_is_tried() -> None:
    assert {role for role, _ in USERS.values()} == {role.name for role in ROLES}


def test_a_submitter_can_write_the_ledger_itself(guarded: GuardedServer) -> None:
    with guarded.as_user("submitter") as client:
        client.hset(keys.LEDGER, "namespace:x cpu", "9")
    store = RedisStore(guarded.url_of("readonly"))
    assert store.ledger() == {"namespace:x": {"cpu": 9}}
    store.close()


def test_a_registrar_reads_no_key_and_could_give_itself_every_right() -> None:
    with GuardedServer() as server, server.as_user("registrar") as client:
        for name, _ in KEYS:
            assert not any(may(client, word, name) for word in ("GET", "HGETALL", "XLEN"))
        assert may(client, "ACL", "SETUSER", "registrar", "+@all", "~*")
        client.set("other", "1")


@pytest.mark.parametrize("far", ["99999999-0", f"{2**64 - 1}-{2**64 - 1}"])
def test_a_change_from_the_far_future_stops_no_commit(guarded: GuardedServer, far: str) -> None:
    with guarded.as_user("submitter") as client:
        client.xadd(keys.CHANGES, {"kind": "x"}, id=far)
    commit(guarded, "scheduler", writes=(a_write("Queue"),))
    reader = RedisStore(guarded.url_of("scheduler"))
    assert len(reader.list("Queue")) == 1
    assert len(reader.snapshot().queues) == 1
    reader.close()


def test_a_worker_can_damage_the_channel_and_reports_are_found_without_it(
    guarded: GuardedServer,
) -> None:
    with guarded.as_user("worker-n1") as client:
        client.xadd(keys.LEADER_CHANNEL, {"node": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    store = RedisStore(guarded.url_of("worker-n2"))
    store.report_queues.post("n2", Leaves(agent="a"))
    assert store.report_queues.pending("n2") == [Leaves(agent="a")]
    store.close()


@pytest.mark.parametrize("node", ["n1", "n1.example", "n11", "n"])
def test_a_worker_may_use_the_rq_keys_of_its_own_node_only(
    guarded: GuardedServer, node: str
) -> None:
    links = {user: RqLink(guarded.url_of(user)) for user in ("scheduler", "worker-n1")}
    enqueue(node_queue(node, links["scheduler"]), [PodAttempt("p", 1)])
    queue = node_queue(node, links["worker-n1"])
    if node == "n1":
        assert queue.get_job_ids() == ["p-1"]
    else:
        for touch in (queue.get_job_ids, queue.empty, lambda: enqueue(queue, [PodAttempt("p", 2)])):
            with pytest.raises(redis.exceptions.NoPermissionError):
                touch()
        assert node_queue(node, links["scheduler"]).connection.hget("rq:job:p-1", "data")
    for link in links.values():
        link.close()


def test_users_of_an_older_file_go_on_with_the_keys_that_all_nodes_shared(
    guarded: GuardedServer,
) -> None:
    with guarded.as_user(ADMIN) as admin:
        for user in ("worker-n1", "scheduler"):
            rules = next(one for one in users_file().splitlines() if f"user {user} " in one)
            kept = [word for word in rules.split()[2:] if "-rq:" not in word]
            admin.execute_command("ACL", "SETUSER", user, *kept, "~rq:*")
    link = RqLink(guarded.url_of("worker-n1"))
    try:
        link.find_place("n1")
        assert not link.is_apart
        store = RedisStore(guarded.url_of("scheduler"))
        commit(guarded, "scheduler", deliveries=(Delivery(pod="p", attempt=1, node="n1"),))
        relay = Relay(store)
        assert relay.deliver() == 1
        assert node_queue("n1", link).get_job_ids() == ["p-1"]
        relay.close()
        store.close()
    finally:
        with guarded.as_user(ADMIN) as admin:
            admin.acl_load()
    link.find_place("n1")
    assert link.is_apart
    link.close()


def test_a_worker_can_fill_the_server_with_its_output(guarded: GuardedServer) -> None:
    with guarded.as_user("worker-n1") as client:
        for number in range(40):
            client.xadd(keys.log("n1", "p", number), {"data": b"x" * 100_000})
        assert client.info("memory")["used_memory"] > 4_000_000


def test_a_user_removed_from_the_acl_file_is_disconnected() -> None:
    with GuardedServer() as server, server.as_user("worker-n1") as worker:
        assert worker.ping()
        path = server.folder / "users.acl"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line for line in lines if " worker-n1 " not in line) + "\n")
        with server.as_user(ADMIN) as admin:
            admin.acl_load()
        with pytest.raises((redis.exceptions.ConnectionError, redis.exceptions.ResponseError)):
            worker.ping()
