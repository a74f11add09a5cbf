"""The node-report processor: applies what nodes report to objects and the ledger.

A node may report only about itself and about the present attempts of pods that are bound to it; any
other report is superseded: it is counted and changes nothing. The processor does no I/O except
through `ports.Store`, so the daemon and the simulator use the same one.

Applying a report twice is harmless. Each transaction compares the revisions that it was planned
from, so a former leader's transaction conflicts with its successor's instead of repeating it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodPhase
from batchq.api.node_features import LOCKED, MOST_DEVICES, decode_devices, devices_in, is_device_id
from batchq.api.node_report import (
    AGENT_ANNOTATION,
    LONGEST_MESSAGE,
    MOST_PULLS,
    PROTOCOL_ANNOTATION,
    Ended,
    Leaves,
    NodeReport,
    PodOutcome,
    Pulls,
    Runs,
    Serves,
    StartClaim,
    is_address,
)
from batchq.api.notation import counted, describe_age, resource_problem
from batchq.api.objects import (
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodGroup,
    full_name,
    group_key_of,
)
from batchq.api.reasons import POD_LOST, Finish, Leaving
from batchq.api.resources import LARGEST, of_pod
from batchq.api.transaction import (
    CAPACITY,
    Charge,
    Commit,
    Event,
    Limit,
    Transaction,
    Word,
    Write,
    capacity_of,
    fence_of,
    generation_of,
    node_scope,
)
from batchq.api.validation import check
from batchq.errors import InvalidInput
from batchq.ports import IdSource, Store

_set = msgspec.structs.replace
#: Longest reason of an agent's `Leaves`, in characters; describe shows it on one line.
_LONGEST_LEAVE_REASON = 1_000
#: Events about devices in one report; a node may send anything.
_MOST_DEVICE_EVENTS = 16
_NO_PODS: Mapping[str, Pod] = MappingProxyType({})


class PostedReport(Struct, frozen=True, kw_only=True):
    """A report, and the node whose queue it came from."""

    node: str
    report: NodeReport


class ReportResult(Struct, frozen=True, kw_only=True):
    """What became of reports: those that are `done` may be removed from the queue. Of these, some
    were `applied`, and others were `superseded`: their attempt is over. Those in `again` are
    retried in the next turn.
    """

    done: tuple[PostedReport, ...] = ()
    applied: tuple[PostedReport, ...] = ()
    superseded: tuple[PostedReport, ...] = ()
    again: tuple[PostedReport, ...] = ()


class Superseded(Struct, frozen=True):
    """The answer to a report about an attempt that is over, or of another node."""


class ReportStep(Struct, frozen=True, kw_only=True):
    """What to write for a report, and whether the report is done with it."""

    posted: PostedReport
    transaction: Transaction
    is_last: bool


class ReportPlan(Struct, frozen=True, kw_only=True):
    """The plan for reports: the `steps` to write, and the reports that are done without a write."""

    steps: tuple[ReportStep, ...] = ()
    done: tuple[PostedReport, ...] = ()
    superseded: tuple[PostedReport, ...] = ()

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """The transactions to commit, in the order of `steps`."""
        return tuple(step.transaction for step in self.steps)

    def result_of(self, commit: Commit) -> ReportResult:
        """Return what the commit of these transactions made of the reports."""
        applied: list[PostedReport] = []
        superseded: list[PostedReport] = []
        again: list[PostedReport] = []
        left = deque(commit.refused)
        for step in self.steps:
            is_refused = bool(left) and left[0].transaction is step.transaction
            refusal = left.popleft() if is_refused else None
            if refusal is None and step.is_last:
                applied.append(step.posted)
            elif refusal is None or refusal.answer.word in (Word.CONFLICT, Word.EPOCH):
                again.append(step.posted)
            else:
                superseded.append(step.posted)
        return ReportResult(
            done=(*self.done, *applied, *superseded),
            applied=tuple(applied),
            superseded=(*self.superseded, *superseded),
            again=tuple(again),
        )


class NodeReportProcessor:
    """Applies node reports, as the leader of an epoch."""

    def __init__(self, store: Store, ids: IdSource) -> None:
        self._store = store
        self._ids = ids

    def apply(
        self,
        posted: Sequence[PostedReport],
        *,
        now_ms: int,
        epoch: int | None = None,
        accepts_unknown: bool = True,
    ) -> ReportResult:
        """Apply reports, at most one per subject, in one commit.

        Raises StoreUnavailable; what was applied by then changes nothing the next time.
        """
        plan = self.plan(posted, now_ms=now_ms, epoch=epoch, accepts_unknown=accepts_unknown)
        commit = Commit()
        if plan.steps:
            request = self._ids.new_uid()
            commit = self._store.commit(plan.transactions, request_id=request, epoch=epoch)
        return plan.result_of(commit)

    def plan(
        self,
        posted: Sequence[PostedReport],
        *,
        now_ms: int,
        epoch: int | None = None,
        accepts_unknown: bool = True,
        known: Mapping[str, Pod] = _NO_PODS,
    ) -> ReportPlan:
        """Return what to write for reports, at most one per subject; nothing is written.

        `accepts_unknown` accepts a running attempt that the server does not know. That is right
        only soon after a restart of the server; at other times a node must not run a pod that is
        not bound to it. `known`: pods by key, read no earlier than the reports. Raises
        StoreUnavailable.
        """
        steps: list[ReportStep] = []
        done: list[PostedReport] = []
        superseded: list[PostedReport] = []
        seen = self._look_up(posted, known)
        generation = 0 if epoch is None else generation_of(epoch)
        for one in posted:
            found = _plan_for(
                seen, one.node, one.report, now_ms, generation, accepts_unknown=accepts_unknown
            )
            if isinstance(found, Transaction):
                is_last = not _needs_more(one.report, found)
                steps.append(ReportStep(posted=one, transaction=found, is_last=is_last))
                continue
            done.append(one)
            if isinstance(found, Superseded):
                superseded.append(one)
        return ReportPlan(steps=tuple(steps), done=tuple(done), superseded=tuple(superseded))

    def _look_up(self, posted: Sequence[PostedReport], known: Mapping[str, Pod]) -> _Seen:
        """Read the objects that the reports are about, in at most three requests."""
        reports = [one.report for one in posted]
        uids = dict.fromkeys(
            report.pod
            for report in reports
            if isinstance(report, StartClaim | Pulls | Ended | Runs)
        )
        unknown = [uid for uid in uids if uid not in known]
        names = [one.node for one in posted if isinstance(one.report, Serves | Leaves)]
        found = self._store.get_many("Pod", unknown) if unknown else {}
        nodes = self._store.get_many("Node", list(dict.fromkeys(names))) if names else {}
        pods = {
            **{uid: known[uid] for uid in uids if uid in known},
            **{uid: one for uid, one in found.items() if isinstance(one, Pod)},
        }
        claimed = (pods.get(report.pod) for report in reports if isinstance(report, Runs))
        names_of_groups = [group_key_of(pod) for pod in claimed if pod is not None]
        groups = (
            self._store.get_many("PodGroup", list(dict.fromkeys(names_of_groups)))
            if names_of_groups
            else {}
        )
        return _Seen(
            nodes={name: one for name, one in nodes.items() if isinstance(one, Node)},
            pods=pods,
            groups={key: one for key, one in groups.items() if isinstance(one, PodGroup)},
        )


class _Seen(Struct, frozen=True, kw_only=True):
    """The objects that reports are about, by key, as they were before."""

    nodes: dict[str, Node]
    pods: dict[str, Pod]
    groups: dict[str, PodGroup]


def _plan_for(
    seen: _Seen,
    node: str,
    report: NodeReport,
    now_ms: int,
    generation: int,
    *,
    accepts_unknown: bool,
) -> Transaction | Superseded | None:
    """Return what to write, Superseded, or None if nothing is left to do."""
    match report:
        case Serves():
            return serves(seen.nodes.get(node), node, report, now_ms=now_ms)
        case Leaves():
            return leaves(seen.nodes.get(node), report, now_ms=now_ms)
        case StartClaim():
            pod = seen.pods.get(report.pod)
            return claim(pod, node, report, now_ms=now_ms, generation=generation)
        case Pulls():
            return pulls(seen.pods.get(report.pod), node, report, now_ms=now_ms)
        case Ended():
            return end(seen.pods.get(report.pod), node, report, now_ms=now_ms)
        case Runs():
            pod = seen.pods.get(report.pod)
            group = None if pod is None else seen.groups.get(group_key_of(pod))
            return runs(pod, group, node, report, now_ms=now_ms, accepts_unknown=accepts_unknown)


def _needs_more(report: NodeReport, transaction: Transaction) -> bool:
    """Return whether another step follows: the lifecycle takes a pod through Bound and Running."""
    reached = transaction.writes[0].value
    if not isinstance(reached, Pod):
        return False
    match report:
        case Ended():
            return reached.status.phase == PodPhase.RUNNING
        case Runs():
            return reached.status.phase == PodPhase.BOUND
        case _:
            return False


def claim(
    pod: Pod | None, node: str, report: StartClaim, *, now_ms: int, generation: int = 0
) -> Transaction | Superseded | None:
    """Return the transition Bound -> Running.

    A pod that was asked to stop before it started becomes Evicted. So does one that was bound
    before the server was restarted: the attempt may have run and ended in what the server has
    forgotten, and two processes must never run as the same attempt.
    """
    if pod is None or pod.status.attempt != report.attempt or pod.status.node != node:
        return Superseded()
    if pod.status.phase == PodPhase.RUNNING and pod.status.holder == report.author:
        return None
    if pod.status.phase != PodPhase.BOUND:
        return Superseded()
    if pod.status.terminating:
        stopped = PodOutcome(stopped=pod.status.reason, message="stopped before it started")
        return _ended(pod, ended(pod, stopped, now_ms=now_ms), now_ms)
    if generation_of(report.attempt) < generation:
        of_former_run = PodOutcome(
            stopped=Leaving.NODE_LOST, message="bound before the server was restarted"
        )
        return _ended(pod, ended(pod, of_former_run, now_ms=now_ms), now_ms)
    if pod.spec.ports and not _states_place(report, pod.spec.ports):
        # An older agent may have taken the node over since the pod was bound.
        unreachable = PodOutcome(
            stopped=Leaving.NODE_LOST,
            message=f"its agent states no address with {counted(pod.spec.ports, 'port')},"
            " which the other pods of its gang need",
        )
        return _ended(pod, ended(pod, unreachable, now_ms=now_ms), now_ms)
    return _running(pod, report, now_ms=now_ms)


def _states_place(report: StartClaim, count: int) -> bool:
    """Return whether a claim states an address, and as many ports as its pod asks for."""
    are_ports = len(set(report.ports)) == count and all(0 < port < 65_536 for port in report.ports)
    return are_ports and is_address(report.address)


def pulls(
    pod: Pod | None, node: str, report: Pulls, *, now_ms: int
) -> Transaction | Superseded | None:
    """Return the note that the image of a Bound pod is being pulled; its phase stays."""
    if pod is None or pod.status.attempt != report.attempt or pod.status.node != node:
        return Superseded()
    if pod.status.phase != PodPhase.BOUND or not pod.spec.image:
        return Superseded()
    image = pod.spec.image
    message, reason = f"pulling image {image} on node {node}", "Pulling"
    if report.trouble:
        message = (
            f"image {image} could not be pulled on node {node}, which is tried again"
            f" ({report.failures} of {MOST_PULLS} times): {report.trouble}"
        )
        reason = "PullFailed"
    message = message[:LONGEST_MESSAGE]
    if message == pod.status.message:
        return None
    status = _set(pod.status, message=message)
    return Transaction(
        subject=group_key_of(pod),
        writes=(_write(pod, _set(pod, status=status)),),
        events=(_event_of(pod, reason, message, now_ms),),
    )


def _event_of(pod: Pod, reason: str, message: str, now_ms: int) -> Event:
    text = f"{full_name(pod)}: {message}"
    return Event(kind="Pod", key=pod.metadata.uid, reason=reason, message=text, at=now_ms)


def end(
    pod: Pod | None, node: str, report: Ended, *, now_ms: int
) -> Transaction | Superseded | None:
    """Return the end of an attempt, which frees what it held on its node.

    A Bound pod with the outcome of a command (the server lost its last second) is taken through
    Running first.
    """
    if pod is None or pod.status.attempt != report.attempt:
        return Superseded()
    if pod.status.phase not in ON_NODE:
        return None if _is_recorded(pod, node, report) else Superseded()
    if pod.status.node != node:
        return Superseded()
    after = ended(pod, report.outcome, now_ms=now_ms)
    if pod.status.phase == PodPhase.BOUND and after.status.phase == PodPhase.SUCCEEDED:
        return _running(pod, report, now_ms=now_ms)
    return _ended(pod, after, now_ms)


def _is_recorded(pod: Pod, node: str, report: Ended) -> bool:
    """Return whether this end is recorded already: a report applied twice is counted once."""
    status, outcome = pod.status, report.outcome
    return node in (status.node, status.last_node) and (status.exit_code, status.signal) == (
        outcome.exit_code,
        outcome.signal,
    )


def runs(
    pod: Pod | None,
    group: PodGroup | None,
    node: str,
    report: Runs,
    *,
    now_ms: int,
    accepts_unknown: bool = True,
) -> Transaction | Superseded | None:
    """Adopt a running attempt that the server has forgotten, if the pod would have to run anyway.

    Otherwise it is superseded, and its work-horse learns that at its next lease renewal. The charge
    on the node is unchecked, because the attempt uses those resources already.
    """
    if pod is None or group is None or group.status.phase in TERMINAL:
        return Superseded()
    status = pod.status
    if status.group_uid != group.metadata.uid or status.admission != group.status.admission:
        return Superseded()
    if status.attempt == report.attempt and status.phase in ON_NODE:
        if status.node != node:
            return Superseded()
        if status.phase == PodPhase.RUNNING:
            return None
        return _running(pod, report, now_ms=report.started_at)
    if not accepts_unknown or status.phase != PodPhase.PENDING or status.attempt >= report.attempt:
        return Superseded()
    bound = _set(
        status, phase=PodPhase.BOUND, attempt=report.attempt, node=node, bound_at=report.started_at
    )
    charge = Charge(
        holder=f"pod:{pod.metadata.uid}",
        scopes=(node_scope(node),),
        amounts=of_pod(pod.spec.requests),
    )
    event = Event(
        kind="Pod",
        key=pod.metadata.uid,
        reason="Found",
        message=f"{full_name(pod)} runs on {node}, which the server had forgotten",
        at=now_ms,
    )
    return Transaction(
        subject=group_key_of(pod),
        writes=(_write(pod, _set(pod, status=bound)),),
        charges=(charge,),
        events=(event,),
    )


def _running(pod: Pod, report: StartClaim | Ended | Runs, *, now_ms: int) -> Transaction:
    status = _set(
        pod.status, phase=PodPhase.RUNNING, started_at=now_ms, holder=report.author, message=""
    )
    events: tuple[Event, ...] = ()
    if isinstance(report, StartClaim) and report.pulled_ms > 0:
        pulled = (
            f"image {pod.spec.image} was pulled on node {status.node} within"
            f" {describe_age(report.pulled_ms)}"
        )
        events = (_event_of(pod, "Pulled", pulled[:LONGEST_MESSAGE], now_ms),)
    if pod.spec.ports and isinstance(report, StartClaim):
        status = _set(status, address=report.address, ports=report.ports)
    if not isinstance(report, Ended) and report.devices and devices_in(pod.spec.requests):
        # A node may send anything.
        ids = dict.fromkeys(one for one in report.devices if is_device_id(one))
        status = _set(status, devices=tuple(ids)[:MOST_DEVICES])
    writes = (_write(pod, _set(pod, status=status)),)
    return Transaction(subject=group_key_of(pod), writes=writes, events=events)


def _ended(pod: Pod, after: Pod, now_ms: int) -> Transaction:
    status = after.status
    story = f"{full_name(after)} {status.phase} on {status.node}"
    event = Event(
        kind="Pod",
        key=pod.metadata.uid,
        reason=status.reason or str(status.phase),
        message=f"{story}: {status.message}" if status.message else story,
        at=now_ms,
    )
    # A lost pod runs again, which the history of its group has to explain.
    is_lost = status.reason == Leaving.NODE_LOST
    return Transaction(
        subject=group_key_of(pod),
        writes=(_write(pod, after),),
        charges=(Charge(holder=f"pod:{pod.metadata.uid}"),),
        events=(event, _of_its_group(pod, event)) if is_lost else (event,),
    )


def _of_its_group(pod: Pod, event: Event) -> Event:
    """Return the event of a lost pod as one of its group, which need not leave its phase."""
    return _set(event, kind="PodGroup", key=group_key_of(pod), reason=POD_LOST)


def _write(before: Pod, after: Pod) -> Write:
    return Write(
        kind="Pod",
        key=before.metadata.uid,
        expect=before.metadata.revision,
        value=after,
        fence=fence_of(before),
    )


def serves(
    before: Node | None, name: str, report: Serves, *, now_ms: int
) -> Transaction | Superseded | None:
    """Create the node, or take it over from a former agent, and set it ready; a cordon stays.

    A node's capacity counts in the cluster only while the node is ready, so readiness and the
    charge in scope `capacity` are always written together.
    """
    meta = before.metadata if before else Metadata(name=name)
    spec = before.spec if before else NodeSpec()
    ours = {AGENT_ANNOTATION: report.agent, PROTOCOL_ANNOTATION: str(report.protocol)}
    node = Node(
        metadata=_set(
            meta,
            labels={**meta.labels, **report.labels},
            annotations={**meta.annotations, **report.annotations, **ours},
            creation_timestamp=meta.creation_timestamp or now_ms,
        ),
        spec=_set(spec, resources=dict(report.resources), taints=report.taints or spec.taints),
        status=NodeStatus(ready=True, heartbeat=now_ms),
    )
    if before is not None and _set(before, status=node.status) == node and before.status.ready:
        return None
    if not _is_valid(node):
        # No agent of ours offers that; the store would raise it as a bug of the scheduler.
        return Superseded()
    amounts = capacity_of(node)
    # Only the description of its devices may have changed.
    is_news = before is None or not before.status.ready or before.spec != node.spec
    ready = (Event(kind="Node", key=name, reason="Ready", at=now_ms),) if is_news else ()
    return Transaction(
        subject=name,
        writes=(_write_node(before, node),),
        charges=(Charge(holder=f"node:{name}", scopes=(CAPACITY,), amounts=amounts),),
        limits=(Limit(scope=node_scope(name), amounts=amounts),),
        events=(*ready, *_device_events(meta, node, now_ms)),
    )


def _device_events(before: Metadata, node: Node, now_ms: int) -> list[Event]:
    """Return what is new about the condition of a node's devices."""
    known = {one.id: one.trouble for one in decode_devices(before.annotations)}
    events: list[Event] = []
    for one in decode_devices(node.metadata.annotations):
        if one.trouble == known.get(one.id, "") or LOCKED in (one.trouble, known.get(one.id)):
            continue
        event = Event(
            kind="Node",
            key=node.metadata.name,
            reason="DeviceUnhealthy" if one.trouble else "DeviceHealthy",
            message=f"device {one.index} ({one.id})" + (f": {one.trouble}" if one.trouble else ""),
            at=now_ms,
        )
        events.append(event)
    return events[:_MOST_DEVICE_EVENTS]


