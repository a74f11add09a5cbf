"""`plugins` of scheduler.yaml enables plugins at points as in KEP-2891's table, cell by cell.

"Regular" is an entry of one point, "multi-point" one of `multiPoint`. sla (preEnqueue, groupOrder,
preemptable), mostAllocated and balancedAllocation (score) are built in, but disabled by default.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.objects import SchedulingGate
from batchq.assembly import assemble, expanded, known_names
from batchq.config import DEFAULT_PLUGINS, PluginEntry, SchedulerConfig
from batchq.config.load import as_text, read_config
from batchq.core.extension import POINTS
from batchq.errors import InvalidInput
from batchq.plugins.order import Sla
from batchq.scheduler.timers import next_due_at
from tests.builders import a_group, a_node, a_snapshot

#: The default plugins of each point.
DEFAULT = {
    "preEnqueue": ["gates", "dependencies", "checks"],
    "admissible": ["quota", "capacity"],
    "queueOrder": ["proportion"],
    "groupOrder": ["priority"],
    "podOrder": ["priority"],
    "predicate": ["predicates"],
    "score": ["leastAllocated", "binpack"],
    "groupReady": ["gang"],
    "preemptable": ["gang", "priority", "conformance"],
    "reclaimable": ["gang", "priority", "proportion", "conformance"],
    "permit": ["checks"],
}
NO_PLUGINS: dict[str, list[Any]] = {point: [] for point in POINTS}


def read(text: str) -> SchedulerConfig:
    return read_config(text, "scheduler.yaml", known=known_names())


def standing(text: str) -> dict[str, list[Any]]:
    """Return the names at each point, with weight and tier where they differ from the defaults."""
    return {
        point: [
            entry.name
            if (entry.weight, entry.tier) == (1, 1)
            else (entry.name, entry.weight, entry.tier)
            for entry in entries
        ]
        for point, entries in expanded(read(text)).items()
    }


#: The value of `plugins` -> the differences from the default.
TABLE: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "default, regular, enabled: it is reordered, to the front": (
        "preEnqueue: {enabled: [checks]}",
        {"preEnqueue": ["checks", "gates", "dependencies"]},
    ),
    "default, regular, enabled with a weight: it has that weight at the point": (
        "score: {enabled: [{name: binpack, weight: 5}]}",
        {"score": [("binpack", 5, 1), "leastAllocated"]},
    ),
    "default, regular, disabled: it is off at this point, and stays on at the others": (
        "groupOrder: {disabled: [priority]}",
        {"groupOrder": []},
    ),
    "default, regular, enabled *: nothing happens": ('preEnqueue: {enabled: ["*"]}', {}),
    "default, regular, disabled *: all plugins of the point are off": (
        'preEnqueue: {disabled: ["*"]}',
        {"preEnqueue": []},
    ),
    "default, multi-point, enabled: it is on at all its points, where it was": (
        "multiPoint: {enabled: [priority, gates]}",
        {},
    ),
    "default, multi-point, enabled with a weight: it has that weight at all its points": (
        "multiPoint: {enabled: [{name: priority, weight: 3}]}",
        {
            "groupOrder": [("priority", 3, 1)],
            "podOrder": [("priority", 3, 1)],
            "preemptable": ["gang", ("priority", 3, 1), "conformance"],
            "reclaimable": ["gang", ("priority", 3, 1), "proportion", "conformance"],
        },
    ),
    "default, multi-point, disabled: it is off at all its points": (
        "multiPoint: {disabled: [priority]}",
        {
            "groupOrder": [],
            "podOrder": [],
            "preemptable": ["gang", "conformance"],
            "reclaimable": ["gang", "proportion", "conformance"],
        },
    ),
    "default, multi-point, enabled *: nothing happens": ('multiPoint: {enabled: ["*"]}', {}),
    "default, multi-point, disabled *: all default plugins are off at all points": (
        'multiPoint: {disabled: ["*"]}',
        NO_PLUGINS,
    ),
    "non-default, regular, enabled: it is on at this point alone, before the default ones": (
        "groupOrder: {enabled: [sla]}",
        {"groupOrder": ["sla", "priority"]},
    ),
    "non-default, regular, disabled: it is off at this point, and on at its others": (
        "multiPoint: {enabled: [sla]}\n  groupOrder: {disabled: [sla]}",
        {
            "preEnqueue": ["gates", "dependencies", "checks", "sla"],
            "preemptable": ["gang", "priority", "conformance", "sla"],
        },
    ),
    "non-default, regular, enabled *: it is not on": ('groupOrder: {enabled: ["*"]}', {}),
    "non-default, regular, disabled *: it is off at this point with all the others": (
        'multiPoint: {enabled: [mostAllocated]}\n  score: {disabled: ["*"]}',
        {"score": []},
    ),
    "non-default, multi-point, enabled: it is on at all its points, after the default ones": (
        "multiPoint: {enabled: [sla]}",
        {
            "preEnqueue": ["gates", "dependencies", "checks", "sla"],
            "groupOrder": ["priority", "sla"],
            "preemptable": ["gang", "priority", "conformance", "sla"],
        },
    ),
    "non-default, multi-point, disabled: nothing happens": (
        "multiPoint: {enabled: [mostAllocated], disabled: [mostAllocated, sla]}",
        {"score": ["leastAllocated", "binpack", "mostAllocated"]},
    ),
    "non-default, multi-point, enabled *: it is not on": ('multiPoint: {enabled: ["*"]}', {}),
    "non-default, multi-point, disabled *: what is enabled beside it stays": (
        'multiPoint: {enabled: [sla], disabled: ["*"]}',
        {
            **NO_PLUGINS,
            "preEnqueue": ["sla"],
            "groupOrder": ["sla"],
            "preemptable": ["sla"],
        },
    ),
}

BEYOND: dict[str, tuple[str, dict[str, list[Any]]]] = {
    "the entries of a point come first in their order, then multiPoint's in theirs": (
        (
            "multiPoint: {enabled: [mostAllocated, balancedAllocation]}\n"
            "  score: {enabled: [balancedAllocation, binpack]}"
        ),
        {"score": ["balancedAllocation", "binpack", "leastAllocated", "mostAllocated"]},
    ),
    "the entry of a point overrides multiPoint's weight there, and only there": (
        (
            "multiPoint: {enabled: [{name: sla, weight: 2}]}\n"
            "  groupOrder: {enabled: [{name: sla, weight: 9}]}"
        ),
        {
            "preEnqueue": ["gates", "dependencies", "checks", ("sla", 2, 1)],
            "groupOrder": [("sla", 9, 1), "priority"],
            "preemptable": ["gang", "priority", "conformance", ("sla", 2, 1)],
        },
    ),
    "a point that disables * and enables some has these alone": (
        'preEnqueue: {enabled: [checks, gates], disabled: ["*"]}',
        {"preEnqueue": ["checks", "gates"]},
    ),
    "a default plugin that multiPoint disables and enables goes behind the others": (
        "multiPoint: {enabled: [gates], disabled: [gates]}",
        {"preEnqueue": ["dependencies", "checks", "gates"]},
    ),
    "what multiPoint disables may still be on at a single point": (
        "multiPoint: {disabled: [priority]}\n  podOrder: {enabled: [priority]}",
        {
            "groupOrder": [],
            "preemptable": ["gang", "conformance"],
            "reclaimable": ["gang", "proportion", "conformance"],
        },
    ),
    "a lower tier goes first, whatever the order": (
        "multiPoint: {enabled: [{name: sla, tier: 0}, {name: gates, tier: 2}]}",
        {
            "preEnqueue": [("sla", 1, 0), "dependencies", "checks", ("gates", 1, 2)],
            "groupOrder": [("sla", 1, 0), "priority"],
            "preemptable": [("sla", 1, 0), "gang", "priority", "conformance"],
        },
    ),
    "within a tier the entries of the point go first": (
        (
            "multiPoint: {enabled: [{name: mostAllocated, tier: 0}]}\n"
            "  score: {enabled: [binpack, {name: balancedAllocation, tier: 0}]}"
        ),
        {
            "score": [
                ("balancedAllocation", 1, 0),
                ("mostAllocated", 1, 0),
                "binpack",
                "leastAllocated",
            ]
        },
    ),
    "names may be written as Kubernetes does": (
        (
            'multiPoint: {enabled: [{name: "*"}], disabled: [{name: binpack}]}\n'
            '  preEnqueue: {disabled: [{name: "*"}]}'
        ),
        {"score": ["leastAllocated"], "preEnqueue": []},
    ),
    "an empty mapping, empty lists and null say nothing": (
        "multiPoint: {enabled: [], disabled: null}\n  score:\n  permit: {}",
        {},
    ),
}


@pytest.mark.parametrize("cell", TABLE)
def test_each_cell_of_the_table(cell: str) -> None:
    written, otherwise = TABLE[cell]
    assert standing(f"plugins:\n  {written}\n") == {**DEFAULT, **otherwise}


@pytest.mark.parametrize("rule", BEYOND)
def test_rules_beyond_the_table_hold(rule: str) -> None:
    written, otherwise = BEYOND[rule]
    assert standing(f"plugins:\n  {written}\n") == {**DEFAULT, **otherwise}


def test_the_default_plugins_are_enabled_without_plugins_and_with_an_empty_mapping() -> None:
    assert standing("") == standing("plugins: {}") == standing("plugins: null") == DEFAULT


def test_a_plain_list_enables_exactly_its_plugins_and_disables_the_default_ones() -> None:
    short = read("plugins: [sla, {name: binpack, weight: 2}]")
    long = read(
        'plugins: {multiPoint: {enabled: [sla, {name: binpack, weight: 2}], disabled: ["*"]}}'
    )
    assert short == long
    assert standing("plugins: []") == NO_PLUGINS


def test_the_stories_of_the_proposal() -> None:
    """One line enables a plugin at all its points; a plugin is enabled at some points only."""
    one = standing("plugins: {multiPoint: {enabled: [{name: mostAllocated, weight: 3}]}}")
    assert one["score"] == ["leastAllocated", "binpack", ("mostAllocated", 3, 1)]
    two = standing(
        "plugins:\n"
        '  multiPoint: {enabled: [{name: sla}]}\n  preemptable: {disabled: ["*"]}\n'
        '  groupOrder: {disabled: ["*"]}\n'
    )
    assert [point for point, names in two.items() if "sla" in names] == ["preEnqueue"]


def test_the_order_of_the_points_does_not_change_the_configuration() -> None:
    first = read("plugins:\n  score: {disabled: [binpack]}\n  permit: {disabled: [checks]}\n")
    second = read("plugins:\n  permit: {disabled: [checks]}\n  score: {disabled: [binpack]}\n")
    assert first == second
    assert as_text(first) == as_text(second)


WRONG = {
    "an unknown point": (
        "plugins:\n  multipoint: {}\n",
        "line 2: plugins.multipoint: there is no such extension point; did you mean 'multiPoint'?",
    ),
    "an unknown field of a point": (
        "plugins:\n  score:\n    enable: [binpack]\n",
        "line 3: plugins.score.enable: there is no such field; did you mean 'enabled'?",
    ),
    "a point with a list": (
        "plugins:\n  score: [binpack]\n",
        "line 2: plugins.score: expected a mapping, found a list of 1 item",
    ),
    "enabled that is one name": (
        "plugins:\n  score: {enabled: binpack}\n",
        "line 2: plugins.score.enabled: expected a list of plugin names, found 'binpack'",
    ),
    "an unknown name": (
        "plugins:\n  multiPoint:\n    enabled:\n    - gates\n    - name: gangs\n",
        (
            "line 5: plugins.multiPoint.enabled[1]: there is no plugin 'gangs'; known: {known};"
            " did you mean 'gang'?"
        ),
    ),
    "an unknown disabled name": (
        "plugins:\n  score:\n    disabled: [binpak]\n",
        (
            "line 3: plugins.score.disabled[0]: there is no plugin 'binpak'; known: {known};"
            " did you mean 'binpack'?"
        ),
    ),
    "a plugin at a point that it lacks": (
        'plugins:\n  score:\n    enabled:\n    - "*"\n    - binpack\n    - sla\n',
        (
            "line 6: plugins.score.enabled[2]: sla does not implement score; it implements"
            " preEnqueue, groupOrder, preemptable"
        ),
    ),
    "a plugin twice at a point": (
        "plugins:\n  score:\n    enabled:\n    - binpack\n    - {name: binpack, weight: 2}\n",
        "line 5: plugins.score.enabled[1]: binpack is named twice",
    ),
    "a plugin twice in multiPoint": (
        "plugins:\n  multiPoint:\n    enabled: [sla, gates, sla]\n",
        "line 3: plugins.multiPoint.enabled[2]: sla is named twice",
    ),
    "a plugin disabled twice": (
        "plugins:\n  score:\n    disabled: [binpack, binpack]\n",
        "line 3: plugins.score.disabled[1]: binpack is named twice",
    ),
    "a weight that is none": (
        "plugins:\n  score:\n    enabled: [{name: binpack, weight: 0}]\n",
        "line 3: plugins.score.enabled[0].weight: expected a weight from 1 to 1000, found 0",
    ),
    "a tier that is none": (
        "plugins:\n  multiPoint:\n    enabled: [{name: sla, tier: -1}]\n",
        "line 3: plugins.multiPoint.enabled[0].tier: expected a tier from 0 to 1000, found -1",
    ),
    "a weight where something is disabled": (
        "plugins:\n  score:\n    disabled: [{name: binpack, weight: 2}]\n",
        "line 3: plugins.score.disabled[0].weight: there is no such field; known: name",
    ),
    "a star in a plain list": (
        'plugins: ["*"]\n',
        "line 1: plugins[0]: expected the name of a plugin, found '*'",
    ),
    "one word": (
        "plugins: gang\n",
        (
            "line 1: plugins: expected a list of plugin names, or a mapping with multiPoint, found"
            " 'gang'"
        ),
    ),
    "kube-batch's tiers": (
        "actions: allocate, backfill\ntiers: []\n",
        (
            "line 2: tiers: there is no such setting; `batchq config convert FILE` converts a"
            " kube-batch file"
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_entry_is_refused_with_its_line(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(InvalidInput) as caught:
        read(text)
    known = ", ".join(sorted(known_names().plugins))
    assert caught.value.message == f"scheduler.yaml, {message.format(known=known)}"


def test_a_scheduler_assembled_without_a_lookup_of_names_is_refused_too() -> None:
    config = read_config("plugins: {score: {enabled: [sla]}}", "scheduler.yaml")
    with pytest.raises(InvalidInput, match=r"^plugins\.score: sla does not implement score;"):
        assemble(config)


HOUR = 3_600_000


def test_a_session_calls_the_plugins_of_a_point_in_their_configured_order() -> None:
    scheduler = assemble(
        read(
            "plugins:\n  multiPoint: {enabled: [sla]}\n"
            "  groupOrder: {enabled: [sla]}\n  score: {enabled: [{name: binpack, weight: 4}]}\n"
        )
    )
    session = scheduler.open(a_snapshot(a_node(cpu=1)), 0)
    result = {
        name: [(entry.plugin, entry.weight) for entry in point]
        for name, point in session.plugins.points.items()
    }
    assert result["groupOrder"] == [("sla", 1), ("priority", 1)]
    assert result["score"] == [("binpack", 4), ("leastAllocated", 1)]
    assert result["preemptable"] == [("gang", 1), ("priority", 1), ("conformance", 1), ("sla", 1)]


@pytest.mark.parametrize(
    ("points", "due"),
    [
        ("groupOrder: {enabled: [sla]}", HOUR),
        ("multiPoint: {enabled: [sla]}", HOUR),
        (
            (
                "multiPoint: {enabled: [sla]}\n  groupOrder: {disabled: [sla]}\n"
                '  preemptable: {disabled: ["*"]}\n  preEnqueue: {disabled: [sla]}'
            ),
            None,
        ),
    ],
)
def test_the_due_times_of_a_plugin_count_while_it_is_enabled_at_any_point(
    points: str, due: int | None
) -> None:
    scheduler = assemble(
        read(f"plugins:\n  {points}\npluginConfig: {{sla: {{waitingTime: 1h}}}}\n")
    )
    group = a_group("g", scheduling_gates=(SchedulingGate(name="hold"),))
    session = scheduler.open(a_snapshot(a_node(cpu=1), group), 0)
    clocks = [getattr(clock, "__self__", None) for clock in session.plugins.clocks]
    assert [isinstance(one, Sla) for one in clocks].count(True) == (0 if due is None else 1)
    assert next_due_at(session) == due


def test_a_plugin_that_is_disabled_at_its_refusing_point_refuses_nothing() -> None:
    world = a_snapshot(a_node(cpu=1), a_group("g", scheduling_gates=(SchedulingGate(name="hold"),)))
    kept = assemble(read("")).decide(world, 0)
    assert kept.by_key["default/g"].phase == "Pending"
    ignored = assemble(read("plugins: {preEnqueue: {disabled: [gates]}}")).decide(world, 0)
    assert ignored.by_key["default/g"].phase == "InQueue"


def test_the_default_plugins_have_weight_one_in_the_first_tier() -> None:
    assert all(entry == PluginEntry(name=entry.name) for entry in DEFAULT_PLUGINS)
    assert structs.asdict(PluginEntry(name="a")) == {"name": "a", "weight": 1, "tier": 1}
