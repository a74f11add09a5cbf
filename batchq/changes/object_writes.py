"""Writes of objects, with the limits and charges that belong to them.

A write of a Queue, a ResourceQuota or a Node must change its limits in the same step; this is the
only module that knows how.
"""

from __future__ import annotations

from collections.abc import Iterable

from batchq.api.objects import Node, Object, PodGroup, Queue, ResourceQuota, key_of, kind_of
from batchq.api.transaction import (
    CAPACITY,
    ONE_GROUP,
    POD_GROUPS,
    Charge,
    Event,
    Limit,
    Transaction,
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
from batchq.ports import Reader


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
