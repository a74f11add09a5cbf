"""The HTTP server: its answers and its limits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException

import pytest

from batchq.daemon.metrics_server import (
    MOST_AT_ONCE,
    Address,
    HttpAnswer,
    Listener,
    check_address,
    listen,
    parse_address,
)
from batchq.errors import InvalidInput
from tests.daemon.scrapes import get
from tests.daemon.waiting import until
from tests.harness.ports import free_port


@contextmanager
def listening(*, longest_s: float) -> Iterator[Listener]:
    made = Listener(
        listen(Address("127.0.0.1", 0)),
        {"/hello": lambda accept: HttpAnswer(status=HTTPStatus.OK, body=f"hi {accept}".encode())},
        longest_s=longest_s,
        patience_s=60,
    )
    made.start()
    yield made
    made.stop()
    assert not made.alive


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A listener that answers /hello."""
    with listening(longest_s=60) as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[Listener]:
    """A listener that answers /hello and allows half a second for each connection."""
    with listening(longest_s=0.5) as made:
        yield made


def connected(listener: Listener) -> socket.socket:
    host, port = listener.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def raw(listener: Listener, request: bytes) -> bytes:
    """Return the complete response to these bytes."""
    with connected(listener) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", Address("127.0.0.1", 9464)),
        ("0", Address("127.0.0.1", 0)),
        ("0.0.0.0:9464", Address("0.0.0.0", 9464)),
        ("metrics.example.com:80", Address("metrics.example.com", 80)),
        ("[::1]:9464", Address("::1", 9464)),
    ],
)
def test_an_address_is_a_port_and_maybe_a_host(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", ":9464", "65536", "-1", "host:", "::1:9464", "1:2:3"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_address(text)
    assert refused.value.message == f"expected [HOST:]PORT to serve metrics on, found {text!r}"
    assert "9464" in refused.value.hint


def test_a_port_in_use_is_refused_in_one_sentence() -> None:
    port = free_port()
    with closing(listen(Address("127.0.0.1", port))), pytest.raises(InvalidInput) as refused:
        check_address(str(port))
    expected = f"cannot serve metrics on 127.0.0.1:{port}: Address already in use"
    assert refused.value.message == expected
    check_address(str(port))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"on 192\.0\.2\.1:9464: Cannot assign"):
        check_address("192.0.2.1:9464")


def test_a_page_is_answered_and_a_query_is_no_part_of_its_path(listener: Listener) -> None:
    assert get(f"{listener.url}/hello?x=1", accept="you") == (200, "hi you")


def test_other_paths_and_other_methods_are_refused(listener: Listener) -> None:
    assert get(f"{listener.url}/") == (404, "expected one of: /hello\n")
    assert get(f"{listener.url}/hello/../etc/passwd")[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD", "NONSENSE"):
        assert get(f"{listener.url}/hello", method=method)[0] == 405


def test_an_invalid_request_is_refused_and_later_ones_are_answered(listener: Listener) -> None:
    assert raw(listener, b"\x00\xff rubbish\r\n\r\n").startswith(b"Bad HTTP")
    assert b"414" in raw(listener, b"GET /" + b"a" * 70_000)
    assert b"431" in raw(listener, b"GET /hello HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n")
    with connected(listener):
        pass
    assert get(f"{listener.url}/hello")[0] == 200


def test_a_slow_client_is_cut_off_and_the_next_is_answered(hasty: Listener) -> None:
    slow = [connected(hasty) for _ in range(MOST_AT_ONCE + 2)]
    for connection in slow:
        connection.sendall(b"GET /hel")

    def is_answered() -> bool:
        # On a busy machine, the next one may be too slow as well.
        with suppress(OSError, HTTPException):
            return get(f"{hasty.url}/hello") == (200, "hi ")
        return False

    until(is_answered)
    # What it sent after it was cut off is answered with a reset.
    with suppress(ConnectionResetError):
        assert slow[0].recv(10) == b""
    for connection in slow:
        connection.close()


def test_a_trickling_client_is_cut_off_all_the_same(hasty: Listener) -> None:
    with connected(hasty) as connection:
        connection.sendall(b"GET /")

        def is_cut_off() -> bool:
            try:
                connection.sendall(b"a")
            except OSError:
                return True
            return False

        until(is_cut_off)


def test_a_stop_cuts_off_open_connections() -> None:
    listener = Listener(listen(Address("127.0.0.1", 0)), {}, longest_s=3_600, patience_s=60)
    listener.start()
    with connected(listener) as connection:
        connection.sendall(b"GET /")
        until(lambda: bool(listener._open))
        listener.stop()
        assert connection.recv(10) == b""
    assert not listener.alive


def test_a_listener_that_never_started_frees_its_port() -> None:
    port = free_port()
    listening = listen(Address("127.0.0.1", port))
    Listener(listening, {}).stop()
    check_address(str(port))
