"""Tests of outages of a part or all of the stack: nothing is lost, nothing runs twice at once, and
each process logs the outage once.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from batchq.api.transaction import count_of
from batchq.client import Client
from batchq.daemon import embedded_server as embedded
from batchq.store.redis import Leader
from tests.e2e.machine import (
    LONG_LEASE,
    QUICK_AGENT,
    STEADY,
    Machine,
    phase,
    pods_of,
    until,
)
from tests.harness.proxy import ControlledProxy
from tests.swarm.diary import Run, read_runs, twice_at_once
from tests.swarm.load import Design

#: Long enough for every lease of the quick settings to end: those of pods, nodes and the leader.
ALL_LEASES_S = 7.0
SETTLED_WITHIN_S = 60.0


class Stack:
    """A server, and schedulers and agents that each reach it through a proxy of their own."""

    def __init__(self, machine: Machine, stack: ExitStack) -> None:
        self.machine = machine
        self.diaries = machine.root / "diaries"
        self.diaries.mkdir()
        self._stack = stack
        self._server = embedded.ensure_server(machine.home)
        self.proxies: dict[str, ControlledProxy] = {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.client: Client = stack.enter_context(machine.client())

    def scheduler(self, name: str, config: Path | None = None) -> None:
        """Start a scheduler with the quick settings or those of a file; the first one leads."""
        self._start(name, "scheduler", "--config", str(config or self.machine.quick))
        if len(self.processes) == 1:
            until(lambda: self.leads(name), what=f"{name} leads")

    def agent(self, name: str, *options: str) -> None:
        """Start an agent with two cpus, and wait for its node."""
        resources = ("--resources", "cpu=2,memory=512Mi")
        self._start(name, "worker", "--name", name, *resources, *(options or QUICK_AGENT))
        until(lambda: self.is_ready(name), what=f"{name} is ready")

    def _start(self, name: str, *command: str) -> None:
        proxy = self._stack.enter_context(ControlledProxy(self.machine.home.socket))
        self.proxies[name] = proxy
        # Processes that cannot reach the server would wait for it.
        self._stack.callback(self.machine.end_processes)
        self.processes[name] = self.machine.start(*command, url=proxy.url)

    def leader(self) -> Leader | None:
        """Return the leader, as the server knows it."""
        with self.machine.store() as store:
            return store.leader()

    def leads(self, name: str) -> bool:
        leader = self.leader()
        return leader is not None and f":{self.processes[name].pid}:" in leader.identity

    def is_ready(self, name: str) -> bool:
        return any(node.metadata.name == name and node.status.ready for node in self.client.nodes())

    def submit(self, name: str, *, replicas: int = 1, tenths: int = 5) -> None:
        """Submit a group whose pods keep diaries."""
        design = Design(name=name, kind="array", replicas=replicas, tenths=tenths)
        self.client.submit(design.manifest(self.diaries))

    def await_completion(self, *names: str, within_s: float = SETTLED_WITHIN_S) -> None:
        """Wait until all these groups have completed."""
        for name in names:
            until(
                lambda name=name: phase(self.client, name) == "Completed",  # type: ignore[misc]
                within_s=within_s,
                what=f"{name} is completed",
            )

    def runs(self) -> dict[str, list[Run]]:
        """Return the runs of each pod by the pod's name."""
        return read_runs(self.diaries)

    def has_begun(self, pod: str, times: int = 1) -> bool:
        return len(self.runs().get(pod, ())) >= times

    def count_logged(self, name: str, word: str) -> int:
        """Return how many log lines of a process, without its work-horses, contain the word."""
        lines = self.machine.output_of(self.processes[name]).splitlines()
        return sum(word in line and "pod=" not in line for line in lines)

    def node_of(self, group: str) -> str:
        """Return the node of a group's only pod."""
        [pod] = pods_of(self.client, group)
        return str(pod.status.node)


@pytest.fixture
def stack(machine: Machine) -> Iterator[Stack]:
    """A server without other processes."""
    with ExitStack() as closing:
        yield Stack(machine, closing)


BREAKS = pytest.mark.parametrize(
    "break_",
    [
        pytest.param(ControlledProxy.cut, id="cut", marks=pytest.mark.slow),
        pytest.param(ControlledProxy.block, id="blocked"),
    ],
)


def for_s(seconds: float, meanwhile: Callable[[], bool] = lambda: True) -> None:
    """Check that the condition holds for that time."""
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: not meanwhile(), within_s=seconds)


