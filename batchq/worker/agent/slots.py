"""Runs many RQ work-horses at once from one process.

RQ's worker runs one job at a time. A `Slot` is such a worker whose steps are driven from outside;
`Slots` owns one for each running pod, with one connection and no thread. It keeps only as much of
RQ's own bookkeeping as is needed to hand over jobs and to see which workers live.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import msgspec
from msgspec import Struct, structs
from rq import Queue, Worker
from rq.exceptions import DeserializationError, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import current_timestamp, now
from rq.worker_registration import (
    REDIS_WORKER_KEYS,
    WORKERS_BY_QUEUE_KEY,
    clean_worker_registry,
    register,
)

from batchq.api.lifecycle import ON_NODE
from batchq.api.node_report import PodAttempt
from batchq.api.notation import SECOND
from batchq.api.objects import Pod
from batchq.store import keys, records
from batchq.store.link import is_wrong_type
from batchq.store.rq_link import RqLink
from batchq.system import structlog
from batchq.worker.agent.messages import DisownPod, StopPod, VouchFor
from batchq.worker.host import processes
from batchq.worker.host.processes import Signals
from batchq.worker.rq_delivery import (
    FoundJobs,
    NoAlarm,
    NotOurs,
    PodJob,
    add_reads,
    attempt_of_id,
    enqueue,
    is_id,
    node_queue,
    read_answers,
)
from batchq.worker.workhorse.inner_commands import InnerOrder
from batchq.worker.workhorse.leases import OwnServer, Voucher, VoucherTable
from batchq.worker.workhorse.reporter import monotonic_ms
from batchq.worker.workhorse.run_pod import Harness, NotEnded, order_of, serve
from batchq.worker.workhorse.supervision import KILL_SIGNAL, STOP_SIGNAL, WAKE_SIGNAL

log = structlog.get_logger(__name__)

#: batchq logs decisions where they take effect, so RQ's own log is not needed.
logging.getLogger("rq").setLevel(logging.CRITICAL)
for _name in ("rq.worker", "rq.queue", "rq.job", "rq.registry"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

#: RQ forgets a worker a minute after it has been silent for this long.
_WORKER_TTL_S = 90
HEARTBEAT_S = 30

#: Many times the pods that a node can take.
_MOST_IDS = 50_000

#: Damaged keys that are named in one report, for each cause.
_MOST_NOTED = 20

#: A member of RQ's sets of workers: the key of a worker.
_OF_A_WORKER = re.compile(re.escape(Worker.redis_worker_namespace_prefix.encode()) + rb"[!-~]+")

#: The signals that an agent sends to its work-horses.
_TO_HORSES = (STOP_SIGNAL, KILL_SIGNAL, WAKE_SIGNAL)

#: An idle work-horse ends after this time.
IDLE_MS = 1 * SECOND


class HorseUpdate(Struct, frozen=True, kw_only=True):
    """What happened to a work-horse, and the attempt it finished, if any."""

    attempt: PodAttempt | None = None
    exit_code: int = 0
    #: Descriptors that have been closed.
    gone: tuple[int, ...] = ()


class Slot(Worker):
    """An RQ worker for one pod at a time, driven by `Slots`.

    RQ forks the work-horses. RQ's records about each of them have no reader, so the work-horse only
    runs its pod.
    """

    job_class = PodJob
    death_penalty_class = NoAlarm
    harness: Harness
    #: The work-horse's end of its control socket.
    control: socket.socket
    #: The agent's ends of all control sockets, and its own. The child closes its copies: an open
    #: one would hide from the other work-horses that the agent is gone.
    others: list[socket.socket]

    def _set_connection(self, connection: Any) -> Any:
        """Keep the connection's timeouts, which RQ would raise for blocking calls; a slot makes
        none.
        """
        return connection

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Run the work-horse in the child process, and never return into the agent's loop."""
        exit_code = 1
        try:
            for other in self.others:
                other.close()
            signals = self._prepare()
            serve(self.harness, signals, self.control)
            exit_code = 0
        except NotEnded as trouble:
            log.error("pod left to the agent", rq_job=job.id, why=str(trouble))
        except Exception as error:  # anything: the agent must hear of it and continue
            log.exception("work-horse failed", rq_job=job.id, error=str(error))
        finally:
            os._exit(exit_code)

    def _prepare(self) -> Signals:
        signals = Signals(*_TO_HORSES)
        signals.install()
        # A handler instead of SIG_IGN, because the pod's command would inherit an ignored signal.
        signal.signal(signal.SIGINT, _ignore_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_HORSES)
        assert self.pid is not None
        processes.die_with_parent(KILL_SIGNAL, self.pid)
        processes.adopt_orphans()
        return signals


