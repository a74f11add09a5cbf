"""Tests of scheduling gates on real processes, with a scheduler that only events wake.

They follow KEP-3521's e2e test: create a gated group, check that it is not scheduled for 15 s,
clear the gates, and check that it is scheduled: within 5 s there, within 30 s here, because the
machine may be busy.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from batchq.client import Client
from tests.e2e.machine import Machine, group, phase, pods_of, until

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"
#: No periodic session can hide a lost event.
LAZY = "schedulePeriod: 1h\n"


def up(machine: Machine) -> None:
    config = machine.file("lazy.yaml", LAZY)
    resources = ("--agents", "1", "--resources", "cpu=4,memory=1Gi")
    machine.batchq("up", *resources, "--config", str(config))


def shown(client: Client, name: str) -> str:
    [view] = [view for view in client.jobs() if view.key == f"default/{name}"]
    return view.shown


def stays_gated(client: Client, name: str, for_s: float) -> None:
    """Check that the group stays pending for that time."""
    never, deadline = threading.Event(), time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert (phase(client, name), pods_of(client, name)) == ("Pending", [])
        never.wait(0.2)


@pytest.mark.parametrize("for_s", [1.5, pytest.param(15.0, marks=pytest.mark.slow)])
def test_a_gated_group_is_scheduled_as_soon_as_its_last_gate_opens(
    machine: Machine, for_s: float
) -> None:
    up(machine)
    with machine.client() as client:
        client.submit(command=["true"], name="g", cpus="100m", gates=["foo", "bar"])
        until(lambda: bool(group(client, "g").status.conditions), what="it is said why it waits")
        stays_gated(client, "g", for_s)
        found = group(client, "g")
        [scheduled] = [one for one in found.status.conditions if one.type == "Scheduled"]
        assert (scheduled.status, scheduled.reason) == ("False", "SchedulingGated")
        assert scheduled.message == (
            "Scheduling is blocked due to non-empty scheduling gates: foo, bar"
        )
        assert shown(client, "g") == "SchedulingGated"
        # Two programs open one gate each at the same time; the later one wakes the group.
        openers = [machine.start("gates", "open", "g", gate) for gate in ("bar", "foo")]
        for opener in openers:
            assert opener.wait(60) == 0
        until(lambda: phase(client, "g") != "Pending")
        until(lambda: any(pod.status.node for pod in pods_of(client, "g")))
        [result] = client.wait(["g"], timeout_s=60)
        assert str(result.phase) == "Completed"
        reasons = [event.reason for event in client.events(kind="PodGroup", key="default/g")]
        assert reasons.count("GateOpened") == 2
        assert "Unschedulable" not in {one.reason for one in found.status.conditions}


def test_the_example_and_its_controller(machine: Machine, tmp_path: Path) -> None:
    up(machine)
    data = tmp_path / "data"
    text = (EXAMPLES / "gates.yaml").read_text()
    manifests = machine.file("gates.yaml", text.replace("/tmp/batchq-example-data", str(data)))
    machine.batchq("apply", "-f", str(manifests))
    with machine.client() as client:
        until(lambda: group(client, "report").status.admission == 1, what="report starts without")
        keeper = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "gatekeeper.py")],
            env={
                "PATH": "/usr/bin:/bin",
                "BATCHQ_REDIS_URL": machine.url,
                "PYTHONPATH": ":".join(sys.path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            machine.batchq("gates", "open", "model", "approved")
            assert shown(client, "model") == "SchedulingGated"
            assert [pod.spec.task for pod in pods_of(client, "report")] == ["collect", "collect"]
            data.touch()
            results = client.wait(["model", "report"], timeout_s=60)
        finally:
            keeper.terminate()
            out, err = keeper.communicate(timeout=120)
        assert [str(one.phase) for one in results] == ["Completed", "Completed"]
        assert (sorted(out.splitlines()), err) == (
            ["opened data-ready of default/model", "opened data-ready of default/report"],
            "",
        )
        opened = {one.name: one.by for one in group(client, "model").status.opened_gates}
        assert opened["data-ready"] == f"gatekeeper ({client.user})"
        assert opened["approved"] == client.user
