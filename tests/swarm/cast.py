"""The processes of a swarm: a server, schedulers and agents, which are restarted when they end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress

import psutil
from msgspec import Struct

from batchq.daemon import detached, embedded_server
from batchq.errors import StoreUnavailable
from tests.e2e.machine import QUICK_AGENT, Machine

SCHEDULERS = ("scheduler-1", "scheduler-2")
AGENTS = ("node-1", "node-2", "node-3")
NODE_RESOURCES = "cpu=3,memory=512Mi"
#: The devices of the machine, and which of them each agent may use, by index: neighbours share one,
#: so that it belongs to whichever agent was there first, and has to be free after a kill.
DEVICES = 9
DEVICES_OF = {"node-1": "0,1,2,3", "node-2": "3,4,5,6", "node-3": "6,7,8,0"}
#: How long after an unexpected end a process is started again.
_AGAIN_S = 0.5


class Actor(Struct, kw_only=True):
    """A role in the swarm, such as an agent, and the process that has it now."""

    name: str
    arguments: tuple[str, ...]
    process: subprocess.Popen[str] | None = None
    start_at: float = 0.0
    is_paused: bool = False

    @property
    def pid(self) -> int | None:
        """The pid of the current process; None if none runs."""
        return self.process.pid if self.process is not None else None


class Cast:
    """All processes; owned by the thread that strikes them. `unasked` counts unexpected ends."""

    def __init__(self, machine: Machine, *, devices: bool = False) -> None:
        """`devices`: whether the agents have some."""
        self._machine = machine
        self.has_devices = devices
        scheduler = ("scheduler", "--config", str(machine.quick))
        resources = f"{NODE_RESOURCES},gpu=4" if devices else NODE_RESOURCES
        worker = ("--resources", resources, *QUICK_AGENT)
        self.schedulers = [Actor(name=name, arguments=scheduler) for name in SCHEDULERS]
        self.agents = [
            Actor(
                name=name,
                arguments=(
                    *("worker", "--name", name, *worker),
                    *(("--devices", DEVICES_OF[name]) if devices else ()),
                ),
            )
            for name in AGENTS
        ]
        self.unasked: Counter[str] = Counter()
        self.server_pid: int | None = None
        self._server_at = 0.0
        self._server_pauses: list[threading.Timer] = []

    @property
    def actors(self) -> list[Actor]:
        """The schedulers and agents."""
        return [*self.schedulers, *self.agents]

    def tend(self) -> None:
        """Start the processes that should run and do not."""
        now = time.monotonic()
        if self.server_pid is None and now >= self._server_at:
            self.server_pid = embedded_server.ensure_server(self._machine.home).pid
        for actor in self.actors:
            if actor.process is not None and actor.process.poll() is not None:
                self.unasked[f"{actor.name} with {actor.process.returncode}"] += 1
                actor.process, actor.is_paused, actor.start_at = None, False, now + _AGAIN_S
            if actor.process is None and now >= actor.start_at:
                actor.process = self._machine.start(*actor.arguments)

    def kill(self, actor: Actor, *, away_s: float) -> None:
        """`kill -9` a process; it is started again after `away_s`."""
        assert actor.process is not None
        actor.process.kill()
        actor.process.wait()
        actor.process, actor.is_paused = None, False
        actor.start_at = time.monotonic() + away_s

    def kill_server(self, *, away_s: float) -> None:
        """`kill -9` the server; it is started with its data on the same socket after `away_s`."""
        assert self.server_pid is not None
        os.kill(self.server_pid, signal.SIGKILL)
        record = detached.read_record(embedded_server.record_path(self._machine.home))
        assert record is not None
        assert detached.await_end([record], patience_s=10)
        self.server_pid, self._server_at = None, time.monotonic() + away_s

    def pause_server(self, *, for_s: float) -> None:
        """Send SIGSTOP, and later SIGCONT from another thread, because this one may wait for the
        server.
        """
        assert self.server_pid is not None
        os.kill(self.server_pid, signal.SIGSTOP)
        resumed = threading.Timer(for_s, _resume, (self.server_pid,))
        self._server_pauses.append(resumed)
        resumed.start()

    def pause(self, actor: Actor) -> None:
        """Send SIGSTOP."""
        assert actor.process is not None
        actor.process.send_signal(signal.SIGSTOP)
        actor.is_paused = True

    def resume(self, actor: Actor, pid: int) -> None:
        """Send SIGCONT if the actor still has that process."""
        if actor.process is not None and actor.process.pid == pid:
            actor.process.send_signal(signal.SIGCONT)
            actor.is_paused = False

    def resume_all(self) -> None:
        """Resume every paused process."""
        for pause in self._server_pauses:
            pause.join()
        for actor in self.actors:
            if actor.is_paused and actor.pid is not None:
                self.resume(actor, actor.pid)

    def leader(self) -> Actor | None:
        """Return the scheduler that leads according to the server."""
        try:
            with self._machine.store() as store:
                led = store.leader()
        except StoreUnavailable:
            return None
        for actor in self.schedulers:
            if led is not None and led.identity.split(":")[1] == str(actor.pid):
                return actor
        return None

    def horses(self, chance: random.Random) -> psutil.Process | None:
        """Return a random work-horse; None if there is none."""
        found: list[psutil.Process] = []
        for actor in self.agents:
            try:
                children = psutil.Process(actor.pid).children() if actor.pid else []
                found += [child for child in children if "worker" in child.cmdline()]
            except psutil.NoSuchProcess:
                continue
        return chance.choice(found) if found else None


def _resume(pid: int) -> None:
    # It may have been killed while it was paused.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
