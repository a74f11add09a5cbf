"""What a change to queues brings about that its author may not have meant. It is allowed, and told.

- A queue with groups becomes a parent: what waits there stays Misconfigured.
- More is guaranteed below the root than the ready nodes have: in that resource nobody gets more
  than its guarantee, and who has none gets nothing.
- A capability is lowered below what is held: what runs goes on, and nothing more is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from batchq.api.limits import capacity_of, limit_of_queue
from batchq.api.objects import Node, Queue
from batchq.api.quantity import describe_quantity
from batchq.api.resources import Amounts, total
from batchq.api.transaction import Ledger, Transaction, queue_scope
from batchq.changes.lookup import few
from batchq.changes.tree import parents_with_groups
from batchq.framework.tree import ROOT, QueueTree
from batchq.ports import Reader


class Overpromised(Struct, frozen=True, kw_only=True):
    """A resource of which more is guaranteed below the root than the ready nodes have.

    `parts`: what is guaranteed to the queues just below the root, the largest first.
    """

    resource: str
    guaranteed: int
    available: int
    parts: tuple[tuple[str, int], ...]

    def sentence(self) -> str:
        """`cpu 40 is guaranteed in all (team-a 30, team-b 10), and the ready nodes have 16`"""
        named = [f"{name} {describe_quantity(self.resource, units)}" for name, units in self.parts]
        return (
            f"{self.resource} {describe_quantity(self.resource, self.guaranteed)} is guaranteed in"
            f" all ({few(named)}), and the ready nodes have"
            f" {describe_quantity(self.resource, self.available)}"
        )


def overpromised(queues: Iterable[Queue], nodes: Iterable[Node]) -> list[Overpromised]:
    """By resource. Nothing as long as no node is ready: then nothing runs for that reason."""
    ready = [capacity_of(node) for node in nodes if node.status.ready]
    if not ready:
        return []
    tree, there = QueueTree(queues), total(ready)
    found = []
    for resource, guaranteed in sorted(tree.guaranteed_below(ROOT).items()):
        if guaranteed <= there.get(resource, 0):
            continue
        parts = {
            name: tree.guarantee(name).get(resource, 0) for name in tree.children_of.get(ROOT, ())
        }
        largest = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
        found.append(
            Overpromised(
                resource=resource,
                guaranteed=guaranteed,
                available=there.get(resource, 0),
                parts=tuple((name, units) for name, units in largest if units),
            )
        )
    return found


def concerns(
    reader: Reader, transaction: Transaction, held: Callable[[], Ledger]
) -> dict[str, tuple[str, ...]]:
    """Queue of the transaction -> sentences about what its change brings about.

    `reader` sees what is stored without the transaction; `held` reads the ledger's sums, which is
    asked for only where a capability is lowered.
    """
    written = {
        write.key: write.value for write in transaction.writes if isinstance(write.value, Queue)
    }
    if not written:
        return {}
    found: dict[str, list[str]] = {name: [] for name in sorted(written)}
    for name, sentence in parents_with_groups(reader, transaction).items():
        found[name].append(sentence)
    stored = {item.metadata.name: item for item in reader.list("Queue") if isinstance(item, Queue)}
    _tell_of_guarantees(reader, stored, written, found)
    _tell_of_capabilities(stored, written, held, found)
    return {name: tuple(sentences) for name, sentences in found.items() if sentences}


def _tell_of_guarantees(
    reader: Reader,
    stored: Mapping[str, Queue],
    written: Mapping[str, Queue],
    found: dict[str, list[str]],
) -> None:
    """Once for each resource, at the queue of the request that is guaranteed most of it."""
    # `default` is often written along, unchanged.
    changed = [name for name, queue in written.items() if stored.get(name) != queue]
    if not any(written[name].spec.guarantee for name in changed):
        return
    nodes = [item for item in reader.list("Node") if isinstance(item, Node)]
    for one in overpromised({**stored, **written}.values(), nodes):
        own = {name: written[name].spec.guarantee.get(one.resource, 0) for name in changed}
        name = min(own, key=lambda name: (-own[name], name))
        if own[name]:
            found[name].append(
                f"{one.sentence()}: no queue gets more {one.resource} than it is guaranteed, and"
                " who is guaranteed none gets none; lower guarantees, or add nodes"
            )


def _tell_of_capabilities(
    stored: Mapping[str, Queue],
    written: Mapping[str, Queue],
    held: Callable[[], Ledger],
    found: dict[str, list[str]],
) -> None:
    for name, queue in written.items():
        old = limit_of_queue(stored[name]) if name in stored else {}
        limit = limit_of_queue(queue)
        lowered = [one for one in sorted(limit) if one not in old or limit[one] < old[one]]
        sums: Amounts = held().get(queue_scope(name), {}) if lowered and name in stored else {}
        over = [
            f"{resource} {describe_quantity(resource, sums[resource])} of"
            f" {describe_quantity(resource, limit[resource])}"
            for resource in lowered
            if sums.get(resource, 0) > limit[resource]
        ]
        if over:
            found[name].append(
                f"Queue {name} now holds more than it may: {few(over)}; what was admitted goes on,"
                " and nothing more that asks for that is admitted until enough of it has ended"
            )
