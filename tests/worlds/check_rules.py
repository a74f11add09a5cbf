"""The rules of admission checks, one function each.

As in `tests.worlds.rules`, a rule compares the session as opened with the session after its
decisions.
"""

from __future__ import annotations

from batchq.api import intents
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.core.eligibility import are_honoured
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from tests.worlds.rules import Broken, evictions

_LATE = "AfterCheckPassedOrOnDemand"


def groups_are_admitted_only_after_their_checks_pass(before: Session, after: Session) -> None:
    """All checks are True; without the `enqueue` action no checks are required. A group that was
    evicted in the same session has lost the answers, so those that the session read count.
    """
    if "enqueue" not in after.actions or not are_honoured(after):
        return
    lost = {one.group for one in after.intents if isinstance(one, intents.RollBack)}
    for intent in after.intents:
        if isinstance(intent, intents.AdmitGroup):
            session = before if intent.group in lost else after
            checks = {one.name: one.status for one in session.by_key[intent.group].status.checks}
            if any(status != "True" for status in checks.values()):
                raise Broken(f"{intent.group} was admitted with checks {checks}")


def refused_groups_hold_no_reservation(before: Session, after: Session) -> None:
    """The session that reads a Retry or Reject releases the reservation."""
    for group in after.groups.values():
        said = {one.reason for one in group.status.checks if one.status == "False"}
        if said and group.phase not in TERMINAL and group.reserved:
            raise Broken(
                f"{group.key} is {group.phase} with a reservation, although a check said {said}"
            )
        if "Reject" in said and group.phase not in TERMINAL:
            raise Broken(f"{group.key} is {group.phase}, and was rejected")


def lost_reservations_reset_the_checks(before: Session, after: Session) -> None:
    """No answer to a former reservation is left, except a Retry whose delay still runs."""
    for group in after.groups.values():
        if group.phase != PodGroupPhase.PENDING or group.reserved:
            continue
        if any(one.reason == "Retry" for one in group.status.checks):
            continue
        for one in group.status.checks:
            if one.status != "Unknown" or one.reason:
                raise Broken(f"{group.key} holds nothing, and {one.name} is {one.status}")


def victims_are_evicted_only_after_late_checks_allow_it(before: Session, after: Session) -> None:
    """Every AfterCheckPassedOrOnDemand check is True, or some check asks for the preemption."""
    for intent in evictions(after):
        preemptor = after.by_key[intent.by]
        if preemptor.phase != PodGroupPhase.PENDING or not are_honoured(after):
            continue
        checks = preemptor.status.checks
        if any(one.reason == "PreemptionRequired" for one in checks):
            continue
        shut = [one.name for one in checks if one.status != "True" and _is_late(after, one.name)]
        if shut and not _was_evicting(before, preemptor):
            raise Broken(f"{intent.pod} was evicted for {preemptor.key}, before {shut} passed")


def _is_late(session: Session, name: str) -> bool:
    check = session.admission_checks.get(name)
    return check is not None and check.spec.preemption_policy == _LATE


def _was_evicting(before: Session, preemptor: GroupState) -> bool:
    """A preemptor that has begun to evict continues, even if a check was reset since."""
    return before.groups[preemptor.uid].status.pledge.expires is not None


def unanswered_checks_time_out(before: Session, after: Session) -> None:
    """unknownTimeout counts from the reservation."""
    for group in after.groups.values():
        reserved_at = group.status.reserved_at
        if group.phase != PodGroupPhase.PENDING or reserved_at is None or not are_honoured(after):
            continue
        for one in group.status.checks:
            check = after.admission_checks.get(one.name)
            if check is None or one.status != "Unknown":
                continue
            if reserved_at + check.spec.unknown_timeout <= after.now_ms != reserved_at:
                raise Broken(f"{group.key} has waited for {one.name} since {reserved_at}")


def groups_with_passed_checks_do_not_wait(last: Session) -> None:
    """At rest, a reserved group waits for an open check."""
    for group in last.groups.values():
        waits = group.phase == PodGroupPhase.PENDING and group.reserved
        passed = all(one.status == "True" for one in group.status.checks)
        if waits and passed and are_honoured(last):
            raise Broken(f"{group.key} is reserved, has passed its checks, and waits")


AFTER_EVERY_SESSION_WITH_CHECKS = (
    groups_are_admitted_only_after_their_checks_pass,
    refused_groups_hold_no_reservation,
    lost_reservations_reset_the_checks,
    victims_are_evicted_only_after_late_checks_allow_it,
    unanswered_checks_time_out,
)
