"""A preemptor and its victims, groups and pods, are written in one step or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Object, PodGroup
from batchq.api.transaction import Answer, Transaction, Word, Write
from batchq.client.changes import object_writes
from tests.builders import a_queue
from tests.contract.conftest import AnyStore
from tests.contract.made import answers, words
from tests.contract.pledged import (
    EVENT,
    ask,
    audited,
    bound,
    cpus,
    ended,
    everything,
    found,
    group_of,
    moved,
    pods_of,
    together,
    used,
)


@pytest.fixture
def world(store: AnyStore) -> AnyStore:
    found(store)
    return store


def taken_over(store: AnyStore) -> Transaction:
    """Return the transaction that evicts the whole victim, and admits and binds the preemptor."""
    gone = [ended(store, pod) for pod in pods_of(store, "victim")]
    leaves = moved(store, "victim", phase=PodGroupPhase.PENDING, charge={})
    comes = moved(
        store,
        "preemptor",
        checked=True,
        phase=PodGroupPhase.IN_QUEUE,
        admission=1,
        charge=cpus(4),
        reserved_at=1,
    )
    return together(*gone, leaves, comes, bound(store, "preemptor", 4))


def test_preemptor_and_victims_are_written_together(world: AnyStore) -> None:
    commit = ask(world, taken_over(world))
    assert (len(commit.applied), commit.refused) == (1, ())
    assert group_of(world, "victim").status.phase == PodGroupPhase.PENDING
    assert {pod.status.phase for pod in pods_of(world, "victim")} == {PodPhase.EVICTED}
    assert group_of(world, "preemptor").status.phase == PodGroupPhase.IN_QUEUE
    assert {pod.status.phase for pod in pods_of(world, "preemptor")} == {PodPhase.BOUND}
    assert len(world.outbox()) == 4
    assert used(world) == {
        "cluster": 6,
        "queue:root": 6,
        "ns:default": 6,
        "queue:a": 4,
        "queue:b": 2,
    }
    assert audited(world) == []


def spoil_pod(asked: Transaction) -> Transaction:
    """The last pod has changed since it was read."""
    *rest, last = asked.writes
    return structs.replace(asked, writes=(*rest, structs.replace(last, expect=77)))


def spoil_victim(asked: Transaction) -> Transaction:
    """A victim's pod has ended on its own, and is at another attempt by now."""
    first, *rest = asked.writes
    spoilt = structs.replace(first, expect=None, fence="victim 1 2")
    return structs.replace(asked, writes=(spoilt, *rest))


def spoil_move(asked: Transaction) -> Transaction:
    """The transaction asks for a move that does not exist."""
    return structs.replace(asked, writes=tuple(map(_completed, asked.writes)))


def _completed(write: Write) -> Write:
    item: Object | None = write.value
    if not isinstance(item, PodGroup) or item.metadata.name != "preemptor":
        return write
    status = structs.replace(item.status, phase=PodGroupPhase.COMPLETED)
    return structs.replace(write, value=structs.replace(item, status=status))


def spoil_limit(asked: Transaction) -> Transaction:
    """The preemptor asks for more than its queue's limit."""
    charges = [
        structs.replace(one, amounts=cpus(5)) if one.holder == "group:preemptor" else one
        for one in asked.charges
    ]
    return structs.replace(asked, charges=tuple(charges))


def spoil_room(asked: Transaction) -> Transaction:
    """One of the victim's pods is not evicted, and still occupies the node."""
    kept = asked.charges[0]
    assert kept.holder.startswith("pod:victim")
    return structs.replace(asked, charges=asked.charges[1:])


SPOILT: Mapping[str, tuple[Callable[[Transaction], Transaction], str]] = {
    "a pod is another revision": (spoil_pod, "conflict"),
    "a victim is another attempt": (spoil_victim, "fenced"),
    "there is no such move": (spoil_move, "move"),
    "the preemptor's queue is full": (spoil_limit, "limit"),
    "the node is full": (spoil_room, "limit"),
}


@pytest.mark.parametrize(("spoil", "word"), SPOILT.values(), ids=SPOILT)
def test_nothing_is_written_if(
    world: AnyStore, spoil: Callable[[Transaction], Transaction], word: str
) -> None:
    asked, before = taken_over(world), everything(world)
    assert words(ask(world, spoil(asked))) == [word]
    assert everything(world) == before
    assert ask(world, asked).refused == ()


def test_nothing_is_written_if_limits_have_changed_since(world: AnyStore) -> None:
    seen = world.snapshot().revision
    asked = taken_over(world)
    queue = world.get("Queue", "b")
    assert queue is not None
    guards = a_queue("b", guarantee={"cpu": 6000})
    edit = object_writes.put(world, guards, expect=queue.metadata.revision, event=EVENT)
    assert ask(world, edit).refused == ()
    before = everything(world)
    assert answers(ask(world, asked, seen=seen)) == [
        Answer(word=Word.CONFLICT, subject="the limits")
    ]
    assert everything(world) == before
    assert ask(world, asked, seen=world.snapshot().revision).refused == ()


def test_nothing_is_written_if_another_leads_by_now(
    world: AnyStore, next_epoch: Callable[[], int]
) -> None:
    former = next_epoch()
    current = next_epoch()
    asked, before = taken_over(world), everything(world)
    assert words(ask(world, asked, epoch=former)) == ["epoch"]
    assert everything(world) == before
    assert ask(world, asked, epoch=current).refused == ()
