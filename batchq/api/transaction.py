"""What is asked of a store: transactions, each applied whole or refused whole.

A store knows nothing of policy. It compares revisions, fences and phases, keeps the ledger's
sums, compares them with limits, and appends every write to the change stream, all in one step.
`MemoryStore` and `commit.lua` are two implementations of exactly this page.

**The ledger** is a set of *charges*. A charge belongs to a *holder* (`group:<uid>`, `pod:<uid>`,
`object:<uid>`, `node:<name>`) and counts its amounts in each of its *scopes* (`cluster`,
`queue:<name>`, `ns:<namespace>`, `node:<name>`, `objects:<namespace>`, `capacity`). The store
keeps the sum of every scope. Setting a charge replaces the holder's former one. Who counts for
different amounts in different scopes has several holders (`group:<uid>:<scope>` beside
`group:<uid>`), which are nothing special to a store: sums are compared as they stand once the whole
transaction has happened, so what one gives up another takes.

**Limits** are amounts per scope. In `cluster` and `node:*` an absent dimension is a limit of zero;
in `objects:<namespace>` it is what `objects:*` says, the default of all namespaces; elsewhere it is
no limit. The limit of `cluster` is not stored: it is the sum of scope `capacity`
(what ready nodes have) times the commit's overcommit factor, rounded down; of `podgroups`, which
no node has, it takes any number.

**Rules about several limits at once**, such as what is guaranteed to sibling queues, a store does
not know. It holds still what they were decided by: a commit says which revision it has `seen`, and
where a limit (but a node's) was written later, no checked charge grows, except on nodes. A change
of limits by an earlier transaction of the same commit is a later one, too; the transaction's own
is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from batchq.api.objects import Amounts, Node, Object, Pod, PodGroup, Queue, ResourceQuota
from batchq.api.resources import PODS, UNLIMITED_PODS, scaled, smaller

CLUSTER = "cluster"
CAPACITY = "capacity"

#: The dimension that counts groups, beside the resources, in thousandths like them.
POD_GROUPS = "podgroups"
ONE_GROUP = 1000


def queue_scope(name: str) -> str:
    """Where a queue's groups are summed."""
    return f"queue:{name}"


def namespace_scope(name: str) -> str:
    """Where a namespace's groups are summed."""
    return f"ns:{name}"


def node_scope(name: str) -> str:
    """Where the pods on a node are summed."""
    return f"node:{name}"


def objects_scope(namespace: str) -> str:
    """Where a namespace's unfinished groups are counted."""
    return f"objects:{namespace}"


#: Whose limits hold where a namespace states none. No namespace has this name.
EVERY_NAMESPACE = objects_scope("*")


class Write(Struct, frozen=True, kw_only=True):
    """Put, replace or delete one object.

    `expect` is the revision the writer saw: 0 for "must not exist", None for "whatever it is"
    (only together with `fence`). `fence`, where given, must equal the stored object's own
    (`fence_of`): the group's uid, admission and attempt. The phase may change only along the
    lifecycle's table. `value` None deletes, or with `expect` 0 writes nothing: it is a condition,
    that there is no such object. The revision in the value's metadata is set by the store.
    """

    kind: str
    key: str
    expect: int | None
    value: Object | None
    fence: str = ""

    @property
    def is_condition(self) -> bool:
        """Whether nothing is written: the object must not be there, and that is all."""
        return self.expect == 0 and self.value is None


class Charge(Struct, frozen=True, kw_only=True):
    """Replace what `holder` counts for. Empty `amounts` remove it.

    `checked`: refuse the transaction if, in a dimension in which the holder's charge grows, the
    sum of one of its scopes would pass that scope's limit.
    """

    holder: str
    scopes: tuple[str, ...] = ()
    amounts: dict[str, int] = {}
    checked: bool = False


class Limit(Struct, frozen=True, kw_only=True):
    """Replace the limits of a scope. None removes them.

    Goes with the write of the object that states it, even if the amounts are what they were: by
    that write's revision a store tells who has seen the change.
    """

    scope: str
    amounts: dict[str, int] | None


class Delivery(Struct, frozen=True, kw_only=True):
    """Hand a pod's attempt to its node: an entry of the outbox, removed once it is delivered."""

    pod: str
    attempt: int
    node: str


