"""How a pod's processes ended, and what that makes of the pod. Pure."""

from __future__ import annotations

import os
import signal as signals

import msgspec
from msgspec import Struct

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Finish, Leaving

NOT_FOUND = 127
NOT_EXECUTABLE = 126
#: As a shell has it: killed by signal 9 is exit code 137.
_SIGNAL_BASE = 128


class Outcome(Struct, frozen=True, kw_only=True):
    """What a work-horse, or the agent in its place, has to say about one attempt.

    `stopped` is the reason for which the pod's processes were told to stop, empty if they ended
    by themselves. Both `exit_code` and `signal` are None if they never ran or nobody saw the end.
    """

    exit_code: int | None = None
    signal: int | None = None
    stopped: str = ""
    message: str = ""


#: What the agent says of a pod whose work-horse died.
LOST = Outcome(stopped=Leaving.NODE_LOST, message="its work-horse died")


def outcome_of(wait_status: int, *, stopped: str, message: str = "") -> Outcome:
    """The outcome behind a status of waitpid."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return Outcome(exit_code=code, stopped=stopped, message=message)
    return Outcome(exit_code=_SIGNAL_BASE - code, signal=-code, stopped=stopped, message=message)


def ended(pod: Pod, outcome: Outcome, *, now_ms: int) -> Pod:
    """The pod as it is after `outcome`.

    A pod that ended with 0 before it was told to stop has succeeded, whatever was asked of it
    meanwhile. One that was stopped is Evicted, which is no failure, unless its time was up.
    """
    phase, reason = _verdict(pod, outcome)
    status = msgspec.structs.replace(
        pod.status,
        phase=phase,
        reason=reason,
        finished_at=now_ms,
        terminating=False,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        message=_message(phase, outcome),
        failures=pod.status.failures + (1 if phase == PodPhase.FAILED else 0),
    )
    return msgspec.structs.replace(pod, status=status)


def _verdict(pod: Pod, outcome: Outcome) -> tuple[PodPhase, str]:
    if outcome.exit_code == 0 and not outcome.stopped:
        return PodPhase.SUCCEEDED, ""
    asked = pod.status.reason if pod.status.terminating else ""
    if Finish.WALLTIME_EXCEEDED in (outcome.stopped, asked):
        return PodPhase.FAILED, Finish.WALLTIME_EXCEEDED
    if asked or outcome.stopped:
        return PodPhase.EVICTED, asked or outcome.stopped
    return PodPhase.FAILED, ""


def _message(phase: PodPhase, outcome: Outcome) -> str:
    parts = [_how(outcome)] if phase == PodPhase.FAILED or outcome.signal is not None else []
    if outcome.message:
        parts.append(outcome.message)
    return "; ".join(part for part in parts if part)


def _how(outcome: Outcome) -> str:
    if outcome.signal is not None:
        return f"killed by signal {outcome.signal} ({_signal_name(outcome.signal)})"
    if outcome.exit_code is None or outcome.message:
        return ""
    return f"exited with {outcome.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return "unknown"
