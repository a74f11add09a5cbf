"""A single new object takes a cheaper script, which leaves the server as a commit does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from msgspec import structs

from batchq.api.transaction import (
    EVERY_NAMESPACE,
    Charge,
    Commit,
    Event,
    Limit,
    Transaction,
    Write,
    objects_scope,
)
from batchq.errors import StoreUnavailable
from batchq.store import commits, keys, scripts
from batchq.store.redis import RedisStore
from tests.contract.made import group, put, words, writing
from tests.harness.guarded import ADMIN, GuardedServer
from tests.harness.trips import Trips

SCOPE = objects_scope("x")
LEDGER_FIELD = f"{SCOPE} podgroups"
OBJECTS, HEADS = keys.objects("PodGroup"), keys.heads("PodGroup")
Prepare = Callable[[redis.Redis], object]


def submission(
    name: str = "a-b", *, uid: str = "u1", rivals: tuple[str, ...] = ("a",)
) -> Transaction:
    """Return a submission as the client makes it: the name `a-b` rules out pods of a group `a`."""
    new = group(name, uid=uid)
    absent = (Write(kind="PodGroup", key=f"x/{rival}", expect=0, value=None) for rival in rivals)
    return Transaction(
        subject=f"PodGroup x/{name}",
        writes=(put(new), *absent),
        charges=(charge_of(uid),),
        events=(Event(kind="PodGroup", key=f"x/{name}", reason="Submitted", at=1),),
    )


def charge_of(uid: str, amount: int = 1000) -> Charge:
    return Charge(
        holder=f"object:{uid}", scopes=(SCOPE,), amounts={"podgroups": amount}, checked=True
    )


def contents(raw: redis.Redis) -> dict[str, object]:
    """Return all that the server holds; of streams' entries without those ids that are instants."""
    found: dict[str, object] = {}
    for key in sorted(raw.keys()):
        name = key.decode()
        match raw.type(key):
            case b"hash":
                found[name] = raw.hgetall(key)
            case b"stream":
                entries = raw.xrange(key)
                found[name] = entries if name == keys.CHANGES else [one for _, one in entries]
            case b"list":
                found[name] = raw.lrange(key, 0, -1)
            case _:
                found[name] = raw.get(key)
    return found


