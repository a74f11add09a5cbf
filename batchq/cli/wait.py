"""`batchq wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from batchq.cli.ending import exit_code_of, goes_on, tell, tell_if_nobody_leads
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import show_data
from batchq.cli.trouble import on_interrupt
from batchq.cli.values import as_duration, group_keys, left_of, seconds_of

if TYPE_CHECKING:
    from batchq.client.waiting import Goal, Result

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
    help="What to wait for. `succeeded` does not wait for the others when one has failed.",
)
@click.option("--timeout", callback=as_duration, metavar="DURATION", help="Wait no longer: 124.")
@output_option("text", "json")
@pass_globals
def wait(
    shared: Globals,
    names: tuple[str, ...],
    namespace: str,
    goal: str,
    timeout: str | None,
    output: str,
) -> int:
    """Wait for groups; a group has finished when its processes have ended, too.

    Exit codes: 0 all came to what was waited for, 10 one has failed, 11 one was cancelled, 124 the
    time is up.
    """
    keys = group_keys(names, namespace)
    sentence, hint = goes_on(keys)
    timeout_s = seconds_of(timeout)
    with on_interrupt(sentence, hint=hint), shared.connect(patience_s=timeout_s) as client:
        left_s = left_of(timeout_s, client.waited_s)
        tell_if_nobody_leads(client, keys)
        results = client.wait(keys, for_=cast("Goal", goal), timeout_s=left_s)
    if output == "json":
        show_data({"items": [_row(result) for result in results]}, "json")
    else:
        tell(results)
    return exit_code_of(results)


def _row(result: Result) -> dict[str, object]:
    return {
        "name": result.key,
        "phase": str(result.phase),
        "reached": result.reached,
        "reason": result.reason,
        "message": result.message,
        "exitCode": result.exit_code,
    }
