"""The examples of conf/examples, each after every other, on one stack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, phase, until

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"

#: Each example takes seconds; `make swarm` runs them all, twice.
pytestmark = pytest.mark.slow


@contextmanager
def program(stack: Machine, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of the example programs until the block ends."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "BATCHQ_REDIS_URL": stack.url},
        cwd=stack.root,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def completes(stack: Machine, *groups: str) -> None:
    with stack.client() as client:
        until(
            lambda: all(phase(client, group) == "Completed" for group in groups),
            what=f"{', '.join(groups)} have completed",
        )


def approval(stack: Machine) -> None:
    stack.batchq("apply", "-f", str(EXAMPLES / "approval.yaml"))
    serving = stack.start("checks", "serve", "approval")
    until(
        lambda: "release" in stack.batchq("checks", "list", "--waiting").stdout,
        what="release waits for its approval",
    )
    stack.batchq("checks", "set", "release", "approval", "True", "-m", "read and tested")
    completes(stack, "release")
    serving.terminate()


def budget(stack: Machine) -> None:
    stack.batchq("apply", "-f", str(EXAMPLES / "budget.yaml"))
    ledger = str(stack.root / "ledger.json")
    with program(stack, "budget.py", str(EXAMPLES / "cpu-hours.yml"), ledger):
        completes(stack, "fits")


def external(stack: Machine) -> None:
    stack.batchq("apply", "-f", str(EXAMPLES / "external.yaml"))
    with program(stack, "consumer.py", "--once"):
        completes(stack, "render")


def gates(stack: Machine) -> None:
    data = stack.root / "data"
    text = (EXAMPLES / "gates.yaml").read_text().replace("/tmp/batchq-example-data", str(data))
    stack.batchq("apply", "-f", str(stack.file("gates.yaml", text)))
    with program(stack, "gatekeeper.py"):
        data.touch()
        stack.batchq("gates", "open", "model", "approved")
        stack.batchq("wait", "model", "report")


def mandelbrot(stack: Machine) -> None:
    stack.batchq("run", str(EXAMPLES / "mandelbrot.yaml"))


def sweep(stack: Machine) -> None:
    stack.batchq("run", str(EXAMPLES / "sweep.yaml"))


def two_tenants(stack: Machine) -> None:
    stack.batchq("run", str(EXAMPLES / "two-tenants.yaml"))


RUN: dict[str, Callable[[Machine], None]] = {
    "approval.yaml": approval,
    "budget.yaml": budget,
    "external.yaml": external,
    "gates.yaml": gates,
    "mandelbrot.yaml": mandelbrot,
    "sweep.yaml": sweep,
    "two-tenants.yaml": two_tenants,
}
SIMULATED = {"backfill.yaml", "world.yaml"}


def test_every_example_is_run_here_or_simulated() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == RUN.keys() | SIMULATED


@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_each_example_runs_after_every_other(machine: Machine, order: int) -> None:
    machine.up(agents=2)
    for name in list(RUN)[::order]:
        RUN[name](machine)
    for name in sorted(SIMULATED):
        machine.batchq("simulate", str(EXAMPLES / name))
