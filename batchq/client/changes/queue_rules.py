"""Rules for the queue tree: what one queue may state beside the others.

For a single queue guarantee <= deserved <= capability (batchq.api.validation). Beside the others,
for each resource:

- the guarantees of a queue's children fit into its guarantee. The guarantee of a queue that states
  none is the sum of its children's: it must fit into the queue's deserved and capability, and its
  parent counts it;
- the deserved amounts of a queue's children fit into its deserved, if it states one. A child that
  states none deserves at least its guarantee.

These rules concern several records. Two simultaneous changes of two queues must not together
produce a state that would be refused to each alone. So every change that could matter also writes
the queue `default`, unchanged, over the revision that was read before all else. The second request
gets a conflict, and is checked again. One record for the whole tree is enough, since queues change
rarely. A guard per parent would not cover the root, which usually has no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.notation import counted
from batchq.api.objects import (
    DEFAULT,
    AdmissionCheck,
    Amounts,
    Metadata,
    Node,
    PodGroup,
    Queue,
    QueueSpec,
)
from batchq.api.resources import describe_quantity, total
from batchq.api.transaction import (
    Ledger,
    Transaction,
    Write,
    capacity_of,
    limit_of_queue,
    queue_scope,
)
from batchq.client.changes.object_writes import abbreviated, name_hint
from batchq.core.quota import ROOT, QueueTree
from batchq.errors import BatchqError, Conflict, NotFound, Rejected
from batchq.ports import Reader

#: How many levels of queues the tree may have, the root not counted.
MOST_LEVELS = 16
MOST_QUEUES = 10_000

Queues = Mapping[str, Queue]
Children = Mapping[str, list[str]]


def first_contradiction(queues: Iterable[Queue]) -> tuple[str, BatchqError] | None:
    """Return the first contradiction among these queues: the queue's name, and the error to raise.

    The result does not depend on their order. `default` counts as existing.
    """
    by_name = {DEFAULT: Queue(metadata=Metadata(name=DEFAULT))}
    by_name |= {queue.metadata.name: queue for queue in queues}
    return next(_contradictions({name: by_name[name] for name in sorted(by_name)}), None)


def settled(reader: Reader, transaction: Transaction) -> Transaction:
    """Return the transaction, checked against the whole tree, and guarded against concurrent
    changes.

    `reader` shows the store before it. It takes the transaction of a whole request, since its parts
    may be valid only together.

    Raises Rejected, NotFound (a parent) or Conflict (a queue to delete has children).
    """
    written = {write.key: write.value for write in transaction.writes if write.kind == "Queue"}
    if not written:
        return transaction
    # Read first: any concurrent change that matters also writes this queue.
    guard = reader.get("Queue", DEFAULT)
    before = {item.metadata.name: item for item in reader.list("Queue") if isinstance(item, Queue)}
    if not any(_matters(before.get(name), value) for name, value in written.items()):
        return transaction
    after = {name: queue for name, queue in before.items() if name not in written}
    after |= {name: value for name, value in written.items() if isinstance(value, Queue)}
    for name, value in written.items():
        if value is None and name != ROOT:
            _check_childless(name, after)
        elif isinstance(value, Queue):
            _check_not_below_default(before.get(name), value)
    contradiction = first_contradiction(after.values())
    if contradiction is not None:
        raise contradiction[1]
    if DEFAULT in written:
        return transaction
    return structs.replace(transaction, writes=(*transaction.writes, _guard(guard, transaction)))


def parents_with_groups(reader: Reader, transaction: Transaction) -> dict[str, str]:
    """Return, for queues of the transaction, a warning about a parent that was a leaf and still has
    groups. That is allowed: its waiting groups become Misconfigured.
    """
    wanted = {
        write.value.spec.parent: write.key
        for write in sorted(transaction.writes, key=lambda write: write.key, reverse=True)
        if isinstance(write.value, Queue) and write.value.spec.parent
    }
    if not wanted:
        return {}
    for queue in reader.list("Queue"):
        if isinstance(queue, Queue):
            # It was a parent before: the warning was given then.
            wanted.pop(queue.spec.parent, None)
    counts = dict.fromkeys(wanted, 0)
    for group in reader.list("PodGroup") if wanted else ():
        if (
            isinstance(group, PodGroup)
            and group.spec.queue in counts
            and group.status.phase not in TERMINAL
        ):
            counts[group.spec.queue] += 1
    return {
        child: f"Queue {parent} is now the parent of {child}, and still has"
        f" {counted(counts[parent], 'unfinished pod group')}: only queues without children hold"
        " groups, so waiting groups stay Misconfigured; cancel them and submit them to a child"
        for parent, child in sorted(wanted.items())
        if counts[parent]
    }


def parents_first(queues: Iterable[Queue]) -> dict[str, int]:
    """Return how many other queues are above each; any number for those in a circle."""
    parents = {queue.metadata.name: queue.spec.parent for queue in queues}
    levels: dict[str, int] = {}
    for name in parents:
        path = [name]
        while (above := parents[path[-1]]) in parents and above not in levels and above not in path:
            path.append(above)
        level = levels.get(parents[path[-1]], -1)
        for one in reversed(path):
            level += 1
            levels[one] = level
    return levels


def _contradictions(queues: Queues) -> Iterator[tuple[str, BatchqError]]:
    if len(queues) > MOST_QUEUES:
        name = max(name for name in queues if name != DEFAULT)
        text = f"expected at most {MOST_QUEUES} queues, found {len(queues)}"
        yield name, Rejected(f"Queue {name}: {text}", hint="delete unused queues")
        return
    misplaced = False
    for name in queues:
        for error in _path_errors(queues, name):
            misplaced = True
            yield name, error
    if not misplaced:
        yield from _numbers(queues)


def _path_errors(queues: Queues, name: str) -> Iterator[BatchqError]:
    """Yield what is wrong with the path from a queue up to the root."""
    way = [name]
    while (above := _parent(queues, way[-1])) not in ("", ROOT):
        if above == name:
            way = [*way, above]
            yield Rejected(
                f"Queue {name}: spec.parent goes in a circle: {' -> '.join(way)}",
                hint="remove one of their parents",
            )
            return
        if above not in queues:
            if len(way) == 1:
                yield NotFound(
                    f"Queue {name}: spec.parent: there is no queue {above!r}",
                    hint=name_hint(above, [other for other in queues if other != name]),
                )
            return
        if above in way:
            # A circle above this queue is reported for the queues in it.
            return
        way.append(above)
        if len(way) > MOST_LEVELS:
            yield Rejected(
                f"Queue {name}: spec.parent: expected at most {MOST_LEVELS} levels of queues,"
                f" found more: {' > '.join(reversed(way))}",
                hint="choose a parent on a higher level",
            )
            return


def _parent(queues: Queues, name: str) -> str:
    queue = queues.get(name)
    return queue.spec.parent if queue is not None else ""


def _check_not_below_default(before: Queue | None, after: Queue) -> None:
    """Raise Rejected if a queue is put below the default one, which must hold groups."""
    was_there = before is not None and before.spec.parent == DEFAULT
    if after.spec.parent == DEFAULT and not was_there:
        raise Rejected(
            f"Queue {after.metadata.name}: spec.parent: {DEFAULT} holds the groups that name no"
            " queue, and a queue with children holds no groups",
            hint="name another parent, or none",
        )


def _check_childless(name: str, after: Queues) -> None:
    """Raise Conflict if a deleted queue still has children."""
    below = sorted(other for other, queue in after.items() if queue.spec.parent == name)
    if below and name not in after:
        raise Conflict(
            f"Queue {name} still has {counted(len(below), 'queue')} below it: {abbreviated(below)}",
            hint="delete them first, or give them another parent",
        )


def _numbers(queues: Queues) -> Iterator[tuple[str, BatchqError]]:
    children: dict[str, list[str]] = {}
    for name, queue in queues.items():
        if name != ROOT:
            children.setdefault(queue.spec.parent or ROOT, []).append(name)
    guaranteed: dict[str, Amounts] = {}
    for name in _lowest_first(children):
        spec = queues[name].spec if name in queues else QueueSpec()
        below = {child: guaranteed[child] for child in children.get(name, ())}
        for problem in (*_over_guaranteed(spec, below), *_over_deserved(queues, spec, below)):
            yield name, Rejected(f"Queue {name}: {problem}", hint="raise it, or lower theirs")
        guaranteed[name] = {**total(below.values()), **spec.guarantee}


def _lowest_first(children: Children) -> list[str]:
    """Return every queue after all its descendants; `root` is last, whether or not it is stored."""
    order: list[str] = []
    ahead = [ROOT]
    while ahead:
        name = ahead.pop()
        order.append(name)
        ahead += children.get(name, ())
    return order[::-1]


def _over_guaranteed(spec: QueueSpec, below: Mapping[str, Amounts]) -> Iterator[str]:
    needed = total(below.values())
    for resource in sorted(needed):
        # guarantee <= deserved <= capability: the first one stated is the smallest.
        for field, stated in (
            ("guarantee", spec.guarantee),
            ("deserved", spec.deserved),
            ("capability", spec.capability),
        ):
            if resource in stated:
                if needed[resource] > stated[resource]:
                    parts = {child: amounts.get(resource, 0) for child, amounts in below.items()}
                    yield _too_little(field, resource, stated, parts, "are guaranteed")
                break


def _over_deserved(queues: Queues, spec: QueueSpec, below: Iterable[str]) -> Iterator[str]:
    for resource in sorted(spec.deserved):
        # A child that states none deserves what the others leave.
        parts = {child: queues[child].spec.deserved.get(resource, 0) for child in below}
        if sum(parts.values()) > spec.deserved[resource]:
            yield _too_little("deserved", resource, spec.deserved, parts, "deserve")


def _too_little(
    field: str, resource: str, stated: Amounts, parts: Mapping[str, int], verb: str
) -> str:
    needed = describe_quantity(resource, sum(parts.values()))
    named = [
        f"{child} {describe_quantity(resource, units)}"
        for child, units in sorted(parts.items(), key=lambda part: (-part[1], part[0]))
        if units
    ]
    return (
        f"spec.{field}.{resource}: expected at least {needed}, what the queues below it {verb}"
        f" ({abbreviated(named)}), found {describe_quantity(resource, stated[resource])}"
    )


def _matters(old: Queue | None, new: object) -> bool:
    """Return whether the change could contradict another queue's statements, now or later."""
    if not isinstance(new, Queue):
        return True
    if old is None:
        # A new queue below the root that asks for nothing changes no sum.
        spec = new.spec
        return new.metadata.name == ROOT or bool(spec.parent or spec.guarantee or spec.deserved)
    return _stated(old) != _stated(new)


