"""What runs, and until when: in the place of agents and of the consumers of external groups.

Pods start as soon as they are bound, external groups are claimed as soon as they are admitted;
all of them end when their time is over, or when they were told to stop and their grace is over.
What is ahead stands in a heap, so that an instant costs what happens in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec import structs

from batchq.api import intents
from batchq.api.claims import ended, grace_of, is_claimable
from batchq.api.lifecycle import ON_NODE, PodGroupPhase, PodPhase
from batchq.api.objects import GroupClaim, Node, Pod, PodGroup, full_name
from batchq.api.transaction import Event, Transaction, Write, fence_of
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.ports import Clock, IdSource
from batchq.sim import podlife
from batchq.sim.clock import whole_second
from batchq.sim.fromlive.lasting import Lasting, pod_ends_at, stated_ms
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore

#: Who claims external groups here.
CONSUMER = "a consumer"


class Work:
    """All nodes and all consumers; owns what is ahead of what runs."""

    def __init__(
        self, store: MemoryStore, clock: Clock, requests: IdSource, lasting: Lasting
    ) -> None:
        self._store = store
        self._clock = clock
        self._requests = requests
        self._lasting = lasting
        self._seen_at = clock.now_ms()
        #: (instant, kind, uid of a pod or key of a group, its attempt or admission).
        self._ahead: list[tuple[int, str, str, int]] = []

    # --- after sessions --------------------------------------------------------------------

    def take_up(self, session: Session) -> None:
        """Go on with everything that runs; called once, after the first session."""
        for group in session.groups.values():
            if group.is_external:
                self._claim(group)
            for uid in group.pods:
                self._take_up_pod(group, uid)
        self._store.delivered(self._store.outbox())

    def follow(self, session: Session, said: Iterable[intents.Intent]) -> None:
        """Do what a session has said is to be done."""
        for intent in said:
            match intent:
                case intents.Bind(group=key, uid=uid) | intents.Evict(group=key, uid=uid):
                    self._take_up_pod(session.by_key[key], uid)
                case intents.AdmitGroup(group=key) if session.by_key[key].is_external:
                    self._claim(session.by_key[key])
                case _:
                    pass
        self._store.delivered(self._store.outbox())

    # --- by itself -------------------------------------------------------------------------

    def next_end_at(self) -> int | None:
        """When the next of what runs may end."""
        return self._ahead[0][0] if self._ahead else None

    def end_due(self) -> None:
        """Let end what is over by now."""
        while self._ahead and self._ahead[0][0] <= self._clock.now_ms():
            _, kind, name, number = heappop(self._ahead)
            if kind == "Pod":
                self._end_pod(name, number)
            else:
                self._end_claim(name, number)

    # --- pods ------------------------------------------------------------------------------

    def _take_up_pod(self, group: GroupState, uid: str) -> None:
        """Start it if it is bound, and note when it will end."""
        pod = self._pod(uid)
        if pod is None or pod.status.phase not in ON_NODE:
            return
        if pod.status.phase == PodPhase.BOUND and not pod.status.terminating:
            self._write(podlife.start(pod, now_ms=self._clock.now_ms()))
            pod = self._pod(uid)
            assert pod is not None
        at = podlife.grace_over_at(pod) if pod.status.terminating else self._done_at(group, pod)
        if at is not None:
            heappush(self._ahead, (at, "Pod", uid, pod.status.attempt))

    def _done_at(self, group: GroupState, pod: Pod) -> int | None:
        at = pod_ends_at(self._lasting, group, pod, seen_at=self._seen_at)
        return None if at is None else whole_second(at)

    def _end_pod(self, uid: str, attempt: int) -> None:
        pod, now_ms = self._pod(uid), self._clock.now_ms()
        if pod is None or pod.status.attempt != attempt or pod.status.phase not in ON_NODE:
            return
        if pod.status.terminating:
            over_at = podlife.grace_over_at(pod)
            if over_at is not None and over_at <= now_ms:
                self._write(podlife.stop(pod, now_ms=now_ms))
            return
        node = self._store.get("Node", pod.status.node)
        # Nobody would hear of the end; its node is taken to be lost.
        if not isinstance(node, Node) or node.status.ready:
            self._write(podlife.end(pod, PodPhase.SUCCEEDED, now_ms=now_ms, exit_code=0))

    def _pod(self, uid: str) -> Pod | None:
        found = self._store.get("Pod", uid)
        return found if isinstance(found, Pod) else None

    # --- external groups -------------------------------------------------------------------

    def _claim(self, state: GroupState) -> None:
        """Somebody claims it, or goes on with it, and renews the claim as long as it may."""
        group, now_ms = self._group(state.key), self._clock.now_ms()
        if group is None:
            return
        claim = group.status.claim
        if is_claimable(group):
            claim = GroupClaim(
                holder=CONSUMER,
                claimed_at=now_ms,
                grace=grace_of(group.spec),
                holding=group.status.reservation,
            )
        elif not claim.is_open or claim.stop_reason or _lapsed(claim, now_ms):
            return
        goes_on = structs.replace(claim, phase="Running", expires_at=None)
        self._put(group, goes_on, "Running")
        over_at = self._claim_over_at(state, goes_on)
        if over_at is not None:
            heappush(self._ahead, (over_at, "PodGroup", state.key, group.status.admission))

    def _claim_over_at(self, state: GroupState, claim: GroupClaim) -> int | None:
        started_at = state.status.started_at
        if started_at is None or state.phase == PodGroupPhase.IN_QUEUE:
            # Here a claim runs at once, and the next session sees it.
            started_at = self._clock.now_ms()
        walltime = state.record.spec.walltime
        stated = (stated_ms(task.template.annotations) for task in state.record.spec.tasks)
        at = self._lasting.ends_at(
            started_at=started_at,
            seen_at=self._seen_at,
            stated_ms=max((ms for ms in stated if ms is not None), default=None),
            walltime_over_at=None if walltime is None else started_at + walltime,
        )
        return None if at is None else whole_second(at)

    def _end_claim(self, key: str, admission: int) -> None:
        group = self._group(key)
        if group is None or group.status.admission != admission:
            return
        claim = group.status.claim
        if claim.is_open and not claim.stop_reason:
            self._put(group, ended(claim, "Succeeded"), "Succeeded")

    def _put(self, group: PodGroup, claim: GroupClaim, reason: str) -> None:
        key = full_name(group)
        event = Event(kind="PodGroup", key=key, reason=reason, at=self._clock.now_ms())
        change = Write(
            kind="PodGroup",
            key=key,
            expect=group.metadata.revision,
            value=structs.replace(group, status=structs.replace(group.status, claim=claim)),
            fence=fence_of(group),
        )
        self._write(Transaction(subject=f"PodGroup {key}", writes=(change,), events=(event,)))

    def _group(self, key: str) -> PodGroup | None:
        found = self._store.get("PodGroup", key)
        return found if isinstance(found, PodGroup) else None

    # ----------------------------------------------------------------------------------------

    def _write(self, transaction: Transaction) -> None:
        write(self._store, self._requests, transaction)


def _lapsed(claim: GroupClaim, now_ms: int) -> bool:
    return claim.expires_at is not None and claim.expires_at <= now_ms
