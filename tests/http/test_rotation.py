"""Rotation: a token is replaced by one like it, once, and ends after an overlap."""

from __future__ import annotations

import json
import os
import pwd
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET, structs

from batchq.api.access import Scope, Verb, parse_binding
from batchq.api.notation import DAY, HOUR
from batchq.client.access_control import AccessControl, Actor, Delegate, NewToken
from batchq.errors import Conflict, InvalidInput, Rejected, StoreUnavailable
from batchq.store.redis import RedisStore
from tests.cli.conftest import run
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, Got, RunningApi
from tests.http.manifests import groups_of, manifest

ROOT = Actor(user="root@host", via="redis")
ALICE = Actor(user="alice", via="token")


class Desk(NamedTuple):
    """A token of alice, a viewer of ml who may only read."""

    delegate: Delegate
    api: RunningApi
    made: NewToken

    def caller(self, text: str = "") -> Caller:
        return self.api.caller(text or self.made.text)


@pytest.fixture
def desk(server: Server, stage: Stage) -> Iterator[Desk]:
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        delegate.access.grant(parse_binding("user:alice", "viewer", "ml"), ROOT)
        scope = Scope(verbs=(Verb.READ,), namespaces=("ml",))
        made = delegate.access.create_token("alice", ROOT, days=30, scope=scope, note="laptop")
        yield Desk(delegate, api, made)


def rotated(caller: Caller, **body: str) -> Got:
    return caller("POST", "/v1/rotations", body)


def test_the_new_token_is_like_the_former_which_ends_after_the_overlap(desk: Desk) -> None:
    answer = rotated(desk.caller(), overlap="2h")
    assert (answer.status, answer.data["owner"], answer.data["note"]) == (201, "alice", "laptop")
    tokens = desk.delegate.access.state().tokens
    new, former = tokens[answer.data["id"]], tokens[desk.made.record.id]
    assert (new.scope, new.expires_at - new.made_at) == (desk.made.record.scope, 30 * DAY)
    # Both begin at the same request, and the server's clock is read twice.
    assert former.expires_at <= new.made_at + 2 * HOUR < former.expires_at + HOUR
    for text in (desk.made.text, answer.data["token"]):
        assert desk.caller(text)("GET", "/v1/groups?namespace=ml").status == 200
        refused = desk.caller(text)("POST", groups_of("ml"), manifest("train"))
        assert (refused.status, "the token's scope" in refused.data["detail"]) == (403, True)
    records = [one.record for one in desk.delegate.access.audit(9)]
    assert ("alice", f"rotation of token {former.id}") in [
        (one.user, one.because) for one in records
    ]


def test_without_an_overlap_the_former_token_ends_at_once(desk: Desk) -> None:
    answer = rotated(desk.caller(), overlap="0s")
    assert desk.caller()("GET", "/v1/me").status == 401
    assert desk.caller(answer.data["token"])("GET", "/v1/me").status == 200


def test_an_overlap_does_not_prolong_the_former_token(desk: Desk) -> None:
    rotated(desk.caller(), overlap="60d")
    former = desk.delegate.access.state().tokens[desk.made.record.id]
    assert desk.made.record.expires_at - HOUR < former.expires_at <= desk.made.record.expires_at


@pytest.mark.parametrize("overlap_ms", [DAY, 60 * DAY])
def test_a_token_that_is_rotated_while_it_is_revoked_does_not_survive_in_its_successor(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, overlap_ms: int
) -> None:
    access, token = desk.delegate.access, desk.made.record.id
    before = access.state()
    new = access.rotate(token, ALICE, overlap_ms=overlap_ms)
    with monkeypatch.context() as patch:
        patch.setattr(access, "state", lambda: before)
        with pytest.raises(Conflict, match="was changed by another process just now"):
            access.revoke_token(token, ROOT)
    access.revoke_token(token, ROOT)
    assert access.state().tokens[new.record.id].revoked_at is not None


def test_a_stolen_token_that_was_rotated_is_noticed_and_revoked_with_what_replaced_it(
    desk: Desk,
) -> None:
    stolen = rotated(desk.caller()).data
    thief = desk.caller(stolen["token"])
    assert thief("GET", "/v1/me").status == 200
    further = rotated(thief).data
    refused = rotated(desk.caller())
    assert refused.status == 409
    assert f"token {stolen['id']} replaces it, and is in use" in refused.data["detail"]
    desk.delegate.access.revoke_token(desk.made.record.id, ROOT)
    tokens = desk.delegate.access.state().tokens
    assert all(tokens[one["id"]].revoked_at is not None for one in (stolen, further))


