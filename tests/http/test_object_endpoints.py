"""Objects other than groups, requests about several, bulk submission and generated names."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.client.stage import Stage
from tests.http.api_process import Caller
from tests.http.conftest import SubmitAs
from tests.http.manifests import groups_of, manifest

GROUPS = groups_of("default")


def submit_lines(api: Caller, *lines: bytes) -> list[dict[str, Any]]:
    """Submit manifests in bulk, and return the line that answers each."""
    body = b"\n".join(lines) + b"\n"
    answer = api("POST", f"{GROUPS}/bulk", body, Content_Type="application/x-ndjson")
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def test_each_line_of_a_bulk_submission_is_accepted_or_refused_by_itself(
    api: Caller, stage: Stage, submit_as: SubmitAs
) -> None:
    submit_as("bob", manifest("taken"))
    lines = [
        json.dumps(manifest("one")).encode(),
        b'{"kind": "PodGroup"',
        json.dumps(manifest("two", queue="nowhere")).encode(),
        json.dumps(manifest("taken")).encode(),
        json.dumps(manifest("three")).encode(),
    ]
    found = submit_lines(api, *lines)
    assert [(one["effect"], one.get("code", "")) for one in found] == [
        ("created", ""),
        ("refused", "InvalidInput"),
        ("refused", "NotFound"),
        ("refused", "Conflict"),
        ("created", ""),
    ]
    # An answer that was lost can be asked for again.
    assert [one["effect"] for one in submit_lines(api, lines[0], lines[4])] == ["unchanged"] * 2
    names = [group.metadata.name for group in stage.client.list("PodGroup")]
    assert names == ["one", "taken", "three"]


def test_a_bulk_submission_has_a_type_of_its_own_and_a_bound(api: Caller) -> None:
    wrong = api("POST", f"{GROUPS}/bulk", manifest("one"))
    assert (wrong.status, wrong.data["code"]) == (415, "InvalidInput")
    many = b"{}\n" * 5001
    refused = api("POST", f"{GROUPS}/bulk", many, Content_Type="application/x-ndjson")
    assert (refused.status, refused.data["detail"]) == (
        400,
        "expected at most 5000 lines, found 5001",
    )


def test_a_key_stands_for_a_name_and_makes_a_submission_repeatable(api: Caller) -> None:
    unnamed = manifest("")
    unnamed["metadata"] = {"generateName": "train-"}
    first = api("POST", GROUPS, unnamed, Idempotency_Key="monday")
    assert first.status == 201
    assert first.data["metadata"]["name"].startswith("train-")
    again = api("POST", GROUPS, unnamed, Idempotency_Key="monday")
    assert (again.status, again.data["metadata"]["uid"]) == (200, first.data["metadata"]["uid"])
    other = api("POST", GROUPS, unnamed, Idempotency_Key="tuesday")
    assert other.status == 201
    unnamed["spec"]["tasks"][0]["replicas"] = 2
    assert api("POST", GROUPS, unnamed, Idempotency_Key="monday").status == 409


def test_a_changed_queue_counts_for_the_next_submission_in_whichever_thread(
    api: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.client.requests._QUEUES_S", 3600.0)
    lab, part = (
        {"apiVersion": "batchq/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        for name, spec in (("lab", {}), ("part", {"parent": "lab"}))
    )

    def submit(name: str) -> int:
        asked = {"verb": "submit", "objects": [manifest(name, queue="lab")]}
        return api("POST", "/v1/requests", asked).status

    assert api("PUT", "/v1/queues/lab", lab).status == 201
    with ThreadPoolExecutor(6) as callers:
        before = set(callers.map(submit, (f"before-{number}" for number in range(30))))
        assert api("PUT", "/v1/queues/part", part).status == 201
        after = set(callers.map(submit, (f"after-{number}" for number in range(30))))
    assert (before, after) == ({200}, {422})


def test_a_queue_is_replaced_in_the_state_that_was_read_only(api: Caller, stage: Stage) -> None:
    queue = {"apiVersion": "batchq/v1", "kind": "Queue", "metadata": {"name": "lab"}}
    assert api("PUT", "/v1/queues/lab", queue).status == 201
    etag = api("GET", "/v1/queues/lab").headers["etag"]
    heavier = queue | {"spec": {"weight": 2}}
    assert api("PUT", "/v1/queues/lab", heavier).status == 428
    assert api("PUT", "/v1/queues/lab", heavier, If_Match=etag).status == 200
    stale = api("PUT", "/v1/queues/lab", queue | {"spec": {"weight": 3}}, If_Match=etag)
    assert (stale.status, stale.data["exit"]) == (412, 8)
    assert api("GET", "/v1/queues/lab").data["spec"]["weight"] == 2
    elsewhere = api("PUT", "/v1/queues/other", queue)
    assert (elsewhere.status, elsewhere.data["code"]) == (400, "InvalidInput")


def test_objects_are_listed_in_pages_and_returned_one_by_one(api: Caller, stage: Stage) -> None:
    nodes = api("GET", "/v1/nodes?limit=1").data
    [node] = nodes["items"]
    assert api("GET", f"/v1/nodes/{node['metadata']['name']}").data["kind"] == "Node"
    assert api("GET", "/v1/queues").data["kind"] == "QueueList"
    missing = api("GET", "/v1/queues/nowhere")
    assert (missing.status, missing.data["detail"]) == (404, "Queue nowhere does not exist")
    assert api("POST", f"/v1/nodes/{node['metadata']['name']}/cordon").data == {"changed": True}
    assert api("POST", f"/v1/nodes/{node['metadata']['name']}/cordon").data == {"changed": False}


def test_queues_and_nodes_are_watched(api: Caller, stage: Stage) -> None:
    with api.events("/v1/queues?watch=true") as queues, api.events("/v1/nodes?watch=true") as nodes:
        assert [one["event"] for one in queues.until("BOOKMARK")] == ["ADDED", "BOOKMARK"]
        listed = nodes.until("BOOKMARK")
        node = json.loads(listed[0]["data"])["object"]["metadata"]["name"]
        stage.client.set_stop_policy("default", "Hold")
        stage.client.cordon(node)
        *_, held = queues.until("CHANGED")
        assert json.loads(held["data"])["object"]["spec"]["stopPolicy"] == "Hold"
        *_, cordoned = nodes.until("CHANGED")
        assert json.loads(cordoned["data"])["object"]["spec"]["unschedulable"] is True
        since = json.loads(held["data"])["revision"]
    stage.client.set_stop_policy("default", "None")
    with api.events(f"/v1/queues?watch=true&since={since}") as queues:
        *_, resumed = queues.until("CHANGED")
    assert "spec" not in json.loads(resumed["data"])["object"]
    assert api("GET", "/v1/priorityclasses?watch=true").status == 400


def test_several_objects_are_changed_together_or_not_at_all(api: Caller, stage: Stage) -> None:
    objects = [manifest("one"), manifest("two", queue="nowhere")]
    refused = api("POST", "/v1/requests", {"verb": "submit", "objects": objects})
    assert refused.status == 404
    assert list(stage.client.list("PodGroup")) == []
    done = api("POST", "/v1/requests", {"verb": "submit", "objects": [manifest("one")]})
    assert [one["effect"] for one in done.data["items"]] == ["created"]
    keys = [{"kind": "PodGroup", "key": "default/one"}]
    unfinished = api("POST", "/v1/requests", {"verb": "delete", "keys": keys})
    assert (unfinished.status, unfinished.data["code"]) == (409, "Conflict")


def test_a_wait_answers_when_its_group_has_changed(api: Caller, stage: Stage) -> None:
    stage.client.submit(manifest("train"))
    before = api("GET", "/v1/views/status").data["revision"]
    state = api("GET", f"{GROUPS}/train/outcome?for=admitted").data
    assert (state["is_settled"], state["result"]["phase"]) == (False, "Pending")
    stage.client.cancel("train")
    answer = api("GET", f"/v1/changes?groups=default/train&since={before}&timeout=30")
    assert answer.data["changed"] is True
    state = api("GET", f"{GROUPS}/train/outcome?for=admitted").data
    assert (state["is_settled"], state["result"]["phase"]) == (True, "Cancelled")
