"""`batchq logs`."""

from __future__ import annotations

import json
import sys

import click

from batchq.api.objects import PodGroup
from batchq.cli.endings import goes_on
from batchq.cli.output.options import (
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.render import Table, show_data, show_table
from batchq.cli.output.terminal import echo, raw_option
from batchq.cli.output.trouble import on_interrupt
from batchq.cli.output.values import as_duration, group_key, left_of, seconds_of
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


@click.command(
    epilog=examples(
        "batchq result sums",
        "batchq result research/sweep -o json --partial",
        "batchq result sums --timeout 10m",
    )
)
@click.argument("name")
@namespace_option
@raw_option
@click.option("--partial", is_flag=True, help="What there is, whatever became of the group.")
@click.option("--timeout", callback=as_duration, metavar="DURATION", help="Wait no longer: 124.")
@output_option("text", "json")
@pass_globals
def result(
    shared: Globals, name: str, namespace: str, partial: bool, timeout: str | None, output: str
) -> None:
    """Print what the functions of the group NAME have returned, as JSON, once it has ended.

    Of a group with one pod that is its result and nothing else; of more pods each with its name.
    Results are kept for seven days.

    Exit codes: 6 there is none (the group runs a command, or it is too old), 10 the group has
    failed, 11 it was cancelled, 124 the time is up.
    """
    key = group_key(name, namespace)
    sentence, hint = goes_on([key])
    timeout_s = seconds_of(timeout)
    with on_interrupt(sentence, hint=hint), shared.connect(patience_s=timeout_s) as client:
        left_s = left_of(timeout_s, client.waited_s)
        found = client.results(key, partial=partial, timeout_s=left_s)
        alone = _has_one_pod(client, key)
    if output == "json":
        items = [{"pod": pod, "result": value} for pod, value in found.items()]
        show_data({"items": items}, "json")
    elif alone:
        for value in found.values():
            echo(_text(value))
    else:
        rows = tuple((pod, _text(value)) for pod, value in found.items())
        show_table(Table(("POD", "RESULT"), rows), color=shared.color)


def _has_one_pod(client: Client, key: str) -> bool:
    group = client.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    return sum(task.replicas for task in group.spec.tasks) == 1


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