def _stated(queue: Queue) -> tuple[str, Amounts, Amounts, Amounts]:
    spec = queue.spec
    return spec.parent, spec.guarantee, spec.deserved, spec.capability


def _guard(stored: object, transaction: Transaction) -> Write:
    """Return the write of `default` as it is; it is created if it is not stored yet."""
    if isinstance(stored, Queue):
        expect = stored.metadata.revision
        return Write(kind="Queue", key=DEFAULT, expect=expect, value=stored)
    now_ms = max((event.at for event in transaction.events), default=0)
    # It is never deleted, so no other queue of that name needs a uid of its own.
    meta = Metadata(name=DEFAULT, uid=DEFAULT, creation_timestamp=now_ms)
    return Write(kind="Queue", key=DEFAULT, expect=0, value=Queue(metadata=meta))


class Overpromised(Struct, frozen=True, kw_only=True):
    """A resource whose guarantees below the root exceed what the ready nodes have.

    `parts`: the guarantees of the queues just below the root, the largest first.
    """

    resource: str
    guaranteed: int
    available: int
    parts: tuple[tuple[str, int], ...]

    def sentence(self) -> str:
        """Return `cpu 40 is guaranteed in all (a 30, b 10), and the ready nodes have 16`."""
        named = [f"{name} {describe_quantity(self.resource, units)}" for name, units in self.parts]
        return (
            f"{self.resource} {describe_quantity(self.resource, self.guaranteed)} is guaranteed in"
            f" all ({abbreviated(named)}), and the ready nodes have"
            f" {describe_quantity(self.resource, self.available)}"
        )


