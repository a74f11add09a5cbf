"""The pods on a node are found at the cost of those that its agent knows, and none is missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import redis

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.transaction import Transaction
from batchq.store import keys
from batchq.store.pages import ANSWERS_BY_COUNT
from batchq.store.redis import RedisStore
from tests.contract.made import charge, gone, pod, put, writing

ELSEWHERE = 3_000


def on(node: str, number: int, phase: PodPhase = PodPhase.RUNNING) -> Pod:
    return pod(0, group_uid=f"u{number:05}", phase=phase, attempt=1, node=node)


def taking(one: Pod) -> Transaction:
    """Return the pod's creation with a charge on its node, as a bind makes it."""
    uid = one.metadata.uid
    taken = charge(f"pod:{uid}", f"node:{one.status.node}", cpu=1000, pods=1000)
    return Transaction(subject=uid, writes=(put(one),), charges=(taken,))


def leaving(one: Pod, revision: int) -> Transaction:
    """Return the pod's end, which removes its charge."""
    uid, attempt = one.metadata.uid, one.status.attempt
    ended = on(one.status.node, int(one.status.group_uid[1:]), PodPhase.SUCCEEDED)
    assert ended.status.attempt == attempt
    return Transaction(
        subject=uid, writes=(put(ended, expect=revision),), charges=(charge(f"pod:{uid}"),)
    )


def commit(store: RedisStore, parts: Sequence[Transaction], request_id: str) -> None:
    assert store.commit(parts, request_id=request_id).refused == ()


def uids(pods: Sequence[Pod]) -> list[str]:
    return [one.metadata.uid for one in pods]


@pytest.fixture
def asked(raw: redis.Redis) -> Callable[[Callable[[], object]], dict[str, int]]:
    """Count the calls of each command in the meantime, without those of the count."""

    def of(act: Callable[[], object]) -> dict[str, int]:
        raw.config_resetstat()
        act()
        stats = raw.info("commandstats")
        names = {name.removeprefix("cmdstat_"): result["calls"] for name, result in stats.items()}
        return {name: calls for name, calls in names.items() if not name.startswith("config")}

    return of


@pytest.fixture
def store(redis_store: RedisStore) -> RedisStore:
    """A store whose node n1 has looked through all pods before."""
    redis_store.pods_on("n1", known=())
    return redis_store


MINE = [on("n1", number) for number in range(3)]
KNOWN = ["u00000-1-0", "u00001-1-0", "u00002-1-0"]


def test_known_pods_are_found_in_one_query_however_many_pods_run_elsewhere(
    store: RedisStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    others = [on(f"n{number}", number) for number in range(10, 10 + ELSEWHERE)]
    commit(store, [taking(one) for one in (*MINE, *others)], "1")
    found: list[Pod] = []
    calls = asked(lambda: found.extend(store.pods_on("n1", known=KNOWN)))
    assert uids(found) == KNOWN
    assert calls == {"multi": 1, "hmget": 1, "hget": 1, "exec": 1}
    assert asked(lambda: store.pods_on("n2", known=())) == {"multi": 1, "hget": 1, "exec": 1}


def test_a_pod_unknown_to_its_agent_is_found(store: RedisStore) -> None:
    commit(store, [taking(one) for one in MINE], "1")
    for known in ([], KNOWN[:1], KNOWN[1:], ["u99999-1-0"], ["u99999-1-0", *KNOWN[:2]]):
        assert uids(store.pods_on("n1", known=known)) == KNOWN


def test_a_known_pod_that_is_gone_hides_no_other(store: RedisStore) -> None:
    commit(store, [taking(one) for one in MINE], "1")
    commit(store, [leaving(MINE[0], 1), taking(on("n1", 7))], "2")
    assert uids(store.pods_on("n1", known=KNOWN)) == [*KNOWN[1:], "u00007-1-0"]


def test_a_known_pod_that_has_moved_hides_no_other(store: RedisStore) -> None:
    moved = pod(0, group_uid="u00001", phase=PodPhase.RUNNING, attempt=2, node="n2")
    commit(store, [taking(one) for one in (MINE[0], moved, MINE[2], on("n1", 7))], "1")
    assert uids(store.pods_on("n1", known=KNOWN)) == ["u00000-1-0", "u00002-1-0", "u00007-1-0"]


def test_an_ended_pod_is_on_no_node_though_its_agent_knows_it(store: RedisStore) -> None:
    commit(store, [taking(one) for one in MINE], "1")
    commit(store, [leaving(one, number + 1) for number, one in enumerate(MINE)], "2")
    assert store.pods_on("n1", known=KNOWN) == ()
    removed = [gone(one, expect=number + 4) for number, one in enumerate(MINE)]
    commit(store, [writing(*removed)], "3")
    assert store.pods_on("n1", known=KNOWN) == ()


def test_an_agent_without_known_pods_gets_all_pods_of_its_node(store: RedisStore) -> None:
    commit(store, [taking(one) for one in MINE], "1")
    assert uids(store.pods_on("n1")) == KNOWN


@pytest.mark.parametrize("spoiled", ["2000", "1999", "-1", "", "many"])
def test_a_ledger_that_counts_another_number_hides_nothing(
    store: RedisStore, raw: redis.Redis, spoiled: str
) -> None:
    commit(store, [taking(one) for one in MINE], "1")
    raw.hset(keys.LEDGER, "node:n1 pods", spoiled)
    assert uids(store.pods_on("n1", known=KNOWN)) == KNOWN


def test_a_ledger_that_counts_too_few_hides_a_pod_for_a_bounded_number_of_looks(
    store: RedisStore, raw: redis.Redis
) -> None:
    commit(store, [taking(one) for one in MINE], "1")
    raw.hset(keys.LEDGER, "node:n1 pods", "2000")
    for _ in range(ANSWERS_BY_COUNT):
        assert uids(store.pods_on("n1", known=KNOWN[:2])) == KNOWN[:2]
    assert uids(store.pods_on("n1", known=KNOWN[:2])) == KNOWN


def test_the_first_look_of_an_agent_does_not_go_by_the_ledger(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    commit(redis_store, [taking(one) for one in MINE], "1")
    raw.delete(keys.LEDGER)
    assert uids(redis_store.pods_on("n1", known=())) == KNOWN
