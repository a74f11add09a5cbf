"""Consumer leases (claims) on external groups: a consumer's requests as Transactions.

    claim -> token        take an admitted group without a holder
    renew(token)          extend the lease; or learn why to stop
    report(token, …)      of the group or of one pod: running, succeeded, failed, evicted
    release(token)        give the group back unfinished

The token is the fence: it names the group's uid, the admission and, by its secret, the claim; the
store keeps only its digest. After any other change of the group a request fails with a Conflict
that names the change. Every write is compared with the revision that it was made on, and a repeated
report writes nothing, so each request may be repeated.

A report that the group has succeeded or failed ends it, in the same write. What reports on pods
mean for the group is decided by the scheduler (`batchq.scheduler.pod_controller`).
"""

from __future__ import annotations

import hashlib
from typing import Literal, NoReturn, TypeAlias, get_args

from msgspec import Struct, structs

from batchq.api.lifecycle import ADMITTED, TERMINAL, PodGroupPhase
from batchq.api.notation import (
    DAY,
    SECOND,
    counted,
    format_duration,
    format_instant,
    shown,
    subdomain_problem,
)
from batchq.api.objects import (
    GroupClaim,
    PodGroup,
    PodGroupStatus,
    ended,
    final_reports,
    grace_of,
    is_claimable,
    key_of,
    stop_reason_of,
)
from batchq.api.reasons import Finish
from batchq.api.transaction import Charge, Event, Transaction, Write, fence_of
from batchq.client.changes.object_writes import find, title
from batchq.core.quota.ledger import holders_of_record
from batchq.core.session.transitions import status_finished
from batchq.errors import Conflict, InvalidInput
from batchq.ports import Reader

Reported: TypeAlias = Literal["running", "succeeded", "failed", "evicted"]
#: What may be reported with the claim itself.
AtOnce: TypeAlias = Literal["", "running"]

SHORTEST_TTL_MS = 1 * SECOND
LONGEST_TTL_MS = 1 * DAY
LONGEST_HOLDER = 253
LONGEST_MESSAGE = 1024
#: A group whose pods exceed this is reported as a whole.
MOST_REPORTED_BYTES = 512 * 1024


class LeaseTaken(Struct, frozen=True, kw_only=True):
    """What to write for a claim, the token for its holder, and the group after the write."""

    transaction: Transaction
    token: str
    group: PodGroup


class Renewed(Struct, frozen=True, kw_only=True):
    """What to write for a renewal, and how long the claim then lasts.

    With a `stop_reason` there is nothing to write: the holder must stop the work, and report it as
    `evicted`, before `over_at`, when others may assume that it is gone.
    """

    transaction: Transaction | None
    expires_at: int | None
    over_at: int | None
    stop_reason: str = ""


class Token(Struct, frozen=True, kw_only=True):
    """The parts of a token."""

    key: str
    uid: str
    admission: int
    digest: str


def read_token(text: str) -> Token:
    """Parse a token. Raises InvalidInput, which does not quote the text: it may be nearly right."""
    parts = text.strip().split("/")
    if len(parts) != 5 or not all(parts) or not parts[3].isdecimal():
        raise InvalidInput(
            "this is not a token: expected the output of `batchq external claim`",
            hint="claim the group again",
        )
    namespace, name, uid, admission, _ = parts
    digest = hashlib.sha256(text.strip().encode()).hexdigest()
    return Token(key=f"{namespace}/{name}", uid=uid, admission=int(admission), digest=digest)


def claim(
    reader: Reader,
    key: str,
    *,
    holder: str,
    ttl_ms: int,
    secret: str,
    now_ms: int,
    reported: AtOnce = "",
) -> LeaseTaken:
    """Claim an admitted group without a holder; `secret` is fresh, of characters `[a-z0-9]`.

    `reported` "running" reports in the same write that the work has begun.

    Raises NotFound, InvalidInput (holder, ttl), Conflict (not external, not admitted, held).
    """
    _check_holder(holder)
    _check_ttl(ttl_ms)
    group = find(reader, PodGroup, key)
    if not is_claimable(group):
        _refuse_claim(group, now_ms)
    token = f"{key}/{group.metadata.uid}/{group.status.admission}/{secret}"
    taken = GroupClaim(
        phase="Running" if reported else "Claimed",
        holder=holder,
        token=read_token(token).digest,
        claimed_at=now_ms,
        expires_at=now_ms + ttl_ms,
        ttl=ttl_ms,
        grace=grace_of(group.spec),
        holding=group.status.reservation,
    )
    status = structs.replace(group.status, claim=taken)
    message = f"by {holder} for {format_duration(ttl_ms)}" + (", and runs" if reported else "")
    transaction = _write(group, status, "Claimed", message, now_ms)
    return LeaseTaken(
        transaction=transaction, token=token, group=structs.replace(group, status=status)
    )


