"""Distributed jobs of real frameworks, which `make swarm-of-frameworks` installs and runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine

#: The Python that has the frameworks; they are too large for the environment of the tests.
PYTHON = os.environ.get("BATCHQ_FRAMEWORKS", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="run `make swarm-of-frameworks`, which installs them"),
]

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def pair() -> Iterator[Machine]:
    """A machine with two agents, each with room for two pods."""
    with Machine() as made:
        made.up()
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=16Gi")
        yield made


def lines_of(machine: Machine, name: str, *words: str) -> list[str]:
    """Run a job of four pods, and return what they have printed, in order."""
    machine.batchq("submit", "--name", name, "-N", "4", "--wait", *words)
    return sorted(machine.batchq("logs", name).stdout.splitlines())


@pytest.mark.parametrize("dialect", ["plain", "slurm"])
def test_jax_sums_over_four_processes_on_two_agents(pair: Machine, dialect: str) -> None:
    options = ["--launch", "rank", "--env", "JAX_PLATFORMS=cpu"]
    options += ["--dialect", "slurm"] if dialect == "slurm" else []
    command = (PYTHON, str(FOLDER / "jax_sum.py"), dialect)
    lines = lines_of(pair, f"jax-{dialect}", *options, "--", *command)
    assert [line for line in lines if " of 4: " in line] == [
        f"{rank} of 4: 10" for rank in range(4)
    ]


def test_dask_has_a_scheduler_in_pod_0_and_workers_in_the_others(pair: Machine) -> None:
    lines = lines_of(pair, "dask", "--launch", "dask", "--", PYTHON, str(FOLDER / "dask_sum.py"))
    assert "3 workers: 285" in lines


def test_ray_has_its_head_in_pod_0_and_a_node_in_each_of_the_others(pair: Machine) -> None:
    lines = lines_of(pair, "ray", "--launch", "node", "--", PYTHON, str(FOLDER / "ray_sum.py"))
    assert "4 nodes: 285" in lines
