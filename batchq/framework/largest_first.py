"""The second way to place a gang, where its own order fails: the largest pods first, each on the
fullest node that takes it. Small pods on the best nodes may leave no node for a large one. If that
fails, too, those pods come first that the fewest nodes take: large ones may fill all of these.
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
    give_back: Callable[[TaskShape, NodeState], None],
) -> list[tuple[NodeState, ...]] | None:
    """Let the pods of each part take nodes; return the nodes of each part, or None, with nothing
    taken, if a pod finds none.

    Of pods of one size those come first that fewer nodes would take if they were empty: `choices`.
    `takes` tells whether a node takes one more pod, and `take` lets it. Sizes are compared as parts
    of the `whole`, in the largest dimension, then in all; how full nodes are, in all that a pod
    asks for, then in all else: a pod without GPUs leaves nodes with GPUs to others. The parts of
    one task come one after another.
    """
    there = list(nodes)
    sizes = [_size(shape, whole) for shape, _ in parts]
    fewest = [choices(shape) for shape, _ in parts]
    places = [shape.place for shape, _ in parts]
    all_parts = range(len(parts))
    by_size = sorted(all_parts, key=lambda part: (sizes[part], fewest[part], places[part]))
    by_choice = sorted(all_parts, key=lambda part: (fewest[part], sizes[part], places[part]))
    for order in (by_size, by_choice) if by_choice != by_size else (by_size,):
        placed: list[list[NodeState]] = [[] for _ in parts]
        if _place(order, parts, there, whole, takes, take, placed):
            return [tuple(found) for found in placed]
        for (shape, _), found in zip(parts, placed, strict=True):
            for node in found:
                give_back(shape, node)
    return None


def _place(
    order: Iterable[int],
    parts: Sequence[tuple[TaskShape, int]],
    there: Sequence[NodeState],
    whole: Amounts,
    takes: Callable[[TaskShape, NodeState], bool],
    take: Callable[[TaskShape, NodeState], None],
    placed: list[list[NodeState]],
) -> bool:
    """Place the parts in this order, each pod on the fullest node; whether all have found one."""
    for part in order:
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
            return False
    return True


def _size(shape: TaskShape, whole: Amounts) -> tuple[int, int]:
    """The largest of a pod's requests and all of them, in millionths of the whole, negated."""
    parts = [
        units * _PARTS // whole[name] for name, units in shape.requests.items() if whole.get(name)
    ]
    return -max(parts, default=0), -sum(parts)


def _free_part(names: Iterable[str], node: NodeState, whole: Amounts) -> int:
    """What is free on a node of these dimensions, in millionths of the whole."""
    return sum(node.free.get(name, 0) * _PARTS // whole[name] for name in names)
