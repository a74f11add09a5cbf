"""What the controllers of admission checks write: a group's answer, and that they are alive.

A check may be set only while the group has its quota reserved, or is admitted (KEP-993: past the
precheck). `since` is when the status, not the message, last changed.
"""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckStatus,
    CheckState,
    PodGroup,
    key_of,
)
from batchq.api.times import format_instant
from batchq.api.transaction import Event, Transaction
from batchq.changes.lookup import find, instead, title
from batchq.changes.records import put
from batchq.errors import Conflict, InvalidInput, NotFound
from batchq.framework.checks import is_active
from batchq.ports import Reader

CheckStatus = Literal["True", "False", "Unknown"]
CheckReason = Literal["", "Retry", "Reject", "PreemptionRequired"]

#: Status -> the reasons that may stand with it. Every other combination is refused.
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "True": ("",),
    "False": ("Retry", "Reject"),
    "Unknown": ("", "PreemptionRequired"),
}


def set_check(
    reader: Reader,
    key: str,
    check: str,
    status: str,
    reason: str = "",
    message: str = "",
    *,
    now_ms: int,
    reserved_at: int | None = None,
) -> Transaction | None:
    """Write a check's answer about a group; None if it says so already.

    `reserved_at`, if given, is the reservation that the answer is about (in milliseconds): an
    answer about an older one is refused.
    Raises InvalidInput (a combination that there is not), NotFound (no such group, or its queue
    asks for no such check) or Conflict (finished, nothing reserved, or another reservation).
    """
    check_combination(check, status, reason)
    group = find(reader, PodGroup, key)
    if group.status.phase in TERMINAL:
        raise Conflict(
            f"{title(group)} is {group.status.phase} already and no check of it can be set"
        )
    names = [state.name for state in group.status.checks]
    if check not in names:
        hint = instead(check, names) if names else "its queue asks for no admission checks"
        raise NotFound(f"{title(group)} has no admission check {check!r}", hint=hint)
    _check_reservation(group, check, reserved_at)
    old = group.status.checks[names.index(check)]
    new = CheckState(
        name=check,
        status=_as_status(status),
        reason=_as_reason(reason),
        message=message,
        since=old.since if old.status == status and old.since is not None else now_ms,
    )
    if new == old:
        return None
    states = tuple(new if state.name == check else state for state in group.status.checks)
    return put(
        reader,
        structs.replace(group, status=structs.replace(group.status, checks=states)),
        expect=group.metadata.revision,
        event=Event(
            kind="PodGroup",
            key=key_of(group),
            reason=f"Check{status}",
            message=": ".join(part for part in (f"check {check}", reason, message) if part),
            at=now_ms,
        ),
    )


def renew_check(
    reader: Reader, name: str, *, holder: str, expires_at: int, now_ms: int
) -> Transaction:
    """Say that a check's controller lives: it is active until `expires_at`.

    Raises NotFound, or Conflict while another controller holds it.
    """
    check = find(reader, AdmissionCheck, name)
    held, lasts = check.status, is_active(check, now_ms)
    if lasts and held.holder != holder:
        until = "" if held.expires_at is None else f" until {format_instant(held.expires_at)}"
        raise Conflict(f"{title(check)} is held active by controller {held.holder}{until}")
    status = AdmissionCheckStatus(active=True, holder=holder, expires_at=expires_at)
    renewed = put(
        reader,
        structs.replace(check, status=status),
        expect=check.metadata.revision,
        event=_lease_event(name, "Active", holder, now_ms),
    )
    # Of renewals there is no event: it would be one every few seconds for as long as it lives.
    return structs.replace(renewed, events=()) if lasts else renewed


def release_check(reader: Reader, name: str, *, holder: str, now_ms: int) -> Transaction | None:
    """Say that a check's controller stops: the check is inactive at once.

    None if another controller has taken over. Raises NotFound.
    """
    check = find(reader, AdmissionCheck, name)
    if not check.status.active or check.status.holder != holder:
        return None
    status = AdmissionCheckStatus(active=False, holder=holder)
    return put(
        reader,
        structs.replace(check, status=status),
        expect=check.metadata.revision,
        event=_lease_event(name, "Inactive", holder, now_ms),
    )


def _lease_event(name: str, reason: str, holder: str, now_ms: int) -> Event:
    message = f"controller {holder}"
    return Event(kind="AdmissionCheck", key=name, reason=reason, message=message, at=now_ms)


def check_combination(check: str, status: str, reason: str) -> None:
    """Raises InvalidInput for a status and a reason that do not stand together."""
    reasons = COMBINATIONS.get(status)
    if reasons is None:
        raise InvalidInput(f"check {check}: expected True, False or Unknown, found {status!r}")
    if reason not in reasons:
        known = " or ".join(repr(one) for one in reasons if one)
        if not known:
            raise InvalidInput(f"check {check}: status {status} takes no reason, found {reason!r}")
        none = ", or none" if "" in reasons else ""
        found = repr(reason) if reason else "none"
        raise InvalidInput(
            f"check {check}: expected with status {status} the reason {known}{none}, found {found}"
        )


def _check_reservation(group: PodGroup, check: str, reserved_at: int | None) -> None:
    held = group.status.reserved_at
    if held is None:
        raise Conflict(
            f"{title(group)} has no quota reserved, so its check {check} cannot be set",
            hint="a check is answered while its group has a reservation (QuotaReserved) or runs",
        )
    if reserved_at is not None and held != reserved_at:
        raise Conflict(
            f"{title(group)} has reserved anew at {format_instant(held)}, and the answer of check"
            f" {check} is about what it had reserved at {format_instant(reserved_at)}",
            hint="look at the group again, and answer for what it has reserved now",
        )


def _as_status(status: str) -> CheckStatus:
    return "True" if status == "True" else "False" if status == "False" else "Unknown"


def _as_reason(reason: str) -> CheckReason:
    match reason:
        case "Retry" | "Reject" | "PreemptionRequired":
            return reason
        case _:
            return ""
