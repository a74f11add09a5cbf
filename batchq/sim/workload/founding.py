"""A load's nodes and queues in a store of their own, and its jobs as somebody submits them."""

from __future__ import annotations

from batchq.api.objects import Object, PodGroup, key_of
from batchq.api.transaction import Charge, Transaction, Write
from batchq.changes import create, first_contradiction, found_defaults
from batchq.framework.ledger import holders_in_store
from batchq.ports import IdSource
from batchq.sim.workload.load import Arrival, Load
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore


def empty_cluster(load: Load, requests: IdSource) -> MemoryStore:
    """The nodes and queues, and nobody there yet.

    Raises InvalidInput or Rejected for those that the rules refuse.
    """
    store = MemoryStore()
    contradiction = first_contradiction(load.queues)
    if contradiction is not None:
        raise contradiction[1]
    founded: tuple[Object, ...] = (*load.queues, *load.nodes)
    for place, obj in enumerate(founded):
        # In part: the queues have been judged together. Described: nodes need no heartbeat.
        created = create(store, obj, now_ms=0, uid=str(place), described=True, in_part=True)
        write(store, requests, created)
    write(store, requests, found_defaults(store, now_ms=0, uid="default"))
    return store


def submitted(store: MemoryStore, arrival: Arrival, uid: str, now_ms: int) -> Transaction:
    """Somebody submits the group now. Raises InvalidInput, Conflict or Rejected."""
    return create(store, arrival.group, now_ms=now_ms, uid=uid, described=True)


def forgotten(store: MemoryStore, group: PodGroup) -> Transaction:
    """A finished group and its pods are there no longer, and count for nothing: of one that was
    stopped, no session has seen yet that its last pod has ended.
    """
    pods = store.pods_of(group.metadata.uid)
    return Transaction(
        subject=key_of(group),
        writes=(
            Write(kind="PodGroup", key=key_of(group), expect=group.metadata.revision, value=None),
            *(
                Write(kind="Pod", key=key_of(pod), expect=pod.metadata.revision, value=None)
                for pod in pods
            ),
        ),
        charges=tuple(Charge(holder=holder) for holder in holders_in_store(group)),
    )
