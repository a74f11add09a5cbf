"""Why a group waits, leaves or ends: three closed lists, the Verdict that carries a reason, and
the Explanation, in which every command shows one.

Conditions, the command line, the Python client and metrics use the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

from msgspec import Struct, structs

from batchq.api.resources import describe_quantity

T = TypeVar("T")


class Waiting(StrEnum):
    """Why a group waits, the most fundamental reason first."""

    MISCONFIGURED = "Misconfigured"
    QUEUE_NOT_FOUND = "QueueNotFound"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    EXCEEDS_CAPACITY = "ExceedsCapacity"
    QUEUE_STOPPED = "QueueStopped"
    SUSPENDED = "Suspended"
    SCHEDULING_GATED = "SchedulingGated"
    DEPENDENCY_NOT_MET = "DependencyNotMet"
    BACKING_OFF = "BackingOff"
    WAITING_FOR_CHECKS = "WaitingForChecks"
    CHECK_INACTIVE = "CheckInactive"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_RESOURCES = "WaitingForResources"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_PREEMPTION = "WaitingForPreemption"
    UNSCHEDULABLE = "Unschedulable"
    PENDING_EVALUATION = "PendingEvaluation"


class Leaving(StrEnum):
    """Why an admitted group, or a pod, was evicted."""

    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    SUSPENDED = "Suspended"
    QUEUE_STOPPED = "QueueStopped"
    NODE_LOST = "NodeLost"
    CAPACITY_CUT = "CapacityCut"
    IN_QUEUE_TIMEOUT = "InQueueTimeout"
    RECOVERY_TIMEOUT = "RecoveryTimeout"
    UNSCHEDULABLE = "Unschedulable"
    CHECK_RETRY = "CheckRetry"
    CHECK_REJECTED = "CheckRejected"
    CLAIM_LAPSED = "ClaimLapsed"
    GANG_RESTART = "GangRestart"


#: The event of a group that has lost pods with their nodes. Unlike a group that left because of
#: NODE_LOST, it may keep its phase.
POD_LOST = "PodLost"


class Finish(StrEnum):
    """How a group ended."""

    SUCCEEDED = "Succeeded"
    RETRIES_SPENT = "RetriesSpent"
    WALLTIME_EXCEEDED = "WalltimeExceeded"
    CHECK_REJECTED = "CheckRejected"
    DEPENDENCY_NEVER_MET = "DependencyNeverMet"
    CANCELLED = "Cancelled"


#: The reasons that waiting cannot remove, as things are: the request itself, a stated limit, or the
#: present nodes.
NEVER_FITS = frozenset({Waiting.MISCONFIGURED, Waiting.EXCEEDS_MAX_QUOTA, Waiting.EXCEEDS_CAPACITY})

#: The same, and a queue that does not exist: a group with such a reason needs a person.
UNSATISFIABLE = NEVER_FITS | {Waiting.QUEUE_NOT_FOUND}

_RANK = {reason: place for place, reason in enumerate(Waiting)}


#: The subject of a verdict about what all ready nodes have together.
CLUSTER_TITLE = "the cluster"


class Verdict(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """A refusal as data.

    `need`, `limit` and `seen` are integer units of `resource`: the group's request, what `subject`
    allows, and how much of that was in use at the time of the verdict. `in_line` says whether the
    group keeps its place in the pending queue (refused by capacity) or is ineligible. `passing`
    holds details of the moment, such as who is ahead: like `seen` they make no new cause; unlike
    it, they are not stored, for an outdated name misleads.
    """

    plugin: str
    reason: Waiting
    subject: str = ""
    resource: str = ""
    need: int | None = None
    limit: int | None = None
    seen: int | None = None
    detail: str = ""
    passing: str = ""
    in_line: bool = False
    #: The revision of the snapshot that it was made on.
    revision: int = 0

    @property
    def rank(self) -> int:
        """The place of the reason in `Waiting`; lower is more fundamental."""
        return _RANK[self.reason]

    @property
    def is_larger_than_limit(self) -> bool:
        """Whether it would be refused even with nothing of the limit in use."""
        return self.need is not None and self.limit is not None and self.need > self.limit

    def same_cause(self, other: Verdict) -> bool:
        """Return whether both are equal but for `seen`, `passing` and `revision`."""
        return (
            self.plugin == other.plugin
            and self.reason == other.reason
            and self.subject == other.subject
            and self.resource == other.resource
            and self.need == other.need
            and self.limit == other.limit
            and self.detail == other.detail
        )

    def message(self) -> str:
        """Return one sentence for people, with the numbers that decide."""
        if self.need is None or self.limit is None:
            return "; ".join(part for part in (self.detail, self.passing) if part)
        need = describe_quantity(self.resource, self.need)
        limit = describe_quantity(self.resource, self.limit)
        if self.seen is None:
            text = f"needs {self.resource} {need}, and {self.subject} allows at most {limit}"
        elif self.subject == CLUSTER_TITLE and self.limit == 0:
            text = f"needs {self.resource} {need}, and no node that is ready has {self.resource}"
        else:
            # Charges on nodes that are not ready and reservations count, too; a quota, unlike the
            # cluster, may be lowered below its use.
            used = min(self.seen, self.limit) if self.subject == CLUSTER_TITLE else self.seen
            seen = describe_quantity(self.resource, used)
            free = describe_quantity(self.resource, max(0, self.limit - self.seen))
            text = (
                f"needs {self.resource} {need}, and {self.subject} has {free} free"
                f" ({seen} of {limit} in use)"
            )
        return "; ".join(part for part in (text, self.detail, self.passing) if part)

    def lasting(self) -> Verdict:
        """Return the verdict as it is stored, without the details of the moment."""
        return structs.replace(self, passing="") if self.passing else self


#: The verdict on a group that no session has seen yet: it has just been submitted or requeued.
UNSEEN = Verdict(
    plugin="session",
    reason=Waiting.PENDING_EVALUATION,
    detail="the scheduler has not looked at it yet",
)


class Explanation(Struct, frozen=True, kw_only=True):
    """One reason why a group waits, as `why`, lists, plans and the doctor show it.

    `verdict` is what blocks the group, with its numbers. `remedy` says what would help; '' if only
    time does and the message says so, or where no remedies are looked for, as in lists. `revision`
    is that of the snapshot that the numbers are from; 0 in lists. A reason that the scheduler has
    stored and that no longer applies has the numbers of that time.
    """

    verdict: Verdict
    remedy: str = ""
    revision: int = 0

    @property
    def reason(self) -> Waiting:
        """The CamelCase reason."""
        return self.verdict.reason

    @property
    def message(self) -> str:
        """The sentence, with the numbers that decide."""
        return self.verdict.message()

    @property
    def text(self) -> str:
        """The reason and its sentence."""
        return f"{self.reason}: {self.message}"

    @property
    def plugin(self) -> str:
        """The plugin or the action that refuses the group."""
        return self.verdict.plugin

    @property
    def subject(self) -> str:
        """What refuses it: a queue, a quota, the cluster."""
        return self.verdict.subject

    @property
    def resource(self) -> str:
        """The resource of the numbers; '' if there are none."""
        return self.verdict.resource

    @property
    def need(self) -> int | None:
        """How much the group requests."""
        return self.verdict.need

    @property
    def limit(self) -> int | None:
        """How much the subject allows."""
        return self.verdict.limit

    @property
    def seen(self) -> int | None:
        """How much of the limit is in use."""
        return self.verdict.seen

    @property
    def free(self) -> int | None:
        """How much of the limit is not in use."""
        if self.seen is None or self.limit is None:
            return None
        return max(0, self.limit - self.seen)


#: A verdict without its passing parts: equal for verdicts of the same cause.
Cause: TypeAlias = tuple[object, ...]


class _computed_once(Generic[T]):  # noqa: N801 - a decorator
    """A property that is computed once for each object, as functools.cached_property, which takes
    a lock for each value up to Python 3.11.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._compute(instance)
        return found


