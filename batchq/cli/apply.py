"""`batchq apply`: make the objects of a file so."""

from __future__ import annotations

from collections.abc import Sequence

import click

from batchq.api.objects import Object
from batchq.cli.files import STDIN, read_objects
from batchq.cli.options import Globals, examples, output_option, pass_globals
from batchq.cli.output import reference, show_objects


@click.command(
    epilog=examples(
        "batchq apply -f conf/queues.yaml",
        "batchq apply -f conf/queues.yaml --dry-run",
        "batchq get queue default -o yaml | batchq apply -f -",
    )
)
@click.option("-f", "--filename", required=True, metavar="FILE", help="A file, or - for stdin.")
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@output_option("text", "json", "yaml", "name")
@pass_globals
def apply(shared: Globals, filename: str, dry_run: bool, output: str) -> None:
    """Create the objects of a file that are not there, and change those that are.

    All of them or, if one is refused, none. Pods that name no workingDir start in the file's
    folder.
    """
    objects = read_objects(filename, in_folder=filename != STDIN)
    apply_objects(shared, objects, dry_run=dry_run, output=output)


def apply_objects(
    shared: Globals, objects: Sequence[Object], *, dry_run: bool, output: str
) -> None:
    """Apply them, and say what was done to each."""
    with shared.connect() as client:
        applied = client.apply(objects, dry_run=dry_run)
    for one in applied:
        if one.warning:
            click.echo(f"warning: {one.warning}", err=True)
    if output != "text":
        show_objects([one.object for one in applied], output)
        return
    suffix = " (dry run)" if dry_run else ""
    for one in applied:
        click.echo(f"{reference(one.object)} {one.effect}{suffix}")
