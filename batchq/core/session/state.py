"""A session's working state: groups, nodes and queues that can change for one turn.

Everything kept here is an immutable value in a mutable place, so that a Statement can undo a
change by putting the old value back. Only Statements change a place.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupStatus, Queue, Task, key_of
from batchq.api.reasons import Blockers, Cause, Verdict, causes_of, turn_of
from batchq.api.resources import Amounts, covers, larger, of_pod, plus, times
from batchq.api.transaction import ONE_GROUP, POD_GROUPS
from batchq.core.cache.chunks import Ordered, UidOrder, uid_order
from batchq.core.quota.queue_tree import ROOT, scopes_in
from batchq.core.session.specs import (
    GroupShape,
    TaskShape,
    choose,
    is_over,
    only_runs,
    only_waits,
    shape_of,
    shapes_of,
    with_gang,
    with_left,
)

#: What groups without pods have; never changed in place.
_NONE: dict[str, int] = {}
_NO_PODS: dict[str, Pod] = {}

#: Looked up once: it is asked of every pod.
_PENDING = PodPhase.PENDING

_NOT_RUN_YET = frozenset({PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE})

Key: TypeAlias = tuple[Any, ...]
#: What groups say in their records: causes, and whose turn they wait for.
Said: TypeAlias = tuple[tuple[Any, ...], str]

#: A pod's uid, how it was (None: it was not there), and how it is from now on (None: gone).
Exchange = tuple[str, Pod | None, Pod | None]


class GroupState:
    """A pod group during one session.

    `record` is what the snapshot has and never changes; `status` and `pods` are the current
    values. `pods` holds every pod of the group, those of older admissions included, by uid.
    """

    __slots__ = (
        "_charged",
        "_gated_pods",
        "_on_nodes",
        "bare",
        "chain",
        "gates_hold",
        "given_pods",
        "given_shape",
        "in_line_at",
        "is_over",
        "is_refused_alone",
        "key",
        "left_out",
        "line_key",
        "min_member",
        "next_pod",
        "peers",
        "placed",
        "pods",
        "priority",
        "record",
        "replicas",
        "scopes",
        "settled_until",
        "shape",
        "status",
        "steady",
        "tasks",
        "told",
        "uid",
    )

    def __init__(
        self,
        record: PodGroup,
        pods: tuple[Pod, ...],
        priority: int,
        shape: GroupShape | None = None,
        chain: tuple[str, ...] | None = None,
        *,
        scopes: tuple[str, ...] | None = None,
        gates_hold: bool = True,
    ) -> None:
        self.record = record
        #: From the root down to its queue.
        self.chain = chain or tuple(dict.fromkeys((ROOT, record.spec.queue)))
        #: What follows from its spec alone; `shape` heeds gates of single pods, too.
        self.given_shape = self.shape = shape = shape or shape_of(
            record.spec, priority, gates_hold=gates_hold
        )
        #: The tasks of which its gang takes pods only where there are not enough others: no node
        #: would take them if it were empty. Fixed at admission.
        self.left_out: tuple[str, ...] = ()
        #: Whether scheduling gates mean anything: the plugin `gates` is on.
        self.gates_hold = gates_hold
        self.key = key_of(record)
        self.uid = record.metadata.uid
        self.scopes = scopes or scopes_in(record, self.chain)
        self.priority = priority
        self.status: PodGroupStatus = record.status
        self.tasks = shape.tasks
        self.replicas = shape.replicas
        self.min_member = shape.min_member
        # Most groups have no pods: these share what is empty, and each change makes a new one.
        self._on_nodes: Amounts = _NONE
        #: Task -> how many of its pods have a node and may keep it, or have succeeded.
        self.placed: dict[str, int] = shape.none_placed
        #: Task -> how many of its pods have gates of their own.
        self._gated_pods: dict[str, int] = _NONE
        self.pods: dict[str, Pod] = _NO_PODS
        if pods:
            self.pods = {pod.metadata.uid: pod for pod in pods}
            self._count_all([(pod, 1) for pod in pods if _counts(pod)])
        if self._gated_pods or record.status.left_out or self._comes_back():
            self.leave_out(record.status.left_out)
        #: What the snapshot has of its pods.
        self.given_pods = pods
        #: Whether it is nothing but a record that waits, by that record.
        self.bare = not pods and only_waits(record)
        #: Whether it runs, and nothing but its pods and its clocks can change that, by its record.
        self.steady = not self.bare and only_runs(record)
        #: Whether it has ended and holds nothing, so that only its time to be forgotten comes.
        self.is_over = self.status.phase in TERMINAL and is_over(record, self.held)
        #: Its next pod, while it runs and stands in line with nothing but that.
        self.next_pod: TaskShape | None = None
        #: Those who wait as it does, if it is one of them (batchq.core.pending.equivalence).
        self.peers: EquivalenceClass | None = None
        #: Whether a plugin has refused it in this session, and not all that ask for the same.
        self.is_refused_alone = False
        #: The state of the world in which it was found settled, and until when.
        self.settled_until: tuple[object, int] | None = None
        self._charged: tuple[PodGroupStatus, Amounts, Amounts, Amounts] | None = None
        #: Its place in line, where that lasts as long as its record; once worked out.
        self.line_key: tuple[Any, ...] | None = None
        #: Of the reasons that its record gives, once worked out.
        self.told: tuple[tuple[Cause, ...], str] | None = None
        #: The state of the world (batchq.core.pending.inadmissible) in which nothing put it out of
        #: line.
        self.in_line_at: object = None

    # What it is ------------------------------------------------------------------------------

    @property
    def order(self) -> UidOrder:
        """How its uid compares, where nothing else decides."""
        return uid_order(self.uid)

    @property
    def asks(self) -> tuple[object, ...]:
        """Equal for groups that the limits and the nodes are asked the same of."""
        return (self.queue, self.namespace, self.priority, *self.shape.alike)

    @property
    def namespace(self) -> str:
        return self.record.metadata.namespace

    @property
    def queue(self) -> str:
        return self.record.spec.queue

    @property
    def phase(self) -> PodGroupPhase:
        return self.status.phase

    @property
    def is_array(self) -> bool:
        """One pod is enough, and there are more."""
        return self.min_member == 1 and self.replicas > 1

    @property
    def is_elastic(self) -> bool:
        """It can run with fewer pods than it has."""
        return self.replicas > self.min_member

    @property
    def queue_time(self) -> int:
        """Since when it stands in line, in milliseconds."""
        if self.status.queue_time is not None:
            return self.status.queue_time
        return self.record.metadata.creation_timestamp or 0

    @property
    def reservation(self) -> Amounts:
        """What an admission reserves: the larger of minResources and its gang's requests; of a
        group that runs and stands in line, what its next pod asks for.
        """
        return self.shape.reservation if self.next_pod is None else self.next_pod.requests

    @property
    def reserved(self) -> bool:
        """Whether it holds a reservation."""
        return self.status.reserved_at is not None and self.phase not in TERMINAL

    @property
    def is_external(self) -> bool:
        """Whether somebody else runs it: it has no pods of ours, and nodes are no matter to it."""
        return self.record.spec.controller == "external"

    @property
    def held(self) -> Amounts:
        """What it holds without a reservation, until its processes have ended.

        Of pods, what they hold on nodes, terminating ones included; of an external group that lost
        its reservation, what its claim holds until its end is reported or certain.
        """
        if not self.is_external:
            return self._on_nodes
        claim = self.status.claim
        return dict(claim.holding) if claim.is_open and not self.reserved else {}

    @property
    def has_all_placed(self) -> bool:
        """Whether each of its pods has a node that it may keep, or has succeeded."""
        return sum(self.placed.values()) >= self.replicas

    # Its pods --------------------------------------------------------------------------------

    def leave_out(self, tasks: tuple[str, ...]) -> None:
        """Let its gang take pods of these tasks only where there are not enough others."""
        self.left_out = tasks
        if self._comes_back():
            # None of the pods that it has finished before is made again.
            self.shape = with_gang(self.given_shape, self.lacks_for_gang())
        else:
            self.shape = with_left(self.given_shape, self.ungated(), tasks)

    def _comes_back(self) -> bool:
        """Whether it is to run again, and has finished some of its pods before."""
        return (
            bool(self.pods)
            and self.phase in _NOT_RUN_YET
            and self.is_elastic
            and any(map(self.is_final, self.current()))
        )

    def choose(
        self, count: int, left: Sequence[int], *, least: Sequence[int] | None = None
    ) -> list[int]:
        """Return how many pods of each task make up `count` of those that are `left`, in the order
        of its gang (`batchq.core.session.specs.choose`).

        Pods of tasks whose gates were opened since the group was admitted come last: it has pods
        of others for minMember already.
        """
        last: Collection[str] = self.left_out
        if self.status.opened_gates:
            since = self.status.in_queue_at
            last = {
                one.task
                for one in self.status.opened_gates
                if one.task and since is not None and one.at > since
            }.union(last)
        return choose(self.tasks, count, left, least=least, last=last)

    def lacks_for_gang(self) -> list[int]:
        """Return how many unfinished pods of each task its gang still lacks to be complete: each
        task's minAvailable less that task's succeeded pods, and minMember less all that succeeded.

        A group that does not run yet needs one pod at least, whatever succeeded before it had to
        leave.
        """
        ended: Counter[str] = Counter()
        succeeded: Counter[str] = Counter()
        for pod in self.current():
            if self.is_final(pod):
                ended[pod.spec.task] += 1
                succeeded[pod.spec.task] += pod.status.phase == PodPhase.SUCCEEDED
        left = [
            max(0, there - ended[shape.task.name])
            for shape, there in zip(self.tasks, self.ungated(), strict=True)
        ]
        least = [
            max(0, shape.task.min_available - succeeded[shape.task.name]) for shape in self.tasks
        ]
        runs = self.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
        count = max(0 if runs else 1, self.min_member - succeeded.total())
        return self.choose(count, left, least=least)

    def unfinished(self) -> list[int]:
        """How many pods of each task are to run still: neither gated nor ended for good, those not
        yet created included.
        """
        ended = Counter(pod.spec.task for pod in self.current() if self.is_final(pod))
        return [
            max(0, there - ended[shape.task.name])
            for shape, there in zip(self.tasks, self.ungated(), strict=True)
        ]

    def ungated(self) -> list[int]:
        """How many pods of each task no gate of theirs holds back."""
        return [
            0 if shape.gated else shape.task.replicas - self._gated_pods.get(shape.task.name, 0)
            for shape in self.tasks
        ]

    def is_held_back(self, pod: Pod) -> bool:
        """Whether a pod without a node is not to be bound: it has gates, or its template has."""
        own = self.gates_hold and bool(pod.spec.scheduling_gates)
        return own or self.shape_of(pod).gated

    def lacks_ungated(self) -> bool:
        """Whether gates of its pods leave it fewer than it has to start with.

        Those that it has finished before count if they succeeded, and are lost if they failed.
        """
        if not self._gated_pods and not any(shape.gated for shape in self.tasks):
            return False
        there = dict(zip(self.shape.by_task, self.ungated(), strict=True))
        for pod in self.current() if self.is_elastic else ():
            if self.is_final(pod) and pod.spec.task in there:
                succeeded = pod.status.phase == PodPhase.SUCCEEDED
                there[pod.spec.task] += succeeded - (not self.is_held_back(pod))
        return sum(there.values()) < self.min_member or any(
            there[shape.task.name] < shape.task.min_available for shape in self.tasks
        )

    def current(self) -> Iterator[Pod]:
        """The pods that count now."""
        return (pod for pod in self.pods.values() if self.is_current(pod))

    def is_current(self, pod: Pod) -> bool:
        """Whether it is of this admission, or one that an elastic group has finished before.

        A full gang starts anew: what its former pods still come to says nothing about this one.
        """
        return pod.status.admission == self.status.admission or (
            self.is_elastic and self.is_final(pod)
        )

    def is_final(self, pod: Pod) -> bool:
        """Whether it has ended for good: succeeded, or failed with no retry left."""
        status = pod.status
        if status.phase == PodPhase.SUCCEEDED:
            return True
        return status.phase == PodPhase.FAILED and (
            status.failures > self.record.spec.retry.limit or status.reason == "WalltimeExceeded"
        )

    def shape_of(self, pod: Pod) -> TaskShape:
        """The task that the pod belongs to; an empty one if an edit has removed it since."""
        known = self.shape.by_task.get(pod.spec.task)
        return known or shapes_of((Task(name=pod.spec.task, replicas=0),))[0]

    def exchange(self, uid: str, old: Pod | None, new: Pod | None) -> None:
        """Put, replace or take away one pod; for Statements."""
        if self.pods is _NO_PODS:
            self.pods = {}
        if old is not None:
            self._count(old, -1)
        if new is None:
            del self.pods[uid]
        else:
            self.pods[uid] = new
            self._count(new, 1)

    def exchange_all(self, changes: Iterable[Exchange]) -> bool:
        """The same of many pods, each named once; what they add up to is worked out once.
        Whether any of them counts for anything.
        """
        if self.pods is _NO_PODS:
            self.pods = {}
        pods = self.pods
        counted: list[tuple[Pod, int]] = []
        for uid, old, new in changes:
            if old is not None and _counts(old):
                counted.append((old, -1))
            if new is None:
                del pods[uid]
                continue
            pods[uid] = new
            if _counts(new):
                counted.append((new, 1))
        if counted:
            self._count_all(counted)
        return bool(counted)

    def _count_all(self, counted: Iterable[tuple[Pod, int]]) -> None:
        on_nodes: Amounts = {}
        placed: dict[str, int] = {}
        stated: dict[str, int] | None = None
        requests: Amounts = {}
        for pod, sign in counted:
            if pod.spec.scheduling_gates or pod.status.phase not in ON_NODE:
                self._count(pod, sign)
                continue
            # Pods of one task share what they ask for.
            if pod.spec.requests is not stated:
                stated, requests = pod.spec.requests, self.requests_of(pod)
            for name, units in requests.items():
                on_nodes[name] = on_nodes.get(name, 0) + sign * units
            if not pod.status.terminating:
                task = pod.spec.task
                placed[task] = placed.get(task, 0) + sign
        if any(on_nodes.values()):
            sums = plus(self._on_nodes, on_nodes)
            self._on_nodes = {name: units for name, units in sums.items() if units}
        if any(placed.values()):
            self.placed = plus(self.placed, placed)

    def requests_of(self, pod: Pod) -> Amounts:
        """What one of its pods asks for: of most, what their task says."""
        known = self.shape.by_task.get(pod.spec.task)
        if known is not None and known.stated is pod.spec.requests:
            return known.requests
        return of_pod(pod.spec.requests)

    def _count(self, pod: Pod, sign: int) -> None:
        phase = pod.status.phase
        if pod.spec.scheduling_gates and self.gates_hold:
            held = self._gated_pods.get(pod.spec.task, 0) + sign
            self._gated_pods = {**self._gated_pods, pod.spec.task: held}
        if phase in ON_NODE:
            requests = of_pod(pod.spec.requests)
            self._on_nodes = {
                name: units
                for name, units in plus(self._on_nodes, times(requests, sign)).items()
                if units
            }
        if phase in ON_NODE:
            is_placed = not pod.status.terminating
        else:
            # A former pod of a full gang may succeed before it hears that it is to stop.
            is_former = pod.status.admission < self.status.admission and not self.is_elastic
            is_placed = phase == PodPhase.SUCCEEDED and not is_former
        if is_placed:
            task = pod.spec.task
            self.placed = {**self.placed, task: self.placed.get(task, 0) + sign}

    def charge(self) -> Amounts:
        """live + promise: what the ledger counts for this group.

        The promise is what the reservation exceeds the pods on nodes by, per dimension, and what
        was pledged for pods beyond minMember that have no node yet.
        """
        return self._charge_now()[2]

    def charge_with_count(self) -> Amounts:
        """The same as the store keeps it: with one `podgroups` while there is any of it."""
        return self._charge_now()[3]

    def _charge_now(self) -> tuple[PodGroupStatus, Amounts, Amounts, Amounts]:
        """For which status and pods it was worked out, and the charge without and with count."""
        status, held = self.status, self.held
        known = self._charged
        if known is None or known[0] is not status or known[1] is not held:
            charge = self.charge_holding(held)
            if charge is self.shape.reservation and charge:
                counts = self.shape.counted
            elif known is not None and known[0] is status and known[2] is charge:
                counts = known[3]
            else:
                # A group that runs without a pod on any node, and owes none to its gang, has no
                # reservation left, and takes no group's place.
                counts = {**charge, POD_GROUPS: ONE_GROUP} if charge else {}
            known = self._charged = (status, held, charge, counts)
        return known

    def charge_holding(self, held: Amounts) -> Amounts:
        """The charge, if its pods held this much."""
        if not self.reserved:
            return held
        reservation = self.status.reservation
        # Most hold no more than was promised to them.
        charge = reservation if covers(reservation, held) else larger(held, reservation)
        extra = self.status.pledge.extra
        return plus(charge, extra) if extra else charge


def _counts(pod: Pod) -> bool:
    """Whether a pod adds anything to its group's sums: most that wait do not."""
    return pod.status.phase != _PENDING or bool(pod.spec.scheduling_gates)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Where there is room for one more of a class: as long as none of these sums is above what
    stands beside its resource. `are_all`: nothing else bounds them; if not, there never is.

    Good for as long as the ledger goes by the same `limits`; the sums are the ledger's own.
    """

    limits: Mapping[str, Amounts]
    most: Sequence[tuple[Mapping[str, int], str, int]]
    are_all: bool


class EquivalenceClass:
    """Members in their order, and how they fare. Changed by its owner, the Backlog, and by
    sessions, who note what they have found.
    """

    __slots__ = (
        "aside",
        "asides_in",
        "asks",
        "behind",
        "bounds",
        "could_in",
        "counted",
        "heard",
        "members",
        "most",
        "queue",
        "said",
        "sleeps",
        "told",
        "verdicts",
        "watches",
    )

    def __init__(self, asks: Key, queue: str) -> None:
        self.asks = asks
        self.queue = queue
        self.members: Ordered[GroupState] = Ordered()
        #: What members' records say -> who says so, by uid.
        self.said: dict[Said, dict[str, GroupState]] = {}
        #: What the last one says who joined, as it stands there and as causes; and who says so.
        self.heard: tuple[tuple[Verdict, ...] | None, Said, dict[str, GroupState]]
        self.heard = (None, _NOTHING, {})
        #: What stood against it when it was last asked; None: nobody has asked.
        self.verdicts: Blockers | None = None
        #: What its members are told: that, and behind what kind of head they wait.
        self.told: Blockers | None = None
        self.behind = ""
        #: Why all of them stand out of line, and the state of the world in which that was so.
        self.aside: tuple[Verdict, ...] = ()
        self.asides_in: object = None
        #: The state of the world in which it was found that it could fit some time.
        self.could_in: object = None
        #: What the limits ask of each member, once worked out.
        self.bounds: Headroom | None = None
        #: While it sleeps, the limit that keeps it out is full as long as the sum of this scope and
        #: resource is above `most`; None: it is not the limits that keep it out.
        self.sleeps = False
        self.watches: tuple[str, str] | None = None
        self.most = 0
        #: Whether what it asks for counts in the demand of its queue.
        self.counted = False

    def __len__(self) -> int:
        return len(self.members)

    @property
    def reservation(self) -> Amounts:
        """What each member asks for; only of a class that is not empty."""
        return self.first.reservation

    @property
    def first(self) -> GroupState:
        found = self.members.first()
        assert found is not None
        return found[1]

    def tell(self, told: Blockers) -> bool:
        """What its members are to hear; whether that is news."""
        former, self.told = self.told, told
        if former is None:
            return True
        return former is not told and (former.causes, former.turn) != (told.causes, told.turn)


def reasons_said_by(group: GroupState) -> Said:
    """What a group's record says, worked out once."""
    if group.told is None:
        reasons = group.record.status.reasons
        group.told = (causes_of(reasons), turn_of(reasons)) if reasons else _NOTHING
    return group.told


