"""The program on docs/gates.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from batchq.api.manifest import decode
from batchq.client import Client
from tests.client.stage import Stage
from tests.harness.server import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gates.md"


def test_the_program_opens_the_gates_of_groups_whose_file_is_there(
    client: Client,
    server: Server,
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    # The first group is ignored: the program continues with the others.
    client.submit(command=["true"], name="a-silent-one", gates=["data-ready"])
    for name in ("there", "missing"):
        template = {"command": ["true"], "schedulingGates": [{"name": "data-ready"}]}
        manifest = {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {
                "name": name,
                "annotations": {"example.com/waits-for": str(tmp_path / name)},
            },
            "spec": {"tasks": [{"name": "w", "template": template}]},
        }
        client.submit_all([decode(manifest)])
    (tmp_path / "there").touch()
    exec(compile(program, str(PAGE), "exec"), {})
    stage.turn()
    assert (stage.phase("there"), stage.phase("missing")) == ("InQueue", "Pending")
    assert [left.group for left in client.gates.list()] == [
        "default/a-silent-one",
        "default/missing",
    ]


def test_the_manifest_of_the_page_is_accepted_and_waits(client: Client, stage: Stage) -> None:
    [manifest] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    client.apply([yaml.safe_load(manifest)])
    stage.turn()
    [left] = client.gates.list()
    assert (left.group, left.gate) == ("default/train", "data-ready")
