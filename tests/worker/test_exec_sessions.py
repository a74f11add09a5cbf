"""Which requests for commands in pods an agent accepts, and how many at a time."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import redis
from msgspec import structs

from batchq.api.exec_session import (
    REQUEST_TTL_MS,
    ExecCommand,
    ExecRequest,
    decoded_end,
    signed_request,
)
from batchq.api.node_report import PodAttempt
from batchq.errors import StoreUnavailable
from batchq.store.exec_channels import ExecChannel
from batchq.store.redis import RedisStore
from batchq.worker.agent import exec_sessions
from batchq.worker.agent.exec_sessions import ExecSessions, open_ends
from batchq.worker.agent.slots import Slots
from batchq.worker.agent.wakeups import WakeUpListener
from batchq.worker.host.accounts import PodAccounts
from batchq.worker.host.privileges import Account
from batchq.worker.workhorse.inner_commands import InnerOrder

KEY = b"k" * 40
ACCOUNTS = PodAccounts(
    key=KEY, agent=Account(name="batchq-worker", uid=998, gid=998, groups=(), home="/", shell="")
)


class OneHorse:
    """The slots of an agent with one running attempt."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def attempts(self) -> frozenset[PodAttempt]:
        return frozenset({PodAttempt("u1-1-0", 1)})

    def hand_over(self, attempt: PodAttempt, order: InnerOrder, theirs: Sequence[int]) -> bool:
        self.started.append(order.argv[0])
        return True


class SilentListener:
    """A listener that is told from where to listen, and does not."""

    def listen_to_requests(self, newest: str) -> None:
        pass


class Node:
    """An agent's part in commands, whose relays do nothing and stay."""

    def __init__(self, store: RedisStore, run_dir: Path) -> None:
        self.store, self.run_dir = store, run_dir
        self.horse = OneHorse()
        self.relays: list[subprocess.Popen[bytes]] = []
        #: How long each relay waits for its user.
        self.patience: list[float] = []
        self.restart(ACCOUNTS)

    def restart(self, accounts: PodAccounts | None) -> None:
        self._sessions = ExecSessions(
            self.store,
            "n1",
            cast("Slots", self.horse),
            poll=select.poll(),
            run_dir=self.run_dir,
            accounts=accounts,
        )
        self._sessions.keep_open(cast("WakeUpListener", SilentListener()))

    def fork_relay(self, *_: object, unheard_s: float, **__: object) -> int:
        self.patience.append(unheard_s)
        relay = subprocess.Popen(["sleep", "600"])
        self.relays.append(relay)
        return relay.pid

    def take(self, *requests: ExecRequest) -> None:
        self._sessions.open_all([msgspec.json.encode(one) for one in requests], frozenset())

    def answer(self, request: ExecRequest) -> str:
        """Return why the node has opened no session; "" if it has said nothing."""
        user = ExecChannel(self.store.link, "n1", request.session, is_node=False)
        ends = [frame for frame in user.receive(10) if frame.kind == "end"]
        return decoded_end(ends[0].data).message if ends else ""


