"""Limit checks for a growth of the ledger: rules 2 to 4 of an admission or a bind.

batchq/core/README.md lists the rules.

The store checks every growth against the same limits, in the script that writes. A decision that
the session allows and the store refuses would be made again in every session; so limits apply here
too, independent of the plugins that decide which groups keep their place in line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from msgspec import structs

from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import Amounts, describe_quantity, minus, plus
from batchq.api.transaction import CLUSTER, queue_scope
from batchq.core.quota import ROOT
from batchq.core.quota.ledger import LedgerView, counted, title_of
from batchq.core.session.session import Session
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState


def claim_of(group: GroupState) -> Amounts:
    """Return what an admission requests from a limit: the reservation and one group; for a running
    group that queues again, what its next pod adds to its charge.
    """
    if group.next_pod is not None:
        return counted(group.next_pod.requests)
    return group.shape.counted


def over_limit(
    session: Session,
    group: GroupState,
    scopes: Iterable[str],
    wanted: Mapping[str, int],
    *,
    plugin: str,
    asked: Amounts | None = None,
) -> list[Verdict]:
    """Return the refusals of: ledger without the group + wanted <= limit, for each scope and wanted
    dimension.

    A namespace refuses out of line: a group that only its namespace holds back does not hold back
    others. `asked` is what the group requests, if not its reservation.
    """
    ledger = session.ledger
    verdicts = []
    # The usual case: a group that is not charged yet, and no head reservations.
    is_simple = not ledger.head_reservations and not ledger.charged(group)
    for scope, resource, need, limit in ledger.limited(scopes, wanted):
        seen = (
            ledger.used(scope, resource)
            if is_simple
            else ledger.without(group, scope, resource, asked)
        )
        if seen + need > limit:
            heads = ""
            if ledger.head_reservations:
                heads = ", ".join(ledger.reserved_for_heads(group, scope, resource, asked))
            verdicts.append(
                Verdict(
                    plugin=plugin,
                    reason=_reason_at(scope),
                    subject=title_of(scope),
                    resource=resource,
                    need=need,
                    limit=limit,
                    seen=seen,
                    detail=f"part of that is reserved for the head of {heads}" if heads else "",
                    in_line=not scope.startswith("ns:"),
                )
            )
    return verdicts


def _reason_at(scope: str) -> Waiting:
    """Return the reason for a refusal: missing nodes for the cluster, else a limit."""
    return Waiting.WAITING_FOR_RESOURCES if scope == CLUSTER else Waiting.WAITING_FOR_QUOTA


def over_guarantees(
    session: Session,
    group: GroupState,
    wanted: Mapping[str, int],
    *,
    plugin: str,
    asked: Amounts | None = None,
) -> list[Verdict]:
    """Check that the unused guarantees of siblings are left to them (the second half of rule 3).

    The check goes level by level from the queue up. A parent may hold its capability; the root may
    hold its own or the cluster. What must be left below a queue counts as requested above it, too:
    a queue without a capability cannot give away what is guaranteed to one of its children.
    """
    if not session.ledger.unused or _is_freed_by_victims(session, group, wanted):
        return []
    return [
        Verdict(
            plugin=plugin,
            reason=_reason_at(found.scope),
            subject=title_of(found.scope),
            resource=resource,
            need=need,
            limit=found.limit,
            seen=found.seen,
            detail=_guaranteed_to(session, group, resource, found.left),
            in_line=True,
        )
        for resource, need in wanted.items()
        if (found := _over_guarantee(session.ledger, group, resource, need, asked)) is not None
    ]


def keeps_guarantees(ledger: LedgerView, group: GroupState, wanted: Mapping[str, int]) -> bool:
    """Return whether a growth in this ledger leaves their guarantees to the siblings."""
    return not ledger.unused or all(
        _over_guarantee(ledger, group, resource, need) is None for resource, need in wanted.items()
    )


def keeps_guarantees_later(
    session: Session,
    group: GroupState,
    wanted: Mapping[str, int],
    leaving: Mapping[str, Mapping[str, int]],
) -> bool:
    """Return whether a growth leaves their guarantees to the siblings once `leaving` is gone: by
    scope, how much its sum falls when the victims of all pledges have ended. Until then, a queue
    that uses its guarantee through such victims has less of it left than it will have.
    """
    ledger = session.ledger
    if not ledger.unused or not leaving:
        return True
    return keeps_guarantees(_LedgerLater(ledger, group, leaving), group, wanted)


class _LedgerLater(LedgerView):
    """The ledger once these amounts, by scope, have left its sums."""

    def __init__(
        self, now: LedgerView, group: GroupState, leaving: Mapping[str, Mapping[str, int]]
    ) -> None:
        self.limits, self.tree, self.unused, self.head_reservations = (
            now.limits,
            now.tree,
            now.unused,
            {},
        )
        self._charges, self._owed = {group.uid: now.charged(group)}, {}
        self._now, self._leaving = now, leaving

    def used(self, scope: str, resource: str) -> int:
        return self._now.used(scope, resource) - self._leaving.get(scope, {}).get(resource, 0)

    def unused_below(self, parent: str, resource: str) -> int:
        return sum(
            max(0, stated - self.used(queue_scope(child), resource))
            for child in self.tree.children_of.get(parent, ())
            if (stated := self.tree.guarantee(child).get(resource, 0))
        )


def _is_freed_by_victims(session: Session, group: GroupState, wanted: Mapping[str, int]) -> bool:
    """Return whether victims have freed all of it: a preemptor whose victims have ended is charged
    for their capacity. Queues above may since have given away what a sibling was left then.
    """
    ledger = session.ledger
    if not group.status.pledge.stands or ledger.owed(group):
        return False
    charged = ledger.charged(group)
    return all(units <= charged.get(name, 0) for name, units in wanted.items())


class _Over(NamedTuple):
    """The scope in which too little would be left, and how much must be left there."""

    scope: str
    limit: int
    seen: int
    left: int


def _over_guarantee(
    ledger: LedgerView,
    group: GroupState,
    resource: str,
    need: int,
    asked: Amounts | None = None,
) -> _Over | None:
    left = 0
    for parent, queue in reversed(list(pairwise(group.chain))):
        if ledger.stays_within_guarantee(group, queue, resource, need + left, asked):
            # All guarantees of a level fit together, so nothing must be left above.
            left = 0
            continue
        left += ledger.kept_for_siblings(group, queue, resource, asked)
        if not left:
            continue
        scope = _scope_above(ledger, group, parent, resource)
        limit = None if scope is None else ledger.limit(scope, resource)
        if scope is None or limit is None:
            continue
        seen = ledger.without(group, scope, resource, asked) + left
        if seen + need > limit:
            return _Over(scope, limit, seen, left)
    return None


def _guaranteed_to(session: Session, group: GroupState, resource: str, left: int) -> str:
    """Return in words which siblings the guarantees belong to, those with the most unused first."""
    tree, ledger = session.tree, session.ledger
    unused = {
        other: tree.guarantee(other).get(resource, 0) - ledger.used(queue_scope(other), resource)
        for queue in group.chain[1:]
        for other in tree.siblings(queue)
    }
    names = [
        name for name in sorted(unused, key=lambda name: (-unused[name], name)) if unused[name] > 0
    ]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    owners = f"{', '.join(names[:2])}{more}"
    return f"{describe_quantity(resource, left)} of that is guaranteed to {owners}"


def guaranteed_beside(session: Session, queue: str) -> Amounts:
    """Return the sum of the guarantees of a queue's siblings."""
    tree = session.tree
    parent = tree.parent_of.get(queue)
    return {} if parent is None else minus(tree.guaranteed_below(parent), tree.guarantee(queue))


