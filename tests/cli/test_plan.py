"""`batchq plan`: its text, its JSON, and the exit code of each outcome."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.builders import RECLAIMS, a_node, a_priority, a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage

pytestmark = pytest.mark.both_doors


@pytest.fixture
def occupied(stage: Stage) -> Stage:
    """`low`, without a priority, holds six of eight cpus."""
    stage.client.apply([a_priority("high", 10), a_queue("team", preemption=RECLAIMS)])
    stage.client.submit(command=["true"], name="low", cpus=6, walltime="2h")
    stage.turn()
    stage.start("low")
    return stage


def test_a_plan_that_would_start_now_says_where(batchq: Batchq, occupied: Stage) -> None:
    before = occupied.names()
    done = batchq("plan", "--name", "x", "-N", "2", "--cpus", "1", "--", "true")
    assert done.code == 0
    assert done.lines == [
        "PodGroup:  default/x",
        "Queue:     default",
        "Requests:  cpu 2",
        "Would:     start now",
        "Nodes:     n1 (2 pods)",
    ]
    assert occupied.names() == before


def test_an_array_may_start_with_some_of_its_pods(batchq: Batchq, occupied: Stage) -> None:
    done = batchq("plan", "--name", "x", "--array", "0-9", "--", "true")
    assert done.code == 0
    assert "Would:     start now with 2 of 10 pods" in done.lines


def test_victims_are_listed(batchq: Batchq, occupied: Stage) -> None:
    done = batchq(*("plan", "--name", "x", "--cpus", "4", "--priority-class", "high", "--", "true"))
    assert done.code == 3
    assert re.sub("preempt  all of it, 1 pod  .*", "preempt  all of it, 1 pod", done.out) == (
        "PodGroup:  default/x\n"
        "Queue:     default\n"
        "Priority:  10\n"
        "Requests:  cpu 4\n"
        "Would:     start when 1 pod of default/low has ended, within 30s\n"
        "Nodes:     n1 (1 pod)\n"
        "\n"
        "Evicted for this:\n"
        "  POD GROUP    QUEUE    BY       GIVES             WORK LOST\n"
        "  default/low  default  preempt  all of it, 1 pod\n"
    )


def test_a_plan_that_would_wait_says_why_until_when_and_how_to_help_it(
    batchq: Batchq, occupied: Stage
) -> None:
    done = batchq("plan", "--name", "x", "--cpus", "4", "--", "true")
    assert done.code == 4
    result = re.sub(r"Earliest:  \S+Z \(in [^,]+,", "Earliest:  T (in D,", done.out)
    assert re.sub(r"Expected:  \S+Z \(in [^)]+\)", "Expected:  T (in D)", result) == (
        "PodGroup:  default/x\n"
        "Queue:     default, position 1\n"
        "Requests:  cpu 4\n"
        "Would:     wait\n"
        "Expected:  T (in D), counting the groups ahead\n"
        "Earliest:  T (in D, when default/low must have ended)\n"
        "\n"
        "Why:\n"
        "  1. WaitingForResources  needs cpu 4, and the cluster has 2 free (6 of 8 in use)\n"
        "\n"
        "What would help:\n"
        "  asking for cpu 2 instead of 4, it would start now\n"
        "  in queue team, it would start, and 1 pod of others would be evicted\n"
        "  with priority class high, it would start, and 1 pod of others would be evicted\n"
    )


def test_advice_can_be_left_out(batchq: Batchq, occupied: Stage) -> None:
    done = batchq("plan", "--no-advice", "--name", "x", "--cpus", "4", "--", "true")
    assert (done.code, "What would help" in done.out) == (4, False)


def test_a_gated_plan_would_wait(batchq: Batchq, occupied: Stage) -> None:
    done = batchq("plan", "--name", "x", "--gate", "approval", "--", "true")
    assert done.code == 4
    assert "  once gate approval is open, it would start, if nothing else changes" in done.lines


def test_a_plan_that_could_never_start_says_which_request_could(
    batchq: Batchq, occupied: Stage
) -> None:
    done = batchq("plan", "--name", "x", "--cpus", "9", "--", "true")
    assert done.code == 5
    assert done.lines[3:] == [
        "Would:     never start with the current queues, quotas and nodes",
        "",
        "Why:",
        TOO_LARGE,
        "",
        "What would help:",
        "  asking for cpu 2 instead of 9, it would start now",
    ]


def test_a_plan_for_pods_larger_than_every_node_could_never_start(
    batchq: Batchq, occupied: Stage
) -> None:
    occupied.furnish(a_node("n2", cpu=4))
    done = batchq("plan", "--name", "x", "--cpus", "10", "--", "true")
    assert done.code == 5
    assert done.lines[3:7] == [
        "Would:     never start with the current queues, quotas and nodes",
        "",
        "Why:",
        (
            "  1. ExceedsCapacity  not even empty nodes take it: task main: 0/2 nodes fit: 2"
            " insufficient cpu; a pod needs cpu 10, and the largest node has 8"
        ),
    ]
    assert done.lines[-1] == "  asking for cpu 4 instead of 10, it would start now"
    assert not any(line.startswith("Earliest") for line in done.lines)


TOO_LARGE = (
    "  1. ExceedsCapacity  needs cpu 9, and the cluster, with every node that was seen within a"
    " day, allows at most 8"
)

FILE = """\
apiVersion: batchq/v1
kind: Queue
metadata: {name: new}
spec: {capability: {cpu: 2}}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: a}
spec:
  queue: new
  tasks:
    - name: w
      template: {command: ["true"], requests: {cpu: 2}}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: b}
