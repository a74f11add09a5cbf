"""Transactions that create one object with one charge, such as a single submission.

`create.lua` applies them in a third of the server's time that `commit.lua` takes. It leaves
everything unusual to `commit.lua`: refusals and damaged records, too.
"""

from __future__ import annotations

from batchq.api.transaction import EVERY_NAMESPACE, Commit, Transaction, objects_scope
from batchq.errors import StoreUnavailable
from batchq.store import keys, records, scripts
from batchq.store.link import Call, Link, is_forbidden
from batchq.store.rules import commit_of, well_formed

#: About so many events are kept.
EVENTS_KEPT = 10_000

#: More conditions than a usual name needs.
_MOST_WRITES = 64
#: The largest amount has a digit less than the numbers that `create.lua` adds.
_AMOUNTS_BELOW = 10**14
#: The scopes whose limits state one resource; those of other scopes have other rules, too.
_OF_ONE_RESOURCE = objects_scope("")


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
