"""Two users and an operator, by tokens: what each may do, and what each learns of the others."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchq.api.access import Scope, Verb, Visibility, parse_binding
from batchq.api.objects import PodGroup
from batchq.api.views import Refused
from batchq.api_session import ApiCredentials
from batchq.client.access_control import Actor, Delegate
from batchq.client.api_client import ApiClient
from batchq.errors import Forbidden
from batchq.http import application
from batchq.http.application import ApiApplication
from batchq.http.route_table import ROUTES
from tests.builders import a_queue
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.conftest import SubmitAs
from tests.http.manifests import groups_of, manifest

ML, CV = groups_of("ml"), groups_of("cv")
ROOT = Actor(user="root@host", via="redis")


class Lab:
    """Users of an API with tokens, and roles that the test gives."""

    def __init__(self, api: RunningApi, delegate: Delegate) -> None:
        self._api = api
        self.delegate = delegate
        self._waits = threading.Event()

    def bind(self, subject: str, role: str, namespace: str = "*") -> None:
        self.delegate.access.grant(parse_binding(subject, role, namespace), ROOT)

    def unbind(self, subject: str, role: str, namespace: str = "*") -> None:
        self.delegate.access.withdraw(parse_binding(subject, role, namespace), ROOT)

    def user(self, name: str, **scope: Any) -> Caller:
        """Return a caller with a new token."""
        made = self.delegate.access.create_token(name, ROOT, scope=Scope(**scope))
        caller = self._api.caller(made.text)
        # The token is known at once, and roles with it.
        assert caller("GET", "/v1/me").status == 200
        return caller

    def client(self, name: str) -> ApiClient:
        made = self.delegate.access.create_token(name, ROOT)
        return ApiClient(ApiCredentials(f"unix:{self._api.socket}", token=made.text))

    def caller(self, token: str) -> Caller:
        return self._api.caller(token)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the API knows of a change."""
        for _ in range(1_200):
            if condition():
                return
            self._waits.wait(0.05)
        raise AssertionError("the API has not learnt of it")


@pytest.fixture(params=[Visibility.OPEN])
def visibility(request: pytest.FixtureRequest) -> Visibility:
    found: Visibility = request.param
    return found


@pytest.fixture
def lab(server: Server, stage: Stage, visibility: Visibility) -> Iterator[Lab]:
    with (
        Delegate(server.url) as delegate,
        RunningApi(server.url, visibility=visibility) as api,
    ):
        yield Lab(api, delegate)


def names(caller: Caller, path: str = "/v1/groups") -> list[str]:
    return [one["metadata"]["name"] for one in caller("GET", path).data["items"]]


def test_two_tenants_and_an_operator(lab: Lab, stage: Stage) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:bob", "submitter", "cv")
    lab.bind("user:olga", "operator")
    alice, bob, olga = (lab.user(name) for name in ("alice", "bob", "olga"))
    assert alice("POST", ML, manifest("train")).status == 201
    assert bob("POST", CV, manifest("label")).status == 201

    refused = alice("POST", CV, manifest("train"))
    assert (refused.status, refused.data["exit"]) == (403, 9)
    assert "user alice may not create groups in namespace cv" in refused.data["detail"]
    assert olga("POST", ML, manifest("mine")).status == 403

    # Everyone sees why others wait, and not what they run.
    assert names(bob) == ["label", "train"]
    train = bob("GET", f"{ML}/train").data
    assert train["status"]["submittedBy"] == "alice"
    assert b"words of" not in bob("GET", f"{ML}/train").body
    assert "words of train" in str(alice("GET", f"{ML}/train").data)
    assert "secret of train" in str(alice("GET", f"{ML}/train").data)
    for path in ("why", "logs"):
        assert bob("GET", f"{ML}/train/{path}").status == 403
        assert olga("GET", f"{ML}/train/{path}").status == 403

    assert bob("POST", f"{ML}/train/cancel").status == 403
    assert alice("POST", f"{CV}/label/cancel").status == 403
    assert olga("POST", f"{CV}/label/cancel", {"reason": "maintenance"}).status == 200
    assert alice("POST", f"{ML}/train/cancel").status == 200