def times_called(raw: redis.Redis) -> int:
    """Return how many scripts the server has run."""
    return int(raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.fixture
def ready(redis_store: RedisStore, raw: redis.Redis) -> RedisStore:
    """A store without data, on a server that knows the scripts; nobody repairs what is damaged."""
    redis_store.link.keep_scripts()
    redis_store.link.waits_for_mending = False
    return redis_store


def test_a_submission_takes_one_call_of_the_cheap_script(
    ready: RedisStore, raw: redis.Redis, trips_of: Callable[[Callable[[], object]], int]
) -> None:
    ready.commit([submission("warm", uid="u0", rivals=())], request_id="0")
    before = times_called(raw)
    assert trips_of(lambda: ready.commit([submission()], request_id="1")) == 1
    assert times_called(raw) == before + 1
    raw.script_flush()
    raw.script_load(scripts.CREATE.text)
    ready.commit([submission("c", uid="u2", rivals=())], request_id="2")
    assert raw.script_exists(scripts.COMMIT.sha) == [False]


@pytest.fixture
def trips_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    return Trips(monkeypatch).of


def test_a_repeated_submission_is_applied_once(ready: RedisStore) -> None:
    first = ready.commit([submission()], request_id="1")
    again = ready.commit([submission()], request_id="1")
    assert (words(first), first.revision) == (words(again), again.revision) == ([], 1)
    assert ready.ledger() == {SCOPE: {"podgroups": 1000}}
    assert len(ready.events()) == 1


def test_a_refused_submission_is_refused_again_when_it_is_repeated(
    ready: RedisStore, raw: redis.Redis
) -> None:
    ready.commit([submission("a", uid="u0", rivals=())], request_id="0")
    assert words(ready.commit([submission()], request_id="1")) == ["conflict"]
    raw.delete(OBJECTS, HEADS)
    assert words(ready.commit([submission()], request_id="1")) == ["conflict"]


def stored(*transactions: Transaction) -> Callable[[RedisStore, redis.Redis], None]:
    def prepared(store: RedisStore, raw: redis.Redis) -> None:
        for place, one in enumerate(transactions):
            assert not store.commit([one], request_id=f"before {place}").refused

    return prepared


def damaged(prepare: Prepare) -> Callable[[RedisStore, redis.Redis], None]:
    def prepared(store: RedisStore, raw: redis.Redis) -> None:
        stored(submission("old", uid="u0", rivals=()))(store, raw)
        prepare(raw)

    return prepared


def limited(**scopes: int) -> Transaction:
    """Return limits of groups: `own` of the namespace, `every` of all."""
    named = {"own": SCOPE, "every": EVERY_NAMESPACE}
    limits = [
        Limit(scope=named[name], amounts={"podgroups": most}) for name, most in scopes.items()
    ]
    return Transaction(subject="limits", limits=tuple(limits))


def of_another_type(key: str) -> Prepare:
    def damage(raw: redis.Redis) -> None:
        raw.delete(key)
        raw.lpush(key, "x")

    return damage


STATES = {
    "nothing": stored(),
    "another group": stored(submission("old", uid="u0", rivals=())),
    "the same name": stored(submission("a-b", uid="u0", rivals=())),
    "a rival": stored(submission("a", uid="u0", rivals=())),
    "a limit below": stored(limited(own=999)),
    "a limit that is met": stored(limited(own=1000)),
    "a limit for all below": stored(limited(every=0)),
    "a limit for all that is met": stored(limited(every=1000)),
    "an own limit above that for all": stored(limited(own=5000, every=0)),
    "an own limit below that for all": stored(limited(own=0, every=5000)),
    "a limit of other things": stored(
        Transaction(subject="limits", limits=(Limit(scope=SCOPE, amounts={"cpu": 5}),))
    ),
    "a full namespace": stored(limited(own=1000), submission("old", uid="u0", rivals=())),
    "a charge of the same holder": stored(
        Transaction(subject="charge", charges=(charge_of("u1", 300),))
    ),
    "a malformed count of writes": damaged(lambda raw: raw.set(keys.REVISION, "many")),
    "an empty count of writes": damaged(lambda raw: raw.set(keys.REVISION, "")),
    "a count of writes with zeros before it": damaged(lambda raw: raw.set(keys.REVISION, "01")),
    "an empty sum": damaged(lambda raw: raw.hset(keys.LEDGER, LEDGER_FIELD, "")),
    "a sum with zeros before it": damaged(lambda raw: raw.hset(keys.LEDGER, LEDGER_FIELD, "01000")),
    "a negative count of writes": damaged(lambda raw: raw.set(keys.REVISION, "-4")),
    "a large count of writes": damaged(lambda raw: raw.set(keys.REVISION, str(2**52 - 7))),
    "a count of writes set back": damaged(lambda raw: raw.set(keys.REVISION, "0")),
    "a count of writes that is absent": damaged(lambda raw: raw.delete(keys.REVISION)),
    "a change stream far ahead": damaged(
        lambda raw: raw.xadd(keys.CHANGES, {"a": "b"}, id="5000-0")
    ),
    "a change stream without ids": damaged(
        lambda raw: raw.xadd(keys.CHANGES, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    ),
    "a stream of events without ids": damaged(
        lambda raw: raw.xadd(keys.EVENTS, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    ),
    "a malformed sum": damaged(lambda raw: raw.hset(keys.LEDGER, LEDGER_FIELD, "1.5")),
    "a negative sum": damaged(lambda raw: raw.hset(keys.LEDGER, LEDGER_FIELD, "-2000")),
    "a large sum": damaged(lambda raw: raw.hset(keys.LEDGER, LEDGER_FIELD, str(2**53 - 500))),
    "a malformed limit": damaged(lambda raw: raw.hset(keys.LIMITS, SCOPE, '{"podgroups":"x"}')),
    "a limit that is no JSON": damaged(lambda raw: raw.hset(keys.LIMITS, SCOPE, "podgroups")),
    "a malformed limit for all": damaged(
        lambda raw: raw.hset(keys.LIMITS, EVERY_NAMESPACE, '{"podgroups":5}')
    ),
    "a malformed charge": damaged(lambda raw: raw.hset(keys.CHARGES, "object:u1", "x")),
    "a malformed head": damaged(lambda raw: raw.hset(HEADS, "x/a-b", "x")),
    "an empty head": damaged(lambda raw: raw.hset(HEADS, "x/a-b", "")),
    "an object without a head": damaged(lambda raw: raw.hset(OBJECTS, "x/a-b", "{}")),
    **{
        f"{key} of another type": damaged(of_another_type(key))
        for key in (
            *(keys.REVISION, keys.CHANGES, keys.EVENTS, keys.LEDGER, keys.CHARGES, keys.LIMITS),
            *(OBJECTS, HEADS, keys.request("1.0")),
        )
    },
}


def outcome_of(store: RedisStore, transaction: Transaction) -> object:
    try:
        commit: Commit = store.commit([transaction], request_id="1")
    except StoreUnavailable as error:
        return error.message, error.hint
    return commit.revision, [one.answer for one in commit.refused]


@pytest.mark.parametrize("state", STATES)
def test_a_submission_has_the_answer_and_the_effect_of_a_commit(
    ready: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    found = []
    for is_cheap in (True, False):
        raw.flushdb()
        STATES[state](ready, raw)
        with monkeypatch.context() as patched:
            if not is_cheap:
                patched.setattr(commits, "_call_for", lambda *_: None)
            found.append((outcome_of(ready, submission()), contents(raw)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "transaction",
    [
        pytest.param(writing(put(group())), id="without a charge"),
        pytest.param(
            structs.replace(submission(), events=(*submission().events, *submission().events)),
            id="with two events",
        ),
        pytest.param(
            structs.replace(submission(), charges=(charge_of("u1"), charge_of("u2"))),
            id="with two charges",
        ),
        pytest.param(
            structs.replace(submission(), charges=(charge_of("u1", 2**53 - 1),)),
            id="with a charge that cannot be added exactly",
        ),
        pytest.param(
            structs.replace(
                submission(), charges=(structs.replace(charge_of("u1"), scopes=("node:n",)),)
            ),
            id="charged to a node",
        ),
        pytest.param(
            structs.replace(submission(), limits=(Limit(scope=SCOPE, amounts=None),)),
            id="with a limit",
        ),
        pytest.param(
            submission(rivals=tuple(f"r{number}" for number in range(200))),
            id="with very many conditions",
        ),
    ],
)
def test_a_transaction_of_another_form_is_committed(
    ready: RedisStore, raw: redis.Redis, transaction: Transaction
) -> None:
    raw.script_flush()
    raw.script_load(scripts.COMMIT.text)
    ready.commit([transaction], request_id="1")
    assert raw.script_exists(scripts.CREATE.sha) == [False]


def test_a_change_stream_whose_last_id_was_set_ahead_is_repaired_and_the_event_told_twice(
    ready: RedisStore, raw: redis.Redis
) -> None:
    ready.commit([submission("old", uid="u0", rivals=())], request_id="0")
    raw.execute_command("XSETID", keys.CHANGES, "5000-0")
    assert words(ready.commit([submission()], request_id="1")) == []
    [*_, (id_, entry)] = raw.xrange(keys.CHANGES)
    assert (id_, entry[b"repaired"]) == (b"5001-0", keys.REVISION.encode())
    assert ready.ledger() == {SCOPE: {"podgroups": 2000}}
    assert [event.key for event in ready.events()] == ["x/old", "x/a-b", "x/a-b"]


def test_a_server_that_cannot_write_is_left_as_it_was(ready: RedisStore, raw: redis.Redis) -> None:
    ready.commit([submission("old", uid="u0", rivals=())], request_id="0")
    before = contents(raw)
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            ready.commit([submission()], request_id="1")
    finally:
        raw.config_set("maxmemory", 0)
    assert contents(raw) == before


def test_streams_that_only_single_submissions_extend_stay_bounded(
    raw: redis.Redis, redis_store: RedisStore
) -> None:
    small = RedisStore(redis_store.url, changes_kept=100)
    for number in range(400):
        small.commit(
            [submission(f"g{number}", uid=f"u{number}", rivals=())], request_id=f"{number}"
        )
    small.close()
    # A stream is trimmed by whole nodes of a hundred entries, and at every 64th append.
    assert 100 <= raw.xlen(keys.CHANGES) <= 100 + 100 + 64
    assert len(redis_store.list("PodGroup")) == 400


def test_a_submission_beside_schedulers_that_have_not_loaded_the_script_is_a_commit() -> None:
    with GuardedServer() as guarded:
        with guarded.as_user(ADMIN) as admin:
            for script in scripts.ALL:
                if script is not scripts.CREATE:
                    admin.script_load(script.text)
        store = RedisStore(guarded.url_of("submitter"))
        assert not store.commit([submission()], request_id="1").refused
        assert [one.metadata.name for one in store.list("PodGroup")] == ["a-b"]
        store.close()
        with guarded.as_user(ADMIN) as admin:
            assert admin.script_exists(scripts.CREATE.sha) == [False]
