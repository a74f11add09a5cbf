"""The guides: their manifests can be applied, their commands exist, and their Python compiles."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from batchq.config.load import load_config
from tests.client.stage import Stage
from tests.tidy.command_lines import accept
from tests.tidy.source import ROOT

GUIDES = ("tutorial", "cluster", "gpus", "gangs", "sweeps", "shares", "faq")


def blocks(language: str) -> list[str]:
    return [
        block
        for name in GUIDES
        for block in re.findall(
            rf"^```{language}\n(.*?)^```",
            (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"),
            re.S | re.M,
        )
    ]


@pytest.mark.parametrize("block", [each for each in blocks("yaml") if "apiVersion" in each])
def test_the_manifests_of_the_guides_are_accepted(stage: Stage, block: str) -> None:
    applied = stage.client.apply(list(yaml.safe_load_all(block)))
    assert [one.effect for one in applied] == ["created"] * len(applied)


@pytest.mark.parametrize("block", [each for each in blocks("yaml") if "apiVersion" not in each])
def test_the_configurations_of_the_guides_are_accepted(tmp_path: Path, block: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(block, encoding="utf-8")
    assert load_config(file) != load_config(None)


@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_in_the_text_of_a_guide_exist(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for command in re.findall(r"`(batchq\s[^`]+)`", prose):
        accept(shlex.split(command)[1:])


@pytest.mark.parametrize("block", blocks("python"))
def test_the_python_of_the_guides_compiles(block: str) -> None:
    compile(block, "guide", "exec")


def test_the_page_of_questions_has_twenty() -> None:
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### .+\?$", text, re.MULTILINE)) >= 20
