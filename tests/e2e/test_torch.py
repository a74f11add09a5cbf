"""torchrun starts the processes of gangs, with the program and the commands of the guide."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import PATIENT, Machine
from tests.tidy.command_lines import commands_in
from tests.tidy.source import ROOT

#: A Python with torch, and torchrun beside it.
PYTHON = os.environ.get("BATCHQ_TORCH", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="BATCHQ_TORCH names no Python with torch; Debian has python3-torch"
    ),
]

PAGE = ROOT / "docs" / "distributed.md"
[PROGRAM] = re.findall(r"^```python\n(.*?all_reduce.*?)^```", PAGE.read_text(), re.M | re.S)
COMMANDS = {
    words[3]: words[1:] for words in commands_in(PAGE) if words[1:3] == ["submit", "--name"]
}
#: torchrun of torch 1.13, the newest of Debian 12, does not start with its defaults on Python 3.11:
#: iterating over its `Std` omits the members 0 and 3 there.
WORKAROUND = ("--env", "PET_REDIRECTS=1", "--env", "PET_TEE=1")
#: A round of the gang fails in one process, and the next one must not.
BROKEN = f"""
import os, sys
{PROGRAM}
sys.exit(int(os.environ["BATCHQ_ROUND"] == "0" and os.environ["RANK"] == "3"))
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Machine]:
    """A machine with two agents, each with room for two pods, which find torchrun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(PYTHON).parent}:{os.environ['PATH']}")
        with Machine() as made:
            made.up(config=made.file("patient.yaml", PATIENT))
            for name in ("n1", "n2"):
                made.agent(name, "cpu=2,memory=16Gi")
            made.file("train.py", PROGRAM)
            made.file("broken.py", BROKEN)
            yield made


def lines_of(machine: Machine, *words: str) -> list[str]:
    """Run a command of the guide, and return what its pods have printed of their sum."""
    submit, *options = words
    machine.batchq(submit, "--wait", *WORKAROUND, *options, within_s=300)
    text = machine.batchq("logs", options[1]).stdout
    return sorted(re.findall(r"\d+ of \d+: \d+", text))


def test_the_command_of_the_guide_sums_over_four_processes_in_two_pods(pair: Machine) -> None:
    assert lines_of(pair, *COMMANDS["sum"]) == [f"{rank} of 4: 10" for rank in range(4)]


def test_the_module_does_as_torchrun_does(pair: Machine) -> None:
    command = (PYTHON, "-m", "torch.distributed.run", "train.py")
    lines = lines_of(
        pair, "submit", "--name", "total", "-N", "3", "--launch", "torch", "--", *command
    )
    assert lines == [f"{rank} of 3: 6" for rank in range(3)]


def test_a_process_that_fails_starts_the_gang_again_whole(pair: Machine) -> None:
    options = ("--name", "broken", "-N", "2", "--retries", "1", "--launch", "torch")
    words = ("submit", *options, "--processes", "2", "--", "torchrun", "broken.py")
    lines = lines_of(pair, *words)
    assert [line for line in lines if line.startswith("3 of 4")]
    assert "restarted 1 time" in pair.batchq("describe", "broken").stdout


def test_each_process_of_a_gang_without_a_launcher_finds_the_others(pair: Machine) -> None:
    """`env://` reads the variables of the style `rank`."""
    options = ("--name", "ranks", "-N", "4", "--launch", "rank")
    lines = lines_of(pair, "submit", *options, "--", PYTHON, "train.py")
    assert lines == [f"{rank} of 4: 10" for rank in range(4)]
