"""overcommit (admissible): rule 4 with a factor for each resource, and rule 3 with one per queue.

Arguments: `resources: {gpu: 1.0}`, a factor for each resource; `factor: 1.2`, for all others;
`queues: {team-a: 1.5}`, a factor on a queue's capability. All are absent by default; the plugin
does not limit anything without a factor.

    cluster: ledger + r <= ready resources x factor(resource)
    queue:   ledger(queue) + r <= capability(queue) x factor(queue), and below it likewise

Volcano's plugin of this name has one factor for the whole cluster, and users asked for these two
(#2255, #3635, #4530, #5687: overcommit cpu, but not gpus).

The plugin can only tighten limits. The store checks every growth against its own limits, the
setting `overcommit` for the cluster and `spec.overcommit` for a queue, and so does `capacity`; the
smaller of two limits applies. To overcommit cpu twice and gpus not at all, set `overcommit: 2` and
here `resources: {gpu: 1}`. The plugin applies to admissions; for pods beyond minMember, only the
store's limits apply.

Its refusals are in line, except for a group that never fits, even with every node that was seen
within a day: that is out of line, with ExceedsCapacity for nodes or ExceedsMaxQuota for a queue. A
refused group is unparked when a charge falls, a queue changes, or a node is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from batchq.api.notation import write_form
from batchq.api.objects import Factor, Value
from batchq.api.reasons import Verdict, Waiting
from batchq.api.resources import PODS, Amounts, scaled
from batchq.api.transaction import CLUSTER, queue_scope
from batchq.core.extension import PluginTraits, RefusesBy
from batchq.core.quota.ledger import title_of
from batchq.core.quota.limit_checks import claim_of, never_fits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState


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
