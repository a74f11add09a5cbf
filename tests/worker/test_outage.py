"""Tests of outages: each process logs one when it begins and when it ends, and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.errors import StoreUnavailable
from batchq.store.outage import Outage
from batchq.store.redis import RedisStore
from batchq.worker.agent.wakeups import PeriodicTasks
from tests.daemon.waiting import until
from tests.harness.proxy import ControlledProxy
from tests.harness.server import Server
from tests.worker.stage import WITHIN_S, Stage, members

pytestmark = pytest.mark.e2e

#: A little more than the longest pause between two tries.
RETRIED_WITHIN_S = 2.5


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


def lines(stage: Stage, word: str, pod: Pod | None = None) -> list[str]:
    """Return the agent's (or a pod's work-horse's) log lines that contain a word."""
    logged = [line for line in stage.log_text().splitlines() if word in line]
    if pod is None:
        return [line for line in logged if "pod=" not in line]
    return [line for line in logged if f"pod={pod.metadata.uid}" in line]


def test_agent_and_work_horse_each_log_the_begin_and_the_end_of_an_outage_once(
    stage: Stage, server: Server
) -> None:
    stage.start_agent()
    flag = stage.home / "flag"
    script = f"echo up; while ! test -e {flag}; do echo more; sleep 0.05; done; echo done"
    (pod,) = stage.bind("sh", "-c", script)
    stage.started(pod, saying="up")

    for outages in (1, 2):
        server.stop()
        await_lines(stage, "store.unavailable", outages, pod)
        if outages == 1:
            silent_for_s(stage, RETRIED_WITHIN_S)
        server.start()
        await_lines(stage, "store.back", outages, pod)

    flag.touch()
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert stage.output(pod).endswith("more\ndone\n")
    assert len(lines(stage, "store.unavailable")) == 2
    assert len(lines(stage, "store.unavailable", pod)) == 2
    assert len(lines(stage, "store.back")) == 2


def test_a_full_agent_logs_an_outage_once_too(stage: Stage, server: Server) -> None:
    stage.start_agent(slots=1)
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 600")
    stage.started(pod, saying="up")
    server.stop()
    await_lines(stage, "store.unavailable", 1, pod)
    silent_for_s(stage, RETRIED_WITHIN_S)
    server.start()
    await_lines(stage, "store.back", 1, pod)
    assert len(lines(stage, "store.unavailable")) == 1


@pytest.mark.parametrize(
    ("lease_ms", "hangs_s"), [(12_000, 8.0), pytest.param(30_000, 21.0, marks=pytest.mark.slow)]
)
def test_a_server_that_hangs_for_two_thirds_of_a_lease_costs_no_pod(
    stage: Stage, server: Server, lease_ms: int, hangs_s: float
) -> None:
    # Behind the proxy, the server's process is not known to be there or away.
    with ControlledProxy(server.socket) as proxy:
        stage.start_agent(url=proxy.url, lease_ms=lease_ms)
        quiet = "echo up; sleep 600"
        talkative = "echo up; while sleep 0.1; do echo more; done"
        pods = [*stage.bind("sh", "-c", quiet), *stage.bind("sh", "-c", talkative)]
        groups = [stage.started(pod, saying="up") for pod in pods]
        proxy.block()
        none_ends(groups, within_s=hangs_s)
        proxy.mend()
        # Longer than the leases from before would last.
        none_ends(groups, within_s=lease_ms / 1000)
        stage.close()


def none_ends(groups: list[int], within_s: float) -> None:
    """Check that no process group ends within that time."""
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: not all(members(group) for group in groups), within_s=within_s)


def await_lines(stage: Stage, word: str, count: int, pod: Pod) -> None:
    """Wait until the agent and a pod's work-horse have each logged the word `count` times."""
    for whose in (None, pod):
        until(lambda whose=whose: len(lines(stage, word, whose)) == count, within_s=WITHIN_S)  # type: ignore[misc]


def silent_for_s(stage: Stage, seconds: float) -> None:
    """Check that nothing is logged for that time."""
    before = stage.log_text()
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: stage.log_text() != before, within_s=seconds)


def test_a_task_that_fails_in_an_outage_is_retried_until_it_succeeds() -> None:
    is_away, done, now_ms = [True], [], 0
    outage = Outage()

    def task() -> None:
        if is_away[0]:
            raise StoreUnavailable("the server is not running")
        done.append(now_ms)

    tasks = PeriodicTasks({task: 1_000}, now_ms=0, outage=outage)
    waits = []
    for _ in range(6):
        tasks.do(now_ms=now_ms)
        waits.append(tasks.next_due_at() - now_ms)
        now_ms = tasks.next_due_at()
    steps = [500, 1000, 2000, 2000, 2000, 2000]
    assert all(step // 2 <= wait <= step for wait, step in zip(waits, steps, strict=True))
    assert outage.unavailable
    is_away[0] = False
    tasks.do(now_ms=now_ms)
    assert done == [now_ms]
    assert tasks.next_due_at() == now_ms + 1_000
