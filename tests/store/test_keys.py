"""Every key in use is declared, with its type and its lifetime."""

from __future__ import annotations

import re
from pathlib import Path

import redis

from batchq.api.access import AccessRole, Binding
from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Leaves, PodAttempt
from batchq.api.objects import KINDS, AdmissionCheck, Metadata, PriorityClass, ResourceQuota
from batchq.api.transaction import Delivery, Event, Limit, Transaction
from batchq.client.access_control import AccessControl, Actor
from batchq.store import keys
from batchq.store.exec_channels import ExecChannel, open_requests
from batchq.store.node_channels import WakeReason, notify
from batchq.store.redis import RedisStore
from batchq.store.schedulers import attend, publish_config
from tests.contract.made import charge, gone, group, node, pod, put, queue


def use_everything(store: RedisStore) -> None:
    """Write something under every key."""
    everything = Transaction(
        subject="everything",
        writes=(
            put(queue()),
            put(ResourceQuota(metadata=Metadata(name="r", namespace="x"))),
            put(node()),
            put(PriorityClass(metadata=Metadata(name="p"))),
            put(AdmissionCheck(metadata=Metadata(name="c"))),
            put(group()),
            put(pod(0, phase=PodPhase.RUNNING, attempt=1)),
        ),
        charges=(charge("group:u1", "queue:q", cpu=1),),
        limits=(Limit(scope="queue:q", amounts={"cpu": 5}),),
        deliveries=(Delivery(pod="u1-1-0", attempt=1, node="n1"),),
        events=(Event(kind="Queue", key="q", reason="Seen"),),
    )
    epoch = store.lead("one", 30_000)
    assert len(store.commit([everything], request_id="1", epoch=epoch).applied) == 1
    attend(store, "one", version="0.1.0", mirrored=1)
    assert publish_config(store, "actions: [allocate]\n", epoch=epoch)
    store.beat("n1")
    store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000)
    store.append_log("n1", "u1-1-0", 1, "stdout", b"hello")
    store.report_queues.post("n1", Leaves(agent="a"))
    store.report_queues.count("superseded", 1)
    store.put_result("n1", "u1-1-0", 1, b"42")
    store.alive.put_token("n1", PodAttempt("u1-1-0", 1), "digest")
    notify(store.link, ["n1"], WakeReason.PODS)
    open_requests(store.link, "n1")
    ExecChannel(store.link, "n1", "0" * 48, is_node=True).open()
    access = AccessControl(store)
    actor = Actor(user="alice", via="redis")
    access.note_use(access.create_token("alice", actor).record.id)
    access.grant(Binding(subject="user:alice", role=AccessRole.OPERATOR), actor)


def test_every_key_in_use_is_declared(redis_store: RedisStore, raw: redis.Redis) -> None:
    use_everything(redis_store)
    used = {}
    for name in sorted(raw.scan_iter("*")):
        key = keys.declared(name.decode())
        assert key is not None, f"{name!r} is not in the table of batchq/store/keys.py"
        assert raw.type(name) == key.type.encode(), name
        lives_s = raw.ttl(name)
        assert lives_s == -1 if key.ttl_s is None else 0 < lives_s <= key.ttl_s, name
        used[key.name] = key
    assert sorted(used) == sorted(key.name for key in keys.TABLE)


def test_deleting_all_objects_leaves_only_bounded_keys(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    use_everything(redis_store)
    stored = [item for kind in KINDS for item in redis_store.list(kind)]
    deletions = Transaction(
        subject="everything",
        writes=tuple(gone(item, expect=item.metadata.revision) for item in stored),
        charges=(charge("group:u1"),),
        limits=(Limit(scope="queue:q", amounts=None),),
    )
    assert len(redis_store.commit([deletions], request_id="2").applied) == 1
    redis_store.delivered(redis_store.outbox())
    redis_store.resign("one")
    assert sorted(name.decode() for name in raw.scan_iter("*") if raw.ttl(name) == -1) == [
        "access:{bq}:audit",
        "access:{bq}:bindings",
        "access:{bq}:state",
        "access:{bq}:tokens",
        "access:{bq}:used",
        "{bq}:bell",
        "{bq}:changes",
        "{bq}:config",
        "{bq}:counts",
        "{bq}:epoch",
        "{bq}:events",
        "{bq}:limits",
        "{bq}:revision",
        "{bq}:server",
    ]
    # The last change of limits is kept: an earlier decision may still be committed.
    assert raw.hkeys("{bq}:limits") == [b"last change"]


def test_the_change_stream_is_bounded(redis_store: RedisStore, raw: redis.Redis) -> None:
    store = RedisStore(redis_store.url, changes_kept=200)
    for number in range(20):
        many = Transaction(
            subject="many", writes=tuple(put(queue(f"q{number}-{place}")) for place in range(100))
        )
        store.commit([many], request_id=str(number))
    store.close()
    assert 200 <= raw.xlen("{bq}:changes") <= 400


def test_keys_of_other_programs_are_not_declared() -> None:
    for name in ("rq:queues", "bq:revision", "{bq}:other", "{bq}:revision:x", "{bq}:request:"):
        assert keys.declared(name) is None


def test_the_schema_in_the_readme_names_every_key() -> None:
    schema = Path(keys.__file__).with_name("README.md").read_text(encoding="utf-8")
    for key in keys.TABLE:
        name = re.sub("|".join(KINDS), "<Kind>", key.name)
        assert f"| `{name}` | {key.type} |" in schema
