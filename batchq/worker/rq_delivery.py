"""A node's RQ queue, and the only kind of RQ job that a batchq worker runs.

RQ would import and call whatever function a job names, so everyone with write access to the server
could have any function called. Here the name is only compared, never imported, and callbacks,
webhooks, retries and dependencies that a job may carry are dropped when it is read.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from rq import Queue
from rq.exceptions import DeserializationError, NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty
from rq.utils import now, utcformat

from batchq.api.node_report import PodAttempt
from batchq.api.transaction import Delivery, Transaction
from batchq.errors import StoreUnavailable
from batchq.store import keys, records
from batchq.store.keys import RQ_TTL_S, node_of_rq
from batchq.store.link import Call, is_forbidden, is_wrong_type
from batchq.store.node_channels import (
    NODE_NOTIFICATIONS_KEPT,
    WakeReason,
    add_notifications,
    add_taking_out,
    check_notified,
)
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqConnection, RqLink
from batchq.system import structlog

RunPod = TypeVar("RunPod", bound=Callable[..., Any])

#: The function's name in RQ's records. It is stored, so it stays when the function moves.
ENTRY = "batchq.worker.entry.run_pod"

#: RQ's records are not the source of truth and have no reader, so they expire after a minute.
_RECORD_TTL_S = 60
_QUEUE_PREFIX = "bq-node-"
_KEY_OF_QUEUE = Queue.redis_queue_namespace_prefix
#: A pod's uid and a number are far shorter.
_MAX_PAYLOAD_BYTES = 16 * 1024
#: Of an attempt: Lua's numbers have no more.
_MOST_DIGITS = 16
_ID = re.compile(rb"[A-Za-z0-9_-]{1,200}")


class NotOurs(Exception):
    """The RQ job is not a pod's attempt."""


class DamagedKeys(Exception):
    """Some of RQ's keys have the wrong type; they hold nothing of value."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = tuple(names)


class NoAlarm(BaseDeathPenalty):
    """RQ's time limits, switched off: work-horse and scheduler limit a pod's time."""

    def setup_death_penalty(self) -> None:
        pass

    def cancel_death_penalty(self) -> None:
        pass


class _EntryPoint:
    """The function that a work-horse runs for a job.

    The module that defines the function registers it here, because this module must not import that
    one.
    """

    def __init__(self) -> None:
        self._function: Callable[..., Any] | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """Raise NotOurs in a process that is no work-horse."""
        if self._function is None:
            raise NotOurs("this process runs no pods")
        return self._function

    def register(self, function: RunPod) -> RunPod:
        """Have every job run this function."""
        self._function = function
        return function


entry_point = _EntryPoint()


class PodJob(Job):
    """An RQ job that can only be one attempt of a pod."""

    #: The pod's bytes in the store when the record was read; None if the pod was not read.
    pod: bytes | None = None
    #: The attempt of a job that came along with a notification, and has no record here.
    arrived: PodAttempt | None = None

    def restore(self, raw_data: Any) -> None:
        """Take the payload from the record, and nothing that would make RQ call or do more.

        A program with write access to RQ's keys may write anything there: RQ would parse dates,
        numbers and lists of any size, and decompress data of any length.

        Raise NoSuchJobError if the record has no payload, and ValueError if the payload is too
        large.
        """
        record = {bytes(name): value for name, value in dict(raw_data).items()}
        if b"data" not in record:
            raise NoSuchJobError(f"no payload in the record of {self.id}")
        self.data = _unpacked(record[b"data"])
        self.origin = record.get(b"origin", b"").decode(errors="replace")
        self.created_at = self.enqueued_at = now()
        self.timeout = -1
        self.result_ttl = self.failure_ttl = _RECORD_TTL_S

    def requested_attempt(self) -> PodAttempt:
        """Return the pod's attempt. Raise NotOurs."""
        if self.arrived is not None:
            return self.arrived
        try:
            name, arguments, keywords = self.func_name, self.args, self.kwargs
        except (DeserializationError, ValueError, RecursionError, TypeError):
            raise NotOurs("its payload cannot be read") from None
        if name != ENTRY:
            raise NotOurs(f"it names the function {str(name)[:80]!r}")
        match arguments:
            case [str(pod), int(attempt)] if not keywords and self.id == f"{pod}-{attempt}":
                return PodAttempt(pod, attempt)
        raise NotOurs("its arguments are not a pod and an attempt")

    @property
    def func(self) -> Callable[..., Any]:
        """The entry point, whatever the record says. Raise NotOurs."""
        self.requested_attempt()
        return entry_point.function


def _unpacked(data: bytes) -> bytes:
    """Return a payload, which RQ may have compressed. Raise ValueError if it is too long."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data[:_MAX_PAYLOAD_BYTES], _MAX_PAYLOAD_BYTES)
    except zlib.error:
        plain = data
    if len(data) > _MAX_PAYLOAD_BYTES or len(plain) >= _MAX_PAYLOAD_BYTES:
        raise ValueError(f"its payload is longer than {_MAX_PAYLOAD_BYTES} bytes")
    return plain


def is_id(job_id: bytes) -> bool:
    """Return whether an RQ job with this id may be a pod's attempt."""
    return _ID.fullmatch(job_id) is not None