class Event(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that happened to an object, for people to read. `at` is in milliseconds."""

    kind: str
    key: str
    reason: str
    message: str = ""
    at: int = 0


class Transaction(Struct, frozen=True, kw_only=True):
    """Writes, charges, limits, deliveries and events that happen together or not at all.

    `subject` names what it is about (a group's key, say) for logs and refusals.
    """

    subject: str
    writes: tuple[Write, ...] = ()
    charges: tuple[Charge, ...] = ()
    limits: tuple[Limit, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    events: tuple[Event, ...] = ()


class Word(StrEnum):
    """A store's answer to one transaction."""

    OK = "ok"
    #: The object is not at the expected revision (or exists, or is missing); or `the limits`
    #: have changed since the revision that the commit has seen.
    CONFLICT = "conflict"
    #: The object's uid, admission or attempt is another: the writer is superseded.
    FENCED = "fenced"
    #: The lifecycle has no such move.
    MOVE = "move"
    #: A limit would be passed.
    LIMIT = "limit"
    #: The whole commit came from a leader that has been succeeded.
    EPOCH = "epoch"


class Answer(Struct, frozen=True, kw_only=True):
    """`word`, and for a refusal: what it was about, in the store's words.

    For LIMIT: `subject` is the scope, and `resource`, `need` (how much more was asked for),
    `limit` and `seen` (the sum before) are set.
    """

    word: Word
    subject: str = ""
    resource: str = ""
    need: int = 0
    limit: int = 0
    seen: int = 0


class Refusal(Struct, frozen=True, kw_only=True):
    """A transaction that was not applied, and why."""

    transaction: Transaction
    answer: Answer


class Commit(Struct, frozen=True, kw_only=True):
    """What became of the transactions of one call, each in the order given."""

    applied: tuple[Transaction, ...] = ()
    refused: tuple[Refusal, ...] = ()
    revision: int = 0


Ledger: TypeAlias = dict[str, dict[str, int]]


def fence_of(item: Object) -> str:
    """What a stale writer would get wrong: `<uid> <admission>` of a group, for a pod its
    `<group uid> <admission> <attempt>`; empty for anything else.
    """
    match item:
        case PodGroup():
            return f"{item.metadata.uid} {item.status.admission}"
        case Pod():
            status = item.status
            return f"{status.group_uid} {status.admission} {status.attempt}"
        case _:
            return ""


def phase_of(item: Object) -> str:
    """The phase that the lifecycle's tables speak of; empty where there is none."""
    return str(item.status.phase) if isinstance(item, PodGroup | Pod) else ""


def stop_of(item: Object) -> str:
    """Why a pod is to stop (`terminating`), for its work-horse to read at each renewal."""
    return item.status.reason if isinstance(item, Pod) and item.status.terminating else ""


#: On a Node: how pods are held there to the memory that they request (`cgroup`, `rlimit`, `none`).
MEMORY_LIMIT_ANNOTATION = "batchq/memory-limit"
#: On a Node, as a label: what makes a pod's end the end of its processes (`cgroup`,
#: `pid-namespace`, `subreaper`).
CONTAINMENT_LABEL = "batchq/containment"
#: For how long a node's work-horses may believe that their pods are theirs, in milliseconds.
LEASE_ANNOTATION = "batchq/lease-ms"


def capacity_of(node: Node) -> Amounts:
    """What fits on a node; one that names no `pods` takes any number."""
    return {PODS: UNLIMITED_PODS, **node.spec.resources}


def lease_of(node: Node, *, default_ms: int) -> int:
    """The longer of what the node's agent states and what the scheduler goes by."""
    stated = node.metadata.annotations.get(LEASE_ANNOTATION, "")
    is_number = stated.isascii() and stated.isdigit() and len(stated) < 10
    return max(default_ms, int(stated) if is_number else 0)


def limit_of_queue(queue: Queue) -> Amounts:
    """Capability times the queue's own overcommit, and how many groups it may hold."""
    limit = scaled(queue.spec.capability, queue.spec.overcommit)
    if queue.spec.max_pod_groups is not None:
        limit[POD_GROUPS] = queue.spec.max_pod_groups * ONE_GROUP
    return limit


def hard_limit(quotas: Iterable[ResourceQuota]) -> Amounts:
    """The least that the quotas of one namespace allow, per dimension, `podgroups` included."""
    least: Amounts = {}
    for quota in quotas:
        hard = quota.spec.hard
        least = {**hard, **least, **smaller(hard, least)}
    return least


def only_groups(hard: Amounts) -> Amounts:
    """The part of a hard limit that counts unfinished groups."""
    return {name: units for name, units in hard.items() if name == POD_GROUPS}
