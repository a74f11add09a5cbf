"""Tests of look-aheads from a real stack: predictions come true, and asking changes nothing."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.e2e.machine import LONG_LEASE, STEADY, Machine, group, phase, pods_of, until

OBJECTS = """
apiVersion: batchq/v1
kind: PriorityClass
metadata: {name: high}
spec: {value: 100}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: low}
spec:
  walltime: 1h
  tasks:
    - name: w
      template: {command: [sleep, "600"], requests: {cpu: 2}, terminationGrace: 2s}
"""

#: `top` must not start before the look-ahead.
MORE = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: top}
spec:
  priorityClassName: high
  suspend: true
  walltime: 30m
  tasks:
    - name: w
      template: {command: [sleep, "600"], requests: {cpu: 2}, terminationGrace: 2s}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: after}
spec:
  walltime: 10m
  tasks:
    - name: w
      template: {command: ["true"], requests: {cpu: 1}}
"""

WITHOUT_PREEMPT = "actions: [enqueue, allocate]\n"


def looked_ahead(machine: Machine, *words: str) -> dict[str, Any]:
    done = machine.batchq("simulate", "--from-live", *words, "-o", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def futures(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the futures of a group, one for each configuration."""
    [mine] = [one for one in found["podGroups"] if one["name"] == name]
    of_group: list[dict[str, Any]] = mine["futures"]
    return of_group


def test_a_look_ahead_comes_true_and_changes_nothing(machine: Machine) -> None:
    machine.up(config=machine.file("steady.yaml", STEADY))
    machine.agent("n1", "cpu=2,memory=512Mi", options=LONG_LEASE)
    new = str(machine.file("new.yaml", WITHOUT_PREEMPT))
    machine.submit(OBJECTS)
    with machine.client() as client, machine.store() as store:
        until(lambda: phase(client, "low") == "Running")
        machine.submit(MORE)
        until(lambda: bool(group(client, "after").status.reasons), what="it has been looked at")
        before = (store.snapshot().revision, store.ledger(), pods_of(client, "low"))

        found = looked_ahead(machine, "--config", new, "--until", "2h")

        assert (store.snapshot().revision, store.ledger(), pods_of(client, "low")) == before
        assert found["evictions"] == []
        for future in futures(found, "after"):
            # Both configurations wait for the rest of an hour.
            assert 3500 < future["startsInSeconds"] <= 3601
        assert [one["waitsFor"][0]["reason"] for one in futures(found, "top")] == ["Suspended"] * 2

        # The scheduler is stopped, so that its next decisions can be predicted.
        machine.batchq("down", "--keep-server", exits=None)
        client.resume("top")
        live, without = futures(foretold := looked_ahead(machine, "--config", new), "top")
        assert 2 <= live["startsInSeconds"] <= 3
        assert without["startsInSeconds"] > 3400
        [eviction] = foretold["evictions"]
        assert (eviction["configuration"], eviction["podGroup"]) == ("live", "default/low")
        assert (eviction["by"], eviction["action"]) == ("default/top", "preempt")

        assert phase(client, "low") == "Running"
        machine.batchq("up", "--no-api", "--agents", "0", "--config", str(machine.quick))
        until(lambda: phase(client, "top") == "Running", what="top has taken the room of low")
        assert group(client, "low").status.evictions.last_by == "default/top"
        assert phase(client, "after") == "Pending"


MANY = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: many}
spec:
  minMember: 1
  schedulingGates: [{name: later}]
  tasks:
    - name: w
      replicas: 20000
      template: {command: ["true"], requests: {cpu: 1}}
"""


def test_ctrl_c_ends_a_look_ahead_which_says_that_nothing_was_changed(machine: Machine) -> None:
    machine.up()
    machine.agent("n1", "cpu=2,memory=512Mi")
    machine.submit(MANY)
    # Opened without a scheduler: in the live state nothing has been admitted yet.
    machine.batchq("down", "--keep-server")
    with machine.client() as client:
        client.open_gate("many", "later")
    process = machine.start("simulate", "--from-live", "--assume-runtime", "1s")
    until(lambda: "live: 0 of 1 groups after" in machine.output_of(process), what="it looks ahead")
    assert not machine.is_connected(process, sockets=1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == 130
    assert machine.output_of(process).endswith("\nerror: interrupted; nothing was changed\n")
