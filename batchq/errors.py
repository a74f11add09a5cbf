"""Every error that a user can meet; each has a one-sentence message and a hint.

    BatchqError                 exit code
    ├── InvalidInput                 1     a manifest, a file or a value is wrong
    ├── PluginFailed                 1     a third-party plugin raised where it cannot refuse
    ├── EndlessSessions              1     sessions at one simulated instant undo each other
    ├── UsageError                   2     the command line is wrong
    ├── NotFound                     6
    ├── Conflict                     8     the object is not in a state that allows this
    │   └── UnreadableRecord         8     the record stored under its name is unreadable
    ├── StoreUnavailable             9     the server does not answer, or refuses us
    │   └── Unauthenticated          9     the HTTP API does not know the caller
    ├── GroupFailed                 10     the group whose results were asked for has failed
    ├── GroupCancelled              11     it was cancelled
    ├── Rejected                    12     well-formed, but a rule of the system refuses it
    └── WaitTimedOut               124

`InvariantBroken` is separate: it is a bug, and the process that meets it stops.
"""

from __future__ import annotations


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