def renew(reader: Reader, token: str, *, ttl_ms: int | None, now_ms: int) -> Renewed:
    """Extend the claim to `ttl_ms` from now (None: as long as before), or return the reason to
    stop.

    For a group whose end was reported, the reason is that end. Raises InvalidInput, or Conflict if
    the claim is over.
    """
    group = _find(reader, token)
    end = group.status.claim.phase
    if end in ("Succeeded", "Failed"):
        return Renewed(transaction=None, expires_at=None, over_at=None, stop_reason=end)
    held = _open_claim(group, now_ms)
    reason = stop_reason_of(group)
    if reason:
        return Renewed(
            transaction=None,
            expires_at=held.expires_at,
            over_at=held.over_at,
            stop_reason=reason,
        )
    _check_alive(group, now_ms)
    length_ms = held.ttl if ttl_ms is None else ttl_ms
    _check_ttl(length_ms)
    longer = structs.replace(held, expires_at=now_ms + length_ms, ttl=length_ms)
    status = structs.replace(group.status, claim=longer)
    return Renewed(
        # No event: there would be one every few seconds.
        transaction=_write(group, status, "", "", now_ms),
        expires_at=longer.expires_at,
        over_at=longer.over_at,
    )


def report(
    reader: Reader, token: str, phase: Reported, *, pod: str = "", message: str = "", now_ms: int
) -> Transaction | None:
    """Report that the group, or one `pod` of it, runs, has succeeded, failed or stopped. Unless
    pods were reported, the group ends with the report that it has succeeded or failed.

    The consumer names pods freely; there are at most as many as the group's replicas. Returns None
    for a repeated report. Raises InvalidInput, or Conflict: the claim is over, or the holder was
    told to stop, after which only `evicted` is accepted.
    """
    _check_report(phase, pod, message)
    if not pod and phase == "evicted":
        return release(reader, token, message=message, now_ms=now_ms)
    group = _find(reader, token)
    if not pod and phase != "running" and group.status.claim.phase == _WORDS[phase]:
        # A repeat by a holder that lost the answer.
        return None
    held = _open_claim(group, now_ms)
    reason = stop_reason_of(group)
    if reason and phase == "evicted":
        return None
    if reason:
        raise Conflict(
            f"{title(group)}: {held.holder} was told to stop ({reason}), so it cannot be {phase}",
            hint="stop the work, and then report it as evicted",
        )
    _check_alive(group, now_ms)
    if pod:
        status = _with_pod(group, pod, phase)
        if status.reported == group.status.reported:
            return None
        return _write(group, status, phase.capitalize(), f"pod {pod}", now_ms)
    if phase == "running":
        if held.phase == "Running" and held.message == message:
            return None
        claim = structs.replace(held, phase="Running", message=message)
    else:
        claim = ended(held, "Succeeded" if phase == "succeeded" else "Failed", message)
    text = f"reported by {held.holder}" + (f": {message}" if message else "")
    status = structs.replace(group.status, claim=claim)
    if phase != "running" and _ends_with_report(status):
        return _finish(group, status, text, now_ms)
    return _write(group, status, phase.capitalize(), text, now_ms)


def _ends_with_report(status: PodGroupStatus) -> bool:
    """Return whether the end of a group depends on the report alone: there are no reports on its
    pods, and the scheduler keeps no capacity for it.
    """
    return not (status.reported or status.pledge.victims or status.places)


