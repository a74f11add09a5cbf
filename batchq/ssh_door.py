"""The ssh door: HTTP through the system's `ssh` to the socket of an API on another machine.

`ssh` runs `batchq connect` there, which copies bytes between its input and output and the socket.
So the caller is the account on that machine, keys and host keys are those of ssh, and there is no
port, certificate or token. The user's `~/.ssh/config` applies; a `ControlMaster` there saves the
time of further connections.
"""

from __future__ import annotations

import http.client
import re
import shlex
import socket
import subprocess
import tempfile
from typing import IO
from urllib.parse import SplitResult, unquote, urlsplit

from batchq.api.printable import printable
from batchq.errors import InvalidInput

#: How long `ssh` may take to end after its input was closed.
_ENDS_WITHIN_S = 3.0
_LONGEST_COMPLAINT = 300
_MOST_READ = 64 * 1024
_COMMAND_NOT_FOUND = 127
_ADDRESS = re.compile(r"^\S+@\S+: ")
#: Neither begins with a dash, which would make it an option of ssh.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9a-f:]+(%[A-Za-z0-9]+)?")


def checked_ssh(parts: SplitResult, what: str) -> str:
    """Return an address `ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]`. Raises InvalidInput."""
    is_plain = not parts.password and not parts.query and not parts.fragment
    user_fits = parts.username is None or _USER.fullmatch(parts.username)
    if not (is_plain and user_fits and _HOST.fullmatch(parts.hostname or "")):
        # The message does not repeat the text, which may contain a password.
        raise InvalidInput(
            f"{what}: expected ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]",
            hint="as in ssh://hpc.example; passwords and keys are those of `ssh`",
        )
    path = "" if parts.path == "/" else parts.path
    return f"ssh://{parts.netloc}{path}"


def ssh_command(address: str) -> list[str]:
    """Return the command that connects to the API at an address."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    words = ["ssh", "-T", "-e", "none"]
    if parts.port is not None:
        words += ["-p", str(parts.port)]
    if parts.username is not None:
        words += ["-l", parts.username]
    remote = ["batchq", "connect", *([unquote(parts.path)] if parts.path else [])]
    # The login shell of the account there splits it again.
    return [*words, "--", parts.hostname, shlex.join(remote)]


class SshConnection(http.client.HTTPConnection):
    """HTTP over the input and output of one `ssh`."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._complaint = ""

    def connect(self) -> None:
        """Start `ssh`. Raises OSError if there is none."""
        own, others = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        try:
            self._process = subprocess.Popen(
                ssh_command(self._address),
                stdin=others.fileno(),
                stdout=others.fileno(),
                stderr=self._stderr,
            )
        except OSError as error:
            own.close()
            self._stderr.close()
            raise OSError(f"`ssh` cannot be started: {error.strerror}") from None
        finally:
            others.close()
        own.settimeout(self.timeout)
        self.sock = own

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the answer. Raises OSError with what `ssh` has said if it has ended."""
        try:
            return super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise OSError(self._complaint or str(error)) from None

    def send(self, data: object) -> None:
        """Send a part of a request; see `getresponse`."""
        try:
            super().send(data)  # type: ignore[arg-type]  # typeshed keeps its type private
        except (BrokenPipeError, ConnectionResetError) as error:
            self.close()
            raise OSError(self._complaint or str(error)) from None

    def close(self) -> None:
        """End `ssh` by closing its input, and keep what it has said."""
        super().close()
        process, file = self._process, self._stderr
        self._process = self._stderr = None
        if process is None or file is None:
            return
        with file:
            code = _end(process)
            file.seek(0)
            self._complaint = _complaint(code, file.read(_MOST_READ).decode(errors="replace"))


def _complaint(code: int, text: str) -> str:
    """Return why `ssh` has ended: the error of `batchq connect`, else its own last line."""
    if code == _COMMAND_NOT_FOUND:
        return "there is no command `batchq` in the PATH of ssh's shell there"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    # The message names the address already; `user@` after it would look like a password in a URL.
    last = _ADDRESS.sub("", [*lines, *errors][-1]) if lines else ""
    return printable(last)[:_LONGEST_COMPLAINT]


def _end(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
