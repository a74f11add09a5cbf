"""capacity (admissible, queueOrder): queues and the cluster, rules 1, 3 and 4; weight as share.

Rule 3: a queue's ledger + reservation <= its capability, groups <= maxPodGroups. Rule 4: the
cluster's ledger + reservation <= ready resources x overcommit. Queues are served in the order of
their share: ledger over what their weight deserves (batchq.framework.shares), counting what this
pass has admitted. Refuses in line. Woken when a charge falls, a queue changes, or a node comes.

External groups run on no node of ours: of rules 1 and 4 they skip what is said of nodes, and the
root queue binds them only by a capability of its own.
"""

from __future__ import annotations

from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import CLUSTER, queue_scope
from batchq.framework.growth import claim_of, over_limit
from batchq.framework.ledger import ROOT
from batchq.framework.queue_shares import share_of_queue
from batchq.framework.session import Session
from batchq.framework.shares import Share
from batchq.framework.state import GroupState, QueueState
from batchq.plugins.limits import UNBOUNDED, never_fits


class Capacity:
    name = "capacity"

    def queue_order(self, session: Session, queue: QueueState) -> Share:
        return share_of_queue(session, queue.name)

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        return self._never(session, group) or self._over(session, group)

    def _never(self, session: Session, group: GroupState) -> list[Verdict]:
        verdicts = []
        for queue in (group.queue, ROOT):
            capability = session.ledger.limits.get(queue_scope(queue), {})
            subject = f"queue {queue}"
            verdicts += never_fits(
                group, capability, plugin=self.name, subject=subject, absent=None
            )
        if group.is_external or not session.nodes:
            return verdicts
        could = dict.fromkeys(UNBOUNDED, 2**53) | session.could_have
        subject = "the cluster, with every node that was seen within a day,"
        return verdicts + never_fits(group, could, plugin=self.name, subject=subject, absent=0)

    def _over(self, session: Session, group: GroupState) -> list[Verdict]:
        claim = claim_of(group)
        ready = any(node.ready for node in session.nodes.values())
        in_cluster = ready and not group.is_external
        scopes = (queue_scope(group.queue), queue_scope(ROOT), *((CLUSTER,) if in_cluster else ()))
        verdicts = [
            verdict
            for scope in scopes
            for verdict in over_limit(session, group, scope, claim, plugin=self.name)
        ]
        if ready or group.is_external:
            return verdicts
        return [*verdicts, _no_node(self.name, len(session.nodes))]


def _no_node(plugin: str, known: int) -> Verdict:
    return Verdict(
        plugin=plugin,
        reason=Waiting.WAITING_FOR_RESOURCES,
        detail=f"no node is ready, of the {known} there are" if known else "there are no nodes yet",
        in_line=True,
    )
