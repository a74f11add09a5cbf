"""docs/checks.md: its Python and its manifests are what they seem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.client.stage import Stage
from tests.harness.server import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"


def block_of(language: str) -> str:
    [block] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    return str(block)


def test_the_python_of_the_page_answers_and_gives_back(
    server: Server,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    check, queue = yaml.safe_load_all(block_of("yaml"))
    check["spec"]["controllerName"] = "licences"
    stage.client.apply([check, queue])
    stage.client.submit(command=["true"], name="g", queue="reviewed")
    with stage.client.checks.watch("licences"):
        stage.turn()
    code = compile(block_of("python"), str(PAGE), "exec")
    exec(code, {})
    [state] = stage.client.checks.list("g")
    assert (state.status, state.message) == ("True", "2 of 10 seats are free")
    stage.client.suspend("g")
    stage.turn()
    exec(code, {})
    assert capsys.readouterr().out == "giving the seats of default/g back\n"


def test_the_manifests_of_the_page_are_accepted(stage: Stage) -> None:
    applied = stage.client.apply(list(yaml.safe_load_all(block_of("yaml"))))
    assert [one.effect for one in applied] == ["created", "created"]
