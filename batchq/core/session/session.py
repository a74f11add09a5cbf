"""A session: one pass of the scheduler, with the state that plugins read and actions change.

A session is opened on a snapshot, run through the actions, and closed; its results are its
`intents` and the states of the groups that it `touched`. It reads no clock and does no I/O: the
same snapshot, settings and `now_ms` give the same decisions.

| owner     | holds                                                                     |
|-----------|---------------------------------------------------------------------------|
| `plugins` | the functions of plugins at each extension point                          |
| `nodes`   | free resources of nodes, and what is held there for waiting groups        |
| `tree`    | the tree of queues, and their guarantees                                  |
| `ledger`  | the charges of groups, and limits, by scope                               |
| `pending` | verdicts on waiting groups                                                |
| `heads`   | the groups that others in their queues wait for                           |
| `victims` | the victims that must leave for a preemptor                               |
| `effects` | the groups that the session has changed                                   |
| `carried` | the state kept across sessions                                            |
"""

from __future__ import annotations

from bisect import insort
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from batchq.api.intents import Intent
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.reasons import Blockers, Verdict, ranked
from batchq.core.chunks import Ordered, uid_order
from batchq.core.equivalence import PendingQueue, QueueState, WakeUpIndex
from batchq.core.extension import ExtensionPoint, Registration, Rule
from batchq.core.quota import QueueTree
from batchq.core.quota.ledger import LedgerView
from batchq.core.session.session_nodes import NodeCache, NodeState, SessionNodes
from batchq.core.session.snapshot import Settings, Snapshot
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState

Key = tuple[Any, ...]
T = TypeVar("T")
D = TypeVar("D")

#: How many shapes are cached with the answer whether empty nodes would take them.
_MOST_SHAPES = 10_000

#: The plugin name in the session's own verdicts.
SESSION = "session"
_key_of = attrgetter("key")
#: So many outdated clocks are kept besides as many as there are groups.
_MOST_OUTDATED = 1_000


class Action(Protocol):
    """A step of the session, which changes groups and pods through Statements."""

    name: str

    def execute(self, session: Session) -> None:
        """Run the step once."""


class RegisteredPlugins(Protocol):
    """The plugin functions at each extension point (batchq.core.scheduler_cache)."""

    enforced: frozenset[Rule]
    lasting: Sequence[Registration[Any]]
    passing: Sequence[Registration[Any]]
    for_classes: Sequence[Registration[Any]]
    for_groups: Sequence[Registration[Any]]
    dividing: Sequence[Registration[Any]]
    order_lasts: bool
    orders_by_priority: bool
    may_form_classes: bool
    limits_decide: bool

    @property
    def points(self) -> Mapping[str, ExtensionPoint[Any]]:
        """Return the functions registered at each extension point."""

    @property
    def clocks(self) -> Iterable[Callable[[Session], Iterable[int]]]:
        """Return functions that yield when a plugin's answer changes with time alone."""

    @property
    def lifted_by(self) -> Mapping[str, Any]:
        """Return plugin -> reason -> the changes that lift a refusal with that reason."""

    @property
    def failures(self) -> dict[str, str]:
        """Return what third-party plugins raised in this session."""


class CarriedState(Protocol):
    """The state kept across sessions (batchq.core.scheduler_cache)."""

    node_cache: NodeCache
    tree: QueueTree
    groups: dict[str, GroupState]
    by_key: dict[str, GroupState]
    queues: dict[str, QueueState]
    strayed: PendingQueue
    busy: Ordered[GroupState]
    unsettled: dict[str, GroupState]
    whole: WholeGroups
    ledger: LedgerView
    fair_shares: Any
    unmet: Any
    wake_up_index: WakeUpIndex
    dependents: dict[str, dict[str, None]]
    placed: dict[str, GroupState]
    waits_for_nodes: dict[str, GroupState]
    heads_on_nodes: dict[str, GroupState]
    sharing: dict[str, GroupState]
    preemptors: dict[str, GroupState]

    def take_up(self, session: Session, inadmissible: Any) -> None:
        """Update the state for a new session."""

    def divide_classes(self, session: Session) -> None:
        """Take groups out of classes whose other members a plugin treats differently."""

    def next_at(self, inadmissible: Any) -> int | None:
        """Return the instant (ms) at which an ended or parked group next needs attention."""

    def end(self) -> None:
        """Mark the state as complete after a session."""

    def park(self, group: GroupState) -> None:
        """Remove a parked group from the pending queue."""


