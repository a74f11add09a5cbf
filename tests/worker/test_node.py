"""A machine as a Node: registered, kept, and served by one agent only."""

from __future__ import annotations

import msgspec
import pytest

from batchq.api.objects import Node
from batchq.api.transaction import Charge, Transaction, Write
from tests.daemon.waiting import until
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e


def test_an_agent_makes_its_machine_a_ready_node_with_a_capacity(stage: Stage) -> None:
    stage.start_agent(
        labels={"disk": "fast"},
        taints=[{"key": "own", "effect": "NoSchedule"}],
        resources={"cpu": 4000, "memory": 1 << 33},
    )
    node = _node(stage)
    assert node.spec.resources == {"cpu": 4000, "memory": 8589934592}
    assert node.metadata.labels == {"disk": "fast"}
    assert node.spec.taints[0].key == "own"
    assert node.status.heartbeat is not None
    assert stage.store.ledger()["capacity"] == {
        "cpu": 4000,
        "memory": 8589934592,
        "pods": 1_000_000_000_000,
    }


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


def test_a_node_that_was_taken_for_dead_comes_back_with_the_next_beat(stage: Stage) -> None:
    stage.start_agent(resources={"cpu": 4000, "memory": 1 << 33})
    node = _node(stage)
    status = msgspec.structs.replace(node.status, ready=False)
    _write(stage, msgspec.structs.replace(node, status=status), Charge(holder="node:n1"))
    until(lambda: _node(stage).status.ready, within_s=WITHIN_S)
    assert stage.store.ledger()["capacity"]["cpu"] == 4000


def test_the_second_agent_of_a_name_refuses(stage: Stage) -> None:
    first = stage.start_agent()
    second = stage.launch_agent()
    assert second.wait(timeout=WITHIN_S) == 8
    assert f"node n1 is served by the agent with pid {first.pid} on " in stage.said()
    assert first.poll() is None


def test_an_agent_without_a_server_says_so(stage: Stage) -> None:
    agent = stage.launch_agent(url="unix:///nowhere/batchq.sock")
    assert agent.wait(timeout=WITHIN_S) == 9
    assert "the server at unix:///nowhere/batchq.sock is not running" in stage.said()


def _node(stage: Stage) -> Node:
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    return node


def _write(stage: Stage, node: Node, *charges: Charge) -> None:
    write = Write(kind="Node", key="n1", expect=node.metadata.revision, value=node)
    stage.commit(Transaction(subject="n1", writes=(write,), charges=charges))
