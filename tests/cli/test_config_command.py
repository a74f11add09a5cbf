"""`batchq config`: what it accepts, what it prints, and that it reads what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchq.cli.config import checked_config
from batchq.cli.main import main
from batchq.config.load import load_config
from batchq.errors import InvalidInput

SHIPPED = Path(__file__).parents[2] / "conf" / "scheduler.yaml"


def test_the_shipped_file_is_valid_and_says_the_defaults() -> None:
    assert checked_config(SHIPPED) == checked_config(None)
    done = CliRunner().invoke(main, ["config", "check", str(SHIPPED)])
    assert done.output == (
        f"{SHIPPED} is a valid configuration\n"
        "actions: enqueue, allocate, reclaim, preempt\n"
        "plugins: gates, dependencies, quota, capacity, gang, priority, proportion,"
        " predicates, leastAllocated, binpack, conformance\n"
    )


def test_settings_of_a_plugin_that_is_not_on_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("pluginConfig: {sla: {waitingTime: 1h}, binpack: {resource: cpu}}\n")
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert done.exit_code == 0
    assert done.stderr == "note: pluginConfig.sla has no effect: plugins does not name sla\n"
    assert "sla" not in done.stdout.splitlines()[2]


PREEMPT = (
    "warning: preempt will evict nobody: plugins names none that agrees to its victims;"
    " add priority, or leave preempt out of actions\n"
)
RECLAIM = (
    "warning: reclaim will evict nobody: plugins names none that agrees to its victims;"
    " add proportion, or leave reclaim out of actions\n"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plugins: [gates, gang, sla, conformance]\n", RECLAIM + PREEMPT),
        ("plugins: []\nactions: [preempt]\n", PREEMPT),
        ("plugins: [gang, proportion]\n", PREEMPT),
        ("plugins: [drf]\n", RECLAIM),
        ("plugins: [priority]\n", ""),
        ("plugins: [proportion, drf]\n", ""),
        ("plugins: [gang]\nactions: [enqueue, allocate]\n", ""),
    ],
)
def test_actions_that_no_plugin_agrees_to_victims_for_are_warned_of(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert (done.exit_code, done.stderr) == (0, told)


def test_warnings_leave_the_json_on_stdout_whole(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("plugins: [gang]\nactions: [preempt]\n")
    done = CliRunner().invoke(main, ["config", "check", str(file), "-o", "json"])
    assert (done.exit_code, done.stderr) == (0, PREEMPT)
    assert json.loads(done.stdout) == {
        "file": str(file),
        "actions": ["preempt"],
        "plugins": ["gang"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "actions: enqueue, allocate\n",
        "schedulePeriod: 250ms\novercommit: 1.25\nnodeTimeout: 90s\n",
        "plugins: [gates, {name: leastAllocated, weight: 3}]\n",
        "plugins: [gates, binpack]\npluginConfig:\n  binpack: {resource: 'gpu'}\n",
        "minRuntime: 90s\nevictionBudget: {pods: 10, window: 1h}\n",
        "evictionBudget: {pods: 3}\n",
    ],
)
def test_what_is_printed_is_read_as_the_same(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    printed = CliRunner().invoke(main, ["config", "print", "--config", str(file)])
    again = tmp_path / "again.yaml"
    again.write_text(printed.output)
    assert printed.exit_code == 0
    assert load_config(again) == load_config(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "actions:\n- enqueue\n- alocate\n",
            (
                "line 3: actions[1]: there is no action 'alocate'; known: allocate, enqueue,"
                " preempt, reclaim; did you mean 'allocate'?"
            ),
        ),
        (
            "plugins: [gates]\nactions: enqueue,zzz\n",
            (
                "line 2: actions[1]: there is no action 'zzz'; known: allocate, enqueue, preempt,"
                " reclaim"
            ),
        ),
        (
            "schedulePeriod: 1s\nplugins:\n- gates\n- gangs\n",
            (
                "line 4: plugins[1]: there is no plugin 'gangs'; known: balancedAllocation,"
                " binpack, capacity, conformance, dependencies, drf, gang, gates,"
                " leastAllocated, mostAllocated, overcommit, predicates, priority, proportion,"
                " quota, sla; did you mean 'gang'?"
            ),
        ),
        (
            "plugins: [gates]\npluginConfig:\n  sla:\n    waitTime: 1h\n",
            (
                "line 4: pluginConfig.sla.waitTime: there is no such field;"
                " did you mean 'waitingTime'?"
            ),
        ),
        (
            "pluginConfig:\n  sla:\n    waitingTime: soon\n",
            (
                "line 3: pluginConfig.sla.waitingTime: expected a duration such as 90s, 2h or 1d,"
                " found 'soon'"
            ),
        ),
        (
            "pluginConfig:\n  gangs: {}\n",
            "line 2: pluginConfig.gangs: there is no such plugin; did you mean 'gang'?",
        ),
        (
            "shedulePeriod: 1s\n",
            "line 1: shedulePeriod: there is no such setting; did you mean 'schedulePeriod'?",
        ),
    ],
)
def test_a_wrong_name_is_told_with_its_line_and_the_nearest(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        checked_config(file)
    assert refused.value.message == f"{file}, {told}"
    assert refused.value.exit_code == 1
