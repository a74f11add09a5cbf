"""A configuration becomes a scheduler, with third-party actions and plugins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchq.api.objects import PodGroup
from batchq.assembly import (
    BUILTIN_PLUGINS,
    assemble,
    known_actions,
    known_plugins,
    without_consent,
)
from batchq.config import DEFAULT_PLUGINS, PluginEntry, SchedulerConfig
from batchq.errors import InvalidInput
from tests.builders import a_group, a_node, a_snapshot

_GUIDE = Path(__file__).parents[2] / "docs" / "plugins.md"
#: Saturday, 2026-01-03, noon.
_SATURDAY_MS = 1_767_441_600_000
_DAY_MS = 86_400_000


def test_the_builtin_actions_and_plugins_are_known() -> None:
    assert known_actions() == ["allocate", "backfill", "enqueue", "preempt", "reclaim"]
    in_the_box = ["drf", "sla", "overcommit", "mostAllocated", "balancedAllocation"]
    assert known_plugins() == sorted([*(entry.name for entry in DEFAULT_PLUGINS), *in_the_box])


def test_an_unknown_action_is_refused_with_the_known_and_the_nearest_names() -> None:
    with pytest.raises(InvalidInput) as caught:
        assemble(SchedulerConfig(actions=("enqueu", "allocate")))
    assert caught.value.message == (
        "there is no action 'enqueu'; known actions: allocate, backfill, enqueue, preempt, reclaim;"
        " did you mean enqueue?"
    )


def test_an_unknown_plugin_is_refused_with_the_known_names() -> None:
    with pytest.raises(InvalidInput, match="there is no plugin 'tdm'; known plugins: balanced"):
        assemble(SchedulerConfig(plugins=(PluginEntry(name="tdm"),)))


WRONG_SETTINGS: dict[str, tuple[str, dict[str, object], str]] = {
    "an unknown setting": (
        "binpack",
        {"colour": "red"},
        "pluginConfig.binpack.colour: there is no such field; known: resource, weights",
    ),
    "a weight of nothing": (
        "binpack",
        {"weights": {"gpu": 0}},
        "pluginConfig.binpack.weights.gpu: expected a weight from 1 to 1000, found 0",
    ),
    "one resource and several": (
        "binpack",
        {"resource": "gpu", "weights": {"cpu": 1}},
        "pluginConfig.binpack.weights: expected either resource or weights, found both",
    ),
    "a waiting time that is no time": (
        "sla",
        {"waitingTime": "soon"},
        ("pluginConfig.sla.waitingTime: expected a duration such as 90s, 2h or 1d, found 'soon'"),
    ),
    "a factor below zero": (
        "overcommit",
        {"resources": {"gpu": -1}},
        (
            "pluginConfig.overcommit.resources.gpu: expected a number from 0 to 1000 with at most"
            " three decimals, found -1"
        ),
    ),
    "namespaces that are one word": (
        "conformance",
        {"namespaces": "system"},
        "pluginConfig.conformance.namespaces: expected a list, found 'system'",
    ),
    "a plugin that takes none": (
        "gang",
        {"size": 3},
        "pluginConfig.gang: the plugin takes no settings, found size",
    ),
    "an unknown plugin": (
        "gangs",
        {},
        "pluginConfig.gangs: there is no such plugin; did you mean 'gang'?",
    ),
}


@pytest.mark.parametrize("case", WRONG_SETTINGS)
def test_settings_that_a_plugin_does_not_take_are_refused(case: str) -> None:
    name, settings, message = WRONG_SETTINGS[case]
    with pytest.raises(InvalidInput) as caught:
        assemble(SchedulerConfig(plugin_config={name: settings}))
    assert caught.value.message == message


def test_a_plugin_gets_its_own_settings() -> None:
    scheduler = assemble(SchedulerConfig(plugin_config={"binpack": {"resource": "cpu"}}))
    weights = [getattr(plugin, "weights", None) for plugin, _ in scheduler.plugins["score"]]
    assert [one for one in weights if one] == [{"cpu": 1}]


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with the examples of the guide, and a plugin that agrees to victims."""
    guide = _GUIDE.read_text()
    for code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", guide, re.DOTALL):
        (tmp_path / code[0]).write_text(code[1])
    info = tmp_path / "weekend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weekend\nVersion: 1.0\n")
    (tmp_path / "lenient.py").write_text(
        "class Lenient:\n"
        "    name = 'lenient'\n"
        "    def preemptable(self, session, claimant, victim):\n"
        "        return True\n"
    )
    (info / "entry_points.txt").write_text(
        "[batchq.plugins]\nweekend = weekend:Weekend\nlenient = lenient:Lenient\n"
        "[batchq.actions]\ncensus = census:Census\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("third_party")
def test_an_installed_plugin_and_action_are_enabled_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = SchedulerConfig(
        actions=("enqueue", "allocate", "census"),
        plugins=(PluginEntry(name="weekend"), *DEFAULT_PLUGINS),
    )
    scheduler = assemble(config)
    world = a_snapshot(a_node(cpu=4), a_group("g"))

    on_saturday = scheduler.decide(world, _SATURDAY_MS)
    assert [verdict.plugin for verdict in on_saturday.by_key["default/g"].status.reasons] == [
        "weekend"
    ]
    assert capsys.readouterr().err == "census: 1 of 1 groups wait\n"
    scheduler.decide(world, _SATURDAY_MS + 1)
    assert capsys.readouterr().err == ""

    on_monday = scheduler.decide(world, _SATURDAY_MS + 2 * _DAY_MS)
    assert on_monday.by_key["default/g"].phase == "InQueue"
    assert isinstance(on_monday.by_key["default/g"].record, PodGroup)
    assert capsys.readouterr().err == "census: 0 of 1 groups wait\n"


@pytest.mark.usefixtures("third_party")
def test_an_installed_plugin_is_listed_among_the_known() -> None:
    assert "weekend" in known_plugins()
    assert "census" in known_actions()


def on(*names: str) -> SchedulerConfig:
    return SchedulerConfig(plugins=tuple(PluginEntry(name=name) for name in names))


def test_only_priority_drf_and_proportion_of_the_builtin_plugins_agree_to_victims() -> None:
    for_preempt = [one for one in BUILTIN_PLUGINS if "preempt" not in without_consent(on(one))]
    for_reclaim = [one for one in BUILTIN_PLUGINS if "reclaim" not in without_consent(on(one))]
    assert for_preempt == ["priority", "drf"]
    assert for_reclaim == ["priority", "proportion"]


@pytest.mark.usefixtures("third_party")
def test_an_installed_plugin_that_votes_on_victims_may_agree() -> None:
    assert without_consent(on("weekend")) == ["reclaim", "preempt"]
    assert without_consent(on("weekend", "lenient")) == ["reclaim"]
