"""drf (groupOrder, preemptable): within a queue, the group first that holds least of the cluster.

share(group) = max over the dimensions of the ready nodes of charge / what these nodes have, `pods`
apart: the dominant share of Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, of groups
instead of users; compared exactly, by cross-multiplication. The charge of a Pending group is zero,
so that groups without any charge come in the order of the plugins that follow, and of queue time.

preemptable, one of those that agree: yes if share(claimant with what it asks for) <=
share(victim's group without the victim), else a refusal. It is kube-batch's rule without its
tolerance of 1e-6, and two groups that follow it never take turns at each other: the victim's
group keeps at least what the claimant ends with. A group that leaves whole keeps nothing, so with
this plugin on no group is preempted whole, whatever its priority: groups only even out their pods
beyond minMember. Nothing is said between queues.

A refused victim is asked for again in the next session in which somebody claims; the answer
changes when either group's charge or the ready nodes change.
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

    def preemptable(self, session: Session, claimant: GroupState, victim: Victim) -> bool:
        charged = session.ledger.charged
        asked = larger(charged(claimant), claimant.reservation)
        rest = minus(charged(victim.group), given_back(victim))
        return dominant_share(session, asked) <= dominant_share(session, rest)


def dominant_share(session: Session, held: Mapping[str, int]) -> Share:
    """The largest part that somebody holds of what the ready nodes have.

    What no node has, as an external group may ask for, is nobody's share of the cluster.
    """
    cluster = session.nodes.ready
    return share_of({name: units for name, units in held.items() if name in cluster}, cluster)
