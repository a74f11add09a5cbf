"""`batchq scheduler` and `batchq config`: run the scheduler, and work with its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.api.node_report import BEAT_MS
from batchq.api.notation import describe_age, format_duration
from batchq.cli.output import EXIT_ERROR, echo, show_error, show_hint, show_table
from batchq.cli.output.forms import Columns, Output, output_of, show_data, tabled
from batchq.cli.output.options import (
    Globals,
    examples,
    form_option,
    metrics_option,
    output_option,
    pass_globals,
)
from batchq.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from batchq.api.views import Schedulers, SchedulerSeen
    from batchq.config import Expansion, SchedulerConfig
    from batchq.config.load import SettingDifference


@click.command(epilog=examples("batchq config reload"))
@pass_globals
def reload(shared: Globals) -> int:
    """Let the scheduler of this machine read its file again, and print the result.

    This is the scheduler that `batchq up` has started; send SIGHUP to any other. A changed file is
    also loaded within two seconds without this command.

    Exit codes: 0 loaded, or nothing has changed; 1 the file is wrong, and the previous
    configuration stays in effect; 6 no scheduler runs here; 124 it does not answer.
    """
    from batchq.daemon.reload import RELOADED, ask_to_reload
    from batchq.paths import find_home

    with shared.connect() as client:
        answer = ask_to_reload(find_home(), client)
    if answer.reason == RELOADED:
        echo(answer.message)
        return 0
    show_error(answer.message)
    return EXIT_ERROR


def effective_config(shared: Globals) -> SchedulerConfig:
    """Return the leader's configuration; print a note on stderr if no scheduler leads.

    Raises StoreUnavailable, NotFound.
    """
    from batchq.client.connection import published_config
    from batchq.config.load import read_config

    published = published_config(shared.redis_url)
    if not published.led:
        echo("note: no scheduler leads; this is the last leader's configuration", err=True)
    return read_config(published.text, "the configuration of the scheduler that leads")


_FILE = click.Path(path_type=Path)
#: Action -> the included plugin that first consents to its victims.
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
def check(file: Path, output: Output) -> None:
    """Report what is wrong with FILE, reading it as the scheduler does.

    Settings without effect, and guarantees that a disabled plugin would have enforced, are reported
    on stderr. Exit code 1 if the scheduler would not start with the file.
    """
    from batchq.assembly import expanded

    found = checked_config(file)
    plugins = _on(found, expanded(found))
    for line in _without_effect(found):
        echo(line, err=True)
    value = {"file": str(file), "actions": found.actions, "plugins": plugins}
    lines = (
        f"{file} is a valid configuration",
        f"actions: {', '.join(found.actions)}",
        f"plugins: {', '.join(plugins) or 'none'}",
    )
    output.page(value, lambda: echo("\n".join(lines)))


@config.command(
    "print",
    epilog=examples(
        "batchq config print --config conf/scheduler.yaml",
        "batchq config print --expanded",
        "batchq config print --effective",
    ),
)
@click.option("--config", "file", type=_FILE, help="The file.  [default: the built-in defaults]")
@click.option(
    "--expanded", "per_point", is_flag=True, help="List the plugins at each extension point."
)
@click.option(
    "--effective", is_flag=True, help="Print the configuration that the scheduler uses now."
)
@form_option("yaml", "json")
@pass_globals
def print_(
    shared: Globals, file: Path | None, per_point: bool, effective: bool, output: str
) -> None:
    """Print the whole configuration, including defaults.

    Plugins are listed once, under multiPoint, with the differences at single points; --expanded
    lists them at each extension point, in calling order. The output is a file that `batchq up
    --config` reads, with the same effect.
    """
    from batchq.assembly import expanded
    from batchq.config.load import as_text, as_written

    if effective and file is not None:
        raise UsageError("--effective and --config exclude each other")
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
def diff(a: Path, b: Path, output: Output) -> int:
    """Show how the effects of the configurations A and B differ, however they are written.

    Compares actions, times and factors, the plugins at each extension point and their settings.
    The order counts where it decides something, weights count where nodes are scored.
    Exit code 0 if there is no difference, 1 if there is, 2 if a file is wrong.
    """
    from batchq.config.load import differences

    found = list(differences(_effect(a), _effect(b)))
    rows = [{"what": one.what, "a": one.a, "b": one.b} for one in found]
    lines = [f"--- {a}", f"+++ {b}", *(line for one in found for line in _difference(one))]
    output.page(
        {"equal": not found, "differences": rows},
        lambda: echo("\n".join(lines)) if found else None,
    )
    return _DIFFERENT if found else 0


@config.command(epilog=examples("batchq config convert kube-batch-conf.yaml > scheduler.yaml"))
@click.argument("file", type=_FILE)
def convert(file: Path) -> None:
    """Convert kube-batch's configuration FILE (actions and tiers) to a file for batchq.

    Differences are reported on stderr, with their lines. Exit code 1 if kube-batch itself would not
    start with the file.
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
        # The notes above already say this, with the line of the file.
        if line != _NO_ENQUEUE:
            echo(line, err=True)
    echo(as_text(found.config), nl=False)