_NOTHING: Said = ((), "")


class PendingQueue:
    """The groups of one queue that wait, in their order: classes, and others one by one."""

    __slots__ = ("_key", "_sorted", "asked", "classes", "kinds", "restless", "singles", "unread")

    def __init__(self) -> None:
        self.classes: dict[Key, EquivalenceClass] = {}
        #: The same by what they claim and who they are to claim it: priority, class, reservation.
        self.kinds: dict[Key, dict[Key, EquivalenceClass]] = {}
        #: Those of them that do not sleep.
        self.restless: dict[Key, EquivalenceClass] = {}
        #: Those of which some members' records may not say what the class was told.
        self.unread: dict[Key, EquivalenceClass] = {}
        #: By uid; in no order.
        self.singles: dict[str, GroupState] = {}
        #: What the classes that stand in line ask for.
        self.asked: dict[str, int] = {}
        self._sorted: list[GroupState] | None = None
        self._key: Callable[[GroupState], Key] = _by_key

    def __len__(self) -> int:
        return len(self.singles) + sum(map(len, self.classes.values()))

    def __bool__(self) -> bool:
        return bool(self.singles or self.classes)

    def __iter__(self) -> Iterator[GroupState]:
        lines = [peers.members.pairs() for peers in self.classes.values()]
        alone = ((self._key(group), group) for group in self.in_order())
        return (group for _, group in heapq.merge(*lines, alone, key=_first))

    def order_by(self, key: Callable[[GroupState], Key]) -> None:
        """Go by a session's order from now on."""
        self._key, self._sorted = key, None

    def in_order(self) -> list[GroupState]:
        """Those that stand for themselves."""
        if self._sorted is None:
            self._sorted = sorted(self.singles.values(), key=self._key)
        return self._sorted

    def firsts(self) -> Iterator[GroupState]:
        """Yield each group that stands for itself, and the first of each class."""
        yield from self.in_order()
        for peers in self.classes.values():
            yield peers.first

    def add(self, group: GroupState) -> None:
        """Let a group stand for itself."""
        self.singles[group.uid] = group
        self._sorted = None

    def discard(self, uid: str) -> None:
        """Take a group out that stands for itself, if it is there."""
        if self.singles.pop(uid, None) is not None:
            self._sorted = None

    def join(self, group: GroupState, line_key: Key) -> None:
        """Let a group wait with those that ask for the same."""
        key = equivalence_of(group)
        peers = self.classes.get(key)
        if peers is None:
            peers = self.classes[key] = self.restless[key] = EquivalenceClass(key, group.queue)
            self.kinds.setdefault(kind_of(group), {})[key] = peers
        group.peers, group.line_key = peers, line_key
        peers.members.add(line_key, group)
        reasons, (heard, said, members) = group.record.status.reasons, peers.heard
        if reasons is heard:
            # Most say what the one before says, in the very same words.
            group.told = said
        else:
            said = reasons_said_by(group)
            members = peers.said.setdefault(said, {})
            peers.heard = (reasons, said, members)
        members[group.uid] = group
        self.unread[key] = peers
        if peers.counted:
            self._ask_for(group.reservation, 1)

    def leave(self, group: GroupState) -> None:
        """Take a group out of its class."""
        peers = group.peers
        assert peers is not None
        peers.members.remove(group.line_key)
        of_it = peers.said[reasons_said_by(group)]
        del of_it[group.uid]
        if not of_it:
            del peers.said[reasons_said_by(group)]
            peers.heard = (None, _NOTHING, {})
        if peers.counted:
            self._ask_for(group.reservation, -1)
        group.peers = None
        if not len(peers):
            self._forget(peers, kind_of(group))

    def _forget(self, peers: EquivalenceClass, kind: Key) -> None:
        """A class that is empty."""
        for classes in (self.classes, self.restless, self.unread, self.kinds[kind]):
            classes.pop(peers.asks, None)
        if not self.kinds[kind]:
            del self.kinds[kind]

    def count(self, peers: EquivalenceClass, *, counts: bool) -> None:
        """Whether what a class asks for counts in the demand from now on."""
        if peers.counted != counts:
            peers.counted = counts
            self._ask_for(peers.reservation, len(peers) if counts else -len(peers))

    def _ask_for(self, amounts: Amounts, count: int) -> None:
        for name, units in times(amounts, count).items():
            self.asked[name] = self.asked.get(name, 0) + units


