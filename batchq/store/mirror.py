"""An in-process copy of every object, so that a session costs what changed, not what is stored.

List, then watch, as Kubernetes' informers do. The revision is noted *before* the list is read;
later changes come again from the change stream and are skipped where the list was newer. Ids of the
stream are revisions, and every write appends one entry, so a gap is visible: the stream was trimmed
past the reader, or the server has lost writes. Then the mirror lists again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any, TypeAlias, cast

from msgspec import Struct, structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import KINDS, Node, Object, PodGroup, Unreadable
from batchq.api.transaction import Transaction
from batchq.api.views import Change
from batchq.core.session.snapshot import Snapshot
from batchq.errors import StoreUnavailable
from batchq.store import keys, records
from batchq.store.link import Link, count_of_writes, is_wrong_type, read_revision
from batchq.store.liveness import (
    Alive,
    Contact,
    LastSeen,
    ServerHash,
    beats_of,
    leases_of,
    malformed_in,
    runs_of,
    standing_of,
)
from batchq.store.memory import ObjectTable
from batchq.store.pages import PAGE, read_many, read_one, scan_objects, scan_page
from batchq.store.records import Decode, field_of_key, key_of_field, read_record
from batchq.store.sharing_reader import SharingReader

#: Changes per reply while watching: a large session's writes fit in one.
CHANGES_A_TRIP = 20_000
#: How often a list is started again because the stream was trimmed meanwhile.
LISTS = 5
_LIST_LATER_S = 0.2
#: The count of writes starts at 0 or at the time in milliseconds, so an object that states a later
#: revision lies. If the count followed it, it could run out.
IMPLAUSIBLE = 10**13
#: Repairs are reported if they are not older; a standby collects them as well.
REPORTED_WITHIN_S = 60.0
#: How often heartbeats are read while pods wait for nodes to report.
AWAIT_REPORTS_EVERY_MS = 50
#: Heads of each kind checked in one step: this many in the server's order, and this many in the
#: order of their keys.
HEADS_A_PAGE = 500

#: Kind and key -> the expected head: b"" if there is no object, None if any well-formed head will
#: do.
ExpectedHead: TypeAlias = Callable[[str, str], bytes | None]
#: Kind, a key and a number -> the keys of that many objects after it.
KeysAfter: TypeAlias = Callable[[str, str, int], list[str]]


class Trimmed(Exception):
    """The change stream no longer reaches back to the reader's place: list again."""


class MirrorDifference(Struct, frozen=True, kw_only=True):
    """An object on which mirror and Redis disagree: its revision in each, 0 if it is absent."""

    kind: str
    key: str
    mirrored: int
    stored: int


def after_change(revision: int) -> str:
    """Return the id after which later changes are read: the highest with this revision, since
    another program may have appended an entry to it.
    """
    return f"{revision}-{2**64 - 1}"


#: Whether a reader needs a change, by the kind, the key and the stored object (b"": deleted).
IsWanted: TypeAlias = Callable[[str, str, bytes], bool]


class OwnWrites:
    """Objects that this process has written and not read yet: their bytes need not be decoded.

    Any thread may note what it is about to write. One thread takes.
    """

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], tuple[bytes, Object]] = {}

    def note(self, transaction: Transaction, values: Sequence[bytes]) -> None:
        """Note the objects that a transaction writes, and the bytes that it stores of them."""
        if len(self._written) >= CHANGES_A_TRIP:
            # Nobody reads them.
            self._written.clear()
        left = iter(values)
        for write in transaction.writes:
            if write.value is not None:
                self._written[write.kind, write.key] = next(left), write.value

    def forget(self, transaction: Transaction) -> None:
        """Forget a transaction that was refused."""
        for write in transaction.writes:
            self._written.pop((write.kind, write.key), None)

    def take(self, kind: str, key: str, stored: bytes, revision: int) -> Object | None:
        """Return the object whose stored bytes these are, once; None if they are not known."""
        known = self._written.pop((kind, key), None)
        # Another process may have written in between.
        if known is None or not stored.endswith(known[0]):
            return None
        item = known[1]
        return structs.replace(item, metadata=structs.replace(item.metadata, revision=revision))


def read_changes(
    reply: Any,
    after: int,
    decode: Decode = records.read_object,
    is_wanted: IsWanted | None = None,
    own: OwnWrites | None = None,
    *,
    latest_only: bool = False,
) -> list[Change]:
    """Return the (wanted) changes in an XREAD's reply, decoding objects by `decode`, except those
    that this process has written itself. `latest_only` leaves out what a later entry replaces.

    Raises Trimmed if the first entry does not follow `after`, or if batchq cannot have written one
    of them: then the stored objects are read instead.
    """
    try:
        read = [one for _, entries in reply or () for one in entries]
        if read and _revision_of(read[0][0]) != after + 1:
            raise Trimmed
        if latest_only:
            read = _latest(read)
        return [
            _change(raw_id, fields, decode, own)
            for raw_id, fields in read
            if is_wanted is None or _is_wanted(fields, is_wanted)
        ]
    except (KeyError, ValueError):
        raise Trimmed from None


def _latest(read: list[Any]) -> list[Any]:
    """Return the last entry about each object, and all deletions and reports of a repair. An object
    that was created under the key of a deleted one is another object.
    """
    last = {(fields[b"kind"], fields[b"key"]): raw_id for raw_id, fields in read}
    if len(last) == len(read):
        return read
    return [
        (raw_id, fields)
        for raw_id, fields in read
        if last[fields[b"kind"], fields[b"key"]] == raw_id
        or not fields[b"value"]
        or b"repaired" in fields
    ]


def _is_wanted(fields: dict[bytes, bytes], is_wanted: IsWanted) -> bool:
    kind = fields[b"kind"].decode()
    if kind not in KINDS:
        raise ValueError(kind)
    return is_wanted(kind, key_of_field(fields[b"key"]), fields[b"value"])


def _revision_of(raw_id: bytes) -> int:
    return int(raw_id.split(b"-")[0])


def _change(
    raw_id: bytes, fields: dict[bytes, bytes], decode: Decode, own: OwnWrites | None
) -> Change:
    kind, key, value = fields[b"kind"].decode(), key_of_field(fields[b"key"]), fields[b"value"]
    if kind not in KINDS:
        raise ValueError(kind)
    revision, id_ = _revision_of(raw_id), raw_id.decode()
    item: Object | Unreadable | None = None
    if value:
        known = None if own is None else own.take(kind, key, value, revision)
        item = known or read_record(kind, key, value, decode)
    unreadable = item if isinstance(item, Unreadable) else None
    return Change(
        kind=kind,
        key=key,
        revision=revision,
        value=None if isinstance(item, Unreadable) else item,
        id=id_,
        unreadable=unreadable,
        repaired=_repair(fields) if b"repaired" in fields else None,
    )


def _repair(fields: dict[bytes, bytes]) -> tuple[str, int] | None:
    key, was = fields[b"repaired"].decode(), records.whole(fields.get(b"was"))
    return (key, was) if key in (keys.REVISION, keys.CHANGES) and was is not None else None


