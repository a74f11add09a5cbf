"""The traits that a plugin declares, and the cost of a plugin that declares none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchq.api.reasons import Verdict, Waiting
from batchq.assembly import BUILTIN_PLUGINS, assemble
from batchq.config import PluginEntry, SchedulerConfig
from batchq.core.estimates import Expected, earliest_start, expected_starts
from batchq.core.extension import Plugin, PluginTraits, everywhere, traits_of
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.errors import InvalidInput
from batchq.scheduler.cycle import Scheduler
from tests.builders import a_group, a_node, a_snapshot

#: All request more than is free beside the first.
WORLD = a_snapshot(a_node(cpu=1), *(a_group(f"g{number:03}") for number in range(200)))


class AtPreEnqueue:
    name = "picky"

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        if group.key not in ("default/g150", "default/g151"):
            return []
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail="not this one")]


class AtAdmissible:
    name = "picky"

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        return AtPreEnqueue().pre_enqueue(session, group)


class AtGroupOrder:
    name = "picky"

    def group_order(self, session: Session, group: GroupState) -> int:
        return -int(group.record.metadata.name[1:])


def beside_the_default_ones(plugin: Plugin) -> Scheduler:
    scheduler = assemble(SchedulerConfig())
    beside = everywhere([(plugin, 1)])
    standing = {point: (*beside[point], *scheduler.plugins[point]) for point in beside}
    return replace(scheduler, plugins=standing)


def waiting_for(session: Session, reason: Waiting) -> list[str]:
    return [
        group.key
        for group in session.in_order()
        if any(one.reason == reason for one in group.status.reasons)
    ]


@pytest.mark.parametrize("plugin", [AtPreEnqueue(), AtAdmissible()])
def test_a_plugin_that_declares_nothing_slows_down_only_the_groups_that_it_refuses(
    plugin: Plugin,
) -> None:
    scheduler = beside_the_default_ones(plugin)
    first = scheduler.decide(WORLD, 1)
    assert [key for key, group in first.by_key.items() if group.phase == "InQueue"] == [
        "default/g000"
    ]
    assert waiting_for(first, Waiting.SCHEDULING_GATED) == ["default/g150", "default/g151"]
    assert len(waiting_for(first, Waiting.WAITING_FOR_RESOURCES)) >= 197
    again = scheduler.decide(WORLD, 2)
    assert waiting_for(again, Waiting.SCHEDULING_GATED) == ["default/g150", "default/g151"]
    # One class, and the two refused groups.
    assert again.pending.evaluated <= 5


def test_a_plugin_that_orders_groups_and_declares_nothing_puts_no_group_out_of_its_class() -> None:
    scheduler = beside_the_default_ones(AtGroupOrder())
    first = scheduler.decide(WORLD, 1)
    assert [key for key, group in first.by_key.items() if group.phase == "InQueue"] == [
        "default/g199"
    ]
    assert scheduler.decide(WORLD, 2).pending.evaluated <= 3


class WithoutLicence:
    name = "licences"

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        reason = Waiting.WAITING_FOR_RESOURCES
        return [Verdict(plugin=self.name, reason=reason, detail="no licence is free", in_line=True)]


def test_no_start_is_known_for_a_group_that_a_plugin_refuses_without_a_limit() -> None:
    session = beside_the_default_ones(WithoutLicence()).decide(WORLD, 1)
    group = session.by_key["default/g000"]
    why = "WaitingForResources: no licence is free"
    assert earliest_start(session, group) == Expected(None, why=why)
    assert expected_starts(session)[group.uid] == Expected(None, why=why)


def test_traits_of_another_type_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Untyped(AtPreEnqueue):
        traits = {"passes_plain": True}

    monkeypatch.setitem(BUILTIN_PLUGINS, "picky", Untyped)
    with pytest.raises(InvalidInput, match="plugin picky: expected traits to be a PluginTraits"):
        assemble(SchedulerConfig(plugins=(PluginEntry(name="picky"),)))


def test_the_defaults_declare_no_traits() -> None:
    assert traits_of(AtPreEnqueue()) == PluginTraits()
    assert PluginTraits().lifted_by is None
