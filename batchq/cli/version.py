"""`batchq version`."""

from __future__ import annotations

import json

import click

from batchq import __version__
from batchq.cli.options import examples
from batchq.cli.terminal import echo


@click.command(epilog=examples("batchq version", "batchq version -o json"))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def version(output: str) -> None:
    """Print the version."""
    echo(json.dumps({"version": __version__}) if output == "json" else f"batchq {__version__}")
