"""A store's objects, counted plainly: free resources of nodes and limits, and requests of groups.

Everything is derived from the records of one snapshot by the documented rules, without any code of
the sessions, whose caches are under test. It is slow, and meant for small worlds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Node, Pod, PodGroup, Queue, Task, Toleration, key_of
from batchq.core.session.snapshot import Snapshot

Amounts = dict[str, int]
#: The scope of a count: the cluster, a namespace or a queue.
Scope = tuple[str, str]

CLUSTER: Scope = ("cluster", "")
ROOT = "root"
_ANY_NUMBER = 10**12


class Place(Struct, frozen=True):
    """One pod of a group: its task, index, priority and requests."""

    task: Task
    position: int
    index: int
    priority: int

    @property
    def name(self) -> tuple[str, int]:
        return (self.task.name, self.index)

    @property
    def asks(self) -> Amounts:
        return asks_of(self.task.template.requests)


def asks_of(requests: Mapping[str, int]) -> Amounts:
    """Return what a pod takes: its requests, and one of the `pods`."""
    return {**{name: units for name, units in requests.items() if units > 0}, "pods": 1000}


def total(many: Iterable[Mapping[str, int]]) -> Amounts:
    """Return the sum."""
    found: Amounts = {}
    for amounts in many:
        for name, units in amounts.items():
            found[name] = found.get(name, 0) + units
    return found


def most_of(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    """Return the larger of the two, per dimension."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def fits(asks: Mapping[str, int], has: Mapping[str, int]) -> bool:
    """Return whether all of it is available."""
    return all(units <= has.get(name, 0) for name, units in asks.items())


