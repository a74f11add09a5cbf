"""Many RQ work-horses at once out of one process.

RQ's worker runs one job at a time. A `Slot` is such a worker whose steps are driven from outside;
`Slots` owns as many as there are pods running, with one connection and no thread. Of RQ's own
bookkeeping there is what is needed to hand jobs over, and to see which workers live.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Collection, Container, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import structlog
from msgspec import Struct
from rq import Queue, Worker
from rq.exceptions import DeserializationError, NoSuchJobError
from rq.job import Job
from rq.registry import clean_registries
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY, clean_worker_registry

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod
from batchq.api.times import SECOND
from batchq.store import codec, keys
from batchq.store.link import is_wrong_type
from batchq.store.rq_link import RqLink
from batchq.worker.host import processes
from batchq.worker.host.processes import Signals
from batchq.worker.rq.delivery import (
    NoAlarm,
    NotOurs,
    PodAttempt,
    PodJob,
    enqueue,
    is_id,
    node_queue,
)
from batchq.worker.workhorse.run_pod import Harness, NotEnded, order_of, serve
from batchq.worker.workhorse.supervision import KILL_SIGNAL, STOP_SIGNAL

log = structlog.get_logger(__name__)

#: RQ tells its own story line by line; ours is told where decisions take effect.
logging.getLogger("rq").setLevel(logging.CRITICAL)
for _name in ("rq.worker", "rq.queue", "rq.job", "rq.registry"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

#: RQ forgets a worker that has not been heard of for this long, and a minute.
_WORKER_TTL_S = 90
HEARTBEAT_S = 30


#: A work-horse that has had nothing to do for so long ends.
IDLE_MS = 1 * SECOND


class Heard(Struct, frozen=True, kw_only=True):
    """What has become of a work-horse, and of its pod's attempt, if it has ended."""

    attempt: PodAttempt | None = None
    exit_code: int = 0
    #: Descriptors that are closed by now.
    gone: tuple[int, ...] = ()


class Slot(Worker):
    """An RQ worker for one pod at a time, driven by `Slots`.

    RQ forks its work-horses; what it would write down about each of them nobody reads, so the
    work-horse runs its pod and no more.
    """

    job_class = PodJob
    death_penalty_class = NoAlarm
    harness: Harness
    #: The work-horse's end of what `Reins` holds.
    reins: socket.socket
    #: Of all work-horses, the agent's ends; a copy of one would hide that the agent is gone.
    others: list[socket.socket]

    def _set_connection(self, connection: Any) -> Any:
        """RQ would raise the timeouts for its blocking calls; a slot makes none."""
        return connection

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """In the child: nothing may return from here into the agent's loop."""
        exit_code = 1
        try:
            for other in self.others:
                other.close()
            signals = self._put_on()
            serve(self.harness, signals, self.reins)
            exit_code = 0
        except NotEnded as trouble:
            log.error("pod left to the agent", rq_job=job.id, why=str(trouble))
        except Exception as error:  # whatever it is, the agent must hear of it, and go on alone
            log.exception("work-horse failed", rq_job=job.id, error=str(error))
        finally:
            os._exit(exit_code)

    def _put_on(self) -> Signals:
        signals = Signals(STOP_SIGNAL, KILL_SIGNAL)
        signals.install()
        # Heard and not ignored: what is ignored here would be ignored by the pod's command, too.
        signal.signal(signal.SIGINT, _not_ours)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL, KILL_SIGNAL})
        assert self.pid is not None
        processes.die_with_parent(KILL_SIGNAL, self.pid)
        processes.adopt_orphans()
        return signals


def _fields(record: Any) -> dict[bytes, bytes]:
    """Of a record as HMGET has it. Raises NoSuchJobError for what is no hash."""
    if isinstance(record, Exception):
        raise NoSuchJobError(str(record)[:80])
    data, origin = record
    found = {b"data": data, b"origin": origin}
    return {name: value for name, value in found.items() if value is not None}


def _is_over(job_id: str, pod: Pod | None) -> bool:
    if pod is None or pod.status.phase not in ON_NODE:
        return True
    return job_id != PodAttempt(pod.metadata.uid, pod.status.attempt).id


