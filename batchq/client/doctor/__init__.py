"""What is wrong with a running system, and what to do about it; `batchq doctor` prints it.

    from batchq.client.doctor import examine

    report = examine()
    for finding in report.findings:
        print(finding.level, finding.subject, finding.found, finding.remedy)

It only reads. `read_state` gathers a `State`, a value; each check is a pure function from it to its
findings; `CHECKS` is the table of all checks. Missing rights to read are a finding, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import structs

from batchq.client.doctor.cluster import (
    agents,
    dependencies,
    devices,
    groups,
    guarantees,
    inboxes,
    leader,
    nodes,
    outbox,
    permissions,
    pods,
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
    ledger,
    libraries,
    limits,
    memory,
    persistence,
    records,
    role,
    uptime,
    version,
    writing,
)
from batchq.client.doctor.system_state import Finding, Level, Report, State, read_state

__all__ = ["CHECKS", "Finding", "Level", "Report", "diagnose", "examine"]


def examine(url: str | None = None, *, config: Path | None = None) -> Report:
    """Examine the server at `url` (resolved as `Client` does) and everything on it.

    `config` is the schedulers' configuration file, for the timeouts that make a wait too long.
    Raises InvalidInput for a malformed URL or file, StoreUnavailable if no server answers.
    """
    return diagnose(read_state(url, config))


#: A pure function, named as its check; its docstring says what holds on a healthy system.
Check: TypeAlias = Callable[[State], tuple[Finding, ...]]

CHECKS: tuple[Check, ...] = (
    version,
    role,
    eviction,
    evicted,
    persistence,
    writing,
    memory,
    connections,
    latency,
    uptime,
    clock,
    permissions,
    leader,
    schedulers,
    nodes,
    reported,
    agents,
    protocols,
    devices,
    guarantees,
    groups,
    dependencies,
    pods,
    outbox,
    inboxes,
    records,
    ledger,
    limits,
    home,
    libraries,
    batchq,
)


def diagnose(state: State) -> Report:
    """Return the findings of all checks."""
    return Report(
        findings=tuple(
            structs.replace(finding, check=check.__name__)
            for check in CHECKS
            for finding in check(state)
        )
    )
