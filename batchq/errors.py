"""Every error that a user can meet, each one sentence and one hint.

    BatchqError                 exit code
    ├── InvalidInput                 1     a manifest, a file or a value is wrong
    ├── PluginFailed                 1     a plugin of others raised where nothing can be refused
    ├── EndlessSessions              1     sessions at one instant undo each other for ever
    ├── UsageError                   2     the command line is wrong
    ├── NotFound                     6
    ├── Conflict                     8     the object is not in a state that allows this
    │   └── UnreadableRecord         8     what is stored under its name cannot be read
    ├── StoreUnavailable             9     the server does not answer, or refuses us
    ├── GroupFailed                 10     the group whose results were asked for has failed
    ├── GroupCancelled              11     it was cancelled
    ├── Rejected                    12     well-formed, but a rule of the system refuses it
    └── WaitTimedOut               124

`InvariantBroken` is not among them: it is our own mistake, and the process that meets it stops.
"""

from __future__ import annotations


class BatchqError(Exception):
    """A problem to tell the user about: `message` names the object, `hint` says what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInput(BatchqError):
    """A manifest, a file or a value that cannot be read as what it should be."""

    exit_code = 1


class PluginFailed(BatchqError):
    """A plugin of others raised where its answer cannot be taken for a refusal: in an order."""

    exit_code = 1


class EndlessSessions(BatchqError):
    """Simulated sessions at one instant that undo each other for ever."""

    exit_code = 1


class UsageError(BatchqError):
    """A command line that contradicts itself."""

    exit_code = 2


class NotFound(BatchqError):
    """The named object does not exist."""

    exit_code = 6


class Conflict(BatchqError):
    """The object exists, but not in a state that allows what was asked."""

    exit_code = 8


class UnreadableRecord(Conflict):
    """What is stored under this name is no object: somebody wrote past batchq, or bytes were lost.

    It can be deleted by its name.
    """


class StoreUnavailable(BatchqError):
    """The server cannot be reached, refuses the credentials, or refuses to write.

    `lasts`: waiting does not help, somebody has to change something.
    """

    exit_code = 9

    def __init__(self, message: str, *, hint: str = "", lasts: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.lasts = lasts


class GroupFailed(BatchqError):
    """The group whose results were asked for has failed; the message says of what."""

    exit_code = 10


class GroupCancelled(BatchqError):
    """The group whose results were asked for was cancelled."""

    exit_code = 11


class Rejected(BatchqError):
    """A well-formed request that a rule of the system refuses."""

    exit_code = 12


class WaitTimedOut(BatchqError):
    """What was waited for did not happen in time."""

    exit_code = 124


class InvariantBroken(Exception):
    """A state that our own code must never reach; carries the story that led to it."""
