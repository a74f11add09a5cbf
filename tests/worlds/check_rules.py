"""The rules of admission checks, each as a function that says what it holds.

Like those of `tests.worlds.rules`: about one session, as it was opened and as it has decided.
"""

from __future__ import annotations

from batchq.api import intents
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.core.pending.eligibility import are_honoured
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from tests.worlds.rules import Broken, evictions

_LATE = "AfterCheckPassedOrOnDemand"


def nobody_is_admitted_before_its_checks_have_passed(before: Session, after: Session) -> None:
    """All True; without `enqueue` nobody asks them."""
    if "enqueue" not in after.actions or not are_honoured(after):
        return
    for intent in after.intents:
        if isinstance(intent, intents.AdmitGroup):
            checks = {one.name: one.status for one in after.by_key[intent.group].status.checks}
            if any(status != "True" for status in checks.values()):
                raise Broken(f"{intent.group} was admitted with checks {checks}")


def no_check_that_says_no_leaves_anything(before: Session, after: Session) -> None:
    """Retry and Reject release the reservation in the session that hears of them."""
    for group in after.groups.values():
        said = {one.reason for one in group.status.checks if one.status == "False"}
        if said and group.phase not in TERMINAL and group.reserved:
            raise Broken(f"{group.key} is {group.phase} with a reservation, and was told {said}")
        if "Reject" in said and group.phase not in TERMINAL:
            raise Broken(f"{group.key} is {group.phase}, and was rejected")


def whoever_lost_its_reservation_is_asked_anew(before: Session, after: Session) -> None:
    """Nothing that was said about a former reservation is left, but a retry that is waited for."""
    for group in after.groups.values():
        if group.phase != PodGroupPhase.PENDING or group.reserved:
            continue
        if any(one.reason == "Retry" for one in group.status.checks):
            continue
        for one in group.status.checks:
            if one.status != "Unknown" or one.reason:
                raise Broken(f"{group.key} holds nothing, and {one.name} is {one.status}")


def nobody_is_evicted_before_checks_give_leave(before: Session, after: Session) -> None:
    """Every AfterCheckPassedOrOnDemand check is True, or some check asks for it."""
    for intent in evictions(after):
        claimant = after.by_key[intent.by]
        if claimant.phase != PodGroupPhase.PENDING or not are_honoured(after):
            continue
        checks = claimant.status.checks
        if any(one.reason == "PreemptionRequired" for one in checks):
            continue
        shut = [one.name for one in checks if one.status != "True" and _is_late(after, one.name)]
        if shut and not _was_evicting(before, claimant):
            raise Broken(f"{intent.pod} was evicted for {claimant.key}, before {shut} passed")


def _is_late(session: Session, name: str) -> bool:
    check = session.admission_checks.get(name)
    return check is not None and check.spec.preemption_policy == _LATE


def _was_evicting(before: Session, claimant: GroupState) -> bool:
    """Whoever has begun goes on, though a check has been taken back since."""
    return before.groups[claimant.uid].status.pledge.expires is not None


def nobody_waits_for_an_answer_for_longer_than_it_may(before: Session, after: Session) -> None:
    """unknownTimeout, from the reservation."""
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


def nobody_waits_whose_checks_have_passed(last: Session) -> None:
    """At rest: whoever is reserved waits for a check that is open."""
    for group in last.groups.values():
        waits = group.phase == PodGroupPhase.PENDING and group.reserved
        passed = all(one.status == "True" for one in group.status.checks)
        if waits and passed and are_honoured(last):
            raise Broken(f"{group.key} is reserved, has passed its checks, and waits")


AFTER_EVERY_SESSION_WITH_CHECKS = (
    nobody_is_admitted_before_its_checks_have_passed,
    no_check_that_says_no_leaves_anything,
    whoever_lost_its_reservation_is_asked_anew,
    nobody_is_evicted_before_checks_give_leave,
    nobody_waits_for_an_answer_for_longer_than_it_may,
)
