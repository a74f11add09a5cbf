"""`batchq get`: objects of a kind, as rows or as manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import click

from batchq.api.manifest import encode
from batchq.api.objects import (
    NAMESPACED,
    Node,
    Object,
    Pod,
    PodGroup,
    ResourceQuota,
    key_of,
)
from batchq.api.unreadable import Unreadable
from batchq.cli import tables
from batchq.cli.checkview import checks_table
from batchq.cli.options import (
    LIST_FORMATS,
    Globals,
    Paging,
    examples,
    namespace_option,
    output_option,
    paging_options,
    pass_globals,
)
from batchq.cli.output import (
    ListWriter,
    Table,
    TableWriter,
    is_terminal,
    show_objects,
    show_table,
)
from batchq.cli.terminal import echo
from batchq.cli.unreadableview import show_unreadable
from batchq.cli.values import complete_kind, kind_and_name, kind_of_word, name_of_kind
from batchq.client import Client
from batchq.client.listing import WHOLE_UP_TO, GroupPage, Page, token_of_object

_DATA = ("json", "yaml", "name")


@click.command(
    epilog=examples(
        "batchq get queues",
        "batchq get podgroups -A -o yaml",
        "batchq get queue default -o yaml",
        "batchq get pods -o wide",
        "batchq get podgroups -A -o name --limit 1000",
    )
)
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", required=False)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="The objects of every namespace.")
@paging_options
@output_option(*LIST_FORMATS)
@pass_globals
def get(
    shared: Globals,
    kind: str,
    name: str | None,
    namespace: str,
    all_namespaces: bool,
    paging: Paging,
    output: str,
) -> None:
    """List objects of a KIND by name, or print the one called NAME.

    KIND is podgroup, pod, queue, node, resourcequota, priorityclass or admissioncheck, also in the
    plural or short (pg, q, no, quota, pc, check). What `-o yaml` prints, `batchq apply -f -` reads;
    what `-o name` prints, such as podgroup/default/train, stands for KIND NAME in other commands.

    Groups and pods are read --chunk-size at a time, and each chunk is written as soon as it is
    there; --limit ends a list early and says where it went on, --continue goes on there.

    What is stored and cannot be read is listed as Unreadable; `batchq delete` deletes it by name.
    """
    if name is None and "/" in kind:
        kind, name = kind_and_name(kind)
    else:
        kind = kind_of_word(kind)
        name = None if name is None else name_of_kind(kind, name)
    space = "" if all_namespaces or kind not in NAMESPACED else namespace
    with shared.connect() as client:
        if name is None:
            _list(client, kind, space, output, paging, color=shared.color)
            return
        objects = [client.get(kind, name, namespace=namespace)]
        if output in _DATA:
            show_objects(objects, output, alone=True)
        else:
            table = _Tables(client, kind, namespaces=space == "").of(objects)
            show_table(table, wide=output == "wide", color=shared.color)


def _list(
    client: Client, kind: str, space: str, output: str, paging: Paging, *, color: bool
) -> None:
    """Write a list, each page as soon as it is there, or as much as the limit allows."""
    data = ListWriter("List", output) if output in ("json", "yaml") else None
    table = TableWriter(wide=output == "wide", color=color)
    rows = _Tables(client, kind, namespaces=space == "")
    damaged: list[Unreadable] = []
    token, following, count = "", "", 0
    for page in _pages(client, kind, space, paging):
        damaged += page.unreadable
        left = len(page.objects) if paging.limit is None else paging.limit - count
        shown = page.objects[:left]
        if data is not None:
            data.write([encode(item) for item in shown])
        elif output == "name":
            show_objects(shown, output)
        elif shown:
            table.write(rows.of(shown))
        count += len(shown)
        token = token_of_object(shown[-1]) if shown else token
        if len(page.objects) > left:
            following = token
            break
    if data is not None:
        data.end(following)
    elif following:
        echo(f"… and more: --continue {following}", err=True)
    show_unreadable(damaged, tabled=output not in _DATA, color=color)
    if output not in _DATA and not count and not damaged:
        echo(f"there are no objects of kind {kind}", err=True)


def _pages(client: Client, kind: str, space: str, paging: Paging) -> Iterable[Page]:
    """Pages by key; all in one of kinds of which there are few, or where that is asked for."""
    if kind in ("PodGroup", "Pod") and paging.size:
        size = paging.size if paging.limit is None else min(paging.size, paging.limit + 1)
        return client.pages(kind, namespace=space, after=paging.after, size=size)
    listing = client.listing(kind, namespace=space)
    objects = tuple(client.nodes()) if kind == "Node" else listing.objects
    if paging.after:
        objects = tuple(one for one in objects if key_of(one) > paging.after.partition(".")[2])
    return [Page(objects=objects, unreadable=listing.unreadable)]


class _Tables:
    """Rows of one kind, for some objects at a time."""

    def __init__(self, client: Client, kind: str, *, namespaces: bool) -> None:
        self._client, self._kind, self._namespaces = client, kind, namespaces
        self._groups: Callable[[Sequence[PodGroup]], GroupPage] | None = None

    def of(self, objects: Sequence[Object]) -> Table:
        """The table of these objects."""
        client, names = self._client, {item.metadata.name for item in objects}
        match self._kind:
            case "PodGroup":
                if self._groups is None:
                    self._groups = _shown_as(client)
                page = self._groups(cast(Sequence[PodGroup], objects))
                return tables.groups_table(page.views, page.at, namespaces=self._namespaces)
            case "Pod":
                return tables.pods_table(cast(Sequence[Pod], objects), namespaces=self._namespaces)
            case "Queue":
                views = [one for one in client.queues() if one.queue.metadata.name in names]
                return tables.queues_table(views, stacked=is_terminal())
            case "Node":
                nodes = cast(Sequence[Node], objects)
                return tables.nodes_table(nodes, client.ledger(), client.now_ms())
            case "ResourceQuota":
                return tables.quotas_table(cast(Sequence[ResourceQuota], objects), client.ledger())
            case "AdmissionCheck":
                there = [check for check in client.checks.records() if check.name in names]
                return checks_table(there, client.now_ms())
            case _:
                return tables.plain_table(objects)


def _shown_as(client: Client) -> Callable[[Sequence[PodGroup]], GroupPage]:
    """How groups are looked at: where there are not many, with their places in line."""
    if client.count("PodGroup") > WHOLE_UP_TO:
        return client.look().views
    overview = client.overview()
    views = {view.key: view for view in overview.groups()}

    def shown(groups: Sequence[PodGroup]) -> GroupPage:
        found = (views.get(key_of(group)) for group in groups)
        there = tuple(view for view in found if view is not None)
        return GroupPage(views=there, at=overview.at)

    return shown
