"""A small cluster of real processes on which groups evict each other."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.objects import Evictions, Pod
from batchq.daemon import embedded_server as embedded
from tests.e2e.machine import LONG_LEASE, STEADY, Machine, group, kill, phase, pods_of, until
from tests.swarm.diary import Run, read_runs
from tests.swarm.load import Design

#: Long enough to run until it is told to stop: no test waits for its end.
FOREVER = 100_000

CLASSES = """
apiVersion: batchq/v1
kind: PriorityClass
metadata: {name: high}
spec: {value: 10}
"""


def two_queues(a: str, b: str) -> str:
    """Return manifests of the queues a and b with these specs."""
    return f"""
apiVersion: batchq/v1
kind: Queue
metadata: {{name: a}}
spec: {a}
---
apiVersion: batchq/v1
kind: Queue
metadata: {{name: b}}
spec: {b}
"""


class Cluster:
    """A server, a scheduler and agents with quick settings; a context manager."""

    def __init__(self, machine: Machine, *objects: str, schedulers: int = 1) -> None:
        self.machine = machine
        self.diaries = machine.root / "diaries"
        self.diaries.mkdir()
        self._closing = ExitStack()
        embedded.ensure_server(machine.home)
        self.client = self._closing.enter_context(machine.client())
        self.schedulers: list[subprocess.Popen[str]] = []
        self.agents: dict[str, subprocess.Popen[str]] = {}
        for _ in range(schedulers):
            self.start_scheduler()
            until(lambda: self.client.schedulers().leader is not None, what="a scheduler leads")
        for number, text in enumerate((CLASSES, *objects)):
            machine.batchq("apply", "-f", str(machine.file(f"objects-{number}.yaml", text)))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def start_scheduler(self) -> None:
        """Start another scheduler, with quick settings and the default actions and plugins."""
        config = ("--config", str(self.machine.file("steady.yaml", STEADY)))
        self.schedulers.append(self.machine.start("scheduler", *config))

    def agent(self, name: str, cpus: int = 2) -> None:
        """Start an agent with `cpus`, and wait until its node is ready."""
        resources = f"cpu={cpus},memory=512Mi"
        self.agents[name] = self.machine.agent(name, resources, options=LONG_LEASE)

    def kill_leader(self) -> None:
        """`kill -9` the leader."""
        with self.machine.store() as store:
            leader = store.leader()
        assert leader is not None
        kill(int(leader.identity.split(":")[1]))

    def kill_server(self) -> None:
        """`kill -9` the server; it is restarted at once with its data."""
        server = embedded.running_server(self.machine.home)
        assert server is not None
        kill(server.pid)
        embedded.ensure_server(self.machine.home)

    def submit(self, design: Design) -> None:
        """Submit a group whose pods keep diaries."""
        self.client.submit(design.manifest(self.diaries))

    def runs(self) -> dict[str, list[Run]]:
        """Return the runs of each pod by the pod's name; pods that never started have no entry."""
        return read_runs(self.diaries)

    def runs_of(self, name: str) -> list[list[Run]]:
        """Return the runs of each pod of one group."""
        return [runs for pod, runs in self.runs().items() if pod.startswith(f"{name}-main-")]

    def await_start(self, name: str, pods: int) -> None:
        """Wait until `pods` pods of a group have started."""
        until(lambda: len(self.runs_of(name)) >= pods, what=f"{pods} pods of {name} have begun")

    def await_restart(self, name: str) -> None:
        """Wait until all pods of a group that have run run again."""
        until(lambda: all(len(runs) >= 2 for runs in self.runs_of(name)), what=f"{name} runs again")

    def has_pledge(self, name: str) -> bool:
        """Return whether a group has a pledge."""
        return group(self.client, name).status.pledge.stands

    def is_pending_with_pledge(self, name: str) -> bool:
        """Return whether a group that is pending has a pledge."""
        status = group(self.client, name).status
        return status.pledge.stands and status.phase == PodGroupPhase.PENDING

    def spent(self, name: str) -> Evictions:
        """Return what evictions have cost a group."""
        return group(self.client, name).status.evictions

    def await_completion(self, *names: str, within_s: float = 120.0) -> None:
        """Wait until all these groups have completed."""
        for name in names:
            until(
                lambda name=name: phase(self.client, name) == "Completed",  # type: ignore[misc]
                within_s=within_s,
                what=f"{name} is completed",
            )

    def pods_on_nodes(self, name: str) -> list[Pod]:
        """Return the pods of a group that are on a node."""
        return [pod for pod in pods_of(self.client, name) if pod.status.phase in ON_NODE]
