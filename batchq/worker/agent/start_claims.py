"""Start claims of a node's agent, from the delivery of a pod until the leader has applied them.

A pod starts only when it is Running and held by this agent. The agent moves a delivered pod from
Bound to Running: it takes the lease, posts the claim, and checks until the leader has applied it.
Only then does a work-horse get the pod, with everything it needs in memory. All claims are sent
together, so that many of them cost as many round trips as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import Ended, PodOutcome, StartClaim
from batchq.api.objects import Pod, PodGroup
from batchq.api.reasons import Leaving
from batchq.api.transaction import fence_of
from batchq.store import codec
from batchq.store.pod_attempts import AttemptEnd, Attempts
from batchq.store.redis import RedisStore
from batchq.worker.rq.delivery import PodAttempt
from batchq.worker.workhorse.reporter import CHECK_MS
from batchq.worker.workhorse.run_file import RunFile, RunFiles, own_boot

log = structlog.get_logger(__name__)

#: The pause between two checks of waiting claims, if no wake-up arrives.
_CHECK_FIRST_MS, _CHECK_MAX_MS = 20, 200
#: A report without effect is posted again: its wake-up may be lost, or the server may have lost it.
REPEAT_MS = 5_000
#: How long a claim waits for a leader before the pod is given back.
PATIENCE_MS = 60_000


class Claimed(Struct, frozen=True, kw_only=True):
    """The pod is Running and this attempt is ours; its lease started at `lease_from`."""

    attempt: PodAttempt
    pod: Pod
    group: PodGroup
    lease_from: int


class Declined(Struct, frozen=True, kw_only=True):
    """The pod is not ours to run."""

    attempt: PodAttempt
    why: str


Answer = Claimed | Declined


class _Waiting:
    """One claim, from its delivery on."""

    def __init__(self, attempt: PodAttempt, pod: Pod | None, *, since: int) -> None:
        self.attempt = attempt
        #: The pod at its delivery, for the first check.
        self.pod = pod
        self.since = since
        self.posted_at: int | None = None
        self.lease_from = since
        self.group: PodGroup | None = None


class Claims:
    """The claims of one agent, `author`; owned by its loop. Instants are monotonic milliseconds.

    Methods that ask the server raise StoreUnavailable; the claims stay, and the next call asks
    again.
    """

    def __init__(
        self,
        store: RedisStore,
        node: str,
        files: RunFiles,
        *,
        author: str,
        lease_ms: int,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        self._store = store
        self._node = node
        self._files = files
        self._author = author
        self._lease_ms = lease_ms
        self._patience_ms = patience_ms
        self._attempts = Attempts(store, node)
        self._boot = own_boot()
        self._waiting: dict[PodAttempt, _Waiting] = {}
        self._check_at = 0
        self._pause_ms = _CHECK_FIRST_MS
        self._gives_up = False

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def attempts(self) -> frozenset[PodAttempt]:
        """Return the attempts whose claims wait."""
        return frozenset(self._waiting)

    def next_check_at(self) -> int | None:
        """Return when `step` has something to do; None while no claim waits."""
        return self._check_at if self._waiting else None

    def take(self, attempt: PodAttempt, *, now_ms: int, stored: bytes | None = None) -> None:
        """Add an attempt to claim. `stored`: the bytes of its pod, if it was just read."""
        pod = codec.pod_if_readable(stored)
        self._waiting[attempt] = _Waiting(attempt, pod, since=now_ms)
        self._check_at, self._pause_ms = now_ms, _CHECK_FIRST_MS

    def check_now(self) -> None:
        """Check the claims with the next step: some may have been applied."""
        self._check_at, self._pause_ms = 0, _CHECK_FIRST_MS

    def give_up(self) -> None:
        """Give back with the next step all pods that are not ours by then, because the node goes
        away.
        """
        self._gives_up = True
        self._check_at = 0

    def step(self, *, now_ms: int) -> list[Answer]:
        """Claim what is new, check the other claims, and return the decided ones in order."""
        if not self._waiting or now_ms < self._check_at:
            return []
        self._check_at = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _CHECK_MAX_MS)
        waiting = list(self._waiting.values())
        pods = self._pods(waiting)
        answers: list[Answer] = []
        fresh: list[tuple[_Waiting, Pod]] = []
        ends: list[Ended] = []
        for one in waiting:
            pod = pods.get(one.attempt.pod)
            answer = self._decide(one, pod, ends, now_ms)
            if answer is not None:
                answers.append(answer)
            elif pod is not None and one.posted_at is None:
                fresh.append((one, pod))
        if fresh:
            answers += self._claim(fresh, ends, now_ms)
        self._renew(
            [pods[one.attempt.pod] for one in self._due_for_renewal(answers, now_ms)], now_ms
        )
        self._give_back(ends)
        for answer in answers:
            del self._waiting[answer.attempt]
            if isinstance(answer, Declined):
                self._files.forget(answer.attempt.pod, answer.attempt.attempt)
        return answers

    def _pods(self, waiting: Sequence[_Waiting]) -> dict[str, Pod]:
        """Return the current pods of the claims; a pod that was just delivered is not read
        again.
        """
        known = {one.attempt.pod: one.pod for one in waiting if one.pod is not None}
        unknown = [one.attempt.pod for one in waiting if one.attempt.pod not in known]
        for one in waiting:
            one.pod = None
        found = self._store.get_many("Pod", list(dict.fromkeys(unknown))) if unknown else {}
        return known | {key: one for key, one in found.items() if isinstance(one, Pod)}

    def _decide(
        self, one: _Waiting, pod: Pod | None, ends: list[Ended], now_ms: int
    ) -> Answer | None:
        """Return the decision on a claim; None if it waits or has not been posted yet."""
        attempt = one.attempt
        if pod is None or pod.status.attempt != attempt.attempt:
            return Declined(attempt=attempt, why="gone or superseded")
        status = pod.status
        is_ours = status.phase == PodPhase.RUNNING and status.holder == self._author
        if status.node != self._node or not (is_ours or status.phase == PodPhase.BOUND):
            where = status.node if status.phase in ON_NODE and status.node else "no node"
            return Declined(attempt=attempt, why=f"{status.phase} on {where}")
        if is_ours and one.group is not None:
            return Claimed(attempt=attempt, pod=pod, group=one.group, lease_from=one.lease_from)
        why = self._refusal(one, pod, now_ms)
        if why is None:
            return None
        reason = status.reason if status.terminating else Leaving.NODE_LOST
        ends.append(self._end(attempt, reason, why))
        return Declined(attempt=attempt, why=why)

    def _refusal(self, one: _Waiting, pod: Pod, now_ms: int) -> str | None:
        """Return why a pod that could be ours is not to start; None if it may."""
        if pod.status.terminating:
            return "stopped before it started"
        if self._gives_up:
            return "its node went away before it started"
        if now_ms - one.since >= self._patience_ms:
            return f"no scheduler let it start within {self._patience_ms // 1000} s"
        return None

    def _end(self, attempt: PodAttempt, reason: str, message: str) -> Ended:
        """Return the end report that takes the place of a claim, so that the pod is not left
        waiting.
        """
        outcome = PodOutcome(stopped=reason, message=message)
        return Ended(pod=attempt.pod, attempt=attempt.attempt, outcome=outcome, author=self._author)

    def _claim(
        self, fresh: list[tuple[_Waiting, Pod]], ends: list[Ended], now_ms: int
    ) -> list[Answer]:
        """Take the leases and post the claims; return what is decided by the answers."""
        claims = [
            (
                StartClaim(pod=one.attempt.pod, attempt=one.attempt.attempt, author=self._author),
                fence_of(pod),
            )
            for one, pod in fresh
        ]
        for one, _ in fresh:
            self._write_run_file(one.attempt)
        names = [_group(pod) for _, pod in fresh]
        renewals, groups = self._attempts.claim(claims, list(dict.fromkeys(names)), self._lease_ms)
        answers: list[Answer] = []
        for (one, pod), name, renewal in zip(fresh, names, renewals, strict=True):
            one.posted_at, one.lease_from = now_ms, now_ms
            one.group = groups.get(name)
            if renewal.word == "fenced":
                answers.append(Declined(attempt=one.attempt, why="gone or superseded"))
            elif one.group is None or one.group.metadata.uid != pod.status.group_uid:
                why = "its group is gone"
                ends.append(self._end(one.attempt, Leaving.NODE_LOST, why))
                answers.append(Declined(attempt=one.attempt, why=why))
            elif pod.status.phase == PodPhase.RUNNING:
                # Applied while the server did not answer.
                answers.append(
                    Claimed(attempt=one.attempt, pod=pod, group=one.group, lease_from=now_ms)
                )
            elif renewal.word == "stop":
                why = "stopped before it started"
                ends.append(self._end(one.attempt, renewal.reason, why))
                answers.append(Declined(attempt=one.attempt, why=why))
        return answers

    def _due_for_renewal(self, answers: Sequence[Answer], now_ms: int) -> list[_Waiting]:
        """Return the claims that still wait and whose lease is to be renewed."""
        decided = {answer.attempt for answer in answers}
        return [
            one
            for one in self._waiting.values()
            if one.attempt not in decided
            and one.posted_at is not None
            and now_ms - one.lease_from >= CHECK_MS
        ]

    def _renew(self, pods: Sequence[Pod], now_ms: int) -> None:
        """Renew the leases of claims that have waited for long, and post the claims again."""
        for pod in pods:
            one = self._waiting[PodAttempt(pod.metadata.uid, pod.status.attempt)]
            uid, number = one.attempt.pod, one.attempt.attempt
            self._store.renew(self._node, uid, number, fence_of(pod), self._lease_ms)
            one.lease_from = now_ms
            if now_ms - (one.posted_at or 0) >= REPEAT_MS:
                one.posted_at = now_ms
                claim = StartClaim(pod=uid, attempt=number, author=self._author)
                self._store.inboxes.post(self._node, claim)

    def _give_back(self, ends: Sequence[Ended]) -> None:
        if ends:
            self._attempts.end([AttemptEnd(fact=fact) for fact in ends])

    def _write_run_file(self, attempt: PodAttempt) -> None:
        """Write a run file, from which the next agent knows that no other machine runs the
        attempt.
        """
        self._files.write(
            RunFile(
                pod=attempt.pod,
                attempt=attempt.attempt,
                horse=0,
                horse_started_ms=0,
                boot=self._boot,
            )
        )


def _group(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.spec.pod_group}"
