"""What a client shows: groups, queues, plans, explanations, checks, gates and schedulers.

Values only. `batchq.client` computes them with the scheduler's own rules, and the HTTP API sends
them, so that its clients need not import what decides. Instants are in milliseconds, amounts in
integer units.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from batchq.api.intents import Eviction
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    AdmissionCheck,
    CheckState,
    Condition,
    Evictions,
    Instant,
    Object,
    OpenedGate,
    PodGroup,
    Queue,
    Unreadable,
    key_of,
)
from batchq.api.reasons import Explanation, Leaving
from batchq.api.resources import PODS, Amounts
from batchq.api.transaction import POD_GROUPS
from batchq.errors import BatchqError

#: A Pending group with gates, as lists show its phase.
GATED = "SchedulingGated"
#: Up to this many groups are shown at once, with their positions in line; this takes a second.
WHOLE_UP_TO = 10_000
NO_LEADER = "no scheduler leads: start one with `batchq scheduler` or `batchq up`"


def why_unled(refusal: str) -> str:
    """Return that no scheduler leads, and what to do; `refusal` says why the server refuses writes,
    if it seems to.
    """
    return f"no scheduler leads, probably because the server {refusal}" if refusal else NO_LEADER


#: Two leases: a scheduler that has not reported itself for so long has ended or hangs.
SILENT_MS = 10_000
#: Two renewal intervals of the leader's lease, which lasts 5 s and is renewed three times in it.
MISSED_RENEWALS_MS = 2 * 5_000 // 3


class PodCounts(Struct, frozen=True, kw_only=True):
    """A group's pods by phase. `wanted` is the number of replicas, `least` is minMember."""

    wanted: int
    least: int
    pending: int = 0
    bound: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    #: On a node, and asked to stop.
    stopping: int = 0


class Awaited(Struct, frozen=True, kw_only=True):
    """What a preemptor waits for: the pods of its victims that have not ended.

    `groups` are the keys of their groups; an external group has no pods to count. All must have
    stopped `within_ms`. `until` is when the pledge expires; None until a victim is asked to stop.
    """

    action: str
    pods: int
    groups: tuple[str, ...]
    until: int | None
    within_ms: int = 0


class GroupView(Struct, frozen=True, kw_only=True):
    """A pod group as lists show it. Instants are in milliseconds, amounts in integer units."""

    key: str
    queue: str
    priority: int
    phase: PodGroupPhase
    #: The phase, or SchedulingGated for a Pending group with gates.
    shown: str
    pods: PodCounts
    #: What an admission of the group reserves.
    request: Amounts
    #: The same as text: `cpu 1 ×40`.
    request_text: str
    #: Position in its queue, from 1; None unless the group is Pending and in line.
    position: int | None
    #: Why it waits, the most fundamental reason first.
    blockers: tuple[Explanation, ...]
    #: Where its pods are; if it has ended, where they were.
    nodes: tuple[str, ...]
    created_at: int
    started_at: int | None
    finished_at: int | None
    #: Reason and sentence of its end, or of its last eviction.
    reason: str
    message: str
    uid: str = ""
    #: The user who submitted it.
    owner: str = ""
    #: The condition Evicted, if it is True and the group has not ended.
    evicted: Condition | None = None
    #: What preemption and reclaim have cost the group so far.
    evictions: Evictions = Evictions()
    awaits: Awaited | None = None
    #: Which pods of an admitted group wait for gates: `2 pods of task b wait for gate late`.
    gated: tuple[str, ...] = ()
    #: Which pods start again, and when, if the group is Unknown.
    restarts: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The group's namespace."""
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """The group's name in its namespace."""
        return self.key.partition("/")[2]

    def is_of(self, owner: str) -> bool:
        """Return whether a user has submitted it, who may be named without the host: `alice` for
        alice@laptop. Everyone has, for an empty name.
        """
        return not owner or self.owner == owner or self.owner.startswith(f"{owner}@")


class GroupPage(Struct, frozen=True, kw_only=True):
    """Some groups, and the unreadable records among them; `at` is the instant in milliseconds."""

    views: tuple[GroupView, ...]
    at: int
    unreadable: tuple[Unreadable, ...] = ()