def _is_valid(node: Node) -> bool:
    """Return whether the node is valid, whatever its agent claims."""
    try:
        check(node)
    except InvalidInput:
        return False
    return all(
        not resource_problem(name) and 0 <= units <= LARGEST
        for name, units in node.spec.resources.items()
    )


def leaves(before: Node | None, report: Leaves, *, now_ms: int) -> Transaction | None:
    """Set the node not ready, so that nothing is bound to it, unless another agent took it over. A
    node that is not ready gets a new reason, if one is given.
    """
    if before is None or before.metadata.annotations.get(AGENT_ANNOTATION) != report.agent:
        return None
    reason = report.reason[:_LONGEST_LEAVE_REASON]
    if not before.status.ready and reason in ("", before.status.reason):
        return None
    name = before.metadata.name
    after = _set(before, status=_set(before.status, ready=False, reason=reason))
    message = reason or ("its agent has died" if report.is_dead else "its agent leaves")
    return Transaction(
        subject=name,
        writes=(_write_node(before, after),),
        charges=(Charge(holder=f"node:{name}"),),
        events=(Event(kind="Node", key=name, reason="NotReady", message=message, at=now_ms),),
    )


def out_of_service(before: Node, reason: str, *, now_ms: int) -> Transaction | None:
    """Set the node not ready, whichever agent serves it; return None if it already is not."""
    agent = before.metadata.annotations.get(AGENT_ANNOTATION, "")
    return leaves(before, Leaves(agent=agent, reason=reason), now_ms=now_ms) if agent else None


