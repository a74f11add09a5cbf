"""`batchq apply`: make the objects of a file so."""

from __future__ import annotations

from collections.abc import Sequence

import click

from batchq.cli.files import STDIN, Content, read_content
from batchq.cli.options import Globals, examples, output_option, pass_globals
from batchq.cli.output import reference, show_objects
from batchq.cli.terminal import echo
from batchq.client import Applied


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
    folder. A queue whose stopPolicy the file does not name keeps the one it has.

    What a queue says that its author may not have meant (more guaranteed than the machines have,
    less allowed than is held) is told on stderr, and applied.
    """
    content = read_content(filename, in_folder=filename != STDIN)
    apply_content(shared, content, dry_run=dry_run, output=output)


def apply_content(shared: Globals, content: Content, *, dry_run: bool, output: str) -> None:
    """Apply what a file holds, and say what was done to each."""
    with shared.connect() as client:
        applied = client.apply(content.objects, dry_run=dry_run, keep_stop=content.keep_stop)
    warn(applied)
    if output != "text":
        show_objects([one.object for one in applied], output)
        return
    suffix = " (dry run)" if dry_run else ""
    for one in applied:
        changes = f": {one.changes}" if one.changes else ""
        echo(f"{reference(one.object)} {one.effect}{suffix}{changes}")


def warn(applied: Sequence[Applied]) -> None:
    """What follows from a request that its author may not have meant, on stderr."""
    for one in applied:
        for warning in one.warnings:
            echo(f"warning: {warning}", err=True)
