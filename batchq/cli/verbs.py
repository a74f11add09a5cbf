"""`batchq cancel`, `suspend` and `resume`: one word to groups that are there."""

from __future__ import annotations

import click

from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import report
from batchq.cli.values import group_keys
from batchq.client import Client


@click.command(
    epilog=examples(
        "batchq cancel train-1",
        "batchq cancel train-1 train-2 -n research --reason 'wrong data'",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option("--reason", default="", help="Why, for whoever asks later.")
@output_option("text", "json")
@pass_globals
def cancel(
    shared: Globals, names: tuple[str, ...], namespace: str, reason: str, output: str
) -> None:
    """End groups: Cancelled at once; their processes get SIGTERM, and SIGKILL after their grace.

    `batchq wait NAME` returns when the processes have ended.
    """
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names, namespace):
            client.cancel(name, reason=reason)
            done("PodGroup", name, "cancelled")


@click.command(epilog=examples("batchq suspend train-1", "batchq suspend research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def suspend(shared: Globals, names: tuple[str, ...], namespace: str, output: str) -> None:
    """Hold groups back: what runs is stopped and goes back to the line, where it waits."""
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names, namespace):
            changed = client.suspend(name)
            done("PodGroup", name, "suspended" if changed else "is suspended already")


@click.command(epilog=examples("batchq resume train-1", "batchq resume research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], namespace: str, output: str) -> None:
    """Let suspended groups stand in line again, at their former place."""
    with shared.connect() as client, report(output) as done:
        for name in _found(client, names, namespace):
            changed = client.resume(name)
            done("PodGroup", name, "resumed" if changed else "is not suspended")


def _found(client: Client, names: tuple[str, ...], namespace: str) -> list[str]:
    """The keys of the groups, once all of them are known to be there: a typing error in the third
    name is found before anything happens to the first.
    """
    keys = group_keys(names, namespace)
    for key in keys:
        client.get("PodGroup", key)
    return keys