def attempt_of_id(job_id: bytes) -> PodAttempt | None:
    """Return the attempt that a job's id names; None if it names none."""
    uid, _, number = job_id.decode(errors="replace").rpartition("-")
    is_attempt = is_id(job_id) and uid and number.isdecimal() and len(number) <= _MOST_DIGITS
    return PodAttempt(uid, int(number)) if is_attempt else None


#: The record and the pod of each job, as HMGET and HGET answer them.
FoundJobs: TypeAlias = dict[str, tuple[Any, bytes | None]]


def add_reads(pipeline: Any, job_ids: Sequence[str]) -> None:
    """Add the reads of jobs' records and pods to a pipeline."""
    for job_id in job_ids:
        pipeline.hmget(PodJob.key_for(job_id), "data", "origin")
    if job_ids:
        pipeline.hmget(keys.objects("Pod"), [job_id.rpartition("-")[0] for job_id in job_ids])


def read_answers(job_ids: Sequence[str], answers: Sequence[Any]) -> FoundJobs:
    """Return what answers `add_reads`."""
    if not job_ids:
        return {}
    *records, pods = answers
    if isinstance(pods, Exception):
        # The claim reads the pods again and reports the error.
        pods = [None] * len(job_ids)
    answered = zip(job_ids, records, pods, strict=True)
    return {job_id: (record, pod) for job_id, record, pod in answered}


def queue_name(node: str) -> str:
    """Return the name of a node's RQ queue."""
    return f"{_QUEUE_PREFIX}{node}"


def node_queue(node: str, link: RqLink) -> Queue:
    """Return a node's RQ queue, under the keys of that node."""
    return Queue(
        queue_name(node),
        connection=link.connection.of(node),
        job_class=PodJob,
        serializer=JSONSerializer,
        death_penalty_class=NoAlarm,
    )


def enqueue(queue: Queue, attempts: Iterable[PodAttempt]) -> None:
    """Enqueue attempts; one that is queued already is written once more, which is harmless."""
    enqueue_all({queue: list(attempts)})


def enqueue_all(
    attempts_of: Mapping[Queue, Sequence[PodAttempt]],
    *,
    notified: Sequence[str] = (),
    taken_out: Sequence[Delivery] = (),
) -> None:
    """Enqueue attempts in several queues of one connection, and notify nodes, in one round trip.

    The nodes in `notified` are notified. Each record is written before its id, so an interruption
    leaves only records, which are overwritten when the attempts are enqueued again. The deliveries
    in `taken_out` are removed from the outbox in the same transaction; a server that refuses writes
    refuses all of it.

    Raise DamagedKeys if keys have the wrong type.
    """
    wanted = {queue: attempts for queue, attempts in attempts_of.items() if attempts}
    if not wanted:
        return
    first = next(iter(wanted))
    pipeline = first.connection.pipeline(transaction=bool(taken_out))
    fields = _common_fields()
    for queue, attempts in wanted.items():
        of_queue = (*fields, "origin", queue.name)
        for attempt in attempts:
            own = ("data", _payload(attempt), "description", attempt.id)
            record = _key(queue, Job.key_for(attempt.id))
            pipeline.hset(record, items=[*of_queue, *own])
            pipeline.expire(record, RQ_TTL_S)
        waiting = _key(queue, queue.key)
        pipeline.rpush(waiting, *(attempt.id for attempt in attempts))
        pipeline.expire(waiting, RQ_TTL_S)
    add_taking_out(pipeline, taken_out)
    handing_over = len(pipeline)
    add_notifications(pipeline, notified, WakeReason.PODS)
    names = [str(options[0][1]) for options in pipeline.command_stack if len(options[0]) > 1]
    answers = pipeline.execute(raise_on_error=False)
    damaged = {
        name
        for name, answer in zip(names, answers[:handing_over], strict=False)
        if isinstance(answer, Exception) and is_wrong_type(answer)
    }
    if damaged:
        raise DamagedKeys(sorted(damaged))
    for answer in answers[:handing_over]:
        if isinstance(answer, Exception):
            raise answer
    check_notified(answers[handing_over:])


def _key(queue: Queue, name: str) -> str:
    """Return a key of a queue with the prefix of its node."""
    assert isinstance(queue.connection, RqConnection)
    return queue.connection.key(name)


def _common_fields() -> tuple[Any, ...]:
    """Return the fields and values that RQ would write for any attempt's job now."""
    instant = utcformat(now())
    return (*_lasting_fields(), "created_at", instant, "enqueued_at", instant)


@cache
def _lasting_fields() -> tuple[Any, ...]:
    """Return those that never change: listing them takes RQ longer than the rest of a delivery."""
    job = Job.create(
        ENTRY,
        id="any",
        args=[],
        # RQ insists on one, and lists the fields without it.
        connection=cast("Any", object()),
        serializer=JSONSerializer,
        status=JobStatus.QUEUED,
        timeout=-1,
        result_ttl=_RECORD_TTL_S,
        failure_ttl=_RECORD_TTL_S,
    )
    own = {"data", "description", "origin", "created_at", "enqueued_at"}
    return tuple(
        part
        for field, value in job.to_dict().items()
        if field not in own
        for part in (field, value)
    )


