"""The session's ledger: charges of admitted groups, summed by scope and compared with limits.

The store keeps the same sums and re-checks every growth in the script that writes it: the session
decides with its ledger, and the store enforces its own.

Until its victims have ended, a preemptor and its victims are both charged. In a scope that contains
both, the preemptor's charge is reduced by the remaining charges of its victims, so that the sum of
both equals the larger of the two charges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from batchq.api.objects import PodGroup
from batchq.api.reasons import CLUSTER_TITLE
from batchq.api.resources import Amounts, minus, of_pod, times, total
from batchq.api.transaction import CLUSTER, ONE_GROUP, POD_GROUPS, queue_scope
from batchq.core.quota import ROOT, QueueTree, scopes_in
from batchq.core.session.state import GroupState, Victim

#: Scope -> amounts.
ByScope = Mapping[str, Amounts]
#: Called with a preemptor, and the group whose state has changed: itself or one of its victims.
OwedTo = Callable[[GroupState, GroupState], ByScope]
#: Whether a reservation applies to a group with this request (None: the group's reservation).
Against = Callable[[GroupState, Amounts | None], bool]


_NOTHING: Amounts = {}
_NOTHING_OWED: ByScope = {}


def title_of(scope: str) -> str:
    """Return the name of a scope for messages."""
    kind, _, name = scope.partition(":")
    match kind:
        case "queue":
            return f"queue {name}"
        case "ns":
            return f"the quota of namespace {name}"
        case _:
            return CLUSTER_TITLE


def charge_with_count(group: GroupState) -> Amounts:
    """Return a group's charge as the store keeps it: with one `podgroups` if it is not empty."""
    return group.charge_with_count()


def counted(amounts: Mapping[str, int]) -> Amounts:
    """Return the amounts of one group, with the group itself as a dimension."""
    return {**amounts, POD_GROUPS: ONE_GROUP}


def falls_by(group: GroupState, stopping: Amounts) -> Amounts:
    """Return how much a group's charge falls when pods with these requests end; a reservation
    stays.

    For a running group with a complete gang and no other pods, this includes the group itself.
    """
    rest = group.charge_holding(minus(group.held, stopping))
    return minus(charge_with_count(group), counted(rest) if rest else {})


