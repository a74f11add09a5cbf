"""Messages while agents end."""

from __future__ import annotations

from batchq.daemon.stack import StackProgress, waiting_for


def test_a_drain_reports_the_pods_it_waits_for_and_how_long() -> None:
    assert waiting_for("vm-1", 1, 5.0, 45.0) == "vm-1: 1 pod still runs; it is stopped in 25s"
    assert waiting_for("vm-1", 2, 5.0, 45.0) == "vm-1: 2 pods still run; they are stopped in 25s"
    assert waiting_for("vm-1", 1, 35.0, 45.0) == "vm-1: 1 pod still runs; it is killed in 10s"
    assert waiting_for("vm-1", 1, 5.0, 10.0) == "vm-1: 1 pod still runs; it is killed in 5s"
    assert waiting_for("vm-1", 0, 5.0, 45.0) == "vm-1: its agent is ending"


def test_a_drain_reports_progress_at_first_and_every_five_seconds() -> None:
    now, said = [100.0], []
    progress = StackProgress(
        lambda: {"vm-1": 1, "vm-2": 0},
        since=100.0,
        patience_s=45.0,
        say=said.append,
        clock=lambda: now[0],
    )
    progress.begin()
    for now[0] in (100.0, 104.9, 105.0, 105.1, 109.9):
        progress.go_on()
    assert said == [
        "Draining 2 node agents: 1 pod may run on for 30s (`batchq down --now` does not wait)",
        "vm-1: 1 pod still runs; it is stopped in 25s",
        "vm-2: its agent is ending",
    ]


def test_a_drain_without_agents_reports_nothing() -> None:
    said: list[str] = []
    StackProgress(dict, since=0.0, patience_s=45.0, say=said.append, clock=lambda: 0.0).begin()
    assert said == []
