"""How admission checks are shown: as rows, as the page of one, and as a part of others' pages."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.api.names import counted
from batchq.api.objects import AdmissionCheck, PodGroup, key_of
from batchq.api.times import MINUTE, describe_age, format_duration, format_instant
from batchq.cli.output import Table, show_fields, show_section
from batchq.client.checks import CheckView, ListedCheck

_MOST_WAITING = 10


def views_table(views: Sequence[CheckView], now_ms: int) -> Table:
    """`batchq checks list`."""
    titles = (
        *("GROUP", "QUEUE", "PHASE", "CHECK", "STATUS", "REASON", "SINCE", "RESERVED"),
        *("CONTROLLER", "MESSAGE"),
    )
    rows = tuple(
        (
            key_of(view.group),
            view.group.spec.queue,
            str(view.group.status.phase),
            view.state.name,
            view.state.status,
            view.state.reason,
            _ago(view.state.since, now_ms),
            _ago(view.group.status.reserved_at, now_ms),
            standing(view.check, now_ms),
            view.state.message,
        )
        for view in views
    )
    return Table(titles, rows, spare=("QUEUE", "SINCE", "PHASE"))


def view_row(view: CheckView) -> dict[str, object]:
    """The same as plain data; every key is always there."""
    record, status = view.check.record, view.group.status
    return {
        "podGroup": key_of(view.group),
        "queue": view.group.spec.queue,
        "phase": str(status.phase),
        "check": view.state.name,
        "status": view.state.status,
        "reason": view.state.reason,
        "message": view.state.message,
        "since": _instant(view.state.since),
        "reservedAt": _instant(status.reserved_at),
        "waits": view.waits,
        "controller": "" if record is None else record.spec.controller_name,
        "active": view.check.active,
        "activeUntil": _instant(view.check.active_until),
    }


def checks_table(checks: Sequence[ListedCheck], now_ms: int) -> Table:
    """`batchq get admissionchecks`."""
    rows = []
    for check in checks:
        assert check.record is not None
        spec = check.record.spec
        delay = format_duration(spec.retry_delay_minutes * MINUTE)
        timeout = f"{format_duration(spec.unknown_timeout)}, {spec.on_timeout}"
        holder = check.record.status.holder
        rows.append(
            (
                *(check.name, spec.controller_name, _active(check, now_ms), delay, timeout),
                *(spec.preemption_policy, holder),
            )
        )
    titles = ("NAME", "CONTROLLER", "ACTIVE", "RETRY-DELAY", "TIMEOUT", "PREEMPTION", "HOLDER")
    return Table(titles, tuple(rows), wide=frozenset({"PREEMPTION", "HOLDER"}))


def standing(check: ListedCheck, now_ms: int) -> str:
    """`budget, active for 24s`, or what is wrong."""
    if check.record is None:
        return "missing"
    return f"{check.record.spec.controller_name}, {_active(check, now_ms)}"


def show_check(
    check: ListedCheck, queues: Sequence[str], views: Sequence[CheckView], now_ms: int
) -> None:
    """The page of one check, the queues that list it, and who waits for it."""
    assert check.record is not None
    spec, status = check.record.spec, check.record.status
    show_fields(
        [
            ("AdmissionCheck", check.name),
            ("Controller", spec.controller_name),
            ("Active", _active(check, now_ms)),
            ("Holder", status.holder),
            ("Queues", ", ".join(queues) or "none asks for it"),
            ("Retry delay", format_duration(spec.retry_delay_minutes * MINUTE)),
            ("Preemption", spec.preemption_policy),
            ("Timeout", f"{format_duration(spec.unknown_timeout)}, then {spec.on_timeout}"),
            ("Parameters", ", ".join(f"{name}={text}" for name, text in _pairs(check.record))),
        ]
    )
    waiting = [view for view in views if view.waits]
    rows = [
        (key_of(view.group), f"reserved {_ago(view.group.status.reserved_at, now_ms)} ago")
        for view in waiting[:_MOST_WAITING]
    ]
    more = len(waiting) - _MOST_WAITING
    rows += [(f"and {counted(more, 'more group')}", "")] if more > 0 else []
    show_section("Waits for its answer", rows)


def show_checks_of_group(group: PodGroup, views: Sequence[CheckView], now_ms: int) -> None:
    """What each check says of a group, and whether anybody carries it out."""
    rows = [("NAME", "STATUS", "REASON", "SINCE", "CONTROLLER", "MESSAGE")]
    rows += [
        (
            *(view.state.name, view.state.status, view.state.reason),
            _ago(view.state.since, now_ms),
            standing(view.check, now_ms),
            view.state.message,
        )
        for view in views
    ]
    show_section("Checks", rows if group.status.checks else ())


def show_checks_of_queue(name: str, checks: Sequence[ListedCheck], now_ms: int) -> None:
    """The checks that its groups have to pass, and whether anybody carries them out."""
    rows = [
        (
            check.name,
            standing(check, now_ms),
            "" if check.active else "its groups wait until a controller runs",
            "" if check.listed_by == name else f"of queue {check.listed_by}",
        )
        for check in checks
    ]
    show_section("Checks", rows)


def _active(check: ListedCheck, now_ms: int) -> str:
    if not check.active:
        return "inactive"
    until = check.active_until
    return "active" if until is None else f"active for {describe_age(until - now_ms)}"


def _ago(at: int | None, now_ms: int) -> str:
    return "" if at is None else describe_age(now_ms - at)


def _instant(at: int | None) -> str:
    return "" if at is None else format_instant(at)


def _pairs(check: AdmissionCheck) -> list[tuple[str, str]]:
    return sorted(check.spec.parameters.items())
