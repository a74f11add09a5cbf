"""The second way to place a gang, where its own order fails: the largest pods first, each on the
fullest node that takes it. Small pods on the best nodes may leave no node for a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from batchq.api.resources import Amounts
from batchq.framework.shapes import TaskShape
from batchq.framework.state import NodeState

_PARTS = 1_000_000


def place_largest_first(
    parts: Sequence[tuple[TaskShape, int]],
    nodes: Iterable[NodeState],
    whole: Amounts,
    *,
    choices: Callable[[TaskShape], int],
    takes: Callable[[TaskShape, NodeState], bool],
    take: Callable[[TaskShape, NodeState], None],
) -> tuple[list[list[NodeState]], bool]:
    """Let the pods of each part take nodes; return the nodes of each part, and whether all pods
    have found one. What was taken is the caller's to give back.

    Of pods of one size those come first that fewer nodes would take if they were empty: `choices`.
    `takes` tells whether a node takes one more pod, and `take` lets it. Sizes are compared as parts
    of the `whole`, in the largest dimension, then in all; how full nodes are, in all that a pod
    asks for, then in all else: a pod without GPUs leaves nodes with GPUs to others. The parts of
    one task come one after another.
    """
    there = list(nodes)
    placed: list[list[NodeState]] = [[] for _ in parts]
    sizes = [
        (_size(shape, whole), choices(shape), shape.place, part)
        for part, (shape, _) in enumerate(parts)
    ]
    for *_, part in sorted(sizes):
        shape, count = parts[part]
        asked = [name for name in shape.requests if whole.get(name)]
        others = [name for name in whole if whole[name] and name not in shape.requests]
        takers = sorted(
            (_free_part(asked, node, whole), _free_part(others, node, whole), node.name, node)
            for node in there
            if takes(shape, node)
        )
        found = placed[part]
        for *_, node in takers:
            # One that takes a pod stays the fullest until it takes no more.
            while len(found) < count and takes(shape, node):
                take(shape, node)
                found.append(node)
        if len(found) < count:
            return placed, False
    return placed, True


def _size(shape: TaskShape, whole: Amounts) -> tuple[int, int]:
    """The largest of a pod's requests and all of them, in millionths of the whole, negated."""
    parts = [
        units * _PARTS // whole[name] for name, units in shape.requests.items() if whole.get(name)
    ]
    return -max(parts, default=0), -sum(parts)


def _free_part(names: Iterable[str], node: NodeState, whole: Amounts) -> int:
    """What is free on a node of these dimensions, in millionths of the whole."""
    return sum(node.free.get(name, 0) * _PARTS // whole[name] for name in names)