class StateKey(Generic[T]):
    """The key of a value that another module keeps in a session, created on first use.

    The idea is that of the keys of kube-scheduler's CycleState: a session holds the state of all
    modules without importing them.
    """

    __slots__ = ("ends_with_session", "make", "name")

    def __init__(
        self, name: str, make: Callable[[Session], T], *, ends_with_session: bool = False
    ) -> None:
        """Create a key. `ends_with_session`: the value is dropped after the last decision."""
        self.name = name
        self.make = make
        self.ends_with_session = ends_with_session


class InadmissibleSet(Protocol):
    """The parked groups (batchq.core.eligibility)."""

    parked: dict[str, tuple[Verdict, ...]]

    @property
    def generation(self) -> object:
        """Return a token that stays equal while lasting answers at preEnqueue stay valid."""

    def may_park(self) -> bool:
        """Return whether groups may be parked at all."""


class BusyGroups:
    """The groups of the scheduler cache that are more than a waiting record, and those that a
    session has touched: all that hold anything or could, without the parked ones.
    """

    def __init__(
        self, carried: Callable[[], Iterable[GroupState]], touched: Mapping[str, GroupState]
    ) -> None:
        self._carried = carried
        self._touched = touched
        self._groups: list[GroupState] | None = None
        self._uids: set[str] = set()
        self._seen = 0

    def by_key(self) -> list[GroupState]:
        """Return these groups by key. A list returned earlier is not changed."""
        if self._groups is None:
            self._groups = list(self._carried())
            self._uids = {group.uid for group in self._groups}
        if len(self._touched) > self._seen:
            new = list(islice(self._touched.values(), self._seen, None))
            self._seen = len(self._touched)
            if more := [group for group in new if group.uid not in self._uids]:
                # A caller may be iterating over the list, and each trial of an eviction adds
                # groups.
                self._groups = _with(self._groups, more)
                self._uids.update(group.uid for group in more)
        return self._groups


def _with(groups: list[GroupState], more: list[GroupState]) -> list[GroupState]:
    """Return a copy of groups, which are ordered by key, with more groups in their places."""
    if len(more) > len(groups):
        return sorted([*groups, *more], key=_key_of)
    found = groups.copy()
    for group in more:
        insort(found, group, key=_key_of)
    return found


class WholeGroups:
    """The groups that run with all of their pods, by key, and when a controller must look at each.

    It looks after each change of a group, in each new configuration generation, and when the first
    of the group's clocks runs out. Otherwise a session visits none of them.
    """

    def __init__(self) -> None:
        self._groups: dict[str, GroupState] = {}
        #: Those that may need action; the others have an entry in `_clocks`.
        self._due: dict[str, GroupState] = {}
        #: (instant in ms, key), outdated ones included.
        self._clocks: list[tuple[int, str]] = []
        self._generation: object = None

    def __contains__(self, key: str) -> bool:
        return key in self._groups

    def add(self, group: GroupState) -> None:
        """Add a group, or the new state of one."""
        self._groups[group.key] = self._due[group.key] = group

    def discard(self, key: str) -> None:
        """Remove a group, if it is there."""
        self._groups.pop(key, None)
        self._due.pop(key, None)

    def settle(self, group: GroupState, until: int) -> None:
        """Record that nothing happens to a group before an instant unless it changes."""
        if self._groups.get(group.key) is not group:
            return
        self._due.pop(group.key, None)
        if len(self._clocks) > 2 * len(self._groups) + _MOST_OUTDATED:
            self._clocks = [entry for entry in self._clocks if self._is_valid(*entry)]
            heapify(self._clocks)
        heappush(self._clocks, (until, group.key))

    def due(self, generation: object, now_ms: int) -> Collection[GroupState]:
        """Return the groups that may need action in a configuration generation at an instant."""
        if generation != self._generation:
            self._generation = generation
            self._due, self._clocks = dict(self._groups), []
        while self._clocks and self._clocks[0][0] <= now_ms:
            _, key = heappop(self._clocks)
            if key in self._groups:
                self._due[key] = self._groups[key]
        return self._due.values()

    def next_at(self) -> int | None:
        """Return the first instant at which a group that is not due may need action."""
        while self._clocks and not self._is_valid(*self._clocks[0]):
            heappop(self._clocks)
        return self._clocks[0][0] if self._clocks else None

    def _is_valid(self, at: int, key: str) -> bool:
        group = self._groups.get(key)
        return group is not None and group.settled_until == (self._generation, at)


