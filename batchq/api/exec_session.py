"""The protocol between the user of a command in a running pod and the node of the pod.

Both sides exchange numbered frames, each side through a channel that it alone writes. A side may
send `WINDOW_BYTES` more than the other has acknowledged, so that nothing fills up if a terminal is
slow or a command does not read. A side that hears nothing for `SILENCE_S` assumes that the
other is gone.
"""

from __future__ import annotations

import hashlib
import hmac
import shlex
from collections import deque
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from batchq.errors import InvalidInput, UnreadableRecord

#: The data of one frame, and of all frames that are not acknowledged.
FRAME_BYTES = 32 * 1024
WINDOW_BYTES = 256 * 1024
#: Each frame counts as this many bytes at least, so that small frames do not fill the server.
_LEAST_BYTES = 2 * 1024
#: A side without other frames sends a ping this often.
PING_S = 2.0
SILENCE_S = 15.0
#: A node that has never heard of a terminal detaches it after this time: it may have left before
#: its node could hear of it.
UNHEARD_S = 6.0
#: How long a node may take to answer a request for a command, and how long a request is valid.
ANSWER_S = 10.0
REQUEST_TTL_MS = 30_000
#: The longest command line, and the most columns or rows of a terminal.
MOST_COMMAND_BYTES = 32 * 1024
_MOST_CELLS = 65_535
_LONGEST_TERM = 64
#: The reason of the event about a command in a pod, by which the audit trail knows it, too.
COMMAND_STARTED = "CommandStarted"
#: The message of an end: the input of the pod has a user.
INPUT_IS_TAKEN = "another terminal is attached to the input of the pod"

#: From the user: input, the end of the input, a size of the terminal (`ROWS COLUMNS`), a signal
#: (its number). From the node: both outputs, and the end. From both: the number of the last frame
#: that was processed, and a sign of life.
FrameKind: TypeAlias = Literal[
    "stdin", "eof", "size", "signal", "stdout", "stderr", "end", "ack", "ping"
]
DATA: frozenset[str] = frozenset({"stdin", "stdout", "stderr"})
OF_USERS: frozenset[str] = frozenset({"stdin", "eof", "size", "signal", "ack", "ping"})
#: Signals that a user may send to a command.
SIGNALS = frozenset({1, 2, 3, 10, 12, 15, 18, 28})


class ExecFrame(Struct, frozen=True, kw_only=True):
    """One frame. Numbers start at 1 and have no gaps."""

    number: int
    kind: FrameKind
    data: bytes = b""


class TerminalSize(Struct, frozen=True):
    """Rows and columns of a terminal."""

    rows: int = 24
    columns: int = 80

    def __str__(self) -> str:
        return f"{self.rows} {self.columns}"

    @classmethod
    def parse(cls, data: bytes) -> TerminalSize | None:
        """Return the size in a frame; None if it is malformed."""
        words = data.split()
        if len(words) != 2 or not all(word.isdigit() and len(word) <= 5 for word in words):
            return None
        rows, columns = map(int, words)
        return cls(min(rows, _MOST_CELLS), min(columns, _MOST_CELLS))


class ExecCommand(Struct, frozen=True, kw_only=True):
    """A command to run in a pod.

    `terminal`: it gets a pseudo-terminal, of this size and the type `term`. `has_input`: without
    it, its input is empty. `ends_pod`: the pod ends when it ends, with its exit code. `attaches`:
    nothing is to run, and the input is for the pod's own command.
    """

    command: tuple[str, ...]
    terminal: TerminalSize | None = None
    term: str = ""
    has_input: bool = True
    ends_pod: bool = False
    #: It is not sent unless it is set: the signatures of former versions are without it.
    attaches: bool | UnsetType = UNSET


class ExecRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to a node: run a command in an attempt of a pod, for a session.

    It runs for `user`. From `expires_at` on, by the server's time, the request is not valid.
    `signature` is that of the HTTP API, for nodes that run pods under the accounts of their
    owners.
    """

    session: str
    pod: str
    attempt: int
    command: ExecCommand
    user: str = ""
    expires_at: int = 0
    signature: str = ""


class ExecEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a command has ended; without an exit code and a signal, `message` says why it has not
    run or was lost. `is_early`: the pod has not started yet, so that another try may succeed.
    """

    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    is_early: bool = False


def check_command(command: ExecCommand) -> ExecCommand:
    """Return the command itself. Raises InvalidInput if no pod can run it."""
    words = command.command
    if not words or not words[0]:
        raise InvalidInput("expected a command to run in the pod, found none")
    if any("\0" in word for word in words):
        raise InvalidInput("expected a command without NUL characters")
    if sum(len(word.encode(errors="replace")) + 1 for word in words) > MOST_COMMAND_BYTES:
        raise InvalidInput(f"the command has more than {MOST_COMMAND_BYTES} bytes")
    size = command.terminal
    if size is not None and not all(0 <= one <= _MOST_CELLS for one in (size.rows, size.columns)):
        raise InvalidInput(f"expected the size of a terminal, found {size.rows} × {size.columns}")
    if len(command.term) > _LONGEST_TERM or not command.term.isprintable():
        raise InvalidInput(f"expected the type of a terminal, found {command.term[:80]!r}")
    return command


