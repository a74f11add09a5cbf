"""Every error that a user can meet, each with a one-sentence message and a hint; and foreign text,
without characters that control the terminal on which it is shown.

    BatchqError                 exit code
    ├── InvalidInput                 1     a manifest, a file or a value is wrong
    ├── PluginFailed                 1     a third-party plugin raised where it cannot refuse
    ├── EndlessSessions              1     sessions at one simulated instant undo each other
    ├── UsageError                   2     the command line is wrong
    ├── NotFound                     6
    ├── Conflict                     8     the object is not in a state that allows this
    │   └── UnreadableRecord         8     the record stored under its name is unreadable
    ├── StoreUnavailable             9     the server does not answer, or refuses us
    │   ├── Unauthenticated          9     the HTTP API does not know the caller
    │   └── Forbidden                9     the caller has no right to this there
    ├── GroupFailed                 10     the group whose results were asked for has failed
    ├── GroupCancelled              11     it was cancelled
    ├── Rejected                    12     well-formed, but a rule of the system refuses it
    └── WaitTimedOut               124

`InvariantBroken` is separate: it is a bug, and the process that meets it stops.

A pod's output, a name or a reason can contain escape sequences, which clear screens, set titles,
forge lines above, or make a terminal type; and characters that reverse the order of the following
text.
"""

from __future__ import annotations

import re


class BatchqError(Exception):
    """A problem to report to the user: `message` names the object, `hint` suggests what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInput(BatchqError):
    """A manifest, a file or a value cannot be parsed as expected."""

    exit_code = 1


class PluginFailed(BatchqError):
    """A third-party plugin raised where its answer cannot count as a refusal: in an order."""

    exit_code = 1


class EndlessSessions(BatchqError):
    """Simulated sessions at one instant that undo each other for ever."""

    exit_code = 1


class UsageError(BatchqError):
    """A contradictory command line."""

    exit_code = 2


class NotFound(BatchqError):
    """The named object does not exist."""

    exit_code = 6


class Conflict(BatchqError):
    """The object exists, but not in a state that allows what was asked."""

    exit_code = 8


class UnreadableRecord(Conflict):
    """The record stored under this name is invalid: another program wrote it, or bytes were lost.

    It can be deleted by its name.
    """


class StoreUnavailable(BatchqError):
    """The server cannot be reached, refuses the credentials, or refuses to write.

    `lasts`: waiting does not help; something must be changed first.
    """

    exit_code = 9

    def __init__(self, message: str, *, hint: str = "", lasts: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.lasts = lasts


class Unauthenticated(StoreUnavailable):
    """The HTTP API does not know the caller: its token is wrong, or is no longer valid."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, lasts=True)


class Forbidden(StoreUnavailable):
    """The HTTP API knows the caller, who has no right to this; the message names the right."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, lasts=True)


class GroupFailed(BatchqError):
    """The group whose results were asked for has failed; the message has the cause."""

    exit_code = 10


class GroupCancelled(BatchqError):
    """The group whose results were asked for was cancelled."""

    exit_code = 11


class Rejected(BatchqError):
    """A well-formed request that a rule of the system refuses."""

    exit_code = 12


class WaitTimedOut(BatchqError):
    """The awaited condition did not come true in time."""

    exit_code = 124


class InvariantBroken(Exception):
    """A state that batchq's own code must never reach; the message has the history."""


_LINE_END_AND_TAB = "\n\t"
#: C0 and C1 controls, DEL, line separators, directions of writing, and surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    r"""Return one line with each such character as Python writes it: `\\x1b`, `\\n`, `\\u202e`."""
    return _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return text of many lines, with line ends and tabs unchanged."""
    return _UNPRINTABLE.sub(_escape_but_lines, text)


def _escape_but_lines(found: re.Match[str]) -> str:
    return found[0] if found[0] in _LINE_END_AND_TAB else _escape(found)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    # Above ASCII as JSON writes it, too, so that the output of -o json stays valid JSON.
    return _NAMED.get(found[0]) or (f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}")
