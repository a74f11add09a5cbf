"""What an agent reports of its node, as people see it: limits, runtimes and accounts."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Batchq
from tests.client.stage import Stage

NODE = """
apiVersion: batchq/v1
kind: Node
metadata: {name: n7, annotations: {batchq/memory-limit: rlimit}}
spec: {resources: {cpu: 4}}
"""


def test_the_wide_list_and_the_description_tell_how_memory_is_limited(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("apply", "-f", "-", stdin=NODE)
    title, *rows = batchq("nodes", "-o", "wide").lines
    assert title.split()[-1] == "MEMORY-LIMIT"
    assert [row.split()[-1] for row in rows if row.startswith("n7")] == ["rlimit"]
    assert "MEMORY-LIMIT" not in batchq("nodes").out
    described = batchq("describe", "node", "n7").out
    assert [line.split() for line in described.splitlines() if "Memory" in line] == [
        ["Memory", "limit:", "rlimit"]
    ]


def test_describe_omits_a_memory_limit_that_the_agent_did_not_report(
    batchq: Batchq, stage: Stage
) -> None:
    assert "Memory limit" not in batchq("describe", "node", "n1").out


def test_the_runtimes_that_a_node_has_are_shown_without_those_that_it_lacks(
    batchq: Batchq, stage: Stage
) -> None:
    labels = "{batchq/runtime-bwrap: 'yes', batchq/runtime-podman: 'no', zone: a}"
    batchq("apply", "-f", "-", stdin=NODE.replace("annotations", f"labels: {labels}, annotations"))
    [row] = [line for line in batchq("nodes", "-o", "wide").lines if line.startswith("n7")]
    assert "batchq/runtime-bwrap=yes,zone=a" in row.split()
    described = batchq("describe", "node", "n7").out
    assert "batchq/runtime-bwrap=yes, zone=a" in described
    assert "podman" not in described


def test_a_node_says_under_which_accounts_its_pods_run(batchq: Batchq, stage: Stage) -> None:
    stated = NODE.replace("annotations: {", "annotations: {batchq/run-as: owner, ")
    batchq("apply", "-f", "-", stdin=stated)
    described = batchq("describe", "node", "n7").lines
    assert [line.split() for line in described if "run as" in line] == [
        ["Pods", "run", "as:", "owner"]
    ]


@pytest.mark.both_doors
def test_one_node_is_shown_with_its_last_heartbeat_as_the_list_is(
    batchq: Batchq, stage: Stage
) -> None:
    listed = json.loads(batchq("get", "nodes", "-o", "json").out)
    [beat] = [
        one["status"]["heartbeat"] for one in listed["items"] if one["metadata"]["name"] == "n1"
    ]
    alone = json.loads(batchq("get", "node", "n1", "-o", "json").out)
    assert alone["status"]["heartbeat"] == beat
    assert "Heard:" in batchq("describe", "node", "n1").out


@pytest.mark.both_doors
def test_a_cordoned_node_shows_who_cordoned_it_and_why(batchq: Batchq, stage: Stage) -> None:
    assert batchq("nodes", "cordon", "n1", "--reason", "a fan is broken").code == 0
    text = batchq("describe", "node", "n1").lines
    [line] = [one for one in text if one.startswith("Cordoned:")]
    assert line.startswith("Cordoned:  yes, by ")
    assert line.endswith(": a fan is broken")
    [row] = [one for one in batchq("nodes", "-o", "wide").lines if one.startswith("n1")]
    assert line.removeprefix("Cordoned:  yes, ") in row
    [event] = json.loads(batchq("events", "-A", "--reason", "Cordoned", "-o", "json").out)["items"]
    assert event["message"] == line.removeprefix("Cordoned:  yes, ")
    assert batchq("nodes", "drain", "n1", "--reason", "no spare fan").code == 0
    assert "no spare fan" in batchq("describe", "node", "n1").out
    batchq("nodes", "uncordon", "n1")
    assert "Cordoned:" not in batchq("describe", "node", "n1").out
