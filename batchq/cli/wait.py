"""`batchq wait`, `progress`, `cancel`, `suspend` and `resume`: follow groups, and change them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
from batchq.cli.output.terminal import on_interrupt, raw_option
from batchq.cli.output.values import (
    existing,
    exit_code_of,
    group_keys,
    interruption_of,
    left_of,
    print_results,
    seconds_of,
    warn_if_no_leader,
)
from batchq.cli.run import looks
from batchq.client import Client

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
    sentence, hint = interruption_of(keys)
    with on_interrupt(sentence, hint=hint), shared.connect(patience_s=None) as client:
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
    sentence, hint = interruption_of(keys)
    timeout_s = seconds_of(timeout)
    with on_interrupt(sentence, hint=hint), shared.connect(patience_s=timeout_s) as client:
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
) -> None:
    """End groups: Cancelled at once; their processes get SIGTERM, then SIGKILL after their grace.

    `batchq wait NAME` returns when the processes have ended.
    """
    with shared.connect() as client, report(output) as done:
        for key in existing(client, "PodGroup", names, namespace):
            client.cancel(key, reason=reason)
            done("PodGroup", key, "cancelled")


@click.command(epilog=examples("batchq suspend train-1", "batchq suspend research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def suspend(shared: Globals, names: tuple[str, ...], namespace: str, output: Output) -> None:
    """Suspend groups: their running pods are stopped, and they stay Pending until `resume`."""
    with shared.connect() as client, report(output) as done:
        for key in existing(client, "PodGroup", names, namespace):
            done("PodGroup", key, "suspended" if client.suspend(key) else "is suspended already")


@click.command(epilog=examples("batchq resume train-1", "batchq resume research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], namespace: str, output: Output) -> None:
    """Return suspended groups to the pending queue, at their former position."""
    with shared.connect() as client, report(output) as done:
        for key in existing(client, "PodGroup", names, namespace):
            done("PodGroup", key, "resumed" if client.resume(key) else "is not suspended")
