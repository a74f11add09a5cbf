"""Checks of nodes and schedulers, whether they are there, alive and able to work; and of groups and
pods, whether a transition of theirs is overdue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, PodGroupPhase, PodPhase
from batchq.api.node_features import (
    LOCKED,
    WHOLE,
    cordon_text,
    devices_in,
    exceeds_nodes,
    lacking_runtime,
    no_node_matches,
    no_node_tolerated,
    uses_of,
)
from batchq.api.node_report import (
    AGENT_ANNOTATION,
    PROTOCOL,
    PROTOCOL_ANNOTATION,
    RUN_AS_ANNOTATION,
    SPOILED,
)
from batchq.api.notation import MINUTE, SECOND, describe_age
from batchq.api.objects import Condition, Node, Pod, PodGroup, full_name
from batchq.api.reasons import UNSATISFIABLE, Explanation, Leaving
from batchq.api.views import SchedulerSeen
from batchq.client.changes import Overpromised, overpromised
from batchq.client.connection import process_of
from batchq.client.doctor.system_state import (
    Finding,
    Level,
    State,
    ok,
    or_ok,
    role_by_name,
    unseen,
)
from batchq.store.records import whole

_READS = "reading (`+@read`) of batchq's keys"
#: Three heartbeat intervals of an agent.
SILENT_MS = 15 * SECOND


def nodes(state: State) -> tuple[Finding, ...]:
    """Nodes exist, are ready, send heartbeats and accept pods."""
    if state.books is None:
        return unseen("the nodes", _READS)
    found = state.nodes()
    if not found:
        return (
            Finding(
                level=Level.WARNING,
                found="there are no nodes: everything waits",
                expected="one at least",
                remedy="start an agent on each machine: `batchq worker`, or here `batchq up`",
            ),
        )
    ready = [node for node in found if node.status.ready]
    findings = [finding for node in found if (finding := _of_node(state, node)) is not None]
    if not ready:
        findings.insert(
            0,
            Finding(
                level=Level.ERROR,
                found=f"none of {len(found)} nodes is ready: nothing can start",
                expected="one at least",
                remedy="see whether their agents run (`batchq worker`) and reach the server",
            ),
        )
    return or_ok(findings, f"{len(ready)} ready{_accounts(ready)}")


def _accounts(ready: Sequence[Node]) -> str:
    """Return under which accounts pods run, if nodes say so."""
    said = Counter(node.metadata.annotations.get(RUN_AS_ANNOTATION, "")[:20] for node in ready)
    parts = [f"{name} on {count}" for name, count in sorted(said.items()) if name]
    return f"; pods run as {', '.join(parts)}" if parts else ""


def protocols(state: State) -> tuple[Finding, ...]:
    """Agents use a protocol at most one version away from this batchq's."""
    if state.books is None:
        return unseen("the nodes", _READS)
    findings = []
    for node in state.nodes():
        version = node.metadata.annotations.get(PROTOCOL_ANNOTATION, str(PROTOCOL))
        # A node's annotations may contain anything.
        number = whole(version.encode())
        apart = None if number is None else abs(number - PROTOCOL)
        if node.status.ready and apart != 0:
            findings.append(
                Finding(
                    level=Level.NOTE if apart == 1 else Level.ERROR,
                    subject=f"Node {node.metadata.name}",
                    found=f"its agent uses protocol {version[:20]}, this batchq {PROTOCOL}",
                    expected="the same, or an adjacent version during an upgrade",
                    remedy="upgrade the older of the two, step by step if they are further apart",
                )
            )
    return or_ok(findings, f"all agents understand protocol {PROTOCOL}")


