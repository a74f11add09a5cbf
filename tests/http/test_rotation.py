"""Rotation: a token is replaced by one like it, once, and ends after an overlap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchq.api.access import Scope, Verb, parse_binding
from batchq.api.times import DAY, HOUR
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
        assert done.err.endswith(f"token {text.split('_')[1]} ends after 0s.\n")
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
