"""`batchq submit`: a command, a function, or the groups of a file, into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from batchq.api.objects import PodGroup, key_of
from batchq.cli.apply import warn
from batchq.cli.ending import exit_code_of, goes_on, tell
from batchq.cli.files import read_content
from batchq.cli.options import Globals, examples, output_option, pass_globals
from batchq.cli.output import reference, show_objects
from batchq.cli.trouble import on_interrupt
from batchq.cli.values import as_duration, as_env, as_json, as_quantity, as_resources
from batchq.client import Applied, Client, Request
from batchq.client.groups import array_size
from batchq.errors import UsageError


def _as_array(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of a range; it stays text, once it is known to be one."""
    if value is not None:
        try:
            array_size(value)
        except UsageError as error:
            raise UsageError(f"--{error.message}", hint=error.hint) from None
    return value


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=examples(
        "batchq submit -- python3 -c 'print(6 * 7)'",
        "batchq submit --name train --cpus 4 --mem 8Gi --gpus 1 --walltime 2h -- python3 train.py",
        "batchq submit --name sweep --array 0-99 -- sh -c 'echo $BATCHQ_INDEX'",
        "batchq submit --name sums --function math:fsum --args '[[1, 2, 3]]'",
        "batchq submit --name gang -N 4 --wait --timeout 1h -- ./simulate",
        "batchq submit --external --name render --cpus 8 --res license=1",
        "batchq submit --dry-run -f conf/examples/sweep.yaml",
    ),
)
@click.argument("command", nargs=-1, metavar="[-- COMMAND…]")
@click.option("-f", "--filename", metavar="FILE", help="Submit a file's groups; - is stdin.")
@click.option(
    "--function",
    default="",
    metavar="MODULE:NAME",
    help="Call this Python function; `batchq result` prints what it has returned.",
)
@click.option("--args", callback=as_json(list), metavar="JSON", help="Its arguments, as a list.")
@click.option(
    "--kwargs", callback=as_json(dict), metavar="JSON", help="Its named arguments, a map."
)
@click.option("--name", default="", help="The group's name; without it, made from what runs.")
@click.option("--generate-name", default="", metavar="PREFIX", help="Make the name from this.")
@click.option("-n", "--namespace", default="default", show_default=True, help="The namespace.")
@click.option("-q", "--queue", default="default", show_default=True, help="The queue.")
@click.option("--cpus", callback=as_quantity("cpu"), help="cpu of each pod.  [default: 1]")
@click.option("--mem", callback=as_quantity("memory"), help="Memory of each pod, as in 8Gi.")
@click.option("--gpus", callback=as_quantity("gpu"), help="GPUs of each pod.")
@click.option(
    "--res",
    "resources",
    multiple=True,
    metavar="NAME=QUANTITY",
    callback=as_resources,
    help="Any other resource of each pod; repeat.",
)
@click.option("-N", "--replicas", type=click.IntRange(min=1), help="How many pods.  [default: 1]")
@click.option(
    "--min-member",
    type=click.IntRange(min=1),
    help="How many must start together.  [default: all]",
)
@click.option(
    "--array",
    metavar="0-LAST",
    callback=_as_array,
    help="Independent pods, each with its $BATCHQ_INDEX.",
)
@click.option("--walltime", callback=as_duration, help="The longest it may run, as in 2h.")
@click.option(
    "--grace",
    callback=as_duration,
    metavar="DURATION",
    help="From SIGTERM to SIGKILL when it has to stop, as in 2m.  [default: 30s]",
)
@click.option("--priority-class", default="", metavar="NAME", help="Its priority class.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    callback=as_env,
    help="A variable of its pods; NAME alone passes on the one that is set here. Repeat.",
)
@click.option(
    "--after",
    multiple=True,
    metavar="NAME",
    help="Only once this group has succeeded; any:NAME ended, failed:NAME failed. Repeat.",
)
@click.option("--gate", "gates", multiple=True, metavar="NAME", help="Hold back by a gate; repeat.")
@click.option("--suspend", is_flag=True, help="Hold back until `batchq resume`.")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often a pod that fails is tried again.",
)
@click.option(
    "--external",
    is_flag=True,
    help="It is run by a program of yours (`batchq external`); a command is then optional.",
)
@click.option("--wait", is_flag=True, help="Wait until it has ended: exit code 10 if it failed.")
@click.option("--progress", is_flag=True, help="Show how far it is, and wait.")
@click.option("--timeout", callback=as_duration, metavar="DURATION", help="With --wait: no longer.")
@click.option("--exit-code", is_flag=True, help="With --wait, the exit code of the single pod.")
@click.option("--dry-run", is_flag=True, help="Check it and print the manifest; submit nothing.")
@click.option("--quiet", is_flag=True, help="Print NAMESPACE/NAME only.")
@output_option("text", "json", "yaml", "name")
@pass_globals
def submit(shared: Globals, /, command: tuple[str, ...], **options: Any) -> int | None:
    """Submit COMMAND or a function as a pod group, or all objects of a file; print its name.

    All pods start together or none does, unless --min-member or --array says otherwise. Pods start
    in the current folder; those of a file in the folder of the file. They get the environment of
    the agent that runs them, not the one of this command: --env passes variables on.
    """
    _check(command, options)
    with shared.connect() as client:
        applied = _submit(client, command, options)
        warn(applied)
        _show(applied, options)
        groups = [one.object for one in applied if isinstance(one.object, PodGroup)]
        waits = options["wait"] or options["progress"] or options["exit_code"]
        if options["dry_run"] or not waits or not groups:
            return None
        return _wait(client, shared, [key_of(group) for group in groups], options)


