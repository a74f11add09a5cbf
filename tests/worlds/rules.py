"""The rules of preempt and reclaim, one function each.

A rule about one session gets the session as opened on the snapshot (`before`) and the session with
its decisions (`after`). It raises Broken with the story.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from batchq.api import intents
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.reasons import Waiting
from batchq.api.resources import Amounts, larger, of_pod, plus
from batchq.api.transaction import CLUSTER, POD_GROUPS, queue_scope
from batchq.core.kept_capacity import awaits_victims, gives_way_to, promised_to
from batchq.core.pending_queue import blockers
from batchq.core.placement.elastic import node_for_extra, waiting_extras, waits_behind
from batchq.core.placement.trial import refused_by_nodes
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import comparable, deserved_of_queues
from batchq.core.quota.limit_checks import over_any_limit, over_limit_with
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.transitions import shape_at

PROTECTED = frozenset({"system", "kube-system"})


class Broken(AssertionError):
    """A rule is violated; the message names the rule and the objects."""


def evictions(session: Session) -> list[intents.Evict]:
    """Return the pods that preempt and reclaim have told to stop in this session."""
    return [intent for intent in session.intents if isinstance(intent, intents.Evict) and intent.by]


def no_limit_is_exceeded(before: Session, after: Session) -> None:
    """In every scope the ledger is at most the limit, unless it exceeded the limit before."""
    for scope, sums in after.ledger.sums.items():
        for resource, units in sums.items():
            limit = after.ledger.limit(scope, resource)
            if limit is None or (scope == CLUSTER and resource == POD_GROUPS):
                continue
            if units > max(limit, before.ledger.used(scope, resource)):
                raise Broken(f"{scope} holds {units} of {resource}, and may hold {limit}")


def guarantees_stay_available(before: Session, after: Session) -> None:
    """Rule 3: below each queue, the children's charges, or their guarantees if larger, fit."""
    tree = after.tree
    for parent, children in tree.children_of.items():
        scope = queue_scope(parent)
        for resource in sorted({name for child in children for name in tree.guarantee(child)}):
            of = scope
            if parent == ROOT and after.ledger.limit(scope, resource) is None:
                of = CLUSTER
                if any(group.is_external for group in after.groups.values()):
                    continue
            limit = after.ledger.limit(of, resource)
            if limit is None:
                continue
            was, now = (
                one.ledger.used(of, resource)
                + sum(
                    max(0, tree.guarantee(child).get(resource, 0)
                        - one.ledger.used(queue_scope(child), resource))
                    for child in children
                )
                for one in (before, after)
            )  # fmt: skip
            # A preemptor and its victims of another queue are counted once here, and each in its
            # own queue. If it starts before they have ended, within its queue's guarantee, or
            # counts on other victims instead, both are charged again; so they are if it then counts
            # on the same victims for one more pod.
            both = sum(
                before.ledger.owed(group).get(of, {}).get(resource, 0)
                for group in before.groups.values()
                if not _still_counts_on_the_same(after, group)
            )
            if now > max(limit, was) + both:
                raise Broken(
                    f"below {parent}, {now} of {resource} are held or guaranteed, of {limit}"
                )


def _still_counts_on_the_same(after: Session, group: GroupState) -> bool:
    if group.uid not in after.groups:
        return False
    then, now = group.status.pledge, after.groups[group.uid].status.pledge
    return (now.holds, now.made_at) == (then.holds, then.made_at)


