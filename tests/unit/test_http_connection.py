"""HTTP/1.1 as our own client speaks it, beside a server that sends what it was given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from batchq.http_connection import HttpAnswer, HttpConnection, HttpError

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def both() -> Iterator[tuple[HttpConnection, socket.socket]]:
    """A connection, and the socket at its other end."""
    own, other = socket.socketpair()
    own.settimeout(20)
    connection = HttpConnection("hpc:8443", lambda: own)
    with own, other:
        yield connection, other
        connection.close()


def answer_to(both: tuple[HttpConnection, socket.socket], sent: bytes) -> HttpAnswer:
    """The answer to a GET if the server sends this, and ends."""
    connection, other = both
    other.sendall(sent)
    other.shutdown(socket.SHUT_WR)
    return connection.exchange("GET", "/livez", None, {})


def test_a_request_is_one_message_with_its_body(
    both: tuple[HttpConnection, socket.socket],
) -> None:
    connection, other = both
    other.sendall(OK + b"Content-Length: 2\r\n\r\nok")
    connection.exchange("POST", "/v1/requests?dryRun=true", b'{"a":1}', {"Accept": "text/plain"})
    assert other.recv(4096) == (
        b"POST /v1/requests?dryRun=true HTTP/1.1\r\nHost: hpc:8443\r\n"
        b"Accept-Encoding: identity\r\nContent-Length: 7\r\nAccept: text/plain\r\n\r\n"
        b'{"a":1}'
    )


def test_one_connection_serves_several_requests(both: tuple[HttpConnection, socket.socket]) -> None:
    connection, other = both
    for text in (b"one", b"two"):
        other.sendall(OK + b"Content-Length: 3\r\nRETRY-AFTER:  5 \r\n\r\n" + text)
        answer = connection.exchange("GET", "/livez", None, {})
        assert not answer.leaves_open
        assert answer.body(1000) == text
        assert (answer.status, answer.headers["retry-after"]) == (200, "5")
        assert answer.leaves_open


@pytest.mark.parametrize(
    ("head", "body", "text", "leaves_open"),
    [
        ("Content-Length: 5", "hello and more", "hello", True),
        ("Content-Length: 5\r\nConnection: close", "hello", "hello", False),
        ("Content-Length: 0", "", "", True),
        ("Transfer-Encoding: chunked", "2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", "hello", True),
        ("Transfer-Encoding: chunked", "0\r\nDigest: abc\r\n\r\n", "", True),
        ("Transfer-Encoding: Chunked\r\nContent-Length: 9", "1\r\na\r\n0\r\n\r\n", "a", True),
        ("Server: old", "hello", "hello", True),
    ],
)
def test_a_body_ends_where_its_head_says(
    both: tuple[HttpConnection, socket.socket], head: str, body: str, text: str, leaves_open: bool
) -> None:
    answer = answer_to(both, OK + f"{head}\r\n\r\n{body}".encode())
    assert answer.body(1000) == text.encode()
    assert answer.leaves_open == leaves_open
    assert answer.part() == b""


def test_an_answer_may_come_byte_by_byte(both: tuple[HttpConnection, socket.socket]) -> None:
    connection, other = both
    sent = OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    head, body = sent[: sent.index(b"5\r\n")], sent[sent.index(b"5\r\n") :]
    other.sendall(head)
    answer = connection.exchange("GET", "/livez", None, {})
    connection.set_timeout(0.001)
    found = b""
    for byte in body:
        other.sendall(bytes([byte]))
        with suppress(TimeoutError):
            while part := answer.part():
                found += part
    assert (found, answer.leaves_open) == (b"hello!", True)


def test_an_answer_of_http_1_0_ends_with_its_connection(
    both: tuple[HttpConnection, socket.socket],
) -> None:
    answer = answer_to(both, b"HTTP/1.0 404 Not Found\r\n\r\nno")
    assert (answer.status, answer.body(1000), answer.leaves_open) == (404, b"no", False)


def test_answers_before_the_final_one_are_skipped(
    both: tuple[HttpConnection, socket.socket],
) -> None:
    answer = answer_to(both, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n")
    assert (answer.status, answer.body(1000), answer.leaves_open) == (204, b"", True)


def test_no_more_is_read_than_asked_for(both: tuple[HttpConnection, socket.socket]) -> None:
    answer = answer_to(both, OK + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
    assert 10 <= len(answer.body(10)) < 100_000
    assert not answer.leaves_open


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "the connection was cut"),
        (b"HTTP/1.1 200 OK\r\nContent-", "the connection was cut"),
        (OK + b"Content-Length: 5\r\n\r\nhell", "the connection was cut"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhell", "the connection was cut"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "the connection was cut"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", "the connection was cut"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "it sends a chunk without a length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n\r\n", "it sends a chunk without a length"),
        (OK + b"Content-Length: -5\r\n\r\nhello", "it states no length"),
        (OK + b"no header\r\n\r\n", "it does not speak HTTP"),
        (b"HTTP/2 200\r\n\r\n", "it does not speak HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "it does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n\r\n", "it does not speak HTTP"),
        (b"x" * 100_000, "it does not speak HTTP"),
    ],
)
def test_a_malformed_answer_is_refused_in_words(
    both: tuple[HttpConnection, socket.socket], sent: bytes, why: str
) -> None:
    with pytest.raises(HttpError) as refusal:
        answer_to(both, sent).body(1000)
    assert str(refusal.value) == why


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/groups HTTP/1.1\r\nHost: evil", {}),
        ("/v1/groups name", {}),
        ("/v1/groups", {"Batchq-As": "bob\r\nHost: evil"}),
        ("/v1/groups", {"Batchq-As": "bob\nx"}),
    ],
)
def test_no_second_line_gets_into_a_request(
    both: tuple[HttpConnection, socket.socket], path: str, headers: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="no single line"):
        both[0].exchange("GET", path, None, headers)
