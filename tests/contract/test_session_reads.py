"""What a session reads from a store, and what a commit leaves: events and deliveries."""

from __future__ import annotations

from collections.abc import Callable

from batchq.api.lifecycle import PodPhase
from batchq.api.transaction import Delivery, Event, Transaction
from batchq.store.memory import MemoryStore
from batchq.store.redis import RedisStore
from tests.contract.conftest import AnyStore
from tests.contract.made import (
    answers,
    at_revision,
    gone,
    group,
    node,
    pod,
    put,
    queue,
    words,
    writing,
)


def test_a_snapshot_shows_what_was_committed_in_order_of_keys(store: AnyStore) -> None:
    store.commit(
        [
            writing(put(queue("b")), put(queue("a"))),
            writing(put(group("z", uid="u1"))),
            writing(put(pod(1)), put(pod(0)), put(pod(0, group_uid="u2"))),
            writing(put(node())),
        ],
        request_id="1",
    )
    seen = store.snapshot()
    assert seen.revision == 7
    assert [one.metadata.name for one in seen.queues] == ["a", "b"]
    assert seen.groups == (at_revision(group("z", uid="u1"), 3),)
    assert {uid: [one.spec.index for one in pods] for uid, pods in seen.pods.items()} == {
        "u1": [0, 1],
        "u2": [0],
    }
    assert [one.metadata.name for one in seen.nodes] == ["n1"]


def test_a_snapshot_does_not_change_when_the_store_does(store: AnyStore) -> None:
    store.commit([writing(put(queue("a")), put(pod(0)))], request_id="1")
    before = store.snapshot()
    store.commit(
        [writing(put(queue("b")), gone(queue("a"), expect=1), gone(pod(0), expect=2))],
        request_id="2",
    )
    after = store.snapshot()
    assert [one.metadata.name for one in before.queues] == ["a"]
    assert list(before.pods) == ["u1"]
    assert [one.metadata.name for one in after.queues] == ["b"]
    assert after.pods == {}
    assert (before.revision, after.revision) == (2, 5)


def test_an_unchanged_store_gives_the_same_snapshot(store: AnyStore) -> None:
    store.commit([writing(put(queue()), put(pod(0)), put(node()))], request_id="1")
    first = store.snapshot()
    assert store.snapshot() is first
    store.commit([writing(put(queue("other")))], request_id="2")
    second = store.snapshot()
    assert second.nodes is first.nodes
    assert second.pods is first.pods


def test_events_are_kept_in_order_and_found_by_object(store: AnyStore) -> None:
    result = [Event(kind="PodGroup", key=f"x/{name}", reason="Seen", at=at) for name, at in PLACES]
    store.commit([Transaction(subject="a", events=tuple(result))], request_id="1")
    assert list(store.events()) == result
    assert list(store.events(most=2)) == result[1:]
    assert [event.at for event in store.events(kind="PodGroup", key="x/a")] == [1, 3]
    assert list(store.events(kind="Queue")) == []


PLACES = [("a", 1), ("b", 2), ("a", 3)]


def test_events_are_bounded_and_the_latest_stay(store: AnyStore) -> None:
    for number in range(13):
        events = tuple(
            Event(kind="Queue", key="q", reason="Seen", at=number * 1000 + place)
            for place in range(1_000)
        )
        store.commit([Transaction(subject="a", events=events)], request_id=str(number))
    kept = store.events(most=100_000)
    assert 10_000 <= len(kept) <= 10_200
    assert kept[-1].at == 12_999


def test_a_delivery_waits_in_the_outbox_until_it_is_delivered(store: AnyStore) -> None:
    late = Delivery(pod="u1-1-1", attempt=1, node="n1")
    early = Delivery(pod="u1-1-0", attempt=2, node="n2")
    again = Delivery(pod="u1-1-0", attempt=3, node="n1")
    store.commit([Transaction(subject="a", deliveries=(late, early))], request_id="1")
    store.commit([Transaction(subject="b", deliveries=(again,))], request_id="2")
    assert sorted(store.outbox(), key=str) == sorted([late, early, again], key=str)
    store.delivered([late, early])
    store.delivered([late])
    store.delivered([])
    assert list(store.outbox()) == [again]


def test_a_refused_transaction_records_no_event_and_delivers_nothing(store: AnyStore) -> None:
    refused = Transaction(
        subject="a",
        writes=(put(queue(), expect=7),),
        events=(Event(kind="Queue", key="q", reason="Seen"),),
        deliveries=(Delivery(pod="p", attempt=1, node="n"),),
    )
    assert words(store.commit([refused], request_id="1")) == ["conflict"]
    assert (list(store.events()), list(store.outbox())) == ([], [])


def test_a_former_leaders_commit_is_refused_whole(
    store: AnyStore, next_epoch: Callable[[], int]
) -> None:
    first = next_epoch()
    asked = [writing(put(queue("a"))), writing(put(queue("b")))]
    assert words(store.commit(asked[:1], request_id="1", epoch=first)) == []
    second = next_epoch()
    commit = store.commit(asked, request_id="2", epoch=first)
    assert words(commit) == ["epoch", "epoch"]
    assert [answer.subject for answer in answers(commit)] == [str(second)] * 2
    assert words(store.commit(asked[1:], request_id="3", epoch=second)) == []
    assert words(store.commit([writing(put(queue("c")))], request_id="4")) == []


def test_a_lease_is_seen_until_its_attempt_ends(store: AnyStore) -> None:
    running = pod(0, phase=PodPhase.RUNNING, attempt=1, node="n1")
    store.commit([writing(put(running))], request_id="1")
    before = store.snapshot()
    hold_lease(store)
    held = store.snapshot()
    failed = pod(0, phase=PodPhase.FAILED, attempt=1, node="n1")
    store.commit([writing(put(failed, expect=1))], request_id="2")
    after = store.snapshot()
    assert [list(one.leases) for one in (before, held, after)] == [[], ["u1-1-0"], []]


def hold_lease(store: AnyStore) -> None:
    match store:
        case MemoryStore():
            store.hold_lease("u1-1-0", 30_000)
        case RedisStore():
            assert store.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000).word == "ok"
