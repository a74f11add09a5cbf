"""What an agent reports of its pods: start claims, ends, and what runs after a server restart.

A pod starts only when it is Running and held by this agent. The agent moves a delivered pod from
Bound to Running: it takes the lease, posts a start claim, and checks until the leader has applied
it. Only then does a work-horse get the pod, with everything it needs in memory. All claims are sent
together, so that many of them cost as many round trips as one.

A work-horse posts the end of its pod and exits; its run file stays. The agent releases the run file
only when the server shows the end, so that a server that lost its last second, or was restored from
an older file, receives the report again. For a work-horse that died without a report, the agent
reports the outcome in its run file, or else that the pod is lost. An attempt that is unknown here
may still run on the machine that had the node's name before; it is lost when its lease expires.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import Ended, PodOutcome, Runs, StartClaim, subject_of_pod
from batchq.api.objects import Object, Pod, PodGroup
from batchq.api.reasons import Leaving
from batchq.api.transaction import fence_of
from batchq.store import codec
from batchq.store.liveness import leases_of
from batchq.store.node_channels import AttemptEnd, Attempts
from batchq.store.redis import RedisStore
from batchq.worker.rq_delivery import PodAttempt
from batchq.worker.workhorse.reporter import (
    CHECK_MS,
    ReportSender,
    author_of,
    monotonic_ms,
    send_unsent,
)
from batchq.worker.workhorse.run_file import LOST, RunFile, RunFiles, own_boot

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
        self._attempts = Attempts(store.link, store.now_ms, node)
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
        """Give back, with the next step, all pods that are not ours by then: the node goes away."""
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
        """Return the current pods of the claims; a pod just delivered is not read again."""
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
        """Return the end report that replaces a claim, so that the pod is not left waiting."""
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
        """Write a run file: it tells the next agent that no other machine runs the attempt."""
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


class EndReporter:
    """The attempts of one node whose end the server does not show yet; owned by the agent's loop.

    Instants are monotonic milliseconds. Methods that ask the server raise StoreUnavailable.
    """

    def __init__(self, store: RedisStore, node: str, files: RunFiles, *, author: str) -> None:
        self._store = store
        self._node = node
        self._reports = ReportSender(store, node)
        self._attempts = Attempts(store.link, store.now_ms, node)
        self._files = files
        self._author = author
        #: When each end is to be reported, or reported again.
        self._due_at: dict[PodAttempt, int] = {}
        #: The outcomes reported for work-horses that left none in their run file.
        self._reported_outcomes: dict[PodAttempt, PodOutcome] = {}
        #: Attempts whose work-horses were children of this process, and were collected.
        self._seen_dead: set[PodAttempt] = set()
        #: Attempts whose output and result have been sent.
        self._sent: set[PodAttempt] = set()

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._due_at

    def __len__(self) -> int:
        return len(self._due_at)

    def attempts(self) -> frozenset[PodAttempt]:
        """Return the attempts whose end is not seen yet."""
        return frozenset(self._due_at)

    def ids(self) -> frozenset[str]:
        """Return `<pod>-<attempt>` of each attempt."""
        return frozenset(attempt.id for attempt in self._due_at)

    def note_posted(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Note that a work-horse has posted the end of its attempt."""
        self._due_at[attempt] = now_ms + REPEAT_MS

    def report_runs(self, runs: Sequence[RunFile], *, now_ms: int) -> None:
        """Report the ends of attempts that their work-horses handed over to this agent.

        Output and results are sent first, so that a reader who sees an end can read all of them. An
        end that cannot be reported now is due again, from its run file.
        """
        for run in runs:
            self._due_at[PodAttempt(run.pod, run.attempt)] = now_ms
        ends = []
        for run in runs:
            self._send_unsent(PodAttempt(run.pod, run.attempt), None)
            if run.outcome is not None:
                report = Ended(
                    pod=run.pod, attempt=run.attempt, outcome=run.outcome, author=self._author
                )
                ends.append(AttemptEnd(fact=report, result=run.result))
        if ends:
            self._attempts.end(ends)
        for run in runs:
            attempt = PodAttempt(run.pod, run.attempt)
            self._sent.add(attempt)
            self.note_posted(attempt, now_ms=now_ms)

    def note_death(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Note that a work-horse has ended without a report."""
        self._seen_dead.add(attempt)
        self.note_missing(attempt, now_ms=now_ms)

    def note_missing(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Note that an attempt should run here and does not."""
        self._due_at.setdefault(attempt, now_ms)

    def forget_seen(self) -> None:
        """Forget the attempts whose end the server shows, with all that was kept for them."""
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
            if is_current and attempt not in self._sent:
                self._send_unsent(attempt, self._files.read(attempt.pod, attempt.attempt))
        if over:
            self._attempts.end_leases([attempt.id for attempt in over])
        for attempt in over:
            self._forget(attempt)

    def due(self, *, now_ms: int) -> Sequence[PodAttempt]:
        """Return the attempts whose end is to be reported now, ordered by id."""
        found = [attempt for attempt, at in self._due_at.items() if at <= now_ms]
        return sorted(found, key=lambda one: one.id)

    def resolve(self, attempt: PodAttempt, *, now_ms: int) -> None:
        """Report the outcome in the run file, or a lost pod; a Bound pod may be started again.

        Call it only when the last of the attempt's processes is gone.
        """
        run = self._files.read(attempt.pod, attempt.attempt)
        outcome = (run.outcome if run else None) or self._reported_outcomes.get(attempt)
        pod = self._reports.current(attempt.pod, attempt.attempt)
        if pod is None or pod.status.phase not in ON_NODE:
            self._due_at.setdefault(attempt, now_ms)
            self.forget_seen()
        elif outcome is None and self._may_start(pod):
            self._forget(attempt)
        elif run is None and outcome is None and (left_ms := self._lease_left_ms(pod)) > 0:
            self._due_at[attempt] = now_ms + left_ms
        else:
            self._send_unsent(attempt, run)
            self.report_end(attempt, outcome or _lost(pod), now_ms=now_ms)

    def report_end(self, attempt: PodAttempt, outcome: PodOutcome, *, now_ms: int) -> None:
        """Report an end in place of the work-horse, and repeat the report until the end is seen."""
        self._reports.ended(attempt.pod, attempt.attempt, outcome, author=self._author)
        self._due_at[attempt] = now_ms + REPEAT_MS
        if attempt not in self._reported_outcomes:
            self._reported_outcomes[attempt] = outcome
            log.warning("pod ended for its work-horse", pod=attempt.pod, stopped=outcome.stopped)

    def renew_leases(self, attempts: Sequence[PodAttempt], *, lease_ms: int) -> None:
        """Renew the leases of attempts whose processes remain.

        Their pods have not ended, and an expired lease would end them.
        """
        for attempt in attempts:
            pod = self._reports.current(attempt.pod, attempt.attempt)
            if pod is not None and pod.status.phase == PodPhase.RUNNING:
                fence = fence_of(pod)
                self._store.renew(self._node, attempt.pod, attempt.attempt, fence, lease_ms)

    def reported_subjects(self) -> frozenset[str]:
        """Return the subjects of all ends that wait to be applied, the work-horses' included."""
        return frozenset(
            report.subject for report in self._reports.pending() if isinstance(report, Ended)
        )

    def _may_start(self, pod: Pod) -> bool:
        """Return whether a Bound pod may start: no start claim or end of it waits to be applied."""
        if pod.status.phase != PodPhase.BOUND or pod.status.terminating:
            return False
        subject = subject_of_pod(pod.metadata.uid, pod.status.attempt)
        left = [report for report in self._reports.pending() if report.subject == subject]
        return not any(isinstance(report, StartClaim | Ended) for report in left)

    def _lease_left_ms(self, pod: Pod) -> int:
        """Return for how many milliseconds another machine may run a pod that is unknown here.

        The node's former machine may be unreachable or paused; there the pod runs on until its
        lease is about to expire.
        """
        uid, number = pod.metadata.uid, pod.status.attempt
        if pod.status.phase != PodPhase.RUNNING or PodAttempt(uid, number) in self._seen_dead:
            return 0
        leases = leases_of(self._store.alive.read([self._node]))
        return leases.get((self._node, uid, number), 0) - self._store.now_ms()

    def _forget(self, attempt: PodAttempt) -> None:
        self._due_at.pop(attempt, None)
        self._reported_outcomes.pop(attempt, None)
        self._seen_dead.discard(attempt)
        self._sent.discard(attempt)
        self._files.forget(attempt.pod, attempt.attempt)

    def _send_unsent(self, attempt: PodAttempt, run: RunFile | None) -> None:
        """Send the output and the result that a work-horse could not send."""
        uid, number = attempt.pod, attempt.attempt
        send_unsent(
            self._files.unsent_file(uid, number),
            lambda stream, data: self._store.append_log(self._node, uid, number, stream, data),
        )
        if run is not None and run.result is not None:
            self._store.put_result(self._node, uid, number, run.result)


def _lost(pod: Pod) -> PodOutcome:
    if pod.status.phase == PodPhase.BOUND and pod.status.terminating:
        return PodOutcome(stopped=pod.status.reason)
    return LOST


class Resync:
    """Reports to a restarted or restored server what runs on the node; owned by the agent's loop.

    Methods that ask the server raise StoreUnavailable.
    """

    def __init__(self, store: RedisStore, node: str, files: RunFiles, *, agent: str) -> None:
        self._store = store
        self._node = node
        self._reports = ReportSender(store, node)
        self._files = files
        self._agent = agent
        #: The run id of the server that knows everything that runs here.
        self.known_to = ""
        #: When each attempt was last reported; its work-horse waits until that report is applied.
        self._reported_at: dict[PodAttempt, int] = {}

    def answer(self, run: str, horses: Sequence[tuple[PodAttempt, int]]) -> bool:
        """Report what the server with this run id does not know; return whether it knows all.

        `horses`: each attempt that runs here, and the pid of its work-horse.
        """
        if run != self.known_to:
            unknown = self._unknown(horses)
            now_ms = monotonic_ms()
            for attempt, horse in unknown:
                if now_ms >= self._reported_at.get(attempt, -REPEAT_MS) + REPEAT_MS:
                    self._reported_at[attempt] = now_ms
                    self._post_runs(attempt, horse)
            if not unknown:
                self.known_to = run
                self._reported_at.clear()
        return run == self.known_to

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
        """Return whether the attempt's command runs.

        An attempt that is still being claimed starts nothing before the server knows of it.
        """
        run = self._files.read(attempt.pod, attempt.attempt)
        return run is not None and run.group != 0 and run.outcome is None

    def _knows(self, pod: Object | None, attempt: PodAttempt) -> bool:
        if not isinstance(pod, Pod):
            return False
        status = pod.status
        is_ours = status.node == self._node and status.attempt == attempt.attempt
        return is_ours and status.phase == PodPhase.RUNNING

    def _post_runs(self, attempt: PodAttempt, horse: int) -> None:
        run = self._files.read(attempt.pod, attempt.attempt)
        if run is not None:
            author = author_of(self._agent, horse)
            self._reports.post(
                Runs(
                    pod=attempt.pod,
                    attempt=attempt.attempt,
                    author=author,
                    started_at=run.started_at,
                )
            )
