"""The agent: it makes this machine a Node and runs the pods that are bound to it.

One process, one thread, one loop: take attempts off the node's RQ queue, fork a work-horse for
each, collect the ones that have ended, and now and then tell the server that the node lives, hand
in again what RQ lost, and report what died without a word.

    SIGTERM or SIGINT   drain: nothing new is bound here; what runs may end within the drain
                        timeout, then it is stopped with its grace (NodeLost)
    a second one        at once
"""

from __future__ import annotations

import gc
import re
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from time import time

import structlog
from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod, Taint
from batchq.api.reasons import Leaving
from batchq.api.times import DAY, HOUR, SECOND
from batchq.errors import StoreUnavailable
from batchq.store.connect import open_when_up
from batchq.store.rq_link import RqLink
from batchq.worker import prctl
from batchq.worker.chores import Chores
from batchq.worker.detect import detect_resources, gpu_indices
from batchq.worker.entry import Harness
from batchq.worker.gpus import GpuShares
from batchq.worker.leftovers import sweep
from batchq.worker.messenger import monotonic_ms
from batchq.worker.node import Membership, NodeOffer, own_identity
from batchq.worker.nodequeue import PodAttempt, PodJob
from batchq.worker.outcome import LOST, Outcome
from batchq.worker.process import child_pids, kill_children, reap_orphans
from batchq.worker.report import current, report
from batchq.worker.runfile import RunFiles
from batchq.worker.signals import Signals
from batchq.worker.slots import HEARTBEAT_S, Slots
from batchq.worker.supervise import KILL_SIGNAL, STOP_SIGNAL
from batchq.worker.unsent import send_kept

log = structlog.get_logger(__name__)

#: Between two looks at an empty queue.
_IDLE_FIRST_MS, _IDLE_MOST_MS = 2, 50
_LAUNCHES_PER_TURN = 8
_RECONCILE_MS = 10 * SECOND
#: A Bound pod may be this old before it is held for lost by RQ; then it is handed in again.
_BOUND_PATIENCE_MS = 10 * SECOND
_RQ_CLEAN_MS = 60 * SECOND
_SETTLE_MS = 1 * SECOND
_ORPHANS_MS = 5 * SECOND
_AWAY_MS = 1 * SECOND
#: A work-horse that ends its pod at once, and reports that to a slow server, needs less.
_END_MS = 90 * SECOND
_LOGS_KEPT_MS = 7 * DAY
#: `<group uid>-<admission>-<ordinal>-<attempt>.log`; the daemons' own logs may lie beside them.
_POD_LOG = re.compile(r"[a-z0-9]+(-[0-9]+){3}\.log(\.1)?")

_UNSTARTED = Outcome(stopped=Leaving.NODE_LOST, message="its agent stopped before it started")


class AgentSettings(Struct, frozen=True, kw_only=True):
    """How a machine takes part.

    `resources` None: what is detected, in integer units (cpu milli, memory bytes, others
    thousandths). `home`: logs go to `home/logs`, records of what runs to `home/run/<node>`.
    `slots` bounds how many pods run at once, whatever is bound.
    """

    node: str
    url: str
    home: Path
    resources: dict[str, int] | None = None
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    slots: int = 256
    beat_s: float = 5.0
    lease_ms: int = 30_000
    drain_timeout_s: float = 30.0


