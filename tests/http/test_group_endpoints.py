"""Pod groups over HTTP: submit, list, watch, get, cancel, why and logs."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from tests.client.stage import Stage
from tests.http.api_process import Caller, RunningApi
from tests.http.conftest import SubmitAs
from tests.http.manifests import groups_of, manifest

DEFAULT = groups_of("default")
ME = pwd.getpwuid(os.getuid()).pw_name


def test_a_submission_is_created_and_its_owner_is_the_caller(api: Caller, stage: Stage) -> None:
    forged = manifest("train") | {"status": {"submittedBy": "bob"}}
    created = api("POST", DEFAULT, forged)
    assert (created.status, created.headers["location"]) == (201, f"{DEFAULT}/train")
    assert created.data["status"]["submittedBy"] == ME
    stage.turn()
    found = api("GET", f"{DEFAULT}/train")
    assert (found.status, found.data["status"]["phase"]) == (200, "InQueue")
    assert found.headers["etag"] == f'"{found.data["metadata"]["revision"]}"'


def test_the_same_submission_again_changes_nothing_and_another_one_is_refused(
    api: Caller,
) -> None:
    first = api("POST", DEFAULT, manifest("train"))
    again = api("POST", DEFAULT, manifest("train"))
    assert (first.status, again.status) == (201, 200)
    assert again.data["metadata"]["uid"] == first.data["metadata"]["uid"]
    other = api("POST", DEFAULT, manifest("train", cpu="2"))
    assert (other.status, other.data["code"], other.data["exit"]) == (409, "Conflict", 8)
    assert "exists already" in other.data["detail"]


def test_an_equal_group_of_another_user_is_not_the_callers(
    api: Caller, submit_as: SubmitAs
) -> None:
    submit_as("bob", manifest("train"))
    refused = api("POST", DEFAULT, manifest("train"))
    assert (refused.status, refused.data["detail"]) == (
        409,
        "PodGroup default/train exists already, and was submitted by bob",
    )


def test_a_dry_run_checks_everything_and_writes_nothing(api: Caller) -> None:
    assert api("POST", f"{DEFAULT}?dryRun=true", manifest("train")).status == 201
    wrong = api("POST", f"{DEFAULT}?dryRun=true", manifest("train", queue="missing"))
    assert (wrong.status, wrong.data["code"]) == (422, "NotFound")
    assert api("GET", f"{DEFAULT}/train").status == 404


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected the manifest of a PodGroup as a JSON object"),
        (b"[" * 100_000, "expected JSON"),
        (b'"\xff"', "expected JSON"),
        (b"{}", "apiVersion: expected batchq/v1, found nothing"),
        (
            json.dumps(manifest("x") | {"kind": "Queue", "spec": {}}).encode(),
            "kind: expected PodGroup, found Queue",
        ),
        (
            json.dumps(manifest("x", minMember="two")).encode(),
            "PodGroup default/x: spec.minMember: expected a whole number, found 'two'",
        ),
        (
            json.dumps(manifest("x") | {"metadata": {"name": "x", "namespace": "other"}}).encode(),
            "metadata.namespace: expected default, as in the path, found 'other'",
        ),
    ],
)
def test_a_wrong_body_is_refused_in_a_sentence(api: Caller, body: bytes, sentence: str) -> None:
    refused = api("POST", DEFAULT, body)
    assert (refused.status, refused.headers["content-type"]) == (400, "application/problem+json")
    assert sentence in refused.data["detail"]
    assert refused.data["exit"] == 1


def test_a_list_continues_where_its_page_ended(api: Caller, stage: Stage) -> None:
    for name in ("a", "b", "c", "d", "e"):
        stage.client.submit(manifest(name))
    seen: list[list[str]] = []
    following = ""
    while following or not seen:
        page = api("GET", f"/v1/groups?limit=2&continue={following}").data
        seen.append([item["metadata"]["name"] for item in page["items"]])
        following = page["continue"]
    assert seen == [["a", "b"], ["c", "d"], ["e"]]


def names(api: Caller, query: str) -> list[str]:
    answer = api("GET", f"/v1/groups?{query}")
    assert answer.status == 200, answer.data
    return [
        f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in answer.data["items"]
    ]


def test_filters_select_groups(api: Caller, stage: Stage, submit_as: SubmitAs) -> None:
    api("POST", DEFAULT, manifest("mine"))
    submit_as("bob", manifest("large", cpu="1000"))
    stage.turn()
    assert names(api, "") == ["default/large", "default/mine"]
    assert names(api, "owner=me") == ["default/mine"]
    assert names(api, "owner=bob") == ["default/large"]
    assert names(api, "phase=Pending,Running") == ["default/large"]
    assert names(api, "reason=ExceedsCapacity") == ["default/large"]
    assert names(api, "queue=missing") == []
    assert names(api, "label=team=team-of-mine") == ["default/mine"]
    assert names(api, "q=arg") == ["default/large"]
    assert names(api, "namespace=ml") == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=many", "limit: expected a number from 0 to 1000, found 'many'"),
        ("limit=1001", "limit: expected a number from 0 to 1000, found '1001'"),
        ("continue=%00", "continue: expected the token of an earlier page"),
        ("label=team", "label: expected KEY=VALUE"),
        ("fields=all", "there is no parameter 'fields' here; expected namespace, phase"),
        ("q=a&q=b", "q: expected once, found 2 times"),
        ("watch=yes", "watch: expected true or false, found 'yes'"),
        ("watch=true&since=-1", "since: expected a number"),
    ],
)
def test_a_wrong_parameter_is_refused_in_a_sentence(api: Caller, query: str, sentence: str) -> None:
    refused = api("GET", f"/v1/groups?{query}")
    assert refused.status == 400
    assert sentence in refused.data["detail"]


def test_a_watch_lists_what_exists_and_then_tells_each_change(api: Caller, stage: Stage) -> None:
    stage.client.submit(manifest("first"))
    with api.events("/v1/groups?watch=true") as events:
        listed = events.until("BOOKMARK")
        assert [event["event"] for event in listed] == ["ADDED", "BOOKMARK"]
        # An id in the list would let a reader resume behind groups that it has not got yet.
        assert ["id" in event for event in listed] == [False, True]
        stage.client.submit(manifest("second"))
        added = events.until("ADDED")[-1]
        assert json.loads(added["data"])["object"]["metadata"]["name"] == "second"
        stage.client.cancel("second")
        changed = json.loads(events.until("CHANGED")[-1]["data"])
        assert changed["object"]["status"]["phase"] == "Cancelled"
        stage.client.delete("PodGroup", "second")
        deleted = events.until("DELETED")[-1]
        assert json.loads(deleted["data"])["object"]["metadata"]["name"] == "second"


def test_a_watch_resumes_after_the_last_event_without_loss(api: Caller, stage: Stage) -> None:
    with api.events("/v1/groups?watch=true") as events:
        last = events.until("BOOKMARK")[-1]["id"]
    stage.client.submit(manifest("meanwhile"))
    stage.client.cancel("meanwhile")
    with api.events(f"/v1/groups?watch=true&since={last}") as events:
        told = [*events.until("ADDED"), *events.until("CHANGED")]
    # A bookmark may come before the feed has read the changes.
    assert [one["event"] for one in told if one["event"] != "BOOKMARK"] == ["ADDED", "CHANGED"]


def test_a_list_and_a_watch_from_its_revision_have_no_gap(api: Caller, stage: Stage) -> None:
    revision = api("GET", "/v1/groups").data["revision"]
    stage.client.submit(manifest("afterwards"))
    with api.events(f"/v1/groups?watch=true&since={revision}") as events:
        first = next(one for one in events if one["event"] != "BOOKMARK")
    # The feed begins with this watch, so it may not reach back: then the reader lists again.
    assert first["event"] in ("ADDED", "RESYNC")
    revision = api("GET", "/v1/groups").data["revision"]
    stage.client.submit(manifest("later"))
    with api.events(f"/v1/groups?watch=true&since={revision}") as events:
        added = json.loads(events.until("ADDED")[-1]["data"])
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "later")


def test_a_watch_from_a_revision_that_is_not_reached_lists_again(api: Caller) -> None:
    with api.events("/v1/groups?watch=true&since=900000000") as events:
        assert [event["event"] for event in events] == ["RESYNC"]


def test_a_group_that_no_longer_matches_a_watch_is_deleted_for_it(
    api: Caller, stage: Stage
) -> None:
    stage.client.submit(manifest("train"))
    with api.events("/v1/groups?watch=true&phase=Pending") as events:
        assert [event["event"] for event in events.until("BOOKMARK")] == ["ADDED", "BOOKMARK"]
        stage.client.cancel("train")
        assert events.until("DELETED")


@pytest.mark.parametrize(
    ("owner", "message"), [("bob", f"by {ME}: wrong data"), (ME, "wrong data")]
)
def test_a_cancelled_group_records_why_and_who_ended_it_if_not_its_owner(
    api: Caller, submit_as: SubmitAs, owner: str, message: str
) -> None:
    submit_as(owner, manifest("train"))
    ended = api("POST", f"{DEFAULT}/train/cancel", {"reason": "wrong data"})
    assert (ended.status, ended.data["status"]["phase"]) == (200, "Cancelled")
    [finished] = [one for one in ended.data["status"]["conditions"] if one["type"] == "Finished"]
    assert finished["message"] == message
    again = api("POST", f"{DEFAULT}/train/cancel")
    assert (again.status, again.data["exit"]) == (409, 8)


def test_why_answers_what_the_command_prints(api: Caller, stage: Stage) -> None:
    stage.client.submit(manifest("large", cpu="1000"))
    stage.turn()
    why = api("GET", f"{DEFAULT}/large/why")
    assert (why.status, why.data["podGroup"], why.data["everPossible"]) == (
        200,
        "default/large",
        False,
    )
    assert why.data["reasons"][0]["reason"] == "ExceedsCapacity"


def run_with_output(stage: Stage, name: str, *lines: bytes) -> None:
    stage.client.submit(manifest(name))
    stage.turn()
    stage.start(name)
    [pod] = stage.pods(name)
    for line in lines:
        stage.store.append_log(
            pod.status.node, pod.metadata.uid, pod.status.attempt, "stdout", line
        )


def test_logs_are_text_or_lines_of_json(api: Caller, stage: Stage) -> None:
    run_with_output(stage, "train", b"one\n<b>two</b>\n")
    text = api("GET", f"{DEFAULT}/train/logs")
    assert (text.body, text.headers["content-type"]) == (
        b"one\n<b>two</b>\n",
        "text/plain; charset=utf-8",
    )
    # Output is hostile text: no browser may take it for a page.
    assert text.headers["x-content-type-options"] == "nosniff"
    lines = api("GET", f"{DEFAULT}/train/logs?tail=1", Accept="application/x-ndjson")
    assert lines.data == {
        "pod": "train-main-0", "attempt": 1, "stream": "stdout", "text": "<b>two</b>",
        "admission": 1,
    }  # fmt: skip
    assert api("GET", f"{DEFAULT}/train/logs?stream=stderr").body == b""
    missing = api("GET", f"{DEFAULT}/train/logs?pod=nothing")
    assert (missing.status, missing.data["code"]) == (404, "NotFound")


def test_followed_logs_come_as_they_are_written_and_end_with_the_group(
    api: Caller, stage: Stage
) -> None:
    run_with_output(stage, "train", b"one\n")
    with api.events(f"{DEFAULT}/train/logs?follow=true") as events:
        assert json.loads(events.until("line")[-1]["data"])["text"] == "one"
        [pod] = stage.pods("train")
        place = pod.status.node, pod.metadata.uid, pod.status.attempt
        stage.store.append_log(*place, "stdout", b"two\n")
        assert json.loads(events.until("line")[-1]["data"])["text"] == "two"
        stage.end("train")
        assert list(events) == []


def test_health_says_whether_the_api_runs_and_whether_it_reaches_the_server(
    running_api: RunningApi, api: Caller
) -> None:
    assert (api("GET", "/livez").body, api("GET", "/readyz").body) == (b"ok\n", b"ok\n")
    for path in ("/livez/", "/x/livez", "/livez/x", "/LIVEZ"):
        assert api("GET", path).status == 404, path


def test_an_unknown_path_and_an_impossible_method_are_problems(api: Caller) -> None:
    assert api("GET", "/v1/nothing").data["code"] == "NoSuchRoute"
    refused = api("DELETE", f"{DEFAULT}/train")
    assert (refused.status, refused.headers["content-type"]) == (405, "application/problem+json")
