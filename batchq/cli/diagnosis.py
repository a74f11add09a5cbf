"""`batchq why`: why a group waits; and `batchq doctor`: what is wrong with a running system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import field

from batchq.api.lifecycle import ADMITTED, TERMINAL, PodGroupPhase
from batchq.api.notation import counted, data_of, describe_age, format_instant
from batchq.api.objects import Condition
from batchq.api.reasons import Explanation, Waiting
from batchq.api.resources import describe, describe_quantity, format_quantity
from batchq.api.views import NO_LEADER, ExpectedStart, Others, Period, QueueShare, Spared, Why
from batchq.cli.group_lists import (
    AwaitedRow,
    OthersRow,
    StartRow,
    others_text,
    start_row,
    start_text,
    waits_for,
)
from batchq.cli.output import (
    EXIT_ERROR,
    EXIT_WARNINGS,
    echo,
    has_colors,
    is_terminal,
    one_line,
    paint,
    show_fields,
    show_section,
    tables,
)
from batchq.cli.output.forms import Length, Output, Row, Time
from batchq.cli.output.options import (
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import group_key
from batchq.errors import BatchqError, NotFound

if TYPE_CHECKING:
    from batchq.client import Client
    from batchq.client.doctor import Finding, Report

#: Reasons that end when other groups end.
_ENDS_WITH_OTHERS = (
    Waiting.WAITING_FOR_QUOTA,
    Waiting.WAITING_FOR_RESOURCES,
    Waiting.WAITING_FOR_PREEMPTION,
)

_MOST_RESTARTS = 5


def show_why(why: Why, *, history: bool) -> None:
    """Print one sentence, the reasons, and the other facts that decide."""
    echo(one_line(_sentence(why)))
    for restart in why.restarts[:_MOST_RESTARTS]:
        echo(one_line(f"  {restart}"))
    for place, reason in enumerate(why.reasons, start=1):
        echo(one_line(f"  {place}. {reason.reason}: {reason.message}"))
        if reason.remedy:
            echo(one_line(f"     -> {reason.remedy}"))
    for reason in why.former:
        text = f"  -  {reason.reason}, as of revision {reason.revision}, no longer: "
        echo(one_line(text + reason.message))
    echo()
    show_fields(_fields(why))
    show_section("No victims", list(_spared(why)))
    show_section(
        "Conditions",
        [
            (
                one.type,
                one.status,
                one.reason,
                format_instant(one.last_transition_time),
                one.message,
            )
            for one in why.conditions
        ],
    )
    if history:
        show_section("History", [_period_row(period, why.at) for period in why.history])


def _sentence(why: Why) -> str:
    age = describe_age(why.at - why.since)
    where = f" on {', '.join(why.nodes)}" if why.nodes else ""
    match why.phase:
        case PodGroupPhase.PENDING:
            place = "" if why.position is None else f", position {why.position}"
            state = f"{why.key} is {why.shown} in queue {why.queue}{place}, for {age}"
        case phase if phase in TERMINAL:
            ending = f": {why.ending}" if why.ending else ""
            state = f"{why.key} is {phase}, ended {age} ago{ending}"
        case phase:
            state = f"{why.key} is {phase} for {age}{where}{_waiting_pods(why)}"
    if why.phase in TERMINAL:
        return state
    next_step = f"; {why.next}" if why.next else ""
    if not next_step and not why.reasons and why.phase == PodGroupPhase.PENDING:
        next_step = "; nothing prevents its start any more"
    return state + next_step


def _waiting_pods(why: Why) -> str:
    """Return how many pods of a running group run and wait; '' if none waits for a reason."""
    pods = why.view.pods
    waiting = pods.wanted - pods.bound - pods.running - pods.succeeded - pods.failed
    if why.phase != PodGroupPhase.RUNNING or not why.reasons or waiting <= 0:
        return ""
    runs = "runs" if pods.running == 1 else "run"
    waits = "waits" if waiting == 1 else "wait"
    return f"; {pods.running} of {counted(pods.wanted, 'pod')} {runs}, {waiting} {waits}"


def _fields(why: Why) -> list[tuple[str, str]]:
    waits = why.phase == PodGroupPhase.PENDING
    start = _start(why, why.start) if why.start is not None else ""
    return [
        ("No scheduler", "" if why.led or why.phase in TERMINAL else why.unled or NO_LEADER),
        ("Ahead", others_text(why.ahead) if waits else ""),
        ("Ever", _ever_text(why)),
        ("Expected", _expected(why)),
        ("Earliest", start),
        ("Backfill", _backfilling(why)),
        ("Queue", _queue(why)),
        ("Borrowed", "; ".join(_borrowers(why)) if waits else ""),
        ("Pledge", "" if why.awaits is None else tables.awaited_text(why.awaits)),
        ("Backs off", "" if why.backoff_until is None else _until(why, why.backoff_until)),
        ("Evicted", why.evicted),
        ("Evictions", counted(why.evictions, "time") if why.evictions else ""),
        ("Waited", _waited(why)),
        ("As of", f"{format_instant(why.at)}, revision {why.revision}"),
    ]


def _ever_text(why: Why) -> str:
    """Say whether it can ever run; for waiting groups, and admitted ones that will not start."""
    if why.ever:
        return f"no: {why.ever}"
    if why.phase != PodGroupPhase.PENDING or not why.reasons:
        return ""
    if why.missing_nodes:
        return f"yes, when more nodes take pods: {why.missing_nodes}"
    if all(reason.reason in _ENDS_WITH_OTHERS for reason in why.reasons):
        return "yes, it fits when other groups have ended"
    return "yes, once the reasons above no longer apply"


def _until(why: Why, at: int) -> str:
    return f"until {_at(why, at)}"


def _expected(why: Why) -> str:
    """Return when it starts, counting the groups ahead; '' if the reasons explain it already."""
    expected, start = why.expected, why.start
    if expected is None:
        return ""
    if expected.at is None:
        explanation = not expected.behind.count and (
            start is None
            or start.at is None
            or any(expected.why.startswith(f"{reason.reason}: ") for reason in why.reasons)
        )
        return "" if explanation else f"not known: {waits_for(expected)}"
    if expected.at <= why.at:
        return "with the next session"
    return f"{start_text(expected, why.at)}, counting the groups ahead"


def _backfilling(why: Why) -> str:
    """Return its reservation, and why it does not go ahead."""
    position = why.backfilling
    if position is None:
        return ""
    if position.head_at is None:
        mine = position.head == why.key
        start = "its start" if mine else f"the start of {position.head}"
        return f"{start} is unknown: no group goes ahead"
    parts = []
    if position.reserved_at is not None:
        at = _at(why, position.reserved_at)
        parts.append(f"has a reservation at {at}: backfilled groups do not delay it")
    if position.delays and position.delayed_at is not None:
        at = _at(why, position.delayed_at)
        parts.append(f"now it would delay {position.delays}, which has a reservation at {at}")
    elif position.fits_now and position.head != why.key:
        parts.append(f"the limits admit it beside {position.head}, but no node takes it now")
    elif position.head != why.key:
        parts.append("does not fit beside what runs now")
    return "; ".join(parts)


def _at(why: Why, at: int) -> str:
    return f"{format_instant(at)} (in {describe_age(at - why.at)})"


def _start(why: Why, start: ExpectedStart) -> str:
    if why.ever or why.missing_nodes:
        return ""
    if why.reserved and not _counts_on_ends(why):
        return "its quota is reserved"
    if start.at is None:
        # A cause that other groups' ends do not change is the first of the reasons already.
        explanation = any(start.why.startswith(f"{reason.reason}: ") for reason in why.reasons)
        return "" if explanation else f"not known: {start.why}"
    if start.at <= why.at:
        return "there is free capacity now"
    when = _at(why, start.at)
    ends = f", when {others_text(start.ends)} {_ended(start.ends)}" if start.ends.count else ""
    unless = ", unless groups ahead take it" if why.ahead.count else ""
    return f"{when}{ends}{unless}"


def _counts_on_ends(why: Why) -> bool:
    """Return whether a group with a reservation waits for its victims only."""
    checks = any(reason.reason == Waiting.WAITING_FOR_CHECKS for reason in why.reasons)
    return why.awaits is not None and not checks


def _ended(others: Others) -> str:
    return "has ended" if others.count == 1 else "have ended"


def _queue(why: Why) -> str:
    share = why.queue_share
    if share is None:
        return ""
    if share.share is None:
        return f"{share.name} holds and deserves nothing"
    held = [
        f"{name} {describe_quantity(name, share.charged.get(name, 0))}"
        f" of {describe_quantity(name, units)}"
        for name, units in share.deserved.items()
    ]
    holds = f" holds {', '.join(held)} deserved;" if held else ":"
    return f"{share.name}{holds} share {share.share}"


def _borrowers(why: Why) -> Iterator[str]:
    """Yield the queues that hold what the group's queue deserves."""
    share = why.queue_share
    for name, amounts in share.borrowers.items() if share is not None else ():
        yield f"queue {name} holds {describe(amounts)} that {why.queue} deserves"


