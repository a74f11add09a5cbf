"""What happens to one pod on its node, as the transactions that an agent would report it by.

A pod's end frees its node in the same transaction. A pod that was told to stop ends as Evicted,
or as Failed when its walltime had passed.
"""

from __future__ import annotations

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, full_name
from batchq.api.reasons import Finish
from batchq.api.transaction import Charge, Event, Transaction, Write, fence_of
from batchq.sim.clock import whole_second

#: What a process that is ended by SIGTERM leaves behind, as a shell has it.
_SIGTERM, _ENDED_BY_SIGTERM = 15, 143


def start(pod: Pod, *, now_ms: int) -> Transaction:
    """Bound -> Running."""
    status = structs.replace(pod.status, phase=PodPhase.RUNNING, started_at=now_ms)
    return _change(pod, structs.replace(pod, status=status), now_ms)


def end(
    pod: Pod,
    phase: PodPhase,
    *,
    now_ms: int,
    exit_code: int | None = None,
    reason: str = "",
    message: str = "",
    signal: int | None = None,
) -> Transaction:
    """Running -> Succeeded, Failed or Evicted; what it held on its node is free."""
    status = structs.replace(
        pod.status,
        phase=phase,
        reason=str(reason),
        finished_at=now_ms,
        terminating=False,
        exit_code=exit_code,
        signal=signal,
        message=message,
        failures=pod.status.failures + (phase == PodPhase.FAILED),
    )
    charge = Charge(holder=f"pod:{pod.metadata.uid}")
    return _change(pod, structs.replace(pod, status=status), now_ms, charge)


def stop(pod: Pod, *, now_ms: int) -> Transaction:
    """What was told to stop has stopped."""
    reason = pod.status.reason
    if reason != Finish.WALLTIME_EXCEEDED:
        return end(pod, PodPhase.EVICTED, now_ms=now_ms, reason=reason)
    return end(
        pod,
        PodPhase.FAILED,
        now_ms=now_ms,
        exit_code=_ENDED_BY_SIGTERM,
        reason=reason,
        message="its walltime was over",
        signal=_SIGTERM,
    )


def grace_over_at(pod: Pod) -> int | None:
    """When a pod that was told to stop has stopped for certain; None if nobody told it to."""
    status = pod.status
    if not status.terminating:
        return None
    return whole_second((status.terminating_at or 0) + pod.spec.termination_grace)


def _change(before: Pod, after: Pod, now_ms: int, *charges: Charge) -> Transaction:
    uid, status = before.metadata.uid, after.status
    write = Write(
        kind="Pod",
        key=uid,
        expect=before.metadata.revision,
        value=after,
        fence=fence_of(before),
    )
    event = Event(
        kind="Pod",
        key=uid,
        reason=status.reason or str(status.phase),
        message=f"{full_name(after)} {status.phase} on {status.node}",
        at=now_ms,
    )
    return Transaction(subject=full_name(after), writes=(write,), charges=charges, events=(event,))
