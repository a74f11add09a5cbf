"""Writing to the store of a described world, where nobody else writes."""

from __future__ import annotations

from batchq.api.transaction import Transaction
from batchq.changes import explain_refusal
from batchq.ports import IdSource
from batchq.store.memory import MemoryStore


def write(store: MemoryStore, requests: IdSource, transaction: Transaction | None) -> None:
    """Commit what somebody asks for; None asks for nothing.

    All who write to one store share one source of request ids, and with the cycle too: a request
    whose id was seen before would be taken for a repetition.
    Raises what `explain_refusal` makes of a refusal.
    """
    if transaction is None:
        return
    commit = store.commit([transaction], request_id=requests.new_uid())
    if commit.refused:
        raise explain_refusal(commit.refused[0])
