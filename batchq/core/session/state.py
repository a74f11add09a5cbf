"""The working state of a session: groups that may change during one pass.

All values here are immutable and held in mutable attributes, so that a Statement can undo a change
by restoring the old value. Only Statements change these attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroup, PodGroupStatus, Task, has_ended, key_of
from batchq.api.reasons import Blockers, Cause, Verdict, causes_of, turn_of
from batchq.api.resources import Amounts, covers, larger, of_pod, plus, times
from batchq.api.transaction import ONE_GROUP, POD_GROUPS
from batchq.core.chunks import Ordered, Rows, UidOrder, uid_order
from batchq.core.quota import ROOT, scopes_in
from batchq.core.session.elastic_pods import ElasticPods
from batchq.core.session.specs import (
    GroupShape,
    Sharing,
    TaskShape,
    choose,
    is_over,
    only_runs,
    only_waits,
    runs_claimed,
    shape_of,
    shape_sharing,
    shape_within,
    shapes_of,
    sharing_of,
    with_gang,
    with_left,
)

#: Shared empty values for groups without pods; never changed in place.
_NONE: dict[str, int] = {}
_NO_PODS: dict[str, Pod] = {}
_NO_CHANGES: dict[str, Pod | None] = {}

#: Kept in a module variable, because every pod is tested.
_PENDING = PodPhase.PENDING

_NOT_RUN_YET = frozenset({PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE})

Key: TypeAlias = tuple[Any, ...]
#: The reasons in a group's record: causes, and the turn that it waits for.
RecordedReasons: TypeAlias = tuple[tuple[Any, ...], str]

#: The uid of a pod, its old state (None: new), and its new state (None: removed).
Exchange = tuple[str, Pod | None, Pod | None]


class GroupState:
    """A pod group during one session.

    `record` is that of the snapshot and never changes; `status` and `pods` are the current values.
    `pods` has every pod of the group by uid, including those of older admissions.
    """

    __slots__ = (
        "_charged",
        "_fall",
        "_gated_pods",
        "_on_nodes",
        "_order",
        "chain",
        "changed_pods",
        "domain",
        "elastic_pods",
        "ends_at",
        "gates_hold",
        "given_pods",
        "given_shape",
        "handed_on",
        "in_line_at",
        "is_elastic",
        "is_external",
        "is_over",
        "is_refused_alone",
        "key",
        "left_out",
        "line_key",
        "min_member",
        "next_pod",
        "own_shape",
        "peers",
        "placed",
        "pods",
        "priority",
        "queue",
        "record",
        "record_only",
        "recorded",
        "replicas",
        "runs_whole",
        "scopes",
        "settled_until",
        "shape",
        "sharing",
        "status",
        "steady",
        "tasks",
        "uid",
    )

    def __init__(
        self,
        record: PodGroup,
        pods: Sequence[Pod],
        priority: int,
        shape: GroupShape | None = None,
        chain: tuple[str, ...] | None = None,
        *,
        scopes: tuple[str, ...] | None = None,
        gates_hold: bool = True,
        former: GroupState | None = None,
    ) -> None:
        """`former` is the group's state in the previous session, which is not used any more."""
        spec = record.spec
        self.record = record
        self.queue: str = spec.queue
        #: Whether an external program runs it: batchq creates no pods for it and assigns no nodes.
        self.is_external = spec.controller == "external"
        #: The path from the root to its queue.
        self.chain = chain or tuple(dict.fromkeys((ROOT, spec.queue)))
        #: What follows from its spec alone.
        self.own_shape = shape or shape_of(spec, priority, gates_hold=gates_hold)
        #: How its pods share nodes; None if each is placed for itself.
        self.sharing: Sharing | None = None
        if spec.exclusive or spec.pack or spec.max_pods_per_node is not None:
            self.sharing = sharing_of(spec, record.metadata.uid)
            # An edited group may still have the shape of groups without this.
            if any(one.sharing != self.sharing for one in self.own_shape.tasks):
                self.own_shape = shape_sharing(self.own_shape, self.sharing)
        #: The labels of the nodes to which its pods are confined. `given_shape` respects these,
        #: and `shape` also gates of single pods.
        self.domain = record.status.domain
        self.given_shape = self.shape = shape = (
            shape_within(self.own_shape, self.domain) if self.domain else self.own_shape
        )
        #: Tasks whose pods the gang uses only if there are not enough others, because no node would
        #: take them even if it were empty. Fixed at admission.
        self.left_out: tuple[str, ...] = ()
        #: Whether scheduling gates apply, i.e. the plugin `gates` is configured.
        self.gates_hold = gates_hold
        self.key = key_of(record)
        self.uid = record.metadata.uid
        self.scopes = scopes or scopes_in(record, self.chain)
        self.priority = priority
        self.status: PodGroupStatus = record.status
        self.tasks = shape.tasks
        self.replicas = shape.replicas
        self.min_member = shape.min_member
        #: Whether it can run with fewer pods than it has.
        self.is_elastic = shape.replicas > shape.min_member
        # Most groups have no pods; they share empty values, and each change creates a new one.
        self._on_nodes: Amounts = _NONE
        #: Task -> the number of its pods that have a node and may keep it, or have succeeded.
        self.placed: dict[str, int] = shape.none_placed
        #: Task -> the number of its pods with gates of their own.
        self._gated_pods: dict[str, int] = _NONE
        self.pods: dict[str, Pod] = _NO_PODS
        #: An index of the pods of an elastic group that has any.
        self.elastic_pods: ElasticPods | None = None
        #: The differences from the previous session's state, if it has handed on its pods.
        self.handed_on: list[Exchange] | None = None
        #: The pods that differ from the snapshot, by uid, as they are there; None for new ones.
        self.changed_pods: dict[str, Pod | None] = _NO_CHANGES
        # Few groups are elastic, and the test for a class with abstract bases is slow.
        elastic = former is not None and former.elastic_pods is not None
        if former is not None and elastic and isinstance(pods, Rows) and former.hands_on_pods(self):
            self._take_over_pods(former, pods)
        elif pods:
            self.pods = {pod.metadata.uid: pod for pod in pods}
            self._count_all([(pod, 1) for pod in pods if _counts(pod)])
            if self.is_elastic:
                self._note_elastic((pod.metadata.uid, None, pod) for pod in pods)
        if self._gated_pods or record.status.left_out or (pods and self._comes_back()):
            self.leave_out(record.status.left_out)
        #: Its pods in the snapshot.
        self.given_pods = pods
        #: Whether it is only a waiting record.
        self.record_only = not pods and only_waits(record)
        #: Whether it runs, and only its pods and timers can change that.
        self.steady = not self.record_only and only_runs(record)
        #: Whether it runs with all of its pods or by its consumer, as its record says, and lacks
        #: nothing.
        self.runs_whole = not record.status.reasons and (
            (self.steady and self.has_all_placed) or runs_claimed(record)
        )
        #: Whether it has ended and holds nothing, so that it only waits to be deleted.
        self.is_over = self.status.phase in TERMINAL and is_over(record, self.held)
        #: Its next pod, if it runs and queues again for that pod only.
        self.next_pod: TaskShape | None = None
        #: Its equivalence class, if it is in one (batchq.core.equivalence).
        self.peers: EquivalenceClass | None = None
        #: Whether a plugin in this session has refused it but not all groups with equal requests.
        self.is_refused_alone = False
        #: The configuration generation in which it was found settled, and until when (ms).
        self.settled_until: tuple[object, int] | None = None
        self._charged: tuple[PodGroupStatus, Amounts, Amounts, Amounts] | None = None
        #: A charge, and how much a sum falls when it ends.
        self._fall: tuple[Amounts, Amounts] | None = None
        #: When it ends by its walltime (ms), once that is known, as in the snapshot.
        self.ends_at: int | None = None
        self._order: UidOrder | None = None if former is None else former._order
        #: Its sort key, if that depends only on its record; computed on demand.
        self.line_key: tuple[Any, ...] | None = None
        #: The causes and the turn in its record's reasons; computed on demand.
        self.recorded: tuple[tuple[Cause, ...], str] | None = None
        #: The configuration generation (batchq.core.eligibility) in which it was eligible.
        self.in_line_at: object = None

    @property
    def order(self) -> UidOrder:
        """Return the sort key of its uid, the last criterion of every order."""
        if self._order is None:
            self._order = uid_order(self.uid)
        return self._order

    @property
    def asks(self) -> tuple[object, ...]:
        """Return a key that is equal for groups with equal requests to limits and nodes."""
        return (self.queue, self.namespace, self.priority, *self.shape.alike)

    @property
    def namespace(self) -> str:
        return self.record.metadata.namespace

    @property
    def phase(self) -> PodGroupPhase:
        return self.status.phase

    @property
    def is_array(self) -> bool:
        """Return whether one pod is enough to start, and there are more."""
        return self.min_member == 1 and self.replicas > 1

    @property
    def queue_time(self) -> int:
        """Return since when it has been in line (ms)."""
        if self.status.queue_time is not None:
            return self.status.queue_time
        return self.record.metadata.creation_timestamp or 0

    @property
    def reservation(self) -> Amounts:
        """Return what an admission reserves: the larger of minResources and the gang's requests;
        for a running group that queues again, the requests of its next pod.
        """
        return self.shape.reservation if self.next_pod is None else self.next_pod.requests

    @property
    def reserved(self) -> bool:
        """Return whether it holds a reservation."""
        return self.status.reserved_at is not None and self.status.phase not in TERMINAL

    @property
    def held(self) -> Amounts:
        """Return what it holds without a reservation, until its processes have ended.

        This is what its pods hold on nodes, including terminating pods. An external group that lost
        its reservation holds the amounts of its lease, until its end is reported or certain.
        """
        if not self.is_external:
            return self._on_nodes
        claim = self.status.claim
        return claim.holding if claim.is_open and not self.reserved else _NONE

    @property
    def is_as_stored(self) -> bool:
        """Return whether the session has changed neither its status nor its pods."""
        return self.status is self.record.status and not self.changed_pods

    @property
    def has_all_placed(self) -> bool:
        """Return whether each of its pods has a node that it may keep, or has succeeded."""
        return sum(self.placed.values()) >= self.replicas

    @property
    def live_pods(self) -> dict[str, Pod]:
        """Return its pods by uid; those of an elastic group without the ones that have ended for
        good.
        """
        return self.pods if self.elastic_pods is None else self.elastic_pods.live

    def hands_on_pods(self, successor: GroupState) -> bool:
        """Return whether the next state of the group can begin with the pods and sums of this one
        and follow what has changed since.
        """
        return (
            self.elastic_pods is not None
            and isinstance(self.given_pods, Rows)
            and self.gates_hold == successor.gates_hold
            and self.record.spec == successor.record.spec
        )

    def _take_over_pods(self, former: GroupState, pods: Rows[Pod]) -> None:
        self.pods, self.elastic_pods = former.pods, former.elastic_pods
        self._on_nodes, self.placed = former._on_nodes, former.placed
        self._gated_pods = former._gated_pods
        given = former.given_pods
        assert isinstance(given, Rows)
        differing = {uid: now for uid, _, now in pods.differences(given)}
        differing |= {uid: pods.get(uid) for uid in former.changed_pods if uid not in differing}
        known = self.pods
        exchanges = [(uid, known.get(uid), now) for uid, now in differing.items()]
        self.handed_on = [one for one in exchanges if one[1] is not one[2]]
        for uid, old, now in self.handed_on:
            self.exchange(uid, old, now)
        self.changed_pods = _NO_CHANGES
        assert self.elastic_pods is not None
        self.elastic_pods.sort()

    def leave_out(self, tasks: tuple[str, ...]) -> None:
        """Use pods of these tasks in the gang only if there are not enough others."""
        self.left_out = tasks
        if self._comes_back():
            # Pods that it has finished before are not created again.
            self.shape = with_gang(self.given_shape, self.lacks_for_gang())
        else:
            self.shape = with_left(self.given_shape, self.ungated(), tasks)

    def confine(self, domain: dict[str, str]) -> None:
        """Confine its pods to nodes with these labels, and to no others from now on."""
        if domain == self.domain:
            return
        self.domain = domain
        self.given_shape = shape_within(self.own_shape, domain) if domain else self.own_shape
        self.tasks, self.shape = self.given_shape.tasks, self.given_shape
        if self._gated_pods or self.left_out or self._comes_back():
            self.leave_out(self.left_out)

    def _comes_back(self) -> bool:
        """Return whether it will run again after some of its pods have finished."""
        return (
            bool(self.pods)
            and self.phase in _NOT_RUN_YET
            and self.is_elastic
            and self.finished_by_task()[0].total() > 0
        )

    def choose(
        self, count: int, left: Sequence[int], *, least: Sequence[int] | None = None
    ) -> list[int]:
        """Return how many pods of each task make up `count` of those that are `left`, in the order
        of its gang (`batchq.core.session.specs.choose`).

        Pods of tasks whose gates were opened after the admission come last, because the group
        already has other pods for minMember.
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
        """Return how many unfinished pods of each task its gang still lacks: each task's
        minAvailable minus its succeeded pods, and minMember minus all succeeded pods.

        A group that does not run yet needs at least one pod, whatever succeeded before it was
        rolled back.
        """
        ended, succeeded = self.finished_by_task()
        left = self._left(ended)
        least = [
            max(0, shape.task.min_available - succeeded[shape.task.name]) for shape in self.tasks
        ]
        runs = self.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
        count = max(0 if runs else 1, self.min_member - succeeded.total())
        return self.choose(count, left, least=least)

    def unfinished(self) -> list[int]:
        """Return how many pods of each task must still run: those neither gated nor ended for
        good, including those not created yet.
        """
        return self._left(self.finished_by_task()[0])

    def _left(self, ended: Counter[str]) -> list[int]:
        return [
            max(0, there - ended[shape.task.name])
            for shape, there in zip(self.tasks, self.ungated(), strict=True)
        ]

    def finished_by_task(self) -> tuple[Counter[str], Counter[str]]:
        """Return the numbers of pods of each task that have ended for good, and have succeeded."""
        if self.elastic_pods is not None:
            return self.elastic_pods.finished, self.elastic_pods.succeeded
        ended = [pod for pod in self.current() if self.is_final(pod)]
        succeeded = [pod for pod in ended if pod.status.phase == PodPhase.SUCCEEDED]
        return (
            Counter(pod.spec.task for pod in ended),
            Counter(pod.spec.task for pod in succeeded),
        )

    def open_ordinals(self, shape: TaskShape, prefix: str) -> Iterator[int]:
        """Yield the ordinals of a task whose pods may be created in this admission; `prefix` begins
        the uids of its pods (`ElasticPods.open_ordinals`).
        """
        index = self.elastic_pods
        if index is None:
            index = self._new_index()
            for uid, pod in self.pods.items():
                if self.is_current(pod) or pod.status.phase in ON_NODE:
                    index.exchange(uid, None, pod)
        return index.open_ordinals(shape, self.status.admission, prefix, self.pods)

    def ungated(self) -> list[int]:
        """Return how many pods of each task have no closed gate of their own or in their
        template.
        """
        return [
            0 if shape.gated else shape.task.replicas - self._gated_pods.get(shape.task.name, 0)
            for shape in self.tasks
        ]

    def is_held_back(self, pod: Pod) -> bool:
        """Return whether gates of the pod or of its template prevent it from being bound."""
        own = self.gates_hold and bool(pod.spec.scheduling_gates)
        return own or self.shape_of(pod).gated

    def lacks_ungated(self) -> bool:
        """Return whether gates leave it with fewer pods than it needs to start.

        Pods that finished before count if they succeeded, and are lost if they failed.
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
        """Return the pods that count now."""
        return (pod for pod in self.pods.values() if self.is_current(pod))

    def is_current(self, pod: Pod) -> bool:
        """Return whether a pod belongs to this admission, or was finished earlier in an elastic
        group.

        A gang without extra pods starts from the beginning, so late reports on its former pods do
        not matter.
        """
        return pod.status.admission == self.status.admission or (
            self.is_elastic and self.is_final(pod)
        )

    def is_final(self, pod: Pod) -> bool:
        """Return whether a pod has ended for good: succeeded, or failed with no retry left."""
        return has_ended(pod, self.record.spec.retry.limit)

    def shape_of(self, pod: Pod) -> TaskShape:
        """Return the task of the pod; an empty one if an edit has removed the task since."""
        known = self.shape.by_task.get(pod.spec.task)
        return known or shapes_of((Task(name=pod.spec.task, replicas=0),))[0]

    def exchange(self, uid: str, old: Pod | None, new: Pod | None) -> None:
        """Add, replace or remove one pod; for Statements."""
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, 1)
        self._put_pods(((uid, old, new),))

    def exchange_all(self, changes: Sequence[Exchange]) -> bool:
        """Apply many changes, each pod at most once, with a single update of the sums. Return
        whether any changed pod affects the sums.
        """
        counted: list[tuple[Pod, int]] = []
        for _, old, new in changes:
            # As `_counts`, which would be called three times for each pod that is bound.
            if old is not None and (old.status.phase != _PENDING or old.spec.scheduling_gates):
                counted.append((old, -1))
            if new is not None and (new.status.phase != _PENDING or new.spec.scheduling_gates):
                counted.append((new, 1))
        if counted:
            self._count_all(counted)
        self._put_pods(changes)
        return bool(counted)

    def _put_pods(self, changes: Sequence[Exchange]) -> None:
        """Apply the changes to all but the sums."""
        pods, changed = self.pods, self.changed_pods
        if pods is _NO_PODS:
            pods = self.pods = {}
        if changed is _NO_CHANGES:
            changed = self.changed_pods = {}
        for uid, old, new in changes:
            if new is None:
                del pods[uid]
            else:
                pods[uid] = new
            if uid not in changed:
                changed[uid] = old
            elif changed[uid] is new:
                # It is as in the snapshot again.
                del changed[uid]
        if self.is_elastic:
            self._note_elastic(changes)

    def _note_elastic(self, changes: Iterable[Exchange]) -> None:
        if self.elastic_pods is None:
            self.elastic_pods = self._new_index()
        for uid, old, new in changes:
            self.elastic_pods.exchange(uid, old, new)

    def _new_index(self) -> ElasticPods:
        firsts = {name: shape.first for name, shape in self.given_shape.by_task.items()}
        return ElasticPods(firsts, self.record.spec.retry.limit)

    def _count_all(self, counted: Iterable[tuple[Pod, int]]) -> None:
        placed: dict[str, int] = {}
        stated: dict[str, int] | None = None
        requests: Amounts = {}
        number = 0
        for pod, sign in counted:
            spec, status = pod.spec, pod.status
            if spec.scheduling_gates or status.phase not in ON_NODE:
                self._count(pod, sign)
                continue
            # Pods of one task share their requests.
            if spec.requests is not stated:
                if number:
                    self._put_on_nodes(requests, number)
                stated, requests, number = spec.requests, self.requests_of(pod), 0
            number += sign
            if not status.terminating:
                placed[spec.task] = placed.get(spec.task, 0) + sign
        if number:
            self._put_on_nodes(requests, number)
        if any(placed.values()):
            self.placed = plus(self.placed, placed)

    def _put_on_nodes(self, requests: Amounts, number: int) -> None:
        """Add the requests of this number of equal pods, which may be negative."""
        if number == 1 and not self._on_nodes and 0 not in requests.values():
            self._on_nodes = requests
        elif number:
            sums = plus(self._on_nodes, times(requests, number))
            self._on_nodes = {name: units for name, units in sums.items() if units}

    def requests_of(self, pod: Pod) -> Amounts:
        """Return the requests of a pod, usually those of its task."""
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
            self._put_on_nodes(of_pod(pod.spec.requests), sign)
            is_placed = not pod.status.terminating
        else:
            # A former pod of a full gang may succeed before it is stopped.
            is_former = pod.status.admission < self.status.admission and not self.is_elastic
            is_placed = phase == PodPhase.SUCCEEDED and not is_former
        if is_placed:
            task = pod.spec.task
            self.placed = {**self.placed, task: self.placed.get(task, 0) + sign}

    def charge(self) -> Amounts:
        """Return live + promise: what the ledger charges this group.

        The promise is the amount by which the reservation exceeds the pods on nodes, for each
        dimension, and what was pledged to pods beyond minMember without a node.
        """
        return self._charge_now()[2]

    def charge_with_count(self) -> Amounts:
        """Return the charge as the store keeps it: with one `podgroups` if it is not empty."""
        return self._charge_now()[3]

    def _charge_now(self) -> tuple[PodGroupStatus, Amounts, Amounts, Amounts]:
        """Return the status and held amounts of the calculation, then the charge without and with
        count.
        """
        status, known = self.status, self._charged
        if known is not None and known[0] is not status:
            known = None
        # What an external group holds follows from its status alone.
        if known is not None and (self.is_external or known[1] is self._on_nodes):
            return known
        held = self.held
        charge = self.charge_holding(held)
        if charge is self.shape.reservation and charge:
            counts = self.shape.counted
        elif known is not None and known[2] is charge:
            counts = known[3]
        else:
            # A running group without pods on nodes and with a complete gang has no reservation
            # left, and does not count as a group.
            counts = {**charge, POD_GROUPS: ONE_GROUP} if charge else {}
        self._charged = (status, held, charge, counts)
        return self._charged

    def fall_of(self, charge: Amounts) -> Amounts:
        """Return the change of a sum when this charge of the group ends, computed once."""
        known = self._fall
        if known is None or known[0] is not charge:
            known = self._fall = (charge, {name: -units for name, units in charge.items()})
        return known[1]

    def charge_holding(self, held: Amounts) -> Amounts:
        """Return the charge if its pods held this much."""
        status = self.status
        if status.reserved_at is None or status.phase in TERMINAL:
            # As `reserved`, which would be called for each change of each group.
            return held
        reservation = status.reservation
        # Most groups hold no more than their reservation.
        charge = reservation
        if held and not covers(reservation, held):
            charge = larger(held, reservation)
        extra = status.pledge.extra
        return plus(charge, extra) if extra else charge


