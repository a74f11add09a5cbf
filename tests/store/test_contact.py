"""A reader's knowledge of its server: how long it has been in contact, and what a restart lost."""

from __future__ import annotations

import redis
from msgspec import structs

from batchq.api.objects import NodeStatus
from batchq.api.transaction import count_of
from batchq.core.session.snapshot import ContactStanding
from batchq.store.liveness import Contact
from batchq.store.redis import RedisStore
from tests.contract.made import node, put, queue, writing
from tests.harness.server import Server
from tests.store.test_leases import CLOCK_ERROR_MS, clock_of


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 1_000

    def now_ms(self) -> int:
        return self.at


def standing(store: RedisStore) -> ContactStanding:
    return store.snapshot().standing


def test_contact_counts_from_the_first_answer() -> None:
    hands = Hands()
    contact = Contact(hands.now_ms)
    contact.made()
    assert contact.since == 1_000


def test_short_silences_are_no_break_and_long_ones_are() -> None:
    hands = Hands()
    contact = Contact(hands.now_ms)
    contact.made()
    for at in (5_000, 10_000):
        hands.at = at
        contact.made()
    assert contact.since == 1_000
    hands.at = 15_001
    contact.made()
    assert contact.since == 15_001


def test_a_reader_with_short_leases_takes_shorter_silences_for_a_break() -> None:
    hands = Hands()
    contact = Contact(hands.now_ms)
    contact.allow_gaps(700)
    contact.made()
    hands.at = 1_701
    contact.made()
    assert contact.since == 1_701


def test_a_failed_call_interrupts_the_contact_however_short_it_was() -> None:
    hands = Hands()
    contact = Contact(hands.now_ms)
    contact.made()
    contact.lost()
    hands.at = 1_001
    contact.made()
    assert contact.since == 1_001


def test_contact_starts_again_when_the_servers_clock_was_set_back() -> None:
    hands = Hands()
    contact = Contact(hands.now_ms)
    hands.at = 3_600_000
    contact.made()
    hands.at = 1_000
    contact.made()
    assert contact.since == 1_000


def test_without_a_leader_there_is_no_generation(redis_store: RedisStore) -> None:
    found = standing(redis_store)
    assert (found.generation, found.restarted_at) == (0, None)


def test_the_first_leader_begins_a_generation(redis_store: RedisStore, raw: redis.Redis) -> None:
    before = clock_of(raw)
    redis_store.lead("one", 30_000)
    found = standing(redis_store)
    assert found.restarted_at is not None
    assert before <= found.restarted_at + CLOCK_ERROR_MS
    assert found.restarted_at - CLOCK_ERROR_MS <= clock_of(raw)
    assert found.generation == found.restarted_at // 1000
    assert not found.forgot


def test_nodes_report_under_the_run_of_the_server(redis_store: RedisStore) -> None:
    redis_store.lead("one", 30_000)
    run = redis_store.run_id()
    nodes = (put(node(name)) for name in ("n1", "n2", "n3"))
    redis_store.commit([writing(*nodes)], request_id="nodes")
    redis_store.alive.beat("n1", run)
    redis_store.alive.beat("n2", "another run")
    redis_store.alive.beat("n3", "")
    assert standing(redis_store).reported == {"n1"}


def test_a_restart_is_a_break_and_a_new_generation() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(server.url)
        first = store.lead("one", 30_000)
        store.commit([writing(put(queue("a")))], request_id="a")
        before = standing(store)
        server.stop()
        server.start()
        second = store.lead("one", 30_000)
        after = standing(store)
        assert first is not None
        assert second is not None
        assert (count_of(first), count_of(second)) == (1, 2)
        assert after.generation > before.generation
        assert (after.contact_since or 0) > (before.contact_since or 0)
        assert not after.forgot
        store.close()


def test_a_reader_of_the_last_writes_recognises_a_restart_that_lost_them() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        reader, fresh = RedisStore(server.url), RedisStore(server.url)
        reader.lead("one", 30_000)
        reader.commit([writing(put(queue("a")))], request_id="a")
        older = server.copy_of_files()
        reader.commit([writing(put(queue("b")))], request_id="b")
        reader.snapshot()
        server.stop()
        server.restore(older)
        server.start()
        reader.lead("one", 30_000)
        # As many other writes as were lost.
        fresh.commit([writing(put(queue("c")))], request_id="c")
        assert standing(reader).forgot
        assert not standing(fresh).forgot
        reader.close()
        fresh.close()


def test_a_node_that_registers_again_counts_as_heard_of_at_once(
    redis_store: RedisStore,
) -> None:
    redis_store.alive.beat("n1", "")
    registered_at = redis_store.now_ms() + 5_000
    again = structs.replace(node("n1"), status=NodeStatus(ready=True, heartbeat=registered_at))
    redis_store.commit([writing(put(again))], request_id="again")
    [seen] = redis_store.snapshot().nodes
    assert seen.status.heartbeat == registered_at