def _payload(attempt: PodAttempt) -> bytes:
    """Return the call as RQ's JSON serializer writes it; RQ reads it without compression, too."""
    written: bytes = JSONSerializer.dumps((ENTRY, None, [attempt.pod, attempt.attempt], {}))  # type: ignore[no-untyped-call]
    return written


def by_node(deliveries: Sequence[Delivery]) -> dict[str, list[Delivery]]:
    """Return the deliveries of each node in the order given, with the nodes ordered by name."""
    nodes: dict[str, list[Delivery]] = {}
    for delivery in sorted(deliveries, key=lambda delivery: delivery.node):
        nodes.setdefault(delivery.node, []).append(delivery)
    return nodes


log = structlog.get_logger(__name__)

#: How many deliveries go into one round trip: about 10 MB.
DELIVERIES_A_TRIP = 20_000
#: How many deliveries go into one transaction, which blocks the server meanwhile.
DELIVERIES_AT_ONCE = 100
#: How often to retry while another program keeps changing the type of a key.
_TRIES = 3


class Relay:
    """Delivers what waits in a store's outbox (`batchq.ports.Executor`)."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._link = RqLink(store.url)

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        """Enqueue the outbox, or what was `bound` just now; return how many deliveries.

        Delivering twice is harmless. Raise StoreUnavailable; what was enqueued by then may be
        enqueued again.
        """
        deliveries = self._store.outbox() if bound is None else bound
        for start in range(0, len(deliveries), DELIVERIES_A_TRIP):
            some = deliveries[start : start + DELIVERIES_A_TRIP]
            attempts_of = {
                node_queue(node, self._link): [PodAttempt(one.pod, one.attempt) for one in to_node]
                for node, to_node in by_node(some).items()
            }
            nodes = sorted({one.node for one in some})
            at_once = some if len(some) <= DELIVERIES_AT_ONCE else ()
            self._enqueue(attempts_of, nodes, at_once)
            if not at_once:
                self._store.delivered(some)
            log.info("pods delivered", nodes=len(attempts_of), pods=len(some))
        return len(deliveries)

    def calls(self, request: str, transactions: Sequence[Transaction]) -> list[Call]:
        """Return the call of `deliver.lua` that delivers what these transactions of a commit bind.

        None if they bind nothing, or more than one call may deliver.
        """
        bound = [
            (place, delivery)
            for place, one in enumerate(transactions, start=1)
            for delivery in one.deliveries
        ]
        if not 0 < len(bound) <= DELIVERIES_AT_ONCE:
            return []
        nodes = sorted({delivery.node for _, delivery in bound})
        queues = [queue_name(node) for node in nodes]
        names = [request, keys.OUTBOX, keys.objects("Pod")]
        for node, queue in zip(nodes, queues, strict=True):
            names += (self._key(node, _KEY_OF_QUEUE + queue), keys.wake_up_channel(node))
        fields = _common_fields()
        arguments: list[Any] = [NODE_NOTIFICATIONS_KEPT, keys.ALIVE_TTL_S, WakeReason.PODS]
        arguments += (RQ_TTL_S, len(nodes), len(fields))
        arguments += (*queues, *fields)
        for place, delivery in bound:
            attempt = PodAttempt(delivery.pod, delivery.attempt)
            names.append(self._key(delivery.node, Job.key_for(attempt.id)))
            arguments += (place, nodes.index(delivery.node) + 1, records.delivery_field(delivery))
            arguments += (attempt.id, _payload(attempt))
        return [(names, arguments)]

    def _key(self, node: str, name: str) -> str:
        """Return a key of RQ's with the prefix of a node."""
        return keys.of_rq(node, name) if self._link.is_apart else name

    def _enqueue(
        self,
        attempts_of: Mapping[Queue, Sequence[PodAttempt]],
        nodes: Sequence[str],
        taken_out: Sequence[Delivery],
    ) -> None:
        """Enqueue; delete keys that another program has given the wrong type, and retry."""
        has_moved = False
        for _ in range(_TRIES):
            try:
                with self._link.errors():
                    enqueue_all(attempts_of, notified=nodes, taken_out=taken_out)
                return
            except StoreUnavailable as trouble:
                if has_moved or not is_forbidden(trouble):
                    raise
                has_moved = True
                self._link.use_other_place()
            except DamagedKeys as damaged:
                log.error("rq keys of another type taken out", keys=damaged.names)
                for name in damaged.names:
                    self._store.link.suspect(node_of_rq(name), f"{name} is of another type")
                with self._link.errors():
                    self._link.connection.delete(*damaged.names)
        # The nodes' agents enqueue what is bound to them within seconds.
        log.error("pods not delivered", nodes=nodes)

    def asking_s(self, thread: int) -> float:
        """Return how long this thread has waited for RQ's connection; 0 if it does not wait."""
        return self._link.asking_s(thread)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