def _finish(group: PodGroup, status: PodGroupStatus, text: str, now_ms: int) -> Transaction:
    """Return the transaction that ends the group as its consumer reports, and frees its charge."""
    succeeded = status.claim.phase == "Succeeded"
    phase = PodGroupPhase.COMPLETED if succeeded else PodGroupPhase.FAILED
    finished = status_finished(
        structs.replace(status, charge={}, charge_path=()),
        phase,
        Finish.SUCCEEDED if succeeded else Finish.RETRIES_SPENT,
        "" if succeeded else text,
        since=status.claim.claimed_at if status.started_at is None else status.started_at,
        now_ms=now_ms,
    )
    holders = (*holders_of_record(group), f"object:{group.metadata.uid}")
    return structs.replace(
        _write(group, finished, phase, text, now_ms),
        charges=tuple([Charge(holder=holder) for holder in holders]),
    )


def release(reader: Reader, token: str, *, message: str = "", now_ms: int) -> Transaction | None:
    """Give the group back unfinished and stopped: another consumer may claim it at once.

    After a stop, this frees the group's charge. Returns None for a repeat. Raises InvalidInput, or
    Conflict if the claim is over.
    """
    group = _find(reader, token)
    if group.status.claim.phase == "Released":
        return None
    held = _open_claim(group, now_ms)
    if not stop_reason_of(group):
        _check_alive(group, now_ms)
    waits = group.status.phase == PodGroupPhase.IN_QUEUE
    status = structs.replace(
        group.status,
        claim=ended(held, "Released", message),
        reported=final_reports(group.status),
        # The wait for a consumer starts again.
        in_queue_at=now_ms if waits else group.status.in_queue_at,
    )
    text = f"by {held.holder}" + (f": {message}" if message else "")
    return _write(group, status, "Released", text, now_ms)


def _find(reader: Reader, token: str) -> PodGroup:
    """Return the token's group, if the token is that of its latest claim.

    Raises Conflict otherwise.
    """
    own = read_token(token)
    group = reader.get("PodGroup", own.key)
    if not isinstance(group, PodGroup) or group.metadata.uid != own.uid:
        raise Conflict(
            f"PodGroup {own.key} was deleted: the claim on it is over", hint=_STOP_AT_ONCE
        )
    claim, admission = group.status.claim, group.status.admission
    if claim.token == own.digest:
        return group
    if admission != own.admission:
        raise Conflict(
            f"{title(group)}: the claim was on admission {own.admission}, and the group has been"
            f" admitted again since (admission {admission})",
            hint=_STOP_AT_ONCE,
        )
    by = f": {claim.holder} has claimed it since" if claim.holder else ""
    raise Conflict(
        f"{title(group)}: the token is not that of its claim{by}",
        hint=_STOP_AT_ONCE,
    )


def _open_claim(group: PodGroup, now_ms: int) -> GroupClaim:
    """Return the group's open claim, which may be expired. Raises Conflict if it is over."""
    claim = group.status.claim
    over = claim.over_at is not None and now_ms >= claim.over_at
    if claim.phase == "Lapsed" or (claim.is_open and over):
        raise _lapsed_error(group)
    if not claim.is_open:
        raise Conflict(
            f"{title(group)}: the claim of {claim.holder} has ended: it was reported as"
            f" {claim.phase}",
            hint="claim another group",
        )
    return claim


def _check_alive(group: PodGroup, now_ms: int) -> None:
    """Raise Conflict for an expired claim: its holder may only report that the work has stopped."""
    claim = group.status.claim
    if claim.expires_at is not None and now_ms >= claim.expires_at:
        raise _lapsed_error(group)


def _lapsed_error(group: PodGroup) -> Conflict:
    claim, phase = group.status.claim, group.status.phase
    if phase in TERMINAL:
        then = f"the group is {phase}"
    elif claim.is_open and phase in ADMITTED:
        then = f"the group is requeued at {format_instant(claim.over_at or 0)}"
    else:
        then = "the group was requeued"
    return Conflict(
        f"{title(group)}: the claim of {claim.holder} lapsed at"
        f" {format_instant(claim.expires_at or 0)}; {then}",
        hint=_STOP_AT_ONCE,
    )


