"""Checks of groups and pods: transitions that are overdue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, PodGroupPhase, PodPhase
from batchq.api.objects import Condition, Pod, PodGroup, full_name
from batchq.api.reasons import UNSATISFIABLE, Explanation, Leaving
from batchq.api.times import MINUTE, SECOND, describe_age
from batchq.client.doctor.system_state import Finding, Level, State, or_ok, unseen
from batchq.client.request import exceeds_nodes

_READS = "reading (`+@read`) of batchq's keys"

#: How late an automatic transition may be.
PATIENCE_MS = 1 * MINUTE
#: How long a group may wait for the impossible before it is reported.
UNSATISFIABLE_MS = 10 * MINUTE
#: After how many rollbacks in a row a group is reported.
MANY_ROLLBACKS = 3

#: A finding about several groups names the first and at most this many others.
_MOST_NAMED = 2

_SEE_LOG = "see the leader's log (`batchq scheduler --status` names it), and `leader` above"


def groups(state: State) -> tuple[Finding, ...]:
    """No group stays InQueue or Unknown too long, or waits for the impossible."""
    return _once(_all(state, "groups", state.groups(), _of_group, "none is stuck"))


def _once(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Merge findings that say the same of several groups."""
    alike: dict[tuple[Level, str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.level, finding.found, finding.expected), []).append(finding)
    return tuple(
        structs.replace(first, subject=f"{first.subject}{_and_others(others)}")
        for first, *others in alike.values()
    )


