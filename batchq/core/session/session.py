"""One turn of the scheduler: the state that plugins are asked about and actions move.

A session is opened on a snapshot, run through the actions, and closed; what it decided is its
`intents` and the states of the groups that it `touched`. It reads no clock and does no I/O: the
same snapshot, settings and `now_ms` give the same decisions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from batchq.api.intents import Intent
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import Condition, Pod, PodGroupStatus
from batchq.api.reasons import Blockers, Verdict, ranked
from batchq.api.resources import PODS, UNLIMITED_PODS, Amounts
from batchq.core.cache.chunks import Ordered, uid_order
from batchq.core.cache.node_cache import NodeCache
from batchq.core.extension.points import ExtensionPoint, Registration
from batchq.core.extension.traits import Rule
from batchq.core.pending.equivalence import WakeUpIndex
from batchq.core.quota.ledger import LedgerView
from batchq.core.quota.queue_tree import QueueTree
from batchq.core.session.node_state import NodeState
from batchq.core.session.session_nodes import SessionNodes
from batchq.core.session.settings import Settings
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, PendingQueue, QueueState

Key = tuple[Any, ...]
T = TypeVar("T")

_key_of = attrgetter("key")

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
    goes_by_requests: bool
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


class Inadmissible(Protocol):
    """The groups that sleep (batchq.core.pending.inadmissible)."""

    asleep: dict[str, tuple[Verdict, ...]]

    @property
    def world(self) -> object:
        """Equal as long as nothing has changed that decides who stands in line."""

    def may_sleep(self) -> bool:
        """Whether groups may be left out of a session at all."""


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
        inadmissible: Inadmissible,
        actions: tuple[str, ...] = (),
    ) -> None:
        self._parts: dict[StateKey[Any], Any] = {}
        self.snapshot = snapshot
        self.now_ms = now_ms
        self.settings = settings
        self.actions = actions
        self.intents: list[Intent] = []
        self.touched: dict[str, GroupState] = {}
        self.expired: set[str] = set()
        self.unready: list[str] = []
        #: What those of a claim's extra pods ask for that fit by now, while victims are chosen.
        self.fitting: Amounts = {}
        #: What the next pod of an admitted group asks for, while limits are asked about it.
        self.asking: Amounts = {}
        #: Once actions run: how groups were before any of them touched them, and where their
        #: intents begin.
        self.former: dict[str, tuple[PodGroupStatus, dict[str, Pod]]] | None = None
        self.first_intent = 0
        #: What of that the present action could take back (batchq.core.preemption.candidates).
        self.undoable: dict[str, list[Any]] | None = None
        #: Whether a victim was passed over since it has started at this very instant.
        self.spares_the_new = False
        #: Claimants with a pledge, by rank, as the present action found them
        #: (batchq.core.preemption.candidates).
        self.standing_by_rank: list[GroupState] | None = None
        #: Whether a claimant that has just lost its pledge looks for other victims.
        self.chooses_again = False
        #: Queue -> its head that all others of the queue wait for, if there is one now.
        self.strict_heads: dict[str, GroupState] = {}
        #: Group's uid -> the heads beside which more pods of it were counted as bound, while
        #: less important groups of its queue were tried.
        self.grown_beside: dict[str, tuple[str, ...]] = {}
        #: Heads for which nothing is set aside, as they ask for more than their queues deserve.
        self.exceeding: list[GroupState] = []
        #: Queue -> of its groups that reclaim may not take yet the lowest, once asked.
        self.protected: dict[str, GroupState] | None = None
        #: Group's uid -> from when on room is kept for it, in milliseconds, as backfill has found.
        self.reservations: dict[str, int] = {}
        #: Heads behind which only those have reservations that could have started.
        self.unplanned: set[str] = set()
        #: Groups whose changes become true together or not at all, by uid.
        self.joined: list[tuple[str, ...]] = []
        #: Why groups stand aside, once asked (batchq.core.pending.queue).
        self.asides: dict[str, tuple[Verdict, ...]] = {}
        #: What groups that ask for the same were told, and at which version of the ledger.
        self.told: dict[Key, tuple[int, tuple[Verdict, ...]]] = {}
        #: What groups are told on their first admission, by what they have reserved.
        self.admitted: dict[tuple[tuple[str, int], ...], tuple[Condition, ...]] = {}
        #: How many groups were asked about, whatever the answer; for those who watch the cost.
        self.evaluated = 0
        #: The dimensions that a claimant lacks, while victims are looked for.
        self.lacking: frozenset[str] = frozenset()
        #: Scope -> what its sum is going to fall by, meanwhile: what victims owe to others.
        self.leaving: Mapping[str, Amounts] = {}
        #: Victims' uids (of pods, of external groups) -> the uid of the claimant they are owed to.
        self.pledged: dict[str, str] = {}

        self.points = plugins.points
        self._group_orders = plugins.points["groupOrder"]
        self.plugin_clocks = plugins.clocks
        self.plugins = plugins
        self._order_lasts = plugins.order_lasts
        self.failures = plugins.failures
        self.gates_hold = Rule.SCHEDULING_GATES in plugins.enforced
        #: Whether groups that wait alike are asked about together
        #: (batchq.core.pending.equivalence).
        self.crowds_may_form = plugins.goes_by_requests and _enqueue_comes_first(actions)
        #: Whether what could ever fit is let in wherever the limits have room.
        self.limits_decide = self.crowds_may_form and plugins.limits_decide
        #: Whether crowds may sleep.
        self.crowds_may_sleep = self.crowds_may_form and inadmissible.may_sleep()

        self.admission_checks = {item.metadata.name: item for item in snapshot.admission_checks}
        self._cache, self._inadmissible = cache, inadmissible
        self._busy: list[GroupState] | None = None
        self._in_busy: set[str] = set()
        self._touched_in_busy = 0
        cache.take_up(self, inadmissible)
        #: The same, as it stands in the store.
        self.pledged_before = dict(self.pledged)
        #: Groups that nothing has happened to that could let them in, and why they wait.
        self.asleep = inadmissible.asleep
        self.refusals = Refusals(self.groups, self.asleep)
        #: Equal as long as nothing has changed that lasting answers at preEnqueue depend on.
        self.world = inadmissible.world
        for line in self.lines():
            line.order_by(self.group_key)
        #: Whether anything says how many pods there may be, and so how many a queue deserves.
        self.pods_are_bounded = self.nodes.ready.get(PODS, 0) < UNLIMITED_PODS or any(
            PODS in queue.spec.deserved for queue in snapshot.queues
        )
        self.all_reclaimable = all(queue.spec.reclaimable for queue in snapshot.queues)
        self.admission_checks_are_asked_for = any(
            queue.spec.admission_checks for queue in snapshot.queues
        )

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
        #: Groups of queues that there are not.
        self.strayed = carried.strayed
        self.ledger = carried.ledger
        self.dependents = carried.dependents
        self.watches = carried.watches
        #: The groups whose records say which places are kept for them, by uid; and those that wait
        #: for nothing but nodes and say since when.
        self.placed = carried.placed
        self.waits_for_nodes = carried.waits_for_nodes
        #: The groups whose records say what is set aside for them on nodes, by uid.
        self.heads_on_nodes = carried.heads_on_nodes
        #: Those to which something was pledged when the session began.
        self.claimants = carried.claimants

    # Plugins' say ----------------------------------------------------------------------------

    def refusals_at(self, point: str, group: GroupState) -> list[Verdict]:
        """Every refusal of every plugin at `preEnqueue`, `admissible` or `permit`."""
        return [verdict for entry in self.points[point] for verdict in entry.function(self, group)]

    def refused_by(self, shape: TaskShape, node: NodeState) -> Verdict | None:
        """The first plugin's refusal to put this shape on that node."""
        for entry in self.points["predicate"]:
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
            entry.weight * entry.function(self, shape, node) for entry in self.points["score"]
        )

    def group_ready(self, group: GroupState) -> bool:
        """Whether every plugin finds the group's placements enough to start it."""
        for entry in self.points["groupReady"]:  # noqa: SIM110 - asked of every gang, often
            if not entry.function(self, group):
                return False
        return True

    def group_key(self, group: GroupState) -> Key:
        """The order of groups: the plugins' keys, then queue time, then uid."""
        if group.line_key is not None and (
            self._order_lasts or group.status is group.record.status
        ):
            return group.line_key
        keys = [entry.function(self, group) for entry in self._group_orders]
        key = (*keys, group.queue_time, uid_order(group.uid))
        if self._order_lasts and group.bare and group.status is group.record.status:
            group.line_key = key
        return key

    def queue_key(self, queue: QueueState) -> Key:
        """The order of queues, level by level from the root: the plugins' keys, age, uid.

        Moves with every admission.
        """
        return tuple(self.level_key(self.queues[name]) for name in self.tree.chain(queue.name)[1:])

    def level_key(self, queue: QueueState) -> Key:
        """The order of a queue among its siblings. No two keys are equal."""
        keys = tuple(entry.function(self, queue) for entry in self.points["queueOrder"])
        meta = queue.record.metadata
        return (*keys, meta.creation_timestamp or 0, uid_order(meta.uid), queue.name)

    def pod_key(self, group: GroupState, pod: Pod) -> Key:
        """The order of one group's pods: the plugins' keys, then task, then index."""
        keys = tuple(entry.function(self, group, pod) for entry in self.points["podOrder"])
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
        """From now on, what happened to a group in this session can be told from what was."""
        self.former = {}
        self.first_intent = len(self.intents)

    def busy(self) -> list[GroupState]:
        """The groups that are more than a record that waits, or that a Statement has touched: all
        that hold anything or could, but for those that sleep. By key.
        """
        if self._busy is None:
            self._busy = list(self._cache.busy)
            self._in_busy = {group.uid for group in self._busy}
        if len(self.touched) > self._touched_in_busy:
            new = list(islice(self.touched.values(), self._touched_in_busy, None))
            self._touched_in_busy = len(self.touched)
            if more := [group for group in new if group.uid not in self._in_busy]:
                # A copy, for whoever goes through it just now; each trial of an eviction adds some.
                self._busy = self._busy.copy()
                for group in more:
                    insort(self._busy, group, key=_key_of)
                self._in_busy.update(group.uid for group in more)
        return self._busy

    def in_order(self) -> list[GroupState]:
        """Every group, by key; that is a look at each, so only for those who want all of them."""
        return sorted(self.groups.values(), key=lambda group: group.key)

    def lines(self) -> Iterator[PendingQueue]:
        """The line of every queue, and of those that there are not."""
        for queue in self.queues.values():
            yield queue.line
        yield self.strayed

    def next_at(self) -> int | None:
        """When something becomes due of groups that have ended, or sleep."""
        return self._cache.next_at(self._inadmissible)

    def remember(self, group: GroupState) -> None:
        """Keep how a group was before the first action changed it; for Statements."""
        if self.former is not None and group.uid not in self.former:
            self.former[group.uid] = (group.status, dict(group.pods))

    def line_up(self) -> None:
        """Let the lines follow the groups that the controller has let leave or end.

        Who has just left stands in line like everybody else, and nobody behind may overtake it
        for that.
        """
        for group in self.touched.values():
            if group.queue not in self.queues or group.crowd is not None:
                continue
            line = self.queues[group.queue].line
            line.discard(group.uid)
            if group.phase == PodGroupPhase.PENDING and group.uid not in self.expired:
                line.add(group)

    def close(self) -> None:
        """End the turn: what was only held is undone."""
        self.nodes.end()

    def end(self) -> None:
        """Everything is decided and written down: the next session may take this one over."""
        self._cache.end()
        # They know the session: left here, both were a cycle, which only the collector frees.
        for key in [key for key in self._parts if key.ends_with_session]:
            del self._parts[key]

    def anybody_sleeps(self) -> bool:
        """Whether what anybody was told may be older than this session."""
        return bool(self.asleep) or any(
            crowd.sleeps for line in self.lines() for crowd in line.crowds.values()
        )

    def lay_down(self, group: GroupState) -> None:
        """A group sleeps from now on."""
        self._cache.lay_down(group)


