"""The objects people write and batchq keeps: Queue, ResourceQuota, Node, PriorityClass,
AdmissionCheck, PodGroup and Pod.

Frozen values. Field names are camelCase in manifests and in the store. Inside, amounts are
integer units, instants and durations integer milliseconds; the markers on the types
(`AMOUNTS`, `DURATION`, `INSTANT`) tell `batchq.api.manifest` where people's notation goes.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct, structs

from batchq.api import times
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.reasons import Verdict

API_VERSION = "batchq/v1"
DEFAULT = "default"

#: Where a template says how long its pods run in a described world.
RUNTIME_ANNOTATION = "batchq/runtime"

#: No number of an object is larger. A record with a larger one is refused where it is decoded, so
#: that no session meets an integer that overflows the arrays that it counts with.
MOST_NUMBER = 2**63 - 1
_RANGE = Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)
Integer: TypeAlias = Annotated[int, _RANGE]
Amounts: TypeAlias = Annotated[dict[str, Integer], Meta(extra={"form": "amounts"})]
#: Amounts times seconds, which add up to more than one amount may be.
AmountsOverTime: TypeAlias = Annotated[dict[str, int], Meta(extra={"form": "amounts"})]
Duration: TypeAlias = Annotated[int, _RANGE, Meta(extra={"form": "duration"})]
_YEARS = Meta(ge=times.FIRST_INSTANT, le=times.LAST_INSTANT)
Instant: TypeAlias = Annotated[int, _YEARS, Meta(extra={"form": "instant"})]
#: A decimal factor such as 1.5, in thousandths.
Factor: TypeAlias = Annotated[int, _RANGE, Meta(extra={"form": "factor"})]


class Value(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What every part of an object is.

    Frozen, and made from its parts, no value can be part of itself: the collector of cycles need
    not look at them, and a session makes hundreds of thousands.
    """


