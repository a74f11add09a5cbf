"""A snapshot as it would be after a request: what `plan` hands to the scheduler's session.

Nothing here is stored. The request is worked out by the same rules as a real one, on what the
snapshot holds; what a snapshot does not hold is read from the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import structs

from batchq.api.lifecycle import TERMINAL
from batchq.api.limits import hard_limit, only_groups
from batchq.api.objects import Object, key_of
from batchq.api.transaction import (
    EVERY_NAMESPACE,
    ONE_GROUP,
    POD_GROUPS,
    Ledger,
    Refusal,
    Transaction,
    Word,
    objects_scope,
)
from batchq.changes import explain_refusal
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.ports import Reader
from batchq.store.rules import NOTHING, refuse_charges, weigh

#: Kind -> the snapshot's field that holds all objects of it, ordered by key. Pods are not among
#: them: no request writes any.
_FIELDS = {
    "Queue": "queues",
    "ResourceQuota": "quotas",
    "Node": "nodes",
    "PriorityClass": "priority_classes",
    "AdmissionCheck": "admission_checks",
    "PodGroup": "groups",
}


class Seen:
    """A Reader of what a snapshot holds; other kinds are read from `below`."""

    def __init__(self, snapshot: Snapshot, below: Reader) -> None:
        self._snapshot = snapshot
        self._below = below
        self._by_key: dict[str, dict[str, Object]] = {}

    def get(self, kind: str, key: str) -> Object | None:
        """The object, or None."""
        if kind not in _FIELDS:
            return self._below.get(kind, key)
        if kind not in self._by_key:
            self._by_key[kind] = {key_of(item): item for item in _all(self._snapshot, kind)}
        return self._by_key[kind].get(key)

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """All objects of a kind (of one namespace), ordered by key."""
        if kind not in _FIELDS:
            return self._below.list(kind, namespace=namespace)
        found = _all(self._snapshot, kind)
        return tuple(item for item in found if namespace in ("", item.metadata.namespace))


def ledger_of(session: Session) -> Ledger:
    """The ledger's sums, as a request asks for them."""
    return {scope: dict(sums) for scope, sums in session.ledger.sums.items()}


def check_objects_allowed(
    snapshot: Snapshot, transaction: Transaction, *, per_namespace: int
) -> None:
    """Whether the namespaces may have so many unfinished groups: `per_namespace` where no
    ResourceQuota says otherwise.

    Raises Rejected, in the words in which a submission is refused.
    """
    stated = {limit.scope: limit.amounts for limit in transaction.limits}
    counts = Counter(
        objects_scope(group.metadata.namespace)
        for group in snapshot.groups
        if group.status.phase not in TERMINAL
    )

    def sums(scope: str) -> Mapping[str, int]:
        return {POD_GROUPS: counts[scope] * ONE_GROUP}

    def limits(scope: str) -> Mapping[str, int] | None:
        if scope == EVERY_NAMESPACE:
            return {POD_GROUPS: per_namespace * ONE_GROUP}
        return stated[scope] if scope in stated else _allowed(snapshot, scope)

    weighed = weigh(transaction.charges, lambda holder: NOTHING)
    answer = refuse_charges(weighed, sums, limits, 1000)
    if answer is not None and answer.word is not Word.OK:
        raise explain_refusal(Refusal(transaction=transaction, answer=answer))


def supposed(snapshot: Snapshot, objects: Mapping[tuple[str, str], Object | None]) -> Snapshot:
    """The snapshot with these objects, by kind and key, in place of what is there; None: without.

    Kinds that a session does not read change nothing.
    """
    changed: dict[str, tuple[Object, ...]] = {}
    for kind, field in _FIELDS.items():
        over = {key: item for (other, key), item in objects.items() if other == kind}
        if over:
            found: dict[str, Object | None] = {key_of(one): one for one in _all(snapshot, kind)}
            there = {**found, **over}
            in_order = [there[key] for key in sorted(there)]
            changed[field] = tuple(item for item in in_order if item is not None)
    return structs.replace(snapshot, **changed)


def written(transaction: Transaction) -> dict[tuple[str, str], Object | None]:
    """What a transaction writes, by kind and key; None where it deletes."""
    return {(write.kind, write.key): write.value for write in transaction.writes}


def _all(snapshot: Snapshot, kind: str) -> tuple[Object, ...]:
    found: tuple[Object, ...] = getattr(snapshot, _FIELDS[kind])
    return found


def _allowed(snapshot: Snapshot, scope: str) -> Mapping[str, int]:
    quotas = [one for one in snapshot.quotas if objects_scope(one.metadata.namespace) == scope]
    return only_groups(hard_limit(quotas))