def checked_config(file: Path | None) -> SchedulerConfig:
    """Return the configuration in `file` (None: the defaults), after checking every name in it.

    Raises InvalidInput, naming the file, the line and the nearest name.
    """
    from batchq.assembly import assemble, known_names
    from batchq.config.load import load_config

    found = load_config(file, known=known_names())
    assemble(found)
    return found


def _on(config: SchedulerConfig, expansion: Expansion) -> list[str]:
    """Return the plugins that are enabled at some point."""
    from batchq.config import named

    enabled = {entry.name for standing in expansion.values() for entry in standing}
    return [name for name in named(config) if name in enabled]


def _without_effect(config: SchedulerConfig) -> list[str]:
    """Return one line for each setting without effect, lost guarantee and warning."""
    from batchq.assembly import expanded, without_consent
    from batchq.config import named, unkept

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
        f"warning: {action} will evict no groups: no plugin in plugins consents to its victims;"
        f" add {_AGREES[action]}, or leave {action} out of actions"
        for action in without_consent(config)
    ]
    if "backfill" in config.actions and "enqueue" not in _before_backfill(config):
        warnings.append(
            "warning: backfill lets no group past a head: enqueue, which finds the heads, does not"
            " come before it in actions; put backfill last"
        )
    given_up = [f"note: {sentence}" for sentence in unkept(expansion)]
    return [*notes, *_needless_disabling(config), *given_up, *warnings, *_unusual(config)]


_NO_ENQUEUE = (
    "note: without enqueue in actions, groups get pods before resources are free for all of them;"
    " put enqueue first"
)


def _unusual(config: SchedulerConfig) -> Iterator[str]:
    """Report an order of actions, and times, that delay groups or lose nodes."""
    actions, times = config.actions, config.settings
    if "allocate" in actions and "enqueue" not in actions:
        yield _NO_ENQUEUE
    elif "allocate" in actions and actions.index("allocate") < actions.index("enqueue"):
        yield (
            "warning: groups that enqueue admits wait for the next session: allocate comes before"
            " it in actions; put enqueue first"
        )
    if "allocate" not in actions:
        yield (
            "note: without allocate in actions, admitted groups get no pods, and only consumers"
            " start groups; put allocate after enqueue"
        )
    if not times.overcommit:
        yield "warning: overcommit 0 admits no pods; expected a factor such as 1"
    if times.node_timeout_ms < 2 * BEAT_MS:
        yield (
            f"warning: nodeTimeout {format_duration(times.node_timeout_ms)} is less than twice the"
            f" usual heartbeat interval of {format_duration(BEAT_MS)}: nodes are not ready"
            " between two heartbeats, unless their agents have a shorter --beat"
        )
    for name, length_ms in (
        ("podLease", times.pod_lease_ms),
        ("nodeTimeout", times.node_timeout_ms),
    ):
        if length_ms < times.schedule_period_ms:
            yield (
                f"warning: {name} {format_duration(length_ms)} is shorter than schedulePeriod"
                f" {format_duration(times.schedule_period_ms)}; expected several times its length"
            )


def _before_backfill(config: SchedulerConfig) -> tuple[str, ...]:
    return config.actions[: config.actions.index("backfill")]


def _needless_disabling(config: SchedulerConfig) -> Iterator[str]:
    """Report plugins that are disabled at points where they would not be called anyway."""
    from batchq.assembly import points_of
    from batchq.config import ALL

    on = {entry.name for entry in config.plugins}
    for point, stated in config.points.items():
        for name in stated.disabled:
            if name == ALL or any(entry.name == name for entry in stated.enabled):
                continue
            if name not in on or point not in points_of(name, config.plugin_config.get(name, {})):
                yield f"note: plugins.{point}.disabled: {name} would not be called there anyway"


