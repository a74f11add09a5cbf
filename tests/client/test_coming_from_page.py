"""docs/coming-from.md: its manifests can be applied, and its commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.client.stage import Stage
from tests.tidy.command_lines import accept

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
EXAMPLES = [
    block
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.S | re.M)
    if "apiVersion: batchq/" in block
]
COMMANDS = re.findall(r"`(batchq [^`]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.S | re.M))


@pytest.mark.parametrize("block", EXAMPLES)
def test_the_manifests_of_the_page_are_accepted(stage: Stage, block: str) -> None:
    applied = stage.client.apply(list(yaml.safe_load_all(block)))
    assert [one.effect for one in applied] == ["created"] * len(applied)


def test_kueues_quotas_come_out_as_the_page_says(stage: Stage) -> None:
    stage.client.apply(list(yaml.safe_load_all(EXAMPLES[0])))
    views = {view.name: view for view in stage.client.queues()}
    vision = views["vision"].queue.spec
    assert (vision.guarantee["cpu"], vision.capability["cpu"]) == (16_000, 96_000)
    assert views["vision"].parent == "lab"
    assert vision.preemption.borrowing == 100


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_the_commands_of_the_page_exist(command: str) -> None:
    accept(shlex.split(command)[1:])


def test_the_page_has_its_three_examples_and_its_commands() -> None:
    assert len(EXAMPLES) == 3
    assert len(set(COMMANDS)) > 25
