"""`batchq config reload` and `config print --effective`: what a running scheduler goes by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.render import show_data
from batchq.cli.output.terminal import echo
from batchq.cli.output.trouble import EXIT_ERROR
from batchq.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from batchq.config.load import SettingDifference
    from batchq.config.model import Expansion, SchedulerConfig


@click.command(epilog=examples("batchq config reload"))
@pass_globals
def reload(shared: Globals) -> int:
    """Have the scheduler of this machine read its file again, and say what came of it.

    It is the one that `batchq up` has started; send SIGHUP to any other. A file that was changed
    is taken up within two seconds without this, too.

    Exit codes: 0 taken up, or nothing was new; 1 the file is wrong, and what was in effect stays;
    6 no scheduler runs here; 124 it does not answer.
    """
    from batchq.daemon.reload import RELOADED, ask_to_reload
    from batchq.paths import find_home

    with shared.connect() as client:
        answer = ask_to_reload(find_home(), client)
    if answer.reason == RELOADED:
        echo(answer.message)
        return 0
    echo(f"error: {answer.message}", err=True)
    return EXIT_ERROR


def effective_config(shared: Globals) -> SchedulerConfig:
    """What the scheduler goes by that leads; a note on stderr if none does.

    Raises StoreUnavailable, NotFound.
    """
    from batchq.client.cluster import published_config
    from batchq.config.load import read_config

    published = published_config(shared.redis_url)
    if not published.led:
        echo("note: no scheduler leads; the last that did went by this", err=True)
    return read_config(published.text, "the configuration of the scheduler that leads")


_FILE = click.Path(path_type=Path)
#: Action -> the plugin in the box that agrees to its victims first of all.
_AGREES = {"preempt": "priority", "reclaim": "proportion"}
_DIFFERENT = 1


@click.group(
    epilog=examples(
        "batchq config check conf/scheduler.yaml",
        "batchq config print --expanded",
        "batchq config diff old.yaml new.yaml",
    )
)
def config() -> None:
    """Check, print, compare and convert the scheduler's configuration."""


config.add_command(reload)


@config.command(epilog=examples("batchq config check conf/scheduler.yaml"))
@click.argument("file", type=_FILE)
@output_option("text", "json")
def check(file: Path, output: str) -> None:
    """Say what is wrong with FILE, read as the scheduler would.

    What has no effect, and what holds no longer as the plugin that sees to it is off, keeps nothing
    from starting, and is told on stderr. Exit code 1 if the scheduler would not start with it.
    """
    from batchq.assembly import expanded

    found = checked_config(file)
    plugins = _on(found, expanded(found))
    for line in _without_effect(found):
        echo(line, err=True)
    if output == "json":
        data = {"file": str(file), "actions": list(found.actions), "plugins": plugins}
        show_data(data, output)
        return
    names = ", ".join(plugins) or "none"
    echo(f"{file} is a valid configuration")
    echo(f"actions: {', '.join(found.actions)}")
    echo(f"plugins: {names}")


@config.command(
    "print",
    epilog=examples(
        "batchq config print --config conf/scheduler.yaml",
        "batchq config print --expanded",
        "batchq config print --effective",
    ),
)
@click.option("--config", "file", type=_FILE, help="The file; without it, the defaults.")
@click.option("--expanded", "per_point", is_flag=True, help="Name the plugins at each point.")
@click.option("--effective", is_flag=True, help="Ask the server what its scheduler goes by now.")
@output_option("yaml", "json")
@pass_globals
def print_(
    shared: Globals, file: Path | None, per_point: bool, effective: bool, output: str
) -> None:
    """Print the whole configuration, defaults included.

    Plugins are named once, under multiPoint, with what differs at single points; --expanded names
    them at each extension point, in the order in which they are asked. What is printed is a file
    that `batchq up --config` reads, with the same effect.
    """
    from batchq.assembly import expanded
    from batchq.config.load import as_text, as_written

    if effective and file is not None:
        raise UsageError("--effective asks the server, and goes without --config")
    found = effective_config(shared) if effective else checked_config(file)
    expansion = expanded(found) if per_point else None
    if output == "json":
        show_data(as_written(found, expansion), output)
        return
    echo(as_text(found, expansion), nl=False)


@config.command(
    epilog=examples(
        "batchq config diff old.yaml new.yaml",
        "batchq config diff conf/scheduler.yaml new.yaml -o json",
    )
)
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@output_option("text", "json")
def diff(a: Path, b: Path, output: str) -> int:
    """Show in what the configurations A and B differ in effect, however they are written.

    Compared are actions, times and factors, the plugins at each extension point and their
    settings. Order counts where it decides something, weights count where nodes are scored.
    Exit code 0 if there is no difference, 1 if there is, 2 if a file is wrong.
    """
    from batchq.config.load import differences

    found = list(differences(_effect(a), _effect(b)))
    if output == "json":
        rows = [{"what": one.what, "a": one.a, "b": one.b} for one in found]
        show_data({"equal": not found, "differences": rows}, output)
    elif found:
        echo(f"--- {a}\n+++ {b}")
        for one in found:
            for line in _difference(one):
                echo(line)
    return _DIFFERENT if found else 0


