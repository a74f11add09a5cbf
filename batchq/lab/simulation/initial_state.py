"""Build a world's initial records: stated statuses are kept, and missing fields are derived.

Pure: converts the described groups and pods to the records that a store would hold if batchq had
created them. The scheduler's own code computes the charges, so that the ledger matches what any
session would count from the first instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import shown
from batchq.api.objects import (
    DEFAULT,
    CheckState,
    Dependency,
    GroupClaim,
    Metadata,
    Node,
    Object,
    Pledge,
    Pod,
    PodGroup,
    PodGroupStatus,
    Queue,
    Task,
    full_name,
    grace_of,
    group_key_of,
    key_of,
    kind_of,
)
from batchq.api.resources import of_pod
from batchq.api.transaction import Charge, Transaction, Write, node_scope
from batchq.client.changes import check_combination, create, found_defaults
from batchq.client.changes.object_writes import object_charge
from batchq.core.quota import QueueTree
from batchq.core.quota.ledger import charge_with_count, holders_in_store
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.errors import InvalidInput
from batchq.lab.simulation.world import DescribedPod, World, write
from batchq.ports import IdSource
from batchq.scheduler.pod_controller import GroupProgress, remaining_reservation
from batchq.store.memory import MemoryStore

#: Phases of pods that have ended.
_ENDED = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.EVICTED})


class InitialRecords:
    """The records of a world's groups and pods. Built once, then read only."""

    def __init__(self, world: World, *, gates_hold: bool = True) -> None:
        self._start_at = world.start_at
        self._places = world.places
        self._gates_hold = gates_hold
        queues = [obj for obj in world.objects if isinstance(obj, Queue)]
        # A described `default` queue replaces the implicit one.
        self._tree = QueueTree([Queue(metadata=Metadata(name=DEFAULT)), *queues])
        groups = _bound_dependencies(world.groups)
        groups = [self._admitted(group) for group in groups]
        by_key = {full_name(group): group for group in groups}
        pods: dict[str, list[Pod]] = {group.metadata.uid: [] for group in groups}
        seen: dict[str, DescribedPod] = {}
        for described in world.pods:
            pod = self._pod(described, by_key)
            if pod.metadata.uid in seen:
                raise _problem(
                    described,
                    f"is pod {pod.spec.index} of task {pod.spec.task}, and so is"
                    f" {full_name(seen[pod.metadata.uid].pod)}",
                )
            seen[pod.metadata.uid] = described
            pods[pod.status.group_uid].append(pod)
        self.pods = {uid: tuple(found) for uid, found in pods.items()}
        self._by_name = {full_name(pod): pod for found in pods.values() for pod in found}
        self._by_key = by_key
        #: Victim's uid -> its preemptor. Each victim is pledged once.
        self._pledged_to: dict[str, str] = {}
        self.groups = [self._charged(group) for group in groups]

    def _admitted(self, group: PodGroup) -> PodGroup:
        """Return the group with the counters and instants that its phase implies."""
        status = group.status
        checks = () if status.phase in TERMINAL else self._checks(group)
        changes: dict[str, object] = {"checks": checks, "charge": {}, "reasons": ()}
        if status.phase in ADMITTED:
            reserved_at = _first(status.reserved_at, status.in_queue_at, self._start_at)
            changes |= {
                "admission": max(1, status.admission),
                "reserved_at": reserved_at,
                "in_queue_at": _first(status.in_queue_at, reserved_at),
            }
        elif status.phase == PodGroupPhase.PENDING and status.pledge.stands:
            changes["reserved_at"] = _first(status.reserved_at, self._start_at)
        if status.phase == PodGroupPhase.UNKNOWN:
            changes["unknown_at"] = _first(status.unknown_at, self._start_at)
        if status.phase in TERMINAL:
            changes |= {
                "finished_at": _first(status.finished_at, self._start_at),
                "reserved_at": None,
                "reservation": {},
            }
        # The store assigns revisions.
        meta = structs.replace(group.metadata, revision=0)
        return structs.replace(group, metadata=meta, status=structs.replace(status, **changes))

    def _checks(self, group: PodGroup) -> tuple[CheckState, ...]:
        """Return the states of the checks of its queue and the queues above; default Unknown.

        An admitted group has only the checks that it states, because a check may have been added to
        the queue since.
        """
        names = [
            name
            for queue in self._tree.chain(group.spec.queue)
            if queue in self._tree.records
            for name in self._tree.records[queue].spec.admission_checks
        ]
        stated_checks = {state.name: state for state in group.status.checks}
        for state in group.status.checks:
            try:
                check_combination(state.name, state.status, state.reason)
            except InvalidInput as problem:
                raise self._problem_of(group, f"status.checks: {problem.message}") from None
        asked = dict.fromkeys(names)
        if group.status.phase in ADMITTED:
            asked = {name: None for name in asked if name in stated_checks}
        states = (stated_checks.get(name) or CheckState(name=name) for name in asked)
        return tuple(
            structs.replace(state, since=_first(state.since, self._start_at)) for state in states
        )

    def _charged(self, group: PodGroup) -> PodGroup:
        """Return the group with its reservation, its start, and its charge in the ledger."""
        pods = self.pods[group.metadata.uid]
        group = _with(group, self._with_start(group, pods))
        if group.status.reserved_at is not None and not group.status.reservation:
            state = GroupState(group, pods, 0, gates_hold=self._gates_hold)
            state.status = structs.replace(group.status, reservation=state.reservation)
            reservation = state.reservation
            runs = group.status.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
            if runs and not state.is_external:
                reservation = remaining_reservation(state, GroupProgress.of(state))
            group = _with(group, structs.replace(group.status, reservation=reservation))
        group = _with(group, structs.replace(group.status, claim=_claim_of(group)))
        group = _with(group, structs.replace(group.status, pledge=self._pledge_of(group)))
        charge = charge_with_count(GroupState(group, pods, 0))
        path = self._tree.chain(group.spec.queue)[1:-1] if charge else ()
        return _with(group, structs.replace(group.status, charge=charge, charge_path=path))

    def _pledge_of(self, group: PodGroup) -> Pledge:
        """Return the stated pledge, completed with what follows from its victims' names."""
        pledge = group.status.pledge
        if not pledge.stands:
            return pledge
        holds: dict[str, int] = {}
        groups: list[str] = []
        for name in pledge.victims:
            uid, fence, owner = self._victim(group, name)
            if uid in self._pledged_to:
                raise self._no_victim(group, f"{name} is pledged to {self._pledged_to[uid]} too")
            self._pledged_to[uid] = full_name(group)
            holds[uid] = fence
            groups.append(owner)
        return structs.replace(
            pledge,
            claimant=full_name(group),
            holds=holds,
            groups=tuple(dict.fromkeys(groups)),
            whole=tuple(uid for uid in dict.fromkeys(groups) if self._leaves_whole(uid, holds)),
            made_at=_first(pledge.made_at, self._start_at),
        )

    def _victim(self, preemptor: PodGroup, name: str) -> tuple[str, int, str]:
        """Return a victim's uid, its attempt or admission, and the uid of its group."""
        pod, outside = self._by_name.get(name), self._by_key.get(name)
        if pod is not None:
            if pod.status.group_uid == preemptor.metadata.uid:
                raise self._no_victim(preemptor, f"{name} is a pod of the group itself")
            return pod.metadata.uid, pod.status.attempt, pod.status.group_uid
        if outside is not None and outside.spec.controller == "external" and outside != preemptor:
            return outside.metadata.uid, outside.status.admission, outside.metadata.uid
        raise self._no_victim(
            preemptor,
            "expected the namespace/name of another group's Pod, or of another external PodGroup,"
            f" that is described, found {shown(name)}",
        )

    def _no_victim(self, preemptor: PodGroup, text: str) -> InvalidInput:
        return self._problem_of(preemptor, f"status.pledge.victims: {text}")

    def _problem_of(self, group: PodGroup, text: str) -> InvalidInput:
        where = self._places["PodGroup", full_name(group)]
        return InvalidInput(f"{where}: PodGroup {full_name(group)}: {text}")

    def _leaves_whole(self, uid: str, holds: Mapping[str, int]) -> bool:
        """Return whether the loss of these pods would leave the group with fewer than it needs."""
        group = next(one for one in self._by_key.values() if one.metadata.uid == uid)
        stays = [
            pod
            for pod in self.pods[uid]
            if pod.metadata.uid not in holds
            and pod.status.phase in (*ON_NODE, PodPhase.SUCCEEDED)
            and not pod.status.terminating
        ]
        return len(stays) < GroupState(group, (), 0).min_member

    def _with_start(self, group: PodGroup, pods: tuple[Pod, ...]) -> PodGroupStatus:
        """Return the status with `started_at`: a group runs since its minMember-th pod started."""
        status = group.status
        runs = status.phase in (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
        if not runs or status.started_at is not None:
            return status
        starts = sorted(at for pod in pods if (at := pod.status.started_at) is not None)
        enough = GroupState(group, (), 0).min_member
        started_at = starts[enough - 1] if 0 < enough <= len(starts) else self._start_at
        return structs.replace(status, started_at=started_at)

    def _pod(self, described: DescribedPod, groups: Mapping[str, PodGroup]) -> Pod:
        pod = described.pod
        key = group_key_of(pod)
        group = groups.get(key)
        if group is None:
            raise _problem(described, f"its PodGroup {key} is not described")
        if group.spec.controller == "external":
            raise _problem(
                described, f"its PodGroup {key} is external: batchq makes and sees no pods of it"
            )
        first, task = _task_of(described, group)
        pod = self._with_template(described, task)
        pod = self._with_status(described, pod, group)
        uid = f"{group.metadata.uid}-{pod.status.admission}-{first + pod.spec.index}"
        return structs.replace(pod, metadata=structs.replace(pod.metadata, uid=uid, revision=0))

    def _with_template(self, described: DescribedPod, task: Task) -> Pod:
        """Return the pod with missing fields filled in from its task's template."""
        pod, template, written = described.pod, task.template, described.written
        spec = structs.replace(
            pod.spec,
            requests=pod.spec.requests if "requests" in written else template.requests,
            termination_grace=(
                pod.spec.termination_grace
                if "terminationGrace" in written
                else template.termination_grace
            ),
            priority=pod.spec.priority if "priority" in written else template.priority,
        )
        meta = structs.replace(
            pod.metadata,
            labels={**template.labels, **pod.metadata.labels},
            annotations={**template.annotations, **pod.metadata.annotations},
        )
        return structs.replace(pod, metadata=meta, spec=spec)

    def _with_status(self, described: DescribedPod, pod: Pod, group: PodGroup) -> Pod:
        status, start_at = pod.status, self._start_at
        phase = status.phase
        if phase == PodPhase.PENDING and status.node:
            phase = PodPhase.BOUND
        if phase in ON_NODE and not status.node:
            raise _problem(described, f"is {phase}, and status.node does not say where")
        if status.terminating and phase not in ON_NODE:
            raise _problem(described, f"is {phase}: only a pod on a node can be terminating")
        attempt = max(status.attempt, 0 if phase == PodPhase.PENDING else 1)
        started = phase in (PodPhase.RUNNING, PodPhase.SUCCEEDED)
        changes: dict[str, object] = {
            "phase": phase,
            "group_uid": group.metadata.uid,
            "admission": status.admission or _admission(phase, status.terminating, group),
            "attempt": attempt,
            "failures": status.failures or _failures(phase, attempt),
            # A pod that runs at the start was bound before, not at that very instant.
            "bound_at": _first(status.bound_at, start_at - (phase == PodPhase.RUNNING))
            if phase in ON_NODE
            else status.bound_at,
            "started_at": _first(status.started_at, start_at) if started else status.started_at,
        }
        if status.terminating:
            changes["terminating_at"] = _first(status.terminating_at, start_at)
        if phase in _ENDED:
            changes["finished_at"] = _first(status.finished_at, start_at)
        if status.exit_code is None and phase in (PodPhase.SUCCEEDED, PodPhase.FAILED):
            changes["exit_code"] = 0 if phase == PodPhase.SUCCEEDED else 1
        return structs.replace(pod, status=structs.replace(status, **changes))


def _admission(phase: PodPhase, terminating: bool, group: PodGroup) -> int:
    """Return the pod's admission; usable pods of a Pending group belong to its next admission."""
    usable = phase not in _ENDED and not terminating
    pending = group.status.phase == PodGroupPhase.PENDING
    return group.status.admission + (1 if usable and pending else 0)


def _failures(phase: PodPhase, attempt: int) -> int:
    """Return the number of failures; unless stated, earlier attempts count as failed."""
    match phase:
        case PodPhase.PENDING:
            return 0
        case PodPhase.FAILED:
            return attempt
        case _:
            return attempt - 1


def _task_of(described: DescribedPod, group: PodGroup) -> tuple[int, Task]:
    """Return the pod's task, and the ordinal of that task's first pod."""
    spec, first = described.pod.spec, 0
    for task in group.spec.tasks:
        if task.name == spec.task:
            if spec.index >= task.replicas:
                raise _problem(
                    described,
                    f"spec.index: task {task.name} of PodGroup {full_name(group)} has"
                    f" {task.replicas} replicas, counted from 0, found {spec.index}",
                )
            return first, task
        first += task.replicas
    tasks = ", ".join(task.name for task in group.spec.tasks) or "none"
    raise _problem(
        described,
        f"spec.task: PodGroup {full_name(group)} has no task {spec.task}; its tasks: {tasks}",
    )


def _claim_of(group: PodGroup) -> GroupClaim:
    """Return the claim; a running external group has a consumer that never goes away."""
    status = group.status
    external = group.spec.controller == "external"
    if not external or status.phase != PodGroupPhase.RUNNING or status.claim.phase != "None":
        return status.claim
    return GroupClaim(
        phase="Running",
        holder="a consumer",
        claimed_at=status.started_at,
        grace=grace_of(group.spec),
        holding=status.reservation,
    )


def _bound_dependencies(groups: Iterable[PodGroup]) -> list[PodGroup]:
    """Bind names to uids. Missing groups and cycles stay unbound and show as Misconfigured."""
    groups = list(groups)
    uids = {full_name(group): group.metadata.uid for group in groups}
    needs = {
        full_name(group): [_key(group, dependency) for dependency in group.spec.depends_on]
        for group in groups
    }
    result = []
    for group in groups:
        name = full_name(group)
        bound = tuple(
            structs.replace(
                dependency,
                uid=""
                if _reaches(needs, _key(group, dependency), name)
                else uids.get(_key(group, dependency), ""),
            )
            for dependency in group.spec.depends_on
        )
        result.append(structs.replace(group, spec=structs.replace(group.spec, depends_on=bound)))
    return result


def _key(group: PodGroup, dependency: Dependency) -> str:
    return f"{group.metadata.namespace}/{dependency.name}"


def _reaches(needs: Mapping[str, list[str]], start: str, goal: str) -> bool:
    """Return whether `start` depends on `goal`, directly or indirectly."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        name = ahead.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            ahead += needs.get(name, [])
    return False


def _with(group: PodGroup, status: PodGroupStatus) -> PodGroup:
    return structs.replace(group, status=status)


def _first(*instants: int | None) -> int:
    return next(at for at in instants if at is not None)


def _problem(described: DescribedPod, text: str) -> InvalidInput:
    return InvalidInput(f"{described.where}: Pod {full_name(described.pod)}: {text}")


def found(world: World, requests: IdSource, *, gates_hold: bool = True) -> DescribedStore:
    """Return a store that holds everything that the world describes.

    `requests` provides the ids of its writes; `gates_hold`: whether scheduling gates count.

    Raises InvalidInput, Conflict or Rejected.
    """
    store = DescribedStore()
    now_ms = world.start_at
    # `default` exists from the start, before everything that the file describes.
    if not any(kind_of(obj) == "Queue" and key_of(obj) == DEFAULT for obj in world.objects):
        write(store, requests, found_defaults(store, now_ms=0, uid="0"))
    for obj in world.objects:
        present = _as_heard_of(obj, now_ms)
        uid = obj.metadata.uid
        # In part, because reading the world has checked its queues together.
        created = create(store, present, now_ms=now_ms, uid=uid, described=True, in_part=True)
        write(store, requests, created)
    believed = InitialRecords(world, gates_hold=gates_hold)
    for group in believed.groups:
        write(store, requests, stated(group, believed.pods[group.metadata.uid]))
    return store


def _as_heard_of(obj: Object, now_ms: int) -> Object:
    """Give a node that is not ready a heartbeat at the start, from which its leases run out."""
    if not isinstance(obj, Node) or obj.status.ready or obj.status.heartbeat is not None:
        return obj
    return structs.replace(obj, status=structs.replace(obj.status, heartbeat=now_ms))


def stated(group: PodGroup, pods: tuple[Pod, ...]) -> Transaction:
    """Return a transaction with the group, its pods, and all their charges."""
    objects: tuple[Object, ...] = (group, *pods)
    charges = [_pod_charge(pod) for pod in pods if pod.status.phase in ON_NODE]
    if group.status.phase not in TERMINAL:
        charges.append(structs.replace(object_charge(group), checked=False))
    charges += [
        Charge(holder=holder, scopes=scopes, amounts=amounts)
        for holder, (scopes, amounts) in holders_in_store(group).items()
    ]
    return Transaction(
        subject=key_of(group),
        writes=tuple(
            Write(kind=kind_of(obj), key=key_of(obj), expect=0, value=obj) for obj in objects
        ),
        charges=tuple(charges),
    )


def _pod_charge(pod: Pod) -> Charge:
    return Charge(
        holder=f"pod:{pod.metadata.uid}",
        scopes=(node_scope(pod.status.node),),
        amounts=of_pod(pod.spec.requests),
    )


class DescribedStore(MemoryStore):
    """A store whose world may state more InQueue groups than fit, without a limit being cut."""

    overbooked: Mapping[str, Mapping[str, int]] = {}

    def snapshot(self) -> Snapshot:
        """Return a snapshot that also says under which limits the world is overbooked."""
        snapshot = super().snapshot()
        if not self.overbooked:
            return snapshot
        return structs.replace(snapshot, overbooked=self.overbooked)


def overbooked(session: Session) -> dict[str, dict[str, int]]:
    """Return scope -> the limits that its sum exceeds."""
    over: dict[str, dict[str, int]] = {}
    for scope, sums in session.ledger.sums.items():
        for name, units in sums.items():
            limit = session.ledger.limit(scope, name)
            if limit is not None and units > limit:
                over.setdefault(scope, {})[name] = limit
    return over


def exceeded_since_start(
    former: Mapping[str, Mapping[str, int]], session: Session
) -> dict[str, dict[str, int]]:
    """Return those limits that have been exceeded since the beginning, each at the highest value
    since: a limit that falls below that is cut, even while pods still end.
    """
    return {
        scope: {
            name: max(limit, former[scope][name])
            for name, limit in limits.items()
            if name in former[scope]
        }
        for scope, limits in overbooked(session).items()
        if scope in former
    }
