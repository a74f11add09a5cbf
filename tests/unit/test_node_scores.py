"""The score plugins, one at a time: integers from 0 to 1000."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import a_group, a_node, a_running_group, a_task
from tests.unit.voting import opened

#: A node with 2 of 8 cpus, nothing of 16 GiB and nothing of 4 gpus in use.
WORLD = (a_node(cpu=8, memory="16Gi", gpu=4), *a_running_group("r", cpu=2))


def score(plugin: str, config: dict[str, object] | None = None, **requests: Any) -> int:
    """Return the plugin's score for a pod with these requests."""
    group = a_group("g", tasks=(a_task(requests=requests),))
    session = opened(*WORLD, group, plugins=(plugin,), plugin_config={plugin: config or {}})
    shape = session.by_key["default/g"].tasks[0]
    return session.score(shape, session.nodes.by_name["n1"])


@pytest.mark.parametrize(
    ("plugin", "requests", "expected"),
    [
        ("leastAllocated", {"cpu": 2}, 500),
        ("leastAllocated", {"cpu": 2, "memory": "4Gi"}, (500 + 750) // 2),
        ("leastAllocated", {}, 1000),
        ("mostAllocated", {"cpu": 2}, 500),
        ("mostAllocated", {"cpu": 2, "memory": "4Gi"}, (500 + 250) // 2),
        ("mostAllocated", {"cpu": 6}, 1000),
        ("mostAllocated", {}, 0),
        ("balancedAllocation", {"cpu": 2, "memory": "8Gi"}, 1000),
        ("balancedAllocation", {"cpu": 2, "memory": "4Gi"}, 750),
        ("balancedAllocation", {"memory": "16Gi"}, 250),
        ("binpack", {"gpu": 3, "cpu": 1}, 750),
        ("binpack", {"cpu": 6}, 0),
    ],
)
def test_a_score(plugin: str, requests: Any, expected: int) -> None:
    assert score(plugin, **requests) == expected


def test_binpack_fills_up_by_any_resource_or_by_several_with_weights() -> None:
    assert score("binpack", {"resource": "cpu"}, cpu=2, gpu=1) == 500
    weights = {"weights": {"gpu": 3, "cpu": 1}}
    assert score("binpack", weights, cpu=2, gpu=1) == (3 * 250 + 500) // 4
    assert score("binpack", weights, cpu=2) == 500
    assert score("binpack", weights, memory="1Gi") == 0


def test_a_node_without_memory_is_not_balanced() -> None:
    session = opened(a_node(cpu=8), a_group("g"), plugins=("balancedAllocation",))
    shape = session.by_key["default/g"].tasks[0]
    assert session.score(shape, session.nodes.by_name["n1"]) == 0
