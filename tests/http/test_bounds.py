"""Bounds: bodies, heads, slow readers and senders, rates, streams, and connections."""

from __future__ import annotations

import asyncio
import errno
import http.client
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest

from batchq.http import connections
from batchq.http.connections import Rate, StreamPlaces, TokenBuckets, Turns
from batchq.http.problems import ApiProblem
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import ApiProcess, RunningApi
from tests.http.manifests import groups_of, manifest

DEFAULT = groups_of("default")
HALF_A_BODY = (
    b"POST /v1/namespaces/default/groups HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
)


def lose_patience(patch: pytest.MonkeyPatch) -> None:
    """Let an API lose patience within a second."""
    patch.setattr(connections.BoundedProtocol, "stalled_s", 1.0)
    patch.setattr(connections.BoundedProtocol, "idle_s", 1.0)


@pytest.fixture
def hasty(server: Server, stage: Stage) -> Iterator[RunningApi]:
    """An API that has lost patience; a busy machine may be too slow for any request to it."""
    with RunningApi(server.url) as api, pytest.MonkeyPatch.context() as patch:
        lose_patience(patch)
        yield api


def opened(api: RunningApi) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(api.socket))
    return connection


def send_all_that_is_taken(connection: socket.socket, data: bytes) -> None:
    """Send data to a server that may refuse it, and close, before all of it is sent."""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


def wait_for_hangup(connection: socket.socket) -> None:
    """Wait, without reading, until the other end has closed."""
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    assert poll.poll(60_000), "the connection was not cut"