spec:
  queue: new
  tasks:
    - name: w
      template: {command: ["true"], requests: {cpu: 2}}
"""


def test_a_file_is_planned_as_a_whole_its_queues_taken_as_applied(
    batchq: Batchq, occupied: Stage, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text(FILE)
    done = batchq("plan", "-f", str(tmp_path / "jobs.yaml"))
    assert done.code == 4
    assert [line for line in done.lines if line.startswith(("PodGroup", "Would"))] == [
        "PodGroup:  default/a",
        "Would:     start now",
        "PodGroup:  default/b",
        "Would:     wait",
    ]
    assert done.lines[-2:] == ["Assumed as applied:", "  queue new created"]
    assert batchq("plan", "-f", "-", stdin=FILE).out == done.out
    assert batchq("get", "queue", "new").code == 6


def test_the_json_of_a_plan_has_every_field(batchq: Batchq, occupied: Stage) -> None:
    done = batchq("plan", "--name", "x", "--cpus", "4", "-q", "team", "-o", "json", "--", "true")
    data = json.loads(done.out)
    assert done.code == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", data.pop("at"))
    # Its run time is irrelevant here.
    assert set(data["evicted"][0].pop("lost")) <= {"cpu", "pods"}
    assert data == {
        "apiVersion": "batchq/v1",
        "kind": "Plan",
        "outcome": "Evicts",
        "exitCode": 3,
        "podGroups": [
            {
                "name": "x",
                "namespace": "default",
                "queue": "team",
                "priority": 0,
                "request": {"cpu": "4", "pods": "1"},
                "outcome": "Evicts",
                "phase": "Pending",
                "reserved": True,
                "nodes": {"n1": 1},
                "awaits": {"pods": 1, "podGroups": ["default/low"], "within": "30s"},
                "checks": [],
                "reasons": [],
                "position": None,
                "ahead": [],
                "expectedStart": None,
                "earliestStart": None,
                "after": [],
                "neverBecause": "",
                "ending": "",
                "advice": [],
            }
        ],
        "evicted": [
            {
                "podGroup": "default/low",
                "queue": "default",
                "whole": True,
                "pods": ["default/low-main-0"],
                "by": "default/x",
                "action": "reclaim",
                "reason": "Reclaimed",
            }
        ],
        "delayed": [],
        "changes": [],
        "warnings": [],
    }


def test_json_has_advice_as_data(batchq: Batchq, occupied: Stage) -> None:
    done = batchq("plan", "--name", "x", "--cpus", "4", "-o", "json", "--", "true")
    [group] = json.loads(done.out)["podGroups"]
    assert done.code == 4
    assert [(one["change"], one["value"], one["outcome"]) for one in group["advice"]] == [
        ("requests", "cpu=2", "Now"),
        ("queue", "team", "Evicts"),
        ("priorityClass", "high", "Evicts"),
    ]
    assert group["reasons"] == [
        {
            "reason": "WaitingForResources",
            "message": "needs cpu 4, and the cluster has 2 free (6 of 8 in use)",
        }
    ]
    assert (group["position"], group["after"]) == (1, ["default/low"])


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--name", "x"), 2, "expected a command after `--`, a file with -f or a --function"),
        (("-f", "jobs.yaml", "--cpus", "2"), 2, "--cpus applies to a command, not to a file"),
        (("--cpus", "many", "--", "true"), 2, "expected a quantity"),
        (("-f", "absent.yaml"), 1, "absent.yaml: the file cannot be read"),
        (("--name", "x", "-q", "nowhere", "--", "true"), 6, "nowhere"),
        (("--name", "low", "--", "true"), 8, "PodGroup default/low exists already"),
    ],
)
def test_an_invalid_plan_fails_as_its_submission_does(
    batchq: Batchq, occupied: Stage, words: tuple[str, ...], code: int, sentence: str
) -> None:
    planned, submitted = batchq("plan", *words), batchq("submit", *words)
    assert (planned.code, planned.out) == (code, "")
    assert sentence in planned.err
    assert planned.err.replace(" plan ", " submit ") == submitted.err


def test_a_file_without_groups_is_not_planned(batchq: Batchq, stage: Stage) -> None:
    done = batchq("plan", "-f", "-", stdin=FILE.partition("---")[0])
    assert (done.code, done.out) == (1, "")
    assert "expected at least one PodGroup to plan, found none" in done.err


def test_a_missing_leader_is_noted_beside_the_plan(batchq: Batchq, stage: Stage) -> None:
    led = batchq("plan", "--name", "x", "--", "true")
    stage.store.resign("stage")
    alone = batchq("plan", "--name", "x", "--", "true")
    assert (led.code, led.err) == (0, "")
    assert (alone.code, alone.out) == (0, led.out)
    assert "scheduler" in alone.err