class Blockers(tuple[Verdict, ...]):
    """All blockers of a group, the most fundamental first; one value is shared by all groups with
    equal refusals, so that results derived from it are computed once.
    """

    #: Whether a plugin refuses this group alone, and not all groups that ask for the same.
    are_own = False

    @_computed_once
    def causes(self) -> tuple[Cause, ...]:
        """The cause of each blocker."""
        return causes_of(self)

    @_computed_once
    def are_in_line(self) -> bool:
        """Return whether every blocker leaves the group in line."""
        return all(verdict.in_line for verdict in self)

    @_computed_once
    def wait_in_line(self) -> bool:
        """Return whether a group with these refusals keeps its place in line.

        It does if capacity refuses it. The quota of a namespace on its own makes it ineligible, but
        together with a refusal by capacity it keeps its place; any other reason costs the place.
        """
        return any(verdict.in_line for verdict in self) and all(
            verdict.in_line or verdict.reason == Waiting.WAITING_FOR_QUOTA for verdict in self
        )

    @_computed_once
    def turn(self) -> str:
        """The head whose turn it waits for; see `turn_of`."""
        return turn_of(self)

    @_computed_once
    def reasons(self) -> frozenset[Waiting]:
        """The reasons among them."""
        return frozenset(verdict.reason for verdict in self)


def turn_of(verdicts: Iterable[Verdict]) -> str:
    """Return the message for a group behind a head; "" for any other group."""
    message = ""
    for verdict in verdicts:
        if not verdict.in_line and verdict.reason != Waiting.WAITING_FOR_QUOTA:
            return ""
        if verdict.reason == Waiting.WAITING_FOR_TURN and verdict.plugin == "enqueue":
            message = verdict.detail
    return message


def causes_of(verdicts: Iterable[Verdict]) -> tuple[Cause, ...]:
    """Return the cause of each verdict."""
    return tuple(
        (one.plugin, one.reason, one.subject, one.resource, one.need, one.limit, one.detail)
        for one in verdicts
    )


def ranked(verdicts: Iterable[Verdict]) -> Blockers:
    """Return all verdicts, the most fundamental first, equal ones in the given order."""
    found = list(verdicts)
    return Blockers(sorted(found, key=lambda verdict: verdict.rank) if len(found) > 1 else found)


def same_causes(left: tuple[Verdict, ...], right: tuple[Verdict, ...]) -> bool:
    """Return whether two lists of blockers differ only in passing numbers."""
    return len(left) == len(right) and all(
        one.same_cause(other) for one, other in zip(left, right, strict=True)
    )
