"""Distributed jobs of real frameworks, which are large: `pip install 'batchq[frameworks]'`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.machine import Machine
from tests.tidy.source import ROOT

#: `make swarm` runs them.
pytestmark = pytest.mark.slow

SCRIPT = ROOT / "tests" / "e2e" / "jax_sum.py"


@pytest.fixture(scope="module")
def jax() -> None:
    """Skip the test unless JAX is installed."""
    found = subprocess.run([sys.executable, "-c", "import jax"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("JAX is not installed; pip install 'batchq[frameworks]'")


@pytest.fixture(scope="module")
def pair() -> Iterator[Machine]:
    """A machine with two agents, each with room for two pods."""
    with Machine() as made:
        made.up()
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=16Gi")
        yield made


@pytest.mark.usefixtures("jax")
@pytest.mark.parametrize("dialect", ["plain", "slurm"])
def test_jax_sums_over_four_processes_on_two_agents(pair: Machine, dialect: str) -> None:
    options = ["--launch", "rank", "--env", "JAX_PLATFORMS=cpu"]
    options += ["--dialect", "slurm"] if dialect == "slurm" else []
    command = (sys.executable, str(SCRIPT), dialect)
    pair.batchq("submit", "--name", dialect, "-N", "4", "--wait", *options, "--", *command)
    lines = sorted(pair.batchq("logs", dialect).stdout.splitlines())
    assert [line for line in lines if " of 4: " in line] == [
        f"{rank} of 4: 10" for rank in range(4)
    ]