def _counts(pod: Pod) -> bool:
    """Return whether a pod affects its group's sums; most waiting pods do not."""
    return pod.status.phase != _PENDING or bool(pod.spec.scheduling_gates)


@dataclass(frozen=True, slots=True)
class Headroom:
    """The headroom for one more member of a class: there is capacity while none of these sums
    exceeds the number stored with it. If `are_all` is False, other limits apply as well, and there
    is never headroom.

    Valid while the ledger uses the same `limits`; the sums are the ledger's own objects.
    """

    limits: Mapping[str, Amounts]
    most: Sequence[tuple[Mapping[str, int], str, int]]
    are_all: bool


class EquivalenceClass:
    """An equivalence class: its members in order, and the verdicts on them. It is changed by its
    pending queue, and by sessions, which store their findings.
    """

    __slots__ = (
        "asks",
        "behind",
        "by_reasons",
        "could_fit_in",
        "full_above",
        "headroom",
        "in_demand",
        "ineligible",
        "ineligible_in",
        "is_parked",
        "last_joined",
        "may_grow",
        "members",
        "queue",
        "shown",
        "verdicts",
        "watches",
    )

    def __init__(self, asks: Key, queue: str) -> None:
        self.asks = asks
        self.queue = queue
        self.members: Ordered[GroupState] = Ordered()
        #: Reasons in members' records -> the uids of the members with these, as they joined.
        self.by_reasons: dict[RecordedReasons, dict[str, None]] = {}
        #: The reasons of the member that joined last, as stored and as causes, and the members with
        #: these.
        self.last_joined: tuple[tuple[Verdict, ...] | None, RecordedReasons, dict[str, None]]
        self.last_joined = (None, NO_REASONS, {})
        #: The verdicts of the last evaluation; None before the first.
        self.verdicts: Blockers | None = None
        #: The verdicts shown to members: those above, and the kind of head that they wait behind.
        self.shown: Blockers | None = None
        self.behind = ""
        #: Why all members are ineligible, and the configuration generation in which this was found.
        self.ineligible: tuple[Verdict, ...] = ()
        self.ineligible_in: object = None
        #: The configuration generation in which the class was found to fit at some time.
        self.could_fit_in: object = None
        #: The limits' headroom for a member, computed on demand.
        self.headroom: Headroom | None = None
        #: While the class is parked by a limit, that limit is full while the sum of this scope and
        #: resource exceeds `full_above`; None if the class is parked for another reason.
        self.is_parked = False
        self.watches: tuple[str, str] | None = None
        self.full_above = 0
        #: Whether its requests count in the demand of its queue.
        self.in_demand = False
        #: Whether a member may ask for more once it is admitted, which changes shares.
        self.may_grow = False

    def take_over(self, former: EquivalenceClass) -> None:
        """Take over why groups with equal requests were ineligible, and the headroom for one: both
        show for how long they are valid.
        """
        self.ineligible, self.ineligible_in = former.ineligible, former.ineligible_in
        self.headroom = former.headroom

    def __len__(self) -> int:
        return len(self.members)

    @property
    def reservation(self) -> Amounts:
        """Return what each member requests; the class must not be empty."""
        return self.first.reservation

    @property
    def first(self) -> GroupState:
        found = self.members.first()
        assert found is not None
        return found[1]

    def show(self, verdicts: Blockers) -> bool:
        """Set the verdicts shown to members; return whether they have changed."""
        former, self.shown = self.shown, verdicts
        if former is None:
            return True
        return former is not verdicts and (former.causes, former.turn) != (
            verdicts.causes,
            verdicts.turn,
        )