def exceeds_ready_beside_siblings(
    session: Session, group: GroupState, wanted: Mapping[str, int]
) -> bool:
    """Return whether a group wants more than ready nodes have beside the guarantees of others, so
    that it would be refused even in an empty cluster.
    """
    if not session.ledger.unused:
        return False
    left: Amounts = {}
    ready = session.ledger.limits.get(CLUSTER, {})
    for queue in reversed(group.chain):
        beside, _ = most_beside_siblings(session, group, queue, left, ready)
        if any(wanted.get(name, 0) > units for name, units in beside.items()):
            return True
        left = plus(left, guaranteed_beside(session, queue))
    return False


def most_beside_siblings(
    session: Session, group: GroupState, queue: str, left: Amounts, machines: Amounts
) -> tuple[Amounts, set[str]]:
    """Return the most of these machines that a group below a queue could hold beside the guarantees
    of others: those of the queue's siblings, plus `left` for queues further down. Also return the
    dimensions in which the group requests more than the machines have and no stated limit applies.

    Only bounded dimensions are included: those with a stated capability of the parent and, at the
    top, for groups that need nodes, those of the cluster. A queue always has at least its own
    guarantee.
    """
    tree = session.tree
    parent = tree.parent_of.get(queue)
    if parent is None:
        return {}, set()
    above = stated = session.ledger.limits.get(queue_scope(parent), {})
    if parent == ROOT and not group.is_external and session.nodes.by_name:
        above = {**machines, **stated}
    own, others = tree.guarantee(queue), plus(guaranteed_beside(session, queue), left)
    most = {
        name: max(above[name] - units, own.get(name, 0) - left.get(name, 0))
        for name, units in others.items()
        if units and name in above
    }
    claim = claim_of(group)
    beyond = {name for name in most if claim.get(name, 0) > above[name]}
    return most, beyond - stated.keys()


