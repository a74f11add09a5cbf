"""One turn of the scheduler: the state that plugins are asked about and actions move.

A session is opened on a snapshot, run through the actions, and closed; what it decided is its
`intents` and the states of the groups that it `touched`. It reads no clock and does no I/O: the
same snapshot, settings and `now_ms` give the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from batchq.api.intents import Intent
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Blockers, Verdict, ranked
from batchq.core.cache.chunks import Ordered, uid_order
from batchq.core.cache.node_cache import NodeCache
from batchq.core.extension.points import ExtensionPoint, Registration
from batchq.core.extension.traits import Rule
from batchq.core.pending.equivalence import WakeUpIndex
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.queue_tree import QueueTree
from batchq.core.session.effects import Effects, Refusals
from batchq.core.session.node_state import NodeState
from batchq.core.session.session_groups import (
    BusyGroups,
    InadmissibleSet,
    PendingGroups,
    PledgedVictims,
    QueueHeads,
)
from batchq.core.session.session_nodes import SessionNodes
from batchq.core.session.settings import Settings
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, PendingQueue, QueueState

Key = tuple[Any, ...]
T = TypeVar("T")

#: Of so many shapes it is remembered whether empty nodes would take them.
_MOST_SHAPES = 10_000

#: The name under which the session's own refusals are known.
SESSION = "session"


class Action(Protocol):
    """A verb of the session: reads it, and moves groups and pods through Statements."""

    name: str

    def execute(self, session: Session) -> None:
        """Take one turn."""


class RegisteredPlugins(Protocol):
    """Which functions of plugins are called where (batchq.core.extension.registry)."""

    enforced: frozenset[Rule]
    lasting: Sequence[Registration[Any]]
    passing: Sequence[Registration[Any]]
    for_classes: Sequence[Registration[Any]]
    for_groups: Sequence[Registration[Any]]
    dividing: Sequence[Registration[Any]]
    order_lasts: bool
    may_form_classes: bool
    limits_decide: bool

    @property
    def points(self) -> Mapping[str, ExtensionPoint[Any]]:
        """Extension point -> the functions that are called there."""

    @property
    def clocks(self) -> Iterable[Callable[[Session], Iterable[int]]]:
        """Functions that return instants at which plugins' answers change by the clock alone."""

    @property
    def lifted_by(self) -> Mapping[str, Any]:
        """Plugin -> reason -> the changes that lift a refusal for it."""

    @property
    def failures(self) -> dict[str, str]:
        """What third-party plugins raised in this session."""


class CarriedState(Protocol):
    """What lasts from one session to the next (batchq.core.cache.scheduler_cache)."""

    machines: NodeCache
    tree: QueueTree
    groups: dict[str, GroupState]
    by_key: dict[str, GroupState]
    queues: dict[str, QueueState]
    strayed: PendingQueue
    busy: Ordered[GroupState]
    ledger: LedgerView
    watches: WakeUpIndex
    dependents: dict[str, dict[str, None]]
    placed: dict[str, GroupState]
    waits_for_nodes: dict[str, GroupState]
    heads_on_nodes: dict[str, GroupState]
    claimants: dict[str, GroupState]

    def take_up(self, session: Session, parking: Any) -> None:
        """Bring everything up to date for a session that begins."""

    def divide_classes(self, session: Session) -> None:
        """Let the groups stand alone that a plugin tells from those that ask for the same."""

    def next_at(self, parking: Any) -> int | None:
        """When something becomes due of groups that have ended, or sleep."""

    def end(self) -> None:
        """The session has come to its end."""

    def lay_down(self, group: GroupState) -> None:
        """A group sleeps from now on."""


class StateKey(Generic[T]):
    """Names what another module keeps in a session, and makes it when it is first asked for.

    The same idea as the keys of kube-scheduler's CycleState: so a session holds the state of all
    modules, and knows none of them.
    """

    __slots__ = ("ends_with_session", "make", "name")

    def __init__(
        self, name: str, make: Callable[[Session], T], *, ends_with_session: bool = False
    ) -> None:
        """`ends_with_session`: nobody asks for it once everything is decided."""
        self.name = name
        self.make = make
        self.ends_with_session = ends_with_session


