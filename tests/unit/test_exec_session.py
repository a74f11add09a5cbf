"""Commands in pods, as both sides speak of them: names, windows, and what is malformed."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from batchq.api.exec_session import (
    FRAME_BYTES,
    WINDOW_BYTES,
    Acknowledger,
    ExecCommand,
    ExecFrame,
    ExecRequest,
    SendWindow,
    TerminalSize,
    belongs_to,
    check_command,
    decoded_request,
    is_request_signed,
    session_of,
    signed_request,
)
from batchq.errors import InvalidInput

RANDOM = "0123456789abcdef" * 4


def frame(number: int, size: int = FRAME_BYTES) -> ExecFrame:
    """Return a frame of output of this size."""
    return ExecFrame(number=number, kind="stdout", data=b"x" * size)


def test_a_session_belongs_to_the_user_who_began_it() -> None:
    session = session_of(RANDOM, "alice", "g1")
    assert belongs_to(session, "alice", "g1")
    assert not belongs_to(session, "bob", "g1")
    assert not belongs_to(session, "alice", "g2")


@pytest.mark.parametrize("text", ["", "0" * 47, "0" * 49, "g" * 48, "0" * 32 + ":" + "0" * 15])
def test_a_malformed_session_belongs_to_no_user(text: str) -> None:
    assert not belongs_to(text, "alice", "g1")


def test_a_window_has_room_until_it_is_full_and_again_after_an_acknowledgement() -> None:
    window = SendWindow()
    for number in range(1, WINDOW_BYTES // FRAME_BYTES + 1):
        assert window.has_room()
        window.add(frame(number))
    assert not window.has_room()
    assert window.acknowledge(b"1") == 1
    assert window.has_room()


def test_few_small_frames_fill_a_window_and_are_acknowledged() -> None:
    window, acknowledger = SendWindow(), Acknowledger()
    numbers = range(1, 129)
    answers = [acknowledger.note(frame(number, 1)) for number in numbers]
    for number in numbers:
        window.add(frame(number, 1))
    assert not window.has_room()
    assert [answer for answer in answers if answer] == [b"32", b"64", b"96", b"128"]
    window.acknowledge(b"32")
    assert window.has_room()


def test_frames_without_data_need_no_room() -> None:
    window = SendWindow(FRAME_BYTES)
    window.add(ExecFrame(number=1, kind="ping"))
    assert window.has_room()


@pytest.mark.parametrize("data", [b"", b"-1", b"one", b"9" * 17])
def test_a_malformed_acknowledgement_acknowledges_nothing(data: bytes) -> None:
    window = SendWindow(FRAME_BYTES)
    window.add(frame(1))
    assert window.acknowledge(data) is None
    assert not window.has_room()


def test_data_is_acknowledged_well_before_the_window_is_full() -> None:
    acknowledger = Acknowledger()
    answers = [acknowledger.note(frame(number)) for number in range(1, 5)]
    assert answers == [None, b"2", None, b"4"]


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"24 80", TerminalSize(24, 80)),
        (b"99999 1", TerminalSize(65535, 1)),
        (b"24", None),
        (b"24 -80", None),
        (b"123456 80", None),
        (b"", None),
    ],
)
def test_a_size_is_two_small_numbers(data: bytes, size: TerminalSize | None) -> None:
    assert TerminalSize.parse(data) == size


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ((), "expected a command to run in the pod, found none"),
        (("",), "expected a command to run in the pod, found none"),
        (("a\0b",), "expected a command without NUL characters"),
        (("a" * 70_000,), "the command has more than 32768 bytes"),
    ],
)
def test_a_command_that_no_pod_can_run_is_refused(command: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{sentence}$"):
        check_command(ExecCommand(command=command))


def test_a_request_is_read_as_it_was_written() -> None:
    request = ExecRequest(
        session=session_of(RANDOM, "alice", "g1"),
        pod="u1-1-0",
        attempt=1,
        command=ExecCommand(command=("sh",), terminal=TerminalSize(50, 132), term="xterm"),
    )
    assert decoded_request(msgspec.json.encode(request)) == request


def test_a_signature_is_of_the_whole_request_and_of_its_key() -> None:
    request = ExecRequest(
        session=session_of(RANDOM, "alice", "g1"),
        pod="u1-1-0",
        attempt=1,
        command=ExecCommand(command=("id",)),
    )
    signed = signed_request(b"key", request)
    assert is_request_signed(b"key", signed)
    assert not is_request_signed(b"other", signed)
    assert not is_request_signed(b"key", request)
    changed = structs.replace(signed, command=ExecCommand(command=("rm",)))
    assert not is_request_signed(b"key", changed)


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b'{"session":"x","pod":"p","attempt":1,"command":{"command":["sh"]}}',
        b'{"session":"' + b"0" * 48 + b'","pod":"p","attempt":1,"command":{"command":[]}}',
        b" " * 200_000,
        b'{"session":"' + b"0" * 48 + b'","pod":"p","attempt":1,"command":{"command":["sh"],'
        b'"terminal":[-1,80]}}',
        b'{"session":"' + b"0" * 48 + b'","pod":"p","attempt":1,"command":{"command":["sh"],'
        b'"terminal":{"rows":24,"columns":65536}}}',
    ],
)
def test_a_malformed_request_is_no_request(data: bytes) -> None:
    assert decoded_request(data) is None
