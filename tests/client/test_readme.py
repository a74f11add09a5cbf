"""The README's Python runs unchanged, against a real server."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from batchq.client import Client
from tests.client.stage import Stage
from tests.harness.server import Server

README = Path(__file__).resolve().parents[2] / "README.md"
SOON_S = 60


def run_to_the_end(stage: Stage, done: Future[None]) -> None:
    """Act as scheduler and agent for all submitted groups until `done`."""
    pause = Event()
    for _ in range(SOON_S * 100):
        if done.done():
            return
        stage.turn()
        for group in stage.store.list("PodGroup"):
            stage.start(group.metadata.name)
            for pod in stage.pods(group.metadata.name):
                if pod.status.phase == "Running":
                    place = pod.status.node, pod.metadata.uid, pod.status.attempt
                    stage.store.append_log(*place, "stdout", b"42\n")
            stage.end(group.metadata.name)
        pause.wait(0.01)
    raise AssertionError("it did not come to its end")


def test_the_python_of_the_readme_runs_and_runs_again(
    server: Server,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.S | re.M)
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    for _ in range(2):
        with ThreadPoolExecutor(max_workers=1) as threads:
            done = threads.submit(exec, compile(block, str(README), "exec"), {})
            run_to_the_end(stage, done)
            done.result(SOON_S)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[1] for line in lines] == ["42"] * 4
    with Client(server.url) as client:
        assert [one.phase for one in client.jobs()] == ["Completed", "Completed"]
