"""Whether the books are what the objects say, found out a page at a time.

Anybody with a submitter's credentials can write sums, charges and limits that read well and are
false, or delete objects past batchq and leave what they were charged. A recount sets that right
(`batchq.store.recount`), and reads everything at once; this tells whether one is needed, at a cost
in each step that is the same however much there is.
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

#: So many objects of a kind are looked at in one step.
PAGE = 500
#: A pass begins so long after the last one.
APART_S = 2.0
#: So often the picture of one instant is asked for before it is left to the next step.
_TRIES = 4
#: So many differences that a recount leaves as they are are remembered.
_MOST_EXPLAINED = 10_000
#: The kinds whose objects are charged for.
_CHARGED = ("Node", "PodGroup", "Pod")


class Objects(Protocol):
    """The objects as the mirror has them."""

    def settled(self) -> Snapshot | None:
        """Everything that was committed; None while there is something that was not taken up."""

    def page_after(self, kind: str, key: str, most: int) -> list[Object]:
        """The next objects of a kind, behind a key, with all that was committed before."""

    def here(self, kind: str, key: str) -> Object | None:
        """The object, as of the last call of one of the others."""

    def is_left_out(self, kind: str, key: str) -> bool:
        """Whether what stands there cannot be read."""


class _Stored(Struct, frozen=True):
    """What stood in the books at one revision: of the charges, how many."""

    revision: int
    ledger: Mapping[bytes, bytes]
    limits: Mapping[bytes, bytes]
    holders: int


class _Pass:
    """One pass: the sums that the objects of one instant come to, so far."""

    def __init__(self, snapshot: Snapshot, stored: _Stored) -> None:
        pods = chain.from_iterable(snapshot.pods.values())
        self._left: Iterator[Object] = chain(snapshot.nodes, snapshot.groups, pods)
        self._stored = stored
        self._sums: Counter[str] = Counter()
        self._holders = 0

    def step(self) -> frozenset[str] | None:
        """Count a page of objects; once all are counted, what differs."""
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
    """Owned by the thread that owns the mirror."""

    def __init__(self, link: Link, objects: Objects) -> None:
        self._link = link
        self._objects = objects
        self._pass: _Pass | None = None
        self._begin_at = 0.0
        self._limits: frozenset[str] = frozenset()
        self._after = dict.fromkeys(_CHARGED, "")
        #: What was found since the last recount, and what that has left as it is: the charges of
        #: objects that cannot be read.
        self._found: frozenset[str] = frozenset()
        self._lone: dict[str, Pod] = {}
        self._alone: list[tuple[Pod, bool]] = []
        self._explained: frozenset[str] = frozenset()

    def next(self) -> bool:
        """Look at the next page; whether something in the books is not what the objects say.

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
        """All was counted anew. What was found and is left as it was, is as it should be."""
        if not is_changed:
            self._explained = frozenset(islice(self._found | self._explained, _MOST_EXPLAINED))
        self._found = frozenset()

    def lone_pods(self) -> list[Pod]:
        """Pods on the latest page whose group is gone, as it was in the pass before: somebody has
        deleted it past batchq.
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
        """The holders on the next page whose charge is not what their object says."""
        found: list[str] = []
        for kind in _CHARGED:
            page = self._objects.page_after(kind, self._after[kind], PAGE)
            self._after[kind] = key_of(page[-1]) if page else ""
            if kind == "Pod":
                self._note_lone([one for one in page if isinstance(one, Pod)])
            suspects = self._differing(page)
            if suspects:
                # Once more, as one may have been written between the two reads.
                self._objects.settled()
                there = (self._objects.here(kind, key_of(one)) for one in suspects)
                suspects = self._differing([one for one in there if one is not None])
            found += [f"{kind} {key_of(one)} {one.metadata.revision}" for one in suspects]
        return frozenset(found)

    def _note_lone(self, pods: Sequence[Pod]) -> None:
        if not pods:
            # The end of a pass: what is gone since need not be remembered.
            self._lone = {uid: pod for uid, pod in self._lone.items() if self._is_alone(pod)}
        lone = {pod.metadata.uid: pod for pod in pods if self._is_alone(pod)}
        self._alone = [(pod, uid in self._lone) for uid, pod in lone.items()]
        self._lone |= lone

    def _is_alone(self, pod: Pod) -> bool:
        key = f"{pod.metadata.namespace}/{pod.spec.pod_group}"
        group = self._objects.here("PodGroup", key)
        if group is None:
            return not self._objects.is_left_out("PodGroup", key)
        return group.metadata.uid != pod.status.group_uid

    def _differing(self, objects: Sequence[Object]) -> list[Object]:
        """Those of the objects whose charges are others than stand in the server."""
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
    """The scopes whose limits are not what the objects state."""
    objects = _by_kind([*snapshot.queues, *snapshot.quotas, *snapshot.nodes])
    limits, _ = read_limits(stored.limits, stored.revision)
    stated = recount.limits_of(objects) | recount.of_every_namespace(limits)
    scopes: Collection[str] = {*limits, *stated}
    return frozenset(f"limit {one}" for one in scopes if limits.get(one) != stated.get(one))
