"""`batchq submit`: a command, a function, or the groups of a file, into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from batchq.api.objects import PodGroup, key_of
from batchq.cli.endings import exit_code_of, goes_on, tell
from batchq.cli.objects import warn, warn_of_capacity
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.render import reference, show_objects
from batchq.cli.output.terminal import echo, raw_option
from batchq.cli.output.trouble import on_interrupt
from batchq.cli.output.values import as_duration
from batchq.cli.request_options import check_request, request_options, requested
from batchq.client import Applied, Client
from batchq.errors import UsageError

#: Options that make sense with a file, too.
_WITH_FILE = frozenset({"wait", "progress", "timeout", "exit_code", "dry_run", "quiet"})


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
        "batchq submit --from-file jobs.jsonl --queue default --cpus 2",
        "./make-jobs | batchq submit --from-file - --skip-existing -o name",
    ),
)
@request_options
@click.option(
    "--from-file",
    metavar="FILE",
    help="Many groups: one JSON object a line; - is stdin. All options are defaults for its lines.",
)
@click.option(
    "--keep-going", is_flag=True, help="With --from-file: submit the good lines, leave out the bad."
)
@click.option(
    "--skip-existing",
    is_flag=True,
    help="With --from-file: a name that is taken by a group that says the same is no mistake.",
)
@click.option("--wait", is_flag=True, help="Wait until it has ended: exit code 10 if it failed.")
@click.option("--progress", is_flag=True, help="Show how far it is, and wait.")
@click.option("--timeout", callback=as_duration, metavar="DURATION", help="With --wait: no longer.")
@click.option("--exit-code", is_flag=True, help="With --wait, the exit code of the single pod.")
@raw_option
@click.option("--dry-run", is_flag=True, help="Check it and print the manifest; submit nothing.")
@click.option("--quiet", is_flag=True, help="Print NAMESPACE/NAME only.")
@output_option("text", "json", "yaml", "name")
@pass_globals
def submit(shared: Globals, /, command: tuple[str, ...], **options: Any) -> int | None:
    """Submit COMMAND or a function as a pod group, or all objects of a file; print its name.

    All pods start together or none does, unless --min-member or --array says otherwise. Pods start
    in the current folder; those of a file in the folder of the file. They get the environment of
    the agent that runs them, not the one of this command: --env passes variables on.

    A line of --from-file is {"command": ["python3", "train.py"], "cpus": 4, "name": "train-1"},
    with fields called as the options are, or a whole PodGroup manifest. Nothing is submitted if a
    line is wrong, but with --keep-going. What was interrupted is run again with --skip-existing.
    """
    if options["from_file"] is not None:
        from batchq.cli.submit_lines import submit_lines

        return submit_lines(shared, command, options)
    for name in ("keep_going", "skip_existing"):
        if options[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is of many groups", hint="it goes with --from-file")
    check_request(command, options, name="submit", with_file=_WITH_FILE)
    with shared.connect() as client:
        applied = _submit(client, command, options)
        warn(applied)
        _show(applied, options)
        warn_of_capacity(client, applied)
        groups = [one.object for one in applied if isinstance(one.object, PodGroup)]
        waits = options["wait"] or options["progress"] or options["exit_code"]
        if options["dry_run"] or not waits or not groups:
            return None
        return _wait(client, shared, [key_of(group) for group in groups], options)


def _submit(client: Client, command: Sequence[str], options: dict[str, Any]) -> Sequence[Applied]:
    content = requested(client, command, options)
    return client.submit_all(
        content.objects, dry_run=options["dry_run"], keep_stop=content.keep_stop
    )


def _show(applied: Sequence[Applied], options: dict[str, Any]) -> None:
    objects = [one.object for one in applied]
    form = options["output"]
    if form in ("json", "yaml", "name"):
        show_objects(objects, form, alone=len(objects) == 1)
    elif options["quiet"]:
        for item in objects:
            if isinstance(item, PodGroup):
                echo(key_of(item))
    elif options["dry_run"]:
        show_objects(objects, "yaml", alone=len(objects) == 1)
    else:
        for one in applied:
            submitted = isinstance(one.object, PodGroup)
            echo(f"{reference(one.object)} {'submitted' if submitted else one.effect}")


def _wait(client: Client, shared: Globals, keys: list[str], options: dict[str, Any]) -> int:
    from batchq.cli.output.values import seconds_of
    from batchq.cli.wait import follow

    sentence, hint = goes_on(keys)
    with on_interrupt(sentence, hint=hint):
        if options["progress"]:
            results = follow(client, keys, color=shared.color, err=True)
        else:
            results = client.wait(keys, timeout_s=seconds_of(options["timeout"]))
            tell(results, err=True)
    return exit_code_of(results, pass_on=options["exit_code"])
