"""The states of a pod attempt on its node, as its agent sees it, and every move between them.

delivered ─────▶ claimed ─────▶ running
    │               │              │ its work-horse ends, dies, or cannot be started
    │ given back    │ given back   ▼
    └───────────────┴────────▶ unreported ──▶ reported ──▶ forgotten
                                   ▲
        runs here by the server's ─┘
        records, and does not
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class PodState(StrEnum):
    """The state of a pod attempt on its node. An attempt that is in no state is unknown here."""

    #: Taken from the node's queue. Its start claim is not posted, as far as the agent knows.
    DELIVERED = "delivered"
    #: Its start claim is posted and its lease taken; the leader has not applied the claim yet.
    CLAIMED = "claimed"
    #: A work-horse has it.
    RUNNING = "running"
    #: No work-horse has it, and its end is to be reported.
    UNREPORTED = "unreported"
    #: Its end is reported; the server does not show the end yet.
    REPORTED = "reported"


class Cause(StrEnum):
    """Why a pod attempt moves from one state to the next."""

    DELIVERED = "delivered"
    CLAIM_POSTED = "its claim was posted"
    DECLINED = "it is not ours to run"
    GIVEN_BACK = "it is ours and is not to start"
    RAN_BEFORE = "it runs by the server's records, and was not claimed since its delivery"
    GRANTED = "its claim was applied"
    NOT_STARTED = "its work-horse could not be started"
    HORSE_REPORTED = "its work-horse has reported its end"
    HANDED_OVER = "its work-horse leaves the report to the agent"
    HORSE_DIED = "its work-horse died"
    SUPERSEDED = "its work-horse found it superseded"
    MISSING = "the server shows it here, and it does not run"
    REPORTED = "its end was reported"
    RESTARTABLE = "it may be started again"
    SEEN = "the server shows its end"


_S = PodState
#: Every move: a state, or None for an unknown attempt, and a cause to the next state.
MOVES: Mapping[tuple[PodState | None, Cause], PodState | None] = {
    (None, Cause.DELIVERED): _S.DELIVERED,
    (None, Cause.MISSING): _S.UNREPORTED,
    (_S.DELIVERED, Cause.CLAIM_POSTED): _S.CLAIMED,
    (_S.DELIVERED, Cause.DECLINED): None,
    (_S.DELIVERED, Cause.GIVEN_BACK): _S.UNREPORTED,
    (_S.DELIVERED, Cause.RAN_BEFORE): _S.UNREPORTED,
    (_S.CLAIMED, Cause.DECLINED): None,
    (_S.CLAIMED, Cause.GIVEN_BACK): _S.UNREPORTED,
    (_S.CLAIMED, Cause.GRANTED): _S.RUNNING,
    (_S.RUNNING, Cause.NOT_STARTED): _S.UNREPORTED,
    (_S.RUNNING, Cause.HORSE_REPORTED): _S.REPORTED,
    (_S.RUNNING, Cause.HANDED_OVER): _S.UNREPORTED,
    (_S.RUNNING, Cause.HORSE_DIED): _S.UNREPORTED,
    (_S.RUNNING, Cause.SUPERSEDED): None,
    (_S.UNREPORTED, Cause.REPORTED): _S.REPORTED,
    (_S.UNREPORTED, Cause.RESTARTABLE): None,
    (_S.UNREPORTED, Cause.SEEN): None,
    (_S.REPORTED, Cause.REPORTED): _S.REPORTED,
    (_S.REPORTED, Cause.SEEN): None,
}
