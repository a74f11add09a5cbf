"""The books as the objects say they should be: every charge, the sums of them, and every limit.

The doctor compares them with what is stored, and the leader sets right by them what is stored and
cannot be read (`batchq.store.recount`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.limits import capacity_of, hard_limit, limit_of_queue, only_groups
from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, ResourceQuota
from batchq.api.resources import Amounts, of_pod, plus
from batchq.api.transaction import (
    CAPACITY,
    EVERY_NAMESPACE,
    ONE_GROUP,
    POD_GROUPS,
    Ledger,
    namespace_scope,
    node_scope,
    objects_scope,
    queue_scope,
)
from batchq.framework.ledger import holders_in_store
from batchq.store.rules import MOST, Held

#: Objects by kind and key.
Objects: TypeAlias = Mapping[str, Mapping[str, Object]]
K = TypeVar("K")


def of_kind(objects: Objects, kind: type[K]) -> Iterator[K]:
    """The objects of a kind, by key."""
    found = objects.get(kind.__name__, {})
    for key in sorted(found):
        item = found[key]
        if isinstance(item, kind):
            yield item


def charges_of(objects: Objects) -> dict[str, Held]:
    """Every holder's scopes and amounts, as the objects say."""
    expected: dict[str, Held] = {}
    for node in of_kind(objects, Node):
        if node.status.ready:
            expected[f"node:{node.metadata.name}"] = ((CAPACITY,), capacity_of(node))
    for group in of_kind(objects, PodGroup):
        uid = group.metadata.uid
        expected |= holders_in_store(group)
        if group.status.phase not in TERMINAL:
            scope = objects_scope(group.metadata.namespace)
            expected[f"object:{uid}"] = ((scope,), {POD_GROUPS: ONE_GROUP})
    for pod in of_kind(objects, Pod):
        if pod.status.phase in ON_NODE:
            scope = node_scope(pod.status.node)
            expected[f"pod:{pod.metadata.uid}"] = ((scope,), of_pod(pod.spec.requests))
    nonzero = {
        holder: (scopes, {name: units for name, units in amounts.items() if units})
        for holder, (scopes, amounts) in expected.items()
    }
    return {holder: held for holder, held in nonzero.items() if held[1]}


def sums_of(charges: Mapping[str, Held]) -> Ledger:
    """The ledger as charges add up."""
    sums: Ledger = {}
    for scopes, amounts in charges.values():
        for scope in scopes:
            sums[scope] = plus(sums.get(scope, {}), amounts)
    return sums


def of_every_namespace(limits: Mapping[str, Mapping[str, int]]) -> dict[str, Amounts]:
    """Those of the limits that the leader has set by its configuration, which no object states."""
    return {EVERY_NAMESPACE: dict(limits[EVERY_NAMESPACE])} if EVERY_NAMESPACE in limits else {}


def limits_of(objects: Objects) -> dict[str, Amounts]:
    """The limits of every scope, as the objects state them."""
    stated: dict[str, Amounts] = {}
    for queue in of_kind(objects, Queue):
        stated[queue_scope(queue.metadata.name)] = limit_of_queue(queue)
    for node in of_kind(objects, Node):
        stated[node_scope(node.metadata.name)] = capacity_of(node)
    quotas: dict[str, list[ResourceQuota]] = defaultdict(list)
    for quota in of_kind(objects, ResourceQuota):
        quotas[quota.metadata.namespace].append(quota)
    for namespace, of_namespace in quotas.items():
        hard = hard_limit(of_namespace)
        stated[namespace_scope(namespace)] = hard
        stated[objects_scope(namespace)] = only_groups(hard)
    return {
        scope: {name: min(MOST, units) for name, units in amounts.items()}
        for scope, amounts in stated.items()
        if amounts
    }
