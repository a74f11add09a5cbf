"""A conversation with commands in pods: the user's input, their output, signals, the terminal.

The main thread reads the input, answers signals and sends; for each session, one thread receives
and one writes, since writing may wait for a reader such as `less`. A terminal in raw mode is as it
was before, whatever ends the conversation.
"""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from types import FrameType
from typing import Any, ClassVar

from batchq.api.exec_session import (
    ANSWER_S,
    FRAME_BYTES,
    PING_S,
    SILENCE_S,
    WINDOW_BYTES,
    ExecEnd,
    ExecFrame,
    SendWindow,
    TerminalSize,
    decoded_end,
)
from batchq.client.pods import CommandSession
from batchq.errors import BatchqError, Conflict, StoreUnavailable

_TURN_MS = 200
_RECEIVE_S = 1.0
#: How long the end of a session waits for a node that has not answered yet.
_LEAVING_S = 3.0
_STDIN, _STDOUT, _STDERR = 0, 1, 2
#: Signals that end the conversation.
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Speaker:
    """One session in a conversation, with the threads that receive and write for it."""

    def __init__(
        self,
        session: CommandSession,
        label: str,
        wake: Callable[[], None],
        *,
        prefix: bytes = b"",
        modes: TerminalModes | None = None,
    ) -> None:
        """`label` names its pod in errors; `prefix` begins each line of its output. `modes` notes
        what the output sets on the user's terminal.
        """
        self.label = label
        self.window = SendWindow()
        self.end: ExecEnd | None = None
        #: The error that has ended it instead.
        self.error: BaseException | None = None
        self.heard_at = monotonic()
        self.has_answered = False
        self._has_heard = Event()
        self._session = session
        self._wake = wake
        self._prefix = prefix
        self._modes = modes
        self._frames: SimpleQueue[ExecFrame | None] = SimpleQueue()
        #: The last frame that is written, and the last that the node knows to be written.
        self._written = self._acknowledged = 0
        #: The last frame of input that the node has acknowledged.
        self._taken = b""
        self._ack_at = 0.0
        self._is_closing = False
        self._is_at_line_start = {_STDOUT: True, _STDERR: True}
        for run in (self._receive, self._write):
            Thread(target=run, name=run.__name__, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, with its command or with an error."""
        return self.end is not None or self.error is not None

    def send(self, kind: Any, data: bytes = b"") -> None:
        """Send a frame, unless it is over. Raises StoreUnavailable."""
        if self.is_over:
            return
        with suppress(Conflict):
            # Its end is on the way, or it is found silent.
            self.window.add(self._session.send(kind, data))

    def keep_alive(self) -> None:
        """Acknowledge what was written: that is the sign of life, too. Raises StoreUnavailable."""
        now, written = monotonic(), self._written
        self.window.acknowledge(self._taken)
        if now >= self._ack_at or written - self._acknowledged >= _FRAMES_AN_ACK:
            self.send("ack", b"%d" % written)
            self._acknowledged, self._ack_at = written, now + PING_S
        longest_s = SILENCE_S if self.has_answered else ANSWER_S
        if not self.is_over and now - self.heard_at > longest_s:
            self.error = StoreUnavailable(
                f"the command in {self.label} is lost: its node has been silent for"
                f" {longest_s:.0f} s"
            )

    def close(self, *, within_s: float = 0.0) -> None:
        """Close the session. The node hears that its end is known, or that the user has left: of
        that only once it has answered, for which this waits.
        """
        if not self.is_over:
            self._has_heard.wait(max(0.0, within_s))
        self._is_closing = True
        if not isinstance(self.error, StoreUnavailable):
            with suppress(BatchqError):
                if self.end is None:
                    self._session.send("signal", b"%d" % signal.SIGHUP)
                else:
                    self._session.send("ack", b"%d" % self._written)
        self._session.close()

    def _receive(self) -> None:
        try:
            while not self._is_closing:
                for frame in self._session.receive(_RECEIVE_S):
                    self.heard_at, self.has_answered = monotonic(), True
                    self._has_heard.set()
                    self._frames.put(frame)
                    if frame.kind == "end":
                        return
        except BatchqError as error:
            if not self._is_closing:
                self.error = error
                self._has_heard.set()
                self._frames.put(None)
                self._wake()

    def _write(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                match frame.kind:
                    case "stdout":
                        self._write_data(_STDOUT, frame.data)
                    case "stderr":
                        self._write_data(_STDERR, frame.data)
                    case "ack":
                        self._taken = frame.data
                    case "end":
                        self._written = frame.number
                        self.end = decoded_end(frame.data)
                        self._wake()
                        return
                self._written = frame.number
                self._wake()
        except (OSError, BatchqError) as error:
            self.error = error
            self._wake()

    def _write_data(self, descriptor: int, data: bytes) -> None:
        if self._prefix:
            data = self._prefixed(descriptor, data)
        if self._modes is not None:
            self._modes.note(data)
        while data:
            data = data[os.write(descriptor, data) :]

    def _prefixed(self, descriptor: int, data: bytes) -> bytes:
        parts: list[bytes] = []
        for line in data.splitlines(keepends=True):
            if self._is_at_line_start[descriptor]:
                parts.append(self._prefix)
            parts.append(line)
            self._is_at_line_start[descriptor] = line.endswith(b"\n")
        return b"".join(parts)


class TerminalModes:
    """What the output of a command has set on the user's terminal and not reset: programs do that
    when they end, unless they are lost.
    """

    #: The cursor is shown. Application keys, the mouse, the alternate screen and bracketed paste
    #: are off.
    _USUAL: ClassVar[dict[bytes, bytes]] = {b"25": b"h"} | dict.fromkeys(
        b"1 9 1000 1002 1003 1004 1005 1006 1015 47 1047 1049 2004".split(), b"l"
    )
    _SET = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
    _LONGEST = 48

    def __init__(self) -> None:
        self.is_at_line_start = True
        self._unusual: set[bytes] = set()
        self._rest = b""

    def note(self, data: bytes) -> None:
        """Note what a part of the output sets."""
        # A sequence may be in two parts.
        whole = self._rest + data
        for numbers, value in self._SET.findall(whole):
            for number in numbers.split(b";"):
                if number in self._USUAL and value != self._USUAL[number]:
                    self._unusual.add(number)
                else:
                    self._unusual.discard(number)
        begun = whole.rfind(b"\x1b", -self._LONGEST)
        self._rest = whole[begun:] if begun >= 0 else b""
        self.is_at_line_start = whole.endswith((b"\n", b"\r"))

    def reset(self) -> bytes:
        """Return what sets the terminal as it usually is."""
        unusual, self._unusual = sorted(self._unusual), set()
        return b"".join(b"\x1b[?%s%s" % (one, self._USUAL[one]) for one in unusual)


#: Frames that are written before they are acknowledged; four of data are half a window.
_FRAMES_AN_ACK = 4


class Conversation:
    """The user's side of one or more sessions, which all get the input; a context manager.

    Used by the main thread.
    """

    def __init__(self, *, has_terminal: bool, has_input: bool) -> None:
        self.speakers: list[Speaker] = []
        #: The signals that have come: interrupts, and what ends the conversation.
        self.interrupts = 0
        self.ending: int | None = None
        #: How many interrupts the commands have got.
        self.passed_on = 0
        self._has_terminal = has_terminal
        self._reads_input = has_input
        #: The input of the latest session; None if it is too long to be given again.
        self._given: bytes | None = b""
        #: Input for the next session, of one in which nothing has read it.
        self._again: bytes | None = None
        self._is_resized = self._is_to_stop = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, Any] = {}
        self._attributes: list[Any] | None = None
        self._modes = TerminalModes() if has_terminal else None

    def __enter__(self) -> Conversation:
        handled = [signal.SIGINT, *ENDING]
        if self._has_terminal:
            handled += [signal.SIGWINCH, signal.SIGTSTP]
        for number in handled:
            self._before[number] = signal.signal(number, self._note)
        try:
            if self._has_terminal:
                self._make_raw()
        except BaseException:  # anything: the handlers must not stay
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.restore_terminal()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        give_up_at = monotonic() + _LEAVING_S
        for speaker in self.speakers:
            speaker.close(within_s=give_up_at - monotonic())

    def join(self, session: CommandSession, label: str, *, prefix: bytes = b"") -> Speaker:
        """Add a session."""
        self._given = b""
        speaker = Speaker(session, label, self.wake, prefix=prefix, modes=self._modes)
        self.speakers.append(speaker)
        return speaker

    def leave(self, speaker: Speaker) -> None:
        """Close a session, and send nothing to it any more."""
        self.speakers.remove(speaker)
        speaker.close()

    def restore_terminal(self) -> None:
        """Leave the terminal as it was, on a new line unless the command has exited."""
        if self._modes is not None:
            data = self._modes.reset()
            has_exited = all(one.end and one.end.exit_code is not None for one in self.speakers)
            if not has_exited and not self._modes.is_at_line_start:
                data += b"\r\n"
                self._modes.is_at_line_start = True
            # The terminal may be gone.
            with suppress(OSError):
                os.write(_STDOUT, data)
        self._restore()

    def give_again(self) -> bool:
        """Give the input of the latest session to the next one, too, since nothing has read it.
        Return False if it is too long.
        """
        if self._given is None:
            return False
        self._again = self._given + (self._again or b"")
        return True

    def wake(self) -> None:
        """Wake the main thread."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def turn(self) -> None:
        """Wait for something, and handle it. Raises StoreUnavailable."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._takes_input():
            poll.register(_STDIN, select.POLLIN)
        found = dict(poll.poll(_TURN_MS))
        if self._wake_read in found:
            os.read(self._wake_read, 4096)
        if self._is_to_stop:
            self._stop()
        if self._is_resized:
            self._is_resized = False
            self.send("size", str(terminal_size()).encode())
        if self._again is not None and self._is_heard():
            self._pass_on_again(self._again)
        if _STDIN in found:
            self._pass_input_on()
        for speaker in self.speakers:
            speaker.keep_alive()

    def send(self, kind: str, data: bytes = b"") -> None:
        """Send a frame in all sessions. Raises StoreUnavailable."""
        for speaker in self.speakers:
            speaker.send(kind, data)

    def _takes_input(self) -> bool:
        return self._reads_input and self._again is None and self._is_heard()

    def _is_heard(self) -> bool:
        """Whether all commands can get input now."""
        listening = [one for one in self.speakers if not one.is_over]
        return bool(listening) and all(
            one.has_answered and one.window.has_room() for one in listening
        )

    def _pass_on_again(self, data: bytes) -> None:
        self._given, self._again = data, None
        for start in range(0, len(data), FRAME_BYTES):
            self.send("stdin", data[start : start + FRAME_BYTES])
        if not self._reads_input:
            self.send("eof")

    def _pass_input_on(self) -> None:
        try:
            data = os.read(_STDIN, FRAME_BYTES)
        except OSError:
            # The terminal is gone.
            data = b""
        if data:
            if self._given is not None:
                is_short = len(self._given) + len(data) <= WINDOW_BYTES
                self._given = self._given + data if is_short else None
            self.send("stdin", data)
        else:
            self._reads_input = False
            self.send("eof")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        match number:
            case signal.SIGINT:
                self.interrupts += 1
            case signal.SIGWINCH:
                self._is_resized = True
            case signal.SIGTSTP:
                self._is_to_stop = True
            case _:
                self.ending = number
        self.wake()

    def _make_raw(self) -> None:
        self._attributes = termios.tcgetattr(_STDIN)
        tty.setraw(_STDIN, termios.TCSADRAIN)

    def _restore(self) -> None:
        if self._attributes is not None:
            # The terminal may be gone.
            with suppress(termios.error):
                termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._attributes)
            self._attributes = None

    def _stop(self) -> None:
        """Stop as another program does, with the terminal as it was, until SIGCONT."""
        self._is_to_stop = False
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._make_raw()
        self._is_resized = True


def terminal_size() -> TerminalSize:
    """Return the size of the user's terminal."""
    try:
        columns, rows = os.get_terminal_size(_STDIN)
    except OSError:
        return TerminalSize()
    return TerminalSize(rows, columns)


def has_terminal() -> bool:
    """Whether both input and output are a terminal."""
    return os.isatty(_STDIN) and os.isatty(_STDOUT)


def has_input() -> bool:
    """Whether there is an input to pass on: neither a terminal nor /dev/null."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def exit_code_of(end: ExecEnd) -> int | None:
    """Return the exit code as a shell reports it; None if the command was lost or has not run."""
    if end.signal is not None:
        return 128 + end.signal
    return end.exit_code
