"""Malformed or false parts of the ledger are recounted from the objects, and reported."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import redis
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node, NodeSpec, Pod, Queue, QueueSpec
from batchq.api.transaction import Transaction, Word
from batchq.client import Accepted, Client, requests
from batchq.client.changes import apply
from batchq.client.doctor import examine
from batchq.daemon import leader
from batchq.daemon.leader import Mender
from batchq.errors import Conflict
from batchq.store import books, keys, mirror
from batchq.store.books import BooksAudit, false_heads, mend_heads, recount
from batchq.store.inspection import damaged_keys, read_books
from batchq.store.redis import RedisStore
from batchq.store.schedulers import publish_object_limit, read_object_limit
from batchq.system import RandomIds
from tests.contract.made import charge, gone, group, pod, put, writing
from tests.poison.damage import DAMAGES, DEEP, HUGE

#: Values that a hostile user may leave in place of a number.
NO_NUMBERS = (*DAMAGES.values(), b"1e400", b"-", b"1.5", b" 7", b"0x10")
NO_RECORDS = (
    *DAMAGES.values(),
    *(b'{"a":1}', b'[["x"],[["cpu","1e9"]]]', b'[["x"],[["cpu",1]]]', b'[["x"],[["cpu","-1"]]]'),
    *(b'[["x"],[["cpu","' + HUGE + b'"]]]', b'[["x"],' + DEEP, b'[["x"]]', b"[1,2]"),
)
NO_LIMITS = (*DAMAGES.values(), b'{"cpu":1}', b'{"cpu":"1e9"}', b'{"cpu":"' + HUGE + b'"}')


def in_books(store: RedisStore, raw: redis.Redis) -> dict[bytes, dict[bytes, bytes]]:
    names = (keys.LEDGER, keys.CHARGES, keys.LIMITS, *map(keys.heads, ("Queue", "Node", "Pod")))
    return {name.encode(): cast("dict[bytes, bytes]", raw.hgetall(name)) for name in names}


@pytest.fixture
def booked(redis_store: RedisStore) -> RedisStore:
    """A store with a queue, a node and a pod on it, all charged correctly."""
    store = redis_store
    store.lead("me", 60_000)
    for item in (
        Queue(
            metadata=group("default", namespace="").metadata,
            spec=QueueSpec(capability={"cpu": 9000}),
        ),
        Node(metadata=group("n1", namespace="").metadata, spec=NodeSpec(resources={"cpu": 8000})),
    ):
        done = apply(store, item, now_ms=1, uid="u" * 16, by="me")
        assert done is not None
        store.commit([done], request_id=item.metadata.name)
    bound = pod(phase=PodPhase.BOUND, attempt=1, node="n1")
    bound = structs.replace(bound, spec=structs.replace(bound.spec, requests={"cpu": 1000}))
    charged = charge(f"pod:{bound.metadata.uid}", "node:n1", cpu=1000, pods=1000)
    store.commit(
        [Transaction(subject="x", writes=(put(bound),), charges=(charged,))], request_id="pod"
    )
    return store


def epoch(store: RedisStore) -> int:
    leader = store.leader()
    assert leader is not None
    return leader.epoch


def test_correct_books_are_left_alone(booked: RedisStore, raw: redis.Redis) -> None:
    before = in_books(booked, raw)
    assert recount(booked, epoch(booked)) == []
    assert in_books(booked, raw) == before


def test_the_leaders_limit_for_every_namespace_survives_a_recount(
    booked: RedisStore, raw: redis.Redis
) -> None:
    publish_object_limit(booked, 10_000, request_id="limit", epoch=epoch(booked))
    raw.hset(keys.LEDGER, "ns:x cpu", "NaN")
    assert recount(booked, epoch(booked)) != []
    assert read_object_limit(booked) == 10_000
    assert recount(booked, epoch(booked)) == []


def healed_after(
    booked: RedisStore, raw: redis.Redis, spoil: Callable[[redis.Redis], object]
) -> None:
    """Check that the leader's next look finds the damage, reports it, and restores the books."""
    before = in_books(booked, raw)
    spoil(raw)
    mender = Mender(booked, RandomIds())
    mender.look(epoch(booked))
    assert in_books(booked, raw) == before
    result = [one for one in booked.events() if one.reason in ("Recounted", "Mended")]
    assert result
    assert mender.mended == len(result)