def test_only_an_operator_lets_a_namespace_use_a_queue_that_is_for_others(
    lab: Lab, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Submissions use the queues as they were read last, for a second.
    monkeypatch.setattr("batchq.client.requests._QUEUES_S", 0)
    stage.furnish(a_queue("gpu", namespaces=("ml",)))
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:bob", "admin", "cv")
    lab.bind("user:olga", "operator")
    alice, bob, olga = (lab.user(name) for name in ("alice", "bob", "olga"))
    gate = [{"name": "review"}]
    assert alice("POST", ML, manifest("train", queue="gpu")).status == 201
    assert bob("POST", CV, manifest("gated", schedulingGates=gate)).status == 201

    refused = bob("POST", CV, manifest("train", queue="gpu"))
    sentence = "spec.queue: queue gpu accepts only groups of namespace ml, not of cv"
    hint = (
        "name another queue (default) or another namespace, or have cv added to spec.namespaces of"
        " gpu"
    )
    assert (refused.status, refused.data["code"]) == (422, "Rejected")
    assert refused.data["detail"] == f"PodGroup cv/train: {sentence}"
    assert refused.data["hint"] == hint
    lines = json.dumps(manifest("train", queue="gpu")).encode() + b"\n"
    bulk = bob("POST", f"{CV}/bulk", lines, Content_Type="application/x-ndjson")
    assert json.loads(bulk.body)["detail"] == f"PodGroup cv/train: {sentence}"
    moved = manifest("gated", schedulingGates=gate, queue="gpu")
    moved["metadata"]["namespace"] = "cv"
    edit = bob("POST", "/v1/requests", {"verb": "apply", "objects": [moved]})
    assert (edit.status, edit.data["detail"]) == (422, f"PodGroup cv/gated: {sentence}")
    assert names(olga) == ["gated", "train"]

    read = bob("GET", "/v1/queues/gpu")
    assert read.data["spec"]["namespaces"] == ["ml"]
    wider = read.data | {"spec": {"namespaces": ["ml", "cv"]}}
    etag = read.headers["etag"]
    assert bob("PUT", "/v1/queues/gpu", wider, If_Match=etag).status == 403
    assert olga("PUT", "/v1/queues/gpu", wider, If_Match=etag).status == 200
    assert bob("POST", CV, manifest("train", queue="gpu")).status == 201


def test_members_of_a_namespace_see_specs_and_only_owners_and_admins_see_output(
    lab: Lab, stage: Stage
) -> None:
    for name, role in (("alice", "submitter"), ("carl", "submitter"), ("vera", "viewer")):
        lab.bind(f"user:{name}", role, "ml")
    lab.bind("user:ada", "admin", "ml")
    alice, carl, vera, ada = (lab.user(name) for name in ("alice", "carl", "vera", "ada"))
    alice("POST", ML, manifest("train"))
    for caller, sees in ((alice, True), (ada, True), (carl, False), (vera, False)):
        body = caller("GET", f"{ML}/train").body.decode()
        assert "words of train" in body
        assert ("secret of train" in body) is sees
        assert (caller("GET", f"{ML}/train/logs").status == 200) is sees
    assert carl("POST", f"{ML}/train/cancel").status == 403
    assert vera("POST", ML, manifest("other")).status == 403


def test_the_owner_shares_output_with_the_namespace_and_with_no_other(
    lab: Lab, visibility: Visibility
) -> None:
    for name, role, namespace in (
        ("alice", "submitter", "ml"),
        ("vera", "viewer", "ml"),
        ("bob", "admin", "cv"),
        ("olga", "operator", "*"),
    ):
        lab.bind(f"user:{name}", role, namespace)
    callers = [lab.user(name) for name in ("alice", "vera", "bob", "olga")]
    alice, vera, *_ = callers
    alice("POST", ML, manifest("train", share="namespace"))
    alice("POST", ML, manifest("other"))

    def readers(name: str) -> list[bool]:
        sees = [f"secret of {name}".encode() in one("GET", f"{ML}/{name}").body for one in callers]
        logs = [one("GET", f"{ML}/{name}/logs").status == 200 for one in callers]
        assert sees == logs
        return sees

    # Where viewers see no groups of others, they see no shared ones either.
    assert readers("train") == [True, visibility is not Visibility.OWN, False, False]
    assert readers("other") == [True, False, False, False]
    assert vera("POST", f"{ML}/train/cancel").status in (403, 404)


def test_an_operator_neither_shares_nor_overwrites_what_is_hidden(lab: Lab) -> None:
    lab.bind("user:ben", "submitter", "ml")
    lab.bind("user:olga", "operator", "*")
    lab.bind("user:otto", "operator", "*")
    lab.bind("user:olga", "viewer", "ml")
    ben, olga, otto = (lab.user(name) for name in ("ben", "olga", "otto"))
    written = manifest("train")
    written["metadata"]["namespace"] = "ml"
    # Where operators oversee all groups, a viewer's sight adds the spec.
    ben("POST", ML, written)

    def applied(caller: Caller, document: dict[str, Any]) -> tuple[int, str]:
        got = caller("POST", "/v1/requests", {"verb": "apply", "objects": [document]})
        return got.status, got.data.get("detail", "")

    shared = {**written, "spec": {**written["spec"], "share": "namespace"}}
    status, sentence = applied(olga, shared)
    assert (status, "only those who may read its output decide who else may" in sentence) == (
        403,
        True,
    )
    for caller in (olga, otto):
        shown = caller("GET", f"{ML}/train").data
        shown["spec"]["priorityClassName"] = ""
        status, sentence = applied(caller, shown)
        assert (status, "this manifest would remove the rest" in sentence) == (403, True)
    assert olga("GET", f"{ML}/train/logs").status == 403
    template = ben("GET", f"{ML}/train").data["spec"]["tasks"][0]["template"]
    assert (template["env"], template["command"]) == (
        {"KEY": "secret of train"},
        ["echo", "words of train"],
    )
    assert applied(ben, shared)[0] == 200


def test_a_role_that_is_taken_away_is_gone_with_the_next_request(lab: Lab) -> None:
    lab.bind("user:alice", "submitter", "ml")
    alice = lab.user("alice")
    assert alice("GET", "/v1/groups").status == 200
    lab.unbind("user:alice", "submitter", "ml")
    lab.wait(lambda: alice("GET", "/v1/groups").status == 403)
    assert alice("GET", "/v1/groups").data["detail"] == "user alice has no role"


def test_the_first_request_after_the_start_is_decided_by_the_stored_roles(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(application: ApiApplication) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(ApiApplication, "_keep_book", never)
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        delegate.access.grant(parse_binding("user:alice", "submitter", "ml"), ROOT)
        named = {"Batchq_As": "alice", "Batchq_Reason": "a test"}
        assert api.caller()("POST", ML, manifest("train"), **named).status == 201


def test_a_revoked_token_cuts_a_watch_within_a_second(lab: Lab, stage: Stage) -> None:
    lab.bind("user:alice", "viewer", "ml")
    alice = lab.user("alice")
    [record] = lab.delegate.access.state().tokens.values()
    with alice.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        lab.delegate.access.revoke_token(record.id, ROOT)
        cut: list[dict[str, str]] = []
        reader = threading.Thread(target=lambda: cut.extend(events))
        reader.start()
        # Half a second, and as long as a busy machine takes.
        reader.join(60)
        assert not reader.is_alive()
    assert [event["event"] for event in cut] == ["ERROR"]
    assert json.loads(cut[0]["data"])["detail"] == f"token {record.id} was revoked"
    refused = alice("GET", "/v1/groups")
    assert refused.status == 401
    assert 'error_description="revoked"' in refused.headers["www-authenticate"]


def test_a_watcher_whose_roles_change_lists_again_and_one_without_roles_is_cut(
    lab: Lab, stage: Stage
) -> None:
    lab.bind("user:alice", "viewer", "ml")
    alice = lab.user("alice")
    with alice.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        lab.bind("user:alice", "submitter", "ml")
        assert [event["event"] for event in events] == ["RESYNC"]
    with alice.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        lab.bind("user:bob", "submitter", "ml")
        lab.unbind("user:alice", "submitter", "ml")
        assert [event["event"] for event in events] == ["RESYNC"]
    with alice.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        lab.unbind("user:alice", "viewer", "ml")
        [end] = list(events)
    assert (end["event"], json.loads(end["data"])["detail"]) == ("ERROR", "user alice has no role")


def test_a_token_permits_at_most_its_scope(lab: Lab) -> None:
    lab.bind("user:alice", "admin")
    whole, reads, of_ml = (
        lab.user("alice"),
        lab.user("alice", verbs=(Verb.READ,)),
        lab.user("alice", verbs=(Verb.READ, Verb.CREATE)),
    )
    assert whole("POST", ML, manifest("one")).status == 201
    refused = reads("POST", ML, manifest("two"))
    assert (refused.status, refused.data["detail"]) == (
        403,
        "the token's scope does not include: create groups in namespace ml",
    )
    assert of_ml("POST", ML, manifest("two")).status == 201
    assert of_ml("POST", f"{ML}/two/cancel").status == 403


def test_no_answer_and_no_log_contains_a_secret_or_its_digest(
    lab: Lab, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    lab.bind("user:root", "operator")
    lab.bind("user:root", "admin")
    access = lab.delegate.access
    made = [
        access.create_token("root", ROOT),
        access.invite("bob", ROOT),
        access.invite_node("gpu1", ROOT),
        access.log_in("ana@example.org", ["oidc:ml"], "5f" * 32, ROOT),
    ]
    root = lab.caller(made[0].text)
    for one in made[1:]:
        assert lab.caller(one.text)("GET", "/v1/groups/nothing").status in (200, 401, 404)
    secrets = [part for one in made for part in (one.text.split("_", 2)[2][:43], one.record.digest)]
    names = {"namespace": "ml", "name": "default", "id": made[0].record.id, "session": "0" * 48}
    reads = [one for one in ROUTES if one.method == "GET" and one.name != "awaitChange"]
    for route in reads:
        found = root("GET", route.path.format(**names)).body.decode()
        assert [secret for secret in secrets if secret in found] == [], route.path
    out, err = capfd.readouterr()
    assert [secret for secret in secrets if secret in out + err] == []


def test_a_token_makes_no_tokens_and_the_socket_makes_the_callers_own(
    lab: Lab, running_api: RunningApi
) -> None:
    lab.bind("user:alice", "admin")
    alice = lab.user("alice")
    refused = alice("POST", "/v1/tokens", {"note": "another"})
    assert (refused.status, refused.data["detail"]) == (403, "a token cannot create tokens")
    root = running_api.caller()
    made = root("POST", "/v1/tokens", {"note": "laptop", "days": 1, "verbs": ["read"]})
    assert (made.status, made.data["verbs"]) == (201, ["read"])
    # This process knows its own token at once.
    mine = running_api.caller(made.data["token"])
    assert mine("GET", "/v1/me").data["user"] == root("GET", "/v1/me").data["user"]
    assert root("DELETE", f"/v1/tokens/{made.data['id']}").status == 200
    assert mine("GET", "/v1/me").status == 401
    assert "token" not in str(root("GET", "/v1/tokens").data["items"][0].keys())


def test_users_see_and_revoke_their_own_tokens_only(lab: Lab) -> None:
    lab.bind("user:alice", "viewer", "ml")
    lab.bind("user:olga", "operator")
    alice, bob, olga = (lab.user(name) for name in ("alice", "bob", "olga"))
    owners = lambda caller: [  # noqa: E731 (said three times)
        one["owner"] for one in caller("GET", "/v1/tokens").data["items"]
    ]
    assert (owners(alice), owners(bob)) == (["alice"], ["bob"])
    assert sorted(owners(olga)) == ["alice", "bob", "olga"]
    [of_bob] = bob("GET", "/v1/tokens").data["items"]
    missing = alice("DELETE", "/v1/tokens/abcdefghij")
    hidden = alice("DELETE", f"/v1/tokens/{of_bob['id']}")
    assert (hidden.status, missing.status) == (404, 404)
    assert olga("DELETE", f"/v1/tokens/{of_bob['id']}").status == 200
    lab.wait(lambda: bob("GET", "/v1/tokens").status == 401)


@pytest.mark.parametrize(
    "written",
    [
        "Bearer bqt_x", "Bearer", "Basic YTpi", "bqt_abcdefghij",
        "Bearer bqt_abcdefghij_" + "x" * 43 + "_000000",
    ],
)  # fmt: skip
def test_something_else_than_a_token_is_refused(running_api: RunningApi, written: str) -> None:
    # Through the socket as well: a header that is there decides.
    refused = running_api.caller()("GET", "/v1/me", Authorization=written)
    assert refused.status == 401
    assert refused.data["code"] == "Unauthenticated"


def test_guessing_tokens_is_slowed_down_and_valid_ones_are_accepted(lab: Lab) -> None:
    lab.bind("user:alice", "viewer", "ml")
    alice = lab.user("alice")
    guesser = lab.caller("bqt_guess")
    answers = [guesser("GET", "/v1/me") for _ in range(25)]
    assert (answers[0].status, answers[-1].status) == (401, 429)
    assert answers[-1].data["detail"] == "too many wrong tokens came from this address"
    assert alice("GET", "/v1/me").status == 200


def test_a_role_that_another_process_has_granted_counts_at_the_next_request(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The API does not look for changes by itself after its start.
    monkeypatch.setattr(application, "LOOK_S", 1000.0)
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        lab = Lab(api, delegate)
        bob = lab.user("bob")
        refused = bob("POST", ML, manifest("train"))
        assert (refused.status, "may not create groups" in refused.data["detail"]) == (403, True)
        lab.bind("user:bob", "submitter", "ml")
        assert bob("POST", ML, manifest("train")).status == 201


def test_a_group_that_the_api_remembers_permits_nothing_to_another_user(
    lab: Lab, stage: Stage
) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:bob", "submitter", "cv")
    alice, bob = lab.user("alice"), lab.user("bob")

    def submitted(caller: Caller, name: str, namespace: str) -> int:
        group = manifest(name)
        group["metadata"]["namespace"] = namespace
        return caller("POST", "/v1/requests", {"verb": "submit", "objects": [group]}).status

    for number in range(4):
        assert submitted(alice, f"a-{number}", "ml") == 200
        assert submitted(bob, f"b-{number}", "ml") == 403
        assert submitted(bob, f"a-{number}", "ml") == 403
        assert submitted(bob, f"b-{number}", "cv") == 200
    groups = [one for one in stage.client.list("PodGroup") if isinstance(one, PodGroup)]
    owners = {one.metadata.name: one.status.submitted_by for one in groups}
    assert owners == {f"{name[0]}-{n}": name for name in ("alice", "bob") for n in range(4)}


def test_a_submission_with_the_name_of_anothers_group_names_the_group_and_its_owner(
    lab: Lab,
) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:bob", "submitter", "ml")
    lab.bind("user:vic", "viewer", "ml")
    alice, bob, vic = lab.user("alice"), lab.user("bob"), lab.user("vic")
    assert alice("POST", ML, manifest("nightly")).status == 201
    group = manifest("nightly", cpu="2")
    group["metadata"]["namespace"] = "ml"
    request = {"verb": "submit", "objects": [group]}
    refused = bob("POST", "/v1/requests", request)
    assert (refused.status, refused.data["detail"], refused.data["hint"]) == (
        409,
        "PodGroup ml/nightly exists already, and was submitted by alice",
        "choose another name",
    )
    # Only a change of the group is a question of rights, and so is any submission of a viewer.
    assert bob("POST", "/v1/requests", {**request, "verb": "apply"}).status == 403
    assert vic("POST", "/v1/requests", request).status == 403
    own = alice("POST", "/v1/requests", request)
    assert (own.status, own.data["detail"]) == (
        409,
        "PodGroup ml/nightly exists already and is Pending",
    )


def test_requests_of_a_forbidden_namespace_are_refused_and_the_others_are_accepted(
    lab: Lab,
) -> None:
    lab.bind("user:alice", "submitter", "ml")
    requests = [
        {"command": ["true"], "name": name, "namespace": namespace}
        for name, namespace in (("a", "ml"), ("b", "cv"), ("c", "cv"), ("d", "ml"))
    ]
    with lab.client("alice") as alice:
        outcomes = list(alice.submit_many(requests))
        with pytest.raises(Forbidden, match="user alice may not create groups in namespace cv"):
            alice.submit(command=["true"], namespace="cv")
    errors = {one.place: one.error for one in outcomes if isinstance(one, Refused)}
    assert [one.place for one in outcomes] == [0, 1, 2, 3]
    assert list(errors) == [1, 2]
    assert isinstance(errors[1], Forbidden)
    assert errors[1].message.startswith("user alice may not create groups in namespace cv: ")


def test_an_admin_grants_roles_of_the_namespace_and_sees_those_only(lab: Lab) -> None:
    lab.bind("user:ada", "admin", "ml")
    lab.bind("user:bob", "submitter", "cv")
    ada = lab.user("ada")
    carl = {"subject": "user:carl", "role": "submitter", "namespace": "ml"}
    assert [ada("POST", "/v1/bindings", carl).status for _ in range(2)] == [201, 200]
    for other in (
        carl | {"namespace": "cv"},
        carl | {"namespace": "*"},
        {"subject": "user:carl", "role": "operator"},
        {"subject": "user:ada", "role": "viewer", "namespace": "ml"},
    ):
        assert ada("POST", "/v1/bindings", other).status == 403, other
    subjects = [one["subject"] for one in ada("GET", "/v1/bindings").data["items"]]
    assert subjects == ["user:ada", "user:carl"]
    assert ada("DELETE", "/v1/bindings?subject=user:bob&role=submitter&namespace=cv").status == 403
    gone = ada("DELETE", "/v1/bindings?subject=user:carl&role=submitter&namespace=ml")
    assert gone.status == 200


def test_changes_and_refusals_are_audited_with_their_reason(lab: Lab) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:aude", "auditor")
    alice, aude = lab.user("alice"), lab.user("aude")
    alice("POST", CV, manifest("train"))
    assert alice("GET", "/v1/audit").status == 403
    items = aude("GET", "/v1/audit").data["items"]
    last = {name: items[-2][name] for name in ("user", "via", "outcome", "verb", "kind", "name")}
    assert last == {
        "user": "alice", "via": "token", "outcome": "refused",
        "verb": "submit", "kind": "groups", "name": "cv",
    }  # fmt: skip
    refused = items[-1]
    assert (refused["verb"], refused["kind"], refused["name"]) == ("read", "audit", "")
    assert all(one["isChained"] for one in items)
    assert aude("GET", "/v1/groups").data["items"] == []


def test_a_refusal_is_audited_with_the_deed_and_the_object(lab: Lab) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:ben", "submitter", "ml")
    lab.bind("user:aude", "auditor")
    alice, ben, aude = lab.user("alice"), lab.user("ben"), lab.user("aude")
    alice("POST", ML, manifest("train"))
    assert ben("POST", f"{ML}/train/suspend").status == 403
    elsewhere = manifest("train")
    elsewhere["metadata"]["namespace"] = "cv"
    changed = manifest("train", cpu="2")
    changed["metadata"]["namespace"] = "ml"
    for verb, item in (("submit", elsewhere), ("apply", changed)):
        assert ben("POST", "/v1/requests", {"verb": verb, "objects": [item]}).status == 403
    items = aude("GET", "/v1/audit").data["items"][-3:]
    assert [(one["outcome"], one["verb"], one["kind"], one["name"]) for one in items] == [
        ("refused", "suspend", "groups", "ml/train"),
        ("refused", "submit", "groups", "cv/train"),
        ("refused", "update", "groups", "ml/train"),
    ]


def test_a_refusal_says_who_can_grant_what_is_missing(lab: Lab) -> None:
    lab.bind("user:alice", "submitter", "ml")
    alice = lab.user("alice")
    by_both = "an operator, or an admin of the namespace, can grant it: `batchq access`"
    assert alice("POST", CV, manifest("train")).data["hint"] == by_both
    by_operator = "an operator can grant it: `batchq access`"
    assert alice("GET", "/v1/audit").data["hint"] == by_operator
    assert alice("POST", "/v1/nodes/n1/cordon").data["hint"] == by_operator


def test_reading_and_ending_what_belongs_to_others_is_audited(lab: Lab, stage: Stage) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:ada", "admin", "ml")
    lab.bind("user:aude", "auditor")
    alice, ada, aude = lab.user("alice"), lab.user("ada"), lab.user("aude")
    alice("POST", ML, manifest("train"))
    assert alice("GET", f"{ML}/train/logs").status == 200
    assert ada("GET", f"{ML}/train/logs").status == 200
    assert ada("POST", f"{ML}/train/cancel").status == 200
    items = aude("GET", "/v1/audit").data["items"][-2:]
    assert [(one["user"], one["verb"], one["kind"], one["name"]) for one in items] == [
        ("ada", "read", "the output of groups", "ml/train"),
        ("ada", "cancel", "groups", "ml/train"),
    ]
    assert {one["because"] for one in items} == {"user:ada is admin in namespace ml"}


def test_every_change_is_audited_by_the_script_that_makes_it(lab: Lab) -> None:
    lab.bind("user:alice", "submitter", "ml")
    lab.bind("user:aude", "auditor")
    alice, aude = lab.user("alice"), lab.user("aude")
    before = len(aude("GET", "/v1/audit").data["items"])
    assert alice("POST", ML, manifest("train")).status == 201
    assert alice("POST", ML, manifest("train")).status == 200
    # What is refused by the rules of groups changes nothing, and leaves no record.
    assert alice("POST", ML, manifest("train", cpu="2")).status == 409
    for verb in ("suspend", "suspend", "resume", "cancel"):
        assert alice("POST", f"{ML}/train/{verb}").status == 200
    keys = [{"kind": "PodGroup", "key": "ml/train"}]
    assert alice("POST", "/v1/requests", {"verb": "delete", "keys": keys}).status == 200
    items = aude("GET", "/v1/audit").data["items"][before:]
    assert [(one["user"], one["verb"], one["kind"], one["name"]) for one in items] == [
        ("alice", "submit", "groups", "ml/train"),
        ("alice", "suspend", "groups", "ml/train"),
        ("alice", "resume", "groups", "ml/train"),
        ("alice", "cancel", "groups", "ml/train"),
        ("alice", "delete", "groups", "ml/train"),
    ]
    assert {one["because"] for one in items} == {"user:alice is submitter in namespace ml"}
    assert all(one["isChained"] for one in aude("GET", "/v1/audit").data["items"])


def hidden(name: str, word: str) -> dict[str, Any]:
    """Return a group whose command, labels, annotations and variables say `word`."""
    group = manifest(name)
    group["metadata"]["labels"] = {"word": word}
    group["metadata"]["annotations"] = {"word": word}
    template = group["spec"]["tasks"][0]["template"]
    template |= {"command": [word], "env": {word: word}, "nodeSelector": {}, "labels": {"w": word}}
    return group


#: What depends on the instant, or counts everything that is written.
UNSTEADY = {
    *("uid", "revision", "creationTimestamp", "queueTime", "lastTransitionTime", "instance"),
    *("inQueueAt", "reservedAt", "at"),
}


def steady(document: Any) -> Any:
    match document:
        case {"titles": titles, "rows": rows}:
            age = titles.index("AGE")
            return {**document, "rows": [row[:age] + row[age + 1 :] for row in rows]}
        case dict():
            return {key: steady(value) for key, value in document.items() if key not in UNSTEADY}
        case list():
            return [steady(one) for one in document]
        case _:
            return document


def everything(caller: Caller, group: str) -> list[Any]:
    """Return what a caller learns from every route about a group of another namespace."""
    paths = [
        "/v1/groups", "/v1/groups?label=word=secret", "/v1/groups?q=train", "/v1/groups?owner=bob",
        "/v1/groups?limit=1", CV, f"{CV}?phase=Pending", "/v1/tokens", "/v1/bindings", "/v1/audit",
        *(f"{CV}/{group}{end}" for end in ("", "/why", "/logs", "/logs?follow=true", "/outcome")),
        f"{CV}/{group}/results", "/v1/views/gates", "/v1/nodes", "/v1/nodes/n1",
        "/v1/views/jobs", "/v1/views/jobs?form=json&phase=Pending", "/v1/views/jobs?queue=default",
        "/v1/views/groups", "/v1/views/groups?paged=true&finished=0", "/v1/events", "/v1/pods",
        "/v1/namespaces/cv/pods", "/v1/namespaces/cv/quotas", "/v1/queues",
        *(f"/v1/views/{view}/cv/{group}" for view in ("explanations", "checks")),
        f"/v1/namespaces/cv/pods/{group}-main-0",
    ]  # fmt: skip
    answers = [caller("GET", path) for path in paths]
    answers += [caller("POST", f"{CV}/{group}/{verb}") for verb in ("cancel", "suspend", "resume")]
    keys = [{"kind": "PodGroup", "key": f"cv/{group}"}]
    answers += [
        caller("POST", CV, manifest(group)),
        caller("POST", f"{CV}/{group}/gates", {"gate": "data"}),
        caller("POST", "/v1/requests", {"verb": "delete", "keys": keys}),
    ]
    found = [(one.status, steady(one.data)) for one in answers]
    listed = []
    for kind in ("queues", "nodes", "groups"):
        with caller.events(f"/v1/{kind}?watch=true") as events:
            listed.append([json.loads(event["data"]) for event in events.until("BOOKMARK")])
    return [*found, *steady(listed)]


@pytest.mark.parametrize("word", ["secret", "public"])
def test_facts_of_others_say_nothing_of_what_they_run(
    lab: Lab, stage: Stage, server: Server, word: str
) -> None:
    lab.bind("user:alice", "viewer", "ml")
    with Delegate(server.url) as delegate:
        group = hidden("train", word)
        group["metadata"]["namespace"] = "cv"
        delegate.client_of("bob").submit(group)
    stage.turn()
    found = everything(lab.user("alice"), "train")
    # Both worlds give these answers, so the reader cannot tell them apart.
    facts = {"name": "main", "template": {"requests": {"cpu": "1"}}}
    assert [part[0] for part in found[:7]] == [200] * 7
    assert [one["spec"]["tasks"] for one in found[0][1]["items"]] == [[facts]]
    assert [one["object"]["spec"]["tasks"] for one in found[-1][:-1]] == [[facts]]
    assert found[1][1]["items"] == []
    assert word not in json.dumps(found)


@pytest.mark.parametrize("visibility", [Visibility.NAMESPACES, Visibility.OWN], indirect=True)
def test_groups_beyond_sight_do_not_exist(
    lab: Lab, stage: Stage, server: Server, submit_as: SubmitAs
) -> None:
    lab.bind("user:alice", "submitter", "ml")
    alice = lab.user("alice")
    own = manifest("mine", cpu="8")
    assert alice("POST", ML, own).status == 201
    stage.turn()
    before = everything(alice, "train")
    with Delegate(server.url) as delegate:
        for number in range(3):
            group = hidden(f"train{number or ''}", "secret")
            group["metadata"]["namespace"] = "cv"
            delegate.client_of("bob").submit(group)
        delegate.client_of("bob").cancel("cv/train2")
    stage.turn()
    lab.wait(lambda: alice("GET", "/v1/groups").status == 200)
    assert everything(alice, "train") == before


@pytest.mark.parametrize("visibility", [Visibility.OWN], indirect=True)
def test_groups_of_others_in_ones_own_namespace_are_beyond_sight_too(
    lab: Lab, stage: Stage, submit_as: SubmitAs
) -> None:
    lab.bind("user:alice", "submitter", "ml")
    alice = lab.user("alice")
    assert alice("POST", ML, manifest("mine", cpu="8")).status == 201
    theirs = hidden("theirs", "secret")
    theirs["metadata"]["namespace"] = "ml"
    submit_as("bob", theirs)
    stage.turn()
    listed = alice("GET", ML).data["items"]
    assert [one["metadata"]["name"] for one in listed] == ["mine"]
    missing = alice("GET", f"{ML}/theirs")
    assert (missing.status, missing.data["detail"]) == (404, "PodGroup ml/theirs does not exist")
    # The name of a group that does not exist is answered in the same words.
    assert alice("GET", f"{ML}/nothing").data["detail"] == "PodGroup ml/nothing does not exist"
    # Two groups cannot have one name, but whose the other one is stays hidden.
    for taken in (
        alice("POST", ML, theirs),
        alice("POST", "/v1/requests", {"verb": "submit", "objects": [theirs]}),
    ):
        assert taken.status == 409
        assert "bob" not in taken.body.decode()
    why = alice("GET", f"{ML}/mine/why")
    assert why.data["podGroup"] == "ml/mine"
    assert "theirs" not in why.body.decode()


@pytest.mark.parametrize("visibility", [Visibility.NAMESPACES, Visibility.OWN], indirect=True)
def test_manifests_are_whole_where_names_of_others_are_hidden(lab: Lab, server: Server) -> None:
    lab.bind("user:alice", "submitter", "ml")
    alice = lab.user("alice")
    group = manifest("mine")
    group["metadata"]["namespace"] = "ml"
    group["spec"]["tasks"][0]["template"]["command"] = ["python", "data/train.py"]
    asked = {"verb": "submit", "objects": [group]}
    [row] = alice("POST", "/v1/requests", asked).data["items"]
    for found in (row["object"], alice("GET", f"{ML}/mine").data):
        assert found["apiVersion"] == "batchq/v1"
        [task] = found["spec"]["tasks"]
        assert task["template"]["command"] == ["python", "data/train.py"]
    [queue] = alice("GET", "/v1/queues").data["items"]
    assert queue["apiVersion"] == "batchq/v1"


@pytest.mark.parametrize("visibility", [Visibility.NAMESPACES], indirect=True)
def test_an_explanation_counts_groups_beyond_sight_and_does_not_name_them(
    lab: Lab, stage: Stage, server: Server
) -> None:
    lab.bind("user:alice", "submitter", "ml")
    alice = lab.user("alice")
    with Delegate(server.url) as delegate:
        for number in range(2):
            group = hidden(f"big{number}", "secret")
            group["metadata"]["namespace"] = "cv"
            group["spec"]["tasks"][0]["template"]["requests"] = {"cpu": "5"}
            delegate.client_of("bob").submit(group)
    stage.turn()
    assert alice("POST", ML, manifest("mine", cpu="8")).status == 201
    stage.turn()
    why = alice("GET", f"{ML}/mine/why")
    assert why.status == 200
    assert why.data["ahead"]["otherNamespaces"] == 1
    assert why.data["reasons"]
    for name in itertools.chain(("cv/", "secret"), (f"big{number}" for number in range(2))):
        assert name not in why.body.decode()


def test_events_of_queues_and_nodes_are_for_those_who_may_read_these(
    lab: Lab, stage: Stage
) -> None:
    lab.bind("user:aude", "auditor")
    lab.bind("user:alice", "viewer", "ml")
    stage.client.set_stop_policy("default", "Hold")
    shown = [one["kind"] for one in lab.user("alice")("GET", "/v1/events").data]
    assert "Queue" in shown
    for caller in (lab.user("aude"), lab.user("alice", namespaces=("ml",))):
        assert caller("GET", "/v1/queues").data["items"] == []
        assert [one["kind"] for one in caller("GET", "/v1/events").data] == []