def _effect(file: Path) -> dict[str, object]:
    """Raise UsageError for a wrong file, because exit code 1 means "different" here."""
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


@click.command(
    epilog=examples(
        "batchq scheduler",
        "batchq scheduler --config conf/scheduler.yaml",
        "batchq scheduler --metrics 9464",
        "batchq scheduler --status",
    )
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration, a scheduler.yaml.  [default: built in]",
)
@metrics_option
@click.option(
    "--status", is_flag=True, help="Start nothing; show the leader and the schedulers on standby."
)
@form_option("table", "json")
@pass_globals
def scheduler(
    shared: Globals, config: Path | None, metrics: str | None, status: bool, output: str
) -> int | None:
    """Run the scheduler daemon until SIGTERM or Ctrl-C; it logs to stderr.

    Several may run on one server: one leads, the others stand by and take over when its lease
    expires. The command waits for a server that does not answer yet. BATCHQ_LOG=json makes the log
    JSON, BATCHQ_LOG_LEVEL sets its level. --metrics serves /metrics, /livez and /readyz over HTTP;
    docs/metrics.md describes them.

    Exit codes of --status: 0 a scheduler leads, 3 none does, 9 the server cannot be reached or
    refuses this user.
    """
    if status:
        if config is not None:
            raise UsageError("--config and --status exclude each other: --status starts nothing")
        with shared.connect() as client:
            found = client.schedulers()
        _show(found, output_of(output))
        return None if found.led else _NO_LEADER
    if output != "table":
        raise UsageError("-o needs --status; the daemon itself prints nothing")
    from batchq.daemon import logs
    from batchq.daemon.app import SchedulerOptions, run_scheduler

    logs.configure()
    checked_config(config)
    return run_scheduler(SchedulerOptions(url=shared.redis_url, config=config, metrics=metrics))


_COLUMNS: Columns[SchedulerSeen] = {
    "SCHEDULER": lambda one: one.identity,
    "ROLE": lambda one: one.role,
    "VERSION": lambda one: one.version,
    "SEEN": lambda one: f"{describe_age(one.seen_ms_ago)} ago",
    "CONFIG": lambda one: f"{one.config}, its file is wrong" if one.refused_file else one.config,
    "MIRROR": lambda one: _mirror(one),
}


#: As `systemctl status` has it for a service that does not run.
_NO_LEADER = 3


def _show(found: Schedulers, output: Output) -> None:
    if not found.led:
        show_hint(_how_to_be_led(found))
    output.page(_data(found), lambda: _show_text(found))


def _show_text(found: Schedulers) -> None:
    leader = found.leader
    if leader is not None and leader.left_ms > 0:
        left_s = leader.left_ms / 1000
        echo(
            f"{leader.identity} leads, epoch {leader.epoch}; its lease ends in {left_s:.1f} s"
            " unless renewed"
        )
    elif leader is not None:
        ago = describe_age(-leader.left_ms)
        echo(f"no scheduler leads; {leader.identity} did until {ago} ago")
    else:
        echo("no scheduler leads")
    if found.there:
        echo()
        show_table(tabled(found.there, _COLUMNS))


def _how_to_be_led(found: Schedulers) -> str:
    if found.refusal:
        return f"the server {found.refusal}"
    if any(one.role == "follower" for one in found.there):
        return "a scheduler on standby takes over within seconds; if none does, see their logs"
    return "start one with `batchq scheduler`, or everything on this machine with `batchq up`"


def _mirror(one: SchedulerSeen) -> str:
    if one.role == "silent":
        return ""
    if one.behind is None:
        return "cold: it has to list everything first"
    return "warm" if one.behind == 0 else f"warm, {one.behind} writes behind"


def _data(found: Schedulers) -> dict[str, object]:
    leader = found.leader
    leads = leader is not None and leader.left_ms > 0
    return {
        "leader": leader.identity if leader and leads else None,
        "epoch": leader.epoch if leader else None,
        "leaseEndsInMs": leader.left_ms if leader else None,
        "lastLeader": leader.identity if leader and not leads else None,
        "schedulers": [
            {
                "identity": one.identity,
                "role": one.role,
                "version": one.version,
                "config": one.config,
                "refusedFile": one.refused_file,
                "seenMsAgo": one.seen_ms_ago,
                "warm": one.behind is not None,
                "writesBehind": one.behind,
            }
            for one in found.there
        ],
    }
