"""A world, played to its end and shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batchq.cli.simulating.given import Given
from batchq.cli.terminal import echo

if TYPE_CHECKING:
    from batchq.sim.run import Played


def simulate_world(
    world: Given, configs: Sequence[Path], *, cycles: int | None, output: str
) -> None:
    """Play it, under the defaults or the one configuration; the answer to stdout, notes to stderr.

    Raises InvalidInput for whatever is wrong with the world or the configuration.
    """
    from batchq.cli.config import checked_config
    from batchq.sim.run import MOST_SESSIONS, play

    text, source = world.content, world.source
    if not _has_node(text, source):
        echo(f"{source} has no Node: nothing can run in this world", err=True)
    config = checked_config(configs[0] if configs else None)
    played = play(text, source, config=config, cycles=cycles)
    echo(_shown(played, output))
    for step in played.refused_steps:
        echo(f"warning: refused: {step}", err=True)
    if played.exhausted:
        echo(f"stopped after {MOST_SESSIONS} sessions, though more was due", err=True)


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
