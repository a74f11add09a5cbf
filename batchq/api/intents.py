"""What a session decided, in the order decided: the story that logs, events and reports tell.

The commit is made from the same moves: each Statement changes the session's state and says so
with one of these.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class AdmitGroup(Struct, frozen=True, kw_only=True, gc=False):
    """`group` (a key) becomes InQueue for the `admission`-th time."""

    group: str
    admission: int


class CreatePods(Struct, frozen=True, kw_only=True, gc=False):
    """`pods` (full names) of `group` come into being."""

    group: str
    pods: tuple[str, ...]


class Bind(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` (full name, and uid) goes to `node`, for the `attempt`-th time."""

    group: str
    pod: str
    uid: str
    node: str
    attempt: int


class Evict(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` is told to stop, for `reason`; `by` and `action` name the claimant, if any."""

    group: str
    pod: str
    uid: str
    reason: str
    by: str = ""
    action: str = ""


class ReserveQuota(Struct, frozen=True, kw_only=True, gc=False):
    """What `group` asks for is reserved, and it is not admitted yet."""

    group: str


class SetChecks(Struct, frozen=True, kw_only=True, gc=False):
    """`group`'s admission checks are others than before, or Unknown again, or were given up."""

    group: str
    message: str


class Pledge(Struct, frozen=True, kw_only=True, gc=False):
    """`victims` (full names of pods) owe `group` their room; it reserves what it asks for."""

    group: str
    victims: tuple[str, ...]
    action: str


class EndPledge(Struct, frozen=True, kw_only=True, gc=False):
    """What was pledged to `group` is kept for it no longer: it has been placed, or gave up."""

    group: str


class LosePod(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` is written off: its lease and grace have passed."""

    group: str
    pod: str
    uid: str


class RequeuePod(Struct, frozen=True, kw_only=True, gc=False):
    """`pod` goes back to Pending and waits for its next attempt."""

    group: str
    pod: str
    uid: str


class RollBack(Struct, frozen=True, kw_only=True, gc=False):
    """`group` leaves for Pending, for `reason`."""

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
    """`group` has been finished for long enough and is forgotten, with its pods."""

    group: str


class Settle(Struct, frozen=True, kw_only=True, gc=False):
    """`group`'s charge or bookkeeping follows what its pods did."""

    group: str


class SetReasons(Struct, frozen=True, kw_only=True, gc=False):
    """`group` waits, and why has changed."""

    group: str
    reasons: tuple[str, ...]


class SetNodeReady(Struct, frozen=True, kw_only=True, gc=False):
    """`node` has not been heard of for too long."""

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