def _spared(why: Why) -> Iterator[tuple[str, ...]]:
    for spared in why.spared:
        for line in spared.reasons:
            yield spared.action, line


def _waited(why: Why) -> str:
    """Return the total wait by reason, the longest first."""
    parts = [
        f"{describe_age(units)} for {name}" for name, units in why.waited.items() if units >= 1000
    ]
    return ", ".join(parts)


def _period_row(period: Period, now_ms: int) -> tuple[str, ...]:
    lasted = describe_age(period.lasted(now_ms))
    still = " so far" if period.until is None and period.phase not in TERMINAL else ""
    reasons = ", ".join(period.reasons)
    lasts = "" if period.until is None and period.phase in TERMINAL else f"{lasted}{still}"
    return format_instant(period.at), lasts, str(period.phase), reasons, period.note


class _ReasonWithNumbers(Row, frozen=True):
    """A reason for waiting; the numbers are quantities of the resource."""

    reason: Waiting
    message: str
    plugin: str
    subject: str
    resource: str
    need: str | None
    limit: str | None
    seen: str | None
    free: str | None
    remedy: str
    revision: int


class _EarliestRow(Row, frozen=True):
    at: Time | None
    ends: OthersRow
    why: str


class _BackfillRow(Row, frozen=True):
    head: str
    head_at: Time | None = field(name="headStart")
    reserved_at: Time | None = field(name="reservation")
    fits_now: bool
    delays: str | None
    longest_ms: Length | None = field(name="longestWalltime")


