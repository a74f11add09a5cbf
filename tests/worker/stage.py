"""A server, agents as processes, and pods that are bound to them without a scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import AGENT_SOCKET, subject_of_pod
from batchq.api.objects import Node, Pod, PodGroup, PodGroupStatus
from batchq.api.resources import ONE_POD
from batchq.api.transaction import Charge, Delivery, Transaction, Write, fence_of, node_scope
from batchq.daemon import ThreadService
from batchq.daemon.node_reports import NodeReportReader
from batchq.errors import StoreUnavailable
from batchq.store.redis import RedisStore
from batchq.system import RandomIds
from batchq.worker.rq_delivery import Relay
from batchq.worker.workhorse.run_file import RunFile, RunFiles
from tests.builders import a_group, a_pod, a_task
from tests.daemon.waiting import until
from tests.harness import fork_server

NODE = "n1"
WITHIN_S = 90.0
ENDED = (PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.EVICTED)


class Stage:
    """The environment of a worker test; `close` ends every process that it started.

    Nothing is scheduled, but a thread applies the node reports of agents, as a leader does.
    """

    def __init__(self, store: RedisStore, home: Path) -> None:
        self.store = store
        self.home = home
        self.report_processor = a_report_processor(store)
        self.report_processor.start()
        self.relay = Relay(store)
        self._names = count(1)
        self._agents: list[subprocess.Popen[bytes]] = []

    def start_agent(self, node: str = NODE, **settings: Any) -> subprocess.Popen[bytes]:
        """Start an agent, and return it once its node is ready."""
        agent = self.launch_agent(node, **settings)
        until(lambda: self.is_served_by(node, agent), within_s=WITHIN_S)
        return agent

    def launch_agent(
        self, node: str = NODE, *, within: Path | None = None, **settings: Any
    ) -> subprocess.Popen[bytes]:
        """Start an agent and do not wait for it; in the cgroup `within`, if one is given."""
        written = {
            "node": node,
            "url": self.store.url,
            "home": str(self.home),
            "resources": {"cpu": 64_000, "memory": 1 << 40},
            "beat_s": 0.5,
            # The pids that pods print are valid outside, and there are no cgroups to remove.
            "containment": "subreaper",
            **settings,
        }
        environment = {
            **os.environ,
            "A_TEST_AGENT": msgspec.json.encode(written).decode(),
            "BATCHQ_REDIS_URL": self.store.url,
        }
        with (self.home / "agents.log").open("ab") as log:
            agent = fork_server.Process(
                [*_entering(within), sys.executable, "-m", "tests.worker.an_agent"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        self._agents.append(agent)
        return agent

    def is_served_by(self, node: str, agent: subprocess.Popen[bytes]) -> bool:
        assert agent.poll() is None, self.log_text()
        item = self.store.get("Node", node)
        return (
            isinstance(item, Node)
            and item.status.ready
            and f":{agent.pid}:" in item.metadata.annotations["batchq/agent"]
        )

    def log_text(self) -> str:
        """Return everything that the agents have logged."""
        return (self.home / "agents.log").read_text()

    def close(self) -> None:
        for agent in self._agents:
            agent.kill()
            agent.wait()
        self.report_processor.stop()
        self.relay.close()

    def bind(
        self,
        *command: str,
        replicas: int = 1,
        node: str = NODE,
        group_spec: dict[str, Any] | None = None,
        pods: dict[str, Any] | None = None,
        **template: Any,
    ) -> list[Pod]:
        """Bind the pods of a new group to a node, and deliver them."""
        return self.deliver(
            *self.bound(
                *command,
                replicas=replicas,
                node=node,
                group_spec=group_spec,
                pods=pods,
                **template,
            )
        )

    def bound(
        self,
        *command: str,
        replicas: int = 1,
        node: str = NODE,
        group_spec: dict[str, Any] | None = None,
        pods: dict[str, Any] | None = None,
        **template: Any,
    ) -> list[Pod]:
        """Bind the pods of a new group to a node, and leave their deliveries in the outbox."""
        name = f"g{next(self._names)}"
        group = a_group(
            name,
            tasks=(a_task("w", replicas, command=command, **template),),
            status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1),
            **(group_spec or {}),
        )
        status = {"phase": PodPhase.BOUND, "node": node, "bound_at": self.store.now_ms()}
        made = [a_pod(group, index, **{**status, **(pods or {})}) for index in range(replicas)]
        self.commit(
            Transaction(
                subject=name,
                writes=(
                    Write(kind="PodGroup", key=f"default/{name}", expect=0, value=group),
                    *(Write(kind="Pod", key=pod.metadata.uid, expect=0, value=pod) for pod in made),
                ),
                charges=tuple(
                    Charge(
                        holder=f"pod:{pod.metadata.uid}",
                        scopes=(node_scope(node),),
                        amounts={"cpu": 1000, "pods": ONE_POD},
                    )
                    for pod in made
                ),
                deliveries=tuple(
                    Delivery(pod=pod.metadata.uid, attempt=1, node=node) for pod in made
                ),
            )
        )
        return made

    def deliver(self, *pods: Pod) -> list[Pod]:
        self.relay.deliver()
        return list(pods)

    def commit(self, transaction: Transaction) -> None:
        answer = self.store.commit([transaction], request_id=f"test-{next(self._names)}")
        assert not answer.refused, answer.refused

    def now(self, pod: Pod) -> Pod:
        """Return the pod in its current state."""
        item = self.store.get("Pod", pod.metadata.uid)
        assert isinstance(item, Pod)
        return item

    def group_of(self, pod: Pod) -> PodGroup:
        item = self.store.get("PodGroup", f"default/{pod.spec.pod_group}")
        assert isinstance(item, PodGroup)
        return item

    def change(self, pod: Pod, **status: Any) -> None:
        """Write a pod's status as the scheduler would."""
        before = self.now(pod)
        after = msgspec.structs.replace(
            before, status=msgspec.structs.replace(before.status, **status)
        )
        self.commit(
            Transaction(
                subject="test",
                writes=(
                    Write(
                        kind="Pod",
                        key=pod.metadata.uid,
                        expect=before.metadata.revision,
                        value=after,
                        fence=fence_of(before),
                    ),
                ),
            )
        )

    def stop(self, pod: Pod, reason: str = "Preempted") -> None:
        """Stop a pod, as the scheduler would."""
        self.change(pod, terminating=True, terminating_at=self.store.now_ms(), reason=reason)

    def ended(self, pod: Pod) -> Pod:
        """Wait until the pod has ended, and return it."""
        until(lambda: self.now(pod).status.phase in ENDED, within_s=WITHIN_S)
        return self.now(pod)

    def started(self, pod: Pod, *, saying: str = "") -> int:
        """Wait until a pod's command runs and has printed `saying`; return its process group."""
        until(
            lambda: (
                (run := self.run_of(pod)) is not None
                and run.group > 0
                and saying in self.output(pod)
            ),
            within_s=WITHIN_S,
        )
        run = self.run_of(pod)
        assert run is not None
        return run.group

    def await_renewals(self, pod: Pod, count: int) -> None:
        """Wait until the lease of a pod's attempt has been renewed `count` times."""
        name = subject_of_pod(pod.metadata.uid, pod.status.attempt).encode()
        ends: set[bytes] = set()

        def is_renewed() -> bool:
            ends.add(self.store.alive.read([NODE])[NODE].get(name, b""))
            return len(ends - {b""}) > count

        until(is_renewed, within_s=WITHIN_S)

    def run_of(self, pod: Pod) -> RunFile | None:
        files = RunFiles(self.home / "run" / pod.status.node)
        return files.read(pod.metadata.uid, pod.status.attempt)

    def horse_of(self, pod: Pod) -> int:
        run = self.run_of(pod)
        assert run is not None
        return run.horse

    def output(self, pod: Pod, stream: str = "stdout") -> str:
        """Return a pod's output in the store."""
        text, after = b"", "0"
        place = pod.status.node, pod.metadata.uid, pod.status.attempt
        while chunks := self.store.read_log(*place, after):
            text += b"".join(chunk.data for chunk in chunks if chunk.stream == stream)
            after = chunks[-1].id
        return text.decode()


def a_report_processor(store: RedisStore) -> ThreadService:
    """Return a service that applies node reports, for a store without a leader."""
    desk = NodeReportReader(store, RandomIds())

    def work(stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                desk.turn(None)
            except StoreUnavailable:
                stopping.wait(0.05)

    return ThreadService("report-processor", work)


def _entering(cgroup: Path | None) -> list[str]:
    """Return words that make the command after them start inside a cgroup."""
    if cgroup is None:
        return []
    return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(cgroup)]


def announced_sockets(pid: int) -> list[str]:
    """Return the names of the abstract sockets by which an agent announces its account."""
    held = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return [
        words[-1]
        for words in lines
        if words[-1].startswith(f"@{AGENT_SOCKET}") and f"socket:[{words[6]}]" in held
    ]


def members(group: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def frozen(raw: redis.Redis) -> Iterator[None]:
    """Stop the server, which is worse than a dead server, because requests to it hang."""
    pid = raw.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
