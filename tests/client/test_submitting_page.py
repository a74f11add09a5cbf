"""docs/submitting.md: its Python runs unchanged, and its file is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchq.cli.submit import FileLines
from batchq.client.request import Request
from batchq.client.request_fields import Drafts, read_fields
from tests.builders import a_queue
from tests.client.stage import Stage
from tests.harness.server import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "submitting.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)


def test_its_python_runs_and_runs_again(
    server: Server,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submitting, waiting = blocks("python")
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    for _ in range(2):
        exec(compile(submitting, str(PAGE), "exec"), {})
        assert len(stage.store.list("PodGroup")) == 1000
    assert capsys.readouterr().out == ""
    for number in range(1000):
        stage.client.cancel(f"seed-{number}")
    exec(compile(waiting, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == sorted(f"seed-{number} Cancelled" for number in range(1000))


def test_the_file_of_the_page_is_accepted(stage: Stage, tmp_path: Path) -> None:
    stage.client.apply([a_queue("team-a")])
    [text] = blocks("json")
    file = tmp_path / "jobs.jsonl"
    file.write_text(text)
    with FileLines(str(file), {"working_dir": "/"}, {}) as lines:
        requests = [line.request for line in lines.read()]
    assert stage.client.submit_many(requests).all().submitted == 3


def test_the_page_names_every_field() -> None:
    [listed] = re.findall(
        r"A line has the keywords (.*?)A line can also be", PAGE.read_text("utf-8"), re.S
    )
    named = set(re.findall(r"`([a-z_]+)`", listed))
    assert named == set(Request.__struct_fields__)
    for field in Request.__struct_fields__:
        # Every field that is read is documented.
        assert read_fields({field: None}, {}) == Request()
    assert Drafts({}).draft({"command": ["true"]}, "00000").program == "true"
