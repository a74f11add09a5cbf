"""`batchq gates`: list and open the scheduling gates of groups and their pods."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import field

from batchq.api.objects import OpenedGate
from batchq.api.times import describe_age
from batchq.api.views import GateView
from batchq.cli.output.forms import Columns, ListForm, Output, Row, Time, report, show_list, tabled
from batchq.cli.output.options import (
    DURATION,
    Globals,
    all_namespaces_option,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import group_key, name_of_kind
from batchq.client import ROOT
from batchq.errors import UsageError


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
    """Open gates of the group NAME: its own gates, or if it has none of a name, those in the
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
