"""`batchq nodes`: list, cordon and drain nodes, and let their agents join."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from batchq.api.lifecycle import ON_NODE
from batchq.api.manifest import encode
from batchq.api.node_features import DeviceUse, uses_of
from batchq.api.notation import counted, describe_timeout, format_instant
from batchq.api.objects import Node, Object, Pod, PodGroup, full_name, group_key_of
from batchq.api_session import ApiCredentials, ApiSession
from batchq.cli.output import echo, on_interrupt
from batchq.cli.output.forms import ListForm, Output, show_list
from batchq.cli.output.options import (
    DURATION,
    LIST_FORMATS,
    Globals,
    WholeNumber,
    examples,
    output_option,
    pass_globals,
)
from batchq.cli.output.tables import device_row, devices_table, nodes_table
from batchq.cli.output.values import existing, seconds_of
from batchq.errors import InvalidInput, NotFound, UnreadableRecord, UsageError, WaitTimedOut

if TYPE_CHECKING:
    from batchq.client import Client

_EXAMPLES = examples(
    "batchq nodes",
    "batchq nodes -o wide",
    "batchq nodes devices",
    "batchq nodes drain gpu-01 --timeout 10m",
)


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@output_option(*LIST_FORMATS)
@click.pass_context
def nodes(ctx: click.Context, output: Output) -> None:
    """List, cordon, uncordon and drain nodes, and let their agents join."""
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Globals), output)


@nodes.command("list", epilog=examples("batchq nodes list", "batchq nodes list -o yaml"))
@output_option(*LIST_FORMATS)
@pass_globals
def list_nodes(shared: Globals, output: Output) -> None:
    """List nodes: their state, capacity, usage, and last heartbeat."""
    _list(shared, output)


@nodes.command(
    "devices",
    epilog=examples("batchq nodes devices", "batchq nodes devices gpu-01 gpu-02 -o json"),
)
@click.argument("names", nargs=-1, metavar="[NAME]…")
@output_option(*LIST_FORMATS)
@pass_globals
def list_devices(shared: Globals, names: tuple[str, ...], output: Output) -> None:
    """List the GPUs of nodes: which pods have each, how busy it is, and what is wrong with it."""
    with shared.connect() as client:
        wanted = set(existing(client, "Node", names)) if names else None
        found = [node for node in client.nodes() if wanted is None or node.metadata.name in wanted]
        pods = [pod for pod in client.list("Pod") if isinstance(pod, Pod)]
    listing: ListForm[DeviceUse] = ListForm(
        devices_table,
        "these nodes list no GPUs",
        kind="DeviceList",
        row=device_row,
        name=lambda use: use.device.id,
    )
    show_list(output, uses_of(found, pods), listing)


_reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="Why, for others: `batchq nodes -o wide`."
)


@nodes.command(
    epilog=examples("batchq nodes cordon gpu-01", "batchq nodes cordon gpu-01 --reason 'new disk'")
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@_reason_option
@pass_globals
def cordon(shared: Globals, names: tuple[str, ...], reason: str) -> None:
    """Stop placing pods on nodes; the pods that run there continue. The nodes keep your name and
    the reason; a new reason replaces the one before it.
    """
    with shared.connect() as client:
        for name in existing(client, "Node", names):
            done = client.cordon(name, reason=reason)
            echo(f"node {name} {'cordoned' if done else 'is cordoned already'}")


@nodes.command(epilog=examples("batchq nodes uncordon gpu-01"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@pass_globals
def uncordon(shared: Globals, names: tuple[str, ...]) -> None:
    """Allow pods on nodes again."""
    with shared.connect() as client:
        for name in existing(client, "Node", names):
            done = client.uncordon(name)
            echo(f"node {name} {'uncordoned' if done else 'is not cordoned'}")


@nodes.command(epilog=examples("batchq nodes drain gpu-01 --timeout 10m"))
@click.argument("name")
@click.option("--timeout", type=DURATION, help="The longest wait (exit code 124).")
@_reason_option
@pass_globals
def drain(shared: Globals, name: str, timeout: str | None, reason: str) -> None:
    """Cordon a node, and wait until its pods have ended.

    The node stays cordoned after a timeout and after Ctrl-C, so it empties as its pods end; repeat
    the command to wait again.

    Exit codes: 0 it has no pods, 124 timeout, 130 Ctrl-C.
    """
    with shared.connect() as client:
        client.cordon(name, reason=reason)
        echo(f"node {name} cordoned; {_pods_left(client, name)}", err=True)
        goes_on = "stays cordoned, so its drain goes on as its pods end"
        again = f"`batchq nodes drain {name}` waits again, `batchq nodes uncordon {name}` ends it"
        timeout_s = seconds_of(timeout)
        with on_interrupt(f"interrupted; node {name} {goes_on}", hint=again):
            left = client.wait_until_empty(name, timeout_s=timeout_s)
    if left:
        after = describe_timeout(timeout_s or 0)
        raise WaitTimedOut(
            f"Node {name} still runs {counted(left, 'pod')} after {after}; it {goes_on}", hint=again
        )
    echo(f"node {name} drained")


def _pods_left(client: Client, node: str) -> str:
    """Return how many pods a node still runs, and when they will have ended at the latest."""
    pods = [
        pod
        for pod in client.list("Pod")
        if isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE
    ]
    if not pods:
        return "it has no pods"
    groups: dict[str, Object] = {}
    for name in {group_key_of(pod) for pod in pods}:
        # The record of a group may be gone, or damaged, while its pods still run.
        with suppress(NotFound, UnreadableRecord):
            groups[name] = client.get("PodGroup", name)
    now_ms = client.now_ms()
    ends = [_latest_end(pod, groups.get(group_key_of(pod)), now_ms) for pod in pods]
    endless = ends.count(None)
    if endless:
        runs = "has no walltime and may" if endless == 1 else "have no walltime and may"
        until = f"; {counted(endless, 'pod')} {runs} run for ever"
    else:
        until = f", by {format_instant(max(filter(None, ends)))} at the latest"
    return f"waiting for {counted(len(pods), 'pod')} to end{until} (Ctrl-C ends the wait)"


def _latest_end(pod: Pod, group: Object | None, now_ms: int) -> int | None:
    """Return when a pod will have ended; None without a known walltime."""
    if not isinstance(group, PodGroup) or group.spec.walltime is None:
        return None
    # The walltime of a gang begins with its last pod, that of an array's pod with the pod.
    begun = max(pod.status.started_at or now_ms, group.status.started_at or 0)
    return begun + group.spec.walltime + pod.spec.termination_grace


@nodes.command(
    epilog=examples(
        "batchq nodes invite gpu-01",
        "batchq nodes invite gpu-01 gpu-02 --for 8h -o json",
        "batchq nodes invite --name 'gpu-*' --uses 4",
    )
)
@click.argument("names", nargs=-1, metavar="[NAME…]")
@click.option(
    "--name", "pattern", metavar="PATTERN", help="One token for new nodes whose names have this."
)
@click.option(
    "--uses", type=WholeNumber(1, 1000), help="With --name: how many nodes.  [default: 1]"
)
@click.option(
    "--for", "lasts", type=DURATION, default="1h", show_default=True, help="How long, at most 7d."
)
@output_option("text", "json")
@pass_globals
def invite(
    shared: Globals,
    names: tuple[str, ...],
    pattern: str | None,
    uses: int | None,
    lasts: str,
    output: Output,
) -> None:
    """Print a token for each node, with which its agent joins, once: `batchq worker --join`.

    With --name, print one token for several nodes, such as those of an image. Only nodes that do
    not exist yet and have never joined may use it; * stands for any letters, digits and dashes.

    The agent gets a user of the Redis server for that node alone. A token of a node that has
    joined replaces its user, so that a copy of the old password is useless. Needs an API with a
    registrar.
    """
    if bool(names) == (pattern is not None):
        raise UsageError(
            "expected the names of nodes, or --name with a pattern", hint="as in --name 'gpu-*'"
        )
    if uses is not None and pattern is None:
        raise UsageError("--uses belongs to --name", hint="as in --name 'gpu-*' --uses 4")
    nodes, request = _checked(names), {"lasts": lasts}
    with ApiSession(_api(shared)) as session:
        rows = []
        if pattern is not None:
            wanted = {"pattern": pattern, "uses": uses or 1, **request}
            rows = [session.request("POST", "/v1/node-invitations", wanted)]
        rows += [
            session.request("POST", f"/v1/nodes/{quote(name, safe='')}/invitations", request)
            for name in nodes
        ]

    def show() -> None:
        for row in rows:
            echo(row["join"] if len(rows) == 1 else f"{row['node']} {row['join']}")

    output.page(rows, show)
    if output.for_people:
        until = rows[0]["expiresAt"]
        who = "Each agent" if pattern is None else counted(uses or 1, "new node")
        echo(f"{who} may join once, until {until}: `batchq worker --join FILE`.", err=True)


@nodes.command(epilog=examples("batchq nodes revoke gpu-01"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@pass_globals
def revoke(shared: Globals, names: tuple[str, ...]) -> None:
    """Remove the users that nodes have joined with: their agents are cut off at once.

    An agent that is cut off stops its pods when their leases end. Drain the node before, if it is
    merely retired.
    """
    nodes = _checked(names)
    with ApiSession(_api(shared)) as session:
        for name in nodes:
            done = session.request("DELETE", f"/v1/nodes/{quote(name, safe='')}/user")
            what = "its user is removed" if done["user"] else "its join tokens are revoked"
            echo(f"node {name} can do nothing more: {what}")


def _checked(names: Sequence[str]) -> Sequence[str]:
    """Return each name once. Raises InvalidInput before anything is done for one of them."""
    from batchq.api.notation import subdomain_problem

    for name in names:
        if problem := subdomain_problem(name):
            raise InvalidInput(f"node {name[:80]!r}: {problem}")
    return tuple(dict.fromkeys(names))


def _api(shared: Globals) -> ApiCredentials:
    api = shared.api()
    if api is None:
        raise InvalidInput(
            "this command needs the HTTP API, which makes the users of nodes",
            hint="use `batchq login` or BATCHQ_SERVER; without an API, see `batchq acl worker`",
        )
    return api


def _list(shared: Globals, output: Output) -> None:
    with shared.connect() as client:
        found, now_ms = client.nodes(), client.now_ms()
        ledger = client.ledger() if output.for_people else {}
    none = "there are no nodes; `batchq up` or `batchq worker` adds one"
    listing: ListForm[Node] = ListForm(
        lambda some: nodes_table(some, ledger, now_ms),
        none,
        kind="List",
        row=encode,
        name=full_name,
    )
    show_list(output, found, listing)
