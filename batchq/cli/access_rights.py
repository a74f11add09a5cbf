"""`batchq access`: the roles of the HTTP API's users, why something is allowed, and the audit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from batchq.api.access import (
    EVERYWHERE,
    AccessRole,
    Identity,
    MatrixRow,
    Target,
    TargetKind,
    Tier,
    Verb,
    Visibility,
    decide,
    matrix,
    parse_binding,
)
from batchq.api.times import format_instant
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.terminal import echo

if TYPE_CHECKING:
    from batchq.client.access_control import AuditEntry, BindingRecord

_ROLES = click.Choice([str(role) for role in AccessRole])
_VISIBILITY = click.option(
    "--visibility",
    type=click.Choice([str(one) for one in Visibility]),
    default=str(Visibility.OPEN),
    show_default=True,
    help="As given to `batchq api`.",
)
_NAMESPACE = click.option(
    "-n", "--namespace", default=EVERYWHERE, help="The namespace.  [default: all of them]"
)


@click.group(
    epilog=examples(
        "batchq access grant user:alice submitter -n ml",
        "batchq access why alice cancel groups -n ml --owner bob",
        "batchq access audit",
    )
)
def access() -> None:
    """Give roles to users of the HTTP API, and explain them.

    Users and groups of users have roles in a namespace (viewer, submitter, admin) or in the whole
    cluster (operator, auditor). docs/http-api.md has the table of rights.
    """


@access.command(
    epilog=examples(
        "batchq access grant user:alice submitter -n ml",
        "batchq access grant group:unix:gpu viewer",
    )
)
@click.argument("subject", metavar="user:NAME|group:NAME")
@click.argument("role", type=_ROLES)
@_NAMESPACE
@pass_globals
def grant(shared: Globals, subject: str, role: str, namespace: str) -> None:
    """Give a role, from the next request on. Groups of Unix have names such as group:unix:gpu."""
    from batchq.client.access_control import Actor
    from batchq.client.delegation import Delegate

    binding = parse_binding(subject, role, namespace)
    with Delegate(shared.redis_url) as delegate:
        is_new = delegate.access.grant(binding, Actor(user=delegate.user, via="redis"))
    echo(f"{binding}{'' if is_new else ', as before'}")


@access.command(epilog=examples("batchq access revoke user:alice submitter -n ml"))
@click.argument("subject", metavar="user:NAME|group:NAME")
@click.argument("role", type=_ROLES)
@_NAMESPACE
@pass_globals
def revoke(shared: Globals, subject: str, role: str, namespace: str) -> None:
    """Take a role away, from the next request on; open streams lose what it showed them."""
    from batchq.client.access_control import Actor
    from batchq.client.delegation import Delegate

    binding = parse_binding(subject, role, namespace)
    with Delegate(shared.redis_url) as delegate:
        delegate.access.withdraw(binding, Actor(user=delegate.user, via="redis"))
    echo(f"no longer: {binding}")


@access.command(name="list", epilog=examples("batchq access list", "batchq access list -o json"))
@output_option("table", "json")
@pass_globals
def list_(shared: Globals, output: Output) -> None:
    """List the roles that were given."""
    from batchq.client.access_control import binding_row
    from batchq.client.delegation import Delegate

    with Delegate(shared.redis_url) as delegate:
        state = delegate.access.state()
    found = [record for _, record in sorted(state.bindings.items())]
    columns: Columns[BindingRecord] = {
        "SUBJECT": lambda one: one.binding.subject,
        "ROLE": lambda one: str(one.binding.role),
        "NAMESPACE": lambda one: one.binding.namespace,
        "BY": lambda one: one.made_by,
        "SINCE": lambda one: format_instant(one.made_at),
    }
    form: ListForm[BindingRecord] = ListForm(
        lambda some: tabled(some, columns),
        "no role has been given",
        row=binding_row,
    )
    show_list(output, found, form)


@access.command(name="matrix", epilog=examples("batchq access matrix"))
@_VISIBILITY
@output_option("table", "json")
@pass_globals
def matrix_(shared: Globals, visibility: str, output: Output) -> None:
    """Print what each role permits; needs no server.

    all: in every namespace. yes: where the role is given. own: one's own groups or tokens there.
    """
    columns: Columns[MatrixRow] = {
        "VERB": lambda row: str(row.verb),
        "KIND": lambda row: str(row.kind),
        "TIER": lambda row: str(row.tier or ""),
        **{role.upper(): partial(_cell, role) for role in AccessRole},
    }
    form: ListForm[MatrixRow] = ListForm(
        lambda some: tabled(some, columns),
        row=lambda row: {
            "verb": str(row.verb),
            "kind": str(row.kind),
            "tier": None if row.tier is None else str(row.tier),
            **{str(role): cell for role, cell in row.cells.items()},
        },
    )
    show_list(output, matrix(Visibility(visibility)), form)


def _cell(role: AccessRole, row: MatrixRow) -> str:
    return row.cells[role]


@access.command(
    epilog=examples(
        "batchq access why alice cancel groups -n ml --owner bob",
        "batchq access why alice read groups -n ml --tier output --group unix:gpu",
    )
)
@click.argument("user")
@click.argument("verb", type=click.Choice([str(verb) for verb in Verb]))
@click.argument("kind", type=click.Choice([str(kind) for kind in TargetKind]))
@click.option("-n", "--namespace", default="", help="The namespace of the target.")
@click.option("--owner", default="", help="The owner of the target.")
@click.option(
    "--tier",
    type=click.Choice([str(tier) for tier in Tier]),
    default=str(Tier.FACTS),
    show_default=True,
    help="How much of a group is read.",
)
@click.option("--group", "groups", multiple=True, help="A group of the user; repeatable.")
@_VISIBILITY
@output_option("text", "json")
@pass_globals
def why(
    shared: Globals,
    user: str,
    verb: str,
    kind: str,
    namespace: str,
    owner: str,
    tier: str,
    groups: tuple[str, ...],
    visibility: str,
    output: Output,
) -> int:
    """Say whether USER may do something, and which role allows it or is missing (exit code 12)."""
    from batchq.client.delegation import Delegate

    with Delegate(shared.redis_url) as delegate:
        bindings = [one.binding for one in delegate.access.state().bindings.values()]
    decision = decide(
        Identity(user=user, via="token", groups=groups),
        sorted(bindings),
        Verb(verb),
        Target(kind=TargetKind(kind), namespace=namespace, owner=owner),
        tier=Tier(tier),
        visibility=Visibility(visibility),
    )
    text = f"{'yes' if decision.allowed else 'no'}: {decision.because}"
    output.page(decision, lambda: echo(text))
    return 0 if decision.allowed else 12


@access.command(epilog=examples("batchq access audit", "batchq access audit --most 1000 -o json"))
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many."
)
@output_option("table", "json")
@pass_globals
def audit(shared: Globals, most: int, output: Output) -> int:
    """Print the latest audit records, oldest first, and check their chain (exit code 1 if broken).

    Recorded are changes of tokens and roles, uses of rights over groups of others, and refused
    requests.
    """
    from batchq.client.access_control import audit_row
    from batchq.client.delegation import Delegate

    with Delegate(shared.redis_url) as delegate:
        entries = delegate.access.audit(most)
    columns: Columns[AuditEntry] = {
        "AT": lambda one: format_instant(one.record.at),
        "USER": lambda one: one.record.user,
        "VIA": lambda one: one.record.via,
        "OUTCOME": lambda one: f"{one.record.outcome}{'' if one.is_chained else ' (not chained)'}",
        "WHAT": lambda one: f"{one.record.verb} {one.record.kind} {one.record.name}",
        "BECAUSE": lambda one: one.record.because,
    }
    form: ListForm[AuditEntry] = ListForm(
        lambda some: tabled(some, columns), "nothing has been recorded", row=audit_row
    )
    show_list(output, entries, form)
    return 0 if all(one.is_chained for one in entries) else 1
