"""reclaim: queues that hold less than they deserve take back what other queues borrow.

A victim's queue, and each of its ancestors below the common ancestor with the preemptor's queue,
holds more than it deserves in a dimension that the preemptor lacks, and keeps what is guaranteed to
it. The preemptor's queue ends at or below what it deserves, so it does not become a victim in turn.
Queues with equal shares never evict each other. After gangs, pods beyond minMember reclaim one at a
time, from such pods of other queues or from groups no larger than what their own queue lacks, so
that queues end at equal shares.

Sources: Kueue's reclaimWithinCohort, Volcano's reclaim with the capacity plugin; kube-batch's
reclaim never stopped evicting (docs/faults.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from batchq.api.resources import Amounts, minus, plus
from batchq.api.transaction import queue_scope
from batchq.core.placement.elastic import waiting_extras
from batchq.core.preemption.candidates import pledged_in
from batchq.core.preemption.evictions import exceeds
from batchq.core.preemption.order import (
    choose_new_victims,
    ends_above_text,
    let_happen,
    serve_gang,
    serve_preemptors,
    why_no_request,
    why_spared,
)
from batchq.core.preemption.preemptors import (
    POINTS,
    PREEMPT,
    RECLAIM,
    ExtraRequest,
    FromOthers,
    GangFromOthers,
    GangRequest,
    PodRequest,
    elastic_preemptors,
    fits_in_head_reservations,
    gang_preemptors,
    is_elastic_preemptor,
    may_reclaim,
)
from batchq.core.preemption.search import Decision, find_victims
from batchq.core.quota.fair_shares import comparable, deserved_of_queues
from batchq.core.quota.selector import borrowers_of
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Shortage, Victim
from batchq.core.session.transitions import shape_of_extra

POINT = POINTS[RECLAIM]
#: The most pods of one group that may evict in one session; the next session goes on.
_MOST_EXTRAS = 1_000


class Reclaim:
    """Take capacity for gangs and single pods from other queues."""

    name = RECLAIM

    def execute(self, session: Session) -> None:
        if len(session.queues) < 2:
            return
        # 1. Pledges whose victims or nodes are gone come first: what others take now might be what
        #    these preemptors need.
        choose_new_victims(session, self.name)
        # 2. Gangs, the queue with the lowest share first: without its gang a group does not start.
        exist = borrowers_of(session, POINT).exist()
        prefilter = partial(_prefilter, session) if exist else _nothing_to_take
        serve = partial(serve_gang, action=self.name)
        serve_preemptors(session, gang_preemptors(session, prefilter, self.name), serve)
        # 3. Single pods of running groups, with what gangs have left.
        serve_preemptors(session, elastic_preemptors(session), _serve_extras)

    def spares(self, session: Session, group: GroupState) -> list[str]:
        """Return why no group of another queue is evicted for a group, for `batchq why`."""
        queue = session.queues.get(group.queue)
        if queue is None or len(session.queues) < 2:
            return []
        if queue.record.spec.preemption.reclaim == "Never":
            return [f"queue {queue.name} takes nothing back from others (preemption.reclaim Never)"]
        if why := why_no_request(session, group):
            return [why]
        need = minus(group.reservation, session.ledger.charged(group))
        if not may_reclaim(session, group, need, group.reservation):
            return list(_where_it_ends(session, group, need))
        queues = borrowers_of(session, POINT).others(group.queue)
        if not queues:
            return ["no other queue holds more than it deserves"]
        if fits_in_head_reservations(session, GangRequest(group)):
            return ["it would fit into the head reservation of another queue"]
        request = GangFromOthers(preemptor=group, need=need, asked=group.reservation)
        return [*_keepers(session, queues), *why_spared(session, request, POINT, queues)]


def _nothing_to_take(name: str) -> None:
    """Return None: no queue holds more than it deserves."""


def _prefilter(session: Session, name: str) -> Callable[[PodRequest], bool] | None:
    """Return a quick test whether a request in a queue could reclaim; see `may_reclaim`."""
    policy = session.queues[name].record.spec.preemption
    if policy.reclaim == "Never" or not borrowers_of(session, POINT).exist_beside(name):
        return None
    if policy.borrowing != "Never":
        return lambda request: True
    deserved, scope = deserved_of_queues(session).get(name, {}), queue_scope(name)
    given = pledged_in(session, name)
    lacking = {
        resource: deserved[resource] - session.ledger.used(scope, resource) + given.get(resource, 0)
        for resource in comparable(session, deserved)
    }
    lowest = _lowest_to_give(session, name)
    return lambda request: (
        (lowest is not None and request.priority >= lowest)
        or all(
            units <= lacking[resource]
            for resource, units in request.asks.items()
            if resource in lacking
        )
    )


def _lowest_to_give(session: Session, name: str) -> int | None:
    """Return the lowest priority in a queue whose own groups may complete what others give back;
    None where they may not.
    """
    if PREEMPT not in session.actions:
        return None
    if session.queues[name].record.spec.preemption.within_queue == "Never":
        return None
    holding = session.ledger.holding.get(name, {})
    return min((group.priority for group in holding.values()), default=None)


def _where_it_ends(session: Session, group: GroupState, need: Amounts) -> Iterator[str]:
    """Yield the dimensions in which a preemptor's queue would hold more than it deserves."""
    deserved = deserved_of_queues(session).get(group.queue, {})
    for name in comparable(session, group.reservation):
        ends_at = session.ledger.used(queue_scope(group.queue), name) + need.get(name, 0)
        if name in deserved and ends_at > deserved[name]:
            yield ends_above_text(group.queue, name, ends_at, deserved[name])


