"""The benchmark `thousand` simulates the requests of agents in a cluster at rest."""

from __future__ import annotations

import pytest

from benchmarks import thousand

#: The simulated periods take many seconds.
pytestmark = pytest.mark.slow


def test_agents_are_measured_idle_and_with_pods_and_compared_with_rq_workers() -> None:
    rows, duties = thousand.measure([2, 3], agent_seconds=3, turns=1, beats=2)
    titles = ["agents, idle", "agents, 4 pods each", "RQ workers, idle", "RQ workers, a job each"]
    assert [row[0] for row in rows] == titles * 2
    assert [(row[1], row[2]) for row in rows] == [
        (2, 0),
        (2, 8),
        (2, 0),
        (8, 8),
        (3, 0),
        (3, 12),
        (3, 0),
        (12, 12),
    ]
    # An agent has three connections, and each running work-horse has one.
    assert [row[3] for row in rows[4:6]] == [9, 21]
    assert [duty[:2] for duty in duties] == [
        ["look at the queue", 1.0],
        ["beat", 0.2],
        ["the server's time, 5 times", 1.0],
        ["compare what runs", 0.1],
        ["look through all pods", 1 / 610],
        ["RQ's registries", 1000 / 60_000],
        ["renewal of a lease, 4 times", 8.0],
    ]
    assert all(isinstance(cell, float) and cell > 0 for duty in duties for cell in duty[1:3])


def test_agents_with_a_wake_up_channel_send_few_commands() -> None:
    (idle, *_), _ = thousand.measure([5], agent_seconds=20, turns=1, beats=1)
    commands = idle[5]
    assert isinstance(commands, float)
    # A look at the queue each second, the wait on the wake-up channel, and rarely something else.
    assert 10 <= commands <= 50
