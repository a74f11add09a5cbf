"""A store in this process's memory: for the simulator, and for tests.

It has the contract of `RedisStore`, and one suite tests both. One thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence

from msgspec import structs

from batchq.api.objects import Object, Pod
from batchq.api.transaction import (
    Answer,
    Commit,
    Delivery,
    Event,
    Ledger,
    Transaction,
    Word,
)
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.store.object_table import ObjectTable
from batchq.store.rules import (
    NOTHING,
    Held,
    Weighed,
    commit_of,
    holds_node,
    is_of_node,
    refuse_charges,
    refuse_outdated,
    refuse_write,
    weigh,
    well_formed,
)

EVENTS_KEPT = 10_000
REQUESTS_KEPT = 256
_NOTHING_WEIGHED = weigh((), lambda _: NOTHING)
_NO_SUMS: Mapping[str, int] = {}
_OK = Answer(word=Word.OK)


class MemoryStore:
    """Objects, ledger and events as Python values."""

    def __init__(self) -> None:
        self._table = ObjectTable()
        self._revision = 0
        self._epoch = 0
        self._sums: Ledger = {}
        self._charges: dict[str, Held] = {}
        self._limits: dict[str, dict[str, int]] = {}
        #: The revision at which limits last changed, nodes' limits excluded.
        self._limits_changed_at = 0
        self._outbox: dict[tuple[str, int], Delivery] = {}
        self._leases: dict[str, int] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._answered: OrderedDict[str, tuple[tuple[Answer, ...], int]] = OrderedDict()

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object; None if there is none."""
        return self._table.get(kind, key)

    def get_many(self, kind: str, keys: Sequence[str]) -> Mapping[str, Object]:
        """Return the existing ones of these objects, by key."""
        found = ((key, self._table.get(kind, key)) for key in keys)
        return {key: item for key, item in found if item is not None}

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind (of one namespace), ordered by key."""
        return self._table.list(kind, namespace)

    def pods_of(self, group_uid: str) -> Sequence[Pod]:
        """Return the pods of one group, ordered by key."""
        return self._table.pods_of(group_uid)

    def snapshot(self) -> Snapshot:
        """Return everything that a session reads; the same object until something changes."""
        return self._table.snapshot(self._revision)

    def ledger(self) -> Ledger:
        """Return the sums of every scope, without zeros."""
        return {scope: dict(self._sums[scope]) for scope in sorted(self._sums)}

    def charges(self) -> Mapping[str, Held]:
        """Return every holder's scopes and amounts."""
        return {
            holder: (scopes, dict(amounts))
            for holder, (scopes, amounts) in sorted(self._charges.items())
        }

    def events(self, *, kind: str = "", key: str = "", most: int = 100) -> Sequence[Event]:
        """Return the latest events (of one object), oldest first."""
        found: list[Event] = []
        for event in reversed(self._events):
            if len(found) == most:
                break
            if (not kind or event.kind == kind) and (not key or event.key == key):
                found.append(event)
        return tuple(reversed(found))

    def outbox(self) -> Sequence[Delivery]:
        """Return the bound pods not yet delivered, in order of binding."""
        return tuple(self._outbox.values())

    def commit(
        self,
        transactions: Sequence[Transaction],
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> Commit:
        """Apply each transaction whole or not at all, in order (see `ports.Store`)."""
        for transaction in transactions:
            well_formed(transaction)
        known = self._answered.get(request_id)
        if known is None:
            answers = tuple([self._answer(one, epoch, overcommit, seen) for one in transactions])
            known = self._answered[request_id] = (answers, self._revision)
            if len(self._answered) > REQUESTS_KEPT:
                self._answered.popitem(last=False)
        return commit_of(transactions, *known)

    def next_epoch(self) -> int:
        """Begin a new leader's epoch, and return it."""
        self._epoch += 1
        return self._epoch

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """Remove delivered pods from the outbox."""
        for delivery in deliveries:
            self._outbox.pop((delivery.pod, delivery.attempt), None)

    def set_standing(self, standing: ContactStanding) -> None:
        """Set the state of the reader's contact, as with a server."""
        self._table.set_standing(standing)

    def hold_lease(self, pod: str, until_ms: int) -> None:
        """Set the end of the pod's lease. The lease ends with the pod's attempt."""
        self._leases[pod] = until_ms
        self._table.set_leases(dict(self._leases))

    def _answer(
        self, transaction: Transaction, epoch: int | None, overcommit: int, seen: int | None
    ) -> Answer:
        if epoch is not None and epoch != self._epoch:
            return Answer(word=Word.EPOCH, subject=str(self._epoch))
        for write in transaction.writes:
            refused = refuse_write(write, self._table.get(write.kind, write.key))
            if refused is not None:
                return refused
        if not transaction.charges:
            self._apply(transaction, _NOTHING_WEIGHED)
            return _OK
        weighed = weigh(transaction.charges, self._held)
        refused = refuse_outdated(weighed, seen, self._limits_changed_at)
        if refused is not None:
            return refused
        stated = {limit.scope: limit.amounts for limit in transaction.limits}
        refused = refuse_charges(
            weighed,
            self._sums_in,
            lambda scope: stated[scope] if scope in stated else self._limits.get(scope),
            overcommit,
        )
        if refused is not None:
            return refused
        self._apply(transaction, weighed)
        return _OK

    def _apply(self, transaction: Transaction, weighed: Weighed) -> None:
        for write in transaction.writes:
            if write.is_condition:
                continue
            self._revision += 1
            if write.value is None:
                self._table.remove(write.kind, write.key)
            else:
                meta = structs.replace(write.value.metadata, revision=self._revision)
                item = structs.replace(write.value, metadata=meta)
                self._table.put(write.kind, write.key, item)
            if self._leases:
                self._end_lease(write.kind, write.key)
        if transaction.charges:
            self._count(weighed)
        for limit in transaction.limits:
            if limit.amounts is None:
                self._limits.pop(limit.scope, None)
            else:
                self._limits[limit.scope] = dict(limit.amounts)
            if not is_of_node(limit.scope):
                self._limits_changed_at = self._revision
        for delivery in transaction.deliveries:
            self._outbox[delivery.pod, delivery.attempt] = delivery
        self._events.extend(transaction.events)

    def _count(self, weighed: Weighed) -> None:
        for scope, more in weighed.plus.items():
            sums = self._sums.get(scope)
            if sums is None:
                self._sums[scope] = dict(more)
                continue
            for name, units in more.items():
                sums[name] = sums.get(name, 0) + units
        for scope, less in weighed.minus.items():
            sums = self._sums.setdefault(scope, {})
            for name, units in less.items():
                sums[name] = sums.get(name, 0) - units
                if not sums[name]:
                    del sums[name]
            if not sums:
                del self._sums[scope]
        for holder, held in weighed.held.items():
            if held is NOTHING:
                self._charges.pop(holder, None)
            else:
                self._charges[holder] = held

    def _end_lease(self, kind: str, key: str) -> None:
        if kind == "Pod" and key in self._leases and not holds_node(self._table.get(kind, key)):
            del self._leases[key]
            self._table.set_leases(dict(self._leases))

    def _held(self, holder: str) -> Held:
        return self._charges.get(holder, NOTHING)

    def _sums_in(self, scope: str) -> Mapping[str, int]:
        return self._sums.get(scope, _NO_SUMS)
