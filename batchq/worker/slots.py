"""Many RQ work-horses at once out of one process.

RQ's worker runs one job at a time. A `Slot` is such a worker whose steps are driven from outside;
`Slots` owns as many as there are pods running, with one connection and no thread, and reuses RQ's
own bookkeeping for what a work-horse starts, finishes, or fails to finish.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Container
from types import TracebackType
from typing import Any

import structlog
from msgspec import Struct
from rq import Queue, Worker
from rq.exceptions import DeserializationError
from rq.job import Job
from rq.registry import clean_registries
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker_registration import clean_worker_registry

from batchq.errors import StoreUnavailable
from batchq.store.outage import Outage
from batchq.store.rq_link import RqLink
from batchq.worker import prctl
from batchq.worker.entry import HARNESS, Harness
from batchq.worker.nodequeue import NoAlarm, NotOurs, PodAttempt, PodJob, enqueue, node_queue
from batchq.worker.signals import Signals
from batchq.worker.supervise import KILL_SIGNAL, STOP_SIGNAL

log = structlog.get_logger(__name__)

#: RQ tells its own story line by line; ours is told where decisions take effect.
logging.getLogger("rq").setLevel(logging.CRITICAL)
for _name in ("rq.worker", "rq.queue", "rq.job", "rq.registry"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

#: RQ forgets a worker that has not been heard of for this long, and a minute.
_WORKER_TTL_S = 90
HEARTBEAT_S = 30


class Slot(Worker):
    """An RQ worker for one pod at a time, driven by `Slots`."""

    job_class = PodJob
    death_penalty_class = NoAlarm
    harness: Harness
    reaped: tuple[int | None, int | None, Any] = (None, None, None)

    def _set_connection(self, connection: Any) -> Any:
        """RQ would raise the timeouts for its blocking calls; a slot makes none."""
        return connection

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        return self.reaped

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """In the child: nothing may return from here into the agent's loop."""
        try:
            self._put_on(self.harness)
            super().main_work_horse(job, queue)
        finally:
            os._exit(1)

    def setup_work_horse_signals(self) -> None:
        """Done in `_put_on`, where no signal can be missed."""

    def _put_on(self, harness: Harness) -> None:
        signals = Signals(STOP_SIGNAL, KILL_SIGNAL)
        signals.install()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL, KILL_SIGNAL})
        assert self.pid is not None
        prctl.die_with_parent(KILL_SIGNAL, self.pid)
        prctl.adopt_orphans()
        HARNESS.set((harness, signals))


class Running(Struct, frozen=True):
    """A pod's attempt in a work-horse of this agent."""

    attempt: PodAttempt
    job: PodJob
    slot: Slot
    horse: int
    pidfd: int


