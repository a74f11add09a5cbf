"""`batchq jobs`, `describe` and `queues`: how things stand, in words and numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.builders import a_priority, a_queue, a_quota
from tests.cli.conftest import Batchq
from tests.client.stage import Stage
from tests.harness.server import Server


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """Queue a has 8 cpu: one group runs on 6 of them, two wait, one is gated."""
    stage.furnish(a_queue("a", capability={"cpu": 8}), a_priority("high", 100))
    client = stage.client
    client.submit(command=["sleep"], name="runs", queue="a", cpus=3, replicas=2)
    stage.turn()
    stage.start("runs")
    client.submit(command=["true"], name="waits", queue="a", cpus=2, replicas=2)
    client.submit(command=["true"], name="jumps", queue="a", cpus=4, priority_class="high")
    client.submit(command=["true"], name="gated", queue="a", gates=["data-ready"])
    stage.turn()
    return stage


def cells(line: str) -> list[str]:
    """The columns of a plain row: what stands between two spaces or more."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_jobs_tells_phase_place_and_reason_in_the_list(batchq: Batchq, busy: Stage) -> None:
    done = batchq("jobs")
    assert (done.code, done.err) == (0, "")
    head, runs, waits, jumps, gated = done.lines
    assert cells(head) == [
        *("NAME", "QUEUE", "PRI", "PHASE", "PODS", "REQUEST", "AGE", "WHERE / WHY"),
    ]
    assert cells(runs)[:6] == ["runs", "a", "0", "Running", "2/2", "cpu 3 ×2"]
    assert cells(runs)[7] == "n1"
    assert cells(waits)[:6] == ["waits", "a", "0", "Pending", "0/2", "cpu 2 ×2"]
    assert cells(waits)[7] == (
        "#2 · WaitingForQuota: needs cpu 4, and queue a has 2 free (6 of 8 in use) (+1 more)"
    )
    assert cells(jumps)[7].startswith("#1 · WaitingForQuota: needs cpu 4")
    assert cells(gated)[3] == "SchedulingGated"
    assert cells(gated)[7].startswith("SchedulingGated: Scheduling is blocked")


def test_a_pipe_gets_whole_rows_without_boxes_or_colours(
    batchq: Batchq, busy: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    long = "x" * 63
    busy.client.submit(command=["true"], name=long)
    done = batchq("jobs")
    assert long in done.out
    assert not set(done.out) & set("│─┃━\x1b…")
    columns = {line.index("a  ") for line in done.lines[1:4]}
    assert len(columns) == 1


def test_a_terminal_gets_whole_names(busy: Stage, server: Server) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq.cli", "--no-color", "jobs"],
        env={**os.environ, "BATCHQ_REDIS_URL": server.url, "COLUMNS": "120", "TERM": "xterm"},
        stdout=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # how Linux tells that the other end of a terminal has been closed
    os.close(ours)
    assert process.wait(20) == 0
    text = shown.decode()
    assert "WaitingForQuota" in text
    assert "│" not in text


def test_the_answer_in_json_has_numbers_and_names(batchq: Batchq, busy: Stage) -> None:
    done = batchq("jobs", "-o", "json")
    [runs, waits, *_] = json.loads(done.out)["items"]
    assert (runs["name"], runs["phase"], runs["nodes"]) == ("runs", "Running", ["n1"])
    assert waits["position"] == 2
    assert waits["reasons"][0]["reason"] == "WaitingForQuota"
    assert waits["request"] == {"cpu": "4", "pods": "2"}
    assert waits["pods"]["least"] == 2
    assert yaml.safe_load(batchq("jobs", "-o", "yaml").out) == json.loads(done.out)


def test_jobs_can_be_chosen(batchq: Batchq, busy: Stage) -> None:
    busy.client.submit(command=["true"], name="elsewhere", namespace="research")
    names = batchq("jobs", "-o", "name").lines
    assert names == ["default/runs", "default/waits", "default/jumps", "default/gated"]
    assert batchq("jobs", "-o", "name", "--phase", "pending").lines == [
        "default/waits",
        "default/jumps",
        # Gated is what a Pending group is shown as.
        "default/gated",
    ]
    assert batchq("jobs", "-o", "name", "--phase", "SchedulingGated").lines == ["default/gated"]
    assert batchq("jobs", "-A", "-q", "default", "-o", "name").lines == ["research/elsewhere"]
    assert batchq("jobs", "-n", "empty").err == "there are no such pod groups in namespace empty\n"


def test_names_can_be_piped_into_other_commands(batchq: Batchq, busy: Stage) -> None:
    names = batchq("jobs", "-o", "name", "--phase", "Pending").lines
    done = batchq("cancel", *names, "--reason", "clean-up")
    assert done.lines == [f"podgroup {name} cancelled" for name in names]
    assert cells(batchq("jobs").lines[2])[7] == "Cancelled: clean-up"


def test_describe_has_all_reasons_and_who_is_ahead(batchq: Batchq, busy: Stage) -> None:
    done = batchq("describe", "waits")
    assert done.code == 0
    assert "Phase:       Pending, position 2 in queue a" in done.lines
    place = done.lines.index("Why it waits:")
    assert [cells(line) for line in done.lines[place + 1 : place + 4]] == [
        ["1. WaitingForQuota", "needs cpu 4, and queue a has 2 free (6 of 8 in use)"],
        ["2. WaitingForResources", "needs cpu 4, and the cluster has 2 free (6 of 8 in use)"],
        ["Ahead in line", "default/jumps"],
    ]
    assert any(cells(line)[1:] == ["Submitted", "to queue a"] for line in done.lines[-4:])


def test_a_second_tenant_waits_without_pods_and_says_why(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_quota("research", cpu=4))
    for name in ("first", "second"):
        batchq("submit", "-n", "research", "--name", name, "--cpus", "2", "-N", "2", "--", "true")
    stage.turn()
    done = batchq("describe", "research/second")
    assert "Pods:        2 wanted, 2 to start" in done.lines
    assert (
        "  1. WaitingForQuota  needs cpu 4, and the quota of namespace research has 0 free"
        " (4 of 4 in use)"
    ) in done.lines
    assert [pod.spec.pod_group for pod in stage.pods("second")] == []


def test_describe_in_json_has_the_verdicts(batchq: Batchq, busy: Stage) -> None:
    data = json.loads(batchq("describe", "waits", "-o", "json").out)
    assert data["ahead"] == ["default/jumps"]
    first = data["verdicts"][0]
    assert (first["need"], first["limit"], first["seen"]) == (4000, 8000, 6000)
    assert data["object"]["kind"] == "PodGroup"


def test_describe_shows_other_kinds(batchq: Batchq, busy: Stage) -> None:
    queue = batchq("describe", "queue", "a")
    assert "Used:      cpu 6" in queue.lines
    assert "Pending:   3 groups, cpu 9" in queue.lines
    node = batchq("describe", "node", "n1").out
    assert "Used:   cpu 6" in node
    assert "runs-main-0" in node


def test_queues_shows_what_is_held_and_what_waits(batchq: Batchq, busy: Stage) -> None:
    done = batchq("queues")
    a = cells(done.lines[1])
    assert a[:7] == ["a", "1", "cpu 8", "cpu 6", "1", "3", "cpu 9"]
    assert json.loads(batchq("queues", "-o", "json").out)["items"][0]["used"]["cpu"] == "6"


def test_control_characters_cannot_forge_rows(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    stage.client.cancel("x", reason="a\nfake  row\x1b[2J")
    done = batchq("jobs")
    assert len(done.lines) == 2
    assert "\x1b" not in done.out