def overpromised(queues: Iterable[Queue], nodes: Iterable[Node]) -> list[Overpromised]:
    """Return overpromised resources; none while no node is ready, which explains more."""
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


def warnings_of(
    reader: Reader, transaction: Transaction, held: Callable[[], Ledger]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return warnings about what the transaction brings about, by object as (kind, key).

    `reader` shows the store before the transaction; `held` reads the ledger's sums, and is called
    only if a capability is lowered.
    """
    of_queues = _queue_warnings(reader, transaction, held)
    for name, sentence in _unused_strategy_warnings(transaction):
        of_queues[name] = (*of_queues.get(name, ()), sentence)
    return {
        **{("Queue", name): sentences for name, sentences in of_queues.items()},
        **_deleted_check_warnings(reader, transaction),
        **_retry_delay_warnings(transaction),
    }


def _queue_warnings(
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
    _warn_of_guarantees(reader, stored, written, found)
    _warn_of_capabilities(stored, written, held, found)
    _warn_of_missing_checks(reader, transaction, stored, written, found)
    _warn_of_namespaces(reader, stored, written, found)
    return {name: tuple(sentences) for name, sentences in found.items() if sentences}


def _warn_of_guarantees(
    reader: Reader,
    stored: Mapping[str, Queue],
    written: Mapping[str, Queue],
    found: dict[str, list[str]],
) -> None:
    """Warn once for each resource, at the queue of the request with the largest guarantee of it."""
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
                f"{one.sentence()}: no queue gets more {one.resource} than its guarantee, and a"
                " queue without a guarantee gets none; lower guarantees, or add nodes"
            )


def _warn_of_capabilities(
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
                f"Queue {name} now holds more than its limit: {abbreviated(over)}; admitted groups"
                " go on, and no group that requests these is admitted until enough of them have"
                " ended"
            )


def _warn_of_missing_checks(
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
            what = f"the admission check{'s' if len(missing) > 1 else ''} {abbreviated(missing)}"
            there = "do not exist" if len(missing) > 1 else "does not exist"
            found[name].append(
                f"Queue {name} asks for {what}, which {there}: it admits no group until every"
                " check is applied and its controller runs"
            )


def _warn_of_namespaces(
    reader: Reader,
    stored: Mapping[str, Queue],
    written: Mapping[str, Queue],
    found: dict[str, list[str]],
) -> None:
    """Warn of queues that accept no namespace any more, and of waiting groups that their queue no
    longer accepts; at the queue of the request that is nearest above them.
    """
    queues = {**stored, **written}
    if not any(queue.spec.namespaces for queue in queues.values()):
        return
    before, after = QueueTree(stored.values()), QueueTree(queues.values())
    narrowed = [
        name
        for name in sorted({DEFAULT, *after.records})
        if after.is_leaf(name) and _is_narrower(before.accepted(name), after.accepted(name))
    ]
    if not narrowed:
        return
    waiting: dict[str, list[str]] = {name: [] for name in narrowed if name in stored}
    for group in reader.list("PodGroup") if waiting else ():
        if isinstance(group, PodGroup) and group.spec.queue in waiting:
            namespace, status = group.metadata.namespace, group.status
            waits = status.phase == PodGroupPhase.PENDING and status.reserved_at is None
            if waits and not after.accepts(group.spec.queue, namespace):
                waiting[group.spec.queue].append(namespace)
    for name in narrowed:
        above = [one for one in after.chain(name) if one in written]
        if not above:
            continue
        if not after.accepted(name):
            found[above[-1]].append(after.why_closed(name, ""))
        if names := waiting.get(name):
            found[above[-1]].append(
                f"queue {name} no longer accepts {counted(len(names), 'pod group')} that"
                f" wait{'s' if len(names) == 1 else ''} there, of"
                f" {abbreviated(sorted(set(names)))}; submit them elsewhere, or name their"
                " namespaces in spec.namespaces: until then, they are Misconfigured"
            )


def _is_narrower(before: frozenset[str] | None, after: frozenset[str] | None) -> bool:
    return after is not None and (before is None or not before <= after)


def _deleted_check_warnings(
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
            held = f"queue{'s' if len(asking) > 1 else ''} {abbreviated(asking)}"
            sentence = (
                f"{held} still ask{'' if len(asking) > 1 else 's'} for the admission check"
                f" {check}: no group is admitted there until it is applied again, or removed from"
                " spec.admissionChecks"
            )
            found["AdmissionCheck", check] = (sentence,)
    return found


def _unused_strategy_warnings(transaction: Transaction) -> Iterator[tuple[str, str]]:
    """Warn about `order` and `reservations` of a queue that does not backfill."""
    for queue in [one.value for one in transaction.writes if isinstance(one.value, Queue)]:
        name, strategy = queue.metadata.name, queue.spec.strategy
        unused = [f"order {strategy.order}"] if strategy.order != "fcfs" else []
        if strategy.reservations != "1":
            unused.append(f"reservations {strategy.reservations}")
        if unused and strategy.type != "Backfill":
            warning = f"strategy {' and '.join(unused)} has no effect while its type is"
            yield name, f"{warning} {strategy.type}; only type Backfill uses it"


def _retry_delay_warnings(transaction: Transaction) -> dict[tuple[str, str], tuple[str, ...]]:
    checks = [one.value for one in transaction.writes if isinstance(one.value, AdmissionCheck)]
    names = [one.metadata.name for one in checks if one.spec.retry_delay_minutes == 0]
    warning = (
        " has retryDelayMinutes 0: after an answer False (Retry) the group is reserved and asked"
        " about again at once, many times a second; set 1 or more"
    )
    return {("AdmissionCheck", name): (f"AdmissionCheck {name}{warning}",) for name in names}


def _is_check(write: Write) -> bool:
    return write.kind == "AdmissionCheck"
