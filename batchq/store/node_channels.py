"""Report queues of nodes, wake-up channels, and batches of attempts.

A node writes its own report queue and notifies the leader on a channel that all nodes share. It
posts by plain commands or by a script that names only these keys and its own: a server asks for
write permission on every key that a script names. A newer report on a subject replaces an older
one. The leader applies reports and removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import chain
from typing import Any, cast

from msgspec import Struct
from redis import exceptions as broken
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from batchq.api.node_report import Ended, NodeReport, StartClaim, decode, encode
from batchq.api.notation import shown, subdomain_problem
from batchq.api.objects import Pod, PodGroup
from batchq.api.transaction import Delivery
from batchq.errors import StoreUnavailable
from batchq.store import keys, records, scripts
from batchq.store.direct import NOTHING, forget_idle, read_arrived
from batchq.store.link import (
    ANSWER_TIMEOUT_S,
    LONGEST_BLOCK_MS,
    OTHER_TYPE,
    AddCall,
    Call,
    Link,
    close_client,
    is_wrong_type,
    new_client,
)
from batchq.store.liveness import Renewal, renewal_of
from batchq.store.records import (
    DAMAGE,
    name_of,
    read_record,
    reason_of,
)

LEADER_NOTIFICATIONS_KEPT = 1_000
#: No report is longer than this.
MOST_REPORT_BYTES = 64 * 1024
#: Bounds of one call of a script: report queues, reports, and approximate bytes, read or cleared.
INBOXES_A_CALL = 100
REPORTS_A_CALL = 5_000
BYTES_A_CALL = 1024 * 1024
#: Approximate bytes of pods that one call reads with its reports.
POD_BYTES_A_CALL = 1024 * 1024
#: Calls in one round trip: its answer is at most about 32 MiB.
CALLS_A_LOOK = 32
#: Report queues that are read together with a wait for notifications.
READ_AHEAD = 8

SUPERSEDED = "superseded"
UNREADABLE = "unreadable"


class QueuedReport(Struct, frozen=True, kw_only=True):
    """A report in a node's queue. `raw` is its stored form, which identifies it for removal.

    `pod` is the report's pod when the report was read; None if it did not exist or was not read.
    """

    node: str
    subject: str
    report: NodeReport
    raw: bytes
    pod: Pod | None = None


class AcknowledgedReport(Struct, frozen=True, kw_only=True):
    """A report to be removed once a transaction has been applied.

    `notifies`: its node waits for the acknowledgement and is notified.
    """

    entry: QueuedReport
    notifies: bool = False


class ReportQueues:
    """All report queues of one server, and the leader's wake-up channel.

    `notified` remembers its place in the channel, and `look_through` which nodes are busy, so
    only one thread calls these and `look`; the rest is thread-safe. Every method raises
    StoreUnavailable.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        # From the oldest entry kept: notifications sent without a leader are read now.
        self._last_id = "0-0"
        #: The nodes whose queues had reports at the last look, a few of them.
        self._busy: tuple[str, ...] = ()
        #: What `notified` has read of queues, by node, until `look_through` takes it.
        self._ahead: dict[str, list[Any]] = {}

    def post(self, node: str, report: NodeReport) -> None:
        """Post a report in place of the last one on its subject. Safe to repeat."""
        queue, raw = keys.report_queue(node), encode(report)

        def left(client: Any) -> None:
            pipeline = client.pipeline(transaction=True)
            pipeline.hset(queue, report.subject, raw)
            pipeline.expire(queue, keys.REPORTS_TTL_S)
            pipeline.xadd(
                keys.LEADER_CHANNEL,
                {"node": node},
                maxlen=LEADER_NOTIFICATIONS_KEPT,
                approximate=True,
            )
            left_there, _, rung = pipeline.execute(raise_on_error=False)
            if isinstance(left_there, Exception):
                raise left_there
            # A damaged channel is ignored: the leader also looks through all queues.
            if isinstance(rung, Exception) and not isinstance(rung, ResponseError):
                raise rung

        self._link.ask(left)

    def pending(self, node: str) -> Sequence[NodeReport]:
        """Return a node's reports that have not been applied yet; the node itself may call it."""
        stored = self._link.ask(
            lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.report_queue(node)))
        )
        reports = []
        for raw in stored.values():
            try:
                reports.append(decode(raw))
            except DAMAGE:
                # Posted by another version of the agent; the leader reports it.
                continue
        return reports

    def nodes(self) -> set[str]:
        """Return the names of the registered nodes."""
        names = self._link.ask(lambda client: cast("list[bytes]", client.hkeys(keys.heads("Node"))))
        found = {name.decode(errors="replace") for name in names}
        return {name for name in found if not subdomain_problem(name)}

    def notified(self, timeout_ms: int) -> set[str]:
        """Return the nodes that have notified since the last call; wait for one up to
        `timeout_ms`.

        The queues that had reports at the last look are read in the same round trip, because
        mostly they have the next ones, too. Their nodes are also returned; `look_through` then
        uses what was read.
        """
        block = min(timeout_ms, LONGEST_BLOCK_MS) or None
        places: dict[Any, Any] = {keys.LEADER_CHANNEL: self._last_id}
        ahead = self._busy
        self._busy, self._ahead = (), {}

        def asked(client: Any) -> tuple[Any, Any]:
            if not ahead:
                return client.xread(places, count=LEADER_NOTIFICATIONS_KEPT, block=block), None
            pipeline = client.pipeline(transaction=False)
            pipeline.xread(places, count=LEADER_NOTIFICATIONS_KEPT, block=block)
            names, arguments = _reading(ahead)
            pipeline.evalsha(scripts.READ_REPORTS.sha, len(names), *names, *arguments)
            reply, queues = pipeline.execute(raise_on_error=False)
            if isinstance(reply, Exception):
                raise reply
            return reply, queues

        try:
            reply, queues = self._link.wait(asked)
        except StoreUnavailable as error:
            if not is_wrong_type(error.__cause__):
                raise
            # Without the channel, all queues are looked through now and then; the leader deletes
            # the key.
            self._link.pause(timeout_ms / 1000)
            self._last_id = "0-0"
            return set()
        found: set[str] = set()
        # If the queues could not be read, `look_through` meets the error.
        if ahead and not isinstance(queues, Exception):
            self._ahead = dict(zip(ahead, queues, strict=True))
            found.update(ahead)
        if (
            not reply
            and self._last_id != "0-0"
            and is_recreated(self._link, keys.LEADER_CHANNEL, self._last_id)
        ):
            self._last_id = "0-0"
        for _, entries in cast("Any", reply) or ():
            for id_, fields in entries:
                self._last_id = id_.decode()
                name = fields.get(b"node", b"").decode(errors="replace")
                # Any user with access to the channel may write anything there.
                if not subdomain_problem(name):
                    found.add(name)
        return found

    def look(self, nodes: Sequence[str]) -> list[QueuedReport]:
        """Return the reports in these nodes' queues, a bounded part of them, in a fixed order.

        Unreadable reports (too long, from a newer agent, or malformed) are logged, counted and
        removed.
        """
        return self.look_through(nodes)[0]

    def look_through(self, nodes: Sequence[str]) -> tuple[list[QueuedReport], list[str]]:
        """As `look`, in one round trip; also return the nodes with more reports than were read.

        Nodes whose queues were not read at all come first: a caller that continues in this order
        serves all of them, however many reports one node has.
        """
        read, self._ahead = self._ahead, {}
        ahead = [node for node in nodes if node in read]
        others = [node for node in nodes if node not in read]
        parts = [
            others[start : start + INBOXES_A_CALL]
            for start in range(0, len(others), INBOXES_A_CALL)
        ]
        unheard = [node for part in parts[CALLS_A_LOOK:] for node in part]
        calls = [_reading(part) for part in parts[:CALLS_A_LOOK]]
        replies = chain(
            [read[node] for node in ahead],
            *self._link.run_all(scripts.READ_REPORTS, calls),
        )
        found: list[QueuedReport] = []
        heard: list[str] = []
        wrong: list[tuple[str, bytes, bytes]] = []
        for node, (left, *reports) in zip(ahead + others, replies, strict=False):
            if left < 0:
                self._link.found_damaged[keys.report_queue(node)] = OTHER_TYPE
                self._link.suspect(node, f"{keys.report_queue(node)} is of another type")
            elif left:
                (heard if reports else unheard).append(node)
            for subject, raw, pod in sorted(zip(*(reports[at::3] for at in range(3)), strict=True)):
                entry = _read(node, subject, raw, pod)
                if entry is None:
                    wrong.append((node, subject, raw))
                    self._link.suspect(node, f"a report in {keys.report_queue(node)} is unreadable")
                else:
                    found.append(entry)
        if wrong:
            self._take_out([one for one in wrong if one[1]])
            self.count(UNREADABLE, len(wrong))
        self._busy = tuple(dict.fromkeys(entry.node for entry in found))[:READ_AHEAD]
        return found, unheard + heard

    def remove(self, entries: Sequence[QueuedReport]) -> None:
        """Remove reports, unless newer ones have replaced them."""
        self._take_out([(one.node, one.subject.encode(), one.raw) for one in entries])

    def count(self, what: str, more: int) -> None:
        """Add to a counter. A lost reply may count twice."""

        def counted(client: Any) -> None:
            try:
                client.hincrby(keys.COUNTS, what, more)
            except ResponseError as error:
                if is_wrong_type(error):
                    raise
                # The field is malformed: start again from here.
                client.hset(keys.COUNTS, what, more)

        self._link.ask(counted)

    def counts(self) -> dict[str, int]:
        """Return every counter, by name."""
        stored = self._link.ask(
            lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.COUNTS))
        )
        found = {name_of(name): records.whole(stored[name]) for name in sorted(stored)}
        return {name: count for name, count in found.items() if count is not None}

    def _take_out(self, places: Sequence[tuple[str, bytes, bytes]]) -> None:
        self._link.run_all(
            scripts.REMOVE_REPORTS,
            [
                _removal(places[start : start + REPORTS_A_CALL])
                for start in range(0, len(places), REPORTS_A_CALL)
            ],
        )


