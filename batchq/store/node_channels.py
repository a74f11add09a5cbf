"""What nodes have to say, left in the server for the leader to fold.

A node writes its own inbox and rings a bell that all share. Both are plain commands, no scripts: a
server asks for write permission on every key that a script names, and a node has it for its own
keys alone. Of one subject the last fact counts. Facts go when they are folded.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any, cast

from msgspec import Struct
from redis import exceptions as broken
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from batchq.api.lifecycle import ON_NODE
from batchq.api.node_report import NodeReport, decode, encode
from batchq.api.notation import shown, subdomain_problem
from batchq.api.objects import Pod
from batchq.api.resources import ONE_POD, PODS
from batchq.api.transaction import Delivery, node_scope
from batchq.errors import StoreUnavailable
from batchq.store import codec, keys, scripts
from batchq.store.codec import DAMAGE
from batchq.store.link import (
    ANSWER_TIMEOUT_S,
    LONGEST_BLOCK_MS,
    OTHER_TYPE,
    Call,
    Link,
    close_client,
    is_wrong_type,
    new_client,
)
from batchq.store.mirror import PAGE, read_many
from batchq.store.records import (
    field_of_key,
    head_of,
    key_of_field,
    name_of,
    read_record,
    reason_of,
)

BELL_KEPT = 1_000
#: No fact is longer than this.
MOST_FACT_BYTES = 64 * 1024
#: One call of a script reads or clears at most so many inboxes, facts, and about so many bytes.
INBOXES_A_CALL = 100
FACTS_A_CALL = 5_000
BYTES_A_CALL = 1024 * 1024
#: Of the pods that the facts of a call are about, about so many bytes are read with them.
POD_BYTES_A_CALL = 1024 * 1024
#: So many calls go out together: one look is answered with at most about 32 MiB.
CALLS_A_LOOK = 32

SUPERSEDED = "superseded"
UNREADABLE = "unreadable"


class OutboxEntry(Struct, frozen=True, kw_only=True):
    """A fact in the inbox of a node. `raw` is as it stands there, by which it is taken out.

    `pod` is what the fact is about, as it was when the fact was read; None if there was none, or
    nobody has looked.
    """

    node: str
    subject: str
    fact: NodeReport
    raw: bytes
    pod: Pod | None = None


class Settled(Struct, frozen=True, kw_only=True):
    """A fact that is done with once a transaction has been applied; whether its node is waiting
    for that, and is rung.
    """

    entry: OutboxEntry
    rings: bool = False


class ReportQueues:
    """All inboxes of one server, and the bell.

    `rung` remembers how far it has heard, so one thread only calls it; the rest may be called by
    any. Every method raises StoreUnavailable.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        # From the first entry that is kept: what was rung while nobody led is heard now.
        self._heard = "0-0"

    def post(self, node: str, fact: NodeReport) -> None:
        """Leave a fact in place of the last one on its subject. Twice is harmless."""
        inbox, raw = keys.inbox(node), encode(fact)

        def left(client: Any) -> None:
            pipeline = client.pipeline(transaction=True)
            pipeline.hset(inbox, fact.subject, raw)
            pipeline.expire(inbox, keys.INBOX_TTL_S)
            pipeline.xadd(keys.BELL, {"node": node}, maxlen=BELL_KEPT, approximate=True)
            left_there, _, rung = pipeline.execute(raise_on_error=False)
            if isinstance(left_there, Exception):
                raise left_there
            # A bell that somebody has spoiled is done without: all inboxes are looked through.
            if isinstance(rung, Exception) and not isinstance(rung, ResponseError):
                raise rung

        self._link.ask(left)

    def own(self, node: str) -> Sequence[NodeReport]:
        """What a node has left that is not folded yet, as the node may read it itself."""
        stored = self._link.ask(
            lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.inbox(node)))
        )
        facts = []
        for raw in stored.values():
            try:
                facts.append(decode(raw))
            except DAMAGE:
                # Left by another version of the agent; the clerk tells of it.
                continue
        return facts

    def nodes(self) -> set[str]:
        """The nodes that there are as objects."""
        names = self._link.ask(lambda client: cast("list[bytes]", client.hkeys(keys.heads("Node"))))
        found = {name.decode(errors="replace") for name in names}
        return {name for name in found if not subdomain_problem(name)}

    def rung(self, timeout_ms: int) -> set[str]:
        """The nodes that have rung since the last call; waits for one up to `timeout_ms`."""
        block = min(timeout_ms, LONGEST_BLOCK_MS) or None
        try:
            reply = self._link.wait(
                lambda client: client.xread({keys.BELL: self._heard}, count=BELL_KEPT, block=block)
            )
        except StoreUnavailable as error:
            if not is_wrong_type(error.__cause__):
                raise
            # No bell: all inboxes are looked through now and then, and the leader takes it out.
            self._link.pause(timeout_ms / 1000)
            self._heard = "0-0"
            return set()
        if not reply and self._heard != "0-0" and is_made_anew(self._link, keys.BELL, self._heard):
            self._heard = "0-0"
        found: set[str] = set()
        for _, entries in cast("Any", reply) or ():
            for id_, fields in entries:
                self._heard = id_.decode()
                name = fields.get(b"node", b"").decode(errors="replace")
                # Whoever may ring may write anything there.
                if not subdomain_problem(name):
                    found.add(name)
        return found

    def look(self, nodes: Sequence[str]) -> list[OutboxEntry]:
        """What lies in the inboxes of these nodes, a bounded part of it, in a fixed order.

        What cannot be read, because it is too long, of a newer agent or no fact at all, is told
        once, counted and taken out.
        """
        return self.look_through(nodes)[0]

    def look_through(self, nodes: Sequence[str]) -> tuple[list[OutboxEntry], list[str]]:
        """As `look`, in one round trip; and the nodes that have more to say than was taken in.

        First among these are those of which nothing was taken in: who looks through them in this
        order hears everybody, however much one of them has to say.
        """
        parts = [
            nodes[start : start + INBOXES_A_CALL] for start in range(0, len(nodes), INBOXES_A_CALL)
        ]
        unheard = [node for part in parts[CALLS_A_LOOK:] for node in part]
        calls = [
            (
                [keys.objects("Pod"), *(keys.inbox(node) for node in part)],
                (FACTS_A_CALL, MOST_FACT_BYTES, BYTES_A_CALL, POD_BYTES_A_CALL),
            )
            for part in parts[:CALLS_A_LOOK]
        ]
        replies = chain.from_iterable(self._link.run_all(scripts.INBOX, calls))
        found: list[OutboxEntry] = []
        heard: list[str] = []
        wrong: list[tuple[str, bytes, bytes]] = []
        for node, (left, *facts) in zip(nodes, replies, strict=False):
            if left < 0:
                self._link.found_damaged[keys.inbox(node)] = OTHER_TYPE
                self._link.suspect(node, f"{keys.inbox(node)} is of another type")
            elif left:
                (heard if facts else unheard).append(node)
            for subject, raw, pod in sorted(zip(*(facts[at::3] for at in range(3)), strict=True)):
                entry = _read(node, subject, raw, pod)
                if entry is None:
                    wrong.append((node, subject, raw))
                    self._link.suspect(node, f"a fact in {keys.inbox(node)}")
                else:
                    found.append(entry)
        if wrong:
            self._take_out([one for one in wrong if one[1]])
            self.count(UNREADABLE, len(wrong))
        return found, unheard + heard

    def folded(self, entries: Sequence[OutboxEntry]) -> None:
        """Take facts out, unless others have come in their place."""
        self._take_out([(one.node, one.subject.encode(), one.raw) for one in entries])

    def count(self, what: str, more: int) -> None:
        """Count something. A lost reply may count it twice."""

        def counted(client: Any) -> None:
            try:
                client.hincrby(keys.COUNTS, what, more)
            except ResponseError as error:
                if is_wrong_type(error):
                    raise
                # Somebody has left no number there: it is counted from here.
                client.hset(keys.COUNTS, what, more)

        self._link.ask(counted)

    def counts(self) -> dict[str, int]:
        """Everything that was ever counted, by name."""
        stored = self._link.ask(
            lambda client: cast("dict[bytes, bytes]", client.hgetall(keys.COUNTS))
        )
        found = {name_of(name): codec.whole(stored[name]) for name in sorted(stored)}
        return {name: count for name, count in found.items() if count is not None}

    def _take_out(self, places: Sequence[tuple[str, bytes, bytes]]) -> None:
        self._link.run_all(
            scripts.FOLDED,
            [
                _taking_out(places[start : start + FACTS_A_CALL])
                for start in range(0, len(places), FACTS_A_CALL)
            ],
        )


