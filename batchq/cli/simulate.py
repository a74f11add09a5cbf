"""`batchq simulate WORLD`: a described world, played in virtual time without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.options import examples
from batchq.errors import InvalidInput

if TYPE_CHECKING:
    from batchq.sim.run import Played

_FILE = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "batchq simulate conf/examples/world.yaml",
        "batchq simulate world.yaml --config conf/scheduler.yaml -o json",
        "batchq simulate - --cycles 1 < world.yaml",
    )
)
@click.argument("world", metavar="WORLD")
@click.option("--config", type=_FILE, metavar="FILE", help="The scheduler's configuration to try.")
@click.option(
    "--cycles",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N sessions; without it, when nothing can change any more, or after 1000.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print what happened.",
)
def simulate(world: str, config: Path | None, cycles: int | None, output: str) -> None:
    """Play the manifests of WORLD (- is standard input) in virtual time.

    The real sessions run over queues, nodes and pod groups as the file describes them, without a
    server and without starting anything. A pod whose template has the annotation batchq/runtime
    succeeds that long after its start; a document of kind Timeline says what happens from outside
    and when. Exit code 0 whatever waits in the end, 1 if the file or the configuration is wrong.
    """
    from batchq.cli.config import checked_config
    from batchq.sim.run import MOST_SESSIONS, play

    text, source = _read(world)
    if not _has_node(text, source):
        click.echo(f"{source} has no Node: nothing can run in this world", err=True)
    played = play(text, source, config=checked_config(config), cycles=cycles)
    click.echo(_shown(played, output))
    for step in played.refused_steps:
        click.echo(f"warning: refused: {step}", err=True)
    if played.exhausted:
        click.echo(f"stopped after {MOST_SESSIONS} sessions, though more was due", err=True)


def _read(world: str) -> tuple[bytes, str]:
    """The file's content, and what messages call it."""
    if world == "-":
        return sys.stdin.buffer.read(), "standard input"
    try:
        return Path(world).read_bytes(), world
    except OSError as error:
        raise InvalidInput(f"{world}: the world cannot be read: {error.strerror}") from None


def _has_node(text: bytes, source: str) -> bool:
    """Whether the world has a node, or gets one by a step of its Timeline.

    Raises InvalidInput for what is no file of manifests.
    """
    from batchq.config.documents import read_documents

    for document in read_documents(text, source):
        steps = document.data.get("spec") if document.data.get("kind") == "Timeline" else None
        brought = [step.get("apply") for step in _dicts(steps)]
        if any(item.get("kind") == "Node" for item in _dicts([document.data, *brought])):
            return True
    return False


def _dicts(items: object) -> list[dict[str, object]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _shown(played: Played, output: str) -> str:
    if output == "table":
        from batchq.sim.table import as_table

        return as_table(played.outcome)
    from batchq.sim.report import as_json

    return as_json(played.outcome)
