"""What an object allows, as the limits and capacities that the ledger is held against."""

from __future__ import annotations

from collections.abc import Iterable

from batchq.api.objects import Node, Queue, ResourceQuota
from batchq.api.quantity import PODS
from batchq.api.resources import UNLIMITED_PODS, Amounts, scaled, smaller
from batchq.api.transaction import ONE_GROUP, POD_GROUPS

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
