"""`batchq checks`: list, show, answer and serve admission checks."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from msgspec import field

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.manifest import encode
from batchq.api.notation import counted
from batchq.api.objects import AdmissionCheck, PodGroup, full_name, key_of
from batchq.api.times import MINUTE, describe_age, format_duration
from batchq.api.views import CheckView, ListedCheck
from batchq.cli.output.forms import (
    Columns,
    ListForm,
    Output,
    Row,
    instant,
    report,
    show_list,
    tabled,
)
from batchq.cli.output.options import (
    DURATION,
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.render import Table, show_fields, show_section
from batchq.cli.output.terminal import echo
from batchq.cli.output.values import group_key, name_of_kind, seconds_of
from batchq.client import Client

if TYPE_CHECKING:
    from batchq.client.checks import CheckRequest, CheckWatch

_MOST_WAITING = 10


def views_listing(now_ms: int, none: str) -> ListForm[CheckView]:
    """Return how `batchq checks list` shows the checks of groups."""
    columns: Columns[CheckView] = {
        "GROUP": lambda one: key_of(one.group),
        "QUEUE": lambda one: one.group.spec.queue,
        "PHASE": lambda one: str(one.group.status.phase),
        "CHECK": lambda one: one.state.name,
        "STATUS": lambda one: one.state.status,
        "REASON": lambda one: one.state.reason,
        "SINCE": lambda one: _age(one.state.since, now_ms),
        "RESERVED": lambda one: _age(one.group.status.reserved_at, now_ms),
        "CONTROLLER": lambda one: controller_text(one.check, now_ms),
        "MESSAGE": lambda one: one.state.message,
    }
    spare = ("QUEUE", "SINCE", "PHASE")
    return ListForm(lambda views: tabled(views, columns, spare=spare), none, row=view_row)


class _CheckRow(Row, frozen=True):
    """A check of a group; an unknown time is ""."""

    pod_group: str
    queue: str
    phase: PodGroupPhase
    name: str = field(name="check")
    status: str
    reason: str
    message: str
    since: str
    reserved_at: str
    waits: bool
    controller: str
    active: bool
    active_until: str


class _CheckPageRow(Row, frozen=True):
    object: dict[str, Any]
    active: bool
    queues: tuple[str, ...]
    waiting: tuple[_CheckRow, ...]


class _RequestRow(Row, frozen=True):
    key: str = field(name="podGroup")
    check: str
    queue: str


def view_row(view: CheckView) -> _CheckRow:
    """Return the JSON form of a check of a group."""
    record, status = view.check.record, view.group.status
    return _CheckRow.of(
        view.state,
        pod_group=key_of(view.group),
        queue=view.group.spec.queue,
        phase=status.phase,
        since=instant(view.state.since) or "",
        reserved_at=instant(status.reserved_at) or "",
        waits=view.waits,
        controller="" if record is None else record.spec.controller_name,
        active=view.check.active,
        active_until=instant(view.check.active_until) or "",
    )


def checks_table(checks: Sequence[ListedCheck], now_ms: int) -> Table:
    """Return the table of `batchq get admissionchecks`."""
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


def controller_text(check: ListedCheck, now_ms: int) -> str:
    """Return e.g. `budget, active for 24s`, or `missing`."""
    if check.record is None:
        return "missing"
    return f"{check.record.spec.controller_name}, {_active(check, now_ms)}"


def show_check(
    check: ListedCheck, queues: Sequence[str], views: Sequence[CheckView], now_ms: int
) -> None:
    """Print the page of a check: its settings, its queues, and the groups that wait for it."""
    assert check.record is not None
    spec, status = check.record.spec, check.record.status
    show_fields(
        [
            ("AdmissionCheck", check.name),
            ("Controller", spec.controller_name),
            ("Active", _active(check, now_ms)),
            ("Holder", status.holder),
            ("Queues", ", ".join(queues) or "no queue requires it"),
            ("Retry delay", format_duration(spec.retry_delay_minutes * MINUTE)),
            ("Preemption", spec.preemption_policy),
            ("Timeout", f"{format_duration(spec.unknown_timeout)}, then {spec.on_timeout}"),
            ("Parameters", ", ".join(f"{name}={text}" for name, text in _pairs(check.record))),
        ]
    )
    waiting = [view for view in views if view.waits]
    rows = [
        (key_of(view.group), f"reserved {_age(view.group.status.reserved_at, now_ms)} ago")
        for view in waiting[:_MOST_WAITING]
    ]
    more = len(waiting) - _MOST_WAITING
    rows += [(f"and {counted(more, 'more group')}", "")] if more > 0 else []
    show_section("Waits for its answer", rows)


def show_checks_of_group(group: PodGroup, views: Sequence[CheckView], now_ms: int) -> None:
    """Print each check of a group, and whether its controller is active."""
    rows = [("NAME", "STATUS", "REASON", "SINCE", "CONTROLLER", "MESSAGE")]
    rows += [
        (
            *(view.state.name, view.state.status, view.state.reason),
            _age(view.state.since, now_ms),
            controller_text(view.check, now_ms),
            view.state.message,
        )
        for view in views
    ]
    show_section("Checks", rows if group.status.checks else ())


def show_checks_of_queue(name: str, checks: Sequence[ListedCheck], now_ms: int) -> None:
    """Print the checks that the queue's groups must pass, and whether controllers are active."""
    rows = [
        (
            check.name,
            controller_text(check, now_ms),
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


def _age(at: int | None, now_ms: int) -> str:
    return "" if at is None else describe_age(now_ms - at)


def _pairs(check: AdmissionCheck) -> list[tuple[str, str]]:
    return sorted(check.spec.parameters.items())


_REASONS = ("Retry", "Reject", "PreemptionRequired")
_STATUSES = ("True", "False", "Unknown")
#: How soon `serve` reports that it has acquired or lost a check.
_LOOK_S = 0.5


@click.group(
    epilog=examples(
        "batchq checks list --waiting",
        "batchq checks show approval",
        "batchq checks serve approval",
        "batchq checks set train-1 approval True -m 'the data is there'",
        "batchq checks set train-1 approval False --reason Retry",
    )
)
def checks() -> None:
    """List and answer admission checks.

    A queue may require checks (spec.admissionChecks): a group that would be admitted first reserves
    its quota, and starts when all checks are True. Programs answer them, or people with these
    commands; docs/checks.md describes the effect of each answer, and how to write a controller.

    Exit codes: 0 done, 1 no such combination of status and reason, 6 there is no such group, queue
    or check, 8 the group cannot be answered now.
    """


@checks.command(
    "list",
    epilog=examples(
        "batchq checks list",
        "batchq checks list train-1",
        "batchq checks list -q gpus --waiting -o json",
    ),
)
@click.argument("name", required=False)
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@click.option("-q", "--queue", default="", help="Only this queue and those below it.")
@click.option("--waiting", is_flag=True, help="Only checks to be answered now.")
@output_option("table", "json")
@pass_globals
def list_checks(
    shared: Globals, name: str | None, namespace: str, queue: str, waiting: bool, output: Output
) -> None:
    """List the checks of unfinished groups, or of the group NAME; the oldest reservation first.

    RESERVED is the time since the group's quota was reserved, CONTROLLER the check's controller and
    the rest of its lease.
    """
    key = "" if name is None else group_key(name, namespace or "default")
    with shared.connect() as client:
        views = client.checks.views(
            group=key,
            queue=name_of_kind("Queue", queue) if queue else "",
            namespace=namespace,
            waiting=waiting,
        )
        now_ms = client.now_ms()
    none = "no check waits for an answer" if waiting else "there are no checks"
    show_list(output, views, views_listing(now_ms, none))


@checks.command(
    epilog=examples("batchq checks show approval", "batchq checks show approval -o json")
)
@click.argument("name")
@output_option("text", "json", "yaml")
@pass_globals
def show(shared: Globals, name: str, output: Output) -> None:
    """Show the AdmissionCheck NAME: its controller, its settings, and the groups that wait for it.

    Exit codes: 0 shown, 6 there is no such check.
    """
    with shared.connect() as client:
        page = client.checks.page(name_of_kind("AdmissionCheck", name))
        now_ms = client.now_ms()
    assert page.check.record is not None
    row = _CheckPageRow(
        object=encode(page.check.record),
        active=page.check.active,
        queues=page.queues,
        waiting=tuple(view_row(view) for view in page.views if view.waits),
    )
    output.page(row, lambda: show_check(page.check, page.queues, page.views, now_ms))


@checks.command(
    "set",
    epilog=examples(
        "batchq checks set train-1 approval True",
        "batchq checks set train-1 budget False --reason Retry -m 'nothing is left this week'",
        "batchq checks set train-1 capacity Unknown --reason PreemptionRequired",
    ),
)
@click.argument("name")
@click.argument("check")
@click.argument("status", metavar="True|False|Unknown")
@click.option("--reason", type=click.Choice(_REASONS), default=None, help="Why it is not True.")
@click.option("-m", "--message", default="", help="A message for people.")
@namespace_option
@output_option("text", "json")
@pass_globals
def set_check(
    shared: Globals,
    name: str,
    check: str,
    status: str,
    reason: str | None,
    message: str,
    namespace: str,
    output: Output,
) -> None:
    """Answer CHECK of the group NAME.

    True: it may start. False --reason Retry: not now; its quota is released at once, it is stopped
    if it runs, and it is checked again after the check's retryDelayMinutes. False --reason Reject:
    never; the group fails. Unknown: no answer yet; with --reason PreemptionRequired, victims may be
    evicted for it already. A check can be answered while the group has reserved quota or runs.

    Exit codes: 0 answered, 1 no such combination, 6 no such group or check, 8 the group has no
    reservation or has ended.
    """
    key = group_key(name, namespace)
    status = next((one for one in _STATUSES if one.lower() == status.lower()), status)
    with shared.connect() as client, report(output) as done:
        changed = client.checks.set(key, status, reason or "", message, check=check)
        answer = f"check {check} is {status}" + (f" ({reason})" if reason else "")
        action = answer if changed else f"{answer} already"
        done("PodGroup", key, action, f"podgroup {key}: {action}")


@checks.command(
    epilog=examples(
        "batchq checks serve approval", "batchq checks serve approval --lease 1m -o json"
    )
)
@click.argument("controller")
@click.option("--holder", default=None, help="The name of this process.  [default: random]")
@click.option(
    "--lease",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long the checks stay active if this process is killed.",
)
@output_option("text", "json")
@pass_globals
def serve(shared: Globals, controller: str, holder: str | None, lease: str, output: Output) -> None:
    """Keep the checks of CONTROLLER active, for people to answer them with `batchq checks set`.

    CONTROLLER is a spec.controllerName. Without this command or a controller of yours, their queues
    admit nothing. The command prints one line for each group to be answered; with -o json, one
    object. It reports on stderr which checks it keeps active, or what it waits for; a second
    process for the same CONTROLLER stands by. It runs until SIGTERM or Ctrl-C, which make the
    checks inactive at once.

    Exit codes: 0 ended by a signal, 9 the server cannot be reached or refuses this user.
    """
    lease_s = seconds_of(lease) or 0.0
    with shared.connect(patience_s=None) as client:
        watch = client.checks.watch(controller, holder=holder, lease_s=lease_s)
        with _until_signalled(watch), watch:
            controller_text = _report_held(client, watch)
            while not watch.stopped:
                for request in watch.poll(_LOOK_S):
                    if request.kind == "asked":
                        _show_request(request, output)
                if watch.held != controller_text:
                    with client.patiently():
                        controller_text = _report_held(client, watch)


def _report_held(client: Client, watch: CheckWatch) -> tuple[str, ...]:
    """Report on stderr which checks are kept active here or elsewhere; return those kept here."""
    held, controller = watch.held, watch.controller_name
    listed = [(one, one.record) for one in client.checks.records() if one.record is not None]
    others = [
        f"{one.name} is kept active by {record.status.holder}"
        for one, record in listed
        if record.spec.controller_name == controller and one.active and one.name not in held
    ]
    if held:
        echo("; ".join([f"keeping {', '.join(held)} active", *others]), err=True)
    elif others:
        echo(f"{'; '.join(others)}: standing by until then", err=True)
    elif any(record.spec.controller_name == controller for _, record in listed):
        echo(f"the checks of controller {controller} are free: acquiring them", err=True)
    else:
        known = ", ".join(sorted({record.spec.controller_name for _, record in listed}))
        known_text = f"known controllers: {known}" if known else "there are no checks at all"
        text = f"there is no AdmissionCheck of controller {controller} ({known_text})"
        echo(f"{text}: standing by until one is applied", err=True)
    return held


def _show_request(request: CheckRequest, output: Output) -> None:
    name = full_name(request.group).removeprefix("default/")
    answer = f"`batchq checks set {name} {request.check} True`"
    output.line(_RequestRow.of(request), f"{request.key} (queue {request.queue}) waits: {answer}")


@contextmanager
def _until_signalled(watch: CheckWatch) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the watch in this context, which then releases its checks."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: watch.stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
