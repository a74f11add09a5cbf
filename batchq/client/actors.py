"""Who changes something through the HTTP API or the commands for it, for the audit trail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct

from batchq.api.access import Via
from batchq.store.access_records import AuditRecord

if TYPE_CHECKING:
    from typing import Literal

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