def test_a_reader_that_reads_nothing_is_cut(
    running_api: RunningApi, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [manifest(f"group-{number}") for number in range(300)]
    for request in requests:
        request["metadata"]["annotations"] = {"note": "x" * 4000}
    stage.client.submit_many(requests).all()
    with opened(running_api) as idle, opened(running_api) as stream:
        idle.sendall(b"GET /v1/groups?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stream.sendall(b"GET /v1/groups?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # Both are being answered.
        for connection in (idle, stream):
            assert connection.recv(12) == b"HTTP/1.1 200"
        with monkeypatch.context() as patch:
            lose_patience(patch)
            wait_for_hangup(idle)
            wait_for_hangup(stream)
    assert running_api.caller()("GET", "/livez").status == 200


def test_a_quiet_stream_is_not_cut(
    running_api: RunningApi, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_api.caller().events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        lose_patience(monkeypatch)
        # Twice the patience for connections that have something left to do.
        for _ in range(2):
            with opened(running_api) as idle:
                wait_for_hangup(idle)
        stage.client.submit(manifest("late"))
        assert events.until("ADDED")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/groups HTTP/1.1\r\nHost: loc",
        HALF_A_BODY,
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_sender_that_stops_is_cut(hasty: RunningApi, sent: bytes) -> None:
    with opened(hasty) as connection:
        connection.sendall(sent)
        wait_for_hangup(connection)


def test_a_head_of_a_byte_now_and_then_is_cut(hasty: RunningApi) -> None:
    pause = threading.Event()
    with opened(hasty) as connection:
        for _ in range(1_200):
            try:
                connection.sendall(b"G")
            except (BrokenPipeError, ConnectionResetError):
                return
            pause.wait(0.05)
    raise AssertionError("it kept its place for a minute")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(running_api: RunningApi) -> None:
    with opened(running_api) as connection:
        connection.sendall(
            b"POST /v1/namespaces/default/groups HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_that_turns_out_too_large_is_refused(running_api: RunningApi) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with opened(running_api) as connection:
        connection.sendall(
            b"POST /v1/namespaces/default/groups HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        # The refusal may arrive while the rest is being sent.
        with suppress(OSError):
            for _ in range(100):
                connection.sendall(chunk)
        answer = b""
        with suppress(ConnectionResetError):
            answer = connection.recv(12)
        assert answer in (b"HTTP/1.1 413", b"")
    assert running_api.caller()("GET", "/livez").status == 200


def test_a_head_that_is_too_large_is_refused(running_api: RunningApi) -> None:
    with opened(running_api) as connection:
        send_all_that_is_taken(
            connection, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000
        )
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_large_head_that_arrives_at_once_is_refused(running_api: RunningApi) -> None:
    headers = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(40))
    with opened(running_api) as connection:
        send_all_that_is_taken(
            connection, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
        )
        assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_large_body_is_not_taken_for_a_head(running_api: RunningApi, stage: Stage) -> None:
    group = manifest("train")
    group["metadata"]["annotations"] = {"note": "x" * 50_000}
    api = running_api.caller()
    assert api("POST", DEFAULT, group).status == 201
    assert api("GET", f"{DEFAULT}/train").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /livez\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\nHost: localhost\n\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        (
            b"POST /v1/requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        (
            b"POST /v1/requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
            b"Content-Length: 5\r\n\r\n12345"
        ),
        b"POST /v1/requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_a_malformed_request_is_refused_and_the_next_one_answered(
    running_api: RunningApi, sent: bytes
) -> None:
    with opened(running_api) as connection:
        connection.sendall(sent)
        assert connection.recv(10) in (b"HTTP/1.1 4", b"")
    assert running_api.caller()("GET", "/livez").status == 200


def test_more_connections_than_there_may_be_are_closed(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.http.server.most_connections", lambda: 3)
    with RunningApi(server.url) as api:
        held = [opened(api) for _ in range(3)]
        try:
            with opened(api) as fourth:
                wait_for_hangup(fourth)
        finally:
            for connection in held:
                connection.close()
        for connection in held:
            del connection
        pause = threading.Event()
        for _ in range(200):
            try:
                if api.caller()("GET", "/livez").status == 200:
                    return
            except OSError:
                pause.wait(0.02)
    raise AssertionError("the places were not freed")


@pytest.mark.slow
def test_ten_thousand_connections_do_not_end_the_api(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = min(10_000, hard - 500)
    assert many > 2 * connections.MOST_CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (many + 400, hard))
    held = []
    try:
        with ApiProcess(server.url) as api:
            pause = threading.Event()
            for _ in range(many):
                held.append(socket.socket(socket.AF_UNIX))
                held[-1].setblocking(False)
                # With a full backlog, the kernel does not let a connection wait.
                while held[-1].connect_ex(str(api.socket)) == errno.EAGAIN:
                    pause.wait(0.01)
            for _ in range(600):
                # The places are free again once those that say nothing are cut.
                with suppress(OSError, http.client.HTTPException):
                    if api.caller()("GET", "/livez").status == 200:
                        break
                pause.wait(0.1)
            else:
                raise AssertionError("the API does not answer")
            assert "Traceback" not in api.log.read_text()
    finally:
        for one in held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_allowance_grows_with_time_up_to_its_bound() -> None:
    clock = Hands()
    buckets = TokenBuckets(Rate(per_s=2.0, burst=3.0), clock=clock)
    assert [buckets.wait_s("alice") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.wait_s("bob") == 0
    clock.now += 0.5
    assert buckets.wait_s("alice") == 0
    clock.now += 3600
    assert [buckets.wait_s("alice") for _ in range(4)] == [0, 0, 0, 0.5]
    with pytest.raises(ApiProblem, match="alice has sent more than 2 reads a second") as raised:
        buckets.take("alice", "reads")
    assert raised.value.headers == {"Retry-After": "1"}


def test_callers_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_REMEMBERED", 3)
    buckets = TokenBuckets(Rate(per_s=1.0, burst=1.0), clock=Hands())
    for caller in ("a", "b", "c", "d"):
        assert buckets.wait_s(caller) == 0
    assert [buckets.wait_s(caller) for caller in ("d", "a")] == [1.0, 0]


def test_a_flood_of_one_caller_is_refused_and_says_when_to_come_again(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.http.application.READS", Rate(per_s=0.01, burst=20.0))
    with RunningApi(server.url) as running:
        api = running.caller()
        answers = [api("GET", "/v1/me") for _ in range(21)]
        assert [answer.status for answer in answers] == [200] * 20 + [429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 100
        # Health is not counted, and writes are counted apart.
        assert api("GET", "/livez").status == 200
        assert api("POST", DEFAULT, manifest("train")).status == 201


def test_a_user_has_so_many_streams_and_a_place_is_free_again_after_one() -> None:
    places = StreamPlaces()
    held = [places.place("alice", "logs") for _ in range(10)]
    for place in held:
        place.__enter__()
    with pytest.raises(ApiProblem, match="user alice has 10 logs open"):
        places.place("alice", "logs").__enter__()
    with places.place("bob", "logs"):
        pass
    held[0].__exit__(None, None, None)
    with places.place("alice", "logs"):
        pass


def test_a_few_calls_run_a_few_more_wait_and_others_are_refused() -> None:
    async def play() -> list[str]:
        turns, said = Turns(1, 1, "too many calls"), []
        first = turns.__aenter__()
        await first
        second = asyncio.ensure_future(turns.__aenter__())
        await asyncio.sleep(0)
        try:
            await turns.__aenter__()
        except ApiProblem as problem:
            said.append(problem.detail)
        said.append(f"second done: {second.done()}")
        await turns.__aexit__()
        await second
        said.append(f"idle: {turns.is_idle}")
        await turns.__aexit__()
        said.append(f"idle: {turns.is_idle}")
        return said

    assert asyncio.run(play()) == [
        "too many calls", "second done: False", "idle: False", "idle: True",
    ]  # fmt: skip


class _Transport:
    """Records what is sent, and when it is closed."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def get_write_buffer_size(self) -> int:
        return 5


def test_writes_of_one_step_are_sent_together_and_large_ones_at_once() -> None:
    async def written() -> tuple[_Transport, _Transport]:
        transport, ended = _Transport(), _Transport()
        joined = connections.JoinedWrites(cast("asyncio.Transport", transport))
        joined.write(b"head ")
        joined.write(b"body")
        assert (transport.sent, joined.get_write_buffer_size()) == ([], 14)
        await asyncio.sleep(0)
        assert transport.sent == [b"head body"]
        joined.write(b"x" * 70_000)
        assert len(transport.sent) == 2
        joined.write(b"last")
        joined.close()
        aborted = connections.JoinedWrites(cast("asyncio.Transport", ended))
        aborted.write(b"never")
        aborted.abort()
        await asyncio.sleep(0)
        return transport, ended

    transport, ended = asyncio.run(written())
    assert (transport.sent[2:], transport.ended) == ([b"last"], "closed")
    assert (ended.sent, ended.ended) == ([], "aborted")
