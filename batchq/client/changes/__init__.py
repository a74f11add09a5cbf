"""User requests as Transactions: create, edit, delete, cancel, suspend, open a gate …

Pure functions over a Reader. Each reads what is stored, refuses with a sentence what the rules
forbid, and returns what to write, compared with the revisions it read; None if there is nothing to
change. The client commits the result to the live store (and repeats the request after a concurrent
change: `Word.CONFLICT`), the simulator's timeline to its own.

The short requests are here: cancel, suspend, resume, cordon, stop a queue, set a quota, answer a
check. `edits.py` and `groups.py` have the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.node_features import CORDON_REASON, CORDONED_BY, cordon_text
from batchq.api.notation import format_instant
from batchq.api.objects import (
    DEFAULT,
    AdmissionCheck,
    AdmissionCheckStatus,
    CheckState,
    Metadata,
    Node,
    PodGroup,
    PodGroupSpec,
    Queue,
    ResourceQuota,
    ResourceQuotaSpec,
    key_of,
    stopped,
    with_condition,
)
from batchq.api.reasons import Finish
from batchq.api.transaction import Charge, Event, Transaction
from batchq.client.changes.edits import (
    already_exists,
    apply,
    create,
    delete,
    differences,
    found_defaults,
    in_order,
    update,
)
from batchq.client.changes.groups import (
    NewGroups,
    check_apart,
    check_same,
    open_all_gates,
    open_gate,
    rivals,
)
from batchq.client.changes.object_writes import (
    explain_refusal,
    find,
    name_hint,
    put,
    put_node,
    title,
)
from batchq.client.changes.queue_rules import (
    Overpromised,
    first_contradiction,
    overpromised,
    settled,
    warnings_of,
)
from batchq.core.eligibility import is_active
from batchq.errors import Conflict, InvalidInput, NotFound
from batchq.ports import Reader

__all__ = [
    "COMBINATIONS",
    "NewGroups",
    "Overpromised",
    "already_exists",
    "apply",
    "cancel",
    "check_apart",
    "check_combination",
    "check_same",
    "cordon",
    "create",
    "delete",
    "differences",
    "explain_refusal",
    "first_contradiction",
    "found_defaults",
    "in_order",
    "open_all_gates",
    "open_gate",
    "overpromised",
    "put_node",
    "release_check",
    "renew_check",
    "resume",
    "rivals",
    "set_check",
    "set_quota",
    "set_stop_policy",
    "settled",
    "suspend",
    "uncordon",
    "update",
    "warnings_of",
]


def cancel(
    reader: Reader, key: str, *, now_ms: int, message: str = "", uid: str = ""
) -> Transaction:
    """Cancel a group at once; the next session stops its pods.

    With `uid`, only the group of this uid. Raises NotFound, or Conflict if it has finished.
    """
    group = _unfinished(reader, key, "be cancelled", uid)
    status = structs.replace(
        group.status,
        phase=PodGroupPhase.CANCELLED,
        finished_at=now_ms,
        reserved_at=None,
        reservation={},
        unknown_at=None,
        backoff_until=None,
        reasons=(),
        conditions=with_condition(
            group.status.conditions, "Finished", "True", Finish.CANCELLED, message, now_ms
        ),
        claim=stopped(group.status.claim, Finish.CANCELLED, now_ms),
    )
    return put(
        reader,
        structs.replace(group, status=status),
        expect=group.metadata.revision,
        event=_event(group, "Cancelled", now_ms, message),
        charges=(Charge(holder=f"object:{group.metadata.uid}"),),
    )


def suspend(reader: Reader, key: str, *, now_ms: int, uid: str = "") -> Transaction | None:
    """Hold a group back; if it runs, its pods are stopped and it is requeued.

    With `uid`, only the group of this uid. Raises NotFound, or Conflict if it has finished.
    """
    group = _unfinished(reader, key, "be suspended", uid)
    if group.spec.suspend:
        return None
    spec = structs.replace(group.spec, suspend=True)
    return _with_spec(reader, group, spec, "Suspended", now_ms)


def resume(reader: Reader, key: str, *, now_ms: int, uid: str = "") -> Transaction | None:
    """Put a suspended group back into the pending queue, at its former place.

    With `uid`, only the group of this uid. Raises NotFound, or Conflict if it has finished.
    """
    group = _unfinished(reader, key, "be resumed", uid)
    if not group.spec.suspend:
        return None
    spec = structs.replace(group.spec, suspend=False)
    return _with_spec(reader, group, spec, "Resumed", now_ms)


#: The most characters of a reason that people give.
LONGEST_REASON = 1_000


def cordon(
    reader: Reader, name: str, *, now_ms: int, message: str = "", user: str = ""
) -> Transaction | None:
    """Bind no more pods to a node; its running pods go on. The node keeps who has cordoned it, and
    why; a new reason replaces that of a node that is cordoned.

    Raises NotFound, or InvalidInput if the reason is too long.
    """
    if len(message) > LONGEST_REASON:
        raise InvalidInput(
            f"the reason: expected at most {LONGEST_REASON} characters, found {len(message)}"
        )
    node = find(reader, Node, name)
    known = node.metadata.annotations.get(CORDON_REASON, "")
    if node.spec.unschedulable and message in ("", known):
        return None
    given = {CORDONED_BY: user, CORDON_REASON: message}
    return _set_unschedulable(
        reader, node, given, unschedulable=True, event="Cordoned", now_ms=now_ms
    )


def uncordon(reader: Reader, name: str, *, now_ms: int) -> Transaction | None:
    """Allow pods to be bound to a node again. Raises NotFound."""
    node = find(reader, Node, name)
    if not node.spec.unschedulable:
        return None
    return _set_unschedulable(
        reader, node, {}, unschedulable=False, event="Uncordoned", now_ms=now_ms
    )


def set_stop_policy(
    reader: Reader, name: str, policy: Literal["None", "Hold", "HoldAndDrain"], *, now_ms: int
) -> Transaction | None:
    """Stop admission to a queue and those below it (Hold), also requeue admitted groups
    (HoldAndDrain), or resume (None).

    Raises NotFound.
    """
    queue = find(reader, Queue, name)
    if queue.spec.stop_policy == policy:
        return None
    new = structs.replace(queue, spec=structs.replace(queue.spec, stop_policy=policy))
    reason = {"None": "Resumed", "Hold": "Stopped", "HoldAndDrain": "Draining"}[policy]
    event = Event(kind="Queue", key=name, reason=reason, at=now_ms)
    return put(reader, new, expect=queue.metadata.revision, event=event)


def set_quota(
    reader: Reader,
    namespace: str,
    hard: dict[str, int],
    *,
    now_ms: int,
    uid: str,
    name: str = DEFAULT,
) -> Transaction | None:
    """Replace a namespace's quota of this name (in internal units); its other quotas stay in force.

    Raises InvalidInput.
    """
    quota = ResourceQuota(
        metadata=Metadata(name=name, namespace=namespace), spec=ResourceQuotaSpec(hard=hard)
    )
    return apply(reader, quota, now_ms=now_ms, uid=uid)


def _unfinished(reader: Reader, key: str, what: str, uid: str) -> PodGroup:
    group = find(reader, PodGroup, key)
    if uid not in ("", group.metadata.uid):
        raise NotFound(f"PodGroup {key} was deleted, and another has its name now")
    if group.status.phase in TERMINAL:
        raise Conflict(f"{title(group)} is {group.status.phase} already and cannot {what}")
    return group


def _with_spec(
    reader: Reader, group: PodGroup, spec: PodGroupSpec, reason: str, now_ms: int
) -> Transaction:
    return put(
        reader,
        structs.replace(group, spec=spec),
        expect=group.metadata.revision,
        event=_event(group, reason, now_ms, ""),
    )


def _set_unschedulable(
    reader: Reader,
    node: Node,
    given: Mapping[str, str],
    *,
    unschedulable: bool,
    event: str,
    now_ms: int,
) -> Transaction:
    others = {
        name: text
        for name, text in node.metadata.annotations.items()
        if name not in (CORDONED_BY, CORDON_REASON)
    }
    stated = {name: text for name, text in given.items() if text}
    new = structs.replace(
        node,
        metadata=structs.replace(node.metadata, annotations={**others, **stated}),
        spec=structs.replace(node.spec, unschedulable=unschedulable),
    )
    made = Event(
        kind="Node",
        key=node.metadata.name,
        reason=event,
        message=cordon_text(stated),
        at=now_ms,
    )
    return put(reader, new, expect=node.metadata.revision, event=made)


def _event(group: PodGroup, reason: str, now_ms: int, message: str) -> Event:
    return Event(kind="PodGroup", key=key_of(group), reason=reason, message=message, at=now_ms)


CheckStatus = Literal["True", "False", "Unknown"]
CheckReason = Literal["", "Retry", "Reject", "PreemptionRequired"]

#: Status -> the reasons allowed with it. Every other combination is refused.
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
    """Write a check's answer about a group; None if the stored answer is the same.

    `reserved_at`, if given, is the reservation that the answer is about (in milliseconds): an
    answer about an older one is refused. Raises InvalidInput (a combination that is not allowed),
    NotFound (no such group, or its queue has no such check) or Conflict (finished, nothing
    reserved, or another reservation).
    """
    check_combination(check, status, reason)
    group = find(reader, PodGroup, key)
    if group.status.phase in TERMINAL:
        raise Conflict(
            f"{title(group)} is {group.status.phase} already and no check of it can be set"
        )
    names = [state.name for state in group.status.checks]
    if check not in names:
        hint = name_hint(check, names) if names else "its queue asks for no admission checks"
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
    """Renew the lease of a check's controller: the check is active until `expires_at`.

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
    # No event for a renewal: there would be one every few seconds.
    return structs.replace(renewed, events=()) if lasts else renewed


def release_check(reader: Reader, name: str, *, holder: str, now_ms: int) -> Transaction | None:
    """End the lease of a check's controller: the check is inactive at once.

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
    """Raise InvalidInput for a reason that is not allowed with the status."""
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
            f"{title(group)} has a new reservation since {format_instant(held)}, and the answer of"
            f" check {check} is about the one of {format_instant(reserved_at)}",
            hint="read the group again, and answer about its present reservation",
        )


def _as_status(status: str) -> CheckStatus:
    return "True" if status == "True" else "False" if status == "False" else "Unknown"


def _as_reason(reason: str) -> CheckReason:
    match reason:
        case "Retry" | "Reject" | "PreemptionRequired":
            return reason
        case _:
            return ""
