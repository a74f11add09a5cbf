"""The objects that people write and batchq stores: Queue, ResourceQuota, Node, PriorityClass,
AdmissionCheck, PodGroup and Pod.

Frozen values. Field names are camelCase in manifests and in the store. Internally, amounts are
integer units, instants and durations integer milliseconds; the markers on the types (`AMOUNTS`,
`DURATION`, `INSTANT`) tell `batchq.api.manifest` where to use people's notation.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct, structs

from batchq.api import notation
from batchq.api.lifecycle import ADMITTED, PodGroupPhase, PodPhase
from batchq.api.reasons import Verdict

API_VERSION = "batchq/v1"
DEFAULT = "default"

#: How long a template's pods run in a simulated cluster.
RUNTIME_ANNOTATION = "batchq/runtime"
#: The group whose pod has submitted a group, and the user who has submitted one in the name of its
#: owner. The HTTP API sets both.
PARENT_ANNOTATION, BY_ANNOTATION = "batchq/parent", "batchq/submitted-by"

#: No number of an object is larger. Decoding refuses a record with a larger one, so that no session
#: meets an integer that overflows its arrays.
MOST_NUMBER = 2**63 - 1
_RANGE = Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)
Integer: TypeAlias = Annotated[int, _RANGE]
Amounts: TypeAlias = Annotated[dict[str, Integer], Meta(extra={"form": "amounts"})]
#: Amounts times seconds, whose sums may exceed the bound of one amount.
AmountsOverTime: TypeAlias = Annotated[dict[str, int], Meta(extra={"form": "amounts"})]
Duration: TypeAlias = Annotated[int, _RANGE, Meta(extra={"form": "duration"})]
_YEARS = Meta(ge=notation.FIRST_INSTANT, le=notation.LAST_INSTANT)
Instant: TypeAlias = Annotated[int, _YEARS, Meta(extra={"form": "instant"})]
#: A decimal factor such as 1.5, in thousandths.
Factor: TypeAlias = Annotated[int, _RANGE, Meta(extra={"form": "factor"})]


class Value(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """The base of every part of an object.

    A frozen value made from its parts cannot contain itself, so the cyclic garbage collector skips
    it; a session makes hundreds of thousands.
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
    #: The only namespaces whose groups may be in it and in the queues below it; empty: all.
    namespaces: tuple[str, ...] = ()
    stop_policy: Literal["None", "Hold", "HoldAndDrain"] = "None"


class Queue(Value, frozen=True):
    metadata: Metadata
    spec: QueueSpec = QueueSpec()


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
    unknown_timeout: Duration = 30 * notation.MINUTE
    on_timeout: Literal["Retry", "Reject"] = "Retry"
    parameters: dict[str, str] = {}


class AdmissionCheckStatus(Value, frozen=True):
    """Whether a controller carries the check out: it holds a lease, and renews it."""

    active: bool = True
    #: The controller that renewed it last, and the end of its lease. None: never, which only a
    #: simulated cluster has.
    holder: str = ""
    expires_at: Instant | None = None


class AdmissionCheck(Value, frozen=True):
    metadata: Metadata
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


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
    #: Why it is out of service while its agent runs, for people; empty once that has ended.
    reason: str = ""