def every_victim_is_pledged_to_its_preemptor(before: Session, after: Session) -> None:
    """Every eviction has a pledge that names the pod, and each pod is pledged once.

    Preemptors are decided one after the other. The victims of a later one may let an earlier one
    fit without its own victims: the earlier one then starts at once, and its pledge ends. So may a
    preemptor that loses its reservation, because a later one takes over its pledge. The same holds
    if a victim that leaves whole has pods without a node, because their promise is released
    at once.
    """
    owners: dict[str, str] = {}
    for group in after.groups.values():
        if group.phase in TERMINAL:
            # A cancelled group loses its reservation, and the pledge in its record.
            continue
        for uid in group.status.pledge.holds:
            if uid in owners:
                raise Broken(f"{uid} is pledged to {owners[uid]} and to {group.key}")
            owners[uid] = group.key
        has_left = group.phase == PodGroupPhase.PENDING and not group.reserved
        if group.status.pledge.stands and has_left:
            raise Broken(f"{group.key} has a pledge and no reservation")
    result = evictions(after)
    admitted = {one.group for one in after.intents if isinstance(one, intents.AdmitGroup)}
    ended = {one.group for one in after.intents if isinstance(one, intents.EndPledge)}
    outranked = any(
        isinstance(one, intents.RollBack) and one.reason == "Preempted" and one.group in ended
        for one in after.intents
    )
    for place, intent in enumerate(result):
        later = outranked or any(other.by != intent.by for other in result[place:])
        if intent.uid not in owners and intent.by in admitted and later:
            continue
        at_once = intent.by in ended and _gave_at_once(before, after, intent.by)
        if intent.uid not in owners and at_once:
            continue
        if owners.get(intent.uid) != intent.by:
            owner = owners.get(intent.uid, "none")
            raise Broken(f"{intent.pod} was evicted for {intent.by}, and is pledged to {owner}")


def _gave_at_once(before: Session, after: Session, preemptor: str) -> bool:
    """Return whether any group that left whole for a preemptor was promised more than its pods
    held.
    """
    left = {one.group for one in after.intents if isinstance(one, intents.RollBack)}
    return any(
        promised_to(before.by_key[key])
        for key in left
        if after.by_key[key].status.evictions.last_by == preemptor
        and after.by_key[key].status.evictions.last_at == after.now_ms
    )


def only_permitted_victims_are_evicted(before: Session, after: Session) -> None:
    """preempt takes only whole groups of lower priority; reclaim never takes from reclaimable:
    false. Neither takes from protected namespaces, nor for a class that preempts nothing.
    """
    left = {one.group for one in after.intents if isinstance(one, intents.RollBack)}
    for intent in evictions(after):
        victim, preemptor = after.by_key[intent.group], after.by_key[intent.by]
        if victim.namespace in PROTECTED:
            raise Broken(f"{victim.key} is protected, and {intent.pod} was evicted")
        if preemptor.record.spec.priority_class_name == "polite":
            raise Broken(f"{preemptor.key} may take nothing, and {intent.pod} was evicted for it")
        if intent.action == "preempt":
            _only_the_less_important(victim, preemptor, whole=victim.key in left)
        else:
            _only_from_lenders(after, victim, preemptor)


def _only_the_less_important(victim: GroupState, preemptor: GroupState, *, whole: bool) -> None:
    strictly = whole or victim.is_array
    if victim.queue != preemptor.queue:
        raise Broken(f"{preemptor.key} preempted {victim.key} of another queue")
    if victim.priority > preemptor.priority or (strictly and victim.priority == preemptor.priority):
        raise Broken(
            f"{preemptor.key} of priority {preemptor.priority} preempted {victim.key} of priority"
            f" {victim.priority}{', whole' if whole else ''}"
        )


def _only_from_lenders(after: Session, victim: GroupState, preemptor: GroupState) -> None:
    if victim.queue == preemptor.queue:
        raise Broken(f"{preemptor.key} reclaimed from its own queue")
    _, giving = after.tree.divide(preemptor.queue, victim.queue)
    for queue in giving:
        if not after.queues[queue].record.spec.reclaimable:
            raise Broken(f"{preemptor.key} reclaimed from {queue}, which is not reclaimable")