@pytest.fixture
def node(
    redis_store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    made = Node(redis_store, tmp_path)
    monkeypatch.setattr(exec_sessions, "fork_relay", made.fork_relay)
    yield made
    for relay in made.relays:
        relay.kill()
        relay.wait()


def a_request(node: Node, number: int, *, user: str = "alice", age_ms: int = 0) -> ExecRequest:
    """Return a request without a signature, as a client makes it."""
    return ExecRequest(
        session=f"{number:048x}",
        pod="u1-1-0",
        attempt=1,
        command=ExecCommand(command=("id",)),
        user=user,
        expires_at=node.store.now_ms() + REQUEST_TTL_MS - age_ms,
    )


def test_a_signed_request_is_answered_once_whatever_comes_between(
    node: Node, raw: redis.Redis
) -> None:
    signed = signed_request(KEY, a_request(node, 0))
    node.take(signed)
    for number in range(1, 1_101):
        node.take(a_request(node, number))
        raw.flushdb()
    node.take(signed_request(KEY, a_request(node, 2_000)))
    node.take(signed)
    assert node.horse.started == ["id"] * 2


def test_an_agent_remembers_a_bounded_number_of_requests(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_sessions, "MOST_REQUESTS", 3)
    node.restart(None)
    requests = [a_request(node, number) for number in range(4)]
    node.take(*requests)
    assert node.horse.started == ["id"] * 3
    assert node.answer(requests[3]) == (
        "3 commands were requested in pods of node n1 within 30 seconds, the most there may be;"
        " try again later"
    )
    node.take(requests[0])
    assert node.horse.started == ["id"] * 3


def test_a_request_of_the_millisecond_in_which_the_next_agent_starts_is_not_served_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = node.store.now_ms()
    monkeypatch.setattr(node.store, "now_ms", lambda: now_ms)
    signed = signed_request(KEY, a_request(node, 0))
    node.take(signed)
    node.restart(ACCOUNTS)
    node.take(signed)
    assert node.horse.started == ["id"]


def test_a_signed_request_is_not_valid_for_the_next_agent_or_later(node: Node) -> None:
    before = signed_request(KEY, a_request(node, 0))
    node.take(before)
    node.restart(ACCOUNTS)
    old = signed_request(KEY, a_request(node, 1, age_ms=REQUEST_TTL_MS))
    without_time = signed_request(KEY, structs.replace(a_request(node, 2), expires_at=0))
    longer = structs.replace(before, session=f"{3:048x}", expires_at=before.expires_at + 1_000)
    node.take(before, old, without_time, longer)
    assert node.horse.started == ["id"]
    sentence = (
        "the request is too old: expected one of the last 30 seconds by the clock of the Redis"
        " server; try again"
    )
    assert [node.answer(one) for one in (before, old, without_time)] == [
        "the agent of node n1 has been started since; try again",
        sentence,
        sentence,
    ]
    assert "has no valid signature" in node.answer(longer)


def test_a_signature_that_is_not_ascii_is_not_valid(node: Node) -> None:
    request = structs.replace(a_request(node, 1), signature="é")
    node.take(request)
    assert "no valid signature" in node.answer(request)


def test_a_request_that_fails_in_any_way_leaves_the_next_one_its_turn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over, started = node.horse.hand_over, iter((False, True))

    def broken(*given: Any) -> bool:
        if not next(started):
            raise TypeError("a bug")
        return hand_over(*given)

    monkeypatch.setattr(node.horse, "hand_over", broken)
    node.take(*(signed_request(KEY, a_request(node, number)) for number in (1, 2)))
    assert node.horse.started == ["id"]


def test_a_relay_that_cannot_be_watched_is_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    request = signed_request(KEY, a_request(node, 2))
    monkeypatch.setattr(os, "pidfd_open", full)
    node.take(request)
    assert "Too many open files" in node.answer(request)
    assert [relay.poll() for relay in node.relays] != [None]


def test_an_agent_without_accounts_answers_requests_of_former_versions_once(node: Node) -> None:
    node.restart(None)
    former = structs.replace(a_request(node, 0), expires_at=0, user="")
    node.take(former, former)
    assert node.horse.started == ["id"]


def test_one_user_does_not_take_all_places_of_a_node(node: Node) -> None:
    requests = [signed_request(KEY, a_request(node, number)) for number in range(33)]
    node.take(*requests)
    assert len(node.relays) == 32
    assert node.answer(requests[32]) == (
        "32 commands of user alice run in pods of node n1, the most that one user may have there"
    )
    node.take(signed_request(KEY, a_request(node, 33, user="bob")))
    assert len(node.relays) == 33


def test_a_request_that_met_a_lost_connection_is_answered_when_it_is_repeated(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = signed_request(KEY, structs.replace(a_request(node, 0), pod="u9-1-0"))
    refuse = ExecChannel.refuse

    def fails_once(channel: ExecChannel, message: str, *, is_early: bool = False) -> None:
        monkeypatch.setattr(ExecChannel, "refuse", refuse)
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(ExecChannel, "refuse", fails_once)
    with pytest.raises(StoreUnavailable):
        node.take(ended, signed_request(KEY, a_request(node, 1)))
    assert node.horse.started == ["id"]
    node.take(ended)
    assert node.answer(ended) == "the pod does not run any more on node n1"


#: A relay in a process of its own: what is left of it would use the server of the next test.
RELAY = """
import sys
from batchq.worker.agent.exec_sessions import RelayEnds, _Relay
stdin, stdout, stderr, control = map(int, sys.argv[3:])
ends = RelayEnds(
    stdin=stdin, stdout=stdout, stderr=stderr, control=control, is_terminal=False
)
_Relay(sys.argv[1], "n1", sys.argv[2], ends, 0.1).run()
"""


def test_a_command_whose_user_is_silent_is_hung_up_before_its_input_ends(
    redis_store: RedisStore,
) -> None:
    ends, theirs = open_ends(None, has_input=True)
    session, ours = f"{7:048x}", ends.descriptors()
    words = [sys.executable, "-c", RELAY, redis_store.url, session, *map(str, ours)]
    with socket.socket(fileno=theirs[-1]) as command:
        # Nothing ever comes from the user.
        relay = subprocess.Popen(words, pass_fds=ours)
        for descriptor in (*theirs[1:-1], *ours):
            os.close(descriptor)
        command.settimeout(60)
        assert command.recv(16) == b""
        # The input goes on until the command is hung up: otherwise, a command that reads to the end
        # would take a part for the whole.
        assert not select.select([theirs[0]], [], [], 0.5)[0]
    assert os.read(theirs[0], 1) == b""
    os.close(theirs[0])
    assert relay.wait(90) == 0


def test_an_input_of_a_pod_does_not_wait_long_for_a_terminal_that_has_left(node: Node) -> None:
    node.restart(None)
    attaches = a_request(node, 1)
    attaches = structs.replace(attaches, command=structs.replace(attaches.command, attaches=True))
    node.take(a_request(node, 0), attaches)
    assert node.patience == [15.0, 6.0]
