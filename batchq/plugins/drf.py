"""drf (groupOrder, preemptable): within a queue, the group that holds least of the cluster is
first.

share(group) = max over the dimensions of the ready nodes, except `pods`, of its charge / the total
of these nodes. This is the dominant share of Ghodsi et al., "Dominant Resource Fairness", NSDI
2011, for groups instead of users, compared exactly by cross-multiplication. The charge of a Pending
group is zero, so groups without any charge are ordered by the plugins that follow and by queue
time.

preemptable agrees if share(preemptor with its request) <= share(victim's group without the victim),
and refuses otherwise. This is kube-batch's rule without its tolerance of 1e-6. Two groups never
preempt each other in turn, because the victim's group keeps at least as much as the preemptor ends
with. Without all of its pods, the victim's group would keep nothing, so the plugin refuses every
victim that is a whole group, whatever its priority: groups only balance their pods beyond
minMember. The plugin has no opinion between queues.

The plugin votes on a refused victim again in the next session with a preemptor. The vote changes
when either group's charge or the ready nodes change.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.resources import larger, minus
from batchq.core.quota.fair_shares import Share, share_of
from batchq.core.quota.ledger import given_back
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim


class Drf:
    name = "drf"

    def group_order(self, session: Session, group: GroupState) -> Share:
        return dominant_share(session, session.ledger.charged(group))

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool:
        charged = session.ledger.charged
        asked = larger(charged(preemptor), preemptor.reservation)
        rest = minus(charged(victim.group), given_back(victim))
        return dominant_share(session, asked) <= dominant_share(session, rest)


def dominant_share(session: Session, held: Mapping[str, int]) -> Share:
    """Return the largest fraction of the ready nodes' resources that is held, over their
    dimensions.

    A dimension that no node has, which an external group may request, does not count.
    """
    cluster = session.nodes.ready
    return share_of({name: units for name, units in held.items() if name in cluster}, cluster)
