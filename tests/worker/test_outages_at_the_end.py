"""Tests of outages at the end of a pod, and of agents that die."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Leaves
from batchq.api.objects import Node, Pod
from batchq.errors import StoreUnavailable
from batchq.store.redis import RedisStore
from batchq.worker.workhorse.reporter import keep_unsent, read_unsent, send_unsent
from batchq.worker.workhorse.run_pod import log_path
from batchq.worker.workhorse.supervision import KILL_SIGNAL
from tests.daemon.waiting import until
from tests.harness.server import Server
from tests.worker.stage import WITHIN_S, Stage, kill

pytestmark = pytest.mark.e2e


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that writes everything to disk, and can be stopped and started."""
    with Server("--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


@pytest.fixture
def stage(server: Server, tmp_path: Path) -> Iterator[Stage]:
    """A stage on that server."""
    store = RedisStore(server.url)
    made = Stage(store, tmp_path)
    yield made
    made.close()
    store.close()


def a_pod_in_two_parts(stage: Stage, *, after: str = "true") -> tuple[Pod, Path]:
    """Start a pod that prints `up`, waits for a file, and prints `more`."""
    flag = stage.home / "flag"
    script = f"echo up; while ! test -e {flag}; do sleep 0.05; done; echo more; {after}"
    (pod,) = stage.bind("sh", "-c", script)
    stage.started(pod, saying="up")
    return pod, flag


def has_ended_locally(stage: Stage, pod: Pod) -> bool:
    """Return whether the work-horse has written the pod's outcome to the run file."""
    run = stage.run_of(pod)
    return run is not None and run.outcome is not None


def test_output_of_a_pod_that_ends_while_the_server_is_away_is_sent_with_its_end(
    stage: Stage, server: Server
) -> None:
    stage.start_agent()
    pod, flag = a_pod_in_two_parts(stage)
    server.stop()
    flag.touch()
    until(lambda: has_ended_locally(stage, pod), within_s=WITHIN_S)
    server.start()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert stage.output(pod) == "up\nmore\n"


def test_output_that_a_work_horse_could_not_send_is_sent_by_the_next_agent(
    stage: Stage, server: Server
) -> None:
    agent = stage.start_agent(drain_timeout_s=0)
    pod, flag = a_pod_in_two_parts(stage, after="sleep 600")
    server.stop()
    flag.touch()
    local = log_path(stage.home / "logs", pod.metadata.uid, 1)
    until(lambda: local.read_text() == "up\nmore\n", within_s=WITHIN_S)
    end_at_once(agent)
    server.start()
    stage.start_agent()
    assert stage.ended(pod).status.reason == "NodeLost"
    assert stage.output(pod) == "up\nmore\n"
    assert list((stage.home / "run" / "n1").glob("*.unsent")) == []


def test_output_that_is_sent_in_part_is_not_sent_again(tmp_path: Path) -> None:
    path, sent = tmp_path / "p-1-0-1.unsent", []
    keep_unsent(path, [("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c")])

    def send(stream: str, data: bytes) -> None:
        if len(sent) == 1:
            raise StoreUnavailable("the server went away")
        sent.append((stream, data))

    with pytest.raises(StoreUnavailable):
        send_unsent(path, send)
    assert sent == [("stdout", b"a")]
    assert read_unsent(path) == (("stderr", b"b"), ("stdout", b"c"))


def test_a_work_horse_whose_agent_is_dead_takes_the_node_out_of_service(stage: Stage) -> None:
    agent = stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    stage.started(pod, saying="up")
    kill(agent.pid)
    agent.wait()
    assert stage.ended(pod).status.reason == "NodeLost"
    assert not node(stage).status.ready
    assert stage.store.ledger().get("capacity", {}) == {}
    stage.start_agent()
    assert node(stage).status.ready
    assert stage.store.ledger()["capacity"]["cpu"] == 64_000


def test_a_work_horse_that_is_killed_alone_leaves_the_node_in_service(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    stage.started(pod, saying="up")
    revision = node(stage).metadata.revision
    subprocess.run(["kill", f"-{KILL_SIGNAL}", str(stage.horse_of(pod))], check=True)
    assert stage.ended(pod).status.reason == "NodeLost"
    assert node(stage).status.ready
    assert node(stage).metadata.revision == revision


def test_a_node_that_another_agent_has_taken_over_is_left_alone(stage: Stage) -> None:
    stage.start_agent()
    stage.store.report_queues.post("n1", Leaves(agent="host:1:1"))
    until(lambda: not stage.store.report_queues.pending("n1"))
    assert node(stage).status.ready


def node(stage: Stage) -> Node:
    """Return the stage's node in its current state."""
    item = stage.store.get("Node", "n1")
    assert isinstance(item, Node)
    return item


def end_at_once(agent: subprocess.Popen[bytes]) -> None:
    """Stop an agent as a second Ctrl-C does."""
    agent.send_signal(signal.SIGTERM)
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=WITHIN_S) == 0


def test_an_agent_waits_for_a_server_that_is_not_up_yet_and_logs_that_once(
    stage: Stage, server: Server
) -> None:
    server.stop()
    agent = stage.launch_agent()
    until(lambda: "store.unavailable" in stage.log_text(), within_s=WITHIN_S)
    server.start()
    until(lambda: stage.is_served_by("n1", agent), within_s=WITHIN_S)
    assert stage.log_text().count("store.unavailable") == 1
    assert f"the server at {server.url} is not running" in stage.log_text()


def test_an_agent_that_waits_for_its_server_ends_on_sigterm(stage: Stage, server: Server) -> None:
    server.stop()
    agent = stage.launch_agent()
    until(lambda: "store.unavailable" in stage.log_text(), within_s=WITHIN_S)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=WITHIN_S) == 0
