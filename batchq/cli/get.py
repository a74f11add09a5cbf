"""`batchq get`: objects of a kind, as rows or as manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import click

from batchq.api.objects import (
    NAMESPACED,
    Node,
    Object,
    Pod,
    ResourceQuota,
)
from batchq.api.unreadable import Unreadable
from batchq.cli import tables
from batchq.cli.checkview import checks_table
from batchq.cli.options import (
    LIST_FORMATS,
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output import Table, is_terminal, show_objects, show_table
from batchq.cli.terminal import echo
from batchq.cli.unreadableview import show_unreadable
from batchq.cli.values import complete_kind, kind_and_name, kind_of_word, name_of_kind
from batchq.client import Client


@click.command(
    epilog=examples(
        "batchq get queues",
        "batchq get podgroups -A -o yaml",
        "batchq get queue default -o yaml",
        "batchq get pods -o wide",
    )
)
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", required=False)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="The objects of every namespace.")
@output_option(*LIST_FORMATS)
@pass_globals
def get(
    shared: Globals,
    kind: str,
    name: str | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
) -> None:
    """List objects of a KIND, or print the one called NAME.

    KIND is podgroup, pod, queue, node, resourcequota, priorityclass or admissioncheck, also in the
    plural or short (pg, q, no, quota, pc, check). What `-o yaml` prints, `batchq apply -f -` reads;
    what `-o name` prints, such as podgroup/default/train, stands for KIND NAME in other commands.

    What is stored and cannot be read is listed as Unreadable; `batchq delete` deletes it by name.
    """
    if name is None and "/" in kind:
        kind, name = kind_and_name(kind)
    else:
        kind = kind_of_word(kind)
        name = None if name is None else name_of_kind(kind, name)
    space = "" if all_namespaces or kind not in NAMESPACED else namespace
    with shared.connect() as client:
        damaged: Sequence[Unreadable] = ()
        objects: Sequence[Object]
        if name is None:
            listing = client.listing(kind, namespace=space)
            damaged = listing.unreadable
            objects = client.nodes() if kind == "Node" else listing.objects
        else:
            objects = [client.get(kind, name, namespace=namespace)]
        tabled = output not in ("json", "yaml", "name")
        if not tabled:
            show_objects(objects, output, alone=name is not None)
        elif objects:
            table = _table(client, kind, objects, namespaces=space == "")
            show_table(table, wide=output == "wide", color=shared.color)
        show_unreadable(damaged, tabled=tabled, color=shared.color)
        if tabled and not objects and not damaged:
            echo(f"there are no objects of kind {kind}", err=True)


def _table(client: Client, kind: str, objects: Sequence[Object], *, namespaces: bool) -> Table:
    match kind:
        case "PodGroup":
            keys = {f"{item.metadata.namespace}/{item.metadata.name}" for item in objects}
            overview = client.overview()
            views = [view for view in overview.groups() if view.key in keys]
            return tables.groups_table(views, overview.at, namespaces=namespaces)
        case "Pod":
            return tables.pods_table(cast(Sequence[Pod], objects), namespaces=namespaces)
        case "Queue":
            names = {item.metadata.name for item in objects}
            views_of_queues = [one for one in client.queues() if one.queue.metadata.name in names]
            return tables.queues_table(views_of_queues, stacked=is_terminal())
        case "Node":
            nodes = cast(Sequence[Node], objects)
            return tables.nodes_table(nodes, client.ledger(), client.now_ms())
        case "ResourceQuota":
            return tables.quotas_table(cast(Sequence[ResourceQuota], objects), client.ledger())
        case "AdmissionCheck":
            names = {item.metadata.name for item in objects}
            there = [check for check in client.checks.records() if check.name in names]
            return checks_table(there, client.now_ms())
        case _:
            return tables.plain_table(objects)
