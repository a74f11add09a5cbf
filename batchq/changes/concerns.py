"""What a change to queues brings about that its author may not have meant. It is allowed, and told.

- A queue with groups becomes a parent: what waits there stays Misconfigured.
- More is guaranteed below the root than the ready nodes have: in that resource nobody gets more
  than its guarantee, and who has none gets nothing.
- A capability is lowered below what is held: what runs goes on, and nothing more is admitted.
- A queue asks for an admission check that is not there, or one is deleted that queues ask for:
  their groups wait for it.
- A queue says how it is to be backfilled, and is not of that type.
- An admission check has no delay before it is asked again: its controller is asked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from batchq.api.limits import capacity_of, limit_of_queue
from batchq.api.objects import AdmissionCheck, Node, Queue
from batchq.api.quantity import describe_quantity
from batchq.api.resources import Amounts, total
from batchq.api.transaction import Ledger, Transaction, Write, queue_scope
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
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Object of the transaction, as (kind, key) -> sentences about what its change brings about.

    `reader` sees what is stored without the transaction; `held` reads the ledger's sums, which is
    asked for only where a capability is lowered.
    """
    of_queues = _of_queues(reader, transaction, held)
    for name, sentence in _of_idle_strategies(transaction):
        of_queues[name] = (*of_queues.get(name, ()), sentence)
    return {
        **{("Queue", name): sentences for name, sentences in of_queues.items()},
        **_of_deleted_checks(reader, transaction),
        **_of_hasty_checks(transaction),
    }


def _of_queues(
    reader: Reader, transaction: Transaction, held: Callable[[], Ledger]
) -> dict[str, tuple[str, ...]]:
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
    _tell_of_missing_checks(reader, transaction, stored, written, found)
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


def _tell_of_missing_checks(
    reader: Reader,
    transaction: Transaction,
    stored: Mapping[str, Queue],
    written: Mapping[str, Queue],
    found: dict[str, list[str]],
) -> None:
    made = {write.key: write.value for write in transaction.writes if _is_check(write)}
    for name, queue in written.items():
        before = stored[name].spec.admission_checks if name in stored else ()
        missing = [
            check
            for check in queue.spec.admission_checks
            if check not in before
            and (made[check] if check in made else reader.get("AdmissionCheck", check)) is None
        ]
        if missing:
            what = f"the admission check{'s' if len(missing) > 1 else ''} {few(missing)}"
            there = "do not exist" if len(missing) > 1 else "does not exist"
            found[name].append(
                f"Queue {name} asks for {what}, which {there}: nothing of it is admitted until"
                " that is applied and its controller runs"
            )


def _of_deleted_checks(
    reader: Reader, transaction: Transaction
) -> dict[tuple[str, str], tuple[str, ...]]:
    gone = [write.key for write in transaction.writes if _is_check(write) and write.value is None]
    if not gone:
        return {}
    queues = {item.metadata.name: item for item in reader.list("Queue") if isinstance(item, Queue)}
    for write in transaction.writes:
        if write.kind == "Queue":
            queues.pop(write.key, None)
            if isinstance(write.value, Queue):
                queues[write.key] = write.value
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for check in gone:
        asking = sorted(
            name for name, queue in queues.items() if check in queue.spec.admission_checks
        )
        if asking:
            held = f"queue{'s' if len(asking) > 1 else ''} {few(asking)}"
            sentence = (
                f"{held} still ask{'' if len(asking) > 1 else 's'} for the admission check"
                f" {check}: nothing more is admitted there until it is applied again, or taken"
                " off spec.admissionChecks"
            )
            found["AdmissionCheck", check] = (sentence,)
    return found


def _of_idle_strategies(transaction: Transaction) -> Iterator[tuple[str, str]]:
    """`order` and `reservations` say how a Backfill queue fills; nobody else reads them."""
    for queue in [one.value for one in transaction.writes if isinstance(one.value, Queue)]:
        name, strategy = queue.metadata.name, queue.spec.strategy
        said = [f"order {strategy.order}"] if strategy.order != "fcfs" else []
        if strategy.reservations != "1":
            said.append(f"reservations {strategy.reservations}")
        if said and strategy.type != "Backfill":
            told = f"strategy {' and '.join(said)} changes nothing while its type is"
            yield name, f"{told} {strategy.type}; type Backfill goes by it"


def _of_hasty_checks(transaction: Transaction) -> dict[tuple[str, str], tuple[str, ...]]:
    checks = [one.value for one in transaction.writes if isinstance(one.value, AdmissionCheck)]
    names = [one.metadata.name for one in checks if one.spec.retry_delay_minutes == 0]
    told = (
        " has retryDelayMinutes 0: a group that it answers False (Retry) is reserved and asked"
        " about again at once, many times a second; set 1 or more"
    )
    return {("AdmissionCheck", name): (f"AdmissionCheck {name}{told}",) for name in names}


def _is_check(write: Write) -> bool:
    return write.kind == "AdmissionCheck"
