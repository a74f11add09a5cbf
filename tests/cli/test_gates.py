"""`batchq gates list` and `open`, and gated groups in the output of other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchq.client import Client
from tests.cli.conftest import Batchq
from tests.client.stage import Stage
from tests.harness.server import Server

HALF = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: half}
spec:
  minMember: 2
  tasks:
  - {name: load, replicas: 2, template: {command: ["true"]}}
  - name: solve
    replicas: 3
    template: {command: ["true"], schedulingGates: [{name: data}, {name: licence}]}
"""


def items(out: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(out)["items"]
    return found


def test_closed_gates_are_listed_with_their_setters_and_openers(
    batchq: Batchq, stage: Stage, server: Server, tmp_path: Path
) -> None:
    me = stage.client.user
    batchq("submit", "--name", "g", "--gate", "data", "--gate", "money", "--", "true")
    file = tmp_path / "half.yaml"
    file.write_text(HALF)
    batchq("submit", "-f", str(file))
    with Client(server.url, component="data-ready") as controller:
        controller.gates.open("g", "data")
    [money, data, licence] = items(batchq("gates", "list", "-o", "json").out)
    assert (money["podGroup"], money["gate"], money["task"]) == ("default/g", "money", None)
    assert (money["queue"], money["shown"], money["setBy"]) == ("default", "SchedulingGated", me)
    assert 0 <= money["ageSeconds"] < 600
    assert [(one["gate"], one["task"], one["by"]) for one in money["opened"]] == [
        ("data", None, f"data-ready ({me})")
    ]
    assert (data["podGroup"], data["gate"], data["task"]) == ("default/half", "data", "solve")
    # Its other pods suffice to start.
    assert (licence["gate"], licence["shown"], licence["opened"]) == ("licence", "Pending", [])
    head, *lines = batchq("gates", "list").lines
    assert head.split() == [
        *("GROUP", "GATE", "TASK", "AGE", "QUEUE", "SHOWN", "SET", "BY", "OPENED"),
    ]
    assert [line.split()[:2] for line in lines] == [
        ["default/g", "money"],
        ["default/half", "data"],
        ["default/half", "licence"],
    ]
    assert f"data by data-ready ({me})" in lines[0]


@pytest.mark.both_doors
def test_the_list_is_of_one_namespace_or_of_all_of_a_queue_and_of_a_gate(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "a", "-n", "lab", "--gate", "x", "--", "true")
    batchq("submit", "--name", "b", "--gate", "y", "--", "true")

    def listed(*words: str) -> list[str]:
        return [one["podGroup"] for one in items(batchq("gates", "list", *words, "-o", "json").out)]

    assert listed() == ["default/b"]
    assert listed("-n", "lab") == ["lab/a"]
    assert listed("-A") == ["lab/a", "default/b"]
    assert listed("-A", "--gate", "y") == ["default/b"]
    assert listed("-A", "-q", "root") == ["lab/a", "default/b"]
    assert listed("-A", "--older-than", "1d") == []
    missing = batchq("gates", "list", "-q", "nowhere")
    assert missing.code == 6
    assert "Queue nowhere does not exist" in missing.err


@pytest.mark.both_doors
def test_gates_of_a_task_are_opened_by_name_by_task_and_all_at_once(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "half.yaml"
    file.write_text(HALF)
    batchq("submit", "-f", str(file))
    done = batchq("gates", "open", "half", "data", "--task", "solve")
    assert done.out == "podgroup default/half: gate data of task solve opened\n"
    done = batchq("gates", "open", "half", "data")
    assert done.out == "podgroup default/half: gate data is open already\n"
    assert (
        batchq("gates", "open", "half", "--all").out == "podgroup default/half: all gates opened\n"
    )
    done = batchq("gates", "open", "half", "--all", "--task", "solve")
    assert done.out == "podgroup default/half: all gates of task solve are open already\n"
    wrong = batchq("gates", "open", "half", "data", "--task", "sole")
    assert (wrong.code, "has no task 'sole'" in wrong.err) == (6, True)


@pytest.mark.both_doors
def test_either_gates_or_all_of_them_are_named(batchq: Batchq, stage: Stage) -> None:
    none = batchq("gates", "open", "g")
    assert (none.code, none.out) == (2, "")
    assert "expected the names of gates to open, found none" in none.err
    both = batchq("gates", "open", "g", "data", "--all")
    assert (both.code, both.out) == (2, "")
    assert "expected the names of gates, or --all, found both" in both.err


def test_a_gated_group_shows_as_such_everywhere(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "gated.yaml"
    file.write_text(HALF.replace("minMember: 2", "minMember: 3"))
    batchq("submit", "-f", str(file))
    stage.turn()
    said = "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates: data, licence"
    for command in (("jobs",), ("get", "podgroups")):
        [_, line] = batchq(*command).lines
        assert "SchedulingGated" in line.split()[3]
        assert said in line
    page = batchq("describe", "half").out
    rows = {line.partition(":")[0].strip(): line for line in page.splitlines()}
    assert "SchedulingGated" in rows["Phase"]
    assert "data (task solve), licence (task solve)" in rows["Gates"]
    assert f"by {stage.client.user}" in rows["Submitted"]
    assert "`batchq gates open half data licence`" in page
    batchq("gates", "open", "half", "data", "licence")
    stage.turn()
    page = batchq("describe", "half").out
    assert f"data of task solve by {stage.client.user}" in page
    assert "GateOpened" in page
    assert stage.phase("half") == "InQueue"
