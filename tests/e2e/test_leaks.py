"""Tests that the server keeps nothing of finished work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import redis
import yaml

from batchq.api.objects import PodGroup
from batchq.store.rq_link import rq_connection
from tests.e2e.machine import Machine, phase, until
from tests.harness.leaks import lasting_keys, orphans


def manifest(name: str, *command: str, replicas: int = 1, **spec: object) -> str:
    template = {"command": list(command), "requests": {"cpu": "500m"}, "terminationGrace": "1s"}
    return yaml.safe_dump(
        {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {
                "ttlAfterFinished": "1s",
                "tasks": [{"name": "main", "replicas": replicas, "template": template}],
                **spec,
            },
        }
    )


@contextmanager
def raw(machine: Machine) -> Iterator[redis.Redis]:
    connection = rq_connection(machine.url)
    try:
        yield connection
    finally:
        connection.close()


def test_ended_groups_expire_with_all_their_data(machine: Machine) -> None:
    machine.up()
    machine.agent("stays")
    leaves = machine.agent("leaves")
    documents = (
        manifest("array", "echo", "hello", replicas=3, minMember=1),
        manifest("failed", "false", retry={"limit": 1, "backoff": "100ms"}),
        manifest("cancelled", "sleep", "600"),
        manifest("evicted", "sleep", "600"),
        manifest("spread", "sleep", "3", replicas=4),
    )
    machine.submit("---\n".join(documents))
    with machine.client() as client:
        until(lambda: phase(client, "cancelled") == phase(client, "evicted") == "Running")
        machine.batchq("cancel", "cancelled")
        machine.batchq("suspend", "evicted")
        until(lambda: phase(client, "evicted") == "Pending")
        machine.batchq("cancel", "evicted")
        leaves.send_signal(signal.SIGTERM)
        leaves.wait(timeout=90)
        until(lambda: client.list("PodGroup") == (), within_s=60, what="all groups expired")
        assert client.list("Pod") == ()
    machine.batchq("delete", "node/leaves")
    with raw(machine) as connection:
        until(lambda: orphans(connection) == [], what=str(orphans(connection)))
        assert lasting_keys(connection) == []
        assert [key for key in connection.scan_iter("{bq}-rq:*") if connection.ttl(key) == -1] == []


def test_a_finished_group_stays_for_its_time(machine: Machine) -> None:
    machine.up()
    machine.agent("n1")
    machine.submit(manifest("kept", "true", ttlAfterFinished="1h"))
    machine.submit(manifest("brief", "true"))
    with machine.client() as client:
        until(lambda: _names(machine) == ["kept"], within_s=60, what="only the brief one expires")
        assert phase(client, "kept") == "Completed"
        assert len(client.list("Pod")) == 1


def _names(machine: Machine) -> list[str]:
    with machine.client() as client:
        groups = client.list("PodGroup")
        return [one.metadata.name for one in groups if isinstance(one, PodGroup)]
