"""`batchq quota`: what namespaces may hold, and what they do."""

from __future__ import annotations

import click

from batchq.api.notation import counted, label_problem
from batchq.cli.output.options import LIST_FORMATS, Globals, examples, output_option, pass_globals
from batchq.cli.output.render import show_objects, show_table
from batchq.cli.output.tables import quotas_table
from batchq.cli.output.terminal import echo
from batchq.cli.output.values import as_resources
from batchq.client import Client
from batchq.errors import UsageError


@click.group(
    invoke_without_command=True,
    epilog=examples("batchq quota", "batchq quota set research cpu=32 memory=128Gi podgroups=50"),
)
@output_option(*LIST_FORMATS)
@click.pass_context
def quota(ctx: click.Context, output: str) -> None:
    """Show and set the quotas of namespaces."""
    if ctx.invoked_subcommand is None:
        _show(ctx.ensure_object(Globals), "", output)


@quota.command(epilog=examples("batchq quota show", "batchq quota show research -o yaml"))
@click.argument("namespace", default="")
@output_option(*LIST_FORMATS)
@pass_globals
def show(shared: Globals, namespace: str, output: str) -> None:
    """Show the quotas of NAMESPACE, or of all, and what is used of them."""
    _show(shared, namespace, output)


@quota.command("set", epilog=examples("batchq quota set research cpu=32 memory=128Gi podgroups=50"))
@click.argument("namespace")
@click.argument("hard", nargs=-1, metavar="RESOURCE=QUANTITY…", callback=as_resources)
@pass_globals
def set_quota(shared: Globals, namespace: str, hard: dict[str, str]) -> None:
    """Replace the quota `default` of NAMESPACE.

    What is not named is not limited, but for `podgroups`: how many unfinished groups there may be,
    which the scheduler's maxPodGroupsPerNamespace says otherwise, 10000 by default. `pods` limits
    how many pods they may have admitted. `batchq delete quota NAMESPACE/default` lifts the quota.
    """
    problem = label_problem(namespace)
    if problem:
        raise click.BadParameter(problem, param_hint="NAMESPACE")
    if not hard:
        raise UsageError(
            f"expected what namespace {namespace} may hold, such as cpu=32, found nothing",
            hint=f"`batchq delete quota {namespace}/default` lifts its quota",
        )
    with shared.connect() as client:
        done = client.set_quota(namespace, hard)
    echo(f"resourcequota {namespace}/default {'configured' if done else 'unchanged'}")


def _show(shared: Globals, namespace: str, output: str) -> None:
    with shared.connect() as client:
        found = client.quotas(namespace)
        if output in ("json", "yaml", "name"):
            show_objects(found, output)
        elif found:
            table = quotas_table(found, client.ledger())
            show_table(table, wide=output == "wide", color=shared.color)
        else:
            of = f" for namespace {namespace}" if namespace else ""
            echo(f"there are no quotas{of}: {_by_default(client)}", err=True)


def _by_default(client: Client) -> str:
    """Return what is limited where no quota says otherwise."""
    most = client.object_limit()
    if most is None:
        return "nothing is limited"
    groups = counted(most, "unfinished pod group")
    return f"nothing is limited but the number of groups, {groups} in each namespace"
