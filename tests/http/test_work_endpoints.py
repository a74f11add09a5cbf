"""Plans, gates and results over the API: who may ask for them, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchq.api.access import Visibility, parse_binding
from batchq.client.access_control import Actor, Delegate
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.conftest import SubmitAs
from tests.http.manifests import groups_of, manifest

ROOT = Actor(user="root@host", via="redis")
GATED = {"schedulingGates": [{"name": "data"}, {"name": "licence"}]}


def in_namespace(namespace: str, document: dict[str, object]) -> dict[str, object]:
    """Return a manifest with a namespace."""
    meta = document["metadata"]
    assert isinstance(meta, dict)
    return {**document, "metadata": {**meta, "namespace": namespace}}


def caller(server: Server, api: RunningApi, user: str, *roles: tuple[str, str]) -> Caller:
    """Return a caller with a token of a user, who has these roles (role, namespace)."""
    with Delegate(server.url) as delegate:
        for role, namespace in roles:
            delegate.access.grant(parse_binding(f"user:{user}", role, namespace), ROOT)
        return api.caller(delegate.access.create_token(user, ROOT).text)


@pytest.fixture
def api_of_own(server: Server, stage: Stage) -> Iterator[RunningApi]:
    """An API whose users see their own groups only."""
    with RunningApi(server.url, visibility=Visibility.OWN) as api:
        yield api


def test_a_plan_says_what_would_happen_and_stores_nothing(api: Caller, stage: Stage) -> None:
    plan = api("POST", "/v1/views/plans", {"objects": [in_namespace("default", manifest("a"))]})
    assert (plan.status, plan.data["outcome"]) == (200, "Now")
    large = in_namespace("default", manifest("b", cpu="100"))
    never = api("POST", "/v1/views/plans", {"objects": [large], "advise": False})
    assert (never.data["outcome"], never.data["groups"][0]["advice"]) == ("Never", [])
    assert list(stage.client.list("PodGroup")) == []


def test_a_plan_for_another_namespace_is_refused(
    server: Server, running_api: RunningApi, stage: Stage
) -> None:
    ben = caller(server, running_api, "ben", ("viewer", "speech"))
    own = {"objects": [in_namespace("speech", manifest("a"))]}
    assert ben("POST", "/v1/views/plans", own).status == 200
    other = {"objects": [in_namespace("vision", manifest("a"))]}
    refused = ben("POST", "/v1/views/plans", other)
    assert (refused.status, refused.data["code"]) == (403, "Forbidden")
    quota = {"apiVersion": "batchq/v1", "kind": "ResourceQuota"}
    quota |= {"metadata": {"name": "default", "namespace": "vision"}, "spec": {"hard": {"cpu": 1}}}
    nobody = caller(server, running_api, "eve")
    assert nobody("POST", "/v1/views/plans", {"objects": [quota]}).status == 403


def test_a_plan_is_bounded_and_names_what_is_wrong(api: Caller) -> None:
    many = api("POST", "/v1/views/plans", {"objects": [{}] * 1001})
    assert (many.status, many.data["detail"]) == (
        400, "objects: expected at most 1000 to plan, found 1001",
    )  # fmt: skip
    assert api("POST", "/v1/views/plans", {"objects": []}).status == 400
    assert api("POST", "/v1/views/plans", {"objects": [], "force": True}).status == 400


def test_under_visibility_own_a_plan_and_gates_name_no_group_of_others(
    server: Server, api_of_own: RunningApi, stage: Stage, submit_as: SubmitAs
) -> None:
    submit_as("ana", in_namespace("vision", manifest("secret", cpu="8")))
    submit_as("ana", in_namespace("vision", manifest("hidden", **GATED)))
    stage.turn()
    ben = caller(server, api_of_own, "ben", ("submitter", "vision"))
    plan = ben(
        "POST", "/v1/views/plans", {"objects": [in_namespace("vision", manifest("b", cpu="8"))]}
    )
    assert (plan.status, plan.data["outcome"]) == (200, "Waits")
    assert b"secret" not in plan.body
    assert ben("GET", "/v1/views/gates").data == []


def test_only_the_owner_an_admin_or_an_operator_opens_a_gate(
    server: Server, running_api: RunningApi, stage: Stage, submit_as: SubmitAs
) -> None:
    submit_as("ana", in_namespace("vision", manifest("train", **GATED)))
    gates = f"{groups_of('vision')}/train/gates"
    ben = caller(server, running_api, "ben", ("submitter", "vision"))
    assert [one["gate"] for one in ben("GET", "/v1/views/gates").data] == ["data", "licence"]
    assert ben("POST", gates, {"gate": "data"}).status == 403
    ana = caller(server, running_api, "ana", ("submitter", "vision"))
    assert ana("POST", gates, {"gate": "data"}).data == {"changed": True}
    assert ana("POST", gates, {"gate": "data"}).data == {"changed": False}
    [licence] = ana("GET", "/v1/views/gates?gate=licence").data
    assert [(one["name"], one["by"]) for one in licence["opened"]] == [("data", "ana")]
    assert ana("POST", gates).data == {"changed": True}
    assert ana("GET", "/v1/views/gates").data == []
    assert ana("POST", gates, {"gate": "nothing"}).status == 404


def test_results_are_for_the_owner_and_admins_and_reading_those_of_others_is_recorded(
    server: Server, running_api: RunningApi, stage: Stage, submit_as: SubmitAs
) -> None:
    group = manifest("sums")
    spec = group["spec"]
    assert isinstance(spec, dict)
    template = {"function": "a:b", "requests": {"cpu": "1"}}
    spec["tasks"] = [{"name": "main", "template": template}]
    submit_as("ana", group)
    stage.turn()
    stage.start("sums")
    [pod] = stage.pods("sums")
    written = b'["vision/other", NaN]'
    stage.store.put_result(pod.status.node, pod.metadata.uid, pod.status.attempt, written)
    results = f"{groups_of('default')}/sums/results"
    ana = caller(server, running_api, "ana", ("submitter", "default"))
    unfinished = ana("GET", results)
    assert (unfinished.status, unfinished.data["code"]) == (504, "WaitTimedOut")
    stage.end("sums")
    assert ana("GET", results).data == {pod.metadata.name: '["vision/other", NaN]'}
    ben = caller(server, running_api, "ben", ("submitter", "default"))
    assert ben("GET", results).status == 403
    cho = caller(server, running_api, "cho", ("admin", "default"))
    assert cho("GET", results).status == 200
    with Delegate(server.url) as delegate:
        read = [one.record for one in delegate.access.audit(50) if one.record.verb == "read"]
    assert [(one.user, one.name) for one in read if one.outcome == "done"] == [
        ("cho", "default/sums")
    ]


def test_a_table_of_groups_has_rows_for_what_the_caller_sees_only(
    server: Server, api_of_own: RunningApi, stage: Stage, submit_as: SubmitAs
) -> None:
    submit_as("ana", in_namespace("vision", manifest("secret", cpu="8")))
    submit_as("ben", in_namespace("vision", manifest("waits", cpu="8")))
    stage.turn()
    ben = caller(server, api_of_own, "ben", ("submitter", "vision"))
    table = ben("GET", "/v1/views/jobs")
    assert table.data["titles"][:3] == ["NAMESPACE", "NAME", "QUEUE"]
    assert [row[:2] for row in table.data["rows"]] == [["vision", "waits"]]
    assert b"secret" not in table.body
    cho = caller(server, api_of_own, "cho", ("submitter", "speech"))
    assert cho("GET", "/v1/views/jobs").data["rows"] == []
    ended = ben("GET", "/v1/views/jobs?namespace=vision&active=true&finished=0").data
    assert [row[0] for row in ended["rows"]] == ["waits"]
