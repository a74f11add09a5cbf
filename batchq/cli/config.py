"""`batchq config check|print`: the scheduler's configuration, read as the daemon reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.options import examples, output_option
from batchq.cli.output import show_data

if TYPE_CHECKING:
    from batchq.config.model import SchedulerConfig

_FILE = click.Path(path_type=Path)
#: Action -> the plugin in the box that agrees to its victims first of all.
_AGREES = {"preempt": "priority", "reclaim": "proportion"}


@click.group(epilog=examples("batchq config check conf/scheduler.yaml", "batchq config print"))
def config() -> None:
    """Check and print the scheduler's configuration."""


@config.command(epilog=examples("batchq config check conf/scheduler.yaml"))
@click.argument("file", type=_FILE)
@output_option("text", "json")
def check(file: Path, output: str) -> None:
    """Say what is wrong with FILE, read as the scheduler would.

    What has no effect, but keeps nothing from starting, is told on stderr. Exit code 1 if the
    scheduler would not start with it.
    """
    found = checked_config(file)
    plugins = [entry.name for entry in found.plugins]
    for line in _without_effect(found):
        click.echo(line, err=True)
    if output == "json":
        data = {"file": str(file), "actions": list(found.actions), "plugins": plugins}
        show_data(data, output)
        return
    names = ", ".join(plugins) or "none"
    click.echo(f"{file} is a valid configuration")
    click.echo(f"actions: {', '.join(found.actions)}")
    click.echo(f"plugins: {names}")


def _without_effect(config: SchedulerConfig) -> list[str]:
    """What stands in the configuration and changes nothing, a line each."""
    from batchq.assembly import without_consent

    plugins = {entry.name for entry in config.plugins}
    notes = [
        f"note: pluginConfig.{name} has no effect: plugins does not name {name}"
        for name in config.plugin_config
        if name not in plugins
    ]
    warnings = [
        f"warning: {action} will evict nobody: plugins names none that agrees to its victims;"
        f" add {_AGREES[action]}, or leave {action} out of actions"
        for action in without_consent(config)
    ]
    return notes + warnings


@config.command("print", epilog=examples("batchq config print --config conf/scheduler.yaml"))
@click.option("--config", "file", type=_FILE, help="The file; without it, the defaults.")
def print_(file: Path | None) -> None:
    """Print the whole configuration, defaults included.

    What it prints is a file that `batchq up --config` reads.
    """
    import yaml

    from batchq.config.load import as_written

    written = as_written(checked_config(file))
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, default_flow_style=None)
    click.echo(text, nl=False)


def checked_config(file: Path | None) -> SchedulerConfig:
    """The configuration in `file` (the defaults, if None), with every name in it known.

    Raises InvalidInput, which names the file, the line and the nearest name.
    """
    from batchq.assembly import assemble, check_settings, known_actions, known_plugins
    from batchq.config.load import Known, load_config

    known = Known(known_actions(), known_plugins(), check_settings)
    found = load_config(file, known=known)
    assemble(found)
    return found
