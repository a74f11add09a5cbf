"""The calls of the script that one commit takes: what each is asked, and how much at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from batchq.api.transaction import Transaction
from batchq.store import codec, keys, scripts
from batchq.store.codec import Written
from batchq.store.inboxes import Settled, settling
from batchq.store.link import Asked, Call
from batchq.store.rules import well_formed

#: One call of the script does at most so much, as the server does nothing else meanwhile, and takes
#: longer for each of many: what it has in hand is then more than what is near the processor. A
#: single transaction is never divided.
TRANSACTIONS_A_CALL = 100
WRITES_A_CALL = 250
BYTES_A_CALL = 8 * 1024 * 1024


def calls_of(
    transactions: Sequence[Transaction],
    request_id: str,
    *,
    led: bool,
    arguments: tuple[str | int, ...],
    settled: Sequence[Settled | None] = (),
) -> Iterator[Sequence[Asked]]:
    """The calls of the script, each small enough and told which comes before it; written one by
    one, since all of a large commit at once may be more than this process can hold.

    Behind each, what is `settled` by those of its transactions that are applied.
    """
    kinds = codec.kinds_of(transactions)
    places = codec.places_of(kinds)
    needed = _commit_keys(transactions, kinds, led=led)
    former, begin = "", 0
    written = (codec.write_transaction(well_formed(one), places) for one in transactions)
    for place, some in enumerate(_parts(transactions, written)):
        own = keys.request(f"{request_id}.{place}")
        names = (own, *(name or own for name in needed))
        values = chain.from_iterable(one.values for one in some)
        call: Call = (names, (codec.joined(some), *arguments, former, *values))
        behind = settling(own, settled[begin : begin + len(some)])
        yield [(scripts.COMMIT, call), *((scripts.SETTLED, one) for one in behind)]
        former, begin = own, begin + len(some)


def size_of(asked: Sequence[Asked]) -> int:
    """About how many bytes it is to send."""
    return sum(len(one) for _, call in asked for one in call[1] if isinstance(one, bytes))


def _parts(
    transactions: Sequence[Transaction], written: Iterable[Written]
) -> Iterator[Sequence[Written]]:
    """Transactions as they are written, so many as are small enough for one call of the script."""
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
    """The keys of each call behind its request; "" for those that the commit has no use for.

    A server that knows permissions asks for that to write every key that a script is given.
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