def _taking_out(places: Sequence[tuple[str, bytes, bytes]]) -> Call:
    by_node: dict[str, list[bytes]] = {}
    for node, subject, raw in places:
        by_node.setdefault(node, []).extend((subject, raw))
    arguments: list[str | bytes | int] = []
    for pairs in by_node.values():
        arguments += [len(pairs) // 2, *pairs]
    return [keys.inbox(node) for node in by_node], arguments


def settling(request: str, settled: Sequence[Settled | None]) -> list[Call]:
    """The call that takes out what is settled by the answers to a commit's request, if any is."""
    by_node: dict[str, list[str | bytes | int]] = {}
    for place, one in enumerate(settled, start=1):
        if one is not None:
            fact = (place, one.entry.subject, one.entry.raw, "yes" if one.rings else "")
            by_node.setdefault(one.entry.node, []).extend(fact)
    if not by_node:
        return []
    arguments: list[str | bytes | int] = [RINGS_KEPT, keys.ALIVE_TTL_S, WakeReason.CLAIMS]
    for facts in by_node.values():
        arguments += [len(facts) // 4, *facts]
    names = [name for node in by_node for name in (keys.inbox(node), keys.doorbell(node))]
    return [([request, *names], arguments)]


def _read(node: str, subject: bytes, raw: bytes, pod: bytes) -> OutboxEntry | None:
    """The fact; None, and told, for what is none."""
    if not subject:
        _log().error("fact.unreadable", node=node, why=f"{int(raw)} bytes long")
        return None
    name = subject.decode(errors="replace")
    try:
        fact = decode(raw)
    except DAMAGE as error:
        _log().error("fact.unreadable", node=node, subject=shown(name), why=reason_of(error))
        return None
    if fact.subject != name:
        _log().error("fact.unreadable", node=node, subject=shown(name), why="it is about another")
        return None
    return OutboxEntry(node=node, subject=name, fact=fact, raw=raw, pod=codec.pod_if_readable(pod))


def _log() -> Any:
    # Imported by who has something to say: it costs a command as much as all else that it loads.
    import structlog

    return structlog.get_logger(__name__)


#: An answer that has begun is there at once.
_REST_WITHIN_S = 1.0
#: After a connection that broke, or a bell that somebody has spoiled: the agent looks meanwhile.
_AGAIN_S = 1.0
#: The latest rings of a node: who hears so many at once may have missed others.
RINGS_KEPT = 8
#: So many nodes are rung in one round trip.
_NODES_A_TRIP = 1_000


class WakeReason(StrEnum):
    """What a ring is about."""

    PODS = "pods"
    CLAIMS = "claims"


EVERYTHING = frozenset(WakeReason)


def ring(link: Link, nodes: Sequence[str], word: WakeReason) -> None:
    """Ring at these nodes. Twice is harmless. Raises StoreUnavailable."""
    for start in range(0, len(nodes), _NODES_A_TRIP):
        some = nodes[start : start + _NODES_A_TRIP]

        def rung(client: Any, some: Sequence[str] = some) -> None:
            pipeline = client.pipeline(transaction=False)
            add_rings(pipeline, some, word)
            check_rung(pipeline.execute(raise_on_error=False))

        link.ask(rung)


def add_rings(pipeline: Any, nodes: Sequence[str], word: WakeReason) -> None:
    """Ring at these nodes, with what else is sent; `check_rung` is given the answers."""
    for node in nodes:
        pipeline.xadd(keys.doorbell(node), {"word": word}, maxlen=RINGS_KEPT, approximate=False)
        pipeline.expire(keys.doorbell(node), keys.ALIVE_TTL_S)


def is_made_anew(link: Link, stream: str, heard: str) -> bool:
    """Whether the newest entry of a stream is older than one that was heard, or gone: somebody has
    put an id there from the future, and the stream was made anew since. Who waits behind that id
    hears nothing. Raises StoreUnavailable.
    """
    newest = link.ask(lambda client: cast("list[Any]", client.xrevrange(stream, count=1)))
    return not newest or place_in_stream(newest[0][0].decode()) < place_in_stream(heard)


def place_in_stream(id_: str) -> tuple[int, int]:
    """By what ids of entries are ordered."""
    first, _, second = id_.partition("-")
    return int(first), int(second or 0)


def check_rung(answers: Sequence[Any]) -> None:
    """A bell that somebody has spoiled is done without; anything else is raised."""
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, broken.ResponseError):
            raise answer


class WakeUpChannel:
    """A node's agent at its door: one connection that waits, while the agent does other things.

    Owned by one thread, which polls `fileno` beside whatever else it waits for.
    """

    def __init__(self, url: str, node: str) -> None:
        """Connects at the first `listen`."""
        self._key = keys.doorbell(node)
        self._client = new_client(url, retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_TIMEOUT_S)
        self._link = Link(url, client=self._client)
        self._connection: Any = None
        self._asked_at: float | None = None
        self._not_before = 0.0
        # From the first that is kept: what was brought before anybody listened is heard now.
        self._heard = "0-0"

    def fileno(self) -> int | None:
        """Readable when there may be something to hear; None while nobody listens."""
        socket = None if self._connection is None else self._connection._sock
        return None if socket is None else int(socket.fileno())

    def listen(self) -> None:
        """Wait for a ring from now on, if nobody does yet. Raises StoreUnavailable."""
        if self._asked_at is not None:
            if time.monotonic() - self._asked_at < LONGEST_BLOCK_MS / 1000 + ANSWER_TIMEOUT_S:
                return
            # A server that is not there any more says nothing, either.
            self._let_go()
        if time.monotonic() < self._not_before:
            return
        try:
            if self._connection is None:
                self._connection = self._client.connection_pool.get_connection()
            self._connection.send_command(
                *("XREAD", "COUNT", RINGS_KEPT, "BLOCK", LONGEST_BLOCK_MS, "STREAMS"),
                *(self._key, self._heard),
            )
        except (broken.RedisError, OSError) as error:
            self._let_go()
            raise self._link.unavailable(error) from error
        self._asked_at = time.monotonic()

    def hear(self) -> frozenset[WakeReason]:
        """What it has rung for, or may have: what breaks the connection may hide a ring."""
        if self._asked_at is None:
            return frozenset()
        try:
            if not self._connection.can_read(timeout=0):
                return frozenset()
            reply = self._connection.read_response(timeout=_REST_WITHIN_S)
        except (broken.RedisError, OSError):
            self._let_go()
            self._not_before = time.monotonic() + _AGAIN_S
            return EVERYTHING
        self._asked_at = None
        if not reply:
            # For some seconds: the next one may be rung in a bell that was made anew.
            self._heard = self._again_if_made_anew()
            return frozenset()
        # By the protocol's version a map or a list of pairs.
        [(_, entries)] = reply.items() if isinstance(reply, dict) else reply
        self._heard = entries[-1][0].decode()
        said = {value.decode(errors="replace") for _, fields in entries for value in fields[1::2]}
        # A word of a later version may be about anything.
        if len(entries) == RINGS_KEPT or not said <= set(WakeReason):
            return EVERYTHING
        return frozenset(map(WakeReason, said))

    def _again_if_made_anew(self) -> str:
        """Behind which ring to wait, after a silence."""
        if self._heard == "0-0":
            return self._heard
        try:
            return "0-0" if is_made_anew(self._link, self._key, self._heard) else self._heard
        except StoreUnavailable:
            # Of another type, or away: looked at again after the next silence.
            return self._heard

    def close(self) -> None:
        """Let go of the connection."""
        self._let_go()
        close_client(self._client)

    def _let_go(self) -> None:
        connection, self._connection, self._asked_at = self._connection, None, None
        if connection is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)


