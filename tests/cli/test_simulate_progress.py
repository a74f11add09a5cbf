"""Progress of a simulated log: a bar on a terminal, lines in a pipe, a sentence after Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from batchq.cli.output.progress import ProgressLines
from tests.cli.test_simulate_traces import log_text

ROOT = Path(__file__).resolve().parents[2]
#: Too many for a quick simulation; each needs the whole machine.
MANY = [(number, number, 1000, 4, 1) for number in range(1, 20_001)]


def test_a_pipe_gets_progress_after_some_seconds_and_then_less_often() -> None:
    noted: list[str] = []
    now = [100.0]
    lines = ProgressLines(lambda: now[0], noted.append)
    for second in range(400):
        now[0] = 100.0 + second
        lines("easy", 10 * second, 5000)
    assert noted == [
        "easy: 50 of 5,000 jobs after 5 s",
        "easy: 150 of 5,000 jobs after 15 s",
        "easy: 350 of 5,000 jobs after 35 s",
        "easy: 750 of 5,000 jobs after 75 s",
        "easy: 1,550 of 5,000 jobs after 155 s",
        "easy: 2,750 of 5,000 jobs after 275 s",
        "easy: 3,950 of 5,000 jobs after 395 s",
    ]


def test_a_run_done_within_seconds_prints_no_progress() -> None:
    noted: list[str] = []
    now = [0.0]
    lines = ProgressLines(lambda: now[0], noted.append)
    now[0] = 4.9
    lines("easy", 5000, 5000)
    assert noted == []


def test_ctrl_c_ends_a_run_with_one_sentence_and_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "many.swf").write_text(log_text(MANY))
    ours, theirs = pty.openpty()
    words = ("--policy", "fcfs", "--policy", "easy", "--starts", "starts.csv", "--plot", "p.png")
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq.cli", "simulate", "many.swf", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'actions'}", "TERM": "xterm", "HOME": str(tmp_path)},
    )
    os.close(theirs)
    seen = b""
    # The bar names the run as soon as the first jobs have finished.
    while b"fcfs (1 of 2)" not in seen:
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    while more := _read(ours):
        seen += more
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, b"")
    last = seen.decode().strip().splitlines()[-1]
    assert "error: interrupted in run fcfs (1 of 2), when " in last
    assert last.endswith(" had finished; nothing was written")
    assert b"Traceback" not in seen
    assert [path.name for path in folder.iterdir()] == ["many.swf"]


def _read(terminal: int) -> bytes:
    """Read more output; empty if the other side is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
