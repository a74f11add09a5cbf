"""A copy of every object in this process, so that a session costs what changed, not what is stored.

List, then watch, as Kubernetes' informers do. The revision is noted *before* the list is read;
whatever changed meanwhile comes again from the change stream and is passed over where the list
was newer already. Ids of the stream are revisions, and every write appends one, so a gap shows:
the reader was trimmed off, or the server has lost writes. It lists again then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from msgspec import Struct

from batchq.api.objects import Object
from batchq.errors import StoreUnavailable
from batchq.framework.snapshot import Snapshot
from batchq.store import codec, keys
from batchq.store.link import Link
from batchq.store.shelf import Shelf

#: Objects per reply while listing, changes per reply while watching.
PAGE = 1_000
#: How often a list is begun again because writes trimmed the stream meanwhile.
LISTS = 5


class Trimmed(Exception):
    """The change stream no longer reaches back to where the reader was: list again."""


class Change(Struct, frozen=True, kw_only=True):
    """One write. `value` is None where the object was deleted; `id` is its place in the stream."""

    kind: str
    key: str
    revision: int
    value: Object | None
    id: str


class Difference(Struct, frozen=True, kw_only=True):
    """An object of which the mirror and Redis disagree: the revisions there, 0 for none."""

    kind: str
    key: str
    mirrored: int
    stored: int


def read_changes(reply: Any, after: int) -> list[Change]:
    """The changes of an XREAD's reply. Raises Trimmed if the first does not follow `after`."""
    changes: list[Change] = []
    for _, entries in reply or ():
        for raw_id, fields in entries:
            revision = int(raw_id.split(b"-")[0])
            kind = fields[b"kind"].decode()
            value = fields[b"value"]
            changes.append(
                Change(
                    kind=kind,
                    key=fields[b"key"].decode(),
                    revision=revision,
                    value=codec.read_object(kind, value) if value else None,
                    id=raw_id.decode(),
                )
            )
    if changes and changes[0].revision != after + 1:
        raise Trimmed
    return changes


def scan_objects(link: Link, kind: str) -> Iterator[tuple[str, bytes]]:
    """Every object of a kind as stored, a page at a time; one may come twice."""
    cursor = 0
    while True:
        cursor, page = scan_page(link, kind, cursor)
        yield from page.items()
        if cursor == 0:
            return


def scan_page(link: Link, kind: str, cursor: int) -> tuple[int, dict[str, bytes]]:
    """The next page of a kind's objects, and where the one after it begins (0: at the end)."""
    following, page = link.ask(
        lambda client: cast(
            tuple[int, dict[bytes, bytes]],
            client.hscan(keys.objects(kind), cursor=cursor, count=PAGE),
        )
    )
    return int(following), {key.decode(): value for key, value in page.items()}


