"""A program on a pseudo-terminal of its own, as a user at a keyboard has it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from tests.harness import fork_server

_PIECE = 65_536
#: Written to the terminal after the end of the program.
_LAST = b"\x00last\x00"


class Terminal:
    """A terminal, and the program on it; a context manager that ends the program."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._ours, self._theirs = os.openpty()
        self.resize(24, 80)
        #: As the user has set it, before the program starts.
        self.before = self.attributes()
        self.shown = ""
        self.process = fork_server.Process(
            list(argv),
            env={**env, "TERM": "xterm"},
            cwd=cwd,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=fork_server.take_terminal,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._theirs)
        os.close(self._ours)

    def attributes(self) -> list[Any]:
        """Return the terminal's attributes, as `stty -g` does."""
        return termios.tcgetattr(self._theirs)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; the kernel tells the program."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._ours, text.encode())

    def expect(self, text: str, *, within_s: float = 90.0) -> None:
        """Return once the terminal has shown a text, and forget everything up to it."""
        deadline = monotonic() + within_s
        while text not in self.shown:
            left_s = deadline - monotonic()
            assert left_s > 0, f"expected {text!r} within {within_s} s, found {self.shown!r}"
            self._read(min(left_s, 0.5))
        self.shown = self.shown.partition(text)[2]

    def has_shown(self, text: str) -> bool:
        """Return whether the terminal has shown a text, and forget everything up to it then."""
        self._read(0.0)
        before, found, after = self.shown.partition(text)
        self.shown = after if found else before
        return bool(found)

    def resize_and_interrupt_shell(self) -> None:
        """Check that a shell on the terminal learns of another size, and goes on after Ctrl-C."""
        self.resize(50, 132)
        # What is typed is shown, too, so the shell computes what is expected.
        self.type("until stty size | grep '^50 132'; do sleep 0.1; done; echo sized=$((6 * 9))\n")
        self.expect("sized=54")
        # A process that has begun is in the foreground; its shell may not be, a moment before.
        program = 'trap "echo caught=$((6 * 8)); exit" INT; echo begun=$((6 * 7))'
        self.type(f"sh -c '{program}; while :; do sleep 0.1; done'\n")
        self.expect("begun=42")
        self.type("\x03")
        self.expect("caught=48")

    def ended(self, *, within_s: float = 60.0) -> int:
        """Return the exit code of the program, once it has ended; read what it shows meanwhile."""
        deadline = monotonic() + within_s
        while self.process.poll() is None:
            assert monotonic() < deadline, f"it has not ended, and shows {self.shown!r}"
            self._read(0.1)
        while self._read(0.0):
            pass
        # The kernel passes on what was written in order, but later.
        os.write(self._theirs, _LAST)
        while _LAST.decode() not in self.shown:
            assert self._read(30.0), (
                f"the end of the output is missing, and it shows {self.shown!r}"
            )
        self.shown = self.shown.replace(_LAST.decode(), "")
        return int(self.process.returncode)

    def _read(self, within_s: float) -> bool:
        readable, _, _ = select.select([self._ours], [], [], within_s)
        if readable:
            with suppress(OSError):
                self.shown += os.read(self._ours, _PIECE).decode(errors="replace")
        return bool(readable)
