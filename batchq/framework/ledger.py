"""The session's ledger: what admitted groups are charged, summed by scope, held against limits.

The store keeps the same sums and re-checks every growth in the script that writes; here they
decide, there they are enforced.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.resources import Amounts
from batchq.api.transaction import (
    CLUSTER,
    ONE_GROUP,
    POD_GROUPS,
    namespace_scope,
    queue_scope,
)
from batchq.framework.state import GroupState

#: The queue above all others; it has a limit only where one is stated for it.
ROOT = "root"


def scopes_of(group: GroupState) -> tuple[str, ...]:
    """Where a group's charge is summed; an external group's not in the cluster, which is nodes."""
    queues = (ROOT,) if group.queue == ROOT else (ROOT, group.queue)
    cluster = () if group.is_external else (CLUSTER,)
    return (*cluster, *map(queue_scope, queues), namespace_scope(group.namespace))


def title_of(scope: str) -> str:
    """What people call a scope in which groups are charged."""
    kind, _, name = scope.partition(":")
    match kind:
        case "queue":
            return f"queue {name}"
        case "ns":
            return f"the quota of namespace {name}"
        case _:
            return "the cluster"


def charge_with_count(group: GroupState) -> Amounts:
    """A group's charge as the store keeps it: with one `podgroups` while there is any of it."""
    return counted(group.charge()) if group.reserved or group.charge() else {}


def counted(amounts: Mapping[str, int]) -> Amounts:
    """Amounts of one group, with the group itself as a dimension."""
    return {**amounts, POD_GROUPS: ONE_GROUP}


class LedgerView:
    """Sums per scope and limits per scope, kept up to date as the session moves groups.

    Owned by the session. In `cluster` an absent limit is zero, elsewhere there is none.
    """

    def __init__(self, limits: Mapping[str, Amounts]) -> None:
        self.limits = limits
        self.sums: dict[str, dict[str, int]] = {}
        self._charges: dict[str, Amounts] = {}
        #: Queue -> what is set aside for its waiting head, and where: others see it as if it were
        #: charged.
        self.aside: dict[str, tuple[Amounts, tuple[str, ...]]] = {}
        #: Rises with every change: what was asked of the same version is answered the same.
        self.version = 0

    def charged(self, group: GroupState) -> Amounts:
        """What the group counts for now."""
        return self._charges.get(group.uid, {})

    def recharge(self, group: GroupState) -> None:
        """Let the sums follow the group's current state."""
        new = charge_with_count(group)
        old = self._charges.get(group.uid, {})
        if new == old:
            return
        for scope in scopes_of(group):
            sums = self.sums.setdefault(scope, {})
            for name, units in old.items():
                sums[name] = sums.get(name, 0) - units
            for name, units in new.items():
                sums[name] = sums.get(name, 0) + units
        self._charges[group.uid] = new
        self.version += 1

    def put_aside(self, head: GroupState, amounts: Amounts) -> None:
        """Keep this for the head of a queue, for the rest of the session."""
        self.aside[head.queue] = (amounts, scopes_of(head))
        self.version += 1

    def used(self, scope: str, resource: str) -> int:
        """The sum of a scope."""
        return self.sums.get(scope, {}).get(resource, 0)

    def limit(self, scope: str, resource: str) -> int | None:
        """The limit of a scope; None where there is none."""
        limits = self.limits.get(scope)
        if limits is None:
            return 0 if scope == CLUSTER else None
        return limits.get(resource, 0 if scope == CLUSTER else None)

    def without(self, group: GroupState, scope: str, resource: str) -> int:
        """The sum of a scope, leaving out the group itself, with what is set aside for others.

        What is set aside counts where queues meet: in the cluster and in the root queue.
        """
        seen = self.used(scope, resource) - self._charges.get(group.uid, {}).get(resource, 0)
        if not self.aside:
            return seen
        return seen + sum(self.set_aside(group, scope, resource).values())

    def set_aside(self, group: GroupState, scope: str, resource: str) -> dict[str, int]:
        """Queue -> what is set aside for its head, and not for this group, where queues meet."""
        if scope not in (CLUSTER, queue_scope(ROOT)):
            return {}
        return {
            queue: amounts[resource]
            for queue, (amounts, scopes) in self.aside.items()
            if queue != group.queue and scope in scopes and amounts.get(resource)
        }
