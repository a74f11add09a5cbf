"""The tree of queues as a whole: what one queue may say beside the others.

By itself a queue says guarantee <= deserved <= capability (batchq.api.validation). Beside the
others, per resource:

- what its children are guaranteed fits into its guarantee; where it states none, it has its
  children's sum, which then has to fit into its deserved and capability, and counts further up;
- what its children deserve fits into its deserved, where it states one. A child that states none
  deserves its guarantee at the least.

Whatever is checked here is a statement about several records. Two people who change two of them at
the same moment must not together bring about what each of them alone would be refused: so every
change that could matter writes the queue `default` along, unchanged, over the revision that was
seen before anything else was read. Whoever comes second is answered "conflict", and works it out
anew. One record for the whole tree is enough, since queues change rarely, and it leaves no gap: a
guard per parent would have to exist for the root, too, which nobody needs to write down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, structs

from batchq.api.lifecycle import TERMINAL
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
from batchq.changes.refusals import few, instead
from batchq.core.quota.queue_tree import ROOT, QueueTree
from batchq.errors import BatchqError, Conflict, NotFound, Rejected
from batchq.ports import Reader

#: How many queues stand below each other at most, the root not counted.
MOST_LEVELS = 16
MOST_QUEUES = 10_000

Queues = Mapping[str, Queue]
Children = Mapping[str, list[str]]


def first_contradiction(queues: Iterable[Queue]) -> tuple[str, BatchqError] | None:
    """What is wrong with these queues together: the queue to look at, and the error to raise.

    The same one in whatever order they come. `default` counts as there.
    """
    by_name = {DEFAULT: Queue(metadata=Metadata(name=DEFAULT))}
    by_name |= {queue.metadata.name: queue for queue in queues}
    return next(_contradictions({name: by_name[name] for name in sorted(by_name)}), None)


def settled(reader: Reader, transaction: Transaction) -> Transaction:
    """The transaction, checked for what it does to the tree, and guarded against others.

    `reader` sees what is stored without it. For the whole of a request, since what its parts do
    may be right only together.

    Raises Rejected, NotFound (a parent) or Conflict (a queue to delete has others below it).
    """
    written = {write.key: write.value for write in transaction.writes if write.kind == "Queue"}
    if not written:
        return transaction
    # Read before the others: whoever writes in between writes this one, too.
    guard = reader.get("Queue", DEFAULT)
    before = {item.metadata.name: item for item in reader.list("Queue") if isinstance(item, Queue)}
    if not any(_matters(before.get(name), value) for name, value in written.items()):
        return transaction
    after = {name: queue for name, queue in before.items() if name not in written}
    after |= {name: value for name, value in written.items() if isinstance(value, Queue)}
    for name, value in written.items():
        if value is None and name != ROOT:
            _check_childless(name, after)
    contradiction = first_contradiction(after.values())
    if contradiction is not None:
        raise contradiction[1]
    if DEFAULT in written:
        return transaction
    return structs.replace(transaction, writes=(*transaction.writes, _guard(guard, transaction)))


def parents_with_groups(reader: Reader, transaction: Transaction) -> dict[str, str]:
    """Queue of the transaction -> a sentence about its parent, which is a leaf no longer and still
    has groups. That is allowed: what waits there shows as Misconfigured.
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
            # It was a parent before: whoever made it one has been told.
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
        child: f"Queue {parent} now stands above {child}, and still has"
        f" {counted(counts[parent], 'unfinished pod group')}: only queues with none below them hold"
        " groups, so what waits there stays Misconfigured; cancel it and submit it to a queue below"
        for parent, child in sorted(wanted.items())
        if counts[parent]
    }


def parents_first(queues: Iterable[Queue]) -> dict[str, int]:
    """Name -> how many of the other queues stand above it; any number where they go in a circle."""
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


# --- who stands below whom ------------------------------------------------------------------


def _contradictions(queues: Queues) -> Iterator[tuple[str, BatchqError]]:
    if len(queues) > MOST_QUEUES:
        name = max(name for name in queues if name != DEFAULT)
        text = f"expected at most {MOST_QUEUES} queues, found {len(queues)}"
        yield name, Rejected(f"Queue {name}: {text}", hint="delete those that nobody uses")
        return
    misplaced = False
    for name in queues:
        for error in _misplaced(queues, name):
            misplaced = True
            yield name, error
    if not misplaced:
        yield from _numbers(queues)


def _misplaced(queues: Queues, name: str) -> Iterator[BatchqError]:
    """What is wrong with the way from a queue up to the root."""
    way = [name]
    while (above := _parent(queues, way[-1])) not in ("", ROOT):
        if above == name:
            way = [*way, above]
            yield Rejected(
                f"Queue {name}: spec.parent goes in a circle: {' -> '.join(way)}",
                hint="leave one of their parents out",
            )
            return
        if above not in queues:
            if len(way) == 1:
                yield NotFound(
                    f"Queue {name}: spec.parent: there is no queue {above!r}",
                    hint=instead(above, [other for other in queues if other != name]),
                )
            return
        if above in way:
            # A circle that it only leads into: told of the queues on it.
            return
        way.append(above)
        if len(way) > MOST_LEVELS:
            yield Rejected(
                f"Queue {name}: spec.parent: expected at most {MOST_LEVELS} queues one below the"
                f" other, found more: {' > '.join(reversed(way))}",
                hint="put it below a queue that stands higher",
            )
            return


def _parent(queues: Queues, name: str) -> str:
    queue = queues.get(name)
    return queue.spec.parent if queue is not None else ""


def _check_childless(name: str, after: Queues) -> None:
    """Raises Conflict."""
    below = sorted(other for other, queue in after.items() if queue.spec.parent == name)
    if below and name not in after:
        raise Conflict(
            f"Queue {name} still has {counted(len(below), 'queue')} below it: {few(below)}",
            hint="delete them first, or give them another parent",
        )


# --- what adds up ---------------------------------------------------------------------------


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
    """Every queue after all that stand below it; `root` is the last, written down or not."""
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
        # guarantee <= deserved <= capability: the first that is stated is the least.
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
        # One that is silent deserves what the others leave.
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
        f" ({few(named)}), found {describe_quantity(resource, stated[resource])}"
    )


# --- others at the same moment --------------------------------------------------------------


def _matters(old: Queue | None, new: object) -> bool:
    """Whether the change could contradict anything that another queue says, now or soon."""
    if not isinstance(new, Queue):
        return True
    if old is None:
        # A new queue that asks for nothing, and stands below the root, changes no sum.
        spec = new.spec
        return new.metadata.name == ROOT or bool(spec.parent or spec.guarantee or spec.deserved)
    return _stated(old) != _stated(new)


def _stated(queue: Queue) -> tuple[str, Amounts, Amounts, Amounts]:
    spec = queue.spec
    return spec.parent, spec.guarantee, spec.deserved, spec.capability


def _guard(stored: object, transaction: Transaction) -> Write:
    """`default` as it is; where nobody has written it down yet, it is founded."""
    if isinstance(stored, Queue):
        expect = stored.metadata.revision
        return Write(kind="Queue", key=DEFAULT, expect=expect, value=stored)
    now_ms = max((event.at for event in transaction.events), default=0)
    # It is never deleted, so there is never another that needs a uid of its own.
    meta = Metadata(name=DEFAULT, uid=DEFAULT, creation_timestamp=now_ms)
    return Write(kind="Queue", key=DEFAULT, expect=0, value=Queue(metadata=meta))


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