class Picture:
    """One snapshot at one instant; owns its counts, and changes nothing."""

    def __init__(self, snapshot: Snapshot, now_ms: int, overcommit: int) -> None:
        self.now_ms = now_ms
        self.overcommit = overcommit
        self.snapshot = snapshot
        self.groups = {group.metadata.uid: group for group in snapshot.groups}
        self.queues = {queue.metadata.name: queue for queue in snapshot.queues}
        self.children: dict[str, list[str]] = {}
        for name in sorted(self.queues):
            if name != ROOT:
                self.children.setdefault(self.parent(name), []).append(name)
        self.classes = {one.metadata.name: one.spec.value for one in snapshot.priority_classes}
        default = [one.spec.value for one in snapshot.priority_classes if one.spec.default]
        self.default_priority = default[0] if default else 0
        self.open_nodes = [
            node for node in snapshot.nodes if node.status.ready and not node.spec.unschedulable
        ]
        self.charges = {uid: self._charge(group) for uid, group in self.groups.items()}

    def pods(self, group: PodGroup) -> Sequence[Pod]:
        return self.snapshot.pods.get(group.metadata.uid, ())

    def on_nodes(self, group: PodGroup) -> list[Pod]:
        return [pod for pod in self.pods(group) if pod.status.phase in ON_NODE]

    def held(self, group: PodGroup) -> Amounts:
        """Return the live charge: the requests of the pods whose processes have not ended."""
        return total(asks_of(pod.spec.requests) for pod in self.on_nodes(group))

    def priority(self, group: PodGroup) -> int:
        name = group.spec.priority_class_name
        return self.classes.get(name, 0) if name else self.default_priority

    def place_in_line(self, group: PodGroup) -> tuple[int, int, str]:
        """Return the group's sort key: priority, queue time, uid."""
        since = group.status.queue_time
        if since is None:
            since = group.metadata.creation_timestamp or 0
        return (-self.priority(group), since, group.metadata.uid)

    def min_member(self, group: PodGroup) -> int:
        stated = group.spec.min_member
        return stated or max(1, sum(task.replicas for task in group.spec.tasks))

    def is_elastic(self, group: PodGroup) -> bool:
        return sum(task.replicas for task in group.spec.tasks) > self.min_member(group)

    def counts_now(self, group: PodGroup) -> list[Pod]:
        """Return the pods of this admission, and those that an elastic group finished before."""
        elastic = self.is_elastic(group)
        return [
            pod
            for pod in self.pods(group)
            if pod.status.admission == group.status.admission
            or (elastic and self.is_final(group, pod))
        ]

    def is_final(self, group: PodGroup, pod: Pod) -> bool:
        status = pod.status
        return status.phase == PodPhase.SUCCEEDED or (
            status.phase == PodPhase.FAILED
            and (status.failures > group.spec.retry.limit or status.reason == "WalltimeExceeded")
        )

    def places(self, group: PodGroup) -> list[Place]:
        """Return all pods without a closed gate in their template, in the order of the gang."""
        own = self.priority(group)
        found = [
            Place(task, position, index, own if (p := task.template.priority) is None else p)
            for position, task in enumerate(group.spec.tasks)
            if not task.template.scheduling_gates
            for index in range(task.replicas)
        ]
        return sorted(found, key=lambda one: (-one.priority, one.position, one.index))

    def gang(self, group: PodGroup, places: Sequence[Place], count: int) -> list[Place] | None:
        """Return the first `count` of these pods: each task's minAvailable, then the rest in order.
        Pods that fit no empty node are left out, if enough others remain.
        """
        could = [one for one in places if any(self.takes(node, one) for node in self.open_nodes)]
        if len(could) >= count and all(
            sum(one.task is task for one in could) >= task.min_available
            for task in group.spec.tasks
        ):
            places = could
        least = Counter({task.name: task.min_available for task in group.spec.tasks})
        first: list[Place] = []
        rest: list[Place] = []
        for one in places:
            if least[one.task.name] > 0:
                least[one.task.name] -= 1
                first.append(one)
            else:
                rest.append(one)
        if sum(least.values()) > 0 or len(first) + len(rest) < count:
            return None
        return (first + rest)[: max(count, len(first))]

    def takes(self, node: Node, place: Place, free: Mapping[str, int] | None = None) -> bool:
        """Return whether a node takes a pod, either empty or with its present pods."""
        labels, template = node.metadata.labels, place.task.template
        if any(labels.get(name) != value for name, value in template.node_selector.items()):
            return False
        if template.nodes and node.metadata.name not in template.nodes:
            return False
        if node.metadata.name in template.exclude_nodes:
            return False
        for taint in node.spec.taints:
            if taint.effect != "PreferNoSchedule" and not any(
                _tolerates(one, taint.key, taint.value, taint.effect)
                for one in template.tolerations
            ):
                return False
        return fits(place.asks, self.capacity(node) if free is None else free)

    @staticmethod
    def capacity(node: Node) -> Amounts:
        return {"pods": _ANY_NUMBER, **node.spec.resources}

    def lacking(
        self,
        group: PodGroup,
        first: Collection[tuple[str, int]] = (),
        without: Collection[tuple[str, int]] = (),
    ) -> list[Place]:
        """Return the pods that the gang of an admitted group still needs, in order. The pods in
        `first` come before others, those in `without` are left out, and those whose gates were
        opened since come last: the gang is fixed at admission.
        """
        since = group.status.in_queue_at
        opened = {
            one.task
            for one in group.status.opened_gates
            if one.task and since is not None and one.at > since
        }
        now = self.counts_now(group)
        ended = Counter(pod.spec.task for pod in now if self.is_final(group, pod))
        done = Counter(pod.spec.task for pod in now if pod.status.phase == PodPhase.SUCCEEDED)
        final = {(pod.spec.task, pod.spec.index) for pod in now if self.is_final(group, pod)}
        left = [one for one in self.places(group) if one.name not in {*final, *without}]
        left.sort(key=lambda one: (one.name not in first, one.task.name in opened))
        count = min(max(0, self.min_member(group) - sum(done.values())), len(left))
        least = {
            task.name: max(
                0, min(task.min_available, task.replicas - ended[task.name]) - done[task.name]
            )
            for task in group.spec.tasks
        }
        needed: list[Place] = []
        rest: list[Place] = []
        for one in left:
            if least[one.task.name] > 0:
                least[one.task.name] -= 1
                needed.append(one)
            else:
                rest.append(one)
        return (needed + rest)[: max(count, len(needed))]

    def _charge(self, group: PodGroup) -> Amounts:
        """Return live + promise by the documented rules, never more than the store counts."""
        stored = {name: units for name, units in group.status.charge.items() if units}
        stored.pop("podgroups", None)
        if group.spec.controller == "external" or group.status.pledge.stands:
            return stored
        held = self.held(group)
        if not self.is_reserved(group):
            return held
        if group.status.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN):
            needs = total(one.asks for one in self.lacking(group))
            return {
                name: min(stored.get(name, 0), units)
                for name, units in most_of(held, needs).items()
            }
        return stored

    @staticmethod
    def is_reserved(group: PodGroup) -> bool:
        return group.status.reserved_at is not None and group.status.phase not in TERMINAL

    def parent(self, name: str) -> str:
        return self.queues[name].spec.parent or ROOT

    def chain(self, group: PodGroup) -> list[str]:
        """Return the group's queue and its ancestors, root last; empty if its queue is missing."""
        found: list[str] = []
        name = group.spec.queue
        while name in self.queues and name != ROOT:
            found.append(name)
            name = self.parent(name)
        return [*found, ROOT] if found else []

    def accepts(self, group: PodGroup) -> bool:
        """Return whether its queue and all queues above accept groups of its namespace."""
        lists = [
            self.queues[one].spec.namespaces for one in self.chain(group) if one in self.queues
        ]
        return all(not names or group.metadata.namespace in names for names in lists)

    def scopes(self, group: PodGroup) -> list[Scope]:
        return [
            CLUSTER,
            ("ns", group.metadata.namespace),
            *(("queue", name) for name in self.chain(group)),
        ]

    def used(self, scope: Scope, without: PodGroup) -> Amounts:
        """Return the ledger of a scope without one group; the cluster's omits external groups."""
        less = self._counts_in(scope, without)
        all_of = self._sums.get(scope, {})
        return {name: units - less.get(name, 0) for name, units in all_of.items()}

    @cached_property
    def _sums(self) -> dict[Scope, Amounts]:
        found: dict[Scope, list[Amounts]] = {}
        for group in self.groups.values():
            if self.charges[group.metadata.uid] or group.status.charge:
                for scope in self.scopes(group):
                    found.setdefault(scope, []).append(self._counts_in(scope, group))
        return {scope: total(many) for scope, many in found.items()}

    def _counts_in(self, scope: Scope, group: PodGroup) -> Amounts:
        """Return a group's contribution to the ledger of one of its scopes."""
        if scope not in self.scopes(group) or _holds_elsewhere(group, scope):
            return {}
        name = "cluster" if scope == CLUSTER else ":".join(scope)
        owed = group.status.pledge.owed.get(name, {}) if self.is_reserved(group) else {}
        charge = self.charges[group.metadata.uid]
        counts = {one: max(0, units - owed.get(one, 0)) for one, units in charge.items()}
        return {**counts, "podgroups": 1000} if group.status.charge else counts

    def limit(self, scope: Scope) -> Amounts | None:
        """Return the limit of a scope; a dimension that it does not name is unlimited, except in
        the cluster.
        """
        kind, name = scope
        if kind == "cluster":
            ready = [node for node in self.snapshot.nodes if node.status.ready]
            have = total(self.capacity(node) for node in ready)
            return {one: units * self.overcommit // 1000 for one, units in have.items()}
        if kind == "ns":
            found: Amounts = {}
            for quota in self.snapshot.quotas:
                if quota.metadata.namespace == name:
                    for one, units in quota.spec.hard.items():
                        found[one] = min(units, found.get(one, units))
            return found
        queue = self.queues.get(name)
        return {} if queue is None else _limit_of_queue(queue)

    def over_limit(self, group: PodGroup, charge: Amounts) -> str:
        """Return the first limit that a group with this charge would exceed; "" if none."""
        asks = {**charge, "podgroups": 1000}
        for scope in self.scopes(group):
            if _holds_elsewhere(group, scope):
                continue
            limit = self.limit(scope) or {}
            used = self.used(scope, group)
            for name, units in charge.items():
                most = limit.get(name, 0 if scope == CLUSTER else None)
                if units and most is not None and used.get(name, 0) + units > most:
                    return f"{scope}: {used.get(name, 0)} + {units} of {name} of {most}"
            groups = limit.get("podgroups")
            if groups is not None and used.get("podgroups", 0) + asks["podgroups"] > groups:
                return f"{scope}: a group's place"
        return self._over_guarantee(group, charge)

    def exceeds_guarantees(self, group: PodGroup, charge: Amounts) -> bool:
        """Rule 1: return whether the amount does not fit next to the guarantees of sibling queues,
        even if nothing else is charged. Amounts that use a guarantee but no node, as of an external
        group, do not count.
        """
        return bool(self._over_guarantee(group, charge, nothing_is_used=True))

    def _over_guarantee(
        self, group: PodGroup, charge: Amounts, *, nothing_is_used: bool = False
    ) -> str:
        """Rule 3: unused guarantees of siblings are left to them, and so are those further down."""

        def used_in(queue: str) -> Amounts:
            return {} if nothing_is_used else self.used(("queue", queue), group)

        below: Amounts = {}
        for name in self.chain(group)[:-1]:
            above = self.parent(name)
            siblings = [one for one in self.children[above] if one != name]
            limit = dict(_limit_of_queue(self.queues[above])) if above in self.queues else {}
            used, own = used_in(above), used_in(name)
            if above == ROOT:
                # An external victim is in the ledger of the root, and not in the cluster's, where
                # its preemptor therefore counts in full.
                nodes = {} if nothing_is_used else self.used(CLUSTER, group)
                of_nodes = self.limit(CLUSTER) or {}
                used = {**used, **{one: nodes.get(one, 0) for one in of_nodes if one not in limit}}
                limit = {**of_nodes, **limit}
            for one, units in charge.items():
                committed = own.get(one, 0) + units + below.get(one, 0)
                if not units or committed <= self.guarantee(name).get(one, 0):
                    below[one] = 0
                    continue
                below[one] = below.get(one, 0) + sum(
                    max(0, self.guarantee(other).get(one, 0) - used_in(other).get(one, 0))
                    for other in siblings
                )
                most = limit.get(one)
                if most is not None and used.get(one, 0) + units + below[one] > most:
                    return f"guarantees below {above} in {one}"
        return ""

    def guarantee(self, name: str) -> Amounts:
        """Return the guarantee that a queue states, or else the sum of its children's."""
        stated = self.queues[name].spec.guarantee if name in self.queues else {}
        below = total(self.guarantee(child) for child in self.children.get(name, ()))
        return {**below, **stated}

    def free(self, kept: Mapping[str, Amounts]) -> dict[str, Amounts]:
        """Return node -> the free resources, without the places kept for other groups."""
        found = {}
        taken: dict[str, list[Amounts]] = {}
        for pods in self.snapshot.pods.values():
            for pod in pods:
                if pod.status.phase in ON_NODE:
                    taken.setdefault(pod.status.node, []).append(asks_of(pod.spec.requests))
        for node in self.open_nodes:
            name = node.metadata.name
            used = total([*taken.get(name, ()), kept.get(name, {})])
            found[name] = {
                one: units - used.get(one, 0) for one, units in self.capacity(node).items()
            }
        return found

    def put(self, places: Sequence[Place], free: Mapping[str, Amounts]) -> bool:
        """Return whether nodes take these pods: the largest first, each on the fullest node that
        takes it, for several measures of large and full; ties go to the first.
        """
        nodes = [node.metadata.name for node in self.open_nodes]
        return all(
            self._put(places, free, weights, names)
            for weights in _WEIGHTS
            for names in (sorted(nodes), sorted(nodes, reverse=True))
        )

    def _put(
        self,
        places: Sequence[Place],
        free: Mapping[str, Amounts],
        weights: Mapping[str, int],
        names: Sequence[str],
    ) -> bool:
        left = {name: dict(has) for name, has in free.items()}
        nodes = {node.metadata.name: node for node in self.open_nodes}
        by_size = sorted(places, key=lambda one: (-_size(one.asks, weights), *one.name))
        for place in by_size:
            takers = [name for name in names if self.takes(nodes[name], place, left[name])]
            if not takers:
                return False
            name = min(takers, key=lambda one: _size(left[one], weights))
            for one, units in place.asks.items():
                left[name][one] -= units
        return True

    def without_node(self, group: PodGroup) -> Iterator[Place]:
        """Return the pods without a node that could be bound now: not gated, not ended, and not
        waiting for a retry.
        """
        pods = {(pod.spec.task, pod.spec.index): pod for pod in self.counts_now(group)}
        former = {
            (pod.spec.task, pod.spec.index)
            for pod in self.on_nodes(group)
            if pod.status.admission != group.status.admission
        }
        for place in self.places(group):
            pod = pods.get((place.task.name, place.index))
            if (place.task.name, place.index) in former:
                continue
            if pod is None:
                yield place
                continue
            if pod.spec.scheduling_gates or pod.status.phase in ON_NODE:
                continue
            if self._backs_off(group, pod):
                continue
            if not self.is_final(group, pod):
                yield place

    def _backs_off(self, group: PodGroup, pod: Pod) -> bool:
        """Return whether a failed pod still waits for its retry."""
        status = pod.status
        if status.retry_at is not None:
            return status.retry_at > self.now_ms
        if status.phase != PodPhase.FAILED or status.finished_at is None:
            return False
        pause_ms = group.spec.retry.backoff << min(10, max(0, status.failures - 1))
        return status.finished_at + pause_ms > self.now_ms

    def is_leaf(self, name: str) -> bool:
        return name in self.queues and name != ROOT and not self.children.get(name)

    def is_admitted(self, group: PodGroup) -> bool:
        return group.status.phase in ADMITTED

    def key(self, group: PodGroup) -> str:
        return key_of(group)


def _holds_elsewhere(group: PodGroup, scope: Scope) -> bool:
    """Return whether a group uses nothing of a scope: what an external group holds is outside the
    cluster.
    """
    return group.spec.controller == "external" and scope in (CLUSTER, ("queue", ROOT))


def _limit_of_queue(queue: Queue) -> Amounts:
    spec = queue.spec
    limit = {name: units * spec.overcommit // 1000 for name, units in spec.capability.items()}
    if spec.max_pod_groups is not None:
        limit["podgroups"] = spec.max_pod_groups * 1000
    return limit


#: The unit in which each dimension is measured; others are measured in ones.
_WEIGHTS: tuple[Mapping[str, int], ...] = (
    {"pods": 0, "cpu": 1000, "memory": 1, "gpu": 1},
    {"pods": 0, "cpu": 1, "memory": 1000, "gpu": 1000},
    {"pods": 0},
    {},
)


def _size(amounts: Mapping[str, int], weights: Mapping[str, int]) -> int:
    return sum(units * weights.get(name, 1) for name, units in amounts.items())


def _tolerates(one: Toleration, key: str, value: str, effect: str) -> bool:
    return (
        one.effect in ("", effect)
        and (not one.key or one.key == key)
        and (one.operator == "Exists" or one.value == value)
    )
