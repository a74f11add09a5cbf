"""docs/checks.md: its program runs, and its manifests are valid."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.server import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"


def block_of(language: str) -> str:
    [block] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    return str(block)


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(block_of("yaml")))


@contextmanager
def the_program(server: Server, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Save licences.py from the page and start it."""
    program = folder / "licences.py"
    program.write_text(block_of("python"))
    with subprocess.Popen(
        [sys.executable, str(program)],
        env={"BATCHQ_REDIS_URL": server.url, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answers(stage: Stage, group: str) -> list[tuple[str, str]]:
    return [(state.status, state.message) for state in stage.client.checks.list(group)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_of_the_page_answers_until_it_is_stopped(
    server: Server, stage: Stage, tmp_path: Path, number: signal.Signals
) -> None:
    check, queue, group = manifests()
    check["spec"]["controllerName"] = "licences"
    stage.client.apply([check, queue, group])
    with the_program(server, tmp_path) as process:
        until(lambda: stage.client.checks.records()[0].active)
        stage.turn()
        until(lambda: answers(stage, "release") == [("True", "10 of 10 seats are free")])
        # It has not ended after its first answer.
        stage.client.submit(command=["true"], name="second", queue="reviewed")
        stage.turn()
        until(lambda: answers(stage, "second") == [("True", "9 of 10 seats are free")])
        assert stage.client.checks.records()[0].active
        stage.client.suspend("release")
        stage.turn()
        assert process.stdout is not None
        assert process.stdout.readline() == "the seat of default/release is free again\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert not stage.client.checks.records()[0].active
    # A restarted program knows the holders of seats, and does not repeat old answers.
    with the_program(server, tmp_path) as process:
        until(lambda: stage.client.checks.records()[0].active)
        stage.client.submit(command=["true"], name="third", queue="reviewed")
        stage.turn()
        until(lambda: answers(stage, "third") == [("True", "9 of 10 seats are free")])
        process.send_signal(number)
        assert process.communicate(timeout=120) == ("", "")


def test_the_manifests_of_the_page_are_accepted(stage: Stage) -> None:
    applied = stage.client.apply(manifests())
    assert [one.effect for one in applied] == ["created", "created", "created"]
