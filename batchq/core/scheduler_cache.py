"""State kept across sessions for everything that has not changed.

A session takes over the groups, nodes, pending queues and sums of the previous session, and updates
what has changed since: records that are new in the snapshot, and groups that the previous session
itself moved. So the cost of a session depends on the number of changes, not on the number of
waiting groups.

Groups are kept in these places:

| place   | groups                                                          | session cost |
|---------|-----------------------------------------------------------------|--------------|
| `busy`  | they hold or run anything, have a pledge, or have timers        | a few checks |
| a class | waiting records with equal requests                             | 0 if parked  |
| a line  | other waiting groups, singly                                    | one check    |
| parked  | ineligible until a change (`batchq.core.eligibility`)   | 0            |
| over    | ended, until they are deleted                                   | 0            |

`PluginRegistry` has the functions that plugins registered at each point, and their combined traits.

It changes no decision: without it, all states would be built from the snapshot, with equal results.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Pod,
    PodGroup,
    PriorityClass,
    Queue,
    ResourceQuota,
    key_of,
)
from batchq.api.resources import Amounts, scaled
from batchq.api.transaction import CLUSTER, hard_limit, limit_of_queue, namespace_scope, queue_scope
from batchq.core.chunks import Ordered, Rows
from batchq.core.equivalence import PendingQueue, QueueState, UnmetRequests, WakeUpIndex
from batchq.core.extension import (
    POINT_OF_RULE,
    POINTS,
    VOTES,
    ExtensionPoint,
    LiftedBy,
    Plugin,
    PluginPlaces,
    RefusesBy,
    Registration,
    Rule,
    guarded,
    guarded_clock,
    is_of_others,
    traits_of,
    with_shortage,
)
from batchq.core.kept_capacity import note_pledge, owed_to
from batchq.core.placement.feasibility import NODE_REFUSALS, NodeRefusals
from batchq.core.placement.node_order import at_once
from batchq.core.placement.topology import choose_at_opening, may_choose
from batchq.core.quota import QueueTree, scopes_in
from batchq.core.quota.fair_shares import ENDED, EndedUsage, FairShares
from batchq.core.quota.ledger import LedgerView
from batchq.core.session.session import WholeGroups
from batchq.core.session.session_nodes import NodeCache, hold_the_same
from batchq.core.session.snapshot import (
    Generation,
    Instrument,
    Snapshot,
    groups_changed,
    pods_changed,
)
from batchq.core.session.specs import Shapes
from batchq.core.session.state import GroupState
from batchq.core.unbuilt_states import BareRecords, Entry, GroupStates, StatesByKey

if TYPE_CHECKING:
    from batchq.core.eligibility import InadmissibleGroups
    from batchq.core.session.session import Session


class PluginRegistry:
    """The registered plugins; `due_at` of each configured one is called, too."""

    def __init__(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> None:
        self._of = (plugins, instrument)
        self.points = {name: ExtensionPoint[Any](name, method) for name, method in POINTS.items()}
        #: The `due_at` of plugins: instants at which their answers change with time alone.
        self.clocks: list[Callable[[Session], Iterable[int]]] = []
        #: Plugin -> the changes that lift its refusals, by reason.
        self.lifted_by: dict[str, LiftedBy] = dict(of_session)
        #: Errors of third-party plugins in this session: `plugin at point` -> the first one.
        self.failures: dict[str, str] = {}
        for plugin in self._registered(plugins, instrument).values():
            if (clock := getattr(plugin, "due_at", None)) is not None:
                ours = not is_of_others(plugin)
                self.clocks.append(clock if ours else guarded_clock(plugin, clock, self.failures))
            if (lifted_by := traits_of(plugin).lifted_by) is not None:
                self.lifted_by[plugin.name] = lifted_by
        #: The rules that a plugin enforces.
        self.enforced = frozenset(
            rule
            for rule, point in POINT_OF_RULE.items()
            if any(rule in entry.traits.enforces for entry in self.points[point])
        )
        before, admissible = self.points["preEnqueue"], self.points["admissible"]
        #: At preEnqueue: plugins whose answers last, and those called in every session.
        self.lasting: Sequence[Registration[Any]] = [
            one for one in before if one.traits.lifted_by is not None
        ]
        self.passing: Sequence[Registration[Any]] = [
            one for one in before if one.traits.lifted_by is None
        ]
        #: At admissible: plugins called once for a class of groups, and those called for each
        #: group.
        self.for_classes: Sequence[Registration[Any]] = [
            one for one in admissible if one.traits.refuses_by is not RefusesBy.ANYTHING
        ]
        self.for_groups: Sequence[Registration[Any]] = [
            one for one in admissible if one.traits.refuses_by is RefusesBy.ANYTHING
        ]
        #: Plugins that may refuse one group of a class and pass another.
        self.dividing: Sequence[Registration[Any]] = [
            *(one for one in before if not one.traits.passes_plain),
            *self.for_groups,
        ]
        #: Whether a waiting group keeps its place while its record and the priority classes stay.
        self.order_lasts = all(one.traits.order_lasts for one in self.points["groupOrder"])
        #: Whether that place depends only on its priority, its queue time and its uid.
        self.orders_by_priority = self.order_lasts and all(
            one.traits.orders_by_priority for one in self.points["groupOrder"]
        )
        #: Whether groups with equal requests get equal answers while limits are full.
        self.may_form_classes = Rule.CAPACITY in self.enforced
        #: Whether a class is refused only for what never fits and for full limits.
        self.limits_decide = self.may_form_classes and all(
            one.traits.refuses_by is RefusesBy.LEDGER for one in self.for_classes
        )

    def is_of(self, plugins: PluginPlaces, instrument: Instrument | None) -> bool:
        """Return whether the registry was built from these objects."""
        return self._of[0] is plugins and self._of[1] is instrument

    def _registered(
        self, plugins: PluginPlaces, instrument: Instrument | None
    ) -> dict[str, Plugin]:
        on: dict[str, Plugin] = {}
        for name, standing in plugins.items():
            point = self.points[name]
            for plugin, weight in standing:
                function: Callable[..., Any] = getattr(plugin, point.method)
                if name in VOTES:
                    function = with_shortage(function)
                if is_of_others(plugin):
                    function = guarded(plugin, name, function, self.failures)
                if instrument is not None:
                    function = instrument.plugin(plugin.name, name, function)
                many = at_once(plugin, name, instrument)
                point.add(plugin.name, function, weight, many, traits_of(plugin))
                on[plugin.name] = plugin
        return on


#: For how many pairs of namespace and queue the scopes of groups are cached.
_MOST_SCOPES = 10_000


class SchedulerCache:
    """The owner of the last session's states; belongs to one scheduler. A session's states are
    valid until the next one begins.
    """

    def __init__(self) -> None:
        self._registry: PluginRegistry | None = None
        self.node_cache = NodeCache()
        self.forget()

    def forget(self) -> None:
        """Clear all state."""
        # Groups parked until nodes change notice the new version.
        self.node_cache = NodeCache(self.node_cache.version + 1)
        self.tree = QueueTree(())
        self._states = GroupStates(self._build_member)
        self.groups: dict[str, GroupState] = self._states
        self.by_key: dict[str, GroupState] = StatesByKey(self._states, self._record_of)
        self.queues: dict[str, QueueState] = {}
        #: Groups whose queue does not exist.
        self.strayed = PendingQueue()
        self.busy: Ordered[GroupState] = Ordered()
        #: Those of them that do not just run with all of their pods, by key; in no order.
        self.unsettled: dict[str, GroupState] = {}
        #: The others.
        self.whole = WholeGroups()
        #: Action -> the queues in which it found no request that it could meet.
        self.unmet: defaultdict[str, UnmetRequests] = defaultdict(UnmetRequests)
        self.wake_up_index = WakeUpIndex()
        self.node_refusals = NodeRefusals()
        #: By uid: groups whose records have kept places; and groups that wait only for nodes and
        #: have stored since when.
        self.placed: dict[str, GroupState] = {}
        self.waits_for_nodes: dict[str, GroupState] = {}
        #: Groups whose records have a head reservation on nodes, by uid.
        self.heads_on_nodes: dict[str, GroupState] = {}
        #: The groups that are not over and share nodes in a way of their own.
        self.sharing: dict[str, GroupState] = {}
        self.ledger = LedgerView({})
        #: What queues demand and deserve, as of the last session that needed it.
        self.fair_shares: FairShares | None = None
        #: The usage of ended groups.
        self.ended = EndedUsage()
        #: Uid -> the groups that depend on it, by uid.
        self.dependents: dict[str, dict[str, None]] = {}
        self._seen = Snapshot()
        #: The groups of a snapshot described by hand, and the same by key; made on demand.
        self._by_record_key: tuple[Sequence[PodGroup], dict[str, PodGroup]] = ((), {})
        #: Queues, priority classes, and the plugin settings that affect groups.
        self._judged = Generation()
        #: The inputs of the limits.
        self._limited = Generation()
        #: The configuration generation, and that of nodes.
        self._configured, self._nodes = Generation(), Generation()
        #: Whether gates hold and classes may form, as of when the states were built.
        self._meant = (True, False)
        self._shapes = Shapes(gates_hold=True)
        self._scopes: dict[tuple[str, str, str], tuple[str, ...]] = {}
        #: Priority class -> value, and the default value; queue -> the admission checks that it
        #: requires.
        self._classes: tuple[Mapping[str, int], int] = ({}, 0)
        self._checks: dict[str, tuple[str, ...]] = {}
        #: The queues whose groups have checks to pass.
        self._checked: set[str] = set()
        #: Waiting groups whose gang could be made up of different pods, by uid.
        self._with_choice: dict[str, GroupState] = {}
        #: The groups touched by the last session; empty once these have been updated.
        self._touched: Mapping[str, GroupState] = {}
        #: The deletion times of ended groups (ms), and their uids.
        self._over: list[tuple[int, str]] = []
        #: Preemptors with a pledge, and the uids of victims kept out of classes.
        self.preemptors: dict[str, GroupState] = {}
        self._pledged: set[str] = set()
        #: Whether a session has begun to update the state and has not completed.
        self._torn = False

    def registry(
        self,
        plugins: PluginPlaces,
        instrument: Instrument | None,
        of_session: Mapping[str, LiftedBy],
    ) -> PluginRegistry:
        """Return the plugin registry, the same for every session with the same plugins."""
        if self._registry is None or not self._registry.is_of(plugins, instrument):
            self._registry = PluginRegistry(plugins, instrument, of_session)
        self._registry.failures.clear()
        return self._registry

    def take_up(self, session: Session, inadmissible: InadmissibleGroups) -> None:
        """Update all state for a new session."""
        if self._torn:
            self.forget()
        self._torn = True
        snapshot = session.snapshot
        self._follow_queues(session)
        follow = self._put_right if self.groups else self._take_in
        entered, changed = follow(session, inadmissible)
        self._seen, self._touched = snapshot, session.effects.touched
        unparked = inadmissible.unpark(session, changed)
        for uid in unparked:
            if (group := self.groups.get(uid)) is not None and group.peers is None:
                self._line_up(session, group)
        if self._configured.follow(inadmissible.generation):
            self._wake_classes()
        session.put(NODE_REFUSALS, self.node_refusals)
        session.put(ENDED, self.ended)
        self.node_refusals.begin(session)
        self._follow_nodes(session)
        self._return_overdue(session)
        self._begin_ledger(session, entered)
        self._separate_victims(session)

    def _put_right(
        self, session: Session, inadmissible: InadmissibleGroups
    ) -> tuple[list[GroupState], list[str]]:
        """Update the states from the changes; return the states that were built, and the uids of
        groups whose records or pods have changed.
        """
        snapshot = session.snapshot
        changed = list(self._changed(snapshot))
        entered: list[GroupState] = []
        for uid, record in changed:
            if record is None:
                inadmissible.forget(uid)
            if (state := self._replace(session, uid, record)) is not None:
                entered.append(state)
        recount = self.node_cache.follow(snapshot, session.now_ms, session.settings)
        session.adopt(self)
        for state in entered:
            self._place(session, inadmissible, state)
        if recount:
            self.node_cache.count(self.busy)
        else:
            self.node_cache.follow_pods(entered)
        return entered, [uid for uid, _ in changed]

    def _take_in(
        self, session: Session, inadmissible: InadmissibleGroups
    ) -> tuple[list[GroupState], Iterable[str]]:
        """Build every state. There may be a million, so no other data is collected, and bare
        waiting records are not reported.
        """
        snapshot = session.snapshot
        self._seen = snapshot
        self.node_cache.follow(snapshot, session.now_ms, session.settings)
        session.adopt(self)
        entered: list[GroupState] = []
        bare = BareRecords(self._states, {*snapshot.pods, *inadmissible.parked})
        may_learn = self._may_wait_unbuilt(session)
        for record in bare.others(snapshot.groups):
            state = self._build(session, record.metadata.uid, record, None)
            self._place(session, inadmissible, state)
            if not state.record_only:
                entered.append(state)
            elif may_learn:
                bare.learn(state)
        bare.close()
        self.node_cache.count(entered)
        # Parked groups without a record are gone.
        for uid in [uid for uid in inadmissible.parked if uid not in self.groups]:
            inadmissible.forget(uid)
        return entered, [*self.groups, *inadmissible.awaited]

    def _may_wait_unbuilt(self, session: Session) -> bool:
        """Return whether members of classes may have no states: their place in line must be known
        without asking plugins.
        """
        return session.plugins.orders_by_priority

    def _build_member(self, entry: Entry) -> GroupState:
        """Build the state of a group that was taken in as a member of a class without one."""
        line_key, record, model = entry
        state = GroupState(
            record,
            (),
            model.priority,
            model.shape,
            model.chain,
            scopes=model.scopes,
            gates_hold=self._meant[0],
        )
        state.peers, state.line_key = model.peers, line_key
        self.by_key[state.key] = state
        return state

    def _record_of(self, key: str) -> PodGroup | None:
        groups = self._seen.groups
        if isinstance(groups, Rows):
            return groups.get(key)
        if self._by_record_key[0] is not groups:
            self._by_record_key = groups, {key_of(record): record for record in groups}
        return self._by_record_key[1].get(key)

    def end(self) -> None:
        """Mark the state as complete, so that the next session can take it over."""
        self._torn = False

    def next_at(self, inadmissible: InadmissibleGroups) -> int | None:
        """Return the instant (ms) at which an ended or parked group next needs attention."""
        while self._over and not self._is_over(self._over[0][1]):
            heapq.heappop(self._over)
        due = [self._over[0][0]] if self._over else []
        if (at := inadmissible.next_at()) is not None:
            due.append(at)
        return min(due, default=None)

    def park(self, group: GroupState) -> None:
        """Remove a parked group from the pending queue and from `busy`."""
        self._line_of(group).discard(group.uid)
        if not group.record_only:
            self._leave_busy(group.key)

    def _follow_queues(self, session: Session) -> None:
        """Update the queues and what else affects all groups. If the tree, its checks or the
        priority classes change, all state is cleared.
        """
        snapshot = session.snapshot
        meant = (session.gates_hold, session.pending.classes_may_form)
        judged_by = (snapshot.queues, snapshot.priority_classes, *meant)
        if not self._judged.follow(*judged_by):
            return
        tree, classes = QueueTree(snapshot.queues), priorities_of(snapshot.priority_classes)
        checks = {queue.metadata.name: queue.spec.admission_checks for queue in snapshot.queues}
        known = (self._classes, self.tree.parent_of, self._checks, self._meant)
        if (classes, tree.parent_of, checks, meant) != known:
            self.forget()
            self._torn = True
            self._judged.follow(*judged_by)
            self._shapes = Shapes(gates_hold=session.gates_hold)
        self._meant, self.tree, self._classes, self._checks = meant, tree, classes, checks
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
        """Yield (uid, record) of each group that differs from its state; the record is None if it
        is gone.

        A record with the uid of another group, which was not written by batchq, is left out.
        """
        found: dict[str, PodGroup | None] = {}
        built = self._states
        for before, now in groups_changed(self._seen.groups, snapshot.groups):
            if now is not None:
                uid = now.metadata.uid
                state = dict.get(built, uid)
                if before is None:
                    is_usual = state is None and uid not in built.unbuilt and uid not in found
                else:
                    is_usual = state is not None and state.record is before and uid not in found
                if is_usual:
                    # The record was written again, or is that of a new group.
                    found[uid] = now
                    continue
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
        """Return whether a group of another name has the uid; `found` has the changed groups."""
        uid = record.metadata.uid
        state = self.groups.get(uid)
        owner = found.get(uid, None if state is None else state.record)
        if owner is None:
            return False
        one, other = owner.metadata, record.metadata
        return one.name != other.name or one.namespace != other.namespace

    def _replace(self, session: Session, uid: str, record: PodGroup | None) -> GroupState | None:
        """Remove a state and build its successor, if there is one."""
        former = self.groups.pop(uid, None)
        if former is not None:
            self._take_out(former)
        if record is None:
            if former is not None:
                self.node_cache.give(former)
                self._leave_busy(former.key)
                self.ledger.forget(former)
            return None
        state = self._build(session, uid, record, former)
        if former is None:
            return state
        if state.phase in TERMINAL and former.phase not in TERMINAL:
            session.effects.ended_by_others.append((former, state))
        if state.handed_on is None:
            if hold_the_same(former, state):
                # What they hold stays taken.
                state.handed_on = []
            else:
                self.node_cache.give(former)
        if state.record_only or state.is_over or state.key != former.key:
            self._leave_busy(former.key)
        if state.record_only or state.scopes != former.scopes:
            self.ledger.forget(former)
        return state

    def _build(
        self, session: Session, uid: str, record: PodGroup, former: GroupState | None
    ) -> GroupState:
        state = self._build_alone(record, session.snapshot.pods.get(uid, ()), former)
        self.groups[uid] = self.by_key[state.key] = state
        for other in record.spec.depends_on:
            self.dependents.setdefault(other.uid, {})[uid] = None
        return state

    def _build_alone(
        self, record: PodGroup, pods: Sequence[Pod], former: GroupState | None
    ) -> GroupState:
        spec = record.spec
        values, default = self._classes
        priority = values.get(spec.priority_class_name, default)
        # A record with an unchanged spec keeps what follows from that.
        known = former if former is not None and former.record.spec is spec else None
        is_same = known is not None and known.namespace == record.metadata.namespace
        return GroupState(
            record,
            pods,
            priority,
            self._shapes.of(spec, priority) if known is None else known.own_shape,
            self.tree.chain(spec.queue) if known is None else known.chain,
            scopes=known.scopes if known is not None and is_same else self._scopes_of(record),
            gates_hold=self._meant[0],
            former=former,
        )

    def _take_out(self, state: GroupState) -> None:
        uid = state.uid
        for kept in (
            self._with_choice,
            self.placed,
            self.waits_for_nodes,
            self.heads_on_nodes,
            self.sharing,
        ):
            if kept:
                kept.pop(uid, None)
        if dict.get(self.by_key, state.key) is state:
            del self.by_key[state.key]
        if state.peers is not None:
            self._leave_class(state)
        else:
            self._line_of(state).discard(uid)
        if state.record.status.phase in TERMINAL:
            self.ended.drop(uid)
        if self.preemptors:
            self.preemptors.pop(uid, None)
        if self._pledged:
            self._pledged.discard(uid)
        for other in state.record.spec.depends_on:
            waiting = self.dependents.get(other.uid, {})
            waiting.pop(uid, None)
            if not waiting:
                self.dependents.pop(other.uid, None)

    def _scopes_of(self, record: PodGroup) -> tuple[str, ...]:
        """Return the scopes of a record, shared by all groups with the same scopes."""
        spec = record.spec
        key = (spec.queue, record.metadata.namespace, spec.controller)
        known = self._scopes.get(key)
        if known is None:
            if len(self._scopes) >= _MOST_SCOPES:
                self._scopes.clear()
            known = self._scopes[key] = scopes_in(record, self.tree.chain(spec.queue))
        return known

    def _place(self, session: Session, inadmissible: InadmissibleGroups, group: GroupState) -> None:
        if group.is_over:
            self.ended.add(group)
            heapq.heappush(self._over, (_forgotten_at(group), group.uid))
            return
        if not group.record_only and group.status.pledge.stands and group.phase not in TERMINAL:
            self.preemptors[group.uid] = group
        if group.status.places:
            self.placed[group.uid] = group
        if group.sharing is not None:
            self.sharing[group.uid] = group
        if group.status.set_aside_on and group.phase not in TERMINAL:
            self.heads_on_nodes[group.uid] = group
        if group.status.nodes_lacked_at is not None and group.phase == PodGroupPhase.PENDING:
            self.waits_for_nodes[group.uid] = group
        if group.record.spec.topology and may_choose(group):
            choose_at_opening(session, group)
        if len(group.tasks) > 1 and group.given_shape.has_choice and _may_still_choose(group):
            self._with_choice[group.uid] = group
            group.leave_out(self._left_out(session, group))
        if inadmissible.parked and inadmissible.stays_parked(group):
            self._leave_busy(group.key)
        else:
            self._line_up(session, group)

    def _left_out(self, session: Session, group: GroupState) -> tuple[str, ...]:
        """Return the tasks of a group whose pods no empty node takes; none if that is all tasks."""
        tasks = tuple(
            shape.task.name for shape in group.tasks if not session.is_taken_when_empty(shape)
        )
        return tasks if len(tasks) < len(group.tasks) else ()

    def _follow_nodes(self, session: Session) -> None:
        """Update the gangs of waiting groups after nodes have come, gone or changed."""
        if not self._nodes.follow(self.node_cache.version):
            return
        for group in list(self._with_choice.values()):
            left_out = self._left_out(session, group)
            if left_out == group.left_out:
                continue
            if group.peers is None:
                group.leave_out(left_out)
                continue
            # The class depends on the group's requests, which change.
            self._leave_class(group)
            group.leave_out(left_out)
            self._line_up(session, group)

    def _line_up(self, session: Session, group: GroupState) -> None:
        """Add a group that is not parked to `busy`, its class or its pending queue."""
        if not group.record_only:
            self.busy.put(group.key, group)
            self._note_settled(group)
        elif (
            session.pending.classes_may_form
            and session.plugins.order_lasts
            and self._is_plain(group)
        ):
            self._line_of(group).join(group, session.group_key(group))
            return
        if group.phase == PodGroupPhase.PENDING:
            self._line_of(group).add(group)

    def _note_settled(self, group: GroupState) -> None:
        if group.runs_whole:
            self.unsettled.pop(group.key, None)
            self.whole.add(group)
        else:
            self.unsettled[group.key] = group
            self.whole.discard(group.key)

    def _leave_busy(self, key: str) -> None:
        self.busy.discard(key)
        self.unsettled.pop(key, None)
        self.whole.discard(key)

    def _is_plain(self, group: GroupState) -> bool:
        """Return whether only its queue and the limits decide whether the group is eligible."""
        spec = group.record.spec
        wanted = spec.priority_class_name
        return (
            not spec.suspend
            and not spec.scheduling_gates
            # Each of these is tried in one domain after another.
            and not spec.topology
            # Whether nodes take it depends on where its own pods are.
            and group.sharing is None
            and (not wanted or wanted in self._classes[0])
            and group.uid not in self._pledged
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
            self.wake_up_index.remove(peers)
            self.node_refusals.unpark(peers)

    def divide_classes(self, session: Session) -> None:
        """Take the groups out of their classes that a plugin refuses without refusing all groups
        with equal requests, put others in, and use this session's order.

        Does nothing in a session without such plugins.
        """
        lasts, dividing = session.plugins.order_lasts, session.plugins.dividing
        if not session.pending.classes_may_form or (lasts and not dividing):
            return
        for line in (self.strayed, *(queue.line for queue in self.queues.values())):
            singles = [group for group in line.singles.values() if group.record_only]
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
        """Unpark all classes after a change that affects all groups."""
        self.wake_up_index.clear()
        self.node_refusals.unpark_all()
        for line in (self.strayed, *(queue.line for queue in self.queues.values())):
            for peers in line.classes.values():
                peers.is_parked, peers.watches = False, None
                line.unparked[peers.asks] = peers

    def _is_over(self, uid: str) -> bool:
        group = self.groups.get(uid)
        return group is not None and group.is_over

    def _return_overdue(self, session: Session) -> None:
        """Return ended groups to `busy` when they are due to be deleted."""
        while self._over and self._over[0][0] <= session.now_ms:
            _, uid = heapq.heappop(self._over)
            if self._is_over(uid):
                group = self.groups[uid]
                group.is_over = False
                self.busy.add(group.key, group)
                self.unsettled[group.key] = group

    def _begin_ledger(self, session: Session, entered: Iterable[GroupState]) -> None:
        snapshot, ready = session.snapshot, self.node_cache.ready
        if self._limited.follow(snapshot.queues, snapshot.quotas, ready, session.settings):
            self.ledger.go_by(limits_of(session, ready), self.tree)
        self.ledger.begin(partial(owed_to, session))
        for preemptor in sorted(self.preemptors.values(), key=lambda group: group.key):
            note_pledge(session, preemptor, preemptor.status.pledge)
        for group in entered:
            if not group.record_only:
                # Most charges have not changed, so no sum changes.
                self.ledger.recharge(group)
                holding = self.ledger.holding.get(group.queue, {})
                if group.uid in holding:
                    holding[group.uid] = group
                    # Its priority may be another one.
                    self.ledger.moved.append(group.queue)
        for preemptor in self.preemptors.values():
            self.ledger.recharge(preemptor)

    def _separate_victims(self, session: Session) -> None:
        """Keep waiting victims out of classes, because each must wait for its own preemptor."""
        pledged = {uid for uid, preemptors in self.ledger.preemptors.items() if preemptors}
        if pledged == self._pledged:
            return
        back, self._pledged = self._pledged - pledged, pledged
        for uid in sorted(pledged):
            group = self.groups.get(uid)
            if group is not None and group.peers is not None:
                self._leave_class(group)
                self._line_up(session, group)
        for uid in sorted(back):
            group = self.groups.get(uid)
            if (
                group is not None
                and group.record_only
                and group.uid in self._line_of(group).singles
            ):
                self._line_of(group).discard(uid)
                self._line_up(session, group)


def limits_of(session: Session, ready: Amounts) -> dict[str, Amounts]:
    """Return every limit by scope: of the cluster, queues and namespaces."""
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
    """Return whether a group's gang is not fixed: nothing is reserved for it, or a snapshot
    described by hand has admitted it without fixing the gang and without pods on nodes.
    """
    if group.is_external or group.phase in TERMINAL:
        return False
    if group.phase == PodGroupPhase.PENDING:
        return not group.reserved
    return not group.status.left_out and not any(group.placed.values())


def _forgotten_at(group: GroupState) -> int:
    return (group.status.finished_at or 0) + group.record.spec.ttl_after_finished


def priorities_of(classes: Iterable[PriorityClass]) -> tuple[Mapping[str, int], int]:
    """Return the value of each class by name, and the value for groups that name none."""
    values, default = {}, 0
    for item in classes:
        values[item.metadata.name] = item.spec.value
        if item.spec.default:
            default = item.spec.value
    return values, default