def _keepers(session: Session, queues: list[str]) -> list[str]:
    """Return a sentence for each queue that holds more than it deserves and is not reclaimable."""
    return [
        f"queue {name} holds more than it deserves, and is reclaimable: false"
        for name in queues
        if not session.queues[name].record.spec.reclaimable
    ]


def _serve_extras(session: Session, group: GroupState) -> None:
    """Evict for as many pods of a group as the rule allows, in one decision.

    What works for some pods works for fewer, so the largest number is found by bisection.
    """
    if not is_elastic_preemptor(session, group):
        # The group has been evicted for an earlier preemptor.
        return
    borrowers = borrowers_of(session, POINT)
    requests = _growing_requests(session, group)
    if not requests or not borrowers.exist_beside(group.queue):
        return
    if fits_in_head_reservations(session, requests[0]):
        return
    queues = borrowers.givers(group.queue)
    works: tuple[ExtrasFromOthers, Decision] | None = None
    least, most = 1, len(requests)
    while least <= most:
        middle = (least + most + 1) // 2
        decision = find_victims(session, requests[middle - 1], queues)
        if decision is None or (middle > 1 and exceeds(session, decision)):
            most = middle - 1
        else:
            works, least = (requests[middle - 1], decision), middle + 1
    if works is not None:
        let_happen(session, *works, action=Reclaim.name)


def _growing_requests(session: Session, group: GroupState) -> list[ExtrasFromOthers]:
    """Return requests for one pod, for two, and so on, while the queue stays within its share."""
    requests: list[ExtrasFromOthers] = []
    asked: Amounts = {}
    lacks = _lacks(session, group)
    for count, extra in enumerate(waiting_extras(session, group), start=1):
        shape = shape_of_extra(group, extra)
        asked = plus(asked, shape.requests)
        if not may_reclaim(session, group, asked, asked) or count > _MOST_EXTRAS:
            break
        requests.append(ExtrasFromOthers(group, count, asked, asked, lacks))
    return requests


def _lacks(session: Session, group: GroupState) -> Amounts:
    """Return how much the queue of a group holds less than it deserves."""
    deserved = deserved_of_queues(session).get(group.queue, {})
    used = session.ledger.sums.get(queue_scope(group.queue), {})
    return {
        name: max(0, deserved[name] - used.get(name, 0)) for name in comparable(session, deserved)
    }


@dataclass(frozen=True)
class ExtrasFromOthers(FromOthers, ExtraRequest):
    """A request for single pods; no whole group that is larger than `lacks` is evicted for them."""

    need: Amounts
    asked: Amounts
    lacks: Amounts

    def may_take(self, session: Session, victim: Victim, shortage: Shortage) -> bool:
        """Return what a gang may take, without large groups."""
        if victim.whole and not self._is_small(session, victim.group, shortage.fitting):
            return False
        return super().may_take(session, victim, shortage)

    def _is_small(self, session: Session, group: GroupState, fitting: Amounts) -> bool:
        """Return whether a group is no larger than what the queue lacks beside the fitting pods."""
        charge = session.ledger.charged(group)
        return all(
            charge[name] + fitting.get(name, 0) <= self.lacks.get(name, 0)
            for name in comparable(session, charge)
        )
