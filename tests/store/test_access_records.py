"""Tokens, bindings and the audit trail on a real server: changes, their records, and the chain."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
import redis

from batchq.api.access import AccessRole, Binding, Scope, Verb, parse_token
from batchq.client import access_control
from batchq.client.access_control import AccessControl, Actor
from batchq.errors import Conflict, InvalidInput, NotFound, Rejected, StoreUnavailable
from batchq.store import access_records, keys
from batchq.store.redis import RedisStore
from batchq.store.scripts import Script
from tests.harness.server import Server
from tests.poison.damage import DEEP, HUGE

OPERATOR = Actor(user="root@host", via="redis")
ALICE = Binding(subject="user:alice", role=AccessRole.SUBMITTER, namespace="ml")


@pytest.fixture
def control(redis_store: RedisStore) -> AccessControl:
    return AccessControl(redis_store)


def refuse(control: AccessControl, verb: str, name: str) -> None:
    control.record(OPERATOR, verb, "groups", name, because="no role", outcome="refused")


def test_the_secret_of_a_token_is_nowhere_on_the_server(
    control: AccessControl, raw: redis.Redis
) -> None:
    made = control.create_token("alice", OPERATOR, note="laptop")
    _, _, secret = made.text.split("_", 2)
    stored = b"".join(raw.dump(name) for name in raw.scan_iter("*"))
    assert secret[:20].encode() not in stored
    [record] = control.state().tokens.values()
    parts = parse_token(made.text)
    assert parts is not None
    assert (parts.id, parts.matches("token", record.digest), record.owner) == (
        record.id,
        True,
        "alice",
    )


@pytest.mark.parametrize("place", [4, 12, 15, 30, 58, 60, 64])
def test_a_mistyped_token_is_recognised(control: AccessControl, place: int) -> None:
    text = control.create_token("alice", OPERATOR).text
    other = "x" if text[place] != "x" else "y"
    assert parse_token(text[:place] + other + text[place + 1 :]) is None
    assert parse_token(text + "0") is None
    assert parse_token(text[:-1]) is None


def test_a_change_and_its_record_are_written_together(control: AccessControl) -> None:
    made = control.create_token("alice", OPERATOR, because="user:root is operator")
    assert control.grant(ALICE, OPERATOR)
    assert not control.grant(ALICE, OPERATOR)
    control.revoke_token(made.record.id, OPERATOR)
    control.withdraw(ALICE, OPERATOR)
    refuse(control, "cancel", "ml/train")
    found = [
        (one.record.outcome, one.record.verb, one.record.kind, one.record.name)
        for one in control.audit(10)
    ]
    name = f"{made.record.id} of user alice"
    assert found == [
        ("done", "create", "tokens", name),
        ("done", "create", "bindings", "user:alice is submitter in namespace ml"),
        ("done", "delete", "tokens", name),
        ("done", "delete", "bindings", "user:alice is submitter in namespace ml"),
        ("refused", "cancel", "groups", "ml/train"),
    ]
    assert all(one.is_chained for one in control.audit(10))
    assert control.audit(10)[0].record.because == "user:root is operator"
    assert [one.record.verb for one in control.audit(2)] == ["delete", "cancel"]


def test_a_revoked_token_and_a_missing_binding_are_named(control: AccessControl) -> None:
    token = control.create_token("alice", OPERATOR).record.id
    assert control.revoke_token(token, OPERATOR).revoked_at is not None
    with pytest.raises(Conflict, match=f"token {token} is revoked already"):
        control.revoke_token(token, OPERATOR)
    with pytest.raises(NotFound, match="there is no token 'nothing'"):
        control.revoke_token("nothing", OPERATOR)
    with pytest.raises(NotFound, match="there is no such binding: user:alice is submitter"):
        control.withdraw(ALICE, OPERATOR)
    assert len(control.audit(10)) == 2


def test_many_writers_keep_one_chain(server: Server, control: AccessControl) -> None:
    def grant(number: int) -> bool:
        store = RedisStore(server.url)
        try:
            binding = Binding(subject=f"user:u{number}", role=AccessRole.VIEWER, namespace="ml")
            return AccessControl(store).grant(binding, OPERATOR)
        finally:
            store.close()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(grant, range(24)))
    entries = control.audit(100)
    assert (len(entries), all(one.is_chained for one in entries)) == (24, True)
    assert len(control.state().bindings) == 24


def test_a_removed_or_altered_record_breaks_the_chain(
    control: AccessControl, raw: redis.Redis
) -> None:
    for number in range(5):
        refuse(control, "read", f"ml/{number}")
    ids = [id_ for id_, _ in raw.xrange(keys.AUDIT)]
    raw.xdel(keys.AUDIT, ids[2])
    assert [one.is_chained for one in control.audit(10)] == [True, True, False, True]
    [(last, fields)] = raw.xrevrange(keys.AUDIT, count=1)
    altered = json.loads(fields[b"record"]) | {"user": "alice"}
    raw.xdel(keys.AUDIT, last)
    raw.xadd(keys.AUDIT, {"record": json.dumps(altered), "digest": fields[b"digest"]})
    assert [one.is_chained for one in control.audit(10)] == [True, True, False, False]


@pytest.mark.parametrize("left", [0, 1, 3])
def test_newest_records_that_were_removed_are_noticed(
    control: AccessControl, raw: redis.Redis, left: int
) -> None:
    for number in range(5):
        refuse(control, "read", f"ml/{number}")
    ids = [id_ for id_, _ in raw.xrange(keys.AUDIT)]
    raw.xdel(keys.AUDIT, *ids[left:])
    found = control.audit(10)
    assert [one.is_chained for one in found] == [True] * left + [False]
    assert found[-1].record.name == "the newest records, removed or replaced"


def test_a_repeated_call_of_the_script_writes_once(
    control: AccessControl, raw: redis.Redis
) -> None:
    text = b'{"user":"alice"}'
    digest = access_records.digest_of("", text)
    names = (keys.BINDINGS, keys.ACCESS_STATE, keys.AUDIT)
    link = control._link
    for _ in range(2):
        call = ("", text, digest, "one", "f", "", "v")
        assert link.run(access_records.scripts.ACCESS, names, call) == b"ok"
    assert (raw.hgetall(keys.BINDINGS), raw.xlen(keys.AUDIT)) == ({b"f": b"v"}, 1)
    assert raw.hget(keys.ACCESS_STATE, "revision") == b"1"
    other = access_records.digest_of(digest, text)
    again = ("", text, other, "two", "f", "", "w")
    assert link.run(access_records.scripts.ACCESS, names, again) == b"digest"
    changed = (digest, text, other, "two", "f", "another", "w")
    assert link.run(access_records.scripts.ACCESS, names, changed) == b"changed"
    assert raw.hgetall(keys.BINDINGS) == {b"f": b"v"}


def test_one_of_two_changes_with_equal_audit_records_is_made(
    control: AccessControl, raw: redis.Redis
) -> None:
    text = b'{"user":"alice"}'
    digest = access_records.digest_of("", text)
    names = (keys.BINDINGS, keys.ACCESS_STATE, keys.AUDIT)
    link, script = control._link, access_records.scripts.ACCESS
    first, second = (("", text, digest, call, "f", "", call) for call in ("one", "two"))
    assert link.run(script, names, first) == b"ok"
    assert link.run(script, names, second) == b"digest"
    assert raw.hgetall(keys.BINDINGS) == {b"f": b"one"}


def test_the_audit_trail_is_bounded(
    control: AccessControl, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, text = "AUDIT_KEPT = 100000", access_records.scripts.ACCESS.text
    assert most in text
    smaller = text.replace(most, "AUDIT_KEPT = 20")
    script = Script("access", smaller, cast(str, raw.script_load(smaller)))
    monkeypatch.setattr(access_records.scripts, "ACCESS", script)
    for number in range(300):
        refuse(control, "read", str(number))
    assert 20 <= raw.xlen(keys.AUDIT) <= 220


def test_tokens_are_bounded_for_each_user_and_altogether(
    control: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "MOST_OF_ONE_USER", 2)
    monkeypatch.setattr(access_control, "MOST_OF_ALL", 3)
    first = control.create_token("alice", OPERATOR).record.id
    control.create_token("alice", OPERATOR)
    with pytest.raises(Rejected, match="user alice has 2 tokens"):
        control.create_token("alice", OPERATOR)
    control.revoke_token(first, OPERATOR)
    control.create_token("alice", OPERATOR)
    with pytest.raises(Rejected, match="there are 3 tokens"):
        control.create_token("bob", OPERATOR)


def test_tokens_that_ended_long_ago_are_forgotten(
    control: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = control.create_token("alice", OPERATOR).record.id
    control.note_use(old)
    control.revoke_token(old, OPERATOR)
    control.create_token("alice", OPERATOR)
    assert old in control.state().tokens
    monkeypatch.setattr(access_control, "_KEPT_MS", -1)
    control.create_token("alice", OPERATOR)
    assert old not in control.state().tokens
    assert control.last_uses() == {}


@pytest.mark.parametrize(
    ("owner", "days", "note", "sentence"),
    [
        ("a b", 1, "", "user 'a b'"),
        ("", 1, "", "user ''"),
        ("alice", 0, "", "a token lasts 1 to 365 days, found 0"),
        ("alice", 366, "", "a token lasts 1 to 365 days, found 366"),
        ("alice", 1, "two\nlines", "note: expected a line of at most 200 characters"),
    ],
)
def test_a_wrong_request_for_a_token_is_refused(
    control: AccessControl, owner: str, days: int, note: str, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        control.create_token(owner, OPERATOR, days=days, note=note)
    assert control.audit(1) == []


def test_a_record_that_cannot_be_read_gives_no_rights(
    control: AccessControl, redis_store: RedisStore, raw: redis.Redis
) -> None:
    made = control.create_token("alice", OPERATOR, scope=Scope(verbs=(Verb.READ,)))
    raw.hset(keys.TOKENS, mapping={"broken": "{", "deep": DEEP, "huge": HUGE, "list": "[]"})
    raw.hset(keys.ACCESS_STATE, "revision", "9" * 5000)
    raw.hset(keys.BINDINGS, b"\xff", b"\xff")
    state = control.state()
    assert (list(state.tokens), state.bindings) == ([made.record.id], {})
    raw.hset(keys.TOKENS_USED, mapping={"a": "9" * 5000, "b": b"\xff", "c": "7"})
    assert access_records.read_last_uses(redis_store.link) == {"c": 7}
    raw.xadd(keys.AUDIT, {"record": DEEP, "digest": "x"})
    assert [one.is_chained for one in control.audit(3)] == [True, False, False]


def test_an_invitation_is_redeemed_once_and_both_are_in_the_audit_trail(
    control: AccessControl,
) -> None:
    invited = control.invite("bob", OPERATOR)
    parts = parse_token(invited.text)
    assert parts is not None
    assert parts.matches("invitation", invited.record.digest)
    made = control.redeem(invited.record, Actor(user="bob", via="token"))
    assert (made.record.owner, made.record.kind) == ("bob", "token")
    with pytest.raises(Conflict, match="has been used already"):
        control.redeem(invited.record, Actor(user="bob", via="token"))
    found = [(one.record.user, one.record.name, one.record.because) for one in control.audit(10)]
    assert found == [
        ("root@host", f"invitation {invited.record.id} of user bob", ""),
        ("bob", f"{made.record.id} of user bob", f"invitation {invited.record.id} of root@host"),
    ]


def test_two_who_redeem_an_invitation_at_once_get_one_token(server: Server) -> None:
    with access_control.Delegate(server.url) as delegate:
        invited = delegate.access.invite("bob", OPERATOR).record

        def redeem(number: int) -> bool:
            with access_control.Delegate(server.url) as own:
                try:
                    own.access.redeem(invited, Actor(user="bob", via="token"))
                except Conflict:
                    return False
                return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(redeem, range(16))) == 1
        tokens = delegate.access.state().tokens.values()
        assert sum(one.kind == "token" for one in tokens) == 1


def test_a_token_of_an_earlier_version_can_be_revoked(
    control: AccessControl, raw: redis.Redis
) -> None:
    made = control.create_token("alice", OPERATOR)
    [stored] = raw.hvals(keys.TOKENS)
    assert b"invitation" not in stored
    assert control.revoke_token(made.record.id, OPERATOR).revoked_at is not None


@pytest.mark.parametrize("name", sorted(keys.ACCESS))
def test_a_key_of_another_type_is_named_and_changes_nothing(
    control: AccessControl, raw: redis.Redis, name: str
) -> None:
    """No scheduler may repair it, so the message says how."""
    control.create_token("alice", OPERATOR)
    raw.set(name, "x")
    before = {one: raw.dump(one) for one in keys.ACCESS}
    uses: dict[str, Callable[[], object]] = {
        keys.TOKENS_USED: lambda: access_records.read_last_uses(control._link),
        keys.AUDIT: lambda: control.audit(1),
    }
    use = uses.get(name, lambda: control.grant(ALICE, OPERATOR))
    with pytest.raises(StoreUnavailable, match=f"holds a damaged value under {name}") as caught:
        use()
    assert (caught.value.lasts, f"`DEL {name}`" in caught.value.hint) == (True, True)
    if name in (keys.AUDIT, keys.ACCESS_STATE):
        with pytest.raises(StoreUnavailable, match="holds a damaged value under"):
            refuse(control, "read", "ml/a")
    assert {one: raw.dump(one) for one in keys.ACCESS} == before
    raw.delete(name)
    assert control.grant(ALICE, OPERATOR)
    assert control.state().bindings


def test_a_trail_without_ids_left_is_named_and_changes_nothing(
    control: AccessControl, raw: redis.Redis
) -> None:
    raw.xadd(keys.AUDIT, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    with pytest.raises(StoreUnavailable, match=f"holds a damaged value under {keys.AUDIT}"):
        control.grant(ALICE, OPERATOR)
    assert control.state().bindings == {}


@pytest.mark.parametrize("damage", [b"garbage", b"\xff", HUGE, b"-1", b"NaN", b"1.5"])
def test_a_malformed_revision_blocks_no_change(
    control: AccessControl, raw: redis.Redis, damage: bytes
) -> None:
    control.create_token("alice", OPERATOR)
    raw.hset(keys.ACCESS_STATE, "revision", damage)
    before = access_records.read_access_revision(control._link)
    assert control.grant(ALICE, OPERATOR)
    assert control.state().bindings
    assert access_records.read_access_revision(control._link) != before
    assert [one.record.kind for one in control.audit(2)] == ["tokens", "bindings"]


@pytest.mark.parametrize("damage", [b"garbage", b"\xff", b"-1"])
def test_a_malformed_digest_blocks_no_change_and_is_reported_as_a_break(
    control: AccessControl, raw: redis.Redis, damage: bytes
) -> None:
    control.create_token("alice", OPERATOR)
    raw.hset(keys.ACCESS_STATE, "digest", damage)
    assert not control.audit(2)[-1].is_chained
    assert control.grant(ALICE, OPERATOR)
    assert control.state().bindings
    assert [one.record.kind for one in control.audit(2)] == ["tokens", "bindings"]
    assert not control.audit(2)[-1].is_chained
