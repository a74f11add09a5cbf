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


def test_local_groups_have_members_and_roles(batchq: Batchq) -> None:
    group = ("access", "group")
    assert batchq(*group, "list").err == "there are no local groups\n"
    made = batchq(*group, "create", "ml", "bob")
    assert made.out == "group group:local:ml created; members: bob\n"
    assert batchq(*group, "add", "ml", "alice").out == "members of group:local:ml: alice, bob\n"
    role = ("group:local:ml", "submitter", "-n", "ml")
    assert batchq("access", "grant", *role).code == 0
    may = batchq("access", "why", "alice", "create", "groups", "-n", "ml")
    assert (may.code, may.out) == (0, "yes: group:local:ml is submitter in namespace ml\n")
    titles, listed = batchq(*group, "list").lines
    assert titles.split() == ["GROUP", "MEMBERS", "ROLES"]
    assert listed.split("  ") == ["group:local:ml", "alice, bob", "submitter in ml"]
    assert batchq(*group, "remove", "ml", "alice").out == "members of group:local:ml: bob\n"
    assert batchq("access", "why", "alice", "create", "groups", "-n", "ml").code == 12
    claimed = batchq("access", "why", "eve", "read", "groups", "--group", "local:ml")
    assert claimed.err.splitlines()[0] == (
        "error: --group local:ml: the local groups of a user are known"
    )
    gone = batchq(*group, "delete", "ml")
    assert gone.out == "group group:local:ml deleted; its roles were: submitter in ml\n"
    missing = batchq("access", "grant", *role)
    assert (missing.code, missing.err.splitlines()[0]) == (
        6,
        "error: there is no group local:ml",
    )


def test_a_wrong_subject_is_refused(batchq: Batchq) -> None:
    refused = batchq("access", "grant", "alice", "viewer")
    assert (refused.code, refused.err.splitlines()) == (
        1,
        [
            "error: expected user:NAME, group:NAME or serviceaccount:NAMESPACE:NAME, found 'alice'",
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


def test_a_service_account_gets_a_role_and_a_token_and_is_deleted(batchq: Batchq) -> None:
    assert batchq("access", "accounts").err == "there are no service accounts\n"
    given = batchq("access", "grant", "serviceaccount:ml:ci", "submitter", "-n", "ml")
    assert given.out == "serviceaccount:ml:ci is submitter in namespace ml\n"
    row = json.loads(batchq("token", "create", "ml:ci", "-o", "json").out)
    assert row["owner"] == "ml:ci"
    titles, listed = batchq("access", "accounts", "-n", "ml").lines
    assert titles.split() == ["ACCOUNT", "ROLES", "TOKENS", "EXPIRES"]
    assert listed.split() == ["ml:ci", "submitter", row["id"], row["expiresAt"]]
    assert batchq("access", "accounts", "-n", "cv").err == "there are no service accounts\n"
    why = batchq("access", "why", "ml:ci", "create", "groups", "-n", "ml")
    assert why.out == "yes: serviceaccount:ml:ci is submitter in namespace ml\n"
    deleted = batchq("access", "delete-account", "ml:ci")
    assert deleted.out == "service account ml:ci deleted, which had 1 token and 1 role\n"
    missing = batchq("access", "delete-account", "ml:ci")
    assert (missing.code, missing.err.splitlines()) == (
        6,
        ["error: there is no service account ml:ci", "hint: see `batchq access accounts`"],
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("token", "create", "ml:CI"), "error: service account 'ml:CI': name: "),
        (("token", "create", ":ci"), "error: service account ':ci': namespace: "),
        (("access", "delete-account", "ci"), "error: service account 'ci': name: "),
        (
            ("access", "grant", "serviceaccount:ml:ci", "submitter"),
            "error: service account ml:ci has roles in its own namespace, ml, only, and a role",
        ),
    ],
)
def test_a_wrong_service_account_is_refused(
    batchq: Batchq, words: tuple[str, ...], sentence: str
) -> None:
    refused = batchq(*words)
    assert (refused.code, refused.err.startswith(sentence)) == (1, True), refused.err
    assert batchq("token", "list", "-o", "json").out.count('"id"') == 0


def test_an_admin_gives_roles_and_tokens_to_service_accounts_over_the_api(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningApi(server.url) as api:
        monkeypatch.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
        check_accounts_over_the_api()


def check_accounts_over_the_api() -> None:
    subject = ("serviceaccount:ml:ci", "submitter", "-n", "ml")
    assert run("access", "grant", *subject).out == f"{subject[0]} is submitter in namespace ml\n"
    short = run("token", "create", "ml:ci", "--days", "7", "--rotate-days", "7", "-o", "json")
    row = json.loads(short.out)
    assert row["rotatedUntil"] == row["expiresAt"]
    made = run("token", "create", "ml:ci", "--days", "7")
    parts = parse_token(made.out.strip())
    assert parts is not None
    assert made.err.startswith(f"Token {parts.id} of service account ml:ci lasts until ")
    assert run("access", "accounts", "-n", "ml").lines[1].split()[:2] == ["ml:ci", "submitter"]
    which = run("access", "accounts")
    assert (which.code, which.err.splitlines()) == (
        2,
        [
            "error: over the API, the service accounts of one namespace are listed",
            "hint: add -n",
        ],
    )
    assert run("access", "revoke", *subject).code == 0
    deleted = run("access", "delete-account", "ml:ci")
    assert deleted.out == "service account ml:ci deleted, which had 2 tokens and 0 roles\n"
