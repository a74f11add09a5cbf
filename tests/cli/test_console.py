"""The user's side of commands in pods, without a node: what is sent when, and what is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Event, Thread
from typing import cast

import msgspec
import pytest

from batchq.api.exec_session import INPUT_IS_TAKEN, ExecEnd, ExecFrame, FrameKind
from batchq.cli import pod_exec
from batchq.cli.pod_exec import Conversation, Speaker, TerminalModes
from batchq.client.pods import CommandSession
from batchq.errors import Conflict


class NodeAnswers:
    """A session that says what the test lets it say; before that, nothing can be sent to it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self._is_open = False
        self._frames: SimpleQueue[ExecFrame] = SimpleQueue()
        self._number = 0

    def say(self, kind: FrameKind, data: bytes = b"") -> None:
        self._is_open = True
        self._number += 1
        self._frames.put(ExecFrame(number=self._number, kind=kind, data=data))

    def send(self, kind: FrameKind, data: bytes = b"") -> ExecFrame:
        if not self._is_open:
            raise Conflict("the session with the command is over")
        self.sent.append((kind, data))
        return ExecFrame(number=len(self.sent), kind=kind, data=data)

    def receive(self, wait_s: float) -> Sequence[ExecFrame]:
        return (self._frames.get(),)

    def close(self) -> None:
        pass

    @property
    def input(self) -> list[tuple[str, bytes]]:
        """Return the input that it got, and its end."""
        return [one for one in self.sent if one[0] in ("stdin", "eof")]


def joined(conversation: Conversation, node: NodeAnswers) -> Speaker:
    """Add a session to a conversation."""
    return conversation.join(cast("CommandSession", node), "Pod default/p")


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where the input of the user is written."""
    ours, theirs = os.pipe()
    monkeypatch.setattr(pod_exec, "_STDIN", ours)
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_a_node_that_answers_late_hears_that_the_user_has_left() -> None:
    node = NodeAnswers()
    speaker = Speaker(cast("CommandSession", node), "Pod default/p", Event().set)
    leaves = Thread(target=speaker.close, kwargs={"within_s": 60.0})
    leaves.start()
    node.say("ping")
    leaves.join()
    assert node.sent == [("signal", b"1")]


def test_input_that_nothing_has_read_is_given_to_the_next_session(keyboard: int) -> None:
    refused, accepted = NodeAnswers(), NodeAnswers()
    with Conversation(has_terminal=False, has_input=True) as conversation:
        first = joined(conversation, refused)
        refused.say("ping")
        os.write(keyboard, b"one\n")
        while not refused.input:
            conversation.turn()
        refused.say("end", msgspec.json.encode(ExecEnd(exit_code=1, message=INPUT_IS_TAKEN)))
        while not first.is_over:
            conversation.turn()
        conversation.leave(first)
        assert conversation.give_again()
        os.write(keyboard, b"two\n")
        joined(conversation, accepted)
        accepted.say("ping")
        while len(accepted.input) < 2:
            conversation.turn()
    assert accepted.input == [("stdin", b"one\n"), ("stdin", b"two\n")]


@pytest.mark.parametrize(
    ("output", "reset"),
    [
        ([b"\x1b[?2004h$ "], b"\x1b[?2004l"),
        ([b"\x1b[?2004h$ exit\r\n\x1b[?2004l\r"], b""),
        ([b"\x1b[?1049;2004h\x1b[", b"?25l", b"text"], b"\x1b[?1049l\x1b[?2004l\x1b[?25h"),
        ([b"\x1b[?25l", b"\x1b[?25", b"h"], b""),
        ([b"\x1b[?12h colours \x1b[31m"], b""),
    ],
)
def test_a_terminal_is_reset_to_its_usual_modes(output: Sequence[bytes], reset: bytes) -> None:
    modes = TerminalModes()
    for part in output:
        modes.note(part)
    assert modes.reset() == reset
