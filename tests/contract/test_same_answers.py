"""The same transactions give the same answers, objects and ledger in memory and on a server.

The two implementations are independent, one in Python and one in Lua: if they agree on everything
that hypothesis generates, the contract is what both do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import KINDS, Object
from batchq.api.transaction import Charge, Commit, Delivery, Event, Limit, Transaction, Write
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.store.memory import MemoryStore
from batchq.store.redis import RedisStore
from tests.contract.made import gone, group, node, pod, put, queue
from tests.effort import usually

MOST = 2**53 - 1

NAMES = st.sampled_from(["a", "b"])
NUMBERS = st.integers(0, 2)
SCOPES = st.sampled_from(["cluster", "capacity", "queue:q", "ns:x", "node:a", "node:b"])
HOLDERS = st.sampled_from(["group:a", "group:b", "pod:c", "node:d"])
UNITS = st.one_of(
    st.integers(0, 12),
    st.integers(MOST - 12, MOST),
    st.integers(0, MOST),
    st.just(2**52),
)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), UNITS, max_size=3)

OBJECTS: st.SearchStrategy[Object] = st.one_of(
    st.builds(queue, NAMES),
    st.builds(node, NAMES),
    st.builds(
        group,
        NAMES,
        uid=st.sampled_from(["u1", "u2"]),
        phase=st.sampled_from(PodGroupPhase),
        admission=NUMBERS,
    ),
    st.builds(
        pod,
        NUMBERS,
        phase=st.sampled_from(PodPhase),
        attempt=NUMBERS,
        stop=st.sampled_from(["", "Preempted"]),
    ),
)
FENCES = st.one_of(
    st.builds("{} {}".format, st.sampled_from(["u1", "u2"]), NUMBERS),
    st.builds("u1 1 {}".format, NUMBERS),
)


@st.composite
def writes(draw: st.DrawFn) -> Write:
    item = draw(OBJECTS)
    expect = draw(st.one_of(st.just(0), st.none(), st.integers(1, 12)))
    fence = draw(FENCES) if expect is None else draw(st.one_of(st.just(""), FENCES))
    if expect != 0 and draw(st.booleans()):
        return gone(item, expect=expect, fence=fence)
    return put(item, expect=expect, fence=fence)


CHARGES = st.builds(
    Charge,
    holder=HOLDERS,
    scopes=st.lists(SCOPES, max_size=3).map(tuple),
    amounts=AMOUNTS,
    checked=st.booleans(),
)
LIMITS = st.builds(Limit, scope=SCOPES, amounts=st.one_of(st.none(), AMOUNTS))
DELIVERIES = st.builds(Delivery, pod=NAMES, attempt=NUMBERS, node=NAMES)
EVENTS = st.builds(Event, kind=st.just("Queue"), key=NAMES, reason=NAMES, at=NUMBERS)
TRANSACTIONS = st.builds(
    Transaction,
    subject=st.just("a test"),
    writes=st.lists(writes(), max_size=2, unique_by=lambda write: (write.kind, write.key)).map(
        tuple
    ),
    charges=st.lists(CHARGES, max_size=3, unique_by=lambda charge: charge.holder).map(tuple),
    limits=st.lists(LIMITS, max_size=2, unique_by=lambda limit: limit.scope).map(tuple),
    deliveries=st.lists(DELIVERIES, max_size=1).map(tuple),
    events=st.lists(EVENTS, max_size=1).map(tuple),
)
#: Transactions, overcommit, the leader's epoch, and the revision seen.
Asked: TypeAlias = tuple[Sequence[Transaction], int, int | None, int | None]
COMMITS: st.SearchStrategy[list[Asked]] = st.lists(
    st.tuples(
        st.lists(TRANSACTIONS, max_size=5),
        st.sampled_from([1, 999, 1000, 1001, 1500, 7_777_777]),
        st.sampled_from([None, 0, 1]),
        st.one_of(st.none(), st.integers(0, 12)),
    ),
    min_size=1,
    max_size=5,
)


@settings(
    max_examples=usually(20, 200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(commits=COMMITS)
def test_memory_and_server_agree(
    commits: Sequence[Asked],
    open_redis: Callable[[], RedisStore],
    raw: redis.Redis,
) -> None:
    raw.flushall()
    memory, real = MemoryStore(), open_redis()
    for number, (asked, overcommit, epoch, seen) in enumerate(commits):
        result = [
            store.commit(
                asked, request_id=str(number), overcommit=overcommit, epoch=epoch, seen=seen
            )
            for store in (memory, real)
        ]
        assert result[0] == result[1]
        assert memory.snapshot() == seen_in(real)
    assert memory.ledger() == real.ledger() == counted(memory)
    assert memory.charges() == real.charges()
    assert list(memory.events()) == list(real.events())
    assert set(memory.outbox()) == set(real.outbox())
    for kind in KINDS:
        assert list(memory.list(kind)) == list(real.list(kind))
    assert list(real.compare(100_000)) == []
    real.close()


def seen_in(real: RedisStore) -> Snapshot:
    """Return the server store's snapshot, without the state of its contact."""
    return structs.replace(real.snapshot(), standing=ContactStanding())


def counted(memory: MemoryStore) -> dict[str, dict[str, int]]:
    """Return the ledger as the sum of the charges."""
    sums: dict[str, dict[str, int]] = {}
    for scopes, amounts in memory.charges().values():
        for scope in scopes:
            for name, units in amounts.items():
                row = sums.setdefault(scope, {})
                row[name] = row.get(name, 0) + units
    return sums


@settings(max_examples=usually(10, 100), deadline=None)
@given(commits=COMMITS)
def test_a_refused_transaction_leaves_no_trace(
    commits: Sequence[Asked],
) -> None:
    asked, applied = MemoryStore(), MemoryStore()
    for number, (some, overcommit, epoch, seen) in enumerate(commits):
        commit: Commit = asked.commit(
            some, request_id=str(number), overcommit=overcommit, epoch=epoch, seen=seen
        )
        applied.commit(
            commit.applied, request_id=str(number), overcommit=overcommit, epoch=epoch, seen=seen
        )
    assert asked.snapshot() == applied.snapshot()
    assert asked.ledger() == applied.ledger()
    assert asked.charges() == applied.charges()
