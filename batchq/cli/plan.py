"""`batchq plan`: what would happen to a submission, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from msgspec import field

from batchq.api.intents import Eviction
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import (
    SECOND,
    counted,
    data_of,
    describe_age,
    format_duration,
    format_instant,
)
from batchq.api.objects import API_VERSION
from batchq.api.resources import describe
from batchq.api.views import Advice, Awaited, GroupPlan, Outcome, Plan
from batchq.cli.group_lists import ReasonRow
from batchq.cli.objects import located_in
from batchq.cli.output import echo, show_fields, show_section, show_warning
from batchq.cli.output.forms import Length, Output, Quantities, Row, Time
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.tables import lost_text
from batchq.cli.output.values import warn_no_leader
from batchq.cli.request_options import check_request, request_options, requested

_MOST_AHEAD = 5
_MOST_NODES = 8
_MOST_DELAYED = 10


def show_plan(plan: Plan) -> None:
    """Print each group, then the effect on other groups."""
    for place, group in enumerate(plan.groups):
        if place:
            echo()
        _show_group(plan, group)
    show_section("Evicted for this", _victims(plan.evicted))
    show_section("Delayed by this", [(key,) for key in _few(plan.delayed, _MOST_DELAYED)])
    show_section("Assumed as applied", [(change,) for change in plan.changes])


class _PlanAwaitedRow(Row, frozen=True):
    pods: int
    groups: tuple[str, ...] = field(name="podGroups")
    within_ms: Length = field(name="within")


class _GroupPlanRow(Row, frozen=True):
    name: str
    namespace: str
    queue: str
    priority: int
    request: Quantities
    outcome: Outcome
    phase: PodGroupPhase
    reserved: bool
    nodes: dict[str, int]
    awaits: _PlanAwaitedRow | None
    checks: tuple[str, ...]
    blockers: tuple[ReasonRow, ...] = field(name="reasons")
    position: int | None
    ahead: tuple[str, ...]
    expected_start: Time | None
    earliest_start: Time | None
    after: tuple[str, ...]
    never: str = field(name="neverBecause")
    ending: str
    advice: tuple[Advice, ...]


class _VictimRow(Row, frozen=True):
    """A victim; `lost` is in units of the resource times seconds."""

    key: str = field(name="podGroup")
    queue: str
    whole: bool
    pods: tuple[str, ...]
    by: str | None
    action: str | None
    reason: str
    lost: Quantities


class _PlanRow(Row, frozen=True):
    outcome: Outcome
    exit_code: int
    at: Time
    groups: tuple[_GroupPlanRow, ...] = field(name="podGroups")
    evicted: tuple[_VictimRow, ...]
    delayed: tuple[str, ...]
    changes: tuple[str, ...]
    warnings: tuple[str, ...]


def plan_row(plan: Plan) -> dict[str, object]:
    """Return the JSON form: amounts as quantities, times in RFC 3339."""
    row = _PlanRow.of(
        plan,
        groups=tuple(map(_group_row, plan.groups)),
        evicted=tuple(
            _VictimRow.of(one, by=one.by or None, action=one.action or None) for one in plan.evicted
        ),
    )
    return data_of(row)


def _group_row(group: GroupPlan) -> _GroupPlanRow:
    namespace, _, name = group.key.partition("/")
    return _GroupPlanRow.of(group, name=name, namespace=namespace)


def _show_group(plan: Plan, group: GroupPlan) -> None:
    show_fields(
        [
            ("PodGroup", group.key),
            ("Queue", _queue(group)),
            ("Priority", str(group.priority) if group.priority else ""),
            ("Requests", describe(group.request)),
            ("Would", _would(plan, group)),
            ("Nodes", _nodes(group.nodes)),
            ("Ever", f"no: {group.never}" if group.never else ""),
            ("Expected", _expected(plan, group)),
            ("Earliest", _earliest(plan, group)),
            ("Ahead", ", ".join(_few(group.ahead, _MOST_AHEAD))),
        ]
    )
    show_section(
        "Why",
        [
            (f"{place}. {one.reason}", one.message)
            for place, one in enumerate(group.blockers, start=1)
        ],
    )
    show_section("What would help", [(advice.sentence,) for advice in group.advice])


def _queue(group: GroupPlan) -> str:
    return f"{group.queue}, position {group.position}" if group.position else group.queue


def _would(plan: Plan, group: GroupPlan) -> str:
    """Return what would happen to it, in one line."""
    match group.outcome:
        case Outcome.NEVER if group.ending:
            return f"end as {group.phase} at once: {group.ending}"
        case Outcome.NEVER:
            return "never start with the current queues, quotas and nodes"
        case Outcome.WAITS:
            return _waits(plan, group)
        case _:
            pass
    others = sum(len(one.pods) for one in plan.evicted if one.by == group.key)
    if group.awaits is not None:
        return f"start when {_awaited(group.awaits)}"
    evicted = f"; {counted(others, 'pod')} of others evicted" if others else ""
    if group.external:
        return f"be admitted now, for a consumer to claim{evicted}"
    pods = sum(group.nodes.values())
    part = "" if pods >= group.replicas else f" with {pods} of {counted(group.replicas, 'pod')}"
    return f"start now{part}{evicted}"


def _waits(plan: Plan, group: GroupPlan) -> str:
    if group.awaits is not None and not group.checks:
        return f"wait: it starts when {_awaited(group.awaits)}"
    if group.reserved and group.checks:
        when = "already now" if any(one.by == group.key for one in plan.evicted) else "only then"
        later = "" if group.awaits is None else f"; others are evicted for it {when}"
        return f"reserve its quota, and wait for {_listed_checks(group.checks)}{later}"
    if group.phase != "Pending":
        return "be admitted, and wait for nodes"
    return "wait"


def _listed_checks(checks: Sequence[str]) -> str:
    return f"the check{'' if len(checks) == 1 else 's'} {', '.join(checks)}"


def _awaited(awaits: Awaited) -> str:
    """Return e.g. `2 pods of default/a have ended, within 30s`."""
    whose = ", ".join(_few(awaits.groups, _MOST_AHEAD))
    victims_text = f"{counted(awaits.pods, 'pod')} of {whose}" if awaits.pods else whose
    have = "has" if awaits.pods == 1 or (not awaits.pods and len(awaits.groups) == 1) else "have"
    within = -(-awaits.within_ms // SECOND) * SECOND
    return f"{victims_text} {have} ended, within {format_duration(within)}"


def _nodes(nodes: Mapping[str, int]) -> str:
    """Return e.g. `n1 (2 pods), n2 (1 pod)`."""
    texts = [f"{name} ({counted(count, 'pod')})" for name, count in nodes.items()]
    return ", ".join(_few(texts, _MOST_NODES))


def _expected(plan: Plan, group: GroupPlan) -> str:
    """Return when it is expected to start, counting the groups ahead."""
    at = group.expected_start
    if at is None:
        return ""
    whole = -(-at // SECOND) * SECOND
    when = f"{format_instant(whole)} (in {describe_age(at - plan.at)})"
    return f"{when}, counting the groups ahead"


def _earliest(plan: Plan, group: GroupPlan) -> str:
    """Return when capacity is free according to walltimes, if no other group takes it."""
    at = group.earliest_start
    if at is None:
        return ""
    ended = f", when {', '.join(_few(group.after, _MOST_AHEAD))} must have ended"
    whole = -(-at // SECOND) * SECOND
    return (
        f"{format_instant(whole)} (in {describe_age(at - plan.at)}{ended if group.after else ''})"
    )


def _few(names: Sequence[str], most: int) -> list[str]:
    more = len(names) - most
    return [*names[:most], *([f"and {more} more"] if more > 0 else [])]


def _victims(evicted: Sequence[Eviction]) -> list[tuple[str, ...]]:
    if not evicted:
        return []
    rows: list[tuple[str, ...]] = [("POD GROUP", "QUEUE", "BY", "GIVES", "WORK LOST")]
    for victim in evicted:
        gives = counted(len(victim.pods), "pod")
        rows.append(
            (
                victim.key,
                victim.queue,
                victim.action or victim.reason,
                f"all of it, {gives}" if victim.whole else gives,
                lost_text(victim.lost),
            )
        )
    return rows


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=examples(
        "batchq plan --cpus 1 -- python3 train.py",
        "batchq plan --name train -N 4 --cpus 8 --priority-class high -- ./train",
        "batchq plan -f conf/examples/sweep.yaml",
        "batchq plan --cpus 4 -o json -- true",
        "batchq plan --gpus 1 -- ./train && batchq submit --gpus 1 -- ./train",
    ),
)
@request_options
@click.option(
    "--no-advice", is_flag=True, help="Do not look for changes that would help; this is faster."
)
@output_option("text", "json")
@pass_globals
def plan(shared: Globals, /, command: tuple[str, ...], output: Output, **options: Any) -> int:
    """Show what the scheduler would decide about COMMAND, a function or a file's groups, without
    submitting anything.

    The scheduler's next session runs in this command, with the scheduler's configuration, on the
    server's current state and the submission. The plan shows whether all pods get nodes, which
    nodes they get, and which groups would be evicted. For groups that would wait, it shows all
    reasons, their position in line, when they are expected to start, when capacity will be free at
    the earliest, and which changes would help. Other objects of a file, such as queues and quotas,
    are treated as applied. The command needs no right to write.

    The plan is valid as long as nothing else changes.

    Exit codes: 0 all would start now, 3 they would after evictions, 4 at least one would wait, 5 at
    least one could never start; 1, 2, 6, 8, 9 and 12 as in `batchq submit`.
    """
    check_request(command, options, name="plan", with_file=("no_advice",))
    with shared.connect() as client:
        content = requested(client, command, options)
        with located_in(content.documents):
            found = client.plan(
                content.objects, keep_stop=content.keep_stop, advise=not options["no_advice"]
            )
        unled = client.schedulers().unled
    for warning in found.warnings:
        show_warning(warning)
    value = {"apiVersion": API_VERSION, "kind": "Plan", **plan_row(found)}
    output.page(value, lambda: show_plan(found))
    warn_no_leader(unled)
    return found.exit_code
