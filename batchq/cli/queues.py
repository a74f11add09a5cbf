"""`batchq queues` and `batchq quota`: show and change queues, and the quotas of namespaces."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import field, structs

from batchq.api.manifest import encode
from batchq.api.notation import (
    counted,
    data_of,
    describe_age,
    format_duration,
    label_problem,
    shown,
)
from batchq.api.objects import (
    API_VERSION,
    DEFAULT,
    Metadata,
    Queue,
    ResourceQuota,
    ResourceQuotaSpec,
)
from batchq.api.resources import PODS, UNLIMITED_PODS, Amounts, describe_quantity
from batchq.api.views import (
    Effect,
    FirstToGo,
    GroupView,
    Loan,
    QueuePage,
    QueueUsage,
    QueueView,
    Stop,
)
from batchq.cli.checks import show_checks_of_queue
from batchq.cli.group_lists import GroupRow
from batchq.cli.objects import apply_content, read_content, warn_of_unknown_resources
from batchq.cli.output import (
    draws_lines,
    echo,
    is_terminal,
    show_fields,
    show_section,
    tables,
)
from batchq.cli.output.forms import (
    ListForm,
    Output,
    Quantities,
    Row,
    manifests,
    quantities,
    reference,
    report,
    show_list,
)
from batchq.cli.output.options import LIST_FORMATS, Globals, examples, output_option, pass_globals
from batchq.cli.output.tables import queues_table, quotas_table
from batchq.cli.output.values import as_resources, existing, name_of_kind
from batchq.client import ROOT, Client
from batchq.client.request import amounts_of
from batchq.errors import InvalidInput, NotFound, UsageError

#: How many waiting groups, and how many possible victims, are named.
_MOST_NAMED = 5
_BAR = 12

_STOPPED = {
    "Hold": "Hold: nothing new is admitted",
    "HoldAndDrain": "HoldAndDrain: nothing is admitted, and admitted groups are evicted",
}
_WITHIN = {
    "LowerPriority": "a group may evict groups of lower priority in this queue",
    "Never": "no group evicts another in this queue",
}
_RECLAIM = {
    "Any": "reclaims what it deserves from queues that hold more than they deserve",
    "LowerPriority": "reclaims what it deserves, from groups of lower priority only",
    "Never": "reclaims nothing from other queues, and waits for what it deserves",
}


def show_queue_page(page: QueuePage, now_ms: int) -> None:
    """Print the page."""
    show_fields([*_fields(page.view), ("Past usage", _usage_text(page.usage))])
    show_section("Resources", _resources(page))
    show_section("Loans", _loans(page))
    show_section("In line", _waiting(page.line))
    show_section("Not in line", _waiting(page.not_in_line))
    show_section(
        "First victims, if a group may evict them", _victims_in_order(page.first_to_go, now_ms)
    )


class _QueueRow(Row, frozen=True):
    """A queue; amounts are canonical quantities, null is unlimited."""

    name: str
    parent: str
    children: tuple[str, ...]
    queue: dict[str, object]
    deserved: dict[str, str | None]
    guarantee: Quantities
    capability: Quantities
    used: Quantities
    reserved: Quantities
    charged: Quantities
    borrowed: Quantities
    share: float | str | None
    pending_groups: int
    pending: Quantities
    admitted_groups: int
    running_groups: int
    stops: tuple[Stop, ...]
    accepts: tuple[str, ...] | None


def _usage_text(usage: QueueUsage | None) -> str:
    if usage is None:
        return ""
    share = usage.share if isinstance(usage.share, str) else f"{100 * usage.share:.1f} %"
    order = "; the queue that has used least is served first" if usage.decides_order else ""
    return f"{share} of its share (half-life {format_duration(usage.half_life_ms)}){order}"


class _QueuePageRow(_QueueRow, frozen=True):
    deserved_by: dict[str, str]
    lenders: tuple[Loan, ...]
    borrowers: tuple[Loan, ...]
    line: tuple[GroupRow, ...]
    not_in_line: tuple[GroupRow, ...] = field(name="aside")
    first_to_go: tuple[FirstToGo, ...]
    usage: QueueUsage | None


def queue_row(view: QueueView) -> _QueueRow:
    """Return the JSON form of a queue."""
    return _QueueRow.of(view, **_computed(view))


def page_row(page: QueuePage) -> dict[str, object]:
    """Return the JSON form of the page: the queue's row, and the rest of the page."""
    row = _QueuePageRow.of(
        page.view,
        **_computed(page.view),
        deserved_by={
            resource: "weight" if resource in page.weights else "stated"
            for resource in page.view.resources
        },
        lenders=page.lenders,
        borrowers=page.borrowers,
        line=page.line[:_MOST_NAMED],
        not_in_line=page.not_in_line[:_MOST_NAMED],
        first_to_go=page.first_to_go[:_MOST_NAMED],
        usage=page.usage,
    )
    return data_of(row)