class Slots:
    """The work-horses of one node; owned by the agent's loop."""

    def __init__(self, link: RqLink, node: str, *, prefix: str, bound: int, outage: Outage) -> None:
        self._link = link
        self._outage = outage
        self._queue = node_queue(node, link)
        self._prefix = prefix
        self._bound = bound
        self._made = 0
        self._free: list[Slot] = []
        self._running: dict[int, Running] = {}

    # --- what runs ------------------------------------------------------------------------

    def attempts(self) -> frozenset[PodAttempt]:
        """What runs now."""
        return frozenset(running.attempt for running in self._running.values())

    def horses(self) -> frozenset[int]:
        """The pids of the work-horses."""
        return frozenset(running.horse for running in self._running.values())

    def horses_by_attempt(self) -> tuple[tuple[PodAttempt, int], ...]:
        """What runs now, each with the pid of its work-horse."""
        return tuple((running.attempt, running.horse) for running in self._running.values())

    def pidfds(self) -> tuple[int, ...]:
        """One for each work-horse, readable when it has ended."""
        return tuple(self._running)

    def has_room(self) -> bool:
        """Whether one more may run."""
        return len(self._running) < self._bound

    def send(self, sent: signal.Signals) -> None:
        """A signal to every work-horse."""
        for running in self._running.values():
            os.kill(running.horse, sent)

    # --- from the queue to a work-horse -----------------------------------------------------

    def next(self, *, ended: Container[PodAttempt] = ()) -> PodJob | None:
        """Take the next RQ job off the queue; None if there is none.

        What is no pod's attempt, runs already or is one of `ended`, is dropped. Raises
        StoreUnavailable.
        """
        with self._link.errors():
            while True:
                job = self._dequeue()
                if job is None:
                    return None
                try:
                    attempt = job.asks_for()
                except NotOurs as wrong:
                    log.error("foreign rq job refused", rq_job=job.id, why=str(wrong))
                    self._refuse(job, str(wrong))
                    continue
                if attempt not in self.attempts() and attempt not in ended:
                    return job
                log.info("pod delivered twice", pod=attempt.pod, attempt=attempt.attempt)
                self._queue.intermediate_queue.remove(job.id)
                if attempt not in self.attempts():
                    # Of one that runs the record is kept until its end; of this nobody else's.
                    self._queue.connection.delete(PodJob.key_for(job.id))

    def launch(self, job: PodJob, harness: Harness) -> int:
        """Fork a work-horse for it; its pidfd. Raises StoreUnavailable before it has forked."""
        with self._link.errors():
            slot = self._free.pop() if self._free else self._make()
            slot.prepare_execution(job)
        slot.harness = harness
        job.started_at = now()
        # Until the child has its own handlers, a signal to it must wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL, KILL_SIGNAL})
        try:
            slot.fork_work_horse(job, self._queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL, KILL_SIGNAL})
        pidfd = os.pidfd_open(slot.horse_pid)
        self._running[pidfd] = Running(job.asks_for(), job, slot, slot.horse_pid, pidfd)
        return pidfd

    def reap(self, pidfd: int) -> tuple[PodAttempt, int]:
        """Collect a work-horse that has ended: its attempt and exit code, negative if killed."""
        running = self._running.pop(pidfd)
        slot = running.slot
        _, wait_status, usage = os.wait4(running.horse, 0)
        os.close(pidfd)
        slot.reaped = (running.horse, wait_status, usage)
        try:
            with self._link.errors():
                slot.monitor_work_horse(running.job, self._queue)
                slot.set_state("idle")
        except StoreUnavailable as trouble:
            # RQ's records of it expire by themselves; the slot's may not be used again.
            self._outage.failed(trouble)
        else:
            self._free.append(slot)
        return running.attempt, os.waitstatus_to_exitcode(wait_status)

    # --- upkeep ----------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Tell RQ that everything lives. Raises StoreUnavailable."""
        with self._link.errors():
            for running in self._running.values():
                running.slot.maintain_heartbeats(running.job)
            for slot in self._free:
                slot.heartbeat()

    def clean(self) -> None:
        """Keep RQ's registries of this queue clean. Raises StoreUnavailable."""
        with self._link.errors():
            clean_registries(self._queue)
            clean_worker_registry(self._queue)

    def hand_in(self, attempts: list[PodAttempt]) -> list[PodAttempt]:
        """Enqueue those that are neither in the queue nor running; which those were.

        Whatever stands in RQ's intermediate list and does not run was dropped between two steps
        of an agent that died; nobody else would ever take its record away. Raises StoreUnavailable.
        """
        with self._link.errors():
            queued = set(self._queue.get_job_ids())
            running = {attempt.id for attempt in self.attempts()}
            stuck = self._queue.intermediate_queue.get_job_ids()
            for job_id in stuck:
                if job_id not in running:
                    self._queue.intermediate_queue.remove(job_id)
                    if job_id not in queued:
                        self._queue.connection.delete(PodJob.key_for(job_id))
            lost = [one for one in attempts if one.id not in queued and one.id not in running]
            enqueue(self._queue, lost)
        return lost

    def close(self) -> None:
        """Take the slots off RQ's list of workers. Raises StoreUnavailable."""
        with self._link.errors():
            for slot in [*self._free, *(running.slot for running in self._running.values())]:
                slot.register_death()  # type: ignore[no-untyped-call]  # RQ has none

    def _dequeue(self) -> PodJob | None:
        try:
            taken = Queue.dequeue_any(
                [self._queue],
                None,
                connection=self._queue.connection,
                job_class=PodJob,
                serializer=JSONSerializer,
                death_penalty_class=NoAlarm,
            )
        except (DeserializationError, ValueError, TypeError, LookupError) as wrong:
            log.error("foreign rq job refused", why=str(wrong))
            return None
        if taken is None:
            return None
        job, _ = taken
        assert isinstance(job, PodJob)
        return job

    def _refuse(self, job: PodJob, why: str) -> None:
        slot = self._free[-1] if self._free else self._make()
        if slot not in self._free:
            self._free.append(slot)
        job.ended_at = now()
        slot.handle_job_failure(job, self._queue, exc_string=f"refused: {why}")
        self._queue.intermediate_queue.remove(job.id)

    def _make(self) -> Slot:
        """One more slot; its name is new for every process, so that no restart is refused."""
        slot = Slot(
            [self._queue],
            name=f"{self._prefix}.{self._made}",
            connection=self._queue.connection,
            serializer=JSONSerializer,
            job_class=PodJob,
            worker_ttl=_WORKER_TTL_S,
            job_monitoring_interval=HEARTBEAT_S,
            log_job_description=False,
            prepare_for_work=False,
            exception_handlers=[_tell],
        )
        self._made += 1
        slot.hostname, slot.pid, slot.ip_address = socket.gethostname(), os.getpid(), "unknown"
        slot.register_birth()  # type: ignore[no-untyped-call]  # RQ has none
        return slot


def _tell(job: Job, kind: type[BaseException], error: BaseException, _: TracebackType) -> bool:
    """In the work-horse: run_pod raised. RQ's own handlers are not asked."""
    log.error("work-horse failed", rq_job=job.id, kind=kind.__name__, error=str(error))
    return False
