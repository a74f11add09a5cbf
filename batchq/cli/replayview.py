"""What `batchq replay` shows: its report, how it compares with the simulator, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchq.replaying.comparing import Comparison, Differing
    from batchq.replaying.live import Standing
    from batchq.replaying.report import ReplayReport

_MOST_PROBLEMS = 20
_MOST_PAIRS = 10


def as_table(report: ReplayReport) -> Iterator[str]:
    """The report for people."""
    yield f"Jobs                   {report.jobs}"
    yield f"Finished exactly once  {report.finished_exactly_once}"
    for problem in report.problems[:_MOST_PROBLEMS]:
        yield f"    {problem}"
    if len(report.problems) > _MOST_PROBLEMS:
        yield f"    … and {len(report.problems) - _MOST_PROBLEMS} more"
    yield f"Wait, mean             {_seconds(report.mean_wait_s)}"
    yield f"Wait, median           {_seconds(report.median_wait_s)}"
    yield f"Wait, 95 % within      {_seconds(report.p95_wait_s)}"
    yield f"Bounded slowdown, mean {_decimal(report.mean_bounded_slowdown)}"
    yield f"Utilisation            {_percent(report.utilisation)}"
    yield f"Makespan               {_seconds(report.makespan_s)}"
    yield (
        f"Times are the log's: {report.speed:g} s of it in one, so 100 ms of the daemon's are"
        f" {report.speed / 10:g} s here."
    )
    yield (
        f"Real: {report.real_s:.1f} s; a pod ran {_decimal(report.mean_overhead_real_ms)} ms"
        " longer than asked, on the average."
    )


def compared(comparison: Comparison) -> Iterator[str]:
    """How the order of starts compares with the simulator's, for people."""
    from batchq.replaying.comparing import CAUSES

    turned = len(comparison.differing)
    yield (
        f"Against simulate       {comparison.same} of {comparison.pairs} pairs of jobs start in the"
        f" same order; Kendall's tau {_tau(comparison.tau)}"
    )
    if not turned:
        yield "    The orders of starts agree."
        return
    yield f"    {turned} start in the other order:"
    for cause, count in comparison.causes.items():
        if count:
            yield f"    {count:>6}  {cause}: {CAUSES[cause]}"
    ranked = sorted(comparison.differing, key=lambda one: list(CAUSES).index(one.cause))
    for one in ranked[::-1][:_MOST_PAIRS]:
        yield f"    {_pair(one)}"
    if turned > _MOST_PAIRS:
        yield f"    … and {turned - _MOST_PAIRS} more; -o json has them all"
    yield f"    The slowest submit or start of a process took {comparison.latency_ms} ms (real)."


def _pair(one: Differing) -> str:
    return (
        f"job {one.first} starts {one.simulated_apart_s:,.0f} s before job {one.then} in the"
        f" simulation, and {-one.replayed_apart_s:,.1f} s after it here ({one.cause})"
    )


def as_json(report: ReplayReport, comparison: Comparison | None) -> str:
    """The report for programs; `against` is there if a comparison was asked for."""
    import msgspec

    written = {"apiVersion": "batchq/v1", "kind": "ReplayReport", **msgspec.to_builtins(report)}
    if comparison is not None:
        written["against"] = msgspec.to_builtins(comparison)
    return json.dumps(written, indent=2)


def in_words(now: Standing) -> str:
    """`12 running, 3 waiting, the next in 4 s`."""
    rest = "all submitted" if now.next_in_s is None else f"the next in {now.next_in_s:.0f} s"
    return f"{now.running} running, {now.waiting} waiting, {rest}"


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