def devices(state: State) -> tuple[Finding, ...]:
    """Every device of a node is in service, and has one pod."""
    if state.books is None:
        return unseen("the devices of the nodes", _READS)
    whole = [pod for pod in state.pods() if not any(_fractions_in(pod))]
    ready = [node for node in state.nodes() if node.status.ready]
    findings: list[Finding] = []
    uses = uses_of(ready, whole)
    for use in uses:
        subject, name = f"Node {use.node}", f"device {use.device.index} ({use.device.id})"
        if use.device.trouble and use.device.trouble != LOCKED:
            findings.append(
                Finding(
                    level=Level.WARNING,
                    subject=subject,
                    found=f"{name}: {use.device.trouble}; it is not offered to pods",
                    expected="all devices in service",
                    remedy="see nvidia-smi, or amd-smi, on that machine, and its kernel's log; the"
                    " agent offers the device again when the tool reports it in order",
                )
            )
        if len(use.pods) > 1:
            findings.append(
                Finding(
                    level=Level.ERROR,
                    subject=subject,
                    found=f"{name} is used by {len(use.pods)} pods: {', '.join(use.pods[:4])}",
                    expected="one pod for each whole device",
                    remedy="keep the output of `batchq nodes devices -o json` and report it",
                )
            )
    in_service = sum(not use.device.trouble for use in uses)
    return or_ok(findings, f"{in_service} in service" if uses else "no node lists any")


def _fractions_in(pod: Pod) -> Iterator[int]:
    for units in devices_in(pod.spec.requests).values():
        if units % WHOLE:
            yield units


def reported(state: State) -> tuple[Finding, ...]:
    """Every ready node has reported its pods since the server's last start."""
    if state.books is None:
        return unseen("what nodes have reported since the server's start", _READS)
    standing = state.books.standing
    if standing.restarted_at is None:
        return ok("no start of the server is on record")
    since_ms = max(0, state.now_ms - standing.restarted_at)
    late = since_ms > state.settings.pod_lease_ms
    findings = [
        Finding(
            level=Level.WARNING if late else Level.NOTE,
            subject=f"Node {node.metadata.name}",
            found=f"has not reported its pods since the server's start {describe_age(since_ms)}"
            " ago; no pods are bound until it has, or until a lease is over",
            expected="within a few heartbeats",
            remedy="see its agent's log; restart the agent",
        )
        for node in state.nodes()
        if node.status.ready and node.metadata.name not in standing.reported
    ]
    return or_ok(findings, "every ready node has reported since the server's start")


def agents(state: State) -> tuple[Finding, ...]:
    """No agent serves two nodes, and no node is claimed by two agents."""
    if state.books is None:
        return unseen("the nodes", _READS)
    served: dict[str, list[str]] = defaultdict(list)
    for node in state.nodes():
        agent = node.metadata.annotations.get(AGENT_ANNOTATION, "")
        if agent and node.status.ready:
            served[agent].append(node.metadata.name)
    findings = [
        Finding(
            level=Level.ERROR,
            subject=", ".join(f"Node {name}" for name in names),
            found=f"{len(names)} names are served by one agent, {agent}",
            expected="one name for one agent",
            remedy="delete the node that the agent was not started for, once it is not ready",
        )
        for agent, names in sorted(served.items())
        if len(names) > 1
    ]
    for name, agent, other in state.contested:
        findings.append(
            Finding(
                level=Level.ERROR,
                subject=f"Node {name}",
                found=f"two agents serve it: {agent} and {other}",
                expected="one agent for one name",
                remedy="stop one, or start it under another name: `batchq worker --name NAME`",
            )
        )
    return or_ok(findings, "each node has one agent")


_TO_PROCESSES = "look at these processes on its machine; restart the machine if they stay"
_TO_SPOILED = (
    "it returns some seconds after the last foreign entry is removed; if it does not, find out who"
    " else has its worker's credentials, and change them"
)


def _of_node(state: State, node: Node) -> Finding | None:
    name = node.metadata.name
    subject = f"Node {name}"
    heard_at = state.beats.get(name, node.status.heartbeat)
    silent_ms = None if heard_at is None else max(0, state.now_ms - heard_at)
    heartbeat = (
        "without any heartbeat"
        if silent_ms is None
        else f"last heartbeat {describe_age(silent_ms)} ago"
    )
    if node.status.reason and not node.status.ready:
        return Finding(
            level=Level.WARNING,
            subject=subject,
            found=f"out of service: {node.status.reason}",
            expected="ready",
            remedy=_TO_SPOILED if node.status.reason.startswith(SPOILED) else _TO_PROCESSES,
        )
    if not node.status.ready:
        return Finding(
            level=Level.WARNING,
            subject=subject,
            found=f"not ready, {heartbeat}",
            expected="ready",
            remedy=f"start its agent (`batchq worker`), or delete it: `batchq delete node {name}`",
        )
    if silent_ms is not None and silent_ms > SILENT_MS:
        return Finding(
            level=Level.WARNING,
            subject=subject,
            found=f"silent, {heartbeat}",
            expected=f"a heartbeat within {SILENT_MS // SECOND} s",
            remedy="see whether its machine is up and its agent runs, and the network between",
        )
    if node.spec.unschedulable:
        who = cordon_text(node.metadata.annotations)
        return Finding(
            level=Level.NOTE,
            subject=subject,
            found=f"cordoned{f' {who}' if who else ''}: no pods are placed on it",
            expected="not cordoned, except during maintenance",
            remedy=f"`batchq nodes uncordon {name}` after the maintenance",
        )
    return None


