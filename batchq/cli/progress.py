"""`batchq progress`: live bars on a terminal, a line for each change in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from batchq.cli.ending import exit_code_of, goes_on
from batchq.cli.options import Globals, examples, namespace_option, pass_globals
from batchq.cli.runview import display, has_ended
from batchq.cli.terminal import raw_option
from batchq.cli.trouble import on_interrupt
from batchq.cli.values import group_keys
from batchq.client import Client
from batchq.client.waiting import Result
from batchq.errors import NotFound

#: How often bars are drawn at most.
_LEAST_S = 0.2
#: How long nothing may happen before it is looked at again.
_MOST_S = 2.0


@click.command(epilog=examples("batchq progress train-1", "batchq progress train-1 train-2"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@raw_option
@pass_globals
def progress(shared: Globals, names: tuple[str, ...], namespace: str) -> int:
    """Follow groups until they have ended; the exit code is that of `batchq wait`."""
    keys = group_keys(names, namespace)
    sentence, hint = goes_on(keys)
    with on_interrupt(sentence, hint=hint), shared.connect(patience_s=None) as client:
        return exit_code_of(follow(client, keys, color=shared.color))


def follow(
    client: Client, keys: Sequence[str], *, color: bool, err: bool = False
) -> Sequence[Result]:
    """Show groups until all have ended; the results.

    Raises NotFound, also for a group that is deleted meanwhile.
    """
    with client.patiently():
        for key in keys:
            client.get("PodGroup", key)
    with client.patiently(), display(sys.stderr if err else sys.stdout, color=color) as shown:
        while True:
            there = {view.key: view for view in client.overview().groups()}
            gone = [key for key in keys if key not in there]
            if gone:
                raise NotFound(f"PodGroup {gone[0]} was deleted while it was followed")
            views = [there[key] for key in keys]
            shown.show(views)
            if all(has_ended(view) for view in views):
                break
            client.wait_for_change(most_s=_MOST_S, least_s=_LEAST_S)
    return client.wait(keys)