def decoded_request(data: bytes) -> ExecRequest | None:
    """Return the request in an entry of a node's channel; None if it is no request."""
    if len(data) > 2 * MOST_COMMAND_BYTES:
        return None
    try:
        request = msgspec.json.decode(data, type=ExecRequest)
        check_command(request.command)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidInput):
        return None
    return request if is_session(request.session) else None


def decoded_end(data: bytes) -> ExecEnd:
    """Return the end in a frame. Raises UnreadableRecord."""
    try:
        return msgspec.json.decode(data, type=ExecEnd)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UnreadableRecord("the end of the command is unreadable") from None


def signed_request(key: bytes, request: ExecRequest) -> ExecRequest:
    """Return the request with its signature by a key."""
    return structs.replace(request, signature=_signature_of(key, request))


def is_request_signed(key: bytes, request: ExecRequest) -> bool:
    """Return whether a request has a valid signature by a key."""
    # Of bytes: it raises TypeError for text that is not ASCII, and the text comes from the server.
    given = request.signature.encode(errors="replace")
    return hmac.compare_digest(_signature_of(key, request).encode(), given)


def _signature_of(key: bytes, request: ExecRequest) -> str:
    told = "ExecRequest", structs.replace(request, signature="")
    text = msgspec.json.encode(told, order="deterministic")
    return hmac.new(key, text, hashlib.sha256).hexdigest()


_ID_LENGTH = 32
_DIGEST_LENGTH = 16
_HEX = frozenset("0123456789abcdef")


def session_of(random_id: str, user: str, group_uid: str) -> str:
    """Return the name of a new session of a user in a pod of a group: only the same user finds it,
    and only while the rights to that group last.
    """
    return random_id[:_ID_LENGTH] + _digest_of(f"{user} {group_uid}")


def belongs_to(session: str, user: str, group_uid: str) -> bool:
    """Return whether a session is a user's, in a pod of a group."""
    return is_session(session) and session[_ID_LENGTH:] == _digest_of(f"{user} {group_uid}")


def is_session(text: str) -> bool:
    """Return whether a text has the form of a session's name."""
    return len(text) == _ID_LENGTH + _DIGEST_LENGTH and _HEX.issuperset(text)


def _digest_of(user: str) -> str:
    return hashlib.sha256(user.encode(errors="replace")).hexdigest()[:_DIGEST_LENGTH]


class SendWindow:
    """What one side has sent and the other has not acknowledged. Used by one thread."""

    def __init__(self, most_bytes: int = WINDOW_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sent: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def has_room(self) -> bool:
        """Return whether another frame of data may be sent."""
        return self._bytes + FRAME_BYTES <= self._most_bytes

    def add(self, frame: ExecFrame) -> None:
        """Note a frame that is sent."""
        if frame.kind in DATA:
            size = max(len(frame.data), _LEAST_BYTES)
            self._sent.append((frame.number, size))
            self._bytes += size

    def acknowledge(self, data: bytes) -> int | None:
        """Note an acknowledgement, and return how far it goes; None if it is malformed."""
        if not data.isdigit() or len(data) > 16:
            return None
        number = int(data)
        while self._sent and self._sent[0][0] <= number:
            self._bytes -= self._sent.popleft()[1]
        return number


class Acknowledger:
    """Decides when one side acknowledges what it has processed. Used by one thread."""

    def __init__(self, every_bytes: int = WINDOW_BYTES // 4) -> None:
        self._every_bytes = every_bytes
        self._bytes = 0

    def note(self, frame: ExecFrame) -> bytes | None:
        """Note a processed frame, and return the data of an acknowledgement if one is due."""
        if frame.kind not in DATA:
            return None
        self._bytes += max(len(frame.data), _LEAST_BYTES)
        if self._bytes < self._every_bytes:
            return None
        self._bytes = 0
        return b"%d" % frame.number


#: The allocation, or the gang, in whose pods `batchq rsh` runs commands.
ALLOCATION_VARIABLE = "BATCHQ_ALLOCATION"


def remote_shell(interpreter: str) -> str:
    """Return the script by which launchers of MPI start commands in pods, as they do by ssh."""
    return f'#!/bin/sh\nexec {shlex.quote(interpreter)} -P -m batchq.cli rsh "$@"\n'


def launcher_variables(shell: str, hosts: str, hydra_hosts: str) -> dict[str, str]:
    """Return the variables by which Open MPI 4 and 5, MPICH and Intel MPI find the remote shell,
    and the hosts in the notation of each.
    """
    return {
        "BATCHQ_HOSTFILE": hosts,
        "OMPI_MCA_plm_rsh_agent": shell,
        # Daemons that start daemons would need the remote shell on the nodes.
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_default_hostfile": hosts,
        "PRTE_MCA_plm_ssh_agent": shell,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_default_hostfile": hosts,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": shell,
        "HYDRA_HOST_FILE": hydra_hosts,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": shell,
        "I_MPI_HYDRA_HOST_FILE": hydra_hosts,
    }
