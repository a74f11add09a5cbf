"""A cluster in which a preemptor waits for victims, on any store, and the steps of its pledge."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import KINDS, Pledge, Pod, PodGroup, PodGroupStatus, key_of
from batchq.api.resources import of_pod
from batchq.api.transaction import Charge, Commit, Delivery, Event, Transaction, node_scope
from batchq.client.changes import object_writes
from batchq.client.doctor import servers
from batchq.client.doctor.system_state import Level, State
from batchq.core.quota.ledger import holders_in_store
from batchq.store.inspection import Books
from tests.builders import a_group, a_node, a_pod, a_queue, a_quota
from tests.client.doctor.made import SERVER
from tests.contract.conftest import AnyStore
from tests.contract.made import put

REQUESTS = (f"request {number}" for number in itertools.count())
EVENT = Event(kind="Queue", key="q", reason="Created")
NOTHING: dict[str, dict[str, int]] = {}


def ask(store: AnyStore, *asked: Transaction, **how: Any) -> Commit:
    return store.commit(asked, request_id=next(REQUESTS), **how)


def cpus(count: int) -> dict[str, int]:
    """Return the charge of a group of that many pods."""
    return {"cpu": 1000 * count, "pods": 1000 * count, "podgroups": 1000} if count else {}


def owed(count: int, *, group: bool = True) -> dict[str, dict[str, int]]:
    """Return what victims still hold in the scopes where preemptor and victims are both charged."""
    amounts = {"cpu": 1000 * count, "pods": 1000 * count}
    both = amounts | ({"podgroups": 1000} if group else {})
    return {"cluster": both, "queue:root": both}


def group_of(store: AnyStore, name: str) -> PodGroup:
    found = store.get("PodGroup", f"default/{name}")
    assert isinstance(found, PodGroup)
    return found


def pods_of(store: AnyStore, uid: str) -> list[Pod]:
    found = store.list("Pod")
    return [pod for pod in found if isinstance(pod, Pod) and pod.status.group_uid == uid]


def rebooked(before: PodGroup, after: PodGroup, *, checked: bool = False) -> tuple[Charge, ...]:
    """Return the charges that move a group from its former holders to its present ones."""
    former, now = holders_in_store(before), holders_in_store(after)
    return (
        *(Charge(holder=holder) for holder in former if holder not in now),
        *(
            Charge(holder=holder, scopes=scopes, amounts=amounts, checked=checked)
            for holder, (scopes, amounts) in now.items()
        ),
    )


def moved(
    store: AnyStore,
    name: str,
    *,
    checked: bool = False,
    pledge: Pledge | None = None,
    **status: Any,
) -> Transaction:
    """Return the write of the group with another status, and its charges with it."""
    before = group_of(store, name)
    if pledge is not None:
        status["pledge"] = pledge
    after = structs.replace(before, status=structs.replace(before.status, **status))
    return Transaction(
        subject=name,
        writes=(put(after, expect=before.metadata.revision),),
        charges=rebooked(before, after, checked=checked),
        events=(Event(kind="PodGroup", key=f"default/{name}", reason="Moved"),),
    )


def ended(store: AnyStore, pod: Pod, phase: PodPhase = PodPhase.EVICTED) -> Transaction:
    after = structs.replace(pod, status=structs.replace(pod.status, phase=phase))
    return Transaction(
        subject=pod.metadata.uid,
        writes=(put(after, expect=pod.metadata.revision),),
        charges=(Charge(holder=f"pod:{pod.metadata.uid}"),),
    )


def bound(store: AnyStore, name: str, count: int) -> Transaction:
    """Return the bind of that many pods of the group to the node."""
    group = group_of(store, name)
    status = structs.replace(group.status, admission=1)
    made = [
        a_pod(structs.replace(group, status=status), index, phase=PodPhase.BOUND, node="n1")
        for index in range(count)
    ]
    return Transaction(
        subject=name,
        writes=tuple(put(pod) for pod in made),
        charges=tuple(
            Charge(
                holder=f"pod:{pod.metadata.uid}",
                scopes=(node_scope("n1"),),
                amounts=of_pod(pod.spec.requests),
                checked=True,
            )
            for pod in made
        ),
        deliveries=tuple(Delivery(pod=pod.metadata.uid, attempt=1, node="n1") for pod in made),
    )


def together(*transactions: Transaction) -> Transaction:
    """Join transactions into one."""
    return Transaction(
        subject="a preemptor and its victims",
        writes=tuple(write for one in transactions for write in one.writes),
        charges=tuple(charge for one in transactions for charge in one.charges),
        deliveries=tuple(delivery for one in transactions for delivery in one.deliveries),
        events=tuple(event for one in transactions for event in one.events),
    )


PLEDGE = Pledge(
    claimant="default/preemptor",
    action="reclaim",
    victims=("default/victim-w-0",),
    groups=("victim",),
    owed=owed(4),
)


def found(store: AnyStore) -> None:
    """Create a full node: with queue b's victim (4 pods) and another group (2), while a preemptor
    of queue a waits for 4.
    """
    for item in (a_queue("root"), a_queue("a", capability={"cpu": 4}), a_queue("b")):
        assert not ask(store, object_writes.put(store, item, expect=0, event=EVENT)).refused
    assert not ask(store, object_writes.put(store, a_quota(cpu=10), expect=0, event=EVENT)).refused
    node = a_node("n1", cpu=6, pods=6)
    assert not ask(store, object_writes.put_node(node, expect=0, event=EVENT)).refused
    for name, count, queue in (("victim", 4, "b"), ("other", 2, "b"), ("preemptor", 4, "a")):
        waits = queue == "a"
        status = PodGroupStatus(
            phase=PodGroupPhase.PENDING if waits else PodGroupPhase.RUNNING,
            admission=0 if waits else 1,
            charge={} if waits else cpus(count),
        )
        group = a_group(name, count, queue=queue, status=status)
        charges = () if waits else rebooked(structs.replace(group, status=PodGroupStatus()), group)
        made = Transaction(
            subject=name,
            writes=(put(group),),
            charges=(*charges, object_writes.object_charge(group)),
        )
        assert not ask(store, made).refused
        if not waits:
            assert not ask(store, bound(store, name, count)).refused
    store.delivered(store.outbox())


def pledged(store: AnyStore) -> Transaction:
    """Return the preemptor's reservation, beside victims that hold all of it."""
    return moved(store, "preemptor", checked=True, charge=cpus(4), reserved_at=1, pledge=PLEDGE)


