"""Tests of a machine as a Node: its registration, its heartbeat, and one agent only."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node
from batchq.api.transaction import Charge, Transaction, Write
from batchq.worker.agent.node import agent_pid, default_slots
from batchq.worker.host.node_resources import runtime_labels
from batchq.worker.workhorse.run_file import RunFiles
from tests.daemon.waiting import until
from tests.harness.proxy import ControlledProxy
from tests.harness.server import Server
from tests.worker.stage import WITHIN_S, Stage, announced_sockets, members

pytestmark = pytest.mark.e2e


def test_an_agent_makes_its_machine_a_ready_node_with_its_capacity(stage: Stage) -> None:
    stage.start_agent(
        labels={"disk": "fast"},
        taints=[{"key": "own", "effect": "NoSchedule"}],
        resources={"cpu": 4000, "memory": 1 << 33},
    )
    node = _node(stage)
    assert node.spec.resources == {"cpu": 4000, "memory": 8589934592, "pods": 110_000}
    assert node.metadata.labels == {
        "disk": "fast",
        "batchq/containment": "subreaper",
        **runtime_labels(),
    }
    assert node.metadata.annotations["batchq/protocol"] == "4"
    assert node.spec.taints[0].key == "own"
    assert node.status.heartbeat is not None
    assert stage.store.ledger()["capacity"] == {
        "cpu": 4000,
        "memory": 8589934592,
        "pods": 110_000,
    }


def test_an_agent_announces_its_account_unless_that_is_one_persons(stage: Stage) -> None:
    assert len(announced_sockets(stage.start_agent().pid)) == 1
    assert announced_sockets(stage.start_agent("mine", is_one_account=True).pid) == []


@pytest.mark.parametrize(
    ("slots", "stated", "offered"),
    [(4, {}, 4000), (4, {"pods": 3000}, 3000), (4, {"pods": 5000}, 4000)],
    ids=["none stated", "fewer stated", "more stated"],
)
def test_a_node_takes_no_more_pods_than_its_agent_has_slots(
    stage: Stage, slots: int, stated: dict[str, int], offered: int
) -> None:
    stage.start_agent(slots=slots, resources={"cpu": 4000, **stated})
    assert _node(stage).spec.resources == {"cpu": 4000, "pods": offered}


@pytest.mark.parametrize(("cpus", "slots"), [(0, 110), (2, 110), (27, 110), (64, 256)])
def test_a_large_machine_has_slots_for_four_pods_a_cpu(cpus: int, slots: int) -> None:
    assert default_slots({"cpu": cpus * 1000}) == slots


@pytest.mark.parametrize("identity", ["", "vm", "vm:12", "vm:²:²", "vm:" + "9" * 99 + ":1"])
def test_a_malformed_identity_of_an_agent_names_no_process(identity: str) -> None:
    assert agent_pid(identity) is None


def test_a_cordon_outlives_a_restart_of_the_agent(stage: Stage) -> None:
    agent = stage.start_agent()
    node = _node(stage)
    spec = msgspec.structs.replace(node.spec, unschedulable=True)
    _write(stage, msgspec.structs.replace(node, spec=spec))
    agent.terminate()
    assert agent.wait(timeout=WITHIN_S) == 0
    stage.start_agent(resources={"cpu": 1000, "memory": 1 << 30})
    assert _node(stage).spec.unschedulable
    assert _node(stage).spec.resources["cpu"] == 1000


def test_a_node_taken_for_dead_is_ready_again_with_the_next_beat(stage: Stage) -> None:
    stage.start_agent(resources={"cpu": 4000, "memory": 1 << 33})
    node = _node(stage)
    status = msgspec.structs.replace(node.status, ready=False)
    _write(stage, msgspec.structs.replace(node, status=status), Charge(holder="node:n1"))
    until(lambda: _node(stage).status.ready, within_s=WITHIN_S)
    assert stage.store.ledger()["capacity"]["cpu"] == 4000


def test_a_second_agent_with_the_same_node_name_refuses_to_start(stage: Stage) -> None:
    first = stage.start_agent()
    second = stage.launch_agent()
    assert second.wait(timeout=WITHIN_S) == 8
    assert f"node n1 is served by the agent with pid {first.pid} on " in stage.log_text()
    assert first.poll() is None


def test_a_folder_belongs_to_one_agent_even_across_servers(
    stage: Stage, running_server: Server
) -> None:
    stage.start_agent()
    other = stage.launch_agent(url=f"{running_server.url}?db=1")
    assert other.wait(timeout=WITHIN_S) == 8
    assert f"another agent runs with the folder {stage.home}/run/n1" in stage.log_text()


def test_agents_of_two_nodes_share_a_machine_and_a_home(stage: Stage) -> None:
    first, second = stage.start_agent("n1"), stage.start_agent("n2")
    on_first, on_second = (
        stage.bind("sh", "-c", "echo up; sleep 600", node=node)[0] for node in ("n1", "n2")
    )
    groups = [stage.started(pod, saying="up") for pod in (on_first, on_second)]
    first.kill()
    first.wait()
    until(lambda: not members(groups[0]), within_s=WITHIN_S)
    stage.start_agent("n1")
    assert stage.ended(on_first).status.reason == "NodeLost"
    assert members(groups[1])
    assert second.poll() is None


def test_output_older_than_a_week_is_removed_and_other_logs_stay(stage: Stage) -> None:
    logs = stage.home / "logs"
    logs.mkdir()
    for name in ("g9-1-0-1.log", "g9-1-0-1.log.1", "agent-n1.log", "g9-1-1-1.log"):
        (logs / name).touch()
        if name != "g9-1-1-1.log":
            os.utime(logs / name, (0, 0))
    stage.start_agent()
    until(lambda: not (logs / "g9-1-0-1.log.1").exists(), within_s=WITHIN_S)
    assert sorted(path.name for path in logs.iterdir()) == ["agent-n1.log", "g9-1-1-1.log"]


def _node(stage: Stage) -> Node:
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    return node


def _write(stage: Stage, node: Node, *charges: Charge) -> None:
    write = Write(kind="Node", key="n1", expect=node.metadata.revision, value=node)
    stage.commit(Transaction(subject="n1", writes=(write,), charges=charges))


def test_a_node_that_moves_to_another_machine_loses_no_pod_before_its_lease_ends(
    stage: Stage, server: Server
) -> None:
    there, here = (stage.home / name for name in ("there", "here"))
    with ControlledProxy(server.socket) as proxy:
        stage.start_agent(url=proxy.url, home=str(there), lease_ms=6_000)
        (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
        until(lambda: stage.output(pod) == "up\n", within_s=WITHIN_S)
        run = RunFiles(there / "run" / "n1").read(pod.metadata.uid, 1)
        assert run is not None
        # Its machine cannot reach the server, and is not the second agent's machine.
        proxy.block()
        _is_said_to_be_served_by(stage, "elsewhere:1:1")
        heard_at = stage.store.beats(["n1"])["n1"]
        until(lambda: stage.store.now_ms() - heard_at > 1_500, within_s=WITHIN_S)
        stage.start_agent(home=str(here))
        until(lambda: stage.now(pod).status.phase == PodPhase.EVICTED, within_s=WITHIN_S)
        assert members(run.group) == []
        assert stage.now(pod).status.reason == "NodeLost"


def test_an_agent_goes_on_when_a_restored_server_shows_a_dead_agent_of_its_machine(
    stage: Stage,
) -> None:
    agent = stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    group = stage.started(pod, saying="up")
    _is_said_to_be_served_by(stage, f"{socket.gethostname()}:999999999:1")
    until(lambda: stage.is_served_by("n1", agent), within_s=WITHIN_S)
    assert members(group)


def test_an_agent_whose_node_was_taken_over_leaves_the_pods_to_the_new_agent(
    stage: Stage,
) -> None:
    agent = stage.start_agent()
    (pod,) = stage.bound("true")
    _is_said_to_be_served_by(stage, "elsewhere:1:1")
    assert agent.wait(timeout=WITHIN_S) == 8
    assert "node n1 was taken over by the agent with pid 1 on elsewhere" in stage.log_text()
    assert stage.store.report_queues.pending("n1") == []
    assert stage.now(pod).status.phase == PodPhase.BOUND


def _is_said_to_be_served_by(stage: Stage, agent: str) -> None:
    node = _node(stage)
    annotations = {**node.metadata.annotations, "batchq/agent": agent}
    metadata = msgspec.structs.replace(node.metadata, annotations=annotations)
    _write(stage, msgspec.structs.replace(node, metadata=metadata))
