"""`batchq wait`, `progress`, `cancel`, `suspend` and `resume`: follow groups, and change them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import click

from batchq.api.views import Result
from batchq.cli.output.forms import Output, report
from batchq.cli.output.options import (
    DURATION,
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.terminal import raw_option, show_trouble
from batchq.cli.output.values import (
    exit_code_of,
    following,
    group_keys,
    left_of,
    print_results,
    seconds_of,
    warn_if_no_leader,
)
from batchq.cli.run import looks
from batchq.client import Client
from batchq.errors import Conflict, NotFound, Rejected

if TYPE_CHECKING:
    from batchq.api.views import Goal


@click.command(epilog=examples("batchq progress train-1", "batchq progress train-1 train-2"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@raw_option
@pass_globals
def progress(shared: Globals, names: tuple[str, ...], namespace: str) -> int:
    """Follow groups until they have ended; the exit code is that of `batchq wait`."""
    keys = group_keys(names, namespace)
    with following(shared, keys) as client:
        return exit_code_of(follow(client, keys))


def follow(client: Client, keys: Sequence[str], *, err: bool = False) -> Sequence[Result]:
    """Show groups until all have ended; return the results.

    Raises NotFound, also if a group is deleted meanwhile.
    """
    with client.patiently():
        for key in keys:
            client.get("PodGroup", key)
    for _ in looks(client, keys, sys.stderr if err else sys.stdout):
        pass
    return client.wait(keys)


GOALS = ("finished", "succeeded", "running", "admitted")


@click.command(
    epilog=examples(
        "batchq wait train-1",
        "batchq wait train-1 train-2 --for succeeded --timeout 2h",
        "batchq wait train-1 --for running --timeout 10m",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option(
    "--for",
    "goal",
    type=click.Choice(GOALS),
    default="finished",
    show_default=True,
    help="What to wait for. `succeeded` ends as soon as one group has failed.",
)
@click.option("--timeout", type=DURATION, help="The longest wait (exit code 124).")
@output_option("text", "json")
@pass_globals
def wait(
    shared: Globals,
    names: tuple[str, ...],
    namespace: str,
    goal: str,
    timeout: str | None,
    output: Output,
) -> int:
    """Wait for groups; a group is finished when its processes have ended, too.

    Exit codes: 0 all reached the goal, 10 one has failed, 11 one was cancelled, 124 timeout.
    """
    keys = group_keys(names, namespace)
    timeout_s = seconds_of(timeout)
    with following(shared, keys, patience_s=timeout_s) as client:
        left_s = left_of(timeout_s, client.waited_s)
        warn_if_no_leader(client, keys)
        results = client.wait(keys, for_=cast("Goal", goal), timeout_s=left_s)
    output.page({"items": results}, lambda: print_results(results))
    return exit_code_of(results)


@click.command(
    epilog=examples(
        "batchq cancel train-1",
        "batchq cancel train-1 train-2 -n research --reason 'wrong data'",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option("--reason", default="", help="The reason, which is recorded.")
@output_option("text", "json")
@pass_globals
def cancel(
    shared: Globals, names: tuple[str, ...], namespace: str, reason: str, output: Output
) -> int:
    """End groups: they are Cancelled at once, and their processes get SIGTERM, then SIGKILL.

    SIGKILL follows after the grace period of the pods (`batchq submit --grace`). `batchq wait NAME`
    returns when the processes have ended. A group that cannot be cancelled is reported, and the
    others are cancelled; the exit code is that of the first error.
    """

    def act(client: Client, key: str) -> str:
        client.cancel(key, reason=reason)
        return "cancelled"

    return _act_on_each(shared, names, namespace, output, act)


@click.command(epilog=examples("batchq suspend train-1", "batchq suspend research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def suspend(shared: Globals, names: tuple[str, ...], namespace: str, output: Output) -> int:
    """Suspend groups: their running pods are stopped, and they stay Pending until `resume`.

    A group that cannot be suspended is reported, and the others are suspended.
    """

    def act(client: Client, key: str) -> str:
        return "suspended" if client.suspend(key) else "is suspended already"

    return _act_on_each(shared, names, namespace, output, act)


@click.command(epilog=examples("batchq resume train-1", "batchq resume research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], namespace: str, output: Output) -> int:
    """Return suspended groups to the pending queue, at their former position.

    A group that cannot be resumed is reported, and the others are resumed.
    """

    def act(client: Client, key: str) -> str:
        return "resumed" if client.resume(key) else "is not suspended"

    return _act_on_each(shared, names, namespace, output, act)


def _act_on_each(
    shared: Globals,
    names: Sequence[str],
    namespace: str,
    output: Output,
    act: Callable[[Client, str], str],
) -> int:
    """Act on each group and report what was done to it, or why not.

    Return the exit code of the first error, or 0.
    """
    exit_code = 0
    with shared.connect() as client, report(output) as done:
        for key in group_keys(names, namespace):
            try:
                done("PodGroup", key, act(client, key))
            except (NotFound, Conflict, Rejected) as error:
                show_trouble(error, as_json=not output.for_people)
                exit_code = exit_code or error.exit_code
    return exit_code