class Stop(Struct, frozen=True, rename={"policy": "stopPolicy"}):
    """A stopped queue and its policy: Hold or HoldAndDrain."""

    queue: str
    policy: str


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue as lists show it. Amounts are in integer units; counts and sums are of its subtree.

    `charged` is used + reserved, as in the ledger; `borrowed` is its excess over `deserved`.
    `share` is the largest charged / deserved of any resource, a number or "inf"; None if the queue
    holds and deserves nothing.
    """

    queue: Queue
    parent: str
    children: tuple[str, ...]
    #: The number of queues between the root and this one.
    depth: int
    used: Amounts
    reserved: Amounts
    charged: Amounts
    borrowed: Amounts
    pending_groups: int
    pending: Amounts
    admitted_groups: int
    running_groups: int
    deserved: Amounts
    #: Its stated guarantee; a queue with children has at least the sum of theirs.
    guarantee: Amounts
    share: float | str | None
    #: The stops that apply to it: its own and its ancestors', the highest first.
    stops: tuple[Stop, ...] = ()
    #: The namespaces whose groups it and each queue above it accept, by name; None: all.
    accepts: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.metadata.name

    @property
    def resources(self) -> list[str]:
        """Resources that it holds, deserves or limits, by name; pods only if they are deserved."""
        spec = self.queue.spec
        used = {
            resource
            for amounts in (self.charged, self.deserved)
            for resource, units in amounts.items()
            if units and resource not in (PODS, POD_GROUPS)
        }
        return sorted({*used, *spec.deserved, *spec.guarantee, *spec.capability})


class Loan(Struct, frozen=True):
    """The queue at the other end of a loan, and the amounts that it lends or could lend."""

    queue: str
    amounts: Amounts


class FirstToGo(
    Struct, frozen=True, kw_only=True, rename={"key": "podGroup", "started_at": "startedAt"}
):
    """A possible victim: the whole group, or its number of pods beyond minMember."""

    key: str
    queue: str
    priority: int
    whole: bool
    pods: int
    gives: Amounts
    started_at: Instant | None


class QueueUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a queue has used over time: which part of what it is entitled to, weighted by age. A
    number or "inf".
    """

    share: float | str
    half_life_ms: int
    #: Whether the queue that has used least is served first (`fairness.order: usage`).
    decides_order: bool


class QueuePage(Struct, frozen=True, kw_only=True):
    """One queue in detail, with the groups in it and in the queues below it.

    `lenders` deserve what this queue borrows, `borrowers` hold what this queue deserves. `line` are
    the groups in line, by position; `not_in_line` the other waiting groups. `first_to_go` has the
    groups in the order in which preemption would choose victims. `usage` is None if past usage does
    not count, or the scheduler's settings are unknown here.
    """

    view: QueueView
    #: Resource -> the weight of the queue, and the sum over it and its siblings; resources that the
    #: queue's own `deserved` names are left out.
    weights: dict[str, tuple[int, int]]
    lenders: tuple[Loan, ...]
    borrowers: tuple[Loan, ...]
    line: tuple[GroupView, ...]
    not_in_line: tuple[GroupView, ...]
    first_to_go: tuple[FirstToGo, ...]
    usage: QueueUsage | None = None


class Others(Struct, frozen=True, kw_only=True, rename="camel"):
    """A list of groups: the keys of the first few in the reader's namespace, the number of further
    ones there, and the number in other namespaces, whose names are private.
    """

    named: tuple[str, ...] = ()
    more: int = 0
    elsewhere: int = 0

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.named) + self.more + self.elsewhere


class ExpectedStart(Struct, frozen=True, kw_only=True, rename="camel"):
    """When a group is expected to start; None if that is unknown.

    `ends` are the groups that must end for it, `behind` a group that must start before it; `why` is
    what else delays it, or why the start is unknown.
    """

    at: int | None
    ends: Others = Others()
    behind: Others = Others()
    why: str = ""


class StartView(Struct, frozen=True, kw_only=True, rename="camel"):
    """A waiting group. `position` is its position in the line of its queue, from 1; None if it is
    not in line, or the next session admits it.
    """

    key: str
    queue: str
    position: int | None
    expected: ExpectedStart


class Starts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Waiting groups, the earliest start first, as of `at`; groups with an unknown start come last,
    by queue and position. `not_planned` is the number of groups in line beyond the bound.
    """

    at: int
    items: tuple[StartView, ...]
    not_planned: int


class QueueShare(Struct, frozen=True, kw_only=True, rename="camel"):
    """The group's queue, and the queues that hold what it deserves (`borrowers`)."""

    name: str
    share: float | str | None
    deserved: Amounts
    charged: Amounts
    borrowed: Amounts
    borrowers: dict[str, Amounts]