def recorded_reasons(group: GroupState) -> RecordedReasons:
    """Return the causes and the turn in a group's record, computed once."""
    if group.recorded is None:
        group.recorded = reasons_key(group.record.status.reasons)
    return group.recorded


def reasons_key(reasons: tuple[Verdict, ...]) -> RecordedReasons:
    """Return the causes and the turn in recorded reasons."""
    return (causes_of(reasons), turn_of(reasons)) if reasons else NO_REASONS


NO_REASONS: RecordedReasons = ((), "")


@dataclass(frozen=True, slots=True)
class Victim:
    """What a preemptor would take: a whole group, or one of its pods beyond minMember.

    `pods` are those that hold a node now; a whole group may have none.
    """

    group: GroupState
    pods: tuple[Pod, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a preemptor lacks while victims are chosen for it.

    `resources` are the dimensions that it lacks; `fitting` is the requests of those of its pods
    that fit already; `leaving` maps a scope to how much its sum falls as earlier victims leave for
    other preemptors.
    """

    resources: frozenset[str] = frozenset()
    fitting: Amounts = field(default_factory=dict)
    leaving: Mapping[str, Amounts] = field(default_factory=dict)


def is_admitted(group: GroupState) -> bool:
    """Return whether the group is InQueue, Running or Unknown."""
    return group.status.phase in ADMITTED
