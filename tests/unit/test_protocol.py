"""Agents and schedulers of adjacent protocol versions work together; others do not."""

from __future__ import annotations

import msgspec
import pytest

from batchq.api.node_report import PROTOCOL
from batchq.api.objects import Launch, Node
from tests.builders import a_group, a_node, decide


def a_node_that_speaks(protocol: str | None) -> Node:
    node = a_node(cpu=4)
    spoken = {} if protocol is None else {"batchq/protocol": protocol}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=spoken)
    )


@pytest.mark.parametrize(
    ("whose", "protocol"),
    [
        ("the scheduler's own", str(PROTOCOL)),
        ("of an agent that is one older", str(PROTOCOL - 1)),
        ("of an agent that is one newer", str(PROTOCOL + 1)),
        ("none, as in a described world and before there were protocols", None),
    ],
)
def test_pods_are_bound_to_a_node_with_a_compatible_protocol(
    whose: str, protocol: str | None
) -> None:
    decided = decide(a_group("g"), a_node_that_speaks(protocol))
    assert decided.bound == {"default/g-w-0": "n1"}, whose


@pytest.mark.parametrize(
    "protocol", [str(PROTOCOL + 2), str(PROTOCOL - 2), "", "1.0", "one", "9" * 5_000]
)
def test_nothing_is_bound_to_a_node_with_an_incompatible_protocol(protocol: str) -> None:
    decided = decide(a_group("g"), a_node_that_speaks(protocol))
    assert decided.bound == {}
    assert decided.reasons("g") == ["ExceedsCapacity"]


def test_the_reason_names_the_protocols() -> None:
    decided = decide(a_group("g"), a_node_that_speaks("7"))
    assert decided.message("g") == (
        "not even empty nodes take it: task w: 0/1 nodes fit: 1 with an agent of protocol '7', too"
        " far from the scheduler's 4"
    )


@pytest.mark.parametrize(
    ("launch", "protocols"),
    [(Launch(), (None, "3", "4", "5")), (Launch(restart="pod"), (None, "4", "5"))],
)
def test_a_pod_of_a_group_with_launch_is_bound_where_the_agent_can_start_it(
    launch: Launch, protocols: tuple[str | None, ...]
) -> None:
    for protocol in protocols:
        decided = decide(a_group("g", 2, launch=launch), a_node_that_speaks(protocol))
        assert decided.bound == {"default/g-w-0": "n1", "default/g-w-1": "n1"}, protocol


def test_a_pod_that_may_rejoin_its_gang_is_not_bound_to_an_older_agent() -> None:
    decided = decide(a_group("g", 2, launch=Launch(restart="pod")), a_node_that_speaks("3"))
    assert decided.bound == {}
    assert decided.message("g") == (
        "not even empty nodes take it: task w: 0/1 nodes fit: 1 with an agent of protocol 3, which"
        " cannot start such gangs"
    )
