"""`batchq access group`: local groups of users, for roles at the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import click

from batchq.cli.access_rights import access, asked_of_api, delegate_of
from batchq.cli.output import echo
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.client.access_control import Actor, UserGroupRecord
from batchq.client.user_groups import UserGroups, group_row

_PATH = "/v1/user-groups"
_NAME = click.argument("name")
_MEMBERS = click.argument("users", nargs=-1, required=True, metavar="USER…")


@access.group(
    name="group",
    epilog=examples(
        "batchq access group create ml alice bob",
        "batchq access grant group:local:ml submitter -n ml",
        "batchq access group remove ml bob",
    ),
)
def group() -> None:
    """Make groups of users, to give them roles together.

    The group NAME is written group:local:NAME where a role is given. Groups of Unix
    (group:unix:gpu) and of an identity provider (group:oidc:ml) are other
    groups, even under the same name. Operators change local groups, over the API or with the Redis
    server's role `api`. Users cannot add themselves.
    """


@group.command(epilog=examples("batchq access group create ml alice bob"))
@_NAME
@click.argument("users", nargs=-1, metavar="[USER…]")
@pass_globals
def create(shared: Globals, name: str, users: tuple[str, ...]) -> None:
    """Create a group, with these members."""
    row = _done(
        shared,
        ("POST", _PATH, {"name": name, "members": users}),
        lambda groups, actor: groups.create(name, users, actor),
    )
    echo(f"group {row['subject']} created; members: {_members(row)}")


@group.command(epilog=examples("batchq access group add ml carol"))
@_NAME
@_MEMBERS
@pass_globals
def add(shared: Globals, name: str, users: tuple[str, ...]) -> None:
    """Add members, who have the group's roles from their next request on."""
    row = _done(
        shared,
        ("POST", f"{_PATH}/{quote(name, safe='')}/members", {"add": users}),
        lambda groups, actor: groups.change(name, actor, add=users),
    )
    echo(f"members of {row['subject']}: {_members(row)}")


@group.command(epilog=examples("batchq access group remove ml bob"))
@_NAME
@_MEMBERS
@pass_globals
def remove(shared: Globals, name: str, users: tuple[str, ...]) -> None:
    """Remove members, from the next request on; open streams lose what it showed them."""
    row = _done(
        shared,
        ("POST", f"{_PATH}/{quote(name, safe='')}/members", {"remove": users}),
        lambda groups, actor: groups.change(name, actor, remove=users),
    )
    echo(f"members of {row['subject']}: {_members(row)}")


@group.command(epilog=examples("batchq access group delete ml"))
@_NAME
@pass_globals
def delete(shared: Globals, name: str) -> None:
    """Delete a group, and take its roles away."""
    row = _done(
        shared,
        ("DELETE", f"{_PATH}/{quote(name, safe='')}", None),
        lambda groups, actor: groups.delete(name, actor),
    )
    echo(f"group {row['subject']} deleted; its roles were: {_roles(row)}")


@group.command(
    name="list", epilog=examples("batchq access group list", "batchq access group list -o json")
)
@output_option("table", "json")
@pass_globals
def list_groups(shared: Globals, output: Output) -> None:
    """List groups with their members and roles."""
    if (api := shared.api()) is not None:
        rows = asked_of_api(api, "GET", _PATH)["items"]
    else:
        with delegate_of(shared) as delegate:
            state = delegate.access.state()
        rows = [group_row(one, state) for _, one in sorted(state.groups.items())]
    columns: Columns[dict[str, Any]] = {
        "GROUP": lambda row: row["subject"],
        "MEMBERS": _members,
        "ROLES": _roles,
    }
    form: ListForm[dict[str, Any]] = ListForm(
        lambda some: tabled(some, columns), "there are no local groups", row=lambda row: row
    )
    show_list(output, rows, form)


def _done(
    shared: Globals,
    request: tuple[str, str, object],
    change: Callable[[UserGroups, Actor], object],
) -> dict[str, Any]:
    """Have the API make a change, or make it in the server itself; return the group."""
    if (api := shared.api()) is not None:
        return asked_of_api(api, *request)
    with delegate_of(shared) as delegate:
        done = change(delegate.groups, Actor(user=delegate.user, via="redis"))
        if isinstance(done, UserGroupRecord):
            return group_row(done, delegate.access.state())
    assert isinstance(done, dict)
    return done


def _members(row: dict[str, Any]) -> str:
    return ", ".join(row["members"]) or "none"


def _roles(row: dict[str, Any]) -> str:
    places = (
        f"{one['role']} in {'all namespaces' if one['namespace'] == '*' else one['namespace']}"
        for one in row["roles"]
    )
    return ", ".join(places) or "none"
