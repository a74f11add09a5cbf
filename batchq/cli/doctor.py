"""`batchq doctor`: look for problems in a running system, and say what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.output.forms import Output
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.render import is_terminal, one_line
from batchq.cli.output.terminal import EXIT_ERROR, EXIT_WARNINGS, has_colors, paint

if TYPE_CHECKING:
    from batchq.client.doctor import Finding, Report

_SIGNS = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
#: How many findings of one check are shown; -o json has all.
_SHOWN = 10


@click.command(epilog=examples("batchq doctor", "batchq doctor -o json"))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The schedulers' configuration, for its timeouts.  [default: built in]",
)
@output_option("text", "json")
@pass_globals
def doctor(shared: Globals, config: Path | None, output: Output) -> int:
    """Look for problems of the server, schedulers, nodes and ledger, and say what to do.

    The command only reads, and reports what this user may not read. Each line is a finding: ✓ is in
    order, · is a note, ! is a warning of future trouble, ✗ is an error. docs/operations.md explains
    every check.

    Exit codes: 0 nothing worse than notes, 3 warnings, 1 errors, 9 the server cannot be reached or
    refuses this user.
    """
    from batchq.cli.config import checked_config
    from batchq.client.doctor import Level, examine

    checked_config(config)
    report = examine(shared.redis_url, config=config)
    value = {"worst": report.worst, "findings": report.findings}
    output.page(value, lambda: _show(report))
    if report.worst is Level.ERROR:
        return EXIT_ERROR
    return EXIT_WARNINGS if report.worst is Level.WARNING else 0


def _show(report: Report) -> None:
    for line in _lines(report, color=is_terminal() and has_colors()):
        paint(line)


def _lines(report: Report, *, color: bool) -> Iterator[str]:
    width = max(len(finding.check) for finding in report.findings)
    for _, findings in groupby(report.findings, key=lambda finding: finding.check):
        of_check = list(findings)
        for finding in of_check[:_SHOWN]:
            yield from _of_finding(finding, width, color=color)
        if len(of_check) > _SHOWN:
            yield f"  {'':{width}}  and {len(of_check) - _SHOWN} more (-o json lists them)"
    yield ""
    yield _summary(report)


def _of_finding(finding: Finding, width: int, *, color: bool) -> Iterator[str]:
    level = str(finding.level)
    sign = click.style(_SIGNS[level], fg=_COLORS[level]) if color else _SIGNS[level]
    subject = f"{finding.subject}: " if finding.subject else ""
    expected = f"; expected {finding.expected}" if finding.expected else ""
    yield f"{sign} {finding.check:{width}}  {one_line(subject + finding.found + expected)}"
    if finding.remedy:
        yield f"  {'':{width}}  → {one_line(finding.remedy)}"


def _summary(report: Report) -> str:
    from batchq.api.notation import counted
    from batchq.client.doctor import CHECKS, Level

    levels = ((Level.ERROR, "error"), (Level.WARNING, "warning"), (Level.NOTE, "note"))
    counts = [counted(report.count(level), word) for level, word in levels]
    return f"{len(CHECKS)} checks: {', '.join(counts)}"