#: After so many answers that went by the ledger, all pods are looked through: every ten minutes of
#: an agent that asks every ten seconds.
ANSWERS_BY_COUNT = 60


class PodsByNode:
    """The pods on nodes of one server. Questions raise StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # The first look is a whole one: nobody knows yet whether the ledger counts right.
        self._answers_left = 0

    def pods(self, node: str, known: Collection[str] | None) -> Iterator[Pod]:
        """The pods that hold a place on a node; one may come twice.

        `known`: the keys of pods that the caller knows of, on the node or not; None: it cannot say.
        """
        if known is not None and self._answers_left > 0:
            self._answers_left -= 1
            found, counted = self._found_and_counted(node, sorted(known))
            if counted == b"%d" % (len(found) * ONE_POD):
                yield from found
                return
        yield from self._all(node)
        self._answers_left = ANSWERS_BY_COUNT

    def _found_and_counted(self, node: str, known: Sequence[str]) -> tuple[list[Pod], bytes]:
        """Those of the pods that are on the node, and what the ledger counts there, of one
        instant.
        """
        field = f"{node_scope(node)} {PODS}"

        fields = [field_of_key(key) for key in known]

        def asked(client: Any) -> tuple[list[bytes | None], bytes | None]:
            pipeline = client.pipeline(transaction=True)
            if fields:
                pipeline.hmget(keys.objects("Pod"), fields)
            pipeline.hget(keys.LEDGER, field)
            *stored, counted = pipeline.execute()
            return (stored[0] if stored else [None] * len(known)), counted

        stored, counted = self._link.ask(asked)
        found = {key: one for key, one in zip(known, stored, strict=True) if one is not None}
        return list(_on_node(node, found)), counted or b"0"

    def _all(self, node: str) -> Iterator[Pod]:
        """Heads tell which pods are on any node: they are short, and pods that have ended are
        many.
        """
        cursor = 0
        while True:
            following, heads = self._link.ask(partial(_heads_of_pods, cursor=cursor))
            there = [
                key_of_field(field) for field, head in heads.items() if head_of(head)[1] in ON_NODE
            ]
            if there:
                yield from _on_node(node, read_many(self._link, "Pod", there))
            if (cursor := int(following)) == 0:
                return


def _on_node(node: str, stored: Mapping[str, bytes]) -> Iterator[Pod]:
    """What cannot be read is on no node: the leader tells of it."""
    for key, value in stored.items():
        pod = read_record("Pod", key, value)
        if isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE:
            yield pod


def _heads_of_pods(client: Any, cursor: int) -> tuple[int, dict[bytes, bytes]]:
    return cast(
        tuple[int, dict[bytes, bytes]],
        client.hscan(keys.heads("Pod"), cursor=cursor, count=PAGE),
    )


#: Of one command: the server does nothing else meanwhile.
_A_COMMAND = 1_000


def add_taking_out(pipeline: Any, deliveries: Sequence[Delivery]) -> None:
    """Take these out of the outbox, with what else is sent. Twice is harmless."""
    fields = [codec.delivery_field(delivery) for delivery in deliveries]
    for start in range(0, len(fields), _A_COMMAND):
        pipeline.hdel(keys.OUTBOX, *fields[start : start + _A_COMMAND])