def test_a_line_of_rotations_is_revoked_even_if_one_in_it_is_forgotten(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, first = desk.delegate.access, desk.made.record.id
    second = access.rotate(first, ALICE, overlap_ms=30 * DAY).record.id
    access.note_use(second)
    third = access.rotate(second, ALICE, overlap_ms=0).record.id
    access.note_use(third)
    with monkeypatch.context() as patch:
        patch.setattr("batchq.client.access_control._is_stale", lambda one, _: one.id == second)
        access.create_token("bob", ROOT)
    assert second not in access.state().tokens
    with pytest.raises(Conflict, match=f"token {third} replaces it, and is in use"):
        access.rotate(first, ALICE)
    access.revoke_token(first, ROOT)
    assert access.state().tokens[third].revoked_at is not None


def test_a_user_who_creates_and_revokes_tokens_leaves_room_for_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.client.access_control.MOST_OF_ONE_USER", 3)
    access = desk.delegate.access
    made = [access.create_token("bob", ROOT).record.id for _ in range(3)]
    for token in made:
        access.revoke_token(token, ROOT)
    for _ in range(4):
        made.append(access.create_token("bob", ROOT).record.id)
        access.revoke_token(made[-1], ROOT)
    # The last three that ended before the last one was made, and that one.
    assert [one for one in made if one in access.state().tokens] == made[3:]
    assert desk.made.record.id in access.state().tokens


def test_a_line_of_rotations_is_revoked_even_if_the_clock_was_set_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, first = desk.delegate.access, desk.made.record.id
    now_ms = RedisStore.now_ms
    with monkeypatch.context() as patch:
        patch.setattr(RedisStore, "now_ms", lambda store: now_ms(store) - 5_000)
        new = access.rotate(first, ALICE).record.id
    access.revoke_token(first, ROOT)
    assert access.state().tokens[new].revoked_at is not None


def test_a_successor_is_answered_only_if_its_use_is_known(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the holder of the former token could replace a token that is in use."""
    new = desk.caller(rotated(desk.caller()).data["token"])

    def fail(access: AccessControl, token: str) -> None:
        raise StoreUnavailable("the server does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(AccessControl, "note_use", fail)
        refused = new("GET", "/v1/me")
    assert (refused.status, refused.data["detail"]) == (
        503,
        "the first use of this token cannot be recorded",
    )
    assert new("GET", "/v1/me").status == 200
    assert rotated(desk.caller()).status == 409


def test_a_user_with_all_tokens_that_one_may_have_rotates_one_without_an_overlap(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.client.access_control.MOST_OF_ONE_USER", 1)
    with pytest.raises(Rejected, match="user alice has 1 token, which is the most"):
        desk.delegate.access.rotate(desk.made.record.id, ALICE)
    desk.delegate.access.rotate(desk.made.record.id, ALICE, overlap_ms=0)


def test_an_answer_that_was_lost_costs_nothing(desk: Desk) -> None:
    lost = rotated(desk.caller(), overlap="2h").data
    again = rotated(desk.caller(), overlap="2h").data
    tokens = desk.delegate.access.state().tokens
    assert tokens[lost["id"]].revoked_at is not None
    assert tokens[again["id"]].expires_at - tokens[again["id"]].made_at == 30 * DAY
    assert desk.caller(again["token"])("GET", "/v1/me").status == 200


def test_only_valid_tokens_of_no_login_are_rotated(desk: Desk) -> None:
    access = desk.delegate.access
    for made in (
        access.invite("bob", ROOT),
        access.invite_node("gpu1", ROOT),
        access.log_in("alice", ("oidc:ml",), "1" * 64, ALICE),
    ):
        with pytest.raises(InvalidInput, match="of a login or for one use is not rotated"):
            access.rotate(made.record.id, ROOT)
    access.revoke_token(desk.made.record.id, ROOT)
    with pytest.raises(Conflict, match="is not valid any more"):
        access.rotate(desk.made.record.id, ROOT)


def test_no_one_rotates_in_the_name_of_another_or_without_a_token(desk: Desk) -> None:
    access = desk.delegate.access
    access.grant(parse_binding("user:olga", "operator", "*"), ROOT)
    olga = desk.caller(access.create_token("olga", ROOT).text)
    acting = olga("POST", "/v1/rotations", {}, Batchq_As="alice", Batchq_Reason="look")
    assert acting.status == 403
    assert desk.api.caller()("POST", "/v1/rotations", {}).status == 403
    malformed = rotated(desk.caller(), overlap="soon")
    assert (malformed.status, malformed.data["detail"].startswith("overlap: ")) == (400, True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def kept_in(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "credentials.json").read_text())
    return found


@pytest.mark.usefixtures("stage")
def test_the_token_of_a_login_is_replaced_where_it_is_kept(server: Server, home: Path) -> None:
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        delegate.access.grant(parse_binding("user:alice", "viewer", "ml"), ROOT)
        text = delegate.access.create_token("alice", ROOT).text
        address = f"http://localhost:{api.port}"
        run("login", address, "--token-file", "-", stdin=f"{text}\n")
        done = run("token", "rotate", "--overlap", "0s")
        assert (done.code, done.out) == (0, "")
        assert f"; token {text.split('_')[1]} ends after 0s. It can be rotated until " in done.err
        assert kept_in(home)["token"] not in ("", text)
        assert run("whoami").code == 0


@pytest.mark.usefixtures("stage")
@pytest.mark.parametrize(("days", "is_warned"), [(3, True), (10, False)])
def test_commands_warn_in_the_last_week_of_a_token(
    server: Server, home: Path, days: int, is_warned: bool
) -> None:
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        delegate.access.grant(parse_binding("user:alice", "viewer", "ml"), ROOT)
        text = delegate.access.create_token("alice", ROOT).text
        run("login", f"http://localhost:{api.port}", "--token-file", "-", stdin=f"{text}\n")
        end = datetime.now(UTC) + timedelta(days=days) - timedelta(hours=1)
        kept = kept_in(home) | {"expires_at": end.isoformat()}
        (home / "credentials.json").write_text(json.dumps(kept))
        warned = run("jobs")
        assert warned.code == 0
        text = f"your token ends within {days} days; `batchq token rotate` replaces it"
        assert (text in warned.err) is is_warned


@pytest.mark.usefixtures("stage")
def test_a_token_is_rotated_by_its_id_with_the_credentials_of_the_server(server: Server) -> None:
    with Delegate(server.url) as delegate:
        former = delegate.access.create_token("alice", ROOT, days=7).record.id
    row = json.loads(run("token", "rotate", former, "-o", "json", url=server.url).out)
    assert row["token"].startswith(f"bqt_{row['id']}_")
    missing = run("token", "rotate", url=server.url)
    assert (missing.code, missing.err.splitlines()) == (
        2,
        [
            "error: there is no token with which you use the API",
            "hint: name the ID of a token",
        ],
    )


def test_a_line_of_rotations_ends_a_year_after_its_first_token(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = desk.delegate.access
    made = desk.delegate.access.create_token("alice", ROOT, days=90).record
    assert made.rotated_until - made.made_at <= 365 * DAY
    now_ms, days, token, ends = RedisStore.now_ms, 0, made.id, []
    monkeypatch.setattr(RedisStore, "now_ms", lambda store: now_ms(store) + days * DAY)
    # Each one is rotated ten days before its end.
    for _ in range(4):
        days += 80
        new = access.rotate(token, ALICE).record
        access.note_use(new.id)
        token = new.id
        ends.append(round((new.expires_at - made.made_at) / DAY))
        assert new.rotated_until == made.rotated_until
    assert ends == [170, 250, 330, 365]
    days = 364
    last = access.rotate(token, ALICE).record
    assert round((last.expires_at - made.made_at) / DAY) == 365
    days = 366
    with pytest.raises(Conflict, match="is not valid any more"):
        access.rotate(last.id, ALICE)


def test_a_token_of_an_earlier_version_has_a_line_of_a_year(desk: Desk) -> None:
    record = structs.replace(desk.made.record, line_ends_at=UNSET)
    assert record.rotated_until == record.made_at + 365 * DAY
    assert structs.replace(record, expires_at=record.made_at + 400 * DAY).rotated_until == (
        record.made_at + 400 * DAY
    )


@pytest.mark.parametrize(("rotate_days", "until"), [(0, 30), (10, 30), (3650, 3650)])
def test_an_operator_says_how_long_a_token_is_rotated(
    desk: Desk, rotate_days: int, until: int
) -> None:
    access = desk.delegate.access
    made = access.create_token("alice", ROOT, days=30, rotate_days=rotate_days).record
    new = access.rotate(made.id, ALICE).record
    assert round((new.rotated_until - made.made_at) / DAY) == until
    with pytest.raises(InvalidInput, match="rotated for at most 3650 days, found 3651"):
        access.create_token("alice", ROOT, rotate_days=3651)


def test_the_end_of_a_line_is_said(desk: Desk, server: Server) -> None:
    answer = rotated(desk.caller()).data
    first = desk.made.record
    assert datetime.fromisoformat(answer["rotatedUntil"]).timestamp() * 1000 == pytest.approx(
        first.rotated_until, abs=1000
    )
    listed = json.loads(run("token", "list", "-o", "json", url=server.url).out)["items"]
    assert {one["rotatedUntil"] for one in listed} == {answer["rotatedUntil"]}
    short = desk.delegate.access.create_token("alice", ROOT, days=30, rotate_days=0).record
    done = run("token", "rotate", short.id, url=server.url)
    assert "It is the last of its line: ask for another one before that." in done.err
    done = run("token", "rotate", answer["id"], url=server.url)
    assert f"It can be rotated until {answer['rotatedUntil']}." in done.err


def test_a_token_rotates_no_other_token_of_its_user(desk: Desk) -> None:
    """A stolen token of a narrow scope would get one of a wide scope."""
    wide = desk.delegate.access.create_token("alice", ROOT).record.id
    every_verb = desk.api.caller(desk.delegate.access.create_token("alice", ROOT).text)
    refused = every_verb("POST", f"/v1/tokens/{wide}/rotations", {})
    assert (refused.status, refused.data["detail"]) == (403, "a token rotates no token but itself")
    # Its scope does not reach tokens at all.
    assert desk.caller()("POST", f"/v1/tokens/{wide}/rotations", {}).status == 404
    assert desk.delegate.access.state().tokens[wide].revoked_at is None


def test_the_account_behind_the_socket_rotates_its_own_tokens_and_no_others(desk: Desk) -> None:
    account = pwd.getpwuid(os.getuid()).pw_name
    access, caller = desk.delegate.access, desk.api.caller()
    mine = access.create_token(account, ROOT).record.id
    made = caller("POST", f"/v1/tokens/{mine}/rotations", {"overlap": "2h"})
    assert (made.status, made.data["owner"]) == (201, account)
    assert desk.api.caller(made.data["token"])("GET", "/v1/me").status == 200
    # The account is an operator, who sees and revokes tokens of others.
    assert caller("POST", f"/v1/tokens/{desk.made.record.id}/rotations", {}).status == 403
    assert caller("POST", "/v1/tokens/nothing/rotations", {}).status == 404


def test_admins_rotate_the_tokens_of_service_accounts_within_their_scope(desk: Desk) -> None:
    access = desk.delegate.access
    access.grant(parse_binding("user:ada", "admin", "ml"), ROOT)
    access.grant(parse_binding("serviceaccount:ml:ci", "admin", "ml"), ROOT)
    made = access.create_token("ml:ci", ROOT)
    path = f"/v1/tokens/{made.record.id}/rotations"
    narrow = access.create_token("ada", ROOT, scope=Scope(verbs=(Verb.READ, Verb.CREATE)))
    refused = desk.api.caller(narrow.text)("POST", path, {})
    assert (refused.status, "would permit more" in refused.data["detail"]) == (403, True)
    # Neither a stranger nor the account itself.
    assert desk.caller()("POST", path, {}).status == 404
    other = desk.api.caller(access.create_token("ml:ci", ROOT).text)
    assert other("POST", path, {}).status == 403
    ada = desk.api.caller(access.create_token("ada", ROOT).text)
    assert ada("POST", path, {}).data["owner"] == "ml:ci"


def test_no_request_of_a_successor_is_answered_before_its_first_use_is_recorded(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, note = threading.Event(), threading.Event(), AccessControl.note_use

    def slow(access: AccessControl, token: str) -> None:
        begun.set()
        go_on.wait(60)
        note(access, token)

    with (
        Delegate(server.url) as delegate,
        RunningApi(server.url) as api,
        ThreadPoolExecutor(2) as callers,
    ):
        successor = delegate.access.rotate(
            delegate.access.create_token("ana", ROOT).record.id, ROOT
        )
        monkeypatch.setattr(AccessControl, "note_use", slow)
        ana = api.caller(successor.text)
        first = callers.submit(ana, "GET", "/v1/me")
        assert begun.wait(90)
        second = callers.submit(ana, "GET", "/v1/me")
        with pytest.raises(TimeoutError):
            second.result(1)
        go_on.set()
        assert (first.result().status, second.result().status) == (200, 200)
        assert successor.record.id in delegate.access.last_uses()
