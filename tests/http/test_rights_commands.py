"""`batchq access` and `batchq token` over the HTTP API, without credentials of the Redis server."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.api.access import Scope, Verb, parse_binding, parse_token
from batchq.api.objects import PodGroup
from batchq.client.access_control import Actor, Delegate, NewToken
from tests.cli.conftest import Ran, run
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import RunningApi
from tests.http.conftest import SubmitAs
from tests.http.manifests import manifest

ROOT = Actor(user="root@host", via="redis")
READ = Scope(verbs=(Verb.READ,))
#: The account that runs the API, which is an operator.
OPERATOR = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def delegate(server: Server, stage: Stage) -> Iterator[Delegate]:
    with Delegate(server.url) as delegate:
        delegate.access.grant(parse_binding("user:alice", "submitter", "ml"), ROOT)
        delegate.access.grant(parse_binding("user:bob", "viewer", "cv"), ROOT)
        yield delegate


@pytest.fixture
def made(delegate: Delegate) -> NewToken:
    return delegate.access.create_token("alice", ROOT, note="laptop")


@pytest.fixture
def running_api(
    server: Server, delegate: Delegate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningApi]:
    with RunningApi(server.url) as api:
        monkeypatch.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
        # Whatever needs the Redis server finds none.
        monkeypatch.setenv("BATCHQ_REDIS_URL", "unix:///nowhere/redis.sock")
        yield api


@pytest.fixture
def as_alice(
    running_api: RunningApi, made: NewToken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(made.text)
    file.chmod(0o600)
    monkeypatch.setenv("BATCHQ_SERVER", f"http://127.0.0.1:{running_api.port}")
    monkeypatch.setenv("BATCHQ_TOKEN_FILE", str(file))


def items(done: Ran) -> list[dict[str, object]]:
    assert (done.code, done.err) == (0, "")
    found: list[dict[str, object]] = json.loads(done.out)["items"]
    return found


@pytest.mark.usefixtures("running_api")
def test_an_operator_lists_and_revokes_tokens_of_users(delegate: Delegate, made: NewToken) -> None:
    other = delegate.access.create_token("bob", ROOT, scope=READ).record.id
    titles, *rows = run("token", "list").lines
    assert titles.split()[:4] == ["ID", "USER", "STATE", "EXPIRES"]
    assert [row.split()[:3] for row in rows] == [
        [made.record.id, "alice", "valid"],
        [other, "bob", "valid"],
    ]
    [listed] = items(run("token", "list", "--user", "bob", "-o", "json"))
    assert (listed["id"], listed["verbs"], listed["usedAt"]) == (other, ["read"], None)
    done = run("token", "revoke", made.record.id, other)
    assert done.out == (
        f"token {made.record.id} of user alice revoked\ntoken {other} of user bob revoked\n"
    )
    states = [one["state"] for one in items(run("token", "list", "-o", "json"))]
    assert states == ["revoked", "revoked"]
    last = delegate.access.audit(1)[0].record
    assert (last.user, last.via, last.verb, last.kind) == (OPERATOR, "socket", "delete", "tokens")


@pytest.mark.usefixtures("as_alice")
def test_a_user_lists_and_revokes_tokens_of_its_own_only(
    delegate: Delegate, made: NewToken
) -> None:
    own = delegate.access.create_token("alice", ROOT).record.id
    other = delegate.access.create_token("bob", ROOT).record.id
    listed = [one["id"] for one in items(run("token", "list", "-o", "json"))]
    assert sorted(map(str, listed)) == sorted([made.record.id, own])
    refused = run("token", "revoke", other)
    assert (refused.code, refused.err.splitlines()[0]) == (
        6,
        f"error: there is no token '{other}'",
    )
    assert run("token", "revoke", own).out == f"token {own} of user alice revoked\n"
    assert delegate.access.state().tokens[other].revoked_at is None


@pytest.mark.usefixtures("running_api")
def test_the_account_behind_the_socket_creates_tokens_of_its_own(delegate: Delegate) -> None:
    done = run("token", "create", OPERATOR, "--note", "laptop", "--verb", "read")
    parts = parse_token(done.out.strip())
    assert parts is not None
    assert f"Token {parts.id} of user {OPERATOR} lasts until" in done.err
    record = delegate.access.state().tokens[parts.id]
    assert (record.owner, record.note, record.scope) == (OPERATOR, "laptop", READ)


@pytest.mark.usefixtures("running_api")
def test_a_token_of_another_user_is_an_invitation_over_the_api() -> None:
    refused = run("token", "create", "alice")
    assert (refused.code, refused.err.splitlines()) == (
        2,
        [
            f"error: over the API, you cannot create a token of another user: you are {OPERATOR}",
            "hint: `batchq token invite alice` lets user alice log in",
        ],
    )


@pytest.mark.usefixtures("as_alice")
def test_a_token_creates_no_token_by_the_command() -> None:
    refused = run("token", "create", "alice")
    assert (refused.code, refused.err.splitlines()[0]) == (
        9,
        "error: a token cannot create tokens",
    )


@pytest.mark.usefixtures("running_api")
def test_an_operator_lists_roles_and_asks_why_for_every_user() -> None:
    listed = [(one["subject"], one["role"]) for one in items(run("access", "list", "-o", "json"))]
    assert listed == [("user:alice", "submitter"), ("user:bob", "viewer")]
    row = run("access", "list").lines[1].split()
    assert row[:4] == ["user:alice", "submitter", "ml", ROOT.user]
    why = ("access", "why")
    may = run(*why, "alice", "create", "groups", "-n", "ml")
    assert (may.code, may.out) == (0, "yes: user:alice is submitter in namespace ml\n")
    may_not = run(*why, "alice", "cancel", "groups", "-n", "ml", "--owner", "bob", "-o", "json")
    assert (may_not.code, json.loads(may_not.out)["allowed"]) == (12, False)
    by_group = run(*why, "eve", "read", "groups", "--group", "unix:gpu")
    assert (by_group.code, by_group.out.startswith("no: user eve")) == (12, True)
    refused = run(*why, "alice", "read", "groups", "--visibility", "own")
    assert (refused.code, refused.err.splitlines()[0]) == (
        2,
        "error: --visibility: the API decides with its own",
    )


@pytest.mark.usefixtures("as_alice")
def test_a_user_sees_no_roles_of_others_and_asks_why_about_itself() -> None:
    assert run("access", "list").err == "you see no role that has been given\n"
    may = run("access", "why", "alice", "create", "groups", "-n", "ml")
    assert (may.code, may.out) == (0, "yes: user:alice is submitter in namespace ml\n")
    refused = run("access", "why", "bob", "create", "groups", "-n", "cv")
    assert (refused.code, refused.out) == (9, "")
    assert refused.err.splitlines()[0] == (
        "error: user alice may not read cluster-bindings: it takes the role operator"
    )


@pytest.mark.usefixtures("running_api")
def test_an_operator_reads_the_audit_trail(delegate: Delegate) -> None:
    delegate.access.create_token("alice", ROOT)
    done = run("access", "audit", "-o", "json")
    assert [(one["verb"], one["kind"], one["via"]) for one in items(done)] == [
        ("create", "bindings", "redis"),
        ("create", "bindings", "redis"),
        ("create", "tokens", "redis"),
    ]
    assert "create bindings user:alice is submitter in namespace ml" in run("access", "audit").out
    assert len(run("access", "audit", "--most", "1").lines) == 2
    refused = run("access", "audit", "--most", "1001")
    assert (refused.code, refused.err.splitlines()[0]) == (
        1,
        "error: limit: expected a number from 0 to 1000, found '1001'",
    )


def test_an_emergency_is_dealt_with_in_the_server_itself(
    running_api: RunningApi, server: Server, made: NewToken
) -> None:
    del running_api
    for words in (("token", "list"), ("access", "list"), ("access", "audit")):
        assert len(run("--redis-url", server.url, *words).lines) > 1
    done = run("--redis-url", server.url, "token", "revoke", made.record.id)
    assert done.out == f"token {made.record.id} of user alice revoked\n"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("verb=dance&kind=groups", "verb: expected one of read, create,"),
        ("verb=read&kind=", "kind: expected one of groups,"),
        (
            "verb=read&kind=groups&tier=all",
            "tier: expected one of facts, spec, output,",
        ),
        ("verb=read&kind=groups&groups=unix:gpu", "groups: your own groups are known"),
        (
            "user=eve&verb=read&kind=groups&groups=local:ml",
            "groups: local:ml: the local groups of a user are known",
        ),
    ],
)
def test_a_malformed_question_about_rights_is_refused_with_a_sentence(
    running_api: RunningApi, query: str, sentence: str
) -> None:
    answer = running_api.caller()("GET", f"/v1/rights?{query}")
    assert (answer.status, answer.data["detail"][: len(sentence)]) == (400, sentence)


@pytest.mark.usefixtures("as_alice")
def test_a_user_submits_own_groups_again_and_none_that_is_shown_in_part(
    stage: Stage, submit_as: SubmitAs
) -> None:
    for owner in ("alice", "bob"):
        group = manifest(f"of-{owner}")
        group["metadata"]["namespace"] = "ml"
        submit_as(owner, group)
        stage.client.cancel(f"ml/of-{owner}")
    done = run("resubmit", "ml/of-alice")
    assert (done.code, done.out) == (0, "podgroup ml/of-alice resubmitted as ml/of-alice-2\n")
    again = stage.client.get("PodGroup", "ml/of-alice-2")
    assert isinstance(again, PodGroup)
    assert again.spec.tasks[0].template.env == {"KEY": "secret of of-alice"}
    refused = run("resubmit", "ml/of-bob")
    assert (refused.code, refused.out) == (9, "")
    assert refused.err.splitlines() == [
        "error: PodGroup ml/of-bob is another user's, and you are shown a part of its spec only",
        "hint: ask bob to submit it again",
    ]