def _computed(view: QueueView) -> dict[str, object]:
    """Return the fields of a row that the view has in another form."""
    unlimited = dict.fromkeys(_unlimited(view.deserved))
    return {
        "queue": encode(view.queue),
        "deserved": {**quantities(view.deserved), **unlimited},
        "capability": view.queue.spec.capability,
    }


def _fields(view: QueueView) -> list[tuple[str, str]]:
    spec = view.queue.spec
    labels = sorted(view.queue.metadata.labels.items())
    overcommit = describe_quantity("overcommit", spec.overcommit)
    return [
        ("Queue", view.name),
        ("Parent", view.parent if view.parent != ROOT else ""),
        ("Children", ", ".join(view.children)),
        ("Labels", ", ".join(f"{name}={value}" for name, value in labels)),
        ("Weight", str(spec.weight)),
        ("Strategy", "" if view.children else spec.strategy.type),
        ("Stopped", _stopped(view)),
        ("Most groups", "" if spec.max_pod_groups is None else str(spec.max_pod_groups)),
        ("Overcommit", "" if spec.overcommit == 1000 else f"{overcommit} times its capability"),
        ("Checks", ", ".join(spec.admission_checks)),
        ("Namespaces", tables.namespaces_text(view)),
        *_preemption_rules(view),
        ("Gives back", _gives_back(view.queue)),
        ("Admitted", _groups(view.admitted_groups, f"{view.running_groups} running")),
        ("Pending", _groups(view.pending_groups, tables.listed(view.pending))),
        ("Share", tables.share_text(view) or "-"),
    ]


def _stopped(view: QueueView) -> str:
    """Describe its own stop and those of the queues above."""
    return "; ".join(
        f"{_STOPPED[stop.policy]}" + (f" (queue {stop.queue})" if stop.queue != view.name else "")
        for stop in view.stops
    )


def _preemption_rules(view: QueueView) -> list[tuple[str, str]]:
    """Return what its groups may evict; nothing for an inner queue, which has no groups."""
    if view.children:
        return []
    policy = view.queue.spec.preemption
    return [
        ("Preempts", _WITHIN[policy.within_queue]),
        ("Reclaims", _RECLAIM[policy.reclaim]),
        ("Borrowing", _borrowing(view.queue)),
    ]


def _borrowing(queue: Queue) -> str:
    most = queue.spec.preemption.borrowing
    if most == "Never":
        return "evicts no groups in order to hold more than it deserves"
    return (
        "may evict groups below the preemptor's priority and of at most"
        f" {most}, even to hold more than it deserves"
    )


def _gives_back(queue: Queue) -> str:
    if not queue.spec.reclaimable:
        return "nothing: other queues never reclaim what it holds"
    return "what it holds above what it deserves, to queues that reclaim"


def _groups(count: int, more: str) -> str:
    return counted(count, "group") + (f", {more}" if count and more else "")


def _resources(page: QueuePage) -> list[tuple[str, ...]]:
    view = page.view
    if not view.resources:
        return []
    titles = ("RESOURCE", "USED", "RESERVED", "DESERVED", "BY", "BORROWED", "GUARANTEE")
    return [
        (*titles, "CAPABILITY", "OF DESERVED"),
        *(_resource_row(page, resource) for resource in view.resources),
    ]


def _resource_row(page: QueuePage, resource: str) -> tuple[str, ...]:
    view = page.view

    def text(amounts: Amounts, absent: str = "") -> str:
        units = amounts.get(resource)
        return absent if units is None else describe_quantity(resource, units)

    return (
        resource,
        text(view.used, "0"),
        text(view.reserved),
        text(view.deserved, "0"),
        _deserved_by(page, resource),
        text(view.borrowed),
        text(view.guarantee),
        text(view.queue.spec.capability, "unlimited"),
        bar(
            view.used.get(resource, 0),
            view.charged.get(resource, 0),
            view.deserved.get(resource, 0),
        ),
    )


def _deserved_by(page: QueuePage, resource: str) -> str:
    if page.view.name == ROOT:
        return "stated" if resource in page.view.queue.spec.deserved else "nodes"
    if resource not in page.weights:
        return "stated"
    own, all_of_them = page.weights[resource]
    return f"weight {own} of {all_of_them}"


