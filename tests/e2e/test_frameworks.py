"""Distributed jobs of real frameworks, which `make swarm-of-frameworks` installs and runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import (
    QUICK,
    Machine,
    group,
    kill,
    phase,
    process_group_of_a_pod,
    until,
)

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


#: Long enough for a machine that is busy with the frameworks, and short enough for a test.
SOON = QUICK.replace("nodeTimeout: 3s", "nodeTimeout: 20s").replace("podLease: 2s", "podLease: 10s")
JOBS = {
    "dask": ("dask_sum.py", "dask", "3 workers: 285"),
    "ray": ("ray_sum.py", "node", "4 nodes: 285"),
}


def kill_a_pod(machine: Machine, agents: dict[str, subprocess.Popen[str]]) -> None:
    kill(process_group_of_a_pod(machine, "n2"))


def kill_an_agent(machine: Machine, agents: dict[str, subprocess.Popen[str]]) -> None:
    kill(agents["n2"].pid)
    agents["n2"].wait()
    machine.agent("n2", "cpu=2,memory=16Gi", options=("--lease", "10s"))


@pytest.mark.parametrize("strike", [kill_a_pod, kill_an_agent])
@pytest.mark.parametrize("framework", JOBS)
def test_a_job_that_loses_a_pod_starts_again_whole_and_ends_right(
    machine: Machine,
    framework: str,
    strike: Callable[[Machine, dict[str, subprocess.Popen[str]]], None],
) -> None:
    program, style, answer = JOBS[framework]
    machine.up(config=machine.file("soon.yaml", SOON))
    options = ("--lease", "10s")
    agents = {
        name: machine.agent(name, "cpu=2,memory=16Gi", options=options) for name in ("n1", "n2")
    }
    has_met = machine.root / "has-met"
    words = ("--name", framework, "-N", "4", "--launch", style, "--retries", "1", "--grace", "5s")
    command = (PYTHON, str(FOLDER / program), str(has_met))
    machine.batchq("submit", *words, "--", *command)
    until(has_met.exists, within_s=180, what="the first round has met")
    strike(machine, agents)
    with machine.client() as client:
        until(
            lambda: phase(client, framework) in ("Completed", "Failed"),
            within_s=240,
            what="the gang has ended",
        )
        found = group(client, framework).status
    assert (found.phase, found.restarts) == ("Completed", 1)
    assert answer in machine.batchq("logs", framework, "--pod", "main-0").stdout
