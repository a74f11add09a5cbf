"""What programs see of tokens, bindings and the audit trail: over the API, and as `-o json`."""

from __future__ import annotations

from msgspec import UNSET, to_builtins

from batchq.api.notation import format_instant
from batchq.client.access_control import AuditEntry, BindingRecord, ServiceAccount, TokenRecord


def audit_row(entry: AuditEntry) -> dict[str, object]:
    """Return an audit record for programs."""
    row: dict[str, object] = to_builtins(entry.record)
    at = format_instant(entry.record.at)
    return row | {"at": at, "digest": entry.digest, "isChained": entry.is_chained}


def binding_row(record: BindingRecord) -> dict[str, object]:
    """Return a binding for programs."""
    binding: dict[str, object] = to_builtins(record.binding)
    return binding | {"madeBy": record.made_by, "madeAt": format_instant(record.made_at)}


def token_row(record: TokenRecord) -> dict[str, object]:
    """Return a token for programs, without its digest."""
    more: dict[str, object] = {} if record.node is UNSET else {"node": record.node}
    if record.uses is not UNSET:
        joined = {} if record.joined is UNSET else record.joined
        more |= {"uses": record.uses, "joined": sorted(joined)}
    if record.kind == "token":
        # A token of a login is not rotated.
        ends_at = record.rotated_until if record.groups is UNSET else record.expires_at
        more = {"rotatedUntil": format_instant(ends_at)}
    return {
        "id": record.id,
        "owner": record.owner,
        "madeBy": record.made_by,
        "madeAt": format_instant(record.made_at),
        "expiresAt": format_instant(record.expires_at),
        "revokedAt": None if record.revoked_at is None else format_instant(record.revoked_at),
        **to_builtins(record.scope),
        "note": record.note,
        "invitation": record.kind == "invitation",
        **more,
    }


def account_row(account: ServiceAccount) -> dict[str, object]:
    """Return a service account for programs."""
    return {
        "name": account.name,
        "roles": [binding_row(one) for one in account.roles],
        "tokens": [token_row(one) for one in account.tokens],
    }


def listed_token_row(record: TokenRecord, used_at: int | None, now_ms: int) -> dict[str, object]:
    """Return a token for a list: also when it was used last, and whether it is valid now."""
    used = None if used_at is None else format_instant(used_at)
    return token_row(record) | {"usedAt": used, "state": _state(record, now_ms)}


def _state(record: TokenRecord, now_ms: int) -> str:
    if record.revoked_at is not None:
        return "revoked" if record.kind == "token" else "used"
    if record.expires_at <= now_ms:
        return "expired"
    return "valid" if record.kind == "token" else "invitation"
