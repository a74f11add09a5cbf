"""`batchq queues`: list, show, apply, stop, resume."""

from __future__ import annotations

import click

from batchq.api.objects import API_VERSION, Queue
from batchq.cli.apply import apply_content
from batchq.cli.checkview import show_checks_of_queue
from batchq.cli.files import read_content
from batchq.cli.options import LIST_FORMATS, Globals, examples, output_option, pass_globals
from batchq.cli.output import draws_lines, is_terminal, reference, report, show_data, show_table
from batchq.cli.queueview import page_row, queue_row, show_queue_page
from batchq.cli.tables import queues_table
from batchq.cli.terminal import echo
from batchq.cli.values import name_of_kind
from batchq.client import Client
from batchq.client.queues import ROOT
from batchq.errors import InvalidInput, NotFound

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
def queues(ctx: click.Context, output: str) -> None:
    """List queues as a tree; show, apply, stop and resume them.

    Of each resource USED/DESERVED: what pods of the queue and of those below it have on nodes, of
    what it deserves. RESERVED is kept for admitted groups beyond that, BORROWED is what both come
    to above what it deserves. SHARE is what it holds over what it deserves, in the resource where
    that is most; the lowest is served first. PENDING counts the groups that wait.

    By weight a queue deserves no more than it holds and asks for. `batchq queues show NAME` has
    the details.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Globals), output)


@queues.command("list", epilog=examples("batchq queues list", "batchq queues list -o yaml"))
@output_option(*LIST_FORMATS)
@pass_globals
def list_queues(shared: Globals, output: str) -> None:
    """List queues as a tree: weights, what they hold and deserve, and what waits."""
    _list(shared, output)


@queues.command(epilog=examples("batchq queues show default", "batchq queues show default -o json"))
@click.argument("name")
@output_option("text", "json", "yaml")
@pass_globals
def show(shared: Globals, name: str, output: str) -> None:
    """Show one queue: what it may have, what it holds, who borrows, who is next, who would go.

    First to go are those whose place a claimant would be given first, if it may take it: its
    priority, minRuntime, the eviction budget and guarantees are asked when one comes.

    `root`, above all others, is always there, also where nothing is stated for it.

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
    if output == "text":
        show_queue_page(page, overview.at)
        show_checks_of_queue(name, asked, overview.at)
    else:
        show_data({"apiVersion": API_VERSION, "kind": "QueuePage", **page_row(page)}, output)


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
def apply(shared: Globals, filename: str, dry_run: bool, output: str) -> None:
    """Create the queues of a file that are not there, and change those that are.

    As `batchq apply` does, for files that hold queues and nothing else; what each queue says that
    it did not say before stands behind its name. One whose stopPolicy the file does not name stays
    stopped if it is.

    Exit codes: 0 all are as the file says, 1 bad content, or something that is no queue, 6 a
    parent is not there, 8 somebody else has changed one, 12 a rule refuses one; then none is
    changed.
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
@click.option("--drain", is_flag=True, help="Send back what has been admitted, too.")
@output_option("text", "json")
@pass_globals
def stop(shared: Globals, names: tuple[str, ...], drain: bool, output: str) -> None:
    """Admit nothing more to queues, nor to those below them; what runs goes on.

    With --drain what has been admitted goes back to the line; its processes get SIGTERM, and
    SIGKILL after their grace. This sets stopPolicy to Hold, or to HoldAndDrain; without --drain
    a queue that drains keeps what has not left yet.

    Exit codes: 0 they are stopped, 6 there is no such queue, and none was stopped.
    """
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names):
            changed = client.set_stop_policy(name, "HoldAndDrain" if drain else "Hold")
            what = "draining" if drain else "stopped"
            done("Queue", name, what if changed else f"is {what} already")


@queues.command(epilog=examples("batchq queues resume batch"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], output: str) -> None:
    """Let queues that were stopped go on.

    A queue below one that is stopped stays stopped with it, and is told.

    Exit codes: 0 they are not stopped any more, 6 there is no such queue, and none was resumed.
    """
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names):
            changed = client.set_stop_policy(name, "None")
            done("Queue", name, "resumed" if changed else "is not stopped")
            _tell_of_stops(client, name)


def _tell_of_stops(client: Client, name: str) -> None:
    """On stderr, who else stops it."""
    view = next((one for one in client.queues() if one.name == name), None)
    for one in view.stops if view is not None else ():
        echo(
            f"queue {one.queue}, above {name}, is stopped still ({one.policy}):"
            f" `batchq queues resume {one.queue}`",
            err=True,
        )


def _found(client: Client, names: tuple[str, ...]) -> list[str]:
    """The names, once all are known to be there."""
    bare = [name_of_kind("Queue", name) for name in names]
    for name in bare:
        client.get("Queue", name)
    return list(dict.fromkeys(bare))


def _list(shared: Globals, output: str) -> None:
    with shared.connect() as client:
        views = client.queues()
    match output:
        case "json" | "yaml":
            items = [queue_row(view) for view in views]
            show_data({"apiVersion": API_VERSION, "kind": "QueueList", "items": items}, output)
        case "name":
            for view in views:
                echo(view.name)
        case _:
            table = queues_table(views, stacked=is_terminal(), lines=draws_lines())
            show_table(table, wide=output == "wide", color=shared.color)