def bar(used: int, charged: int, deserved: int) -> str:
    """Return `[####++..]`: used, reserved, free; `[######|##]` if it exceeds what it deserves."""
    most = max(charged, deserved)
    if most <= 0:
        return ""
    filled = [_cells(units, most) for units in (used, charged, deserved)]
    cells = ["#" if place < filled[0] else "+" for place in range(filled[1])]
    cells += ["."] * (_BAR - len(cells))
    if charged > deserved:
        cells.insert(filled[2], "|")
    return f"[{''.join(cells)}]"


def _cells(units: int, most: int) -> int:
    """Return the number of cells of the bar, at least one for a positive amount."""
    return max(1 if units else 0, _BAR * min(units, most) // most)


def _loans(page: QueuePage) -> list[tuple[str, ...]]:
    return [
        *(
            ("borrows", f"{loan.queue} deserves {tables.listed(loan.amounts)} more than it holds")
            for loan in page.lenders
        ),
        *(
            ("lends", f"{loan.queue} holds {tables.listed(loan.amounts)} above what it deserves")
            for loan in page.borrowers
        ),
    ]


def _waiting(views: Sequence[GroupView]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "" if view.position is None else f"{view.position}.",
            view.key,
            view.queue,
            view.request_text,
            tables.why_waiting(view),
        )
        for view in views[:_MOST_NAMED]
    ]
    more = len(views) - _MOST_NAMED
    return [*rows, ("", f"and {more} more", "", "", "")] if more > 0 else rows


def _victims_in_order(those: Sequence[FirstToGo], now_ms: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            f"{place}.",
            one.key,
            one.queue,
            f"priority {one.priority}",
            tables.listed(one.gives) or "nothing",
            "whole" if one.whole else f"{counted(one.pods, 'pod')} beyond its minimum",
            "not started"
            if one.started_at is None
            else f"started {describe_age(now_ms - one.started_at)} ago",
        )
        for place, one in enumerate(those[:_MOST_NAMED], start=1)
    ]
    more = len(those) - _MOST_NAMED
    return [*rows, ("", f"and {more} more", *[""] * 5)] if more > 0 else rows


def _unlimited(amounts: Amounts) -> list[str]:
    """Return the resources without a limit: pods, if nodes do not limit their number."""
    return [name for name, units in amounts.items() if name == PODS and units >= UNLIMITED_PODS]


_EXAMPLES = examples(
    "batchq queues",
    "batchq queues -o wide",
    "batchq queues -o json",
    "batchq queues show default",
    "batchq queues stop default",
)


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@output_option(*LIST_FORMATS)
@click.pass_context
def queues(ctx: click.Context, output: Output) -> None:
    """List queues as a tree; show, apply, stop and resume them.

    For each resource, USED is what the pods of the queue, and of the queues below it, hold on
    nodes, and DESERVED is what the queue deserves. RESERVED is what admitted groups reserve beyond
    USED. BORROWED is the part of USED and RESERVED that exceeds DESERVED. SHARE is the ratio of
    USED and RESERVED to DESERVED, in the resource with the largest ratio; the queue with the lowest
    share is served first. PENDING counts waiting groups.

    A queue whose share follows from its weight deserves at most what it holds and requests.
    `batchq queues show NAME` has the details.
    """
    if ctx.invoked_subcommand is None:
        _list_queues(ctx.ensure_object(Globals), output)


@queues.command("list", epilog=examples("batchq queues list", "batchq queues list -o yaml"))
@output_option(*LIST_FORMATS)
@pass_globals
def list_queues(shared: Globals, output: Output) -> None:
    """List queues as a tree: weights, what they hold and deserve, and waiting groups."""
    _list_queues(shared, output)


@queues.command(
    "show", epilog=examples("batchq queues show default", "batchq queues show default -o json")
)
@click.argument("name")
@output_option("text", "json", "yaml")
@pass_globals
def show_queue(shared: Globals, name: str, output: Output) -> None:
    """Show one queue: its limits and usage, loans, waiting groups, and possible victims.

    The first victims are the groups that a preemptor would evict first, unless they are protected:
    priorities, minRuntime, the eviction budget and guarantees are checked for each preemptor.

    The queue `root`, the root of the tree, always exists, even if no object describes it.

    Exit codes: 0 shown, 6 there is no such queue.
    """
    with shared.connect() as client:
        name = name_of_kind("Queue", name)
        if name != ROOT:
            client.get("Queue", name)
        overview = client.overview()
        page = overview.queue_page(name)
        asked = client.checks.of_queue(name)
    if page is None:
        raise NotFound(f"Queue {name} was deleted just now")
    found = page

    def text() -> None:
        show_queue_page(found, overview.at)
        show_checks_of_queue(name, asked, overview.at)

    output.page({"apiVersion": API_VERSION, "kind": "QueuePage", **page_row(page)}, text)


