"""The scripts' calls that apply a commit.

A commit is split into calls of `commit.lua`, each of a bounded size. A transaction that creates one
object with one charge, such as a single submission, is applied by `create.lua`, in a third of the
server's time. It leaves everything unusual to `commit.lua`: refusals and damaged records, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from batchq.api.transaction import EVERY_NAMESPACE, Commit, Transaction, objects_scope
from batchq.errors import StoreUnavailable
from batchq.store import keys, records, scripts
from batchq.store.link import Asked, Call, Link, is_forbidden
from batchq.store.mirror import OwnWrites
from batchq.store.node_channels import AcknowledgedReport, removals
from batchq.store.records import Written
from batchq.store.rules import commit_of, well_formed

#: Bounds of one call of the script: the server does nothing else meanwhile, and large calls take
#: longer for each write, as their data no longer fits the processor's caches. A single transaction
#: is never divided.
TRANSACTIONS_A_CALL = 100
WRITES_A_CALL = 250
BYTES_A_CALL = 8 * 1024 * 1024

#: Returns the calls of `deliver.lua` for these transactions of a commit with this request key.
Deliverer: TypeAlias = Callable[[str, Sequence[Transaction]], Sequence[Call]]

#: About so many events are kept.
EVENTS_KEPT = 10_000

#: More conditions than a usual name needs.
_MOST_WRITES = 64
#: The largest amount has a digit less than the numbers that `create.lua` adds.
_AMOUNTS_BELOW = 10**14
#: The scopes whose limits state one resource; those of other scopes have other rules, too.
_OF_ONE_RESOURCE = objects_scope("")


class CommitCalls:
    """Composes the calls of one commit, each within the bounds and naming the one before it."""

    def __init__(
        self,
        request_id: str,
        *,
        led: bool,
        arguments: tuple[str | int, ...],
        auditor: Callable[[Transaction], bytes] | None = None,
        deliverer: Deliverer | None = None,
        own: OwnWrites | None = None,
    ) -> None:
        """`auditor` returns the audit record of a transaction, which is written with it. `own`
        notes what is written.
        """
        self._request_id = request_id
        self._led = led
        self._arguments = arguments
        self._auditor = auditor
        self._deliverer = deliverer
        self._own = own
        self._count = 0
        #: The request key of the last call.
        self._former = ""

    def of(
        self,
        transactions: Sequence[Transaction],
        acknowledged: Sequence[AcknowledgedReport | None] = (),
    ) -> Iterator[Sequence[Asked]]:
        """Yield the calls for these transactions, which follow those of earlier ones; encoded one
        by one, since all of a large commit at once may exceed this process's memory.

        Each is followed by the removal of the reports that its applied transactions acknowledge,
        and by the delivery of what they bind if there is a `deliverer`.
        """
        kinds = records.kinds_of(transactions)
        places = records.places_of(kinds)
        needed = _commit_keys(transactions, kinds, led=self._led)
        begin = 0
        written = (records.write_transaction(well_formed(one), places) for one in transactions)
        for some in _parts(transactions, written):
            past = begin + len(some)
            yield self._call(transactions[begin:past], some, needed, acknowledged[begin:past])
            begin = past

    def _call(
        self,
        transactions: Sequence[Transaction],
        written: Sequence[Written],
        needed: Sequence[str],
        acknowledged: Sequence[AcknowledgedReport | None],
    ) -> Sequence[Asked]:
        request = keys.request(f"{self._request_id}.{self._count}")
        if self._own is not None:
            for transaction, one in zip(transactions, written, strict=True):
                self._own.note(transaction, one.values)
        audits = () if self._auditor is None else map(self._auditor, transactions)
        audit_keys = () if self._auditor is None else (keys.AUDIT, keys.ACCESS_STATE)
        names = (request, *(name or request for name in needed), *audit_keys)
        values = chain.from_iterable(one.values for one in written)
        arguments = (records.joined(written), *self._arguments, self._former, *values, *audits)
        behind = [(scripts.ACKNOWLEDGE, one) for one in removals(request, acknowledged)]
        if self._deliverer is not None:
            handed = self._deliverer(request, transactions)
            behind += [(scripts.DELIVER, one) for one in handed]
        self._former, self._count = request, self._count + 1
        return [(scripts.COMMIT, (names, arguments)), *behind]


def size_of(asked: Sequence[Asked]) -> int:
    """Return the approximate bytes to send."""
    return sum(len(one) for _, call in asked for one in call[1] if isinstance(one, bytes))


def _parts(
    transactions: Sequence[Transaction], written: Iterable[Written]
) -> Iterator[Sequence[Written]]:
    """Yield encoded transactions, as many as fit in one call of the script."""
    part: list[Written] = []
    writes, size = 0, 0
    for transaction, one in zip(transactions, written, strict=True):
        more = len(transaction.writes)
        full = (
            len(part) >= TRANSACTIONS_A_CALL
            or writes + more > WRITES_A_CALL
            or size + one.size > BYTES_A_CALL
        )
        if full and part:
            yield part
            part, writes, size = [], 0, 0
        part.append(one)
        writes, size = writes + more, size + one.size
    if part:
        yield part


def _commit_keys(
    transactions: Sequence[Transaction], kinds: Sequence[str], *, led: bool
) -> tuple[str, ...]:
    """Return the keys of each call after its request; "" for those that the commit does not use.

    A server with users checks the right to write every key that a script is given.
    """
    charges = any(one.charges for one in transactions)
    return (
        keys.EPOCH if led else "",
        keys.REVISION,
        keys.CHANGES,
        keys.EVENTS if any(one.events for one in transactions) else "",
        keys.LEDGER if charges else "",
        keys.CHARGES if charges else "",
        keys.LIMITS if any(one.limits for one in transactions) else "",
        keys.OUTBOX if any(one.deliveries for one in transactions) else "",
        keys.SERVER if led else "",
        *(name(kind) for kind in kinds for name in (keys.objects, keys.heads)),
    )


def create(
    link: Link, transaction: Transaction, request_id: str, changes_kept: int
) -> Commit | None:
    """Apply a transaction as a commit of its own; None if `commit.lua` is to apply it.

    Raises StoreUnavailable.
    """
    call = _call_for(transaction, keys.request(f"{request_id}.0"), changes_kept)
    if call is None:
        return None
    names, arguments = call
    try:
        reply = link.call(
            lambda client, add_call: add_call(client, scripts.CREATE, names, arguments),
            # Schedulers of the former version have loaded `commit.lua` alone.
            otherwise=lambda _: b"",
        )
    except StoreUnavailable as error:
        if not is_forbidden(error):
            raise
        return None
    if not reply:
        return None
    answers, revision = records.read_answers(reply)
    return commit_of([transaction], answers, revision)


def _call_for(transaction: Transaction, own: str, changes_kept: int) -> Call | None:
    """Return the call of `create.lua`, with the request key `own`."""
    one = transaction
    if one.limits or one.deliveries or not 0 < len(one.writes) <= _MOST_WRITES:
        return None
    write, *others = one.writes
    if write.value is None or write.expect != 0 or write.fence:
        return None
    for other in others:
        if not other.is_condition or other.kind != write.kind:
            return None
    if len(one.events) != 1 or len(one.charges) != 1:
        return None
    [charge] = one.charges
    if not charge.checked or len(charge.scopes) != 1 or len(charge.amounts) != 1:
        return None
    [scope], [(resource, amount)] = charge.scopes, charge.amounts.items()
    if not scope.startswith(_OF_ONE_RESOURCE) or not 0 < amount < _AMOUNTS_BELOW:
        return None
    well_formed(transaction)
    holder, record, _ = records.charge_words(charge)
    names = (
        *(own, keys.REVISION, keys.CHANGES, keys.EVENTS, keys.LEDGER, keys.CHARGES),
        *(keys.objects(write.kind), keys.heads(write.kind)),
    )
    return names, (
        *(write.kind, write.key, *records.parts_of(write.value)),
        *(records.text_of(one.events[0]), holder, record, scope, resource, amount),
        *(keys.REQUEST_TTL_S, changes_kept, EVENTS_KEPT, keys.LIMITS, EVERY_NAMESPACE),
        *(other.key for other in others),
    )