@config.command(epilog=examples("batchq config convert kube-batch-conf.yaml > scheduler.yaml"))
@click.argument("file", type=_FILE)
def convert(file: Path) -> None:
    """Print kube-batch's configuration FILE (actions and tiers) as a file of batchq's.

    What is not the same here is told on stderr, with its line. Exit code 1 if kube-batch itself
    would not start with the file.
    """
    from batchq.assembly import assemble, known_actions, known_plugins
    from batchq.config import kube_batch
    from batchq.config.documents import read_bounded, read_documents
    from batchq.config.load import as_text

    try:
        documents = read_documents(read_bounded(file), str(file))
    except OSError as error:
        raise InvalidInput(f"{file}: the file cannot be read: {error.strerror}") from None
    if len(documents) != 1:
        raise InvalidInput(f"{file}: expected one document, found {len(documents)}")
    names = kube_batch.Names(known_actions(), known_plugins())
    found = kube_batch.convert(documents[0], names)
    assemble(found.config)
    for note in found.notes:
        echo(f"note: {note}", err=True)
    for line in _without_effect(found.config):
        echo(line, err=True)
    echo(as_text(found.config), nl=False)


def checked_config(file: Path | None) -> SchedulerConfig:
    """The configuration in `file` (the defaults, if None), with every name in it known.

    Raises InvalidInput, which names the file, the line and the nearest name.
    """
    from batchq.assembly import assemble, known_names
    from batchq.config.load import load_config

    found = load_config(file, known=known_names())
    assemble(found)
    return found


def _on(config: SchedulerConfig, expansion: Expansion) -> list[str]:
    """The plugins that have a say anywhere."""
    from batchq.config.model import named

    there = {entry.name for standing in expansion.values() for entry in standing}
    return [name for name in named(config) if name in there]


def _without_effect(config: SchedulerConfig) -> list[str]:
    """What stands in the configuration and changes nothing, and what it gives up, a line each."""
    from batchq.assembly import expanded, without_consent
    from batchq.config.model import named, unkept

    expansion = expanded(config)
    plugins, on = named(config), _on(config, expansion)
    notes = [
        f"note: pluginConfig.{name} has no effect: plugins does not name {name}"
        for name in config.plugin_config
        if name not in plugins
    ]
    notes += [
        f"note: plugin {name} has no effect: it is disabled at each of its points"
        for name in plugins
        if name not in on
    ]
    warnings = [
        f"warning: {action} will evict nobody: plugins names none that agrees to its victims;"
        f" add {_AGREES[action]}, or leave {action} out of actions"
        for action in without_consent(config)
    ]
    if "backfill" in config.actions and "enqueue" not in _before_backfill(config):
        warnings.append(
            "warning: backfill lets nobody past a head: enqueue, which finds the heads, does not"
            " come before it in actions; put backfill last"
        )
    given_up = [f"note: {sentence}" for sentence in unkept(expansion)]
    return [*notes, *_idle_disabling(config), *given_up, *warnings]


def _before_backfill(config: SchedulerConfig) -> tuple[str, ...]:
    return config.actions[: config.actions.index("backfill")]


def _idle_disabling(config: SchedulerConfig) -> Iterator[str]:
    """Plugins that are disabled where they would not be asked anyway."""
    from batchq.assembly import points_of
    from batchq.config.model import ALL

    on = {entry.name for entry in config.plugins}
    for point, stated in config.points.items():
        for name in stated.disabled:
            if name == ALL or any(entry.name == name for entry in stated.enabled):
                continue
            if name not in on or point not in points_of(name, config.plugin_config.get(name, {})):
                yield f"note: plugins.{point}.disabled: {name} would not be asked there anyway"


def _effect(file: Path) -> dict[str, object]:
    """Raises UsageError for a wrong file: the code of a wrong configuration says "different"."""
    from batchq.assembly import arguments_of, expanded
    from batchq.config.load import effect

    try:
        found = checked_config(file)
        return effect(found, expanded(found), arguments_of)
    except InvalidInput as problem:
        raise UsageError(problem.message, hint=problem.hint) from None


def _difference(one: SettingDifference) -> Iterator[str]:
    for sign, value in (("-", one.a), ("+", one.b)):
        if value is not None:
            yield f"{sign}{one.what}: {_words(value)}"


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_words(item) for item in value) or "none"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_words(item)}" for key, item in value.items()) + "}"
    return str(value)
