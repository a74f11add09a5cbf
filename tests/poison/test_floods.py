"""A flood of pods or groups of one tenant leaves another tenant's work a place on the nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.builders import a_queue
from tests.e2e.machine import QUICK_AGENT, Machine, until

WITHIN_S = 60
SLOTS = 4


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine with four slots, and with room for any number of pods that request nothing."""
    with Machine() as made:
        made.up()
        options = ("--name", "n1", "--resources", "cpu=4,memory=1Gi", "--slots", str(SLOTS))
        made.start("worker", *options, *QUICK_AGENT)
        with made.client() as client:
            until(lambda: any(node.status.ready for node in client.nodes()), what="n1 is ready")
            client.apply([a_queue("noisy"), a_queue("quiet")])
        yield made


def completes(machine: Machine, name: str, queue: str) -> None:
    """Check that a `true` of another namespace completes in time."""
    machine.batchq(*("submit", "-n", "other", "--queue", queue, "--name", name), "--", "true")
    machine.batchq("wait", "-n", "other", name, "--timeout", f"{WITHIN_S}s")


def test_pods_that_do_not_end_leave_the_places_that_are_guaranteed_to_others(
    machine: Machine,
) -> None:
    with machine.client() as client:
        client.apply([a_queue("sure", guarantee={"pods": 1000})])
    names = [f"endless-{number}" for number in range(SLOTS + 2)]
    for name in names:
        sleeps = ("--name", name, "--cpus", "0", "--", "sleep", "600")
        machine.batchq("submit", "--queue", "noisy", *sleeps)
    with machine.store() as store:
        until(lambda: store.ledger().get("node:n1") == {"pods": 1000 * (SLOTS - 1)}, what="full")
    machine.batchq("submit", "-n", "other", "--queue", "quiet", "--name", "late", "--", "true")
    completes(machine, "kept", "sure")
    waits = machine.batchq("why", "-n", "other", "late", exits=None).stdout
    assert "WaitingForResources: needs pods 1" in waits
    machine.batchq("cancel", *names)
    machine.batchq("wait", "-n", "other", "late", "--timeout", "60s")


def test_an_array_of_pods_that_request_nothing_leaves_slots_to_others(machine: Machine) -> None:
    array = ("--name", "flood", "-N", "100000", "--min-member", "1", "--cpus", "0")
    machine.batchq("submit", "--queue", "noisy", *array, "--", "sleep", "0.5")
    with machine.store() as store:
        until(lambda: bool(store.ledger().get("node:n1")), what="pods are bound")
        completes(machine, "of-another-queue", "quiet")
        completes(machine, "of-the-same-queue", "noisy")
        assert store.ledger()["node:n1"]["pods"] <= 1000 * SLOTS
    machine.batchq("cancel", "flood")


def test_groups_that_request_nothing_leave_slots_to_another_queue(machine: Machine) -> None:
    request = {"queue": "noisy", "command": ["sleep", "0.5"], "cpus": "0"}
    # Because of the last one, the queue holds nothing of the cpu that it is due, like the other.
    requests = [*[request] * 2000, {**request, "cpus": "1"}]
    lines = "".join(f"{json.dumps(one)}\n" for one in requests)
    machine.batchq("submit", "--from-file", str(machine.file("flood.jsonl", lines)))
    completes(machine, "first", "quiet")
    completes(machine, "second", "quiet")
