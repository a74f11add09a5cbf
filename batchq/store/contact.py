"""Since when a reader has been in touch with the server, and what it knows of the last restart.

Owned by the mirror, and so by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast
from zlib import crc32

from batchq.framework.snapshot import Standing
from batchq.store import codec, keys
from batchq.store.link import Link

#: Who has not been heard of for longer may have been out of reach; so may everybody else.
LONGEST_GAP_MS = 5_000


_Entries: TypeAlias = "list[tuple[bytes, dict[bytes, bytes]]]"


class Contact:
    """Counts how long there has been no break. Instants are milliseconds of the server's clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._longest_gap_ms = LONGEST_GAP_MS
        self._last_at: int | None = None
        self._since = 0

    def allow_gaps(self, longest_ms: int) -> None:
        """What is no break: well below the shortest lease that is judged by it."""
        self._longest_gap_ms = min(LONGEST_GAP_MS, longest_ms)

    def made(self) -> None:
        """The server has answered everything that was asked."""
        now = self._now_ms()
        # A clock that was set back is a break, too: until it has caught up, nobody would be silent.
        if self._last_at is None or not 0 <= now - self._last_at <= self._longest_gap_ms:
            self._since = now
        self._last_at = now

    def lost(self) -> None:
        """It has not."""
        self._last_at = None

    @property
    def since(self) -> int:
        """The end of the last break."""
        return self._since


class LastSeen:
    """The last change that was read, to be found again in a server that was started anew."""

    def __init__(self) -> None:
        self._revision = 0
        self._trace = 0

    def note_latest(self, link: Link) -> None:
        """It is the server's latest. Raises StoreUnavailable."""
        found = link.ask(lambda client: cast(_Entries, client.xrevrange(keys.CHANGES, count=1)))
        for raw_id, fields in found:
            self.note(raw_id, fields)

    def note(self, raw_id: bytes, fields: Mapping[bytes, bytes]) -> None:
        """It is this one now."""
        self._revision = int(raw_id.split(b"-")[0])
        self._trace = _trace_of(fields)

    def is_forgotten(self, link: Link) -> bool:
        """Whether the server no longer knows that change, or knows another by its number."""
        if not self._revision:
            return False
        place = f"{self._revision}-0"
        found = link.ask(lambda client: cast(_Entries, client.xrange(keys.CHANGES, place, place)))
        if not found:
            return True
        return _trace_of(found[0][1]) != self._trace


def _trace_of(fields: Mapping[bytes, bytes]) -> int:
    """Of the whole entry, whoever wrote it."""
    return crc32(b" ".join(name + b"=" + fields[name] for name in sorted(fields)))


#: Run, generation and since, of what the leader has written of the server.
ServerHash: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


def standing_of(
    server: ServerHash,
    *,
    runs: Mapping[str, str],
    contact: Contact,
    forgot: bool,
) -> Standing:
    """What the hash of `keys.SERVER` holds (run, generation, since), as the session goes by it.

    `runs`: under which run of the server each node has reported.
    """
    run, generation, since = server
    began, restarted_at = codec.whole(generation), codec.whole(since)
    # What is no number is written anew by who leads next.
    if run is None or began is None or restarted_at is None:
        return Standing(contact_since=contact.since)
    now_runs = run.decode(errors="replace")
    return Standing(
        generation=began,
        contact_since=contact.since,
        restarted_at=restarted_at,
        reported=frozenset(name for name, at in runs.items() if at == now_runs),
        forgot=forgot,
    )
