"""The world of the benchmark `backlog`: a full cluster, and any number of groups that wait for it.

One node of 64 cpus, held by 64 groups of one pod each. The waiting ones are of ten shapes (1 to 10
cpus), in ten namespaces and three priority classes, spread over the queues by a fixed seed. Those
that run are of the highest class, so that nobody is evicted for those that wait.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import TypeAlias

from msgspec import Struct, structs

from batchq.api.objects import (
    Object,
    Pod,
    PodGroup,
    PodGroupStatus,
    ResourceQuota,
    Task,
    key_of,
    kind_of,
)
from batchq.api.transaction import Charge, Event, Transaction, Write, fence_of
from batchq.assembly import assemble
from batchq.changes import object_writes
from batchq.config.model import SchedulerConfig
from batchq.core.quota.ledger import holders_in_store
from batchq.lab.simulation.initial_state import stated
from batchq.scheduler.cycle import Cycle
from batchq.store.memory import MemoryStore
from batchq.store.redis import RedisStore
from batchq.system import CountingIds
from tests.builders import a_group as _a_group
from tests.builders import (
    a_node,
    a_priority,
    a_queue,
    a_quota,
    a_running_group,
    a_task,
    as_charged,
)

#: Who leads, in whatever process, and for longer than any run.
LEADER = "benchmark"
LONG_MS = 24 * 60 * 60 * 1000
CPUS = 64
NODE = "n1"
NAMESPACES = tuple(f"team-{number}" for number in range(10))
CLASSES = {"low": 10, "middle": 100, "high": 1000}
_SHAPES = 10
#: So many groups are one transaction of the world's foundation: a call of the script takes 2,000
#: writes.
_TOGETHER = 1_000

AnyStore: TypeAlias = MemoryStore | RedisStore


class Spec(Struct, frozen=True, kw_only=True):
    """How much waits where. `shapes` None: ten; else each group has one of so many."""

    waiting: int
    queues: int
    shapes: int | None = None

    @property
    def title(self) -> str:
        return f"{self.waiting:,} in {self.queues:,}"


def queue_names(spec: Spec) -> list[str]:
    return [f"q{number:04}" for number in range(spec.queues)]


def furniture(spec: Spec) -> list[Object]:
    """All but the groups: classes, queues, quotas that bind nobody, and the node."""
    classes = [a_priority(name, value) for name, value in CLASSES.items()]
    queues = [a_queue(), *map(a_queue, queue_names(spec))]
    quotas: list[Object] = [a_quota_of(name, 0) for name in NAMESPACES]
    return [*classes, *queues, *quotas, a_node(NODE, cpu=CPUS, memory="4096Gi")]


def a_quota_of(namespace: str, more: int) -> ResourceQuota:
    """A namespace's quota, which is far away, by another amount for each `more`."""
    return a_quota(namespace, cpu=1_000_000 + more, podgroups=100_000_000)


def running(spec: Spec, number: int, now_ms: int) -> tuple[PodGroup, tuple[Pod, ...]]:
    """A group that holds one cpu of the node, as the store has it, and its pod."""
    queues = queue_names(spec)
    group, pod = as_charged(
        *a_running_group(
            f"running-{number:04}",
            node=NODE,
            namespace=NAMESPACES[number % len(NAMESPACES)],
            uid=f"r{number:015}",
            queue=queues[number % len(queues)],
            priority_class_name="high",
            created=now_ms,
        )
    )
    status = structs.replace(
        group.status, reserved_at=now_ms, in_queue_at=now_ms, started_at=now_ms
    )
    of_pod = structs.replace(pod.status, bound_at=now_ms, started_at=now_ms, holder="h")
    return structs.replace(group, status=status), (structs.replace(pod, status=of_pod),)


def waiting(
    spec: Spec, now_ms: int, *, first: int = 0, most: int | None = None
) -> Iterator[PodGroup]:
    """Groups that have just been submitted, numbered from `first`."""
    chance = random.Random(first)
    queues, classes = queue_names(spec), tuple(CLASSES)
    for number in range(first, first + (spec.waiting if most is None else most)):
        yield _a_group(
            f"job-{number:08}",
            tasks=(_task(spec, number),),
            namespace=chance.choice(NAMESPACES),
            uid=f"w{number:015}",
            queue=chance.choice(queues),
            priority_class_name=chance.choice(classes),
            created=now_ms + number,
        )


def _task(spec: Spec, number: int) -> Task:
    cpu = 1 + number % _SHAPES
    if spec.shapes is None:
        return _TASKS[cpu]
    # Another amount of memory makes another shape; there is always enough of it.
    requests = {"cpu": cpu, "memory": f"{1 + number % spec.shapes}Ki"}
    return a_task(requests=requests, command=("true",))