def _fields(record: Any) -> dict[bytes, bytes]:
    """Return the fields of a record as HMGET answers it. Raise ValueError if it is not a hash."""
    if isinstance(record, Exception):
        raise ValueError("its record is not a hash") from record
    data, origin = record
    found = {b"data": data, b"origin": origin}
    return {name: value for name, value in found.items() if value is not None}


def _is_over(job_id: str, pod: Pod | None) -> bool:
    if pod is None or pod.status.phase not in ON_NODE:
        return True
    return job_id != PodAttempt(pod.metadata.uid, pod.status.attempt).id


def _begin(voucher: Voucher | None, harness: Harness) -> None:
    if voucher is not None:
        voucher.begin(asked_at=harness.start.lease_from, now_ms=monotonic_ms())


def _ignore_interrupt(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: Ctrl-C is handled by the agent."""


class Horse:
    """A work-horse of this agent, idle or with an attempt; owned by `Slots`."""

    def __init__(
        self, slot: Slot, control: socket.socket, attempt: PodAttempt, voucher: Voucher | None
    ) -> None:
        self.slot = slot
        self.control = control
        self.voucher = voucher
        self.pid = slot.horse_pid
        self.pidfd = os.pidfd_open(self.pid)
        self.attempt: PodAttempt | None = attempt
        #: What an idle work-horse was sent, and whether it ended without having read it.
        self.order: tuple[PodJob, Harness] | None = None
        self.left_order_unread = False
        self.idle_since = 0

    def descriptors(self) -> tuple[int, int]:
        """Return the descriptors that become readable at its end, and when it is idle."""
        return self.pidfd, self.control.fileno()

    def is_ready(self) -> bool:
        """Return whether it has announced the end of its pod, and so is ready for another."""
        try:
            return bool(self.control.recv(1))
        except ConnectionResetError:
            # Linux answers so if the other end was closed with an unread message in it.
            self.left_order_unread = True
        except OSError:
            pass
        return False

    def close(self) -> None:
        os.close(self.pidfd)
        self.control.close()


class Slots:
    """The work-horses of one node; owned by the agent's loop.

    A work-horse whose pod has ended takes the next one, because a fork costs more than a short pod.
    """

    def __init__(
        self,
        link: RqLink,
        node: str,
        *,
        prefix: str,
        most: int = 0,
        own_sockets: Callable[[], Sequence[socket.socket]] = lambda: (),
    ) -> None:
        """`most`: how many work-horses the agent vouches for at once. `own_sockets` returns what
        the agent has open and work-horses must not have.
        """
        self._own_sockets = own_sockets
        self._link = link
        self._vouchers = VoucherTable(most)
        self._node = node
        self._queue = node_queue(node, link)
        self._prefix = prefix
        self._made = 0
        self._free: list[Slot] = []
        #: Each work-horse under both of its descriptors.
        self._horses: dict[int, Horse] = {}
        #: Orders that were sent to work-horses which were killed before they read them.
        self._unread: list[tuple[PodJob, Harness]] = []
        #: What is wrong with keys of this node, and the names of these keys; see `take_spoiled`.
        self._spoiled: dict[str, list[str]] = {}
        #: RQ's records of jobs that are handled; they are removed with the next request.
        self._handled: list[str] = []
        #: The same of jobs that came along with notifications, and are in the queue still.
        self._arrived: list[str] = []

    def _all_horses(self) -> list[Horse]:
        return [horse for place, horse in self._horses.items() if place == horse.pidfd]

    def _idle(self) -> list[Horse]:
        return [horse for horse in self._all_horses() if horse.attempt is None]

    def attempts(self) -> frozenset[PodAttempt]:
        """Return the attempts that run now."""
        return frozenset(one.attempt for one in self._all_horses() if one.attempt is not None)

    def horses(self) -> frozenset[int]:
        """Return the pids of the work-horses, idle ones included."""
        return frozenset(horse.pid for horse in self._all_horses())

    def send(self, sent: signal.Signals) -> None:
        """Send a signal to every work-horse."""
        for horse in self._all_horses():
            os.kill(horse.pid, sent)

    def note(self, server: OwnServer | None, *, now_ms: int) -> None:
        """Tell all work-horses that the agent's loop runs, and which process the server is."""
        self._vouchers.tick(now_ms, server)

    def silent(self, *, since_ms: int) -> frozenset[PodAttempt]:
        """Return the attempts whose work-horses have given no sign of life since then."""
        return frozenset(
            attempt for attempt, one in self._vouched().items() if one.seen_at < since_ms
        )

    def pass_on(self, instruction: VouchFor | StopPod | DisownPod) -> None:
        """Tell work-horses what the server says of their attempts.

        An attempt without a voucher hears it from the server itself.
        """
        vouched = self._vouched()
        match instruction:
            case VouchFor(attempts, asked_at):
                for attempt in attempts:
                    if attempt in vouched:
                        vouched[attempt].renew(asked_at=asked_at)
            case StopPod(attempt, reason):
                if attempt in vouched and not vouched[attempt].stop_reason:
                    vouched[attempt].stop(reason)
                    self._wake(attempt)
            case DisownPod(attempt):
                if attempt in vouched and not vouched[attempt].is_disowned:
                    vouched[attempt].disown()
                    self._wake(attempt)

    def hand_over(self, attempt: PodAttempt, order: InnerOrder, descriptors: Sequence[int]) -> bool:
        """Have the work-horse of an attempt run a command beside the pod's own, with these
        descriptors; return False if it has none.
        """
        message = msgspec.json.encode(order)
        for horse in self._all_horses():
            if horse.attempt == attempt:
                with suppress(OSError):
                    socket.send_fds(horse.control, [message], descriptors)
                    # It has read the order to run the pod; what it may leave unread is this one.
                    horse.order = None
                    return True
        return False

    def _wake(self, attempt: PodAttempt) -> None:
        for horse in self._all_horses():
            if horse.attempt == attempt:
                os.kill(horse.pid, WAKE_SIGNAL)

    def _vouched(self) -> dict[PodAttempt, Voucher]:
        return {
            horse.attempt: horse.voucher
            for horse in self._all_horses()
            if horse.attempt is not None and horse.voucher is not None
        }

    def take(self, most: int, announced: Sequence[bytes] = ()) -> tuple[list[PodJob], bool]:
        """Take up to `most` RQ jobs from the queue; return them, and whether more are left.

        What is `announced` is read in the same request; all other jobs take one more. Drop jobs
        that are no pod's attempt. Raise StoreUnavailable; the jobs taken by then are enqueued again
        later.
        """
        with self._link.errors():
            taken, has_more, found = self._dequeue(most, announced)
            jobs = [job for job in self._read(taken, found) if self._is_pod(job)]
        return jobs, has_more

    def note_arrived(self, arrived: Mapping[bytes, bytes]) -> list[PodJob]:
        """Return the jobs that came along with notifications, with their pods. The next request
        removes them from the queue.
        """
        jobs: list[PodJob] = []
        for name, pod in arrived.items():
            if (attempt := attempt_of_id(name)) is None:
                continue
            job = PodJob(attempt.id, connection=self._queue.connection)
            job.pod, job.arrived = pod, attempt
            jobs.append(job)
            self._arrived.append(job.id)
        return jobs

    def take_spoiled(self) -> list[str]:
        """Return and clear what was found under this node's keys that batchq never writes there;
        nothing if nothing was found since the last call.
        """
        spoiled, self._spoiled = self._spoiled, {}
        return [f"{why}: {', '.join(names)}" for why, names in spoiled.items()]

    def _note_spoiled(self, name: str, why: str) -> None:
        """Note why a key is damaged; `name` is RQ's or batchq's."""
        names = self._spoiled.setdefault(why, [])
        key = self._link.connection.of(self._node).key(name)
        if key not in names and len(names) < _MOST_NOTED:
            names.append(key)

    def _is_pod(self, job: PodJob) -> bool:
        try:
            job.requested_attempt()
        except NotOurs as wrong:
            log.error("foreign rq job refused", rq_job=job.id, why=str(wrong))
            self._note_spoiled(PodJob.key_for(job.id), f"an RQ job: {wrong}")
            self._refuse(job, str(wrong))
            return False
        self._handled.append(job.id)
        return True

    def launch(self, job: PodJob, harness: Harness) -> tuple[int, ...]:
        """Have an idle work-horse or a new one run the job; return the new descriptors to poll.

        Raise StoreUnavailable, only before anything has been forked.
        """
        order = order_of(harness)
        for horse in reversed(self._idle()):
            # If it has died, or the order is too large for a message, another work-horse runs the
            # job.
            with suppress(OSError):
                _begin(horse.voucher, harness)
                horse.control.send(order)
                horse.attempt, horse.order = harness.start.attempt, (job, harness)
                return ()
        return self._fork(job, harness)

    def _fork(self, job: PodJob, harness: Harness) -> tuple[int, ...]:
        with self._link.errors():
            slot = self._free.pop() if self._free else self._make()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        voucher = self._vouchers.take()
        _begin(voucher, harness)
        slot.harness, slot.control = structs.replace(harness, voucher=voucher), theirs
        controls = [horse.control for horse in self._all_horses()]
        slot.others = [ours, *controls, *self._own_sockets()]
        # Signals to the child wait until it has its own handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _TO_HORSES)
        try:
            slot.fork_work_horse(job, self._queue)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_HORSES)
        theirs.close()
        slot.others = []
        horse = Horse(slot, ours, harness.start.attempt, voucher)
        self._horses |= dict.fromkeys(horse.descriptors(), horse)
        return horse.descriptors()

    def knows(self, descriptor: int) -> bool:
        """Return whether this is the descriptor of a work-horse that is still open."""
        return descriptor in self._horses

    def handle(self, descriptor: int, *, now_ms: int) -> HorseUpdate:
        """Handle a readable descriptor, and return what happened to its work-horse."""
        horse = self._horses[descriptor]
        if descriptor == horse.pidfd:
            return self._reap(horse)
        if not horse.is_ready():
            # It has closed its control socket and is about to end.
            del self._horses[descriptor]
            return HorseUpdate(gone=(descriptor,))
        attempt, horse.attempt, horse.order = horse.attempt, None, None
        horse.idle_since = now_ms
        return HorseUpdate(attempt=attempt)

    def _reap(self, horse: Horse) -> HorseUpdate:
        """Collect a work-horse that has ended. Its exit code is negative if a signal killed it."""
        # None if a debugger holds the process; the agent does not wait for it.
        wait_status = processes.collect(horse.pid)
        if wait_status is None:
            wait_status = int(signal.SIGKILL)
        # It may have announced the end of its pod before it ended.
        has_ended_well = horse.is_ready()
        gone = tuple(one for one in horse.descriptors() if self._horses.pop(one, None))
        horse.close()
        self._free.append(horse.slot)
        if horse.voucher is not None:
            horse.voucher.give_back()
        if horse.order is not None and horse.left_order_unread:
            # It was killed while idle, so the pod it was sent has not started.
            self._unread.append(horse.order)
            return HorseUpdate(gone=gone)
        exit_code = 0 if has_ended_well else os.waitstatus_to_exitcode(wait_status)
        return HorseUpdate(attempt=horse.attempt, exit_code=exit_code, gone=gone)

    def launch_unread(self) -> list[int]:
        """Have other work-horses run the unread orders of killed ones; return new descriptors.

        Call it only after all readable descriptors were handled: a new descriptor may have the
        number of a closed one, and would be taken for it.
        """
        orders, self._unread = self._unread, []
        return [descriptor for order in orders for descriptor in self._fork(*order)]

    def end_idle(self, *, now_ms: int, after_ms: int = IDLE_MS) -> None:
        """End the work-horses that have been idle for `after_ms`."""
        for horse in self._idle():
            if now_ms - horse.idle_since >= after_ms:
                with suppress(OSError):
                    horse.control.shutdown(socket.SHUT_WR)

    def heartbeat(self) -> None:
        """Tell RQ that all slots live. Raise StoreUnavailable."""
        with self._link.errors():
            pipeline = self._queue.connection.pipeline(transaction=False)
            for slot in self._all():
                slot.heartbeat(pipeline=pipeline)
            self._add_expiry(pipeline)
            pipeline.execute()

    def _add_expiry(self, pipeline: Any) -> None:
        """Let all RQ keys of this node expire, long after the agent is gone."""
        if self._link.is_apart:
            for name in self._keys():
                pipeline.expire(name, keys.RQ_TTL_S)

    def _expire_keys(self) -> None:
        pipeline = self._queue.connection.pipeline(transaction=False)
        self._add_expiry(pipeline)
        pipeline.execute()

    def _keys(self) -> dict[str, str]:
        """Return RQ's lists, sets and registries for this node, each with its Redis type."""
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
        """Remove expired entries from RQ's registries of this queue. Raise StoreUnavailable.

        RQ's own clean-up would ask for the job of each entry: it is for jobs that RQ runs.
        """
        with self._link.errors():
            self._remove_foreign_members()
            # Those of pods that run for long, while the node has no free slot to fill.
            self._remove(self._arrived)
            self._arrived = []
            pipeline = self._queue.connection.pipeline(transaction=False)
            for name, type_ in self._keys().items():
                if type_ == "zset":
                    pipeline.zremrangebyscore(name, 0, current_timestamp())
            pipeline.execute()
            clean_worker_registry(self._queue)

    def _remove_foreign_members(self) -> None:
        """Remove from RQ's sets and registries of this queue what RQ would not have added: RQ
        decodes each member, and asks the server for the key of each worker.
        """
        connection = self._queue.connection
        for name, type_ in self._keys().items():
            if type_ == "set":
                members = cast("list[bytes]", connection.srandmember(name, _MOST_IDS + 1))
                foreign = [one for one in members if not _OF_A_WORKER.fullmatch(one)]
            elif type_ == "zset":
                members = cast("list[bytes]", connection.zrange(name, 0, _MOST_IDS))
                foreign = [one for one in members if not is_id(one)]
            else:
                continue
            if self._is_endless(name, members):
                continue
            remove = connection.srem if type_ == "set" else connection.zrem
            if foreign:
                first = repr(foreign[0][:80])
                log.error(
                    "foreign rq members removed", rq_key=name, count=len(foreign), first=first
                )
                self._note_spoiled(name, "a malformed member")
                remove(name, *foreign)
        # One of the sets may have been taken out.
        for slot in self._all():
            register(slot)

    def _is_endless(self, name: str, members: Sequence[bytes]) -> bool:
        """Return whether a key has more members than a node can have pods; delete it then.

        What is bound to this node is enqueued again, and its slots register again.
        """
        if len(members) <= _MOST_IDS:
            return False
        log.error("endless rq key taken out", rq_key=name)
        self._note_spoiled(name, f"more than {_MOST_IDS:,} entries")
        self._queue.connection.delete(name)
        return True

    def enqueue_missing(self, attempts: Sequence[PodAttempt]) -> list[PodAttempt]:
        """Enqueue the attempts that are neither queued nor running, and return those.

        A job in RQ's intermediate list that does not run was dropped between two steps of an agent
        that died; its record is removed here, because nothing else would. Raise StoreUnavailable.
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
        """Remove RQ's records of jobs that will not run, and unregister the slots as RQ workers.

        The node may never come back; a new agent enqueues again what is bound to it. Raise
        StoreUnavailable.
        """
        with self._link.errors():
            self._remove(self._handled + self._arrived + self._stale())
            for slot in self._all():
                slot.register_death()  # type: ignore[no-untyped-call]  # RQ has no annotations

    def _stale(self) -> list[str]:
        """Return the jobs of this queue whose attempt is not bound any more."""
        queue = self._queue
        job_ids = [*self._ids_in(queue.key), *self._ids_in(queue.intermediate_queue_key)]
        pods = self._stored_pods(job_ids)
        return [job_id for job_id, pod in zip(job_ids, pods, strict=True) if _is_over(job_id, pod)]

    def _ids_in(self, key: str) -> list[str]:
        """Return the job ids in a list of this queue, and remove entries that are not ids. A list
        with more entries than a node can have pods is deleted.
        """
        connection = self._queue.connection
        entries = cast("list[bytes]", connection.lrange(key, 0, _MOST_IDS))
        if self._is_endless(key, entries):
            return []
        for entry in {entry for entry in entries if not is_id(entry)}:
            log.error("foreign rq job refused", rq_job=repr(entry[:80]), why="its id is malformed")
            self._note_spoiled(key, "a malformed id")
            connection.lrem(key, 0, entry)  # type: ignore[arg-type]  # any bytes will do
        return [entry.decode() for entry in entries if is_id(entry)]

    def _stored_pods(self, job_ids: Sequence[str]) -> list[Pod | None]:
        """Return each job's pod from the store; None if it is missing or unreadable."""
        if not job_ids:
            return []
        uids = [job_id.rpartition("-")[0] for job_id in job_ids]
        stored = self._queue.connection.hmget(keys.objects("Pod"), uids)
        return [records.pod_if_readable(one) for one in cast("list[bytes | None]", stored)]

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

    def _dequeue(self, most: int, announced: Sequence[bytes]) -> tuple[list[str], bool, FoundJobs]:
        """Return the ids of the next RQ jobs, whether more are left, and what the announced jobs
        are.

        The same request removes handled records. From here until its start claim is posted, a job
        is in RQ's intermediate list or in no list: if the agent dies meanwhile, the pod stays Bound
        and is enqueued again.
        """
        queue, handled, arrived = self._queue, self._handled, self._arrived
        pipeline = queue.connection.pipeline(transaction=False)
        for job_id in handled:
            pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
        for job_id in arrived:
            pipeline.lrem(queue.key, 1, job_id)
        if done := handled + arrived:
            pipeline.delete(*map(PodJob.key_for, done))
        for _ in range(most):
            pipeline.lmove(queue.key, queue.intermediate_queue_key)
        pipeline.expire(queue.intermediate_queue_key, keys.RQ_TTL_S)
        pipeline.lrange(queue.key, 0, 0)
        names = [one.decode() for one in dict.fromkeys(announced) if is_id(one)]
        past = len(pipeline)
        add_reads(pipeline, names)
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers[:past]:
            if isinstance(answer, Exception):
                raise answer
        *taken, _, left = answers[past - most - 2 : past]
        found = read_answers(names, answers[past:])
        self._handled, self._arrived = [], []
        ids = [job_id.decode() for job_id in taken if job_id is not None and is_id(job_id)]
        if any(job_id is not None and not is_id(job_id) for job_id in taken):
            self._ids_in(queue.intermediate_queue_key)
        return ids, bool(left), found

    def _read(self, ids: Sequence[str], found: FoundJobs) -> list[PodJob]:
        """Return the RQ jobs with these ids and their pods; `found` has some of them already. A job
        that was delivered twice counts once.
        """
        names = list(dict.fromkeys(ids))
        unread = [job_id for job_id in names if job_id not in found]
        if unread:
            pipeline = self._queue.connection.pipeline(transaction=False)
            add_reads(pipeline, unread)
            found |= read_answers(unread, pipeline.execute(raise_on_error=False))
        jobs: list[PodJob] = []
        for job_id in names:
            record, pod = found[job_id]
            job = PodJob(job_id, connection=self._queue.connection)
            # RQ's check of a serializer takes four times as long as all else of a job.
            job.serializer = JSONSerializer
            try:
                job.restore(_fields(record))
                job.pod = pod
                jobs.append(job)
                continue
            except NoSuchJobError:
                # Either delivered twice and already handled, or a job of unknown origin.
                pass
            except (DeserializationError, ValueError, TypeError, LookupError) as wrong:
                log.error("foreign rq job refused", rq_job=job_id, why=str(wrong))
                self._note_spoiled(PodJob.key_for(job_id), f"an RQ job: {wrong}")
            self._handled.append(job_id)
        # The extra copies of jobs that were in the list more than once.
        self._handled += (Counter(ids) - Counter(names)).elements()
        return jobs

    def delete_damaged(self, *, of_node: bool = False) -> list[str]:
        """Delete this node's RQ keys that have the wrong type, and return their names.

        `of_node`: also delete batchq's own keys of the node. A leader repairs and reports only
        those of nodes that it knows. Raise StoreUnavailable.
        """
        queue, node, types = self._queue, self._node, self._keys()
        if of_node:
            types |= {
                keys.alive(node): "hash",
                keys.report_queue(node): "hash",
                keys.wake_up_channel(node): "stream",
                keys.exec_requests(node): "stream",
            }
        with self._link.errors():
            pipeline = queue.connection.pipeline(transaction=False)
            for name, type_ in types.items():
                match type_:
                    case "set":
                        pipeline.srandmember(name)
                    case "list":
                        pipeline.lrange(name, 0, 0)
                    case "hash":
                        pipeline.hget(name, "")
                    case "stream":
                        pipeline.xrevrange(name, count=1)
                    case _:
                        pipeline.zrange(name, 0, 0)
            answers = pipeline.execute(raise_on_error=False)
            damaged = [
                name
                for name, answer in zip(types, answers, strict=True)
                if isinstance(answer, Exception) and is_wrong_type(answer)
            ]
            if damaged:
                log.error("keys of another type taken out", keys=damaged)
                for name in damaged:
                    self._note_spoiled(name, "the wrong type")
                queue.connection.delete(*damaged)
        return damaged

    def _refuse(self, job: PodJob, why: str) -> None:
        slot = self._free[-1] if self._free else self._make()
        if slot not in self._free:
            self._free.append(slot)
        job.ended_at = now()
        slot.handle_job_failure(job, self._queue, exc_string=f"refused: {why}")
        self._queue.intermediate_queue.remove(job.id)
        self._expire_keys()

    def _make(self) -> Slot:
        """Return a new slot. Its name is unique to this process, so that RQ refuses no restart."""
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
        slot.register_birth()  # type: ignore[no-untyped-call]  # RQ has no annotations
        self._expire_keys()
        return slot


class Paused:
    """How long each work-horse of one agent has been stopped; owned by the agent's loop."""

    def __init__(self, *, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._since: dict[int, int] = {}

    def overdue(self, stopped: Collection[int], *, now_ms: int) -> list[int]:
        """Return the pids that have been stopped for too long, of all pids that are stopped now.

        Each is returned once. The time of a process that continued in between starts again.
        """
        self._since = {pid: self._since.get(pid, now_ms) for pid in sorted(stopped)}
        found = [pid for pid, at in self._since.items() if now_ms - at >= self._patience_ms]
        for pid in found:
            del self._since[pid]
        return found