def _scope_above(ledger: LedgerView, group: GroupState, parent: str, resource: str) -> str | None:
    """Return the scope that bounds a queue's children together; None if nothing does."""
    scope = queue_scope(parent)
    if parent != ROOT or ledger.limit(scope, resource) is not None:
        return scope
    return None if group.is_external else CLUSTER


def over_any_limit(session: Session, group: GroupState) -> list[Verdict]:
    """Return the refusals of the group's admission by any limit."""
    return over_limits(session, group, claim_of(group))


def over_limits(
    session: Session,
    group: GroupState,
    wanted: Mapping[str, int],
    asked: Amounts | None = None,
) -> list[Verdict]:
    """Return the refusals of a growth of the group's charge by any limit; `asked` is what the group
    requests, if not its reservation.
    """
    verdicts = over_limit(session, group, group.scopes, wanted, plugin="ledger", asked=asked)
    return verdicts or over_guarantees(session, group, wanted, plugin="ledger", asked=asked)


def over_limit_with(session: Session, group: GroupState, shape: TaskShape) -> list[Verdict]:
    """Return the refusals of one more pod of this shape by any limit.

    Within the reservation, the charge does not grow and no limit is checked. A preemptor is an
    exception: it counts for less while its victims have not ended, and in full once it has pods.
    """
    return over_limit_by(session, group, shape.requests)


def over_limit_by(session: Session, group: GroupState, requests: Amounts) -> list[Verdict]:
    """Return the refusals of more pods that request this much together. What the group holds counts
    as in use, so a refusal stays the same while other pods of the group end and start.
    """
    after = counted(group.charge_holding(plus(group.held, requests)))
    before = session.ledger.charged(group)
    if not session.ledger.owed(group):
        after = {name: units for name, units in after.items() if units > before.get(name, 0)}
    over = over_limits(session, group, after, requests) if after else []
    return [_beside_its_own(group, verdict) for verdict in over]


def _beside_its_own(group: GroupState, verdict: Verdict) -> Verdict:
    """Return a refusal of all that a group would hold, as one of what is added to that."""
    held = group.charge().get(verdict.resource, 0)
    if verdict.need is None or verdict.seen is None or verdict.need <= held:
        return verdict
    return structs.replace(verdict, need=verdict.need - held, seen=verdict.seen + held)


def growth_with(session: Session, group: GroupState, shape: TaskShape) -> Amounts:
    """Return how much one more pod raises the charge; nothing if a reservation covers it."""
    return minus(_charge_with(group, shape), session.ledger.charged(group))


def _charge_with(group: GroupState, shape: TaskShape) -> Amounts:
    return counted(group.charge_holding(plus(group.held, shape.requests)))


def never_fits(
    group: GroupState,
    limits: Mapping[str, int],
    *,
    plugin: str,
    subject: str,
    absent: int | None,
    of_nodes: Collection[str] = (),
    detail: Callable[[str], str] = lambda resource: "",
) -> list[Verdict]:
    """Return the refusals of a group that asks for more than limits ever allow (rule 1).

    `absent` is the limit of a dimension that `limits` does not name. The limits are stated ones but
    for the dimensions `of_nodes`. `detail` says where the limit of a resource comes from, if its
    subject does not.
    """
    verdicts = []
    for resource, need in claim_of(group).items():
        limit = limits.get(resource, absent)
        if limit is None or need <= limit:
            continue
        verdicts.append(
            Verdict(
                plugin=plugin,
                reason=(
                    Waiting.EXCEEDS_CAPACITY if resource in of_nodes else Waiting.EXCEEDS_MAX_QUOTA
                ),
                subject=subject,
                resource=resource,
                need=need,
                limit=limit,
                detail=detail(resource),
            )
        )
    return verdicts
