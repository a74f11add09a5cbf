"""docs/external.md: its Python runs unchanged, on the group of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.builders import a_queue
from tests.client.stage import Stage
from tests.harness.server import Server

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "external.md"
GROUP = ROOT / "conf" / "examples" / "external.yaml"


@pytest.fixture
def blocks(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)


def test_the_python_of_the_page_completes_the_group_of_the_page(
    blocks: list[str], stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.client.apply(list(yaml.safe_load_all(GROUP.read_text("utf-8"))))
    stage.turn()
    exec(compile(blocks[0], str(PAGE), "exec"), {})
    stage.turn()
    assert stage.phase("render") == "Completed"
    assert capsys.readouterr().out == (
        "rendering frame 1 of default/render\nrendering frame 2 of default/render\n"
    )


def test_its_consumer_of_many_completes_all_that_wait(
    blocks: list[str], stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.furnish(a_queue("render-farm"))
    for name in ("a", "b", "c"):
        stage.client.submit(external=True, name=name, queue="render-farm")
    stage.turn()
    exec(compile(blocks[1], str(PAGE), "exec"), {})
    stage.turn()
    assert {stage.phase(name) for name in ("a", "b", "c")} == {"Completed"}
    assert (len(blocks), capsys.readouterr().out) == (2, "")