class PendingGroups:
    """Verdicts on pending groups, and when an equivalence class stands for members."""

    def __init__(
        self, inadmissible: InadmissibleSet, *, classes_may_form: bool, limits_decide: bool
    ) -> None:
        self.inadmissible = inadmissible
        #: Whether groups with equal requests are evaluated together.
        self.classes_may_form = classes_may_form
        #: Whether every group that could ever fit is admitted as soon as the limits have capacity.
        self.limits_decide = classes_may_form and limits_decide
        #: Whether classes may be parked.
        self.classes_may_park = classes_may_form and inadmissible.may_park()
        #: Uid -> the verdicts on a parked group.
        self.parked: Mapping[str, tuple[Verdict, ...]] = {}
        #: A token that stays equal while lasting answers at preEnqueue stay valid.
        self.generation: object = None
        #: Uid -> why a group is ineligible, filled on demand (batchq.core.pending_queue).
        self.ineligible: dict[str, tuple[Verdict, ...]] = {}
        #: Request -> the version of the ledger, and the verdicts on such a group at that version.
        self.last_verdicts: dict[Key, tuple[int, tuple[Verdict, ...]]] = {}
        #: The verdict on the groups behind a head, and what a class shows that it alone refuses.
        self.only_behind: tuple[Verdict, Blockers] | None = None
        #: The number of groups evaluated; for measurements.
        self.evaluated = 0

    def begin(self) -> None:
        """Read the parked groups, after the state of the previous session was taken over."""
        self.parked = self.inadmissible.parked
        self.generation = self.inadmissible.generation


class QueueHeads:
    """The heads of queues, which other groups wait for."""

    def __init__(self) -> None:
        #: Queue -> the head that all other groups of the queue wait for, if there is one now.
        self.strict: dict[str, GroupState] = {}
        #: Heads without a reservation, because they request more than their queues deserve.
        self.exceeding: list[GroupState] = []
        #: Uid of a group -> the heads beside which more of its pods were counted as bound while
        #: less important groups of its queue were tried.
        self.grown_beside: dict[str, tuple[str, ...]] = {}
        #: Uid of a group -> the instant (ms) from which backfill keeps capacity for it.
        self.starts: dict[str, int] = {}
        #: Heads behind which backfill has planned only groups that could have started now.
        self.unplanned: set[str] = set()


class PledgedVictims:
    """The victims that must leave for a preemptor and have not ended yet."""

    def __init__(self) -> None:
        #: Uid of a pod or of an external group -> the uid of the preemptor that it is pledged to.
        self.pledged: dict[str, str] = {}
        #: The same as stored at the start of the session.
        self.pledged_before: dict[str, str] = {}
        #: Whether a victim was skipped because it has started at this very instant.
        self.spares_the_new = False

    def begin(self) -> None:
        """Record the pledges at the start of the session."""
        self.pledged_before = dict(self.pledged)