class Mirror:
    """All objects, beats and leases, as of the last `drain`. Owned by one thread."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._shelf = Shelf()
        self._revision: int | None = None
        self._beats: dict[bytes, bytes] = {}
        self._leases: dict[bytes, bytes] = {}
        self._connections = -1
        self._run_id = ""
        self._turn = _Turn()

    def snapshot(self) -> Snapshot:
        """Everything as it stands now; the same object while nothing has changed."""
        self.drain()
        assert self._revision is not None
        return self._shelf.snapshot(self._revision)

    def drain(self) -> None:
        """Take in everything that has happened. Raises StoreUnavailable."""
        for _ in range(LISTS):
            self._notice_restart()
            try:
                if self._revision is None:
                    self._list()
                self._watch()
            except Trimmed:
                self._revision = None
            if self._revision is not None and self._link.connections == self._connections:
                return
        if self._revision is not None:
            return
        raise StoreUnavailable(
            f"the server at {self._link.shown} is written to faster than this process can read",
            hint="the change stream was trimmed each time that all objects were listed",
        )

    def forget(self) -> None:
        """List everything again at the next drain."""
        self._revision = None

    def compare(self, most: int) -> list[Difference]:
        """Look at the next few objects in Redis and here; the next call goes on from there.

        At most about `most` objects are read. A difference is reported only if it stands while
        the mirror has taken in every change.
        """
        self.drain()
        suspects = [
            (kind, key)
            for kind, stored, expected in self._turn.pages(self._link, self._shelf, most)
            for key in sorted(stored.keys() | expected)
            if not self._agrees(kind, key, stored.get(key))
        ]
        found = (self._difference(kind, key) for kind, key in dict.fromkeys(suspects))
        return [difference for difference in found if difference is not None]

    def _difference(self, kind: str, key: str) -> Difference | None:
        """Read it, take in all changes, read it again: if it stood still, both must agree."""
        while True:
            stored = self._read(kind, key)
            self.drain()
            if self._agrees(kind, key, stored):
                return None
            if self._read(kind, key) == stored:
                break
        here = self._shelf.get(kind, key)
        return Difference(
            kind=kind,
            key=key,
            mirrored=here.metadata.revision if here else 0,
            stored=codec.read_object(kind, stored).metadata.revision if stored else 0,
        )

    def _agrees(self, kind: str, key: str, stored: bytes | None) -> bool:
        here = self._shelf.get(kind, key)
        return here == (codec.read_object(kind, stored) if stored else None)

    def _read(self, kind: str, key: str) -> bytes | None:
        return self._link.ask(
            lambda client: cast("bytes | None", client.hget(keys.objects(kind), key))
        )

    def _list(self) -> None:
        revision = self._link.ask(lambda client: int(cast(bytes, client.get(keys.REVISION)) or 0))
        shelf = Shelf()
        for kind in keys.KIND_NAMES:
            listed = dict(scan_objects(self._link, kind))
            for key in sorted(listed):
                shelf.put(kind, key, codec.read_object(kind, listed[key]))
        self._shelf, self._revision = shelf, revision
        self._beats, self._leases = {}, {}

    def _watch(self) -> None:
        while True:
            assert self._revision is not None
            after = self._revision
            revision, reply, beats, leases = self._link.ask(partial(_pull, after=after))
            # An older file was restored, or everything was deleted, if the count has fallen.
            if revision < after:
                raise Trimmed
            changes = read_changes(reply, after)
            if not changes and revision != after:
                raise Trimmed
            for change in changes:
                self._take(change)
            if len(changes) < PAGE:
                self._fold(beats, leases)
                return

    def _take(self, change: Change) -> None:
        self._revision = change.revision
        here = self._shelf.get(change.kind, change.key)
        if here is not None and here.metadata.revision >= change.revision:
            return
        if change.value is None:
            self._shelf.remove(change.kind, change.key)
        else:
            self._shelf.put(change.kind, change.key, change.value)

    def _fold(self, beats: dict[bytes, bytes], leases: dict[bytes, bytes]) -> None:
        if beats != self._beats:
            self._beats = beats
            self._shelf.set_beats(read_instants(beats))
        if leases != self._leases:
            self._leases = leases
            self._shelf.set_leases(read_instants(leases))

    def _notice_restart(self) -> None:
        """A restarted server may have lost writes and counted on to the same revision."""
        connections = self._link.connections
        if connections == self._connections:
            return
        run_id = self._link.run_id()
        # Asking may have made a connection itself; then the next look asks once more.
        self._connections = connections
        if run_id != self._run_id:
            self._run_id = run_id
            self._revision = None


def read_instants(stored: dict[bytes, bytes]) -> dict[str, int]:
    """Names and milliseconds, ordered by name."""
    return {name.decode(): int(stored[name]) for name in sorted(stored)}


def _pull(client: Any, after: int) -> tuple[int, Any, dict[bytes, bytes], dict[bytes, bytes]]:
    """One round trip; the revision is read first, so the stream reaches at least to it."""
    pipeline = client.pipeline(transaction=False)
    pipeline.get(keys.REVISION)
    pipeline.xread({keys.CHANGES: f"{after}-0"}, count=PAGE)
    pipeline.hgetall(keys.BEATS)
    pipeline.hgetall(keys.LEASES)
    revision, reply, beats, leases = pipeline.execute()
    return int(revision or 0), reply, beats, leases


class _Turn:
    """Where the comparison goes on: which kind, where in Redis, where in the mirror."""

    def __init__(self) -> None:
        self._kinds = list(keys.KIND_NAMES)
        self._cursor = 0
        self._after = ""
        self._scanned = False

    def pages(
        self, link: Link, shelf: Shelf, most: int
    ) -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
        """Pages of objects as stored, each with keys that the mirror expects among them.

        Ends after `most` objects, or after every kind was looked at once.
        """
        read = 0
        for _ in range(len(self._kinds)):
            kind = self._kinds[0]
            while not self._scanned:
                self._cursor, stored = scan_page(link, kind, self._cursor)
                self._scanned = self._cursor == 0
                read += len(stored)
                yield kind, stored, []
                if read >= most:
                    return
            # The scan found what the mirror lacks; this finds what Redis lacks.
            while expected := shelf.keys_after(kind, self._after, PAGE):
                self._after = expected[-1]
                read += len(expected)
                yield kind, _read_many(link, kind, expected), expected
                if read >= most:
                    return
            self._kinds = [*self._kinds[1:], kind]
            self._cursor, self._after, self._scanned = 0, "", False


def _read_many(link: Link, kind: str, wanted: list[str]) -> dict[str, bytes]:
    values = link.ask(
        lambda client: cast("list[bytes | None]", client.hmget(keys.objects(kind), wanted))
    )
    return {key: value for key, value in zip(wanted, values, strict=True) if value is not None}