@BREAKS
def test_a_leader_without_the_server_is_replaced_and_decides_nothing_more(
    stack: Stack, break_: Callable[[ControlledProxy], None]
) -> None:
    steady = stack.machine.file("steady.yaml", STEADY)
    stack.scheduler("first", steady)
    stack.scheduler("second", steady)
    stack.agent("n1", *QUICK_AGENT, *LONG_LEASE)
    stack.submit("early", replicas=2, tenths=100)
    until(lambda: stack.has_begun("early-main-0") and stack.has_begun("early-main-1"))
    leader = stack.leader()
    assert leader is not None

    break_(stack.proxies["first"])
    stack.submit("meanwhile", replicas=4)
    until(lambda: stack.leads("second"), what="the other leads")
    for_s(2.0)
    stack.proxies["first"].mend()

    stack.await_completion("early", "meanwhile")
    successor = stack.leader()
    assert successor is not None
    assert successor.epoch > leader.epoch
    runs = stack.runs()
    assert twice_at_once(runs) == []
    assert {pod: len(one) for pod, one in runs.items()} == {
        "early-main-0": 1,
        "early-main-1": 1,
        **{f"meanwhile-main-{index}": 1 for index in range(4)},
    }
    assert stack.count_logged("second", "store.unavailable") == 0


@BREAKS
def test_an_agent_without_the_server_ends_its_pods_before_they_start_elsewhere(
    stack: Stack, break_: Callable[[ControlledProxy], None]
) -> None:
    stack.scheduler("scheduler")
    stack.agent("n1")
    stack.agent("n2", *QUICK_AGENT, *LONG_LEASE)
    stack.client.cordon("n2")
    stack.submit("moved", tenths=60)
    until(lambda: stack.has_begun("moved-main-0"))
    stack.client.uncordon("n2")

    break_(stack.proxies["n1"])
    until(
        lambda: stack.has_begun("moved-main-0", 2) and stack.node_of("moved") == "n2",
        what="it runs elsewhere",
    )
    stack.submit("later", replicas=3)
    for_s(2.0)
    stack.proxies["n1"].mend()

    stack.await_completion("moved", "later")
    runs = stack.runs()
    assert twice_at_once(runs) == []
    # A busy machine may lose it before, too.
    *before, after = runs["moved-main-0"]
    assert {run.end for run in before} == {""}
    assert before[-1].last_at < after.began_at
    assert after.end == "done"
    assert stack.node_of("moved") == "n2"
    until(lambda: stack.is_ready("n1"), what="n1 is back")
    stack.submit("afterwards", replicas=4)
    stack.await_completion("afterwards")


def test_an_agent_without_the_server_for_less_than_a_lease_loses_nothing(stack: Stack) -> None:
    stack.scheduler("scheduler", stack.machine.file("steady.yaml", STEADY))
    stack.agent("n1", *QUICK_AGENT, *LONG_LEASE)
    stack.submit("steady", tenths=50)
    until(lambda: stack.has_begun("steady-main-0"))
    stack.proxies["n1"].cut()
    until(lambda: stack.count_logged("n1", "store.unavailable") == 1)
    stack.proxies["n1"].mend()
    stack.await_completion("steady")
    assert [len(runs) for runs in stack.runs().values()] == [1]
    # An outage of two seconds may fall between two requests of an agent.
    noticed = stack.count_logged("n1", "store.unavailable")
    assert noticed <= 1
    until(lambda: stack.count_logged("n1", "store.back") == noticed)


def test_a_server_that_is_slower_than_the_leases_runs_nothing_twice_at_once(stack: Stack) -> None:
    for name in ("first", "second"):
        stack.scheduler(name)
    for name in ("n1", "n2"):
        stack.agent(name)
    stack.submit("early", replicas=2, tenths=40)
    until(lambda: stack.has_begun("early-main-0"))

    for proxy in stack.proxies.values():
        proxy.slow(2.5)
    stack.submit("meanwhile", replicas=4, tenths=20)
    for_s(2 * ALL_LEASES_S)
    for proxy in stack.proxies.values():
        proxy.mend()

    stack.await_completion("early", "meanwhile")
    assert twice_at_once(stack.runs()) == []


@pytest.mark.slow
def test_with_the_usual_leases_a_server_that_takes_ten_seconds_runs_nothing_twice_at_once(
    stack: Stack,
) -> None:
    usual = stack.machine.file("usual.yaml", "schedulePeriod: 1s\n")
    for name in ("first", "second"):
        stack.scheduler(name, usual)
    for name in ("n1", "n2"):
        stack.agent(name, "--lease", "30s")
    stack.submit("early", replicas=4, tenths=300)
    until(lambda: all(stack.has_begun(f"early-main-{index}") for index in range(4)))

    for proxy in stack.proxies.values():
        proxy.slow(10.0)
    stack.submit("meanwhile", replicas=4, tenths=20)
    for_s(90.0)
    for proxy in stack.proxies.values():
        proxy.mend()

    stack.await_completion("early", "meanwhile", within_s=180.0)
    assert twice_at_once(stack.runs()) == []


def killed(machine: Machine) -> Callable[[], None]:
    """`kill -9` the server; it comes back with what it has written."""
    server = embedded.running_server(machine.home)
    assert server is not None
    subprocess.run(["kill", "-9", str(server.pid)], check=True)
    return lambda: discard(embedded.ensure_server(machine.home))


def stopped(machine: Machine) -> Callable[[], None]:
    """Stop the server in good order."""
    embedded.stop_server(machine.home)
    return lambda: discard(embedded.ensure_server(machine.home))


