"""`batchq config check|print`: the scheduler's configuration, read as the daemon reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.options import examples

if TYPE_CHECKING:
    from batchq.config.model import SchedulerConfig

_FILE = click.Path(path_type=Path)


@click.group(epilog=examples("batchq config check conf/scheduler.yaml", "batchq config print"))
def config() -> None:
    """Check and print the scheduler's configuration."""


@config.command(epilog=examples("batchq config check conf/scheduler.yaml"))
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Read FILE as the scheduler would, and say what is wrong with it.

    Exit code 1 if the scheduler would not start with it.
    """
    found = checked_config(file)
    names = ", ".join(entry.name for entry in found.plugins) or "none"
    click.echo(f"{file} is a valid configuration")
    click.echo(f"actions: {', '.join(found.actions)}")
    click.echo(f"plugins: {names}")


@config.command("print", epilog=examples("batchq config print --config conf/scheduler.yaml"))
@click.option("--config", "file", type=_FILE, help="The file; without it, the defaults.")
def print_(file: Path | None) -> None:
    """Print the whole effective configuration, defaults included, as a file that can be used."""
    import yaml

    from batchq.config.load import as_written

    written = as_written(checked_config(file))
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, default_flow_style=None)
    click.echo(text, nl=False)


def checked_config(file: Path | None) -> SchedulerConfig:
    """The configuration in `file` (the defaults, if None), with every name in it known.

    Raises InvalidInput, which names the file, the line and the nearest name.
    """
    from batchq.assembly import assemble
    from batchq.config.load import load_config

    found = load_config(file)
    if file is not None:
        _check_names(file, found)
    assemble(found)
    return found


def _check_names(file: Path, found: SchedulerConfig) -> None:
    """What the assembly says too, with the line, which only the file's reader knows."""
    from batchq.api.notation import suggestion
    from batchq.assembly import known_actions, known_plugins
    from batchq.config.documents import read_documents

    plugins = [entry.name for entry in found.plugins]
    for field, names, known in (
        ("actions", found.actions, known_actions()),
        ("plugins", plugins, known_plugins()),
    ):
        for place, name in enumerate(names):
            if name not in known:
                kind = field.removesuffix("s")
                text = f"there is no {kind} {name!r}; {suggestion(name, known)}"
                documents = read_documents(file.read_bytes(), str(file))
                raise documents[0].problem((field, place), text)
