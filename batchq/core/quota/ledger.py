"""The session's ledger: what admitted groups are charged, summed by scope, held against limits.

The store keeps the same sums and re-checks every growth in the script that writes; here they
decide, there they are enforced.

A claimant and its victims are both charged for a while. In a scope that counts both, the claimant
counts for so much less as its victims are still charged there: the sum is what it would be with
either of them, whichever is more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from batchq.api.objects import PodGroup
from batchq.api.resources import Amounts, minus
from batchq.api.transaction import CLUSTER, ONE_GROUP, POD_GROUPS, queue_scope
from batchq.core.quota.queue_tree import ROOT, QueueTree, scopes_in
from batchq.core.session.state import GroupState

#: Scope -> amounts.
ByScope = Mapping[str, Amounts]
#: What a group asks for (None: its reservation) -> whether something is set aside from it.
Against = Callable[[GroupState, Amounts | None], bool]


_NOTHING: Amounts = {}
_NOBODY: ByScope = {}


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
    return group.charge_with_count()


def counted(amounts: Mapping[str, int]) -> Amounts:
    """Amounts of one group, with the group itself as a dimension."""
    return {**amounts, POD_GROUPS: ONE_GROUP}


def falls_by(group: GroupState, stopping: Amounts) -> Amounts:
    """What a group's charge falls by when pods that ask for this much end; a reservation stays.

    Of a group that runs, lacks nothing of its gang and has no other pods, the group's place falls,
    too.
    """
    rest = group.charge_holding(minus(group.held, stopping))
    return minus(charge_with_count(group), counted(rest) if rest else {})


def holders_of(
    uid: str, scopes: tuple[str, ...], charge: Amounts, owed: ByScope
) -> dict[str, tuple[tuple[str, ...], Amounts]]:
    """Under which names a group is charged in the store: holder -> scopes and amounts.

    `group:<uid>` counts where nothing is owed to it, `group:<uid>:<scope>` in each other scope.
    Holders of nothing are left out.
    """
    if not owed:
        return {f"group:{uid}": (scopes, charge)} if scopes and charge else {}
    full = tuple(scope for scope in scopes if not owed.get(scope))
    held = {f"group:{uid}": (full, charge)}
    for scope in scopes:
        if owed.get(scope):
            held[f"group:{uid}:{scope}"] = ((scope,), minus(charge, owed[scope]))
    return {name: (where, what) for name, (where, what) in held.items() if where and what}


def holders_in_store(record: PodGroup) -> dict[str, tuple[tuple[str, ...], Amounts]]:
    """The same of a record as it was stored."""
    status = record.status
    scopes = scopes_in(record, dict.fromkeys((ROOT, *status.charge_path, record.spec.queue)))
    return holders_of(record.metadata.uid, scopes, dict(status.charge), status.pledge.owed)


def is_booked(group: GroupState, owed: ByScope) -> bool:
    """Whether the store counts for the group what the session does."""
    stored = group.record.status
    charge = charge_with_count(group)
    return (
        stored.charge == charge
        and stored.pledge.owed == owed
        and (not charge or stored.charge_path == group.chain[1:-1])
    )


@dataclass(frozen=True, slots=True)
class Aside:
    """What is set aside for the head of a queue, in which scopes, and from whom.

    `against(group, asked)` tells whether it is set aside from a group that asks for so much.
    """

    head: str
    amounts: Amounts
    scopes: tuple[str, ...]
    against: Against


class LedgerView:
    """Sums per scope and limits per scope, kept up to date as the session moves groups.

    Owned by the session. In `cluster` an absent limit is zero, elsewhere there is none.
    """

    def __init__(
        self,
        limits: Mapping[str, Amounts],
        tree: QueueTree | None = None,
        owed_to: Callable[[GroupState], ByScope] | None = None,
    ) -> None:
        self.limits = limits
        self.tree = tree or QueueTree(())
        self.sums: dict[str, dict[str, int]] = {}
        #: Parent queue -> what is guaranteed to its children and not used by them.
        self.unused: dict[str, dict[str, int]] = self._all_unused()
        #: Victim's uid -> the claimants that it owes its room.
        self.claimants: dict[str, dict[str, GroupState]] = {}
        #: Queue -> the groups in it that are charged anything, by uid.
        self.holding: dict[str, dict[str, GroupState]] = {}
        self._owed_to = owed_to
        self._charges: dict[str, Amounts] = {}
        self._owed: dict[str, ByScope] = {}
        #: Queue -> what is set aside for its waiting head, and where: others see it as if it were
        #: charged.
        self.aside: dict[str, Aside] = {}
        #: The names of queues whose sum has changed, in that order.
        self.moved: list[str] = []
        #: The groups whose charge may have changed, and their claimants, in that order.
        self.stirred: list[GroupState] = []
        #: Rises with every change: what was asked of the same version is answered the same.
        self.version = 0

    # From session to session ------------------------------------------------------------------

    def go_by(self, limits: Mapping[str, Amounts], tree: QueueTree) -> None:
        """Hold the same sums against other limits, in the same tree with other guarantees."""
        self.limits, self.tree = limits, tree
        self.unused = self._all_unused()
        for parent, unused in self.unused.items():
            children = self.tree.children_of.get(parent, ()) if parent else (ROOT,)
            for child in children:
                for name, units in self.tree.guarantee(child).items():
                    unused[name] -= min(units, self.used(queue_scope(child), name))

    def begin(self, owed_to: Callable[[GroupState], ByScope]) -> None:
        """Nobody owes anything, and nothing is set aside: a session says so anew."""
        self._owed_to = owed_to
        self.claimants, self.aside, self.moved, self.stirred = {}, {}, [], []
        self.version += 1

    def forget(self, group: GroupState) -> None:
        """Take out what a group is charged: it is gone, or comes anew."""
        old, old_owed = self._charges.pop(group.uid, {}), self._owed.pop(group.uid, {})
        if not old:
            return
        for scope in group.scopes:
            before = minus(old, old_owed[scope]) if old_owed.get(scope) else old
            self._move(scope, before, {})
        del self.holding[group.queue][group.uid]
        self.version += 1

    # What groups are charged ------------------------------------------------------------------

    def charged(self, group: GroupState) -> Amounts:
        """What the group counts for now, where nothing is owed to it."""
        return self._charges.get(group.uid, {})

    def owed(self, group: GroupState) -> ByScope:
        """Where a claimant counts for less, and by how much."""
        return self._owed.get(group.uid, {})

    def counts_for(self, group: GroupState, scope: str) -> Amounts:
        """What the group adds to the sum of one of its scopes."""
        charge, owed = self.charged(group), self.owed(group).get(scope)
        return minus(charge, owed) if owed else charge

    def recharge(self, group: GroupState) -> None:
        """Let the sums follow the group's current state, and what it owes to claimants."""
        self._recharge(group)
        self.stirred.append(group)
        if claimants := self.claimants.get(group.uid):
            for claimant in list(claimants.values()):
                self._recharge(claimant)
                self.stirred.append(claimant)

    def add(self, scope: str, amounts: Amounts) -> None:
        """Count what none of the groups here is charged; for what is only planned."""
        self._move(scope, {}, amounts)

    def _recharge(self, group: GroupState) -> None:
        uid = group.uid
        new = group.charge_with_count()
        new_owed = self._owed_now(group) if group.status.pledge.stands else _NOBODY
        old, old_owed = self._charges.get(uid, _NOTHING), self._owed.get(uid, _NOBODY)
        if (new is old or new == old) and new_owed == old_owed:
            return
        if new_owed or old_owed:
            for scope in group.scopes:
                before = minus(old, old_owed[scope]) if old_owed.get(scope) else old
                after = minus(new, new_owed[scope]) if new_owed.get(scope) else new
                if before != after:
                    self._move(scope, before, after)
            self._owed[uid] = new_owed
        else:
            self._move_alike(group, old, new)
        self._charges[uid] = new
        if new:
            held = self.holding.get(group.queue)
            if held is None:
                held = self.holding[group.queue] = {}
            held[uid] = group
        else:
            self.holding.get(group.queue, {}).pop(uid, None)
        self.version += 1

    def _owed_now(self, group: GroupState) -> ByScope:
        if self._owed_to is None or not group.reserved:
            return _NOBODY
        return self._owed_to(group)

    def _move_alike(self, group: GroupState, before: Amounts, after: Amounts) -> None:
        """A group counts for something else, and for the same in each of its scopes."""
        if self.unused:
            for scope in group.scopes:
                self._move(scope, before, after)
            return
        more = after
        if before:
            more = {name: after.get(name, 0) - before.get(name, 0) for name in {**before, **after}}
        for scope in group.scopes:
            sums = self.sums.get(scope)
            if sums is None:
                sums = self.sums[scope] = {}
            for name, units in more.items():
                if now := sums.get(name, 0) + units:
                    sums[name] = now
                else:
                    sums.pop(name, None)
        self.moved += group.chain

    def _move(self, scope: str, before: Amounts, after: Amounts) -> None:
        sums = self.sums.get(scope)
        if sums is None:
            sums = self.sums[scope] = {}
        queue = ""
        if scope.startswith("queue:"):
            queue = scope[len("queue:") :]
            self.moved.append(queue)
        guarantee = self.tree.guarantee(queue) if queue and self.unused else _NOTHING
        for name in {**before, **after}:
            was = sums.get(name, 0)
            now = was + after.get(name, 0) - before.get(name, 0)
            if now:
                sums[name] = now
            else:
                sums.pop(name, None)
            if name in guarantee:
                unused = self.unused[self.tree.parent_of.get(queue, "")]
                unused[name] += max(0, guarantee[name] - now) - max(0, guarantee[name] - was)

    def _all_unused(self) -> dict[str, dict[str, int]]:
        unused: dict[str, dict[str, int]] = {"": {}}
        for child, parent in self.tree.parent_of.items():
            for name, units in self.tree.guarantee(child).items():
                mine = unused.setdefault(parent, {})
                mine[name] = mine.get(name, 0) + units
        for name, units in self.tree.guarantee(ROOT).items():
            unused[""][name] = units
        return unused if any(unused.values()) else {}

    # What limits allow ------------------------------------------------------------------------

    def put_aside(self, head: GroupState, amounts: Amounts, against: Against) -> None:
        """Keep this for the head of a queue, for the rest of the session, from some others."""
        self.aside[head.queue] = Aside(head.uid, amounts, head.scopes, against)
        self.version += 1

    def drop_aside(self, head: GroupState) -> None:
        """The head has reserved what it asks for; nothing happens if it is not its queue's."""
        aside = self.aside.get(head.queue)
        if aside is not None and aside.head == head.uid:
            del self.aside[head.queue]
            self.version += 1

    @contextmanager
    def regarding(self, heads: Collection[str]) -> Iterator[None]:
        """For a while, only what is set aside for these heads (uids) counts."""
        former = self.aside
        self.aside = {queue: one for queue, one in former.items() if one.head in heads}
        self.version += 1
        try:
            yield
        finally:
            self.aside = former
            self.version += 1

    def used(self, scope: str, resource: str) -> int:
        """The sum of a scope."""
        return self.sums.get(scope, {}).get(resource, 0)

    def unused_below(self, parent: str, resource: str) -> int:
        """What is guaranteed to the children of a queue, and not used by them."""
        return self.unused.get(parent, {}).get(resource, 0)

    def limit(self, scope: str, resource: str) -> int | None:
        """The limit of a scope; None where there is none."""
        limits = self.limits.get(scope)
        if limits is None:
            return 0 if scope == CLUSTER else None
        return limits.get(resource, 0 if scope == CLUSTER else None)

    def kept_for_siblings(
        self,
        group: GroupState,
        queue: str,
        resource: str,
        need: int,
        asked: Amounts | None = None,
    ) -> int:
        """What a growth of this queue in its parent must leave to the queue's siblings.

        Nothing, as long as the queue stays within its own guarantee: what is guaranteed to all of
        them fits together. Else what is guaranteed to the others and not used (rule 3).
        """
        if not self.unused:
            return 0
        unused = self.unused_below(self.tree.parent_of.get(queue, ""), resource)
        if not unused:
            return 0
        guarantee = self.tree.guarantee(queue).get(resource, 0)
        scope = queue_scope(queue)
        used = self.used(scope, resource)
        own = max(0, guarantee - used)
        without = used - self.counts_for(group, scope).get(resource, 0)
        if self.aside:
            without += sum(self.set_aside(group, scope, resource, asked).values())
        if without + need <= guarantee:
            return 0
        return unused - own - self._filled_by_asides(group, queue, resource, asked)

    def _filled_by_asides(
        self, group: GroupState, queue: str, resource: str, asked: Amounts | None
    ) -> int:
        """What is set aside counts as charged: so much of the siblings' guarantees is used."""
        if not self.aside:
            return 0
        filled = 0
        for sibling in self.tree.siblings(queue):
            scope = queue_scope(sibling)
            free = self.tree.guarantee(sibling).get(resource, 0) - self.used(scope, resource)
            if free > 0:
                filled += min(free, sum(self.set_aside(group, scope, resource, asked).values()))
        return filled

    def without(
        self, group: GroupState, scope: str, resource: str, asked: Amounts | None = None
    ) -> int:
        """Return the sum of a scope without the group itself, and with what is set aside from it.

        What is set aside counts where queues meet: in the cluster and in the queues above. `asked`
        is what the group asks for, where that is not its reservation.
        """
        seen = self.used(scope, resource) - self.counts_for(group, scope).get(resource, 0)
        if not self.aside:
            return seen
        return seen + sum(self.set_aside(group, scope, resource, asked).values())

    def set_aside(
        self, group: GroupState, scope: str, resource: str, asked: Amounts | None = None
    ) -> dict[str, int]:
        """Return by queue what is set aside for its head from a group, where queues meet."""
        if scope.startswith("ns:"):
            return {}
        return {
            queue: aside.amounts[resource]
            for queue, aside in self.aside.items()
            if queue != group.queue
            and scope in aside.scopes
            and aside.amounts.get(resource)
            and aside.against(group, asked)
        }
