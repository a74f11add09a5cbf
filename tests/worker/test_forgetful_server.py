"""Tests of a server that was restored from an older file, and learns from the node what runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from batchq.api.access import parse_token
from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import PodAttempt
from batchq.api.transaction import Charge, Delivery, Transaction, node_scope
from batchq.store import keys
from batchq.store.redis import RedisStore
from tests.daemon.waiting import until
from tests.harness.server import Server
from tests.worker.stage import NODE, WITHIN_S, Stage, members

pytestmark = pytest.mark.e2e


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps only what it was told to save."""
    with Server() as made:
        yield made


@pytest.fixture
def stage(server: Server, tmp_path: Path) -> Iterator[Stage]:
    """A stage on that server."""
    store = RedisStore(server.url)
    made = Stage(store, tmp_path)
    yield made
    made.close()
    store.close()


def test_an_attempt_whose_bind_was_forgotten_continues_to_its_end(
    stage: Stage, server: Server
) -> None:
    agent = stage.start_agent()
    flag = stage.home / "flag"
    script = f"echo up; while ! test -e {flag}; do sleep 0.05; done"
    (pod,) = stage.bound("sh", "-c", script, pods={"phase": PodPhase.PENDING, "node": ""})
    stage.store.delivered(stage.store.outbox())
    client = redis.Redis(unix_socket_path=str(server.socket))
    client.save()
    client.close()
    stage.change(pod, phase=PodPhase.BOUND, node=NODE, attempt=2, bound_at=stage.store.now_ms())
    uid = pod.metadata.uid
    stage.commit(
        Transaction(
            subject="bind",
            charges=(
                Charge(holder=f"pod:{uid}", scopes=(node_scope(NODE),), amounts={"cpu": 1000}),
            ),
            deliveries=(Delivery(pod=uid, attempt=2, node=NODE),),
        )
    )
    stage.relay.deliver()
    group = stage.started(stage.now(pod), saying="up")

    # A running agent could report the attempt before the work-horse renews its lease.
    agent.send_signal(signal.SIGSTOP)
    server.stop()
    server.start()
    assert stage.now(pod).status.attempt == 1
    until(lambda: stage.now(pod).status.phase == PodPhase.RUNNING, within_s=WITHIN_S)
    assert stage.now(pod).status.attempt == 2
    assert members(group)
    agent.send_signal(signal.SIGCONT)
    assert stage.store.ledger()[f"node:{NODE}"]["pods"] == 1000
    flag.touch()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert f"node:{NODE}" not in stage.store.ledger()


def test_a_pod_the_server_has_forgotten_is_ended(stage: Stage, server: Server) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    group = stage.started(pod, saying="up")
    server.stop()
    server.start()
    until(lambda: not members(group), within_s=WITHIN_S)
    until(lambda: stage.run_of(pod) is None, within_s=WITHIN_S)
    assert stage.store.get("Pod", pod.metadata.uid) is None
    assert stage.store.counts()["superseded"] >= 1


def test_the_token_of_a_running_pod_is_kept_again_by_a_server_that_has_lost_it(
    stage: Stage, server: Server
) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600", group_spec={"token": "self"})
    stage.started(pod, saying="up")
    uid, attempt = pod.metadata.uid, stage.now(pod).status.attempt
    (file,) = stage.home.rglob("*.token")
    parts = parse_token(file.read_text().strip())
    assert parts is not None
    assert parts.id == f"{uid}-{attempt}"
    alive = stage.store.alive
    assert alive.tokens([(NODE, PodAttempt(uid, attempt))])[0][0] == parts.digest
    client = redis.Redis(unix_socket_path=str(server.socket))
    client.delete(keys.pod_token(NODE, uid, attempt))
    client.save()
    client.close()
    server.stop()
    server.start()
    kept = PodAttempt(uid, attempt)
    until(lambda: alive.tokens([(NODE, kept)])[0][0] == parts.digest, within_s=WITHIN_S)
