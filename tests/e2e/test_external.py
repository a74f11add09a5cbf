"""Tests of external groups with real consumers: the example, its check, and faulty consumers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchq.client import Client
from batchq.daemon import detached
from batchq.lab.consumer_check import PromiseFinding, check_consumer
from tests.e2e.machine import Machine, group, kill, phase, until

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"
CONSUMER = EXAMPLES / "consumer.py"
BROKEN = Path(__file__).with_name("broken_consumer.py")


def check_broken(fault: str, promise: str) -> PromiseFinding:
    """Return the finding of the check about one promise, for a consumer with this fault."""
    [finding] = check_consumer(
        [sys.executable, str(BROKEN), fault], tell=lambda _: None, only=[promise], patience_s=20
    )
    return finding


def consumer(machine: Machine) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CONSUMER), "--once"],
        env={"PATH": "/usr/bin:/bin", "BATCHQ_REDIS_URL": machine.url, "PYTHONPATH": _path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _path() -> str:
    return ":".join(sys.path)


def test_the_examples_run_together(machine: Machine) -> None:
    machine.up(agents=0)
    machine.batchq("apply", "-f", str(EXAMPLES / "external.yaml"))
    machine.batchq("wait", "render", "--for", "admitted", "--timeout", "90s")
    out, err = consumer(machine).communicate(timeout=120)
    assert (out.splitlines(), err.splitlines()) == (["rendered"], ["running default/render"])
    machine.batchq("wait", "render", "--timeout", "90s")
    listed = json.loads(machine.batchq("jobs", "-o", "json").stdout)["items"]
    assert [item["phase"] for item in listed] == ["Completed"]


def test_a_restarted_scheduler_finds_claims_and_reports_made_in_between(
    machine: Machine,
) -> None:
    machine.up(agents=0)
    with Client(machine.url) as client:
        client.submit(external=True, name="e")
        client.submit(external=True, name="f")
        until(lambda: phase(client, "e") == phase(client, "f") == "InQueue")
        with (
            client.external.claim("e", holder="w", ttl="60s") as claim,
            client.external.claim("f", holder="w", ttl="60s"),
        ):
            claim.report("running")
            until(lambda: phase(client, "e") == "Running")
            record = detached.read_record(machine.home.run / "scheduler.json")
            assert record is not None
            kill(record.pid)
            claim.report("succeeded")
            assert group(client, "e").status.claim.phase == "Succeeded"
            machine.up(agents=0)
            until(lambda: phase(client, "e") == "Completed")
            assert phase(client, "f") == "InQueue"
            assert group(client, "f").status.admission == 1


def test_the_example_keeps_every_promise(machine: Machine) -> None:
    done = machine.batchq(
        "external", "check", "-o", "json", "--", sys.executable, str(CONSUMER), within_s=240
    )
    findings = json.loads(done.stdout)["items"]
    assert [finding["ok"] for finding in findings] == [True] * 9, done.stdout


@pytest.mark.parametrize(
    ("fault", "promise", "why"),
    [
        ("never-renews", "renews", "its claim lapsed while the work ran for"),
        pytest.param(
            "always-succeeds",
            "reports_failure",
            "has left the group Completed, not Failed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "never-stops",
            "stops",
            "its work still ran when the claim was over",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "says-nothing",
            "reports_running",
            "runs is not Running, as it should be",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "any-queue",
            "keeps_to_its_queue",
            "it has claimed a group of queue others",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "leaves-orphans",
            "dies_with_its_work",
            "its work ran on when its claim had lapsed",
            marks=pytest.mark.slow,
        ),
        pytest.param("shares-nothing", "shares", "ran twice at once", marks=pytest.mark.slow),
    ],
)
def test_the_check_finds_the_fault_of_a_broken_consumer(fault: str, promise: str, why: str) -> None:
    finding = check_broken(fault, promise)
    assert not finding.ok
    assert why in finding.why
    assert str(finding).startswith("FAILED  ")


def test_the_check_quotes_a_consumer_that_cannot_start() -> None:
    [finding] = check_consumer(
        [sys.executable, "-c", "raise SystemExit('no licence')"],
        tell=lambda _: None,
        only=["completes"],
        patience_s=5,
    )
    assert not finding.ok
    assert "its last output: no licence" in finding.why
