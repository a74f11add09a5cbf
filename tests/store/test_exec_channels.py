"""The channels of commands in pods: nothing is lost or twice, and nothing stays behind."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from batchq.api.exec_session import ExecCommand, ExecFrame, ExecRequest, decoded_end
from batchq.errors import StoreUnavailable
from batchq.store import keys
from batchq.store.exec_channels import (
    ExecChannel,
    open_requests,
    post_request,
    takes_requests,
)
from batchq.store.node_channels import WakeReason, WakeUpChannel, notify
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.worker.agent.exec_sessions import ExecSessions
from batchq.worker.agent.slots import Slots
from batchq.worker.agent.wakeups import WakeUpListener
from tests.harness.guarded import ADMIN, GuardedServer

SESSION = "0" * 48
REQUEST = ExecRequest(
    session=SESSION, pod="u1-1-0", attempt=1, command=ExecCommand(command=("true",))
)


def frames(*data: bytes, first: int = 1) -> list[ExecFrame]:
    """Return frames of output with consecutive numbers."""
    return [
        ExecFrame(number=number, kind="stdout", data=one)
        for number, one in enumerate(data, start=first)
    ]


@pytest.fixture
def sides(redis_store: RedisStore) -> tuple[ExecChannel, ExecChannel]:
    """The node's end of a session and its user's."""
    ends = [ExecChannel(redis_store.link, "n1", SESSION, is_node=one) for one in (True, False)]
    return ends[0], ends[1]


def test_frames_arrive_in_order_and_once_although_they_are_sent_twice(
    sides: tuple[ExecChannel, ExecChannel],
) -> None:
    node, user = sides
    node.open()
    assert node.send(frames(b"a", b"b"))
    assert node.send(frames(b"a", b"b", b"c"))
    received = user.receive(1_000)
    assert [(frame.number, frame.data) for frame in received] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert user.receive(10) == []


def test_a_user_adds_nothing_to_a_session_that_is_over(
    sides: tuple[ExecChannel, ExecChannel], raw: redis.Redis
) -> None:
    node, user = sides
    assert not user.send(frames(b"too early"))
    node.open()
    assert user.send(frames(b"in time"))
    node.remove()
    assert not user.send(frames(b"too late", first=2))
    assert raw.keys("exec:*") == []


def test_a_user_does_not_fill_the_server_if_the_node_takes_nothing(
    sides: tuple[ExecChannel, ExecChannel], raw: redis.Redis
) -> None:
    node, user = sides
    node.open()
    for first in range(1, 257, 16):
        assert user.send(frames(*[b"x"] * 16, first=first))
    with pytest.raises(StoreUnavailable) as refused:
        user.send(frames(b"x", first=257))
    assert refused.value.message == (
        f"the session {SESSION} on node n1 is busy: more than 256 frames wait for the command;"
        " send again later"
    )
    assert raw.xlen(keys.exec_input("n1", SESSION)) == 257
    node.discard(received=list(range(1, 257)))
    assert user.send(frames(b"x", first=257))


def test_a_user_sends_nothing_to_a_session_that_is_refused_or_has_ended_abruptly(
    sides: tuple[ExecChannel, ExecChannel],
) -> None:
    node, user = sides
    node.refuse("no place")
    assert not user.send(frames(b"x"))
    [end] = user.receive(1_000)
    assert decoded_end(end.data).message == "no place"
    node.remove()
    node.open()
    node.end_abruptly("killed")
    assert not user.send(frames(b"x"))


def test_a_session_without_its_node_expires(
    sides: tuple[ExecChannel, ExecChannel], raw: redis.Redis
) -> None:
    node, user = sides
    node.open()
    user.send(frames(b"hello"))
    assert all(50 < raw.ttl(key) <= 60 for key in raw.keys("exec:*"))


def test_an_abrupt_end_comes_after_all_other_frames(
    sides: tuple[ExecChannel, ExecChannel], raw: redis.Redis
) -> None:
    node, user = sides
    node.end_abruptly("there is no session")
    assert raw.keys("exec:*") == []
    node.open()
    node.send(frames(b"a"))
    node.end_abruptly("killed")
    [first, last] = user.receive(1_000)
    assert (first.data, last.kind, decoded_end(last.data).message) == (b"a", "end", "killed")
    assert user.receive(10) == []


def test_discarded_frames_leave_the_server(
    sides: tuple[ExecChannel, ExecChannel], raw: redis.Redis
) -> None:
    node, user = sides
    node.open()
    node.send(frames(b"a", b"b", b"c"))
    user.send(frames(b"d", b"e"))
    node.discard(sent=[1, 2], received=[1])
    assert [frame.data for frame in user.receive(1_000)] == [b"c"]
    assert [frame.data for frame in node.receive(1_000)] == [b"e"]


def test_entries_that_batchq_never_writes_are_passed_over(
    sides: tuple[ExecChannel, ExecChannel], raw: redis.Redis
) -> None:
    node, user = sides
    node.open()
    key = keys.exec_output("n1", SESSION)
    raw.xadd(key, {"foreign": b"\xff"}, id="1-0")
    raw.xadd(key, {"kind": "stdout", "data": b"x" * 100_000}, id="2-0")
    node.send(frames(b"a", first=3))
    assert [frame.data for frame in user.receive(1_000)] == [b"a"]
    assert user.receive(10) == []


@pytest.fixture
def bell(redis_store: RedisStore) -> Iterator[WakeUpChannel]:
    made = WakeUpChannel(redis_store.url, "n1")
    yield made
    made.close()


def test_an_agent_hears_the_requests_that_come_after_it_has_begun_to_listen(
    redis_store: RedisStore, bell: WakeUpChannel
) -> None:
    open_requests(redis_store.link, "n1")
    assert post_request(redis_store.link, "n1", REQUEST)
    bell.listen_to_requests(open_requests(redis_store.link, "n1"))
    bell.listen()
    assert post_request(redis_store.link, "n1", REQUEST)
    heard: list[bytes] = []
    while not heard:
        bell.listen()
        bell.hear()
        heard = bell.take_requests()
    assert len(heard) == 1
    assert bell.take_requests() == []


def test_a_node_without_an_agent_for_commands_gets_no_request(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    assert not post_request(redis_store.link, "n1", REQUEST)
    assert raw.keys("exec:*") == []


@pytest.mark.parametrize("damage", ["another type", "no ids left"])
def test_a_damaged_channel_of_requests_is_made_again(
    redis_store: RedisStore, raw: redis.Redis, damage: str
) -> None:
    key = keys.exec_requests("n1")
    if damage == "another type":
        raw.set(key, "x")
    else:
        raw.xadd(key, {"a": "b"}, id="18446744073709551615-18446744073709551615")
    open_requests(redis_store.link, "n1")
    assert post_request(redis_store.link, "n1", REQUEST)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedServer]:
    """A server with a user for each role."""
    with GuardedServer() as made:
        yield made


@pytest.mark.parametrize("user", ["readonly", "submitter", "controller", "worker-n2"])
def test_a_role_without_commands_learns_nothing_of_them(guarded: GuardedServer, user: str) -> None:
    with guarded.as_user(user) as client:
        for key in (keys.exec_requests("n1"), keys.exec_output("n1", SESSION)):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.xrange(key)
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.xadd(key, {"a": "b"})


@pytest.mark.parametrize("user", ["operator", "api"])
def test_operators_and_the_api_run_commands_on_every_node(
    guarded: GuardedServer, user: str
) -> None:
    agent, caller = (RedisStore(guarded.url_of(name)) for name in ("worker-n1", user))
    try:
        open_requests(agent.link, "n1")
        assert post_request(caller.link, "n1", REQUEST)
        node = ExecChannel(agent.link, "n1", SESSION, is_node=True)
        client = ExecChannel(caller.link, "n1", SESSION, is_node=False)
        node.open()
        assert client.send(frames(b"hello"))
        assert [frame.data for frame in node.receive(1_000)] == [b"hello"]
        node.discard(received=[1])
        node.keep()
        node.remove()
    finally:
        agent.close()
        caller.close()


def test_an_agent_with_the_rights_of_a_former_version_takes_no_commands_and_works(
    tmp_path: Path,
) -> None:
    former = ("~{bq}:inbox:n1", "~{bq}:alive:n1", "~{bq}:doorbell:n1", "~{bq}:bell")
    server = GuardedServer()
    with server, server.as_user(ADMIN) as admin:
        admin.execute_command("ACL", "SETUSER", "worker-n1", "resetkeys", "%R~{bq}:*", *former)
        users = ("worker-n1", "scheduler", "operator")
        agent, leader, operator = (RedisStore(server.url_of(name)) for name in users)
        poll = select.poll()
        listener = WakeUpListener(server.url_of("worker-n1"), "n1", poll)
        slots = Slots(RqLink(agent.url), "n1", prefix="test")
        sessions = ExecSessions(agent, "n1", slots, poll=poll, run_dir=tmp_path, accounts=None)
        try:
            sessions.keep_open(listener)
            listener.listen()
            notify(leader.link, ["n1"], WakeReason.PODS)
            assert poll.poll(10_000)
            assert listener.answer() == {WakeReason.PODS}
            assert not takes_requests(operator.link, "n1")
        finally:
            listener.close()
            for store in (agent, leader, operator):
                store.close()
