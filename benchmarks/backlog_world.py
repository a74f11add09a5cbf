"""The cluster of the benchmark `backlog`: one full node, and any number of waiting groups.

The node has 64 cpus, held by 64 groups of one pod each. The waiting groups have ten shapes (1 to 10
cpus) and belong to ten namespaces and three priority classes; a fixed seed spreads them over the
queues. The running groups have the highest priority class, so that none is preempted.
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
from batchq.client.changes import object_writes
from batchq.config import SchedulerConfig
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

#: The leader's name, the same in all processes, and its lease, longer than any run.
LEADER = "benchmark"
LONG_MS = 24 * 60 * 60 * 1000
CPUS = 64
NODE = "n1"
NAMESPACES = tuple(f"team-{number}" for number in range(10))
CLASSES = {"low": 10, "middle": 100, "high": 1000}
_SHAPES = 10
#: Groups per transaction; one call of the script takes at most 2,000 writes.
_BATCH = 1_000

AnyStore: TypeAlias = MemoryStore | RedisStore


class Spec(Struct, frozen=True, kw_only=True):
    """The size of a backlog. `shapes` is the number of different shapes; None means ten."""

    waiting: int
    queues: int
    shapes: int | None = None

    @property
    def title(self) -> str:
        return f"{self.waiting:,} in {self.queues:,}"


def queue_names(spec: Spec) -> list[str]:
    return [f"q{number:04}" for number in range(spec.queues)]


def objects_without_groups(spec: Spec) -> list[Object]:
    """Return the priority classes, the queues, quotas too high to limit any group, and the node."""
    classes = [a_priority(name, value) for name, value in CLASSES.items()]
    queues = [a_queue(), *map(a_queue, queue_names(spec))]
    quotas: list[Object] = [a_quota_of(name, 0) for name in NAMESPACES]
    return [*classes, *queues, *quotas, a_node(NODE, cpu=CPUS, memory="4096Gi")]


def a_quota_of(namespace: str, more: int) -> ResourceQuota:
    """Return a namespace's quota, too high to limit it; `more` makes it differ from others."""
    return a_quota(namespace, cpu=1_000_000 + more, podgroups=100_000_000)


def running(spec: Spec, number: int, now_ms: int) -> tuple[PodGroup, tuple[Pod, ...]]:
    """Return a group that holds one cpu of the node, as it is stored, and its pod."""
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
    """Yield newly submitted groups, numbered from `first`."""
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
    # The amount of memory distinguishes the shapes; memory is never short.
    requests = {"cpu": cpu, "memory": f"{1 + number % spec.shapes}Ki"}
    return a_task(requests=requests, command=("true",))


#: Equal groups share a task until they are stored.
_TASKS = {cpu: a_task(requests={"cpu": cpu}, command=("true",)) for cpu in range(1, _SHAPES + 1)}


def write_full_cluster(store: AnyStore, spec: Spec, now_ms: int) -> None:
    """Write everything but the waiting groups to an empty store, with ledger and limits."""
    for item in objects_without_groups(spec):
        event = Event(kind=kind_of(item), key=item.metadata.name, reason="Created")
        write(store, [object_writes.put(store, item, expect=0, event=event)])
    write(store, [stated(*running(spec, number, now_ms)) for number in range(CPUS)])


def renew_leases(store: RedisStore, lease_ms: int) -> None:
    """Send the node's heartbeat, and renew the leases of all its pods for `lease_ms`."""
    store.beat(NODE, store.run_id())
    for pod in store.pods_on(NODE):
        uid, attempt = pod.metadata.uid, pod.status.attempt
        renewal = store.renew(NODE, uid, attempt, fence_of(pod), lease_ms)
        assert renewal.word == "ok", renewal


def submit(store: AnyStore, groups: Iterable[PodGroup]) -> None:
    """Write groups with the charges that their statuses state, many in one transaction."""
    rest = iter(groups)
    while some := list(islice(rest, _BATCH)):
        write(store, [_merged([stated(group, ()) for group in some])])


def replace_running(
    store: AnyStore, spec: Spec, group: PodGroup, pods: Sequence[Pod], number: int, now_ms: int
) -> None:
    """Delete a group with its pods, and write a running group of the highest class instead."""
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
    """Delete waiting groups and their charges."""
    rest = iter(groups)
    while some := list(islice(rest, _BATCH)):
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
    """Commit transactions. Raises RuntimeError if one is refused."""
    commit = store.commit(transactions, request_id=f"world-{next(_requests)}")
    if commit.refused:
        raise RuntimeError(f"a write was refused: {commit.refused[0].answer}")


#: Unique across the processes of this benchmark, which write within the same minutes.
_requests = count(os.getpid() * 10**9)


def as_settled(groups: Iterable[PodGroup], spec: Spec, now_ms: int) -> Iterator[PodGroup]:
    """Yield the groups as a scheduler at rest leaves them, each with its pending reasons.

    Here the reasons depend only on the requested cpus, so the scheduler evaluates one group of each
    of the ten shapes. The caller checks that the first session has nothing to write.
    """
    statuses = _statuses(structs.replace(spec, waiting=_SHAPES, shapes=None), now_ms)
    for group in groups:
        yield structs.replace(group, status=statuses[_cpu_of(group)])


def _statuses(spec: Spec, now_ms: int) -> dict[int, PodGroupStatus]:
    """Return requested cpus -> the status of a group that waits for them."""
    store = MemoryStore()
    write_full_cluster(store, spec, now_ms)
    submit(store, waiting(spec, now_ms))
    Cycle(store, assemble(SchedulerConfig()), StoppedClock(now_ms), CountingIds()).run_once()
    groups = [group for group in store.list("PodGroup") if isinstance(group, PodGroup)]
    return {_cpu_of(group): group.status for group in groups if group.status.reasons}


def _cpu_of(group: PodGroup) -> int:
    return group.spec.tasks[0].template.requests["cpu"]


class StoppedClock:
    """A clock that changes only when `at_ms` is set."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms
