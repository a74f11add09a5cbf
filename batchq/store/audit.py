"""Page-by-page audit: compares ledger, charges and limits with the objects.

A user with a submitter's credentials can write sums, charges and limits that are well formed and
false, or delete objects past batchq and leave their charges behind. A recount
(`batchq.store.recount`) repairs that but reads everything at once; the audit decides whether a
recount is needed, in steps of constant cost.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Protocol, cast

from msgspec import Struct

from batchq.api.objects import KINDS, Object, Pod, key_of, kind_of
from batchq.core.session.snapshot import Snapshot
from batchq.store import codec, keys, recount
from batchq.store.codec import DAMAGE
from batchq.store.link import Link, count_of_writes
from batchq.store.records import read_ledger, read_limits

#: Objects of a kind checked in one step.
PAGE = 500
#: Seconds from the end of one pass to the beginning of the next.
APART_S = 2.0
#: Attempts at reading mirror and ledger at the same revision, in one step.
_TRIES = 4
#: Differences remembered as explained by a recount.
_MOST_EXPLAINED = 10_000
#: The kinds whose objects carry charges.
_CHARGED = ("Node", "PodGroup", "Pod")


class Objects(Protocol):
    """The objects as the mirror has them."""

    def settled(self) -> Snapshot | None:
        """Return the snapshot of everything committed; None while some changes have not been taken
        up.
        """

    def page_after(self, kind: str, key: str, most: int) -> list[Object]:
        """Return the next `most` objects of a kind after a key, with earlier commits applied."""

    def here(self, kind: str, key: str) -> Object | None:
        """Return the object as of the last call of another method; None if there is none."""

    def is_unreadable(self, kind: str, key: str) -> bool:
        """Whether the stored record cannot be read."""


class _Stored(Struct, frozen=True):
    """The stored ledger and limits at one revision, and the number of charges."""

    revision: int
    ledger: Mapping[bytes, bytes]
    limits: Mapping[bytes, bytes]
    holders: int


class _Pass:
    """One pass: the sums of the charges of the objects, at one instant, so far."""

    def __init__(self, snapshot: Snapshot, stored: _Stored) -> None:
        pods = chain.from_iterable(snapshot.pods.values())
        self._left: Iterator[Object] = chain(snapshot.nodes, snapshot.groups, pods)
        self._stored = stored
        self._sums: Counter[str] = Counter()
        self._holders = 0

    def step(self) -> frozenset[str] | None:
        """Count a page of objects; after the last page, return the differences."""
        page = list(islice(self._left, PAGE))
        charges = recount.charges_of(_by_kind(page))
        self._holders += len(charges)
        for scope, amounts in recount.sums_of(charges).items():
            for name, units in amounts.items():
                self._sums[f"{scope} {name}"] += units
        return None if len(page) == PAGE else self._differences()

    def _differences(self) -> frozenset[str]:
        ledger, damaged = read_ledger(self._stored.ledger)
        stored = {
            f"{scope} {name}": units
            for scope, amounts in ledger.items()
            for name, units in amounts.items()
        }
        found = {f"ledger {one.key}" for one in damaged}
        for field in {*stored, *self._sums}:
            if more := stored.get(field, 0) - self._sums[field]:
                found.add(f"ledger {field} {more}")
        if more := self._stored.holders - self._holders:
            found.add(f"charges {more}")
        return frozenset(found)


class BooksAudit:
    """Compares the books with the objects, a page at a time. Owned by the mirror's thread."""

    def __init__(self, link: Link, objects: Objects) -> None:
        self._link = link
        self._objects = objects
        self._pass: _Pass | None = None
        self._begin_at = 0.0
        self._limits: frozenset[str] = frozenset()
        self._after = dict.fromkeys(_CHARGED, "")
        #: Differences found since the last recount, and those that it left in place: the charges of
        #: unreadable objects.
        self._found: frozenset[str] = frozenset()
        self._lone: dict[str, Pod] = {}
        self._alone: list[tuple[Pod, bool]] = []
        self._explained: frozenset[str] = frozenset()

    def next(self) -> bool:
        """Check the next page; return whether a difference was found that no recount has explained.

        Raises StoreUnavailable.
        """
        wrong = self._wrong_charges()
        if self._pass is None and time.monotonic() >= self._begin_at:
            self._begin()
        ended = self._pass.step() if self._pass is not None else None
        if ended is not None:
            self._pass, self._begin_at = None, time.monotonic() + APART_S
            wrong |= ended | self._limits
        self._found = frozenset(islice(self._found | wrong, _MOST_EXPLAINED))
        return not wrong <= self._explained

    def recounted(self, *, is_changed: bool) -> None:
        """Note that a recount is done. Differences that it left in place are treated as correct."""
        if not is_changed:
            self._explained = frozenset(islice(self._found | self._explained, _MOST_EXPLAINED))
        self._found = frozenset()

    def lone_pods(self) -> list[Pod]:
        """Return the pods on the latest page whose group is missing, now and in the pass before: it
        was deleted past batchq.
        """
        return [one for one, is_known in self._alone if is_known]

    def _begin(self) -> None:
        for _ in range(_TRIES):
            snapshot = self._objects.settled()
            if snapshot is None:
                return
            stored = self._link.ask(_pull)
            if stored.revision == snapshot.revision:
                self._pass = _Pass(snapshot, stored)
                self._limits = _wrong_limits(snapshot, stored)
                return

    def _wrong_charges(self) -> frozenset[str]:
        """Return the holders on the next page whose charge differs from their object's."""
        found: list[str] = []
        for kind in _CHARGED:
            page = self._objects.page_after(kind, self._after[kind], PAGE)
            self._after[kind] = key_of(page[-1]) if page else ""
            if kind == "Pod":
                self._note_lone([one for one in page if isinstance(one, Pod)])
            suspects = self._differing(page)
            if suspects:
                # Check again: an object may have been written between the two reads.
                self._objects.settled()
                there = (self._objects.here(kind, key_of(one)) for one in suspects)
                suspects = self._differing([one for one in there if one is not None])
            found += [f"{kind} {key_of(one)} {one.metadata.revision}" for one in suspects]
        return frozenset(found)

    def _note_lone(self, pods: Sequence[Pod]) -> None:
        if not pods:
            # The end of a pass: drop the pods that are gone.
            self._lone = {uid: pod for uid, pod in self._lone.items() if self._is_alone(pod)}
        lone = {pod.metadata.uid: pod for pod in pods if self._is_alone(pod)}
        self._alone = [(pod, uid in self._lone) for uid, pod in lone.items()]
        self._lone |= lone

    def _is_alone(self, pod: Pod) -> bool:
        key = f"{pod.metadata.namespace}/{pod.spec.pod_group}"
        group = self._objects.here("PodGroup", key)
        if group is None:
            return not self._objects.is_unreadable("PodGroup", key)
        return group.metadata.uid != pod.status.group_uid

    def _differing(self, objects: Sequence[Object]) -> list[Object]:
        """Return the objects whose charges differ from the stored ones."""
        wanted = {
            key_of(one): recount.charges_of({kind_of(one): {key_of(one): one}}) for one in objects
        }
        holders = [holder for charges in wanted.values() for holder in charges]
        stored = dict(zip(holders, self._charges(holders), strict=True)) if holders else {}
        return [
            one
            for one in objects
            if any(_held(stored[holder]) != held for holder, held in wanted[key_of(one)].items())
        ]

    def _charges(self, holders: Sequence[str]) -> list[bytes | None]:
        return self._link.ask(
            lambda client: cast("list[bytes | None]", client.hmget(keys.CHARGES, holders))
        )


def _held(stored: bytes | None) -> object:
    if stored is None:
        return None
    try:
        return codec.read_charge(stored)
    except DAMAGE:
        return None


def _by_kind(objects: Iterable[Object]) -> dict[str, dict[str, Object]]:
    found: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS}
    for one in objects:
        found[kind_of(one)][key_of(one)] = one
    return found


def _pull(client: Any) -> _Stored:
    pipeline = client.pipeline(transaction=True)
    pipeline.get(keys.REVISION)
    pipeline.hgetall(keys.LEDGER)
    pipeline.hgetall(keys.LIMITS)
    pipeline.hlen(keys.CHARGES)
    revision, *rest = pipeline.execute()
    return _Stored(count_of_writes(revision), *rest)


def _wrong_limits(snapshot: Snapshot, stored: _Stored) -> frozenset[str]:
    """Return the scopes whose limits differ from those that the objects state."""
    objects = _by_kind([*snapshot.queues, *snapshot.quotas, *snapshot.nodes])
    limits, _ = read_limits(stored.limits, stored.revision)
    stated = recount.limits_of(objects) | recount.of_every_namespace(limits)
    scopes: Collection[str] = {*limits, *stated}
    return frozenset(f"limit {one}" for one in scopes if limits.get(one) != stated.get(one))
