"""Waits during an outage: one message, then the wait continues and respects its timeout."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchq.client import Client
from batchq.errors import InvalidInput, StoreUnavailable, WaitTimedOut
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.daemon.waiting import until
from tests.harness.server import Server

SOON_S = 60


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps its data, and can be stopped and started."""
    with Server("--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


@pytest.fixture
def stage(server: Server) -> Iterator[Stage]:
    """A running group `x` of one pod."""
    store = RedisStore(server.url)
    with Client(server.url) as client:
        stage = Stage(store, client)
        stage.furnish(*a_cluster())
        client.submit(command=["true"], name="x")
        stage.turn()
        stage.start("x")
        yield stage
    store.close()


class Bystander:
    """A client in its own thread, and the messages that it got."""

    def __init__(self, server: Server) -> None:
        self.lines: list[str] = []
        self.client = Client(server.url, tell=self.lines.append)
        self.threads = ThreadPoolExecutor(max_workers=1)

    def close(self) -> None:
        self.client.close()
        self.threads.shutdown()


@pytest.fixture
def bystander(server: Server, stage: Stage) -> Iterator[Bystander]:
    made = Bystander(server)
    yield made
    made.close()


def an_outage(server: Server, stage: Stage, bystander: Bystander) -> None:
    """Stop the server, and start it again after the outage was reported."""
    server.stop()
    until(lambda: len(bystander.lines) == 1, within_s=SOON_S)
    server.start()
    stage.lead_again()


def assert_told_once(server: Server, bystander: Bystander) -> None:
    away, back = bystander.lines
    assert away == (
        f"the server at {server.url} is not running: the connection is refused; waiting for it"
    )
    assert back.startswith("the server is back after ")


def test_waiting_for_a_group_outlasts_an_outage(
    server: Server, stage: Stage, bystander: Bystander
) -> None:
    future = bystander.threads.submit(bystander.client.wait, ["x"])
    an_outage(server, stage, bystander)
    stage.end("x")
    [result] = future.result(SOON_S)
    assert result.phase == "Completed"
    assert_told_once(server, bystander)


def test_following_output_outlasts_an_outage_and_repeats_no_line(
    server: Server, stage: Stage, bystander: Bystander
) -> None:
    def follow() -> list[str]:
        return [line.text for line in bystander.client.logs("x", follow=True)]

    write(stage, b"before\n")
    future = bystander.threads.submit(follow)
    an_outage(server, stage, bystander)
    write(stage, b"after\n")
    stage.end("x")
    assert future.result(SOON_S) == ["before", "after"]
    assert_told_once(server, bystander)


def test_watching_outlasts_an_outage_and_misses_nothing(
    server: Server, stage: Stage, bystander: Bystander
) -> None:
    changes = bystander.client.watch("PodGroup")
    assert next(changes).key == "default/x"
    future = bystander.threads.submit(next, changes)
    an_outage(server, stage, bystander)
    stage.client.submit(command=["true"], name="y")
    assert future.result(SOON_S).key == "default/y"
    assert_told_once(server, bystander)


def test_a_wait_ends_with_its_time_though_the_server_is_away(
    server: Server, stage: Stage, bystander: Bystander
) -> None:
    # A busy machine may need longer to stop the server.
    for timeout_s in (3, 30):
        server.stop()
        with pytest.raises(StoreUnavailable):
            bystander.client.get("PodGroup", "x")
        server.start()
        future = bystander.threads.submit(bystander.client.wait, ["x"], timeout_s=float(timeout_s))
        until(lambda: stage.store.get("PodGroup", "default/x") is not None, within_s=SOON_S)
        server.stop()
        with pytest.raises(WaitTimedOut) as caught:
            future.result(SOON_S)
        if " is Running after " not in caught.value.message:
            break
        server.start()
    assert caught.value.message == (
        f"PodGroup default/x could not be read within {timeout_s}s: the server at {server.url}"
        " is not running: the connection is refused"
    )


def test_a_refused_user_does_not_wait(server: Server, stage: Stage) -> None:
    lines: list[str] = []
    with stage.client.patiently():
        stage.store.link.ask(
            lambda client: client.acl_setuser(
                "guest",
                enabled=True,
                nopass=True,
                keys=["*"],
                categories=["+@read", "+@connection"],
                commands=["+info", "+time"],
            )
        )
    url = server.url.replace("unix://", "unix://guest:any@")
    with Client(url, tell=lines.append) as client, client.patiently():
        assert client.get("PodGroup", "x")
        with pytest.raises(StoreUnavailable, match="does not permit this user"):
            client.cancel("x")
    assert lines == []


def write(stage: Stage, data: bytes) -> None:
    [pod] = stage.pods("x")
    place = pod.status.node, pod.metadata.uid, pod.status.attempt
    stage.store.append_log(*place, "stdout", data)


def test_a_server_that_is_away_at_the_beginning_is_waited_for(
    server: Server, stage: Stage, bystander: Bystander
) -> None:
    server.stop()
    future = bystander.threads.submit(
        Client, server.url, tell=bystander.lines.append, patience_s=None
    )
    until(lambda: len(bystander.lines) == 1, within_s=SOON_S)
    server.start()
    with future.result(SOON_S) as client:
        assert client.get("PodGroup", "x")
        assert client.waited_s > 0
    assert_told_once(server, bystander)


def test_a_server_that_hangs_at_the_beginning_is_waited_for(
    server: Server, stage: Stage, bystander: Bystander
) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        future = bystander.threads.submit(
            Client, server.url, tell=bystander.lines.append, patience_s=None
        )
        until(lambda: len(bystander.lines) == 1, within_s=SOON_S)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    with future.result(SOON_S) as client:
        assert client.get("PodGroup", "x")
    assert bystander.lines[0] == (
        f"the server at {server.url} does not answer within 10 s; waiting for it"
    )


def test_the_first_connection_keeps_to_the_time_it_was_given(server: Server) -> None:
    server.stop()
    with pytest.raises(WaitTimedOut) as caught:
        Client(server.url, patience_s=1)
    assert caught.value.message == (
        f"the server did not answer within 1s: the server at {server.url}"
        " is not running: the connection is refused"
    )


def test_errors_that_waiting_does_not_mend_are_raised_at_once(server: Server, stage: Stage) -> None:
    lines: list[str] = []
    wrong = server.url.replace("unix://", "unix://nobody:wrong@")
    with pytest.raises(StoreUnavailable, match="refuses the user name or password"):
        Client(wrong, tell=lines.append, patience_s=SOON_S)
    with pytest.raises(InvalidInput, match="it does not begin with one of redis://"):
        Client("http://localhost", tell=lines.append, patience_s=SOON_S)
    assert lines == []