def equivalence_of(group: GroupState) -> Key:
    """Equal for groups that the limits and the policies cannot tell apart, but for their turn."""
    spec = group.record.spec
    return (group.namespace, group.priority, spec.priority_class_name, group.shape.alike)


def kind_of(group: GroupState) -> Key:
    """Equal for groups that have the same claim on others, wherever they are from."""
    return (group.priority, group.record.spec.priority_class_name, group.shape.claim)


def _by_key(group: GroupState) -> Key:
    return (group.key,)


def _first(pair: tuple[Key, GroupState]) -> Key:
    return pair[0]


@dataclass(frozen=True, slots=True)
class Victim:
    """What a claimant would take: a whole group, or one of its pods beyond minMember.

    `pods` are those that hold a node now; a whole group may have none.
    """

    group: GroupState
    pods: tuple[Pod, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a preemptor lacks while victims are chosen for it.

    `resources`: the dimensions that it lacks; `fitting`: what those of its pods ask for that fit
    already; `leaving`: scope -> by how much its sum falls as earlier victims leave for others.
    """

    resources: frozenset[str] = frozenset()
    fitting: Amounts = field(default_factory=dict)
    leaving: Mapping[str, Amounts] = field(default_factory=dict)


@dataclass(slots=True)
class QueueState:
    """A queue, and its Pending groups in line."""

    record: Queue
    line: PendingQueue

    @property
    def name(self) -> str:
        return self.record.metadata.name


def is_admitted(group: GroupState) -> bool:
    """InQueue, Running or Unknown."""
    return group.status.phase in ADMITTED