class Effects:
    """The groups that a session has changed; written by Statements."""

    def __init__(self) -> None:
        #: The changed groups by uid; transactions are derived from their states.
        self.touched: dict[str, GroupState] = {}
        #: The uids of finished groups to delete.
        self.expired: set[str] = set()
        #: The former and the new state of each group that others have ended since the last session.
        self.ended_by_others: list[tuple[GroupState, GroupState]] = []
        #: The names of nodes that have become silent.
        self.unready: list[str] = []
        #: Uids of groups whose changes must be committed together, one tuple for each decision.
        self.joined: list[tuple[str, ...]] = []
        #: Uid -> status and live pods of a group before the first action changed it; empty before
        #: the actions begin.
        self.before: dict[str, tuple[PodGroupStatus, dict[str, Pod]]] = {}
        #: The number of intents before the actions.
        self.first_intent = 0
        #: Whether status that only informs people may be written by a later session.
        self.defers_status = False
        #: Whether some groups keep their stored reasons although these have changed.
        self.has_deferred_reasons = False
        self._actions_run = False

    def begin_actions(self, intents: int) -> None:
        """Record group states from now on; `intents` is the number of existing intents."""
        self.before = {}
        self.first_intent = intents
        self._actions_run = True

    def remember(self, *groups: GroupState) -> None:
        """Record the states of groups before an action changes them for the first time."""
        before = self.before
        for group in groups if self._actions_run else ():
            if group.uid not in before:
                before[group.uid] = (group.status, dict(group.live_pods))


