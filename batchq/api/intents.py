"""The decisions of a session, in order, for logs, events and reports.

The commit is made from the same moves: each Statement changes the session's state and records the
change as one of these.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from batchq.api.resources import Amounts


class AdmitGroup(Struct, frozen=True, kw_only=True, gc=False):
    """`group` (a key) becomes InQueue for the `admission`-th time."""

    group: str
    admission: int


class CreatePods(Struct, frozen=True, kw_only=True, gc=False):
    """`pods` (full names) of `group` are created."""

    group: str
    pods: tuple[str, ...]


class Bind(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` (full name, and uid) is bound to `node`, for the `attempt`-th time."""

    group: str
    pod: str
    uid: str
    node: str
    attempt: int


class Evict(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` is told to stop, for `reason`; `by` and `action` name the preemptor, if any."""

    group: str
    pod: str
    uid: str
    reason: str
    by: str = ""
    action: str = ""


class ReserveQuota(Struct, frozen=True, kw_only=True, gc=False):
    """`group`'s request is reserved; the group is not admitted yet."""

    group: str


class SetChecks(Struct, frozen=True, kw_only=True, gc=False):
    """`group`'s admission checks have changed, are Unknown again, or were given up."""

    group: str
    message: str


class Pledge(Struct, frozen=True, kw_only=True, gc=False):
    """`victims` (full names of pods) are pledged to `group`, which reserves its request."""

    group: str
    victims: tuple[str, ...]
    action: str


class EndPledge(Struct, frozen=True, kw_only=True, gc=False):
    """`group`'s pledge has ended: it has been placed, or gave up."""

    group: str


class LosePod(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` is lost: its lease and grace have passed."""

    group: str
    pod: str
    uid: str


class RequeuePod(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` goes back to Pending and waits for its next attempt."""

    group: str
    pod: str
    uid: str


class RollBack(Struct, frozen=True, kw_only=True, gc=False):
    """`group` goes back to Pending, for `reason`."""

    group: str
    reason: str
    message: str = ""


class MoveGroup(Struct, frozen=True, kw_only=True, gc=False):
    """`group` is Running or Unknown now."""

    group: str
    phase: str


class FinishGroup(Struct, frozen=True, kw_only=True, gc=False):
    """`group` has ended in `phase`, for `reason`."""

    group: str
    phase: str
    reason: str
    message: str = ""


class ExpireGroup(Struct, frozen=True, kw_only=True, gc=False):
    """`group` has been finished for its time to live, and is deleted with its pods."""

    group: str


class Settle(Struct, frozen=True, kw_only=True, gc=False):
    """`group`'s charge or bookkeeping follows its pods' changes."""

    group: str


class SetReasons(Struct, frozen=True, kw_only=True, gc=False):
    """`group` waits, and its reasons have changed."""

    group: str
    reasons: tuple[str, ...]


class SetNodeReady(Struct, frozen=True, kw_only=True, gc=False):
    """`node` has become ready, or has not been heard of for too long."""

    node: str
    ready: bool


Intent: TypeAlias = (
    AdmitGroup
    | CreatePods
    | Bind
    | Evict
    | ReserveQuota
    | SetChecks
    | Pledge
    | EndPledge
    | LosePod
    | RequeuePod
    | RollBack
    | MoveGroup
    | FinishGroup
    | ExpireGroup
    | Settle
    | SetReasons
    | SetNodeReady
)


class Eviction(Struct, frozen=True, kw_only=True):
    """A group that a session evicts at `at` (ms), wholly (`whole`) or only the pods named.

    `by` is the preemptor and `action` the action; both are empty without a preemptor. `lost` is the
    work lost, in resource-seconds.
    """

    at: int
    key: str
    queue: str
    whole: bool
    pods: tuple[str, ...]
    by: str
    action: str
    reason: str
    lost: Amounts
