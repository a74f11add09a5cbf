"""How a pod's processes ended, in the words of the host that has seen it. Pure."""

from __future__ import annotations

import os
import signal as signals

from batchq.api.facts import Outcome
from batchq.api.reasons import Leaving

__all__ = ["LOST", "NOT_EXECUTABLE", "NOT_FOUND", "Outcome", "outcome_of"]

NOT_FOUND = 127
NOT_EXECUTABLE = 126
#: As a shell has it: killed by signal 9 is exit code 137.
_SIGNAL_BASE = 128

#: What the agent says of a pod whose work-horse died.
LOST = Outcome(stopped=Leaving.NODE_LOST, message="its work-horse died")


def outcome_of(wait_status: int, *, stopped: str, message: str = "") -> Outcome:
    """The outcome behind a status of waitpid."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        how = f"exited with {code}"
        return Outcome(exit_code=code, stopped=stopped, how=how, message=message)
    how = f"killed by signal {-code} ({_signal_name(-code)})"
    return Outcome(
        exit_code=_SIGNAL_BASE - code, signal=-code, stopped=stopped, how=how, message=message
    )


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return "unknown"
