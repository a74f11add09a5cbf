"""`batchq logs`."""

from __future__ import annotations

import json
import sys

import click

from batchq.api.objects import PodGroup
from batchq.cli.ending import goes_on
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.terminal import echo, raw_option
from batchq.cli.trouble import on_interrupt
from batchq.cli.values import group_key
from batchq.client import Client


@click.command(
    epilog=examples(
        "batchq logs train-1",
        "batchq logs train-1 -f --prefix",
        "batchq logs train-1 --pod main-0 --tail 20",
    )
)
@click.argument("name")
@namespace_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the group's processes have ended.")
@click.option("--pod", default="", help="Only this pod: its name, or TASK-INDEX.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last lines of each pod.")
@raw_option
@click.option("--prefix", is_flag=True, help="Begin each line with the name of its pod.")
@output_option("text", "json")
@pass_globals
def logs(
    shared: Globals,
    name: str,
    namespace: str,
    follow: bool,
    pod: str,
    tail: int | None,
    prefix: bool,
    output: str,
) -> None:
    """Print what the pods of the group NAME have written: of much, the newest MiB of each.

    stdout and stderr of the pods come in one, in their order; with -o json each line says which.
    """
    key = group_key(name, namespace)
    sentence, hint = goes_on([key])
    patience_s = None if follow else 0.0
    with on_interrupt(sentence, hint=hint), shared.connect(patience_s=patience_s) as client:
        count = 0
        for line in client.logs(key, follow=follow, pod=pod, tail=tail):
            count += 1
            if output == "json":
                fields = {"pod": line.pod, "attempt": line.attempt, "stream": line.stream}
                echo(json.dumps({**fields, "text": line.text}, ensure_ascii=False))
            else:
                echo(f"{line.pod}: {line.text}" if prefix else line.text)
            if follow:
                sys.stdout.flush()
        if not count:
            echo(_why_nothing(client, key), err=True)


def _why_nothing(client: Client, key: str) -> str:
    group = client.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    if group.spec.controller == "external":
        what = "it is external: what it has put out is with the consumer that ran it"
        return f"PodGroup {key} is {group.status.phase}; {what}"
    started = any(pod.status.attempt for pod in client.pods(group))
    what = "its pods have written nothing" if started else "none of its pods has started"
    return f"PodGroup {key} is {group.status.phase}; {what}"
