"""Tests of metrics and health of real schedulers over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import closing

from batchq.daemon import embedded_server as embedded
from batchq.daemon.metrics_server import Address, listen
from tests.daemon.scrapes import Scrape, get, scrape
from tests.e2e.machine import STEADY, Machine, phase, until
from tests.harness.ports import free_port

QUEUE = """
apiVersion: batchq/v1
kind: Queue
metadata: {name: small}
spec: {capability: {cpu: 1}}
"""
#: A word that appears nowhere else.
WEIRD = "xylophone-zq7"


def served_at(machine: Machine, process: subprocess.Popen[str]) -> str:
    """Return the address of a scheduler that chose its port itself."""
    found: list[str] = []

    def is_logged() -> bool:
        found[:] = re.findall(r"http://127\.0\.0\.1:\d+", machine.output_of(process))
        return bool(found)

    until(is_logged, what="the address of the metrics is logged")
    return found[0]


def scheduler(machine: Machine) -> tuple[subprocess.Popen[str], str]:
    config = machine.file("steady.yaml", STEADY)
    process = machine.start("scheduler", "--config", str(config), "--metrics", "0")
    return process, served_at(machine, process)


def leads(url: str) -> bool:
    seen = scrape(url)
    return seen.value("leader") == 1 and seen.value("nodes", state="ready") is not None


def test_a_scrape_shows_which_groups_wait_and_why_and_what_was_done(machine: Machine) -> None:
    embedded.ensure_server(machine.home)
    _, url = scheduler(machine)
    until(lambda: leads(url))
    machine.agent("n1", "cpu=2,memory=512Mi")
    machine.batchq("apply", "-f", str(machine.file("queue.yaml", QUEUE)))
    machine.batchq("submit", "--name", "gated", "--gate", "budget", "--", "true")
    machine.batchq("submit", "--name", "large", "--queue", "small", "--cpus", "2", "--", "true")
    machine.batchq("submit", "--name", "quick", "--wait", "--", "true")

    def waiting(seen: Scrape, queue: str, reason: str) -> float | None:
        return seen.value("waiting_groups", queue=queue, phase="Pending", reason=reason)

    until(lambda: scrape(url).value("finished_groups_total", **SUCCEEDED) == 1)
    until(lambda: waiting(scrape(url), "small", "ExceedsMaxQuota") == 1)
    seen = scrape(url)
    assert waiting(seen, "default", "SchedulingGated") == 1
    assert seen.value("gated_groups", queue="default") == 1
    assert seen.value("admission_wait_seconds_count", queue="default") == 1
    assert seen.value("nodes", state="ready") == 1
    cpu = {"queue": "root", "resource": "cpu"}
    assert seen.value("queue_resource", kind="deserved", **cpu) == 2
    sessions = seen.value("cycle_duration_seconds_count")
    assert sessions is not None
    until(lambda: (scrape(url).value("cycle_duration_seconds_count") or 0) > sessions)
    assert scrape(url).value("admission_wait_seconds_count", queue="default") == 1

    machine.batchq("gates", "open", "gated", "budget")
    until(lambda: scrape(url).value("gated_groups", queue="default") == 0)
    until(lambda: scrape(url).value("finished_groups_total", **SUCCEEDED) == 2)


SUCCEEDED = {"queue": "default", "phase": "Completed", "reason": "Succeeded"}


def test_no_series_contains_the_name_of_a_group(machine: Machine) -> None:
    embedded.ensure_server(machine.home)
    _, url = scheduler(machine)
    until(lambda: leads(url))
    machine.agent("n1", "cpu=1,memory=512Mi")
    for suffix, command in (("runs", ("sleep", "600")), ("ends", ("true",))):
        # The running one uses all resources, so the second waits.
        name = f"{WEIRD}-{suffix}"
        machine.batchq("submit", "--name", name, "--cpus", "1", "--", *command)
    with machine.client() as client:
        until(lambda: phase(client, f"{WEIRD}-runs") == "Running")
        machine.batchq("cancel", f"{WEIRD}-runs")
        until(lambda: phase(client, f"{WEIRD}-ends") == "Completed")
    until(lambda: scrape(url).value("finished_groups_total", **SUCCEEDED) == 1)
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        status, text = get(f"{url}/metrics", accept=accept)
        assert status == 200
        assert 'queue="default"' in text
        assert WEIRD not in text
        assert "xylophone" not in text


def test_leader_and_follower_are_both_ready(machine: Machine) -> None:
    embedded.ensure_server(machine.home)
    first, url = scheduler(machine)
    until(lambda: leads(url))
    _, other = scheduler(machine)
    until(lambda: get(f"{other}/readyz")[0] == 200)
    assert scrape(other).value("leader") == 0
    assert scrape(other).all("groups") == scrape(other).all("queue_share") == {}
    first.send_signal(signal.SIGTERM)
    assert first.wait(90) == 0
    until(lambda: leads(other))
    # A busy leader may lose its lease and take it again.
    assert (scrape(other).value("leader_epoch") or 0) >= 2


def test_a_hanging_or_dead_server_makes_a_scheduler_unready_and_not_dead(machine: Machine) -> None:
    server = embedded.ensure_server(machine.home)
    _, url = scheduler(machine)
    until(lambda: get(f"{url}/readyz") == (200, "ok\n"))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        until(lambda: get(f"{url}/readyz")[0] == 503)
        assert re.fullmatch(r"the server has not answered for \d+ s\n", get(f"{url}/readyz")[1])
        assert get(f"{url}/livez") == (200, "ok\n")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: get(f"{url}/readyz")[0] == 200)
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: get(f"{url}/readyz")[0] == 503)
    until(lambda: scrape(url).value("store_unavailable") == 1)
    assert get(f"{url}/livez") == (200, "ok\n")
    embedded.ensure_server(machine.home)
    until(lambda: get(f"{url}/readyz")[0] == 200)
    outages = scrape(url).value("store_outages_total")
    assert outages is not None
    assert outages >= 1


def test_a_scheduler_answers_before_it_has_a_server(machine: Machine) -> None:
    process, url = scheduler(machine)
    assert get(f"{url}/livez") == (200, "ok\n")
    status, why = get(f"{url}/readyz")
    assert status == 503
    assert why.startswith("waiting for the server")
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 0


def test_up_serves_metrics_too_and_refuses_a_port_in_use_before_it_starts_anything(
    machine: Machine,
) -> None:
    port = free_port()
    with closing(listen(Address("127.0.0.1", port))):
        refused = machine.batchq("up", "--no-api", "--agents", "0", "--metrics", str(port), exits=1)
        sentence = f"error: cannot serve metrics on 127.0.0.1:{port}: Address already in use"
        assert refused.stderr.splitlines()[0] == sentence
        assert len(refused.stderr.splitlines()) == 2
        assert embedded.running_server(machine.home) is None
        refused = machine.batchq("scheduler", "--metrics", str(port), exits=1)
        assert refused.stderr.splitlines()[0] == sentence
    machine.batchq(
        "up", "--no-api", "--agents", "0", "--config", str(machine.quick), "--metrics", str(port)
    )
    until(lambda: leads(f"http://127.0.0.1:{port}"))
    again = machine.batchq("up", "--no-api", "--agents", "0", "--metrics", str(port))
    assert again.stderr == ""
    other = machine.batchq("up", "--no-api", "--agents", "0", "--metrics", str(free_port()))
    assert "--metrics takes effect after `batchq down`" in other.stderr
