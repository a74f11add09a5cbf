"""`batchq cancel`, `suspend` and `resume`: one word to groups that are there."""

from __future__ import annotations

import click

from batchq.cli.options import Globals, examples, namespace_option, pass_globals
from batchq.client import Client, key_named


@click.command(
    epilog=examples(
        "batchq cancel train-1",
        "batchq cancel train-1 train-2 -n research --reason 'wrong data'",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option("--reason", default="", help="Why, for whoever asks later.")
@pass_globals
def cancel(shared: Globals, names: tuple[str, ...], namespace: str, reason: str) -> None:
    """End groups: Cancelled at once; their processes get SIGTERM, and SIGKILL after their grace.

    `batchq wait NAME` returns when the processes have ended.
    """
    with shared.connect() as client:
        for name in _found(client, names, namespace):
            client.cancel(name, reason=reason)
            click.echo(f"podgroup {name} cancelled")


@click.command(epilog=examples("batchq suspend train-1", "batchq suspend research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@pass_globals
def suspend(shared: Globals, names: tuple[str, ...], namespace: str) -> None:
    """Hold groups back: what runs is stopped and goes back to the line, where it waits."""
    with shared.connect() as client:
        for name in _found(client, names, namespace):
            done = client.suspend(name)
            click.echo(f"podgroup {name} {'suspended' if done else 'is suspended already'}")


@click.command(epilog=examples("batchq resume train-1", "batchq resume research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], namespace: str) -> None:
    """Let suspended groups stand in line again, at their former place."""
    with shared.connect() as client:
        for name in _found(client, names, namespace):
            done = client.resume(name)
            click.echo(f"podgroup {name} {'resumed' if done else 'is not suspended'}")


def _found(client: Client, names: tuple[str, ...], namespace: str) -> list[str]:
    """The keys of the groups, once all of them are known to be there: a typing error in the third
    name is found before anything happens to the first.
    """
    keys = list(dict.fromkeys(key_named(name, namespace) for name in names))
    for key in keys:
        client.get("PodGroup", key)
    return keys