class Mirror:
    """All objects, heartbeats and leases, as of the last `drain`. Owned by one thread."""

    def __init__(
        self, link: Link, alive: Alive, contact: Contact, *, heartbeats_every_ms: int
    ) -> None:
        self._link = link
        self._alive = alive
        self._contact = contact
        self._last_seen = LastSeen()
        self._forgot = False
        self._server: ServerHash = (None, None, None)
        self._runs: dict[str, str] = {}
        self._heartbeats_every_ms = heartbeats_every_ms
        self._alive_read_at: int | None = None
        #: The end of each lease as its node wrote it; and of the leases that still count.
        self._lease_ends: dict[tuple[str, str, int], int] = {}
        self._leases: dict[str, int] = {}
        #: Pods that have changed since their leases were evaluated.
        self._moved: set[str] = set()
        self._reader = SharingReader()
        self.own_writes = OwnWrites()
        self._table = ObjectTable()
        #: New groups, while they are taken up in turns.
        self._arrivals: Arrivals | None = None
        #: The unreadable records on the server, by kind and key.
        self._unreadable: dict[tuple[str, str], Unreadable] = {}
        self._unreadable_in_order: tuple[Unreadable, ...] | None = ()
        #: The kinds whose objects are not in a hash.
        self._damaged_kinds: set[str] = set()
        self._revision: int | None = None
        #: The count of writes at the end of the last list: it may contain changes up to this one.
        self._listed_to = 0
        #: The highest revision among the listed objects.
        self._highest = 0
        self._repairs: dict[tuple[str, int], float] = {}
        self._connections = -1
        self._run_id = ""
        self._turn = _ShardTurn()
        self._heads = _HeadPages()

    def snapshot(self) -> Snapshot:
        """Return everything at present; the same object while nothing has changed."""
        self.drain()
        assert self._revision is not None
        return self._table.snapshot(self._revision)

    def take_up_in_turns(self) -> None:
        """Keep new groups back until `snapshot_in_turn` takes them up."""
        self._arrivals = Arrivals()

    def snapshot_in_turn(self, most: int) -> Snapshot:
        """As `snapshot`, with about `most` new groups more than the one before."""
        self._sync()
        self._take_up(most)
        assert self._revision is not None
        return self._table.snapshot(self._revision)

    @property
    def is_behind(self) -> bool:
        """Whether some new groups have not been taken up yet."""
        return bool(self._arrivals)

    def drain(self) -> None:
        """Apply every change so far, new groups included. Raises StoreUnavailable."""
        self._sync()
        if self._arrivals:
            self._take_up(len(self._arrivals))

    def _take_up(self, most: int) -> None:
        for key, group in self._arrivals.take(most) if self._arrivals else ():
            self._table.put("PodGroup", key, group)

    def _sync(self) -> None:
        """Apply every change so far, except new groups that are kept back."""
        try:
            self._drain()
            self._contact.made()
        except StoreUnavailable:
            self._contact.lost()
            raise
        self._table.set_standing(
            standing_of(self._server, runs=self._runs, contact=self._contact, forgot=self._forgot)
        )

    def _drain(self) -> None:
        for lists in range(1, LISTS + 1):
            self._detect_restart()
            try:
                if self._revision is None:
                    self._list()
                self._watch()
            except Trimmed:
                self._revision = None
                # The leader raises the count after writes past batchq; then the stream can be read.
                self._link.pause((lists - 1) * _LIST_LATER_S)
            if self._revision is not None and self._link.connections == self._connections:
                return
        if self._revision is not None:
            return
        raise StoreUnavailable(
            f"the server at {self._link.shown} is written to faster than this process can read",
            hint="the change stream was trimmed during each listing of all objects",
        )

    @property
    def revision(self) -> int:
        """The revision of the last `drain`, 0 before the first."""
        return self._revision or 0

    @property
    def highest(self) -> int:
        """The highest plausible revision among the objects of the last list."""
        return self._highest

    def repairs(self) -> list[tuple[str, int]]:
        """Return, once, the keys that were found damaged and repaired by a write within the last
        minute, and the numbers that they held.
        """
        since = monotonic() - REPORTED_WITHIN_S
        found = [one for one, at in self._repairs.items() if at >= since]
        self._repairs = {}
        return found

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Return the unreadable records as of the last `drain`, by kind and key; the same tuple
        until they change.

        `compare` finds those that were written past batchq since the list.
        """
        if self._unreadable_in_order is None:
            self._unreadable_in_order = tuple(
                self._unreadable[at] for at in sorted(self._unreadable)
            )
        return self._unreadable_in_order

    def forget(self) -> None:
        """List everything again at the next drain."""
        self._revision = None

    def compare(self, most: int) -> list[MirrorDifference]:
        """Compare the next few objects in Redis and here; the next call continues after them.

        About `most` objects are read. A difference is reported only if it persists after
        the mirror has applied every change.
        """
        self._sync()
        suspects = [
            (kind, key)
            for kind, stored, expected in self._turn.pages(self._link, self._table, most)
            for key in sorted(stored.keys() | expected)
            if not self._agrees(kind, key, stored.get(key))
        ]
        suspects += [place for place in list(self._unreadable)[:PAGE] if self._is_gone(*place)]
        found = (self._difference(kind, key) for kind, key in dict.fromkeys(suspects))
        return [difference for difference in found if difference is not None]

    def suspect_heads(self) -> dict[str, list[str]]:
        """Return by kind the keys on the next page of heads whose head does not match the object
        here.

        The next call continues after them. An object written at this moment may be among them.
        """
        self._sync()
        return self._heads.suspects(self._link, self._table.keys_after, self._head)

    def committed(self) -> Snapshot | None:
        """Return everything committed; None while some new groups have not been taken up."""
        self._sync()
        return None if self._arrivals else self._table.snapshot(self.revision)

    def page_after(self, kind: str, key: str, most: int) -> list[Object]:
        """Return up to `most` objects of a kind after a key, with all earlier commits applied."""
        self._sync()
        found = (self._table.get(kind, one) for one in self._table.keys_after(kind, key, most))
        return [one for one in found if one is not None]

    def is_unreadable(self, kind: str, key: str) -> bool:
        """Return whether the record was unreadable at the last look."""
        return kind in self._damaged_kinds or (kind, key) in self._unreadable

    def _head(self, kind: str, key: str) -> bytes | None:
        here = self.here(kind, key)
        if here is not None:
            return records.head_of_object(here)
        # An unreadable object has no known head.
        return None if (kind, key) in self._unreadable else b""

    def _difference(self, kind: str, key: str) -> MirrorDifference | None:
        """Return the difference, if any: read the record, apply all changes, read it again. If the
        record has not changed in between, both sides must agree.
        """
        while True:
            stored = self._read(kind, key)
            self._sync()
            if self._agrees(kind, key, stored):
                return None
            if self._read(kind, key) == stored:
                break
        item = None if stored is None else read_record(kind, key, stored)
        if isinstance(item, Unreadable) or (kind, key) in self._unreadable:
            # Written past batchq, so it is reported as unreadable, not as a fault of the mirror.
            self._replace(kind, key, item)
            return None
        here = self.here(kind, key)
        return MirrorDifference(
            kind=kind,
            key=key,
            mirrored=here.metadata.revision if here else 0,
            stored=item.metadata.revision if item else 0,
        )

    def _agrees(self, kind: str, key: str, stored: bytes | None) -> bool:
        here = self._unreadable.get((kind, key)) or self.here(kind, key)
        return here == (None if stored is None else read_record(kind, key, stored))

    def _is_gone(self, kind: str, key: str) -> bool:
        return self._read(kind, key) is None

    def _read(self, kind: str, key: str) -> bytes | None:
        return read_one(self._link, kind, key)

    def _list(self) -> None:
        revision = read_revision(self._link)
        table = ObjectTable()
        self._unreadable, self._unreadable_in_order = {}, None
        self._damaged_kinds = set()
        self._highest = 0
        for kind in keys.KIND_NAMES:
            table.fill(kind, self._listed(kind))
        self._listed_to = read_revision(self._link)
        self._table, self._revision = table, revision
        if self._arrivals is not None:
            # Listed groups existed before: their order is that of the sessions.
            self._arrivals = Arrivals()
        self._alive_read_at = None
        self._last_seen.note_latest(self._link)

    def _listed(self, kind: str) -> dict[str, Object]:
        """Return every object of a kind; note unreadable ones, and a key that is no hash."""
        found: dict[str, Object] = {}
        read, highest = self._reader.read_record, self._highest
        try:
            # Decoded as it arrives: the stored bytes of all would need more memory than the
            # objects.
            for key, stored in scan_objects(self._link, kind):
                item = read(kind, key, stored)
                if isinstance(item, Unreadable):
                    self._note_unreadable(kind, key, item)
                    continue
                found[key] = item
                if highest < item.metadata.revision < IMPLAUSIBLE:
                    highest = item.metadata.revision
        except StoreUnavailable as error:
            if not is_wrong_type(error.__cause__):
                raise
            why = f"{keys.objects(kind)} is not a hash"
            self._damaged_kinds.add(kind)
            self._note_unreadable(kind, "", Unreadable(kind=kind, key="", why=why))
        self._highest = highest
        return found

    def _watch(self) -> None:
        while True:
            assert self._revision is not None
            after = self._revision
            revision, reply, self._server = self._link.ask(partial(_pull, after=after))
            # A fallen count: it was set back, or everything was deleted.
            if revision < after:
                self._repairs[keys.REVISION, revision] = monotonic()
                raise Trimmed
            entries = sum(len(some) for _, some in reply or ())
            changes = read_changes(
                reply, after, self._reader.read, own=self.own_writes, latest_only=True
            )
            if not changes and revision != after:
                raise Trimmed
            for change in changes:
                self._take(change)
            self._note_last(reply)
            if entries < CHANGES_A_TRIP:
                self._read_alive()
                return

    def _take(self, change: Change) -> None:
        self._revision = change.revision
        if change.repaired is not None:
            self._repairs[change.repaired] = monotonic()
        if change.kind == "Pod":
            self._moved.add(change.key)
        if change.unreadable is not None:
            # The stream may name a record that is not stored.
            stored = self._read(change.kind, change.key)
            item = None if stored is None else read_record(change.kind, change.key, stored)
            self._replace(change.kind, change.key, item)
            return
        if self._unreadable:
            self._forget_unreadable(change.kind, change.key)
        # Only then: an object may state a revision that is too high.
        if change.revision <= self._listed_to:
            here = self.here(change.kind, change.key)
            if here is not None and here.metadata.revision >= change.revision:
                return
        if self._is_kept_back(change):
            return
        if change.value is None:
            self._table.remove(change.kind, change.key)
        else:
            self._table.put(change.kind, change.key, change.value)

    def _is_kept_back(self, change: Change) -> bool:
        """Return whether a change concerns a new group that waits to be taken up."""
        arrivals = self._arrivals
        if arrivals is None or change.kind != "PodGroup":
            return False
        group = change.value
        if isinstance(group, PodGroup) and is_new(group):
            waits = arrivals.get(change.kind, change.key) is not None
            if waits or self._table.get(change.kind, change.key) is None:
                arrivals.put(change.key, group)
                return True
        arrivals.remove(change.key)
        return False

    def here(self, kind: str, key: str) -> Object | None:
        """Return the latest known version of an object, taken up or not."""
        waits = self._arrivals.get(kind, key) if self._arrivals else None
        return waits or self._table.get(kind, key)

    def _replace(self, kind: str, key: str, item: Object | Unreadable | None) -> None:
        """Replace what is known of an object."""
        self._forget_unreadable(kind, key)
        if self._arrivals is not None and kind == "PodGroup":
            self._arrivals.remove(key)
        if item is None or isinstance(item, Unreadable):
            self._table.remove(kind, key)
        else:
            self._table.put(kind, key, item)
        if isinstance(item, Unreadable):
            self._note_unreadable(kind, key, item)

    def _note_unreadable(self, kind: str, key: str, item: Unreadable) -> None:
        self._unreadable[kind, key] = item
        self._unreadable_in_order = None

    def _forget_unreadable(self, kind: str, key: str) -> None:
        if self._unreadable.pop((kind, key), None) is not None:
            self._unreadable_in_order = None

    def _read_alive(self) -> None:
        """Read heartbeats and leases at intervals; drop the leases of ended attempts at once."""
        now = monotonic_ns() // 1_000_000
        every_ms = self._heartbeats_every_ms
        if self._waits_for_reports():
            every_ms = min(every_ms, AWAIT_REPORTS_EVERY_MS)
        if self._alive_read_at is None or now - self._alive_read_at >= every_ms:
            hashes = self._alive.read(self._table.nodes_in_use())
            self._alive_read_at = now
            self._table.set_beats(beats_of(hashes))
            self._runs = runs_of(hashes)
            self._lease_ends = leases_of(hashes)
            for node, what in malformed_in(hashes, self._lease_ends).items():
                self._link.suspect(node, what)
            self._leases, self._moved = {}, {pod for _, pod, _ in self._lease_ends}
            self._table.set_leases(self._current_leases())
        elif self._moved:
            self._table.set_leases(self._current_leases())

    def _waits_for_reports(self) -> bool:
        """Return whether a ready node has not reported yet under this run of the server."""
        run = (self._server[0] or b"").decode(errors="replace")
        return any(
            isinstance(node, Node)
            and node.status.ready
            and self._runs.get(node.metadata.name) != run
            for node in self._table.list("Node", "")
        )

    def _current_leases(self) -> dict[str, int]:
        """Return the leases of present attempts; the same object if nothing has changed."""
        ends = {uid: self._lease_of(uid) for uid in self._moved}
        self._moved = set()
        changed = {uid: end for uid, end in ends.items() if end != self._leases.get(uid)}
        if changed:
            self._leases = dict(self._leases)
        for uid, end in changed.items():
            if end is None:
                del self._leases[uid]
            else:
                self._leases[uid] = end
        return self._leases

    def _lease_of(self, uid: str) -> int | None:
        pod = self._table.on_node(uid)
        if pod is None:
            return None
        return self._lease_ends.get((pod.status.node, uid, pod.status.attempt))

    def _detect_restart(self) -> None:
        """Detect a restart, after which writes may be lost and the revision be equal."""
        connections = self._link.connections
        if connections == self._connections:
            return
        run_id = self._link.run_id()
        # Asking may open a connection; then the next look asks once more.
        self._connections = connections
        if run_id != self._run_id:
            self._forgot = self._last_seen.is_forgotten(self._link)
            self._run_id = run_id
            self._revision = None
            # Contact counts only from the first answer of the new run.
            self._contact.lost()

    def _note_last(self, reply: Any) -> None:
        for _, entries in reply or ():
            self._last_seen.note(*entries[-1])


def _pull(client: Any, after: int) -> tuple[int, Any, ServerHash]:
    """Read in one round trip; the revision comes first, so the stream reaches at least to it."""
    pipeline = client.pipeline(transaction=False)
    pipeline.get(keys.REVISION)
    pipeline.xread({keys.CHANGES: after_change(after)}, count=CHANGES_A_TRIP)
    pipeline.hmget(keys.SERVER, ("run", "generation", "since"))
    revision, reply, server = pipeline.execute()
    return count_of_writes(revision), reply, tuple(server)


class _HeadPages:
    """How far the check of heads has come: among the server's heads, and among the objects.

    Scripts compare heads, not objects. If the head of an object is missing or wrong, the scripts
    refuse every change of the object as outdated, until the head is repaired, and its resources are
    not freed.
    """

    def __init__(self) -> None:
        self._cursors = dict.fromkeys(KINDS, 0)
        self._after = dict.fromkeys(KINDS, "")

    def suspects(
        self, link: Link, keys_after: KeysAfter, expected: ExpectedHead
    ) -> dict[str, list[str]]:
        """Return by kind the keys on the next pages whose head is not the expected one.

        Raises StoreUnavailable.
        """
        wanted = {kind: keys_after(kind, self._after[kind], HEADS_A_PAGE) for kind in KINDS}

        def asked(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for kind in KINDS:
                pipeline.hscan(keys.heads(kind), cursor=self._cursors[kind], count=HEADS_A_PAGE)
                # HMGET needs at least one field.
                fields = [field_of_key(key) for key in wanted[kind]] or [b""]
                pipeline.hmget(keys.heads(kind), fields)
            return cast("list[Any]", pipeline.execute())

        answers = iter(link.ask(asked))
        found: dict[str, list[str]] = {}
        for kind in KINDS:
            cursor, page = next(answers)
            heads = {key_of_field(field): head for field, head in page.items()}
            heads |= dict(zip(wanted[kind], next(answers), strict=False))
            self._cursors[kind] = int(cursor)
            self._after[kind] = wanted[kind][-1] if wanted[kind] else ""
            found[kind] = [
                key for key, head in heads.items() if head_differs(head or b"", expected(kind, key))
            ]
        return {kind: some for kind, some in found.items() if some}


def head_differs(head: bytes, expected: bytes | None) -> bool:
    """Return whether a stored head (b"" for none) differs from the expected one."""
    if expected is None:
        return bool(head) and not records.is_head(head)
    return head != expected


class _ShardTurn:
    """Where the comparison continues: the kind, the cursor in Redis, the key in the mirror."""

    def __init__(self) -> None:
        self._kinds = list(keys.KIND_NAMES)
        self._cursor = 0
        self._after = ""
        self._scanned = False

    def pages(
        self, link: Link, table: ObjectTable, most: int
    ) -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
        """Yield pages of objects as stored, each with the keys that the mirror expects among them.

        Ends after `most` objects, or after every kind was compared once.
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
            while expected := table.keys_after(kind, self._after, PAGE):
                self._after = expected[-1]
                read += len(expected)
                yield kind, read_many(link, kind, expected), expected
                if read >= most:
                    return
            self._kinds = [*self._kinds[1:], kind]
            self._cursor, self._after, self._scanned = 0, "", False


#: Namespace and queue.
Line: TypeAlias = tuple[str, str]


class Arrivals:
    """New groups that wait to be taken up, by key. Owned by one thread."""

    def __init__(self) -> None:
        #: The groups of each namespace and queue, in order; the line whose turn is next comes
        #: first.
        self._lines: dict[Line, dict[str, PodGroup]] = {}
        self._line_of: dict[str, Line] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def get(self, kind: str, key: str) -> PodGroup | None:
        """Return the group if it waits here."""
        line = self._line_of.get(key) if kind == "PodGroup" else None
        return None if line is None else self._lines[line][key]

    def put(self, key: str, group: PodGroup) -> None:
        """Add a group at the end of its line; a waiting one keeps its place."""
        line = self._line_of.setdefault(key, (group.metadata.namespace, group.spec.queue))
        self._lines.setdefault(line, {})[key] = group

    def remove(self, key: str) -> PodGroup | None:
        """Remove a group, and return it; None if it does not wait here."""
        line = self._line_of.pop(key, None)
        if line is None:
            return None
        groups = self._lines[line]
        group = groups.pop(key)
        if not groups:
            del self._lines[line]
        return group

    def take(self, most: int) -> list[tuple[str, PodGroup]]:
        """Remove and return about `most` groups, in turn from each line, with dependencies."""
        taken: list[tuple[str, PodGroup]] = []
        while self._lines and len(taken) < most:
            share = max(1, (most - len(taken)) // len(self._lines))
            for line in list(self._lines):
                if len(taken) >= most:
                    break
                until = min(most, len(taken) + share)
                while len(taken) < until and line in self._lines:
                    self._take_first(line, taken)
                if line in self._lines:
                    # Move this line behind the others for the next call.
                    self._lines[line] = self._lines.pop(line)
        return taken

    def _take_first(self, line: Line, taken: list[tuple[str, PodGroup]]) -> None:
        """Take the first group of a line, after all groups that it depends on."""
        wanted = [next(iter(self._lines[line]))]
        while wanted:
            group = self.get("PodGroup", wanted[-1])
            if group is None:
                wanted.pop()
                continue
            space = group.metadata.namespace
            needed = [f"{space}/{other.name}" for other in group.spec.depends_on]
            missing = [key for key in needed if key in self._line_of and key not in wanted]
            if missing:
                wanted += missing
                continue
            key = wanted.pop()
            self.remove(key)
            taken.append((key, group))


def is_new(group: PodGroup) -> bool:
    """Return whether no decision has been made about a group yet."""
    status = group.status
    return status.phase == PodGroupPhase.PENDING and not status.admission and not status.reserved_at
