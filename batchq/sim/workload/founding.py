"""A load's nodes and queues in a store of their own, and its jobs as somebody submits them."""

from __future__ import annotations

from batchq.api.names import label_problem
from batchq.api.objects import Metadata, Object, PodGroup, PodGroupSpec, key_of
from batchq.api.transaction import Charge, Transaction, Write
from batchq.changes import Arrivals, create, first_contradiction, found_defaults
from batchq.errors import NotFound, Rejected
from batchq.framework.ledger import holders_in_store
from batchq.ports import IdSource
from batchq.sim.workload.load import Load
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


class Desk:
    """Where groups are submitted; owns what it has accepted.

    Many groups of a log are alike but for their names. Such a spec, the very same value, is looked
    at once; queues and priority classes do not change while a load plays.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._arrivals = Arrivals(store)
        #: Namespace and identity of a spec -> the spec, kept so that no other takes its identity.
        self._accepted: dict[tuple[str, int], PodGroupSpec] = {}

    def submitted(self, group: PodGroup, uid: str, now_ms: int) -> Transaction:
        """Somebody submits the group now, and it is written down as `create` has it.

        Raises InvalidInput, Conflict or Rejected.
        """
        name, namespace = group.metadata.name, group.metadata.namespace
        place = (namespace, id(group.spec))
        if group.metadata != Metadata(name=name, namespace=namespace) or label_problem(name):
            return create(self._store, group, now_ms=now_ms, uid=uid, described=True)
        if place in self._accepted and self._store.get("PodGroup", key_of(group)) is None:
            return self._arrivals.submission(group, now_ms=now_ms, uid=uid, by="")
        created = create(self._store, group, now_ms=now_ms, uid=uid, described=True)
        if not group.spec.depends_on and self._is_placed(group):
            self._accepted[place] = group.spec
        return created

    def _is_placed(self, group: PodGroup) -> bool:
        """Whether what it refers to is there: a described world may lack it."""
        try:
            self._arrivals.check(group)
        except (NotFound, Rejected):
            return False
        return True


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
