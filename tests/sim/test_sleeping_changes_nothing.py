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
from batchq.core.cache.scheduler_cache import SchedulerCache
from batchq.core.extension.points import PluginPlaces
from batchq.core.extension.registry import PluginRegistry
from batchq.core.pending.inadmissible import InadmissibleGroups, LiftedBy
from batchq.core.session.session import Session
from batchq.core.session.settings import Instrument
from batchq.core.session.state import GroupState
from batchq.lab.simulation.player import WorldStage
from batchq.lab.simulation.world import read_world
from tests.worlds.making import Described, described
from tests.worlds.play import MOST_SESSIONS


class Sleepless(InadmissibleGroups):
    """Where nobody sleeps: every group is asked about in every session, and every crowd."""

    def may_sleep(self) -> bool:
        """Crowds stay awake."""
        return False

    def park(self, session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> bool:
        """Stays awake."""
        return False


class Forgetful(SchedulerCache):
    """Where every session begins from nothing."""

    def take_up(self, session: Session, parking: InadmissibleGroups) -> None:
        """Keeps nothing of the session before."""
        self.forget()
        super().take_up(session, parking)


class Solitary(SchedulerCache):
    """Where every group stands for itself."""

    def panel(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> PluginRegistry:
        """Groups that ask for the same are asked one by one."""
        panel = super().panel(plugins, instrument, of_session)
        panel.goes_by_requests = panel.limits_decide = False
        return panel


def _told(
    world: Described, *, sleeps: bool = True, carried: type[SchedulerCache] = SchedulerCache
) -> object:
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    if not sleeps:
        scheduler = replace(scheduler, _parking=Sleepless())
    scheduler = replace(scheduler, _carried=carried())
    stage = WorldStage(read_world(world.text, "a world"), scheduler)
    told = to_builtins(stage.run(MOST_SESSIONS, bounded=True).outcome)
    # A sleeping group was told what stood against it when it was last asked, limits or nodes: words
    # may be older, and a session that does nothing but write them down decides nothing.
    decided = [cycle for cycle in told["cycles"] if any(cycle[key] for key in cycle.keys() - _WHEN)]
    if len(told["cycles"]) >= MOST_SESSIONS:
        return decided[:_MOST_COMPARED]
    phases = {name: group["phase"] for name, group in told["podgroups"].items()}
    return decided, phases, told["queues"]


_WHEN = {"time"}
#: So many sessions that decide anything are compared of a world that never comes to rest.
_MOST_COMPARED = MOST_SESSIONS // 4


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_world_goes_the_same_way_whatever_sessions_remember(first: int) -> None:
    for seed in range(first, first + 20):
        world = described(seed)
        told = _told(world)
        assert told == _told(world, sleeps=False), f"seed {seed}"
        assert told == _told(world, carried=Forgetful), f"seed {seed}"
        assert told == _told(world, carried=Solitary), f"seed {seed}"
