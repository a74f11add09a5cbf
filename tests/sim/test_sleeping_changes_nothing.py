"""That groups sleep, that idle sessions rest, and that a session takes over what the one before
has worked out, saves work and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import to_builtins

from batchq.api.reasons import Verdict
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.framework.carryover import Carryover
from batchq.framework.parking import Parking
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.sim.run import Stage
from batchq.sim.world import read_world
from tests.worlds.making import Described, described
from tests.worlds.play import MOST_SESSIONS


class Sleepless(Parking):
    """Where nobody sleeps: every group is asked about in every session."""

    def park(self, session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> None:
        """Stays awake."""


class Forgetful(Carryover):
    """Where every session begins from nothing."""

    def keep(self, session: Session, lines: Mapping[str, list[GroupState]]) -> None:
        """Keeps nothing."""


def _told(world: Described, *, sleeps: bool = True, remembers: bool = True) -> object:
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    if not sleeps:
        scheduler = replace(scheduler, _parking=Sleepless())
    if not remembers:
        scheduler = replace(scheduler, _carried=Forgetful())
    stage = Stage(read_world(world.text, "a world"), scheduler)
    return to_builtins(stage.run(MOST_SESSIONS, bounded=True).outcome)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_world_goes_the_same_way_whatever_sessions_remember(first: int) -> None:
    for seed in range(first, first + 20):
        world = described(seed)
        told = _told(world)
        assert told == _told(world, sleeps=False), f"seed {seed}"
        assert told == _told(world, remembers=False), f"seed {seed}"
