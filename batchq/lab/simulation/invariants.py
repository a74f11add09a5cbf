"""Invariants of a simulated world, checked after every event.

No node is given more than it has; the ledger is the sum of its charges, which match the objects; no
group is Running below its minMember after a session; admissions only rise. A violation is a bug:
InvariantBroken, with the details.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import Node, Pod, PodGroup, full_name
from batchq.api.resources import Amounts, of_pod, plus
from batchq.api.transaction import Commit, Ledger, capacity_of
from batchq.core.quota.ledger import charge_with_count, holders_in_store
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.errors import InvariantBroken
from batchq.scheduler.pod_controller import GroupProgress
from batchq.store.memory import MemoryStore


class InvariantWatch:
    """Checks the store after each event; owns what it saw last."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._admissions: dict[str, int] = {}
        self._found_right: dict[str, PodGroup] = {}
        self._over: dict[tuple[str, str], int] = {}
        self._revision = -1
        self._look_at_admissions()
        self.after_outside()

    def after_outside(self) -> None:
        """Check after changes from outside, which may oversubscribe nodes."""
        if not self._has_changed():
            return
        self._over = oversubscribed(self._store)
        self._check_ledger()

    def after_session(self, commit: Commit) -> None:
        """Check after a session's commit; refused groups are decided again by the next session."""
        refused = {
            write.key
            for refusal in commit.refused
            for write in refusal.transaction.writes
            if write.kind == "PodGroup"
        }
        if not self._has_changed():
            return
        over = oversubscribed(self._store)
        for (node, resource), units in over.items():
            if units > self._over.get((node, resource), 0):
                raise InvariantBroken(f"node {node} was given {units} of {resource} too much")
        self._over = over
        self._check_ledger()
        self._check_groups(refused)
        self._look_at_admissions()

    # ----------------------------------------------------------------------------------------

    def _has_changed(self) -> bool:
        """Return whether anything was written since the last call."""
        before, self._revision = self._revision, self._store.snapshot().revision
        return before != self._revision

    def _check_ledger(self) -> None:
        counted = recount(self._store.charges())
        kept = self._store.ledger()
        if counted != kept:
            raise InvariantBroken(f"the ledger says {kept}, its charges add up to {counted}")
        pods = {
            f"pod:{pod.metadata.uid}": of_pod(pod.spec.requests)
            for pod in self._store.list("Pod")
            if isinstance(pod, Pod) and pod.status.phase in ON_NODE
        }
        charged = {
            holder: amounts
            for holder, (_, amounts) in self._store.charges().items()
            if holder.startswith("pod:")
        }
        if pods != charged:
            wrong = sorted(
                holder for holder in {*pods, *charged} if pods.get(holder) != charged.get(holder)
            )
            raise InvariantBroken(f"pods and what nodes are charged for them differ: {wrong}")

    def _check_groups(self, spared: Set[str]) -> None:
        snapshot = self._store.snapshot()
        charges = self._store.charges()
        for record in snapshot.groups:
            if record.status.phase in TERMINAL and not record.status.charge:
                continue
            uid = record.metadata.uid
            pods = snapshot.pods.get(uid, ())
            if (not pods and self._found_right.get(uid) is record) or full_name(record) in spared:
                continue
            group = GroupState(record, pods, 0)
            check_charge(group, charges)
            # The pods of an external group are not in the world.
            if group.phase == PodGroupPhase.RUNNING and not group.is_external:
                check_gang(group)
            self._found_right[uid] = record
        objects = {
            f"object:{group.metadata.uid}"
            for group in snapshot.groups
            if group.status.phase not in TERMINAL
        }
        counted = {holder for holder in charges if holder.startswith("object:")}
        if objects != counted:
            raise InvariantBroken(
                f"unfinished groups and what counts as one differ: {sorted(objects ^ counted)}"
            )

    def _look_at_admissions(self) -> None:
        for group in self._store.list("PodGroup"):
            assert isinstance(group, PodGroup)
            uid, now = group.metadata.uid, group.status.admission
            before = self._admissions.get(uid, 0)
            if now < before:
                raise InvariantBroken(
                    f"the admission of {full_name(group)} fell from {before} to {now}"
                )
            self._admissions[uid] = now


def recount(charges: Mapping[str, tuple[tuple[str, ...], dict[str, int]]]) -> Ledger:
    """Return the ledger as the sum of its charges."""
    sums: Ledger = {}
    for scopes, amounts in charges.values():
        for scope in scopes:
            sums[scope] = plus(sums.get(scope, {}), amounts)
    return {
        scope: {name: units for name, units in amounts.items() if units}
        for scope, amounts in sorted(sums.items())
        if any(amounts.values())
    }


def holdings(snapshot: Snapshot) -> dict[str, Amounts]:
    """Return the total requests of the pods on each node."""
    held: dict[str, Amounts] = {}
    for pods in snapshot.pods.values():
        for pod in pods:
            if pod.status.phase in ON_NODE:
                node = pod.status.node
                held[node] = plus(held.get(node, {}), of_pod(pod.spec.requests))
    return held


def oversubscribed(store: MemoryStore) -> dict[tuple[str, str], int]:
    """Return (node, resource) -> by how much its pods' requests exceed it."""
    over = {}
    for name, amounts in holdings(store.snapshot()).items():
        node = store.get("Node", name)
        capacity = capacity_of(node) if isinstance(node, Node) else {}
        for resource, units in amounts.items():
            if units > capacity.get(resource, 0):
                over[name, resource] = units - capacity.get(resource, 0)
    return over


def check_charge(
    group: GroupState, charges: Mapping[str, tuple[tuple[str, ...], dict[str, int]]]
) -> None:
    """Check that a group is charged what its objects say. Raises InvariantBroken."""
    expected = charge_with_count(group)
    if expected != group.status.charge:
        raise InvariantBroken(
            f"{group.key} is charged {dict(group.status.charge)}, and holds {expected}"
        )
    for holder, (scopes, amounts) in holders_in_store(group.record).items():
        if charges.get(holder) != (scopes, {n: u for n, u in amounts.items() if u}):
            raise InvariantBroken(
                f"{group.key} should count as {holder} for {amounts} in {', '.join(scopes)},"
                f" and does for {charges.get(holder)}"
            )


def check_gang(group: GroupState) -> None:
    """Check that a Running group has as many pods as it needs. Raises InvariantBroken."""
    progress = GroupProgress.of(group)
    if progress.running + progress.succeeded < group.min_member:
        raise InvariantBroken(
            f"{group.key} is Running with {progress.running} pods running and"
            f" {progress.succeeded} succeeded, below its minMember of {group.min_member}"
        )
