"""The pods of a load that hold a node, and when each of them ends: the place of the agents.

A bound pod starts at once, runs as long as its job says, and succeeds; one that was told to stop
ends when its grace is over. A finished group is taken out of the store with its last pod.
"""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec import Struct

from batchq.api.intents import Evict
from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod, PodGroup, key_of
from batchq.api.reasons import Leaving
from batchq.api.times import SECOND
from batchq.ports import Clock, IdSource
from batchq.sim import podlife
from batchq.sim.clock import whole_second
from batchq.sim.workload.founding import forgotten
from batchq.sim.workload.progress import Progress
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore

_LEAVING = frozenset(map(str, Leaving))


class OnNode(Struct, frozen=True, kw_only=True):
    """A pod since it started. `order` counts starts; `predicted_at`: start + walltime."""

    pod: str
    group: str
    order: int
    started_at: int
    ends_at: int | None
    predicted_at: int | None


class Running:
    """Owns the heap of ends and the heap of graces."""

    def __init__(
        self, store: MemoryStore, clock: Clock, requests: IdSource, progress: Progress
    ) -> None:
        self._store = store
        self._clock = clock
        self._requests = requests
        self._progress = progress
        self._on_node: dict[str, OnNode] = {}
        self._stopping: dict[str, OnNode] = {}
        self._ends: list[tuple[int, int, OnNode]] = []
        self._graces: list[tuple[int, int, OnNode]] = []
        #: Groups that have ended and still have pods on nodes, by uid.
        self._leaving: dict[str, str] = {}
        self._started = 0
        #: Groups, by uid, of whose start no session has seen anything yet, and one of their pods.
        #: Whoever opens a session clears it.
        self.unseen: dict[str, OnNode] = {}
        #: How many pods have left their nodes so far.
        self.ended = 0

    def any(self) -> bool:
        """Whether anything runs that will end by itself."""
        return self.next_at() is not None

    def next_at(self) -> int | None:
        """When the next pod ends or has stopped; None if none does."""
        while self._ends and self._on_node.get(self._ends[0][2].pod) is not self._ends[0][2]:
            heappop(self._ends)
        return min((heap[0][0] for heap in (self._ends, self._graces) if heap), default=None)

    def start_bound(self) -> None:
        """Bound -> Running takes no time."""
        deliveries = self._store.outbox()
        for delivery in deliveries:
            pod = self._store.get("Pod", delivery.pod)
            bound = isinstance(pod, Pod) and pod.status.phase == PodPhase.BOUND
            if isinstance(pod, Pod) and bound and pod.status.attempt == delivery.attempt:
                self._start(pod)
        self._store.delivered(deliveries)

    def due(self) -> list[OnNode]:
        """The pods whose work is done by now, in the order in which they started."""
        now_ms = self._clock.now_ms()
        found = []
        while (next_at := self.next_at()) is not None and next_at <= now_ms:
            if not self._ends or self._ends[0][0] > now_ms:
                break
            found.append(heappop(self._ends)[2])
        return sorted(found, key=lambda one: one.order)

    def end(self, one: OnNode) -> None:
        """Its work is done, unless it has ended before or was told to stop meanwhile."""
        if self._on_node.get(one.pod) is one:
            del self._on_node[one.pod]
            pod, now_ms = self._pod(one), self._clock.now_ms()
            ended = podlife.end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0)
            write(self._store, self._requests, ended)
            self._gone(one, pod)

    def has_succeeded(self, group: str) -> bool:
        """Whether all pods that a group is to have, by its uid, have done their work."""
        pods = self._store.pods_of(group)
        return len(pods) == self._progress.pods(group) and all(
            pod.status.phase == PodPhase.SUCCEEDED for pod in pods
        )

    def has_any_overrun(self) -> bool:
        """Whether anybody's time is over of whose start no session has seen anything yet."""
        now_ms = self._clock.now_ms()
        return any(
            one.predicted_at is not None and one.predicted_at <= now_ms and one.pod in self._on_node
            for one in self.unseen.values()
        )

    def end_graces(self) -> None:
        """What was told to stop has stopped by now."""
        now_ms = self._clock.now_ms()
        while self._graces and self._graces[0][0] <= now_ms:
            one = heappop(self._graces)[2]
            del self._stopping[one.pod]
            pod = self._pod(one)
            write(self._store, self._requests, podlife.stop(pod, now_ms=now_ms))
            self._gone(one, pod)

    def tell_to_stop(self, evict: Evict) -> None:
        """Its grace begins, if the store has granted the eviction."""
        pod = self._store.get("Pod", evict.uid)
        one = self._on_node.get(evict.uid)
        if one is None or not isinstance(pod, Pod):
            return
        over_at = podlife.grace_over_at(pod)
        if over_at is None:
            return
        del self._on_node[one.pod]
        self._stopping[one.pod] = one
        heappush(self._graces, (over_at, one.order, one))
        if evict.reason in _LEAVING:
            held_s = (over_at - one.started_at) // SECOND
            self._progress.evicted(one.group, pod.status.admission, held_s)

    def forget(self, group: PodGroup) -> None:
        """Take a finished group out of the store, now or with its last pod.

        One that still counts in an eviction budget stays for as long as it would be shown.
        """
        if group.status.evictions.recent:
            return
        pods = self._store.pods_of(group.metadata.uid)
        if any(pod.status.phase in ON_NODE for pod in pods):
            self._leaving[group.metadata.uid] = key_of(group)
        else:
            write(self._store, self._requests, forgotten(self._store, group))

    # ----------------------------------------------------------------------------------------

    def _start(self, pod: Pod) -> None:
        now_ms, group = self._clock.now_ms(), pod.status.group_uid
        write(self._store, self._requests, podlife.start(pod, now_ms=now_ms))
        arrival = self._progress.arrival(group)
        run_s, walltime = arrival.run_s, arrival.group.spec.walltime
        one = OnNode(
            pod=pod.metadata.uid,
            group=group,
            order=self._started,
            started_at=now_ms,
            ends_at=None if run_s is None else now_ms + run_s * SECOND,
            predicted_at=None if walltime is None else whole_second(now_ms + walltime),
        )
        self._started += 1
        self._on_node[one.pod] = one
        self.unseen[group] = one
        if one.ends_at is not None:
            heappush(self._ends, (one.ends_at, one.order, one))
        self._progress.started(group, pod, now_ms // SECOND)

    def _gone(self, one: OnNode, pod: Pod) -> None:
        self.ended += 1
        self._progress.stopped(one.group, pod, self._clock.now_ms() // SECOND)
        key = self._leaving.pop(one.group, None)
        group = self._store.get("PodGroup", key) if key is not None else None
        if isinstance(group, PodGroup):
            self.forget(group)

    def _pod(self, one: OnNode) -> Pod:
        pod = self._store.get("Pod", one.pod)
        assert isinstance(pod, Pod)
        return pod
