"""The table of all checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from batchq.client.doctor.groups_and_pods import dependencies, groups, inboxes, outbox, pods
from batchq.client.doctor.nodes import (
    agents,
    guarantees,
    leader,
    nodes,
    permissions,
    protocols,
    reported,
    schedulers,
)
from batchq.client.doctor.servers import (
    batchq,
    clock,
    connections,
    evicted,
    eviction,
    home,
    latency,
    libraries,
    memory,
    persistence,
    role,
    uptime,
    version,
    writing,
)
from batchq.client.doctor.stored import ledger, limits, records
from batchq.client.doctor.system_state import Finding, Report, State


class Check(Struct, frozen=True):
    """`run` is a pure function; its docstring says what holds where all is well."""

    name: str
    run: Callable[[State], tuple[Finding, ...]]


CHECKS: tuple[Check, ...] = (
    Check("version", version),
    Check("role", role),
    Check("eviction", eviction),
    Check("evicted", evicted),
    Check("persistence", persistence),
    Check("writing", writing),
    Check("memory", memory),
    Check("connections", connections),
    Check("latency", latency),
    Check("uptime", uptime),
    Check("clock", clock),
    Check("permissions", permissions),
    Check("leader", leader),
    Check("schedulers", schedulers),
    Check("nodes", nodes),
    Check("reported", reported),
    Check("agents", agents),
    Check("protocols", protocols),
    Check("guarantees", guarantees),
    Check("groups", groups),
    Check("dependencies", dependencies),
    Check("pods", pods),
    Check("outbox", outbox),
    Check("inboxes", inboxes),
    Check("records", records),
    Check("ledger", ledger),
    Check("limits", limits),
    Check("home", home),
    Check("libraries", libraries),
    Check("batchq", batchq),
)


def diagnose(state: State) -> Report:
    """What all checks say of a state."""
    return Report(findings=tuple(finding for check in CHECKS for finding in check.run(state)))