#: A follower that lacks this many writes does not keep up.
FAR_BEHIND = 10_000


def permissions(state: State) -> tuple[Finding, ...]:
    """The user may read everything that the doctor reads."""
    server = state.server
    who = f"user {server.user}" if server.user else "this user (ACL WHOAMI is refused)"
    looks = _looks_like(server.user)
    hidden = [
        what
        for what, seen in (
            ("INFO", server.informed),
            ("CONFIG GET", server.appendfsync is not None),
            ("objects and ledger", state.books is not None or state.moving),
            ("the leader", state.schedulers is not None),
            ("the outbox", state.outbox is not None),
            ("report queues", state.stuck_reports is not None),
        )
        if not seen
    ]
    if not hidden:
        return ok(f"{who}{looks} may read everything that is checked")
    if state.is_damaged:
        return (
            Finding(
                level=Level.NOTE,
                subject=server.user or "",
                found=f"not shown to {who}{looks}, or in damaged keys: {', '.join(hidden)}",
                expected="keys that can be read",
                remedy="repair the keys first: see the check `records`",
            ),
        )
    return (
        Finding(
            level=Level.NOTE,
            subject=server.user or "",
            found=f"{who}{looks} may not read: {', '.join(hidden)}",
            expected="a user who may read everything",
            remedy="ask again with an operator's credentials: the checks below see less",
        ),
    )


def leader(state: State) -> tuple[Finding, ...]:
    """A scheduler leads."""
    found = state.schedulers
    if found is None:
        return unseen("who leads", _READS)
    now = found.leader
    if now is not None and now.left_ms > 0:
        return ok(
            f"{now.identity} leads, epoch {now.epoch}; its lease ends in"
            f" {now.left_ms / 1000:.1f} s unless renewed",
        )
    last = "no scheduler leads"
    if now is not None:
        ago = describe_age(-now.left_ms)
        last += f"; {now.identity} did until {ago} ago (epoch {now.epoch})"
    waiting = "; one stands by and should take over at once" if found.followers else ""
    remedy = "start one: `batchq scheduler` (several may run), or `batchq up` on this machine"
    if found.followers:
        remedy = "see the logs of the schedulers on standby, then restart one"
    return (
        Finding(
            level=Level.ERROR,
            found=last + waiting,
            expected="one leads",
            remedy=remedy,
        ),
    )


def schedulers(state: State) -> tuple[Finding, ...]:
    """The followers have the leader's version and configuration and a mirror that is up to date,
    and the configuration file of each can be loaded.
    """
    found = state.schedulers
    if found is None:
        return unseen("which schedulers there are", _READS)
    leads = next((one for one in found.there if one.leads), None)
    findings = [
        finding
        for one in found.followers
        for finding in (_of_version(one, leads), _of_config(one, leads), _of_mirror(one))
        if finding is not None
    ]
    findings += [_of_file(one) for one in found.there if one.refused_file and one.role != "silent"]
    findings += [_silent(one) for one in found.there if one.role == "silent"]
    count = len(found.followers)
    return or_ok(findings, f"{count} stand by" if count != 1 else "1 stands by")


def _silent(one: SchedulerSeen) -> Finding:
    return Finding(
        level=Level.NOTE,
        subject=process_of(one.identity),
        found=f"has not reported itself for {describe_age(one.seen_ms_ago)}",
        expected="every few seconds",
        remedy="it was killed, hangs, or has lost the server: see its log, and start it again",
    )


def _of_version(one: SchedulerSeen, leads: SchedulerSeen | None) -> Finding | None:
    if leads is None or one.version == leads.version:
        return None
    return Finding(
        level=Level.WARNING,
        subject=process_of(one.identity),
        found=f"batchq {one.version} stands by, the leader is {leads.version}",
        expected=f"all of {leads.version}",
        remedy="finish the rolling restart: upgrade and restart the older ones, one at a time",
    )


