"""Transactions: requests to a store, each applied whole or refused whole.

A store knows no policy. It compares revisions, fences and phases, keeps the ledger's sums, compares
them with limits, and appends every write to the change stream, all in one step. `MemoryStore` and
`commit.lua` are two implementations of exactly this page.

**The ledger** is a set of *charges*. A charge belongs to a *holder* (`group:<uid>`, `pod:<uid>`,
`object:<uid>`, `node:<name>`) and counts its amounts in each of its *scopes* (`cluster`,
`queue:<name>`, `ns:<namespace>`, `node:<name>`, `objects:<namespace>`, `capacity`). The store keeps
the sum of every scope. Setting a charge replaces the holder's former one. A group with different
amounts in different scopes has several holders (`group:<uid>:<scope>` beside `group:<uid>`), which
a store does not distinguish: sums are compared as they stand after the whole transaction, so one
holder can take what another gives up.

**Limits** are amounts per scope. In `cluster` and `node:*` an absent dimension is a limit of zero;
in `objects:<namespace>` it is the limit of `objects:*`, the default of all namespaces; elsewhere it
is no limit. The limit of `cluster` is not stored: it is the sum of scope `capacity` (the ready
nodes' resources) times the commit's overcommit factor, rounded down; `podgroups`, which nodes do
not have, are unlimited there.

**Rules about several limits at once**, such as the guarantees of sibling queues, are unknown to a
store. It only makes sure that their inputs are unchanged: a commit names the revision that it has
`seen`, and if a limit (except a node's) was written later, no checked charge may grow, except on
nodes. A limit that an earlier transaction of the same commit has written counts as written later,
too; a limit that the transaction itself writes does not.
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
    """Return the scope of a queue's groups."""
    return f"queue:{name}"


def namespace_scope(name: str) -> str:
    """Return the scope of a namespace's groups."""
    return f"ns:{name}"


def node_scope(name: str) -> str:
    """Return the scope of the pods on a node."""
    return f"node:{name}"


def objects_scope(namespace: str) -> str:
    """Return the scope that counts a namespace's unfinished groups."""
    return f"objects:{namespace}"


#: The scope of the limits for namespaces that state none. No namespace has this name.
EVERY_NAMESPACE = objects_scope("*")


class Write(Struct, frozen=True, kw_only=True):
    """Put, replace or delete one object.

    `expect` is the revision that the writer read: 0 for "must not exist", None for "any" (only
    together with `fence`). `fence`, if given, must equal the stored object's own (`fence_of`): the
    group's uid, admission and attempt. The phase may change only along the lifecycle's table.
    `value` None deletes; with `expect` 0 it writes nothing, and only requires that the object does
    not exist. The store sets the revision in the value's metadata.
    """

    kind: str
    key: str
    expect: int | None
    value: Object | None
    fence: str = ""

    @property
    def is_condition(self) -> bool:
        """Whether it writes nothing, and only requires that the object does not exist."""
        return self.expect == 0 and self.value is None


class Charge(Struct, frozen=True, kw_only=True):
    """Replace a holder's charge. Empty `amounts` remove it.

    `checked`: refuse the transaction if, in a dimension in which the holder's charge grows, the sum
    of one of its scopes would pass that scope's limit.
    """

    holder: str
    scopes: tuple[str, ...] = ()
    amounts: dict[str, int] = {}
    checked: bool = False


class Limit(Struct, frozen=True, kw_only=True):
    """Replace the limits of a scope. None removes them.

    It accompanies the write of the object that states it, even with unchanged amounts: the revision
    of that write tells a store whether a commit has seen the change.
    """

    scope: str
    amounts: dict[str, int] | None


class Delivery(Struct, frozen=True, kw_only=True):
    """Deliver a pod's attempt to its node: an entry of the outbox, removed after the delivery."""

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
    """Writes, charges, limits, deliveries and events that are applied together or not at all.

    `subject` names its object (a group's key, for example) for logs and refusals.
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
    #: The object is not at the expected revision (or exists, or is missing); or `the limits` have
    #: changed since the revision that the commit has seen.
    CONFLICT = "conflict"
    #: The object's uid, admission or attempt differs: the writer is superseded.
    FENCED = "fenced"
    #: The lifecycle has no such move.
    MOVE = "move"
    #: A limit would be passed.
    LIMIT = "limit"
    #: The whole commit came from a former leader.
    EPOCH = "epoch"


class Answer(Struct, frozen=True, kw_only=True):
    """`word`, and for a refusal its subject, in the store's terms.

    For LIMIT: `subject` is the scope, and `resource`, `need` (the additional request), `limit` and
    `seen` (the sum before) are set.
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
    """The outcome of the transactions of one call, each list in the given order. `delivered`: how
    many of the deliveries were handed over to their nodes as well.
    """

    applied: tuple[Transaction, ...] = ()
    refused: tuple[Refusal, ...] = ()
    revision: int = 0
    delivered: int = 0


Ledger: TypeAlias = dict[str, dict[str, int]]


def fence_of(item: Object) -> str:
    """Return what identifies a stale writer: `<uid> <admission>` of a group, `<group uid>
    <admission> <attempt>` of a pod; "" for anything else.
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
    """Return the phase in the lifecycle's tables; "" for an object without one."""
    return str(item.status.phase) if isinstance(item, PodGroup | Pod) else ""


def stop_of(item: Object) -> str:
    """Return why a pod is to stop (`terminating`), for its work-horse to read at each renewal."""
    return item.status.reason if isinstance(item, Pod) and item.status.terminating else ""


#: Annotation of a Node: how it holds pods to the memory that they request (`cgroup`, `rlimit`,
#: `none`).
MEMORY_LIMIT_ANNOTATION = "batchq/memory-limit"
#: Label of a Node: how it makes sure that a pod's processes end with it (`cgroup`, `pid-namespace`,
#: `subreaper`).
CONTAINMENT_LABEL = "batchq/containment"
#: Annotation of a Node: the length of its work-horses' leases, in milliseconds.
LEASE_ANNOTATION = "batchq/lease-ms"


def capacity_of(node: Node) -> Amounts:
    """Return a node's resources; a node that names no `pods` takes any number."""
    return {PODS: UNLIMITED_PODS, **node.spec.resources}


def lease_of(node: Node, *, default_ms: int) -> int:
    """Return the longer of the lease lengths of the node's agent and of the scheduler."""
    stated = node.metadata.annotations.get(LEASE_ANNOTATION, "")
    is_number = stated.isascii() and stated.isdigit() and len(stated) < 10
    return max(default_ms, int(stated) if is_number else 0)


def limit_of_queue(queue: Queue) -> Amounts:
    """Return capability times the queue's own overcommit, and the number of groups it may hold."""
    limit = scaled(queue.spec.capability, queue.spec.overcommit)
    if queue.spec.max_pod_groups is not None:
        limit[POD_GROUPS] = queue.spec.max_pod_groups * ONE_GROUP
    return limit


def hard_limit(quotas: Iterable[ResourceQuota]) -> Amounts:
    """Return the least that the quotas of one namespace allow, per dimension,
    `podgroups` included.
    """
    least: Amounts = {}
    for quota in quotas:
        hard = quota.spec.hard
        least = {**hard, **least, **smaller(hard, least)}
    return least


def only_groups(hard: Amounts) -> Amounts:
    """Return the part of a hard limit that counts unfinished groups."""
    return {name: units for name, units in hard.items() if name == POD_GROUPS}


#
# Epochs and attempts are numbers that fence. A server that lost its last writes, or was restored
# from an older file, would give the same numbers out again, and a process that still holds a lost
# one could pass for its successor. So every start of the server begins a *generation*, named by the
# server's clock in seconds, and the numbers continue above everything that an earlier generation
# can have reached: number = generation * JUMP + count. People are shown the count. Generation 0 is
# that of a store without a server (the simulator's), whose numbers are plain. The largest number
# stays below 2^53, above which Lua's numbers skip integers.

#: More than the binds of any pod, or the elections of any leader, between two starts of a server.
JUMP = 1_000_000


def count_of(number: int) -> int:
    """Return the count, as people are shown it: 1 for the first."""
    return number % JUMP


def generation_of(number: int) -> int:
    """Return the generation in which a number was given out."""
    return number // JUMP


def following(number: int, *, generation: int) -> int:
    """Return the number after `number`, in `generation` or in the number's own, whichever is later.

    The count continues across the jump.
    """
    return max(generation, generation_of(number)) * JUMP + count_of(number) + 1
