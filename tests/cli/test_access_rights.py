"""`batchq access` and `batchq token`."""

from __future__ import annotations

import json

import pytest

from batchq.api.access import parse_token
from batchq.api.objects import PodGroup
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import RunningApi


def test_roles_are_given_listed_explained_and_taken_away(batchq: Batchq) -> None:
    words = ("user:alice", "submitter", "-n", "ml")
    assert batchq("access", "grant", *words).out == "user:alice is submitter in namespace ml\n"
    again = batchq("access", "grant", *words)
    assert again.out == "user:alice is submitter in namespace ml, as before\n"
    [listed] = json.loads(batchq("access", "list", "-o", "json").out)["items"]
    assert (listed["subject"], listed["role"], listed["namespace"]) == words[:2] + words[3:]
    assert batchq("access", "list").lines[1].startswith("user:alice  submitter  ml")

    may = batchq("access", "why", "alice", "create", "groups", "-n", "ml")
    assert (may.code, may.out) == (0, "yes: user:alice is submitter in namespace ml\n")
    may_not = batchq("access", "why", "alice", "cancel", "groups", "-n", "ml", "--owner", "bob")
    assert may_not.code == 12
    assert may_not.out.startswith("no: user alice may not cancel groups in namespace ml")

    gone = batchq("access", "revoke", *words)
    assert gone.out == "no longer: user:alice is submitter in namespace ml\n"
    missing = batchq("access", "revoke", *words)
    assert (missing.code, missing.err.splitlines()[0]) == (
        6,
        "error: there is no such binding: user:alice is submitter in namespace ml",
    )


def test_a_wrong_subject_is_refused(batchq: Batchq) -> None:
    refused = batchq("access", "grant", "alice", "viewer")
    assert (refused.code, refused.err.splitlines()) == (
        1,
        [
            "error: expected user:NAME or group:NAME, found 'alice'",
            "hint: as in user:alice, or group:unix:gpu for the Unix group gpu",
        ],
    )


def test_the_matrix_needs_no_server() -> None:
    lines = run("access", "matrix").lines
    titles = "VERB KIND TIER VIEWER SUBMITTER ADMIN OPERATOR AUDITOR"
    assert " ".join(lines[0].split()) == titles
    assert lines[1].split() == ["read", "groups", "facts", "all", "all", "all", "all", "-"]
    [first, *_] = json.loads(
        run("access", "matrix", "--visibility", "namespaces", "-o", "json").out
    )["items"]
    assert (first["tier"], first["viewer"]) == ("facts", "yes")


def test_a_token_is_printed_once_listed_and_revoked(batchq: Batchq) -> None:
    made = batchq("token", "create", "alice", "--note", "laptop", "--verb", "read")
    parts = parse_token(made.out.strip())
    assert parts is not None
    assert f"Token {parts.id} of user alice lasts until" in made.err
    [listed] = json.loads(batchq("token", "list", "-o", "json").out)["items"]
    assert (listed["id"], listed["owner"], listed["verbs"]) == (parts.id, "alice", ["read"])
    assert made.out.strip() not in batchq("token", "list").out
    assert batchq("token", "list", "--user", "bob").lines[1:] == []
    assert batchq("token", "revoke", parts.id).out == f"token {parts.id} of user alice revoked\n"
    assert batchq("token", "list").lines[1].split()[:3] == [parts.id, "alice", "revoked"]
    again = batchq("token", "revoke", parts.id)
    assert (again.code, again.err) == (8, f"error: token {parts.id} is revoked already\n")


def test_the_audit_trail_says_who_did_what(batchq: Batchq) -> None:
    batchq("access", "grant", "user:alice", "operator")
    batchq("token", "create", "alice")
    done = batchq("access", "audit", "-o", "json")
    items = json.loads(done.out)["items"]
    assert done.code == 0
    assert [(one["verb"], one["kind"], one["via"]) for one in items] == [
        ("create", "bindings", "redis"),
        ("create", "tokens", "redis"),
    ]
    assert "user:alice is operator in all namespaces" in batchq("access", "audit").out


def test_commands_act_in_the_name_of_a_user_over_the_api(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = run("access", "grant", "user:alice", "submitter", "-n", "ml", url=server.url)
    assert granted.code == 0
    words = ("--as", "alice", "--because", "her laptop is lost: größer")
    with RunningApi(server.url) as api:
        monkeypatch.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
        done = run(*words, "submit", "-n", "ml", "--name", "train", "--", "true")
        assert (done.code, done.err) == (0, "")
        refused = run(*words, "submit", "-n", "cv", "--name", "train", "--", "true")
        assert (refused.code, "user alice may not create groups" in refused.err) == (9, True)
        monkeypatch.delenv("BATCHQ_SERVER")
    [group] = stage.client.list("PodGroup")
    assert isinstance(group, PodGroup)
    assert group.status.submitted_by == "alice"
    assert list(group.metadata.annotations) == ["batchq/submitted-by"]
    trail = run("access", "audit", url=server.url).out
    assert "alice (by " in trail
    assert "her laptop is lost: größer" in trail


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--as", "alice"), "takes both the user and a reason"),
        (("--because", "ticket 7"), "takes both the user and a reason"),
        (("--as", "alice", "--because", " "), "takes both the user and a reason"),
        (("--as", "a\nb", "--because", "x"), r"expected the name of a user, found 'a\nb'"),
        (("--as", "m☃", "--because", "x"), "expected the name of a user, found 'm☃'"),
        (("--as", "alice", "--because", "ticket 7"), "--as acts over the HTTP API"),
    ],
)
def test_acting_for_a_user_takes_a_reason_and_the_api(
    server: Server, words: tuple[str, ...], sentence: str
) -> None:
    refused = run(*words, "jobs", url=server.url)
    assert (refused.code, sentence in refused.err) == (2, True)