class Agent:
    """One node's agent. `run` once; it owns the process's signals and children."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        home = settings.home.resolve()
        self._log_dir = home / "logs"
        self._run_dir = home / "run" / settings.node
        self._files = RunFiles(self._run_dir)
        self._identity = own_identity()
        self._signals = Signals(signal.SIGTERM, signal.SIGINT)
        self._poll = select.poll()
        self._idle_ms = _IDLE_FIRST_MS
        self._away_until = 0
        #: Attempts whose work-horse has ended and whose run file says there is something to report.
        self._unsettled: set[PodAttempt] = set()
        self._draining_since: int | None = None
        self._is_withdrawn = False
        self._sent: set[signal.Signals] = set()

    def run(self) -> int:
        """Until a signal has drained it; the exit code.

        Waits for a server that does not answer yet. Raises Conflict if another agent serves the
        node, UsageError where the system is not Linux.
        """
        prctl.require()
        self._signals.install()
        store = open_when_up(self._settings.url, pause=self._pause)
        if store is None:
            self._signals.close()
            return 0
        self._store = store
        self._link = RqLink(self._settings.url)
        try:
            self._begin()
            try:
                self._loop()
            finally:
                self._end()
        finally:
            self._signals.close()
            self._files.release()
            self._link.close()
            self._store.close()
        return 0

    def _pause(self, seconds: float) -> bool:
        """Whether no signal has come meanwhile."""
        self._signals.wait(seconds)
        return not self._signals_seen()

    def _signals_seen(self) -> int:
        return self._signals.count(signal.SIGTERM) + self._signals.count(signal.SIGINT)

    # --- beginning and end ------------------------------------------------------------------

    def _begin(self) -> None:
        settings = self._settings
        resources = settings.resources if settings.resources is not None else detect_resources()
        self._gpus = GpuShares(gpu_indices(settings.resources))
        offer = NodeOffer(
            name=settings.node, resources=resources, labels=settings.labels, taints=settings.taints
        )
        beat_ms = round(settings.beat_s * SECOND)
        self._member = Membership(self._store, offer, identity=self._identity, beat_ms=beat_ms)
        self._member.refuse_if_served()
        self._files.occupy()
        self._strangers = child_pids()
        prctl.adopt_orphans()
        self._poll.register(self._signals.fileno(), select.POLLIN)
        self._slots = Slots(
            self._link,
            settings.node,
            prefix=f"bq-{self._identity.replace(':', '.')}-{settings.node}",
            bound=settings.slots,
        )
        sweep(self._run_dir, self._files.all())
        for run in list(self._files.all()):
            self._settle(PodAttempt(run.pod, run.attempt))
        self._reconcile(bound_patience_ms=0)
        self._member.register()
        self._chores = Chores(
            {
                self._beat: beat_ms,
                self._settle_all: _SETTLE_MS,
                self._reconcile: _RECONCILE_MS,
                self._collect_orphans: _ORPHANS_MS,
                self._rq_heartbeat: HEARTBEAT_S * SECOND,
                self._rq_clean: _RQ_CLEAN_MS,
                self._prune_logs: HOUR,
            },
            now_ms=monotonic_ms(),
        )
        # Collecting garbage would write to every page that the work-horses share with this process.
        gc.collect()
        gc.freeze()
        log.info("agent started", node=settings.node, agent=self._identity)

    def _end(self) -> None:
        """Whatever happened, no work-horse outlives the loop; the rest is a courtesy."""
        self._slots.send(KILL_SIGNAL)
        give_up_at = monotonic_ms() + _END_MS
        while self._slots.pidfds():
            self._hear(_AWAY_MS)
            if monotonic_ms() >= give_up_at:
                self._slots.send(signal.SIGKILL)
        try:
            self._settle_all()
            self._withdraw()
            self._slots.close()
        except StoreUnavailable as trouble:
            log.warning("agent left unannounced", trouble=trouble.message)
        log.info("agent stopped", node=self._settings.node)

    # --- the loop ---------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._is_done():
            self._take_on()
            self._hear(self._pause_ms())
            self._chores.do(now_ms=monotonic_ms())
            self._drain()

    def _pause_ms(self) -> int:
        now_ms = monotonic_ms()
        if self._draining_since is not None or now_ms < self._away_until:
            due = min(now_ms + _AWAY_MS // 4, self._chores.next_due_at())
        else:
            due = min(now_ms + self._idle_ms, self._chores.next_due_at())
        return max(0, due - now_ms)

    def _take_on(self) -> None:
        """Start what is bound here, a few at a time, so that ends are seen, too."""
        if self._draining_since is not None or monotonic_ms() < self._away_until:
            return
        try:
            for _ in range(_LAUNCHES_PER_TURN):
                job = self._slots.next() if self._slots.has_room() else None
                if job is None:
                    self._idle_ms = min(2 * self._idle_ms, _IDLE_MOST_MS)
                    return
                self._launch(job)
                self._idle_ms = _IDLE_FIRST_MS
        except StoreUnavailable as trouble:
            log.warning("queue not read", trouble=trouble.message)
            self._away_until = monotonic_ms() + _AWAY_MS

    def _launch(self, job: PodJob) -> None:
        attempt = job.asks_for()
        pod = current(self._store, attempt.pod, attempt.attempt)
        harness = Harness(
            url=self._settings.url,
            node=self._settings.node,
            agent=self._identity,
            run_dir=self._run_dir,
            log_dir=self._log_dir,
            lease_ms=self._settings.lease_ms,
            gpus=self._gpus.take(attempt.id, pod.spec.requests if pod else {}),
        )
        try:
            pidfd = self._slots.launch(job, harness)
        except StoreUnavailable:
            self._gpus.give_back(attempt.id)
            raise
        self._poll.register(pidfd, select.POLLIN)

    def _hear(self, wait_ms: int) -> None:
        for descriptor, _ in self._poll.poll(wait_ms):
            if descriptor == self._signals.fileno():
                self._signals.clear()
                continue
            self._poll.unregister(descriptor)
            attempt, exit_code = self._slots.reap(descriptor)
            self._gpus.give_back(attempt.id)
            self._idle_ms = _IDLE_FIRST_MS
            if exit_code or self._files.read(attempt.pod, attempt.attempt) is not None:
                log.warning("work-horse left a pod", pod=attempt.pod, exit_code=exit_code)
                self._unsettled.add(attempt)

    # --- drain ------------------------------------------------------------------------------

    def _drain(self) -> None:
        asked = self._signals_seen()
        if not asked:
            return
        now_ms = monotonic_ms()
        if self._draining_since is None:
            self._draining_since = now_ms
            log.info("agent drains", node=self._settings.node, pods=len(self._slots.attempts()))
            self._chores.add(self._withdraw, _SETTLE_MS, now_ms=now_ms)
        if asked > 1:
            self._send_once(KILL_SIGNAL)
        elif now_ms >= self._draining_since + self._settings.drain_timeout_s * SECOND:
            self._send_once(STOP_SIGNAL)

    def _send_once(self, sent: signal.Signals) -> None:
        if sent not in self._sent:
            self._sent.add(sent)
            self._slots.send(sent)

    def _is_done(self) -> bool:
        return self._draining_since is not None and not self._slots.pidfds()

    def _withdraw(self) -> None:
        """Have nothing new bound here, and give back what was bound and has not started."""
        if not self._is_withdrawn:
            self._member.withdraw()
            self._is_withdrawn = True
        running = self._slots.attempts()
        for pod in self._pods_here():
            attempt = _attempt_of(pod)
            if pod.status.phase == PodPhase.BOUND and attempt not in running:
                self._report(attempt, _UNSTARTED)

    # --- chores -----------------------------------------------------------------------------

    def _beat(self) -> None:
        self._member.keep(ready=self._draining_since is None)

    def _settle_all(self) -> None:
        """Report what work-horses could not; never before the last of their processes is gone."""
        if not self._unsettled:
            return
        left = kill_children(keep=self._slots.horses() | self._strangers, within_s=1.0)
        if left:
            log.error("processes cannot be killed", pids=left)
            return
        for attempt in sorted(self._unsettled, key=lambda one: one.id):
            self._settle(attempt)
            self._unsettled.discard(attempt)

    def _settle(self, attempt: PodAttempt) -> None:
        """Report what the run file says, or that the pod is lost; Bound pods may start anew."""
        run = self._files.read(attempt.pod, attempt.attempt)
        outcome = run.outcome if run else None
        pod = current(self._store, attempt.pod, attempt.attempt)
        if outcome is None and pod is not None and pod.status.phase == PodPhase.BOUND:
            if pod.status.terminating:
                self._report(attempt, Outcome(stopped=pod.status.reason))
        else:
            if pod is not None:
                self._send_unsent(attempt)
            self._report(attempt, outcome or LOST)
        self._files.forget(attempt.pod, attempt.attempt)

    def _send_unsent(self, attempt: PodAttempt) -> None:
        """The output that its work-horse could not send."""
        send_kept(
            self._files.unsent_file(attempt.pod, attempt.attempt),
            lambda stream, data: self._store.append_log(attempt.pod, attempt.attempt, stream, data),
        )

    def _reconcile(self, *, bound_patience_ms: int = _BOUND_PATIENCE_MS) -> None:
        """Compare what the store says runs or waits here with what does."""
        waiting: list[PodAttempt] = []
        now_ms = self._store.now_ms()
        pods = list(self._pods_here())
        running = self._slots.attempts()
        for pod in pods:
            attempt = _attempt_of(pod)
            if attempt in running or attempt in self._unsettled:
                continue
            if pod.status.phase == PodPhase.RUNNING:
                self._unsettled.add(attempt)
            elif pod.status.terminating:
                self._report(attempt, Outcome(stopped=pod.status.reason))
            elif now_ms - (pod.status.bound_at or 0) >= bound_patience_ms:
                waiting.append(attempt)
        if self._draining_since is None:
            for attempt in self._slots.hand_in(waiting):
                log.warning("pod handed in again", pod=attempt.pod, attempt=attempt.attempt)

    def _pods_here(self) -> Iterator[Pod]:
        for pod in self._store.list("Pod"):
            if (
                isinstance(pod, Pod)
                and pod.status.node == self._settings.node
                and pod.status.phase in ON_NODE
            ):
                yield pod

    def _report(self, attempt: PodAttempt, outcome: Outcome) -> None:
        ours = report(
            self._store,
            attempt.pod,
            attempt.attempt,
            outcome,
            author=self._identity,
            now_ms=self._store.now_ms(),
        )
        if ours:
            log.warning("pod ended for its work-horse", pod=attempt.pod, stopped=outcome.stopped)

    def _collect_orphans(self) -> None:
        reap_orphans(keep=self._slots.horses() | self._strangers)

    def _rq_heartbeat(self) -> None:
        self._slots.heartbeat()

    def _rq_clean(self) -> None:
        self._slots.clean()

    def _prune_logs(self) -> None:
        """Local files of output go when the store's copy goes."""
        oldest = time() - _LOGS_KEPT_MS / SECOND
        for path in self._log_dir.glob("*.log*"):
            try:
                if _POD_LOG.fullmatch(path.name) and path.lstat().st_mtime < oldest:
                    path.unlink()
            except OSError as trouble:
                log.warning("log file not removed", path=str(path), trouble=str(trouble))


def _attempt_of(pod: Pod) -> PodAttempt:
    return PodAttempt(pod.metadata.uid, pod.status.attempt)
