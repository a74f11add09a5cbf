"""`batchq checks`: list, show, answer and serve admission checks; list and open gates."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from msgspec import field

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.manifest import encode
from batchq.api.notation import MINUTE, counted, describe_age, format_duration
from batchq.api.objects import AdmissionCheck, OpenedGate, PodGroup, full_name, key_of
from batchq.api.views import CheckView, GateView, ListedCheck
from batchq.cli.output import Table, echo, show_fields, show_section
from batchq.cli.output.forms import (
    Columns,
    ListForm,
    Output,
    Row,
    Time,
    instant,
    report,
    show_list,
    tabled,
)
from batchq.cli.output.options import (
    DURATION,
    Globals,
    all_namespaces_option,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import group_key, name_of_kind, seconds_of
from batchq.client import ROOT, Client
from batchq.errors import UsageError

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


@click.group(epilog=examples("batchq gates list", "batchq gates open train-1 data-ready"))
def gates() -> None:
    """List and open scheduling gates.

    A group with gates of its own is not in line until the last of them is open. Gates in a task's
    template hold back the task's pods, and the group only if too few other pods are left to start
    with.
    """


@gates.command(
    "list",
    epilog=examples(
        "batchq gates list",
        "batchq gates list -A --older-than 1d",
        "batchq gates list -q research --gate data-ready -o json",
    ),
)
@namespace_option
@all_namespaces_option("The gates")
@click.option("-q", "--queue", default="", help="Only groups of this queue and those below it.")
@click.option("--gate", default="", help="Only gates of this name.")
@click.option(
    "--older-than",
    type=DURATION,
    help="Only groups of at least this age.",
)
@output_option("table", "json")
@pass_globals
def list_gates(
    shared: Globals,
    namespace: str,
    all_namespaces: bool,
    queue: str,
    gate: str,
    older_than: str | None,
    output: Output,
) -> None:
    """List the closed gates of unfinished groups, oldest first.

    SET BY is the submitter of the group: gates are set at submission, and later only opened. OPENED
    lists the group's open gates and who opened them.

    Exit codes: 0 listed, 6 there is no such queue.
    """
    queue = name_of_kind("Queue", queue) if queue else ""
    with shared.connect() as client:
        views = client.gates.list(
            namespace="" if all_namespaces else namespace,
            queue=queue,
            gate=gate,
            older_than=older_than or 0,
        )
        if not views and queue not in ("", ROOT):
            client.get("Queue", queue)
        now_ms = client.now_ms()
    where = "" if all_namespaces else f" in namespace {namespace}"
    show_list(output, views, _listing(now_ms, f"there are no such gates{where}"))


@gates.command(
    "open",
    epilog=examples(
        "batchq gates open train-1 data-ready",
        "batchq gates open train-1 licence --task worker",
        "batchq gates open research/train-1 --all",
    ),
)
@click.argument("name")
@click.argument("opened", nargs=-1, metavar="[GATE…]")
@namespace_option
@click.option("--task", default="", help="Only the gates in the template of this task.")
@click.option("--all", "everything", is_flag=True, help="Every gate of the group and its tasks.")
@output_option("text", "json")
@pass_globals
def open_gates(
    shared: Globals,
    name: str,
    opened: tuple[str, ...],
    namespace: str,
    task: str,
    everything: bool,
    output: Output,
) -> None:
    """Open gates of the group NAME; a gate that the group itself does not have is opened in the
    templates of its tasks.
    """
    if everything == bool(opened):
        raise UsageError(
            "expected the names of gates, or --all, found both"
            if everything
            else "expected the names of gates to open, found none",
            hint="as in `batchq gates open train-1 data-ready`; --all opens every gate",
        )
    key = group_key(name, namespace)
    of_task = f" of task {task}" if task else ""
    with shared.connect() as client, report(output) as done:
        if everything:
            changed = client.gates.open_all(key, task=task)
            action = (
                f"all gates{of_task} opened" if changed else f"all gates{of_task} are open already"
            )
            done("PodGroup", key, action, f"podgroup {key}: {action}")
        for gate in opened:
            changed = client.gates.open(key, gate, task=task)
            action = f"gate {gate}{of_task} {'opened' if changed else 'is open already'}"
            done("PodGroup", key, action, f"podgroup {key}: {action}")


class _OpenedRow(Row, frozen=True):
    name: str = field(name="gate")
    task: str | None
    by: str | None
    at: Time


class _GateRow(Row, frozen=True):
    """A closed gate; null is the whole group, or an unknown person."""

    group: str = field(name="podGroup")
    queue: str
    shown: str
    gate: str
    task: str | None
    age_seconds: int
    set_at: Time
    set_by: str | None
    opened: tuple[_OpenedRow, ...]


def _listing(now_ms: int, none: str) -> ListForm[GateView]:
    columns: Columns[GateView] = {
        "GROUP": lambda one: one.group,
        "GATE": lambda one: one.gate,
        "TASK": lambda one: one.task,
        "AGE": lambda one: describe_age(now_ms - one.set_at),
        "QUEUE": lambda one: one.queue,
        "SHOWN": lambda one: one.shown,
        "SET BY": lambda one: one.set_by,
        "OPENED": lambda one: opened_text(one.opened, now_ms),
    }

    def row(view: GateView) -> _GateRow:
        return _GateRow.of(
            view,
            task=view.task or None,
            age_seconds=(now_ms - view.set_at) // 1000,
            set_by=view.set_by or None,
            opened=tuple(
                _OpenedRow.of(one, task=one.task or None, by=one.by or None) for one in view.opened
            ),
        )

    return ListForm(lambda views: tabled(views, columns, spare=("QUEUE", "SHOWN")), none, row=row)


def opened_text(opened: Sequence[OpenedGate], now_ms: int) -> str:
    """Return `data by alice@laptop 2h ago, licence of task worker by bob@gpu-01 5m ago`."""
    return ", ".join(
        f"{one.name}{f' of task {one.task}' if one.task else ''}"
        f"{f' by {one.by}' if one.by else ''} {describe_age(now_ms - one.at)} ago"
        for one in opened
    )