def _and_others(others: Sequence[Finding]) -> str:
    """Return e.g. `, default/b, default/c and 7 more`."""
    names = [one.subject.removeprefix("PodGroup ") for one in others]
    more = len(names) - _MOST_NAMED
    listed = "".join(f", {name}" for name in names[:_MOST_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed


def dependencies(state: State) -> tuple[Finding, ...]:
    """No group waits for a deleted group."""
    uids = {group.metadata.uid for group in state.groups()}

    def missing(state: State, group: PodGroup) -> Iterator[Finding]:
        if group.status.phase is not PodGroupPhase.PENDING or group.status.admission:
            return
        for dependency in group.spec.depends_on:
            if dependency.uid not in uids and dependency.condition != "any":
                yield Finding(
                    level=Level.WARNING,
                    subject=f"PodGroup {full_name(group)}",
                    found=f"waits for {dependency.name}, which was deleted",
                    expected="a group that can still end",
                    remedy="the leader should fail it (DependencyNeverMet); else cancel it:"
                    f" `batchq cancel {full_name(group)}`",
                )

    return _all(state, "dependencies", state.groups(), missing, "none waits for a deleted group")


def pods(state: State) -> tuple[Finding, ...]:
    """Bound pods start, and stopping pods end, in time."""
    return _all(state, "pods", state.pods(), _of_pod, "all start and stop in time")


def outbox(state: State) -> tuple[Finding, ...]:
    """Every binding was delivered to its node."""
    if state.outbox is None or state.books is None:
        return unseen("the outbox", _READS)
    pods = {pod.metadata.uid: pod for pod in state.pods()}
    findings = []
    for delivery in state.outbox:
        pod = pods.get(delivery.pod)
        bound_at = pod.status.bound_at if pod is not None else None
        if bound_at is not None and state.now_ms - bound_at > PATIENCE_MS:
            findings.append(
                Finding(
                    level=Level.WARNING,
                    subject=f"Pod {full_name(pod)}" if pod else delivery.pod,
                    found=f"bound {describe_age(state.now_ms - bound_at)} ago, and not yet handed"
                    f" to node {delivery.node}",
                    expected="handed over in the session that bound it",
                    remedy=_SEE_LOG,
                )
            )
    return or_ok(findings, f"{len(state.outbox)} on their way")


def inboxes(state: State) -> tuple[Finding, ...]:
    """Node reports are applied."""
    if state.stuck_reports is None:
        return unseen("the nodes' report queues", _READS)
    read = Counter(node for node, _ in state.stuck_reports)
    nodes = sorted(read)
    findings = [
        Finding(
            level=Level.WARNING,
            subject=f"Node {node}",
            found=f"{max(read[node], state.report_counts.get(node, 0))} reports are in its"
            " report queue, and none was applied while the doctor looked",
            expected="applied by the leader within a period",
            remedy=_SEE_LOG,
        )
        for node in nodes
    ]
    unreadable = state.counts.get("unreadable", 0)
    if unreadable:
        findings.append(
            Finding(
                level=Level.NOTE,
                found=f"{unreadable} node reports could not be read so far, and were dropped",
                expected="0",
                remedy="upgrade agents that are more than one version away; see the leader's log"
                " (`fact.unreadable`) for their senders",
            )
        )
    late = state.counts.get("superseded", 0)
    return or_ok(findings, f"all node reports are applied ({late} came too late, ever)")


def _all(
    state: State,
    what: str,
    items: list[PodGroup] | list[Pod],
    judge: Callable[[State, PodGroup], Iterator[Finding]]
    | Callable[[State, Pod], Iterator[Finding]],
    fine: str,
) -> tuple[Finding, ...]:
    if state.books is None:
        return unseen(f"the {what}", _READS)
    findings = [finding for item in items for finding in judge(state, item)]  # type: ignore[arg-type]
    return or_ok(findings, f"{len(items)} there, {fine}")


def _of_group(state: State, group: PodGroup) -> Iterator[Finding]:
    status, settings, name = group.status, state.settings, full_name(group)
    match status.phase:
        case PodGroupPhase.IN_QUEUE:
            since = state.now_ms - (status.in_queue_at or state.now_ms)
            if since > settings.in_queue_timeout_ms + PATIENCE_MS:
                yield _group(
                    name,
                    f"InQueue for {describe_age(since)}",
                    f"Running or back to Pending after {describe_age(settings.in_queue_timeout_ms)}"
                    " (inQueueTimeout)",
                    f"{_SEE_LOG}; `batchq describe {name}` shows what its pods wait for",
                )
        case PodGroupPhase.UNKNOWN:
            since = state.now_ms - (status.unknown_at or state.now_ms)
            late = since > settings.recovery_timeout_ms + PATIENCE_MS
            yield _group(
                name,
                f"Unknown for {describe_age(since)}: fewer than minMember pods run",
                f"recovered, or evicted after {describe_age(settings.recovery_timeout_ms)}"
                " (recoveryTimeout)",
                _SEE_LOG if late else f"see `nodes` above, and `batchq describe {name}`",
                level=Level.WARNING if late else Level.NOTE,
            )
        case PodGroupPhase.PENDING if too_large := exceeds_nodes(group, state.nodes()):
            yield _group(
                name,
                too_large,
                "nodes that are large enough for its pods",
                f"add such nodes, or cancel it (`batchq cancel {name}`) and ask for less",
            )
        case PodGroupPhase.PENDING if _left_unschedulable(group):
            times = status.backoff_count
            yield _group(
                name,
                f"was admitted and rolled back as Unschedulable {times} times in a row:"
                f" {_why_it_left(group)}",
                "nodes that take its pods",
                f"`batchq describe {name}`; add or uncordon nodes, or ask for less",
            )
        case PodGroupPhase.PENDING:
            waits = state.now_ms - (group.metadata.creation_timestamp or state.now_ms)
            unsatisfiable = [
                Explanation(verdict=verdict)
                for verdict in status.reasons
                if verdict.reason in UNSATISFIABLE
            ]
            if unsatisfiable and waits > UNSATISFIABLE_MS:
                yield _group(
                    name,
                    f"waits for more than {describe_age(UNSATISFIABLE_MS)}:"
                    f" {unsatisfiable[0].text}",
                    "a request that can be met",
                    f"edit or cancel it (`batchq cancel {name}`), or give its queue more",
                )
        case _:
            return


def _left_unschedulable(group: PodGroup) -> bool:
    left = _evicted(group)
    is_so = left is not None and left.reason == Leaving.UNSCHEDULABLE
    return is_so and group.status.backoff_count >= MANY_ROLLBACKS


def _why_it_left(group: PodGroup) -> str:
    left = _evicted(group)
    return left.message if left is not None else ""


def _evicted(group: PodGroup) -> Condition | None:
    return next((one for one in group.status.conditions if one.type == "Evicted"), None)


def _group(
    name: str, found: str, expected: str, remedy: str, *, level: Level = Level.WARNING
) -> Finding:
    return Finding(
        level=level,
        subject=f"PodGroup {name}",
        found=found,
        expected=expected,
        remedy=remedy,
    )


def _of_pod(state: State, pod: Pod) -> Iterator[Finding]:
    status = pod.status
    if status.phase not in ON_NODE:
        return
    subject = f"Pod {full_name(pod)}"
    if status.terminating:
        grace = pod.spec.termination_grace + state.settings.pod_lease_ms
        since = state.now_ms - (status.terminating_at or state.now_ms)
        if since > grace + 10 * SECOND:
            yield Finding(
                level=Level.WARNING,
                subject=subject,
                found=f"asked to stop {describe_age(since)} ago, and still on node {status.node}",
                expected=f"gone after its grace and its lease, {describe_age(grace)}",
                remedy=f"see the agent's log on {status.node}; if that machine is gone for good,"
                f" `batchq delete node {status.node}`",
            )
    elif status.phase is PodPhase.BOUND:
        since = state.now_ms - (status.bound_at or state.now_ms)
        if since > PATIENCE_MS:
            yield Finding(
                level=Level.WARNING,
                subject=subject,
                found=f"bound to node {status.node} {describe_age(since)} ago, and not started",
                expected="started within seconds",
                remedy=f"see the agent's log on {status.node}, and `outbox` below",
            )
