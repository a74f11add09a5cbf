"""`batchq gates`: the scheduling gates that hold groups back, and their opening."""

from __future__ import annotations

import click

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import PodGroup
from batchq.api.times import describe_age
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import Table, report, show_data, show_table
from batchq.cli.values import as_duration, group_key, seconds_of


@click.group(epilog=examples("batchq gates list", "batchq gates open train-1 data-ready"))
def gates() -> None:
    """List and open scheduling gates.

    A group with gates does not stand in line until the last of them has been opened.
    """


@gates.command("list", epilog=examples("batchq gates list", "batchq gates list --older-than 1d"))
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@click.option(
    "--older-than", callback=as_duration, metavar="DURATION", help="Only of groups that old."
)
@output_option("table", "json")
@pass_globals
def list_gates(shared: Globals, namespace: str, older_than: str | None, output: str) -> None:
    """List the gates of unfinished groups, the oldest first."""
    least_ms = (seconds_of(older_than) or 0) * 1000
    rows = []
    with shared.connect() as client:
        now_ms = client.now_ms()
        for group in client.list("PodGroup", namespace=namespace):
            assert isinstance(group, PodGroup)
            age_ms = now_ms - (group.metadata.creation_timestamp or now_ms)
            if group.status.phase not in TERMINAL and age_ms >= least_ms:
                key = f"{group.metadata.namespace}/{group.metadata.name}"
                rows += [(-age_ms, key, gate.name) for gate in group.spec.scheduling_gates]
    if output == "json":
        items = [
            {"podGroup": key, "gate": gate, "ageSeconds": -age // 1000}
            for age, key, gate in sorted(rows)
        ]
        show_data({"items": items}, "json")
        return
    if not rows:
        click.echo("there are no such gates", err=True)
        return
    table = tuple((key, gate, describe_age(-age)) for age, key, gate in sorted(rows))
    show_table(Table(("GROUP", "GATE", "AGE"), table), color=shared.color)


@gates.command("open", epilog=examples("batchq gates open train-1 data-ready"))
@click.argument("name")
@click.argument("opened", nargs=-1, required=True, metavar="GATE…")
@namespace_option
@output_option("text", "json")
@pass_globals
def open_gates(
    shared: Globals, name: str, opened: tuple[str, ...], namespace: str, output: str
) -> None:
    """Open gates of the group NAME."""
    key = group_key(name, namespace)
    with shared.connect() as client, report(output) as done:
        for gate in opened:
            client.open_gate(key, gate)
            action = f"gate {gate} opened"
            done("PodGroup", key, action, f"podgroup {key}: {action}")
