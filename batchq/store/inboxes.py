"""What nodes have to say, left in the server for the leader to fold.

A node writes its own inbox and rings a bell that all share. Both are plain commands, no scripts: a
server asks for write permission on every key that a script names, and a node has it for its own
keys alone. Of one subject the last fact counts. Facts go when they are folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

from msgspec import Struct
from redis.exceptions import ResponseError

from batchq.api.facts import Fact, decode, encode
from batchq.api.names import shown, subdomain_problem
from batchq.api.objects import Pod
from batchq.errors import StoreUnavailable
from batchq.store import codec, keys, scripts
from batchq.store.codec import DAMAGE
from batchq.store.doorbell import RINGS_KEPT, Word
from batchq.store.link import LONGEST_BLOCK_MS, Call, Link, is_wrong_type
from batchq.store.records import name_of, reason_of

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


class Entry(Struct, frozen=True, kw_only=True):
    """A fact in the inbox of a node. `raw` is as it stands there, by which it is taken out.

    `pod` is what the fact is about, as it was when the fact was read; None if there was none, or
    nobody has looked.
    """

    node: str
    subject: str
    fact: Fact
    raw: bytes
    pod: Pod | None = None


class Settled(Struct, frozen=True, kw_only=True):
    """A fact that is done with once a transaction has been applied; whether its node is waiting
    for that, and is rung.
    """

    entry: Entry
    rings: bool = False


class Inboxes:
    """All inboxes of one server, and the bell.

    `rung` remembers how far it has heard, so one thread only calls it; the rest may be called by
    any. Every method raises StoreUnavailable.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        # From the first entry that is kept: what was rung while nobody led is heard now.
        self._heard = "0-0"

    def post(self, node: str, fact: Fact) -> None:
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

    def own(self, node: str) -> Sequence[Fact]:
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
        found: set[str] = set()
        for _, entries in cast("Any", reply) or ():
            for id_, fields in entries:
                self._heard = id_.decode()
                name = fields.get(b"node", b"").decode(errors="replace")
                # Whoever may ring may write anything there.
                if not subdomain_problem(name):
                    found.add(name)
        return found

    def look(self, nodes: Sequence[str]) -> list[Entry]:
        """What lies in the inboxes of these nodes, a bounded part of it, in a fixed order.

        What cannot be read, because it is too long, of a newer agent or no fact at all, is told
        once, counted and taken out.
        """
        return self.look_through(nodes)[0]

    def look_through(self, nodes: Sequence[str]) -> tuple[list[Entry], list[str]]:
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
        found: list[Entry] = []
        heard: list[str] = []
        wrong: list[tuple[str, bytes, bytes]] = []
        for node, (left, *facts) in zip(nodes, replies, strict=False):
            if left < 0:
                self._link.found_damaged.add(keys.inbox(node))
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

    def folded(self, entries: Sequence[Entry]) -> None:
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
    arguments: list[str | bytes | int] = [RINGS_KEPT, keys.ALIVE_TTL_S, Word.CLAIMS]
    for facts in by_node.values():
        arguments += [len(facts) // 4, *facts]
    names = [name for node in by_node for name in (keys.inbox(node), keys.doorbell(node))]
    return [([request, *names], arguments)]


def _read(node: str, subject: bytes, raw: bytes, pod: bytes) -> Entry | None:
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
    return Entry(node=node, subject=name, fact=fact, raw=raw, pod=codec.pod_if_readable(pod))


def _log() -> Any:
    # Imported by who has something to say: it costs a command as much as all else that it loads.
    import structlog

    return structlog.get_logger(__name__)