def everything(store: AnyStore) -> object:
    objects = [list(store.list(kind)) for kind in KINDS]
    return objects, store.ledger(), store.charges(), list(store.events()), list(store.outbox())


def used(store: AnyStore, resource: str = "cpu") -> dict[str, int]:
    """Return each scope's sums, in whole units."""
    return {
        scope: amounts[resource] // 1000
        for scope, amounts in store.ledger().items()
        if resource in amounts and scope.partition(":")[0] in ("cluster", "queue", "ns")
    }


def audited(store: AnyStore) -> list[str]:
    """Return the doctor's findings about the books, recomputed from charges and from objects."""
    objects = {kind: {key_of(item): item for item in store.list(kind)} for kind in KINDS}
    found = Books(
        revision=1,
        objects=objects,
        ledger=store.ledger(),
        charges=store.charges(),
        limits={},
    )
    state = State(now_ms=0, version="0.1.0", server=SERVER, books=found)
    return [
        f"{one.subject}: {one.found}, not {one.expected}"
        for one in servers.ledger(state)
        if one.level != Level.OK
    ]


def end_some(store: AnyStore, count: int) -> Transaction:
    """End `count` of the victim's pods, and charge the preemptor for what they leave."""
    victim = group_of(store, "victim")
    there = [pod for pod in pods_of(store, "victim") if pod.status.phase == PodPhase.BOUND]
    left = len(there) - count
    preemptor = group_of(store, "preemptor").status.pledge
    return together(
        *(ended(store, pod) for pod in there[:count]),
        moved(store, victim.metadata.name, charge=cpus(left)),
        moved(
            store,
            "preemptor",
            checked=True,
            pledge=structs.replace(preemptor, owed=owed(left) if left else NOTHING),
        ),
    )
