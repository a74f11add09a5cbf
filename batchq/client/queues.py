"""Views of queues: usage, shares, loans between queues, and the order of victims.

Computed on a session. A queue is charged for the groups in it and in all queues below it: `used` is
what their pods hold on nodes (live), `reserved` is what is kept for them beyond that (promise).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Amounts, Pod
from batchq.api.resources import PODS, minus, of_pod, plus, total
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.api.views import FirstToGo, Loan, QueueView, Stop
from batchq.core.preemption.candidates import share_path, victim_key
from batchq.core.quota.fair_shares import deserved_of_queues, share_of_queue
from batchq.core.quota.queue_tree import ROOT, QueueTree
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

__all__ = ["ROOT", "FirstToGo", "Loan", "QueueView", "Stop"]


def queue_views(session: Session) -> list[QueueView]:
    """Return every queue, each before the queues below it, siblings by name."""
    tree = session.tree
    sums = _Sums(session)
    deserved = deserved_of_queues(session)
    return [_view(session, tree, sums, deserved, name) for name in _in_tree_order(session)]


def lenders(views: Sequence[QueueView], tree: QueueTree, name: str) -> list[Loan]:
    """Return the siblings of the queue and of its ancestors that deserve more than they hold, in
    resources that this queue borrows.
    """
    by_name = {view.name: view for view in views}
    borrowed = by_name[name].borrowed
    found = []
    for other in _beside(tree, name):
        view = by_name[other]
        rest = _only(_resources(minus(view.deserved, view.charged)), borrowed)
        if rest:
            found.append(Loan(other, rest))
    return found


def borrowers(views: Sequence[QueueView], tree: QueueTree, name: str) -> list[Loan]:
    """Return the siblings of the queue and of its ancestors that hold more than they deserve, in
    resources of which this queue holds less than it deserves.
    """
    by_name = {view.name: view for view in views}
    lent = _resources(minus(by_name[name].deserved, by_name[name].charged))
    found = []
    for other in _beside(tree, name):
        over = _only(by_name[other].borrowed, lent)
        if over:
            found.append(Loan(other, over))
    return found


def first_to_go(session: Session, name: str) -> list[FirstToGo]:
    """Return a queue's groups in the order in which preemption would choose victims.

    The order is that of batchq.core.preemption.candidates: pods beyond minMember first, then whole
    groups; among these by lowest priority, largest share of the queue, latest start, uid. Groups
    that are stopping already are left out; groups that a policy protects are not.
    """
    groups = [
        group
        for group in session.groups.values()
        if name in group.chain and group.phase not in TERMINAL and group.charge()
    ]
    groups = [group for group in groups if not _is_leaving(session, group)]
    groups.sort(key=victim_key)
    groups.sort(key=lambda group: share_path(session, group.queue), reverse=True)
    groups.sort(key=lambda group: group.priority)
    extras = [(group, _beyond_minimum(group)) for group in groups]
    return [
        *(_first_to_go(group, pods, whole=False) for group, pods in extras if pods),
        *(_first_to_go(group, _on_nodes(group), whole=True) for group in groups),
    ]


# --- parts ------------------------------------------------------------------------------------


class _Sums:
    """Counts and sums per queue; each group counts in its queue and in all queues above it."""

    def __init__(self, session: Session) -> None:
        self.used: dict[str, Amounts] = {}
        self.pending: dict[str, Amounts] = {}
        self.waiting: dict[str, int] = {}
        self.admitted: dict[str, int] = {}
        self.running: dict[str, int] = {}
        for group in session.groups.values():
            self._count(group)
        for queue in session.queues.values():
            asked = total(group.reservation for group in queue.line)
            for name in session.tree.chain(queue.name):
                self.pending[name] = plus(self.pending.get(name, {}), asked)
                self.waiting[name] = self.waiting.get(name, 0) + len(queue.line)

    def _count(self, group: GroupState) -> None:
        held, phase = group.held, group.phase
        for name in group.chain:
            if held:
                self.used[name] = plus(self.used.get(name, {}), held)
            if phase in ADMITTED:
                self.admitted[name] = self.admitted.get(name, 0) + 1
            if phase == PodGroupPhase.RUNNING:
                self.running[name] = self.running.get(name, 0) + 1


def _view(
    session: Session,
    tree: QueueTree,
    sums: _Sums,
    deserved: Mapping[str, Amounts],
    name: str,
) -> QueueView:
    charged = dict(session.ledger.sums.get(queue_scope(name), {}))
    used, rightful = sums.used.get(name, {}), deserved.get(name, {})
    return QueueView(
        queue=session.queues[name].record,
        parent=tree.parent_of.get(name, "" if name == ROOT else ROOT),
        children=tree.children_of.get(name, ()),
        depth=max(0, len(tree.chain(name)) - (1 if ROOT in session.queues else 2)),
        used=used,
        reserved=_resources(minus(charged, used)),
        charged=charged,
        borrowed=_resources(minus(charged, rightful)),
        pending_groups=sums.waiting.get(name, 0),
        pending=sums.pending.get(name, {}),
        admitted_groups=sums.admitted.get(name, 0),
        running_groups=sums.running.get(name, 0),
        deserved=rightful,
        guarantee=dict(tree.guarantee(name)),
        share=share_of_queue(session, name).rounded(),
        stops=_stops(session, tree.chain(name)),
    )


def _in_tree_order(session: Session) -> list[str]:
    """Return the existing queues, each before the queues below it."""
    below = session.tree.children_of
    found: list[str] = []
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        found.append(name)
        waiting.extend(reversed(below.get(name, ())))
    # Every session has the queue `default`; if the tree leaves it out, it comes last.
    rest = set(session.queues).difference(found)
    return [*(name for name in found if name in session.queues), *sorted(rest)]


def _stops(session: Session, chain: Iterable[str]) -> tuple[Stop, ...]:
    records = [session.queues[name].record for name in chain if name in session.queues]
    return tuple(
        Stop(record.metadata.name, record.spec.stop_policy)
        for record in records
        if record.spec.stop_policy != "None"
    )


def _beside(tree: QueueTree, name: str) -> list[str]:
    """Return the siblings of a queue and of its ancestors, the nearest first."""
    return [other for one in reversed(tree.chain(name)) for other in tree.siblings(one)]


def _resources(amounts: Amounts) -> Amounts:
    """Return the amounts without counts of pods and groups, which cannot be borrowed."""
    return {name: units for name, units in amounts.items() if name not in (PODS, POD_GROUPS)}


def _only(amounts: Amounts, where: Mapping[str, int]) -> Amounts:
    return {name: units for name, units in sorted(amounts.items()) if where.get(name)}


def _is_leaving(session: Session, group: GroupState) -> bool:
    pledged = session.victims.pledged
    return group.uid in pledged or any(
        pod.status.terminating or pod.metadata.uid in pledged for pod in _on_nodes(group)
    )


def _on_nodes(group: GroupState) -> list[Pod]:
    pods = [pod for pod in group.current() if pod.status.phase in ON_NODE]
    return sorted(pods, key=lambda pod: (group.shape_of(pod).first, pod.spec.index))


def _beyond_minimum(group: GroupState) -> list[Pod]:
    ended = sum(pod.status.phase == PodPhase.SUCCEEDED for pod in group.current())
    return _on_nodes(group)[max(0, group.min_member - ended) :]


def _first_to_go(group: GroupState, pods: list[Pod], *, whole: bool) -> FirstToGo:
    gives = group.charge() if whole else total(of_pod(pod.spec.requests) for pod in pods)
    return FirstToGo(
        key=group.key,
        queue=group.queue,
        priority=group.priority,
        whole=whole,
        pods=len(pods),
        gives=_resources(gives),
        started_at=group.status.started_at,
    )