def holders_of(
    uid: str, scopes: tuple[str, ...], charge: Amounts, owed: ByScope
) -> dict[str, tuple[tuple[str, ...], Amounts]]:
    """Return the holders of a group's charge in the store: name -> scopes and amounts.

    `group:<uid>` has the scopes in which nothing is pledged to the group; each other scope has its
    own holder `group:<uid>:<scope>`. Holders without amounts are left out.
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
    """Return the holders of a record as it was stored."""
    status = record.status
    if not status.charge and not status.pledge.owed:
        return {}
    scopes = scopes_in(record, dict.fromkeys((ROOT, *status.charge_path, record.spec.queue)))
    return holders_of(record.metadata.uid, scopes, dict(status.charge), status.pledge.owed)


def holders_of_record(record: PodGroup) -> list[str]:
    """Return the names of the holders of a record as it was stored."""
    status = record.status
    if status.charge and not status.pledge.owed:
        return [f"group:{record.metadata.uid}"]
    return list(holders_in_store(record))


def is_booked(group: GroupState, owed: ByScope) -> bool:
    """Return whether the stored charge of the group equals that of the session."""
    stored = group.record.status
    charge = charge_with_count(group)
    return (
        stored.charge == charge
        and stored.pledge.owed == owed
        and (not charge or stored.charge_path == group.chain[1:-1])
    )


@dataclass(frozen=True, slots=True)
class HeadReservation:
    """A head reservation: the head's uid, the amounts, and the scopes.

    `against(group, asked)` says whether it applies to a group with that request.
    """

    head: str
    amounts: Amounts
    scopes: tuple[str, ...]
    against: Against


class LedgerView:
    """Sums and limits by scope, updated as the session moves groups.

    Owned by the session. A missing limit is zero in the scope `cluster`, and unlimited elsewhere.
    """

    def __init__(
        self,
        limits: Mapping[str, Amounts],
        tree: QueueTree | None = None,
        owed_to: OwedTo | None = None,
    ) -> None:
        self.limits = limits
        self.tree = tree or QueueTree(())
        self.sums: dict[str, dict[str, int]] = {}
        #: Parent queue -> the unused part of its children's guarantees.
        self.unused: dict[str, dict[str, int]] = self._all_unused()
        #: Uid of a victim -> the preemptors to which its capacity is pledged.
        self.preemptors: dict[str, dict[str, GroupState]] = {}
        #: Queue -> its groups with a charge, by uid.
        self.holding: dict[str, dict[str, GroupState]] = {}
        self._owed_to = owed_to
        self._charges: dict[str, Amounts] = {}
        self._owed: dict[str, ByScope] = {}
        #: Queue -> the reservation for its waiting head: other groups see it as if it were charged.
        self.head_reservations: dict[str, HeadReservation] = {}
        #: The names of queues whose sums have changed, in order.
        self.moved: list[str] = []
        #: The groups whose charge may have changed, and their preemptors, in order.
        self.changed_groups: list[GroupState] = []
        #: Rises with every change; equal versions give equal answers.
        self.version = 0
        #: Queue -> the version at the end of the last session that changed its sum or its holders.
        self.versions: dict[str, int] = {}

    def go_by(self, limits: Mapping[str, Amounts], tree: QueueTree) -> None:
        """Replace the limits, and the guarantees of the same tree; the sums stay."""
        self.limits, self.tree = limits, tree
        self.unused = self._all_unused()
        for parent, unused in self.unused.items():
            children = self.tree.children_of.get(parent, ()) if parent else (ROOT,)
            for child in children:
                for name, units in self.tree.guarantee(child).items():
                    unused[name] -= min(units, self.used(queue_scope(child), name))

    def begin(self, owed_to: OwedTo) -> None:
        """Begin a session without pledges and head reservations, which the session adds itself."""
        self._owed_to = owed_to
        self.versions.update(dict.fromkeys(self.moved, self.version))
        self.preemptors, self.head_reservations, self.moved, self.changed_groups = {}, {}, [], []
        self.version += 1

    def forget(self, group: GroupState) -> None:
        """Remove the charge of a group that is gone or will be added again."""
        old, old_owed = self._charges.pop(group.uid, {}), self._owed.pop(group.uid, {})
        if not old:
            return
        if old_owed:
            for scope in group.scopes:
                before = minus(old, old_owed[scope]) if old_owed.get(scope) else old
                self._move(scope, before, {})
        else:
            self._move_alike(group, old, _NOTHING)
        del self.holding[group.queue][group.uid]
        self.version += 1

    def charged(self, group: GroupState) -> Amounts:
        """Return the charge of a group in scopes where nothing is pledged to it."""
        return self._charges.get(group.uid, {})

    def owed(self, group: GroupState) -> ByScope:
        """Return, by scope, how much less a preemptor counts."""
        return self._owed.get(group.uid, {})

    def counts_for(self, group: GroupState, scope: str) -> Amounts:
        """Return what the group adds to the sum of one of its scopes."""
        charge, owed = self.charged(group), self.owed(group).get(scope)
        return minus(charge, owed) if owed else charge

    def recharge(self, group: GroupState) -> None:
        """Update the sums to the current state of the group and of the preemptors that it is
        pledged to.
        """
        preemptors = self.preemptors.get(group.uid) if self.preemptors else None
        for one in (group, *preemptors.values()) if preemptors else (group,):
            uid = one.uid
            self.changed_groups.append(one)
            new = one.charge_with_count()
            new_owed = self._owed_now(one, group) if one.status.pledge.victims else _NOTHING_OWED
            old, old_owed = self._charges.get(uid, _NOTHING), self._owed.get(uid, _NOTHING_OWED)
            if (new is old or new == old) and new_owed == old_owed:
                continue
            if new_owed or old_owed:
                for scope in one.scopes:
                    before = minus(old, old_owed[scope]) if old_owed.get(scope) else old
                    after = minus(new, new_owed[scope]) if new_owed.get(scope) else new
                    if before != after:
                        self._move(scope, before, after)
                self._owed[uid] = new_owed
            else:
                self._move_alike(one, old, new)
            self._charges[uid] = new
            if new:
                held = self.holding.get(one.queue)
                if held is None:
                    held = self.holding[one.queue] = {}
                held[uid] = one
            else:
                self.holding.get(one.queue, {}).pop(uid, None)
            self.version += 1

    def recharge_all(self, groups: Sequence[GroupState]) -> None:
        """Update the sums to the current state of many groups; equal charges of groups that had
        none are added in one step.
        """
        first, alike = groups[0], 0
        new, queue, scopes = first.charge_with_count(), first.queue, first.scopes
        is_simple = bool(new) and not self.preemptors
        held = self.holding.setdefault(queue, {}) if is_simple else {}
        charges = self._charges
        for group in groups:
            uid, charge = group.uid, group.charge_with_count()
            old = charges.get(uid)
            owes = self._owed.get(uid) or group.status.pledge.victims
            if is_simple and old is charge and not owes:
                # Its pods now hold what it has reserved.
                self.changed_groups.append(group)
            elif is_simple and not old and charge is new and not owes and group.scopes == scopes:
                self.changed_groups.append(group)
                charges[uid] = new
                held[uid] = group
                alike += 1
            else:
                self.recharge(group)
        if alike:
            self._move_alike(first, _NOTHING, times(new, alike))
            self.version += 1

    def add(self, scope: str, amounts: Amounts) -> None:
        """Add an amount that no group is charged for; used for planning. It may be negative."""
        self._move(scope, {}, amounts)
        self.version += 1

    def _owed_now(self, preemptor: GroupState, changed: GroupState) -> ByScope:
        if self._owed_to is None or not preemptor.reserved:
            return _NOTHING_OWED
        return self._owed_to(preemptor, changed)

    def _move_alike(self, group: GroupState, before: Amounts, after: Amounts) -> None:
        """Change the charge of a group that counts the same in each of its scopes."""
        if self.unused:
            for scope in group.scopes:
                self._move(scope, before, after)
            return
        more = after
        if before and not after:
            more = group.fall_of(before)
        elif before:
            names = {**before, **after}
            more = {
                name: units for name in names if (units := after.get(name, 0) - before.get(name, 0))
            }
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

    def add_head_reservation(self, head: GroupState, amounts: Amounts, against: Against) -> None:
        """Reserve these amounts for the head of a queue for the rest of the session."""
        self.head_reservations[head.queue] = HeadReservation(
            head.uid, amounts, head.scopes, against
        )
        self.version += 1

    def drop_head_reservation(self, head: GroupState) -> None:
        """End the reservation of a head that has been admitted; does nothing if it has none."""
        reservation = self.head_reservations.get(head.queue)
        if reservation is not None and reservation.head == head.uid:
            del self.head_reservations[head.queue]
            self.version += 1

    @contextmanager
    def regarding(self, heads: Collection[str]) -> Iterator[None]:
        """While the context is open, only the reservations of these heads (uids) apply."""
        former = self.head_reservations
        self.head_reservations = {queue: one for queue, one in former.items() if one.head in heads}
        self.version += 1
        try:
            yield
        finally:
            self.head_reservations = former
            self.version += 1

    def used(self, scope: str, resource: str) -> int:
        """Return the sum of a scope."""
        return self.sums.get(scope, {}).get(resource, 0)

    def unused_below(self, parent: str, resource: str) -> int:
        """Return the unused part of the guarantees of a queue's children."""
        return self.unused.get(parent, {}).get(resource, 0)

    def limit(self, scope: str, resource: str) -> int | None:
        """Return the limit of a scope; None if there is none."""
        limits = self.limits.get(scope)
        if limits is None:
            return 0 if scope == CLUSTER else None
        return limits.get(resource, 0 if scope == CLUSTER else None)

    def limited(
        self, scopes: Iterable[str], wanted: Mapping[str, int]
    ) -> Iterator[tuple[str, str, int, int]]:
        """Yield scope, dimension, request and limit of each requested dimension that a scope
        limits. The number of groups has no limit in the cluster.
        """
        for scope in scopes:
            limits = self.limits.get(scope)
            if scope == CLUSTER:
                for name, need in wanted.items():
                    if name != POD_GROUPS:
                        yield scope, name, need, limits.get(name, 0) if limits else 0
            elif limits:
                for name, need in wanted.items():
                    if (limit := limits.get(name)) is not None:
                        yield scope, name, need, limit

    def kept_for_siblings(
        self,
        group: GroupState,
        queue: str,
        resource: str,
        asked: Amounts | None = None,
    ) -> int:
        """Return how much a growth of this queue beyond its own guarantee must leave to its
        siblings in its parent: the unused part of their guarantees (rule 3).
        """
        if not self.unused:
            return 0
        unused = self.unused_below(self.tree.parent_of.get(queue, ""), resource)
        if not unused:
            return 0
        own = self.tree.guarantee(queue).get(resource, 0) - self.used(queue_scope(queue), resource)
        return unused - max(0, own) - self._filled_by_heads(group, queue, resource, asked)

    def stays_within_guarantee(
        self,
        group: GroupState,
        queue: str,
        resource: str,
        need: int,
        asked: Amounts | None = None,
    ) -> bool:
        """Return whether a queue stays within its own guarantee with this growth of a group."""
        guarantee = self.tree.guarantee(queue).get(resource, 0)
        used = self.without(group, queue_scope(queue), resource, asked)
        return used + need <= guarantee

    def _filled_by_heads(
        self, group: GroupState, queue: str, resource: str, asked: Amounts | None
    ) -> int:
        """Return how much of the siblings' guarantees head reservations use; these count as
        charged.
        """
        if not self.head_reservations:
            return 0
        filled = 0
        for sibling in self.tree.siblings(queue):
            scope = queue_scope(sibling)
            free = self.tree.guarantee(sibling).get(resource, 0) - self.used(scope, resource)
            if free > 0:
                filled += min(
                    free, sum(self.reserved_for_heads(group, scope, resource, asked).values())
                )
        return filled

    def without(
        self, group: GroupState, scope: str, resource: str, asked: Amounts | None = None
    ) -> int:
        """Return the sum of a scope without the group itself, plus the head reservations that apply
        to it.

        Head reservations count in the cluster and in the queues above, where queues share capacity.
        `asked` is what the group requests, if not its reservation.
        """
        seen = self.used(scope, resource) - self.counts_for(group, scope).get(resource, 0)
        if not self.head_reservations:
            return seen
        return seen + sum(self.reserved_for_heads(group, scope, resource, asked).values())

    def reserved_for_heads(
        self, group: GroupState, scope: str, resource: str, asked: Amounts | None = None
    ) -> dict[str, int]:
        """Return, by queue, the head reservations that apply to a group in a shared scope."""
        if scope.startswith("ns:"):
            return {}
        return {
            queue: reservation.amounts[resource]
            for queue, reservation in self.head_reservations.items()
            if queue != group.queue
            and scope in reservation.scopes
            and reservation.amounts.get(resource)
            and reservation.against(group, asked)
        }


def given_back(victim: Victim) -> Amounts:
    """Return what the ledger falls by when a victim has left.

    Pods of a group that keeps its reservation give back only what they hold beyond it.
    """
    if victim.whole:
        return charge_with_count(victim.group)
    return falls_by(victim.group, total(of_pod(pod.spec.requests) for pod in victim.pods))