@pytest.mark.parametrize("damage", NO_NUMBERS)
@pytest.mark.parametrize("field", ["node:n1 cpu", "capacity cpu", "cluster cpu", "no field"])
def test_a_malformed_sum_is_recounted(
    booked: RedisStore, raw: redis.Redis, field: str, damage: bytes
) -> None:
    healed_after(booked, raw, lambda client: client.hset(keys.LEDGER, field, damage))


@pytest.mark.parametrize("damage", NO_RECORDS)
@pytest.mark.parametrize("holder", ["pod:u1-1-0", "node:n1", "group:nobody"])
def test_a_malformed_charge_is_recounted(
    booked: RedisStore, raw: redis.Redis, holder: str, damage: bytes
) -> None:
    healed_after(booked, raw, lambda client: client.hset(keys.CHARGES, holder, damage))


@pytest.mark.parametrize("damage", NO_LIMITS)
@pytest.mark.parametrize("scope", ["queue:default", "node:n1", "ns:nobody"])
def test_a_malformed_limit_is_restored(
    booked: RedisStore, raw: redis.Redis, scope: str, damage: bytes
) -> None:
    healed_after(booked, raw, lambda client: client.hset(keys.LIMITS, scope, damage))


def test_an_unreadable_last_change_of_limits_becomes_the_present_revision(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.hset(keys.LIMITS, keys.LAST_CHANGE, "never")
    Mender(booked, RandomIds()).look(epoch(booked))
    assert raw.hget(keys.LIMITS, keys.LAST_CHANGE) == raw.get(keys.REVISION)


@pytest.mark.parametrize("damage", [b"4503599627370490", b"-1", b"never"])
def test_limits_changed_in_the_future_are_reported_and_refuse_no_group(
    booked: RedisStore, raw: redis.Redis, damage: bytes
) -> None:
    raw.hset(keys.LIMITS, keys.LAST_CHANGE, damage)
    books = read_books(booked)
    assert books is not None
    assert [(one.kind, one.key) for one in books.unreadable] == [("Limit", r"last\x20change")]
    Mender(booked, RandomIds()).look(epoch(booked))
    asked = Transaction(subject="x", charges=(charge("group:a", "ns:x", checked=True, cpu=1),))
    seen = booked.snapshot().revision
    assert booked.commit([asked], request_id="one", seen=seen).refused == ()


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xff", b"1|Bound", b"NaN|a|b|c", HUGE])
@pytest.mark.parametrize(("kind", "key"), [("Queue", "default"), ("Node", "n1"), ("Pod", "u1-1-0")])
def test_a_malformed_head_is_rewritten_from_its_object(
    booked: RedisStore, raw: redis.Redis, kind: str, key: str, damage: bytes
) -> None:
    healed_after(booked, raw, lambda client: client.hset(keys.heads(kind), key, damage))


@pytest.mark.parametrize(
    "name", [keys.LEDGER, keys.CHARGES, keys.LIMITS, *map(keys.heads, ("Queue", "Node", "Pod"))]
)
@pytest.mark.parametrize("type_", ["string", "list"])
def test_books_of_another_type_are_rebuilt(
    booked: RedisStore, raw: redis.Redis, name: str, type_: str
) -> None:
    def spoiled(client: redis.Redis) -> None:
        client.delete(name)
        client.set(name, "x") if type_ == "string" else client.rpush(name, "x")

    last_change = raw.hget(keys.LIMITS, keys.LAST_CHANGE)
    if name != keys.LIMITS:
        healed_after(booked, raw, spoiled)
        return
    spoiled(raw)
    Mender(booked, RandomIds()).look(epoch(booked))
    raw.hset(name, keys.LAST_CHANGE, cast(bytes, last_change))
    assert recount(booked, epoch(booked)) == []


@pytest.mark.parametrize("damage", NO_NUMBERS)
def test_only_transactions_charging_an_unreadable_sum_are_refused(
    booked: RedisStore, raw: redis.Redis, damage: bytes
) -> None:
    raw.hset(keys.LEDGER, "ns:x cpu", damage)
    about = Transaction(subject="x", charges=(charge("group:a", "ns:x", cpu=1),))
    beside = Transaction(subject="x", charges=(charge("group:b", "ns:y", cpu=1),))
    commit = booked.commit([about, beside], request_id="both")
    assert [one.answer.word for one in commit.refused] == [Word.CONFLICT]
    assert commit.refused[0].answer.subject == "the ledger"
    assert booked.ledger()["ns:y"] == {"cpu": 1}


def test_submissions_wait_until_an_unreadable_sum_is_recounted(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = "objects:default podgroups"
    recounts = 0

    def recounted(_: float) -> None:
        nonlocal recounts
        recounts += 1
        raw.hdel(keys.LEDGER, field)

    monkeypatch.setattr(requests, "sleep", recounted)
    client = Client(store=booked)
    raw.hset(keys.LEDGER, field, "NaN")
    client.submit(name="first", command=("true",))
    raw.hset(keys.LEDGER, field, "NaN")
    [one] = client.submit_many([{"name": "second", "command": ["true"]}])
    assert isinstance(one, Accepted)
    assert recounts == 2


def test_an_unreadable_sum_that_remains_is_the_reason_of_the_refusal(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "sleep", lambda _: None)
    raw.hset(keys.LEDGER, "objects:default podgroups", "NaN")
    with pytest.raises(Conflict, match="a sum or charge in the ledger is unreadable"):
        Client(store=booked).submit(name="first", command=("true",))


@pytest.mark.parametrize("damage", NO_LIMITS)
def test_a_transaction_under_an_unreadable_limit_is_refused(
    booked: RedisStore, raw: redis.Redis, damage: bytes
) -> None:
    raw.hset(keys.LIMITS, "ns:x", damage)
    about = Transaction(subject="x", charges=(charge("group:a", "ns:x", checked=True, cpu=1),))
    [refused] = booked.commit([about], request_id="one").refused
    assert (refused.answer.word, refused.answer.subject) == ("conflict", "the ledger")


def test_the_charge_of_an_unreadable_object_is_kept_until_its_deletion(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.hset(keys.objects("Pod"), "u1-1-0", "garbage")
    raw.hset(keys.objects("Node"), "n1", "garbage")
    raw.hset(keys.LEDGER, "x cpu", "NaN")
    assert booked.compare() == []
    before = in_books(booked, raw)
    result = recount(booked, epoch(booked))
    assert result is not None
    assert [one.key for one in result] == [r"x\x20cpu"]
    after = in_books(booked, raw)
    assert before[b"{bq}:charges"] == after[b"{bq}:charges"]
    assert before[b"{bq}:limits"] == after[b"{bq}:limits"]
    assert booked.discard("Pod", "u1-1-0")
    assert booked.discard("Node", "n1")
    recount(booked, epoch(booked))
    assert booked.charges() == {}
    assert booked.ledger() == {}


def test_a_damaged_head_of_a_damaged_object_is_removed_once(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.hset(keys.objects("Pod"), "poison", "garbage")
    raw.hset(keys.heads("Pod"), "poison", "garbage")
    mender = Mender(booked, RandomIds())
    mender.look(epoch(booked))
    assert not raw.hexists(keys.heads("Pod"), "poison")
    assert raw.hexists(keys.objects("Pod"), "poison")
    mender.hurry()
    mender.look(epoch(booked))
    assert mender.mended == 1


def test_the_doctor_names_every_field_that_cannot_be_read(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.hset(keys.LEDGER, "cluster cpu", HUGE)
    raw.hset(keys.CHARGES, b"\xff", "garbage")
    raw.hset(keys.LIMITS, "queue:default", DEEP)
    books = read_books(booked)
    assert books is not None
    assert [(one.kind, one.key) for one in books.unreadable] == [
        ("Ledger", r"cluster\x20cpu"),
        ("Charge", r"\xff"),
        ("Limit", "queue:default"),
    ]


def test_a_former_leader_recounts_nothing(booked: RedisStore, raw: redis.Redis) -> None:
    raw.hset(keys.LEDGER, "cluster cpu", "NaN")
    assert recount(booked, epoch(booked) - 1) is None
    assert raw.hget(keys.LEDGER, "cluster cpu") == b"NaN"


@pytest.mark.parametrize("damage", [*NO_NUMBERS, b"-5", b"9007199254740993", b"9" * 19])
def test_a_malformed_count_of_writes_continues_after_the_newest_change(
    booked: RedisStore, raw: redis.Redis, damage: bytes
) -> None:
    revision = booked.snapshot().revision
    raw.set(keys.REVISION, damage)
    assert [one.key for one in damaged_keys(booked.link)] == [keys.REVISION]
    Mender(booked, RandomIds()).look(epoch(booked))
    assert raw.get(keys.REVISION) == b"%d" % revision
    booked.commit([writing(put(group("late", uid="u9")))], request_id="late")
    assert [one.metadata.name for one in booked.snapshot().groups] == ["late"]
    assert booked.snapshot().revision == revision + 1


def test_without_a_change_the_count_of_writes_continues_above_every_object(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.delete(keys.CHANGES)
    raw.set(keys.REVISION, "NaN")
    Mender(booked, RandomIds()).look(epoch(booked))
    assert booked.snapshot().revision > 10**12
    [found] = booked.snapshot().queues
    removed = writing(gone(found, expect=found.metadata.revision))
    assert booked.commit([removed], request_id="late").refused == ()
    assert booked.snapshot().queues == ()


#: Well formed, but different from the object's.
FALSE_HEADS = (b"1|Completed|zz 99|", b"999999999999|Succeeded|zz 99 99|", None)


@pytest.mark.parametrize("head", FALSE_HEADS)
@pytest.mark.parametrize(("kind", "key"), [("Queue", "default"), ("Node", "n1"), ("Pod", "u1-1-0")])
def test_a_missing_or_false_head_is_reported_and_rewritten(
    booked: RedisStore, raw: redis.Redis, kind: str, key: str, head: bytes | None
) -> None:
    def spoiled(client: redis.Redis) -> None:
        name = keys.heads(kind)
        client.hdel(name, key) if head is None else client.hset(name, key, head)
        books = read_books(booked)
        assert books is not None
        [named] = false_heads(booked.link, books.objects, books.unreadable)
        assert (named.kind, named.key) == ("Head", f"{kind} {key}")
        assert name in named.why

    healed_after(booked, raw, spoiled)


def test_a_head_without_an_object_is_removed(booked: RedisStore, raw: redis.Redis) -> None:
    healed_after(booked, raw, lambda client: client.hset(keys.heads("Pod"), "u9", b"7|Bound|a|"))


def test_a_pod_without_a_revision_ends_after_its_head_was_rebuilt(
    booked: RedisStore, raw: redis.Redis
) -> None:
    forged = pod(1, phase=PodPhase.RUNNING, attempt=1, node="n1")
    raw.hset(keys.objects("Pod"), forged.metadata.uid, msgspec.json.encode(forged))
    booked.forget()
    assert booked.snapshot().revision > 0
    mend_heads(booked, epoch(booked), {"Pod": [forged.metadata.uid]})
    assert raw.hget(keys.heads("Pod"), forged.metadata.uid) == b"0|Running|u1 1 1|"
    status = structs.replace(forged.status, phase=PodPhase.EVICTED)
    ended = booked.commit([writing(put(structs.replace(forged, status=status)))], request_id="end")
    assert ended.refused == ()
    stored = booked.get("Pod", forged.metadata.uid)
    assert isinstance(stored, Pod)
    assert stored.status.phase == PodPhase.EVICTED
    # An object that batchq has written is not replaced by one that is new.
    again = booked.commit([writing(put(forged))], request_id="again")
    assert [one.answer.word for one in again.refused] == [Word.CONFLICT]


def test_a_head_that_was_written_since_it_was_compared_is_left_alone(
    booked: RedisStore, raw: redis.Redis
) -> None:
    before = in_books(booked, raw)
    assert mend_heads(booked, epoch(booked), {"Pod": ["u1-1-0", "gone"]}) == []
    assert mend_heads(booked, epoch(booked) - 1, {"Pod": ["u1-1-0"]}) == []
    assert in_books(booked, raw) == before


def test_heads_are_looked_through_a_page_at_a_time(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "HEADS_A_PAGE", 2)
    made = [pod(number, group_uid="u2") for number in range(7)]
    booked.commit([writing(*map(put, made))], request_id="pods")
    raw.hdel(keys.heads("Pod"), *(one.metadata.uid for one in made))
    found: set[str] = set()
    for _ in range(4):
        found |= {*booked.suspect_heads().get("Pod", ())}
    assert found == {one.metadata.uid for one in made}


#: Well formed, and false.
LIES: dict[str, Callable[[redis.Redis], object]] = {
    "a negative sum": lambda raw: raw.hset(keys.LEDGER, "cluster cpu", "-999999999"),
    "a huge sum": lambda raw: raw.hset(keys.LEDGER, "node:n1 cpu", "99999999999999999"),
    "a sum too small": lambda raw: raw.hset(keys.LEDGER, "node:n1 cpu", "1"),
    "no sum": lambda raw: raw.hdel(keys.LEDGER, "node:n1 cpu"),
    "a charge without a holder": lambda raw: raw.hset(
        keys.CHARGES, "group:poison", '[["node:n1","cluster"],[["cpu","9007199254740991"]]]'
    ),
    "a false charge": lambda raw: raw.hset(
        keys.CHARGES, "pod:u1-1-0", '[["node:n1"],[["cpu","7"]]]'
    ),
    "no charge": lambda raw: raw.hdel(keys.CHARGES, "node:n1"),
    "a false limit": lambda raw: raw.hset(keys.LIMITS, "node:n1", '{"cpu":"0"}'),
    "a limit of a missing namespace": lambda raw: raw.hset(keys.LIMITS, "ns:other", '{"cpu":"0"}'),
    "no limit": lambda raw: raw.hdel(keys.LIMITS, "queue:default"),
}


@pytest.mark.parametrize("lie", LIES)
def test_well_formed_false_books_are_recounted(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    monkeypatch.setattr(books, "_APART_S", 0)
    group_of_pod(booked)
    before = in_books(booked, raw)
    mender = Mender(booked, RandomIds())
    looked(mender, booked, 3)
    assert mender.mended == 0
    LIES[lie](raw)
    looked(mender, booked, 3)
    assert in_books(booked, raw) == before
    [result] = {one.reason for one in booked.events() if one.reason in ("Recounted", "Mended")}
    assert result == "Recounted"


def group_of_pod(store: RedisStore) -> None:
    store.commit([writing(put(group("a", namespace="x", uid="u1")))], request_id="group")
    recount(store, epoch(store))


def looked(mender: Mender, store: RedisStore, times: int) -> None:
    for _ in range(times):
        mender.hurry()
        mender.look(epoch(store))


def test_books_are_compared_a_page_at_a_time(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "_AUDIT_PAGE", 2)
    monkeypatch.setattr(books, "_APART_S", 0)
    booked.commit(
        [writing(put(group(f"g{number}", uid=f"g{number}"))) for number in range(9)],
        request_id="groups",
    )
    recount(booked, epoch(booked))
    audit = BooksAudit(booked.link, booked.mirror)
    assert not any(audit.next() for _ in range(20))
    raw.hincrby(keys.LEDGER, "objects:x podgroups", 1000)
    assert [audit.next() for _ in range(20)].count(True) >= 1


def test_charges_of_unreadable_objects_are_recounted_once(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "_APART_S", 0)
    raw.hset(keys.objects("Pod"), "u1-1-0", "garbage")
    booked.forget()
    audit = BooksAudit(booked.link, booked.mirror)
    assert True in [audit.next() for _ in range(3)]
    assert recount(booked, epoch(booked)) == []
    audit.recounted(is_changed=False)
    assert True not in [audit.next() for _ in range(3)]


def test_a_pod_whose_group_was_deleted_past_batchq_is_stopped_and_then_deleted(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "_APART_S", 0)
    group_of_pod(booked)
    mender = Mender(booked, RandomIds())
    looked(mender, booked, 3)
    [found] = booked.list("Pod")
    assert isinstance(found, Pod)
    assert not found.status.terminating
    raw.hdel(keys.objects("PodGroup"), "x/a")
    assert booked.compare() != []
    looked(mender, booked, 4)
    [found] = booked.list("Pod")
    assert isinstance(found, Pod)
    assert (found.status.terminating, found.status.reason) == (True, "GroupGone")

    over = structs.replace(found.status, phase=PodPhase.EVICTED, terminating=False)
    ended = Transaction(
        subject="x",
        writes=(put(structs.replace(found, status=over), expect=found.metadata.revision),),
        charges=(charge(f"pod:{found.metadata.uid}"),),
    )
    assert booked.commit([ended], request_id="ended").refused == ()
    looked(mender, booked, 4)
    assert booked.list("Pod") == ()
    assert not [one for one in booked.charges() if not one.startswith("node:")]


def test_pods_run_on_while_no_group_can_be_read(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "_APART_S", 0)
    group_of_pod(booked)
    raw.hset(keys.objects("PodGroup"), "x/a", "garbage")
    assert booked.compare() == []
    mender = Mender(booked, RandomIds())
    looked(mender, booked, 4)
    [found] = booked.list("Pod")
    assert isinstance(found, Pod)
    assert not found.status.terminating

    raw.delete(keys.objects("PodGroup"))
    raw.set(keys.objects("PodGroup"), "x")
    booked.forget()
    audit = BooksAudit(booked.link, booked.mirror)
    for _ in range(4):
        audit.next()
        assert audit.lone_pods() == []


def renewed(booked: RedisStore) -> None:
    booked.lead("me", 60_000)


def written(booked: RedisStore) -> None:
    booked.commit([writing(put(group("late", uid="u9")))], request_id="late")


def discarded(booked: RedisStore) -> None:
    assert booked.discard("Pod", "poison")


@pytest.mark.parametrize("count", ["1", None])
@pytest.mark.parametrize("met_by", [None, renewed, written, discarded])
def test_a_count_of_writes_that_was_set_back_is_reported_however_it_is_found(
    booked: RedisStore,
    raw: redis.Redis,
    count: str | None,
    met_by: Callable[[RedisStore], None] | None,
) -> None:
    raw.hset(keys.objects("Pod"), "poison", "garbage")
    mender = Mender(booked, RandomIds())
    mender.look(epoch(booked))
    before = booked.snapshot().revision
    raw.delete(keys.REVISION) if count is None else raw.set(keys.REVISION, count)
    if met_by is None:
        [named] = damaged_keys(booked.link)
        assert named.key == keys.REVISION
    else:
        met_by(booked)
    looked(mender, booked, 3)
    [event] = [one for one in booked.events() if one.kind == "Key"]
    assert (event.key, event.reason) == ("{bq}:revision", "Mended")
    assert event.message == f"it was {count or 0}, behind an earlier write; it was repaired"
    assert booked.snapshot().revision >= before


def test_a_refused_write_does_not_hide_a_count_that_was_set_back(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.set(keys.REVISION, "1")
    refused = writing(put(group("default", namespace=""), expect=99))
    assert booked.commit([refused], request_id="refused").refused
    assert raw.get(keys.REVISION) == b"1"


def test_a_count_of_writes_behind_an_object_is_reported_and_continues_above_it(
    booked: RedisStore, raw: redis.Redis
) -> None:
    highest = booked.snapshot().queues[0].metadata.revision
    raw.delete(keys.CHANGES)
    raw.set(keys.REVISION, "0")
    booked.forget()
    named = [one.subject for one in examine(booked.url).findings if one.check == "records"]
    assert named[0] == "Key {bq}:revision"
    looked(Mender(booked, RandomIds()), booked, 3)
    [event] = [one for one in booked.events() if one.kind == "Key"]
    assert (event.key, event.reason) == ("{bq}:revision", "Mended")
    assert event.message == "it was 0, behind an earlier write; it was repaired"
    assert booked.snapshot().revision >= highest


def test_an_object_with_a_revision_from_the_future_is_followed_when_it_changes(
    booked: RedisStore, raw: redis.Redis
) -> None:
    [queue] = booked.snapshot().queues
    far = structs.replace(queue, metadata=structs.replace(queue.metadata, revision=10**15))
    raw.hset(keys.objects("Queue"), "default", msgspec.json.encode(far))
    raw.hdel(keys.heads("Queue"), "default")
    booked.forget()
    mender = Mender(booked, RandomIds())
    mender.look(epoch(booked))
    assert booked.snapshot().queues == (far,)
    removed = writing(gone(far, expect=10**15))
    assert booked.commit([removed], request_id="late").refused == ()
    assert booked.snapshot().queues == ()


def test_the_first_of_many_false_heads_are_reported(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "HEADS_A_PAGE", 3)
    raw.hdel(keys.heads("Queue"), "default")
    raw.hset(keys.heads("Pod"), mapping={f"poison-{number}": "1|Bound|a|" for number in range(600)})
    read = read_books(booked)
    assert read is not None
    found = false_heads(booked.link, read.objects, read.unreadable, most=5)
    assert [one.key.split()[0] for one in found] == ["Queue", *["Pod"] * 5]


def test_with_many_false_heads_the_next_pages_are_checked_at_once(
    booked: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "HEADS_A_PAGE", 2)
    monkeypatch.setattr(leader, "_MANY_HEADS", 1)
    monkeypatch.setattr(leader, "_HEADS_WITHIN_S", 30.0)
    made = [pod(number, group_uid="u2") for number in range(70)]
    booked.commit([writing(*map(put, made))], request_id="pods")
    before = in_books(booked, raw)
    raw.hdel(keys.heads("Pod"), *(one.metadata.uid for one in made))
    mender = Mender(booked, RandomIds())
    mender.look(epoch(booked))
    assert in_books(booked, raw) == before
    assert mender.mended == len(made)


def test_the_doctor_lists_a_thousand_unreadable_objects_and_counts_the_rest(
    booked: RedisStore, raw: redis.Redis
) -> None:
    raw.hset(
        keys.objects("PodGroup"), mapping={f"default/m{number:04}": "x" for number in range(1_005)}
    )
    *listed, rest = [one for one in examine(booked.url).findings if one.check == "records"]
    assert [one.subject for one in (listed[0], listed[-1])] == [
        "PodGroup default/m0000",
        "PodGroup default/m0999",
    ]
    assert (len(listed), rest.subject) == (1_000, "PodGroup")
    assert rest.found.startswith("5 more are unreadable and ignored, the first default/m1000: ")
    assert rest.remedy == "delete those that are listed, and run the doctor again"


def test_audits_that_find_nothing_take_at_most_a_fiftieth_of_the_time(
    booked: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, began_at = 1_000.0, list[float]()

    def audit_for_two_seconds(audit: BooksAudit) -> bool:
        nonlocal now_s
        began_at.append(now_s)
        now_s += 2.0
        return False

    monkeypatch.setattr(BooksAudit, "next", audit_for_two_seconds)
    monkeypatch.setattr(leader, "time", SimpleNamespace(monotonic=lambda: now_s))
    mender = Mender(booked, RandomIds())
    until_s = now_s + 250.0
    while now_s < until_s:
        mender.look(epoch(booked))
        now_s += 1.0
    assert began_at == [1_000.0, 1_100.0, 1_200.0]

    mender.hurry()
    mender.look(epoch(booked))
    assert len(began_at) == 4