def reclaim_leaves_queues_their_guarantee(before: Session, after: Session) -> None:
    """The victims' queues hold at least their guarantee after the victims have ended. Pods that a
    queue's own groups take from each other afterwards do not count.
    """
    taken = [intent for intent in evictions(after) if intent.action == "reclaim"]
    if any(intent.action == "preempt" for intent in evictions(after)):
        return
    for place, intent in enumerate(taken):
        victim, preemptor = after.by_key[intent.group], after.by_key[intent.by]
        gives = victim.pods[intent.uid].spec.requests
        for queue in after.tree.divide(preemptor.queue, victim.queue)[1]:
            as_before = {
                key: before.by_key[key]
                for later in taken[place + 1 :]
                if queue in after.by_key[later.by].chain
                for key in (later.by, later.group)
            }
            for resource, units in after.tree.guarantee(queue).items():
                rest = sum(
                    _charge_once_all_have_ended(after, as_before.get(key, group)).get(resource, 0)
                    for key, group in after.by_key.items()
                    if queue in group.chain
                )
                if gives.get(resource) and rest < units:
                    raise Broken(
                        f"{queue} is guaranteed {units} of {resource}, and keeps {rest} when"
                        f" {intent.pod} has been reclaimed for {preemptor.key}"
                    )


def _charge_once_all_have_ended(after: Session, group: GroupState) -> Amounts:
    held: Amounts = {}
    if group.is_external and not after.ledger.preemptors.get(group.uid):
        # The end of an external consumer is unknown; its group stays charged until then.
        held = group.held
    for pod in group.pods.values():
        if pod.status.phase in ON_NODE and not pod.status.terminating:
            held = plus(held, of_pod(pod.spec.requests))
    return larger(held, group.status.reservation) if group.reserved else held


def gangs_stay_whole_or_leave_whole(before: Session, after: Session) -> None:
    """A group loses pods to others only beyond its gang, unless it leaves with all of them. A task
    that lost no pod to others may still fall short, because pods exceed their walltimes.
    """
    for key in sorted({intent.group for intent in evictions(after)}):
        group = after.by_key[key]
        if is_admitted(group):
            taken = {
                group.pods[intent.uid].spec.task
                for intent in evictions(after)
                if intent.group == key
            }
            tasks = [shape.task for shape in group.tasks]
            least = {task.name: task.min_available for task in tasks if task.name in taken}
            if sum(group.placed.values()) < group.min_member or any(
                group.placed.get(task, 0) < units for task, units in least.items()
            ):
                raise Broken(f"{key} was left with {group.placed}, and needs {group.min_member}")
        else:
            stays = [
                pod.metadata.name
                for pod in group.pods.values()
                if pod.status.phase in ON_NODE and not pod.status.terminating
            ]
            if stays or group.reserved:
                raise Broken(f"{key} left for another, and {stays or 'its reservation'} stayed")


def no_group_enters_a_queue_that_does_not_accept_its_namespace(
    before: Session, after: Session
) -> None:
    """Without a reservation, a group gets in only if each queue on its path names its namespace, or
    none.
    """
    queues = {queue.metadata.name: queue.spec.namespaces for queue in before.snapshot.queues}
    for intent in after.intents:
        if isinstance(intent, intents.AdmitGroup | intents.ReserveQuota):
            group = before.by_key[intent.group]
            lists = [queues.get(name, ()) for name in before.tree.chain(group.queue)]
            closed = any(names and group.namespace not in names for names in lists)
            if closed and not group.reserved:
                raise Broken(f"{group.key} got into {group.queue}, which accepts {lists}")


AFTER_EVERY_SESSION = (
    no_group_enters_a_queue_that_does_not_accept_its_namespace,
    no_limit_is_exceeded,
    guarantees_stay_available,
    every_victim_is_pledged_to_its_preemptor,
    only_permitted_victims_are_evicted,
    reclaim_leaves_queues_their_guarantee,
    gangs_stay_whole_or_leave_whole,
)


