"""Tests of work-horses, agents and servers that are killed: no process remains, no pod is lost."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import PodAttempt
from batchq.api.objects import Node, Pod
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.worker.rq_delivery import enqueue, node_queue
from tests.daemon.waiting import until
from tests.harness.proxy import ControlledProxy
from tests.harness.server import Server
from tests.worker.stage import WITHIN_S, Stage, frozen, is_alive, kill, members

pytestmark = pytest.mark.e2e

#: A child in the group, and one in a session of its own, which says its pid once it is there.
FAMILY = "sleep 600 & setsid sh -c 'echo $$; exec sleep 601' & wait"


def test_processes_of_a_killed_work_horse_end_and_its_pod_is_evicted(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", FAMILY)
    group = stage.started(pod, saying="\n")
    escaped = int(stage.output(pod))
    kill(stage.horse_of(pod))
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.failures) == (PodPhase.EVICTED, "NodeLost", 0)
    assert members(group) == []
    assert not is_alive(escaped)
    assert stage.store.ledger().get("node:n1", {}) == {}
    until(lambda: stage.run_of(pod) is None)


def test_processes_of_a_killed_agent_end_and_the_next_agent_reports_its_pods(
    stage: Stage,
) -> None:
    agent = stage.start_agent()
    (pod,) = stage.bind("sh", "-c", FAMILY)
    group = stage.started(pod, saying="\n")
    escaped, horse = int(stage.output(pod)), stage.horse_of(pod)
    agent.kill()
    agent.wait()
    until(lambda: not (members(group) or is_alive(escaped) or is_alive(horse)), within_s=WITHIN_S)
    until(lambda: "its agent has died" in [one.message for one in stage.store.events(key="n1")])
    stage.start_agent()
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    (other,) = stage.bind("true")
    assert stage.ended(other).status.phase == PodPhase.SUCCEEDED


def test_the_group_of_a_killed_work_horse_ends_while_the_agent_is_paused(
    stage: Stage,
) -> None:
    agent = stage.start_agent()
    (pod,) = stage.bind("sh", "-c", FAMILY)
    group = stage.started(pod, saying="\n")
    agent.send_signal(signal.SIGSTOP)
    kill(stage.horse_of(pod))
    until(lambda: members(group) == [], within_s=WITHIN_S)
    agent.send_signal(signal.SIGCONT)
    assert stage.ended(pod).status.phase == PodPhase.EVICTED


def test_processes_surviving_agent_and_work_horse_are_swept_by_the_next_agent(stage: Stage) -> None:
    agent = stage.start_agent()
    (pod,) = stage.bind("sh", "-c", FAMILY)
    group = stage.started(pod, saying="\n")
    escaped, horse = int(stage.output(pod)), stage.horse_of(pod)
    agent.send_signal(signal.SIGSTOP)
    kill(horse)
    agent.kill()
    agent.wait()
    until(lambda: members(group) == [], within_s=WITHIN_S)
    assert is_alive(escaped)
    stage.start_agent()
    assert not is_alive(escaped)
    assert stage.ended(pod).status.phase == PodPhase.EVICTED


def test_a_pod_that_rq_lost_is_enqueued_again_when_the_agent_starts(stage: Stage) -> None:
    (pod,) = stage.bound("true")
    stage.store.delivered(stage.store.outbox())
    stage.start_agent()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_a_pod_that_rq_loses_later_is_enqueued_again_after_a_while(stage: Stage) -> None:
    stage.start_agent()
    long_ago = stage.store.now_ms() - 60_000
    (pod,) = stage.bound("true", pods={"bound_at": long_ago})
    stage.store.delivered(stage.store.outbox())
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_a_pod_whose_lease_cannot_be_renewed_is_killed(stage: Stage, server: Server) -> None:
    with ControlledProxy(server.socket) as proxy:
        stage.start_agent(lease_ms=9_000, url=proxy.url)
        (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
        group = stage.started(pod, saying="up")
        # A proxy, because work-horses with their own connection may have found the server dead.
        proxy.block()
        until(lambda: not members(group))
        proxy.mend()
        status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    assert "its lease could not be renewed" in status.message


def test_a_pod_continues_while_the_server_of_its_machine_is_paused(
    stage: Stage, raw: redis.Redis
) -> None:
    stage.start_agent(lease_ms=8_000)
    flag = stage.home / "flag"
    (pod,) = stage.bind("sh", "-c", f"echo up; while ! test -e {flag}; do sleep 0.05; done")
    group = stage.started(pod, saying="up")
    # With the answer to a renewal, the agent learns which process is its server.
    stage.await_renewals(pod, 2)
    with frozen(raw):
        threading.Event().wait(9.0)
        assert members(group) != []
    flag.touch()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_a_pod_ends_with_its_lease_when_a_new_server_of_its_own_machine_refuses_its_node(
    stage: Stage, server: Server
) -> None:
    stage.start_agent(lease_ms=4_000)
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    group = stage.started(pod, saying="up")
    server.stop()
    guarded = Server("--requirepass", "secret", "--unixsocket", str(server.socket))
    guarded.socket = server.socket
    guarded.start()
    try:
        # The other processes know the password, and take the pod for lost.
        until(lambda: members(group) == [], within_s=WITHIN_S)
    finally:
        guarded.discard()
        server.start()


def test_a_pod_that_ends_during_an_outage_is_reported_afterwards(
    stage: Stage, raw: redis.Redis
) -> None:
    stage.start_agent()
    flag = stage.home / "flag"
    (pod,) = stage.bind("sh", "-c", f"echo up; while ! test -e {flag}; do sleep 0.05; done; exit 4")
    group = stage.started(pod, saying="up")
    with frozen(raw):
        flag.touch()
        until(lambda: not members(group), within_s=WITHIN_S)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 4)


def test_a_server_that_is_killed_and_started_again_costs_no_pod(tmp_path: Path) -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        stage = Stage(store, tmp_path)
        try:
            stage.start_agent()
            flag = tmp_path / "flag"
            script = f"echo up; while ! test -e {flag}; do sleep 0.05; done"
            slow, quick = (
                stage.bind("sh", "-c", text)[0] for text in (script, f"{script}; exit 5")
            )
            for pod in (slow, quick):
                stage.started(pod, saying="up")
            server.stop()
            flag.touch()
            until(lambda: not any(members(_group(stage, pod)) for pod in (slow, quick)))
            server.start()
            assert stage.ended(slow).status.phase == PodPhase.SUCCEEDED
            assert stage.ended(quick).status.exit_code == 5
            (late,) = stage.bind("true")
            assert stage.ended(late).status.phase == PodPhase.SUCCEEDED
        finally:
            stage.close()
            store.close()


def test_an_agent_without_a_server_still_ends_on_sigterm(tmp_path: Path) -> None:
    server = Server()
    server.start()
    store = RedisStore(server.url)
    stage = Stage(store, tmp_path)
    try:
        agent = stage.start_agent(drain_timeout_s=0)
        (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
        group = stage.started(pod, saying="up")
        server.stop()
        agent.send_signal(signal.SIGTERM)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=WITHIN_S) == 0
        assert members(group) == []
        run = stage.run_of(pod)
        assert run is not None
        assert run.outcome is not None
        assert run.outcome.stopped == "NodeLost"
    finally:
        stage.close()
        store.close()
        server.discard()


def test_a_pod_that_has_ended_keeps_its_outcome_when_it_is_delivered_again(stage: Stage) -> None:
    stage.start_agent()
    flag = stage.home / "flag"
    (pod,) = stage.bind("sh", "-c", f"echo up; while ! test -e {flag}; do sleep 0.05; done")
    group = stage.started(pod, saying="up")
    # Without a leader the end is not applied; then the pod is delivered a second time.
    stage.report_processor.stop()
    flag.touch()
    until(lambda: not members(group), within_s=WITHIN_S)
    until(lambda: bool(stage.store.report_queues.pending("n1")), within_s=WITHIN_S)
    horse = stage.horse_of(pod)
    until(lambda: not is_alive(horse), within_s=WITHIN_S)
    link = RqLink(stage.store.url)
    enqueue(node_queue("n1", link), [PodAttempt(pod.metadata.uid, 1)])
    link.close()
    until(lambda: "pod delivered twice" in stage.log_text(), within_s=WITHIN_S)
    run = stage.run_of(pod)
    assert run is not None
    assert run.outcome is not None
    assert run.outcome.exit_code == 0


def test_a_draining_agent_lets_its_pods_finish(stage: Stage) -> None:
    agent = stage.start_agent()
    flag = stage.home / "flag"
    (pod,) = stage.bind("sh", "-c", f"echo up; while ! test -e {flag}; do sleep 0.05; done")
    stage.started(pod, saying="up")
    agent.send_signal(signal.SIGTERM)
    until(lambda: not _is_ready(stage.store), within_s=WITHIN_S)
    assert stage.store.ledger().get("capacity", {}) == {}
    (late,) = stage.bind("true")
    assert stage.ended(late).status.reason == "NodeLost"
    flag.touch()
    assert agent.wait(timeout=WITHIN_S) == 0
    assert stage.now(pod).status.phase == PodPhase.SUCCEEDED


def test_a_pod_that_outlasts_the_drain_is_stopped_with_its_grace(stage: Stage) -> None:
    agent = stage.start_agent(drain_timeout_s=0.2)
    (pod,) = stage.bind(
        "sh",
        "-c",
        "trap 'cat $BATCHQ_STOP_FILE; exit 0' TERM; echo up; while :; do sleep 0.1; done",
    )
    stage.started(pod, saying="up")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=WITHIN_S) == 0
    status = stage.now(pod).status
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.EVICTED, "NodeLost", 0)
    assert stage.output(pod) == "up\nNodeLost\n"


def test_a_second_signal_ends_everything_at_once(stage: Stage) -> None:
    agent = stage.start_agent(drain_timeout_s=600)
    (pod,) = stage.bind("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    group = stage.started(pod, saying="up")
    agent.send_signal(signal.SIGTERM)
    until(lambda: not _is_ready(stage.store), within_s=WITHIN_S)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=WITHIN_S) == 0
    status = stage.now(pod).status
    assert (status.phase, status.reason, status.signal) == (PodPhase.EVICTED, "NodeLost", 9)
    assert members(group) == []


def _group(stage: Stage, pod: Pod) -> int:
    run = stage.run_of(pod)
    return run.group if run else 0


def _is_ready(store: RedisStore) -> bool:
    node = store.get("Node", "n1")
    assert isinstance(node, Node)
    return node.status.ready
