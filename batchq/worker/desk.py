"""The desk of a node: where its agent and work-horses leave facts, and see what became of them.

They write no object. A claim and an end are facts in the inbox of the node, which the leader folds
(`batchq/scheduler/clerk.py`) within a few milliseconds, or when there is a leader again. A claim is
waited for, since nothing may start before the pod is Running and ours; an end is not, since a
posted fact lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from msgspec import Struct

from batchq.api.facts import Claim, Ended, Fact, Outcome
from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod, PodGroup
from batchq.api.reasons import Leaving
from batchq.api.transaction import fence_of
from batchq.store.redis import RedisStore
from batchq.worker.messenger import CHECK_MS, Renewal, monotonic_ms

log = structlog.get_logger(__name__)

#: Between two looks whether a claim has been folded.
_LOOK_FIRST_MS, _LOOK_MOST_MS = 2, 50
#: A fact that shows no effect is left again: its bell may be lost, or the server has forgotten it.
SAY_AGAIN_MS = 5_000
#: So long a claim waits for a leader; the pod is given back then.
_PATIENCE_MS = 60_000


class Claimed(Struct, frozen=True, kw_only=True):
    """The pod is Running, and this attempt of it is ours."""

    pod: Pod
    group: PodGroup


class Declined(Struct, frozen=True, kw_only=True):
    """The pod is not ours to run."""

    why: str


class Desk:
    """The desk of one node. Every method raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str, *, patience_ms: int = _PATIENCE_MS) -> None:
        self._store = store
        self._node = node
        self._patience_ms = patience_ms

    def post(self, fact: Fact) -> None:
        """Leave a fact in place of the last one on its subject."""
        self._store.inboxes.post(self._node, fact)

    def pending(self) -> Sequence[Fact]:
        """What has been left and is not folded yet."""
        return self._store.inboxes.own(self._node)

    def current(self, uid: str, attempt: int) -> Pod | None:
        """The pod, if this is still its attempt."""
        pod = self._store.get("Pod", uid)
        return pod if isinstance(pod, Pod) and pod.status.attempt == attempt else None

    def ended(self, uid: str, attempt: int, outcome: Outcome, *, author: str) -> None:
        """Tell the end of an attempt, of which no process is left. Twice is harmless."""
        self.post(Ended(pod=uid, attempt=attempt, outcome=outcome, author=author))
        self.end_lease(uid, attempt)

    def end_lease(self, uid: str, attempt: int) -> None:
        """Nothing of the attempt runs any more: there is nothing left to wait for."""
        self._store.end_lease(self._node, uid, attempt)

    def claim(
        self,
        uid: str,
        attempt: int,
        *,
        author: str,
        renew: Callable[[str], Renewal],
        pause: Callable[[int], bool],
    ) -> Claimed | Declined:
        """Take a Bound pod to Running, and wait until it is.

        The lease is taken first (`renew` with the pod's fence): a Running pod whose last attempt's
        lease has long run out would be written off at once. `pause` waits for so many milliseconds
        and says whether to go on. A pod that is told to stop before it started, or that this one
        no longer waits for, is given back: no claim is left behind that would be folded later.
        """
        pod = self.current(uid, attempt)
        if pod is None:
            return Declined(why="gone or superseded")
        if (declined := self._declined(pod, author)) is not None:
            return declined
        group = self._store.get("PodGroup", f"{pod.metadata.namespace}/{pod.spec.pod_group}")
        if not isinstance(group, PodGroup) or group.metadata.uid != pod.status.group_uid:
            return Declined(why="its group is gone")
        renewed = renew(fence_of(pod))
        if renewed.word == "fenced":
            return Declined(why="gone or superseded")
        if pod.status.phase == PodPhase.RUNNING:
            # Folded while the server did not answer.
            return Claimed(pod=pod, group=group)
        if renewed.word == "stop":
            return self._give_back(pod, author, renewed.reason, "stopped before it started")
        self.post(Claim(pod=uid, attempt=attempt, author=author))
        return self._await(pod, group, author=author, renew=renew, pause=pause)

    def _await(
        self,
        pod: Pod,
        group: PodGroup,
        *,
        author: str,
        renew: Callable[[str], Renewal],
        pause: Callable[[int], bool],
    ) -> Claimed | Declined:
        uid, attempt = pod.metadata.uid, pod.status.attempt
        since = renewed_at = said_at = monotonic_ms()
        pause_ms = _LOOK_FIRST_MS
        while True:
            goes_on = pause(pause_ms)
            pause_ms = min(2 * pause_ms, _LOOK_MOST_MS)
            now = self.current(uid, attempt)
            if now is None:
                return Declined(why="gone or superseded")
            if (declined := self._declined(now, author)) is not None:
                return declined
            if now.status.phase == PodPhase.RUNNING:
                return Claimed(pod=now, group=group)
            if now.status.terminating:
                reason = now.status.reason
                return self._give_back(now, author, reason, "stopped before it started")
            now_ms = monotonic_ms()
            if not goes_on:
                why = "its node went away before it started"
                return self._give_back(now, author, Leaving.NODE_LOST, why)
            if now_ms - since >= self._patience_ms:
                why = f"no scheduler let it start within {self._patience_ms // 1000} s"
                return self._give_back(now, author, Leaving.NODE_LOST, why)
            if now_ms - renewed_at >= CHECK_MS:
                renewed_at = now_ms
                if renew(fence_of(now)).word == "fenced":
                    return Declined(why="gone or superseded")
            if now_ms - said_at >= SAY_AGAIN_MS:
                said_at = now_ms
                self.post(Claim(pod=uid, attempt=attempt, author=author))

    def _declined(self, pod: Pod, author: str) -> Declined | None:
        """Why a pod is not this author's to claim, if it is not."""
        status = pod.status
        bound = status.phase == PodPhase.BOUND
        ours = status.phase == PodPhase.RUNNING and status.holder == author
        if status.node == self._node and (bound or ours):
            return None
        where = status.node if status.phase in ON_NODE and status.node else "no node"
        return Declined(why=f"{status.phase} on {where}")

    def _give_back(self, pod: Pod, author: str, reason: str, message: str) -> Declined:
        """The end takes the place of the claim, so that nothing is started for nobody."""
        outcome = Outcome(stopped=reason, message=message)
        self.ended(pod.metadata.uid, pod.status.attempt, outcome, author=author)
        return Declined(why=message)
