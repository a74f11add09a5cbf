"""What is wrong with a running system, and what to do about it; `batchq doctor` prints it.

    from batchq.client.doctor import examine

    report = examine()
    for finding in report.findings:
        print(finding.level, finding.subject, finding.found, finding.remedy)

It only reads. `reading` gathers a `State`, a value; each check is a pure function from that to
its findings; `checks` is the table of them all. What this user may not read is a finding, too.
"""

from __future__ import annotations

from pathlib import Path

from batchq.client.doctor.check_table import CHECKS, diagnose
from batchq.client.doctor.system_state import Finding, Level, Report

__all__ = ["CHECKS", "Finding", "Level", "Report", "diagnose", "examine"]


def examine(url: str | None = None, *, config: Path | None = None) -> Report:
    """Look at the server behind `url` (as `Client` finds it) and at everything on it.

    `config` is the schedulers' configuration file, for the times by which a wait is too long.
    Raises InvalidInput for a malformed URL or file, StoreUnavailable if no server answers.
    """
    from batchq.client.doctor.system_state import read_state

    return diagnose(read_state(url, config))
