"""What the end of an attempt makes of its pod. Pure."""

from __future__ import annotations

import msgspec

from batchq.api.facts import LONGEST_MESSAGE, Outcome
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Finish, Leaving

#: A node may say anything; so much of it is kept.
_LONGEST_REASON = 64


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
        losses=pod.status.losses + (1 if reason == Leaving.NODE_LOST else 0),
    )
    return msgspec.structs.replace(pod, status=status)


def _verdict(pod: Pod, outcome: Outcome) -> tuple[PodPhase, str]:
    if outcome.exit_code == 0 and not outcome.stopped:
        return PodPhase.SUCCEEDED, ""
    asked = pod.status.reason if pod.status.terminating else ""
    if Finish.WALLTIME_EXCEEDED in (outcome.stopped, asked):
        return PodPhase.FAILED, Finish.WALLTIME_EXCEEDED
    if asked or outcome.stopped:
        return PodPhase.EVICTED, asked or outcome.stopped[:_LONGEST_REASON]
    return PodPhase.FAILED, ""


def _message(phase: PodPhase, outcome: Outcome) -> str:
    # A message explains an exit code; a signal is worth telling beside it.
    explained = outcome.signal is None and outcome.message
    tells_how = outcome.signal is not None or phase == PodPhase.FAILED
    parts = [outcome.how] if tells_how and not explained else []
    if outcome.message:
        parts.append(outcome.message)
    return "; ".join(part for part in parts if part)[:LONGEST_MESSAGE]
