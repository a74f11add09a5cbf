"""A stack on a server with users: each process has the user of its role, and no other."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

from batchq.client import Client
from tests.e2e.machine import Machine, until
from tests.harness import fork_server
from tests.harness.guarded import NODES, GuardedServer


class GuardedStack:
    """Server, two schedulers and two agents; a context manager that leaves no process.

    Commands run as the operator unless they name another user.
    """

    def __init__(self, *, programs: type[subprocess.Popen[str]] = fork_server.Process) -> None:
        """`programs`: a `subprocess.Popen` for tests that look for passwords in command lines and
        environments.
        """
        self.server = GuardedServer("--appendonly", "yes")
        self.server.start()
        self._are_forked = programs is fork_server.Process
        self.machine = Machine(url=self.server.url_of("operator"), programs=programs)
        self.schedulers: list[subprocess.Popen[str]] = []
        self.agents: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> GuardedStack:
        with ExitStack() as undo:
            # A failed start must not leave a process either.
            undo.push(self.__exit__)
            self.start_scheduler()
            self.start_scheduler()
            for node in NODES:
                self.start_agent(node)
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.machine.__exit__(*error)
        self.server.discard()

    def end_processes(self) -> None:
        """End the agents, then the schedulers: a leader has to apply the agents' last reports."""
        for processes in (self.agents.values(), self.schedulers):
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(90)

    def start_scheduler(self) -> None:
        """Start another scheduler; one of them leads then. If tests look at command lines, its own
        has its credentials, without which it starts again.
        """
        url = self.server.url_of("scheduler")
        words = ("scheduler", "--config", str(self.machine.quick))
        self.schedulers.append(
            self.machine.start(*words, url=url)
            if self._are_forked
            else self.machine.start("--redis-url", url, *words)
        )
        with self.machine.client() as client:
            until(lambda: client.schedulers().leader is not None, what="a scheduler leads")

    def start_agent(self, node: str) -> None:
        """Start the agent of a node, and wait until the node is ready."""
        url = self.server.url_of(f"worker-{node}")
        self.agents[node] = self.machine.agent(node, url=url)

    def batchq(
        self, user: str, *arguments: str, exits: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user."""
        return self.machine.batchq(*arguments, exits=exits, url=self.server.url_of(user))

    def client(self, user: str) -> Client:
        """Return the Python API as a user."""
        return Client(self.server.url_of(user))
