"""preempt: within a queue, groups take capacity from groups of lower priority.

Preemptors are gangs that wait for nothing but capacity. Victims are of the same queue: pods beyond
minMember of groups of at most the preemptor's priority (of an array: lower only), then whole groups
of strictly lower priority. The preemptor uses the capacity of its victims and idle capacity, so its
queue may end above what it deserves. If these victims do not suffice, borrowers in other queues may
be evicted as well (`batchq.core.preemption.preemptors`). The rules follow Kueue's preemption within
a ClusterQueue; docs/faults.md lists the faults of kube-batch that they avoid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from batchq.api.notation import counted
from batchq.core.preemption.order import (
    choose_new_victims,
    serve_gang,
    serve_preemptors,
    why_no_request,
    why_spared,
)
from batchq.core.preemption.preemptors import (
    HELD_PRIORITIES,
    POINTS,
    PREEMPT,
    PodRequest,
    WithinQueue,
    gang_preemptors,
    has_victims,
)
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState


class Preempt:
    """Take capacity for a gang from its own queue."""

    name = PREEMPT

    def execute(self, session: Session) -> None:
        # 1. Pledges whose victims or nodes are gone come first: what others take now might be what
        #    these preemptors need.
        choose_new_victims(session, self.name)
        # 2. Most sessions end here: all groups have one priority, and hold nothing to spare.
        if _all_are_equal(session):
            return
        # 3. Preemptors without victims are left out before fair shares are worked out, which costs
        #    more than looking for victims.
        preemptors = gang_preemptors(session, partial(_prefilter, session), self.name)
        if preemptors.may_any(partial(has_victims, session)):
            # 4. One preemptor after the other, the queue with the lowest share first.
            serve_preemptors(session, preemptors, partial(serve_gang, action=self.name))

    def spares(self, session: Session, group: GroupState) -> list[str]:
        """Return why no group of its own queue is evicted for a group, for `batchq why`."""
        queue = session.queues.get(group.queue)
        if queue is None:
            return []
        if queue.record.spec.preemption.within_queue == "Never":
            return [
                f"queue {queue.name} evicts none of its own groups (preemption.withinQueue Never)"
            ]
        if why := why_no_request(session, group):
            return [why]
        if not has_victims(session, group):
            return [_without_lower_priority(session, group)]
        return why_spared(session, WithinQueue(group), POINTS[PREEMPT], [group.queue])


def _prefilter(session: Session, name: str) -> Callable[[PodRequest], bool] | None:
    """Return a quick test whether a request in a queue could have victims; see `has_victims`."""
    if session.queues[name].record.spec.preemption.within_queue == "Never":
        return None
    if not session.ledger.holding.get(name):
        return None
    held = session.get(HELD_PRIORITIES)
    return lambda request: held.any_below(session, name, request.priority)


def _without_lower_priority(session: Session, group: GroupState) -> str:
    """Return the sentence that no group has a lower priority than the preemptor."""
    holding = session.ledger.holding.get(group.queue, {}).values()
    others = [other.priority for other in holding if other is not group]
    if not others:
        return f"no other group in queue {group.queue} holds anything"
    return (
        f"its priority is {group.priority}, and no group in queue {group.queue} has a lower one:"
        f" the lowest of {counted(len(others), 'group')} is {min(others)}"
    )


def _all_are_equal(session: Session) -> bool:
    """Return whether no preemptor can have victims: all groups have the same priority, and none
    holds anything beyond minMember.
    """
    if session.snapshot.priority_classes:
        return False
    # Every charged group is looked at, and each step of a generator would be a call.
    elastic = [
        one
        for holding in session.ledger.holding.values()
        for one in holding.values()
        if one.is_elastic
    ]
    return all(one.is_array for one in elastic)
