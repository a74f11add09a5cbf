"""Service accounts: what programs act as, in one namespace, with tokens of its admins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from batchq.api.access import Scope, Verb, parse_binding
from batchq.client.access_control import Actor, Delegate
from batchq.errors import InvalidInput
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.manifests import groups_of, manifest

ML, CV = groups_of("ml"), groups_of("cv")
ROOT = Actor(user="root@host", via="redis")
ACCOUNTS = "/v1/namespaces/ml/service-accounts"
TOKENS = f"{ACCOUNTS}/ci/tokens"
SUBMITTER = {"subject": "serviceaccount:ml:ci", "role": "submitter", "namespace": "ml"}


class Lab(NamedTuple):
    """An admin and a submitter of ml, and an admin of cv."""

    delegate: Delegate
    api: RunningApi
    ada: Caller
    ben: Caller
    cyd: Caller

    def account(self) -> tuple[str, Caller]:
        """Return the id of a token of ml:ci, a submitter, and a caller with it."""
        assert self.ada("POST", "/v1/bindings", SUBMITTER).status in (200, 201)
        made = self.ada("POST", TOKENS, {"note": "nightly"})
        assert (made.status, made.data["owner"], made.data["madeBy"]) == (201, "ml:ci", "ada")
        return made.data["id"], self.api.caller(made.data["token"])


@pytest.fixture
def lab(server: Server, stage: Stage) -> Iterator[Lab]:
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        access = delegate.access
        for user, role, namespace in (
            ("ada", "admin", "ml"),
            ("ben", "submitter", "ml"),
            ("cyd", "admin", "cv"),
        ):
            access.grant(parse_binding(f"user:{user}", role, namespace), ROOT)
        users = (api.caller(access.create_token(user, ROOT).text) for user in ("ada", "ben", "cyd"))
        yield Lab(delegate, api, *users)


def test_an_account_submits_in_its_namespace_under_its_own_name(lab: Lab) -> None:
    token, ci = lab.account()
    made = ci("POST", ML, manifest("train"))
    assert (made.status, made.data["status"]["submittedBy"]) == (201, "ml:ci")
    assert ci("GET", f"{ML}/train/logs").status == 200
    assert ci("GET", "/v1/me").data["roles"] == [SUBMITTER]
    refused = ci("POST", CV, manifest("train"))
    assert refused.status == 403
    assert refused.data["detail"] == (
        "service account ml:ci may not create groups in namespace cv: it takes one of the roles"
        " submitter, admin"
    )
    assert lab.ben("GET", f"{ML}/train/logs").status == 403
    [listed] = lab.ada("GET", ACCOUNTS).data["items"]
    assert (listed["name"], [one["id"] for one in listed["tokens"]]) == ("ml:ci", [token])
    assert [one["role"] for one in listed["roles"]] == ["submitter"]


@pytest.mark.parametrize("who", ["ben", "cyd", "ci"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", ACCOUNTS, None), ("POST", TOKENS, {}), ("DELETE", f"{ACCOUNTS}/ci", None)],
)
def test_only_admins_of_its_namespace_have_a_say_in_an_account(
    lab: Lab, who: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    _, ci = lab.account()
    caller: Caller = ci if who == "ci" else getattr(lab, who)
    refused = caller(method, path, body)
    assert (refused.status, "service-accounts in namespace ml" in refused.data["detail"]) == (
        403,
        True,
    )
    assert ci("GET", "/v1/me").status == 200


def test_a_deleted_account_can_do_nothing_at_once_and_its_streams_end(lab: Lab) -> None:
    _, ci = lab.account()
    _, other = lab.account()
    ci("POST", ML, manifest("train"))
    with ci.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        deleted = lab.ada("DELETE", f"{ACCOUNTS}/ci")
        assert (deleted.status, len(deleted.data["tokens"])) == (200, 2)
        [*_, last] = events
    assert last["event"] == "ERROR"
    assert (ci("GET", "/v1/me").status, other("GET", "/v1/me").status) == (401, 401)
    assert lab.ada("GET", ACCOUNTS).data["items"] == []
    assert lab.ada("GET", f"{ML}/train").data["status"]["submittedBy"] == "ml:ci"
    # A token that is made later has no role.
    made = lab.ada("POST", TOKENS, {})
    assert lab.api.caller(made.data["token"])("POST", ML, manifest("again")).status == 403
    again = lab.ada("DELETE", f"{ACCOUNTS}/nobody")
    assert (again.status, again.data["detail"]) == (404, "there is no service account ml:nobody")


def test_an_admin_revokes_single_tokens_of_accounts_and_no_other_tokens(lab: Lab) -> None:
    token, ci = lab.account()
    _, kept = lab.account()
    [of_ben] = lab.ben("GET", "/v1/tokens").data["items"]
    assert lab.cyd("DELETE", f"/v1/tokens/{token}").status == 404
    assert lab.ben("DELETE", f"/v1/tokens/{token}").status == 404
    assert lab.ada("DELETE", f"/v1/tokens/{of_ben['id']}").status == 404
    assert lab.ada("DELETE", f"/v1/tokens/{token}").status == 200
    assert (ci("GET", "/v1/me").status, kept("GET", "/v1/me").status) == (401, 200)


def test_the_scope_of_the_admins_token_bounds_the_tokens_that_it_makes(lab: Lab) -> None:
    def with_scope(scope: Scope) -> Caller:
        return lab.api.caller(lab.delegate.access.create_token("ada", ROOT, scope=scope).text)

    narrow = with_scope(Scope(verbs=(Verb.CREATE, Verb.READ)))
    assert narrow("POST", TOKENS, {"verbs": ["read"]}).status == 201
    for wider in ({}, {"verbs": ["read", "exec"]}):
        refused = narrow("POST", TOKENS, wider)
        assert refused.status == 403
        assert "has the verbs create, read only" in refused.data["detail"]
    assert with_scope(Scope(namespaces=("cv",)))("POST", TOKENS, {}).status == 403


def test_an_admin_says_how_long_a_token_is_rotated_and_not_for_more_than_a_year(lab: Lab) -> None:
    made = lab.ada("POST", TOKENS, {"days": 7, "rotateDays": 7}).data
    assert made["rotatedUntil"] == made["expiresAt"]
    refused = lab.ada("POST", TOKENS, {"rotateDays": 366})
    assert (refused.status, "rotateDays: expected at most 365, found 366" in str(refused.data)) == (
        400,
        True,
    )


def test_an_account_makes_no_tokens_even_as_an_admin(lab: Lab) -> None:
    """Otherwise another account would outlast the revocation of a stolen token."""
    lab.ada("POST", "/v1/bindings", SUBMITTER | {"role": "admin"})
    _, ci = lab.account()
    for path in (TOKENS, f"{ACCOUNTS}/nightly/tokens"):
        refused = ci("POST", path, {})
        assert (refused.status, refused.data["detail"]) == (
            403,
            "a service account cannot create tokens",
        )


def test_a_token_that_is_made_while_its_account_is_deleted_is_revoked_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.account()
    access = lab.delegate.access
    states = [access.state()]
    made = access.create_token("ml:ci", ROOT).record.id
    read = access.state
    monkeypatch.setattr(access, "state", lambda: states.pop() if states else read())
    access.delete_account("ml:ci", ROOT)
    assert read().tokens[made].revoked_at is not None


def test_an_account_is_no_user(lab: Lab) -> None:
    """Only a token of its admins makes one: no other door does."""
    with pytest.raises(InvalidInput, match="user 'ml:ci': expected letters"):
        lab.delegate.access.invite("ml:ci", ROOT)
    with pytest.raises(InvalidInput, match="user 'ml:ci': expected letters"):
        lab.delegate.access.log_in("ml:ci", (), "0" * 64, ROOT)
    lab.delegate.access.grant(parse_binding("user:olga", "operator", "*"), ROOT)
    olga = lab.api.caller(lab.delegate.access.create_token("olga", ROOT).text)
    acting = olga("GET", ML, Batchq_As="ml:ci", Batchq_Reason="look")
    assert (acting.status, "expected the name of a user" in acting.data["detail"]) == (400, True)


def test_join_tokens_are_none_of_an_admin_of_a_namespace_called_node(lab: Lab) -> None:
    lab.delegate.access.grant(parse_binding("user:ada", "admin", "node"), ROOT)
    joined = lab.delegate.access.invite_node("gpu1", ROOT).record
    assert lab.ada("DELETE", f"/v1/tokens/{joined.id}").status == 404
    assert lab.ada("GET", "/v1/namespaces/node/service-accounts").data["items"] == []
    # An account with the name that the owner of the join token has.
    made = lab.ada("POST", "/v1/namespaces/node/service-accounts/gpu1/tokens", {})
    account = lab.api.caller(made.data["token"])
    assert account("DELETE", f"/v1/tokens/{joined.id}").status == 404
    for caller in (lab.ada, account):
        assert joined.id not in [one["id"] for one in caller("GET", "/v1/tokens").data["items"]]


def test_tokens_of_an_account_leave_room_for_join_tokens(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.client.access_control.MOST_OF_ONE_USER", 1)
    lab.delegate.access.create_token("node:gpu1", ROOT)
    assert lab.delegate.access.invite_node("gpu1", ROOT).record.node == "gpu1"


@pytest.mark.parametrize("name", ["CI", "a b", "x" * 64, "a:b"])
def test_a_wrong_name_is_refused_in_a_sentence(lab: Lab, name: str) -> None:
    path = f"{ACCOUNTS}/{name.replace(' ', '%20')}/tokens"
    refused = lab.ada("POST", path, {})
    assert (refused.status, "service account" in refused.data["detail"]) == (400, True)
