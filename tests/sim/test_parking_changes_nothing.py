"""Parked groups, skipped idle sessions, and results reused from the session before save work and
change no decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from msgspec import to_builtins

from batchq.api.notation import MINUTE
from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import ONE_GROUP, POD_GROUPS, queue_scope
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.eligibility import InadmissibleGroups
from batchq.core.extension import LiftedBy, Plugin, PluginPlaces, everywhere
from batchq.core.scheduler_cache import PluginRegistry, SchedulerCache
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Instrument
from batchq.core.session.state import GroupState
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq.plugins.order import Drf, Sla, SlaArguments
from batchq.store import memory
from tests.effort import grid, sample, usually
from tests.worlds.making import Described, described
from tests.worlds.play import MOST_SESSIONS


class Sleepless(InadmissibleGroups):
    """A variant without parking: every session evaluates every group and every class."""

    def may_park(self) -> bool:
        """Let classes stay unparked."""
        return False

    def park(self, session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> bool:
        """Leave the group unparked."""
        return False


class Forgetful(SchedulerCache):
    """A variant in which every session starts without earlier results."""

    def take_up(self, session: Session, inadmissible: InadmissibleGroups) -> None:
        """Keep nothing of the session before."""
        self.forget()
        super().take_up(session, inadmissible)


class Solitary(SchedulerCache):
    """A variant in which every group is a class of its own."""

    def registry(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> PluginRegistry:
        """Evaluate groups with equal requests one by one."""
        registry = super().registry(plugins, instrument, of_session)
        registry.may_form_classes = registry.limits_decide = False
        return registry


def _told(
    world: Described,
    *plugins: Plugin,
    sleeps: bool = True,
    carried: type[SchedulerCache] = SchedulerCache,
) -> object:
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    beside = everywhere((plugin, 1) for plugin in plugins)
    standing = {name: (*scheduler.plugins[name], *beside[name]) for name in beside}
    scheduler = replace(scheduler, plugins=standing)
    if not sleeps:
        scheduler = replace(scheduler, _inadmissible=Sleepless())
    scheduler = replace(scheduler, _carried=carried())
    stage = WorldRun(read_world(world.text, "a world"), scheduler)
    result = to_builtins(stage.run(MOST_SESSIONS, bounded=True).outcome)
    # A parked group has the verdict of its last evaluation, by limits or nodes: messages may be
    # older, and a session that only stores messages decides nothing.
    decided = [
        cycle for cycle in result["cycles"] if any(cycle[key] for key in cycle.keys() - _WHEN)
    ]
    if len(result["cycles"]) >= MOST_SESSIONS:
        return decided[:_MOST_COMPARED]
    phases = {name: group["phase"] for name, group in result["podgroups"].items()}
    return decided, phases, result["queues"]


_WHEN = {"time"}
#: Sessions with decisions that are compared in a world that never comes to rest.
_MOST_COMPARED = MOST_SESSIONS // 4


def _last(group: GroupState) -> int:
    """Return a number that groups with equal requests do not share."""
    return sum(map(ord, group.key))


class AtFirst:
    """Keeps every third group in line only in every other minute."""

    name = "atFirst"

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        if _last(group) % 3 or session.now_ms // MINUTE % 2:
            return []
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail="not now")]

    def due_at(self, session: Session) -> Iterator[int]:
        if session.now_ms < 4 * MINUTE:
            yield (session.now_ms // MINUTE + 1) * MINUTE


class OneOfAKind:
    """Admits a group with an odd number only while its queue has fewer than two groups."""

    name = "oneOfAKind"

    def __init__(self, *, in_line: bool) -> None:
        self._in_line = in_line

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        scope = queue_scope(group.queue)
        if _last(group) % 2 == 0 or session.ledger.used(scope, POD_GROUPS) < 2 * ONE_GROUP:
            return []
        reason = Waiting.WAITING_FOR_QUOTA if self._in_line else Waiting.SCHEDULING_GATED
        return [Verdict(plugin=self.name, reason=reason, detail="later", in_line=self._in_line)]


class ByTheMinute:
    """Changes the order of groups every minute."""

    name = "byTheMinute"

    def group_order(self, session: Session, group: GroupState) -> int:
        return _last(group) * (session.now_ms // MINUTE + 1) % 5


THIRD_PARTY: dict[str, tuple[Plugin, ...]] = {
    "a plugin that keeps groups out of line": (AtFirst(),),
    "a plugin that admits groups out of line": (OneOfAKind(in_line=False),),
    "a plugin that admits groups in line": (OneOfAKind(in_line=True),),
    "a plugin that orders groups": (ByTheMinute(),),
    "all three plugins": (AtFirst(), OneOfAKind(in_line=False), ByTheMinute()),
    "drf": (Drf(),),
    "sla": (Sla(SlaArguments(waiting_time=3 * MINUTE)),),
}


@pytest.mark.parametrize(("case", "seed"), grid(THIRD_PARTY, sample((0, 1, 51, 31), 3)))
def test_plugins_without_guarantees_decide_the_same_for_classes_and_for_single_groups(
    case: str, seed: int
) -> None:
    world, plugins = described(seed), THIRD_PARTY[case]
    result = _told(world, *plugins)
    assert result == _told(world, *plugins, carried=Forgetful)
    assert result == _told(world, *plugins, carried=Solitary)


@pytest.mark.parametrize("seed", range(usually(3, 60)))
def test_a_world_has_the_same_outcome_whatever_sessions_reuse(seed: int) -> None:
    world = described(seed)
    result = _told(world)
    assert result == _told(world, sleeps=False)
    assert result == _told(world, carried=Forgetful)
    assert result == _told(world, carried=Solitary)


@pytest.mark.parametrize("seed", range(usually(3, 60)))
def test_pods_handed_on_from_session_to_session_change_no_decision(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise, only groups with many pods keep a row for them, and worlds have none.
    monkeypatch.setattr(memory, "MANY", 0)
    world = described(seed)
    assert _told(world) == _told(world, carried=Forgetful)
