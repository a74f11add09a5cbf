"""docs/external.md: its Python runs as it stands, on the group of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.client.stage import Stage
from tests.harness.server import Server

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "external.md"
GROUP = ROOT / "conf" / "examples" / "external.yaml"


def test_the_python_of_the_page_completes_the_group_of_the_page(
    server: Server,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    stage.client.apply(list(yaml.safe_load_all(GROUP.read_text("utf-8"))))
    stage.turn()
    exec(compile(block, str(PAGE), "exec"), {})
    stage.turn()
    assert stage.phase("render") == "Completed"
    assert capsys.readouterr().out == (
        "rendering frame 1 of default/render\nrendering frame 2 of default/render\n"
    )