class _PeriodRow(Row, frozen=True):
    at: Time
    until: Time | None
    seconds: int
    phase: PodGroupPhase
    reasons: tuple[str, ...]
    note: str


class _WhyRow(Row, frozen=True):
    key: str = field(name="podGroup")
    queue: str
    priority: int
    phase: PodGroupPhase
    shown: str
    at: Time
    revision: int
    since: Time
    created_at: Time = field(name="submittedAt")
    started_at: Time | None
    finished_at: Time | None
    nodes: tuple[str, ...]
    ending: str
    led: bool = field(name="schedulerLeads")
    next: str
    reasons: tuple[_ReasonWithNumbers, ...]
    former: tuple[_ReasonWithNumbers, ...]
    reserved: bool
    position: int | None
    ahead: OthersRow
    ever_possible: bool | None
    ever: str = field(name="neverBecause")
    missing_nodes: str
    restarts: tuple[str, ...]
    expected: StartRow | None = field(name="expectedStart")
    start: _EarliestRow | None = field(name="earliestStart")
    backfilling: _BackfillRow | None = field(name="backfill")
    spared: tuple[Spared, ...]
    queue_share: QueueShare | None
    awaits: AwaitedRow | None
    backoff_until: Time | None
    evictions: int
    evicted: str
    conditions: tuple[Condition, ...]
    waited_seconds: dict[str, int]
    history: tuple[_PeriodRow, ...]


