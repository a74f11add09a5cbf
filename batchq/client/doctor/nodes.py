"""Checks of nodes: whether there are any, and whether each can be given work."""

from __future__ import annotations

from collections import defaultdict

from batchq.api.facts import AGENT_ANNOTATION, PROTOCOL, PROTOCOL_ANNOTATION, SPOILED
from batchq.api.objects import Node
from batchq.api.times import SECOND, describe_age
from batchq.client.doctor.finding import Finding, Level, ok, or_ok, unseen
from batchq.client.doctor.state import State

_READS = "reading (`+@read`) of batchq's keys"
#: Three of an agent's usual beats.
SILENT_MS = 15 * SECOND


def nodes(state: State) -> tuple[Finding, ...]:
    """There are nodes, they are ready, heard of lately, and take pods."""
    check = "nodes"
    if state.books is None:
        return unseen(check, "the nodes", _READS)
    found = state.nodes()
    if not found:
        return (
            Finding(
                check=check,
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
                check=check,
                level=Level.ERROR,
                found=f"none of {len(found)} nodes is ready: nothing can start",
                expected="one at least",
                remedy="see whether their agents run (`batchq worker`) and reach the server",
            ),
        )
    return or_ok(findings, check, f"{len(ready)} ready")


def protocols(state: State) -> tuple[Finding, ...]:
    """Agents speak a protocol at most one away from this batchq's."""
    check = "protocols"
    if state.books is None:
        return unseen(check, "the nodes", _READS)
    findings = []
    for node in state.nodes():
        said = node.metadata.annotations.get(PROTOCOL_ANNOTATION, "")
        apart = abs(int(said) - PROTOCOL) if said.isdigit() else 0
        if node.status.ready and apart:
            findings.append(
                Finding(
                    check=check,
                    level=Level.NOTE if apart == 1 else Level.ERROR,
                    subject=f"Node {node.metadata.name}",
                    found=f"its agent speaks protocol {said}, this batchq {PROTOCOL}",
                    expected="the same, or, while an upgrade is under way, the one beside it",
                    remedy="upgrade the older of the two, step by step if they are further apart",
                )
            )
    return or_ok(findings, check, f"all agents understand protocol {PROTOCOL}")


def reported(state: State) -> tuple[Finding, ...]:
    """Since the server's last start every ready node has said what runs on it."""
    check = "reported"
    if state.books is None:
        return unseen(check, "what nodes have said since the server's start", _READS)
    standing = state.books.standing
    if standing.restarted_at is None:
        return ok(check, "no start of the server is on record")
    since_ms = max(0, state.now_ms - standing.restarted_at)
    late = since_ms > state.settings.pod_lease_ms
    findings = [
        Finding(
            check=check,
            level=Level.WARNING if late else Level.NOTE,
            subject=f"Node {node.metadata.name}",
            found=f"has not said what runs on it since the server's start {describe_age(since_ms)}"
            " ago; nothing is bound anywhere until it has, or a lease is over",
            expected="within a few beats",
            remedy="see its agent's log; restart the agent, which adopts what still runs",
        )
        for node in state.nodes()
        if node.status.ready and node.metadata.name not in standing.reported
    ]
    return or_ok(findings, check, "every ready node has, since the server's start")


def agents(state: State) -> tuple[Finding, ...]:
    """No agent serves two names, and no name is asked for by two agents."""
    check = "agents"
    if state.books is None:
        return unseen(check, "the nodes", _READS)
    served: dict[str, list[str]] = defaultdict(list)
    for node in state.nodes():
        agent = node.metadata.annotations.get(AGENT_ANNOTATION, "")
        if agent and node.status.ready:
            served[agent].append(node.metadata.name)
    findings = [
        Finding(
            check=check,
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
                check=check,
                level=Level.ERROR,
                subject=f"Node {name}",
                found=f"two agents serve it: {agent} and {other}",
                expected="one agent for one name",
                remedy="stop one, or start it under another name: `batchq worker --name NAME`",
            )
        )
    return or_ok(findings, check, "each node has one agent")


_TO_PROCESSES = "look at these processes on its machine; restart the machine if they stay"
_TO_SPOILED = (
    "it is back some seconds after the last of it was taken out; if it stays away, see who else has"
    " the credentials of its worker, and give that others"
)


def _of_node(state: State, node: Node) -> Finding | None:
    name = node.metadata.name
    subject = f"Node {name}"
    heard_at = state.beats.get(name, node.status.heartbeat)
    silent_ms = None if heard_at is None else max(0, state.now_ms - heard_at)
    heard = "was never heard of" if silent_ms is None else f"heard of {describe_age(silent_ms)} ago"
    if node.status.reason and not node.status.ready:
        return Finding(
            check="nodes",
            level=Level.WARNING,
            subject=subject,
            found=f"out of service: {node.status.reason}",
            expected="ready",
            remedy=_TO_SPOILED if node.status.reason.startswith(SPOILED) else _TO_PROCESSES,
        )
    if not node.status.ready:
        return Finding(
            check="nodes",
            level=Level.WARNING,
            subject=subject,
            found=f"not ready, {heard}",
            expected="ready",
            remedy=f"start its agent (`batchq worker`), or forget it: `batchq delete node {name}`",
        )
    if silent_ms is not None and silent_ms > SILENT_MS:
        return Finding(
            check="nodes",
            level=Level.WARNING,
            subject=subject,
            found=f"silent, {heard}",
            expected=f"a beat within {SILENT_MS // SECOND} s",
            remedy="see whether its machine is up and its agent runs, and the network between",
        )
    if node.spec.unschedulable:
        return Finding(
            check="nodes",
            level=Level.NOTE,
            subject=subject,
            found="cordoned: no pods come to it",
            expected="open, unless somebody works on it",
            remedy=f"`batchq nodes uncordon {name}` when that is done",
        )
    return None
