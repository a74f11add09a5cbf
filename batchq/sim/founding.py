"""A described world put into a store in memory, ledger included, before the first session.

What the file states is written unchecked: a world may hold more than its limits allow, and what
then happens is what its author wants to see.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.objects import DEFAULT, Node, Object, Pod, PodGroup, key_of, kind_of
from batchq.api.resources import of_pod
from batchq.api.transaction import Charge, Transaction, Write, node_scope
from batchq.changes import create, found_defaults
from batchq.changes.records import object_charge
from batchq.framework.ledger import holders_in_store
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.ports import IdSource
from batchq.sim.belief import Believed
from batchq.sim.world import World
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore


def found(world: World, requests: IdSource, *, gates_hold: bool = True) -> DescribedStore:
    """A store that holds everything that the world describes.

    `requests` tells its writes apart; `gates_hold`: whether scheduling gates mean anything.

    Raises InvalidInput, Conflict or Rejected.
    """
    store = DescribedStore()
    now_ms = world.start_at
    # `default` is there from the start: before everything that the file describes.
    if not any(kind_of(obj) == "Queue" and key_of(obj) == DEFAULT for obj in world.objects):
        write(store, requests, found_defaults(store, now_ms=0, uid="0"))
    for obj in world.objects:
        present = _as_heard_of(obj, now_ms)
        uid = obj.metadata.uid
        # In part: reading the world has judged its queues together.
        created = create(store, present, now_ms=now_ms, uid=uid, described=True, in_part=True)
        write(store, requests, created)
    believed = Believed(world, gates_hold=gates_hold)
    for group in believed.groups:
        write(store, requests, stated(group, believed.pods[group.metadata.uid]))
    return store


def _as_heard_of(obj: Object, now_ms: int) -> Object:
    """A node that is not ready was heard of until the start; leases on it run out from there."""
    if not isinstance(obj, Node) or obj.status.ready or obj.status.heartbeat is not None:
        return obj
    return structs.replace(obj, status=structs.replace(obj.status, heartbeat=now_ms))


def stated(group: PodGroup, pods: tuple[Pod, ...]) -> Transaction:
    """One group as it stands, with its pods and everything that they are charged."""
    objects: tuple[Object, ...] = (group, *pods)
    charges = [_pod_charge(pod) for pod in pods if pod.status.phase in ON_NODE]
    if group.status.phase not in TERMINAL:
        charges.append(structs.replace(object_charge(group), checked=False))
    charges += [
        Charge(holder=holder, scopes=scopes, amounts=amounts)
        for holder, (scopes, amounts) in holders_in_store(group).items()
    ]
    return Transaction(
        subject=key_of(group),
        writes=tuple(
            Write(kind=kind_of(obj), key=key_of(obj), expect=0, value=obj) for obj in objects
        ),
        charges=tuple(charges),
    )


def _pod_charge(pod: Pod) -> Charge:
    return Charge(
        holder=f"pod:{pod.metadata.uid}",
        scopes=(node_scope(pod.status.node),),
        amounts=of_pod(pod.spec.requests),
    )


class DescribedStore(MemoryStore):
    """A store whose world may state more InQueue groups than fit: nobody has cut anything yet."""

    overbooked: Mapping[str, Mapping[str, int]] = {}

    def snapshot(self) -> Snapshot:
        """Everything a session reads, and under which limits the world is overbooked."""
        snapshot = super().snapshot()
        if not self.overbooked:
            return snapshot
        return structs.replace(snapshot, overbooked=self.overbooked)


def overbooked(session: Session) -> dict[str, dict[str, int]]:
    """Scope -> the limits that its sum passes."""
    over: dict[str, dict[str, int]] = {}
    for scope, sums in session.ledger.sums.items():
        for name, units in sums.items():
            limit = session.ledger.limit(scope, name)
            if limit is not None and units > limit:
                over.setdefault(scope, {})[name] = limit
    return over


def still_overbooked(
    former: Mapping[str, Mapping[str, int]], session: Session
) -> dict[str, dict[str, int]]:
    """The same of those limits that the world has passed from its beginning on, each at the most
    that it has allowed since: one that falls below that is cut, also while pods still end.
    """
    return {
        scope: {
            name: max(limit, former[scope][name])
            for name, limit in limits.items()
            if name in former[scope]
        }
        for scope, limits in overbooked(session).items()
        if scope in former
    }