def _of_config(one: SchedulerSeen, leads: SchedulerSeen | None) -> Finding | None:
    if leads is None or not one.config or not leads.config or one.config == leads.config:
        return None
    return Finding(
        level=Level.WARNING,
        subject=process_of(one.identity),
        found=f"stands by with configuration {one.config}, the leader uses {leads.config}",
        expected="the same configuration, so that a change of the leader changes nothing else",
        remedy="give all schedulers the same file: `batchq config print` prints the leader's",
    )


def _of_file(one: SchedulerSeen) -> Finding:
    return Finding(
        level=Level.WARNING,
        subject=process_of(one.identity),
        found="its configuration file is wrong; the former configuration stays in effect, and it"
        " would not start again",
        expected="a file that can be loaded",
        remedy="correct it: `batchq config check FILE` names the line",
    )


def _of_mirror(one: SchedulerSeen) -> Finding | None:
    if one.behind is not None and one.behind < FAR_BEHIND:
        return None
    cold = "has no mirror yet" if one.behind is None else f"is {one.behind} writes behind"
    return Finding(
        level=Level.NOTE if one.behind is None else Level.WARNING,
        subject=process_of(one.identity),
        found=f"stands by and {cold}: it would list everything before its first session",
        expected="a warm mirror",
        remedy="wait a moment; if this does not change, see its log",
    )


def _looks_like(user: str | None) -> str:
    if not user:
        return ""
    if user == "default":
        return " (the server's own, of no role)"
    role = role_by_name(user)
    if not role:
        return ""
    article = "an" if role[0] in "aeiou" else "a"
    return f" (by its name {article} {role})"


def guarantees(state: State) -> tuple[Finding, ...]:
    """The guarantees of all queues together fit on the ready nodes."""
    if state.books is None:
        return unseen("the queues and nodes", _READS)
    over = overpromised(state.queues(), state.nodes())
    return or_ok((_finding(one) for one in over), "within what the ready nodes have")


def _finding(one: Overpromised) -> Finding:
    return Finding(
        level=Level.WARNING,
        subject=one.resource,
        found=f"{one.sentence()}: no queue gets more of it than it is guaranteed",
        expected="no more than the ready nodes have",
        remedy="bring nodes back or add some, or lower guarantees: `batchq queues apply -f FILE`",
    )


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
    return or_ok(findings, f"all node reports are applied ({late} came too late so far)")


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
                *_awaited_nodes(group, state.nodes(), f"cancel it (`batchq cancel {name}`)"),
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


def _awaited_nodes(group: PodGroup, nodes: Sequence[Node], cancel: str) -> tuple[str, str]:
    """Return the nodes that a group waits for, and what to do. A group that no nodes can take may
    ask for names or labels that no node has, or for larger nodes.
    """
    templates = [task.template for task in group.spec.tasks]
    labels = [node.metadata.labels for node in nodes]
    for template in templates:
        if runtime := lacking_runtime(template.node_selector, labels):
            return (
                f"a node with {runtime}",
                f"install {runtime} on a node and restart its worker, or {cancel}",
            )
    absent = [
        key
        for key, mode in group.spec.topology.items()
        if mode == "required" and all(key not in of_node for of_node in labels)
    ]
    if absent or any(no_node_matches(template, nodes) for template in templates):
        return (
            "nodes with the names and labels that its pods ask for",
            f"start workers that have them, or {cancel} and ask for others",
        )
    if any(no_node_tolerated(template, nodes) for template in templates):
        return (
            "nodes whose taints its pods tolerate",
            f"start workers without these taints, or {cancel} and tolerate them",
        )
    return (
        "nodes that are large enough for its pods",
        f"add such nodes, or {cancel} and ask for less",
    )


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
    elif status.phase is PodPhase.BOUND and not status.message:
        since = state.now_ms - (status.bound_at or state.now_ms)
        if since > PATIENCE_MS:
            yield Finding(
                level=Level.WARNING,
                subject=subject,
                found=f"bound to node {status.node} {describe_age(since)} ago, and not started",
                expected="started within seconds",
                remedy=f"see the agent's log on {status.node}, and `outbox` below",
            )
