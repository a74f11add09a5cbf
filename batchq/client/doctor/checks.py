"""The table of all checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from batchq.client.doctor import books, machine, nodes, people, queues, records, server, work
from batchq.client.doctor.finding import Finding, Report
from batchq.client.doctor.state import State


class Check(Struct, frozen=True):
    """`run` is a pure function; its docstring says what holds where all is well."""

    name: str
    run: Callable[[State], tuple[Finding, ...]]


CHECKS: tuple[Check, ...] = (
    Check("version", server.version),
    Check("role", server.role),
    Check("eviction", server.eviction),
    Check("evicted", server.evicted),
    Check("persistence", server.persistence),
    Check("writing", server.writing),
    Check("memory", server.memory),
    Check("connections", server.connections),
    Check("latency", server.latency),
    Check("uptime", server.uptime),
    Check("clock", server.clock),
    Check("permissions", people.permissions),
    Check("leader", people.leader),
    Check("schedulers", people.schedulers),
    Check("nodes", nodes.nodes),
    Check("reported", nodes.reported),
    Check("agents", nodes.agents),
    Check("protocols", nodes.protocols),
    Check("guarantees", queues.guarantees),
    Check("groups", work.groups),
    Check("dependencies", work.dependencies),
    Check("pods", work.pods),
    Check("outbox", work.outbox),
    Check("inboxes", work.inboxes),
    Check("records", records.records),
    Check("ledger", books.ledger),
    Check("limits", books.limits),
    Check("home", machine.home),
    Check("libraries", machine.libraries),
    Check("batchq", machine.batchq),
)


def diagnose(state: State) -> Report:
    """What all checks say of a state."""
    return Report(findings=tuple(finding for check in CHECKS for finding in check.run(state)))
