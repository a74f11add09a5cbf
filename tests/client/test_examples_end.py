"""The programs of conf/examples end quietly at Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.checking import a_check
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.server import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"


def started(server: Server, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={"BATCHQ_REDIS_URL": server.url, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_gatekeeper_ends_quietly(server: Server, stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.touch()
    mark = {"example.com/waits-for": str(file)}
    stage.client.submit(["true"], name="g", gates=["data-ready"], annotations=mark)
    with started(server, EXAMPLES / "gatekeeper.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened data-ready of default/g\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    assert not stage.client.gates.list()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_budget_ends_quietly_and_lets_go_and_counts_beside_its_file(
    server: Server, stage: Stage, tmp_path: Path, number: signal.Signals
) -> None:
    stage.furnish(a_check(controller="budget"))
    file = tmp_path / "hours.yml"
    file.write_text("default: 2\n")
    ledger = tmp_path / "hours.ledger.json"
    with started(server, EXAMPLES / "budget.py", file) as process:
        until(ledger.exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")
    assert not stage.client.checks.records()[0].active
