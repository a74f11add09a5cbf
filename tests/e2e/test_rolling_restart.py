"""Tests of a rolling restart of all processes under load: nothing fails, and waits stay short."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from batchq.api.objects import PodGroup
from batchq.client import Client
from batchq.daemon import embedded_server
from batchq.errors import Conflict, StoreUnavailable
from tests.e2e.machine import QUICK_AGENT, Machine, until

pytestmark = pytest.mark.e2e

AGENTS = ("n1", "n2")
_APART_S = 0.25
#: The pause between two restarts, in which work continues.
_BREATH_S = 1.0


class Load(threading.Thread):
    """Submits a small group four times a second until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(name="load")
        self._client = Client(url)
        self._stopping = threading.Event()
        self.names: list[str] = []

    def run(self) -> None:
        """Submit groups until `stop`."""
        while not self._stopping.wait(_APART_S):
            self._submit(f"g{len(self.names)}")

    def _submit(self, name: str) -> None:
        while not self._stopping.is_set():
            try:
                with suppress(Conflict):
                    self._client.submit(
                        command=["sleep", "0.3"], name=name, cpus="100m", replicas=2
                    )
                self.names.append(name)
                return
            except StoreUnavailable:
                self._stopping.wait(0.1)

    def stop(self) -> None:
        """Stop, and close the connection."""
        self._stopping.set()
        self.join()
        self._client.close()


class Stage:
    """Two schedulers, two agents and a server, which can be restarted one by one in good order."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        embedded_server.ensure_server(machine.home)
        self._schedulers = [self._scheduler() for _ in range(2)]
        self._agents = {name: self._agent(name) for name in AGENTS}

    def _scheduler(self) -> subprocess.Popen[str]:
        started = self._machine.start("scheduler", "--config", str(self._machine.quick))
        # Before it leads or follows, it may not react to SIGTERM yet.
        until(lambda: "leader." in self._machine.output_of(started))
        return started

    def _agent(self, name: str) -> subprocess.Popen[str]:
        return self._machine.start(
            "worker", "--name", name, "--resources", "cpu=4", *QUICK_AGENT[:-1], "10s"
        )

    def restart_scheduler(self, place: int) -> None:
        """Restart one of the schedulers."""
        _end(self._schedulers[place])
        self._schedulers[place] = self._scheduler()

    def restart_agent(self, name: str) -> None:
        """Restart an agent, which drains first."""
        _end(self._agents[name])
        self._agents[name] = self._agent(name)

    def restart_server(self) -> None:
        """Restart the server with its data."""
        embedded_server.stop_server(self._machine.home)
        embedded_server.ensure_server(self._machine.home)

    def is_ready(self) -> bool:
        """Return whether both nodes are ready."""
        with self._machine.client() as client:
            return sorted(node.metadata.name for node in client.nodes() if node.status.ready) == [
                *AGENTS
            ]


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) == 0


def test_a_rolling_restart_fails_no_group_and_pauses_admission_for_less_than_a_minute() -> None:
    with Machine() as machine:
        stage = Stage(machine)
        until(stage.is_ready)
        load = Load(machine.url)
        load.start()
        breath = threading.Event()
        steps: list[Callable[[], None]] = [
            lambda: stage.restart_scheduler(0),
            lambda: stage.restart_agent("n1"),
            stage.restart_server,
            lambda: stage.restart_scheduler(1),
            lambda: stage.restart_agent("n2"),
        ]
        try:
            for step in steps:
                step()
                until(stage.is_ready)
                breath.wait(_BREATH_S)
        finally:
            load.stop()
        with machine.client() as client:
            until(lambda: _phases(client) == {"Completed"}, within_s=120)
            waits = [_admitted_after_ms(client, group) for group in _groups(client)]
        assert len(waits) == len(load.names) > 20
        # On an idle machine, less than three leases of the leader.
        assert max(waits) < 60_000


def _groups(client: Client) -> list[PodGroup]:
    return [group for group in client.list("PodGroup") if isinstance(group, PodGroup)]


def _phases(client: Client) -> set[str]:
    return {str(group.status.phase) for group in _groups(client)}


def _admitted_after_ms(client: Client, group: PodGroup) -> int:
    """Return how long the group waited before its admission.

    If a node drains, it may have waited for free resources a second time.
    """
    key = f"{group.metadata.namespace}/{group.metadata.name}"
    events = client.events(kind="PodGroup", key=key)
    admitted_at = next(event.at for event in events if event.reason == "Admitted")
    assert group.metadata.creation_timestamp is not None
    return admitted_at - group.metadata.creation_timestamp
