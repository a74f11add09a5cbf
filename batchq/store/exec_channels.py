"""The channels of commands in running pods: a node's requests, and the two streams of a session.

The node creates every stream and lets it expire; users only add to those that exist. So nothing
stays behind, whichever side is killed. An entry's id is the number of its frame, so that a repeated
write changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from redis import exceptions as broken

from batchq.api.exec_session import (
    FRAME_BYTES,
    ExecEnd,
    ExecFrame,
    ExecRequest,
    FrameKind,
)
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.link import LONGEST_BLOCK_MS, Link, is_damaged

#: The most unread requests of a node; further ones replace the oldest.
REQUESTS_KEPT = 64
_FRAMES_A_READ = 64
#: The most frames of a user that the node has not taken; the window permits half as many.
MOST_WAITING = 256
#: An id that is not above the last one: the entry was written by a former try.
_NO_IDS_LEFT = "exhausted the last possible ID"
_REPEATED = "equal or smaller than the target stream top item"


def open_requests(link: Link, node: str) -> str:
    """Create the channel of a node's requests, or let it live on; return the id of its newest
    entry. For the node's agent. Raises StoreUnavailable.
    """
    key = keys.exec_requests(node)

    def send(client: Any) -> bytes:
        pipeline = client.pipeline(transaction=False)
        pipeline.xadd(key, {"open": "1"}, maxlen=REQUESTS_KEPT, approximate=False)
        pipeline.expire(key, keys.EXEC_REQUESTS_TTL_S)
        return cast(bytes, pipeline.execute()[0])

    try:
        return link.ask(send).decode()
    except StoreUnavailable as trouble:
        if not (is_damaged(trouble) or _NO_IDS_LEFT in str(trouble.__cause__)):
            raise
        # Another program has written it, and no leader repairs it.
        link.ask(lambda client: client.delete(key))
        return link.ask(send).decode()


def takes_requests(link: Link, node: str) -> bool:
    """Return whether the agent of a node takes requests. Raises StoreUnavailable, also if this user
    may not make any.
    """
    return bool(link.ask(lambda client: client.xrevrange(keys.exec_requests(node), count=1)))


def post_request(link: Link, node: str, request: ExecRequest) -> bool:
    """Ask a node for a session; return False if no agent there takes requests. Safe to repeat: the
    agent opens a session once.

    Raises StoreUnavailable.
    """
    key, entry = keys.exec_requests(node), {"request": msgspec.json.encode(request)}

    def add(client: Any) -> Any:
        return client.xadd(key, entry, nomkstream=True, maxlen=REQUESTS_KEPT, approximate=False)

    return link.ask(add) is not None


class ExecChannel:
    """One side's end of a session. `is_node`: the side of the node. Used by one thread at a time.

    Methods raise StoreUnavailable.
    """

    def __init__(self, link: Link, node: str, session: str, *, is_node: bool) -> None:
        self._link = link
        to_node, from_node = keys.exec_input(node, session), keys.exec_output(node, session)
        self._out, self._in = (from_node, to_node) if is_node else (to_node, from_node)
        self._is_node, self._name = is_node, f"{session} on node {node}"
        #: The number of the last frame received.
        self.received = 0

    def send(self, frames: Sequence[ExecFrame]) -> bool:
        """Send frames in order; return False if the session is over. Safe to repeat."""
        if not self._is_node:
            self._require_room()

        def add(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for frame in frames:
                fields = {"kind": frame.kind, "data": frame.data}
                pipeline.xadd(self._out, fields, id=f"{frame.number}-0", nomkstream=True)
            return cast("list[Any]", pipeline.execute(raise_on_error=False))

        for answer in self._link.ask(add):
            if answer is None:
                return False
            if isinstance(answer, broken.ResponseError) and _REPEATED in str(answer):
                continue
            if isinstance(answer, Exception):
                raise self._link.unavailable(answer)
        return True

    def receive(self, wait_ms: int) -> list[ExecFrame]:
        """Return the next frames, after waiting for them; none if none have come."""
        block = max(1, min(wait_ms, LONGEST_BLOCK_MS))
        # The first entry of a stream, which its node makes, is 0-1.
        after = f"{self.received}-1"
        reply = self._link.wait(
            lambda client: cast(
                Any, client.xread({self._in: after}, count=_FRAMES_A_READ, block=block)
            )
        )
        if not reply:
            return []
        [(_, entries)] = reply.items() if isinstance(reply, dict) else reply
        entries = entries[0] if entries and isinstance(entries[0], list) else entries
        self.received = max(int(id_.partition(b"-")[0]) for id_, _ in entries)
        frames = (_frame(id_, fields) for id_, fields in entries)
        return [frame for frame in frames if frame is not None]

    def _require_room(self) -> None:
        """Raise StoreUnavailable if too many frames wait for the node: it may be gone."""

        def measure(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.xinfo_stream(self._out)
            return pipeline.execute(raise_on_error=False)[0]

        found = self._link.ask(measure)
        if isinstance(found, dict) and found["length"] > MOST_WAITING:
            raise StoreUnavailable(
                f"the session {self._name} is busy: more than {MOST_WAITING} frames wait for the"
                " command; send again later"
            )

    def open(self) -> None:
        """Create both streams."""
        self._create(self._out, self._in)

    def _create(self, *streams: str) -> None:
        def make(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            for key in streams:
                pipeline.xadd(key, {"kind": "ping", "data": b""}, id="0-1")
            self._add_expiry(pipeline)
            for answer in pipeline.execute(raise_on_error=False):
                if isinstance(answer, Exception) and _REPEATED not in str(answer):
                    raise answer

        self._link.ask(make)

    def keep(self) -> None:
        """Let both streams live on."""

        def expire(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            self._add_expiry(pipeline)
            pipeline.execute()

        self._link.ask(expire)

    def discard(self, *, sent: Sequence[int] = (), received: Sequence[int] = ()) -> None:
        """Remove frames that both sides are done with."""

        def remove(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            for key, numbers in ((self._out, sent), (self._in, received)):
                if numbers:
                    pipeline.xdel(key, *(f"{number}-0" for number in numbers))
            pipeline.execute()

        if sent or received:
            self._link.ask(remove)

    def remove(self) -> None:
        """Remove both streams."""
        self._link.ask(lambda client: client.delete(self._out, self._in))

    def refuse(self, message: str, *, is_early: bool = False) -> None:
        """Tell the user why there is no session, and accept no frames."""
        self._create(self._out)
        end = msgspec.json.encode(ExecEnd(message=message, is_early=is_early))
        self.send([ExecFrame(number=1, kind="end", data=end)])

    def end_abruptly(self, message: str) -> None:
        """Add the end of a session whose last frame is not known: its number is an instant, which
        is above all others. The user can send nothing more.
        """
        end = msgspec.json.encode(ExecEnd(message=message))
        entry: dict[Any, Any] = {"kind": "end", "data": end}

        def end_both(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            pipeline.xadd(self._out, entry, nomkstream=True)
            pipeline.delete(self._in)
            pipeline.execute()

        self._link.ask(end_both)

    def _add_expiry(self, pipeline: Any) -> None:
        for key in (self._out, self._in):
            pipeline.expire(key, keys.EXEC_TTL_S)


_KINDS: frozenset[str] = frozenset(FrameKind.__args__)  # type: ignore[attr-defined]


def _frame(id_: bytes, fields: dict[bytes, bytes]) -> ExecFrame | None:
    """Return the frame in an entry; None for the first entry and for what batchq never writes."""
    number, _, second = id_.decode().partition("-")
    kind = fields.get(b"kind", b"").decode(errors="replace")
    data = fields.get(b"data", b"")
    if second != "0" or kind not in _KINDS or len(data) > 2 * FRAME_BYTES:
        return None
    return ExecFrame(number=int(number), kind=cast(FrameKind, kind), data=data)
