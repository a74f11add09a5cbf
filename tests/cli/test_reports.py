"""`-o json` of commands that change something, and messages of commands with nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchq.cli import stack
from batchq.cli.output.forms import output_of
from batchq.daemon.stack import Part, PartState, StackReport
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage


def items(out: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(out)["items"]
    return found


def test_actions_are_reported_as_a_list(batchq: Batchq, stage: Stage) -> None:
    def done(*words: str) -> list[dict[str, object]]:
        return items(batchq(*words, "-o", "json").out)

    batchq("submit", "--name", "x", "--gate", "g", "--", "true")
    row = {"kind": "PodGroup", "name": "default/x"}
    assert done("suspend", "x") == [{**row, "action": "suspended"}]
    assert done("suspend", "x") == [{**row, "action": "is suspended already"}]
    assert done("resume", "x") == [{**row, "action": "resumed"}]
    [gate] = done("gates", "list")
    assert (gate["podGroup"], gate["gate"]) == ("default/x", "g")
    assert done("gates", "open", "x", "g") == [{**row, "action": "gate g opened"}]
    assert done("gates", "list") == []
    assert done("cancel", "x") == [{**row, "action": "cancelled"}]
    assert done("delete", "x") == [{**row, "action": "deleted"}]
    batchq("quota", "set", "lab", "cpu=4")
    assert [one["kind"] for one in done("quota")] == ["ResourceQuota"]


def test_actions_done_before_a_failure_are_reported(batchq: Batchq, stage: Stage) -> None:
    for name in ("x", "y"):
        batchq("submit", "--name", name, "--", "true")
    batchq("cancel", "y")
    done = batchq("cancel", "x", "y", "-o", "json")
    assert done.code == 8
    assert items(done.out) == [{"kind": "PodGroup", "name": "default/x", "action": "cancelled"}]
    assert json.loads(done.err)["error"]["code"] == "Conflict"


def test_the_parts_of_a_stack_are_listed_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    parts = (
        Part(name="server", state=PartState.STARTED, pid=11, detail="9.1.2"),
        Part(name="scheduler", state=PartState.RUNNING, pid=12),
        Part(name="vm-1", state=PartState.STARTED, pid=13, detail="cpu=2"),
    )
    report = StackReport(home="/tmp/h", url="unix:///tmp/s", parts=parts)
    stack.show(report, output_of("json"))
    assert items(capsys.readouterr().out) == [
        {"kind": "Server", "name": "server", "action": "started", "pid": 11, "detail": "9.1.2"},
        {"kind": "Scheduler", "name": "scheduler", "action": "running", "pid": 12, "detail": ""},
        {"kind": "Agent", "name": "vm-1", "action": "started", "pid": 13, "detail": "cpu=2"},
    ]


def test_a_checked_configuration_is_printed_as_json(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("plugins: [gates]\n")
    done = run("config", "check", str(file), "-o", "json")
    assert json.loads(done.out) == {
        "file": str(file),
        "actions": ["enqueue", "allocate", "reclaim", "preempt", "backfill"],
        "plugins": ["gates"],
    }


def test_many_statuses_are_one_warning(batchq: Batchq, stage: Stage) -> None:
    for name in ("x", "y", "z"):
        batchq("submit", "--name", name, "--", "true")
    stage.turn()
    printed = batchq("get", "podgroups", "-o", "yaml").out
    assert batchq("apply", "-f", "-", stdin=printed).err == (
        "warning: standard input: only batchq writes status; it is ignored in 3 objects\n"
    )


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ("quota", "set", "lab"),
            [
                "error: expected limits for namespace lab, such as cpu=32, found none",
                "hint: `batchq delete quota lab/default` removes its quota",
            ],
        ),
        (
            ("describe",),
            [
                "error: expected the name of a pod group, or a kind and a name, found nothing",
                "hint: as in `batchq describe train-1` or `batchq describe queue default`",
            ],
        ),
        (
            ("completion",),
            ["error: expected a shell: bash, zsh, fish", "hint: as in `batchq completion bash`"],
        ),
        (
            ("submit", "--array", "5-9", "--", "true"),
            [
                "error: --array: expected a range that starts at 0, found '5-9'",
                "hint: use 0-4 and add 5 to $BATCHQ_INDEX in the command",
            ],
        ),
    ],
)
def test_a_word_that_is_missing_is_asked_for(words: tuple[str, ...], lines: list[str]) -> None:
    done = run(*words)
    assert (done.code, done.out, done.err.splitlines()) == (2, "", lines)


def test_a_missing_configuration_gets_no_unrelated_hint() -> None:
    done = run("config", "check", "/nowhere.yaml")
    assert done.code == 1
    assert "--config" not in done.err


def test_only_the_first_of_several_mistakes_in_a_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("actions: [enqueue, alocate]\nnodeTimeout: 1ms\novercomit: 2\n")
    assert "line 1: actions[1]" in run("config", "check", str(file)).err
    file.write_text("nodeTimeout: 1ms\novercomit: 2\nactions: [alocate]\n")
    assert "line 1: nodeTimeout: expected at least 1s" in run("config", "check", str(file)).err
