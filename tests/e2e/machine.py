"""A machine for one test: a BATCHQ_HOME, commands that run in it, and the end of their
processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from batchq.api.objects import Node, Pod, PodGroup
from batchq.client import Client
from batchq.config.documents import read_documents
from batchq.daemon import detached, embedded_server
from batchq.paths import Home, default_url
from batchq.store.redis import RedisStore, open_store
from batchq.worker.workhorse.run_file import RunFiles
from tests.harness import fork_server
from tests.harness.terminals import Terminal

#: Much shorter times than the defaults, so that failures are noticed within seconds.
QUICK = """
schedulePeriod: 200ms
nodeTimeout: 3s
podLease: 2s
backoffFirst: 100ms
inQueueTimeout: 20s
recoveryTimeout: 20s
"""
#: The pids and parents that pods print are valid outside.
_AGENT_OF_PIDS = ("--containment", "subreaper")
QUICK_AGENT = (*_AGENT_OF_PIDS, "--beat", "500ms", "--lease", "2s", "--drain-timeout", "0s")
#: For tests in which no node is to be lost: on a busy machine, or while an agent is stopped, the
#: node stays, and a gang keeps its places.
PATIENT = QUICK.replace("nodeTimeout: 3s", "nodeTimeout: 10m").replace("20s", "10m")
LONG_LEASE = ("--lease", "60s")
#: Quick settings with which a busy machine loses no node; its agents need a long lease, too.
STEADY = QUICK.replace("nodeTimeout: 3s", "nodeTimeout: 10m")
COMMAND_WITHIN_S = 90.0
#: After this time, processes are asked to end a second time. An agent kills its pods then, which
#: may have a long grace.
_POLITE_S = 0.5
_LONGEST_PAUSE_S = 0.5


class Machine:
    """Commands of batchq in a home of their own; a context manager that leaves no process."""

    def __init__(
        self,
        *,
        url: str = "",
        commands: type[subprocess.Popen[str]] = fork_server.Process,
        programs: type[subprocess.Popen[str]] = fork_server.Process,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`url`: a server elsewhere; without it the machine starts its own. `variables` are added
        to the environment of everything.

        `commands` and `programs` are how `batchq` and `start` create processes: a
        `subprocess.Popen` has its own command line and environment in /proc.
        """
        # Short, because the length of a socket's path is limited.
        self.root = Path(tempfile.mkdtemp(prefix="bq"))
        self.home = Home(self.root / "home")
        self.quick = self.file("quick.yaml", QUICK)
        self._commands, self._programs = commands, programs
        self._started: list[subprocess.Popen[str]] = []
        self._agents: list[subprocess.Popen[str]] = []
        self._environ = {
            name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")
        } | {"BATCHQ_HOME": str(self.home.root), "NO_COLOR": "1", **(variables or {})}
        #: The server of commands and of this test; each may be given another one.
        self.url = url or default_url(self.home)
        if url:
            self._environ["BATCHQ_REDIS_URL"] = url

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *error: object) -> None:
        if any(error):
            print(self.story())  # noqa: T201
        has_server = embedded_server.record_path(self.home).exists()
        if self._agents and has_server and embedded_server.running_server(self.home) is None:
            # Agents would wait for it.
            embedded_server.ensure_server(self.home)
        self.end_processes()
        paths = set(self.home.run.glob("*.json")) - {embedded_server.record_path(self.home)}
        records = [one for path in sorted(paths) if (one := detached.read_record(path)) is not None]
        agents = [record for record in records if record.name.startswith("agent")]
        for record in agents:
            detached.send(record, signal.SIGTERM)
        detached.await_end(agents, patience_s=_POLITE_S)
        detached.end_all(agents, patience_s=10)
        detached.end_all(records, patience_s=10)
        embedded_server.stop_server(self.home)
        shutil.rmtree(self.root)

    def end_processes(self) -> None:
        """End everything that was started, agents first: a leader applies their last reports."""
        _end_all(self._agents)
        _end_all(self._started)

    def file(self, name: str, text: str) -> Path:
        """Write a file on this machine."""
        path = self.root / name
        path.write_text(text)
        return path

    def batchq(
        self,
        *arguments: str,
        exits: int | None = 0,
        within_s: float = COMMAND_WITHIN_S,
        url: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, on the server at `url`; it must exit with `exits`."""
        done = fork_server.run(
            self._commands,
            self._command(arguments),
            env=self._environ_for(url),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            timeout=within_s,
        )
        result = f"batchq {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert exits is None or done.returncode == exits, result
        return done

    def start(self, *arguments: str, url: str = "") -> subprocess.Popen[str]:
        """Start a command that keeps running, on the server at `url`; it ends with the machine."""
        place = len(self._started)
        with (
            self._log(arguments[0], place, "out").open("w") as output,
            self._log(arguments[0], place, "err").open("w") as errors,
        ):
            process = self._programs(
                self._command(arguments),
                env=self._environ_for(url),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        if "worker" in arguments:
            self._agents.append(process)
        return process

    def piped(self, *arguments: str, given: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command whose output the caller reads, with an input; the caller ends it."""
        return fork_server.Process(
            self._command(arguments),
            env=self._environ,
            cwd=self.root,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def environ(self) -> dict[str, str]:
        """The environment of commands."""
        return dict(self._environ)

    def fed(
        self, *arguments: str, given: bytes, exits: int | None = 0, **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command with an input and more variables; it must exit with `exits`."""
        done = fork_server.run_with_input(
            self._command(arguments),
            given,
            env=self._environ | variables,
            cwd=self.root,
            timeout=COMMAND_WITHIN_S,
        )
        assert exits in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
        return done

    def terminal(self, *arguments: str, url: str = "", **variables: str) -> Terminal:
        """Start a command on a terminal of its own, with more variables."""
        environ = self._environ_for(url) | variables
        return Terminal(self._command(arguments), env=environ, cwd=self.root)

    def output_of(self, process: subprocess.Popen[str]) -> str:
        """Return what a started command has written to stderr."""
        place = self._started.index(process)
        [log] = self.root.glob(f"*-{place}.err")
        return log.read_text()

    def is_connected(self, process: subprocess.Popen[str], *, sockets: int = 2) -> bool:
        """Return whether a started command has `sockets` connections, and so has finished its
        start.
        """
        try:
            links = [str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        except FileNotFoundError:
            # One of them was closed a moment ago.
            return False
        return sum("socket:" in link for link in links) >= sockets

    def up(
        self,
        *,
        agents: int = 0,
        resources: str = "cpu=1,memory=512Mi",
        config: Path | None = None,
        api: bool = False,
    ) -> None:
        """Start server, scheduler with quick settings or others, and agents, with `batchq up`."""
        words = ("--config", str(config or self.quick), "--api" if api else "--no-api")
        self.batchq("up", "--agents", str(agents), "--resources", resources, *words)

    def agent(
        self,
        name: str,
        resources: str = "cpu=2,memory=512Mi",
        *,
        url: str = "",
        options: tuple[str, ...] = (),
    ) -> subprocess.Popen[str]:
        """Start an agent with quick settings, and return it once its node is ready."""
        usual = ("--name", name, "--resources", resources, *QUICK_AGENT)
        process = self.start("worker", *usual, *options, url=url)
        with self.client() as client:
            until(
                lambda: any(node.metadata.name == name and _ready(node) for node in client.nodes())
            )
        return process

    def client(self) -> Client:
        """Return a client of the Python API."""
        return Client(self.url)

    @contextmanager
    def store(self) -> Iterator[RedisStore]:
        """Open the store, to look at the ledger."""
        store = open_store(self.url)
        try:
            yield store
        finally:
            store.close()

    def submit(self, text: str) -> None:
        """Submit manifests."""
        with self.client() as client:
            client.submit_all([document.decode() for document in read_documents(text, "test")])

    def _environ_for(self, url: str) -> dict[str, str]:
        return self._environ | ({"BATCHQ_REDIS_URL": url} if url else {})

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-P", "-m", "batchq.cli", *arguments]

    def _log(self, name: str, place: int, stream: str) -> Path:
        return self.root / f"{name}-{place}.{stream}"

    def story(self) -> str:
        """Return the ends of all logs, for the report of a test that fails."""
        logs = [*sorted(self.root.glob("*.err")), *sorted(self.home.logs.glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{detached.tail(log, lines=25)}" for log in logs)


def until(
    true: Callable[[], bool], *, within_s: float = 90.0, what: str = "", every_s: float = 0.05
) -> None:
    """Return once `true()` holds; fail if it does not in time.

    Looks that are commands take a part of a core, and leave the rest to what they wait for.
    """
    deadline = time.monotonic() + within_s
    never, began = threading.Event(), time.monotonic()
    while not true():
        looked = time.monotonic()
        assert looked < deadline, f"not within {within_s} s: {what or true}"
        never.wait(max(every_s, min(_LONGEST_PAUSE_S, 3 * (looked - began))))
        began = time.monotonic()


def group(client: Client, name: str) -> PodGroup:
    """Return a group in its current state."""
    found = client.get("PodGroup", name)
    assert isinstance(found, PodGroup)
    return found


def pods_of(client: Client, name: str) -> list[Pod]:
    """Return the pods of a group."""
    return list(client.pods(group(client, name)))


def phase(client: Client, name: str) -> str:
    """Return the phase of a group."""
    return str(group(client, name).status.phase)


def process_group_of_a_pod(machine: Machine, node: str) -> int:
    """Return the process group of a pod on a node, once the node has recorded one."""
    found: list[int] = []

    def has_started() -> bool:
        runs = RunFiles(machine.home.run / node).all()
        found[:] = filter(None, (run.group for run in runs))
        return bool(found)

    until(has_started, what="a process of a pod is recorded")
    return found[0]


def kill(pid: int) -> None:
    """`kill -9`, and wait until the process is gone."""
    process = psutil.Process(pid)
    process.kill()
    # A child of this process stays a zombie until it is collected.
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def _ready(node: Node) -> bool:
    return node.status.ready


def _end_all(processes: Sequence[subprocess.Popen[str]]) -> None:
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(timeout=_POLITE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=60)