class Refusals(MutableMapping[str, Blockers]):
    """The verdicts on waiting groups by uid: those of this session; for a parked group, those with
    which it was parked; for a member of an equivalence class, those of the class.
    """

    def __init__(
        self, groups: Mapping[str, GroupState], parked: Mapping[str, tuple[Verdict, ...]]
    ) -> None:
        self.own: dict[str, Blockers] = {}
        self._groups = groups
        self._parked = parked

    def __getitem__(self, uid: str) -> Blockers:
        found = self.own.get(uid)
        if found is None:
            found = self._carried_over(self._groups[uid])
        if found is None:
            raise KeyError(uid)
        return found

    # The inherited `get` would raise a KeyError for each group that is not refused.
    @overload
    def get(self, uid: str, default: None = None, /) -> Blockers | None: ...
    @overload
    def get(self, uid: str, default: Blockers | D, /) -> Blockers | D: ...
    def get(self, uid: str, default: D | None = None, /) -> Blockers | D | None:
        found = self.own.get(uid)
        if found is None and (group := self._groups.get(uid)) is not None:
            found = self._carried_over(group)
        return default if found is None else found

    def _carried_over(self, group: GroupState) -> Blockers | None:
        """Return the verdicts with which a group was parked, or those of its class."""
        if group.status is not group.record.status:
            return None
        return self._parked.get(group.uid) or (group.peers and group.peers.shown)  # type: ignore[return-value]

    def __setitem__(self, uid: str, verdicts: Blockers) -> None:
        self.own[uid] = verdicts

    def __delitem__(self, uid: str) -> None:
        self.own.pop(uid, None)

    def __iter__(self) -> Iterator[str]:
        return (uid for uid in self._groups if uid in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Session:
    """The owner of all working state of one pass; see the module's docstring.

    Sessions are created by `batchq.core.session.open_session`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        now_ms: int,
        settings: Settings,
        plugins: RegisteredPlugins,
        cache: CarriedState,
        inadmissible: InadmissibleSet,
        actions: tuple[str, ...] = (),
    ) -> None:
        self._parts: dict[StateKey[Any], Any] = {}
        self.snapshot = snapshot
        self.now_ms = now_ms
        self.settings = settings
        self.actions = actions
        self.intents: list[Intent] = []
        self.effects = Effects()
        self.heads = QueueHeads()
        self.victims = PledgedVictims()
        self.plugins = plugins
        self._group_orders = plugins.points["groupOrder"]
        self.gates_hold = Rule.SCHEDULING_GATES in plugins.enforced
        self.pending = PendingGroups(
            inadmissible,
            classes_may_form=plugins.may_form_classes and _enqueue_comes_first(actions),
            limits_decide=plugins.limits_decide,
        )
        self.admission_checks = {item.metadata.name: item for item in snapshot.admission_checks}
        self.carried = cache
        #: Returns the groups that hold anything or could, by key; see `BusyGroups`.
        self.busy = BusyGroups(lambda: cache.busy, self.effects.touched).by_key
        #: Returns the busy groups, by key, without those that run with all of their pods and have
        #: not changed in this session: usually few.
        self.unsettled = BusyGroups(
            lambda: sorted(cache.unsettled.values(), key=_key_of), self.effects.touched
        ).by_key
        cache.take_up(self, inadmissible)
        self.victims.begin()
        self.pending.begin()
        self.refusals = Refusals(self.groups, self.pending.parked)
        for line in self.lines():
            line.order_by(self.group_key)

    def get(self, key: StateKey[T]) -> T:
        """Return the value of a key, creating it if necessary."""
        found: T | None = self._parts.get(key)
        if found is None:
            found = self._parts[key] = key.make(self)
        return found

    def peek(self, key: StateKey[T]) -> T | None:
        """Return the value of a key, or None."""
        found: T | None = self._parts.get(key)
        return found

    def put(self, key: StateKey[T], part: T | None) -> None:
        """Set the value of a key; None removes it."""
        if part is None:
            self._parts.pop(key, None)
        else:
            self._parts[key] = part

    def with_ledger(self, ledger: LedgerView) -> Session:
        """Return this session as it is with another ledger, for questions about planned charges. It
        shares all other state, and must change nothing.
        """
        view = copy(self)
        view.ledger = ledger
        return view

    def adopt(self, carried: CarriedState) -> None:
        """Take over the updated state of the previous session; called by the cache."""
        self.nodes = SessionNodes(carried.node_cache)
        self.tree = carried.tree
        self.groups = carried.groups
        self.by_key = carried.by_key
        self.queues = carried.queues
        self.ledger = carried.ledger

    def refusals_at(self, point: str, group: GroupState) -> list[Verdict]:
        """Return all refusals of all plugins at `preEnqueue`, `admissible` or `permit`."""
        found: list[Verdict] = []
        for entry in self.plugins.points[point]:
            found += entry.function(self, group)
        return found

    def refused_by(self, shape: TaskShape, node: NodeState) -> Verdict | None:
        """Return the first plugin's refusal to put this shape on that node, or None."""
        for entry in self.plugins.points["predicate"]:
            verdict: Verdict | None = entry.function(self, shape, node)
            if verdict is not None:
                return verdict
        return None

    def is_taken_when_empty(self, shape: TaskShape) -> bool:
        """Return whether any ready, uncordoned node would take a pod of this shape if it were
        empty.

        Cached for each shape and set of nodes.
        """
        taken = self.nodes.taken_when_empty
        known = taken.get(shape.shape)
        if known is None:
            if len(taken) >= _MOST_SHAPES:
                taken.clear()
            nodes = self.nodes.open_when_empty().nodes.values()
            known = taken[shape.shape] = any(self.refused_by(shape, node) is None for node in nodes)
        return known

    def score(self, shape: TaskShape, node: NodeState) -> int:
        """Return the weighted sum of the plugins' scores; higher is better."""
        return sum(
            entry.weight * entry.function(self, shape, node)
            for entry in self.plugins.points["score"]
        )

    def group_ready(self, group: GroupState) -> bool:
        """Return whether every plugin finds the group's placements sufficient to start it."""
        for entry in self.plugins.points["groupReady"]:  # noqa: SIM110 - asked of every gang, often
            if not entry.function(self, group):
                return False
        return True

    def group_key(self, group: GroupState) -> Key:
        """Return the sort key of a group: the plugins' keys, then queue time, then uid."""
        if group.line_key is not None and (
            self.plugins.order_lasts or group.status is group.record.status
        ):
            return group.line_key
        keys = [entry.function(self, group) for entry in self._group_orders]
        key = (*keys, group.queue_time, uid_order(group.uid))
        if self.plugins.order_lasts and group.record_only and group.status is group.record.status:
            group.line_key = key
        return key

    def queue_key(self, queue: QueueState) -> Key:
        """Return the sort key of a queue, level by level from the root: the plugins' keys, age,
        uid.

        It changes with every admission.
        """
        return tuple(self.level_key(self.queues[name]) for name in self.tree.chain(queue.name)[1:])

    def level_key(self, queue: QueueState, head: Key = ()) -> Key:
        """Return the sort key of a queue among its siblings: the plugins' keys, the rank of its
        head, age, uid. No two keys are equal.
        """
        return (*self.queue_orders(queue), head, *self.queue_age(queue))

    def queue_orders(self, queue: QueueState) -> list[Any]:
        """Return the plugins' keys of a queue."""
        return [entry.function(self, queue) for entry in self.plugins.points["queueOrder"]]

    def queue_age(self, queue: QueueState) -> Key:
        """Return the end of every `level_key` of a queue, which does not change in a session."""
        meta = queue.record.metadata
        return (meta.creation_timestamp or 0, uid_order(meta.uid), meta.name)

    def pod_key(self, group: GroupState, pod: Pod) -> Key:
        """Return the sort key of a pod in its group: the plugins' keys, then task, then index."""
        keys = tuple(entry.function(self, group, pod) for entry in self.plugins.points["podOrder"])
        return (*keys, group.shape_of(pod).first, pod.spec.index)

    def refuse(self, group: GroupState, verdicts: Iterable[Verdict]) -> None:
        """Store the verdicts on a waiting group, ranked."""
        self.refusals[group.uid] = self.as_kept(verdicts)

    def as_kept(self, verdicts: Iterable[Verdict]) -> Blockers:
        """Return the verdicts in the form in which they are stored."""
        if isinstance(verdicts, Blockers):
            return verdicts
        return self.dated(verdicts) if verdicts else Blockers()

    def dated(self, verdicts: Iterable[Verdict]) -> Blockers:
        """Return the verdicts ranked and marked with the snapshot's revision."""
        at = self.snapshot.revision
        return ranked(msgspec.structs.replace(verdict, revision=at) for verdict in verdicts)

    def begin_actions(self) -> None:
        """Separate the changes of the actions from those made before."""
        self.effects.begin_actions(len(self.intents))

    def in_order(self) -> list[GroupState]:
        """Return every group, by key. This visits all groups, so call it only if all are needed."""
        return sorted(self.groups.values(), key=lambda group: group.key)

    def lines(self) -> Iterator[PendingQueue]:
        """Yield the pending queue of each queue, then that of groups with a missing queue."""
        for queue in self.queues.values():
            yield queue.line
        yield self.carried.strayed

    def next_at(self) -> int | None:
        """Return the instant (ms) at which an ended or parked group next needs attention."""
        return self.carried.next_at(self.pending.inadmissible)

    def line_up(self) -> None:
        """Update the pending queues after the controller has rolled back or finished groups.

        A group that has just been rolled back is in line like any other, and no group behind it may
        overtake it for that reason.
        """
        for group in self.effects.touched.values():
            if group.queue not in self.queues or group.peers is not None:
                continue
            line = self.queues[group.queue].line
            line.discard(group.uid)
            if group.phase == PodGroupPhase.PENDING and group.uid not in self.effects.expired:
                line.add(group)

    def close(self) -> None:
        """Close the session and return what was only held."""
        self.nodes.end()

    def end(self) -> None:
        """Mark everything as decided and stored, for the next session to take over."""
        self.carried.end()
        # These values refer to the session; the cycle would be freed only by the garbage collector.
        for key in [key for key in self._parts if key.ends_with_session]:
            del self._parts[key]

    def has_parked_groups(self) -> bool:
        """Return whether any group may have verdicts from an earlier session."""
        return bool(self.pending.parked) or any(
            peers.is_parked for line in self.lines() for peers in line.classes.values()
        )

    def park(self, group: GroupState) -> None:
        """Park a group."""
        self.carried.park(group)


def with_head(level_key: Key, head: Key) -> Key:
    """Return a queue's `Session.level_key` with the rank of another head."""
    return (*level_key[:-4], head, *level_key[-3:])


def _enqueue_comes_first(actions: tuple[str, ...]) -> bool:
    """Return whether `enqueue` comes first, so that its verdicts stay valid."""
    return "enqueue" in actions and actions.index("enqueue") == 0


def unfinished(groups: Iterable[GroupState]) -> list[GroupState]:
    """Return the groups that have not ended."""
    return [group for group in groups if group.phase not in TERMINAL]
