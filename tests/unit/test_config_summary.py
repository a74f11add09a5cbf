"""The summary of a configuration change, in one line."""

from __future__ import annotations

import pytest

from batchq.config.load import read_config, what_changed


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", "unchanged"),
        ("", "schedulePeriod: 500ms", "schedulePeriod 1s -> 500ms"),
        (
            "actions: [enqueue, allocate]",
            "actions: [allocate, enqueue]",
            "actions enqueue, allocate -> allocate, enqueue",
        ),
        (
            "{overcommit: 1.5, actions: [allocate]}",
            "actions: [enqueue]",
            "actions allocate -> enqueue; overcommit 1.5 -> 1",
        ),
        (
            "",
            "evictionBudget: {pods: 10, window: 1m}",
            "evictionBudget.pods nothing -> 10; evictionBudget.window nothing -> 1m",
        ),
        (
            "pluginConfig: {binpack: {resource: cpu}}",
            "pluginConfig: {binpack: {resource: memory}, sla: {}}",
            "pluginConfig.binpack.resource cpu -> memory",
        ),
        ("", "pluginConfig: {sla: {a: 1h}}", "pluginConfig.sla.a nothing -> 1h"),
    ],
)
def test_each_change_is_a_phrase(before: str, after: str, expected: str) -> None:
    assert what_changed(read_config(before, "a"), read_config(after, "b")) == expected


def test_only_the_first_of_many_changes_are_named() -> None:
    names = ("schedulePeriod", "inQueueTimeout", "recoveryTimeout", "nodeTimeout")
    names += ("podLease", "nodeMemory", "minRuntime", "minSessionInterval")
    after = read_config("\n".join(f"{name}: 77s" for name in names), "b")
    expected = what_changed(read_config("", "a"), after)
    assert expected.count("-> 77s") == 6
    assert expected.endswith("; and 2 more")