@queues.command(
    epilog=examples(
        "batchq queues apply -f team-queues.yaml --dry-run",
        "batchq get queue default -o yaml | batchq queues apply -f -",
    )
)
@click.option("-f", "--filename", required=True, metavar="FILE", help="A file, or - for stdin.")
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@output_option("text", "json", "yaml", "name")
@pass_globals
def apply(shared: Globals, filename: str, dry_run: bool, output: Output) -> None:
    """Create the queues of a file that do not exist, and change the others.

    Like `batchq apply`, for files with queues only; the changes of each queue are printed after
    its name. A stopped queue stays stopped unless the file sets its stopPolicy.

    Exit codes: 0 all are as in the file, 1 bad content or another kind, 6 a parent does not exist,
    8 another client has changed one, 12 a rule refuses one; then none is changed.
    """
    content = read_content(filename, in_folder=False)
    for item in content.objects:
        if not isinstance(item, Queue):
            raise InvalidInput(
                f"{filename}: expected queues and nothing else, found {reference(item)}",
                hint="`batchq apply` takes every kind",
            )
    apply_content(shared, content, dry_run=dry_run, output=output)


@queues.command(
    epilog=examples("batchq queues stop batch", "batchq queues stop batch interactive --drain")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--drain", is_flag=True, help="Also evict admitted groups.")
@output_option("text", "json")
@pass_globals
def stop(shared: Globals, names: tuple[str, ...], drain: bool, output: Output) -> None:
    """Stop admissions to queues and to those below them; running groups continue.

    With --drain, admitted groups return to the pending queue; their processes get SIGTERM, and
    SIGKILL after their grace period. The command sets stopPolicy to Hold, or to HoldAndDrain.
    Without --drain, a draining queue keeps the groups that are still admitted.

    Exit codes: 0 stopped, 6 there is no such queue, and none was stopped.
    """
    with shared.connect() as client, report(output) as done:
        for name in existing(client, "Queue", names):
            changed = client.set_stop_policy(name, "HoldAndDrain" if drain else "Hold")
            what = "draining" if drain else "stopped"
            done("Queue", name, what if changed else f"is {what} already")


@queues.command(epilog=examples("batchq queues resume batch"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], output: Output) -> None:
    """Resume stopped queues.

    A queue below a stopped one stays stopped with it; the command says so.

    Exit codes: 0 resumed, 6 there is no such queue, and none was resumed.
    """
    with shared.connect() as client, report(output) as done:
        for name in existing(client, "Queue", names):
            changed = client.set_stop_policy(name, "None")
            done("Queue", name, "resumed" if changed else "is not stopped")
            _warn_of_stops(client, name)


def _warn_of_stops(client: Client, name: str) -> None:
    """Report on stderr which queues above still stop it."""
    view = next((one for one in client.queues() if one.name == name), None)
    for one in view.stops if view is not None else ():
        echo(
            f"queue {one.queue}, above {name}, is still stopped ({one.policy}):"
            f" `batchq queues resume {one.queue}`",
            err=True,
        )


def _list_queues(shared: Globals, output: Output) -> None:
    with shared.connect() as client:
        views = client.queues()
    listing: ListForm[QueueView] = ListForm(
        lambda some: queues_table(some, stacked=is_terminal(), lines=draws_lines()),
        kind="QueueList",
        row=queue_row,
        name=lambda view: view.name,
    )
    show_list(output, views, listing)


class QuotaCommands(click.Group):
    """The commands for quotas; the one that deletes any object deletes quotas, too."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in ("delete", "remove", "rm", "unset") and not ctx.resilient_parsing:
            name = shown(args[1])[1:-1] if len(args) > 1 else "NAMESPACE"
            raise UsageError(
                f"`batchq quota` has no command {args[0]}",
                hint=f"`batchq delete quota {name}/default` removes the quota of namespace {name}",
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=QuotaCommands,
    invoke_without_command=True,
    epilog=examples("batchq quota", "batchq quota set research cpu=32 memory=128Gi podgroups=50"),
)
@output_option(*LIST_FORMATS)
@click.pass_context
def quota(ctx: click.Context, output: Output) -> None:
    """Show and set the quotas of namespaces."""
    if ctx.invoked_subcommand is None:
        _show_quotas(ctx.ensure_object(Globals), "", output)


@quota.command("show", epilog=examples("batchq quota show", "batchq quota show research -o yaml"))
@click.argument("namespace", default="")
@output_option(*LIST_FORMATS)
@pass_globals
def show_quota(shared: Globals, namespace: str, output: Output) -> None:
    """Show the quotas of NAMESPACE, or of all namespaces, and their usage."""
    _show_quotas(shared, namespace, output)


def _as_limits(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str | None]:
    """Parse many RESOURCE=QUANTITY or RESOURCE=none, a click callback; None is no limit."""
    removed = {word.removesuffix("=none") for word in value if word.endswith("=none")}
    words = (f"{word.removesuffix('none')}0" if word.endswith("=none") else word for word in value)
    limits = as_resources(ctx, param, tuple(words))
    return {name: None if name in removed else text for name, text in limits.items()}


@quota.command(
    "set",
    epilog=examples(
        "batchq quota set research cpu=32 memory=128Gi podgroups=50",
        "batchq quota set research cpu=64 memory=none",
    ),
)
@click.argument("namespace")
@click.argument("limits", nargs=-1, metavar="RESOURCE=QUANTITY…", callback=_as_limits)
@click.option("--replace", is_flag=True, help="Remove the limits of resources that are not named.")
@pass_globals
def set_quota(
    shared: Globals, namespace: str, limits: dict[str, str | None], replace: bool
) -> None:
    """Change the quota `default` of NAMESPACE; print what has changed.

    The limits of resources that are not named stay, unless --replace is given. RESOURCE=none
    removes a limit. Resources without a limit are unlimited, except `podgroups`, the number of
    unfinished groups, whose default is the scheduler's maxPodGroupsPerNamespace (10000). `pods`
    limits the number of admitted pods. `batchq delete quota NAMESPACE/default` removes the quota.

    Exit codes: 0 changed or unchanged, 8 another program has changed the quota meanwhile.
    """
    problem = label_problem(namespace)
    if problem:
        raise click.BadParameter(problem, param_hint="NAMESPACE")
    removing = f"`batchq delete quota {namespace}/default` removes its quota"
    if not limits:
        raise UsageError(
            f"expected limits for namespace {namespace}, such as cpu=32, found none", hint=removing
        )
    given = {name: text for name, text in limits.items() if text is not None}
    with shared.connect() as client:
        quota = _quota_of(client, namespace)
        kept = {} if replace else quota.spec.hard
        kept = {name: units for name, units in kept.items() if name not in limits}
        hard = {**kept, **amounts_of(given)}
        if not hard:
            raise UsageError(f"no limit of namespace {namespace} would be left", hint=removing)
        # If another program has changed it since it was read, its revision makes this a conflict.
        [applied] = client.apply([structs.replace(quota, spec=ResourceQuotaSpec(hard=hard))])
        warn_of_unknown_resources(client, {f"the quota of namespace {namespace} limits": given})
    word = "unchanged" if applied.effect is Effect.UNCHANGED else "configured"
    changes = f": {applied.changes}" if applied.changes else ""
    echo(f"{reference(applied.object)} {word}{changes}")


def _quota_of(client: Client, namespace: str) -> ResourceQuota:
    """Return the quota `default` of a namespace as stored, or one without limits."""
    try:
        found = client.get("ResourceQuota", DEFAULT, namespace=namespace)
    except NotFound:
        return ResourceQuota(metadata=Metadata(name=DEFAULT, namespace=namespace))
    assert isinstance(found, ResourceQuota)
    return found


def _show_quotas(shared: Globals, namespace: str, output: Output) -> None:
    with shared.connect() as client:
        found = client.quotas(namespace)
        of = f" for namespace {namespace}" if namespace else ""
        listing: ListForm[ResourceQuota] = manifests(
            lambda some: quotas_table(some, client.ledger()),
            none=f"there are no quotas{of}: {_by_default(client)}" if not found else "",
        )
        show_list(output, found, listing)


def _by_default(client: Client) -> str:
    """Describe the limits of a namespace without a quota."""
    most = client.object_limit()
    if most is None:
        return "nothing is limited"
    groups = counted(most, "unfinished pod group")
    return f"nothing is limited but the number of groups, {groups} in each namespace"
