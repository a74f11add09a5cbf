"""What a session takes over from the one before: all that nothing has happened to.

A session's groups, nodes, lines and sums are those of the session before, put right for what has
changed since: records that the snapshot has anew, and what that session itself had moved. So what a
session costs follows what changed, and not how much waits.

Groups are kept by what becomes of them:

| kept in  | who                                                    | costs a session    |
|----------|--------------------------------------------------------|--------------------|
| `busy`   | whoever holds, is owed or runs anything, or has clocks | a few looks each   |
| a class  | records that wait, alike                               | nothing, asleep    |
| a line   | others that wait, one by one                           | a look each        |
| asleep   | out of line until something happens (batchq.core.pending.inadmissible) | nothing    |
| over     | ended, until their time to be forgotten comes          | nothing            |

It changes no decision: without it, every state would be built again, and be equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    DEFAULT,
    Metadata,
    PodGroup,
    PriorityClass,
    Queue,
    ResourceQuota,
    key_of,
)
from batchq.api.resources import Amounts, scaled
from batchq.api.transaction import CLUSTER, hard_limit, limit_of_queue, namespace_scope, queue_scope
from batchq.core.cache.chunks import Ordered
from batchq.core.cache.node_cache import NodeCache
from batchq.core.extension.registry import PluginRegistry
from batchq.core.pending.equivalence import WakeUpIndex
from batchq.core.placement.node_refusals import NODE_REFUSALS, NodeRefusals
from batchq.core.preemption.pledges import note_pledge, owed_to
from batchq.core.quota.fair_shares import ENDED, EndedUsage
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.queue_tree import QueueTree, scopes_in
from batchq.core.session.settings import Instrument
from batchq.core.session.snapshot import Snapshot, groups_changed, pods_changed
from batchq.core.session.specs import GroupShape, Shapes
from batchq.core.session.state import GroupState, PendingQueue, QueueState

if TYPE_CHECKING:
    from batchq.core.extension.points import PluginPlaces, Registration
    from batchq.core.extension.traits import LiftedBy
    from batchq.core.pending.inadmissible import InadmissibleGroups
    from batchq.core.session.session import Session

#: Of so many namespaces and queues it is remembered where their groups are summed.
_MOST_SCOPES = 10_000


class SchedulerCache:
    """Owner of the last session's states; belongs to one scheduler. A session's states are good
    until the next one begins.
    """

    def __init__(self) -> None:
        self._panel: PluginRegistry | None = None
        self.machines = NodeCache()
        self.forget()

    def forget(self) -> None:
        """Begin from nothing."""
        # Groups that sleep until nodes change notice that nothing is known of these any more.
        self.machines = NodeCache(self.machines.version + 1)
        self.tree = QueueTree(())
        self.groups: dict[str, GroupState] = {}
        self.by_key: dict[str, GroupState] = {}
        self.queues: dict[str, QueueState] = {}
        #: Those of queues that there are not.
        self.strayed = PendingQueue()
        self.busy: Ordered[GroupState] = Ordered()
        self.watches = WakeUpIndex()
        self.node_refusals = NodeRefusals()
        #: By uid: groups whose records say which places are kept for them; and those that wait for
        #: nodes alone and say since when.
        self.placed: dict[str, GroupState] = {}
        self.waits_for_nodes: dict[str, GroupState] = {}
        #: Groups whose records say what is set aside for them on nodes, by uid.
        self.heads_on_nodes: dict[str, GroupState] = {}
        self.ledger = LedgerView({})
        #: What groups that are over have used.
        self.ended = EndedUsage()
        #: Uid -> those that depend on it, by uid.
        self.dependents: dict[str, dict[str, None]] = {}
        self._seen = Snapshot()
        self._judged_by: tuple[object, ...] = ()
        self._limits_of: tuple[object, ...] = ()
        self._shapes = Shapes(gates_hold=True)
        self._scopes: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self._world: object = None
        #: Class -> priority, and that of those who name none; queue -> checks that it asks for.
        self._classes: tuple[Mapping[str, int], int] = ({}, 0)
        self._checks: dict[str, tuple[str, ...]] = {}
        #: The queues whose groups have any to pass.
        self._checked: set[str] = set()
        #: Groups that wait and whose gang could be made up of different pods, by uid.
        self._with_choice: dict[str, GroupState] = {}
        self._nodes_version = -1
        #: Of the last session: whom it touched; empty once these have been put right.
        self._touched: Mapping[str, GroupState] = {}
        #: When groups that are over are to be forgotten, and their uids.
        self._over: list[tuple[int, str]] = []
        #: Claimants to which something is pledged, and who stands alone as they owe them room.
        self.claimants: dict[str, GroupState] = {}
        self._owing: set[str] = set()
        #: A session has begun to put things right, and has not come to its end.
        self._torn = False

    # --- for the session that begins ----------------------------------------------------------

    def panel(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> PluginRegistry:
        """The plugins in their places: the same for every session of the same plugins."""
        if self._panel is None or not self._panel.is_of(plugins, instrument):
            self._panel = PluginRegistry(plugins, instrument, of_session)
        self._panel.failures.clear()
        return self._panel

    def take_up(self, session: Session, parking: InadmissibleGroups) -> None:
        """Put everything right for a session that begins."""
        if self._torn:
            self.forget()
        self._torn = True
        snapshot = session.snapshot
        self._follow_queues(session)
        follow = self._put_right if self.groups else self._take_in
        entered, changed = follow(session, parking)
        self._seen, self._touched = snapshot, session.effects.touched
        woken = parking.wake(session, changed)
        for uid in woken:
            if (group := self.groups.get(uid)) is not None and group.peers is None:
                self._line_up(session, group)
        if self._world != parking.world:
            self._world = parking.world
            self._wake_classes()
        session.put(NODE_REFUSALS, self.node_refusals)
        session.put(ENDED, self.ended)
        self.node_refusals.begin(session)
        self._follow_nodes(session)
        self._bring_back_what_is_over(session)
        self._begin_ledger(session, entered)
        self._part_who_owes(session)

    def _put_right(
        self, session: Session, parking: InadmissibleGroups
    ) -> tuple[list[GroupState], list[str]]:
        """Let the states follow what has changed: the states that were built, and the uids of
        groups whose records or pods are others.
        """
        snapshot = session.snapshot
        changed = list(self._changed(snapshot))
        entered: list[GroupState] = []
        for uid, record in changed:
            if record is None:
                parking.forget(uid)
            if (state := self._replace(session, uid, record)) is not None:
                entered.append(state)
        recount = self.machines.follow(snapshot, session.now_ms, session.settings)
        session.adopt(self)
        for state in entered:
            self._place(session, parking, state)
        self.machines.count(self.busy if recount else entered)
        return entered, [uid for uid, _ in changed]

    def _take_in(
        self, session: Session, parking: InadmissibleGroups
    ) -> tuple[list[GroupState], Iterable[str]]:
        """Build every state. They may be a million: nothing is kept beside them, and of those that
        are nothing but records that wait, nothing is told.
        """
        snapshot = session.snapshot
        self.machines.follow(snapshot, session.now_ms, session.settings)
        session.adopt(self)
        entered: list[GroupState] = []
        for record in snapshot.groups:
            if record.metadata.uid in self.groups:
                # Two say that they are the same group: the first by name is.
                continue
            state = self._build(session, record.metadata.uid, record, None)
            self._place(session, parking, state)
            if not state.bare:
                entered.append(state)
        self.machines.count(entered)
        # Whoever slept and is not among them is gone.
        for uid in [uid for uid in parking.asleep if uid not in self.groups]:
            parking.forget(uid)
        return entered, chain(self.groups, parking.awaited)

    def end(self) -> None:
        """The session has come to its end: what it leaves can be taken up."""
        self._torn = False

    def next_at(self, parking: InadmissibleGroups) -> int | None:
        """When something is due of those that are over or asleep."""
        while self._over and not self._is_over(self._over[0][1]):
            heapq.heappop(self._over)
        due = [self._over[0][0]] if self._over else []
        if (at := parking.next_at()) is not None:
            due.append(at)
        return min(due, default=None)

    def lay_down(self, group: GroupState) -> None:
        """A group sleeps from now on."""
        self._line_of(group).discard(group.uid)
        if not group.bare:
            self.busy.discard(group.key)

    # --- what has changed ---------------------------------------------------------------------

    def _follow_queues(self, session: Session) -> None:
        """Queues, and what else all groups are judged by. Where the tree, its checks, or the
        classes change, nothing is left of the session before.
        """
        snapshot = session.snapshot
        if self._judged_by and all(
            one is other
            for one, other in zip(
                self._judged_by,
                (
                    snapshot.queues,
                    snapshot.priority_classes,
                    session.gates_hold,
                    session.pending.classes_may_form,
                ),
                strict=True,
            )
        ):
            return
        meant = (session.gates_hold, session.pending.classes_may_form)
        judged_by = (snapshot.queues, snapshot.priority_classes, *meant)
        tree, classes = QueueTree(snapshot.queues), priorities_of(snapshot.priority_classes)
        checks = {queue.metadata.name: queue.spec.admission_checks for queue in snapshot.queues}
        known = (self._classes, self.tree.parent_of, self._checks, self._judged_by[2:])
        if (classes, tree.parent_of, checks, meant) != known:
            self.forget()
            self._torn = True
            self._shapes = Shapes(gates_hold=session.gates_hold)
        self._judged_by, self.tree, self._classes, self._checks = judged_by, tree, classes, checks
        self._checked = {
            name for name in tree.records if any(checks.get(above) for above in tree.chain(name))
        }
        records = {queue.metadata.name: queue for queue in snapshot.queues}
        records.setdefault(DEFAULT, Queue(metadata=Metadata(name=DEFAULT)))
        for name, record in sorted(records.items()):
            if name in self.queues:
                self.queues[name].record = record
            else:
                self.queues[name] = QueueState(record, PendingQueue())

    def _changed(self, snapshot: Snapshot) -> Iterator[tuple[str, PodGroup | None]]:
        """Uid -> record of each group that is not as the states have it; None: it is gone.

        A record with the uid of another group, which somebody has written past batchq, is left out.
        """
        found: dict[str, PodGroup | None] = {}
        for before, now in groups_changed(self._seen.groups, snapshot.groups):
            if before is not None and before.metadata.uid not in found:
                if self._is_of_another(before, found):
                    continue
                found[before.metadata.uid] = None
            if now is not None and not self._is_of_another(now, found):
                found[now.metadata.uid] = now
        for uid in (*pods_changed(self._seen.pods, snapshot.pods), *self._touched):
            if uid not in found and (state := self.groups.get(uid)) is not None:
                found[uid] = state.record
        return iter(found.items())

    def _is_of_another(self, record: PodGroup, found: Mapping[str, PodGroup | None]) -> bool:
        """Whether a group of another name has its uid; `found`: those that have changed."""
        uid = record.metadata.uid
        state = self.groups.get(uid)
        owner = found.get(uid, None if state is None else state.record)
        return owner is not None and key_of(owner) != key_of(record)

    def _replace(self, session: Session, uid: str, record: PodGroup | None) -> GroupState | None:
        """Take a state out, and build the one that follows it, if one does."""
        former = self.groups.pop(uid, None)
        if former is not None:
            self._take_out(former)
        if record is None:
            if former is not None:
                self.busy.discard(former.key)
                self.ledger.forget(former)
            return None
        state = self._build(session, uid, record, former)
        if former is None:
            return state
        if state.bare or state.is_over or state.key != former.key:
            self.busy.discard(former.key)
        if state.bare or state.scopes != former.scopes:
            self.ledger.forget(former)
        return state

    def _build(
        self, session: Session, uid: str, record: PodGroup, former: GroupState | None
    ) -> GroupState:
        spec = record.spec
        values, default = self._classes
        state = GroupState(
            record,
            session.snapshot.pods.get(uid, ()),
            priority := values.get(spec.priority_class_name, default),
            self._shape(record, former, priority),
            self.tree.chain(spec.queue),
            scopes=self._scopes_of(record),
            gates_hold=session.gates_hold,
        )
        self.groups[uid] = self.by_key[state.key] = state
        for other in spec.depends_on:
            self.dependents.setdefault(other.uid, {})[uid] = None
        return state

    def _take_out(self, state: GroupState) -> None:
        uid = state.uid
        for kept in (
            self._with_choice,
            self.placed,
            self.waits_for_nodes,
            self.heads_on_nodes,
        ):
            kept.pop(uid, None)
        if self.by_key.get(state.key) is state:
            del self.by_key[state.key]
        if state.peers is not None:
            self._leave_class(state)
        else:
            self._line_of(state).discard(uid)
        self.machines.give(state)
        self.ended.drop(uid)
        self.claimants.pop(uid, None)
        self._owing.discard(uid)
        for other in state.record.spec.depends_on:
            waiting = self.dependents.get(other.uid, {})
            waiting.pop(uid, None)
            if not waiting:
                self.dependents.pop(other.uid, None)

    def _shape(self, record: PodGroup, former: GroupState | None, priority: int) -> GroupShape:
        """A record that did not change keeps its spec from snapshot to snapshot."""
        if former is not None and former.record.spec is record.spec:
            return former.given_shape
        return self._shapes.of(record.spec, priority)

    def _scopes_of(self, record: PodGroup) -> tuple[str, ...]:
        """One for all groups that are summed in the same scopes."""
        spec = record.spec
        key = (spec.queue, record.metadata.namespace, spec.controller)
        known = self._scopes.get(key)
        if known is None:
            if len(self._scopes) >= _MOST_SCOPES:
                self._scopes.clear()
            known = self._scopes[key] = scopes_in(record, self.tree.chain(spec.queue))
        return known

    # --- where a group is kept ----------------------------------------------------------------

    def _place(self, session: Session, parking: InadmissibleGroups, group: GroupState) -> None:
        if group.is_over:
            self.ended.add(group)
            heapq.heappush(self._over, (_forgotten_at(group), group.uid))
            return
        if not group.bare and group.status.pledge.stands and group.phase not in TERMINAL:
            self.claimants[group.uid] = group
        if group.status.places:
            self.placed[group.uid] = group
        if group.status.set_aside_on and group.phase not in TERMINAL:
            self.heads_on_nodes[group.uid] = group
        if group.status.nodes_lacked_at is not None and group.phase == PodGroupPhase.PENDING:
            self.waits_for_nodes[group.uid] = group
        if group.given_shape.has_choice and _may_still_choose(group):
            self._with_choice[group.uid] = group
            group.leave_out(self._left_out(session, group))
        if parking.still_sleeps(group):
            self.busy.discard(group.key)
        else:
            self._line_up(session, group)

    def _left_out(self, session: Session, group: GroupState) -> tuple[str, ...]:
        """Return the tasks of a group whose pods no node would take if it were empty."""
        tasks = tuple(
            shape.task.name for shape in group.tasks if not session.is_taken_when_empty(shape)
        )
        return tasks if len(tasks) < len(group.tasks) else ()

    def _follow_nodes(self, session: Session) -> None:
        """Nodes have come, gone or changed: gangs of groups that wait may choose other pods."""
        if self._nodes_version == self.machines.version:
            return
        self._nodes_version = self.machines.version
        for group in list(self._with_choice.values()):
            left_out = self._left_out(session, group)
            if left_out == group.left_out:
                continue
            if group.peers is None:
                group.leave_out(left_out)
                continue
            # Its class knows it by what it asks for.
            self._leave_class(group)
            group.leave_out(left_out)
            self._line_up(session, group)

    def _line_up(self, session: Session, group: GroupState) -> None:
        """Let a group that is awake stand where it belongs."""
        if not group.bare:
            self.busy.put(group.key, group)
        elif (
            session.pending.classes_may_form
            and session.plugins.order_lasts
            and self._is_plain(group)
        ):
            self._line_of(group).join(group, session.group_key(group))
            return
        if group.phase == PodGroupPhase.PENDING:
            self._line_of(group).add(group)

    def _is_plain(self, group: GroupState) -> bool:
        """Whether nothing but its queue and the limits has a say in whether it stands in line."""
        spec = group.record.spec
        wanted = spec.priority_class_name
        return (
            not spec.suspend
            and not spec.scheduling_gates
            and (not wanted or wanted in self._classes[0])
            and group.uid not in self._owing
            and group.queue not in self._checked
            and group.given_shape.is_sound
        )

    def _line_of(self, group: GroupState) -> PendingQueue:
        queue = self.queues.get(group.queue)
        return self.strayed if queue is None else queue.line

    def _leave_class(self, group: GroupState) -> None:
        peers = group.peers
        assert peers is not None
        self._line_of(group).leave(group)
        if not len(peers):
            self.watches.remove(peers)
            self.node_refusals.wake(peers)

    def divide_classes(self, session: Session) -> None:
        """Take the groups out of their classes that a plugin refuses, and may not refuse all groups
        that ask for the same; take others in; and let the order be that of this session.

        A session that has none of these plugins does nothing here.
        """
        lasts, dividing = session.plugins.order_lasts, session.plugins.dividing
        if not session.pending.classes_may_form or (lasts and not dividing):
            return
        for line in (self.strayed, *(queue.line for queue in self.queues.values())):
            singles = [group for group in line.singles.values() if group.bare]
            members = [group for peers in line.classes.values() for group in peers.members]
            for group in members:
                group.is_refused_alone = False
                is_alone = _is_refused(session, dividing, group)
                if is_alone or not (lasts or _keeps_its_place(session, group)):
                    self._leave_class(group)
                    group.line_key = None
                    if is_alone:
                        line.add(group)
                    else:
                        line.join(group, session.group_key(group))
            for group in singles:
                if self._is_plain(group) and not _is_refused(session, dividing, group):
                    line.discard(group.uid)
                    line.join(group, session.group_key(group))

    def _wake_classes(self) -> None:
        """Whatever all groups are judged by has changed."""
        self.watches.clear()
        self.node_refusals.wake_all()
        for line in (self.strayed, *(queue.line for queue in self.queues.values())):
            for peers in line.classes.values():
                peers.sleeps, peers.watches = False, None
                line.restless[peers.asks] = peers

    def _is_over(self, uid: str) -> bool:
        group = self.groups.get(uid)
        return group is not None and group.is_over

    def _bring_back_what_is_over(self, session: Session) -> None:
        """Whose time has come is looked at, in every session until it is gone."""
        while self._over and self._over[0][0] <= session.now_ms:
            _, uid = heapq.heappop(self._over)
            if self._is_over(uid):
                group = self.groups[uid]
                group.is_over = False
                self.busy.add(group.key, group)

    # --- sums ---------------------------------------------------------------------------------

    def _begin_ledger(self, session: Session, entered: Iterable[GroupState]) -> None:
        decided_by = (
            session.snapshot.queues,
            session.snapshot.quotas,
            self.machines.ready,
            session.settings,
        )
        same = len(self._limits_of) == len(decided_by) and all(
            one is other or one == other
            for one, other in zip(decided_by, self._limits_of, strict=True)
        )
        if not same:
            self._limits_of = decided_by
            self.ledger.go_by(limits_of(session, self.machines.ready), self.tree)
        self.ledger.begin(lambda group: owed_to(session, group))
        for claimant in sorted(self.claimants.values(), key=lambda group: group.key):
            note_pledge(session, claimant, claimant.status.pledge)
        for group in entered:
            if not group.bare:
                # Most count for what they counted for: then no sum has to follow.
                self.ledger.recharge(group)
                holding = self.ledger.holding.get(group.queue, {})
                if group.uid in holding:
                    holding[group.uid] = group
        for claimant in self.claimants.values():
            self.ledger.recharge(claimant)

    def _part_who_owes(self, session: Session) -> None:
        """A victim that waits is asked by itself: it gives way to its claimant."""
        owing = {uid for uid, claimants in self.ledger.claimants.items() if claimants}
        if owing == self._owing:
            return
        back, self._owing = self._owing - owing, owing
        for uid in sorted(owing):
            group = self.groups.get(uid)
            if group is not None and group.peers is not None:
                self._leave_class(group)
                self._line_up(session, group)
        for uid in sorted(back):
            group = self.groups.get(uid)
            if group is not None and group.bare and group.uid in self._line_of(group).singles:
                self._line_of(group).discard(uid)
                self._line_up(session, group)


def limits_of(session: Session, ready: Amounts) -> dict[str, Amounts]:
    """Every limit by scope: the cluster's, queues', namespaces'."""
    snapshot = session.snapshot
    limits = {CLUSTER: scaled(ready, session.settings.overcommit)}
    for queue in snapshot.queues:
        limits[queue_scope(queue.metadata.name)] = limit_of_queue(queue)
    of_namespaces: dict[str, list[ResourceQuota]] = {}
    for quota in snapshot.quotas:
        of_namespaces.setdefault(quota.metadata.namespace, []).append(quota)
    for namespace in sorted(of_namespaces):
        limits[namespace_scope(namespace)] = hard_limit(of_namespaces[namespace])
    return limits


def _is_refused(session: Session, plugins: Iterable[Registration[Any]], group: GroupState) -> bool:
    return any(entry.function(session, group) for entry in plugins)


def _keeps_its_place(session: Session, group: GroupState) -> bool:
    former, group.line_key = group.line_key, None
    key, group.line_key = session.group_key(group), former
    return key == former


def _may_still_choose(group: GroupState) -> bool:
    """Whether a group's gang is not fixed: nothing is reserved for it, or, in a described world, it
    has been admitted without a word about that and has no pods on nodes yet.
    """
    if group.is_external or group.phase in TERMINAL:
        return False
    if group.phase == PodGroupPhase.PENDING:
        return not group.reserved
    return not group.status.left_out and not any(group.placed.values())


def _forgotten_at(group: GroupState) -> int:
    return (group.status.finished_at or 0) + group.record.spec.ttl_after_finished


def priorities_of(classes: Iterable[PriorityClass]) -> tuple[Mapping[str, int], int]:
    """Class name -> value, and the value for groups that name none."""
    values, default = {}, 0
    for item in classes:
        values[item.metadata.name] = item.spec.value
        if item.spec.default:
            default = item.spec.value
    return values, default