def _reading(nodes: Sequence[str]) -> Call:
    """Return the call that reads a bounded part of these nodes' queues."""
    names = [keys.objects("Pod"), *map(keys.report_queue, nodes)]
    return names, (REPORTS_A_CALL, MOST_REPORT_BYTES, BYTES_A_CALL, POD_BYTES_A_CALL)


def _removal(places: Sequence[tuple[str, bytes, bytes]]) -> Call:
    by_node: dict[str, list[bytes]] = {}
    for node, subject, raw in places:
        by_node.setdefault(node, []).extend((subject, raw))
    arguments: list[str | bytes | int] = []
    for pairs in by_node.values():
        arguments += [len(pairs) // 2, *pairs]
    return [keys.report_queue(node) for node in by_node], arguments


def removals(request: str, acknowledged: Sequence[AcknowledgedReport | None]) -> list[Call]:
    """Return the call that removes the reports acknowledged by a commit's answers, if there are
    any.
    """
    by_node: dict[str, list[str | bytes | int]] = {}
    for place, one in enumerate(acknowledged, start=1):
        if one is not None:
            report = (place, one.entry.subject, one.entry.raw, "yes" if one.notifies else "")
            by_node.setdefault(one.entry.node, []).extend(report)
    if not by_node:
        return []
    arguments: list[str | bytes | int] = [
        NODE_NOTIFICATIONS_KEPT,
        keys.ALIVE_TTL_S,
        WakeReason.CLAIMS,
    ]
    for reports in by_node.values():
        arguments += [len(reports) // 4, *reports]
    names = [
        name for node in by_node for name in (keys.report_queue(node), keys.wake_up_channel(node))
    ]
    return [([request, keys.objects("Pod"), *names], arguments)]


def _read(node: str, subject: bytes, raw: bytes, pod: bytes) -> QueuedReport | None:
    """Return the report; None, after logging it, for an unreadable one."""
    if not subject:
        why = f"{int(raw)} bytes long, or without a subject"
        _log().error("fact.unreadable", node=node, why=why)
        return None
    name = subject.decode(errors="replace")
    try:
        report = decode(raw)
    except DAMAGE as error:
        _log().error("fact.unreadable", node=node, subject=shown(name), why=reason_of(error))
        return None
    if report.subject != name:
        _log().error(
            "fact.unreadable", node=node, subject=shown(name), why="it has another subject"
        )
        return None
    return QueuedReport(
        node=node, subject=name, report=report, raw=raw, pod=records.pod_if_readable(pod)
    )


def _log() -> Any:
    # Imported on first use: structlog takes a command as long to load as everything else.
    import structlog

    return structlog.get_logger(__name__)


#: Once an answer has begun, the rest follows at once.
_REST_WITHIN_S = 1.0
#: The pause after a broken connection or a damaged channel; the agent polls meanwhile.
_AGAIN_S = 1.0
#: The newest entries of a node's channel; a reader that finds all of them may have missed others.
NODE_NOTIFICATIONS_KEPT = 8
#: Nodes notified in one round trip.
_NODES_A_TRIP = 1_000


class WakeReason(StrEnum):
    """Why a node is woken."""

    PODS = "pods"
    CLAIMS = "claims"
    STOPS = "stops"


EVERYTHING = frozenset(WakeReason)
#: The field with the wake reason.
_WORD = b"word"
#: The field that names jobs beside the wake reason, and how many jobs a listener keeps.
_JOBS, _MOST_ANNOUNCED = b"jobs", 8
#: The field with a pod that the notification is about.
_POD = b"pod"


def notify(link: Link, nodes: Sequence[str], word: WakeReason) -> None:
    """Notify these nodes. Safe to repeat. Raises StoreUnavailable."""
    for start in range(0, len(nodes), _NODES_A_TRIP):
        some = nodes[start : start + _NODES_A_TRIP]

        def send(client: Any, some: Sequence[str] = some) -> None:
            pipeline = client.pipeline(transaction=False)
            add_notifications(pipeline, some, word)
            check_notified(pipeline.execute(raise_on_error=False))

        link.ask(send)


def add_notifications(pipeline: Any, nodes: Sequence[str], word: WakeReason) -> None:
    """Add the notifications of these nodes to a pipeline; `check_notified` checks the answers."""
    for node in nodes:
        pipeline.xadd(
            keys.wake_up_channel(node),
            {"word": word},
            maxlen=NODE_NOTIFICATIONS_KEPT,
            approximate=False,
        )
        pipeline.expire(keys.wake_up_channel(node), keys.ALIVE_TTL_S)


def is_recreated(link: Link, stream: str, heard: str) -> bool:
    """Return whether a stream's newest entry is older than one already read, or gone: it had an id
    from the future, and was recreated since. A reader waiting after that id receives nothing.
    Raises StoreUnavailable.
    """
    newest = link.ask(lambda client: cast("list[Any]", client.xrevrange(stream, count=1)))
    return not newest or place_in_stream(newest[0][0].decode()) < place_in_stream(heard)


def place_in_stream(id_: str) -> tuple[int, int]:
    """Return the sort key of an entry's id."""
    first, _, second = id_.partition("-")
    return int(first), int(second or 0)


def check_notified(answers: Sequence[Any]) -> None:
    """Ignore a damaged channel; raise any other error."""
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, broken.ResponseError):
            raise answer


class WakeUpChannel:
    """A node's wake-up channel, and its requests for commands in pods: one connection that waits
    while the agent does other things.

    Owned by one thread, which polls `fileno` together with its other descriptors.
    """

    def __init__(self, url: str, node: str) -> None:
        """Connects at the first `listen`."""
        self._key = keys.wake_up_channel(node)
        self._client = new_client(url, retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_TIMEOUT_S)
        self._link = Link(url, client=self._client)
        self._connection: Any = None
        self._asked_at: float | None = None
        self._not_before = 0.0
        # From the oldest entry kept: notifications sent before the agent listened are read now.
        self._last_id = "0-0"
        self._announced: list[bytes] = []
        #: The pods of the applied claims that were heard of; None if some are not known.
        self._claimed: list[bytes] | None = []
        #: The same of delivered jobs, by id.
        self._arrived: dict[bytes, bytes] | None = {}
        #: Whether everything that was sent before the last answer has been heard of by then; what
        #: comes next is new.
        self._is_up_to_date = False
        self._requests_key = keys.exec_requests(node)
        #: The last entry of the requests that was read; "" while nothing listens to them.
        self._last_request = ""
        self._requests: list[bytes] = []

    def listen_to_requests(self, after: str) -> None:
        """Also wait for requests that come after an entry, from the next `listen` on; if the
        entry is gone, the channel is new, and all its requests count.
        """
        known = self._last_request
        if not known or place_in_stream(after) < place_in_stream(known):
            self._last_request = after

    def take_requests(self) -> list[bytes]:
        """Return the requests received since the last call."""
        found, self._requests = self._requests, []
        return found

    def take_announced(self) -> list[bytes]:
        """Return the newest ids of jobs that notifications have named since the last call.

        They are hints: a job may be missing among them, taken already, or not exist.
        """
        found, self._announced = self._announced, []
        return found

    def take_claimed(self) -> list[bytes]:
        """Return the pods of all claims that were applied since the last call, as stored with
        that; none if a notification had none, or may have been missed.
        """
        found, self._claimed = self._claimed, []
        return found or []

    def take_arrived(self) -> dict[bytes, bytes] | None:
        """Return the jobs that were delivered since the last call, with their pods; None if the
        queue may have others. Each has just been delivered.
        """
        found, self._arrived = self._arrived, {}
        return found

    def fileno(self) -> int | None:
        """The descriptor, readable when a notification may have come; None while
        nothing listens.
        """
        socket = None if self._connection is None else self._connection._sock
        return None if socket is None else int(socket.fileno())

    def listen(self) -> None:
        """Wait for a notification from now on, if not waiting yet. Raises StoreUnavailable."""
        if self._asked_at is not None:
            if time.monotonic() - self._asked_at < LONGEST_BLOCK_MS / 1000 + ANSWER_TIMEOUT_S:
                return
            # A server that has disappeared sends nothing, either.
            self._let_go()
        if time.monotonic() < self._not_before:
            return
        try:
            if self._connection is None:
                self._connection = self._client.connection_pool.get_connection()
            places = {self._key: self._last_id}
            if self._last_request:
                places[self._requests_key] = self._last_request
            self._connection.send_command(
                *("XREAD", "COUNT", NODE_NOTIFICATIONS_KEPT, "BLOCK", LONGEST_BLOCK_MS, "STREAMS"),
                *places,
                *places.values(),
            )
        except (broken.RedisError, OSError) as error:
            self._let_go()
            raise self._link.unavailable(error) from error
        self._asked_at = time.monotonic()

    def hear(self) -> frozenset[WakeReason]:
        """Return the wake reasons received; all of them after a broken connection, which may hide
        some.
        """
        if self._asked_at is None:
            return frozenset()
        try:
            reply = read_arrived(self._connection, rest_within_s=_REST_WITHIN_S)
            if reply is NOTHING:
                return frozenset()
        except (broken.RedisError, OSError):
            self._let_go()
            self._not_before = time.monotonic() + _AGAIN_S
            self._claimed = self._arrived = None
            return EVERYTHING
        self._asked_at = None
        if not reply:
            # The stream may have been recreated during the silence.
            self._last_id = self._next_id()
            self._is_up_to_date = self._last_id != "0-0"
            return frozenset()
        # A map or a list of pairs, depending on the protocol's version.
        found = dict(reply.items() if isinstance(reply, dict) else reply)
        if requests := found.get(self._requests_key.encode()):
            self._last_request = requests[-1][0].decode()
            self._requests += [
                value
                for _, fields in requests
                for name, value in zip(fields[::2], fields[1::2], strict=False)
                if name == b"request"
            ]
        entries = found.get(self._key.encode())
        if not entries:
            return frozenset()
        self._last_id = entries[-1][0].decode()
        words = {word for _, fields in entries for word in self._note(fields)}
        self._is_up_to_date = True
        # A reason from a later version may mean anything.
        if len(entries) == NODE_NOTIFICATIONS_KEPT or not words <= set(WakeReason):
            self._claimed = self._arrived = None
            return EVERYTHING
        return frozenset(map(WakeReason, words))

    def _note(self, fields: Sequence[bytes]) -> set[str]:
        """Note what a notification is about, and return its wake reasons."""
        pairs = list(zip(fields[::2], fields[1::2], strict=False))
        words = {value.decode(errors="replace") for name, value in pairs if name == _WORD}
        jobs = [job for name, value in pairs if name == _JOBS for job in value.split()]
        self._announced = (self._announced + jobs)[-_MOST_ANNOUNCED:]
        pods = [value for name, value in pairs if name == _POD]
        if WakeReason.CLAIMS in words:
            is_known = pods and self._claimed is not None
            self._claimed = [*(self._claimed or ()), *pods] if is_known else None
        if WakeReason.PODS in words:
            # An old notification may be of an attempt that has run since.
            is_known = self._is_up_to_date and self._arrived is not None
            is_known = is_known and 0 < len(jobs) == len(pods)
            arrived = dict(zip(jobs, pods, strict=False))
            self._arrived = {**(self._arrived or {}), **arrived} if is_known else None
        return words or {""}

    def _next_id(self) -> str:
        """Return the entry to wait after, following a silence."""
        if self._last_id == "0-0":
            return self._last_id
        # Lend the link this connection, or it would open one more for this question.
        pool, connection = self._client.connection_pool, self._connection
        pool.release(connection)
        self._connection = None
        try:
            return "0-0" if is_recreated(self._link, self._key, self._last_id) else self._last_id
        except StoreUnavailable:
            # Of another type, or unavailable: checked again after the next silence.
            return self._last_id
        finally:
            with suppress(broken.RedisError, OSError):
                forget_idle(self._client)
                self._connection = pool.get_connection()

    def close(self) -> None:
        """Close the connection."""
        self._let_go()
        close_client(self._client)

    def _let_go(self) -> None:
        connection, self._connection, self._asked_at = self._connection, None, None
        self._is_up_to_date = False
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)


