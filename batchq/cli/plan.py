"""`batchq plan`: what would become of it, were it submitted now. Nothing is."""

from __future__ import annotations

from typing import Any

import click

from batchq.api.objects import API_VERSION
from batchq.cli.ending import tell_nobody_leads
from batchq.cli.options import Globals, examples, output_option, pass_globals
from batchq.cli.output import show_data
from batchq.cli.planview import plan_row, show_plan
from batchq.cli.requesting import check_request, request_options, requested
from batchq.cli.terminal import echo


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=examples(
        "batchq plan --cpus 1 -- python3 train.py",
        "batchq plan --name train -N 4 --cpus 8 --priority-class high -- ./train",
        "batchq plan -f conf/examples/sweep.yaml",
        "batchq plan --cpus 4 -o json -- true",
        "batchq plan --gpus 1 -- ./train && batchq submit --gpus 1 -- ./train",
    ),
)
@request_options
@click.option("--no-advice", is_flag=True, help="Do not try what else would start; it is quicker.")
@output_option("text", "json")
@pass_globals
def plan(shared: Globals, /, command: tuple[str, ...], **options: Any) -> int:
    """Say what the scheduler would make of COMMAND, a function or a file's groups, and submit
    nothing.

    The scheduler's next session is decided here, by its own configuration, on what stands in the
    server now and with this submitted: whether all pods find room and where, who would be evicted
    for them; and if they would wait, all reasons, their place in line, when they are expected to
    start, when there will be room at the earliest, and what would start instead. Other objects of a
    file, such as queues and quotas, are taken as applied. It needs no right to write.

    What is told holds as long as nothing else changes.

    Exit codes: 0 all would start now, 3 they would once others are evicted, 4 at least one would
    wait, 5 at least one could never start; 1, 2, 6, 8, 9 and 12 as of `batchq submit`.
    """
    check_request(command, options, name="plan", with_file=("no_advice",))
    with shared.connect() as client:
        content = requested(client, command, options)
        found = client.plan(
            content.objects, keep_stop=content.keep_stop, advise=not options["no_advice"]
        )
        led = client.schedulers().led
    for warning in found.warnings:
        echo(f"warning: {warning}", err=True)
    if options["output"] == "json":
        show_data({"apiVersion": API_VERSION, "kind": "Plan", **plan_row(found)}, "json")
    else:
        show_plan(found)
    if not led:
        tell_nobody_leads()
    return found.exit_code
