"""Who has done what, for the audit trail of the HTTP API and of the commands for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from batchq.api.access import Via
from batchq.api.transaction import Transaction
from batchq.client.pod_commands import COMMAND_STARTED
from batchq.store.access_records import AuditRecord

if TYPE_CHECKING:
    from typing import Literal

#: What rights, and so the audit trail, call the kinds of objects.
_KINDS = {"PodGroup": "groups", "Queue": "queues", "Node": "nodes", "ResourceQuota": "quotas"}
#: Objects of one request that its audit record names.
_MOST_AUDITED = 10

#: The name of a user.
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")


class Actor(Struct, frozen=True, kw_only=True):
    """The user who changes something, for the audit trail, and why it is allowed."""

    user: str
    via: Via | Literal["redis"]
    token: str = ""
    address: str = ""
    #: The user who acts in the name of `user`, if it is another one, and why.
    by: str = ""
    reason: str = ""


def audit_of(
    actor: Actor, now_ms: int, verb: str, kind: str, name: str, because: str
) -> AuditRecord:
    """Return the audit record of something that an actor has done."""
    return AuditRecord(
        at=now_ms,
        user=actor.user,
        via=actor.via,
        token=actor.token,
        address=actor.address,
        verb=verb,
        kind=kind,
        name=name,
        outcome="done",
        because=because,
        by=actor.by or UNSET,
        reason=actor.reason or UNSET,
    )


def described(transaction: Transaction) -> tuple[str, str, str]:
    """Return what a transaction does, and the kinds and names of its objects, in words."""
    written = [write for write in transaction.writes if not write.is_condition]
    # Pods follow from what is done to their group.
    writes = [write for write in written if write.kind != "Pod"] or written
    verbs = {
        "delete" if write.value is None else "create" if write.expect == 0 else "update"
        for write in writes
    }
    reasons = {event.reason for event in transaction.events}
    if COMMAND_STARTED in reasons:
        return "exec", "groups", transaction.subject
    cancels = "Cancelled" in reasons
    verb = "cancel" if cancels else verbs.pop() if len(verbs) == 1 else "change"
    kinds = sorted({_KINDS.get(write.kind, write.kind) for write in writes})
    names = [write.key for write in writes]
    more = f" and {len(names) - _MOST_AUDITED} more" if len(names) > _MOST_AUDITED else ""
    return verb, ", ".join(kinds), f"{', '.join(names[:_MOST_AUDITED])}{more}"
