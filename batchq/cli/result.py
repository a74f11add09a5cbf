"""`batchq result`."""

from __future__ import annotations

import json

import click

from batchq.api.objects import PodGroup
from batchq.cli.ending import goes_on
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import Table, show_data, show_table
from batchq.cli.terminal import echo, raw_option
from batchq.cli.trouble import on_interrupt
from batchq.cli.values import as_duration, group_key, left_of, seconds_of
from batchq.client import Client


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