class Node(Value, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class SchedulingGate(Value, frozen=True):
    name: str


class Toleration(Value, frozen=True):
    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""


RuntimeName: TypeAlias = Literal["bwrap", "apptainer", "enroot", "podman"]


class Container(Value, frozen=True):
    """What a pod's command runs in: an image, or, without one, the files of its node.

    `mounts` are `SRC[:DST][:ro]`. `isolate` hides the node's devices but those of the pod.
    """

    image: str = ""
    runtime: Literal["auto", "bwrap", "apptainer", "enroot", "podman"] = "auto"
    mounts: tuple[str, ...] = ()
    isolate: tuple[Literal["devices"], ...] = ()


class PodTemplate(Value, frozen=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    command: tuple[str, ...] = ()
    function: str = ""
    args: tuple[msgspec.Raw, ...] = ()
    kwargs: dict[str, msgspec.Raw] = {}
    env: dict[str, str] = {}
    working_dir: str = ""
    #: A folder with a virtual environment or a conda environment, which is active in the pod.
    env_activate: str = ""
    container: Container | None = None
    #: Its input stays open for `batchq attach`; otherwise it is empty.
    stdin: bool = False
    requests: Amounts = {}
    node_selector: dict[str, str] = {}
    #: Names of the only nodes that may take its pods, if any, and of nodes that may not.
    nodes: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    priority: Integer | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    termination_grace: Duration = 30 * notation.SECOND


class Task(Value, frozen=True):
    name: str
    replicas: Integer = 1
    min_available: Integer = 0
    template: PodTemplate = PodTemplate()


class Retry(Value, frozen=True):
    limit: Integer = 0
    backoff: Duration = 10 * notation.SECOND


class Dependency(Value, frozen=True):
    name: str
    condition: Literal["ok", "any", "failed"] = "ok"
    #: The uid of the group with that name at submission; filled in by batchq.
    uid: str = ""


class StopWarning(Value, frozen=True):
    """A signal to each pod of a gang `before` its walltime is over, and at once when it is evicted,
    ahead of SIGTERM.
    """

    signal: Literal["HUP", "INT", "USR1", "USR2"] = "USR2"
    before: Duration = 90 * notation.SECOND


LaunchStyle: TypeAlias = Literal["node", "rank", "dask", "mpi"]


class Launch(Value, frozen=True):
    """How a gang starts as one distributed job: no pod starts before all of them have claimed their
    places, and each is told the addresses and ports of all.

    `style`: in `node`, each pod starts its processes itself, as torchrun does; in `rank`, each pod
    is one process; in `dask`, pod 0 is the scheduler; in `mpi`, pod 0 starts processes in all pods,
    and these end with it. `ports` are reserved for each pod.
    `processes` is how many processes a pod starts; `gpu`: one for each of its GPUs.
    `restart`: a failed or lost pod restarts the whole `group`; or the `pod` alone, which the others
    find again in their files.
    """

    style: LaunchStyle = "node"
    ports: Integer = 1
    processes: Integer | Literal["gpu"] = "gpu"
    dialect: Literal["none", "slurm"] = "none"
    restart: Literal["group", "pod"] = "group"
    warn: StopWarning | None = None


class PodGroupSpec(Value, frozen=True):
    queue: str = DEFAULT
    min_member: Integer | None = None
    min_resources: Amounts = {}
    priority_class_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    suspend: bool = False
    walltime: Duration | None = None
    retry: Retry = Retry()
    ttl_after_finished: Duration = 7 * notation.DAY
    depends_on: tuple[Dependency, ...] = ()
    controller: Literal["batchq", "external"] = "batchq"
    #: `self`: its pods get a token of the HTTP API, for the namespace and in the owner's name.
    token: Literal["", "self"] = ""
    #: `namespace`: everyone with a role in its namespace may read its output over the HTTP API.
    share: Literal["", "namespace"] = ""
    launch: Launch | None = None
    #: Label of nodes -> whether all pods are placed where it has one and the same value. The gang
    #: alone, and only where nodes have room, if that is preferred.
    topology: dict[str, Literal["required", "preferred"]] = {}
    #: Whether no pod of another group may be on a node that has a pod of this one.
    exclusive: bool = False
    #: How many pods of the group one node may have; None: as many as it takes.
    max_pods_per_node: Integer | None = None
    #: Whether its pods are placed on as few nodes as possible.
    pack: bool = False
    tasks: tuple[Task, ...] = ()


class OpenedGate(Value, frozen=True):
    """An opened scheduling gate: who opened it and when. It outlives the events."""

    name: str
    #: The task whose pods it held back; "" for the group's own gate.
    task: str = ""
    by: str = ""
    at: Instant = 0


class CheckState(Value, frozen=True):
    """The answer of one of the queue's admission checks about a group."""

    name: str
    status: Literal["True", "False", "Unknown"] = "Unknown"
    reason: Literal["", "Retry", "Reject", "PreemptionRequired"] = ""
    message: str = ""
    #: When its status last changed.
    since: Instant | None = None


class GroupClaim(Value, frozen=True):
    """The consumer lease on an external group (`spec.controller: external`), and its progress.

    Phase None: no consumer has claimed the group in this admission. Claimed and Running hold the
    group's charge; the other phases record how the last claim ended. The pair (token, admission) is
    the holder's fence.
    """

    phase: Literal["None", "Claimed", "Running", "Succeeded", "Failed", "Released", "Lapsed"] = (
        "None"
    )
    #: The consumer's name for itself.
    holder: str = ""
    #: SHA-256 of the token, in hex. Only the holder has the token itself.
    token: str = ""
    claimed_at: Instant | None = None
    #: The end of the token's validity. None: never, which only a simulated cluster has.
    expires_at: Instant | None = None
    ttl: Duration = 0
    #: How much longer the group stays charged, so that the work can be stopped.
    grace: Duration = 0
    #: The amounts that the claim holds, even after the group has lost its reservation.
    holding: Amounts = {}
    #: The holder's last message.
    message: str = ""
    #: Why the holder must stop: a leaving or finish reason. After it, the claim cannot be extended.
    stop_reason: str = ""
    stopped_at: Instant | None = None

    @property
    def is_open(self) -> bool:
        """Whether a consumer may still work on the group, which therefore stays charged."""
        return self.phase in ("Claimed", "Running")

    @property
    def over_at(self) -> int | None:
        """The end of an open claim that is not renewed; None if it never ends.

        In a simulated cluster a claim ends like a pod: a grace period after it was stopped.
        """
        if self.expires_at is not None:
            return self.expires_at + self.grace
        return None if self.stopped_at is None else self.stopped_at + self.grace


class Pledge(Value, frozen=True):
    """The resources of victims, kept for a preemptor (`claimant`) until it has been placed.

    A pledge is also a reservation. `victims` are full names of pods (for external groups the
    groups' names); batchq fills in the fields from `holds` on.
    """

    claimant: str = ""
    action: Literal["", "preempt", "reclaim"] = ""
    victims: tuple[str, ...] = ()
    #: Uid of each victim pod -> the pledged attempt; for an external group, its uid -> its
    #: admission.
    holds: dict[str, Integer] = {}
    #: The victims' groups, by uid; and those of them that are evicted whole.
    groups: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    #: Node -> the amounts that the preemptor is to take there.
    room: dict[str, Amounts] = {}
    #: Number of a pod in the preemptor -> its node.
    plan: dict[str, str] = {}
    #: For an elastic preemptor: the requests of the pods beyond minMember that the pledge is for.
    extra: Amounts = {}
    #: Scope -> the victims' charge there at the last write of the ledger; the preemptor is charged
    #: that much less.
    owed: dict[str, Amounts] = {}
    #: When the wait for victims began; None once all of them have ended.
    made_at: Instant | None = None
    expires: Instant | None = None

    @property
    def stands(self) -> bool:
        """Whether there is a pledge."""
        return bool(self.victims)

    @property
    def awaited_victims(self) -> bool:
        """Whether victims were still present in the last session."""
        return self.stands and self.made_at is not None


class Evictions(Value, frozen=True):
    """What preempt and reclaim have cost a group so far.

    `lost`: work thrown away, in units of each resource times seconds. `recent`: instant -> pods,
    within the period of the eviction budget. `longest_run`: the longest run that reclaim ended, in
    milliseconds; `longest_pod_runs`: the same for an elastic group's pods, by ordinal.
    """

    groups: Integer = 0
    pods: Integer = 0
    lost: AmountsOverTime = {}
    recent: dict[str, Integer] = {}
    #: The last preemptor, its reason, and the time.
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
    #: An upper bound of what the group holds beyond its pods' own requests.
    reservation: Amounts = {}
    #: The tasks whose pods join the reserved gang only if there are too few others: no node, even
    #: an empty one, fits these.
    left_out: tuple[str, ...] = ()
    #: The values of the labels that `spec.topology` requires, where its pods are placed.
    domain: dict[str, str] = {}
    #: The group's charge in the ledger; both are written together.
    charge: Amounts = {}
    #: The queues between the root and its own that are charged.
    charge_path: tuple[str, ...] = ()
    #: Task -> the nodes kept for pods of its gang, in the order of the pods; empty once these are
    #: bound.
    places: dict[str, tuple[str, ...]] = {}
    #: Node -> the head reservation there, while the group is the head of its queue.
    set_aside_on: dict[str, Amounts] = {}
    #: When the group became the head of its queue with nothing but nodes missing.
    nodes_lacked_at: Instant | None = None
    in_queue_at: Instant | None = None
    started_at: Instant | None = None
    #: When a group with a walltime was left without a pod on any node; its walltime is paused
    #: since.
    rests_at: Instant | None = None
    #: When fewer than minMember pods were left running (phase Unknown).
    unknown_at: Instant | None = None
    finished_at: Instant | None = None
    queue_time: Instant | None = None
    #: When a head reservation for its whole request began, as the head of a queue that has used
    #: less than its due, though the queue's deserved amount is smaller.
    set_aside_at: Instant | None = None
    backoff_until: Instant | None = None
    backoff_count: Integer = 0
    checks: tuple[CheckState, ...] = ()
    pledge: Pledge = Pledge()
    conditions: tuple[Condition, ...] = ()
    #: Why the group waits: all blockers, ranked.
    reasons: tuple[Verdict, ...] = ()
    #: Pod number -> failed attempts so far, for an elastic group that was requeued: its retries are
    #: counted per pod, not per admission.
    spent: dict[str, Integer] = {}
    #: For an external group: its consumer lease.
    claim: GroupClaim = GroupClaim()
    #: For an external group: the consumer's name for a pod -> the reported phase.
    reported: dict[str, Literal["Running", "Succeeded", "Failed"]] = {}
    evictions: Evictions = Evictions()
    #: How often a gang with `spec.launch` was restarted whole, and how often of these because a pod
    #: had failed.
    restarts: Integer = 0
    failed_rounds: Integer = 0
    #: Who submitted the group, and so set its gates; and the opened ones among these.
    submitted_by: str = ""
    #: The HTTP API's proof that this user has submitted what the group runs; "" without it.
    signature: str = ""
    opened_gates: tuple[OpenedGate, ...] = ()


class PodGroup(Value, frozen=True):
    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class PodSpec(Value, frozen=True):
    """A pod's place in its group; the group's template states what it runs."""

    pod_group: str
    task: str
    index: Integer = 0
    requests: Amounts = {}
    termination_grace: Duration = 30 * notation.SECOND
    priority: Integer | None = None
    #: How many ports its agent reserves for it: 0 unless its group has `spec.launch`.
    ports: Integer = 0
    #: The image that its agent has the container's runtime pull before the pod claims its place.
    image: str = ""
    #: For a pod in a simulated cluster: pods made by batchq have none.
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
    #: Why the previous attempt was stopped.
    last_reason: str = ""
    #: The node of the last attempt, for a pod that waits to be bound again.
    last_node: str = ""
    exit_code: Integer | None = None
    signal: Integer | None = None
    message: str = ""
    #: Attempts that ended in failure; evictions and node losses are not counted.
    failures: Integer = 0
    retry_at: Instant | None = None
    #: The agent that claimed the attempt; after a restart of the server, its work-horse.
    holder: str = ""
    #: In a gang with `spec.launch`, where the other pods reach it; stated by the agent that claimed
    #: the attempt.
    address: str = ""
    ports: tuple[Integer, ...] = ()
    #: The ids of the devices that its agent has given it, such as the UUIDs of GPUs.
    devices: tuple[str, ...] = ()
    #: Attempts of this admission whose node fell silent, or stopped them after losing the server.
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
    """Return the kind's name: `PodGroup`, `Queue` …"""
    return type(item).__name__


def key_of(item: Object) -> str:
    """Return the object's key within its kind: a pod's uid, `namespace/name`, or the bare name."""
    if isinstance(item, Pod):
        return item.metadata.uid
    if type(item).__name__ in NAMESPACED:
        return f"{item.metadata.namespace}/{item.metadata.name}"
    return item.metadata.name


def group_key_of(pod: Pod) -> str:
    """Return the key of a pod's group."""
    return f"{pod.metadata.namespace}/{pod.spec.pod_group}"


def full_name(item: Object) -> str:
    """Return the object's name for people: `namespace/name`, or the bare name without a
    namespace.
    """
    meta = item.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class Gate(NamedTuple):
    """A closed gate; `task` is that of the pods that it holds back, "" for the group's own gate."""

    task: str
    name: str


def gates_of(spec: PodGroupSpec) -> list[Gate]:
    """Return every gate, the group's own first, then task by task as written."""
    own = [Gate("", gate.name) for gate in spec.scheduling_gates]
    return own + [
        Gate(task.name, gate.name) for task in spec.tasks for gate in task.template.scheduling_gates
    ]


def without_gates(spec: PodGroupSpec, opened: Collection[Gate]) -> PodGroupSpec:
    """Return the spec without these gates."""

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
    """Return the task with these gates on its pods."""
    if gates == task.template.scheduling_gates:
        return task
    return structs.replace(task, template=structs.replace(task.template, scheduling_gates=gates))


def is_gated(group: PodGroup) -> bool:
    """Return whether the spec has a gate that holds the group back: one of its own, or gates that
    leave it fewer pods than it needs to start.
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
    """Return why a pod cannot have its gates, or "": scheduled pods have none (KEP-3521)."""
    if not pod.spec.scheduling_gates:
        return ""
    if not pod.status.node and pod.status.phase == PodPhase.PENDING:
        return ""
    return "a pod with a node, or in a phase after Pending, cannot have scheduling gates"


def has_ended(pod: Pod, retry_limit: int) -> bool:
    """Return whether a pod has ended for good: succeeded, or failed with no retry left."""
    status = pod.status
    if status.phase == PodPhase.SUCCEEDED:
        return True
    return status.phase == PodPhase.FAILED and (
        status.failures > retry_limit or status.reason == "WalltimeExceeded"
    )


def uid_of_pod(group_uid: str, admission: int, ordinal: int | str) -> str:
    """Return `<group uid>-<admission>-<ordinal>`, which is unique for ever and valid as an
    RQ id.
    """
    return f"{group_uid}-{admission}-{ordinal}"


class Unreadable(Struct, frozen=True, kw_only=True):
    """A stored record that cannot be read.

    `kind` is that of an object, or of another record of batchq's; `key` its name for people, in
    plain ASCII; `why` one line. `remedy` is "" for an object, which can be deleted by its name.
    """

    kind: str
    key: str
    why: str
    remedy: str = ""

    @property
    def is_object(self) -> bool:
        """Whether it is stored in an object's place."""
        return self.kind in KINDS and bool(self.key)

    @property
    def deletion(self) -> str:
        """The command that deletes it, for one in an object's place."""
        # A name may look like an option.
        options_end = "-- " if self.key.startswith("-") else ""
        return f"batchq delete {self.kind.lower()} {options_end}{shlex.quote(self.key)}"


#: The grace of work without a terminationGrace.
USUAL_GRACE_MS = 30 * notation.SECOND


def grace_of(spec: PodGroupSpec) -> int:
    """Return how long the work of a group may take to stop: the largest grace of its tasks."""
    return max((task.template.termination_grace for task in spec.tasks), default=USUAL_GRACE_MS)


def with_condition(
    conditions: tuple[Condition, ...],
    kind: str,
    state: Literal["True", "False", "Unknown"],
    reason: str,
    message: str,
    now_ms: int,
) -> tuple[Condition, ...]:
    """Return the conditions with one set; the same object if nothing changes."""
    for place, old in enumerate(conditions):
        if old.type == kind:
            if (old.status, old.reason, old.message) == (state, reason, message):
                return conditions
            changed_at = now_ms if old.status != state else old.last_transition_time
            new = structs.replace(
                old, status=state, reason=reason, message=message, last_transition_time=changed_at
            )
            return (*conditions[:place], new, *conditions[place + 1 :])
    new = Condition(
        type=kind, status=state, reason=reason, message=message, last_transition_time=now_ms
    )
    if not conditions or kind > conditions[-1].type:
        return (*conditions, new)
    return tuple(sorted((*conditions, new), key=lambda condition: condition.type))


def stopped(claim: GroupClaim, reason: str, now_ms: int) -> GroupClaim:
    """Return the claim with its holder told to stop; the first reason stays, and nothing extends
    it.
    """
    if not claim.is_open or claim.stop_reason:
        return claim
    return structs.replace(claim, stop_reason=str(reason), stopped_at=now_ms)


def ended(
    claim: GroupClaim,
    phase: Literal["Succeeded", "Failed", "Released", "Lapsed"],
    message: str = "",
) -> GroupClaim:
    """Return the claim as a record of its end: it holds nothing any more."""
    return structs.replace(claim, phase=phase, holding={}, message=message or claim.message)


def final_reports(
    status: PodGroupStatus,
) -> dict[str, Literal["Running", "Succeeded", "Failed"]]:
    """Return the reports about pods that have ended; the other pods ended with their holder."""
    return {name: phase for name, phase in status.reported.items() if phase != "Running"}


def stop_reason_of(group: PodGroup) -> str:
    """Return why the holder of the group's claim must stop; "" if it may go on."""
    status, claim = group.status, group.status.claim
    if claim.stop_reason:
        return claim.stop_reason
    if status.phase in ADMITTED:
        # The next session evicts the group.
        return "Suspended" if group.spec.suspend else ""
    about = "Evicted" if status.phase == "Pending" else "Finished"
    reason = next((one.reason for one in status.conditions if one.type == about), "")
    return reason or str(status.phase)


def is_claimable(group: PodGroup) -> bool:
    """Return whether a consumer may claim the group now.

    An admitted group may wait for other victims by now: a group ahead of it has taken over its
    former ones.
    """
    return (
        group.spec.controller == "external"
        and group.status.phase in ADMITTED
        and not group.status.pledge.awaited_victims
        and not group.spec.suspend
        and not group.status.claim.is_open
        and group.status.claim.phase not in ("Succeeded", "Failed")
    )
