"""Tests of the resync: a restarted server learns what runs on a node, until it knows all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import PodAttempt, Runs
from batchq.store import keys
from batchq.store.redis import RedisStore
from batchq.worker.agent import pod_reports
from batchq.worker.agent.messages import (
    EndRecord,
    HorseEnd,
    HorsesEnded,
    RenewLeases,
    ServerAnswered,
)
from batchq.worker.agent.pod_reports import PodReports
from batchq.worker.workhorse.run_file import PodOutcome, RunFile, RunFiles
from tests.agents import a_bound_pod, an_agent, start
from tests.contract.made import pod, put, writing

HERE = PodAttempt("u1-1-0", 1)


class Agent:
    """The agent of node `n1`, on which one attempt runs, or has ended."""

    def __init__(self, store: RedisStore, home: Path, *, outcome: PodOutcome | None = None) -> None:
        files = RunFiles(home)
        started = {"horse": 4711, "horse_started_ms": 1, "group": 4712, "started_at": 5_000}
        files.write(RunFile(pod=HERE.pod, attempt=HERE.attempt, outcome=outcome, **started))
        self.reports = PodReports(store, "n1", files, author="host:1:1", lease_ms=30_000)
        self.state = an_agent()
        assert start(self.state, a_bound_pod()) == HERE

    def answer(self, run: str) -> bool:
        """Tell the agent that this run of the server has answered; return whether it is known."""
        event = ServerAnswered(now_ms=1_000, run=run)
        self.state.drive(event, self.reports.carry_out)  # type: ignore[arg-type]
        return self.state.known_to == run

    def end(self) -> None:
        """Have the work-horse report the end."""
        record = EndRecord(outcome=PodOutcome(exit_code=0))
        ends = (HorseEnd(attempt=HERE, exit_code=0, record=record),)
        assert self.state.handle(HorsesEnded(now_ms=1_000, ends=ends)) == []


def know(store: RedisStore, *, node: str = "n1", attempt: int = 1) -> None:
    known = pod(0, phase=PodPhase.RUNNING, attempt=attempt, node=node)
    store.commit([writing(put(known))], request_id=f"{node} {attempt}")


def test_a_node_without_pods_is_fully_known(redis_store: RedisStore, tmp_path: Path) -> None:
    agent = Agent(redis_store, tmp_path)
    agent.end()
    assert agent.answer("run 1")


def test_a_pod_that_the_server_knows_to_run_here_is_not_reported(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    know(redis_store)
    assert Agent(redis_store, tmp_path).answer("run 1")
    assert redis_store.report_queues.pending("n1") == []


def test_a_pod_unknown_to_the_server_is_reported_and_the_node_is_not_fully_known(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    agent = Agent(redis_store, tmp_path)
    assert not agent.answer("run 1")
    assert agent.state.known_to == ""
    [report] = redis_store.report_queues.pending("n1")
    assert report == Runs(pod="u1-1-0", attempt=1, author="host:1:1:4711", started_at=5_000)


def test_a_pod_that_the_server_knows_on_another_node_is_unknown_here(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    know(redis_store, node="n2")
    assert not Agent(redis_store, tmp_path).answer("run 1")


def test_an_unknown_pod_is_not_reported_again_at_once(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    agent = Agent(redis_store, tmp_path)
    agent.answer("run 1")
    [entry] = redis_store.report_queues.look(["n1"])
    redis_store.report_queues.remove([entry])
    assert not agent.answer("run 1")
    assert redis_store.report_queues.pending("n1") == []


def test_a_node_is_fully_known_once_the_attempt_is_known_or_gone(
    redis_store: RedisStore, tmp_path: Path
) -> None:
    agent = Agent(redis_store, tmp_path)
    assert not agent.answer("run 1")
    know(redis_store)
    assert agent.answer("run 1")
    agent.end()
    assert agent.answer("run 1")


def test_an_ended_pod_does_not_count_as_running(redis_store: RedisStore, tmp_path: Path) -> None:
    assert Agent(redis_store, tmp_path, outcome=PodOutcome(exit_code=0)).answer("run 1")


def test_the_token_of_a_pod_is_kept_for_another_day_while_it_runs(
    redis_store: RedisStore, raw: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_reports, "_TOKENS_EVERY_MS", 0)
    files = RunFiles(tmp_path)
    ended = PodAttempt("u1-1-1", 1)
    for attempt, outcome in ((HERE, None), (ended, PodOutcome(exit_code=0))):
        started = {"horse": 4711, "horse_started_ms": 1, "group": 4712, "started_at": 5_000}
        files.write(RunFile(pod=attempt.pod, attempt=1, token="d" * 64, outcome=outcome, **started))
    reports = PodReports(redis_store, "n1", files, author="host:1:1", lease_ms=30_000)
    reports.carry_out(RenewLeases(((HERE, "fence"), (ended, "fence"))))
    assert redis_store.alive.tokens([("n1", HERE)])[0][0] == "d" * 64
    assert 86_300 < raw.ttl(keys.pod_token("n1", HERE.pod, 1)) <= 86_400
    assert redis_store.alive.tokens([("n1", ended)])[0][0] == ""
