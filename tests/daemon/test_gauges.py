"""Gauges are computed per equivalence class, and equal those computed group by group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.config.load import read_config
from batchq.core.session.snapshot import Snapshot
from batchq.daemon.gauges import levels_of
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq.scheduler.cycle import Scheduler
from tests.builders import a_group, a_node, a_queue, a_snapshot
from tests.sim.test_parking_changes_nothing import Solitary
from tests.worlds.making import described


def _snapshot(seed: int, config: SchedulerConfig) -> Snapshot:
    """Return a random world after two sessions."""
    run = WorldRun(read_world(described(seed).text, "a world"), assemble(config))
    run.run(2, bounded=True)
    return run.store.snapshot()


def _alone(scheduler: Scheduler) -> Scheduler:
    return replace(scheduler, _carried=Solitary())


@pytest.mark.parametrize("seed", range(12))
def test_classes_are_counted_like_their_members(seed: int) -> None:
    config = read_config(described(seed).config_text, "scheduler.yaml")
    snapshot, now_ms = _snapshot(seed, config), 10**9
    together = levels_of(assemble(config).decide(snapshot, now_ms))
    assert together == levels_of(_alone(assemble(config)).decide(snapshot, now_ms))


def test_a_group_just_admitted_is_no_longer_counted_as_waiting() -> None:
    waiting = [a_group(f"g{number}", 1, created=number) for number in range(5)]
    session = assemble(SchedulerConfig()).decide(
        a_snapshot(a_node(cpu=2), a_queue("default"), *waiting), 10_000
    )
    levels = levels_of(session)
    assert levels.groups == {("default", "InQueue"): 2, ("default", "Pending"): 3}
    assert levels.waiting == {("default", "Pending", "WaitingForResources"): 3}
    assert levels.waiting_since == {"default": 2}
    assert levels.queues["default"].amounts["pending"]["cpu"] == 3.0
