"""Ends that an agent sees to, until the server shows them.

A work-horse posts the end of its pod and goes; its run file stays. The agent looks whether the pod
has ended, and only then lets go of the file: a server that lost its last second, or was restored
from an older file, is told again. A work-horse that died without a word is spoken for: with the
outcome in its run file, or, if there is none, the pod is lost. One of which nothing is known here
may yet run, on the machine that had the node's name before: it is lost when its lease is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import Ended, PodOutcome, Runs, StartClaim, subject_of_pod
from batchq.api.objects import Object, Pod
from batchq.api.transaction import fence_of
from batchq.store.liveness import leases_of
from batchq.store.pod_attempts import AttemptEnd, Attempts
from batchq.store.redis import RedisStore
from batchq.worker.agent.start_claims import SAY_AGAIN_MS
from batchq.worker.rq.delivery import PodAttempt
from batchq.worker.workhorse.output_log import send_kept
from batchq.worker.workhorse.reporter import ReportSender, monotonic_ms
from batchq.worker.workhorse.run_file import LOST, RunFile, RunFiles
from batchq.worker.workhorse.run_pod import author_of

log = structlog.get_logger(__name__)


class Settling:
    """The attempts of one node whose end is not seen yet; owned by the agent's loop.

    Instants are monotonic milliseconds. What asks the server raises StoreUnavailable.
    """

    def __init__(self, store: RedisStore, node: str, files: RunFiles, *, author: str) -> None:
        self._store = store
        self._node = node
        self._desk = ReportSender(store, node)
        self._attempts = Attempts(store, node)
        self._files = files
        self._author = author
        #: When each is to be told (again).
        self._due_at: dict[PodAttempt, int] = {}
        #: What was said in the place of work-horses that had left nothing to say.
        self._said: dict[PodAttempt, PodOutcome] = {}
        #: Those whose work-horses were children of this process, and were collected.
        self._seen_dead: set[PodAttempt] = set()
        #: Those of which nothing is left to send.
        self._reported: set[PodAttempt] = set()

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._due_at

    def __len__(self) -> int:
        return len(self._due_at)

    def attempts(self) -> frozenset[PodAttempt]:
        """Each of them."""
        return frozenset(self._due_at)

    def ids(self) -> frozenset[str]:
        """`<pod>-<attempt>` of each."""
        return frozenset(attempt.id for attempt in self._due_at)

    def has_posted(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Its work-horse has said that it ended."""
        self._due_at[attempt] = now_ms + SAY_AGAIN_MS

    def report(self, runs: Sequence[RunFile], *, now_ms: int) -> None:
        """Work-horses have left their reports to this agent: output and results first, for whoever
        sees an end may read all of them. What fails is told again from the run files.
        """
        for run in runs:
            self._due_at[PodAttempt(run.pod, run.attempt)] = now_ms
        ends = []
        for run in runs:
            self._send_unsent(PodAttempt(run.pod, run.attempt), None)
            if run.outcome is not None:
                fact = Ended(
                    pod=run.pod, attempt=run.attempt, outcome=run.outcome, author=self._author
                )
                ends.append(AttemptEnd(fact=fact, result=run.result))
        if ends:
            self._attempts.end(ends)
        for run in runs:
            attempt = PodAttempt(run.pod, run.attempt)
            self._reported.add(attempt)
            self.has_posted(attempt, now_ms=now_ms)

    def has_died(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Its work-horse was seen to end, and said nothing."""
        self._seen_dead.add(attempt)
        self.is_missing(attempt, now_ms=now_ms)

    def is_missing(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """It should run here, and does not."""
        self._due_at.setdefault(attempt, now_ms)

    def let_go(self) -> None:
        """Forget those whose end can be seen, with everything that was kept for it."""
        if not self._due_at:
            return
        attempts = sorted(self._due_at, key=lambda one: one.id)
        found = self._store.get_many("Pod", [one.pod for one in attempts])
        over: list[PodAttempt] = []
        for attempt in attempts:
            pod = found.get(attempt.pod)
            is_current = isinstance(pod, Pod) and pod.status.attempt == attempt.attempt
            if isinstance(pod, Pod) and is_current and pod.status.phase in ON_NODE:
                continue
            over.append(attempt)
            if is_current and attempt not in self._reported:
                self._send_unsent(attempt, self._files.read(attempt.pod, attempt.attempt))
        if over:
            self._attempts.end_leases([attempt.id for attempt in over])
        for attempt in over:
            self._forget(attempt)

    def due(self, *, now_ms: int) -> Sequence[PodAttempt]:
        """Those that are to be told now, in order."""
        found = [attempt for attempt, at in self._due_at.items() if at <= now_ms]
        return sorted(found, key=lambda one: one.id)

    def settle(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Tell what the run file says, or that the pod is lost; Bound pods may start anew.

        Never before the last of its processes is gone.
        """
        run = self._files.read(attempt.pod, attempt.attempt)
        outcome = (run.outcome if run else None) or self._said.get(attempt)
        pod = self._desk.current(attempt.pod, attempt.attempt)
        if pod is None or pod.status.phase not in ON_NODE:
            self._due_at.setdefault(attempt, now_ms)
            self.let_go()
        elif outcome is None and self._may_start_anew(pod):
            self._forget(attempt)
        elif run is None and outcome is None and (left_ms := self._leased_for_ms(pod)) > 0:
            self._due_at[attempt] = now_ms + left_ms
        else:
            self._send_unsent(attempt, run)
            self.tell(attempt, outcome or _lost(pod), now_ms=now_ms)

    def tell(self, attempt: PodAttempt, outcome: PodOutcome, *, now_ms: int) -> None:
        """Tell an end in the place of the work-horse, and again until it is seen."""
        self._desk.ended(attempt.pod, attempt.attempt, outcome, author=self._author)
        self._due_at[attempt] = now_ms + SAY_AGAIN_MS
        if attempt not in self._said:
            self._said[attempt] = outcome
            log.warning("pod ended for its work-horse", pod=attempt.pod, stopped=outcome.stopped)

    def hold(self, attempts: Sequence[PodAttempt], *, lease_ms: int) -> None:
        """Renew the leases of attempts of which processes are left: their pods have not ended, and
        are not to be written off.
        """
        for attempt in attempts:
            pod = self._desk.current(attempt.pod, attempt.attempt)
            if pod is not None and pod.status.phase == PodPhase.RUNNING:
                fence = fence_of(pod)
                self._store.renew(self._node, attempt.pod, attempt.attempt, fence, lease_ms)

    def told(self) -> frozenset[str]:
        """The subjects of ends that wait to be folded, whoever left them."""
        return frozenset(fact.subject for fact in self._desk.pending() if isinstance(fact, Ended))

    def _may_start_anew(self, pod: Pod) -> bool:
        """A Bound pod may, unless a claim of it is left that would yet be folded."""
        if pod.status.phase != PodPhase.BOUND or pod.status.terminating:
            return False
        subject = subject_of_pod(pod.metadata.uid, pod.status.attempt)
        left = [fact for fact in self._desk.pending() if fact.subject == subject]
        return not any(isinstance(fact, StartClaim | Ended) for fact in left)

    def _leased_for_ms(self, pod: Pod) -> int:
        """How much longer somebody may run a pod of which nothing is known here.

        The node may have been on another machine, which cannot be reached or stands still: there
        the pod goes on until its lease is nearly over.
        """
        uid, number = pod.metadata.uid, pod.status.attempt
        if pod.status.phase != PodPhase.RUNNING or PodAttempt(uid, number) in self._seen_dead:
            return 0
        leases = leases_of(self._store.alive.read([self._node]))
        return leases.get((self._node, uid, number), 0) - self._store.now_ms()

    def _forget(self, attempt: PodAttempt) -> None:
        self._due_at.pop(attempt, None)
        self._said.pop(attempt, None)
        self._seen_dead.discard(attempt)
        self._reported.discard(attempt)
        self._files.forget(attempt.pod, attempt.attempt)

    def _send_unsent(self, attempt: PodAttempt, run: RunFile | None) -> None:
        """The output and the result that its work-horse could not send."""
        uid, number = attempt.pod, attempt.attempt
        send_kept(
            self._files.unsent_file(uid, number),
            lambda stream, data: self._store.append_log(self._node, uid, number, stream, data),
        )
        if run is not None and run.result is not None:
            self._store.put_result(self._node, uid, number, run.result)


def _lost(pod: Pod) -> PodOutcome:
    if pod.status.phase == PodPhase.BOUND and pod.status.terminating:
        return PodOutcome(stopped=pod.status.reason)
    return LOST


class RollCall:
    """One node's answers; owned by the agent's loop. Asking the server raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str, files: RunFiles, *, agent: str) -> None:
        self._store = store
        self._node = node
        self._desk = ReportSender(store, node)
        self._files = files
        self._agent = agent
        #: The run of the server that knows of everything that runs here.
        self.told_to = ""
        #: When each attempt was last told. Its work-horse waits until what was told is folded.
        self._said_at: dict[PodAttempt, int] = {}

    def answer(self, run: str, horses: Sequence[tuple[PodAttempt, int]]) -> bool:
        """Whether the server with this run id knows of all that runs; what it does not is told.

        `horses`: each attempt that runs here, and the pid of its work-horse.
        """
        if run != self.told_to:
            unknown = self._unknown(horses)
            now_ms = monotonic_ms()
            for attempt, horse in unknown:
                if now_ms >= self._said_at.get(attempt, -SAY_AGAIN_MS) + SAY_AGAIN_MS:
                    self._said_at[attempt] = now_ms
                    self._tell(attempt, horse)
            if not unknown:
                self.told_to = run
                self._said_at.clear()
        return run == self.told_to

    def _unknown(self, horses: Sequence[tuple[PodAttempt, int]]) -> list[tuple[PodAttempt, int]]:
        if not horses:
            return []
        found = self._store.get_many("Pod", [attempt.pod for attempt, _ in horses])
        return [
            (attempt, horse)
            for attempt, horse in horses
            if self._has_started(attempt) and not self._knows(found.get(attempt.pod), attempt)
        ]

    def _has_started(self, attempt: PodAttempt) -> bool:
        """One that is still claimed starts nothing that the server does not know of."""
        run = self._files.read(attempt.pod, attempt.attempt)
        return run is not None and run.group != 0 and run.outcome is None

    def _knows(self, pod: Object | None, attempt: PodAttempt) -> bool:
        if not isinstance(pod, Pod):
            return False
        status = pod.status
        is_ours = status.node == self._node and status.attempt == attempt.attempt
        return is_ours and status.phase == PodPhase.RUNNING

    def _tell(self, attempt: PodAttempt, horse: int) -> None:
        run = self._files.read(attempt.pod, attempt.attempt)
        if run is not None:
            author = author_of(self._agent, horse)
            self._desk.post(
                Runs(
                    pod=attempt.pod,
                    attempt=attempt.attempt,
                    author=author,
                    started_at=run.started_at,
                )
            )