def _not_ours(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C is the agent's business."""


class Horse:
    """A work-horse of this agent: at a pod's attempt, or idle; owned by `Slots`."""

    def __init__(self, slot: Slot, reins: socket.socket, attempt: PodAttempt) -> None:
        self.slot = slot
        self.reins = reins
        self.pid = slot.horse_pid
        self.pidfd = os.pidfd_open(self.pid)
        self.attempt: PodAttempt | None = attempt
        #: What it was sent while it was idle, and whether it has ended without having read that.
        self.order: tuple[PodJob, Harness] | None = None
        self.has_left_order = False
        self.idle_since = 0

    def descriptors(self) -> tuple[int, int]:
        """What becomes readable: when it has ended, and when it is ready for another pod."""
        return self.pidfd, self.reins.fileno()

    def is_ready(self) -> bool:
        """Whether it has said that its pod has ended, and that it is ready for another."""
        try:
            return bool(self.reins.recv(1))
        except ConnectionResetError:
            # Linux says so when the other end was closed with something unread in it.
            self.has_left_order = True
        except OSError:
            pass
        return False

    def close(self) -> None:
        os.close(self.pidfd)
        self.reins.close()


class Slots:
    """The work-horses of one node; owned by the agent's loop.

    A work-horse whose pod has ended takes the next one: to fork costs more than a short pod.
    """

    def __init__(self, link: RqLink, node: str, *, prefix: str, bound: int) -> None:
        self._link = link
        self._queue = node_queue(node, link)
        self._prefix = prefix
        self._bound = bound
        self._made = 0
        self._free: list[Slot] = []
        #: By both of their descriptors.
        self._horses: dict[int, Horse] = {}
        #: What work-horses were sent that were killed before they read it.
        self._unread: list[tuple[PodJob, Harness]] = []
        #: What was found that batchq never leaves there: see `take_spoiled`.
        self._spoiled = ""
        #: RQ's records of jobs that are taken care of, to be removed with the next question.
        self._done_with: list[str] = []

    # --- what runs ------------------------------------------------------------------------

    def _all_horses(self) -> list[Horse]:
        return [horse for place, horse in self._horses.items() if place == horse.pidfd]

    def _idle(self) -> list[Horse]:
        return [horse for horse in self._all_horses() if horse.attempt is None]

    def attempts(self) -> frozenset[PodAttempt]:
        """What runs now."""
        return frozenset(one.attempt for one in self._all_horses() if one.attempt is not None)

    def horses(self) -> frozenset[int]:
        """The pids of the work-horses, idle ones included."""
        return frozenset(horse.pid for horse in self._all_horses())

    def horses_by_attempt(self) -> tuple[tuple[PodAttempt, int], ...]:
        """What runs now, each with the pid of its work-horse."""
        return tuple(
            (one.attempt, one.pid) for one in self._all_horses() if one.attempt is not None
        )

    def room(self, *, beside: int = 0) -> int:
        """How many more may run, `beside` so many that are about to."""
        return max(0, self._bound - len(self.attempts()) - beside)

    def send(self, sent: signal.Signals) -> None:
        """A signal to every work-horse."""
        for horse in self._all_horses():
            os.kill(horse.pid, sent)

    # --- from the queue to a work-horse -----------------------------------------------------

    def take(
        self,
        most: int,
        *,
        ended: Container[PodAttempt] = (),
        claimed: Container[PodAttempt] = (),
    ) -> tuple[list[PodJob], bool]:
        """Take up to so many RQ jobs off the queue; and whether there are more.

        What is no pod's attempt, runs already, or is one of `ended` or `claimed`, is dropped.
        Raises StoreUnavailable: what was taken by then is handed in again.
        """
        with self._link.errors():
            taken, are_more = self._dequeue(most)
            jobs = [job for job in self._read(taken) if self._is_to_run(job, ended, claimed)]
        return jobs, are_more

    def take_spoiled(self) -> str:
        """What was found under RQ's keys of this node since the last call that batchq never leaves
        there; empty if nothing was.
        """
        spoiled, self._spoiled = self._spoiled, ""
        return spoiled

    def _is_to_run(
        self, job: PodJob, ended: Container[PodAttempt], claimed: Container[PodAttempt]
    ) -> bool:
        try:
            attempt = job.asks_for()
        except NotOurs as wrong:
            log.error("foreign rq job refused", rq_job=job.id, why=str(wrong))
            self._spoiled = f"an RQ job: {wrong}"
            self._refuse(job, str(wrong))
            return False
        self._done_with.append(job.id)
        if not (attempt in self.attempts() or attempt in ended or attempt in claimed):
            return True
        log.info("pod delivered twice", pod=attempt.pod, attempt=attempt.attempt)
        return False

    def launch(self, job: PodJob, harness: Harness) -> tuple[int, ...]:
        """Have a work-horse run it, an idle one or a new one; the descriptors to wait for that are
        new. Raises StoreUnavailable before it has forked.
        """
        order = order_of(harness)
        for horse in reversed(self._idle()):
            # One that has died, or a pod that is too large for a message: others must see to it.
            with suppress(OSError):
                horse.reins.send(order)
                horse.attempt, horse.order = harness.claimed.attempt, (job, harness)
                return ()
        return self._fork(job, harness)

    def _fork(self, job: PodJob, harness: Harness) -> tuple[int, ...]:
        with self._link.errors():
            slot = self._free.pop() if self._free else self._make()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        slot.harness, slot.reins = harness, theirs
        slot.others = [ours, *(horse.reins for horse in self._all_horses())]
        # Until the child has its own handlers, a signal to it must wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL, KILL_SIGNAL})
        try:
            slot.fork_work_horse(job, self._queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL, KILL_SIGNAL})
        theirs.close()
        slot.others = []
        horse = Horse(slot, ours, harness.claimed.attempt)
        self._horses |= dict.fromkeys(horse.descriptors(), horse)
        return horse.descriptors()

    def knows(self, descriptor: int) -> bool:
        """Whether this is, still, a descriptor of a work-horse."""
        return descriptor in self._horses

    def hear(self, descriptor: int, *, now_ms: int) -> Heard:
        """What a descriptor that is readable has to say."""
        horse = self._horses[descriptor]
        if descriptor == horse.pidfd:
            return self._reap(horse)
        if not horse.is_ready():
            # It has let go of the reins, and is about to end.
            del self._horses[descriptor]
            return Heard(gone=(descriptor,))
        attempt, horse.attempt, horse.order = horse.attempt, None, None
        horse.idle_since = now_ms
        return Heard(attempt=attempt)

    def _reap(self, horse: Horse) -> Heard:
        """Collect one that has ended: its exit code is negative if it was killed."""
        # None if a debugger keeps it to itself; the agent does not stand still for that.
        wait_status = processes.collect(horse.pid)
        if wait_status is None:
            wait_status = int(signal.SIGKILL)
        # It may have said so before it ended.
        has_ended_well = horse.is_ready()
        gone = tuple(one for one in horse.descriptors() if self._horses.pop(one, None))
        horse.close()
        self._free.append(horse.slot)
        if horse.order is not None and horse.has_left_order:
            # It was killed while it was idle, and what it was to run has not begun.
            self._unread.append(horse.order)
            return Heard(gone=gone)
        exit_code = 0 if has_ended_well else os.waitstatus_to_exitcode(wait_status)
        return Heard(attempt=horse.attempt, exit_code=exit_code, gone=gone)

    def launch_unread(self) -> list[int]:
        """Have others run what work-horses had not read when they were killed; the descriptors to
        wait for that are new.

        Not before everybody who was to be heard has been: new descriptors may have the numbers of
        closed ones, and whoever listens to a work-horse that runs waits for its end.
        """
        orders, self._unread = self._unread, []
        return [descriptor for order in orders for descriptor in self._fork(*order)]

    def let_idle_go(self, *, now_ms: int, after_ms: int = IDLE_MS) -> None:
        """Those that have had nothing to do for so long end."""
        for horse in self._idle():
            if now_ms - horse.idle_since >= after_ms:
                with suppress(OSError):
                    horse.reins.shutdown(socket.SHUT_WR)

    # --- upkeep ----------------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Tell RQ that everything lives. Raises StoreUnavailable."""
        with self._link.errors():
            pipeline = self._queue.connection.pipeline(transaction=False)
            for slot in self._all():
                slot.heartbeat(pipeline=pipeline)
            self._keep(pipeline)
            pipeline.execute()

    def _keep(self, pipeline: Any) -> None:
        """Let all that RQ keeps of this node go by itself, long after its agent is gone."""
        if self._link.is_apart:
            for name in self._keys():
                pipeline.expire(name, keys.RQ_TTL_S)

    def _keep_all(self) -> None:
        pipeline = self._queue.connection.pipeline(transaction=False)
        self._keep(pipeline)
        pipeline.execute()

    def _keys(self) -> dict[str, str]:
        """RQ's lists, sets and registries for this node; each with the type that it is of."""
        queue = self._queue
        registries = (
            queue.started_job_registry,
            queue.finished_job_registry,
            queue.failed_job_registry,
            queue.deferred_job_registry,
        )
        return {
            REDIS_WORKER_KEYS: "set",
            WORKERS_BY_QUEUE_KEY % queue.name: "set",
            queue.key: "list",
            queue.intermediate_queue_key: "list",
            **{registry.key: "zset" for registry in registries},
        }

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
            queued = set(self._ids_in(self._queue.key))
            running = {attempt.id for attempt in self.attempts()}
            stuck = self._ids_in(self._queue.intermediate_queue_key)
            for job_id in stuck:
                if job_id not in running:
                    self._queue.intermediate_queue.remove(job_id)
                    if job_id not in queued:
                        self._queue.connection.delete(PodJob.key_for(job_id))
            lost = [one for one in attempts if one.id not in queued and one.id not in running]
            enqueue(self._queue, lost)
        return lost

    def close(self) -> None:
        """Remove RQ's records of what will not run any more, and take the slots off its list of
        workers. Raises StoreUnavailable.

        The node may never come back, and an agent that begins hands in again what is bound to it.
        """
        with self._link.errors():
            self._remove(self._done_with + self._stale())
            for slot in self._all():
                slot.register_death()  # type: ignore[no-untyped-call]  # RQ has none

    def _stale(self) -> list[str]:
        """The jobs of this queue whose attempt is not bound any more."""
        queue = self._queue
        job_ids = [*self._ids_in(queue.key), *self._ids_in(queue.intermediate_queue_key)]
        pods = self._stored_pods(job_ids)
        return [job_id for job_id, pod in zip(job_ids, pods, strict=True) if _is_over(job_id, pod)]

    def _ids_in(self, key: str) -> list[str]:
        """The ids in a list of this queue; what is none is taken out."""
        connection = self._queue.connection
        entries = cast("list[bytes]", connection.lrange(key, 0, -1))
        for entry in {entry for entry in entries if not is_id(entry)}:
            log.error("foreign rq job refused", rq_job=repr(entry[:80]), why="its id is none")
            self._spoiled = "an RQ job whose id is none"
            connection.lrem(key, 0, entry)  # type: ignore[arg-type]  # any bytes will do
        return [entry.decode() for entry in entries if is_id(entry)]

    def _stored_pods(self, job_ids: Sequence[str]) -> list[Pod | None]:
        """The pod of each job, as it stands in the store."""
        if not job_ids:
            return []
        uids = [job_id.rpartition("-")[0] for job_id in job_ids]
        stored = self._queue.connection.hmget(keys.objects("Pod"), uids)
        return [codec.pod_if_readable(one) for one in cast("list[bytes | None]", stored)]

    def _remove(self, job_ids: Sequence[str]) -> None:
        """Remove jobs and their records from both lists of the queue."""
        if not job_ids:
            return
        queue = self._queue
        pipeline = queue.connection.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.lrem(queue.key, 0, job_id)
            pipeline.lrem(queue.intermediate_queue_key, 0, job_id)
        pipeline.delete(*map(PodJob.key_for, job_ids))
        pipeline.execute()

    def _all(self) -> list[Slot]:
        return [*self._free, *(horse.slot for horse in self._all_horses())]

    def _dequeue(self, most: int) -> tuple[list[str], bool]:
        """The next RQ jobs' ids, and whether more are left; with the same question records that are
        done with are removed.

        From here until its claim is left a job stands in RQ's intermediate list, or nowhere:
        an agent that dies meanwhile leaves a Bound pod, which is handed in again.
        """
        queue, done_with = self._queue, self._done_with
        pipeline = queue.connection.pipeline(transaction=False)
        for job_id in done_with:
            pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
        if done_with:
            pipeline.delete(*map(PodJob.key_for, done_with))
        for _ in range(most):
            pipeline.lmove(queue.key, queue.intermediate_queue_key)
        pipeline.expire(queue.intermediate_queue_key, keys.RQ_TTL_S)
        pipeline.lrange(queue.key, 0, 0)
        *taken, _, left = pipeline.execute()[-most - 2 :]
        del self._done_with[: len(done_with)]
        ids = [job_id.decode() for job_id in taken if job_id is not None and is_id(job_id)]
        if any(job_id is not None and not is_id(job_id) for job_id in taken):
            self._ids_in(queue.intermediate_queue_key)
        return ids, bool(left)

    def _read(self, ids: Sequence[str]) -> list[PodJob]:
        """The RQ jobs with these ids, and their pods. One that is delivered twice is one."""
        names = list(dict.fromkeys(ids))
        if not names:
            return []
        pipeline = self._queue.connection.pipeline(transaction=False)
        for job_id in names:
            pipeline.hmget(PodJob.key_for(job_id), "data", "origin")
        pipeline.hmget(keys.objects("Pod"), [job_id.rpartition("-")[0] for job_id in names])
        *records, pods = pipeline.execute(raise_on_error=False)
        if isinstance(pods, Exception):
            # Whoever needs them asks for them, and says what is wrong.
            pods = [None] * len(names)
        jobs: list[PodJob] = []
        for job_id, record, pod in zip(names, records, pods, strict=True):
            job = PodJob(job_id, connection=self._queue.connection, serializer=JSONSerializer)
            try:
                job.restore(_fields(record))
                job.pod = pod
                jobs.append(job)
                continue
            except NoSuchJobError:
                # Delivered twice, and taken care of; or nobody knows what it was.
                pass
            except (DeserializationError, ValueError, TypeError, LookupError) as wrong:
                log.error("foreign rq job refused", rq_job=job_id, why=str(wrong))
                self._spoiled = f"an RQ job: {wrong}"
            self._done_with.append(job_id)
        # The other one of each that was there twice.
        self._done_with += (Counter(ids) - Counter(names)).elements()
        return jobs

    def take_out_damaged(self) -> list[str]:
        """Take out those of RQ's keys for this node that are of another type; which those were.

        Raises StoreUnavailable.
        """
        queue, types = self._queue, self._keys()
        with self._link.errors():
            pipeline = queue.connection.pipeline(transaction=False)
            for name, type_ in types.items():
                match type_:
                    case "set":
                        pipeline.srandmember(name)
                    case "list":
                        pipeline.lrange(name, 0, 0)
                    case _:
                        pipeline.zrange(name, 0, 0)
            answers = pipeline.execute(raise_on_error=False)
            damaged = [
                name
                for name, answer in zip(types, answers, strict=True)
                if isinstance(answer, Exception) and is_wrong_type(answer)
            ]
            if damaged:
                log.error("rq keys of another type taken out", keys=damaged)
                self._spoiled = f"{damaged[0]} of RQ's is of another type"
                queue.connection.delete(*damaged)
        return damaged

    def _refuse(self, job: PodJob, why: str) -> None:
        slot = self._free[-1] if self._free else self._make()
        if slot not in self._free:
            self._free.append(slot)
        job.ended_at = now()
        slot.handle_job_failure(job, self._queue, exc_string=f"refused: {why}")
        self._queue.intermediate_queue.remove(job.id)
        self._keep_all()

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
        )
        self._made += 1
        slot.hostname, slot.pid, slot.ip_address = socket.gethostname(), os.getpid(), "unknown"
        slot.register_birth()  # type: ignore[no-untyped-call]  # RQ has none
        self._keep_all()
        return slot


#: By a signal, and by a debugger.
_STOPPED = ("T", "t")


class Paused:
    """For how long the work-horses of one agent have been stopped; owned by the agent's loop."""

    def __init__(self, *, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._since: dict[int, int] = {}

    def overdue(self, stopped: Collection[int], *, now_ms: int) -> list[int]:
        """Those of the pids, all that are stopped now, that have been so for too long.

        They are told once. One that goes on in between is believed anew.
        """
        self._since = {pid: self._since.get(pid, now_ms) for pid in sorted(stopped)}
        found = [pid for pid, at in self._since.items() if now_ms - at >= self._patience_ms]
        for pid in found:
            del self._since[pid]
        return found


def stopped(pids: Collection[int]) -> list[int]:
    """Those of the processes that cannot go on by themselves."""
    return [pid for pid in pids if _state(pid) in _STOPPED]


def _state(pid: int) -> str:
    """The letter that Linux has for it; empty if there is no such process.

    Read without psutil, which opens three files where one will do: this is asked every second.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name before it is in brackets, and may hold brackets of its own.
    return stat.rpartition(") ")[2][:1]
