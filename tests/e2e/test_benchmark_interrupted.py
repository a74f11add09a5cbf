"""A benchmark that is interrupted ends what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.machine import until
from tests.effort import sample

ROOT = Path(__file__).resolve().parents[2]


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that were started with this mark, wherever they are attached now."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.cmdline() or process.environ().get("BENCHMARK_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGTERM], 1))
def test_an_interrupted_benchmark_leaves_no_process_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    mark = f"benchmark-{tmp_path.name}"
    environ = {**os.environ, "BENCHMARK_MARK": mark, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "agents"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(marked(mark)) > 1, what="the benchmark has started a server")
        process.send_signal(number)
        assert process.wait(timeout=90) == 128 + number
        until(lambda: marked(mark) == [], what="no process is left")
    finally:
        for left in marked(mark):
            left.kill()
        process.wait()