class Spared(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why an action, or both together, find no victims for the group."""

    action: str
    reasons: tuple[str, ...]


class Backfilling(Struct, frozen=True, kw_only=True, rename="camel"):
    """The position of a group behind the head of a backfilled queue, or as the head (`head` is its
    key).

    `reserved_at` is when its reservation begins, in milliseconds; None if it has none. `delays` is
    the key of the group that it would delay if it started now, and `delayed_at` when that one is to
    start. `longest_ms` is the longest walltime with which it would start now; None if there is none
    or its own is short enough. `fits_now`: the limits have enough free quota at this moment.
    """

    head: str
    head_at: int | None
    reserved_at: int | None
    fits_now: bool = False
    delays: str = ""
    delayed_at: int | None = None
    longest_ms: int | None = None


_LEFT = frozenset(map(str, Leaving))


class Period(Struct, frozen=True, kw_only=True, rename="camel"):
    """A period in one state, in milliseconds; `until` is None for the current one.

    `reasons` are the reasons for waiting, the most fundamental first. `note` adds what the state
    does not show: the preemptor, the result, or which gate was opened, and its opener.
    """

    at: int
    until: int | None
    phase: PodGroupPhase
    reasons: tuple[str, ...] = ()
    note: str = ""

    def lasted(self, now_ms: int) -> int:
        """Return its length up to now, in milliseconds."""
        return (now_ms if self.until is None else self.until) - self.at

    @property
    def follows_eviction(self) -> bool:
        """Whether it begins with an eviction of the group."""
        return self.note.partition(":")[0] in _LEFT


class Why(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a group is in its state, as of `at`, at a revision of the server's objects.

    `since` is when its phase began. `reasons` apply now, the most fundamental first; `former` were
    stored by the scheduler and no longer apply. `next` is the phase change of the next session, if
    any. `reserved`: quota is reserved for it. `ever` is '' if it can run some day, else why it
    cannot. `missing_nodes` says which nodes are cordoned or not ready, if it cannot start without
    them. `start` is when capacity will be free; `expected` when it starts, counting the groups
    ahead. `backfilling` is its position in a backfilled queue. `spared` says why it has no victims.
    `waited` maps reason -> total time, as far as events go back; `history` is the same as a time
    series. `view` is the group as lists show it, `line_ahead` has the keys of the groups ahead.
    """

    key: str
    uid: str
    queue: str
    priority: int
    phase: PodGroupPhase
    shown: str
    at: int
    revision: int
    since: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    nodes: tuple[str, ...]
    ending: str
    led: bool
    next: str
    reasons: tuple[Explanation, ...]
    former: tuple[Explanation, ...]
    reserved: bool
    position: int | None
    ahead: Others
    ever: str
    missing_nodes: str = ""
    start: ExpectedStart | None
    expected: ExpectedStart | None
    backfilling: Backfilling | None
    spared: tuple[Spared, ...]
    queue_share: QueueShare | None
    awaits: Awaited | None
    backoff_until: int | None
    evictions: int
    evicted: str
    conditions: tuple[Condition, ...]
    waited: dict[str, int]
    history: tuple[Period, ...]
    view: GroupView
    line_ahead: tuple[str, ...]
    #: Which pods have failed, were lost or evicted, or are about to be lost, and when they start
    #: again.
    restarts: tuple[str, ...] = ()
    #: That no scheduler leads, and what to do; "" if one does.
    unled: str = ""


class Outcome(StrEnum):
    """What the next session does with a group, from best to worst."""

    #: The group is admitted, and minMember of its pods get nodes.
    NOW = "Now"
    #: The same, after its victims have ended.
    EVICTS = "Evicts"
    WAITS = "Waits"
    #: Waiting does not help: the group exceeds every node or a limit.
    NEVER = "Never"


class Advice(Struct, frozen=True, kw_only=True, rename={"sentence": "message"}):
    """A change that was tried, and its outcome: `requests`, `minMember`, `queue`, `priorityClass`,
    `uncordon`, `nodeReady` (nodes that are not ready come back, and cordoned ones are uncordoned),
    `reclaim` (its queue takes back what others borrow), or `released` (its gates, suspension and
    dependencies are removed).

    `value` is the changed value: `cpu=12`, `3`, the name of a queue or of a priority class, or
    names of nodes.
    """

    change: str
    value: str
    outcome: Outcome
    sentence: str


class GroupPlan(Struct, frozen=True, kw_only=True):
    """What a session decides about one group. Amounts are in integer units, instants in ms.

    `phase` is its phase after the session, `reserved` whether quota is reserved then. `nodes` maps
    a node to the number of pods there. `blockers` are all reasons for waiting, the most fundamental
    first; `checks` the admission checks that have not passed. `position` is its position in the
    queue's line, None if it is not in line; `ahead` are the keys before it. `ending` says how it
    ends, if the session ends it. `never` says why not even empty nodes would take its pods, if no
    limit excludes it. `earliest_start` is when capacity will be free, once the groups `after` have
    ended by their walltimes; `expected_start` is when it is expected to start, counting the groups
    ahead; both are None if unknown, or not computed (`with_starts`).
    """

    key: str
    queue: str
    priority: int
    request: Amounts
    least: int
    replicas: int
    outcome: Outcome
    phase: PodGroupPhase
    reserved: bool
    external: bool
    nodes: dict[str, int]
    awaits: Awaited | None
    checks: tuple[str, ...]
    blockers: tuple[Explanation, ...]
    position: int | None
    ahead: tuple[str, ...]
    ending: str
    never: str
    earliest_start: int | None = None
    after: tuple[str, ...] = ()
    expected_start: int | None = None
    advice: tuple[Advice, ...] = ()


_EXIT_CODES = {Outcome.NOW: 0, Outcome.EVICTS: 3, Outcome.WAITS: 4, Outcome.NEVER: 5}


class Plan(Struct, frozen=True, kw_only=True):
    """The effect of a request; `at` is the instant, in the server's milliseconds.

    `delayed` are groups that would start in the same session without the request, but not with it.
    `changes` describes the effect on the request's other objects, `warnings` consequences that its
    author may not intend.
    """

    at: int
    outcome: Outcome
    groups: tuple[GroupPlan, ...]
    evicted: tuple[Eviction, ...]
    delayed: tuple[str, ...]
    changes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 now, 3 with evictions, 4 would wait, 5 never."""
        return _EXIT_CODES[self.outcome]


class ListedCheck(Struct, frozen=True, kw_only=True):
    """A check that a queue requires: its controller, and whether the controller is active.

    `record` is None if there is no such AdmissionCheck. `listed_by` is the queue that names it.
    """

    name: str
    listed_by: str
    record: AdmissionCheck | None
    active: bool

    @property
    def active_until(self) -> int | None:
        """When its controller's lease expires unless it is renewed."""
        return self.record.status.expires_at if self.active and self.record is not None else None


class CheckView(Struct, frozen=True, kw_only=True):
    """One check of one group, as `batchq checks list` shows it."""

    group: PodGroup
    state: CheckState
    check: ListedCheck

    @property
    def waits(self) -> bool:
        """Whether its controller should answer now: quota is reserved, and it has not answered."""
        status = self.group.status
        return (
            status.phase == PodGroupPhase.PENDING
            and status.reserved_at is not None
            and self.state.status == "Unknown"
        )


class CheckPage(Struct, frozen=True, kw_only=True):
    """One check in detail: the queues that require it, and its state in each unfinished group."""

    check: ListedCheck
    queues: tuple[str, ...]
    views: tuple[CheckView, ...]


class GateView(Struct, frozen=True, kw_only=True):
    """A closed gate.

    `group` is the key of the group and `shown` its phase as lists show it, since a gate of a task's
    pods need not hold the group back. `task` is "" for a gate of the whole group. A gate is set
    when the group is submitted, by `set_by` at `set_at`. `opened` are the group's open gates.
    """

    group: str
    queue: str
    shown: str
    gate: str
    task: str
    set_at: int
    set_by: str
    opened: tuple[OpenedGate, ...]


class Effect(StrEnum):
    """What a request did, or would do, to one object."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


class Applied(Struct, frozen=True, kw_only=True):
    """One object of a request, as it is afterwards; a deleted object as it was before.

    `changes` lists the fields that changed if a queue was configured; `warnings` names consequences
    that the author may not have intended.
    """

    object: Object
    effect: Effect
    changes: str = ""
    warnings: tuple[str, ...] = ()


class Accepted(Struct, frozen=True, kw_only=True):
    """The request at `place` (from 0) is stored as `group`; `effect` may be `unchanged`."""

    place: int
    group: PodGroup
    effect: Effect = Effect.CREATED


class Refused(Struct, frozen=True, kw_only=True):
    """The request at `place` (from 0) was refused with the error that `submit` would raise."""

    place: int
    error: BatchqError


class Tally(Struct, frozen=True, kw_only=True):
    """Progress: how many of the settled requests, counted in order, had each outcome."""

    submitted: int = 0
    unchanged: int = 0
    refused: int = 0

    @property
    def settled(self) -> int:
        return self.submitted + self.unchanged + self.refused


Goal: TypeAlias = Literal["finished", "succeeded", "running", "admitted"]
GOALS: tuple[Goal, ...] = get_args(Goal)


class Result(Struct, frozen=True, kw_only=True, rename={"key": "name", "exit_code": "exitCode"}):
    """The result of waiting for a group.

    `reached`: the group has reached the goal. `exit_code` is that of its first failed pod, 0 for a
    completed group, None if nothing has ended or the exit code is unknown.
    """

    key: str
    phase: PodGroupPhase
    reached: bool
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


class WaitState(Struct, frozen=True, kw_only=True):
    """A group's state for a caller that waits for a goal; `uid` names this very group.

    `is_settled`: it has reached the goal, or no longer can.
    """

    uid: str
    result: Result
    is_settled: bool


class LogLine(Struct, frozen=True, kw_only=True):
    """One line without its line end. `stream` is stdout or stderr; `attempt` counts within the
    admission of the pod.
    """

    pod: str
    attempt: int
    stream: str
    text: str
    #: 0 if the API's version does not tell it.
    admission: int = 0


class Leading(Struct, frozen=True, kw_only=True):
    """The leader and its epoch (counted from 1); the last leader if `left_ms` is not positive.

    `left_ms` is the rest of its lease.
    """

    identity: str
    epoch: int
    left_ms: int


class SchedulerSeen(Struct, frozen=True, kw_only=True):
    """A running scheduler. `behind` is how many writes its mirror lacks; None before its first
    list. `config` is the digest of its configuration; '' if unknown.
    """

    identity: str
    version: str
    seen_ms_ago: int
    behind: int | None
    leads: bool
    config: str = ""
    #: Its configuration file has changed and is wrong, so the former configuration stays in effect.
    refused_file: bool = False
    #: It led until its lease expired, and no scheduler has led since.
    led_last: bool = False

    @property
    def role(self) -> Literal["leader", "follower", "silent"]:
        """`silent` means killed or hanging; a silent scheduler is listed for another minute.

        The last leader is known to be silent sooner, because it has missed renewals of its lease.
        """
        if self.leads:
            return "leader"
        longest_ms = MISSED_RENEWALS_MS if self.led_last else SILENT_MS
        return "follower" if self.seen_ms_ago < longest_ms else "silent"


class Schedulers(Struct, frozen=True, kw_only=True):
    """The schedulers. `leader` is the last one that led; None if it resigned or none has led.

    `refusal`: why the server refuses writes, if none leads and it seems to.
    """

    leader: Leading | None
    there: Sequence[SchedulerSeen]
    refusal: str = ""

    @property
    def led(self) -> bool:
        """Whether a scheduler leads now."""
        return self.leader is not None and self.leader.left_ms > 0

    @property
    def unled(self) -> str:
        """That no scheduler leads, and what to do; "" if one does."""
        return "" if self.led else why_unled(self.refusal)

    @property
    def followers(self) -> Sequence[SchedulerSeen]:
        """The schedulers on standby."""
        return [one for one in self.there if one.role == "follower"]


class Page(Struct, frozen=True, kw_only=True):
    """Objects in order, and the unreadable records among them."""

    objects: tuple[Object, ...]
    unreadable: tuple[Unreadable, ...]


def recent(views: Sequence[GroupView], finished: int) -> list[GroupView]:
    """Return unfinished groups and the last finished ones, in the same order."""
    ended = [view.key for view in views if view.phase in TERMINAL]
    old = frozenset(ended[: max(0, len(ended) - finished)])
    return [view for view in views if view.key not in old]


def token_of_view(view: GroupView) -> str:
    """Return the token with which a list of groups continues after this one."""
    return f"{view.uid}.{view.key}"


def token_of_object(item: Object) -> str:
    """Return the token with which a list of objects continues after this one."""
    return f".{key_of(item)}"


class Change(Struct, frozen=True, kw_only=True):
    """One write. `value` is None if the object was deleted; `id` is the entry's id in the stream.

    `unreadable`: the written record is unreadable, and `value` is None. `repaired`: the key that
    the write found damaged and repaired, and the number that it held.
    """

    kind: str
    key: str
    revision: int
    value: Object | None
    id: str = ""
    unreadable: Unreadable | None = None
    repaired: tuple[str, int] | None = None
