"""An operator acts in the name of a user: as far as that user may, recorded under both names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from batchq.api.access import Scope, Verb, parse_binding
from batchq.client.access_control import Actor, AuditRecord, Delegate
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.manifests import groups_of, manifest

ML, CV = groups_of("ml"), groups_of("cv")
ROOT = Actor(user="root@host", via="redis")
FOR_ALICE = {"Batchq_As": "alice", "Batchq_Reason": "ticket%207"}


class Office(NamedTuple):
    """An operator, and a submitter of ml."""

    delegate: Delegate
    api: RunningApi
    olga: Caller
    alice: Caller

    def records(self) -> list[AuditRecord]:
        """Return what was done or refused over the API."""
        found = [one.record for one in self.delegate.access.audit(50)]
        return [one for one in found if one.via == "token"]


@pytest.fixture
def office(server: Server, stage: Stage) -> Iterator[Office]:
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        access = delegate.access
        access.grant(parse_binding("user:olga", "operator", "*"), ROOT)
        access.grant(parse_binding("user:alice", "submitter", "ml"), ROOT)
        olga, alice = (api.caller(access.create_token(who, ROOT).text) for who in ("olga", "alice"))
        assert (olga("GET", "/v1/me").status, alice("GET", "/v1/me").status) == (200, 200)
        yield Office(delegate, api, olga, alice)


def test_a_group_belongs_to_the_user_and_names_the_operator(office: Office) -> None:
    made = office.olga("POST", ML, manifest("train"), **FOR_ALICE)
    assert made.status == 201
    assert made.data["status"]["submittedBy"] == "alice"
    assert made.data["metadata"]["annotations"] == {"batchq/submitted-by": "olga"}
    assert office.alice("GET", f"{ML}/train").data["spec"] == made.data["spec"]
    [record] = office.records()
    assert (record.user, record.by, record.reason) == ("alice", "olga", "ticket 7")
    assert record.because == "user:alice is submitter in namespace ml"
    [row] = [one for one in audit(office) if one["kind"] == "groups"]
    assert (row["user"], row["by"], row["reason"]) == ("alice", "olga", "ticket 7")


def audit(office: Office) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = office.olga("GET", "/v1/audit").data["items"]
    return found


def test_an_operator_reads_output_in_its_owners_name_only_and_that_is_recorded(
    office: Office,
) -> None:
    office.alice("POST", ML, manifest("train"))
    assert office.olga("GET", f"{ML}/train/logs").status == 403
    assert office.olga("GET", f"{ML}/train/logs", **FOR_ALICE).status == 200
    *_, record = office.records()
    assert (record.verb, record.kind, record.name) == ("read", "the output of groups", "ml/train")
    assert (record.user, record.by, record.reason) == ("alice", "olga", "ticket 7")


def test_nothing_is_possible_that_the_user_may_not(office: Office) -> None:
    refused = office.olga("POST", CV, manifest("train"), **FOR_ALICE)
    assert refused.status == 403
    assert "user alice may not create groups in namespace cv" in refused.data["detail"]
    assert office.olga("GET", "/v1/audit", **FOR_ALICE).status == 403
    without_role = FOR_ALICE | {"Batchq_As": "nina"}
    refused = office.olga("GET", "/v1/groups", **without_role)
    assert (refused.status, refused.data["detail"]) == (403, "user nina has no role")


def test_only_operators_act_in_the_name_of_others(office: Office) -> None:
    asked = {"Batchq_As": "olga", "Batchq_Reason": "curious"}
    refused = office.alice("GET", "/v1/audit", **asked)
    assert refused.status == 403
    assert "user alice may not impersonate users" in refused.data["detail"]
    assert [(one.user, one.outcome) for one in office.records()] == [("alice", "refused")]


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"Batchq_Reason": ""}, "Batchq-Reason: expected why you act in the name of alice"),
        ({"Batchq_Reason": "%1b[2J"}, "Batchq-Reason: expected why"),
        ({"Batchq_Reason": "x" * 201}, "in a line of at most 200 characters"),
        ({"Batchq_As": "../x"}, "Batchq-As: expected the name of a user, found '../x'"),
        ({"Batchq_As": ""}, "Batchq-As: expected the name of a user, found ''"),
    ],
)
def test_a_malformed_request_is_refused_in_a_sentence(
    office: Office, headers: dict[str, str], sentence: str
) -> None:
    refused = office.olga("GET", "/v1/groups", **{**FOR_ALICE, **headers})
    assert refused.status == 400
    assert sentence in refused.data["detail"]


def test_the_scope_of_the_operators_token_remains(office: Office) -> None:
    scope = Scope(verbs=(Verb.READ, Verb.IMPERSONATE))
    narrow = office.delegate.access.create_token("olga", ROOT, scope=scope)
    olga = office.api.caller(narrow.text)
    assert olga("GET", "/v1/groups", **FOR_ALICE).status == 200
    assert olga("POST", ML, manifest("train"), **FOR_ALICE).status == 403


def test_a_watch_in_the_name_of_a_user_ends_with_the_right_to_it(office: Office) -> None:
    with office.olga.events("/v1/groups?watch=true", **FOR_ALICE) as events:
        assert events.until("BOOKMARK")
        office.delegate.access.withdraw(parse_binding("user:olga", "operator", "*"), ROOT)
        [*_, last] = events
    assert last["event"] == "ERROR"
    assert "user olga has no role" in last["data"]