def no_group_waits_for_free_capacity(last: Session) -> None:
    """Work conservation: no group in line could be admitted, and no waiting pod could be bound."""
    for group in last.groups.values():
        if group.phase == PodGroupPhase.PENDING:
            refusals = last.refusals.get(group.uid, ())
            waits_behind = any(one.reason == Waiting.WAITING_FOR_TURN for one in refusals)
            against = blockers(last, group) or refused_by_nodes(last, group)
            if not waits_behind and not against and not _is_held_off(last, group):
                raise Broken(f"{group.key} waits, although nothing prevents its admission")
            only_room = {Waiting.WAITING_FOR_QUOTA, Waiting.WAITING_FOR_RESOURCES}
            if (
                refusals
                and {one.reason for one in refusals} <= only_room
                and not over_any_limit(last, group)
                and not last.refusals_at("admissible", group)
                and not refused_by_nodes(last, group)
                and not _is_held_off(last, group)
            ):
                raise Broken(
                    f"{group.key} is refused for lack of capacity, although there is enough"
                )
        elif is_admitted(group) and not group.is_external and last.group_ready(group):
            for task in () if _is_held_off(last, group) else _bindable(last, group):
                raise Broken(f"a pod of {group.key}, task {task}, waits, although a node takes it")


def _is_held_off(last: Session, group: GroupState) -> bool:
    """Return whether another group has waited so long that nodes may be held for it."""
    half = last.settings.in_queue_timeout_ms // 2
    return any(
        one is not group and last.now_ms - (one.status.nodes_lacked_at or last.now_ms) > half
        for one in last.carried.waits_for_nodes.values()
    )


def _bindable(session: Session, group: GroupState) -> Iterator[str]:
    if session.nodes.binding_refused is not None or gives_way_to(session, group) is not None:
        return
    if waits_behind(session, group):
        return
    for extra in waiting_extras(session, group):
        shape = shape_at(group, extra) if isinstance(extra, int) else group.shape_of(extra)
        fits = node_for_extra(session, group, shape, {}, 0) is not None
        if fits and not over_limit_with(session, group, shape):
            yield shape.task.name


def no_pledge_is_left(last: Session) -> None:
    """At rest, no group waits for victims."""
    for group in last.groups.values():
        if group.status.pledge.stands and group.phase not in TERMINAL:
            waits = "victims that do not end" if awaits_victims(last, group) else "nothing"
            raise Broken(f"{group.key} still has a pledge, and waits for {waits}")


def running_groups_say_why_more_pods_wait(last: Session) -> None:
    """Report an elastic group with unbound pods that only their order holds back."""
    for group in last.groups.values():
        if is_admitted(group) and not group.is_external and last.group_ready(group):
            waiting = next(waiting_extras(last, group), None)
            if waiting is not None and not last.refusals.get(group.uid, group.status.reasons):
                raise Broken(f"{group.key} runs with pods that have no node, and does not say why")


AT_REST = (
    no_group_waits_for_free_capacity,
    no_pledge_is_left,
    running_groups_say_why_more_pods_wait,
)


_BY_THE_CLOCK = frozenset({"InQueueTimeout", "RecoveryTimeout", "Unschedulable"})