def _write_node(before: Node | None, after: Node) -> Write:
    return Write(
        kind="Node",
        key=after.metadata.name,
        expect=before.metadata.revision if before else 0,
        value=after,
    )


#: Longest reason for a stopped pod that is kept, in characters; a node may send anything.
_LONGEST_STOP_REASON = 64


def ended(pod: Pod, outcome: PodOutcome, *, now_ms: int) -> Pod:
    """Return the pod as it is after `outcome`.

    A pod that ended with exit code 0 before it was asked to stop has succeeded, even if it was
    asked meanwhile. A stopped pod is Evicted, which is no failure, unless its walltime was over.
    """
    phase, reason = _verdict(pod, outcome)
    status = msgspec.structs.replace(
        pod.status,
        phase=phase,
        reason=reason,
        finished_at=now_ms,
        terminating=False,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        message=_message(phase, outcome),
        failures=pod.status.failures + (1 if phase == PodPhase.FAILED else 0),
        losses=pod.status.losses + (1 if reason == Leaving.NODE_LOST else 0),
    )
    return msgspec.structs.replace(pod, status=status)


def _verdict(pod: Pod, outcome: PodOutcome) -> tuple[PodPhase, str]:
    if outcome.exit_code == 0 and not outcome.stopped:
        return PodPhase.SUCCEEDED, ""
    asked = pod.status.reason if pod.status.terminating else ""
    if Finish.WALLTIME_EXCEEDED in (outcome.stopped, asked):
        return PodPhase.FAILED, Finish.WALLTIME_EXCEEDED
    if asked or outcome.stopped:
        return PodPhase.EVICTED, asked or outcome.stopped[:_LONGEST_STOP_REASON]
    return PodPhase.FAILED, ""


def _message(phase: PodPhase, outcome: PodOutcome) -> str:
    # A message explains an exit code; a signal is shown as well.
    explained = outcome.signal is None and outcome.message
    shows_signal = outcome.signal is not None or phase == PodPhase.FAILED
    parts = [outcome.how] if shows_signal and not explained else []
    if outcome.message:
        parts.append(outcome.message)
    return "; ".join(part for part in parts if part)[:LONGEST_MESSAGE]
