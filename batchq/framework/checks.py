"""Admission checks: what a group's queue asks for, and what was answered (KEP-993).

A queue, and every queue above it, names checks; each stands in the status of every group. Once
rules 1 to 4 hold, a group reserves its quota, and becomes InQueue when all its checks are True.
With the plugin `checks` off, they are kept but ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import AdmissionCheck, AdmissionCheckSpec, CheckState
from batchq.api.times import MINUTE
from batchq.framework.state import GroupState

if TYPE_CHECKING:
    from batchq.framework.session import Session

PLUGIN = "checks"
_LATE = "AfterCheckPassedOrOnDemand"


def are_honoured(session: Session) -> bool:
    """Whether anything comes of checks: the plugin is on."""
    return any(entry.plugin == PLUGIN for entry in session.points["permit"])


def names_for(session: Session, group: GroupState) -> tuple[str, ...]:
    """The checks that a group has to pass, those of the queue nearest to the root first."""
    return names_in(session, group.chain)


def names_in(session: Session, chain: Sequence[str]) -> tuple[str, ...]:
    """The checks that these queues ask for, from the root down."""
    found: dict[str, None] = {}
    for name in chain:
        if (queue := session.queues.get(name)) is not None:
            found |= dict.fromkeys(queue.record.spec.admission_checks)
    return tuple(found)


def spec_of(session: Session, name: str) -> AdmissionCheckSpec:
    """What stands in the AdmissionCheck; of one that is missing, the defaults."""
    check = session.admission_checks.get(name)
    return AdmissionCheckSpec() if check is None else check.spec


def is_active(check: AdmissionCheck | None, now_ms: int) -> bool:
    """Whether the check is there, and its controller has renewed its lease."""
    if check is None or not check.status.active:
        return False
    return check.status.expires_at is None or now_ms < check.status.expires_at


def cleared(session: Session, group: GroupState) -> tuple[CheckState, ...]:
    """All checks of the group as they are before anybody has answered."""
    known = {state.name: state for state in group.status.checks}
    names = names_for(session, group) if group.queue in session.queues else tuple(known)
    return tuple(_unknown(known.get(name), name, session.now_ms) for name in names)


def _unknown(known: CheckState | None, name: str, now_ms: int) -> CheckState:
    if known is not None and known.status == "Unknown" and not known.reason:
        if not known.message:
            return known
        return CheckState(name=name, since=known.since)
    return CheckState(name=name, since=now_ms)


def open_checks(group: GroupState) -> list[CheckState]:
    """Those that have not passed."""
    return [state for state in group.status.checks if state.status != "True"]


def refused_with(group: GroupState, reason: str) -> list[CheckState]:
    """Those that say no: `Retry` or `Reject`."""
    return [
        state for state in group.status.checks if state.status == "False" and state.reason == reason
    ]


def retry_delay_ms(session: Session, state: CheckState) -> int:
    """For how long a check that asks for a retry stays False."""
    return spec_of(session, state.name).retry_delay_minutes * MINUTE


def retry_at(session: Session, group: GroupState) -> int | None:
    """When all checks are Unknown again: the longest delay counts. None: nobody asks for one."""
    asked = refused_with(group, "Retry")
    ends = (_since(session, state) + retry_delay_ms(session, state) for state in asked)
    return max(ends, default=None)


def _since(session: Session, state: CheckState) -> int:
    return session.now_ms if state.since is None else state.since


def timeout_at(session: Session, group: GroupState, state: CheckState) -> int | None:
    """When a check that has not answered is given up, counted from the reservation."""
    reserved_at = group.status.reserved_at
    if state.status != "Unknown" or reserved_at is None or group.phase != PodGroupPhase.PENDING:
        return None
    return reserved_at + spec_of(session, state.name).unknown_timeout


def instants(session: Session, group: GroupState) -> Iterator[int]:
    """When something becomes due by the clock alone: a retry, or a timeout."""
    if not group.status.checks or not are_honoured(session):
        return
    if (at := retry_at(session, group)) is not None and group.phase == PodGroupPhase.PENDING:
        yield at
    for state in group.status.checks:
        if (at := timeout_at(session, group, state)) is not None:
            yield at


# --- Preemption -----------------------------------------------------------------------------------


def evicts_late(session: Session, group: GroupState) -> bool:
    """Whether nobody is evicted at the reservation, but once checks have passed or ask for it."""
    if group.phase != PodGroupPhase.PENDING or not are_honoured(session):
        return False
    specs = (spec_of(session, state.name) for state in group.status.checks)
    return any(spec.preemption_policy == _LATE for spec in specs)


def holds_off(session: Session, group: GroupState) -> bool:
    """Whether others may not be evicted for this group yet.

    They may once every AfterCheckPassedOrOnDemand check is True, or any check asks for it
    (PreemptionRequired). A group that has only just come up for its reservation has asked nobody.
    """
    if not evicts_late(session, group):
        return False
    states = group.status.checks
    if any(state.reason == "PreemptionRequired" for state in states):
        return False
    return any(
        spec_of(session, state.name).preemption_policy == _LATE and state.status != "True"
        for state in states
    )