class Course:
    """What happened from session to session of one world; owns the history of its preemptors."""

    def __init__(self, *, static: bool) -> None:
        self._static = static
        self._promised: dict[str, frozenset[str]] = {}
        #: (preemptor, pod) -> how often the pod was evicted for it.
        self.taken: Counter[tuple[str, str]] = Counter()
        #: (preemptor, victim's group).
        self._between: set[tuple[str, str]] = set()
        self.sessions = 0
        self.last_eviction = 0
        #: The last session in which the clock evicted a group.
        self.last_sent_away = 0

    def follow(self, before: Session, after: Session) -> None:
        """Record one more session."""
        self.sessions += 1
        self._note_evictions(after)
        if self._static:
            self.no_victim_is_evicted_twice_for_one_preemptor()
            self._preemptors_start(before, after)

    def _note_evictions(self, after: Session) -> None:
        if any(
            isinstance(intent, intents.RollBack) and intent.reason in _BY_THE_CLOCK
            for intent in after.intents
        ):
            # A group that the clock evicts requests less during its back-off, and more again later;
            # the deserved shares follow.
            self.taken.clear()
            self._between.clear()
            self.last_sent_away = self.sessions
        sent_away = {one.group for one in after.intents if isinstance(one, intents.RollBack)}
        for preemptor, pod in list(self.taken):
            # An evicted preemptor may preempt again when it returns.
            if preemptor in sent_away:
                del self.taken[preemptor, pod]
        for intent in evictions(after):
            self.last_eviction = self.sessions
            # Pods beyond minMember follow their queue's deserved share, one by one.
            if not after.by_key[intent.by].status.pledge.extra:
                self.taken[intent.by, intent.pod] += 1
                if not _borrows(after, after.by_key[intent.by]):
                    self._between.add((intent.by, intent.group))

    def no_victim_is_evicted_twice_for_one_preemptor(self) -> None:
        """In a static world a preemptor evicts a victim once, and no two groups evict each other in
        turn, unless one did so while its queue borrowed: the victim's queue then reclaims what it
        deserves.
        """
        for (preemptor, pod), times in self.taken.items():
            if times > 1:
                raise Broken(f"{pod} was evicted {times} times for {preemptor}")
        for one, other in self._between:
            # The exception are worlds in which clocks evict groups that return later: the deserved
            # shares then change.
            if (other, one) in self._between and not self.last_sent_away:
                raise Broken(f"{one} and {other} evict each other in turn")

    def _preemptors_start(self, before: Session, after: Session) -> None:
        """A pledge ends because its preemptor has what it was promised, or was itself evicted."""
        for group in before.groups.values():
            pledge = group.status.pledge
            now = after.groups[group.uid]
            if not pledge.stands or now.status.pledge.stands:
                continue
            for intent in after.intents:
                if isinstance(intent, intents.RollBack) and intent.group == group.key:
                    if intent.reason in ("Preempted", "Reclaimed"):
                        break
                    raise Broken(
                        f"{group.key} had victims evicted, and left for {intent.reason}:"
                        f" {intent.message}"
                    )
            else:
                self._has_what_it_was_promised(before, after, group, now)

    def _has_what_it_was_promised(
        self, before: Session, after: Session, group: GroupState, now: GroupState
    ) -> None:
        if not is_admitted(now):
            raise Broken(f"{group.key} lost its pledge, and is {now.phase}")
        if not now.is_external and not after.group_ready(now):
            raise Broken(f"{group.key} lost its pledge, and has {now.placed}")
        pledge = group.status.pledge
        there = {
            str(group.shape_of(pod).first + pod.spec.index)
            for pod in group.current()
            if pod.status.phase in ON_NODE
        }
        wanted = len(pledge.plan.keys() - there) if pledge.extra else 0
        gained = sum(now.placed.values()) - sum(group.placed.values())
        # A binding of this session may be undone for another preemptor at no cost. Pods may have
        # found capacity elsewhere while the eviction was under way.
        waiting = next(iter(waiting_extras(after, now)), None)
        if gained < wanted and waiting is not None and not after.effects.joined:
            raise Broken(f"{group.key} was promised {wanted} more pods, and got {gained}")


def _borrows(after: Session, preemptor: GroupState) -> bool:
    """Return whether a preemptor's queue may preempt while it borrows, and holds more than it
    deserves with it.
    """
    if after.queues[preemptor.queue].record.spec.preemption.borrowing == "Never":
        return False
    deserved = deserved_of_queues(after).get(preemptor.queue, {})
    return any(
        after.ledger.used(queue_scope(preemptor.queue), name) > deserved[name]
        for name in comparable(after, preemptor.reservation)
        if name in deserved
    )
