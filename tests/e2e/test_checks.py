"""Tests of admission checks on a real stack, with both controllers of conf/examples."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchq.client import Client
from tests.e2e.machine import Machine, group, phase, until

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"
SLEEPS = ["sh", "-c", "sleep 600"]
#: A check that is answered by command, a queue of two cpus with that check, and two priorities.
WORLD: list[dict[str, Any]] = [
    {
        "kind": "AdmissionCheck",
        "metadata": {"name": "approval"},
        "spec": {"controllerName": "approval"},
    },
    {
        "kind": "Queue",
        "metadata": {"name": "reviewed"},
        "spec": {"admissionChecks": ["approval"], "capability": {"cpu": 2}},
    },
    {"kind": "PriorityClass", "metadata": {"name": "high"}, "spec": {"value": 10}},
]


@pytest.fixture
def reviewed(machine: Machine) -> Iterator[Client]:
    """A stack with a queue whose groups are approved by command."""
    machine.up()
    machine.agent("n1")
    with Client(machine.url) as client:
        client.apply([{"apiVersion": "batchq/v1", **item} for item in WORLD])
        yield client


def reserved(client: Client, name: str) -> bool:
    found = group(client, name)
    return found.status.reserved_at is not None and found.status.phase == "Pending"


def has_run(client: Client, key: str) -> bool:
    """Return whether a group runs or has run, however short the run was."""
    return "Running" in {event.reason for event in client.events(kind="PodGroup", key=key)}


def why(client: Client, name: str) -> list[str]:
    return [str(verdict.reason) for verdict in group(client, name).status.reasons]


def submit(client: Client, name: str, cpus: int = 2, **request: Any) -> None:
    client.submit(command=["true"], name=name, queue="reviewed", cpus=cpus, **request)


@contextmanager
def budget(machine: Machine, hours: str) -> Iterator[Path]:
    """Run the example's controller with these cpu-hours, and yield the file that holds them."""
    file = machine.file("hours.yml", hours)
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "budget.py"), str(file), str(machine.root / "ledger")],
        env={"BATCHQ_REDIS_URL": machine.url, "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        yield file
        process.terminate()
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()


def test_a_group_is_reserved_approved_and_run(machine: Machine) -> None:
    machine.up()
    machine.agent("n1")
    machine.batchq("apply", "-f", str(EXAMPLES / "approval.yaml"))
    with Client(machine.url) as client:
        until(lambda: why(client, "release") == ["CheckInactive"])
        serving = machine.start("checks", "serve", "approval")
        until(lambda: reserved(client, "release"))
        rows = json.loads(machine.batchq("checks", "list", "--waiting", "-o", "json").stdout)
        [row] = rows["items"]
        assert (row["podGroup"], row["check"], row["active"]) == (
            *("default/release", "approval"),
            True,
        )
        machine.batchq("checks", "set", "release", "approval", "True", "-m", "read and tested")
        machine.batchq("wait", "release", "--timeout", "60s")
        assert phase(client, "release") == "Completed"
        serving.terminate()
        assert serving.wait(90) == 0
        assert [check.active for check in client.checks.records()] == [False]


def test_a_budget_admits_refuses_and_stops_running_groups_when_it_is_spent(
    machine: Machine,
) -> None:
    machine.up()
    machine.agent("n1", "cpu=4,memory=512Mi")
    machine.batchq("apply", "-f", str(EXAMPLES / "budget.yaml"))
    with Client(machine.url) as client:
        with budget(machine, "default: 2"):
            until(lambda: has_run(client, "default/fits"))
            until(lambda: client.checks.list("too-long")[0].reason == "Retry")
            [state] = client.checks.list("too-long")
            assert state.message.startswith("20.000 cpu-hours asked, 1.000 left this week of 2")
            assert not reserved(client, "too-long")
        client.cancel("too-long")
        # The next controller knows all that was used before.
        with budget(machine, "default: 0.001"):
            until(lambda: phase(client, "fits") in ("Pending", "Completed"), within_s=60)
            client.submit(command=SLEEPS, name="more", queue="metered", walltime="1h")
            until(lambda: [one.status for one in client.checks.list("more")] == ["False"])
        with budget(machine, "default: 40\nresearch: 0.0005\n") as file:
            client.submit(command=SLEEPS, name="open", namespace="research", queue="metered")
            until(lambda: has_run(client, "research/open"))
            until(lambda: phase(client, "research/open") == "Pending", within_s=60)
            [state] = client.checks.list("research/open")
            assert "the 0.0005 cpu-hours of research are spent this week" in state.message
            file.write_text("default: [not a number]")
            client.submit(command=["true"], name="still", queue="metered", walltime="1m")
            machine.batchq("wait", "still", "--timeout", "60s")
