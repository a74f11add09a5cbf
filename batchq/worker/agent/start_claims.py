"""Claims of a node's agent that wait to be folded.

Nothing may start before its pod is Running and ours. The agent takes what is delivered to it from
Bound to Running: it takes the lease, leaves the claim, and looks until the leader has folded it;
only then a work-horse is forked, which finds everything it needs in its memory. All claims go
together, so that many cost no more questions than one.
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

#: Between two looks whether claims have been folded, should nobody have said so.
_LOOK_FIRST_MS, _LOOK_MOST_MS = 20, 200
#: A fact that shows no effect is left again: its bell may be lost, or the server has forgotten it.
SAY_AGAIN_MS = 5_000
#: So long a claim waits for a leader; the pod is given back then.
PATIENCE_MS = 60_000


class Claimed(Struct, frozen=True, kw_only=True):
    """The pod is Running, and this attempt of it is ours; its lease counts from `lease_from`."""

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
    """One claim, from the delivery on."""

    def __init__(self, attempt: PodAttempt, pod: Pod | None, *, since: int) -> None:
        self.attempt = attempt
        #: As it was when it was delivered, for the first look.
        self.pod = pod
        self.since = since
        self.said_at: int | None = None
        self.lease_from = since
        self.group: PodGroup | None = None


class Claims:
    """The claims of one agent, `author`; owned by its loop. Instants are monotonic milliseconds.

    What asks the server raises StoreUnavailable, and is asked again the next time.
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
        self._look_at = 0
        self._pause_ms = _LOOK_FIRST_MS
        self._gives_up = False

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def attempts(self) -> frozenset[PodAttempt]:
        """Those that wait."""
        return frozenset(self._waiting)

    def next_look_at(self) -> int | None:
        """When `step` has something to do; None while nothing waits."""
        return self._look_at if self._waiting else None

    def take(self, attempt: PodAttempt, *, now_ms: int, stored: bytes | None = None) -> None:
        """One more to claim; `stored`: its pod, if it has just been read."""
        pod = codec.pod_if_readable(stored)
        self._waiting[attempt] = _Waiting(attempt, pod, since=now_ms)
        self._look_at, self._pause_ms = now_ms, _LOOK_FIRST_MS

    def look_now(self) -> None:
        """Those that wait may have been folded."""
        self._look_at, self._pause_ms = 0, _LOOK_FIRST_MS

    def give_up(self) -> None:
        """The node goes away: what is not ours by the next step is given back."""
        self._gives_up = True
        self._look_at = 0

    def step(self, *, now_ms: int) -> list[Answer]:
        """Claim what is new, look after the others; what has been decided, in order."""
        if not self._waiting or now_ms < self._look_at:
            return []
        self._look_at = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LOOK_MOST_MS)
        waiting = list(self._waiting.values())
        pods = self._pods(waiting)
        answers: list[Answer] = []
        fresh: list[tuple[_Waiting, Pod]] = []
        ends: list[Ended] = []
        for one in waiting:
            pod = pods.get(one.attempt.pod)
            answer = self._judged(one, pod, ends, now_ms)
            if answer is not None:
                answers.append(answer)
            elif pod is not None and one.said_at is None:
                fresh.append((one, pod))
        if fresh:
            answers += self._claim(fresh, ends, now_ms)
        self._keep([pods[one.attempt.pod] for one in self._old(answers, now_ms)], now_ms)
        self._give_back(ends)
        for answer in answers:
            del self._waiting[answer.attempt]
            if isinstance(answer, Declined):
                self._files.forget(answer.attempt.pod, answer.attempt.attempt)
        return answers

    def _pods(self, waiting: Sequence[_Waiting]) -> dict[str, Pod]:
        """The pods of those that wait, as they are; those just delivered as they were then."""
        known = {one.attempt.pod: one.pod for one in waiting if one.pod is not None}
        unknown = [one.attempt.pod for one in waiting if one.attempt.pod not in known]
        for one in waiting:
            one.pod = None
        found = self._store.get_many("Pod", list(dict.fromkeys(unknown))) if unknown else {}
        return known | {key: one for key, one in found.items() if isinstance(one, Pod)}

    def _judged(
        self, one: _Waiting, pod: Pod | None, ends: list[Ended], now_ms: int
    ) -> Answer | None:
        """What became of one that waits; None if it waits on, or is not even claimed."""
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
        why = self._why_not(one, pod, now_ms)
        if why is None:
            return None
        reason = status.reason if status.terminating else Leaving.NODE_LOST
        ends.append(self._end(attempt, reason, why))
        return Declined(attempt=attempt, why=why)

    def _why_not(self, one: _Waiting, pod: Pod, now_ms: int) -> str | None:
        """Why a pod that could be ours is not started."""
        if pod.status.terminating:
            return "stopped before it started"
        if self._gives_up:
            return "its node went away before it started"
        if now_ms - one.since >= self._patience_ms:
            return f"no scheduler let it start within {self._patience_ms // 1000} s"
        return None

    def _end(self, attempt: PodAttempt, reason: str, message: str) -> Ended:
        """It takes the place of the claim, so that nothing is started for nobody."""
        outcome = PodOutcome(stopped=reason, message=message)
        return Ended(pod=attempt.pod, attempt=attempt.attempt, outcome=outcome, author=self._author)

    def _claim(
        self, fresh: list[tuple[_Waiting, Pod]], ends: list[Ended], now_ms: int
    ) -> list[Answer]:
        """Take the leases and leave the claims; what is decided by that."""
        facts = [
            (
                StartClaim(pod=one.attempt.pod, attempt=one.attempt.attempt, author=self._author),
                fence_of(pod),
            )
            for one, pod in fresh
        ]
        for one, _ in fresh:
            self._note(one.attempt)
        names = [_group(pod) for _, pod in fresh]
        renewals, groups = self._attempts.claim(facts, list(dict.fromkeys(names)), self._lease_ms)
        answers: list[Answer] = []
        for (one, pod), name, renewal in zip(fresh, names, renewals, strict=True):
            one.said_at, one.lease_from = now_ms, now_ms
            one.group = groups.get(name)
            if renewal.word == "fenced":
                answers.append(Declined(attempt=one.attempt, why="gone or superseded"))
            elif one.group is None or one.group.metadata.uid != pod.status.group_uid:
                why = "its group is gone"
                ends.append(self._end(one.attempt, Leaving.NODE_LOST, why))
                answers.append(Declined(attempt=one.attempt, why=why))
            elif pod.status.phase == PodPhase.RUNNING:
                # Folded while the server did not answer.
                answers.append(
                    Claimed(attempt=one.attempt, pod=pod, group=one.group, lease_from=now_ms)
                )
            elif renewal.word == "stop":
                why = "stopped before it started"
                ends.append(self._end(one.attempt, renewal.reason, why))
                answers.append(Declined(attempt=one.attempt, why=why))
        return answers

    def _old(self, answers: Sequence[Answer], now_ms: int) -> list[_Waiting]:
        """Those that still wait, and whose lease is to be renewed."""
        decided = {answer.attempt for answer in answers}
        return [
            one
            for one in self._waiting.values()
            if one.attempt not in decided
            and one.said_at is not None
            and now_ms - one.lease_from >= CHECK_MS
        ]

    def _keep(self, pods: Sequence[Pod], now_ms: int) -> None:
        """Renew the leases of claims that have waited for long, and say them again."""
        for pod in pods:
            one = self._waiting[PodAttempt(pod.metadata.uid, pod.status.attempt)]
            uid, number = one.attempt.pod, one.attempt.attempt
            self._store.renew(self._node, uid, number, fence_of(pod), self._lease_ms)
            one.lease_from = now_ms
            if now_ms - (one.said_at or 0) >= SAY_AGAIN_MS:
                one.said_at = now_ms
                claim = StartClaim(pod=uid, attempt=number, author=self._author)
                self._store.inboxes.post(self._node, claim)

    def _give_back(self, ends: Sequence[Ended]) -> None:
        if ends:
            self._attempts.end([AttemptEnd(fact=fact) for fact in ends])

    def _note(self, attempt: PodAttempt) -> None:
        """From now on the next agent knows that nobody else runs it."""
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
