"""The signatures that the HTTP API writes into the groups that its users submit."""

from __future__ import annotations

from msgspec import structs

from batchq.api.access import signature_of
from batchq.api.objects import PodGroup
from batchq.api.transaction import Transaction


def signed(transaction: Transaction, user: str, key: bytes) -> Transaction:
    """Return the transaction with signatures in the groups that the user creates in it.

    A group that exists may have been changed by others, and this user has not seen it: so an edit
    is never signed.
    """
    writes = tuple(
        structs.replace(write, value=_with_signature(write.value, key))
        if write.expect == 0
        and isinstance(write.value, PodGroup)
        and write.value.status.submitted_by == user
        else write
        for write in transaction.writes
    )
    return structs.replace(transaction, writes=writes)


def _with_signature(group: PodGroup, key: bytes) -> PodGroup:
    status = structs.replace(group.status, signature=signature_of(key, group))
    return structs.replace(group, status=status)
