"""The live state put into a store in memory, record for record, ledger included.

Nothing is made up and nothing is left out, so that the first session decides what the live one
would. One thing is added to the records: whoever gave signs of life until now goes on giving them.
In virtual time nobody beats or renews anything, and without that all nodes would soon be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from msgspec import structs

from batchq.api.objects import AdmissionCheck, Node, Object
from batchq.api.transaction import Event, Transaction
from batchq.changes.records import put
from batchq.errors import InvariantBroken
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.ports import IdSource
from batchq.sim.founding import stated
from batchq.store.memory import MemoryStore

#: Of one kind as of any other.
T = TypeVar("T", bound=Object)


def transplanted(session: Session, requests: IdSource) -> MemoryStore:
    """A store that holds what a session that has decided nothing yet was opened on."""
    snapshot, store = session.snapshot, MemoryStore()
    # One by one: of a quota's limits the quotas before it are a part.
    for obj in (*snapshot.queues, *others_alive(session)):
        _commit(store, requests, put(store, _unwritten(obj), expect=0, event=_EVENT))
    for group in snapshot.groups:
        pods = snapshot.pods.get(group.metadata.uid, ())
        _commit(store, requests, stated(_unwritten(group), tuple(map(_unwritten, pods))))
    for pod, until_ms in _leases_to_keep(session):
        store.hold_lease(pod, until_ms)
    store.stand(snapshot.standing)
    return store


_EVENT = Event(kind="World", key="live", reason="Seen", at=0)


def others_alive(session: Session) -> Iterator[Object]:
    """Quotas, classes, checks and nodes; whoever gave signs of life until now needs none more."""
    snapshot: Snapshot = session.snapshot
    yield from snapshot.quotas
    yield from snapshot.priority_classes
    for check in snapshot.admission_checks:
        yield _renewing(check, session.now_ms)
    for node in snapshot.nodes:
        yield _beating(session, node)


def _beating(session: Session, node: Node) -> Node:
    """A node that beats goes on to; one that has fallen silent stays so."""
    state = session.nodes[node.metadata.name]
    if not (state.ready and state.heard):
        return node
    return structs.replace(node, status=structs.replace(node.status, heartbeat=None))


def _renewing(check: AdmissionCheck, now_ms: int) -> AdmissionCheck:
    """A check whose controller is there keeps it, though it answers nobody here."""
    expires_at = check.status.expires_at
    if expires_at is None or expires_at <= now_ms:
        return check
    return structs.replace(check, status=structs.replace(check.status, expires_at=None))


def _leases_to_keep(session: Session) -> Iterator[tuple[str, int]]:
    """Those that run out: on silent nodes, and where nobody has renewed them in time."""
    silent = {name for name, node in session.nodes.items() if not (node.ready and node.heard)}
    nodes = {
        pod.metadata.uid: pod.status.node for pods in session.snapshot.pods.values() for pod in pods
    }
    for pod, until_ms in sorted(session.snapshot.leases.items()):
        node = nodes.get(pod)
        if node is not None and (node in silent or until_ms <= session.now_ms):
            yield pod, until_ms


def _unwritten(obj: T) -> T:
    """A revision is the store's to give."""
    return structs.replace(obj, metadata=structs.replace(obj.metadata, revision=0))


def _commit(store: MemoryStore, requests: IdSource, transaction: Transaction) -> None:
    commit = store.commit([transaction], request_id=requests.new_uid())
    if commit.refused:
        raise InvariantBroken(f"{transaction.subject} as it is cannot be: {commit.refused[0]}")