class Session:
    """Owner of all working state of one turn. See the module's docstring.

    `batchq.core.session.open_session` makes them.
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
        self._busy = BusyGroups(cache, self.effects.touched)
        cache.take_up(self, inadmissible)
        self.victims.begin()
        self.pending.begin()
        self.refusals = Refusals(self.groups, self.pending.parked)
        for line in self.lines():
            line.order_by(self.group_key)

    # What other modules keep here --------------------------------------------------------------

    def get(self, key: StateKey[T]) -> T:
        """What a key names; made if it is not there yet."""
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = key.make(self)
        return cast(T, found)

    def peek(self, key: StateKey[T]) -> T | None:
        """What a key names, if it is there."""
        return cast("T | None", self._parts.get(key))

    def put(self, key: StateKey[T], part: T | None) -> None:
        """Have a key name this from now on; None: nothing."""
        if part is None:
            self._parts.pop(key, None)
        else:
            self._parts[key] = part

    def adopt(self, carried: CarriedState) -> None:
        """Take over what the session before has left, put right; for the cache."""
        self.nodes = SessionNodes(carried.machines)
        self.tree = carried.tree
        self.groups = carried.groups
        self.by_key = carried.by_key
        self.queues = carried.queues
        self.ledger = carried.ledger

    # Plugins' say ----------------------------------------------------------------------------

    def refusals_at(self, point: str, group: GroupState) -> list[Verdict]:
        """Every refusal of every plugin at `preEnqueue`, `admissible` or `permit`."""
        return [
            verdict
            for entry in self.plugins.points[point]
            for verdict in entry.function(self, group)
        ]

    def refused_by(self, shape: TaskShape, node: NodeState) -> Verdict | None:
        """The first plugin's refusal to put this shape on that node."""
        for entry in self.plugins.points["predicate"]:
            verdict: Verdict | None = entry.function(self, shape, node)
            if verdict is not None:
                return verdict
        return None

    def is_taken_when_empty(self, shape: TaskShape) -> bool:
        """Return whether any ready, uncordoned node would take a pod of this shape, were it empty.

        Looked up once for each shape and set of nodes.
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
        """The weighted sum of the plugins' scores; higher is better."""
        return sum(
            entry.weight * entry.function(self, shape, node)
            for entry in self.plugins.points["score"]
        )

    def group_ready(self, group: GroupState) -> bool:
        """Whether every plugin finds the group's placements enough to start it."""
        for entry in self.plugins.points["groupReady"]:  # noqa: SIM110 - asked of every gang, often
            if not entry.function(self, group):
                return False
        return True

    def group_key(self, group: GroupState) -> Key:
        """The order of groups: the plugins' keys, then queue time, then uid."""
        if group.line_key is not None and (
            self.plugins.order_lasts or group.status is group.record.status
        ):
            return group.line_key
        keys = [entry.function(self, group) for entry in self._group_orders]
        key = (*keys, group.queue_time, uid_order(group.uid))
        if self.plugins.order_lasts and group.bare and group.status is group.record.status:
            group.line_key = key
        return key

    def queue_key(self, queue: QueueState) -> Key:
        """The order of queues, level by level from the root: the plugins' keys, age, uid.

        Moves with every admission.
        """
        return tuple(self.level_key(self.queues[name]) for name in self.tree.chain(queue.name)[1:])

    def level_key(self, queue: QueueState) -> Key:
        """The order of a queue among its siblings. No two keys are equal."""
        keys = tuple(entry.function(self, queue) for entry in self.plugins.points["queueOrder"])
        meta = queue.record.metadata
        return (*keys, meta.creation_timestamp or 0, uid_order(meta.uid), queue.name)

    def pod_key(self, group: GroupState, pod: Pod) -> Key:
        """The order of one group's pods: the plugins' keys, then task, then index."""
        keys = tuple(entry.function(self, group, pod) for entry in self.plugins.points["podOrder"])
        return (*keys, group.shape_of(pod).first, pod.spec.index)

    # Working -----------------------------------------------------------------------------------

    def refuse(self, group: GroupState, verdicts: Iterable[Verdict]) -> None:
        """Keep why a group waits, all blockers, ranked."""
        self.refusals[group.uid] = self.as_kept(verdicts)

    def as_kept(self, verdicts: Iterable[Verdict]) -> Blockers:
        """Blockers as they are kept, if they are not already."""
        return verdicts if isinstance(verdicts, Blockers) else self.dated(verdicts)

    def dated(self, verdicts: Iterable[Verdict]) -> Blockers:
        """Blockers as they are kept: ranked, with the revision at which they were seen."""
        at = self.snapshot.revision
        return ranked(msgspec.structs.replace(verdict, revision=at) for verdict in verdicts)

    def begin_actions(self) -> None:
        """Tell what the actions do from what was done before."""
        self.effects.begin_actions(len(self.intents))

    def busy(self) -> list[GroupState]:
        """Return the groups that hold anything or could, by key; see `BusyGroups`."""
        return self._busy.by_key()

    def in_order(self) -> list[GroupState]:
        """Every group, by key; that is a look at each, so only for those who want all of them."""
        return sorted(self.groups.values(), key=lambda group: group.key)

    def lines(self) -> Iterator[PendingQueue]:
        """The line of every queue, and of those that there are not."""
        for queue in self.queues.values():
            yield queue.line
        yield self.carried.strayed

    def next_at(self) -> int | None:
        """When something becomes due of groups that have ended, or sleep."""
        return self.carried.next_at(self.pending.inadmissible)

    def line_up(self) -> None:
        """Let the lines follow the groups that the controller has let leave or end.

        Who has just left stands in line like everybody else, and nobody behind may overtake it
        for that.
        """
        for group in self.effects.touched.values():
            if group.queue not in self.queues or group.peers is not None:
                continue
            line = self.queues[group.queue].line
            line.discard(group.uid)
            if group.phase == PodGroupPhase.PENDING and group.uid not in self.effects.expired:
                line.add(group)

    def close(self) -> None:
        """End the turn: what was only held is undone."""
        self.nodes.end()

    def end(self) -> None:
        """Everything is decided and written down: the next session may take this one over."""
        self.carried.end()
        # They know the session: left here, both were a cycle, which only the collector frees.
        for key in [key for key in self._parts if key.ends_with_session]:
            del self._parts[key]

    def anybody_sleeps(self) -> bool:
        """Whether what anybody was told may be older than this session."""
        return bool(self.pending.parked) or any(
            peers.sleeps for line in self.lines() for peers in line.classes.values()
        )

    def lay_down(self, group: GroupState) -> None:
        """A group sleeps from now on."""
        self.carried.lay_down(group)


def _enqueue_comes_first(actions: tuple[str, ...]) -> bool:
    """Whether `enqueue` is the first to look at the lines, so that it may keep what it finds."""
    return "enqueue" in actions and actions.index("enqueue") == 0


def unfinished(groups: Iterable[GroupState]) -> list[GroupState]:
    """The groups that have not ended."""
    return [group for group in groups if group.phase not in TERMINAL]