#: Fields in one command, during which the server does nothing else.
_A_COMMAND = 1_000


def add_taking_out(pipeline: Any, deliveries: Sequence[Delivery]) -> None:
    """Remove these from the outbox, with the rest of the pipeline. Safe to repeat."""
    fields = [records.delivery_field(delivery) for delivery in deliveries]
    for start in range(0, len(fields), _A_COMMAND):
        pipeline.hdel(keys.OUTBOX, *fields[start : start + _A_COMMAND])


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """The end of an attempt, and the result of its function as JSON, if the pod runs a function."""

    report: Ended
    result: bytes | None = None


class Attempts:
    """The attempts on one node. Every method raises StoreUnavailable, and is safe to repeat."""

    def __init__(self, link: Link, now_ms: Callable[[], int], node: str) -> None:
        self._link = link
        self._now_ms = now_ms
        self._node = node

    def claim(
        self, claims: Sequence[tuple[StartClaim, str]], groups: Sequence[str], lease_ms: int
    ) -> tuple[list[Renewal], dict[str, PodGroup]]:
        """Take the lease of each attempt, given by its fence, and post its start claim; return for
        each attempt whether it may go on. A fenced or stopped attempt posts its claim, too.

        Also return the existing ones of `groups`, by name, read at the same instant.
        """
        until = self._now_ms() + lease_ms
        names = (keys.alive(self._node), keys.report_queue(self._node), keys.LEADER_CHANNEL)
        arguments: list[str | bytes | int] = [
            keys.ALIVE_TTL_S,
            keys.REPORTS_TTL_S,
            LEADER_NOTIFICATIONS_KEPT,
            self._node,
            until,
            *(claim.subject for claim, _ in claims),
            *(encode(claim) for claim, _ in claims),
        ]

        def asked(client: Any, add_call: AddCall) -> tuple[list[bytes | None], list[bytes | None]]:
            pipeline = client.pipeline(transaction=True)
            add_call(pipeline, scripts.CLAIM, names, arguments)
            pipeline.hmget(keys.heads("Pod"), [claim.pod for claim, _ in claims])
            pipeline.hmget(keys.objects("PodGroup"), list(groups))
            _, heads, stored = pipeline.execute()
            return heads, stored

        heads, stored = self._link.call(asked)
        renewals = [
            renewal_of(head or b"", fence) for head, (_, fence) in zip(heads, claims, strict=True)
        ]
        found = {
            name: read_record("PodGroup", name, one)
            for name, one in zip(groups, stored, strict=True)
            if one
        }
        return renewals, {key: one for key, one in found.items() if isinstance(one, PodGroup)}

    def end(self, ends: Sequence[AttemptEnd]) -> None:
        """Keep the results, report the ends, and end the leases."""

        def send(client: Any) -> None:
            pipeline = client.pipeline(transaction=True)
            for end in ends:
                if end.result is not None:
                    key = keys.result(self._node, end.report.pod, end.report.attempt)
                    pipeline.set(key, end.result, ex=keys.RESULT_TTL_S)
            self._leave(pipeline, [end.report for end in ends])
            pipeline.hdel(keys.alive(self._node), *(end.report.subject for end in ends))
            _executed(pipeline)

        self._link.ask(send)

    def end_leases(self, attempts: Sequence[str]) -> None:
        """End the leases of these attempts (`<pod>-<attempt>`): their processes are gone."""
        self._link.ask(lambda client: client.hdel(keys.alive(self._node), *attempts))

    def _leave(self, pipeline: Any, reports: Sequence[NodeReport]) -> None:
        queue = keys.report_queue(self._node)
        pipeline.hset(queue, mapping={report.subject: encode(report) for report in reports})
        pipeline.expire(queue, keys.REPORTS_TTL_S)
        pipeline.xadd(
            keys.LEADER_CHANNEL,
            {"node": self._node},
            maxlen=LEADER_NOTIFICATIONS_KEPT,
            approximate=True,
        )


def _executed(pipeline: Any) -> list[Any]:
    """Return the answers. A damaged wake-up channel is ignored: the leader also looks through all
    report queues.
    """
    notification = next(
        place for place, one in enumerate(pipeline.command_stack) if one[0][0] == "XADD"
    )
    answers = pipeline.execute(raise_on_error=False)
    for place, answer in enumerate(answers):
        is_notification = place == notification and isinstance(answer, ResponseError)
        if isinstance(answer, Exception) and not is_notification:
            raise answer
    return cast("list[Any]", answers)