class Metadata(Value, frozen=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str = ""
    creation_timestamp: Instant | None = None
    revision: Integer = 0


class Condition(Value, frozen=True):
    """One of QuotaReserved, Admitted, Scheduled, Evicted, Finished."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: Instant = 0


# --- Queue ----------------------------------------------------------------------------------


class Strategy(Value, frozen=True):
    type: Literal["BestEffortFIFO", "StrictFIFO", "Backfill"] = "BestEffortFIFO"
    order: Literal["fcfs", "shortest"] = "fcfs"
    reservations: Literal["1", "all"] = "1"


class QueuePreemption(Value, frozen=True):
    within_queue: Literal["LowerPriority", "Never"] = "LowerPriority"
    reclaim: Literal["Any", "LowerPriority", "Never"] = "Never"
    borrowing: Integer | Literal["Never"] = "Never"


class QueueSpec(Value, frozen=True):
    parent: str = ""
    weight: Integer = 1
    guarantee: Amounts = {}
    deserved: Amounts = {}
    capability: Amounts = {}
    strategy: Strategy = Strategy()
    max_pod_groups: Integer | None = None
    reclaimable: bool = True
    preemption: QueuePreemption = QueuePreemption()
    overcommit: Factor = 1000
    admission_checks: tuple[str, ...] = ()
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = "None"


class Queue(Value, frozen=True):
    metadata: Metadata
    spec: QueueSpec = QueueSpec()


# --- ResourceQuota, PriorityClass, AdmissionCheck -------------------------------------------


class ResourceQuotaSpec(Value, frozen=True):
    hard: Amounts = {}


class ResourceQuota(Value, frozen=True):
    metadata: Metadata
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class PriorityClassSpec(Value, frozen=True):
    value: Integer = 0
    preemption_policy: Literal["PreemptLowerPriority", "Never"] = "PreemptLowerPriority"
    default: bool = False


class PriorityClass(Value, frozen=True):
    metadata: Metadata
    spec: PriorityClassSpec = PriorityClassSpec()


class AdmissionCheckSpec(Value, frozen=True):
    controller_name: str = ""
    retry_delay_minutes: Integer = 15
    preemption_policy: Literal["Anytime", "AfterCheckPassedOrOnDemand"] = "Anytime"
    unknown_timeout: Duration = 30 * times.MINUTE
    on_timeout: Literal["Retry", "Reject"] = "Retry"
    parameters: dict[str, str] = {}


class AdmissionCheckStatus(Value, frozen=True):
    """Whether somebody carries the check out: its controller holds a lease, and renews it."""

    active: bool = True
    #: The controller that renewed it last, and until when that holds. None: for ever, which only
    #: a described world has.
    holder: str = ""
    expires_at: Instant | None = None


class AdmissionCheck(Value, frozen=True):
    metadata: Metadata
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


# --- Node -----------------------------------------------------------------------------------


class Taint(Value, frozen=True):
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"] = "NoSchedule"


class NodeSpec(Value, frozen=True):
    resources: Amounts = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(Value, frozen=True):
    ready: bool = True
    #: When the node was last heard of.
    heartbeat: Instant | None = None
    #: Why it is out of service though its agent runs, for people; empty if that has ended.
    reason: str = ""


class Node(Value, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- PodGroup -------------------------------------------------------------------------------


class SchedulingGate(Value, frozen=True):
    name: str


class Toleration(Value, frozen=True):
    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""


class PodTemplate(Value, frozen=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    command: tuple[str, ...] = ()
    function: str = ""
    args: tuple[msgspec.Raw, ...] = ()
    kwargs: dict[str, msgspec.Raw] = {}
    env: dict[str, str] = {}
    working_dir: str = ""
    requests: Amounts = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    priority: Integer | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    termination_grace: Duration = 30 * times.SECOND


class Task(Value, frozen=True):
    name: str
    replicas: Integer = 1
    min_available: Integer = 0
    template: PodTemplate = PodTemplate()


class Retry(Value, frozen=True):
    limit: Integer = 0
    backoff: Duration = 10 * times.SECOND


class Dependency(Value, frozen=True):
    name: str
    condition: Literal["ok", "any", "failed"] = "ok"
    #: The group that the name stood for at submission; filled in by batchq.
    uid: str = ""


class PodGroupSpec(Value, frozen=True):
    queue: str = DEFAULT
    min_member: Integer | None = None
    min_resources: Amounts = {}
    priority_class_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    suspend: bool = False
    walltime: Duration | None = None
    retry: Retry = Retry()
    ttl_after_finished: Duration = 7 * times.DAY
    depends_on: tuple[Dependency, ...] = ()
    controller: Literal["batchq", "external"] = "batchq"
    tasks: tuple[Task, ...] = ()


class OpenedGate(Value, frozen=True):
    """A scheduling gate that was opened: who did it and when, for longer than events are kept."""

    name: str
    #: Whose pods it held back; "" for the group's own.
    task: str = ""
    by: str = ""
    at: Instant = 0


class CheckState(Value, frozen=True):
    """What a group was told by one of the admission checks of its queue."""

    name: str
    status: Literal["True", "False", "Unknown"] = "Unknown"
    reason: Literal["", "Retry", "Reject", "PreemptionRequired"] = ""
    message: str = ""
    #: Since when it has that status.
    since: Instant | None = None


class GroupClaim(Value, frozen=True):
    """Who runs an external group (`spec.controller: external`), since when and how far it is.

    Phase None: nobody has claimed it in this admission. Claimed and Running hold the group's
    charge; the others are a record of how the last claim ended. The pair (token, admission) is
    the fence of its holder.
    """

    phase: Literal["None", "Claimed", "Running", "Succeeded", "Failed", "Released", "Lapsed"] = (
        "None"
    )
    #: The name that the consumer gave itself.
    holder: str = ""
    #: SHA-256 of the token, in hex. The token itself is with the holder alone.
    token: str = ""
    claimed_at: Instant | None = None
    #: From then on the token is dead. None: never, which only a described world has.
    expires_at: Instant | None = None
    ttl: Duration = 0
    #: How much longer the group stays charged, for work that has to be stopped to be gone.
    grace: Duration = 0
    #: What the claim holds, also once the group has lost its reservation.
    holding: Amounts = {}
    #: What the holder said last.
    message: str = ""
    #: Why the holder is to stop: a leaving or finish reason. Nothing later extends the claim.
    stop_reason: str = ""
    stopped_at: Instant | None = None

    @property
    def is_open(self) -> bool:
        """Whether somebody may still work on the group, and it stays charged for that."""
        return self.phase in ("Claimed", "Running")

    @property
    def over_at(self) -> int | None:
        """When an open claim is over if nobody says anything more; None if it never is.

        A claim in a described world ends like a described pod: a grace after it was stopped.
        """
        if self.expires_at is not None:
            return self.expires_at + self.grace
        return None if self.stopped_at is None else self.stopped_at + self.grace


class Pledge(Value, frozen=True):
    """What victims owe a claimant: room that is kept for it until it has been placed.

    It is a reservation too. `victims` are full names of pods (of external groups the groups'
    own); the fields from `holds` on are filled in by batchq.
    """

    claimant: str = ""
    action: Literal["", "preempt", "reclaim"] = ""
    victims: tuple[str, ...] = ()
    #: Uid of each victim pod -> the attempt that was pledged; of an external group, its own uid
    #: -> its admission.
    holds: dict[str, Integer] = {}
    #: The groups that the victims belong to, by uid; of these, those that leave whole.
    groups: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    #: Node -> what the claimant is to take there.
    room: dict[str, Amounts] = {}
    #: Number of a pod in the claimant -> the node on which it is to be.
    plan: dict[str, str] = {}
    #: Of an elastic claim: what the pods beyond minMember that it is for ask for.
    extra: Amounts = {}
    #: Scope -> what the victims were charged there when the ledger was last written: the claimant
    #: counts for so much less in it.
    owed: dict[str, Amounts] = {}
    #: Since when victims are awaited; None once all of them have ended.
    made_at: Instant | None = None
    expires: Instant | None = None

    @property
    def stands(self) -> bool:
        """Whether there is one at all."""
        return bool(self.victims)

    @property
    def awaited_victims(self) -> bool:
        """Whether victims were still there when a session last looked."""
        return self.stands and self.made_at is not None


class Evictions(Value, frozen=True):
    """What preempt and reclaim have cost a group so far.

    `lost`: resource-seconds of work (units of the resource times seconds) that were thrown away.
    `recent`: instant -> pods, for as long as the eviction budget looks back. `longest_run`: of the
    runs that reclaim took from the group, in milliseconds; `longest_pod_runs`: of an elastic
    group's pods, by ordinal.
    """

    groups: Integer = 0
    pods: Integer = 0
    lost: AmountsOverTime = {}
    recent: dict[str, Integer] = {}
    #: The claimant that took something last, why, and when.
    last_by: str = ""
    last_reason: str = ""
    last_at: Instant | None = None
    longest_run: Duration = 0
    longest_pod_runs: dict[str, Integer] = {}


class PodGroupStatus(Value, frozen=True):
    phase: PodGroupPhase = PodGroupPhase.PENDING
    #: How often the group has become InQueue; never reset.
    admission: Integer = 0
    reserved_at: Instant | None = None
    #: What the group holds beyond its pods' own requests can never exceed this.
    reservation: Amounts = {}
    #: The tasks of which the gang that was reserved for takes pods only where there are not enough
    #: others: no node would have taken these, were it empty.
    left_out: tuple[str, ...] = ()
    #: What the ledger counts for the group; written together with the ledger itself.
    charge: Amounts = {}
    #: The queues between the root and its own in which that is counted.
    charge_path: tuple[str, ...] = ()
    #: Task -> the nodes that are kept for pods of its gang, in the order of these; once they are
    #: bound, nothing is kept any more.
    places: dict[str, tuple[str, ...]] = {}
    #: Node -> what is set aside there for the group, while it is the head of its queue.
    set_aside_on: dict[str, Amounts] = {}
    #: Since when it has been the first of its queue and waited for nothing but nodes.
    nodes_lacked_at: Instant | None = None
    in_queue_at: Instant | None = None
    started_at: Instant | None = None
    #: Since when a group with a walltime runs without a pod on any node, and its walltime rests.
    rests_at: Instant | None = None
    #: Since when fewer than minMember pods run (phase Unknown).
    unknown_at: Instant | None = None
    finished_at: Instant | None = None
    queue_time: Instant | None = None
    #: Since when all that the group asks for is set aside, as the head of a queue that has used
    #: less than its due, though the queue deserves less.
    set_aside_at: Instant | None = None
    backoff_until: Instant | None = None
    backoff_count: Integer = 0
    checks: tuple[CheckState, ...] = ()
    pledge: Pledge = Pledge()
    conditions: tuple[Condition, ...] = ()
    #: Why the group waits: all blockers, ranked.
    reasons: tuple[Verdict, ...] = ()
    #: Pod number -> failed attempts so far, of an elastic group that had to leave: its retries
    #: are spent per pod, and not per admission.
    spent: dict[str, Integer] = {}
    #: Of an external group: who runs it.
    claim: GroupClaim = GroupClaim()
    #: Of an external group: name of a pod, as its consumer calls it -> what was reported of it.
    reported: dict[str, Literal["Running", "Succeeded", "Failed"]] = {}
    evictions: Evictions = Evictions()
    #: Who submitted the group, and so set its gates; and which of them are open.
    submitted_by: str = ""
    opened_gates: tuple[OpenedGate, ...] = ()


class PodGroup(Value, frozen=True):
    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


# --- Pod ------------------------------------------------------------------------------------


class PodSpec(Value, frozen=True):
    """A pod's place in its group; what it runs stands in the group's template."""

    pod_group: str
    task: str
    index: Integer = 0
    requests: Amounts = {}
    termination_grace: Duration = 30 * times.SECOND
    priority: Integer | None = None
    #: Of a pod in a described world: those that batchq makes have none.
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class PodStatus(Value, frozen=True):
    phase: PodPhase = PodPhase.PENDING
    #: The uid of the group, and the admission that made this pod: its fence, with `attempt`.
    group_uid: str = ""
    admission: Integer = 0
    attempt: Integer = 0
    node: str = ""
    bound_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    terminating: bool = False
    terminating_at: Instant | None = None
    #: Why it is being stopped or was: a leaving or finish reason.
    reason: str = ""
    #: Why the attempt before this one was stopped.
    last_reason: str = ""
    #: Where the last attempt was, of a pod that waits to be bound again.
    last_node: str = ""
    exit_code: Integer | None = None
    signal: Integer | None = None
    message: str = ""
    #: Attempts that ended in failure; evictions and node losses are not counted.
    failures: Integer = 0
    retry_at: Instant | None = None
    #: The work-horse that has claimed the attempt.
    holder: str = ""
    #: Attempts of this admission whose node fell silent, or stopped them for want of the server.
    losses: Integer = 0


class Pod(Value, frozen=True):
    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()


Object: TypeAlias = Queue | ResourceQuota | Node | PriorityClass | AdmissionCheck | PodGroup | Pod

KINDS: dict[str, type[Object]] = {
    kind.__name__: kind
    for kind in (Queue, ResourceQuota, Node, PriorityClass, AdmissionCheck, PodGroup, Pod)
}
NAMESPACED = frozenset({"ResourceQuota", "PodGroup", "Pod"})


def kind_of(item: Object) -> str:
    """`PodGroup`, `Queue` …"""
    return type(item).__name__


def key_of(item: Object) -> str:
    """The key of an object in its kind: a pod's uid, `namespace/name`, or the bare name."""
    if isinstance(item, Pod):
        return item.metadata.uid
    if kind_of(item) in NAMESPACED:
        return f"{item.metadata.namespace}/{item.metadata.name}"
    return item.metadata.name


def full_name(item: Object) -> str:
    """For people: `namespace/name`, or the bare name where there is no namespace."""
    meta = item.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class Gate(NamedTuple):
    """A gate that is not open; `task` is that of the pods it holds back, "" for the group's own."""

    task: str
    name: str


def gates_of(spec: PodGroupSpec) -> list[Gate]:
    """Every gate, the group's own first, then task by task as they are written."""
    own = [Gate("", gate.name) for gate in spec.scheduling_gates]
    return own + [
        Gate(task.name, gate.name) for task in spec.tasks for gate in task.template.scheduling_gates
    ]


def without_gates(spec: PodGroupSpec, opened: Collection[Gate]) -> PodGroupSpec:
    """The spec with these gates taken away."""

    def left(task: str, gates: tuple[SchedulingGate, ...]) -> tuple[SchedulingGate, ...]:
        return tuple(gate for gate in gates if Gate(task, gate.name) not in opened)

    return structs.replace(
        spec,
        scheduling_gates=left("", spec.scheduling_gates),
        tasks=tuple(
            with_task_gates(task, left(task.name, task.template.scheduling_gates))
            for task in spec.tasks
        ),
    )


def with_task_gates(task: Task, gates: tuple[SchedulingGate, ...]) -> Task:
    """The task, its pods held back by these gates."""
    if gates == task.template.scheduling_gates:
        return task
    return structs.replace(task, template=structs.replace(task.template, scheduling_gates=gates))


def is_gated(group: PodGroup) -> bool:
    """Whether its spec says that it waits for a gate: one of its own, or gates that leave it fewer
    pods than it has to start with.
    """
    spec = group.spec
    if spec.scheduling_gates:
        return True
    ungated = [0 if task.template.scheduling_gates else task.replicas for task in spec.tasks]
    replicas = sum(task.replicas for task in spec.tasks)
    if sum(ungated) == replicas:
        return False
    least = replicas if spec.min_member is None else spec.min_member
    if sum(ungated) < least:
        return True
    return any(count < task.min_available for count, task in zip(ungated, spec.tasks, strict=True))


def pod_gates_problem(pod: Pod) -> str:
    """Why a pod cannot have the gates that it has, or "": scheduled pods have none (KEP-3521)."""
    if not pod.spec.scheduling_gates:
        return ""
    if not pod.status.node and pod.status.phase == PodPhase.PENDING:
        return ""
    return "a pod that has a node, or is past Pending, cannot have scheduling gates"


class Unreadable(Struct, frozen=True, kw_only=True):
    """`kind` is that of an object, or another sort of record of batchq's; `key` its name for
    people, plain characters of ASCII; `why` one line.

    `remedy`: of an object "", as it can be deleted by its name.
    """

    kind: str
    key: str
    why: str
    remedy: str = ""

    @property
    def is_object(self) -> bool:
        """Whether it stands where an object should."""
        return self.kind in KINDS and bool(self.key)

    @property
    def deletion(self) -> str:
        """Of one in the place of an object: the command that takes it out."""
        return f"batchq delete {self.kind.lower()} {shlex.quote(self.key)}"
