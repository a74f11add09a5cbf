"""`batchq delete`: take objects away."""

from __future__ import annotations

import click

from batchq.api.objects import key_of, kind_of
from batchq.cli.files import read_objects
from batchq.cli.options import Globals, examples, namespace_option, pass_globals
from batchq.cli.output import reference
from batchq.cli.values import complete_kind, kind_of_word
from batchq.errors import UsageError


@click.command(
    epilog=examples(
        "batchq delete podgroup train-1",
        "batchq delete queue research vision",
        "batchq delete -f conf/queues.yaml",
    )
)
@click.argument("words", nargs=-1, metavar="[KIND NAME…]", shell_complete=complete_kind)
@click.option("-f", "--filename", metavar="FILE", help="Delete what this file names; - is stdin.")
@namespace_option
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@pass_globals
def delete(
    shared: Globals, words: tuple[str, ...], filename: str | None, namespace: str, dry_run: bool
) -> None:
    """Delete objects of a KIND by their names, or those that a file names.

    All of them or, if one cannot be deleted, none. A finished group takes its pods along; one that
    has not ended has to be cancelled first.
    """
    wanted = _wanted(words, filename, namespace)
    with shared.connect() as client:
        found = [client.get(kind, name, namespace=space) for kind, name, space in wanted]
        places = list(dict.fromkeys((kind_of(item), key_of(item)) for item in found))
        applied = client.delete_all(places, dry_run=dry_run)
    suffix = " (dry run)" if dry_run else ""
    for one in applied:
        click.echo(f"{reference(one.object)} deleted{suffix}")


def _wanted(
    words: tuple[str, ...], filename: str | None, namespace: str
) -> list[tuple[str, str, str]]:
    """Kind, name and namespace of what is to go."""
    if filename is not None:
        if words:
            raise UsageError("name the objects, or a file with -f, not both")
        objects = read_objects(filename, in_folder=False)
        return [
            (kind_of(item), item.metadata.name, item.metadata.namespace or namespace)
            for item in objects
        ]
    if len(words) < 2:
        raise UsageError(
            "expected a kind and a name, or a file with -f",
            hint="as in `batchq delete podgroup train-1`",
        )
    kind = kind_of_word(words[0])
    return [(kind, name, namespace) for name in words[1:]]