#: Shared by all groups that are alike, as little as that is so after they have been stored.
_TASKS = {cpu: a_task(requests={"cpu": cpu}, command=("true",)) for cpu in range(1, _SHAPES + 1)}


def found(store: AnyStore, spec: Spec, now_ms: int) -> None:
    """Write everything but what waits into an empty store, ledger and limits included."""
    for item in furniture(spec):
        event = Event(kind=kind_of(item), key=item.metadata.name, reason="Created")
        write(store, [object_writes.put(store, item, expect=0, event=event)])
    write(store, [stated(*running(spec, number, now_ms)) for number in range(CPUS)])


def leases(store: RedisStore, lease_ms: int) -> None:
    """The node has reported to the server, and all that runs on it has a lease of this length."""
    store.beat(NODE, store.run_id())
    for pod in store.pods_on(NODE):
        uid, attempt = pod.metadata.uid, pod.status.attempt
        renewal = store.renew(NODE, uid, attempt, fence_of(pod), lease_ms)
        assert renewal.word == "ok", renewal


def submit(store: AnyStore, groups: Iterable[PodGroup]) -> None:
    """Write groups, each as charged as its status says, many in one transaction."""
    rest = iter(groups)
    while some := list(islice(rest, _TOGETHER)):
        write(store, [_merged([stated(group, ()) for group in some])])


def replace_running(
    store: AnyStore, spec: Spec, group: PodGroup, pods: Sequence[Pod], number: int, now_ms: int
) -> None:
    """Take a group with its pods away, and let another one of the highest class run instead."""
    holders = (
        *holders_in_store(group),
        f"object:{group.metadata.uid}",
        *(f"pod:{pod.metadata.uid}" for pod in pods),
    )
    leaving: tuple[Object, ...] = (group, *pods)
    gone = Transaction(
        subject=key_of(group),
        writes=tuple(
            Write(kind=kind_of(one), key=key_of(one), expect=one.metadata.revision, value=None)
            for one in leaving
        ),
        charges=tuple(Charge(holder=holder) for holder in holders),
    )
    store.delivered(store.outbox())
    write(store, [gone, stated(*running(spec, number, now_ms))])


def withdraw(store: AnyStore, groups: Iterable[PodGroup]) -> None:
    """Delete groups that wait, and what is counted for them."""
    rest = iter(groups)
    while some := list(islice(rest, _TOGETHER)):
        writes = tuple(
            Write(kind="PodGroup", key=key_of(one), expect=one.metadata.revision, value=None)
            for one in some
        )
        charges = tuple(Charge(holder=f"object:{one.metadata.uid}") for one in some)
        write(store, [Transaction(subject="many", writes=writes, charges=charges)])


def _merged(parts: Sequence[Transaction]) -> Transaction:
    return Transaction(
        subject="many",
        writes=tuple(write for part in parts for write in part.writes),
        charges=tuple(charge for part in parts for charge in part.charges),
    )


def write(store: AnyStore, transactions: Sequence[Transaction]) -> None:
    """Commit what must not be refused. Raises RuntimeError if it is."""
    commit = store.commit(transactions, request_id=f"world-{next(_requests)}")
    if commit.refused:
        raise RuntimeError(f"the world was refused: {commit.refused[0].answer}")


#: Another process of this benchmark counts from one, too, and asks within the same minutes.
_requests = count(os.getpid() * 10**9)


def as_settled(groups: Iterable[PodGroup], spec: Spec, now_ms: int) -> Iterator[PodGroup]:
    """The same groups as a settled scheduler leaves them: each with why it waits.

    Why a group waits here follows from the cpus that it asks for, so the scheduler is asked about
    ten of them. Whoever measures looks whether the first session finds nothing to write.
    """
    told = _reasons(structs.replace(spec, waiting=_SHAPES, shapes=None), now_ms)
    for group in groups:
        yield structs.replace(group, status=told[_cpu_of(group)])


def _reasons(spec: Spec, now_ms: int) -> dict[int, PodGroupStatus]:
    """Cpus -> the status of a group that waits for so many."""
    store = MemoryStore()
    found(store, spec, now_ms)
    submit(store, waiting(spec, now_ms))
    Cycle(store, assemble(SchedulerConfig()), StoppedClock(now_ms), CountingIds()).run_once()
    groups = [group for group in store.list("PodGroup") if isinstance(group, PodGroup)]
    return {_cpu_of(group): group.status for group in groups if group.status.reasons}


def _cpu_of(group: PodGroup) -> int:
    return group.spec.tasks[0].template.requests["cpu"]


class StoppedClock:
    """Stands still until it is told."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms
