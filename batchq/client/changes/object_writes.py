"""Objects in requests: looking them up, writing them with their limits and charges, and the errors
for missing or refused ones.

A write of a Queue, a ResourceQuota or a Node must change its limits in the same step; this is the
only module that knows how.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from batchq.api.notation import counted, nearest, shown
from batchq.api.objects import (
    Node,
    Object,
    PodGroup,
    Queue,
    ResourceQuota,
    full_name,
    key_of,
    kind_of,
)
from batchq.api.resources import describe_quantity
from batchq.api.transaction import (
    CAPACITY,
    ONE_GROUP,
    POD_GROUPS,
    Answer,
    Charge,
    Event,
    Limit,
    Refusal,
    Transaction,
    Word,
    Write,
    capacity_of,
    hard_limit,
    limit_of_queue,
    namespace_scope,
    node_scope,
    objects_scope,
    only_groups,
    queue_scope,
)
from batchq.errors import BatchqError, Conflict, NotFound, Rejected
from batchq.ports import Reader
from batchq.store.rules import THE_LEDGER


def put(
    reader: Reader, obj: Object, *, expect: int, event: Event, charges: tuple[Charge, ...] = ()
) -> Transaction:
    """Write `obj` over revision `expect` (0: it must not exist), with its limits and charges."""
    kind, key = kind_of(obj), key_of(obj)
    capacity = (capacity_charge(obj),) if isinstance(obj, Node) else ()
    return Transaction(
        subject=f"{kind} {key}",
        writes=(Write(kind=kind, key=key, expect=expect, value=obj),),
        charges=(*charges, *capacity),
        limits=_limits_with(reader, obj),
        events=(event,),
    )


def put_node(node: Node, *, expect: int, event: Event) -> Transaction:
    """Write a node, its limit, and its contribution to the cluster's capacity while it is ready."""
    name = node.metadata.name
    return Transaction(
        subject=f"Node {name}",
        writes=(Write(kind="Node", key=name, expect=expect, value=node),),
        charges=(capacity_charge(node),),
        limits=(Limit(scope=node_scope(name), amounts=capacity_of(node)),),
        events=(event,),
    )


def remove(reader: Reader, obj: Object, *, event: Event) -> Transaction:
    """Delete `obj` as it was read, with its limits and charges."""
    kind, key = kind_of(obj), key_of(obj)
    charges: tuple[Charge, ...] = ()
    if isinstance(obj, Node):
        charges = (Charge(holder=f"node:{key}", scopes=(CAPACITY,)),)
    return Transaction(
        subject=f"{kind} {key}",
        writes=(Write(kind=kind, key=key, expect=obj.metadata.revision, value=None),),
        charges=charges,
        limits=_limits_without(reader, obj),
        events=(event,),
    )


def capacity_charge(node: Node) -> Charge:
    """Return a node's contribution to the cluster's capacity: nothing while it is not ready."""
    amounts = capacity_of(node) if node.status.ready else {}
    return Charge(holder=f"node:{node.metadata.name}", scopes=(CAPACITY,), amounts=amounts)


def object_charge(group: PodGroup) -> Charge:
    """Return an unfinished group's charge to the `podgroups` of its namespace."""
    return Charge(
        holder=f"object:{group.metadata.uid}",
        scopes=(objects_scope(group.metadata.namespace),),
        amounts={POD_GROUPS: ONE_GROUP},
        checked=True,
    )


def _limits_with(reader: Reader, obj: Object) -> tuple[Limit, ...]:
    match obj:
        case Queue():
            scope = queue_scope(obj.metadata.name)
            return (Limit(scope=scope, amounts=limit_of_queue(obj) or None),)
        case ResourceQuota():
            return _of_namespace(obj.metadata.namespace, (*_other_quotas(reader, obj), obj))
        case Node():
            return (Limit(scope=node_scope(obj.metadata.name), amounts=capacity_of(obj)),)
        case _:
            return ()


def _limits_without(reader: Reader, obj: Object) -> tuple[Limit, ...]:
    match obj:
        case Queue():
            return (Limit(scope=queue_scope(obj.metadata.name), amounts=None),)
        case ResourceQuota():
            return _of_namespace(obj.metadata.namespace, _other_quotas(reader, obj))
        case Node():
            return (Limit(scope=node_scope(obj.metadata.name), amounts=None),)
        case _:
            return ()


def _other_quotas(reader: Reader, quota: ResourceQuota) -> tuple[ResourceQuota, ...]:
    return tuple(
        other
        for other in reader.list("ResourceQuota", namespace=quota.metadata.namespace)
        if isinstance(other, ResourceQuota) and key_of(other) != key_of(quota)
    )


def _of_namespace(namespace: str, quotas: Iterable[ResourceQuota]) -> tuple[Limit, ...]:
    hard = hard_limit(quotas)
    return (
        Limit(scope=namespace_scope(namespace), amounts=hard or None),
        Limit(scope=objects_scope(namespace), amounts=only_groups(hard) or None),
    )


T = TypeVar("T")

_MOST_CANDIDATES_NAMED = 10
_FEW = 5


def title(obj: Object) -> str:
    """Return `PodGroup default/train`."""
    return f"{kind_of(obj)} {full_name(obj)}"


def find(reader: Reader, kind: type[T], key: str) -> T:
    """Return the object of that kind and key. Raises NotFound, with the nearest existing name."""
    item = reader.get(kind.__name__, key)
    if isinstance(item, kind):
        return item
    namespace, _, bare = key.rpartition("/")
    there = reader.list(kind.__name__, namespace=namespace)
    raise NotFound(
        f"{kind.__name__} {shown(key)[1:-1]} does not exist",
        hint=_pod_hint(bare, there) or name_hint(key, [full_name(other) for other in there]),
    )


def _pod_hint(name: str, there: Iterable[Object]) -> str:
    """Return a hint after the name of a pod where a group is expected; "" after any other."""
    for group in there:
        if not isinstance(group, PodGroup):
            continue
        pod = name.removeprefix(f"{group.metadata.name}-")
        task, _, index = pod.rpartition("-")
        replicas = {one.name: one.replicas for one in group.spec.tasks}.get(task, 0)
        is_index = index.isascii() and index.isdecimal() and str(int(index[:9])) == index
        if pod != name and is_index and int(index) < replicas:
            owner = group.metadata.name
            return (
                f"{name} is a pod of {owner}: name the group (`batchq logs` also takes --pod {pod})"
            )
    return ""


def name_hint(wanted: str, there: list[str]) -> str:
    """Return a hint after a name that does not exist."""
    # Compare names without namespaces, which would make any two of them similar.
    names = {full.rpartition("/")[2]: full for full in there}
    near = nearest(wanted.rpartition("/")[2], names)
    if near:
        return f"did you mean {names[near]}?"
    if not there:
        return "there is none"
    more = (
        f" and {len(there) - _MOST_CANDIDATES_NAMED} more"
        if len(there) > _MOST_CANDIDATES_NAMED
        else ""
    )
    return f"there are: {', '.join(there[:_MOST_CANDIDATES_NAMED])}{more}"


def abbreviated(names: list[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")


_SCOPES = {
    "objects": "namespace",
    "ns": "namespace",
    "queue": "queue",
    "node": "node",
}


def explain_refusal(refusal: Refusal) -> BatchqError:
    """Return the error to raise for a transaction of this package that the store refused."""
    transaction, answer = refusal.transaction, refusal.answer
    subject = transaction.subject
    match answer.word:
        case Word.LIMIT:
            return _over_limit(transaction, answer)
        case Word.CONFLICT if answer.subject == THE_LEDGER:
            return Conflict(
                f"{subject}: a sum or charge in the ledger is unreadable",
                hint="the leading scheduler recounts it within seconds; try again, and if it"
                " remains, look at `batchq doctor`",
            )
        case Word.CONFLICT if _forbids(transaction, answer):
            return Conflict(
                f"{subject}: {answer.subject} exists, and its pods could have the same names",
                hint="it has just been created; try again",
            )
        case Word.CONFLICT if _creates(transaction, answer):
            return Conflict(
                f"{answer.subject} exists already",
                hint="it has just been created; choose another name",
            )
        case Word.MOVE:
            return Conflict(
                f"{subject} is no longer in a state that allows this",
                hint="look at it again: batchq describe",
            )
        case Word.EPOCH:
            return Conflict(f"{subject}: another scheduler leads now", hint="try again")
        case _:
            return Conflict(
                f"{subject} was changed by another request at the same moment", hint="try again"
            )


def too_many_groups(
    subject: str, namespace: str, *, limit: int, present: int, added: str
) -> Rejected:
    """Return the error for a request that takes a namespace above its limit of unfinished groups.

    `added` says what the request adds, if there is more than one group in it.
    """
    groups = counted(limit, "unfinished pod group")
    more = f", has {present}, and {added}" if added else f", and has {present}"
    return Rejected(
        f"{subject}: namespace {namespace} allows at most {groups}{more}",
        hint="wait for some to finish, cancel some, or have an operator raise podgroups in a"
        " ResourceQuota of the namespace (`batchq quota --help`)",
    )


def _over_limit(transaction: Transaction, answer: Answer) -> Rejected:
    subject = transaction.subject
    kind, _, name = answer.subject.partition(":")
    where = f"{_SCOPES.get(kind, kind)} {name}".strip()
    if answer.resource == POD_GROUPS:
        # `seen` includes the other groups of the transaction.
        added = sum(answer.subject in one.scopes for one in transaction.charges)
        return too_many_groups(
            subject,
            name,
            limit=answer.limit // ONE_GROUP,
            present=(answer.seen + answer.need) // ONE_GROUP - added,
            added=f"the request adds {added}" if added > 1 else "",
        )
    need, limit_text, seen_text = (
        describe_quantity(answer.resource, units)
        for units in (answer.need, answer.limit, answer.seen)
    )
    return Rejected(
        f"{subject}: {where} allows at most {limit_text} of {answer.resource}, has {seen_text} in"
        f" use, and {need} more was requested"
    )


def _forbids(transaction: Transaction, answer: Answer) -> bool:
    """Return whether the cause is the existence of an object that must be absent."""
    return any(
        write.is_condition and f"{write.kind} {write.key}" == answer.subject
        for write in transaction.writes
    )


def _creates(transaction: Transaction, answer: Answer) -> bool:
    return any(
        write.expect == 0 and f"{write.kind} {write.key}" == answer.subject
        for write in transaction.writes
    )
