"""A reply is lost after the server has executed the request: it is executed once, and reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.transaction import Event, Transaction, count_of
from batchq.errors import StoreUnavailable
from batchq.store.redis import RedisStore
from tests.contract.made import charge, node, pod, put, queue, words, writing
from tests.harness.proxy import LossyProxy
from tests.harness.server import Server


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    with LossyProxy(server.socket) as proxy:
        yield proxy


@pytest.fixture
def lossy(proxy: LossyProxy) -> Iterator[RedisStore]:
    """A store whose replies the proxy may lose; the server knows its scripts already."""
    store = RedisStore(proxy.url)
    store.commit([writing(put(node()))], request_id="warm up")
    yield store
    store.close()


def asked(name: str) -> Transaction:
    return Transaction(
        subject="a test",
        writes=(put(queue(name)),),
        charges=(charge(f"group:{name}", "ns:x", cpu=5),),
        events=(Event(kind="Queue", key=name, reason="Made"),),
    )


@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_is_applied_once_and_reported_as_applied(
    lossy: RedisStore, proxy: LossyProxy, times: int
) -> None:
    proxy.lose("EVALSHA", times=times)
    commit = lossy.commit([asked("a")], request_id="1")
    assert proxy.lost == times
    assert (words(commit), commit.revision) == ([], 2)
    assert lossy.ledger() == {"ns:x": {"cpu": 5}}
    assert len(lossy.events()) == 1


def test_a_commit_in_several_calls_goes_on_where_it_broke(
    lossy: RedisStore, proxy: LossyProxy
) -> None:
    many = [asked(f"q{number}") for number in range(2_500)]
    proxy.lose("EVALSHA", times=2)
    commit = lossy.commit(many, request_id="1")
    assert (words(commit), commit.revision) == ([], 2_501)
    assert lossy.ledger() == {"ns:x": {"cpu": 12_500}}


def test_a_commit_in_portions_goes_on_where_it_broke(lossy: RedisStore, proxy: LossyProxy) -> None:
    proxy.lose("EVALSHA", times=2)
    stream = lossy.begin_commit(request_id="1")
    for first in range(0, 2_500, 250):
        stream.add(asked(f"q{number}") for number in range(first, first + 250))
    commit = stream.finish()
    assert proxy.lost == 2
    assert (words(commit), commit.revision) == ([], 2_501)
    assert lossy.ledger() == {"ns:x": {"cpu": 12_500}}


def test_a_caller_that_gave_up_may_ask_again_with_the_same_request(
    lossy: RedisStore, proxy: LossyProxy
) -> None:
    proxy.lose("EVALSHA", times=6)
    with pytest.raises(StoreUnavailable):
        lossy.commit([asked("a")], request_id="1")
    assert words(lossy.commit([asked("a")], request_id="1")) == []
    assert lossy.snapshot().revision == 2


def test_a_leader_keeps_its_epoch(lossy: RedisStore, proxy: LossyProxy) -> None:
    lossy.lead("warm up", 0)
    proxy.lose("EVALSHA")
    assert count_of(lossy.lead("one", 30_000) or 0) == 2
    assert proxy.lost == 1


def test_output_is_appended_once(lossy: RedisStore, proxy: LossyProxy) -> None:
    lossy.append_log("n1", "p", 1, "stdout", b"one\n")
    proxy.lose("EVALSHA", times=2)
    lossy.append_log("n1", "p", 1, "stdout", b"two\n")
    assert [chunk.data for chunk in lossy.read_log("n1", "p", 1)] == [b"one\n", b"two\n"]


def test_a_renewal_and_the_snapshot_survive(lossy: RedisStore, proxy: LossyProxy) -> None:
    running = pod(0, phase=PodPhase.RUNNING, attempt=1)
    lossy.commit([writing(put(running))], request_id="1")
    lossy.renew("n1", "u1-1-0", 1, "u1 1 1", 1)
    proxy.lose("EXEC")
    assert lossy.renew("n1", "u1-1-0", 1, "u1 1 1", 30_000).word == "ok"
    lossy.snapshot()
    proxy.lose("XREAD")
    lossy.commit([asked("a")], request_id="2")
    assert [one.metadata.name for one in lossy.snapshot().queues] == ["a"]
    assert proxy.lost == 2


def test_the_mirror_lists_again_after_a_lost_page(lossy: RedisStore, proxy: LossyProxy) -> None:
    lossy.commit([asked("a"), asked("b")], request_id="1")
    proxy.lose("HSCAN", times=2)
    assert [one.metadata.name for one in lossy.snapshot().queues] == ["a", "b"]
