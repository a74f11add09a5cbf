"""Tests of docs/from-rq.md: its two files run unchanged, against a whole stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.machine import QUICK_AGENT, Machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-rq.md"
WITHIN_S = 120

SQUARE = """
import os

def square():
    return int(os.environ["BATCHQ_INDEX"]) ** 2
"""


def test_the_files_of_the_page_do_what_it_says(machine: Machine) -> None:
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    assert [name for _, name in blocks] == ["tasks.py", "app.py", "steps.py"]
    for text, name in blocks:
        machine.file(name, text)
    machine.up(agents=1, resources="cpu=2,memory=512Mi")
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=machine.root,
        env={**os.environ, "BATCHQ_REDIS_URL": machine.url},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "5",
        "{'path': 'a.png', 'width': 400}",
        "[0, 1, 4, 9]",
        "['b.png', 'c.png']",
        "PodGroup default/broken has failed: Pod broken-main-0: ValueError: no such picture",
        "['ValueError: no such picture']",
    ]


def test_a_later_function_reads_the_results_of_an_earlier_one(machine: Machine) -> None:
    """With the module of the page, in a pod, which knows no server but the API of its token."""
    steps = re.search(r"^```python\n(# steps\.py\n.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    assert steps is not None
    machine.file("steps.py", steps[1])
    machine.file("tasks.py", SQUARE)
    machine.batchq("up", "--agents", "0", "--config", str(machine.quick), "--api")
    server = f"unix:{machine.home.api_socket}"
    agent = ("--name", "n1", "--resources", "cpu=2,memory=512Mi", *QUICK_AGENT)
    machine.start("worker", *agent, "--api-server", server)
    call = ("--function", "steps:total", "--args", '["squares"]', "--after", "squares")
    machine.batchq("submit", "--name", "squares", "--function", "tasks:square", "--array", "0-3")
    machine.batchq("submit", "--name", "area", *call, "--api-token")
    assert machine.batchq("result", "area").stdout == "14\n"


def test_a_function_runs_from_a_shell(machine: Machine) -> None:
    machine.file("tasks.py", "def add(one, other):\n    return one + other\n")
    machine.up(agents=1)
    machine.batchq("submit", "--name", "sum", "--function", "tasks:add", "--args", "[2, 3]")
    assert machine.batchq("result", "sum").stdout == "5\n"
    machine.batchq("submit", "--name", "bad", "--function", "tasks:nope")
    failed = machine.batchq("result", "bad", exits=10)
    assert failed.stdout == ""
    assert failed.stderr.startswith(
        "error: PodGroup default/bad has failed: Pod bad-main-0: module tasks"
    )