def _check(command: Sequence[str], options: dict[str, Any]) -> None:
    """What contradicts itself."""
    given = [bool(command), options["filename"] is not None, bool(options["function"])].count(True)
    if given != 1 and not (options["external"] and not given):
        raise UsageError(
            "expected a command after `--`, a file with -f or a --function, found "
            + ("none of them" if not given else "more than one"),
            hint="as in `batchq submit --cpus 1 -- python3 train.py`",
        )
    if options["function"] and options["external"]:
        raise UsageError(
            "--function and --external are given, and a function is run by batchq's own agents",
            hint="give a command, or nothing, for your consumer to run; or leave out --external",
        )
    if command and (options["args"] or options["kwargs"]):
        raise UsageError(
            "--args and --kwargs are a function's, and a command is given",
            hint="put the command's arguments behind it, or name a --function",
        )
    if options["filename"] is not None:
        option = _given_beside_file()
        if option:
            raise UsageError(
                f"{option} says how to run a command, and a file says that itself",
                hint="leave it out, or put it into the file",
            )


def _given_beside_file() -> str:
    """The first option on the command line that only makes sense with a command."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or param.name in _WITH_FILE:
            continue
        source = ctx.get_parameter_source(param.name or "")
        if source is click.core.ParameterSource.COMMANDLINE:
            return param.opts[-1]
    return ""


_WITH_FILE = frozenset(
    {"filename", "wait", "progress", "timeout", "exit_code", "dry_run", "quiet", "output"}
)
_OF_REQUEST = (
    *(
        "name",
        "generate_name",
        "namespace",
        "queue",
        "cpus",
        "mem",
        "gpus",
        "resources",
        "replicas",
        "min_member",
        "function",
    ),
    *("array", "walltime", "grace", "priority_class", "env", "after", "gates", "suspend"),
    *("retries", "external"),
)


def _submit(client: Client, command: Sequence[str], options: dict[str, Any]) -> Sequence[Applied]:
    dry_run = options["dry_run"]
    if options["filename"] is not None:
        content = read_content(options["filename"], in_folder=True)
        return client.submit_all(content.objects, dry_run=dry_run, keep_stop=content.keep_stop)
    request = {name: options[name] for name in _OF_REQUEST}
    request |= {"args": options["args"] or [], "kwargs": options["kwargs"] or {}}
    request |= {"command": list(command), "working_dir": str(Path.cwd())}
    group = client.group_of(Request(**request))
    return client.submit_all([group], dry_run=dry_run)


def _show(applied: Sequence[Applied], options: dict[str, Any]) -> None:
    objects = [one.object for one in applied]
    form = options["output"]
    if form in ("json", "yaml", "name"):
        show_objects(objects, form, alone=len(objects) == 1)
    elif options["quiet"]:
        for item in objects:
            if isinstance(item, PodGroup):
                click.echo(key_of(item))
    elif options["dry_run"]:
        show_objects(objects, "yaml", alone=len(objects) == 1)
    else:
        for one in applied:
            submitted = isinstance(one.object, PodGroup)
            click.echo(f"{reference(one.object)} {'submitted' if submitted else one.effect}")


def _wait(client: Client, shared: Globals, keys: list[str], options: dict[str, Any]) -> int:
    from batchq.cli.progress import follow
    from batchq.cli.values import seconds_of

    sentence, hint = goes_on(keys)
    with on_interrupt(sentence, hint=hint):
        if options["progress"]:
            results = follow(client, keys, color=shared.color, err=True)
        else:
            results = client.wait(keys, timeout_s=seconds_of(options["timeout"]))
            tell(results, err=True)
    return exit_code_of(results, pass_on=options["exit_code"])
