"""One turn of the scheduler: the state that plugins are asked about and actions move.

A session is opened on a snapshot, run through the actions, and closed; what it decided is its
`intents` and the states of the groups that it `touched`. It reads no clock and does no I/O: the
same snapshot, settings and `now_ms` give the same decisions.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from batchq.api.intents import Intent
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.limits import hard_limit, limit_of_queue
from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Pod,
    PodGroupStatus,
    Queue,
)
from batchq.api.quantity import PODS
from batchq.api.reasons import Blockers, Verdict, ranked
from batchq.api.resources import UNLIMITED_PODS, Amounts, of_pod, scaled, total
from batchq.api.transaction import CLUSTER, namespace_scope, queue_scope
from batchq.framework.atonce import at_once
from batchq.framework.carryover import Carryover
from batchq.framework.contact import refusal_to_bind
from batchq.framework.extension import POINTS, ExtensionPoint, Plugin, Standing
from batchq.framework.guarding import guarded, guarded_clock, is_of_others
from batchq.framework.hygiene import is_protected
from batchq.framework.instrument import Instrument
from batchq.framework.ledger import LedgerView
from batchq.framework.parking import OF_SESSION, LiftedBy, Parking
from batchq.framework.pledges import keep_owing, owed_to
from batchq.framework.settings import Settings
from batchq.framework.shapes import TaskShape
from batchq.framework.snapshot import Snapshot
from batchq.framework.state import GroupState, NodeState, QueueState, Victim, uid_order

if TYPE_CHECKING:
    from batchq.framework.noderows import NodeRows
    from batchq.framework.queue_shares import FairShares

Key = tuple[Any, ...]

#: The plugin by which scheduling gates hold.
GATES = "gates"
#: Whose refusals the session's own are.
SESSION = "session"


class Action(Protocol):
    """A verb of the session: reads it, and moves groups and pods through Statements."""

    name: str

    def execute(self, session: Session) -> None:
        """Take one turn."""


class Ranking(Protocol):
    """The nodes that take one shape."""

    def best(self) -> NodeState | None:
        """The best node now, or None if no node takes the shape."""

    def slots(self, most: int) -> int:
        """How many pods of the shape fit now; counts up to `most`."""

    def fill(self, count: int, filled: list[NodeState]) -> None:
        """Let up to `count` pods each take the best node as it is then; append these."""


class Session:
    """Owner of all working state of one turn. See the module's docstring."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        now_ms: int,
        settings: Settings,
        plugins: Standing,
        actions: tuple[str, ...] = (),
        carried: Carryover | None = None,
        instrument: Instrument | None = None,
        parking: Parking | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.now_ms = now_ms
        self.settings = settings
        self.actions = actions
        self.intents: list[Intent] = []
        self.refusals: dict[str, tuple[Verdict, ...]] = {}
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
        #: What of that the present action could take back (batchq.framework.candidates).
        self.undoable: dict[str, list[Any]] | None = None
        #: Queue -> its head that all others of the queue wait for, if there is one now.
        self.strict_heads: dict[str, GroupState] = {}
        #: Group's uid -> from when on room is kept for it, in milliseconds, as backfill has found.
        self.reservations: dict[str, int] = {}
        #: Groups whose changes become true together or not at all, by uid.
        self.joined: list[tuple[str, ...]] = []
        #: Group's uid -> node -> the room that is kept for it there in this session: what was
        #: promised to it, or what a gang that waits for long has found.
        self.rooms: dict[str, dict[str, Amounts]] = {}
        #: What each queue asks for and deserves, once worked out.
        self.fair_shares: FairShares | None = None
        #: Why groups stand aside, once asked (batchq.framework.line).
        self.asides: dict[str, tuple[Verdict, ...]] = {}
        #: What groups that ask for the same were told, and at which version of the ledger.
        self.told: dict[Key, tuple[int, tuple[Verdict, ...]]] = {}
        self.asks_each_group = False
        #: Plugin -> by which changes its refusals are lifted (batchq.framework.parking).
        self.lifted_by: dict[str, LiftedBy] = {SESSION: OF_SESSION}
        #: What plugins of others raised: `plugin at point` -> the first of it.
        self.failures: dict[str, str] = {}
        #: How many groups were asked about, whatever the answer; for those who watch the cost.
        self.evaluated = 0
        #: The dimensions that a claimant lacks, while victims are looked for.
        self.lacking: frozenset[str] = frozenset()
        #: Scope -> what its sum is going to fall by, meanwhile: what victims owe to others.
        self.leaving: Mapping[str, Amounts] = {}
        #: The names of nodes on which something was taken or given back, in that order.
        self.node_changes: list[str] = []
        #: Shape -> the nodes that take it, best first (batchq.framework.placement).
        self.rankings: dict[tuple[object, ...], Ranking] = {}
        #: The same nodes as columns, where they are many.
        self.node_rows: NodeRows | None = None
        self.points = {name: ExtensionPoint[Any](name, method) for name, method in POINTS.items()}
        #: Plugins' `due_at`: instants at which their answers change by the clock alone.
        self.plugin_clocks: list[Callable[[Session], Iterable[int]]] = []
        self._register(plugins, instrument)
        #: Whether scheduling gates mean anything, in counting pods too: with the plugin off they
        #: are kept and ignored.
        self.gates_hold = any(entry.plugin == GATES for entry in self.points["preEnqueue"])

        self.nodes = _nodes(snapshot, now_ms, settings)
        #: What all ready nodes have together, and all that were seen within a day, ready or not.
        self.ready_resources = total(node.total for node in self.nodes.values() if node.ready)
        self.known_resources = _known_resources(self.nodes.values(), now_ms, settings)
        #: What the cluster could ever have: rule 1 asks for every group.
        self.could_have = scaled(self.known_resources, settings.overcommit)
        carried = carried or Carryover()
        self.tree = carried.tree(snapshot, gates_hold=self.gates_hold)
        self.admission_checks = {item.metadata.name: item for item in snapshot.admission_checks}
        self.groups = carried.states(snapshot, gates_hold=self.gates_hold)
        self._busy = [group for group in self.groups.values() if not group.bare]
        self._touched_in_busy = 0
        self.by_key = {group.key: group for group in self.groups.values()}
        self.ledger = LedgerView(
            _limits(snapshot, self.ready_resources, settings),
            self.tree,
            lambda group: owed_to(self, group),
        )
        #: Victims' uids (of pods, of external groups) -> the uid of the claimant they are owed to.
        self.pledged: dict[str, str] = {}
        keep_owing(self)
        #: The same, as it stands in the store.
        self.pledged_before = dict(self.pledged)
        for group in self._busy:
            self._count_in(group)
        #: Groups that nothing has happened to that could let them in, and why they wait.
        self.asleep = {} if parking is None else parking.sleeping(self)
        self.refusals |= self.asleep
        #: What decides who stands in line is the same as long as this is; None: nobody knows.
        lasts = all(entry.plugin in self.lifted_by for entry in self.points["preEnqueue"])
        self.world = parking.world if parking is not None and lasts else None
        self.queues = self._queues(carried)
        carried.keep(self, {name: list(queue.line) for name, queue in self.queues.items()})
        #: Whether anything says how many pods there may be, and so how many a queue deserves.
        self.pods_are_bounded = self.ready_resources.get(PODS, 0) < UNLIMITED_PODS or any(
            PODS in queue.spec.deserved for queue in snapshot.queues
        )
        self.all_reclaimable = all(queue.spec.reclaimable for queue in snapshot.queues)
        #: Why nothing at all is bound in this session; None if pods may be.
        self.binding_refused = refusal_to_bind(self)

    # Plugins' say ----------------------------------------------------------------------------

    def _register(self, plugins: Standing, instrument: Instrument | None) -> None:
        """The one place where plugins take their places.

        Who stands at any point at all has a clock, and may want to be asked about each group.
        """
        on: dict[str, Plugin] = {}
        for name, standing in plugins.items():
            point = self.points[name]
            for plugin, weight in standing:
                function: Callable[..., Any] = getattr(plugin, point.method)
                if is_of_others(plugin):
                    function = guarded(plugin, name, function, self.failures)
                if instrument is not None:
                    function = instrument.plugin(plugin.name, name, function)
                point.add(plugin.name, function, weight, at_once(plugin, name, instrument))
                on[plugin.name] = plugin
        for plugin in on.values():
            if (clock := getattr(plugin, "due_at", None)) is not None:
                ours = not is_of_others(plugin)
                self.plugin_clocks.append(
                    clock if ours else guarded_clock(plugin, clock, self.failures)
                )
            self.asks_each_group |= getattr(plugin, "per_group", False)
            if (lifted_by := getattr(plugin, "lifted_by", None)) is not None:
                self.lifted_by[plugin.name] = lifted_by
        in_order = [plugin for plugin, _ in plugins.get("groupOrder", ())]
        self._order_lasts = all(getattr(plugin, "order_lasts", False) for plugin in in_order)

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

    def score(self, shape: TaskShape, node: NodeState) -> int:
        """The weighted sum of the plugins' scores; higher is better."""
        return sum(
            entry.weight * entry.function(self, shape, node) for entry in self.points["score"]
        )

    def group_ready(self, group: GroupState) -> bool:
        """Whether every plugin finds the group's placements enough to start it."""
        return all(entry.function(self, group) for entry in self.points["groupReady"])

    def group_key(self, group: GroupState) -> Key:
        """The order of groups: the plugins' keys, then queue time, then uid."""
        if group.line_key is not None:
            return group.line_key
        keys = tuple(entry.function(self, group) for entry in self.points["groupOrder"])
        key = (*keys, group.queue_time, group.order)
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

    def vote(self, point: str, claimant: GroupState, victim: Victim) -> bool:
        """Whether a claimant may take a victim: somebody agrees, and nobody refuses.

        Who has only just started is none, whichever plugins are on.
        """
        if is_protected(self, victim.group):
            return False
        agreed = False
        for entry in self.points[point]:
            answer: bool | None = entry.function(self, claimant, victim)
            if answer is False:
                return False
            agreed = agreed or answer is True
        return agreed

    def pod_key(self, group: GroupState, pod: Pod) -> Key:
        """The order of one group's pods: the plugins' keys, then task, then index."""
        keys = tuple(entry.function(self, group, pod) for entry in self.points["podOrder"])
        return (*keys, group.shape_of(pod).first, pod.spec.index)

    # Working -----------------------------------------------------------------------------------

    def refuse(self, group: GroupState, verdicts: Iterable[Verdict]) -> None:
        """Keep why a group waits, all blockers, ranked."""
        known = verdicts if isinstance(verdicts, Blockers) else self.dated(verdicts)
        self.refusals[group.uid] = known

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
        that hold anything or could. In the order of `groups`.
        """
        if len(self.touched) > self._touched_in_busy:
            self._touched_in_busy = len(self.touched)
            more = [group for group in self.touched.values() if group.bare]
            known = [group for group in self._busy if not group.bare]
            self._busy = sorted([*known, *more], key=lambda group: group.place)
        return self._busy

    def remember(self, group: GroupState) -> None:
        """Keep how a group was before the first action changed it; for Statements."""
        if self.former is not None and group.uid not in self.former:
            self.former[group.uid] = (group.status, dict(group.pods))

    def line_up(self) -> None:
        """Let the lines follow the groups that the controller has let leave or end.

        Who has just left stands in line like everybody else, and nobody behind may overtake it
        for that.
        """
        moved = [group for group in self.touched.values() if group.queue in self.queues]
        for name in dict.fromkeys(group.queue for group in moved):
            line = self.queues[name].line
            line[:] = [group for group in line if group.uid not in self.touched]
        for group in moved:
            if group.phase == PodGroupPhase.PENDING and group.uid not in self.expired:
                bisect.insort(self.queues[group.queue].line, group, key=self.group_key)

    def close(self) -> None:
        """End the turn: what was only held is undone."""
        while self.rooms:
            _, rooms = self.rooms.popitem()
            for name, room in rooms.items():
                self.nodes[name].give(room)

    # ------------------------------------------------------------------------------------------

    def _count_in(self, group: GroupState) -> None:
        self.ledger.recharge(group)
        for pod in group.pods.values():
            if pod.status.phase in ON_NODE and (node := self.nodes.get(pod.status.node)):
                node.take(of_pod(pod.spec.requests))

    def _queues(self, carried: Carryover) -> dict[str, QueueState]:
        """Who stood in line before is sorted already, but for those whom a plugin moves."""
        queues = {queue.metadata.name: QueueState(queue, []) for queue in self.snapshot.queues}
        queues.setdefault(DEFAULT, QueueState(Queue(metadata=Metadata(name=DEFAULT)), []))
        placed: set[str] = set()
        #: Groups of queues that there are not.
        self.strayed: list[GroupState] = []
        for name, line in carried.lines(self.groups).items():
            if name in queues:
                awake = [group for group in line if group.uid not in self.asleep]
                queues[name].line += awake
                placed.update(group.uid for group in awake)
        for group in self.groups.values():
            if group.uid in placed or group.uid in self.asleep:
                continue
            if group.queue not in queues:
                self.strayed.append(group)
            elif group.phase == PodGroupPhase.PENDING:
                queues[group.queue].line.append(group)
        for queue in queues.values():
            queue.line.sort(key=self.group_key)
        return dict(sorted(queues.items()))


def is_ready(record_ready: bool, heartbeat: int | None, now_ms: int, timeout_ms: int) -> bool:
    """Whether a node counts: told so, and heard of within the timeout (if it beats at all)."""
    return record_ready and (heartbeat is None or now_ms < heartbeat + timeout_ms)


def _nodes(snapshot: Snapshot, now_ms: int, settings: Settings) -> dict[str, NodeState]:
    nodes = {}
    for record in sorted(snapshot.nodes, key=lambda node: node.metadata.name):
        status = record.status
        timeout_ms = settings.node_timeout_ms
        ready = is_ready(status.ready, _heard_at(snapshot, status.heartbeat), now_ms, timeout_ms)
        heard = is_ready(status.ready, status.heartbeat, now_ms, timeout_ms)
        nodes[record.metadata.name] = NodeState(record, ready=ready, heard=heard)
    return nodes


def _heard_at(snapshot: Snapshot, heartbeat: int | None) -> int | None:
    """A node is not silent as long as nobody could have heard it (batchq.framework.contact)."""
    hears_since = snapshot.standing.hears_since
    if heartbeat is None or hears_since is None:
        return heartbeat
    return max(heartbeat, hears_since)


def _limits(snapshot: Snapshot, ready: Amounts, settings: Settings) -> dict[str, Amounts]:
    limits = {CLUSTER: scaled(ready, settings.overcommit)}
    for queue in snapshot.queues:
        limits[queue_scope(queue.metadata.name)] = limit_of_queue(queue)
    namespaces = sorted({quota.metadata.namespace for quota in snapshot.quotas})
    for namespace in namespaces:
        quotas = [quota for quota in snapshot.quotas if quota.metadata.namespace == namespace]
        limits[namespace_scope(namespace)] = hard_limit(quotas)
    return limits


def _known_resources(nodes: Iterable[NodeState], now_ms: int, settings: Settings) -> Amounts:
    """What all nodes seen within a day have, ready or not."""
    return total(node.total for node in nodes if is_known(node, now_ms, settings))


def is_known(node: NodeState, now_ms: int, settings: Settings) -> bool:
    """Whether the node was seen within a day: it may be away, and come back."""
    heartbeat = node.record.status.heartbeat
    return heartbeat is None or now_ms < heartbeat + settings.node_memory_ms


def unfinished(groups: Iterable[GroupState]) -> list[GroupState]:
    """The groups that have not ended."""
    return [group for group in groups if group.phase not in TERMINAL]
