"""The limits of an admission: `capacity` for queues and the cluster, `quota` for namespaces, and
`overcommit`, which tightens the limits of `capacity` by factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from msgspec import structs

from batchq.api.notation import write_form
from batchq.api.objects import Factor, Value
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, Amounts, describe_quantity, plus, scaled
from batchq.api.transaction import CLUSTER, namespace_scope, queue_scope
from batchq.core.extension import PluginTraits, RefusesBy, Rule
from batchq.core.node_timeline import nodes_decide
from batchq.core.placement.feasibility import fits_when_empty, why_not_when_empty
from batchq.core.placement.placement import gang_of
from batchq.core.placement.topology import why_no_known_domain, within_text
from batchq.core.quota.ledger import title_of
from batchq.core.quota.limit_checks import (
    claim_of,
    exceeds_ready_beside_siblings,
    guaranteed_beside,
    most_beside_siblings,
    never_fits,
    over_guarantees,
    over_limit,
)
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.core.session.state import GroupState


class Capacity:
    """capacity (admissible): queues and the cluster, rules 1, 3 and 4.

    Rule 1: the reservation must not exceed what the queue and each queue above it could ever hold.
    That is the capability of the queue, and what its parent may hold minus the guarantees of its
    siblings; for the root, it is its capability or else the nodes seen within a day, ready or not,
    x overcommit. These nodes must also take the gang if they were empty. A stated limit refuses
    with ExceedsMaxQuota, nodes with ExceedsCapacity.

    Rule 3: ledger + reservation <= capability for each of these queues, groups <= maxPodGroups, and
    the unused guarantees of siblings are left to them. Rule 4: the cluster's ledger + reservation
    <= ready resources x overcommit.

    Refusals by rule 1 are out of line but not final; those by rules 3 and 4 are in line, with
    WaitingForQuota for a stated limit and WaitingForResources for nodes. Refused groups are
    unparked when a charge falls, a queue changes, or a node is added. Kueue's nominalQuota,
    borrowingLimit and lendingLimit lead to the same sums; Volcano's capacity plugin also checks a
    queue and its ancestors.

    External groups use no nodes: the parts of rules 1 and 4 about nodes do not apply to them, and
    the root queue limits them only by a capability of its own.
    """

    name = "capacity"
    traits = PluginTraits(
        lifted_by={
            Waiting.EXCEEDS_MAX_QUOTA: frozenset(),
            Waiting.EXCEEDS_CAPACITY: frozenset(),
            # Nodes that are away may come back.
            Waiting.WAITING_FOR_RESOURCES: frozenset(),
        },
        refuses_by=RefusesBy.LEDGER,
        enforces=frozenset({Rule.CAPACITY}),
    )

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        if _could_fit(session, group):
            return self._over(session, group)
        return self._never(session, group) or self._over(session, group)

    def _never(self, session: Session, group: GroupState) -> list[Verdict]:
        verdicts: list[Verdict] = []
        left: Amounts = {}
        for queue in reversed(group.chain):
            subject = f"queue {queue}"
            if most := session.ledger.limits.get(queue_scope(queue)):
                verdicts += never_fits(group, most, plugin=self.name, subject=subject, absent=None)
            if not session.ledger.unused:
                # No queue has a guarantee.
                continue
            beside, of_nodes = most_beside_siblings(
                session, group, queue, left, session.nodes.could_have
            )
            left = plus(left, guaranteed_beside(session, queue))
            subject = f"queue {queue}, beside what its siblings are guaranteed,"
            verdicts += never_fits(
                group,
                beside,
                plugin=self.name,
                subject=subject,
                absent=None,
                of_nodes=of_nodes,
                detail=partial(
                    _guaranteed_siblings, session, group.chain[group.chain.index(queue) :]
                ),
            )
        if group.is_external or not session.nodes.by_name:
            return verdicts
        return [*verdicts, *self._beyond_nodes(session, group)]

    def _beyond_nodes(self, session: Session, group: GroupState) -> list[Verdict]:
        """Return the refusals of requests that exceed all nodes together, or each single node."""
        claim = claim_of(group)
        beyond = never_fits(
            group,
            session.nodes.could_have,
            plugin=self.name,
            subject="the cluster, with every node that was seen within a day,",
            absent=0,
            of_nodes=claim,
            detail=lambda _: _factor_text(session.settings.overcommit),
        )
        if beyond or group.reserved or "allocate" not in session.actions:
            # Without placement, only sums count. A group with a reservation is rolled back as
            # Unschedulable if the nodes have changed by the time its checks pass.
            return beyond
        why = why_no_known_domain(session, group)
        if not why:
            return []
        detail = f"not even empty nodes take it: {why}"
        return [Verdict(plugin=self.name, reason=Waiting.EXCEEDS_CAPACITY, detail=detail)]

    def _over(self, session: Session, group: GroupState) -> list[Verdict]:
        claim = claim_of(group)
        ready = any(node.ready for node in session.nodes.by_name.values())
        in_cluster = ready and not group.is_external
        scopes = [queue_scope(queue) for queue in reversed(group.chain)]
        if in_cluster:
            scopes.append(CLUSTER)
        verdicts = over_limit(session, group, scopes, claim, plugin=self.name)
        if ready or group.is_external:
            verdicts = verdicts or over_guarantees(session, group, claim, plugin=self.name)
            return self._on_empty_nodes(session, group, verdicts) if verdicts else []
        return [*verdicts, _no_node(self.name, len(session.nodes.by_name))]

    def _on_empty_nodes(
        self, session: Session, group: GroupState, full: list[Verdict]
    ) -> list[Verdict]:
        """Put a group out of line if even empty nodes that are ready and not cordoned would not
        take it beside the guarantees of others: waiting for what is full now would not help it.
        """
        of_nodes = Waiting.WAITING_FOR_RESOURCES
        # With an overcommit above 1, the sum of the nodes alone shows this.
        beyond = any(
            one.reason == of_nodes and one.is_larger_than_limit for one in full
        ) or exceeds_ready_beside_siblings(session, group, claim_of(group))
        if group.is_external or not (beyond or nodes_decide(session)):
            return full
        gang = gang_of(session, group)
        if not beyond and fits_when_empty(session, gang):
            return full
        if any(verdict.reason == of_nodes for verdict in full):
            return [
                structs.replace(one, in_line=False) if one.reason == of_nodes else one
                for one in full
            ]
        detail = f"{why_not_when_empty(session, gang)}{within_text(group)}"
        return [*full, Verdict(plugin=self.name, reason=of_nodes, detail=detail)]


def _factor_text(overcommit: int) -> str:
    """Return that the limit is not what the nodes have; '' if it is."""
    if overcommit == Settings().overcommit:
        return ""
    return (
        f"that is {describe_quantity('overcommit', overcommit)} times what they have (overcommit)"
    )


def _guaranteed_siblings(session: Session, chain: tuple[str, ...], resource: str) -> str:
    """Return, as text, the siblings in the chain with the largest guarantees."""
    tree = session.tree
    found = {
        other: units
        for queue in chain
        for other in tree.siblings(queue)
        if (units := tree.guarantee(other).get(resource, 0))
    }
    names = sorted(found, key=lambda name: (-found[name], name))
    shown = [f"{name} {resource} {describe_quantity(resource, found[name])}" for name in names[:2]]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"guaranteed are {', '.join(shown)}{more}" if shown else ""


def _could_fit(session: Session, group: GroupState) -> bool:
    """Return whether rule 1 is known to admit the group: its class could fit at some time."""
    peers = group.peers
    return (
        peers is not None
        and group.status is group.record.status
        and session.pending.limits_decide
        and peers.could_fit_in == session.pending.generation
    )


def _no_node(plugin: str, known: int) -> Verdict:
    return Verdict(
        plugin=plugin,
        reason=Waiting.WAITING_FOR_RESOURCES,
        detail=f"no node is ready, of the {known} there are" if known else "there are no nodes yet",
        in_line=True,
    )


class Quota:
    """quota (admissible): a namespace's ResourceQuotas, rules 1 and 2.

    Its refusals are out of line: a group that only its own namespace holds back does not hold back
    others. A refused group is unparked when a charge of the namespace falls or one of its quotas
    changes.
    """

    name = "quota"
    traits = PluginTraits(
        lifted_by={Waiting.EXCEEDS_MAX_QUOTA: frozenset()},
        refuses_by=RefusesBy.LEDGER,
    )

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        scope = namespace_scope(group.namespace)
        hard = session.ledger.limits.get(scope)
        if not hard:
            return []
        return never_fits(
            group, hard, plugin=self.name, subject=title_of(scope), absent=None
        ) or over_limit(session, group, (scope,), claim_of(group), plugin=self.name)


class OvercommitArguments(Value, frozen=True):
    factor: Factor | None = None
    resources: dict[str, Factor] = {}
    queues: dict[str, Factor] = {}


class _Bound(NamedTuple):
    """What a scope may hold now, and the most that it could ever hold."""

    scope: str
    now: Mapping[str, int]
    ever: Mapping[str, int]


class Overcommit:
    """overcommit (admissible): rule 4 with a factor for each resource, and rule 3 with one per
    queue.

    Arguments: `resources: {gpu: 1.0}`, a factor for each resource; `factor: 1.2`, for all others;
    `queues: {team-a: 1.5}`, a factor on a queue's capability. All are absent by default; the plugin
    does not limit anything without a factor.

        cluster: ledger + r <= ready resources x factor(resource)
        queue:   ledger(queue) + r <= capability(queue) x factor(queue), and below it likewise

    Volcano's plugin of this name has one factor for the whole cluster, and users asked for these
    two (#2255, #3635, #4530, #5687: overcommit cpu, but not gpus).

    The plugin can only tighten limits. The store checks every growth against its own limits, the
    setting `overcommit` for the cluster and `spec.overcommit` for a queue, and so does `capacity`;
    the smaller of two limits applies. To overcommit cpu twice and gpus not at all, set `overcommit:
    2` and here `resources: {gpu: 1}`. The plugin applies to admissions; for pods beyond minMember,
    only the store's limits apply.

    Its refusals are in line, except for a group that never fits, even with every node that was seen
    within a day: that is out of line, with ExceedsCapacity for nodes or ExceedsMaxQuota for a
    queue. A refused group is unparked when a charge falls, a queue changes, or a node is added.
    """

    name = "overcommit"
    traits = PluginTraits(refuses_by=RefusesBy.REQUESTS)
    arguments = OvercommitArguments

    def __init__(self, arguments: OvercommitArguments) -> None:
        self._factor = arguments.factor
        self._resources = arguments.resources
        self._queues = arguments.queues

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        bounds = list(self._bounds(session, group))
        never = [
            verdict
            for bound in bounds
            for verdict in never_fits(
                group,
                bound.ever,
                plugin=self.name,
                subject=f"overcommit of {title_of(bound.scope)}",
                absent=None,
                of_nodes=bound.ever if bound.scope == CLUSTER else (),
            )
        ]
        return never or [
            verdict for bound in bounds for verdict in self._over(session, group, bound)
        ]

    def _bounds(self, session: Session, group: GroupState) -> Iterator[_Bound]:
        for name in reversed(group.chain):
            queue = session.queues.get(name)
            if queue is not None and name in self._queues:
                limits = scaled(queue.record.spec.capability, self._queues[name])
                yield _Bound(queue_scope(name), now=limits, ever=limits)
        if not group.is_external:
            yield _Bound(
                CLUSTER,
                now=self._overcommitted(session.nodes.ready),
                ever=self._overcommitted(session.nodes.known),
            )

    def _overcommitted(self, resources: Mapping[str, int]) -> Amounts:
        """Return the nodes' totals times the factors, for resources with a factor.

        Pods are slots on nodes, so the general `factor` does not apply to them.
        """
        factors = {
            name: self._resources.get(name, None if name == PODS else self._factor)
            for name in resources
        }
        return {
            name: units * factor // 1000
            for name, units in resources.items()
            if (factor := factors[name]) is not None
        }

    def _over(self, session: Session, group: GroupState, bound: _Bound) -> list[Verdict]:
        of_cluster = bound.scope == CLUSTER
        verdicts = []
        for resource, need in claim_of(group).items():
            limit = bound.now.get(resource)
            if limit is None:
                continue
            seen = session.ledger.without(group, bound.scope, resource)
            if seen + need > limit:
                verdicts.append(
                    Verdict(
                        plugin=self.name,
                        reason=(
                            Waiting.WAITING_FOR_RESOURCES
                            if of_cluster
                            else Waiting.WAITING_FOR_QUOTA
                        ),
                        subject=title_of(bound.scope),
                        resource=resource,
                        need=need,
                        limit=limit,
                        seen=seen,
                        detail=f"overcommit is {self._written(bound.scope, resource)} here",
                        in_line=True,
                    )
                )
        return verdicts

    def _written(self, scope: str, resource: str) -> object:
        factor = (
            self._resources.get(resource, self._factor)
            if scope == CLUSTER
            else self._queues[scope.removeprefix(queue_scope(""))]
        )
        return write_form("factor", factor)