def emptied(machine: Machine) -> Callable[[], None]:
    """Stop the server and remove its data."""
    back = stopped(machine)
    for path in machine.home.data.glob("appendonlydir/*"):
        path.unlink()
    return back


def paused(machine: Machine) -> Callable[[], None]:
    """Pause the server with SIGSTOP; it continues with SIGCONT."""
    server = embedded.running_server(machine.home)
    assert server is not None
    subprocess.run(["kill", f"-{signal.SIGSTOP}", str(server.pid)], check=True)
    return lambda: discard(
        subprocess.run(["kill", f"-{signal.SIGCONT}", str(server.pid)], check=True)
    )


def discard(_: object) -> None:
    """Drop a result."""


#: Longer than clients wait for an answer, so that they notice it.
PAUSED_S = 13.0


@pytest.mark.parametrize(
    ("strike", "away_s"),
    [
        pytest.param(stopped, ALL_LEASES_S, id="stopped"),
        pytest.param(killed, ALL_LEASES_S, id="killed", marks=pytest.mark.slow),
        pytest.param(paused, PAUSED_S, id="paused", marks=pytest.mark.slow),
    ],
)
def test_everything_waits_for_an_unavailable_server_and_logs_that_once(
    machine: Machine, strike: Callable[[Machine], Callable[[], None]], away_s: float
) -> None:
    with ExitStack() as closing:
        stack = Stack(machine, closing)
        stack.scheduler("first")
        stack.scheduler("second")
        stack.agent("n1")
        stack.submit("early", replicas=2, tenths=30)
        stack.submit("queued", replicas=4)
        until(lambda: stack.has_begun("early-main-0"))
        for name, command in {
            "wait": ("wait", "early", "queued", "--timeout", "90s"),
            "logs": ("logs", "-f", "early"),
            "progress": ("progress", "queued"),
        }.items():
            stack.processes[name] = machine.start(*command)
        for name in ("wait", "logs", "progress"):
            until(lambda name=name: machine.is_connected(stack.processes[name]))  # type: ignore[misc]

        back = strike(machine)
        for_s(away_s, lambda: all(one.poll() is None for one in stack.processes.values()))
        back()

        for name in ("wait", "logs", "progress"):
            assert stack.processes[name].wait(timeout=SETTLED_WITHIN_S) == 0
        stack.await_completion("early", "queued")
        assert twice_at_once(stack.runs()) == []
        for name in ("first", "second", "n1"):
            until(lambda name=name: stack.count_logged(name, "store.back") == 1)  # type: ignore[misc]
        logged = {
            name: stack.count_logged(name, "store.unavailable")
            for name in ("first", "second", "n1")
        }
        assert logged == {"first": 1, "second": 1, "n1": 1}
        for name in ("wait", "logs", "progress"):
            assert stack.count_logged(name, "; waiting for it") == 1, name
            assert stack.count_logged(name, "the server is back after") == 1, name


def test_a_server_that_comes_back_empty_is_set_up_again(stack: Stack) -> None:
    machine = stack.machine
    stack.scheduler("scheduler")
    stack.agent("n1")
    stack.submit("forgotten", tenths=300)
    until(lambda: stack.has_begun("forgotten-main-0"))
    waiting = machine.start("wait", "forgotten", "--timeout", "60s")
    until(lambda: machine.is_connected(waiting), what="it is connected")

    back = emptied(machine)
    for_s(2.0, lambda: waiting.poll() is None)
    back()

    until(lambda: stack.is_ready("n1"), what="the node is there again")
    assert waiting.wait(timeout=90) == 6
    assert "PodGroup default/forgotten was deleted while it was waited for" in (
        machine.output_of(waiting)
    )
    stack.submit("new", replicas=4)
    stack.await_completion("new")
    [run] = stack.runs()["forgotten-main-0"]
    assert run.end == "", "the restored server has no such group"
    # An outage of two seconds may fall between two requests of an agent.
    noticed = stack.count_logged("n1", "store.unavailable")
    assert noticed <= 1
    until(lambda: stack.count_logged("n1", "store.back") == noticed)


def test_a_pod_that_ends_in_an_outage_is_completed_with_its_first_attempt(
    stack: Stack,
) -> None:
    machine = stack.machine
    stack.scheduler("scheduler")
    stack.agent("n1", "--beat", "500ms", "--lease", "30s", "--drain-timeout", "0s")
    stack.submit("done", tenths=15)
    until(lambda: stack.has_begun("done-main-0"))

    back = stopped(machine)
    until(lambda: stack.runs()["done-main-0"][0].end == "done")
    for_s(1.0)
    back()

    stack.await_completion("done")
    [run] = stack.runs()["done-main-0"]
    assert (count_of(run.attempt), run.end) == (1, "done")
    [pod] = pods_of(stack.client, "done")
    assert (str(pod.status.phase), count_of(pod.status.attempt)) == ("Succeeded", 1)