def _enqueue_comes_first(actions: tuple[str, ...]) -> bool:
    """Whether `enqueue` is the first to look at the lines, so that it may keep what it finds."""
    return "enqueue" in actions and actions.index("enqueue") == 0


class Refusals(MutableMapping[str, Blockers]):
    """Why groups wait, by uid: what this session has told them, what those are told who sleep, and
    what a crowd was told of which a group is.
    """

    def __init__(
        self, groups: Mapping[str, GroupState], asleep: Mapping[str, tuple[Verdict, ...]]
    ) -> None:
        self.told: dict[str, Blockers] = {}
        self._groups = groups
        self._asleep = asleep

    def __getitem__(self, uid: str) -> Blockers:
        found = self.told.get(uid)
        if found is None:
            group = self._groups[uid]
            if group.status is group.record.status:
                found = self._asleep.get(uid) or (group.crowd and group.crowd.told)  # type: ignore[assignment]
            if found is None:
                raise KeyError(uid)
        return found

    def __setitem__(self, uid: str, told: Blockers) -> None:
        self.told[uid] = told

    def __delitem__(self, uid: str) -> None:
        self.told.pop(uid, None)

    def __iter__(self) -> Iterator[str]:
        return (uid for uid in self._groups if uid in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unfinished(groups: Iterable[GroupState]) -> list[GroupState]:
    """The groups that have not ended."""
    return [group for group in groups if group.phase not in TERMINAL]