def row_of(why: Why) -> dict[str, object]:
    """Return the JSON form: amounts as quantities, times in RFC 3339."""
    position = why.backfilling
    row = _WhyRow.of(
        why,
        reasons=tuple(map(_reason_row, why.reasons)),
        former=tuple(map(_reason_row, why.former)),
        ever_possible=_ever(why),
        expected=None if why.expected is None else start_row(why.expected, why.at),
        backfilling=position and _BackfillRow.of(position, delays=position.delays or None),
        waited_seconds={name: units // 1000 for name, units in why.waited.items()},
        history=tuple(
            _PeriodRow.of(period, seconds=period.lasted(why.at) // 1000) for period in why.history
        ),
    )
    return data_of(row)


def _ever(why: Why) -> bool | None:
    """Return whether it can ever run; None if it has run already."""
    if why.ever:
        return False
    return None if why.phase in TERMINAL or why.phase in ADMITTED else True


def _reason_row(one: Explanation) -> _ReasonWithNumbers:
    numbers = {"need": one.need, "limit": one.limit, "seen": one.seen, "free": one.free}
    written = {
        name: None if units is None else format_quantity(one.resource, units)
        for name, units in numbers.items()
    }
    return _ReasonWithNumbers.of(one, **written)


@click.command(
    epilog=examples(
        "batchq why train-1",
        "batchq why research/train-1 -o json",
        "batchq why train-1 --history",
        "batchq explain train-1",
    )
)
@click.argument("name")
@namespace_option
@click.option("--history", is_flag=True, help="Also show each change of phase and reasons.")
@output_option("text", "json", "yaml")
@pass_globals
def why(shared: Globals, name: str, namespace: str, history: bool, output: Output) -> None:
    """Explain why the group NAME waits, and what to do about it.

    Shows all reasons, the most fundamental first, with their numbers; its position in line, and the
    groups ahead; why no victims are evicted for it; whether it can ever run; when capacity will be
    free according to walltimes, and when it is expected to start, counting the groups ahead; and in
    a backfilled queue, its reservation and the groups that it would delay. For a group that no
    longer waits: its nodes or how it ended, and why it had waited.

    The numbers are current: the scheduler's own session runs here on the current state, and its
    decisions are discarded. Groups of other namespaces are only counted.

    Exit codes: 0 explained, 1 this machine cannot use the scheduler's configuration, 6 there is no
    such group.
    """
    with shared.connect() as client:
        try:
            explanation = client.why(group_key(name, namespace))
        except NotFound as error:
            if _is_node(client, name):
                raise NotFound(
                    error.message,
                    hint=f"{name} is a node: `batchq describe node {name}` shows its state",
                ) from None
            raise
    output.page(row_of(explanation), lambda: show_why(explanation, history=history))


def _is_node(client: Client, name: str) -> bool:
    # A user of the API may not be allowed to see nodes.
    with suppress(BatchqError):
        return any(node.metadata.name == name for node in client.nodes())
    return False


_SIGNS = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
_COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
#: How many findings of one check are shown; -o json has all.
_MOST_SHOWN = 10


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
    output.page(value, lambda: _show_report(report))
    if report.worst is Level.ERROR:
        return EXIT_ERROR
    return EXIT_WARNINGS if report.worst is Level.WARNING else 0


def _show_report(report: Report) -> None:
    for line in _report_lines(report, color=is_terminal() and has_colors()):
        paint(line)


def _report_lines(report: Report, *, color: bool) -> Iterator[str]:
    width = max(len(finding.check) for finding in report.findings)
    for _, findings in groupby(report.findings, key=lambda finding: finding.check):
        of_check = list(findings)
        for finding in of_check[:_MOST_SHOWN]:
            yield from _of_finding(finding, width, color=color)
        if len(of_check) > _MOST_SHOWN:
            yield f"  {'':{width}}  and {len(of_check) - _MOST_SHOWN} more (-o json lists them)"
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
