"""Tests of the resync: a restarted server learns what runs on a node, until it knows all of it."""

from __future__ import annotations

from pathlib import Path

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Runs
from batchq.store.redis import RedisStore
from batchq.worker.agent.pod_reports import Resync
from batchq.worker.rq_delivery import PodAttempt
from batchq.worker.workhorse.run_file import PodOutcome, RunFile, RunFiles
from tests.contract.made import pod, put, writing

HERE = PodAttempt("u1-1-0", 1)
HORSES = ((HERE, 4711),)


def a_resync(store: RedisStore, home: Path, *, outcome: PodOutcome | None = None) -> Resync:
    """A node `n1` on which one attempt runs, or has ended."""
    files = RunFiles(home)
    started = {"horse": 4711, "horse_started_ms": 1, "group": 4712, "started_at": 5_000}
    files.write(RunFile(pod=HERE.pod, attempt=HERE.attempt, outcome=outcome, **started))
    return Resync(store, "n1", files, agent="host:1:1")


def know(store: RedisStore, *, node: str = "n1", attempt: int = 1) -> None:
    known = pod(0, phase=PodPhase.RUNNING, attempt=attempt, node=node)
    store.commit([writing(put(known))], request_id=f"{node} {attempt}")


def test_a_node_without_pods_is_fully_known(redis_store: RedisStore, tmp_path: Path) -> None:
    resync = a_resync(redis_store, tmp_path)
    assert resync.answer("run 1", ())
    assert resync.known_to == "run 1"


def test_a_pod_that_the_server_knows_to_run_here_is_not_reported(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    know(redis_store)
    assert a_resync(redis_store, tmp_path).answer("run 1", HORSES)
    assert redis_store.inboxes.pending("n1") == []


def test_a_pod_unknown_to_the_server_is_reported_and_the_node_is_not_fully_known(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    resync = a_resync(redis_store, tmp_path)
    assert not resync.answer("run 1", HORSES)
    assert resync.known_to == ""
    [report] = redis_store.inboxes.pending("n1")
    assert report == Runs(pod="u1-1-0", attempt=1, author="host:1:1:4711", started_at=5_000)


def test_a_pod_that_the_server_knows_on_another_node_is_unknown_here(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    know(redis_store, node="n2")
    assert not a_resync(redis_store, tmp_path).answer("run 1", HORSES)


def test_an_unknown_pod_is_not_reported_again_at_once(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    resync = a_resync(redis_store, tmp_path)
    resync.answer("run 1", HORSES)
    [entry] = redis_store.inboxes.look(["n1"])
    redis_store.inboxes.remove([entry])
    assert not resync.answer("run 1", HORSES)
    assert redis_store.inboxes.pending("n1") == []


def test_a_node_is_fully_known_once_the_attempt_is_known_or_gone(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    resync = a_resync(redis_store, tmp_path)
    assert not resync.answer("run 1", HORSES)
    know(redis_store)
    assert resync.answer("run 1", HORSES)
    assert resync.answer("run 1", ())
    assert resync.known_to == "run 1"


def test_an_ended_pod_does_not_count_as_running(redis_store: RedisStore, tmp_path: Path) -> None:
    assert a_resync(redis_store, tmp_path, outcome=PodOutcome(exit_code=0)).answer("run 1", HORSES)