def _refuse_claim(group: PodGroup, now_ms: int) -> NoReturn:
    """Raise Conflict, with the reason why the group cannot be claimed."""
    status, claim = group.status, group.status.claim
    if group.spec.controller != "external":
        raise Conflict(
            f"{title(group)} is run by batchq itself: only groups with spec.controller external"
            " can be claimed",
        )
    if claim.is_open:
        until = "" if claim.expires_at is None else f" until {format_instant(claim.expires_at)}"
        if claim.expires_at is not None and now_ms >= claim.expires_at:
            at = format_instant(claim.over_at or now_ms)
            until = f"; that lapsed at {format_instant(claim.expires_at)}, and is over at {at}"
        raise Conflict(
            f"{title(group)} is claimed by {claim.holder}{until}", hint="claim another group"
        )
    if status.phase in ADMITTED and group.spec.suspend:
        raise Conflict(f"{title(group)} is suspended", hint="resume it: `batchq resume`")
    if status.phase in ADMITTED and status.pledge.awaited_victims:
        victims = counted(len(status.pledge.victims), "victim")
        raise Conflict(
            f"{title(group)} waits for {victims} that may still run",
            hint="claim another group, or this one once they have ended",
        )
    if status.phase in ADMITTED:
        raise Conflict(
            f"{title(group)}: {claim.holder} has reported it as {claim.phase} just now",
            hint="claim another group",
        )
    raise Conflict(
        f"{title(group)} is {status.phase}, and only admitted groups can be claimed",
        hint="`batchq external list` shows those that wait for a consumer",
    )


_STOP_AT_ONCE = "stop the work at once, as another consumer may run it; then claim again"
_WORDS = {"running": "Running", "succeeded": "Succeeded", "failed": "Failed"}


def _with_pod(group: PodGroup, pod: str, phase: Reported) -> PodGroupStatus:
    """Return the group's status with this report added; ends are final.

    Raises Conflict or InvalidInput.
    """
    reported = dict(group.status.reported)
    before = reported.get(pod)
    if before in ("Succeeded", "Failed") and before != _WORDS.get(phase):
        raise Conflict(
            f"{title(group)}: pod {pod} was reported as {before}, and an end is final",
            hint="retry before reporting a pod as failed",
        )
    match phase:
        case "evicted":
            reported.pop(pod, None)
        case "running":
            reported[pod] = "Running"
        case "succeeded":
            reported[pod] = "Succeeded"
        case "failed":
            reported[pod] = "Failed"
    most = max(sum(task.replicas for task in group.spec.tasks), group.spec.min_member or 1)
    if len(reported) > most:
        raise InvalidInput(
            f"{title(group)}: pod {pod} would be number {len(reported)} of {most}",
            hint="pod names are kept for the duration of a claim; report each pod under one name",
        )
    if sum(len(name) + 16 for name in reported) > MOST_REPORTED_BYTES:
        raise InvalidInput(
            f"{title(group)}: the group has too many pods to report each of them",
            hint="report the group itself: leave out the pod",
        )
    return structs.replace(group.status, reported=reported)


def _check_report(phase: str, pod: str, message: str) -> None:
    if phase not in get_args(Reported):
        words = ", ".join(get_args(Reported))
        raise InvalidInput(f"phase: expected one of {words}, found {shown(phase)}")
    problem = subdomain_problem(pod) if pod else None
    if problem:
        raise InvalidInput(f"pod: {problem}")
    if len(message) > LONGEST_MESSAGE:
        raise InvalidInput(
            f"message: expected at most {LONGEST_MESSAGE} characters, found {len(message)}"
        )


def _check_holder(holder: str) -> None:
    if not 0 < len(holder) <= LONGEST_HOLDER or not holder.isprintable():
        raise InvalidInput(
            f"holder: expected a name of 1 to {LONGEST_HOLDER} printable characters, found"
            f" {shown(holder)}"
        )


def _check_ttl(ttl_ms: int) -> None:
    if not SHORTEST_TTL_MS <= ttl_ms <= LONGEST_TTL_MS:
        raise InvalidInput(
            f"ttl: expected from {format_duration(SHORTEST_TTL_MS)} to"
            f" {format_duration(LONGEST_TTL_MS)}, found {format_duration(ttl_ms)}"
        )


def _write(
    group: PodGroup, status: PodGroupStatus, reason: str, message: str, now_ms: int
) -> Transaction:
    """Return the transaction that writes this status over what was read."""
    key = key_of(group)
    event = Event(kind="PodGroup", key=key, reason=reason, message=message, at=now_ms)
    return Transaction(
        subject=f"PodGroup {key}",
        writes=(
            Write(
                kind="PodGroup",
                key=key,
                expect=group.metadata.revision,
                value=structs.replace(group, status=status),
                fence=fence_of(group),
            ),
        ),
        events=(event,) if reason else (),
    )
